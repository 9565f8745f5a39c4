/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kvfi_upstream parse(enum kvfi_side side, const char *spec)
{
    struct kvfi_upstream upstream = {0};
    struct kvf_error error = {0};
    if (kvfi_upstream_parse(side, spec, &upstream, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return upstream;
}

static void test_specs(void **state)
{
    struct kvfi_upstream own = parse(KVFI_SIDE_PREFILL, "http://a:1");
    assert_false(own.foreign);
    assert_string_equal(own.name, "http://a:1");
    assert_string_equal(own.describe, "/kvferry/coordinates");
    free(own.name);

    struct kvfi_upstream other = parse(
        KVFI_SIDE_PREFILL, "http://a:1/base/,engine-id=X,side=[::1]:5600,tp=2,pp=3,model=org/m");
    assert_true(other.foreign);
    assert_string_equal(other.health, "/base/health");
    assert_string_equal(other.coordinates.engine_id, "X");
    assert_string_equal(other.coordinates.host, "::1");
    assert_int_equal(other.coordinates.port, 5600);
    assert_int_equal(other.coordinates.tp_size, 2);
    assert_int_equal(other.coordinates.pp_size, 3);
    assert_string_equal(other.model, "org/m");
    free(other.name);

    struct kvfi_upstream decode = parse(KVFI_SIDE_DECODE, "http://a:1,foreign");
    assert_true(decode.foreign);
    assert_int_equal(decode.coordinates.tp_size, 1);
    free(decode.name);
}

static void test_refusals(void **state)
{
    static const char *const cases[][2] = {
        {"", "host"},
        {"http://a:x", "port"},
        {"http://a:1,foreign", "both engine-id= and side="},
        {"http://a:1,engine-id=X", "both engine-id= and side="},
        {"http://a:1,side=h:1", "both engine-id= and side="},
        {"http://a:1,engine-id=,side=h:1", "engine-id"},
        {"http://a:1,engine-id=X,side=h:0", "side=h:0"},
        {"http://a:1,engine-id=X,side=http://h:1", "HOST:PORT"},
        {"http://a:1,engine-id=X,side=h:1,tp=0", "tp=0"},
        {"http://a:1,engine-id=X,side=h:1,pp=2x", "pp=2x"},
        {"http://a:1,engine-id=X,side=h:1,rank=1", "'rank'"},
        {"http://a:1,engine-id", "'engine-id'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvfi_upstream upstream = {0};
        struct kvf_error error = {0};
        if (kvfi_upstream_parse(KVFI_SIDE_PREFILL, cases[i][0], &upstream, &error) == KVF_OK)
            fail_msg("accepted: %s", cases[i][0]);
        if (!strstr(error.text, cases[i][1]))
            fail_msg("'%s' does not say '%s'", error.text, cases[i][1]);
        assert_null(upstream.name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
