/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that are prepared, posted, posted again, asked for, and let go in every state. */
#include "agent/conformance.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)256)
#define POOL   (BLOCK * BLOCKS)

static const uint32_t *all_ids(void)
{
    static uint32_t ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    return ids;
}

static struct kvf_transfer_id prepare(struct conf_rig *rig, enum kvf_operation operation,
                                      const struct kvf_plan *plan)
{
    struct kvf_error error = {0};
    struct kvf_transfer_id id = {0};
    if (kvf_agent_prepare(rig->a.agent, operation, rig->b_at_a, plan, &id, &error) != KVF_OK)
        fail_msg("prepare: %s", error.text);
    assert_int_not_equal(id.value, 0);
    return id;
}

static struct kvf_transfer_id prepare_all(struct conf_rig *rig, enum kvf_operation operation)
{
    struct kvf_plan_region region = conf_region(&rig->a, &rig->b, BLOCK, BLOCK);
    struct kvf_block_pairs group = {
        .local_ids = all_ids(), .remote_ids = all_ids(), .count = BLOCKS};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    return prepare(rig, operation, &plan);
}

static enum kvf_status post(struct conf_rig *rig, struct kvf_transfer_id id, const char *message)
{
    struct kvf_error error = {0};
    enum kvf_status status = kvf_agent_post_prepared(rig->a.agent, id, message,
                                                     message ? strlen(message) : 0, 77, &error);
    if (status != KVF_OK)
        assert_int_equal(error.status, status);
    return status;
}

static void expect_state(const struct conf_side *side, struct kvf_transfer_id id,
                         enum kvf_transfer_state expected, enum kvf_status expected_result)
{
    enum kvf_transfer_state state;
    enum kvf_status result;
    struct kvf_transfer_stats stats;
    assert_int_equal(kvf_agent_transfer_query(side->agent, id, &state, &result, &stats), KVF_OK);
    assert_int_equal(state, expected);
    assert_int_equal(result, expected_result);
    assert_int_equal(stats.done_ns != 0, expected == KVF_TRANSFER_DONE);
    assert_int_equal(kvf_agent_transfer_query(side->agent, id, NULL, NULL, NULL), KVF_OK);
}

static void expect_stale(struct conf_rig *rig, struct kvf_transfer_id id)
{
    assert_int_equal(kvf_agent_transfer_query(rig->a.agent, id, NULL, NULL, NULL), KVF_ENOTFOUND);
    assert_int_equal(post(rig, id, "x"), KVF_ENOTFOUND);
    assert_int_equal(kvf_agent_release(rig->a.agent, id), KVF_ENOTFOUND);
}

static void post_again_and_again(void **state)
{
    enum { ROUNDS = 20 };
    struct conf_rig rig;
    uint32_t local[BLOCKS];
    uint32_t remote[BLOCKS];
    uint64_t seed = 3;
    conf_start(&rig, POOL);
    conf_join(&rig);
    rig.a.ids_come_again = true;
    conf_shuffle(local, BLOCKS, &seed);
    conf_shuffle(remote, BLOCKS, &seed);
    struct kvf_plan_region regions[2] = {conf_region(&rig.a, &rig.b, BLOCK, BLOCK / 2),
                                         conf_region(&rig.a, &rig.b, BLOCK, BLOCK / 2)};
    regions[1].local.offset_bytes = regions[1].remote.offset_bytes = BLOCK / 2;
    regions[1].group = 1;
    struct kvf_block_pairs groups[2] = {
        {.local_ids = local, .remote_ids = remote, .count = BLOCKS},
        {.local_ids = local, .remote_ids = remote, .count = BLOCKS}};
    struct kvf_plan plan = {
        .regions = regions, .region_count = 2, .groups = groups, .group_count = 2};
    uint32_t kept_local[BLOCKS];
    uint32_t kept_remote[BLOCKS];
    memcpy(kept_local, local, sizeof(local));
    memcpy(kept_remote, remote, sizeof(remote));
    struct kvf_transfer_id id = prepare(&rig, KVF_WRITE, &plan);
    memset(regions, 0xff, sizeof(regions)); /* it was copied */
    memset(groups, 0xff, sizeof(groups));
    memset(local, 0xff, sizeof(local));
    memset(remote, 0xff, sizeof(remote));
    expect_state(&rig.a, id, KVF_TRANSFER_PREPARED, KVF_IN_PROGRESS);
    conf_expect_usage(rig.a.agent,
                      (struct kvf_agent_usage){.regions = 1, .peers = 1, .prepared = 1});

    for (size_t round = 0; round < ROUNDS; round++) {
        conf_fill(rig.a.pool, POOL, round);
        assert_int_equal(post(&rig, id, round % 2 ? "with a message" : NULL), KVF_OK);
        assert_int_equal(post(&rig, id, "too early"), KVF_EBUSY);
        expect_state(&rig.a, id, KVF_TRANSFER_ACTIVE, KVF_IN_PROGRESS);
        assert_int_equal(rig.a.result_count, round);
        conf_drive_counts(&rig, round + 1, (round + 1) / 2);
        expect_state(&rig.a, id, KVF_TRANSFER_DONE, KVF_OK);
        const struct conf_result *result = &rig.a.results[round];
        assert_int_equal(result->transfer.value, id.value);
        assert_int_equal(result->status, KVF_OK);
        assert_int_equal(result->user_data, 77);
        assert_int_equal(result->stats.bytes, POOL);
        for (size_t i = 0; i < BLOCKS; i++)
            assert_memory_equal(rig.a.pool + kept_local[i] * BLOCK,
                                rig.b.pool + kept_remote[i] * BLOCK, BLOCK);
    }
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
    expect_stale(&rig, id);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    conf_stop(&rig);
}

static void read_and_write_side_by_side(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    rig.a.ids_come_again = true;
    struct kvf_transfer_id to = prepare_all(&rig, KVF_WRITE);
    struct kvf_transfer_id from = prepare_all(&rig, KVF_READ);
    for (size_t round = 0; round < 3; round++) {
        conf_fill(rig.a.pool, POOL, 2 * round);
        assert_int_equal(post(&rig, to, "written"), KVF_OK);
        conf_drive_counts(&rig, 2 * round + 1, 2 * round + 1);
        assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
        conf_fill(rig.b.pool, POOL, 2 * round + 1);
        assert_int_equal(post(&rig, from, "read"), KVF_OK);
        conf_drive_counts(&rig, 2 * round + 2, 2 * round + 2);
        assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    }
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.size, sizeof(counters));
    assert_int_equal(counters.writes_done, 3);
    assert_int_equal(counters.reads_done, 3);
    assert_int_equal(counters.bytes_written, 3 * POOL);
    assert_int_equal(counters.bytes_read, 3 * POOL);
    assert_int_equal(counters.notifications_sent, 6);
    assert_true(counters.runs_posted >= 6);
    assert_int_equal(counters.transfers_failed, 0);
    assert_int_equal(counters.posts_refused, 0);
    assert_int_equal(counters.bytes_registered, POOL);
    kvf_agent_counters(rig.b.agent, &counters);
    assert_int_equal(counters.notifications_received, 6);
    assert_int_equal(counters.bytes_written, 0);

    /* a caller of an older library's size is not written past its end */
    struct kvf_agent_counters old = {.size = offsetof(struct kvf_agent_counters, bytes_read)};
    old.bytes_read = 4711;
    kvf_agent_counters(rig.a.agent, &old);
    assert_int_equal(old.bytes_written, 3 * POOL);
    assert_int_equal(old.bytes_read, 4711);
    assert_int_equal(kvf_agent_release(rig.a.agent, to), KVF_OK);
    assert_int_equal(kvf_agent_release(rig.a.agent, from), KVF_OK);
    conf_stop(&rig);
}

/* B79, P1: letting go of an active transfer gives nothing back before it is over. */
static void release_while_active(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 1);
    for (size_t round = 0; round < 4; round++) {
        struct kvf_transfer_id id;
        if (round % 2 == 0) {
            id = prepare_all(&rig, KVF_WRITE);
            assert_int_equal(post(&rig, id, "let go"), KVF_OK);
        } else {
            id = conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK),
                                  all_ids(), all_ids(), BLOCKS, "let go");
            assert_int_equal(post(&rig, id, "not prepared"), KVF_ENOTFOUND);
            expect_state(&rig.a, id, KVF_TRANSFER_ACTIVE, KVF_IN_PROGRESS);
        }
        assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
        expect_stale(&rig, id);
        conf_expect_usage(rig.a.agent,
                          (struct kvf_agent_usage){.regions = 1, .peers = 1, .transfers = 1});
        assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                         KVF_EBUSY);
        conf_settle(&rig);
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    }
    conf_drive_counts(&rig, 0, 4); /* small ones: all was with the transport already */
    assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    conf_stop(&rig);
}

/* B30: an eviction under a running transfer takes nothing away from it. */
static void drop_the_peer_of_an_active_one(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    rig.a.ids_come_again = true;
    struct kvf_transfer_id id = prepare_all(&rig, KVF_READ);
    assert_int_equal(post(&rig, id, NULL), KVF_OK);
    assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
    expect_state(&rig.a, id, KVF_TRANSFER_ACTIVE, KVF_IN_PROGRESS);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    conf_expect_usage(
        rig.a.agent,
        (struct kvf_agent_usage){.regions = 1, .peers_closing = 1, .transfers = 1, .prepared = 1});
    conf_settle(&rig);
    assert_int_equal(rig.a.result_count, 1);
    enum kvf_status result = rig.a.results[0].status;
    assert_true(result == KVF_OK || result == KVF_ECANCELED);
    expect_state(&rig.a, id, KVF_TRANSFER_DONE, result);

    /* the handle stays, and its peer does not come back under another load */
    assert_int_equal(post(&rig, id, NULL), KVF_ENOTFOUND);
    rig.b_at_a = conf_load(&rig.a, &rig.b);
    assert_int_equal(post(&rig, id, NULL), KVF_ENOTFOUND);
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
    id = prepare_all(&rig, KVF_READ);
    assert_int_equal(post(&rig, id, NULL), KVF_OK);
    conf_drive_counts(&rig, 2, 0);
    assert_int_equal(rig.a.results[1].status, KVF_OK);
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
    conf_stop(&rig);
}

static void memory_goes_and_comes_back(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    struct kvf_transfer_id id = prepare_all(&rig, KVF_WRITE);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK); /* preparing pins nothing */
    assert_int_equal(post(&rig, id, "x"), KVF_EINVAL);
    expect_state(&rig.a, id, KVF_TRANSFER_PREPARED, KVF_IN_PROGRESS);
    conf_register_again(&rig.a);
    conf_fill(rig.a.pool, POOL, 9);
    assert_int_equal(post(&rig, id, "x"), KVF_OK);
    conf_drive_counts(&rig, 1, 1);
    assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.posts_refused, 1);
    conf_stop(&rig);
}

static void refusals(void **state)
{
    struct conf_rig rig;
    struct kvf_error error = {0};
    struct kvf_transfer_id id = {.value = 4711};
    struct conf_block_plan made;
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_one_block(&made, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), (uint32_t)BLOCKS);
    assert_int_equal(kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, &made.plan, &id, &error),
                     KVF_EINVAL);
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, &made.plan, &error), KVF_EINVAL);
    conf_one_block(&made, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), 1);
    assert_int_equal(
        kvf_agent_prepare(rig.a.agent, (enum kvf_operation)7, rig.b_at_a, &made.plan, &id, &error),
        KVF_EINVAL);
    assert_int_equal(kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, NULL, &id, &error),
                     KVF_EINVAL);
    assert_int_equal(kvf_agent_prepare(rig.a.agent, KVF_WRITE, (struct kvf_peer_id){12345},
                                       &made.plan, &id, &error),
                     KVF_ENOTFOUND);
    made.region.remote.base += POOL;
    assert_int_equal(kvf_agent_prepare(rig.a.agent, KVF_WRITE, rig.b_at_a, &made.plan, &id, &error),
                     KVF_EINVAL);
    assert_non_null(strstr(error.text, "prepare: remote address"));
    assert_int_equal(id.value, 4711);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.posts_refused, 5);
    made.region.remote.base -= POOL;
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, &made.plan, &error), KVF_OK);
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, NULL, &error), KVF_EINVAL);
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, (struct kvf_peer_id){1}, &made.plan, &error),
                     KVF_ENOTFOUND);

    /* an empty plan, whose point is its notification */
    struct kvf_plan nothing = {0};
    id = prepare(&rig, KVF_WRITE, &nothing);
    assert_int_equal(post(&rig, id, NULL), KVF_EINVAL);
    assert_int_equal(kvf_agent_post_prepared(rig.a.agent, id, NULL, 3, 0, &error), KVF_EINVAL);
    assert_int_equal(post(&rig, id, "just this"), KVF_OK);
    conf_drive_counts(&rig, 1, 1);
    assert_int_equal(rig.b.messages[0].len, strlen("just this"));
    assert_int_equal(kvf_agent_release(rig.a.agent, id), KVF_OK);

    const struct kvf_transfer_id stale[] = {
        id, {0}, {1}, {UINT64_MAX}, {UINT64_C(1) << 31}, {(UINT64_C(1) << 31) + 1}, {id.value + 1}};
    for (size_t i = 0; i < sizeof(stale) / sizeof(stale[0]); i++)
        expect_stale(&rig, stale[i]);
    conf_stop(&rig);
}

static void post_from_callback(struct conf_side *side, const struct conf_result *result)
{
    struct conf_rig *rig = side->test;
    assert_int_equal(result->status, KVF_OK);
    expect_state(side, result->transfer, KVF_TRANSFER_DONE, KVF_OK);
    if (side->result_count < 50)
        assert_int_equal(post(rig, result->transfer, "again"), KVF_OK);
    else
        assert_int_equal(kvf_agent_release(side->agent, result->transfer), KVF_OK);
}

static void post_and_release_inside_the_callback(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    rig.a.ids_come_again = true;
    rig.a.on_result = post_from_callback;
    rig.a.test = &rig;
    assert_int_equal(post(&rig, prepare_all(&rig, KVF_WRITE), "first"), KVF_OK);
    conf_drive_counts(&rig, 50, 50);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    conf_stop(&rig);
}

static void destroy_with_prepared(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    struct kvf_transfer_id id = prepare_all(&rig, KVF_WRITE);
    (void)prepare_all(&rig, KVF_READ);
    assert_int_equal(post(&rig, id, "late"), KVF_OK);
    struct kvf_transfer_id gone = prepare_all(&rig, KVF_WRITE);
    assert_int_equal(post(&rig, gone, "later"), KVF_OK);
    assert_int_equal(kvf_agent_release(rig.a.agent, gone), KVF_OK);
    kvf_agent_destroy(rig.a.agent);
    rig.a.agent = NULL;
    assert_int_equal(rig.a.result_count, 0);
    memset(rig.a.pool, 0, POOL);
    for (size_t i = 0; i < 100; i++)
        (void)kvf_agent_progress(rig.b.agent);
    conf_stop(&rig);
}

int conf_run_prepared(void)
{
    const struct CMUnitTest prepared[] = {
        cmocka_unit_test(post_again_and_again),
        cmocka_unit_test(read_and_write_side_by_side),
        cmocka_unit_test(release_while_active),
        cmocka_unit_test(drop_the_peer_of_an_active_one),
        cmocka_unit_test(memory_goes_and_comes_back),
        cmocka_unit_test(refusals),
        cmocka_unit_test(post_and_release_inside_the_callback),
        cmocka_unit_test(destroy_with_prepared),
    };
    return cmocka_run_group_tests(prepared, NULL, NULL);
}
