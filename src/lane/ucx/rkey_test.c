/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/rkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_strip(const unsigned char *from, size_t from_len, const unsigned char *to,
                         size_t to_len)
{
    unsigned char *bytes = malloc(from_len + 1); /* exact size for a sanitizer */
    assert_non_null(bytes);
    memcpy(bytes, from, from_len);
    assert_int_equal(kvfi_rkey_strip(bytes, from_len), to_len);
    assert_memory_equal(bytes, to, to_len);
    free(bytes);
}

static void real_keys(void **state)
{
    /* host memory on UCX 1.13.1: bits 0, 1 and 4, three empty entries */
    const unsigned char old[12] = {0x13};
    const unsigned char empty[9] = {0};
    assert_true(kvfi_rkey_check(old, sizeof(old)));
    expect_strip(old, sizeof(old), empty, sizeof(empty));

    /* an empty map has nothing to strip */
    expect_strip(empty, sizeof(empty), empty, sizeof(empty));
}

static void mixed_entries(void **state)
{
    const unsigned char mixed[] = {0x87, 0,    0, 0, 0, 0, 0, 0x80, 1, 0,    2,
                                   0xaa, 0xbb, 0, 1, 5, 3, 7, 8,    9, 0x55, 0xff};
    const unsigned char stripped[] = {0x82, 0,    0, 0, 0, 0, 0, 0x80, 1,    2,
                                      0xaa, 0xbb, 1, 5, 3, 7, 8, 9,    0x55, 0xff};
    assert_true(kvfi_rkey_check(mixed, sizeof(mixed)));
    expect_strip(mixed, sizeof(mixed), stripped, sizeof(stripped));
}

static void cut_keys(void **state)
{
    const unsigned char whole[] = {0x03, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 1, 9};
    assert_true(kvfi_rkey_check(whole, sizeof(whole)));
    for (size_t len = 0; len < sizeof(whole); len++) {
        unsigned char *cut = malloc(len + 1);
        assert_non_null(cut);
        memcpy(cut, whole, len);
        unsigned char *exact = realloc(cut, len ? len : 1);
        assert_non_null(exact);
        assert_false(kvfi_rkey_check(exact, len));
        assert_int_equal(kvfi_rkey_strip(exact, len), len);
        assert_memory_equal(exact, whole, len);
        free(exact);
    }
}

static void full_map(void **state)
{
    unsigned char bytes[9 + 64];
    const unsigned char empty[9] = {0};
    memset(bytes, 0xff, 8);
    memset(bytes + 8, 0, sizeof(bytes) - 8);
    assert_true(kvfi_rkey_check(bytes, sizeof(bytes)));
    assert_false(kvfi_rkey_check(bytes, sizeof(bytes) - 1));
    expect_strip(bytes, sizeof(bytes), empty, sizeof(empty));
}

static void plain(void **state)
{
    const unsigned char old[12] = {0x13};
    const unsigned char empty[9] = {0};
    const unsigned char with_key[] = {0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9};
    assert_true(kvfi_rkey_is_plain(old, sizeof(old)));
    assert_true(kvfi_rkey_is_plain(empty, sizeof(empty)));
    assert_false(kvfi_rkey_is_plain(with_key, sizeof(with_key)));
    assert_false(kvfi_rkey_is_plain(old, sizeof(old) - 1));
    assert_false(kvfi_rkey_is_plain(empty, 0));
    const unsigned char cuda[9] = {[8] = 1};
    assert_false(kvfi_rkey_is_plain(cuda, sizeof(cuda)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_keys), cmocka_unit_test(mixed_entries), cmocka_unit_test(cut_keys),
        cmocka_unit_test(full_map),  cmocka_unit_test(plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
