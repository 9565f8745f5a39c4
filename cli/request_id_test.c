/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/request_id.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_sane(void **state)
{
    assert_true(kvfi_request_id_is_sane("a"));
    assert_true(kvfi_request_id_is_sane("6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab"));
    assert_true(kvfi_request_id_is_sane("A.b_c:9"));
    assert_false(kvfi_request_id_is_sane(""));
    assert_false(kvfi_request_id_is_sane("a b"));
    assert_false(kvfi_request_id_is_sane("a\xc3\xa9"));
    assert_false(kvfi_request_id_is_sane("a\"b"));
    char text[KVFI_REQUEST_ID_LEN_MAX + 2];
    memset(text, 'a', sizeof(text));
    text[KVFI_REQUEST_ID_LEN_MAX + 1] = '\0';
    assert_false(kvfi_request_id_is_sane(text));
    text[KVFI_REQUEST_ID_LEN_MAX] = '\0';
    assert_true(kvfi_request_id_is_sane(text));
}

static void test_uuid(void **state)
{
    char a[KVFI_UUID_LEN + 1];
    char b[KVFI_UUID_LEN + 1];
    assert_int_equal(kvfi_uuid4(a, NULL), KVF_OK);
    assert_int_equal(kvfi_uuid4(b, NULL), KVF_OK);
    assert_int_equal(strlen(a), KVFI_UUID_LEN);
    assert_string_not_equal(a, b);
    assert_int_equal(a[14], '4');
    assert_non_null(strchr("89ab", a[19]));
    assert_true(kvfi_request_id_is_sane(a));
    /* No uuid looks like an id with a suffix. */
    assert_int_equal(kvfi_request_id_base_len(a), KVFI_UUID_LEN);
}

/* The table of vLLM's rule. */
static void test_base(void **state)
{
    static const char *const cases[][2] = {
        {"cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0-1a2b3c4d",
         "cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0"},
        {"cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0",
         "cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0"},
        {"chatcmpl-x-DEADBEEF", "chatcmpl-x"},
        {"0_cmpl-x-1-0000ffff", "0_cmpl-x-1"},
        {"abc-1234567g", "abc-1234567g"},
        {"abc-12345678-0", "abc-12345678-0"},
        {"-12345678", ""},
        {"12345678", "12345678"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(kvfi_request_id_base_len(cases[i][0]), strlen(cases[i][1]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sane),
        cmocka_unit_test(test_uuid),
        cmocka_unit_test(test_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
