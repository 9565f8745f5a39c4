/* SPDX-License-Identifier: Apache-2.0 */
#include "geometry/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* xorshift64*: the same seeds give the same plans everywhere. */
static uint64_t rng_state;

static uint64_t rng(uint64_t below)
{
    rng_state ^= rng_state >> 12;
    rng_state ^= rng_state << 25;
    rng_state ^= rng_state >> 27;
    return rng_state * 0x2545f4914f6cdd1dULL % below;
}

static struct kvf_block_table table(uint64_t base, uint64_t stride, uint64_t count, uint64_t device)
{
    return (struct kvf_block_table){
        .base = base, .stride_bytes = stride, .block_count = count, .device_id = device};
}

/* Both sides alike, so that the vectors' addresses can be read off either. */
static struct kvf_plan_region mirror(struct kvf_block_table side, uint64_t length)
{
    return (struct kvf_plan_region){.local = side, .remote = side, .length_bytes = length};
}

static void expect_run(struct kvfi_plan_iter *iter, uint64_t addr, uint64_t length, uint64_t device)
{
    struct kvfi_run run;
    assert_true(kvfi_plan_next(iter, &run));
    assert_int_equal(run.local_addr, addr);
    assert_int_equal(run.remote_addr, addr);
    assert_int_equal(run.length_bytes, length);
    assert_int_equal(run.local_device, device);
    assert_int_equal(run.remote_device, device);
}

static void expect_end(struct kvfi_plan_iter *iter)
{
    struct kvfi_run run;
    assert_false(kvfi_plan_next(iter, &run));
    assert_false(kvfi_plan_next(iter, &run));
}

static void v1_homogeneous(void **state)
{
    const uint32_t ids[] = {2, 5};
    struct kvf_plan_region regions[] = {mirror(table(0x10000, 256, 8, 3), 256),
                                        mirror(table(0x20000, 256, 8, 3), 256)};
    struct kvf_block_pairs group = {.local_ids = ids, .remote_ids = ids, .count = 2};
    struct kvf_plan plan = {
        .regions = regions, .region_count = 2, .groups = &group, .group_count = 1};
    struct kvfi_plan_extent extent;
    struct kvfi_plan_iter iter;

    assert_int_equal(kvfi_plan_check(&plan, &extent, NULL), KVF_OK);
    assert_int_equal(extent.bytes, 1024);
    assert_int_equal(extent.descriptors, 4);
    kvfi_plan_iter(&iter, &plan);
    expect_run(&iter, 0x10200, 256, 3);
    expect_run(&iter, 0x10500, 256, 3);
    expect_run(&iter, 0x20200, 256, 3);
    expect_run(&iter, 0x20500, 256, 3);
    expect_end(&iter);
}

static void v2_padded_stride(void **state)
{
    const uint32_t ids[] = {0, 3};
    struct kvf_plan_region region = mirror(table(0x40000, 4096, 4, 1), 3072);
    struct kvf_block_pairs group = {.local_ids = ids, .remote_ids = ids, .count = 2};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    struct kvfi_plan_iter iter;

    assert_int_equal(kvfi_plan_check(&plan, NULL, NULL), KVF_OK);
    kvfi_plan_iter(&iter, &plan);
    expect_run(&iter, 0x40000, 3072, 1);
    expect_run(&iter, 0x43000, 3072, 1);
    expect_end(&iter);
}

static void v3_pools_of_different_size(void **state)
{
    const uint32_t first[] = {0, 1};
    const uint32_t second[] = {0, 1, 2};
    struct kvf_plan_region regions[] = {mirror(table(100, 16, 2, 0), 16),
                                        mirror(table(1000, 16, 3, 0), 16)};
    regions[1].group = 1;
    struct kvf_block_pairs groups[] = {{.local_ids = first, .remote_ids = first, .count = 2},
                                       {.local_ids = second, .remote_ids = second, .count = 3}};
    struct kvf_plan plan = {
        .regions = regions, .region_count = 2, .groups = groups, .group_count = 2};
    struct kvfi_plan_extent extent;
    struct kvfi_plan_iter iter;

    /* 100, 116 and 1000, 1016, 1032: each pool is one run */
    assert_int_equal(kvfi_plan_check(&plan, &extent, NULL), KVF_OK);
    assert_int_equal(extent.descriptors, 5);
    kvfi_plan_iter(&iter, &plan);
    expect_run(&iter, 100, 32, 0);
    expect_run(&iter, 1000, 48, 0);
    expect_end(&iter);
}

static void adjacent_regions_merge(void **state)
{
    const uint32_t ids[] = {3};
    const uint32_t zero[] = {0};
    struct kvf_plan_region regions[] = {mirror(table(0x1000, 256, 4, 0), 256),
                                        mirror(table(0x1400, 256, 4, 0), 256)};
    regions[1].group = 1;
    struct kvf_block_pairs groups[] = {{.local_ids = ids, .remote_ids = ids, .count = 1},
                                       {.local_ids = zero, .remote_ids = zero, .count = 1}};
    struct kvf_plan plan = {
        .regions = regions, .region_count = 2, .groups = groups, .group_count = 2};
    struct kvfi_plan_iter iter;

    assert_int_equal(kvfi_plan_check(&plan, NULL, NULL), KVF_OK);
    kvfi_plan_iter(&iter, &plan);
    expect_run(&iter, 0x1300, 512, 0);
    expect_end(&iter);

    regions[1].remote.device_id = 1;
    kvfi_plan_iter(&iter, &plan);
    struct kvfi_run run;
    assert_true(kvfi_plan_next(&iter, &run));
    assert_int_equal(run.length_bytes, 256);
    assert_true(kvfi_plan_next(&iter, &run));
    assert_int_equal(run.remote_device, 1);
    expect_end(&iter);
}

/* B81: 1000 blocks, contiguous, every second one, and contiguous on one side only. */
static void run_counts(void **state)
{
    enum { COUNT = 1000 };
    static uint32_t dense[COUNT];
    static uint32_t sparse[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        dense[i] = i;
        sparse[i] = 2 * i;
    }
    struct kvf_plan_region region = mirror(table(0x100000, 64, 2000, 0), 64);
    struct kvf_block_pairs group = {.local_ids = dense, .remote_ids = dense, .count = COUNT};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    const struct {
        const uint32_t *local, *remote;
        size_t runs;
    } cases[] = {
        {dense, dense, 1}, {sparse, sparse, COUNT}, {dense, sparse, COUNT}, {sparse, dense, COUNT}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        group.local_ids = cases[i].local;
        group.remote_ids = cases[i].remote;
        assert_int_equal(kvfi_plan_check(&plan, NULL, NULL), KVF_OK);
        struct kvfi_plan_iter iter;
        struct kvfi_run run;
        size_t runs = 0;
        kvfi_plan_iter(&iter, &plan);
        while (kvfi_plan_next(&iter, &run))
            runs++;
        assert_int_equal(runs, cases[i].runs);
    }
}

static void empty_plans(void **state)
{
    struct kvf_plan plan = {0};
    struct kvfi_plan_extent extent = {1, 1};
    struct kvfi_plan_iter iter;
    assert_int_equal(kvfi_plan_check(&plan, &extent, NULL), KVF_OK);
    assert_int_equal(extent.bytes, 0);
    kvfi_plan_iter(&iter, &plan);
    expect_end(&iter);

    struct kvf_plan_region region = mirror(table(0, 16, 0, 0), 16);
    struct kvf_block_pairs group = {0};
    plan = (struct kvf_plan){
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    assert_int_equal(kvfi_plan_check(&plan, &extent, NULL), KVF_OK);
    kvfi_plan_iter(&iter, &plan);
    expect_end(&iter);
}

/* One valid plan, broken in one place at a time. */
struct broken {
    struct kvf_plan plan;
    struct kvf_plan_region region;
    struct kvf_block_pairs group;
    uint32_t ids[2];
};

static void make_valid(struct broken *b)
{
    *b = (struct broken){.ids = {0, 7}};
    b->region = mirror(table(0x1000, 256, 8, 0), 256);
    b->group = (struct kvf_block_pairs){.local_ids = b->ids, .remote_ids = b->ids, .count = 2};
    b->plan = (struct kvf_plan){
        .regions = &b->region, .region_count = 1, .groups = &b->group, .group_count = 1};
}

static void expect_refused(struct broken *b, const char *words)
{
    struct kvf_error error = {0};
    assert_int_equal(kvfi_plan_check(&b->plan, NULL, &error), KVF_EINVAL);
    assert_int_equal(error.status, KVF_EINVAL);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    make_valid(b);
    assert_int_equal(kvfi_plan_check(&b->plan, NULL, NULL), KVF_OK);
}

static void refusals(void **state)
{
    struct broken b;
    make_valid(&b);
    b.region.group = 1;
    expect_refused(&b, "group 1 does not exist");
    b.region.length_bytes = 0;
    expect_refused(&b, "length per block is 0");
    b.region.local.block_count = 7;
    expect_refused(&b, "local block id 7 is out of range, the region has 7 blocks");
    b.region.remote.block_count = 7;
    expect_refused(&b, "remote block id 7 is out of range");
    b.region.remote.block_count = 0;
    expect_refused(&b, "remote block id 7");
    b.region.length_bytes = 257;
    expect_refused(&b, "local slice");
    b.region.remote.offset_bytes = 1;
    expect_refused(&b, "remote slice");
    b.region.remote.offset_bytes = UINT64_MAX;
    expect_refused(&b, "remote slice");
    b.region.length_bytes = UINT64_MAX;
    expect_refused(&b, "local slice");
    b.region.local.stride_bytes = 0;
    expect_refused(&b, "serves one block only");
    b.region.local.base = UINT64_MAX - 2047;
    expect_refused(&b, "passes the end of the address space");
    b.region.remote.block_count = UINT64_MAX;
    expect_refused(&b, "remote base");
    b.region.remote.stride_bytes = UINT64_MAX / 2;
    expect_refused(&b, "remote base");
    b.region.local.kind = (enum kvf_memory_kind)7;
    expect_refused(&b, "memory kind 7");
    b.group.local_ids = NULL;
    expect_refused(&b, "no id array");
    b.group.remote_ids = NULL;
    expect_refused(&b, "no id array");
    b.plan.regions = NULL;
    expect_refused(&b, "no region array");
    b.plan.groups = NULL;
    expect_refused(&b, "no group array");
}

static void address_space_edge(void **state)
{
    struct broken b;
    make_valid(&b);
    b.region.local.base = UINT64_MAX - 2048; /* last byte is the one before the last address */
    assert_int_equal(kvfi_plan_check(&b.plan, NULL, NULL), KVF_OK);
    b.region.local.base++;
    b.region.local.block_count = 9;
    expect_refused(&b, "passes the end");

    /* the sum of lengths wraps although every address is fine: stride 0, many listings of one id */
    make_valid(&b);
    b.ids[1] = 0;
    b.region.local = table(0, 0, 1, 0);
    b.region.remote = table(0, 0, 1, 0);
    b.region.length_bytes = UINT64_MAX / 2 + 1;
    struct kvf_error error;
    assert_int_equal(kvfi_plan_check(&b.plan, NULL, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "larger than 2^64"));
}

/* The runs, cut into bytes, are the naive expansion cut into bytes, in the same order; and no two
 * neighbouring runs could have been one. */
static void check_against_naive(const struct kvf_plan *plan)
{
    struct kvfi_plan_iter iter;
    struct kvfi_run run = {0};
    struct kvfi_run before;
    uint64_t done = 0;
    bool first = true;

    kvfi_plan_iter(&iter, plan);
    for (size_t r = 0; r < plan->region_count; r++) {
        const struct kvf_plan_region *region = &plan->regions[r];
        const struct kvf_block_pairs *pairs = &plan->groups[region->group];
        for (size_t i = 0; i < pairs->count; i++) {
            uint64_t local = region->local.base + region->local.offset_bytes +
                             pairs->local_ids[i] * region->local.stride_bytes;
            uint64_t remote = region->remote.base + region->remote.offset_bytes +
                              pairs->remote_ids[i] * region->remote.stride_bytes;
            for (uint64_t byte = 0; byte < region->length_bytes; byte++) {
                if (done == run.length_bytes) {
                    before = run;
                    assert_true(kvfi_plan_next(&iter, &run));
                    assert_true(run.length_bytes > 0);
                    if (!first && before.local_device == run.local_device)
                        assert_false(before.local_addr + before.length_bytes == run.local_addr &&
                                     before.remote_addr + before.length_bytes == run.remote_addr);
                    first = false;
                    done = 0;
                }
                assert_int_equal(run.local_addr + done, local + byte);
                assert_int_equal(run.remote_addr + done, remote + byte);
                assert_int_equal(run.local_device, region->local.device_id);
                done++;
            }
        }
    }
    assert_int_equal(done, run.length_bytes);
    expect_end(&iter);
}

static void runs_cover_the_naive_expansion(void **state)
{
    enum { GROUPS = 3, REGIONS = 6, BLOCKS = 12 };
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        rng_state = seed * 0x9e3779b97f4a7c15ULL;
        uint32_t local_ids[GROUPS][BLOCKS];
        uint32_t remote_ids[GROUPS][BLOCKS];
        struct kvf_block_pairs groups[GROUPS];
        struct kvf_plan_region regions[REGIONS];
        for (size_t g = 0; g < GROUPS; g++) {
            size_t count = rng(BLOCKS + 1);
            for (size_t i = 0; i < count; i++) { /* often +1 on each side, so that runs happen */
                bool step = i > 0 && rng(3) > 0;
                local_ids[g][i] = step ? (local_ids[g][i - 1] + 1) % BLOCKS : (uint32_t)rng(BLOCKS);
                remote_ids[g][i] = step && rng(4) > 0 ? (remote_ids[g][i - 1] + 1) % BLOCKS
                                                      : (uint32_t)rng(BLOCKS);
            }
            groups[g] = (struct kvf_block_pairs){
                .local_ids = local_ids[g], .remote_ids = remote_ids[g], .count = count};
        }
        for (size_t r = 0; r < REGIONS; r++) {
            uint64_t length = 1 + rng(8);
            uint64_t pad_local = rng(2) * rng(8);
            uint64_t pad_remote = rng(2) * rng(8);
            regions[r] = (struct kvf_plan_region){
                .local =
                    table(0x1000 + r * BLOCKS * length, length + pad_local, BLOCKS, rng(8) / 7),
                .remote = table(0x9000 + r * BLOCKS * length, length + pad_remote, BLOCKS, 0),
                .length_bytes = length,
                .group = (uint32_t)rng(GROUPS)};
            regions[r].local.offset_bytes = rng(pad_local + 1);
            regions[r].remote.offset_bytes = rng(pad_remote + 1);
        }
        struct kvf_plan plan = {.regions = regions,
                                .region_count = rng(REGIONS + 1),
                                .groups = groups,
                                .group_count = GROUPS};
        assert_int_equal(kvfi_plan_check(&plan, NULL, NULL), KVF_OK);
        check_against_naive(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v1_homogeneous),
        cmocka_unit_test(v2_padded_stride),
        cmocka_unit_test(v3_pools_of_different_size),
        cmocka_unit_test(adjacent_regions_merge),
        cmocka_unit_test(run_counts),
        cmocka_unit_test(empty_plans),
        cmocka_unit_test(refusals),
        cmocka_unit_test(address_space_edge),
        cmocka_unit_test(runs_cover_the_naive_expansion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
