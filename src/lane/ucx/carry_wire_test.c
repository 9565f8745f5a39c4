/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/carry_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const unsigned char data_bytes[KVFI_CARRY_HEADER_LEN] = {
    1, 1, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0xf8, 0xf7, 0xf6, 0xf5, 0xf4, 0xf3, 0xf2, 0xf1};
static const unsigned char landed_bytes[KVFI_CARRY_HEADER_LEN] = {1, 2, 0, 0, 1, 0, 0, 0,
                                                                  8, 7, 6, 5, 4, 3, 2, 1};

static void golden_headers(void **state)
{
    const struct kvfi_carry_header data = {.kind = KVFI_CARRY_DATA,
                                           .token = UINT64_C(0x0102030405060708),
                                           .addr = UINT64_C(0xf1f2f3f4f5f6f7f8)};
    const struct kvfi_carry_header landed = {.kind = KVFI_CARRY_LANDED,
                                             .result = KVFI_CARRY_REFUSED,
                                             .token = UINT64_C(0x0102030405060708)};
    unsigned char bytes[KVFI_CARRY_HEADER_LEN];
    struct kvfi_carry_header seen;
    kvfi_carry_encode(&data, bytes);
    assert_memory_equal(bytes, data_bytes, sizeof(bytes));
    assert_true(kvfi_carry_decode(bytes, sizeof(bytes), &seen));
    assert_int_equal(seen.kind, KVFI_CARRY_DATA);
    assert_int_equal(seen.result, 0);
    assert_true(seen.token == data.token && seen.addr == data.addr);
    kvfi_carry_encode(&landed, bytes);
    assert_memory_equal(bytes, landed_bytes, sizeof(bytes));
    assert_true(kvfi_carry_decode(bytes, sizeof(bytes), &seen));
    assert_int_equal(seen.kind, KVFI_CARRY_LANDED);
    assert_int_equal(seen.result, KVFI_CARRY_REFUSED);
    assert_true(seen.token == landed.token && seen.addr == 0);
}

static void refused_headers(void **state)
{
    struct kvfi_carry_header seen;
    for (size_t len = 0; len <= 2 * sizeof(data_bytes); len++) {
        if (len == sizeof(data_bytes))
            continue;
        unsigned char *bytes = calloc(1, len ? len : 1); /* exact size for a sanitizer */
        assert_non_null(bytes);
        memcpy(bytes, data_bytes, len < sizeof(data_bytes) ? len : sizeof(data_bytes));
        assert_false(kvfi_carry_decode(bytes, len, &seen));
        free(bytes);
    }
    for (unsigned value = 0; value < 256; value++) {
        unsigned char bytes[KVFI_CARRY_HEADER_LEN];
        memcpy(bytes, data_bytes, sizeof(bytes));
        bytes[0] = (unsigned char)value;
        assert_int_equal(kvfi_carry_decode(bytes, sizeof(bytes), &seen), value == 1);
        memcpy(bytes, data_bytes, sizeof(bytes));
        bytes[1] = (unsigned char)value;
        assert_int_equal(kvfi_carry_decode(bytes, sizeof(bytes), &seen), value == 1 || value == 2);
    }
}

static void trailers(void **state)
{
    const unsigned char golden[3 + KVFI_TRAILER_LEN] = {9,   9,   9,   'K', 'V', 'F',
                                                        'E', 'R', 'R', 'Y', 0,   1};
    unsigned char bytes[3 + KVFI_TRAILER_LEN] = {9, 9, 9};
    uint64_t abilities = 7;
    kvfi_trailer_encode(KVFI_TRAILER_CARRY, bytes + 3);
    assert_memory_equal(bytes, golden, sizeof(bytes));
    assert_int_equal(kvfi_trailer_decode(bytes, sizeof(bytes), &abilities), 3);
    assert_true(abilities == KVFI_TRAILER_CARRY);
    assert_int_equal(kvfi_trailer_decode(bytes + 3, KVFI_TRAILER_LEN, &abilities), 0);
    assert_true(abilities == KVFI_TRAILER_CARRY);

    /* without one, the address is all of it */
    for (size_t len = 0; len < sizeof(bytes); len++) {
        abilities = 7;
        assert_int_equal(kvfi_trailer_decode(bytes, len, &abilities), len);
        assert_true(abilities == 0);
    }
    for (size_t i = 3; i < 11; i++) {
        bytes[i] ^= 1;
        assert_int_equal(kvfi_trailer_decode(bytes, sizeof(bytes), &abilities), sizeof(bytes));
        assert_true(abilities == 0);
        bytes[i] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_headers),
        cmocka_unit_test(refused_headers),
        cmocka_unit_test(trailers),
    };
    return cmocka_run_group_tests_name("lane/ucx_carry_wire", tests, NULL, NULL);
}
