/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/mem/net.h"

#include "wire/bytes.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

bool kvfi_mem_count_down(uint64_t *countdown)
{
    return *countdown > 0 && --*countdown == 0;
}

void kvfi_mem_wake(const struct kvfi_lane *node)
{
    if (node->fd < 0)
        return;
    uint64_t one = 1;
    ssize_t written = write(node->fd, &one, sizeof(one));
    (void)written; /* a full counter is awake already */
}

uint64_t kvfi_mem_clock(const struct kvfi_mem_net *net)
{
    if (net->options.virtual_time)
        return net->now_ns;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct kvfi_lane *kvfi_mem_find_node(struct kvfi_mem_net *net, uint64_t serial)
{
    for (struct kvfi_lane *node = net->nodes; node; node = node->next) {
        if (node->serial == serial)
            return node;
    }
    return NULL;
}

void kvfi_mem_lose_peer(struct kvfi_lane *node, struct kvfi_lane_peer *peer)
{
    if (peer->lost)
        return;
    peer->lost = true;
    if (peer->cancelled || peer->released)
        return;
    peer->event.kind = MEM_PEER_LOST;
    kvfi_lane_queue_put(&node->events, &peer->event);
    kvfi_mem_wake(node);
}

struct mem_task *kvfi_mem_runnable(struct kvfi_mem_net *net, const struct kvfi_lane *node)
{
    for (struct mem_task *task = net->tasks; task; task = task->next) {
        if (node && task->node != node)
            continue;
        if (task->held || task->due_ns > net->now_ns)
            continue;
        /* one connection, one order: not before an older task of the same peer */
        const struct mem_task *older = net->tasks;
        while (older->op->peer != task->op->peer)
            older = older->next;
        if (older == task)
            return task;
    }
    return NULL;
}

void kvfi_mem_append(struct kvfi_mem_net *net, struct mem_task *task)
{
    struct mem_task **end_p = &net->tasks;
    while (*end_p)
        end_p = &(*end_p)->next;
    task->next = NULL;
    task->due_ns =
        net->now_ns + (task->lone_message ? net->message_delay_ns : net->operation_delay_ns);
    *end_p = task;
    task->op->peer->tasks++;
    net->stats.pending++;
}

static void finish(struct kvfi_mem_net *net, struct mem_task *task, enum kvf_status status)
{
    struct mem_task **link_p = &net->tasks;
    while (*link_p != task)
        link_p = &(*link_p)->next;
    *link_p = task->next;
    net->stats.pending--;

    struct kvfi_lane_op *op = task->op;
    op->peer->tasks--;
    op->status = status;
    op->event.kind = task->lone_message ? MEM_NOTIFY_DONE : MEM_TRANSFER_DONE;
    kvfi_lane_queue_put(&task->node->events, &op->event);
    kvfi_mem_wake(task->node);
    kvfi_wire_free(net->options.allocator, task);
}

static enum kvf_status put_message(struct kvfi_mem_net *net, struct kvfi_lane *target,
                                   const struct kvfi_lane_op *op)
{
    size_t copies = 1;
    if (kvfi_mem_count_down(&net->drop_in)) {
        net->stats.dropped++;
        copies = 0;
    }
    if (kvfi_mem_count_down(&net->double_in)) {
        net->stats.doubled++;
        copies *= 2;
    }
    for (size_t i = 0; i < copies; i++) {
        struct mem_message *message =
            kvfi_wire_alloc(net->options.allocator, sizeof(*message) + op->message_len);
        if (!message)
            return KVF_ENOMEM;
        message->next = NULL;
        message->due_ns = net->now_ns + (op->stage ? net->message_delay_ns : 0);
        message->len = op->message_len;
        if (op->message_len > 0)
            memcpy(message->data, op->message, op->message_len);
        *target->inbox_tail_p = message;
        target->inbox_tail_p = &message->next;
        net->stats.messages++;
    }
    kvfi_mem_wake(target);
    return KVF_OK;
}

/* Registered now, and the range inside it: what a NIC would check. */
static bool reachable(const struct kvfi_lane *target, const struct kvfi_lane_piece *piece)
{
    const struct kvfi_lane_memory *memory = target->memories;
    while (memory && memory->id != piece->rkey->memory_id)
        memory = memory->next;
    return memory && piece->remote_addr >= memory->addr &&
           piece->remote_addr - memory->addr <= memory->length &&
           piece->length_bytes <= memory->length - (piece->remote_addr - memory->addr);
}

static void move_bytes(enum kvf_operation operation, const struct kvfi_lane_piece *piece,
                       uint64_t from, uint64_t length)
{
    /* addresses of this process: the net only joins agents inside it */
    void *local = (void *)(uintptr_t)(piece->local_addr + from);   /* NOLINT */
    void *remote = (void *)(uintptr_t)(piece->remote_addr + from); /* NOLINT */
    if (operation == KVF_WRITE)
        memmove(remote, local, length);
    else
        memmove(local, remote, length);
}

/* Bytes [from, to) of the task, counted over all its pieces. */
static enum kvf_status move_range(struct kvfi_mem_net *net, const struct kvfi_lane *target,
                                  const struct mem_task *task, uint64_t from, uint64_t to)
{
    uint64_t start = 0;
    for (size_t i = 0; i < task->piece_count; i++) {
        const struct kvfi_lane_piece *piece = &task->pieces[i];
        uint64_t end = start + piece->length_bytes;
        uint64_t first = start > from ? start : from;
        uint64_t last = end < to ? end : to;
        if (first < last) {
            if (!reachable(target, piece)) {
                net->stats.unregistered++;
                return KVF_ETRANSPORT;
            }
            if (first == start && kvfi_mem_count_down(&net->fail_in))
                return KVF_ETRANSPORT;
            move_bytes(task->operation, piece, first - start, last - first);
            net->stats.bytes += last - first;
            if (last == end)
                net->stats.operations++;
        }
        start = end;
    }
    return KVF_OK;
}

static uint64_t task_bytes(const struct mem_task *task)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < task->piece_count; i++)
        bytes += task->pieces[i].length_bytes;
    return bytes;
}

void kvfi_mem_run(struct kvfi_mem_net *net, struct mem_task *task)
{
    struct kvfi_lane_op *op = task->op;
    struct kvfi_lane *target = kvfi_mem_find_node(net, op->peer->target);

    if (!target || target->cut || task->node->cut)
        kvfi_mem_lose_peer(task->node, op->peer);
    if (op->peer->cancelled) {
        finish(net, task, KVF_ECANCELED);
        return;
    }
    if (op->peer->lost || !target) {
        finish(net, task, KVF_EDISCONNECTED);
        return;
    }
    if (task->lone_message) {
        finish(net, task, put_message(net, target, op));
        return;
    }

    uint64_t bytes = task_bytes(task);
    enum kvf_status status;
    if (!task->half_moved && kvfi_mem_count_down(&net->hold_in)) {
        status = move_range(net, target, task, 0, bytes / 2);
        if (status == KVF_OK) {
            task->half_moved = true;
            task->held = true;
            return;
        }
    } else {
        status = move_range(net, target, task, task->half_moved ? bytes / 2 : 0, bytes);
    }
    if (status == KVF_OK && op->message)
        status = put_message(net, target, op);
    finish(net, task, status);
}

void kvfi_mem_run_all(struct kvfi_mem_net *net, struct kvfi_lane *node)
{
    uint64_t hold_in = net->hold_in; /* nothing may stop half-way here */
    net->hold_in = 0;
    struct mem_task *task = net->tasks;
    while (task) {
        struct mem_task *next = task->next;
        if (task->node == node)
            kvfi_mem_run(net, task);
        task = next;
    }
    net->hold_in = hold_in;
}

struct kvfi_mem_net *kvfi_mem_net_create(const struct kvfi_mem_net_options *options)
{
    const struct kvf_allocator *allocator = options ? options->allocator : NULL;
    struct kvfi_mem_net *net = kvfi_wire_alloc(allocator, sizeof(*net));
    if (!net)
        return NULL;
    memset(net, 0, sizeof(*net));
    if (options)
        net->options = *options;
    if (pthread_mutex_init(&net->lock, NULL) != 0) {
        kvfi_wire_free(allocator, net);
        return NULL;
    }
    return net;
}

void kvfi_mem_net_destroy(struct kvfi_mem_net *net)
{
    if (!net)
        return;
    pthread_mutex_destroy(&net->lock);
    kvfi_wire_free(net->options.allocator, net);
}
