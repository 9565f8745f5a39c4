/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large transfers, a slice at a time. One slice is posted with the transfer; the others follow from
 * progress, of each waiting transfer in turn, so that transfers share the lane and a small one
 * never waits for more than the slices in flight. A lane orders nothing between its ops but
 * messages, so the message is sent when the last slice has ended.
 */
#include "agent/state.h"

#include <string.h>

enum {
    SLICES_PER_PROGRESS = 2,
};

/* ---- pool and queue ------------------------------------------------------------------------- */

void kvfi_agent_slices_init(struct kvf_agent *agent)
{
    agent->to_slice.end_p = &agent->to_slice.first;
}

static struct slicing *take_slicing(struct kvf_agent *agent)
{
    struct slicing *slicing = agent->free_slicings;
    struct kvfi_kept_plan plan = {0};
    if (slicing) {
        agent->free_slicings = slicing->next;
        plan = slicing->plan; /* its buffer */
    } else {
        slicing = kvfi_wire_alloc(agent->allocator, sizeof(*slicing));
        if (!slicing)
            return NULL;
    }
    *slicing = (struct slicing){.plan = plan, .status = KVF_OK};
    return slicing;
}

void kvfi_agent_put_slicing(struct kvf_agent *agent, struct slicing *slicing)
{
    kvfi_kept_plan_clear(&slicing->plan, &agent->tables, LISTS_KEPT_LEN_MAX);
    slicing->next = agent->free_slicings;
    agent->free_slicings = slicing;
}

void kvfi_agent_free_slicings(struct kvf_agent *agent)
{
    while (agent->free_slicings) {
        struct slicing *slicing = agent->free_slicings;
        agent->free_slicings = slicing->next;
        kvfi_kept_plan_clear(&slicing->plan, &agent->tables, 0);
        kvfi_wire_free(agent->allocator, slicing);
    }
}

static void enqueue(struct kvf_agent *agent, struct slicing *slicing)
{
    if (slicing->queued)
        return;
    slicing->queued = true;
    slicing->next = NULL;
    *agent->to_slice.end_p = slicing;
    agent->to_slice.end_p = &slicing->next;
}

static struct slicing *dequeue(struct kvf_agent *agent)
{
    struct slicing *slicing = agent->to_slice.first;
    if (!slicing)
        return NULL;
    agent->to_slice.first = slicing->next;
    if (!slicing->next)
        agent->to_slice.end_p = &agent->to_slice.first;
    slicing->queued = false;
    return slicing;
}

bool kvfi_agent_slices_wait(const struct kvf_agent *agent)
{
    return agent->to_slice.first != NULL;
}

/* ---- one slice ------------------------------------------------------------------------------ */

/* The pieces of one slice. The first is looked for before the lane is called, so that no slice is
 * empty. */
struct feed {
    struct kvf_agent *agent;
    struct slicing *slicing;
    struct kvfi_lane_piece piece;
    bool ready; /* piece is the next one */
    size_t runs_left;
    uint64_t bytes_left;
    enum kvf_status status; /* why it stopped early */
};

/* Registrations may have come and gone since the pins were noted, and another one may cover now. */
static enum kvf_status hold(struct kvf_agent *agent, struct slicing *slicing)
{
    struct kvfi_pins *pins = &slicing->transfer->pins;
    const struct kvfi_walk *walk = &slicing->walk;
    if (walk->local->epoch == slicing->local_epoch && walk->remote->epoch == slicing->remote_epoch)
        return KVF_OK;
    struct kvfi_region *twin = walk->remote_region->twin;
    if (twin)
        KVF_TRY(kvfi_pins_hold_late(pins, agent->allocator, twin));
    return kvfi_pins_hold_late(pins, agent->allocator, walk->local_region);
}

static void fetch(struct feed *feed)
{
    feed->ready = false;
    if (feed->runs_left == 0 || feed->bytes_left == 0)
        return;
    enum kvfi_walk_result result =
        kvfi_walk_step(&feed->slicing->walk, feed->bytes_left, &feed->piece);
    if (result == KVFI_WALK_END)
        return;
    if (result != KVFI_WALK_PIECE) { /* memory was deregistered that nothing had pinned */
        feed->status = KVF_EINVAL;
        return;
    }
    feed->status = hold(feed->agent, feed->slicing);
    if (feed->status != KVF_OK)
        return;
    feed->ready = true;
    feed->runs_left--;
    feed->bytes_left -= feed->piece.length_bytes;
}

static bool next_piece(void *ctx, struct kvfi_lane_piece *piece)
{
    struct feed *feed = ctx;
    if (!feed->ready)
        return false;
    *piece = feed->piece;
    feed->slicing->transfer->stats.run_count++;
    fetch(feed);
    return true;
}

static struct slice *idle_slice(struct slicing *slicing)
{
    for (size_t i = 0; i < SLICES_IN_FLIGHT; i++) {
        if (!slicing->slices[i].busy)
            return &slicing->slices[i];
    }
    return NULL;
}

/* Posts the next slice of one that has room and more to post. */
static enum kvf_status post_slice(struct kvf_agent *agent, struct slicing *slicing)
{
    struct transfer *transfer = slicing->transfer;
    uint64_t runs_before = transfer->stats.run_count;
    struct slice *slice = idle_slice(slicing);
    struct feed feed = {.agent = agent,
                        .slicing = slicing,
                        .runs_left = SLICE_RUNS_MAX,
                        .bytes_left = SLICE_BYTES_MAX,
                        .status = KVF_OK};
    fetch(&feed);
    KVF_TRY(feed.status);
    slice->slicing = slicing;
    slice->op = (struct kvfi_lane_op){.user = slice};
    KVF_TRY(agent->ops->post(agent->lane, transfer->peer->lane_peer, transfer->operation,
                             next_piece, &feed, &slice->op));
    slice->busy = true;
    slicing->in_flight++;
    agent->counters.runs_posted += transfer->stats.run_count - runs_before;
    transfer->stats.post_end_ns = agent->ops->now_ns(agent->lane);
    slicing->status = feed.status;
    slicing->ended = feed.status != KVF_OK || !kvfi_walk_has_more(&slicing->walk);
    return KVF_OK;
}

/* ---- the way of a transfer ------------------------------------------------------------------ */

static void fail(struct slicing *slicing, enum kvf_status status)
{
    if (slicing->status == KVF_OK) /* a peer that was dropped closes for us */
        slicing->status = status == KVF_ECLOSED ? KVF_ECANCELED : status;
    slicing->ended = true;
}

/* Everything was posted, or will not be, and has ended. */
static void end(struct kvf_agent *agent, struct slicing *slicing)
{
    struct transfer *transfer = slicing->transfer;
    if (slicing->status == KVF_OK && transfer->op.message) {
        enum kvf_status status = KVF_ECLOSED;
        if (!agent->silent)
            status = agent->ops->notify(agent->lane, transfer->peer->lane_peer, &transfer->op);
        if (status == KVF_OK)
            return; /* its end is the transfer's */
        fail(slicing, status);
    }
    kvfi_agent_finish(agent, transfer, slicing->status);
}

/* Decides what comes next: the end, a place in the queue, or nothing before a slice is done. */
static void go_on(struct kvf_agent *agent, struct slicing *slicing)
{
    const struct transfer *transfer = slicing->transfer;
    if (!slicing->ended && (transfer->released || transfer->peer->dropped || agent->silent))
        fail(slicing, KVF_ECANCELED);
    if (slicing->ended && slicing->in_flight == 0)
        end(agent, slicing);
    else if (!slicing->ended && slicing->in_flight < SLICES_IN_FLIGHT)
        enqueue(agent, slicing);
}

enum kvf_status kvfi_agent_slices_start(struct kvf_agent *agent, struct transfer *transfer,
                                        const struct posting *posting)
{
    struct slicing *slicing = take_slicing(agent);
    if (!slicing)
        return KVF_ENOMEM;
    const struct kvf_plan *plan = posting->plan;
    enum kvf_status status = KVF_OK;
    if (!posting->plan_is_kept) {
        status = kvfi_kept_plan_set(&slicing->plan, &agent->tables, plan);
        plan = &slicing->plan.plan;
    }
    if (status == KVF_OK) {
        const struct kvfi_region_set *remote = &transfer->peer->regions;
        kvfi_walk_start(&slicing->walk, plan, &agent->regions, remote);
        slicing->local_epoch = agent->regions.epoch;
        slicing->remote_epoch = remote->epoch;
        slicing->transfer = transfer;
        transfer->stats.run_count = 0; /* of those that are posted, with the cuts between slices */
        status = post_slice(agent, slicing);
    }
    if (status != KVF_OK) {
        kvfi_agent_put_slicing(agent, slicing);
        return status;
    }
    transfer->slicing = slicing;
    if (!slicing->ended)
        enqueue(agent, slicing);
    return KVF_OK;
}

void kvfi_agent_slice_done(struct kvf_agent *agent, struct slice *slice, enum kvf_status status)
{
    struct slicing *slicing = slice->slicing;
    slice->busy = false;
    slicing->in_flight--;
    if (status != KVF_OK)
        fail(slicing, status);
    if (!slicing->queued)
        go_on(agent, slicing);
}

unsigned kvfi_agent_slices_progress(struct kvf_agent *agent)
{
    unsigned posted = 0;
    while (posted < SLICES_PER_PROGRESS) {
        struct slicing *slicing = dequeue(agent);
        if (!slicing)
            break;
        const struct transfer *transfer = slicing->transfer;
        if (!slicing->ended && !transfer->released && !transfer->peer->dropped) {
            enum kvf_status status = post_slice(agent, slicing);
            if (status != KVF_OK)
                fail(slicing, status);
        }
        posted++;
        go_on(agent, slicing);
    }
    return posted;
}

void kvfi_agent_slices_stop(struct kvf_agent *agent)
{
    struct slicing *slicing;
    while ((slicing = dequeue(agent)))
        go_on(agent, slicing);
}
