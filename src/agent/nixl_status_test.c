/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Every status has a number of NIXL's, of the right sign, and those with a twin have the twin's. */
static void every_status_has_one(void **state)
{
    static const enum kvf_status all[] = {
#define STATUS(name, value, text, scope) name,
        KVF_STATUS_LIST(STATUS)
#undef STATUS
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int nixl = kvf_status_nixl(all[i]);
        assert_true(nixl >= -12 && nixl <= 1);
        assert_int_equal(nixl < 0, all[i] < 0);
        assert_int_equal(nixl == 0, all[i] == KVF_OK);
    }
    assert_int_equal(kvf_status_nixl(KVF_IN_PROGRESS), 1);
    assert_int_equal(kvf_status_nixl(KVF_EINVAL), -2);
    assert_int_equal(kvf_status_nixl(KVF_ETRANSPORT), -3);
    assert_int_equal(kvf_status_nixl(KVF_ENOTFOUND), -4);
    assert_int_equal(kvf_status_nixl(KVF_EFORMAT), -5);
    assert_int_equal(kvf_status_nixl(KVF_ENOTALLOWED), -6);
    assert_int_equal(kvf_status_nixl(KVF_EBUSY), -7);
    assert_int_equal(kvf_status_nixl(KVF_EINTERNAL), -8);
    assert_int_equal(kvf_status_nixl(KVF_ENOTSUP), -9);
    assert_int_equal(kvf_status_nixl(KVF_EDISCONNECTED), -10);
    assert_int_equal(kvf_status_nixl(KVF_ECANCELED), -11);
    assert_int_equal(kvf_status_nixl((enum kvf_status)12345), -8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_status_has_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
