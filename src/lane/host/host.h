/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_HOST_HOST_H
#define KVFI_LANE_HOST_HOST_H

/*
 * Inside of the "auto" lane: the UCX lane, with short cuts to peers of the same host.
 *
 * Everything goes through the lane inside, except the bytes of pieces that a short cut reaches:
 * those are copied at once by the calling thread, by the kernel (cma) or through a mapping of the
 * peer's pool (shm), and the message follows through the lane inside. A transfer may mix both
 * kinds.
 *
 * Ownership: each handle of this lane holds one handle of the lane inside. A peer holds a pidfd and
 * the mappings of that peer's pools, from the key that needed them until the peer is disconnected;
 * a key borrows a mapping and is released before its peer.
 */

#include "lane/host/copy.h"
#include "lane/host/process.h"
#include "lane/lane.h"

enum host_event {
    HOST_OP_DONE = 1,
    HOST_PEER_LOST,
};

struct kvfi_lane_memory {
    struct kvfi_lane_memory *inner; /* owned; of the lane inside */
    bool plain;                     /* host memory: a short cut may be taken */
    size_t rkey_len;
    unsigned char rkey[];
};

/* A peer's pool in our address space. */
struct host_mapping {
    struct host_mapping *next;
    unsigned char *addr;
    size_t length;
    uint64_t inode;
};

enum host_route {
    HOST_INNER, /* by the lane inside */
    HOST_CMA,
    HOST_SHM,
};

struct kvfi_lane_rkey {
    struct kvfi_lane_rkey *inner; /* owned; of the lane inside */
    enum host_route route;
    uint64_t addr; /* the range that it opens, in the peer's addresses; HOST_SHM */
    uint64_t length;
    unsigned char *mapped; /* where addr is here; HOST_SHM, borrowed from the peer */
};

struct kvfi_lane_peer {
    struct kvfi_lane_event event; /* first: the loss, found by a copy */
    struct kvfi_lane_peer *inner; /* owned; of the lane inside */
    struct kvfi_lane *lane;
    void *user;
    struct kvfi_host_process process;
    struct host_mapping *mappings;
    bool lost;      /* told, or queued to be told */
    bool cancelled; /* nothing new may begin */
    bool released;  /* freed when the event is taken */
};

enum host_stage {
    HOST_DATA,    /* inner carries pieces */
    HOST_MESSAGE, /* inner carries the message */
    HOST_DONE,    /* in the queue */
};

/* One transfer with at least one piece by a short cut. Pooled. The agent's op is not given to the
 * lane inside; `inner` is, in its place. */
struct host_op {
    struct kvfi_lane_op inner; /* first; lent to the lane inside in HOST_DATA and HOST_MESSAGE */
    struct kvfi_lane_event done;
    struct host_op *next_free;
    struct kvfi_lane_op *op; /* the agent's, lent until it is told */
    struct kvfi_lane_peer *peer;
    enum kvf_status status;
    enum host_stage stage;
};

struct kvfi_lane {
    const struct kvfi_lane_ops *ops; /* of the lane inside */
    struct kvfi_lane *inner;         /* owned */
    struct kvfi_lane_callbacks callbacks;
    const struct kvf_allocator *allocator;
    unsigned char *address; /* inner's and our trailer */
    size_t address_len;
    uint8_t offers; /* KVFI_HOST_*: allowed here */
    bool draining;
    uint8_t nonce[16]; /* read by peers, so it stays here */
    struct kvfi_host_identity self;
    struct kvfi_lane_queue events; /* host_op.done and kvfi_lane_peer.event */
    struct host_slab *slabs;
    struct host_op *free_ops;
    size_t queued_ops; /* of the events */
    struct kvfi_host_gather gather;
};

/* transfer.c */
enum kvf_status kvfi_host_post(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                               enum kvf_operation operation, kvfi_lane_next_fn next, void *next_ctx,
                               struct kvfi_lane_op *op);
enum kvf_status kvfi_host_notify(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                 struct kvfi_lane_op *op);
/* The lane inside is done with one of its ops. */
void kvfi_host_inner_transfer_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
void kvfi_host_inner_notify_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
/* Tells the agent of a host_op that was queued. */
void kvfi_host_deliver(struct kvfi_lane *lane, struct kvfi_lane_event *event);
void kvfi_host_free_ops(struct kvfi_lane *lane);

/* peer.c */
enum kvf_status kvfi_host_connect(struct kvfi_lane *lane, const void *address, size_t len,
                                  void *user, struct kvfi_lane_peer **peer_p,
                                  struct kvf_error *error);
void kvfi_host_disconnect(struct kvfi_lane *lane, struct kvfi_lane_peer *peer);
enum kvf_status kvfi_host_rkey_unpack(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                      const void *bytes, size_t len, struct kvfi_lane_rkey **rkey_p,
                                      struct kvf_error *error);
void kvfi_host_rkey_release(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey);
/* A copy found its process gone. */
void kvfi_host_lose(struct kvfi_lane_peer *peer);

#endif
