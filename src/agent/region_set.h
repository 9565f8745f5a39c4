/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_REGION_SET_H
#define KVFI_AGENT_REGION_SET_H

/*
 * Registered memory of one side, and the question "which registration covers this address". Sorted
 * by (kind, device, addr, length); overlapping and nested registrations are found correctly.
 */

#include "lane/lane.h"

/* One registration of the transport. Freed with the last region that lies in it. */
struct kvfi_mapping {
    struct kvfi_lane_memory *memory; /* owned */
    size_t regions;
    size_t leaving; /* of them, while a call deregisters */
};

struct kvfi_region {
    uint64_t addr;
    uint64_t length;
    uint64_t device_id;
    struct kvfi_mapping *mapping;    /* local side: shared with others of one allocation */
    struct kvfi_lane_memory *memory; /* local side: the mapping's, borrowed */
    struct kvfi_lane_rkey *rkey;     /* remote side: owned */
    struct kvfi_region *twin;        /* of the agent as its own peer: the local region, borrowed */
    unsigned char *rkey_bytes;       /* remote side and retired: owned, to tell a changed key */
    size_t rkey_len;
    uint64_t mark; /* last walk that counted it; retired: when */
    enum kvf_memory_kind kind;
    uint32_t uses;   /* transfers that have it pinned */
    bool advertised; /* somebody may have loaded it with its present key */
    bool leaving;    /* about to be taken out of its set */
};

struct kvfi_region_set {
    struct kvfi_region **sorted; /* the set owns the array, the caller the regions */
    uint32_t *reach; /* reach[i]: the one of sorted[0..i], same kind and device, that ends last */
    size_t count;
    size_t cap;
    uint64_t epoch; /* counts changes */
    const struct kvf_allocator *allocator;
};

void kvfi_region_set_init(struct kvfi_region_set *set, const struct kvf_allocator *allocator);
/* Frees the arrays, not the regions. */
void kvfi_region_set_deinit(struct kvfi_region_set *set);

/* The registration of exactly this form, or NULL. */
struct kvfi_region *kvfi_region_set_exact(const struct kvfi_region_set *set,
                                          enum kvf_memory_kind kind, uint64_t device_id,
                                          uint64_t addr, uint64_t length);

/* Among those that contain the byte at addr, the one that ends last; NULL when there is none. If
 * any registration covers [addr, addr + n), this one does. */
struct kvfi_region *kvfi_region_set_cover(const struct kvfi_region_set *set,
                                          enum kvf_memory_kind kind, uint64_t device_id,
                                          uint64_t addr);

/* Adds all or none. KVF_EEXIST when two of the result are the same registration, KVF_ENOMEM. */
enum kvf_status kvfi_region_set_add(struct kvfi_region_set *set, struct kvfi_region *const *regions,
                                    size_t count) KVF_MUST_USE;

/* Takes out the regions that are leaving, all in one pass. They are the caller's, who has noted
 * them. */
void kvfi_region_set_remove_leaving(struct kvfi_region_set *set);

#endif
