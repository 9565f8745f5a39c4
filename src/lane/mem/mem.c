/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/mem/net.h"

#include "wire/bytes.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    EVENTS_PER_PROGRESS = 256,
    ADDRESS_EXTRA = 32, /* "mem:", 20 digits, ":" and the terminator */
};

static void free_node(struct kvfi_lane *lane)
{
    if (lane->fd >= 0)
        close(lane->fd);
    kvfi_wire_free(lane->allocator, lane->address);
    kvfi_wire_free(lane->allocator, lane->name);
    kvfi_wire_free(lane->allocator, lane);
}

static enum kvf_status mem_create(const struct kvfi_lane_config *config, struct kvfi_lane **lane_p,
                                  struct kvf_error *error)
{
    struct kvfi_mem_net *net = config->lane_ctx;
    if (!net)
        return kvf_fail(error, KVF_EINVAL, "lane \"mem\": lane_ctx must be the net to join");
    size_t name_len = strlen(config->name);
    struct kvfi_lane *lane = kvfi_wire_alloc(config->allocator, sizeof(*lane));
    if (!lane)
        return kvf_fail(error, KVF_ENOMEM, "lane \"mem\": no memory for a node");
    *lane = (struct kvfi_lane){
        .net = net, .callbacks = config->callbacks, .allocator = config->allocator, .fd = -1};
    lane->inbox_tail_p = &lane->inbox;
    kvfi_lane_queue_init(&lane->events);
    lane->name = kvfi_wire_alloc(config->allocator, name_len + 1);
    lane->address = kvfi_wire_alloc(config->allocator, name_len + ADDRESS_EXTRA);
    if (!lane->name || !lane->address) {
        free_node(lane);
        return kvf_fail(error, KVF_ENOMEM, "lane \"mem\": no memory for a name");
    }
    memcpy(lane->name, config->name, name_len + 1);
    if (net->options.eventfd) {
        lane->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (lane->fd < 0) {
            int reason = errno;
            free_node(lane);
            return kvf_fail(error, KVF_ESYSTEM, "lane \"mem\": eventfd: errno %d", reason);
        }
    }

    pthread_mutex_lock(&net->lock);
    lane->serial = ++net->serial;
    (void)snprintf(lane->address, name_len + ADDRESS_EXTRA, "mem:%" PRIu64 ":%s", lane->serial,
                   lane->name);
    struct kvfi_lane **end_p = &net->nodes;
    while (*end_p)
        end_p = &(*end_p)->next;
    *end_p = lane;
    pthread_mutex_unlock(&net->lock);
    *lane_p = lane;
    return KVF_OK;
}

static void mem_destroy(struct kvfi_lane *lane)
{
    struct kvfi_mem_net *net = lane->net;
    pthread_mutex_lock(&net->lock);
    struct kvfi_lane **link_p = &net->nodes;
    while (*link_p != lane)
        link_p = &(*link_p)->next;
    *link_p = lane->next;
    for (struct kvfi_lane *node = net->nodes; node; node = node->next) {
        for (struct kvfi_lane_peer *peer = node->peers; peer; peer = peer->next) {
            if (peer->target == lane->serial)
                kvfi_mem_lose_peer(node, peer);
        }
    }
    pthread_mutex_unlock(&net->lock);

    struct kvfi_lane_event *event;
    while ((event = kvfi_lane_queue_take(&lane->events))) { /* only lost peers are left here */
        char *peer = (char *)event - offsetof(struct kvfi_lane_peer, event);
        kvfi_wire_free(lane->allocator, peer);
    }
    while (lane->inbox) {
        struct mem_message *message = lane->inbox;
        lane->inbox = message->next;
        kvfi_wire_free(net->options.allocator, message);
    }
    free_node(lane);
}

static int mem_fd(const struct kvfi_lane *lane)
{
    return lane->fd;
}

static bool inbox_due(const struct kvfi_lane *lane)
{
    return lane->inbox && lane->inbox->due_ns <= lane->net->now_ns;
}

static enum kvf_status mem_arm(struct kvfi_lane *lane)
{
    struct kvfi_mem_net *net = lane->net;
    pthread_mutex_lock(&net->lock);
    if (lane->fd >= 0) {
        uint64_t count;
        ssize_t got = read(lane->fd, &count, sizeof(count));
        (void)got; /* nothing to clear is fine */
    }
    bool busy = lane->events.head || inbox_due(lane) ||
                (!net->options.manual && kvfi_mem_runnable(net, lane));
    pthread_mutex_unlock(&net->lock);
    return busy ? KVF_AGAIN : KVF_OK;
}

/* Calls back for one event, without the lock. */
static void deliver(struct kvfi_lane *lane, struct kvfi_lane_event *event, uint8_t kind)
{
    const struct kvfi_lane_callbacks *callbacks = &lane->callbacks;
    if (kind == MEM_PEER_LOST) {
        char *base = (char *)event - offsetof(struct kvfi_lane_peer, event);
        struct kvfi_lane_peer *peer = (struct kvfi_lane_peer *)(void *)base;
        if (peer->released)
            kvfi_wire_free(lane->allocator, peer);
        else if (!peer->cancelled)
            callbacks->peer_lost(callbacks->ctx, peer->user, "the connection was cut");
        return;
    }
    char *base = (char *)event - offsetof(struct kvfi_lane_op, event);
    struct kvfi_lane_op *op = (struct kvfi_lane_op *)(void *)base;
    if (kind == MEM_NOTIFY_DONE)
        callbacks->notify_done(callbacks->ctx, op, op->status);
    else
        callbacks->transfer_done(callbacks->ctx, op, op->status);
}

/* Takes and delivers one event. Called and left with the lock held. */
static bool deliver_next(struct kvfi_lane *lane)
{
    struct kvfi_mem_net *net = lane->net;
    struct kvfi_lane_event *event = kvfi_lane_queue_take(&lane->events);
    if (!event)
        return false;
    uint8_t kind = event->kind;
    if (kind != MEM_PEER_LOST)
        lane->usage.operations--;
    pthread_mutex_unlock(&net->lock);
    deliver(lane, event, kind);
    pthread_mutex_lock(&net->lock);
    return true;
}

static bool receive_next(struct kvfi_lane *lane)
{
    struct kvfi_mem_net *net = lane->net;
    if (!inbox_due(lane))
        return false;
    struct mem_message *message = lane->inbox;
    lane->inbox = message->next;
    if (!lane->inbox)
        lane->inbox_tail_p = &lane->inbox;
    lane->usage.messages_delivered++;
    pthread_mutex_unlock(&net->lock);
    lane->callbacks.received(lane->callbacks.ctx, message->data, message->len);
    kvfi_wire_free(net->options.allocator, message);
    pthread_mutex_lock(&net->lock);
    return true;
}

static unsigned mem_progress(struct kvfi_lane *lane)
{
    struct kvfi_mem_net *net = lane->net;
    unsigned moved = 0;
    pthread_mutex_lock(&net->lock);
    struct mem_task *task;
    while (!net->options.manual && moved < EVENTS_PER_PROGRESS &&
           (task = kvfi_mem_runnable(net, lane))) {
        kvfi_mem_run(net, task);
        moved++;
    }
    while (moved < 2 * EVENTS_PER_PROGRESS && (receive_next(lane) || deliver_next(lane)))
        moved++;
    pthread_mutex_unlock(&net->lock);
    return moved;
}

static void mem_drain(struct kvfi_lane *lane)
{
    pthread_mutex_lock(&lane->net->lock);
    kvfi_mem_run_all(lane->net, lane);
    while (deliver_next(lane))
        ;
    pthread_mutex_unlock(&lane->net->lock);
}

static uint64_t mem_now_ns(const struct kvfi_lane *lane)
{
    return kvfi_mem_net_now_ns(lane->net);
}

static void mem_address(const struct kvfi_lane *lane, const void **address_p, size_t *len_p)
{
    *address_p = lane->address;
    *len_p = strlen(lane->address);
}

static enum kvf_status mem_register(struct kvfi_lane *lane, void *addr, size_t length,
                                    enum kvf_memory_kind kind, struct kvfi_lane_memory **memory_p,
                                    struct kvf_error *error)
{
    if (kind != KVF_MEMORY_DRAM)
        return kvf_fail(error, KVF_ENOTSUP, "lane \"mem\" serves host memory only");
    struct kvfi_lane_memory *memory = kvfi_wire_alloc(lane->allocator, sizeof(*memory));
    if (!memory)
        return kvf_fail(error, KVF_ENOMEM, "lane \"mem\": no memory for a registration");
    *memory = (struct kvfi_lane_memory){
        .node = lane, .addr = (uint64_t)(uintptr_t)addr, .length = length};
    pthread_mutex_lock(&lane->net->lock);
    memory->id = ++lane->net->serial;
    uint64_t words[3] = {lane->serial, memory->id, length};
    static_assert(sizeof(words) == MEM_RKEY_LEN, "the rkey is three words");
    memcpy(memory->rkey, words, sizeof(words));
    memory->next = lane->memories;
    lane->memories = memory;
    lane->usage.memories++;
    pthread_mutex_unlock(&lane->net->lock);
    *memory_p = memory;
    return KVF_OK;
}

static void mem_deregister(struct kvfi_lane *lane, struct kvfi_lane_memory *memory)
{
    pthread_mutex_lock(&lane->net->lock);
    struct kvfi_lane_memory **link_p = &lane->memories;
    while (*link_p != memory)
        link_p = &(*link_p)->next;
    *link_p = memory->next;
    lane->usage.memories--;
    pthread_mutex_unlock(&lane->net->lock);
    kvfi_wire_free(lane->allocator, memory);
}

static void mem_rkey(const struct kvfi_lane_memory *memory, const void **rkey_p, size_t *len_p)
{
    *rkey_p = memory->rkey;
    *len_p = sizeof(memory->rkey);
}

static bool parse_address(const void *address, size_t len, uint64_t *serial)
{
    struct kvfi_span rest = kvfi_span(address, len);
    if (len < 4 || memcmp(address, "mem:", 4) != 0)
        return false;
    rest.data += 4;
    rest.len -= 4;
    const uint8_t *colon = memchr(rest.data, ':', rest.len);
    if (!colon)
        return false;
    rest.len = (size_t)(colon - rest.data);
    return kvfi_parse_decimal(rest, UINT64_MAX, serial);
}

static enum kvf_status mem_connect(struct kvfi_lane *lane, const void *address, size_t len,
                                   void *user, struct kvfi_lane_peer **peer_p,
                                   struct kvf_error *error)
{
    uint64_t serial = 0;
    if (!parse_address(address, len, &serial))
        return kvf_fail(error, KVF_EFORMAT, "lane \"mem\": %zu bytes are not a mem address", len);
    struct kvfi_lane_peer *peer = kvfi_wire_alloc(lane->allocator, sizeof(*peer));
    if (!peer)
        return kvf_fail(error, KVF_ENOMEM, "lane \"mem\": no memory for a peer");
    *peer = (struct kvfi_lane_peer){.user = user, .target = serial};

    pthread_mutex_lock(&lane->net->lock);
    peer->next = lane->peers;
    lane->peers = peer;
    lane->usage.peers++;
    const struct kvfi_lane *target = kvfi_mem_find_node(lane->net, serial);
    if (!target || target->cut || lane->cut)
        kvfi_mem_lose_peer(lane, peer);
    pthread_mutex_unlock(&lane->net->lock);
    *peer_p = peer;
    return KVF_OK;
}

static void mem_cancel(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    pthread_mutex_lock(&lane->net->lock);
    peer->cancelled = true;
    pthread_mutex_unlock(&lane->net->lock);
}

static void mem_disconnect(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    pthread_mutex_lock(&lane->net->lock);
    struct kvfi_lane_peer **link_p = &lane->peers;
    while (*link_p != peer)
        link_p = &(*link_p)->next;
    *link_p = peer->next;
    lane->usage.peers--;
    peer->released = true;
    bool queued = peer->event.queued;
    pthread_mutex_unlock(&lane->net->lock);
    if (!queued)
        kvfi_wire_free(lane->allocator, peer);
}

static enum kvf_status mem_rkey_unpack(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                       const void *bytes, size_t len,
                                       struct kvfi_lane_rkey **rkey_p, struct kvf_error *error)
{
    uint64_t words[3];
    if (len != MEM_RKEY_LEN)
        return kvf_fail(error, KVF_EFORMAT, "lane \"mem\": an rkey has %d bytes, not %zu",
                        MEM_RKEY_LEN, len);
    memcpy(words, bytes, sizeof(words));
    if (words[0] != peer->target)
        return kvf_fail(error, KVF_EFORMAT,
                        "lane \"mem\": rkey of node %" PRIu64 ", but the peer is node %" PRIu64,
                        words[0], peer->target);
    struct kvfi_lane_rkey *rkey = kvfi_wire_alloc(lane->allocator, sizeof(*rkey));
    if (!rkey)
        return kvf_fail(error, KVF_ENOMEM, "lane \"mem\": no memory for an rkey");
    *rkey = (struct kvfi_lane_rkey){.target = words[0], .memory_id = words[1]};
    pthread_mutex_lock(&lane->net->lock);
    lane->usage.rkeys++;
    pthread_mutex_unlock(&lane->net->lock);
    *rkey_p = rkey;
    return KVF_OK;
}

static void mem_rkey_release(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey)
{
    pthread_mutex_lock(&lane->net->lock);
    lane->usage.rkeys--;
    pthread_mutex_unlock(&lane->net->lock);
    kvfi_wire_free(lane->allocator, rkey);
}

static enum kvf_status submit(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                              struct mem_task *task)
{
    struct kvfi_mem_net *net = lane->net;
    enum kvf_status status = KVF_OK;
    pthread_mutex_lock(&net->lock);
    if (peer->lost)
        status = KVF_EDISCONNECTED;
    else if (peer->cancelled)
        status = KVF_ECLOSED;
    else if (kvfi_mem_count_down(&net->refuse_in))
        status = KVF_ENOMEM;
    if (status == KVF_OK) {
        task->op->peer = peer;
        kvfi_mem_append(net, task);
        lane->usage.operations++;
    }
    pthread_mutex_unlock(&net->lock);
    if (status != KVF_OK)
        kvfi_wire_free(net->options.allocator, task);
    return status;
}

static enum kvf_status mem_post(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                enum kvf_operation operation, kvfi_lane_next_fn next,
                                void *next_ctx, struct kvfi_lane_op *op)
{
    const struct kvf_allocator *allocator = lane->net->options.allocator;
    size_t count = 0;
    size_t cap = 16;
    struct mem_task *task =
        kvfi_wire_alloc(allocator, sizeof(*task) + cap * sizeof(task->pieces[0]));
    if (!task)
        return KVF_ENOMEM;
    struct kvfi_lane_piece piece;
    while (next(next_ctx, &piece)) {
        if (count == cap) {
            cap *= 2;
            struct mem_task *grown =
                kvfi_wire_realloc(allocator, task, sizeof(*task) + cap * sizeof(task->pieces[0]));
            if (!grown) {
                kvfi_wire_free(allocator, task);
                return KVF_ENOMEM;
            }
            task = grown;
        }
        task->pieces[count++] = piece;
    }
    task->node = lane;
    task->op = op;
    task->operation = operation;
    task->lone_message = false;
    task->held = false;
    task->half_moved = false;
    task->piece_count = count;
    op->stage = 1; /* its message is delayed by itself */
    return submit(lane, peer, task);
}

static enum kvf_status mem_notify(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                  struct kvfi_lane_op *op)
{
    struct mem_task *task = kvfi_wire_alloc(lane->net->options.allocator, sizeof(*task));
    if (!task)
        return KVF_ENOMEM;
    *task = (struct mem_task){.node = lane, .op = op, .lone_message = true};
    op->stage = 0; /* the delay is the task's */
    return submit(lane, peer, task);
}

static void mem_usage(const struct kvfi_lane *lane, struct kvfi_lane_usage *usage)
{
    pthread_mutex_lock(&lane->net->lock);
    *usage = lane->usage;
    pthread_mutex_unlock(&lane->net->lock);
}

const struct kvfi_lane_ops kvfi_lane_mem = {
    .size = sizeof(struct kvfi_lane_ops),
    .name = "mem",
    .backend = "MEM",
    .create = mem_create,
    .destroy = mem_destroy,
    .drain = mem_drain,
    .fd = mem_fd,
    .arm = mem_arm,
    .progress = mem_progress,
    .now_ns = mem_now_ns,
    .address = mem_address,
    .register_memory = mem_register,
    .deregister_memory = mem_deregister,
    .memory_rkey = mem_rkey,
    .connect = mem_connect,
    .cancel = mem_cancel,
    .disconnect = mem_disconnect,
    .rkey_unpack = mem_rkey_unpack,
    .rkey_release = mem_rkey_release,
    .post = mem_post,
    .notify = mem_notify,
    .usage = mem_usage,
};
