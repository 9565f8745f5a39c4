/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers and notifications: checked as a whole, then posted as a whole or in slices. */
#include "agent/state.h"

#include "wire/nixl_notif.h"

#include <inttypes.h>
#include <string.h>

/* ---- checking ------------------------------------------------------------------------------- */

enum kvf_status kvfi_agent_find_live(struct kvf_agent *agent, struct kvf_peer_id id,
                                     const char *what, struct agent_peer **peer_p,
                                     struct kvf_error *error)
{
    struct agent_peer *peer = kvfi_agent_find_peer(agent, id);
    if (!peer) {
        (void)kvf_fail(error, KVF_ENOTFOUND, "%s: peer id 0x%" PRIx64 " is stale", what, id.value);
        return KVF_ENOTFOUND;
    }
    if (peer->lost) {
        (void)kvf_fail(error, KVF_EDISCONNECTED, "%s: the connection to peer \"%s\" has failed",
                       what, peer->name);
        return KVF_EDISCONNECTED;
    }
    *peer_p = peer;
    return KVF_OK;
}

enum kvf_status kvfi_agent_pin(struct kvf_agent *agent, struct kvfi_pins *pins,
                               const struct kvfi_walk *walk, uint64_t mark)
{
    if (!pins)
        return KVF_OK;
    struct kvfi_region *twin = walk->remote_region->twin;
    if (twin)
        KVF_TRY(kvfi_pins_add(pins, agent->allocator, twin, mark));
    return kvfi_pins_add(pins, agent->allocator, walk->local_region, mark);
}

enum kvf_status kvfi_agent_check_cover(struct kvf_agent *agent, const struct agent_peer *peer,
                                       const struct posting *posting, struct kvfi_pins *pins,
                                       uint64_t *run_count_p, struct kvf_error *error)
{
    struct kvfi_walk walk;
    struct kvfi_lane_piece piece;
    uint64_t run_count = 0;
    uint64_t mark = ++agent->last_mark;
    kvfi_walk_start(&walk, posting->plan, &agent->regions, &peer->regions);
    for (;;) {
        switch (kvfi_walk_step(&walk, UINT64_MAX, &piece)) {
        case KVFI_WALK_PIECE:
            run_count++;
            if (kvfi_agent_pin(agent, pins, &walk, mark) != KVF_OK)
                return kvf_fail(error, KVF_ENOMEM, "%s: no memory for %zu regions", posting->what,
                                pins->count + 1);
            break;
        case KVFI_WALK_END:
            *run_count_p = run_count;
            return KVF_OK;
        case KVFI_WALK_LOCAL_UNCOVERED:
            return kvf_fail(error, KVF_EINVAL,
                            "%s: local address 0x%" PRIx64 ", +%" PRIu64 " on device %" PRIu64
                            " lies in no registered region; register it first",
                            posting->what, walk.run.local_addr, walk.run.length_bytes,
                            walk.run.local_device);
        case KVFI_WALK_REMOTE_UNCOVERED:
            return kvf_fail(error, KVF_EINVAL,
                            "%s: remote address 0x%" PRIx64 ", +%" PRIu64 " on device %" PRIu64
                            " lies in no region that peer \"%s\" advertised",
                            posting->what, walk.run.remote_addr, walk.run.length_bytes,
                            walk.run.remote_device, peer->name);
        }
    }
}

enum kvf_status kvfi_agent_check_posting(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                         struct posting *posting, struct agent_peer **peer_p,
                                         struct kvf_error *error)
{
    const char *what = posting->what;
    if (posting->operation != KVF_READ && posting->operation != KVF_WRITE) {
        (void)kvf_fail(error, KVF_EINVAL, "%s: operation %d is unknown", what,
                       (int)posting->operation);
        return KVF_EINVAL;
    }
    if (!posting->plan || (!posting->notification && posting->notification_len > 0)) {
        (void)kvf_fail(error, KVF_EINVAL, "%s: no plan, or a notification without bytes", what);
        return KVF_EINVAL;
    }
    KVF_TRY(kvfi_agent_find_live(agent, peer_id, what, peer_p, error));
    return kvfi_plan_check(posting->plan, &posting->extent, error);
}

enum kvf_status kvf_agent_check_plan(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                     const struct kvf_plan *plan, struct kvf_error *error)
{
    struct agent_peer *peer = NULL;
    struct posting posting = {.what = "check", .plan = plan};
    uint64_t run_count = 0;
    KVF_TRY(kvfi_agent_check_posting(agent, peer_id, &posting, &peer, error));
    return kvfi_agent_check_cover(agent, peer, &posting, NULL, &run_count, error);
}

/* ---- posting -------------------------------------------------------------------------------- */

/* The beginning, up to the sender's name, stays in the pooled buffer. */
static enum kvf_status encode(struct kvf_agent *agent, struct transfer *transfer,
                              const void *message, size_t message_len, struct kvf_error *error)
{
    struct kvfi_buf *buf = &transfer->message;
    buf->status = KVF_OK; /* of the transfer that had it before */
    if (buf->len < agent->prefix_len || buf->len == 0) {
        kvfi_buf_clear(buf);
        KVF_TRY(kvfi_nixl_notif_begin(kvfi_span_str(agent->name), buf, error));
        agent->prefix_len = buf->len;
    }
    buf->len = agent->prefix_len;
    KVF_TRY(kvfi_nixl_notif_finish(kvfi_span(message, message_len), buf, error));
    transfer->op.message = buf->data;
    transfer->op.message_len = buf->len;
    transfer->notifies = true;
    return KVF_OK;
}

static void refuse(const struct agent_peer *peer, const char *what, enum kvf_status status,
                   struct kvf_error *error)
{
    (void)kvf_fail(error, status, "%s: peer \"%s\": %s", what, peer->name, kvf_status_text(status));
}

static bool next_piece(void *ctx, struct kvfi_lane_piece *piece)
{
    return kvfi_walk_step(ctx, UINT64_MAX, piece) == KVFI_WALK_PIECE;
}

static enum kvf_status post_whole(struct kvf_agent *agent, struct transfer *transfer,
                                  const struct posting *posting)
{
    struct kvfi_walk walk;
    struct agent_peer *peer = transfer->peer;
    kvfi_walk_start(&walk, posting->plan, &agent->regions, &peer->regions);
    KVF_TRY(agent->ops->post(agent->lane, peer->lane_peer, posting->operation, next_piece, &walk,
                             &transfer->op));
    agent->counters.runs_posted += transfer->stats.run_count;
    transfer->stats.post_end_ns = agent->ops->now_ns(agent->lane);
    return KVF_OK;
}

enum kvf_status kvfi_agent_start(struct kvf_agent *agent, struct agent_peer *peer,
                                 const struct posting *posting, struct transfer **transfer_p,
                                 struct kvf_error *error)
{
    if (posting->extent.descriptors == 0 && !posting->notification) {
        (void)kvf_fail(error, KVF_EINVAL, "%s: an empty plan needs a notification", posting->what);
        return KVF_EINVAL;
    }
    struct transfer *transfer = kvfi_agent_take_transfer(agent);
    if (!transfer) {
        (void)kvf_fail(error, KVF_ENOMEM, "%s: no memory for a transfer", posting->what);
        return KVF_ENOMEM;
    }
    transfer->peer = peer;
    transfer->user_data = posting->user_data;
    transfer->operation = posting->operation;
    transfer->stats.bytes = posting->extent.bytes;
    transfer->stats.post_start_ns = posting->start_ns;
    enum kvf_status status = kvfi_agent_check_cover(agent, peer, posting, &transfer->pins,
                                                    &transfer->stats.run_count, error);
    if (status == KVF_OK && posting->notification)
        status = encode(agent, transfer, posting->notification, posting->notification_len, error);
    if (status != KVF_OK)
        goto err_transfer;

    if (transfer->stats.run_count <= SLICE_RUNS_MAX && posting->extent.bytes <= SLICE_BYTES_MAX)
        status = post_whole(agent, transfer, posting);
    else
        status = kvfi_agent_slices_start(agent, transfer, posting);
    if (status != KVF_OK) {
        refuse(peer, posting->what, status, error);
        goto err_transfer;
    }
    kvfi_pins_hold(&transfer->pins);
    peer->operations++;
    agent->transfer_count++;
    *transfer_p = transfer;
    return KVF_OK;

err_transfer:
    kvfi_agent_put_transfer(agent, transfer);
    return status;
}

/* The id is taken before anything is posted, so that nothing has to be undone after. */
static enum kvf_status post_once(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                 struct posting *posting, struct kvf_transfer_id *transfer_p,
                                 struct kvf_error *error)
{
    struct agent_peer *peer = NULL;
    struct transfer *transfer = NULL;
    uint64_t id = 0;
    KVF_TRY(kvfi_agent_check_posting(agent, peer_id, posting, &peer, error));
    enum kvf_status status = kvfi_slots_take(&agent->once, agent->allocator, NULL, &id);
    if (status != KVF_OK)
        return kvf_fail(error, status, "post: no memory for a transfer");
    status = kvfi_agent_start(agent, peer, posting, &transfer, error);
    if (status != KVF_OK) {
        kvfi_slots_leave(&agent->once, id);
        return status;
    }
    kvfi_slots_set(&agent->once, id, transfer);
    transfer->id.value = id;
    *transfer_p = transfer->id;
    return KVF_OK;
}

enum kvf_status kvf_agent_post(struct kvf_agent *agent, enum kvf_operation operation,
                               struct kvf_peer_id peer, const struct kvf_plan *plan,
                               const void *notification, size_t notification_len,
                               uint64_t user_data, struct kvf_transfer_id *transfer_p,
                               struct kvf_error *error)
{
    struct posting posting = {.what = "post",
                              .plan = plan,
                              .notification = notification,
                              .notification_len = notification_len,
                              .user_data = user_data,
                              .start_ns = agent->ops->now_ns(agent->lane),
                              .operation = operation};
    enum kvf_status status = post_once(agent, peer, &posting, transfer_p, error);
    if (status != KVF_OK)
        agent->counters.posts_refused++;
    return status;
}

enum kvf_status kvf_agent_notify(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                 const void *message, size_t message_len, uint64_t user_data,
                                 struct kvf_error *error)
{
    struct agent_peer *peer = NULL;
    if (!message && message_len > 0)
        return kvf_fail(error, KVF_EINVAL, "notify: %zu bytes at NULL", message_len);
    KVF_TRY(kvfi_agent_find_live(agent, peer_id, "notify", &peer, error));
    struct transfer *transfer = kvfi_agent_take_transfer(agent);
    if (!transfer)
        return kvf_fail(error, KVF_ENOMEM, "notify: no memory for a message");
    transfer->peer = peer;
    transfer->user_data = user_data;
    enum kvf_status status = encode(agent, transfer, message, message_len, error);
    if (status == KVF_OK) {
        status = agent->ops->notify(agent->lane, peer->lane_peer, &transfer->op);
        if (status != KVF_OK)
            refuse(peer, "notify", status, error);
    }
    if (status != KVF_OK) {
        kvfi_agent_put_transfer(agent, transfer);
        return status;
    }
    peer->operations++;
    agent->notification_count++;
    return KVF_OK;
}

/* ---- completion ----------------------------------------------------------------------------- */

static void count(struct kvf_agent *agent, const struct transfer *transfer, enum kvf_status status)
{
    struct kvf_agent_counters *counters = &agent->counters;
    if (status != KVF_OK) {
        counters->transfers_failed++;
        return;
    }
    counters->notifications_sent += transfer->notifies;
    if (transfer->operation == KVF_WRITE) {
        counters->writes_done++;
        counters->bytes_written += transfer->stats.bytes;
    } else {
        counters->reads_done++;
        counters->bytes_read += transfer->stats.bytes;
    }
}

void kvfi_agent_finish(struct kvf_agent *agent, struct transfer *transfer, enum kvf_status status)
{
    kvfi_pins_drop(&transfer->pins);
    transfer->peer->operations--;
    agent->transfer_count--;
    transfer->stats.done_ns = agent->ops->now_ns(agent->lane);
    count(agent, transfer, status);
    if (transfer->prepared)
        kvfi_agent_prepared_done(agent, transfer, status);
    else if (!transfer->released)
        kvfi_slots_leave(&agent->once, transfer->id.value);

    /* the callback may post again, so nothing of the pooled object is used after this */
    struct kvf_transfer_stats stats = transfer->stats;
    struct kvf_transfer_id id = transfer->id;
    uint64_t user_data = transfer->user_data;
    bool silent = agent->silent || transfer->released;
    if (transfer->slicing)
        kvfi_agent_put_slicing(agent, transfer->slicing);
    kvfi_agent_put_transfer(agent, transfer);
    if (!silent && agent->callbacks.transfer_done)
        agent->callbacks.transfer_done(agent->callbacks.ctx, id, user_data, status, &stats);
}

void kvfi_agent_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    if (op->user)
        kvfi_agent_slice_done(ctx, op->user, status);
    else
        kvfi_agent_finish(ctx, (struct transfer *)op, status); /* first member */
}

void kvfi_agent_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct kvf_agent *agent = ctx;
    struct transfer *transfer = (struct transfer *)op; /* first member */
    if (transfer->slicing) {                           /* the message at the end of one in slices */
        kvfi_agent_finish(agent, transfer, status);
        return;
    }
    struct kvf_peer_id peer = transfer->peer->id;
    uint64_t user_data = transfer->user_data;
    transfer->peer->operations--;
    agent->notification_count--;
    if (status == KVF_OK)
        agent->counters.notifications_sent++;
    else
        agent->counters.notifications_failed++;
    kvfi_agent_put_transfer(agent, transfer);
    if (status != KVF_OK && !agent->silent && agent->callbacks.notify_failed)
        agent->callbacks.notify_failed(agent->callbacks.ctx, peer, user_data, status);
}
