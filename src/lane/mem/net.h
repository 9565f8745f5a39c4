/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_MEM_NET_H
#define KVFI_LANE_MEM_NET_H

/* Inside of the mem lane: what the net (net.c) and the lane of one agent (mem.c) share. */

#include "lane/lane.h"
#include "lane/mem/mem.h"

#include <pthread.h>

#define KVFI_MEM_NAME_LEN_MAX 1024

enum mem_event {
    MEM_TRANSFER_DONE = 1,
    MEM_NOTIFY_DONE,
    MEM_PEER_LOST,
};

enum {
    MEM_RKEY_LEN = 24 /* node serial, memory id, length; each 8 bytes in host order */
};

struct kvfi_lane_memory {
    struct kvfi_lane_memory *next;
    struct kvfi_lane *node;
    uint64_t id;
    uint64_t addr;
    uint64_t length;
    unsigned char rkey[MEM_RKEY_LEN];
};

struct kvfi_lane_peer {
    struct kvfi_lane_peer *next;
    struct kvfi_lane_event event; /* MEM_PEER_LOST */
    void *user;
    uint64_t target; /* serial of the node it leads to */
    size_t tasks;
    bool lost;
    bool cancelled;
    bool released; /* disconnected; freed when its event leaves the queue */
};

struct kvfi_lane_rkey {
    uint64_t target;
    uint64_t memory_id;
};

/* A message on its way into, or in, an inbox. Owned by the inbox. */
struct mem_message {
    struct mem_message *next;
    uint64_t due_ns;
    size_t len;
    unsigned char data[];
};

/* Posted work. Owned by the net from post to completion. */
struct mem_task {
    struct mem_task *next;
    struct kvfi_lane *node; /* initiator */
    struct kvfi_lane_op *op;
    uint64_t due_ns;
    enum kvf_operation operation;
    bool lone_message;
    bool held;
    bool half_moved; /* the first half has been moved already */
    size_t piece_count;
    struct kvfi_lane_piece pieces[];
};

/* One agent. */
struct kvfi_lane {
    struct kvfi_lane *next;
    struct kvfi_mem_net *net;
    struct kvfi_lane_callbacks callbacks;
    const struct kvf_allocator *allocator;
    uint64_t serial;
    char *name;    /* owned */
    char *address; /* owned; "mem:<serial>:<name>" */
    int fd;        /* eventfd or -1 */
    bool cut;
    struct kvfi_lane_queue events;
    struct mem_message *inbox;
    struct mem_message **inbox_tail_p;
    struct kvfi_lane_memory *memories;
    struct kvfi_lane_peer *peers;
    struct kvfi_lane_usage usage;
};

struct kvfi_mem_net {
    pthread_mutex_t lock; /* guards everything below and every node */
    struct kvfi_mem_net_options options;
    struct kvfi_lane *nodes;
    struct mem_task *tasks; /* oldest first */
    uint64_t serial;        /* of the last node and memory; never reused */
    uint64_t now_ns;
    uint64_t operation_delay_ns;
    uint64_t message_delay_ns;
    uint64_t fail_in, refuse_in, drop_in, double_in, hold_in;
    struct kvfi_mem_net_stats stats;
};

/* All of these with the net's lock held. */

/* The oldest task that may run now: of one node, or of any when node is NULL. */
struct mem_task *kvfi_mem_runnable(struct kvfi_mem_net *net, const struct kvfi_lane *node);
/* Moves its bytes, sends its message, queues its completion and frees it; or holds it. */
void kvfi_mem_run(struct kvfi_mem_net *net, struct mem_task *task);
/* Runs every task of the node, held and delayed ones too. */
void kvfi_mem_run_all(struct kvfi_mem_net *net, struct kvfi_lane *node);
/* Appends; makes the node's next post due after the net's delay. */
void kvfi_mem_append(struct kvfi_mem_net *net, struct mem_task *task);
struct kvfi_lane *kvfi_mem_find_node(struct kvfi_mem_net *net, uint64_t serial);
/* Marks the peer lost and queues the event, unless that has happened. */
void kvfi_mem_lose_peer(struct kvfi_lane *node, struct kvfi_lane_peer *peer);
/* Lets whoever sleeps on the node's descriptor look again. */
void kvfi_mem_wake(const struct kvfi_lane *node);
/* True once when the countdown reaches its end. */
bool kvfi_mem_count_down(uint64_t *countdown);
uint64_t kvfi_mem_clock(const struct kvfi_mem_net *net);

#endif
