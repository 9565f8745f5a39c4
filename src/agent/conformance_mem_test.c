/* SPDX-License-Identifier: Apache-2.0 */
/* The suite on the mem lane, and the faults that only it can make. */
#include "agent/conformance.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)64)
#define POOL   (BLOCK * BLOCKS)

static uint32_t even_ids[BLOCKS / 2];

static void start(struct conf_rig *rig, const struct kvfi_mem_net_options *options)
{
    *rig = (struct conf_rig){.lane = "mem", .net = kvfi_mem_net_create(options)};
    assert_non_null(rig->net);
    conf_open(rig, &rig->a, "prefill", POOL);
    conf_open(rig, &rig->b, "decode", POOL);
    conf_join(rig);
    conf_fill(rig->a.pool, POOL, 1);
    for (uint32_t i = 0; i < BLOCKS / 2; i++)
        even_ids[i] = 2 * i;
}

/* Every second block: as many runs as blocks. */
static void post_even(struct conf_rig *rig, const char *notification)
{
    conf_post_blocks(rig, KVF_WRITE, conf_region(&rig->a, &rig->b, BLOCK, BLOCK), even_ids,
                     even_ids, BLOCKS / 2, notification);
}

static void progress(struct conf_rig *rig)
{
    while (kvf_agent_progress(rig->a.agent) + kvf_agent_progress(rig->b.agent) > 0)
        ;
}

static size_t touched(const struct conf_side *side)
{
    size_t count = 0;
    for (size_t i = 0; i < side->pool_len; i++)
        count += side->pool[i] != CONF_UNTOUCHED;
    return count;
}

static void manual_steps(void **state)
{
    struct conf_rig rig;
    start(&rig, &(struct kvfi_mem_net_options){.manual = true});
    post_even(&rig, "one");
    post_even(&rig, "two");
    progress(&rig);
    assert_int_equal(rig.a.result_count, 0);
    assert_int_equal(touched(&rig.b), 0);
    assert_true(kvfi_mem_net_step(rig.net));
    assert_int_equal(touched(&rig.b), POOL / 2);
    assert_int_equal(rig.a.result_count, 0); /* only progress tells */
    progress(&rig);
    assert_int_equal(rig.a.result_count, 1);
    assert_int_equal(rig.b.message_count, 1);
    assert_true(kvfi_mem_net_step(rig.net));
    assert_false(kvfi_mem_net_step(rig.net));
    progress(&rig);
    assert_int_equal(rig.b.message_count, 2);
    conf_stop(&rig);
}

static void failed_operation(void **state)
{
    struct conf_rig rig;
    start(&rig, NULL);
    kvfi_mem_net_fail_operation(rig.net, 5);
    post_even(&rig, "never sent");
    post_even(&rig, "sent");
    progress(&rig);
    assert_int_equal(rig.a.result_count, 2);
    assert_int_equal(rig.a.results[0].status, KVF_ETRANSPORT);
    assert_int_equal(rig.a.results[1].status, KVF_OK); /* one failure is not a lost peer */
    assert_int_equal(rig.a.lost_count, 0);
    assert_int_equal(rig.b.message_count, 1);
    assert_int_equal(rig.b.messages[0].len, strlen("sent"));
    conf_stop(&rig);
}

static void refused_post(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_plan plan = {0};
    start(&rig, NULL);
    kvfi_mem_net_refuse_post(rig.net, 1);
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, "x", 1, 0, &id, &error),
        KVF_ENOMEM);
    assert_non_null(strstr(error.text, "decode"));
    kvfi_mem_net_refuse_post(rig.net, 1);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error), KVF_ENOMEM);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    progress(&rig);
    assert_int_equal(rig.a.result_count, 0);
    assert_int_equal(rig.b.message_count, 0);
    conf_stop(&rig);
}

/* ---- faults between slices ------------------------------------------------------------------ */

#define MANY ((size_t)5000) /* runs: five slices */

static void post_many(struct conf_rig *rig, const char *notification)
{
    static uint32_t ids[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        ids[i] = 2 * i;
    conf_post_blocks(rig, KVF_WRITE, conf_region(&rig->a, &rig->b, 16, 16), ids, ids, MANY,
                     notification);
}

static void expect_failed(struct conf_rig *rig, enum kvf_status expected, size_t touched_max)
{
    progress(rig);
    assert_int_equal(rig->a.result_count, 1);
    assert_int_equal(rig->a.results[0].status, expected);
    assert_int_equal(rig->b.message_count, 0);
    assert_true(touched(&rig->b) <= touched_max);
    conf_expect_usage(rig->a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
}

/* B40: one failed run ends the transfer: slices in flight end, no more are posted. */
static void failed_run_of_a_slice(void **state)
{
    struct conf_rig rig;
    start(&rig, NULL);
    kvfi_mem_net_fail_operation(rig.net, 1500);
    post_many(&rig, "never");
    expect_failed(&rig, KVF_ETRANSPORT, (size_t)4 * 1024 * 16);
    post_many(&rig, "whole");
    progress(&rig);
    assert_int_equal(rig.a.results[1].status, KVF_OK);
    assert_int_equal(rig.b.message_count, 1);
    assert_int_equal(touched(&rig.b), MANY * 16);
    conf_stop(&rig);
}

/* The lane refuses the n-th of what the transfer needs: the first slice is the caller's to hear of,
 * a later one or the message is the transfer's end. */
static void refused_slice(void **state)
{
    for (uint64_t n = 1; n <= 7; n++) {
        struct conf_rig rig;
        start(&rig, NULL);
        kvfi_mem_net_refuse_post(rig.net, n);
        if (n == 1) {
            struct kvf_error error;
            struct kvf_transfer_id id;
            struct conf_block_plan made;
            conf_one_block(&made, conf_region(&rig.a, &rig.b, 16, 16), 0);
            static const uint32_t zeros[MANY];
            made.group =
                (struct kvf_block_pairs){.local_ids = zeros, .remote_ids = zeros, .count = MANY};
            assert_int_equal(kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &made.plan, "x", 1,
                                            0, &id, &error),
                             KVF_ENOMEM);
            progress(&rig);
            assert_int_equal(rig.a.result_count, 0);
        } else {
            post_many(&rig, "never");
            if (n == 7) { /* five slices and a message */
                progress(&rig);
                assert_int_equal(rig.a.results[0].status, KVF_OK);
            } else {
                expect_failed(&rig, KVF_ENOMEM, MANY * 16);
            }
        }
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
        kvfi_mem_net_refuse_post(rig.net, 0);
        conf_stop(&rig);
    }
}

static void cut_between_slices(void **state)
{
    struct conf_rig rig;
    start(&rig, &(struct kvfi_mem_net_options){.manual = true});
    post_many(&rig, "never");
    progress(&rig);
    assert_true(kvfi_mem_net_step(rig.net));
    progress(&rig);
    assert_int_equal(touched(&rig.b), (size_t)1024 * 16);
    kvfi_mem_net_cut(rig.net, "decode");
    while (kvfi_mem_net_step(rig.net))
        ;
    expect_failed(&rig, KVF_EDISCONNECTED, (size_t)1024 * 16);
    assert_int_equal(rig.a.lost_count, 1);
    conf_stop(&rig);
}

static void dropped_and_doubled_messages(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    start(&rig, NULL);
    kvfi_mem_net_drop_message(rig.net, 2);
    kvfi_mem_net_double_message(rig.net, 3);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, &"abcd"[i], 1, 0, &error),
                         KVF_OK);
    progress(&rig);
    char seen[8] = {0};
    assert_int_equal(rig.b.message_count, 4);
    for (size_t i = 0; i < 4; i++)
        seen[i] = (char)rig.b.messages[i].data[0];
    assert_string_equal(seen, "accd");
    assert_int_equal(rig.a.notify_failed_count, 0);
    struct kvfi_mem_net_stats stats;
    kvfi_mem_net_stats(rig.net, &stats);
    assert_int_equal(stats.dropped, 1);
    assert_int_equal(stats.doubled, 1);
    conf_stop(&rig);
}

static void half_done_write(void **state)
{
    struct conf_rig rig;
    start(&rig, NULL);
    kvfi_mem_net_hold_transfer(rig.net, 1);
    post_even(&rig, "whole");
    progress(&rig);
    assert_int_equal(rig.a.result_count, 0);
    assert_int_equal(rig.b.message_count, 0);
    assert_int_equal(touched(&rig.b), POOL / 4);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    kvfi_mem_net_release(rig.net);
    progress(&rig);
    assert_int_equal(rig.a.results[0].status, KVF_OK);
    assert_int_equal(rig.b.message_count, 1);
    assert_int_equal(touched(&rig.b), POOL / 2);
    conf_stop(&rig);
}

/* B30, P1: a dropped peer's transfer is not over before its operation is. */
static void drop_while_half_done(void **state)
{
    struct conf_rig rig;
    start(&rig, NULL);
    kvfi_mem_net_hold_transfer(rig.net, 1);
    post_even(&rig, "never");
    progress(&rig);
    assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
    progress(&rig);
    assert_int_equal(rig.a.result_count, 0);
    conf_expect_usage(rig.a.agent,
                      (struct kvf_agent_usage){.regions = 1, .peers_closing = 1, .transfers = 1});
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    rig.b_at_a = conf_load(&rig.a, &rig.b); /* at once, beside the old one */
    post_even(&rig, "new");
    progress(&rig);
    assert_int_equal(rig.a.result_count, 1);
    kvfi_mem_net_release(rig.net);
    progress(&rig);
    assert_int_equal(rig.a.result_count, 2);
    assert_int_equal(rig.a.results[1].status, KVF_ECANCELED);
    assert_int_equal(rig.b.message_count, 1);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    conf_stop(&rig);
}

static void cut_peer(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_plan plan = {0};
    start(&rig, NULL);
    kvfi_mem_net_hold_transfer(rig.net, 1);
    post_even(&rig, "never");
    post_even(&rig, "never");
    progress(&rig);
    kvfi_mem_net_cut(rig.net, "decode");
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, "x", 1, 0, &id, &error),
        KVF_EDISCONNECTED);
    progress(&rig);
    assert_int_equal(rig.a.lost_count, 1);
    assert_int_equal(rig.b.lost_count, 1);
    assert_int_equal(rig.a.result_count, 2);
    assert_int_equal(rig.a.results[0].status, KVF_EDISCONNECTED);
    assert_int_equal(rig.a.results[1].status, KVF_EDISCONNECTED);
    assert_int_equal(rig.b.message_count, 0);
    conf_drop(&rig.a, rig.b_at_a);
    rig.b_at_a = conf_load(&rig.a, &rig.b); /* still cut: lost again */
    progress(&rig);
    assert_int_equal(rig.a.lost_count, 2);
    kvfi_mem_net_mend(rig.net, "decode");
    conf_drop(&rig.a, rig.b_at_a);
    rig.b_at_a = conf_load(&rig.a, &rig.b);
    post_even(&rig, "back");
    progress(&rig);
    assert_int_equal(rig.a.results[2].status, KVF_OK);
    assert_int_equal(rig.b.message_count, 1);
    conf_stop(&rig);
}

static void virtual_time(void **state)
{
    struct conf_rig rig;
    uint64_t due_ns = 0;
    start(&rig, &(struct kvfi_mem_net_options){.virtual_time = true});
    kvfi_mem_net_set_delay(rig.net, 1000, 50);
    kvfi_mem_net_advance(rig.net, 7);
    post_even(&rig, "slow");
    progress(&rig);
    assert_int_equal(kvf_agent_arm(rig.a.agent), KVF_OK); /* nothing to do before its time */
    assert_int_equal(rig.a.result_count, 0);
    assert_true(kvfi_mem_net_next_due(rig.net, &due_ns));
    assert_int_equal(due_ns, 1007);
    kvfi_mem_net_advance(rig.net, 999);
    progress(&rig);
    assert_int_equal(rig.a.result_count, 0);
    kvfi_mem_net_advance(rig.net, 1);
    assert_int_equal(kvf_agent_arm(rig.a.agent), KVF_AGAIN);
    progress(&rig);
    assert_int_equal(rig.a.result_count, 1);
    assert_int_equal(rig.a.results[0].stats.post_start_ns, 7);
    assert_int_equal(rig.a.results[0].stats.done_ns, 1007);
    assert_int_equal(rig.b.message_count, 0);
    assert_true(kvfi_mem_net_next_due(rig.net, &due_ns));
    assert_int_equal(due_ns, 1057);
    kvfi_mem_net_advance(rig.net, 50);
    progress(&rig);
    assert_int_equal(rig.b.message_count, 1);
    assert_false(kvfi_mem_net_next_due(rig.net, &due_ns));
    conf_stop(&rig);
}

/* The target takes its memory back without asking: the lane must notice. */
static void unregistered_target(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvfi_mem_net_stats stats;
    start(&rig, NULL);
    assert_int_equal(kvf_agent_deregister(rig.b.agent, rig.b.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    post_even(&rig, "never");
    progress(&rig);
    assert_int_equal(rig.a.results[0].status, KVF_ETRANSPORT);
    assert_int_equal(touched(&rig.b), 0);
    kvfi_mem_net_stats(rig.net, &stats);
    assert_int_equal(stats.unregistered, 1);

    /* registered again it has another key, which the loaded peer may not take over */
    assert_int_equal(kvf_agent_register(rig.b.agent, rig.b.pool, POOL, KVF_MEMORY_DRAM, 0, &error),
                     KVF_ENOTALLOWED);
    conf_register_again(&rig.b);
    void *blob = NULL;
    size_t len = 0;
    struct kvf_peer_id peer;
    assert_int_equal(kvf_agent_metadata(rig.b.agent, &blob, &len, NULL), KVF_OK);
    assert_int_equal(kvf_agent_load(rig.a.agent, blob, len, &peer, &error), KVF_ENOTALLOWED);
    kvf_agent_blob_free(rig.b.agent, blob);
    conf_close(&rig.a);
    conf_close(&rig.b);
    kvfi_mem_net_destroy(rig.net);
}

/* Fails the n-th request for memory. */
struct short_memory {
    size_t left;
    size_t live;
};

static void *short_alloc(void *ctx, size_t size)
{
    struct short_memory *memory = ctx;
    if (memory->left == 0)
        return NULL;
    memory->left--;
    memory->live++;
    return malloc(size);
}

static void *short_realloc(void *ctx, void *ptr, size_t size)
{
    struct short_memory *memory = ctx;
    if (memory->left == 0)
        return NULL;
    memory->left--;
    memory->live += ptr == NULL;
    return realloc(ptr, size);
}

static void short_free(void *ctx, void *ptr)
{
    struct short_memory *memory = ctx;
    memory->live -= ptr != NULL;
    free(ptr);
}

/* What a life consists of; the first failure ends it. */
static enum kvf_status live(struct conf_rig *rig, struct kvf_agent *agent, const void *blob,
                            size_t blob_len, struct kvf_error *error)
{
    struct kvf_peer_id peer = {0};
    struct kvf_peer_id self = {0};
    struct kvf_transfer_id id;
    struct kvf_transfer_id prepared;
    void *own = NULL;
    size_t own_len = 0;
    struct conf_block_plan made;
    struct kvf_memory ranges[4] = {{.addr = rig->a.pool, .length = POOL}};
    for (size_t i = 1; i < 4; i++)
        ranges[i] = (struct kvf_memory){
            .addr = rig->a.pool + i * BLOCK, .length = BLOCK / 2, .allocation = 1};
    conf_one_block(&made, conf_region(&rig->a, &rig->b, BLOCK, BLOCK), 0);
    KVF_TRY(kvf_agent_register_many(agent, ranges, 4, error));
    KVF_TRY(kvf_agent_metadata(agent, &own, &own_len, error));
    kvf_agent_blob_free(agent, own);
    KVF_TRY(kvf_agent_metadata_partial(agent, ranges, 2, true, &own, &own_len, error));
    kvf_agent_blob_free(agent, own);
    KVF_TRY(kvf_agent_self(agent, &self, error));
    KVF_TRY(kvf_agent_load(agent, blob, blob_len, &peer, error));
    KVF_TRY(kvf_agent_prepare(agent, KVF_READ, peer, &made.plan, &prepared, error));
    KVF_TRY(kvf_agent_post_prepared(agent, prepared, "z", 1, 0, error));
    KVF_TRY(kvf_agent_post(agent, KVF_WRITE, peer, &made.plan, "x", 1, 0, &id, error));
    static const uint32_t zeros[1500];
    made.group = (struct kvf_block_pairs){.local_ids = zeros, .remote_ids = zeros, .count = 1500};
    KVF_TRY(kvf_agent_post(agent, KVF_WRITE, peer, &made.plan, "x", 1, 0, &id, error));
    KVF_TRY(kvf_agent_notify(agent, self, "y", 1, 0, error));
    KVF_TRY(kvf_agent_deregister_many(agent, ranges + 1, 3, error));
    for (size_t i = 1; i < 4; i++) /* it may have been forgotten, for want of memory */
        ranges[i].flags = KVF_MEMORY_NEW_KEY;
    return kvf_agent_register_many(agent, ranges + 1, 3, error);
}

/* One life of an agent; true when memory sufficed for all of it. */
static bool live_once(struct conf_rig *rig, struct short_memory *memory, const void *blob,
                      size_t blob_len)
{
    struct kvf_allocator allocator = {
        .ctx = memory, .alloc = short_alloc, .realloc = short_realloc, .free = short_free};
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    options.lane = "mem";
    options.lane_ctx = rig->net;
    options.allocator = &allocator;
    struct kvf_agent *agent = NULL;
    struct kvf_error error = {0};
    enum kvf_status status = kvf_agent_create(&options, &agent, &error);
    if (status != KVF_OK) {
        assert_int_equal(status, KVF_ENOMEM);
        assert_null(agent);
        return false;
    }
    status = live(rig, agent, blob, blob_len, &error);
    if (status != KVF_OK) {
        assert_int_equal(status, KVF_ENOMEM);
        assert_int_equal(error.status, KVF_ENOMEM);
    }
    while (kvf_agent_progress(agent) > 0)
        ;
    struct kvf_agent_usage usage;
    kvf_agent_usage(agent, &usage);
    assert_int_equal(usage.transfers + usage.notifications, 0);
    kvf_agent_destroy(agent);
    return status == KVF_OK;
}

static void nth_allocation_fails(void **state)
{
    struct conf_rig rig;
    void *blob = NULL;
    size_t len = 0;
    start(&rig, NULL);
    assert_int_equal(kvf_agent_metadata(rig.b.agent, &blob, &len, NULL), KVF_OK);
    bool done = false;
    size_t n = 0;
    for (; !done; n++) {
        struct short_memory memory = {.left = n};
        done = live_once(&rig, &memory, blob, len);
        assert_int_equal(memory.live, 0);
    }
    assert_true(n > 40);
    kvf_agent_blob_free(rig.b.agent, blob);
    conf_stop(&rig);
}

/* ---- two threads on one net ----------------------------------------------------------------- */

enum { THREAD_ROUNDS = 2000 };

static void *receive_all(void *arg)
{
    struct conf_side *side = arg;
    while (side->message_count < THREAD_ROUNDS) {
        if (kvf_agent_progress(side->agent) > 0 || kvf_agent_arm(side->agent) != KVF_OK)
            continue;
        struct pollfd waiter = {.fd = kvf_agent_fd(side->agent), .events = POLLIN};
        assert_int_equal(poll(&waiter, 1, -1), 1);
    }
    return NULL;
}

static void two_threads(void **state)
{
    struct conf_rig rig;
    pthread_t thread;
    start(&rig, &(struct kvfi_mem_net_options){.eventfd = true});
    assert_int_equal(pthread_create(&thread, NULL, receive_all, &rig.b), 0);
    for (size_t i = 0; i < THREAD_ROUNDS; i++) {
        post_even(&rig, "x");
        while (kvf_agent_progress(rig.a.agent) > 0)
            ;
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(rig.a.result_count, THREAD_ROUNDS);
    conf_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest faults[] = {
        cmocka_unit_test(manual_steps),
        cmocka_unit_test(failed_operation),
        cmocka_unit_test(refused_post),
        cmocka_unit_test(failed_run_of_a_slice),
        cmocka_unit_test(refused_slice),
        cmocka_unit_test(cut_between_slices),
        cmocka_unit_test(dropped_and_doubled_messages),
        cmocka_unit_test(half_done_write),
        cmocka_unit_test(drop_while_half_done),
        cmocka_unit_test(cut_peer),
        cmocka_unit_test(virtual_time),
        cmocka_unit_test(unregistered_target),
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(two_threads),
    };
    conf_lane = "mem";
    return conf_run_all() + cmocka_run_group_tests(faults, NULL, NULL);
}
