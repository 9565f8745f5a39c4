/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/conformance.h"

#include <malloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

const char *conf_lane;

static void on_notification(void *ctx, const char *name, const void *message, size_t message_len)
{
    struct conf_side *side = ctx;
    if (side->message_count == side->message_cap) {
        side->message_cap = side->message_cap ? 2 * side->message_cap : 64;
        side->messages =
            realloc(side->messages, side->message_cap * sizeof(side->messages[0])); /* NOLINT */
        assert_non_null(side->messages);
    }
    struct conf_message *kept = &side->messages[side->message_count++];
    *kept = (struct conf_message){.data = malloc(message_len + 1), .len = message_len};
    assert_non_null(kept->data);
    assert_true(strlen(name) < sizeof(kept->name));
    memcpy(kept->name, name, strlen(name) + 1);
    if (message_len > 0)
        memcpy(kept->data, message, message_len);
    if (side->on_message)
        side->on_message(side, message, message_len);
}

static void on_transfer_done(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                             enum kvf_status status, const struct kvf_transfer_stats *stats)
{
    struct conf_side *side = ctx;
    if (side->result_count == side->result_cap) {
        side->result_cap = side->result_cap ? 2 * side->result_cap : 64;
        side->results =
            realloc(side->results, side->result_cap * sizeof(side->results[0])); /* NOLINT */
        assert_non_null(side->results);
    }
    for (size_t i = 0; i < side->result_count && !side->ids_come_again; i++) /* exactly once */
        assert_int_not_equal(side->results[i].transfer.value, transfer.value);
    struct conf_result result = {
        .transfer = transfer, .user_data = user_data, .status = status, .stats = *stats};
    side->results[side->result_count++] = result;
    if (side->on_result)
        side->on_result(side, &result);
}

static void on_peer_lost(void *ctx, struct kvf_peer_id peer, const char *reason)
{
    struct conf_side *side = ctx;
    assert_true(strlen(reason) > 0);
    side->lost_count++;
    side->lost_peer = peer;
}

static void on_notify_failed(void *ctx, struct kvf_peer_id peer, uint64_t user_data,
                             enum kvf_status status)
{
    struct conf_side *side = ctx;
    side->notify_failed_count++;
    side->notify_failed_status = status;
}

void conf_open(struct conf_rig *rig, struct conf_side *side, const char *name, size_t pool_len)
{
    conf_open_with(rig, side, name, pool_len, NULL);
}

void conf_take_pool(struct conf_side *side, size_t pool_len)
{
    struct kvf_error error = {0};
    if (kvf_pool_create(pool_len, &side->memory, &error) != KVF_OK)
        fail_msg("pool: %s", error.text);
    side->pool = kvf_pool_address(side->memory);
    side->pool_len = pool_len;
    memset(side->pool, CONF_UNTOUCHED, pool_len);
}

void conf_open_with(struct conf_rig *rig, struct conf_side *side, const char *name, size_t pool_len,
                    const struct kvf_allocator *allocator)
{
    struct kvf_error error = {0};
    *side = (struct conf_side){.pool_len = pool_len};
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    options.name = name;
    options.lane = rig->lane;
    options.lane_ctx = rig->net;
    options.allocator = allocator;
    options.callbacks = (struct kvf_agent_callbacks){.ctx = side,
                                                     .notification = on_notification,
                                                     .transfer_done = on_transfer_done,
                                                     .peer_lost = on_peer_lost,
                                                     .notify_failed = on_notify_failed};
    if (kvf_agent_create(&options, &side->agent, &error) != KVF_OK)
        fail_msg("create: %s", error.text);
    if (pool_len == 0)
        return;
    conf_take_pool(side, pool_len);
    if (kvf_agent_register(side->agent, side->pool, pool_len, KVF_MEMORY_DRAM, 0, &error) != KVF_OK)
        fail_msg("register: %s", error.text);
}

void conf_close(struct conf_side *side)
{
    kvf_agent_destroy(side->agent);
    for (size_t i = 0; i < side->message_count; i++)
        free(side->messages[i].data);
    free(side->messages);
    free(side->results);
    kvf_pool_destroy(side->memory);
    *side = (struct conf_side){0};
}

void conf_start(struct conf_rig *rig, size_t pool_len)
{
    *rig = (struct conf_rig){.lane = conf_lane};
    struct kvfi_mem_net_options options = {.eventfd = true};
    rig->net = kvfi_mem_net_create(&options);
    assert_non_null(rig->net);
    conf_open(rig, &rig->a, NULL, pool_len);
    conf_open(rig, &rig->b, NULL, pool_len);
}

void conf_drop(struct conf_side *side, struct kvf_peer_id peer)
{
    enum kvf_status status = side->agent ? kvf_agent_drop(side->agent, peer) : KVF_OK;
    assert_true(status == KVF_OK || status == KVF_ENOTFOUND);
}

void conf_stop(struct conf_rig *rig)
{
    conf_drop(&rig->a, rig->b_at_a);
    conf_drop(&rig->b, rig->a_at_b);
    conf_settle(rig);
    struct kvfi_mem_net_stats stats;
    conf_close(&rig->a);
    conf_close(&rig->b);
    kvfi_mem_net_stats(rig->net, &stats);
    assert_int_equal(stats.unregistered, 0);
    assert_int_equal(stats.nodes, 0);
    assert_int_equal(stats.pending, 0);
    kvfi_mem_net_destroy(rig->net);
}

struct kvf_peer_id conf_load(struct conf_side *into, struct conf_side *from)
{
    struct kvf_error error = {0};
    struct kvf_peer_id peer = {0};
    void *blob = NULL;
    size_t len = 0;
    if (kvf_agent_metadata(from->agent, &blob, &len, &error) != KVF_OK)
        fail_msg("metadata: %s", error.text);
    enum kvf_status status = kvf_agent_load(into->agent, blob, len, &peer, &error);
    kvf_agent_blob_free(from->agent, blob);
    if (status != KVF_OK)
        fail_msg("load: %s", error.text);
    assert_int_not_equal(peer.value, 0);
    assert_string_equal(kvf_agent_peer_name(into->agent, peer), kvf_agent_name(from->agent));
    return peer;
}

void conf_join(struct conf_rig *rig)
{
    rig->b_at_a = conf_load(&rig->a, &rig->b);
    rig->a_at_b = conf_load(&rig->b, &rig->a);
}

void conf_drive(struct conf_rig *rig, bool (*done)(struct conf_rig *rig))
{
    struct kvf_agent *agents[2] = {rig->a.agent, rig->b.agent};
    while (!done(rig)) {
        unsigned moved = 0;
        for (size_t i = 0; i < 2; i++)
            moved += agents[i] ? kvf_agent_progress(agents[i]) : 0;
        if (moved > 0 || done(rig))
            continue;
        struct pollfd fds[2];
        nfds_t count = 0;
        bool asleep = true;
        for (size_t i = 0; i < 2; i++) {
            if (!agents[i])
                continue;
            asleep = asleep && kvf_agent_arm(agents[i]) == KVF_OK;
            fds[count++] = (struct pollfd){.fd = kvf_agent_fd(agents[i]), .events = POLLIN};
        }
        if (asleep)
            assert_true(poll(fds, count, -1) > 0);
    }
}

static size_t wanted_results;
static size_t wanted_messages;

static bool counts_reached(struct conf_rig *rig)
{
    return rig->a.result_count >= wanted_results && rig->b.message_count >= wanted_messages;
}

void conf_drive_counts(struct conf_rig *rig, size_t a_results, size_t b_messages)
{
    wanted_results = a_results;
    wanted_messages = b_messages;
    conf_drive(rig, counts_reached);
    assert_int_equal(rig->a.result_count, a_results);
    assert_int_equal(rig->b.message_count, b_messages);
}

static bool is_settled(const struct conf_side *side)
{
    if (!side->agent)
        return true;
    struct kvf_agent_usage usage;
    kvf_agent_usage(side->agent, &usage);
    return usage.transfers == 0 && usage.notifications == 0 && usage.peers_closing == 0;
}

static bool both_settled(struct conf_rig *rig)
{
    return is_settled(&rig->a) && is_settled(&rig->b);
}

void conf_settle(struct conf_rig *rig)
{
    conf_drive(rig, both_settled);
}

unsigned char conf_pattern(uint64_t seed, uint64_t offset)
{
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15ULL + seed * 0xbf58476d1ce4e5b9ULL;
    unsigned char byte = (unsigned char)(mixed >> 56);
    return byte == CONF_UNTOUCHED ? 0x11 : byte;
}

void conf_fill(unsigned char *bytes, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = conf_pattern(seed, i);
}

uint64_t conf_random(uint64_t *state, uint64_t below)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dULL % below;
}

void conf_shuffle(uint32_t *ids, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++)
        ids[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) {
        size_t j = conf_random(state, i);
        uint32_t kept = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = kept;
    }
}

struct kvf_plan_region conf_region(const struct conf_side *local, const struct conf_side *remote,
                                   uint64_t stride, uint64_t length)
{
    struct kvf_plan_region region = {.length_bytes = length};
    region.local = (struct kvf_block_table){.base = (uint64_t)(uintptr_t)local->pool,
                                            .stride_bytes = stride,
                                            .block_count = local->pool_len / stride};
    region.remote = (struct kvf_block_table){.base = (uint64_t)(uintptr_t)remote->pool,
                                             .stride_bytes = stride,
                                             .block_count = remote->pool_len / stride};
    return region;
}

struct kvf_transfer_id conf_post(struct conf_rig *rig, enum kvf_operation operation,
                                 const struct kvf_plan *plan, const char *notification)
{
    struct kvf_error error = {0};
    struct kvf_transfer_id transfer = {0};
    size_t before = rig->a.result_count;
    enum kvf_status status =
        kvf_agent_post(rig->a.agent, operation, rig->b_at_a, plan, notification,
                       notification ? strlen(notification) : 0, 77, &transfer, &error);
    if (status != KVF_OK)
        fail_msg("post: %s", error.text);
    assert_int_not_equal(transfer.value, 0);
    assert_int_equal(rig->a.result_count, before); /* never inside the call */
    return transfer;
}

struct kvf_transfer_id conf_post_blocks(struct conf_rig *rig, enum kvf_operation operation,
                                        struct kvf_plan_region region, const uint32_t *local,
                                        const uint32_t *remote, size_t count,
                                        const char *notification)
{
    struct kvf_block_pairs group = {.local_ids = local, .remote_ids = remote, .count = count};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    return conf_post(rig, operation, &plan, notification);
}

void conf_register_again(struct conf_side *side)
{
    struct kvf_error error = {0};
    struct kvf_memory range = {
        .addr = side->pool, .length = side->pool_len, .flags = KVF_MEMORY_NEW_KEY};
    if (kvf_agent_register_many(side->agent, &range, 1, &error) != KVF_OK)
        fail_msg("register: %s", error.text);
}

void conf_one_block(struct conf_block_plan *made, struct kvf_plan_region region, uint32_t id)
{
    made->id = id;
    made->region = region;
    made->group =
        (struct kvf_block_pairs){.local_ids = &made->id, .remote_ids = &made->id, .count = 1};
    made->plan = (struct kvf_plan){
        .regions = &made->region, .region_count = 1, .groups = &made->group, .group_count = 1};
}

/* ---- counting memory ------------------------------------------------------------------------ */

static void *counted_realloc(void *ctx, void *ptr, size_t size)
{
    struct conf_memory *memory = ctx;
    size_t before = ptr ? malloc_usable_size(ptr) : 0;
    void *grown = realloc(ptr, size);
    memory->calls++;
    if (grown)
        memory->live += malloc_usable_size(grown) - before;
    return grown;
}

static void *counted_alloc(void *ctx, size_t size)
{
    return counted_realloc(ctx, NULL, size);
}

static void counted_free(void *ctx, void *ptr)
{
    struct conf_memory *memory = ctx;
    memory->live -= ptr ? malloc_usable_size(ptr) : 0;
    free(ptr);
}

void conf_memory_init(struct conf_memory *memory)
{
    *memory = (struct conf_memory){.allocator = {.ctx = memory,
                                                 .alloc = counted_alloc,
                                                 .realloc = counted_realloc,
                                                 .free = counted_free}};
}

int conf_run_all(void)
{
    return conf_run_transfers() + conf_run_prepared() + conf_run_slices() + conf_run_memory() +
           conf_run_peers() + conf_run_hostile() + conf_run_costs();
}

void conf_expect_usage(const struct kvf_agent *agent, struct kvf_agent_usage expected)
{
    struct kvf_agent_usage usage;
    kvf_agent_usage(agent, &usage);
    assert_int_equal(usage.regions, expected.regions);
    assert_int_equal(usage.peers, expected.peers);
    assert_int_equal(usage.peers_closing, expected.peers_closing);
    assert_int_equal(usage.transfers, expected.transfers);
    assert_int_equal(usage.notifications, expected.notifications);
    assert_int_equal(usage.prepared, expected.prepared);
}
