/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_SLOTS_H
#define KVFI_AGENT_SLOTS_H

/*
 * Handles that know when they are stale. An id is (generation << 32) | (slot + 1): a slot that is
 * used again has another generation. 0 is never an id.
 */

#include "kvferry/status.h"

struct kvfi_slot {
    void *object; /* borrowed; NULL: free */
    uint32_t generation;
    uint32_t next_free; /* slot + 1; 0: none */
};

struct kvfi_slots {
    struct kvfi_slot *slots; /* owned array */
    size_t count;            /* slots there are; they only grow */
    size_t used;
    uint32_t first_free; /* slot + 1; 0: none */
};

/* KVF_ENOMEM. Takes memory only when more objects are in than ever before. */
enum kvf_status kvfi_slots_take(struct kvfi_slots *slots, const struct kvf_allocator *allocator,
                                void *object, uint64_t *id_p) KVF_MUST_USE;
/* Puts the object of a good id. It may be taken with NULL first: then it is nobody's until here. */
void kvfi_slots_set(struct kvfi_slots *slots, uint64_t id, void *object);
/* The id becomes stale. It must be good. */
void kvfi_slots_leave(struct kvfi_slots *slots, uint64_t id);
/* NULL for a stale or made up id. */
void *kvfi_slots_find(const struct kvfi_slots *slots, uint64_t id);
void kvfi_slots_free(struct kvfi_slots *slots, const struct kvf_allocator *allocator);

#endif
