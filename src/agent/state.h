/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_STATE_H
#define KVFI_AGENT_STATE_H

/* What the files of this folder share: the agent's own state. One thread owns all of it. */

#include "agent/kept_plan.h"
#include "agent/region_set.h"
#include "agent/slots.h"
#include "agent/walk.h"
#include "lane/lane.h"
#include "wire/bytes.h"
#include "wire/nixl_metadata.h"

/* One load of one peer. Owned by the slot table, after a drop by the list of closing peers. */
struct agent_peer {
    struct agent_peer *next; /* closing list */
    struct kvf_peer_id id;
    char *name;    /* owned */
    void *address; /* owned, to tell a changed connection on reload */
    size_t address_len;
    struct kvfi_lane_peer *lane_peer; /* owned */
    struct kvfi_region_set regions;   /* what it advertised; regions owned */
    size_t operations;                /* transfers and messages in flight */
    bool lost;
    bool dropped;
};

/*
 * A transfer or a lone notification in flight. Pooled: memory comes in slabs and is kept with its
 * buffers, so that a warm agent posts without asking the allocator. Lent to the lane.
 */
struct transfer {
    struct kvfi_lane_op op; /* first: the lane gives it back */
    struct transfer *next_free;
    struct agent_peer *peer;   /* borrowed; lives while peer->operations > 0 */
    struct prepared *prepared; /* borrowed; NULL: of kvf_agent_post(), or a lone message */
    struct slicing *slicing;   /* owned; NULL: posted as a whole, op is its lane op */
    struct kvf_transfer_id id; /* 0: a lone message */
    uint64_t user_data;
    struct kvf_transfer_stats stats;
    struct kvfi_buf message; /* encoded notification; its beginning is always there */
    struct kvfi_pins pins;
    enum kvf_operation operation;
    bool notifies;
    bool released; /* nobody is told of its end */
};

/* Of kvf_agent_prepare(). Owned by the slot table; once it is released, by its transfer. */
struct prepared {
    struct kvf_transfer_id id;
    struct kvf_peer_id peer;
    struct kvfi_kept_plan plan;
    struct kvf_transfer_stats stats; /* of the last post */
    struct kvfi_plan_extent extent;
    enum kvf_operation operation;
    enum kvf_transfer_state state;
    enum kvf_status result;
    struct transfer *active; /* borrowed from the pool; NULL: none */
};

/* A large transfer goes to the lane in slices, so that a small one behind it need not wait for all
 * of it, and the thread comes back soon. A slice ends at whichever of the two comes first. */
enum {
    SLICE_RUNS_MAX = 1024,
    SLICE_BYTES_MAX = 8 * 1024 * 1024,
    SLICES_IN_FLIGHT = 2, /* of one transfer: the next is there when one ends */
};

struct slice {
    struct kvfi_lane_op op; /* first: the lane gives it back. Lent while busy */
    struct slicing *slicing;
    bool busy;
};

/* What a transfer in slices needs beside the rest. Pooled like transfers. Its lane ops carry no
 * message: when all have ended well, the transfer's own op is sent as a lone message. */
struct slicing {
    struct slicing *next; /* of the queue, or of the free ones */
    struct transfer *transfer;
    struct slice slices[SLICES_IN_FLIGHT];
    struct kvfi_walk walk;
    struct kvfi_kept_plan plan; /* unless it is a prepared one's */
    uint64_t local_epoch;       /* of the region sets, when the pins were complete */
    uint64_t remote_epoch;
    size_t in_flight;
    enum kvf_status status; /* the first failure */
    bool ended;             /* nothing more is posted */
    bool queued;
};

/* Those that could post a slice now, longest waiting first. */
struct slicing_queue {
    struct slicing *first;
    struct slicing **end_p;
};

enum {
    TRANSFERS_PER_SLAB = 32,
    MESSAGE_KEPT_LEN_MAX = 64 * 1024, /* larger buffers are not kept in the pool */
    LISTS_KEPT_LEN_MAX = 1024 * 1024,
};

struct transfer_slab {
    struct transfer_slab *next;
    struct transfer transfers[TRANSFERS_PER_SLAB];
};

struct kvf_agent {
    const struct kvfi_lane_ops *ops;
    struct kvfi_lane *lane; /* owned */
    const struct kvf_allocator *allocator;
    struct kvf_agent_callbacks callbacks;
    char *name; /* owned */
    bool in_progress;
    bool silent; /* being destroyed: no callbacks */

    struct kvfi_region_set regions; /* local; regions owned */
    struct kvfi_region_set retired; /* deregistered, but peers may know their keys; owned */
    uint64_t last_mark;             /* of regions; never reused */

    struct kvfi_slots peers; /* struct agent_peer, owned */
    struct agent_peer *self; /* borrowed from its slot; NULL: none */
    struct agent_peer *closing;
    size_t closing_count;

    struct transfer_slab *slabs;
    struct transfer *free_transfers;
    struct slicing *free_slicings;
    struct slicing_queue to_slice;
    struct kvfi_slots once;         /* struct transfer of kvf_agent_post(), in flight */
    struct kvfi_slots prepared;     /* struct prepared, owned */
    struct kvfi_plan_tables tables; /* regions of kept plans */
    size_t transfer_count;
    size_t notification_count;
    size_t prefix_len; /* the part of a notification that is always the same */

    struct kvf_agent_counters counters;
    char sender[KVFI_NIXL_NAME_LEN_MAX + 1];
};

/* ---- memory.c ---------------------------------------------------------------------------------
 */

/* Deregisters everything. */
void kvfi_agent_release_regions(struct kvf_agent *agent);
/* Frees a region of either side and what it holds. */
void kvfi_agent_free_region(struct kvf_agent *agent, struct kvfi_region *region);
/* Drops a local region's share of its registration, and that with the last share. */
void kvfi_agent_drop_mapping(struct kvf_agent *agent, struct kvfi_region *region);
/* The key with which peers reach a local region; borrowed, valid while it is registered. */
struct kvfi_span kvfi_agent_key(const struct kvf_agent *agent, const struct kvfi_region *region);

/* ---- retired.c --------------------------------------------------------------------------------
 */

/* KVF_ENOTALLOWED when peers may know the range under another key than its present one. */
enum kvf_status kvfi_agent_check_key(const struct kvf_agent *agent,
                                     const struct kvfi_region *region,
                                     struct kvf_error *error) KVF_MUST_USE;
/* The region is registered (again): what was remembered of its range is not needed any more. */
void kvfi_agent_unretire(struct kvf_agent *agent, struct kvfi_region *const *regions, size_t count);
/* Takes regions that have left agent->regions, with their mapping, and remembers or frees them. */
void kvfi_agent_retire(struct kvf_agent *agent, struct kvfi_region **regions, size_t count);

/* ---- peers.c ----------------------------------------------------------------------------------
 */

/* NULL for a stale id. */
struct agent_peer *kvfi_agent_find_peer(const struct kvf_agent *agent, struct kvf_peer_id id);
struct agent_peer *kvfi_agent_find_name(const struct kvf_agent *agent, struct kvfi_span name);
/* A peer with a connection and no regions. Owned by the caller until it has a slot. */
enum kvf_status kvfi_agent_new_peer(struct kvf_agent *agent, struct kvfi_span name,
                                    struct kvfi_span address, struct agent_peer **peer_p,
                                    struct kvf_error *error) KVF_MUST_USE;
/* Gives the peer a slot and with it an id. KVF_ENOMEM. */
enum kvf_status kvfi_agent_take_slot(struct kvf_agent *agent, struct agent_peer *peer,
                                     struct kvf_error *error) KVF_MUST_USE;
/* Frees a peer that has no slot and no operation. */
void kvfi_agent_free_peer(struct kvf_agent *agent, struct agent_peer *peer);
/* Closes dropped peers whose last operation has ended. */
void kvfi_agent_reap_peers(struct kvf_agent *agent);
/* Drops every peer. */
void kvfi_agent_drop_peers(struct kvf_agent *agent);

/* ---- load.c -----------------------------------------------------------------------------------
 */

/* Unpacks one advertised region that the peer does not have yet. Returned owned. */
enum kvf_status kvfi_agent_new_region(struct kvf_agent *agent, struct agent_peer *peer,
                                      enum kvf_memory_kind kind,
                                      const struct kvfi_nixl_region *entry,
                                      struct kvfi_region **region_p,
                                      struct kvf_error *error) KVF_MUST_USE;

/* ---- self.c -----------------------------------------------------------------------------------
 */

/* Local regions became the agent's own peer's too, if there is one; all or none. */
enum kvf_status kvfi_agent_self_add(struct kvf_agent *agent, struct kvfi_region *const *regions,
                                    size_t count, struct kvf_error *error) KVF_MUST_USE;
/* The own peer loses the regions whose local one is leaving. */
void kvfi_agent_self_remove_leaving(struct kvf_agent *agent);

/* ---- pool.c -----------------------------------------------------------------------------------
 */

/* NULL without memory. */
struct transfer *kvfi_agent_take_transfer(struct kvf_agent *agent);
void kvfi_agent_put_transfer(struct kvf_agent *agent, struct transfer *transfer);
/* Frees the pool. No transfer may be in flight. */
void kvfi_agent_free_transfers(struct kvf_agent *agent);

/* ---- transfers.c ------------------------------------------------------------------------------
 */

/* What is to be posted; all borrowed. */
struct posting {
    const char *what; /* the function, for texts */
    const struct kvf_plan *plan;
    struct kvfi_plan_extent extent;
    const void *notification; /* NULL: none */
    size_t notification_len;
    uint64_t user_data;
    uint64_t start_ns;
    enum kvf_operation operation;
    bool plan_is_kept; /* it outlives the transfer */
};

/* The live peer, or the reason why there is none. */
enum kvf_status kvfi_agent_find_live(struct kvf_agent *agent, struct kvf_peer_id id,
                                     const char *what, struct agent_peer **peer_p,
                                     struct kvf_error *error) KVF_MUST_USE;
/* Walks the whole plan without posting: every piece is covered. */
enum kvf_status kvfi_agent_check_cover(struct kvf_agent *agent, const struct agent_peer *peer,
                                       const struct posting *posting, struct kvfi_pins *pins,
                                       uint64_t *run_count_p, struct kvf_error *error) KVF_MUST_USE;
/* Posts a plan that is true to itself. On failure nothing was posted. */
enum kvf_status kvfi_agent_start(struct kvf_agent *agent, struct agent_peer *peer,
                                 const struct posting *posting, struct transfer **transfer_p,
                                 struct kvf_error *error) KVF_MUST_USE;
/* Checks the arguments of a post or prepare and finds the peer. */
enum kvf_status kvfi_agent_check_posting(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                                         struct posting *posting, struct agent_peer **peer_p,
                                         struct kvf_error *error) KVF_MUST_USE;
/* The transfer is terminal. */
void kvfi_agent_finish(struct kvf_agent *agent, struct transfer *transfer, enum kvf_status status);
/* Local memory that a piece uses: what it names, and what lies behind the key if that is ours. */
enum kvf_status kvfi_agent_pin(struct kvf_agent *agent, struct kvfi_pins *pins,
                               const struct kvfi_walk *walk, uint64_t mark) KVF_MUST_USE;
/* The lane's completion callbacks. */
void kvfi_agent_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
void kvfi_agent_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);

/* ---- slices.c ---------------------------------------------------------------------------------
 */

void kvfi_agent_slices_init(struct kvf_agent *agent);
/* Posts the first slice of a plan that is covered, with its pins noted. On failure nothing was
 * posted. */
enum kvf_status kvfi_agent_slices_start(struct kvf_agent *agent, struct transfer *transfer,
                                        const struct posting *posting) KVF_MUST_USE;
/* Posts a few slices, of each waiting transfer in turn. How many. */
unsigned kvfi_agent_slices_progress(struct kvf_agent *agent);
bool kvfi_agent_slices_wait(const struct kvf_agent *agent);
/* Nothing more is posted; what waits ends. The agent is silent. */
void kvfi_agent_slices_stop(struct kvf_agent *agent);
void kvfi_agent_slice_done(struct kvf_agent *agent, struct slice *slice, enum kvf_status status);
/* The transfer has ended. */
void kvfi_agent_put_slicing(struct kvf_agent *agent, struct slicing *slicing);
void kvfi_agent_free_slicings(struct kvf_agent *agent);

/* ---- prepared.c -------------------------------------------------------------------------------
 */

/* The transfer of a prepared one is terminal; the prepared one is freed if it was released. */
void kvfi_agent_prepared_done(struct kvf_agent *agent, const struct transfer *transfer,
                              enum kvf_status status);
/* Frees all that were not released. No transfer may be in flight. */
void kvfi_agent_free_prepared(struct kvf_agent *agent);

#endif
