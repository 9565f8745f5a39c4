/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_TEST_H
#define KVFI_WIRE_TEST_H

/* What the tests of this folder share. Included after the header under test. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/bytes.h"

#define ITEMS(array) (sizeof(array) / sizeof((array)[0]))

/* Counts what is alive and fails the call number fail_at (from 1; 0: none). */
struct test_alloc {
    size_t live;
    size_t calls;
    size_t fail_at;
    size_t size_max; /* largest request seen */
    struct kvf_allocator allocator;
};

static inline int test_alloc_refuses(struct test_alloc *test, size_t size)
{
    if (size > test->size_max)
        test->size_max = size;
    return ++test->calls == test->fail_at;
}

static inline void *test_alloc_alloc(void *ctx, size_t size)
{
    struct test_alloc *test = ctx;
    if (test_alloc_refuses(test, size))
        return NULL;
    test->live++;
    return malloc(size);
}

static inline void *test_alloc_realloc(void *ctx, void *ptr, size_t size)
{
    return test_alloc_refuses(ctx, size) ? NULL : realloc(ptr, size);
}

static inline void test_alloc_free(void *ctx, void *ptr)
{
    struct test_alloc *test = ctx;
    assert_true(test->live > 0);
    test->live--;
    free(ptr);
}

static inline void test_alloc_init(struct test_alloc *test, size_t fail_at)
{
    *test = (struct test_alloc){.fail_at = fail_at,
                                .allocator = {.ctx = test,
                                              .alloc = test_alloc_alloc,
                                              .realloc = test_alloc_realloc,
                                              .free = test_alloc_free}};
}

/* Runs attempt with the first, second, ... allocation failing until one run needs no failure. Each
 * failed run must say KVF_ENOMEM and leave nothing behind. Returns how many runs failed. */
static inline size_t test_alloc_failures(enum kvf_status (*attempt)(const struct kvf_allocator *))
{
    for (size_t n = 1;; n++) {
        struct test_alloc test;
        test_alloc_init(&test, n);
        enum kvf_status status = attempt(&test.allocator);
        assert_int_equal(test.live, 0);
        if (test.calls < n) {
            assert_int_equal(status, KVF_OK);
            return n - 1;
        }
        assert_int_equal(status, KVF_ENOMEM);
    }
}

/* Bytes from hex digits with white space between them, in a buffer that is exactly as long, so
 * that ASan sees a read past the end. The caller frees .data. */
struct test_bytes {
    uint8_t *data;
    size_t len;
};

static inline unsigned test_hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

static inline struct test_bytes test_hex(const char *text)
{
    struct test_bytes bytes = {.data = malloc(strlen(text) / 2 + 1)};
    assert_non_null(bytes.data);
    while (*text) {
        if (*text == ' ' || *text == '\n') {
            text++;
            continue;
        }
        bytes.data[bytes.len++] = (uint8_t)(test_hex_digit(text[0]) << 4 | test_hex_digit(text[1]));
        text += 2;
    }
    uint8_t *exact = realloc(bytes.data, bytes.len ? bytes.len : 1);
    assert_non_null(exact);
    bytes.data = exact;
    return bytes;
}

static inline struct test_bytes test_copy(const void *data, size_t len)
{
    struct test_bytes bytes = {.data = malloc(len ? len : 1), .len = len};
    assert_non_null(bytes.data);
    if (len)
        memcpy(bytes.data, data, len);
    return bytes;
}

static inline void test_same_bytes(const void *a, size_t a_len, const void *b, size_t b_len)
{
    assert_int_equal(a_len, b_len);
    if (a_len)
        assert_memory_equal(a, b, a_len);
}

static inline void test_span_is(struct kvfi_span span, const char *text)
{
    test_same_bytes(span.data, span.len, text, strlen(text));
}

/* The status, and that the reason mentions what a person needs. */
static inline void test_refused(enum kvf_status got, enum kvf_status expected,
                                const struct kvf_error *error, const char *mentions)
{
    assert_int_equal(got, expected);
    assert_int_equal(error->status, expected);
    if (!strstr(error->text, mentions))
        fail_msg("'%s' does not mention '%s'", error->text, mentions);
}

#endif
