/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void ids_are_found_until_they_are_stale(void **state)
{
    enum { OBJECTS = 100, ROUNDS = 20 };
    static int objects[OBJECTS];
    uint64_t ids[OBJECTS];
    uint64_t old[OBJECTS] = {0};
    struct kvfi_slots slots = {0};
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < OBJECTS; i++) {
            assert_int_equal(kvfi_slots_take(&slots, NULL, &objects[i], &ids[i]), KVF_OK);
            assert_int_not_equal(ids[i], 0);
            assert_null(kvfi_slots_find(&slots, old[i]));
        }
        assert_int_equal(slots.used, OBJECTS);
        for (size_t i = 0; i < OBJECTS; i++) {
            assert_ptr_equal(kvfi_slots_find(&slots, ids[i]), &objects[i]);
            kvfi_slots_leave(&slots, ids[i]);
            assert_null(kvfi_slots_find(&slots, ids[i]));
            old[i] = ids[i];
        }
        assert_int_equal(slots.used, 0);
    }
    assert_int_equal(slots.count, 128); /* used again, not grown */
    kvfi_slots_free(&slots, NULL);
}

static void made_up_ids_are_nobody(void **state)
{
    struct kvfi_slots slots = {0};
    uint64_t id = 0;
    int object = 0;
    assert_null(kvfi_slots_find(&slots, 0));
    assert_null(kvfi_slots_find(&slots, 1));
    assert_int_equal(kvfi_slots_take(&slots, NULL, &object, &id), KVF_OK);
    const uint64_t wrong[] = {0,
                              1,
                              id + 1,
                              id - 1,
                              id & UINT32_MAX,
                              id & ~(uint64_t)UINT32_MAX,
                              id ^ (UINT64_C(1) << 63),
                              UINT64_MAX};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_null(kvfi_slots_find(&slots, wrong[i]));
    assert_ptr_equal(kvfi_slots_find(&slots, id), &object);
    kvfi_slots_free(&slots, NULL);
}

static void *no_alloc(void *ctx, size_t size)
{
    return NULL;
}

static void *no_realloc(void *ctx, void *ptr, size_t size)
{
    return NULL;
}

static void no_free(void *ctx, void *ptr)
{
    free(ptr);
}

static void without_memory_nothing_changes(void **state)
{
    struct kvf_allocator empty = {.alloc = no_alloc, .realloc = no_realloc, .free = no_free};
    struct kvfi_slots slots = {0};
    uint64_t ids[8];
    uint64_t id = 99;
    int object = 0;
    assert_int_equal(kvfi_slots_take(&slots, &empty, &object, &id), KVF_ENOMEM);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(kvfi_slots_take(&slots, NULL, &object, &ids[i]), KVF_OK);
    assert_int_equal(kvfi_slots_take(&slots, &empty, &object, &id), KVF_ENOMEM);
    assert_int_equal(id, 99);
    assert_int_equal(slots.used, 8);
    kvfi_slots_leave(&slots, ids[3]);
    assert_int_equal(kvfi_slots_take(&slots, &empty, &object, &id), KVF_OK);
    assert_int_not_equal(id, ids[3]);
    kvfi_slots_free(&slots, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_found_until_they_are_stale),
        cmocka_unit_test(made_up_ids_are_nobody),
        cmocka_unit_test(without_memory_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
