/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/pool.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void memory_is_zeroed_and_found(void **state)
{
    struct kvf_pool *pools[3];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(kvf_pool_create(page * 2 + 1 - i, &pools[i], NULL), KVF_OK);
        assert_int_equal(kvf_pool_length(pools[i]), page * (i == 0 ? 3 : 2));
    }
    for (size_t i = 0; i < 3; i++) {
        const unsigned char *bytes = kvf_pool_address(pools[i]);
        uint64_t start = (uintptr_t)bytes;
        size_t length = kvf_pool_length(pools[i]);
        struct kvfi_pool_place place = {.fd = -1};
        assert_int_equal(start % page, 0);
        for (size_t at = 0; at < length; at++)
            assert_int_equal(bytes[at], 0);
        assert_true(kvfi_pool_find(start, length, &place));
        assert_true(place.fd >= 0 && place.offset == 0);
        assert_true(kvfi_pool_find(start + 100, length - 100, &place));
        assert_true(place.offset == 100);
        assert_false(kvfi_pool_find(start, length + 1, &place));
        assert_false(kvfi_pool_find(start + 1, length, &place));
        assert_false(kvfi_pool_find(start + 1, UINT64_MAX, &place));
        assert_false(kvfi_pool_find(start - 1, 2, &place)); /* a neighbour may end there */
    }
    kvf_pool_destroy(pools[1]);
    struct kvfi_pool_place place;
    assert_true(kvfi_pool_find((uintptr_t)kvf_pool_address(pools[0]), 1, &place));
    assert_true(kvfi_pool_find((uintptr_t)kvf_pool_address(pools[2]), 1, &place));
    kvf_pool_destroy(pools[0]);
    kvf_pool_destroy(pools[2]);
    assert_false(kvfi_pool_find(0, 0, &place));
}

/* Nobody can take pages away from under a peer's copy. */
static void cannot_be_cut(void **state)
{
    struct kvf_pool *pool = NULL;
    struct kvfi_pool_place place;
    assert_int_equal(kvf_pool_create(8192, &pool, NULL), KVF_OK);
    assert_true(kvfi_pool_find((uintptr_t)kvf_pool_address(pool), 1, &place));
    assert_int_equal(ftruncate(place.fd, 4096), -1);
    assert_int_equal(ftruncate(place.fd, 1 << 20), -1);
    assert_true(fcntl(place.fd, F_GETFD) & FD_CLOEXEC);
    kvf_pool_destroy(pool);
}

static void refusals(void **state)
{
    struct kvf_pool *pool = NULL;
    struct kvf_error error = {0};
    assert_int_equal(kvf_pool_create(0, &pool, &error), KVF_EINVAL);
    assert_int_equal(kvf_pool_create(SIZE_MAX, &pool, &error), KVF_EINVAL);
    assert_int_not_equal(kvf_pool_create((size_t)1 << 62, &pool, &error), KVF_OK);
    assert_non_null(strstr(error.text, "pool: "));
    assert_null(pool);
    kvf_pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_found),
        cmocka_unit_test(cannot_be_cut),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("lane/host_pool", tests, NULL, NULL);
}
