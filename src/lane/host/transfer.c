/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: each piece takes the shortest way that its key and its memory allow.
 *
 * A copy is over when post() returns, so of a transfer only the message, and the pieces that the
 * lane inside carries, are ever outstanding.
 */
#include "lane/host/host.h"

#include "runtime/alloc.h"

enum { OPS_PER_SLAB = 32 };

struct host_slab {
    struct host_slab *next;
    struct host_op ops[OPS_PER_SLAB];
};

/* ---- pool ----------------------------------------------------------------------------------- */

static struct host_op *take_op(struct kvfi_lane *lane)
{
    if (!lane->free_ops) {
        struct host_slab *slab = kvfi_calloc(lane->allocator, 1, sizeof(*slab));
        if (!slab)
            return NULL;
        slab->next = lane->slabs;
        lane->slabs = slab;
        for (size_t i = 0; i < OPS_PER_SLAB; i++) {
            slab->ops[i].next_free = lane->free_ops;
            lane->free_ops = &slab->ops[i];
        }
    }
    struct host_op *host = lane->free_ops;
    lane->free_ops = host->next_free;
    return host;
}

static void put_op(struct kvfi_lane *lane, struct host_op *host)
{
    host->op = NULL;
    host->next_free = lane->free_ops;
    lane->free_ops = host;
}

void kvfi_host_free_ops(struct kvfi_lane *lane)
{
    while (lane->slabs) {
        struct host_slab *slab = lane->slabs;
        lane->slabs = slab->next;
        kvfi_free(lane->allocator, slab);
    }
    lane->free_ops = NULL;
}

/* ---- pieces --------------------------------------------------------------------------------- */

/* The agent's pieces on their way: short cuts are taken inside, the others come out. */
struct split {
    struct kvfi_lane *lane;
    enum kvf_operation operation;
    kvfi_lane_next_fn next;
    void *next_ctx;
    enum kvf_status status; /* of the copies through mappings */
    bool has_held;          /* a piece that came out before the lane inside was asked */
    struct kvfi_lane_piece held;
};

static void copy_mapped(struct split *split, const struct kvfi_lane_piece *piece)
{
    const struct kvfi_lane_rkey *rkey = piece->rkey;
    uint64_t offset = piece->remote_addr - rkey->addr;
    if (piece->remote_addr < rkey->addr || offset > rkey->length ||
        piece->length_bytes > rkey->length - offset) {
        split->status = KVF_EINVAL; /* the peer advertised more than its key opens */
        return;
    }
    void *local = (void *)(uintptr_t)piece->local_addr; /* NOLINT: checked against a registration */
    if (split->operation == KVF_WRITE)
        kvfi_host_copy(rkey->mapped + offset, local, piece->length_bytes);
    else
        kvfi_host_copy(local, rkey->mapped + offset, piece->length_bytes);
}

/* The next piece for the lane inside; false at the end or after a failure. */
static bool next_inner(void *ctx, struct kvfi_lane_piece *piece)
{
    struct split *split = ctx;
    if (split->has_held) {
        split->has_held = false;
        *piece = split->held;
        return true;
    }
    struct kvfi_host_gather *gather = &split->lane->gather;
    while (split->status == KVF_OK && gather->status == KVF_OK &&
           split->next(split->next_ctx, piece)) {
        enum host_route route = piece->memory->plain ? piece->rkey->route : HOST_INNER;
        if (route == HOST_INNER) {
            piece->memory = piece->memory->inner;
            piece->rkey = piece->rkey->inner;
            return true;
        }
        if (route == HOST_SHM)
            copy_mapped(split, piece);
        else
            kvfi_host_gather_add(gather, (void *)(uintptr_t)piece->local_addr, /* NOLINT */
                                 piece->remote_addr, piece->length_bytes);
    }
    return false;
}

/* After the last piece: what has been gathered goes, and all copies become visible. */
static enum kvf_status finish_copies(struct split *split)
{
    enum kvf_status status = kvfi_host_gather_finish(&split->lane->gather);
    kvfi_host_copy_fence();
    return split->status != KVF_OK ? split->status : status;
}

/* ---- a transfer ----------------------------------------------------------------------------- */

static void finish(struct host_op *host, enum kvf_status status)
{
    if (host->status == KVF_OK)
        host->status = status;
    host->stage = HOST_DONE;
    host->done.kind = HOST_OP_DONE;
    host->peer->lane->queued_ops++;
    kvfi_lane_queue_put(&host->peer->lane->events, &host->done);
}

/* All data is in place, or something failed. */
static void go_on(struct host_op *host)
{
    struct kvfi_lane *lane = host->peer->lane;
    if (host->status != KVF_OK || !host->op->message) {
        finish(host, KVF_OK);
        return;
    }
    if (host->peer->cancelled || lane->draining) {
        finish(host, KVF_ECANCELED);
        return;
    }
    host->stage = HOST_MESSAGE;
    host->inner = (struct kvfi_lane_op){
        .message = host->op->message, .message_len = host->op->message_len, .user = lane->nonce};
    enum kvf_status status = lane->ops->notify(lane->inner, host->peer->inner, &host->inner);
    if (status != KVF_OK)
        finish(host, status);
}

static enum kvf_status check_open(const struct kvfi_lane_peer *peer)
{
    if (peer->lost)
        return KVF_EDISCONNECTED;
    return peer->cancelled ? KVF_ECLOSED : KVF_OK;
}

/* What came out first is held, if anything did: then the lane inside is asked, and pulls the rest.
 */
static void post_split(struct split *split, struct host_op *host)
{
    struct kvfi_lane *lane = split->lane;
    bool posted = false;
    if (split->has_held) {
        host->inner = (struct kvfi_lane_op){.user = lane->nonce};
        host->status = lane->ops->post(lane->inner, host->peer->inner, split->operation, next_inner,
                                       split, &host->inner);
        posted = host->status == KVF_OK;
    }
    enum kvf_status copies = finish_copies(split);
    if (host->status == KVF_OK)
        host->status = copies;
    if (copies == KVF_EDISCONNECTED)
        kvfi_host_lose(host->peer);
    if (!posted)
        go_on(host);
}

enum kvf_status kvfi_host_post(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                               enum kvf_operation operation, kvfi_lane_next_fn next, void *next_ctx,
                               struct kvfi_lane_op *op)
{
    KVF_TRY(check_open(peer));
    struct split split = {.lane = lane, .operation = operation, .next = next, .next_ctx = next_ctx};
    kvfi_host_gather_start(&lane->gather, peer->process.pid, operation);
    if (!peer->process.reach) /* everything goes inside, and so does the op */
        return lane->ops->post(lane->inner, peer->inner, operation, next_inner, &split, op);
    if ((peer->process.reach & KVFI_HOST_CMA) && !kvfi_host_process_lives(&peer->process)) {
        kvfi_host_lose(peer);
        return KVF_EDISCONNECTED;
    }
    struct host_op *host = take_op(lane);
    if (!host)
        return KVF_ENOMEM;
    split.has_held = next_inner(&split, &split.held);
    host->op = op;
    host->peer = peer;
    host->status = KVF_OK;
    host->stage = HOST_DATA;
    post_split(&split, host);
    return KVF_OK;
}

enum kvf_status kvfi_host_notify(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                 struct kvfi_lane_op *op)
{
    KVF_TRY(check_open(peer));
    return lane->ops->notify(lane->inner, peer->inner, op);
}

/* ---- completion ----------------------------------------------------------------------------- */

/* NULL when the op is the agent's own. */
static struct host_op *to_host(struct kvfi_lane *lane, struct kvfi_lane_op *op)
{
    return op->user == lane->nonce ? (struct host_op *)op : NULL; /* first member */
}

void kvfi_host_inner_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct kvfi_lane *lane = ctx;
    struct host_op *host = to_host(lane, op);
    if (!host) {
        lane->callbacks.transfer_done(lane->callbacks.ctx, op, status);
        return;
    }
    if (host->status == KVF_OK)
        host->status = status;
    go_on(host);
}

void kvfi_host_inner_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct kvfi_lane *lane = ctx;
    struct host_op *host = to_host(lane, op);
    if (!host) {
        lane->callbacks.notify_done(lane->callbacks.ctx, op, status);
        return;
    }
    finish(host, status);
}

void kvfi_host_deliver(struct kvfi_lane *lane, struct kvfi_lane_event *event)
{
    char *base = (char *)event - offsetof(struct host_op, done);
    struct host_op *host = (struct host_op *)(void *)base;
    struct kvfi_lane_op *op = host->op;
    enum kvf_status status = host->status;
    lane->queued_ops--;
    put_op(lane, host);
    lane->callbacks.transfer_done(lane->callbacks.ctx, op, status);
}
