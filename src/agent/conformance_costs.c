/* SPDX-License-Identifier: Apache-2.0 */
/* What a transfer costs in memory: nothing on the way, and little while it waits. */
#include "agent/conformance.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)256)
#define BLOCKS ((size_t)1024)
#define POOL   (BLOCK * BLOCKS)

static void start(struct conf_rig *rig, struct conf_memory *memory)
{
    conf_memory_init(memory);
    *rig = (struct conf_rig){.lane = conf_lane};
    struct kvfi_mem_net_options options = {.eventfd = true};
    rig->net = kvfi_mem_net_create(&options);
    assert_non_null(rig->net);
    conf_open_with(rig, &rig->a, NULL, POOL, &memory->allocator);
    conf_open(rig, &rig->b, NULL, POOL);
    conf_join(rig);
    rig->a.ids_come_again = true; /* comparing all of them takes long */
}

static uint32_t ids_a[BLOCKS], ids_b[BLOCKS];

static size_t wanted;

static bool all_done(struct conf_rig *rig)
{
    struct kvf_agent_usage usage;
    kvf_agent_usage(rig->a.agent, &usage);
    return usage.transfers == 0 && usage.notifications == 0 && rig->b.message_count >= wanted;
}

/* One round: transfers of both kinds and directions, with and without notification, one released,
 * and a lone message. */
static void round_of_posts(struct conf_rig *rig, struct kvf_transfer_id prepared, uint64_t *seed)
{
    struct kvf_error error = {0};
    struct kvf_plan_region region = conf_region(&rig->a, &rig->b, BLOCK, BLOCK);
    size_t first = conf_random(seed, BLOCKS / 2);
    struct kvf_block_pairs group = {
        .local_ids = ids_a + first, .remote_ids = ids_b + first, .count = 8};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    struct kvf_transfer_id id;
    for (size_t i = 0; i < 3; i++) {
        group.count = 1 + conf_random(seed, 16);
        assert_int_equal(kvf_agent_post(rig->a.agent, i == 1 ? KVF_READ : KVF_WRITE, rig->b_at_a,
                                        &plan, i == 0 ? NULL : "sixteen bytes...", i == 0 ? 0 : 16,
                                        0, &id, &error),
                         KVF_OK);
    }
    assert_int_equal(kvf_agent_release(rig->a.agent, id), KVF_OK);
    assert_int_equal(kvf_agent_post_prepared(rig->a.agent, prepared, "x", 1, 0, &error), KVF_OK);
    assert_int_equal(kvf_agent_notify(rig->a.agent, rig->b_at_a, "lone", 4, 0, &error), KVF_OK);
    wanted += 4;
    conf_drive(rig, all_done);
}

static void posting_takes_no_memory(void **state)
{
    enum { WARM_UP = 100, ROUNDS = 2500 }; /* of 4 posts and a message */
    struct conf_rig rig;
    struct conf_memory memory;
    struct kvf_error error;
    struct kvf_transfer_id prepared;
    uint64_t seed = 17;
    start(&rig, &memory);
    conf_shuffle(ids_a, BLOCKS, &seed);
    conf_shuffle(ids_b, BLOCKS, &seed);
    wanted = 0;
    struct kvf_plan_region region = conf_region(&rig.a, &rig.b, BLOCK, BLOCK);
    struct kvf_block_pairs group = {.local_ids = ids_a, .remote_ids = ids_b, .count = 16};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    assert_int_equal(
        kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, &prepared, &error), KVF_OK);
    for (size_t i = 0; i < WARM_UP; i++)
        round_of_posts(&rig, prepared, &seed);
    uint64_t calls = memory.calls;
    size_t live = memory.live;
    for (size_t i = 0; i < ROUNDS; i++)
        round_of_posts(&rig, prepared, &seed);
    assert_int_equal(memory.calls - calls, 0);
    assert_int_equal(memory.live, live);
    assert_int_equal(kvf_agent_release(rig.a.agent, prepared), KVF_OK);
    conf_stop(&rig);
    assert_int_equal(memory.live, 0);
}

/* 1,000 requests over many regions, planned: 8 bytes a block and 1 KiB each at most. */
static void a_plan_costs_its_block_lists(void **state)
{
    enum { REQUESTS = 1000, REGIONS = 128, PER_REQUEST = 118 };
    struct conf_rig rig;
    struct conf_memory memory;
    struct kvf_error error = {0};
    struct kvf_plan_region regions[REGIONS];
    struct kvf_transfer_id *ids = calloc(REQUESTS, sizeof(ids[0]));
    uint64_t seed = 23;
    assert_non_null(ids);
    start(&rig, &memory);
    conf_shuffle(ids_a, BLOCKS, &seed);
    conf_shuffle(ids_b, BLOCKS, &seed);
    for (size_t i = 0; i < REGIONS; i++) { /* two bytes of each block */
        regions[i] = conf_region(&rig.a, &rig.b, BLOCK, 2);
        regions[i].local.offset_bytes = regions[i].remote.offset_bytes = 2 * i;
    }
    size_t before = memory.live;
    for (size_t i = 0; i < REQUESTS; i++) {
        size_t first = conf_random(&seed, BLOCKS - PER_REQUEST);
        struct kvf_block_pairs group = {
            .local_ids = ids_a + first, .remote_ids = ids_b + first, .count = PER_REQUEST};
        struct kvf_plan plan = {
            .regions = regions, .region_count = REGIONS, .groups = &group, .group_count = 1};
        if (kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, &ids[i], &error) != KVF_OK)
            fail_msg("prepare: %s", error.text);
    }
    size_t each = (memory.live - before) / REQUESTS;
    if (each > 8 * PER_REQUEST + 1024)
        fail_msg("%zu bytes for a request of %d blocks", each, PER_REQUEST);
    for (size_t i = 0; i < REQUESTS; i++)
        assert_int_equal(kvf_agent_release(rig.a.agent, ids[i]), KVF_OK);
    assert_true(memory.live < before + 65536); /* one table, and the slots of the ids */
    free(ids);
    conf_stop(&rig);
    assert_int_equal(memory.live, 0);
}

/* Plans of ever other regions leave nothing behind. */
static void tables_of_regions_go_with_their_plans(void **state)
{
    enum { ROUNDS = 2000, HELD = 20 };
    struct conf_rig rig;
    struct conf_memory memory;
    struct kvf_error error = {0};
    struct conf_block_plan made;
    struct kvf_transfer_id ids[HELD] = {{0}};
    start(&rig, &memory);
    size_t base = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        conf_one_block(&made, conf_region(&rig.a, &rig.b, BLOCK, 1 + i % 200), i % BLOCKS);
        struct kvf_transfer_id *id = &ids[i % HELD];
        if (i >= HELD)
            assert_int_equal(kvf_agent_release(rig.a.agent, *id), KVF_OK);
        assert_int_equal(
            kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, &made.plan, id, &error), KVF_OK);
        if (i == ROUNDS / 2)
            base = memory.live;
    }
    assert_true(memory.live <= base + 1024);
    for (size_t i = 0; i < HELD; i++)
        assert_int_equal(kvf_agent_release(rig.a.agent, ids[i]), KVF_OK);
    conf_stop(&rig);
    assert_int_equal(memory.live, 0);
}

int conf_run_costs(void)
{
    const struct CMUnitTest costs[] = {
        cmocka_unit_test(posting_takes_no_memory),
        cmocka_unit_test(a_plan_costs_its_block_lists),
        cmocka_unit_test(tables_of_regions_go_with_their_plans),
    };
    return cmocka_run_group_tests(costs, NULL, NULL);
}
