/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_STATE_H
#define KVFI_AGENT_STATE_H

/* What the files of this folder share: the agent's own state. One thread owns all of it. */

#include "agent/region_set.h"
#include "geometry/plan.h"
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

/* The id of a peer is (generation << 32) | (slot + 1); a drop starts the next generation. */
struct peer_slot {
    struct agent_peer *peer; /* NULL: free */
    uint32_t generation;
};

/* A transfer or a lone notification. Pooled: memory comes in slabs and is kept with its buffers, so
 * that a warm agent posts without asking the allocator. Lent to the lane while in flight. */
struct transfer {
    struct kvfi_lane_op op;
    struct transfer *next_free;
    struct agent_peer *peer; /* borrowed; lives while peer->operations > 0 */
    struct kvf_transfer_id id;
    uint64_t user_data;
    struct kvf_transfer_stats stats;
    struct kvfi_buf message;   /* encoded notification */
    struct kvfi_region **pins; /* owned array of local regions in use */
    size_t pin_count;
    size_t pin_cap;
};

enum {
    TRANSFERS_PER_SLAB = 32,
    MESSAGE_KEPT_LEN_MAX = 64 * 1024, /* larger buffers are not kept in the pool */
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

    struct peer_slot *slots; /* owned array */
    size_t slot_count;
    size_t peer_count;
    struct agent_peer *closing;
    size_t closing_count;

    struct transfer_slab *slabs;
    struct transfer *free_transfers;
    uint64_t last_transfer; /* transfer ids and region marks; never reused */
    size_t transfer_count;
    size_t notification_count;

    uint64_t messages_refused; /* arrived malformed */
    char sender[KVFI_NIXL_NAME_LEN_MAX + 1];
};

/* NULL for a stale id. */
struct agent_peer *kvfi_agent_find_peer(const struct kvf_agent *agent, struct kvf_peer_id id);
/* Closes dropped peers whose last operation has ended. */
void kvfi_agent_reap_peers(struct kvf_agent *agent);
/* Drops every peer. */
void kvfi_agent_drop_peers(struct kvf_agent *agent);
/* Deregisters everything. */
void kvfi_agent_release_regions(struct kvf_agent *agent);
/* Frees a region of either side and what it holds. */
void kvfi_agent_free_region(struct kvf_agent *agent, struct kvfi_region *region);
/* Frees the pool. No transfer may be in flight. */
void kvfi_agent_free_transfers(struct kvf_agent *agent);
/* The lane's completion callbacks. */
void kvfi_agent_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
void kvfi_agent_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);

#endif
