/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/skew.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Worker addresses as the releases wrote them, on a host with lo and eth0 and no RDMA. */
static const struct golden {
    unsigned minor;
    const char *hex;
} goldens[] = {
    {KVFI_SKEW_LEGACY, /* 1.13.1, every transport */
     "20c0199ca608baa0d32000637577cc2b3200f8d74f00000000004f03c088b7d30a3a385753c521120102dbb1a76a0"
     "8"
     "062bd9f9ffffef00000000cf1917b75138539e3e4bd7e037370113230082ed4121060002c0000202cf1917b751389"
     "7"
     "63344bd7e037370013230082add94208dbb1a76a08062b598d5377cc2b32004c3e5077ccab33004f23c0880f00e30"
     "3"
     "000000004308dbb1a76a08062b59a7d377cc2b32004c3e5077ccab33004f23c0887f7f0000040000c02488dbb1a76"
     "a"
     "08062b59478bbd37063600242e5077ccab3300922100847f7f0000"},
    {KVFI_SKEW_LEGACY, /* 1.13.1, tcp on eth0 */
     "202959f842aa496a2d20860002c0000202cf1917b751389763344bd7e037370013230082e121"},
    {18, "20520cbb21f785e78820060002c0000202cf1917b751389763344bd7e037370013230082d4798280"},
    {18,
     "2054f845303defac0320060002c0000202cf1917b751389763344bd7e0373700132300829a3520120102dbb1a7"
     "6a08062bd9f9ffffef00000000cf1917b75138539e3e4bd7e037370113230082c8778280"},
    {19, "20bff74e751d44448d00060002c0000202cf1917b751389763344bd7e0373700132300828fa58380"},
    {20, "202088b24e22d0520a00060002c0000202cf1917b751389763344bd7e0373700132300828a7d8480"},
    {21, "202d917587b95cca3e00060002c0000202cf1917b751389763344bd7e037370013230082e9a78580"},
    {22, /* every transport */
     "2044432fb4ee9b5feb0000637577cc2b320040975000000000004f03c088c4165cf17f10470701060002c0000202c"
     "f"
     "1917b751389763344bd7e03737001323008288fb010e0102dbb1a76a08062bd9f9ffffefcf1917b75138539e3e4bd"
     "7"
     "e037370113230082b0170208dbb1a76a08062b598d5377cc2b320000705077ccab33004f23c0882800e3030000000"
     "0"
     "0308dbb1a76a08062b59a7d377cc2b320000705077ccab33004f23c0888b7f0000040000c00408dbb1a76a08062b5"
     "9"
     "478bbd37063600242e5077ccab3300922100848b7f00008680"},
    {23, /* a real NIXL agent of the wheel 1.5.1 */
     "204628b2598094d25d0000637577cc2b320040975000000000004f03c088f3e8c3e47607575e01060002c0000202c"
     "f"
     "1917b751389763344bd7e037370013230082a88d010e0102dbb1a76a08062bd9f9ffffefcf1917b75138539e3e4bd"
     "7"
     "e037370113230082803d0208dbb1a76a08062b598d5377cc2b320000705077ccab33004f23c088030057040000000"
     "0"
     "0308dbb1a76a08062b59a7d377cc2b320000705077ccab33004f23c088c66f0080030000c00408dbb1a76a08062b5"
     "9"
     "478bbd37063600242e5077ccab330092210084c66f00008780"},
    {KVFI_SKEW_UNKNOWN, /* 1.13.1, format 2 */
     "0102b438cd6c228d68ee0000637544a4000080001b0388bfdd16ca3e4bb292"},
    {18,
     "21021227372d051ee65e000063754426000080001b0388331e0d2d128cc450"}, /* format 2: the start */
    {22, "6102bfbb345eaaade511000063754426000080001b038825839b25a3dfca60"},
    {23, "710220221310ddbbadbb000063754426000080001b03882f9f148a2b7b2ce2"},
};

/* Exact size, so that a sanitizer sees a read past the end. */
static unsigned char *from_hex(const char *hex, size_t *len_p)
{
    *len_p = strlen(hex) / 2;
    unsigned char *bytes = malloc(*len_p);
    assert_non_null(bytes);
    for (size_t i = 0; i < *len_p; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return bytes;
}

static void golden_addresses(void **state)
{
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        size_t len = 0;
        unsigned char *bytes = from_hex(goldens[i].hex, &len);
        assert_int_equal(kvfi_skew_minor(bytes, len, 13), goldens[i].minor);
        assert_int_equal(kvfi_skew_minor(bytes, len, 22), goldens[i].minor);
        free(bytes);
    }
}

/* Format 1 is read to its end or not at all; no cut and no flipped bit leads outside. */
static void damaged_addresses(void **state)
{
    for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
        size_t whole = 0;
        unsigned char *bytes = from_hex(goldens[i].hex, &whole);
        bool is_format_1 = (bytes[0] & 0x0f) == 0;
        for (size_t len = 0; is_format_1 && len < whole; len++) {
            unsigned char *cut = malloc(len ? len : 1);
            assert_non_null(cut);
            memcpy(cut, bytes, len);
            assert_int_equal(kvfi_skew_minor(cut, len, 22), KVFI_SKEW_UNKNOWN);
            free(cut);
        }
        for (size_t bit = 0; bit < 8 * whole; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << (bit % 8));
            (void)kvfi_skew_minor(bytes, whole, 22);
            bytes[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        }
        free(bytes);
    }
    const unsigned char later[] = {0x22, 1, 2, 3, 4, 5, 6, 7, 8, 0x86, 0x80};
    assert_int_equal(kvfi_skew_minor(later, sizeof(later), 22), KVFI_SKEW_UNKNOWN);
    const unsigned char longer[] = {0x20, 1, 2, 3, 4, 5, 6, 7, 8, 0x86, 0x80, 0};
    assert_int_equal(kvfi_skew_minor(longer, sizeof(longer) - 1, 22), 22);
    assert_int_equal(kvfi_skew_minor(longer, sizeof(longer), 22), KVFI_SKEW_UNKNOWN);
}

static void header_flags(void **state)
{
    const unsigned char all[] = {0x70, 1, 1, 1, 1, 1, 1,   1,   1,   2,    2,   2,
                                 2,    2, 2, 2, 2, 3, 'a', 'b', 'c', 0x86, 0x80};
    assert_int_equal(kvfi_skew_minor(all, sizeof(all), 22), 22);
    const unsigned char none[] = {0x00, 0x86, 0x80};
    assert_int_equal(kvfi_skew_minor(none, sizeof(none), 22), 22);
    /* a device with paths and a system device, without transports, not the last */
    const unsigned char device[] = {0x00, 0x81, 0x62, 1, 2, 3, 4, 0x86, 0x80};
    assert_int_equal(kvfi_skew_minor(device, sizeof(device), 22), 22);
}

static void nearest_minor(void **state)
{
    unsigned char bytes[] = {0x00, 0x86, 0x80};
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 13), 22);
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 29), 22);
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 31), 38);
    bytes[1] = 0x80;
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 22), 16);
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 25), 32);
    bytes[1] = 0x8f;
    assert_int_equal(kvfi_skew_minor(bytes, sizeof(bytes), 22), 31);
}

static void over_loopback(void **state)
{
    static const struct {
        unsigned ours, theirs;
        bool cut;
    } cases[] = {
        {13, 23, true},  {13, 22, true},  {13, 19, true},  {13, 18, false},
        {13, 15, false}, {18, 23, true},  {19, 23, true},  {21, 23, true},
        {21, 22, true},  {22, 23, false}, {22, 22, false}, {21, 21, false},
        {22, 15, true},  {23, 19, true},  {22, 0, false},  {13, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(kvfi_skew_cuts_loopback(cases[i].ours, cases[i].theirs), cases[i].cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_addresses), cmocka_unit_test(damaged_addresses),
        cmocka_unit_test(header_flags),     cmocka_unit_test(nearest_minor),
        cmocka_unit_test(over_loopback),
    };
    return cmocka_run_group_tests_name("lane/ucx_skew", tests, NULL, NULL);
}
