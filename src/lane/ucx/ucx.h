/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_UCX_H
#define KVFI_LANE_UCX_UCX_H

/*
 * Inside of the UCX lane. Only this folder includes UCX, and only its public API of 1.13.
 *
 * UCX calls back from inside ucp_worker_progress and ucp_ep_close_nbx. Our callbacks there only
 * account and queue; whatever goes to the agent is delivered by progress() afterwards, so the agent
 * may call anything from its callbacks.
 */

#include "lane/lane.h"

#include <ucp/api/ucp.h>

enum ucx_event {
    UCX_TRANSFER_DONE = 1,
    UCX_NOTIFY_DONE,
    UCX_PEER_LOST,
    UCX_RECEIVED,
};

/* A message that arrived. Pooled with its buffer. */
struct ucx_received {
    struct kvfi_lane_event event;
    struct ucx_received *next_free;
    unsigned char *data; /* owned */
    size_t len;
    size_t cap;
};

struct kvfi_lane_memory {
    ucp_mem_h memh;
    ucs_memory_type_t type;
    uint64_t addr;
    uint64_t length;
    size_t rkey_len;
    unsigned char rkey[];
};

struct kvfi_lane_rkey {
    ucp_rkey_h rkey;
    bool carried; /* a WRITE here goes as messages, see carry.c */
};

/* The carried WRITEs of a lane. Both pools only grow: to what was in flight at once. */
struct ucx_carry_state {
    struct ucx_carry **table; /* by the index in a token */
    size_t count, cap;
    struct ucx_carry *free;
    struct ucx_carry_slab *slabs;
    struct ucx_carry_message *free_messages;
    uint64_t first_token; /* random: whoever has not seen a token cannot answer it */
};

/*
 * Freed when the agent has released it, its endpoint is closed and its event is not queued.
 *
 * Parked: a lane that takes WRITEs as messages keeps a healthy endpoint when the agent lets go of
 * it. UCX pairs it with the initiator's and throws away what arrives for a closed one, so a WRITE
 * that is under way would never be answered. It stays until it fails, until the same address is
 * connected again, or to the end of the lane: at most one for each live peer.
 */
struct kvfi_lane_peer {
    struct kvfi_lane_event event; /* UCX_PEER_LOST */
    struct kvfi_lane *lane;
    struct kvfi_lane_peer *next, *back; /* all peers of the lane */
    struct kvfi_lane_peer *next_force;
    ucp_ep_h ep;         /* NULL once its close has begun */
    void *close_request; /* kept and progressed until it ends; NULL: none */
    void *user;
    ucs_status_t failure;
    size_t operations;
    uint64_t abilities;     /* KVFI_TRAILER_* bits of its address */
    unsigned char *address; /* owned; UCX's part */
    size_t address_len;
    bool failed;    /* the error handler has run */
    bool cancelled; /* by the agent: takes no new ops */
    bool forced;    /* waits in, or has left, the list of endpoints to close by force */
    bool released;
    bool parked;
};

struct kvfi_lane {
    ucp_context_h context;
    ucp_worker_h worker;    /* NULL after a drain that had to pull it down */
    unsigned char *address; /* UCX's and our trailer */
    size_t address_len;
    int fd;
    unsigned minor; /* of the UCX in use */
    bool strip_rkeys;
    bool loopback_only;                 /* no other network device is there, or the user chose so */
    uint64_t abilities;                 /* what our address says */
    struct kvfi_lane_memory **memories; /* by address */
    size_t memory_cap;                  /* usage.memories of them are in use */
    struct ucx_carry_state carry;
    struct kvfi_lane_callbacks callbacks;
    const struct kvf_allocator *allocator;
    struct kvfi_lane_queue events;
    struct kvfi_lane_peer *peers;
    struct kvfi_lane_peer *to_force;
    struct kvfi_lane_op *ops; /* submitted, not yet delivered */
    struct ucx_received *free_received;
    size_t received_count; /* of them */
    size_t waiting_count;  /* messages that arrived and are not delivered yet */
    size_t waiting_bytes;  /* of them */
    struct kvfi_lane_usage usage;
};

/* config.c */
enum kvf_status kvfi_ucx_create_context(struct kvfi_lane *lane, struct kvf_error *error);

/* endpoint.c */
enum kvf_status kvfi_ucx_connect(struct kvfi_lane *lane, const void *address, size_t len,
                                 void *user, struct kvfi_lane_peer **peer_p,
                                 struct kvf_error *error);
void kvfi_ucx_cancel(struct kvfi_lane *lane, struct kvfi_lane_peer *peer);
void kvfi_ucx_disconnect(struct kvfi_lane *lane, struct kvfi_lane_peer *peer);
/* Closes by force an endpoint that nobody uses, or before the worker goes. */
void kvfi_ucx_close_at_once(struct kvfi_lane_peer *peer);
/* As if UCX had reported a failure; for what it does not notice. The endpoint need not be a peer's.
 */
void kvfi_ucx_fail(struct kvfi_lane *lane, ucp_ep_h ep, ucs_status_t status);
/* Begins to close what is parked. */
void kvfi_ucx_unpark_all(struct kvfi_lane *lane);
/* Closes the endpoints that failed. Not from a UCX callback. */
void kvfi_ucx_force_close(struct kvfi_lane *lane);
/* Frees the peer when nothing refers to it any more. */
void kvfi_ucx_maybe_free_peer(struct kvfi_lane_peer *peer);
/* Before the worker goes: lets go of closes that did not end, without their callbacks. */
void kvfi_ucx_abandon_closes(struct kvfi_lane *lane);
/* At the end of the lane: frees what is left, whatever its state. The worker is gone. */
void kvfi_ucx_free_peers(struct kvfi_lane *lane);

/* memory.c */
enum kvf_status kvfi_ucx_register(struct kvfi_lane *lane, void *addr, size_t length,
                                  enum kvf_memory_kind kind, struct kvfi_lane_memory **memory_p,
                                  struct kvf_error *error);
void kvfi_ucx_deregister(struct kvfi_lane *lane, struct kvfi_lane_memory *memory);
void kvfi_ucx_memory_rkey(const struct kvfi_lane_memory *memory, const void **rkey_p,
                          size_t *len_p);
enum kvf_status kvfi_ucx_rkey_unpack(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                     const void *bytes, size_t len, struct kvfi_lane_rkey **rkey_p,
                                     struct kvf_error *error);
void kvfi_ucx_rkey_release(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey);

/* Whether a message may write there: one registration of host memory covers it. */
bool kvfi_ucx_is_writable(const struct kvfi_lane *lane, uint64_t addr, uint64_t length);
/* At the end of the lane. */
void kvfi_ucx_free_memories(struct kvfi_lane *lane);

/* carry.c */
ucs_status_t kvfi_ucx_carry_start(struct kvfi_lane *lane);
/* Sends one piece as messages. False when nothing of it has left; then, and when only a part has,
 * op->status says why. */
bool kvfi_ucx_carry_piece(struct kvfi_lane_op *op, const struct kvfi_lane_piece *piece);
/* No answer will come from this peer any more. */
void kvfi_ucx_carry_lost(struct kvfi_lane_peer *peer);
/* The op ends. */
void kvfi_ucx_carry_forget(struct kvfi_lane_op *op);
/* At the end of the lane. The worker is gone. */
void kvfi_ucx_carry_free(struct kvfi_lane *lane);

/* operation.c */
/* Remembers the op's first failure. */
void kvfi_ucx_note(struct kvfi_lane_op *op, ucs_status_t status);
/* One of the op's outstanding parts has ended. */
void kvfi_ucx_part_done(struct kvfi_lane_op *op);
enum kvf_status kvfi_ucx_post(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                              enum kvf_operation operation, kvfi_lane_next_fn next, void *next_ctx,
                              struct kvfi_lane_op *op);
enum kvf_status kvfi_ucx_notify(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                struct kvfi_lane_op *op);
/* Takes the op off the lane's books, for its delivery. */
void kvfi_ucx_forget_op(struct kvfi_lane *lane, struct kvfi_lane_op *op);
/* After the worker is gone: whatever has not completed is queued as cancelled. */
void kvfi_ucx_abandon_ops(struct kvfi_lane *lane);

/* receive.c */
enum kvf_status kvfi_ucx_receive_start(struct kvfi_lane *lane, struct kvf_error *error);
void kvfi_ucx_received_free(struct kvfi_lane *lane, struct ucx_received *received);
void kvfi_ucx_receive_stop(struct kvfi_lane *lane);

#endif
