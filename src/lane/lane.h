/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_LANE_H
#define KVFI_LANE_LANE_H

/*
 * The contract between the agent and a mover of bytes.
 *
 * Thread: a lane belongs to the agent's thread; every call and every callback runs there. Nothing
 * blocks, except drain() and destroy(), which are bounded.
 *
 * Completion: an operation (struct kvfi_lane_op) that post() or notify() accepted with KVF_OK
 * completes exactly once, through its callback, from inside progress() or drain() and never inside
 * the call that submitted it. When those answer anything but KVF_OK nothing was posted and no
 * callback follows. From submission to completion the op, its message and the local memory of its
 * pieces are lent to the lane. An op completes only when none of its parts can touch local memory
 * any more, failed or not: one failed part is remembered, the others are waited for.
 *
 * Order: a message leaves when every byte of its transfer is visible at the target. Messages to one
 * peer arrive in the order in which they left; nothing else is ordered.
 *
 * Cancel: cancel(peer) asks. Each op of that peer still completes once, with its own result or
 * KVF_ECANCELED, when nothing of it is outstanding: a transport cannot recall what was posted, so a
 * peer that hangs without dying holds its ops. Messages not yet sent stay unsent. The peer takes no
 * new ops. The caller may cancel from inside any callback.
 *
 * Loss: when the connection fails, peer_lost is called once, before or after the ops of that peer
 * completed with an error; later post() and notify() answer KVF_EDISCONNECTED. A peer that was
 * cancelled or disconnected is not reported lost.
 *
 * Close: disconnect(peer) may be called when the peer has no op left and its keys are released. The
 * handle is gone at once, what remains of it is closed by later progress().
 *
 * Callbacks may call everything except progress(), drain() and destroy().
 */

#include "kvferry/agent.h"

struct kvfi_lane;        /* one per agent */
struct kvfi_lane_memory; /* one registration */
struct kvfi_lane_peer;   /* one connection */
struct kvfi_lane_rkey;   /* the right to reach one region of one peer */

/* One operation on the transport: contiguous, inside one registration on each side. */
struct kvfi_lane_piece {
    uint64_t local_addr;
    uint64_t remote_addr;
    uint64_t length_bytes;
    struct kvfi_lane_memory *memory;
    struct kvfi_lane_rkey *rkey;
};

/* The pieces of one transfer, produced one at a time. False at the end. */
typedef bool (*kvfi_lane_next_fn)(void *ctx, struct kvfi_lane_piece *piece);

/* What a lane reports. Links into the lane's queue; the fields are the lane's. */
struct kvfi_lane_event {
    struct kvfi_lane_event *next;
    uint8_t kind;
    bool queued;
};

/*
 * One transfer or one lone message. The caller owns the memory, fills the first part, and lends it
 * from post()/notify() until the completion callback, in which it may be freed or used again.
 */
struct kvfi_lane_op {
    const void *message; /* lent; sent after the data. NULL: no message */
    size_t message_len;
    void *user;

    /* The lane's from submission to completion. */
    struct kvfi_lane_event event;
    struct kvfi_lane_peer *peer;
    struct kvfi_lane_op *link, *back; /* for the lane's own lists */
    void *lane_data;
    uint64_t outstanding; /* parts that may still call back */
    enum kvf_status status;
    uint8_t stage;
};

struct kvfi_lane_callbacks {
    void *ctx;
    /* A message from anybody. Borrowed until return. */
    void (*received)(void *ctx, const void *message, size_t message_len);
    /* The op is the caller's again. KVF_OK: the bytes are visible at the target and the message, if
     * any, was handed to the transport after that. */
    void (*transfer_done)(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
    void (*notify_done)(void *ctx, struct kvfi_lane_op *op, enum kvf_status status);
    /* user: what connect() was given. reason is borrowed until return. */
    void (*peer_lost)(void *ctx, void *user, const char *reason);
};

struct kvfi_lane_config {
    const char *name; /* the agent's; borrowed until create() returns */
    void *lane_ctx;   /* lane specific, see the lane's own header */
    struct kvfi_lane_callbacks callbacks;
    const struct kvf_allocator *allocator; /* NULL: malloc; outlives the lane */
};

/* What is alive inside the lane, for leak gates. */
struct kvfi_lane_usage {
    size_t memories;
    size_t peers;
    size_t peers_closing;
    size_t rkeys;
    size_t operations;         /* submitted, not yet completed */
    size_t messages_dropped;   /* arrived, could not be kept (memory, form) */
    size_t messages_delivered; /* since creation */
};

struct kvfi_lane_ops {
    size_t size;         /* sizeof(struct kvfi_lane_ops) of the lane */
    const char *name;    /* what kvf_agent_options.lane says */
    const char *backend; /* what metadata says; peers must have the same */

    /* Returns owned. KVF_ENOTSUP when the transport cannot serve here. */
    enum kvf_status (*create)(const struct kvfi_lane_config *config, struct kvfi_lane **lane_p,
                              struct kvf_error *error);
    /* After drain(), disconnect() of every peer and deregister of all memory. Finishes closing
     * what is still closing, within a bound. No callback is made. */
    void (*destroy)(struct kvfi_lane *lane);
    /* Completes every submitted op; what does not end in about two seconds is torn down together
     * with the transports. Blocks for that long at most, asleep. Completion callbacks are made.
     * Nothing may be submitted after. */
    void (*drain)(struct kvfi_lane *lane);

    int (*fd)(const struct kvfi_lane *lane);          /* -1: none */
    enum kvf_status (*arm)(struct kvfi_lane *lane);   /* KVF_OK or KVF_AGAIN */
    unsigned (*progress)(struct kvfi_lane *lane);     /* makes the callbacks; bounded */
    uint64_t (*now_ns)(const struct kvfi_lane *lane); /* the clock of statistics */

    /* How peers reach this lane; borrowed, valid as long as the lane. */
    void (*address)(const struct kvfi_lane *lane, const void **address_p, size_t *len_p);

    /* The memory is lent until deregister_memory. rkey: borrowed, valid as long as the handle. */
    enum kvf_status (*register_memory)(struct kvfi_lane *lane, void *addr, size_t length,
                                       enum kvf_memory_kind kind,
                                       struct kvfi_lane_memory **memory_p, struct kvf_error *error);
    void (*deregister_memory)(struct kvfi_lane *lane, struct kvfi_lane_memory *memory);
    void (*memory_rkey)(const struct kvfi_lane_memory *memory, const void **rkey_p, size_t *len_p);

    /* address is untrusted and borrowed until return. user comes back in peer_lost. Nothing is
     * sent yet, so success does not mean that the peer lives. */
    enum kvf_status (*connect)(struct kvfi_lane *lane, const void *address, size_t len, void *user,
                               struct kvfi_lane_peer **peer_p, struct kvf_error *error);
    void (*cancel)(struct kvfi_lane *lane, struct kvfi_lane_peer *peer);
    void (*disconnect)(struct kvfi_lane *lane, struct kvfi_lane_peer *peer);

    /* bytes are untrusted and borrowed until return. */
    enum kvf_status (*rkey_unpack)(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                   const void *bytes, size_t len, struct kvfi_lane_rkey **rkey_p,
                                   struct kvf_error *error);
    void (*rkey_release)(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey);

    /* Takes all pieces (at least one, or a message) before it returns; the caller has checked them.
     * KVF_EDISCONNECTED, KVF_ENOMEM. */
    enum kvf_status (*post)(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                            enum kvf_operation operation, kvfi_lane_next_fn next, void *next_ctx,
                            struct kvfi_lane_op *op);
    /* Sends op->message. KVF_EDISCONNECTED, KVF_ENOMEM. */
    enum kvf_status (*notify)(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                              struct kvfi_lane_op *op);

    void (*usage)(const struct kvfi_lane *lane, struct kvfi_lane_usage *usage);
};

extern const struct kvfi_lane_ops kvfi_lane_auto;
extern const struct kvfi_lane_ops kvfi_lane_ucx;
extern const struct kvfi_lane_ops kvfi_lane_mem;

/* By name; NULL when there is none. */
const struct kvfi_lane_ops *kvfi_lane_find(const char *name);

/* A first-in first-out queue of events. Single thread. */
struct kvfi_lane_queue {
    struct kvfi_lane_event *head;
    struct kvfi_lane_event **tail_p;
};

void kvfi_lane_queue_init(struct kvfi_lane_queue *queue);
/* An event that is already queued stays where it is. */
void kvfi_lane_queue_put(struct kvfi_lane_queue *queue, struct kvfi_lane_event *event);
/* NULL when empty. */
struct kvfi_lane_event *kvfi_lane_queue_take(struct kvfi_lane_queue *queue);

#endif
