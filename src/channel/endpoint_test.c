/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/endpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect(const char *host, const char *text, bool ipv6)
{
    struct kvfi_endpoint endpoint = {0};
    struct kvf_error error = {0};
    if (kvfi_endpoint_resolve(host, 5600, &endpoint, &error) != KVF_OK)
        fail_msg("%s: %s", host, error.text);
    assert_string_equal(endpoint.text, text);
    assert_int_equal(endpoint.ipv6, ipv6);
    assert_true(kvfi_endpoint_is_local_knowledge(host));
}

/* B92 */
static void test_literals_of_both_families(void **state)
{
    expect("127.0.0.1", "tcp://127.0.0.1:5600", false);
    expect("10.1.2.3", "tcp://10.1.2.3:5600", false);
    expect("::1", "tcp://[::1]:5600", true);
    expect("[::1]", "tcp://[::1]:5600", true);
    expect("fd00::5", "tcp://[fd00::5]:5600", true);
    expect("fe80::1%lo", "tcp://[fe80::1%lo]:5600", true);
}

static void test_localhost_is_ipv4_first(void **state)
{
    expect("localhost", "tcp://127.0.0.1:5600", false);
}

static void test_bad_hosts_are_named(void **state)
{
    struct kvfi_endpoint endpoint = {.text = "untouched"};
    struct kvf_error error;
    char longer[400];
    memset(longer, 'h', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(kvfi_endpoint_resolve("", 1, &endpoint, &error), KVF_EINVAL);
    assert_int_equal(kvfi_endpoint_resolve(NULL, 1, &endpoint, &error), KVF_EINVAL);
    assert_int_equal(kvfi_endpoint_resolve("[]", 1, &endpoint, &error), KVF_EINVAL);
    assert_int_equal(kvfi_endpoint_resolve(longer, 1, &endpoint, &error), KVF_EINVAL);
    assert_int_equal(kvfi_endpoint_resolve("1.2.3.4.5 6", 1, &endpoint, &error), KVF_ENOTFOUND);
    assert_non_null(strstr(error.text, "host \"1.2.3.4.5 6\": "));
    assert_string_equal(endpoint.text, "untouched");
    assert_false(kvfi_endpoint_is_local_knowledge("prefill.invalid"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literals_of_both_families),
        cmocka_unit_test(test_localhost_is_ipv4_first),
        cmocka_unit_test(test_bad_hosts_are_named),
    };
    return cmocka_run_group_tests_name("channel/endpoint", tests, NULL, NULL);
}
