/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_GEOMETRY_PLAN_H
#define KVFI_GEOMETRY_PLAN_H

/*
 * Transfer plans: checked once, then walked as runs. Nothing here takes memory or keeps state
 * outside its arguments, and no record per descriptor is ever made.
 */

#include "kvferry/agent.h"

/* A stretch that is contiguous on both sides: one operation, unless a registration ends inside. */
struct kvfi_run {
    uint64_t local_addr;
    uint64_t remote_addr;
    uint64_t length_bytes;
    uint64_t local_device;
    uint64_t remote_device;
    enum kvf_memory_kind local_kind;
    enum kvf_memory_kind remote_kind;
};

/* What a check learned in passing. */
struct kvfi_plan_extent {
    uint64_t bytes;       /* sum over all descriptors */
    uint64_t descriptors; /* before merging */
};

/* One side of the region that a walk is in. */
struct kvfi_plan_side {
    const uint32_t *ids;
    uint64_t first; /* address of block 0 */
    uint64_t stride_bytes;
};

/* Where a walk stands. The plan is borrowed for the whole walk. */
struct kvfi_plan_iter {
    const struct kvf_plan *plan;
    size_t region; /* index of the next one to enter */
    size_t block;  /* the next one of the present region */
    size_t block_count;
    const struct kvf_plan_region *present; /* NULL: none */
    struct kvfi_plan_side local;
    struct kvfi_plan_side remote;
};

/*
 * True to the plan's own tables: groups exist, every id is below its block_count, the slice lies
 * inside the stride, no address or sum wraps. It knows nothing of registrations. After KVF_OK a
 * walk cannot compute an address outside a table. extent (may be NULL) is written on KVF_OK.
 * KVF_EINVAL names the region, the two values that disagree and what to change.
 */
enum kvf_status kvfi_plan_check(const struct kvf_plan *plan, struct kvfi_plan_extent *extent,
                                struct kvf_error *error) KVF_MUST_USE;

/* Starts a walk over a checked plan. */
void kvfi_plan_iter(struct kvfi_plan_iter *iter, const struct kvf_plan *plan);

/* The next run in order region, then block; false at the end. Neighbours that touch on both sides
 * are one run, also across regions, when device and kind agree. */
bool kvfi_plan_next(struct kvfi_plan_iter *iter, struct kvfi_run *run);

#endif
