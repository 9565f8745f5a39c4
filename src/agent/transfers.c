/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers and notifications: checked as a whole, then posted as a whole. */
#include "agent/state.h"

#include "wire/nixl_notif.h"

#include <inttypes.h>
#include <string.h>

/* ---- pool ----------------------------------------------------------------------------------- */

static struct transfer *take_transfer(struct kvf_agent *agent)
{
    if (!agent->free_transfers) {
        struct transfer_slab *slab = kvfi_wire_alloc(agent->allocator, sizeof(*slab));
        if (!slab)
            return NULL;
        memset(slab, 0, sizeof(*slab));
        slab->next = agent->slabs;
        agent->slabs = slab;
        for (size_t i = 0; i < TRANSFERS_PER_SLAB; i++) {
            struct transfer *transfer = &slab->transfers[i];
            kvfi_buf_init(&transfer->message, agent->allocator);
            transfer->next_free = agent->free_transfers;
            agent->free_transfers = transfer;
        }
    }
    struct transfer *transfer = agent->free_transfers;
    agent->free_transfers = transfer->next_free;
    transfer->op = (struct kvfi_lane_op){0};
    transfer->stats = (struct kvf_transfer_stats){0};
    transfer->pin_count = 0;
    return transfer;
}

static void put_transfer(struct kvf_agent *agent, struct transfer *transfer)
{
    if (transfer->message.cap > MESSAGE_KEPT_LEN_MAX)
        kvfi_buf_deinit(&transfer->message);
    else
        kvfi_buf_clear(&transfer->message);
    transfer->next_free = agent->free_transfers;
    agent->free_transfers = transfer;
}

void kvfi_agent_free_transfers(struct kvf_agent *agent)
{
    while (agent->slabs) {
        struct transfer_slab *slab = agent->slabs;
        agent->slabs = slab->next;
        for (size_t i = 0; i < TRANSFERS_PER_SLAB; i++) {
            kvfi_buf_deinit(&slab->transfers[i].message);
            kvfi_wire_free(agent->allocator, slab->transfers[i].pins);
        }
        kvfi_wire_free(agent->allocator, slab);
    }
    agent->free_transfers = NULL;
}

/* ---- walking a plan as pieces --------------------------------------------------------------- */

/* A run is cut where a registration ends on either side, because an operation uses one local
 * handle and one remote key. */
struct walk {
    struct kvfi_plan_iter iter;
    const struct kvfi_region_set *local;
    const struct kvfi_region_set *remote;
    struct kvfi_run run; /* what is left of the current one */
    struct kvfi_region *local_region;
    struct kvfi_region *remote_region;
};

static void start_walk(struct walk *walk, const struct kvf_plan *plan,
                       const struct kvf_agent *agent, const struct agent_peer *peer)
{
    *walk = (struct walk){.local = &agent->regions, .remote = &peer->regions};
    kvfi_plan_iter(&walk->iter, plan);
}

/* The one found last is tried first: neighbouring runs mostly lie in one registration. */
static struct kvfi_region *cover(const struct kvfi_region_set *set, struct kvfi_region *last,
                                 enum kvf_memory_kind kind, uint64_t device_id, uint64_t addr,
                                 uint64_t length)
{
    if (last && last->kind == kind && last->device_id == device_id && addr >= last->addr &&
        addr - last->addr <= last->length && length <= last->length - (addr - last->addr))
        return last;
    return kvfi_region_set_cover(set, kind, device_id, addr);
}

enum walk_result {
    WALK_PIECE,
    WALK_END,
    WALK_LOCAL_UNCOVERED,
    WALK_REMOTE_UNCOVERED,
};

static enum walk_result walk_step(struct walk *walk, struct kvfi_lane_piece *piece)
{
    struct kvfi_run *run = &walk->run;
    if (run->length_bytes == 0 && !kvfi_plan_next(&walk->iter, run))
        return WALK_END;
    struct kvfi_region *local = cover(walk->local, walk->local_region, run->local_kind,
                                      run->local_device, run->local_addr, run->length_bytes);
    if (!local)
        return WALK_LOCAL_UNCOVERED;
    struct kvfi_region *remote = cover(walk->remote, walk->remote_region, run->remote_kind,
                                       run->remote_device, run->remote_addr, run->length_bytes);
    if (!remote)
        return WALK_REMOTE_UNCOVERED;
    walk->local_region = local;
    walk->remote_region = remote;

    uint64_t length = run->length_bytes;
    uint64_t local_left = local->length - (run->local_addr - local->addr);
    uint64_t remote_left = remote->length - (run->remote_addr - remote->addr);
    if (length > local_left)
        length = local_left;
    if (length > remote_left)
        length = remote_left;
    *piece = (struct kvfi_lane_piece){.local_addr = run->local_addr,
                                      .remote_addr = run->remote_addr,
                                      .length_bytes = length,
                                      .memory = local->memory,
                                      .rkey = remote->rkey};
    run->local_addr += length;
    run->remote_addr += length;
    run->length_bytes -= length;
    return WALK_PIECE;
}

static bool next_piece(void *ctx, struct kvfi_lane_piece *piece)
{
    return walk_step(ctx, piece) == WALK_PIECE;
}

static enum kvf_status pin(struct kvf_agent *agent, struct transfer *transfer,
                           struct kvfi_region *region)
{
    if (region->mark == transfer->id.value)
        return KVF_OK;
    if (transfer->pin_count == transfer->pin_cap) {
        size_t cap = transfer->pin_cap ? 2 * transfer->pin_cap : 16;
        struct kvfi_region **pins =
            kvfi_wire_realloc(agent->allocator, transfer->pins, cap * sizeof(void *));
        if (!pins)
            return KVF_ENOMEM;
        transfer->pins = pins;
        transfer->pin_cap = cap;
    }
    region->mark = transfer->id.value;
    transfer->pins[transfer->pin_count++] = region;
    return KVF_OK;
}

/* Walks the whole plan without posting: every piece is covered, and the local regions are noted. */
static enum kvf_status check_cover(struct kvf_agent *agent, const struct agent_peer *peer,
                                   const struct kvf_plan *plan, struct transfer *transfer,
                                   struct kvf_error *error)
{
    struct walk walk;
    struct kvfi_lane_piece piece;
    start_walk(&walk, plan, agent, peer);
    for (;;) {
        switch (walk_step(&walk, &piece)) {
        case WALK_PIECE:
            transfer->stats.run_count++;
            if (pin(agent, transfer, walk.local_region) != KVF_OK)
                return kvf_fail(error, KVF_ENOMEM, "post: no memory for %zu regions",
                                transfer->pin_count + 1);
            break;
        case WALK_END:
            return KVF_OK;
        case WALK_LOCAL_UNCOVERED:
            return kvf_fail(error, KVF_EINVAL,
                            "post: local address 0x%" PRIx64 ", +%" PRIu64 " on device %" PRIu64
                            " lies in no registered region; register it first",
                            walk.run.local_addr, walk.run.length_bytes, walk.run.local_device);
        case WALK_REMOTE_UNCOVERED:
            return kvf_fail(error, KVF_EINVAL,
                            "post: remote address 0x%" PRIx64 ", +%" PRIu64 " on device %" PRIu64
                            " lies in no region that peer \"%s\" advertised",
                            walk.run.remote_addr, walk.run.length_bytes, walk.run.remote_device,
                            peer->name);
        }
    }
}

/* ---- posting -------------------------------------------------------------------------------- */

/* The peer, or NULL with *status_p set. */
static struct agent_peer *find_live(struct kvf_agent *agent, struct kvf_peer_id id,
                                    const char *what, enum kvf_status *status_p,
                                    struct kvf_error *error)
{
    struct agent_peer *peer = kvfi_agent_find_peer(agent, id);
    if (!peer) {
        *status_p =
            kvf_fail(error, KVF_ENOTFOUND, "%s: peer id 0x%" PRIx64 " is stale", what, id.value);
        return NULL;
    }
    if (peer->lost) {
        *status_p = kvf_fail(error, KVF_EDISCONNECTED,
                             "%s: the connection to peer \"%s\" has failed", what, peer->name);
        return NULL;
    }
    return peer;
}

static enum kvf_status encode_message(struct kvf_agent *agent, struct transfer *transfer,
                                      const void *message, size_t message_len,
                                      struct kvf_error *error)
{
    struct kvfi_nixl_notif notif = {.name = kvfi_span_str(agent->name),
                                    .msg = kvfi_span(message, message_len)};
    KVF_TRY(kvfi_nixl_notif_encode(&notif, &transfer->message, error));
    transfer->op.message = transfer->message.data;
    transfer->op.message_len = transfer->message.len;
    return KVF_OK;
}

static enum kvf_status refuse(const struct agent_peer *peer, const char *what,
                              enum kvf_status status, struct kvf_error *error)
{
    return kvf_fail(error, status, "%s: peer \"%s\": %s", what, peer->name,
                    kvf_status_text(status));
}

static void begin(struct kvf_agent *agent, struct transfer *transfer, struct agent_peer *peer,
                  uint64_t user_data)
{
    transfer->id.value = ++agent->last_transfer;
    transfer->peer = peer;
    transfer->user_data = user_data;
}

enum kvf_status kvf_agent_post(struct kvf_agent *agent, enum kvf_operation operation,
                               struct kvf_peer_id peer_id, const struct kvf_plan *plan,
                               const void *notification, size_t notification_len,
                               uint64_t user_data, struct kvf_transfer_id *transfer_p,
                               struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    struct kvfi_plan_extent extent;
    uint64_t start_ns = agent->ops->now_ns(agent->lane);

    if (operation != KVF_READ && operation != KVF_WRITE)
        return kvf_fail(error, KVF_EINVAL, "post: operation %d is unknown", (int)operation);
    if (!plan || (!notification && notification_len > 0))
        return kvf_fail(error, KVF_EINVAL, "post: no plan, or a notification without bytes");
    struct agent_peer *peer = find_live(agent, peer_id, "post", &status, error);
    if (!peer)
        return status;
    KVF_TRY(kvfi_plan_check(plan, &extent, error));
    if (extent.descriptors == 0 && !notification)
        return kvf_fail(error, KVF_EINVAL, "post: an empty plan needs a notification");

    struct transfer *transfer = take_transfer(agent);
    if (!transfer)
        return kvf_fail(error, KVF_ENOMEM, "post: no memory for a transfer");
    begin(agent, transfer, peer, user_data);
    transfer->stats.bytes = extent.bytes;
    transfer->stats.post_start_ns = start_ns;
    status = check_cover(agent, peer, plan, transfer, error);
    if (status == KVF_OK && notification)
        status = encode_message(agent, transfer, notification, notification_len, error);
    if (status != KVF_OK)
        goto err_transfer;

    struct walk walk;
    start_walk(&walk, plan, agent, peer);
    status =
        agent->ops->post(agent->lane, peer->lane_peer, operation, next_piece, &walk, &transfer->op);
    if (status != KVF_OK) {
        status = refuse(peer, "post", status, error);
        goto err_transfer;
    }
    for (size_t i = 0; i < transfer->pin_count; i++)
        transfer->pins[i]->uses++;
    peer->operations++;
    agent->transfer_count++;
    transfer->stats.post_end_ns = agent->ops->now_ns(agent->lane);
    *transfer_p = transfer->id;
    return KVF_OK;

err_transfer:
    put_transfer(agent, transfer);
    return status;
}

enum kvf_status kvf_agent_notify(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                 const void *message, size_t message_len, uint64_t user_data,
                                 struct kvf_error *error)
{
    enum kvf_status status = KVF_OK;
    if (!message && message_len > 0)
        return kvf_fail(error, KVF_EINVAL, "notify: %zu bytes at NULL", message_len);
    struct agent_peer *peer = find_live(agent, peer_id, "notify", &status, error);
    if (!peer)
        return status;
    struct transfer *transfer = take_transfer(agent);
    if (!transfer)
        return kvf_fail(error, KVF_ENOMEM, "notify: no memory for a message");
    begin(agent, transfer, peer, user_data);
    status = encode_message(agent, transfer, message, message_len, error);
    if (status == KVF_OK) {
        status = agent->ops->notify(agent->lane, peer->lane_peer, &transfer->op);
        if (status != KVF_OK)
            status = refuse(peer, "notify", status, error);
    }
    if (status != KVF_OK) {
        put_transfer(agent, transfer);
        return status;
    }
    peer->operations++;
    agent->notification_count++;
    return KVF_OK;
}

/* ---- completion ----------------------------------------------------------------------------- */

void kvfi_agent_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct kvf_agent *agent = ctx;
    struct transfer *transfer = (struct transfer *)op; /* first member */
    for (size_t i = 0; i < transfer->pin_count; i++)
        transfer->pins[i]->uses--;
    transfer->peer->operations--;
    agent->transfer_count--;
    transfer->stats.done_ns = agent->ops->now_ns(agent->lane);

    /* the callback may post again, so nothing of the pooled object is used after this */
    struct kvf_transfer_stats stats = transfer->stats;
    struct kvf_transfer_id id = transfer->id;
    uint64_t user_data = transfer->user_data;
    put_transfer(agent, transfer);
    if (!agent->silent && agent->callbacks.transfer_done)
        agent->callbacks.transfer_done(agent->callbacks.ctx, id, user_data, status, &stats);
}

void kvfi_agent_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct kvf_agent *agent = ctx;
    struct transfer *transfer = (struct transfer *)op; /* first member */
    struct kvf_peer_id peer = transfer->peer->id;
    uint64_t user_data = transfer->user_data;
    transfer->peer->operations--;
    agent->notification_count--;
    put_transfer(agent, transfer);
    if (status != KVF_OK && !agent->silent && agent->callbacks.notify_failed)
        agent->callbacks.notify_failed(agent->callbacks.ctx, peer, user_data, status);
}
