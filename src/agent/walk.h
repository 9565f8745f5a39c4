/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_WALK_H
#define KVFI_AGENT_WALK_H

/*
 * A plan as pieces: runs, cut where a registration ends on either side, because an operation uses
 * one local handle and one remote key. And the local regions that a transfer holds while it runs.
 */

#include "agent/region_set.h"
#include "geometry/plan.h"

struct kvfi_walk {
    struct kvfi_plan_iter iter;
    const struct kvfi_region_set *local; /* borrowed, as the plan, for the whole walk */
    const struct kvfi_region_set *remote;
    struct kvfi_run run; /* what is left of the current one */
    struct kvfi_region *local_region;
    struct kvfi_region *remote_region;
};

enum kvfi_walk_result {
    KVFI_WALK_PIECE,
    KVFI_WALK_END,
    KVFI_WALK_LOCAL_UNCOVERED, /* walk->run says what */
    KVFI_WALK_REMOTE_UNCOVERED,
};

/* The plan was checked. */
void kvfi_walk_start(struct kvfi_walk *walk, const struct kvf_plan *plan,
                     const struct kvfi_region_set *local, const struct kvfi_region_set *remote);
/* At most length_max bytes, at least one. */
enum kvfi_walk_result kvfi_walk_step(struct kvfi_walk *walk, uint64_t length_max,
                                     struct kvfi_lane_piece *piece);
/* Whether a step would find something. */
bool kvfi_walk_has_more(struct kvfi_walk *walk);

/* Local regions, each once. */
struct kvfi_pins {
    struct kvfi_region **regions; /* owned array of borrowed regions */
    size_t count;
    size_t cap;
};

/* Adds the region unless its mark says that it is in. */
enum kvf_status kvfi_pins_add(struct kvfi_pins *pins, const struct kvf_allocator *allocator,
                              struct kvfi_region *region, uint64_t mark) KVF_MUST_USE;
void kvfi_pins_hold(const struct kvfi_pins *pins);
/* Adds a region to pins that are held already, unless it is among them. */
enum kvf_status kvfi_pins_hold_late(struct kvfi_pins *pins, const struct kvf_allocator *allocator,
                                    struct kvfi_region *region) KVF_MUST_USE;
void kvfi_pins_drop(const struct kvfi_pins *pins);

#endif
