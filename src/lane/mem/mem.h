/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_MEM_MEM_H
#define KVFI_LANE_MEM_MEM_H

/*
 * The lane inside one process, for tests and the simulator. Agents that were created with the same
 * net (kvf_agent_options.lane_ctx) reach each other; bytes are copied with memcpy, in the order in
 * which work was posted, so that a run can be repeated exactly.
 *
 * Nothing happens by itself. By default the work an agent posted is done by its own next progress;
 * in manual mode only kvfi_mem_net_step() does any. Messages and results are delivered by the
 * progress of the agent they are for.
 *
 * A net may be used from two or more threads: its own lock guards everything, and no callback runs
 * under it. Every control below may be called from any thread, callbacks included, and none of them
 * blocks. Counts for faults start with 1 for the next one; 0 switches the fault off.
 */

#include "kvferry/agent.h"

struct kvfi_mem_net;

struct kvfi_mem_net_options {
    bool manual;       /* work is done by kvfi_mem_net_step() only */
    bool virtual_time; /* time stands still until kvfi_mem_net_advance(); delays need it */
    bool eventfd;      /* agents have a descriptor, so that a thread can sleep on it */
    const struct kvf_allocator *allocator; /* NULL: malloc */
};

struct kvfi_mem_net_stats {
    uint64_t operations;   /* pieces moved */
    uint64_t bytes;        /* moved */
    uint64_t messages;     /* put into an inbox */
    uint64_t dropped;      /* by kvfi_mem_net_drop_message() */
    uint64_t doubled;      /* by kvfi_mem_net_double_message() */
    uint64_t unregistered; /* accesses to memory that is not registered now: always a defect */
    size_t nodes;
    size_t pending; /* posted, not yet done */
};

/* Returns owned; NULL when out of memory. options NULL: all false. */
struct kvfi_mem_net *kvfi_mem_net_create(const struct kvfi_mem_net_options *options) KVF_MUST_USE;
/* After the last agent of the net was destroyed. NULL is allowed. */
void kvfi_mem_net_destroy(struct kvfi_mem_net *net);

/* Does the oldest piece of work that may be done now: one whole transfer with its message, or one
 * message. False when there is none (all held, delayed or done). */
bool kvfi_mem_net_step(struct kvfi_mem_net *net);

/* How long work and messages take from here on. */
void kvfi_mem_net_set_delay(struct kvfi_mem_net *net, uint64_t operation_ns, uint64_t message_ns);
void kvfi_mem_net_advance(struct kvfi_mem_net *net, uint64_t ns);
uint64_t kvfi_mem_net_now_ns(struct kvfi_mem_net *net);
/* When the next delayed thing becomes due; false when nothing waits for time. */
bool kvfi_mem_net_next_due(struct kvfi_mem_net *net, uint64_t *due_ns_p) KVF_MUST_USE;

/* The n-th piece fails with KVF_ETRANSPORT; the earlier pieces of its transfer have been moved. */
void kvfi_mem_net_fail_operation(struct kvfi_mem_net *net, uint64_t n);
/* The n-th transfer or lone message that is posted is refused with KVF_ENOMEM. */
void kvfi_mem_net_refuse_post(struct kvfi_mem_net *net, uint64_t n);
/* The n-th message never arrives / arrives twice. Its sender sees success. */
void kvfi_mem_net_drop_message(struct kvfi_mem_net *net, uint64_t n);
void kvfi_mem_net_double_message(struct kvfi_mem_net *net, uint64_t n);
/* The n-th transfer stops when half of its bytes have moved, until kvfi_mem_net_release(). */
void kvfi_mem_net_hold_transfer(struct kvfi_mem_net *net, uint64_t n);
void kvfi_mem_net_release(struct kvfi_mem_net *net);

/* Breaks every connection from and to the agent of that name, and those made later, until mended.
 * What was under way fails with KVF_EDISCONNECTED. Messages already sent still arrive. */
void kvfi_mem_net_cut(struct kvfi_mem_net *net, const char *name);
void kvfi_mem_net_mend(struct kvfi_mem_net *net, const char *name);

void kvfi_mem_net_stats(struct kvfi_mem_net *net, struct kvfi_mem_net_stats *stats);

#endif
