/* SPDX-License-Identifier: Apache-2.0 */
/* The lane over UCX: one context, one worker, and the loop that drives them. */
#include "lane/ucx/ucx.h"
#include "lane/ucx/carry_wire.h"

#include "runtime/alloc.h"
#include "runtime/clock.h"

#include <poll.h>
#include <string.h>

enum {
    PROGRESS_ROUNDS_MAX = 32,
    EVENTS_PER_PROGRESS = 256,
    WAITING_COUNT_MAX = EVENTS_PER_PROGRESS,
    MINOR_OF_LATER = 99, /* for what comes after UCX 1.x */
};
#define WAITING_BYTES_MAX ((size_t)4 << 20)
#define DRAIN_NS          (2 * KVFI_NS_PER_S)
/* A close needs the peer to answer; one that is busy or gone is not waited for. */
#define CLOSE_NS (500 * KVFI_NS_PER_MS)

static bool keep_address(struct kvfi_lane *lane, const void *address, size_t len)
{
    size_t trailer_len = lane->abilities ? KVFI_TRAILER_LEN : 0;
    lane->address = kvfi_calloc(lane->allocator, 1, len + trailer_len);
    if (!lane->address)
        return false;
    memcpy(lane->address, address, len);
    if (trailer_len > 0)
        kvfi_trailer_encode(lane->abilities, lane->address + len);
    lane->address_len = len + trailer_len;
    return true;
}

static enum kvf_status create_worker(struct kvfi_lane *lane, struct kvf_error *error)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t status = ucp_worker_create(lane->context, &params, &lane->worker);
    if (status != UCS_OK) {
        lane->worker = NULL;
        return kvf_fail(error, KVF_ENOTSUP, "ucx: no worker: %s; see UCX_TLS and UCX_NET_DEVICES",
                        ucs_status_string(status));
    }
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    status = ucp_worker_query(lane->worker, &attr);
    if (status == UCS_OK) {
        bool kept = keep_address(lane, attr.address, attr.address_length);
        ucp_worker_release_address(lane->worker, attr.address);
        if (!kept)
            return kvf_fail(error, KVF_ENOMEM, "ucx: no memory for an address");
        status = ucp_worker_get_efd(lane->worker, &lane->fd);
    }
    if (status != UCS_OK)
        return kvf_fail(error, KVF_ENOTSUP, "ucx: the worker has no address or descriptor: %s",
                        ucs_status_string(status));
    return kvfi_ucx_receive_start(lane, error);
}

static void drive(struct kvfi_lane *lane, const size_t *left, uint64_t limit_ns);

/* Finds out now, not at the first request, whether any transport here reports failures. */
static enum kvf_status check_reachable(struct kvfi_lane *lane, struct kvf_error *error)
{
    struct kvf_error reason = {0};
    struct kvfi_lane_peer *self = NULL;
    if (kvfi_ucx_connect(lane, lane->address, lane->address_len, NULL, &self, &reason) != KVF_OK)
        return kvf_fail(error, KVF_ENOTSUP, "lane \"ucx\" cannot serve here: %s", reason.text);
    kvfi_ucx_close_at_once(self);
    kvfi_ucx_disconnect(lane, self);
    drive(lane, &lane->usage.peers_closing, CLOSE_NS);
    return KVF_OK;
}

static void ucx_destroy(struct kvfi_lane *lane);

static enum kvf_status ucx_create(const struct kvfi_lane_config *config, struct kvfi_lane **lane_p,
                                  struct kvf_error *error)
{
    struct kvfi_lane *lane = kvfi_calloc(config->allocator, 1, sizeof(*lane));
    if (!lane)
        return kvf_fail(error, KVF_ENOMEM, "ucx: no memory for a lane");
    lane->callbacks = config->callbacks;
    lane->allocator = config->allocator;
    lane->fd = -1;
    kvfi_lane_queue_init(&lane->events);
    unsigned major = 0;
    unsigned release = 0;
    ucp_get_version(&major, &lane->minor, &release);
    if (major != 1)
        lane->minor = MINOR_OF_LATER; /* needs none of the care below */
    lane->strip_rkeys = lane->minor <= 18;
    if (lane->minor < 20)
        lane->abilities = KVFI_TRAILER_CARRY;

    enum kvf_status status = kvfi_ucx_create_context(lane, error);
    if (status == KVF_OK)
        status = create_worker(lane, error);
    if (status == KVF_OK)
        status = check_reachable(lane, error);
    if (status != KVF_OK) {
        ucx_destroy(lane);
        return status;
    }
    *lane_p = lane;
    return KVF_OK;
}

static int ucx_fd(const struct kvfi_lane *lane)
{
    return lane->fd;
}

static enum kvf_status ucx_arm(struct kvfi_lane *lane)
{
    if (lane->events.head || lane->to_force)
        return KVF_AGAIN;
    ucs_status_t status = ucp_worker_arm(lane->worker);
    if (status == UCS_OK)
        return KVF_OK;
    return status == UCS_ERR_BUSY ? KVF_AGAIN : KVF_ETRANSPORT;
}

static void deliver_op(struct kvfi_lane *lane, struct kvfi_lane_event *event, uint8_t kind)
{
    char *base = (char *)event - offsetof(struct kvfi_lane_op, event);
    struct kvfi_lane_op *op = (struct kvfi_lane_op *)(void *)base;
    kvfi_ucx_forget_op(lane, op);
    if (kind == UCX_TRANSFER_DONE)
        lane->callbacks.transfer_done(lane->callbacks.ctx, op, op->status);
    else
        lane->callbacks.notify_done(lane->callbacks.ctx, op, op->status);
}

static void deliver_lost(struct kvfi_lane *lane, struct kvfi_lane_event *event)
{
    struct kvfi_lane_peer *peer = (struct kvfi_lane_peer *)(void *)event; /* first member */
    if (peer->released)
        kvfi_ucx_maybe_free_peer(peer);
    else if (!peer->cancelled)
        lane->callbacks.peer_lost(lane->callbacks.ctx, peer->user,
                                  ucs_status_string(peer->failure));
}

static bool deliver_next(struct kvfi_lane *lane, bool with_received)
{
    struct kvfi_lane_event *event = kvfi_lane_queue_take(&lane->events);
    if (!event)
        return false;
    uint8_t kind = event->kind;
    if (kind == UCX_PEER_LOST) {
        deliver_lost(lane, event);
    } else if (kind == UCX_RECEIVED) {
        struct ucx_received *received = (struct ucx_received *)(void *)event; /* first member */
        lane->waiting_count--;
        lane->waiting_bytes -= received->len;
        if (with_received) {
            lane->usage.messages_delivered++;
            lane->callbacks.received(lane->callbacks.ctx, received->data, received->len);
        }
        kvfi_ucx_received_free(lane, received);
    } else {
        deliver_op(lane, event, kind);
    }
    return true;
}

/* Enough messages wait: the next ones stay in the transport, whose own limits slow the sender. */
static bool is_flooded(const struct kvfi_lane *lane)
{
    return lane->waiting_count >= WAITING_COUNT_MAX || lane->waiting_bytes >= WAITING_BYTES_MAX;
}

static unsigned ucx_progress(struct kvfi_lane *lane)
{
    unsigned moved = 0;
    for (unsigned i = 0; i < PROGRESS_ROUNDS_MAX && !is_flooded(lane); i++) {
        unsigned step = ucp_worker_progress(lane->worker);
        if (step == 0)
            break;
        moved += step;
    }
    kvfi_ucx_force_close(lane);
    for (unsigned i = 0; i < EVENTS_PER_PROGRESS && deliver_next(lane, true); i++)
        moved++;
    return moved;
}

/* Drives the worker until *left is 0 or the time is over; sleeps in between. */
static void drive(struct kvfi_lane *lane, const size_t *left, uint64_t limit_ns)
{
    uint64_t deadline_ns = kvfi_deadline_ns(kvfi_clock_mono_ns(), limit_ns);
    for (;;) {
        bool moved = ucp_worker_progress(lane->worker) > 0;
        kvfi_ucx_force_close(lane);
        while (deliver_next(lane, false))
            moved = true;
        uint64_t now_ns = kvfi_clock_mono_ns();
        if (*left == 0 || now_ns >= deadline_ns)
            return;
        if (moved || ucx_arm(lane) != KVF_OK)
            continue;
        struct pollfd waiter = {.fd = lane->fd, .events = POLLIN};
        (void)poll(&waiter, 1, (int)((deadline_ns - now_ns) / KVFI_NS_PER_MS) + 1);
    }
}

static void destroy_worker(struct kvfi_lane *lane)
{
    kvfi_ucx_abandon_closes(lane);
    ucp_worker_destroy(lane->worker);
    lane->worker = NULL;
    lane->to_force = NULL;
}

static void ucx_drain(struct kvfi_lane *lane)
{
    drive(lane, &lane->usage.operations, DRAIN_NS);
    if (lane->usage.operations == 0)
        return;
    /* The last resort: without its transports no operation can touch memory. */
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = peer->next) {
        if (peer->operations > 0)
            kvfi_ucx_close_at_once(peer);
    }
    destroy_worker(lane);
    kvfi_ucx_abandon_ops(lane);
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = peer->next)
        peer->ep = NULL;
    while (deliver_next(lane, false))
        ;
}

static void ucx_destroy(struct kvfi_lane *lane)
{
    if (lane->worker) {
        kvfi_ucx_unpark_all(lane);
        drive(lane, &lane->usage.peers_closing, CLOSE_NS);
        destroy_worker(lane);
    }
    struct kvfi_lane_event *event;
    while ((event = kvfi_lane_queue_take(&lane->events))) {
        if (event->kind == UCX_RECEIVED)
            kvfi_ucx_received_free(lane, (struct ucx_received *)(void *)event);
    }
    kvfi_ucx_receive_stop(lane);
    kvfi_ucx_free_peers(lane);
    kvfi_ucx_carry_free(lane);
    kvfi_ucx_free_memories(lane);
    kvfi_free(lane->allocator, lane->address);
    if (lane->context)
        ucp_cleanup(lane->context);
    kvfi_free(lane->allocator, lane);
}

static uint64_t ucx_now_ns(const struct kvfi_lane *lane)
{
    return kvfi_clock_mono_ns();
}

static void ucx_address(const struct kvfi_lane *lane, const void **address_p, size_t *len_p)
{
    *address_p = lane->address;
    *len_p = lane->address_len;
}

static void ucx_usage(const struct kvfi_lane *lane, struct kvfi_lane_usage *usage)
{
    *usage = lane->usage;
}

const struct kvfi_lane_ops kvfi_lane_ucx = {
    .size = sizeof(struct kvfi_lane_ops),
    .name = "ucx",
    .backend = "UCX",
    .create = ucx_create,
    .destroy = ucx_destroy,
    .drain = ucx_drain,
    .fd = ucx_fd,
    .arm = ucx_arm,
    .progress = ucx_progress,
    .now_ns = ucx_now_ns,
    .address = ucx_address,
    .register_memory = kvfi_ucx_register,
    .deregister_memory = kvfi_ucx_deregister,
    .memory_rkey = kvfi_ucx_memory_rkey,
    .connect = kvfi_ucx_connect,
    .cancel = kvfi_ucx_cancel,
    .disconnect = kvfi_ucx_disconnect,
    .rkey_unpack = kvfi_ucx_rkey_unpack,
    .rkey_release = kvfi_ucx_rkey_release,
    .post = kvfi_ucx_post,
    .notify = kvfi_ucx_notify,
    .usage = ucx_usage,
};
