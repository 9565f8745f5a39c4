/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/worker.h"

#include "wire/compat_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_order_is_region_then_block(void **state)
{
    uint8_t cache[64];
    for (size_t i = 0; i < sizeof(cache); i++)
        cache[i] = (uint8_t)i;
    /* Two regions of four blocks of 6 bytes, 8 apart. */
    const struct kvf_kv_region regions[] = {
        {.base = cache, .block_bytes = 6, .stride_bytes = 8, .block_count = 4},
        {.base = cache + 32, .block_bytes = 6, .stride_bytes = 8, .block_count = 4},
    };
    const uint32_t block_ids[] = {3, 0};
    uint8_t expected[24];
    memcpy(expected, cache + 24, 6);
    memcpy(expected + 6, cache, 6);
    memcpy(expected + 12, cache + 56, 6);
    memcpy(expected + 18, cache + 32, 6);
    char want[KVFI_CHECKSUM_LEN + 1];
    char have[KVFI_CHECKSUM_LEN + 1];
    assert_int_equal(kvfi_sha256_hex(expected, sizeof(expected), want, NULL), KVF_OK);
    assert_true(kvfi_checksum_blocks(regions, 2, block_ids, 2, have));
    assert_string_equal(have, want);
    cache[6]++; /* padding does not count */
    assert_true(kvfi_checksum_blocks(regions, 2, block_ids, 2, have));
    assert_string_equal(have, want);
    cache[0]++;
    assert_true(kvfi_checksum_blocks(regions, 2, block_ids, 2, have));
    assert_string_not_equal(have, want);
}

static void test_what_cannot_be_read_has_no_checksum(void **state)
{
    uint8_t cache[16] = {0};
    struct kvf_kv_region region = {
        .base = cache, .block_bytes = 8, .stride_bytes = 8, .block_count = 2};
    const uint32_t beyond[] = {0, 2};
    char hex[KVFI_CHECKSUM_LEN + 1] = "x";
    assert_false(kvfi_checksum_blocks(&region, 1, beyond, 2, hex));
    assert_string_equal(hex, "");
    region.kind = KVF_MEMORY_VRAM;
    assert_false(kvfi_checksum_blocks(&region, 1, beyond, 1, hex));
    assert_string_equal(hex, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_is_region_then_block),
        cmocka_unit_test(test_what_cannot_be_read_has_no_checksum),
    };
    return cmocka_run_group_tests_name("kv/checksum", tests, NULL, NULL);
}
