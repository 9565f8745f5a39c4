/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_SCHEDULER_H
#define KVFI_CORE_SCHEDULER_H

/*
 * The scheduler's tables, shared by scheduler.c (the engine's hooks) and scheduler_step.c (what is
 * told to the workers).
 */

#include "core/deadline.h"
#include "core/index.h"
#include "core/list.h"
#include "kvferry/kv.h"

/* Bit of a state in a set of states. */
#define KVFI_EDGE(state) (1u << KVFI_REQUEST_##state)

/*
 * X(state, may be followed by). A request that leaves the table for good needs no edge.
 * "Ended" below means: the engine has called request_finished.
 */
#define KVFI_REQUEST_STATE_LIST(X)                                                                 \
    X(PREFILL_NEW, KVFI_EDGE(PREFILL_IN_BATCH) | KVFI_EDGE(PREFILL_HELD) | KVFI_EDGE(GONE))        \
    X(PREFILL_IN_BATCH, KVFI_EDGE(PREFILL_HELD) | KVFI_EDGE(GONE))                                 \
    X(PREFILL_HELD, KVFI_EDGE(GONE))                                                               \
    X(DECODE_NEW, KVFI_EDGE(DECODE_TO_REGISTER) | KVFI_EDGE(DECODE_SETTLED) | KVFI_EDGE(GONE))     \
    X(DECODE_TO_REGISTER, KVFI_EDGE(DECODE_RECEIVING) | KVFI_EDGE(GONE))                           \
    X(DECODE_RECEIVING, KVFI_EDGE(DECODE_SETTLED) | KVFI_EDGE(DECODE_FAILED) |                     \
                            KVFI_EDGE(DECODE_TIMED_OUT) | KVFI_EDGE(DECODE_ENDED))                 \
    X(DECODE_TIMED_OUT,                                                                            \
      KVFI_EDGE(DECODE_SETTLED) | KVFI_EDGE(DECODE_FAILED) | KVFI_EDGE(DECODE_ENDED))              \
    X(DECODE_FAILED, KVFI_EDGE(DECODE_SETTLED) | KVFI_EDGE(DECODE_ENDED))                          \
    X(DECODE_SETTLED, KVFI_EDGE(GONE))                                                             \
    X(DECODE_ENDED, KVFI_EDGE(GONE))                                                               \
    X(GONE, 0u)

/*
 * PREFILL_NEW         known, not scheduled yet
 * PREFILL_IN_BATCH    computing
 * PREFILL_HELD        ended, its blocks are leased
 * DECODE_NEW          known, no blocks yet; heartbeats run
 * DECODE_TO_REGISTER  has blocks, the registration is in no step yet
 * DECODE_RECEIVING    registered; watchdog and heartbeats run
 * DECODE_TIMED_OUT    the watchdog fired, the worker's answer is on its way
 * DECODE_FAILED       the receive failed and something may still write the blocks
 * DECODE_SETTLED      nothing is outstanding: received, failed with free blocks, or a full hit
 * DECODE_ENDED        ended, and something may still write the blocks (quarantined)
 * GONE                not in the table any more; waits at most to be told to the workers
 */
enum kvfi_request_state {
#define KVFI_REQUEST_STATE_ENUM(state, next) KVFI_REQUEST_##state,
    KVFI_REQUEST_STATE_LIST(KVFI_REQUEST_STATE_ENUM)
#undef KVFI_REQUEST_STATE_ENUM
        KVFI_REQUEST_STATE_COUNT,
};

/* A prefill engine that requests of ours wait for. Lives as long as one of them does. */
struct kvfi_remote {
    struct kvfi_index_node by_key; /* engine id, host and port together */
    struct kvfi_list requests;     /* those whose leases are renewed */
    size_t user_count;
    size_t key_len;
    struct kvf_remote_engine engine; /* strings lie behind this struct */
};

struct kvfi_request {
    enum kvfi_request_state state;
    struct kvfi_index_node by_id;
    struct kvfi_list queue;       /* in one of the scheduler's queues of things to tell */
    struct kvfi_list batch_queue; /* in in_batch_queue */
    struct kvfi_list beat;        /* in remote->requests */
    struct kvfi_deadline watchdog;
    struct kvfi_remote *remote; /* decode */
    const char *request_id;     /* these lie behind this struct */
    const char *transfer_id;
    const char *remote_request_id;
    uint32_t prompt_tokens;
    uint32_t *block_ids; /* owned; what the workers are told */
    size_t block_count;
    uint64_t lease_deadline_ns;
};

struct kvf_scheduler {
    const struct kvf_allocator *allocator; /* NULL or &allocator_copy */
    struct kvf_allocator allocator_copy;
    char engine_id[KVF_ENGINE_ID_LEN_MAX + 1];
    char host[KVF_HOST_LEN_MAX + 1];
    uint16_t port;
    uint32_t block_size;
    uint64_t lease_ns;
    uint64_t registration_timeout_ns;
    uint64_t heartbeat_interval_ns;

    struct kvfi_index by_id;
    struct kvfi_index remotes;
    struct kvfi_deadlines watchdogs;
    struct kvfi_list registration_queue;  /* DECODE_TO_REGISTER; SETTLED and GONE as notices */
    struct kvfi_list finished_queue;      /* PREFILL_HELD */
    struct kvfi_list in_batch_queue;      /* PREFILL_IN_BATCH, PREFILL_HELD */
    struct kvfi_list not_processed_queue; /* GONE */
    struct kvfi_list withdrawn_queue;     /* DECODE_TIMED_OUT, DECODE_ENDED, SETTLED, GONE */
    size_t beating_count;                 /* requests in all remotes' lists */
    bool has_beaten;
    uint64_t beaten_ns;
    size_t state_counts[KVFI_REQUEST_STATE_COUNT];
};

/* Takes an illegal edge as a defect (assert). GONE also leaves the table by id. */
void kvfi_request_move(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                       enum kvfi_request_state state);
/* Frees a GONE request that is in no queue any more; else leaves it for later. */
void kvfi_request_reap(struct kvf_scheduler *scheduler, struct kvfi_request *request);
/* When the next heartbeat is due; UINT64_MAX: nobody to renew. */
uint64_t kvfi_scheduler_heartbeat_due_ns(const struct kvf_scheduler *scheduler);

#endif
