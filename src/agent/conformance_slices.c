/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that are too large to be posted at once: fair to small ones, and whole in the end. */
#include "agent/conformance.h"

#include <stdlib.h>
#include <string.h>

#define SMALL  ((size_t)64)
#define BLOCKS ((size_t)20000)
#define POOL   (SMALL * BLOCKS)

static uint32_t *from, *to;

static int shuffle(void **state)
{
    uint64_t seed = 41;
    from = malloc(BLOCKS * sizeof(from[0]));
    to = malloc(BLOCKS * sizeof(to[0]));
    if (!from || !to)
        return -1;
    conf_shuffle(from, BLOCKS, &seed);
    conf_shuffle(to, BLOCKS, &seed);
    return 0;
}

static int unshuffle(void **state)
{
    free(from);
    free(to);
    return 0;
}

static struct kvf_transfer_id post_huge(struct conf_rig *rig, enum kvf_operation operation,
                                        const char *notification)
{
    return conf_post_blocks(rig, operation, conf_region(&rig->a, &rig->b, SMALL, SMALL), from, to,
                            BLOCKS, notification);
}

static void expect_moved(const struct conf_rig *rig)
{
    for (size_t i = 0; i < BLOCKS; i++)
        assert_memory_equal(rig->a.pool + from[i] * SMALL, rig->b.pool + to[i] * SMALL, SMALL);
}

/* What is posted behind large ones, to the same peer, ends long before them. */
static void small_ones_overtake(void **state)
{
    enum { HUGE_ONES = 3, SMALL_ONES = 5 };
    struct conf_rig rig;
    struct kvf_transfer_id ids[SMALL_ONES];
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 1);
    for (size_t i = 0; i < HUGE_ONES; i++)
        (void)post_huge(&rig, KVF_WRITE, "huge");
    struct conf_block_plan made;
    for (uint32_t i = 0; i < SMALL_ONES; i++) {
        conf_one_block(&made, conf_region(&rig.a, &rig.b, SMALL, SMALL), i);
        ids[i] = conf_post(&rig, KVF_READ, &made.plan, "small");
    }
    conf_drive_counts(&rig, HUGE_ONES + SMALL_ONES, HUGE_ONES + SMALL_ONES);
    for (size_t i = 0; i < SMALL_ONES; i++)
        assert_int_equal(rig.a.results[i].transfer.value, ids[i].value);
    for (size_t i = 0; i < HUGE_ONES + SMALL_ONES; i++) {
        bool huge = i >= SMALL_ONES;
        assert_int_equal(rig.a.results[i].status, KVF_OK);
        assert_int_equal(rig.b.messages[i].len, huge ? strlen("huge") : strlen("small"));
        assert_int_equal(rig.a.results[i].stats.bytes, huge ? POOL : SMALL);
        assert_true(rig.a.results[i].stats.run_count >= (huge ? BLOCKS / 2 : 1));
    }
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    conf_stop(&rig);
}

/* Large in bytes, not in runs: one run is cut. */
static void one_run_of_many_bytes(void **state)
{
    enum { LARGE = 40 << 20 };
    struct conf_rig rig;
    struct kvf_error error;
    const uint32_t zero = 0;
    conf_start(&rig, LARGE);
    conf_join(&rig);
    conf_fill(rig.a.pool, LARGE, 2);
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, LARGE, LARGE), &zero, &zero, 1,
                     "there");
    struct conf_block_plan made;
    conf_one_block(&made, conf_region(&rig.a, &rig.b, SMALL, SMALL), 1);
    struct kvf_transfer_id small = conf_post(&rig, KVF_READ, &made.plan, NULL);
    conf_drive_counts(&rig, 2, 1);
    assert_int_equal(rig.a.results[0].transfer.value, small.value);
    assert_true(rig.a.results[1].stats.run_count > 1);
    assert_true(rig.a.results[1].stats.post_end_ns >= rig.a.results[0].stats.post_start_ns);
    assert_memory_equal(rig.a.pool, rig.b.pool, LARGE);
    memset(rig.a.pool, 0, LARGE);
    struct kvf_block_pairs group = {.local_ids = &zero, .remote_ids = &zero, .count = 1};
    struct kvf_plan_region region = conf_region(&rig.a, &rig.b, LARGE, LARGE);
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    struct kvf_transfer_id id;
    rig.a.ids_come_again = true;
    assert_int_equal(kvf_agent_prepare(rig.a.agent, KVF_READ, rig.b_at_a, &plan, &id, &error),
                     KVF_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(kvf_agent_post_prepared(rig.a.agent, id, "back", 4, 0, &error), KVF_OK);
        conf_drive_counts(&rig, 3 + i, 2 + i);
    }
    assert_memory_equal(rig.a.pool, rig.b.pool, LARGE);
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
    conf_stop(&rig);
}

/* Let go, or its peer dropped, after the first slice: the rest is not posted, nobody is notified,
 * the memory is held until what was posted has ended. */
static void cut_short(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 3);
    for (size_t round = 0; round < 4; round++) {
        bool dropped = round % 2;
        size_t results = rig.a.result_count;
        struct kvf_transfer_id id = post_huge(&rig, KVF_WRITE, "never");
        if (round >= 2)
            (void)kvf_agent_progress(rig.a.agent);
        if (dropped)
            assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
        else
            assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
        assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                         KVF_EBUSY);
        conf_settle(&rig);
        assert_int_equal(rig.a.result_count, results + dropped);
        if (dropped) {
            assert_int_equal(rig.a.results[results].status, KVF_ECANCELED);
            rig.b_at_a = conf_load(&rig.a, &rig.b);
        }
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    }
    size_t untouched = 0;
    for (size_t i = 0; i < POOL; i++)
        untouched += rig.b.pool[i] == CONF_UNTOUCHED;
    assert_true(untouched > POOL / 2);
    size_t results = rig.a.result_count;
    (void)post_huge(&rig, KVF_WRITE, "the only one");
    conf_drive_counts(&rig, results + 1, 1);
    expect_moved(&rig);
    conf_stop(&rig);
}

/* Regions come and go between the slices; what the transfer uses stays. */
static void registrations_change_meanwhile(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL + 4096);
    /* the pool in two halves, without the registration that the rig made */
    assert_int_equal(
        kvf_agent_deregister(rig.a.agent, rig.a.pool, rig.a.pool_len, KVF_MEMORY_DRAM, 0), KVF_OK);
    struct kvf_memory halves[2] = {{.addr = rig.a.pool, .length = POOL / 2},
                                   {.addr = rig.a.pool + POOL / 2, .length = POOL / 2}};
    struct kvf_memory wider = {.addr = rig.a.pool, .length = POOL + 4096};
    assert_int_equal(kvf_agent_register_many(rig.a.agent, halves, 2, &error), KVF_OK);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 4);
    (void)post_huge(&rig, KVF_WRITE, "there");
    assert_int_equal(kvf_agent_register_many(rig.a.agent, &wider, 1, &error), KVF_OK);
    (void)kvf_agent_progress(rig.a.agent); /* the next slice lies in the wider one */
    assert_int_equal(kvf_agent_deregister_many(rig.a.agent, &wider, 1, &error), KVF_EBUSY);
    assert_int_equal(kvf_agent_deregister_many(rig.a.agent, halves, 2, &error), KVF_EBUSY);
    conf_drive_counts(&rig, 1, 1);
    expect_moved(&rig);
    assert_int_equal(kvf_agent_deregister_many(rig.a.agent, &wider, 1, &error), KVF_OK);
    assert_int_equal(kvf_agent_deregister_many(rig.a.agent, halves, 2, &error), KVF_OK);
    rig.a.pool_len = POOL + 4096;
    conf_stop(&rig);
}

static void destroy_between_slices(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    for (size_t i = 0; i < 3; i++)
        (void)post_huge(&rig, i == 1 ? KVF_READ : KVF_WRITE, "never");
    (void)kvf_agent_progress(rig.a.agent);
    kvf_agent_destroy(rig.a.agent);
    rig.a.agent = NULL;
    assert_int_equal(rig.a.result_count, 0);
    memset(rig.a.pool, 0, POOL); /* ours again */
    for (size_t i = 0; i < 100; i++)
        (void)kvf_agent_progress(rig.b.agent);
    assert_int_equal(rig.b.message_count, 0);
    conf_stop(&rig);
}

static bool nothing_left(struct conf_rig *rig)
{
    struct kvf_agent_usage usage;
    kvf_agent_usage(rig->a.agent, &usage);
    return usage.transfers == 0;
}

/* A warm agent cuts and keeps plans without asking for memory. */
static void slices_take_no_memory(void **state)
{
    struct conf_memory memory;
    struct conf_rig rig = {.lane = conf_lane};
    struct kvfi_mem_net_options options = {.eventfd = true};
    conf_memory_init(&memory);
    rig.net = kvfi_mem_net_create(&options);
    assert_non_null(rig.net);
    conf_open_with(&rig, &rig.a, NULL, POOL, &memory.allocator);
    conf_open(&rig, &rig.b, NULL, POOL);
    conf_join(&rig);
    uint64_t calls = 0;
    size_t live = 0;
    for (size_t round = 0; round < 60; round++) {
        for (size_t i = 0; i < 3; i++)
            conf_post_blocks(&rig, i == 1 ? KVF_READ : KVF_WRITE,
                             conf_region(&rig.a, &rig.b, SMALL, SMALL), from, to, 3000,
                             "sixteen bytes...");
        conf_drive(&rig, nothing_left);
        if (round == 29) {
            calls = memory.calls;
            live = memory.live;
        }
    }
    assert_int_equal(memory.calls - calls, 0);
    assert_int_equal(memory.live, live);
    conf_stop(&rig);
    assert_int_equal(memory.live, 0);
}

int conf_run_slices(void)
{
    const struct CMUnitTest slices[] = {
        cmocka_unit_test(small_ones_overtake),
        cmocka_unit_test(one_run_of_many_bytes),
        cmocka_unit_test(cut_short),
        cmocka_unit_test(registrations_change_meanwhile),
        cmocka_unit_test(destroy_between_slices),
        cmocka_unit_test(slices_take_no_memory),
    };
    return cmocka_run_group_tests(slices, shuffle, unshuffle);
}
