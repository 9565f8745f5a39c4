/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const unsigned char identity_bytes[KVFI_HOST_TRAILER_LEN] = {
    1,    3,    0,    0,    0x78, 0x56, 0x34, 0x12, /* version, offers, pid */
    8,    7,    6,    5,    4,    3,    2,    1,    /* start time */
    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* pid namespace */
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* nonce address */
    0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf,
    0,    0,    0,    0,    0,    0,    0,    0,    'K',  'V',  'F',  'H',  'O',  'S',  'T',  0,
};

static const unsigned char key_bytes[KVFI_HOST_KEY_TRAILER_LEN] = {
    1, 2, 0, 0, 0x0d, 0, 0, 0, /* version, kind, fd */
    8, 7, 6, 5, 4,    3, 2, 1, /* address */
    0, 0, 1, 0, 0,    0, 0, 0, /* length */
    9, 0, 0, 0, 0,    0, 0, 0, /* inode */
    0, 2, 0, 0, 0,    0, 0, 0, /* offset */
    0, 0, 0, 0, 0,    0, 0, 0, 'K', 'V', 'F', 'M', 'E', 'M', 'Y', 0,
};

static void golden_identity(void **state)
{
    struct kvfi_host_identity identity = {.offers = 3,
                                          .pid = 0x12345678,
                                          .start_time = UINT64_C(0x0102030405060708),
                                          .pid_namespace = UINT64_C(0x1112131415161718),
                                          .nonce_addr = UINT64_C(0x2122232425262728)};
    for (unsigned i = 0; i < 16; i++) {
        identity.boot_id[i] = (uint8_t)i;
        identity.nonce[i] = (uint8_t)(0xa0 + i);
    }
    unsigned char bytes[3 + KVFI_HOST_TRAILER_LEN] = {7, 7, 7};
    kvfi_host_identity_encode(&identity, bytes + 3);
    assert_memory_equal(bytes + 3, identity_bytes, sizeof(identity_bytes));

    struct kvfi_host_identity seen = {0};
    bool found = false;
    assert_int_equal(kvfi_host_identity_decode(bytes, sizeof(bytes), &seen, &found), 3);
    assert_true(found);
    assert_memory_equal(&seen, &identity, sizeof(seen));
}

static void golden_key(void **state)
{
    const struct kvfi_host_key key = {.kind = KVFI_HOST_POOL,
                                      .addr = UINT64_C(0x0102030405060708),
                                      .length = 65536,
                                      .fd = 13,
                                      .inode = 9,
                                      .offset = 512};
    unsigned char bytes[9 + KVFI_HOST_KEY_TRAILER_LEN] = {0};
    kvfi_host_key_encode(&key, bytes + 9);
    assert_memory_equal(bytes + 9, key_bytes, sizeof(key_bytes));
    struct kvfi_host_key seen = {0};
    bool found = false;
    assert_int_equal(kvfi_host_key_decode(bytes, sizeof(bytes), &seen, &found), 9);
    assert_true(found);
    assert_int_equal(seen.kind, KVFI_HOST_POOL);
    assert_true(seen.addr == key.addr && seen.length == key.length && seen.inode == key.inode &&
                seen.offset == key.offset && seen.fd == key.fd);
}

/* A copy of exactly len bytes, for a sanitizer. */
static unsigned char *exactly(const unsigned char *bytes, size_t len)
{
    unsigned char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    return copy;
}

static void without_a_trailer(void **state)
{
    struct kvfi_host_identity identity;
    struct kvfi_host_key key;
    bool found;
    for (size_t len = 0; len < KVFI_HOST_TRAILER_LEN; len++) {
        unsigned char *cut = exactly(identity_bytes + (KVFI_HOST_TRAILER_LEN - len), len);
        assert_int_equal(kvfi_host_identity_decode(cut, len, &identity, &found), len);
        assert_false(found);
        free(cut);
    }
    for (size_t len = 0; len < KVFI_HOST_KEY_TRAILER_LEN; len++) {
        unsigned char *cut = exactly(key_bytes + (KVFI_HOST_KEY_TRAILER_LEN - len), len);
        assert_int_equal(kvfi_host_key_decode(cut, len, &key, &found), len);
        assert_false(found);
        free(cut);
    }
}

/* Another version is another layout: all of it stays where it is. */
static void another_version_or_magic(void **state)
{
    static const size_t at[] = {0, 72, 75, 79};
    struct kvfi_host_identity identity;
    bool found;
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        unsigned char *bytes = exactly(identity_bytes, KVFI_HOST_TRAILER_LEN);
        bytes[at[i]] ^= 2;
        assert_int_equal(kvfi_host_identity_decode(bytes, KVFI_HOST_TRAILER_LEN, &identity, &found),
                         KVFI_HOST_TRAILER_LEN);
        assert_false(found);
        free(bytes);
    }
}

/* The trailer is ours, but what it says cannot be used: it is cut off all the same. */
static void unusable_keys(void **state)
{
    struct kvfi_host_key key;
    bool found;
    unsigned char *bytes = exactly(key_bytes, KVFI_HOST_KEY_TRAILER_LEN);
    for (unsigned kind = 0; kind < 256; kind++) {
        bytes[1] = (unsigned char)kind;
        assert_int_equal(kvfi_host_key_decode(bytes, KVFI_HOST_KEY_TRAILER_LEN, &key, &found), 0);
        assert_int_equal(found, kind == KVFI_HOST_PLAIN || kind == KVFI_HOST_POOL);
    }
    bytes[1] = KVFI_HOST_PLAIN;
    memset(bytes + 16, 0xff, 8); /* wraps */
    assert_int_equal(kvfi_host_key_decode(bytes, KVFI_HOST_KEY_TRAILER_LEN, &key, &found), 0);
    assert_false(found);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_identity),   cmocka_unit_test(golden_key),
        cmocka_unit_test(without_a_trailer), cmocka_unit_test(another_version_or_magic),
        cmocka_unit_test(unusable_keys),
    };
    return cmocka_run_group_tests_name("lane/host_wire", tests, NULL, NULL);
}
