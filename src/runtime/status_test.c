/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/kvferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_every_status_has_its_texts(void **state)
{
    assert_string_equal(kvf_status_name(KVF_OK), "KVF_OK");
    assert_string_equal(kvf_status_name(KVF_ETIMEDOUT), "KVF_ETIMEDOUT");
    assert_string_equal(kvf_status_text(KVF_EDISCONNECTED), "the peer is gone");
    assert_string_equal(kvf_status_scope(KVF_EDISCONNECTED), "peer");
    assert_string_equal(kvf_status_scope(KVF_EINTERNAL), "self");
    assert_string_equal(kvf_status_name((enum kvf_status)77), "unknown status");
    assert_string_equal(kvf_status_text((enum kvf_status) - 77), "unknown status");
}

static void test_fail_fills_and_returns(void **state)
{
    struct kvf_error error = {0};
    assert_int_equal(kvf_fail(&error, KVF_EINVAL, "port %d", 7), KVF_EINVAL);
    assert_int_equal(error.status, KVF_EINVAL);
    assert_string_equal(error.text, "port 7");
    assert_int_equal(kvf_fail(NULL, KVF_EBUSY, "nobody reads this"), KVF_EBUSY);
}

static void test_a_long_text_ends_in_dots(void **state)
{
    struct kvf_error error = {0};
    char longer[1000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(kvf_fail(&error, KVF_EINVAL, "%s", longer), KVF_EINVAL);
    assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
    assert_string_equal(error.text + sizeof(error.text) - 5, "x...");
}

static void test_the_version_is_the_headers(void **state)
{
    char version[32];
    snprintf(version, sizeof(version), "%d.%d.%d", KVF_VERSION_MAJOR, KVF_VERSION_MINOR,
             KVF_VERSION_PATCH);
    assert_string_equal(kvf_version(), version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status_has_its_texts),
        cmocka_unit_test(test_fail_fills_and_returns),
        cmocka_unit_test(test_a_long_text_ends_in_dots),
        cmocka_unit_test(test_the_version_is_the_headers),
    };
    return cmocka_run_group_tests_name("runtime/status", tests, NULL, NULL);
}
