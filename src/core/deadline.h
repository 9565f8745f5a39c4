/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_DEADLINE_H
#define KVFI_CORE_DEADLINE_H

/*
 * A set of deadlines in order of time: leases, watchdogs, retries.
 *
 * A binary heap of intrusive nodes, so that each node that is due is found whatever the others do
 * (bug B20), renewal is O(log n), and the earliest is known at once. Memory is reserved when an
 * object is made; setting, renewing and cancelling cannot fail after that.
 */

#include "core/list.h"
#include "kvferry/status.h"

struct kvfi_deadline {
    uint64_t at_ns;
    size_t position; /* in the heap plus one; 0: not set */
    int kind;        /* the owner's; the set does not look at it */
};

struct kvfi_deadlines {
    const struct kvf_allocator *allocator;
    struct kvfi_deadline **heap;
    size_t count;
    size_t cap;
    size_t reserved; /* nodes that exist, set or not */
};

void kvfi_deadlines_init(struct kvfi_deadlines *set, const struct kvf_allocator *allocator);
void kvfi_deadlines_deinit(struct kvfi_deadlines *set);

/* Room for one more node. KVF_ENOMEM; else to be paired with kvfi_deadlines_release. */
enum kvf_status kvfi_deadlines_reserve(struct kvfi_deadlines *set) KVF_MUST_USE;
/* Cancels the node and gives its room back. */
void kvfi_deadlines_release(struct kvfi_deadlines *set, struct kvfi_deadline *node);

/* Sets or moves. UINT64_MAX means never and cancels. */
void kvfi_deadlines_set(struct kvfi_deadlines *set, struct kvfi_deadline *node, uint64_t at_ns);
void kvfi_deadlines_cancel(struct kvfi_deadlines *set, struct kvfi_deadline *node);

/* The earliest deadline; UINT64_MAX when none is set. */
uint64_t kvfi_deadlines_next_ns(const struct kvfi_deadlines *set);
/* Takes out one node that is due (at_ns <= now_ns); NULL when none is. */
struct kvfi_deadline *kvfi_deadlines_pop(struct kvfi_deadlines *set, uint64_t now_ns);

/* NULL, or a static text naming the broken invariant. */
const char *kvfi_deadlines_check(const struct kvfi_deadlines *set);

/* a + b without wrapping; UINT64_MAX when it would. */
static inline uint64_t kvfi_ns_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif
