/* SPDX-License-Identifier: Apache-2.0 */
/* The "auto" lane: creation, memory, and the loop. */
#include "lane/host/host.h"
#include "lane/host/pool.h"

#include "kvferry/observe.h"
#include "runtime/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { EVENTS_PER_PROGRESS = 256 };

/* Which lanes the environment allows: names with commas between. */
static enum kvf_status read_choice(const char *text, uint8_t *offers_p, struct kvf_error *error)
{
    static const struct {
        const char *name;
        uint8_t offer;
    } lanes[] = {{"ucx", 0}, {"cma", KVFI_HOST_CMA}, {"shm", KVFI_HOST_SHM}};
    *offers_p = 0;
    while (*text) {
        size_t len = strcspn(text, ",");
        size_t i = 0;
        while (i < 3 && (strlen(lanes[i].name) != len || memcmp(lanes[i].name, text, len) != 0))
            i++;
        if (i == 3)
            return kvf_fail(error, KVF_EINVAL,
                            "KVFERRY_LANES: \"%.*s\" is no lane; write a list of shm, cma and ucx, "
                            "for example \"cma,ucx\"",
                            (int)(len < 32 ? len : 32), text);
        *offers_p |= lanes[i].offer;
        text += len + (text[len] == ',');
    }
    return KVF_OK;
}

static void inner_received(void *ctx, const void *message, size_t message_len)
{
    const struct kvfi_lane *lane = ctx;
    lane->callbacks.received(lane->callbacks.ctx, message, message_len);
}

static void inner_peer_lost(void *ctx, void *user, const char *reason)
{
    const struct kvfi_lane *lane = ctx;
    struct kvfi_lane_peer *peer = user;
    if (peer->lost) /* a copy has found out before */
        return;
    peer->lost = true;
    lane->callbacks.peer_lost(lane->callbacks.ctx, peer->user, reason);
}

static bool make_address(struct kvfi_lane *lane)
{
    const void *inner = NULL;
    size_t len = 0;
    lane->ops->address(lane->inner, &inner, &len);
    size_t trailer_len = lane->offers ? KVFI_HOST_TRAILER_LEN : 0;
    lane->address = kvfi_calloc(lane->allocator, 1, len + trailer_len);
    if (!lane->address)
        return false;
    memcpy(lane->address, inner, len);
    if (trailer_len > 0)
        kvfi_host_identity_encode(&lane->self, lane->address + len);
    lane->address_len = len + trailer_len;
    return true;
}

static void host_destroy(struct kvfi_lane *lane);

static enum kvf_status host_create(const struct kvfi_lane_config *config, struct kvfi_lane **lane_p,
                                   struct kvf_error *error)
{
    uint8_t offers = KVFI_HOST_CMA | KVFI_HOST_SHM;
    const char *choice = getenv("KVFERRY_LANES");
    if (choice)
        KVF_TRY(read_choice(choice, &offers, error));
    struct kvfi_lane *lane = kvfi_calloc(config->allocator, 1, sizeof(*lane));
    if (!lane)
        return kvf_fail(error, KVF_ENOMEM, "auto: no memory for a lane");
    lane->ops = &kvfi_lane_ucx;
    lane->callbacks = config->callbacks;
    lane->allocator = config->allocator;
    kvfi_lane_queue_init(&lane->events);
    if (offers &&
        getrandom(lane->nonce, sizeof(lane->nonce), GRND_NONBLOCK) ==
            (ssize_t)sizeof(lane->nonce) &&
        kvfi_host_self(offers, lane->nonce, &lane->self))
        lane->offers = offers;
    else if (offers)
        kvf_log(KVF_LOG_WARNING, "lane auto: /proc does not say which process this is; peers of "
                                 "this host are served by ucx");

    struct kvfi_lane_config inner = *config;
    inner.callbacks = (struct kvfi_lane_callbacks){.ctx = lane,
                                                   .received = inner_received,
                                                   .transfer_done = kvfi_host_inner_transfer_done,
                                                   .notify_done = kvfi_host_inner_notify_done,
                                                   .peer_lost = inner_peer_lost};
    enum kvf_status status = lane->ops->create(&inner, &lane->inner, error);
    if (status == KVF_OK && !make_address(lane))
        status = kvf_fail(error, KVF_ENOMEM, "auto: no memory for an address");
    if (status != KVF_OK) {
        host_destroy(lane);
        return status;
    }
    *lane_p = lane;
    return KVF_OK;
}

/* ---- loop ----------------------------------------------------------------------------------- */

static int host_fd(const struct kvfi_lane *lane)
{
    return lane->ops->fd(lane->inner);
}

static enum kvf_status host_arm(struct kvfi_lane *lane)
{
    return lane->events.head ? KVF_AGAIN : lane->ops->arm(lane->inner);
}

static bool deliver_next(struct kvfi_lane *lane, bool with_losses)
{
    struct kvfi_lane_event *event = kvfi_lane_queue_take(&lane->events);
    if (!event)
        return false;
    if (event->kind == HOST_OP_DONE) {
        kvfi_host_deliver(lane, event);
        return true;
    }
    struct kvfi_lane_peer *peer = (struct kvfi_lane_peer *)(void *)event; /* first member */
    if (peer->released)
        kvfi_free(lane->allocator, peer);
    else if (with_losses && !peer->cancelled)
        lane->callbacks.peer_lost(lane->callbacks.ctx, peer->user, "its process has ended");
    return true;
}

static unsigned host_progress(struct kvfi_lane *lane)
{
    unsigned moved = lane->ops->progress(lane->inner);
    for (unsigned i = 0; i < EVENTS_PER_PROGRESS && deliver_next(lane, true); i++)
        moved++;
    return moved;
}

static void host_drain(struct kvfi_lane *lane)
{
    lane->draining = true;
    lane->ops->drain(lane->inner);
    while (deliver_next(lane, false))
        ;
}

static void host_destroy(struct kvfi_lane *lane)
{
    while (deliver_next(lane, false))
        ;
    if (lane->inner)
        lane->ops->destroy(lane->inner);
    kvfi_host_free_ops(lane);
    kvfi_free(lane->allocator, lane->address);
    kvfi_free(lane->allocator, lane);
}

static uint64_t host_now_ns(const struct kvfi_lane *lane)
{
    return lane->ops->now_ns(lane->inner);
}

static void host_address(const struct kvfi_lane *lane, const void **address_p, size_t *len_p)
{
    *address_p = lane->address;
    *len_p = lane->address_len;
}

static void host_cancel(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    peer->cancelled = true;
    lane->ops->cancel(lane->inner, peer->inner);
}

static void host_usage(const struct kvfi_lane *lane, struct kvfi_lane_usage *usage)
{
    lane->ops->usage(lane->inner, usage);
    usage->operations += lane->queued_ops;
}

/* ---- memory --------------------------------------------------------------------------------- */

static void encode_key(const struct kvfi_lane *lane, uint64_t addr, uint64_t length,
                       unsigned char *out)
{
    struct kvfi_host_key key = {.kind = KVFI_HOST_PLAIN, .addr = addr, .length = length};
    struct kvfi_pool_place place;
    if ((lane->offers & KVFI_HOST_SHM) && kvfi_pool_find(addr, length, &place)) {
        key.kind = KVFI_HOST_POOL;
        key.fd = (uint32_t)place.fd;
        key.inode = place.inode;
        key.offset = place.offset;
    }
    kvfi_host_key_encode(&key, out);
}

static enum kvf_status host_register(struct kvfi_lane *lane, void *addr, size_t length,
                                     enum kvf_memory_kind kind, struct kvfi_lane_memory **memory_p,
                                     struct kvf_error *error)
{
    struct kvfi_lane_memory *inner = NULL;
    KVF_TRY(lane->ops->register_memory(lane->inner, addr, length, kind, &inner, error));
    const void *rkey = NULL;
    size_t rkey_len = 0;
    lane->ops->memory_rkey(inner, &rkey, &rkey_len);
    bool plain = kind == KVF_MEMORY_DRAM && lane->offers;
    size_t trailer_len = plain ? KVFI_HOST_KEY_TRAILER_LEN : 0;
    struct kvfi_lane_memory *memory =
        kvfi_calloc(lane->allocator, 1, sizeof(*memory) + rkey_len + trailer_len);
    if (!memory) {
        lane->ops->deregister_memory(lane->inner, inner);
        return kvf_fail(error, KVF_ENOMEM, "auto: no memory for a registration");
    }
    memory->inner = inner;
    memory->plain = plain;
    memory->rkey_len = rkey_len + trailer_len;
    memcpy(memory->rkey, rkey, rkey_len);
    if (plain)
        encode_key(lane, (uintptr_t)addr, length, memory->rkey + rkey_len);
    *memory_p = memory;
    return KVF_OK;
}

static void host_deregister(struct kvfi_lane *lane, struct kvfi_lane_memory *memory)
{
    lane->ops->deregister_memory(lane->inner, memory->inner);
    kvfi_free(lane->allocator, memory);
}

static void host_memory_rkey(const struct kvfi_lane_memory *memory, const void **rkey_p,
                             size_t *len_p)
{
    *rkey_p = memory->rkey;
    *len_p = memory->rkey_len;
}

const struct kvfi_lane_ops kvfi_lane_auto = {
    .size = sizeof(struct kvfi_lane_ops),
    .name = "auto",
    .backend = "UCX",
    .create = host_create,
    .destroy = host_destroy,
    .drain = host_drain,
    .fd = host_fd,
    .arm = host_arm,
    .progress = host_progress,
    .now_ns = host_now_ns,
    .address = host_address,
    .register_memory = host_register,
    .deregister_memory = host_deregister,
    .memory_rkey = host_memory_rkey,
    .connect = kvfi_host_connect,
    .cancel = host_cancel,
    .disconnect = kvfi_host_disconnect,
    .rkey_unpack = kvfi_host_rkey_unpack,
    .rkey_release = kvfi_host_rkey_release,
    .post = kvfi_host_post,
    .notify = kvfi_host_notify,
    .usage = host_usage,
};
