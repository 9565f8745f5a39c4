/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/region_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng_state;

static uint64_t rng(uint64_t below)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return rng_state * 0x2545f4914f6cdd1dULL % below;
}

/* Random, heavily overlapping sets against the definition: if any region covers the query, the
 * answer does; if none holds the first byte, there is no answer. */
static void cover_is_complete(void **state)
{
    enum { REGIONS = 24 };
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct kvfi_region regions[REGIONS];
        struct kvfi_region *pointers[REGIONS];
        struct kvfi_region_set set;
        kvfi_region_set_init(&set, NULL);
        rng_state = seed * 0x9e3779b97f4a7c15ULL;
        size_t count = 0;
        for (size_t i = 0; i < REGIONS; i++) {
            regions[i] = (struct kvfi_region){.addr = rng(40),
                                              .length = 1 + rng(20),
                                              .device_id = rng(2),
                                              .kind = (enum kvf_memory_kind)rng(2)};
            pointers[0] = &regions[i];
            enum kvf_status status = kvfi_region_set_add(&set, pointers, 1);
            assert_true(status == KVF_OK || status == KVF_EEXIST);
            count += status == KVF_OK;
        }
        assert_int_equal(set.count, count);
        for (unsigned query = 0; query < 400; query++) {
            uint64_t addr = rng(64);
            uint64_t length = 1 + rng(8);
            uint64_t device = rng(2);
            enum kvf_memory_kind kind = (enum kvf_memory_kind)rng(2);
            bool covered = false;
            bool held = false;
            for (size_t i = 0; i < set.count; i++) {
                const struct kvfi_region *r = set.sorted[i];
                if (r->kind != kind || r->device_id != device)
                    continue;
                held = held || (r->addr <= addr && addr < r->addr + r->length);
                covered = covered || (r->addr <= addr && addr + length <= r->addr + r->length);
            }
            const struct kvfi_region *found = kvfi_region_set_cover(&set, kind, device, addr);
            assert_int_equal(found != NULL, held);
            if (!found)
                continue;
            assert_true(found->kind == kind && found->device_id == device);
            assert_true(found->addr <= addr && addr < found->addr + found->length);
            if (covered)
                assert_true(addr + length <= found->addr + found->length);
        }
        while (set.count > 0) {
            size_t before = set.count;
            struct kvfi_region *leaving = set.sorted[rng(before)];
            set.sorted[rng(before)]->leaving = true;
            leaving->leaving = true;
            uint64_t epoch = set.epoch;
            kvfi_region_set_remove_leaving(&set);
            assert_true(set.count == before - 1 || set.count == before - 2);
            assert_true(set.epoch > epoch);
            assert_null(kvfi_region_set_exact(&set, leaving->kind, leaving->device_id,
                                              leaving->addr, leaving->length));
        }
        kvfi_region_set_deinit(&set);
    }
}

static void add_is_all_or_nothing(void **state)
{
    struct kvfi_region a = {.addr = 10, .length = 5};
    struct kvfi_region b = {.addr = 20, .length = 5};
    struct kvfi_region twin = {.addr = 10, .length = 5};
    struct kvfi_region *first[] = {&a};
    struct kvfi_region *second[] = {&b, &twin};
    struct kvfi_region_set set;
    kvfi_region_set_init(&set, NULL);
    assert_int_equal(kvfi_region_set_add(&set, first, 1), KVF_OK);
    assert_int_equal(kvfi_region_set_add(&set, second, 2), KVF_EEXIST);
    assert_int_equal(set.count, 1);
    assert_ptr_equal(kvfi_region_set_exact(&set, KVF_MEMORY_DRAM, 0, 10, 5), &a);
    assert_null(kvfi_region_set_exact(&set, KVF_MEMORY_DRAM, 0, 20, 5));
    assert_null(kvfi_region_set_exact(&set, KVF_MEMORY_DRAM, 0, 10, 4));
    assert_null(kvfi_region_set_exact(&set, KVF_MEMORY_VRAM, 0, 10, 5));
    assert_int_equal(kvfi_region_set_add(&set, NULL, 0), KVF_OK);
    kvfi_region_set_deinit(&set);
}

static void last_addresses(void **state)
{
    struct kvfi_region top = {.addr = UINT64_MAX - 8, .length = 8};
    struct kvfi_region *regions[] = {&top};
    struct kvfi_region_set set;
    kvfi_region_set_init(&set, NULL);
    assert_null(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, 0));
    assert_int_equal(kvfi_region_set_add(&set, regions, 1), KVF_OK);
    assert_ptr_equal(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, UINT64_MAX - 1), &top);
    assert_null(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, UINT64_MAX));
    assert_null(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, UINT64_MAX - 9));
    kvfi_region_set_deinit(&set);
}

/* A peer may list a million regions, and each of them twice. That must cost no more than good ones:
 * the test ends at once, or by the runner's limit. */
static void many_twins_are_refused_at_once(void **state)
{
    enum { TWINS = 200000 };
    struct kvfi_region *regions = calloc(2 * (size_t)TWINS, sizeof(*regions));
    struct kvfi_region **pointers = calloc(2 * (size_t)TWINS, sizeof(struct kvfi_region *));
    assert_true(regions && pointers);
    for (size_t i = 0; i < 2 * (size_t)TWINS; i++) {
        regions[i] = (struct kvfi_region){.addr = 16 * (i / 2), .length = 8};
        pointers[i] = &regions[i];
    }
    struct kvfi_region first = {.addr = 1, .length = 1};
    struct kvfi_region *firsts[] = {&first};
    struct kvfi_region_set set;
    kvfi_region_set_init(&set, NULL);
    assert_int_equal(kvfi_region_set_add(&set, firsts, 1), KVF_OK);
    assert_int_equal(kvfi_region_set_add(&set, pointers, 2 * (size_t)TWINS), KVF_EEXIST);
    assert_int_equal(set.count, 1);
    assert_ptr_equal(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, 1), &first);
    assert_null(kvfi_region_set_cover(&set, KVF_MEMORY_DRAM, 0, 16));
    kvfi_region_set_deinit(&set);
    free(pointers);
    free(regions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cover_is_complete),
        cmocka_unit_test(add_is_all_or_nothing),
        cmocka_unit_test(last_addresses),
        cmocka_unit_test(many_twins_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
