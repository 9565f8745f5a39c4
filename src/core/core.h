/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_CORE_H
#define KVFI_CORE_CORE_H

/*
 * The worker core's tables and objects, shared by its mechanisms:
 *
 *   worker.c        create, dispatch, invariants     peer.c          one state per remote engine
 *   steps.c         what the engine said             handshake.c     what a peer may say of itself
 *   send.c          prefill: a request and its lease registration.c  prefill: decode's blocks
 *   receive.c       decode: a receive                emit.c          effects
 *
 * How an event is applied. First it changes objects: states, links, deadlines, and notes of what
 * is owed to the outside. That part takes no memory, so it cannot fail half-way (objects bring
 * with them all they will ever need, their tombstone included). Then the objects that owe
 * something are taken from `owing` and put it into the effect list, each of them whole or not at
 * all; one for which memory is short stays in `owing` and is tried again.
 */

#include "core/deadline.h"
#include "core/effects.h"
#include "core/list.h"
#include "core/matching.h"
#include "core/tombstones.h"
#include "core/worker.h"
#include "wire/bytes.h"

/* Bounds that are not configuration. */
#define KVFI_PEER_COUNT_MAX             4096
#define KVFI_PEER_FORGET_NS             60000000000ull /* an unused peer's state is kept this long */
#define KVFI_BACKOFF_MAX_NS             60000000000ull
#define KVFI_PEER_UNREACHABLE_FAILURES  8 /* unanswered in a row: it is taken for gone */
#define KVFI_PEER_PROVEN_NS             5000000000ull /* a connection that lasts so long is a good one */
#define KVFI_REGISTRATION_BLOCKS_MAX    ((size_t)1 << 24) /* ids of all of them together */
#define KVFI_REGISTRATION_NAMESAKES_MAX 64            /* under one base id, or one transfer id */
#define KVFI_RETRY_NS                   10000000ull   /* after want of memory */
#define KVFI_WITHDRAW_RETRY_NS          2000000000ull /* first repeat of a PUSH_DROP; doubles */
#define KVFI_WITHDRAW_REPEAT_NS         60000000000ull

enum kvfi_work_kind {
    KVFI_WORK_PEER,
    KVFI_WORK_SEND,
    KVFI_WORK_REGISTRATION,
    KVFI_WORK_RECEIVE,
};

/* Membership in `owing`; the kind says which object it lies in. Deadlines use the same kinds. */
struct kvfi_work {
    struct kvfi_list link;
    enum kvfi_work_kind kind;
};

/* ---- peer ----------------------------------------------------------------------------------- */

#define KVFI_PEER_EDGE(state) (1u << KVFI_PEER_##state)

/* X(state, may be followed by) */
#define KVFI_PEER_STATE_LIST(X)                                                                    \
    X(IDLE, KVFI_PEER_EDGE(HANDSHAKING) | KVFI_PEER_EDGE(BACKOFF))                                 \
    X(HANDSHAKING, KVFI_PEER_EDGE(LOADING) | KVFI_PEER_EDGE(BACKOFF))                              \
    X(LOADING, KVFI_PEER_EDGE(CONNECTED) | KVFI_PEER_EDGE(BACKOFF))                                \
    X(CONNECTED, KVFI_PEER_EDGE(IDLE))                                                             \
    X(BACKOFF, KVFI_PEER_EDGE(HANDSHAKING))

/*
 * IDLE         nothing is loaded; the next user starts a handshake
 * HANDSHAKING  a question is out
 * LOADING      the answer was good, the agent is loading it
 * CONNECTED    usable; `id` is the agent's
 * BACKOFF      the last attempt failed, or connections break as soon as they are made; users are
 *              refused until not_before_ns
 */
enum kvfi_peer_state {
#define KVFI_PEER_STATE_ENUM(state, next) KVFI_PEER_##state,
    KVFI_PEER_STATE_LIST(KVFI_PEER_STATE_ENUM)
#undef KVFI_PEER_STATE_ENUM
        KVFI_PEER_STATE_COUNT,
};

/* What a handshake reply offers, after every check. Owned by whoever holds it. */
struct kvfi_offer {
    char *agent_name;
    void *blob; /* the agent's metadata, for the agent to load */
    size_t blob_len;
    struct kvf_block_table *tables; /* the peer's regions, paired with ours by index */
    uint64_t block_count_min;       /* ids below it exist in every region */
    uint32_t caps;
};

/* One remote engine, whatever it is to us. Lives while it has users or is worth remembering. */
struct kvfi_peer {
    enum kvfi_peer_state state;
    struct kvfi_index_node by_engine_id;
    struct kvfi_index_node by_agent_name; /* while CONNECTED or LOADING */
    struct kvfi_index_node by_id;         /* while CONNECTED */
    struct kvfi_index_node by_handshake;  /* while HANDSHAKING or LOADING */
    struct kvfi_work work;
    struct kvfi_deadline deadline;  /* HANDSHAKING, LOADING: give up; unused: forget */
    struct kvfi_list receives;      /* all that name it */
    struct kvfi_list registrations; /* same */
    const char *engine_id;          /* behind this struct */
    char host[KVF_HOST_LEN_MAX + 1];
    uint16_t port;
    uint64_t handshake_id;
    struct kvf_peer_id id;
    struct kvfi_offer offer;    /* of the agent seen last, also after it was lost */
    char *prior_name;           /* the agent that the last one replaced; its messages are stale */
    uint64_t incarnation;       /* goes up with each new agent name */
    struct kvf_peer_id drop_id; /* owed: DROP_PEER of this id (0: none) */
    bool owes_handshake;
    bool owes_load;
    bool absent;         /* after a loss: nobody, or somebody else, answered for it */
    unsigned failures;   /* in a row */
    unsigned unanswered; /* those of them, in a row, that got no good answer */
    uint64_t connected_ns;
    unsigned early_losses; /* connections in a row that broke before KVFI_PEER_PROVEN_NS */
    uint64_t not_before_ns;
    enum kvf_status last_status;
    char last_reason[KVF_REASON_LEN_MAX + 1];
};

/* ---- prefill -------------------------------------------------------------------------------- */

#define KVFI_SEND_EDGE(state) (1u << KVFI_SEND_##state)

#define KVFI_SEND_STATE_LIST(X)                                                                    \
    X(SCHEDULED, KVFI_SEND_EDGE(STAGED) | KVFI_SEND_EDGE(OVER))                                    \
    X(STAGED, KVFI_SEND_EDGE(DEFERRED) | KVFI_SEND_EDGE(OVER))                                     \
    X(DEFERRED, KVFI_SEND_EDGE(STAGED) | KVFI_SEND_EDGE(WRITING) | KVFI_SEND_EDGE(OVER))           \
    X(WRITING, KVFI_SEND_EDGE(OVER))                                                               \
    X(OVER, 0u)

/*
 * SCHEDULED  the engine computes it; no blocks, no lease
 * STAGED     blocks complete and leased, no registration yet
 * DEFERRED   matched; the WRITE waits for the handshake with decode
 * WRITING    the WRITE is posted: the blocks are the transfer's until it is terminal (P1)
 * OVER       only the result is owed
 */
enum kvfi_send_state {
#define KVFI_SEND_STATE_ENUM(state, next) KVFI_SEND_##state,
    KVFI_SEND_STATE_LIST(KVFI_SEND_STATE_ENUM)
#undef KVFI_SEND_STATE_ENUM
        KVFI_SEND_STATE_COUNT,
};

struct kvfi_registration;

struct kvfi_send {
    enum kvfi_send_state state;
    struct kvfi_party party;
    struct kvfi_work work;
    struct kvfi_deadline lease;
    struct kvfi_index_node by_token; /* while WRITING */
    uint64_t token;
    struct kvfi_registration *registration; /* DEFERRED, WRITING */
    struct kvfi_tombstone *tombstone;       /* owned until OVER */
    bool withdrawn;                         /* decode said that nobody will come */
    bool quarantined;                       /* the lease ended while WRITING */
    uint64_t matched_ns;
    uint64_t sent_bytes;    /* OVER, delivered */
    uint64_t sent_runs;     /* same */
    enum kvf_status status; /* OVER */
    char reason[KVF_REASON_LEN_MAX + 1];
    const uint32_t *block_ids; /* behind this struct */
    size_t block_count;
};

enum kvfi_registration_state {
    KVFI_REGISTRATION_PENDING,  /* no blocks for it yet */
    KVFI_REGISTRATION_MATCHED,  /* its send is DEFERRED or WRITING */
    KVFI_REGISTRATION_SETTLING, /* its WRITE failed under way; last bytes may still land */
    KVFI_REGISTRATION_REFUSED,  /* a PUSH_FAIL is owed; waits for the peer if need be */
    KVFI_REGISTRATION_STATE_COUNT,
};

struct kvfi_registration {
    enum kvfi_registration_state state;
    struct kvfi_party party; /* in the table until REFUSED */
    struct kvfi_work work;
    struct kvfi_deadline timeout;
    struct kvfi_peer *peer;
    struct kvfi_list of_peer;
    struct kvfi_send *send;
    struct kvfi_tombstone *tombstone; /* owned until REFUSED or freed */
    const char *sender;               /* agent name */
    char reason[KVF_REASON_LEN_MAX + 1];
    const uint32_t *block_ids;
    size_t block_count;
};

/* ---- decode --------------------------------------------------------------------------------- */

#define KVFI_RECEIVE_EDGE(state) (1u << KVFI_RECEIVE_##state)

#define KVFI_RECEIVE_STATE_LIST(X)                                                                 \
    X(NOTICE, KVFI_RECEIVE_EDGE(OVER))                                                             \
    X(WAITING, KVFI_RECEIVE_EDGE(SENT) | KVFI_RECEIVE_EDGE(NOTICE) | KVFI_RECEIVE_EDGE(OVER))      \
    X(SENT, KVFI_RECEIVE_EDGE(WITHDRAWN) | KVFI_RECEIVE_EDGE(SETTLING) | KVFI_RECEIVE_EDGE(OVER))  \
    X(WITHDRAWN, KVFI_RECEIVE_EDGE(SETTLING) | KVFI_RECEIVE_EDGE(OVER))                            \
    X(SETTLING, KVFI_RECEIVE_EDGE(WITHDRAWN) | KVFI_RECEIVE_EDGE(OVER))                            \
    X(OVER, 0u)

/*
 * NOTICE     no blocks wait; prefill is to be told that nobody comes (PUSH_DROP)
 * WAITING    for the handshake; prefill does not know of it
 * SENT       registered; prefill may write at any time
 * WITHDRAWN  failed or given up here; prefill may still write until it answers
 * SETTLING   the peer is lost; its last bytes may still land for a while
 * OVER       only results are owed
 */
enum kvfi_receive_state {
#define KVFI_RECEIVE_STATE_ENUM(state, next) KVFI_RECEIVE_##state,
    KVFI_RECEIVE_STATE_LIST(KVFI_RECEIVE_STATE_ENUM)
#undef KVFI_RECEIVE_STATE_ENUM
        KVFI_RECEIVE_STATE_COUNT,
};

struct kvfi_receive {
    enum kvfi_receive_state state;
    struct kvfi_index_node by_id;
    struct kvfi_index_node by_token; /* of the PUSH_REG, while SENT */
    struct kvfi_work work;
    struct kvfi_deadline deadline; /* WITHDRAWN: ask again; SETTLING: settled */
    struct kvfi_peer *peer;
    struct kvfi_list of_peer;
    struct kvfi_tombstone *tombstone; /* owned until OVER */
    uint64_t token;
    uint64_t incarnation; /* of the peer that the registration went to */
    uint64_t registered_ns;
    unsigned asked;    /* how often the withdrawal was sent */
    uint32_t expected; /* completions */
    uint32_t completed;
    bool settled; /* SETTLING: the time is over, the peer's answer is not there yet */
    bool owes_drop;
    bool owes_failed;
    bool owes_received;
    bool owes_released;
    enum kvf_status status;
    bool blocks_free;
    char reason[KVF_REASON_LEN_MAX + 1];
    const char *request_id; /* behind this struct */
    const char *transfer_id;
    const uint32_t *block_ids;
    size_t block_count;
};

/* ---- core ----------------------------------------------------------------------------------- */

struct kvfi_core_region {
    const char *name;
    struct kvf_block_table table;
    uint64_t block_bytes;
};

/* How far the first of the queued steps has been applied. */
struct kvfi_step_cursor {
    unsigned part;
    size_t item;
};

struct kvfi_worker_core {
    const struct kvf_allocator *allocator; /* NULL or &allocator_copy */
    struct kvf_allocator allocator_copy;
    struct kvf_kv_config config; /* strings are copies in `texts` */
    char *texts;
    const char *layout;
    struct kvfi_core_region *regions;
    size_t region_count;
    uint64_t block_count_min;
    char compat_hash[65];
    size_t registration_count_max;

    uint64_t now_ns; /* of the current event */
    uint64_t next_token;
    uint64_t next_handshake_id;
    struct kvfi_party_table sends;
    struct kvfi_party_table registrations;
    struct kvfi_index receives;
    struct kvfi_index write_tokens;        /* sends */
    struct kvfi_index registration_tokens; /* receives */
    struct kvfi_index peers;
    struct kvfi_index peers_by_agent_name;
    struct kvfi_index peers_by_id;
    struct kvfi_index peers_by_handshake;
    struct kvfi_tombstones tombstones;
    struct kvfi_deadlines deadlines;
    struct kvfi_list owing;
    struct kvfi_list steps; /* not applied to the end */
    struct kvfi_step_cursor cursor;
    uint64_t retry_ns; /* UINT64_MAX: nothing is behind */
    struct kvfi_buf scratch;

    uint64_t counts[KVF_COUNTER_COUNT]; /* not yet in an effect */
    size_t peer_counts[KVFI_PEER_STATE_COUNT];
    size_t send_counts[KVFI_SEND_STATE_COUNT];
    size_t registration_counts[KVFI_REGISTRATION_STATE_COUNT];
    size_t receive_counts[KVFI_RECEIVE_STATE_COUNT];
    size_t quarantined_send_count;
    size_t registration_block_count; /* ids that registrations hold, all together */
};

/* ---- emit.c --------------------------------------------------------------------------------- */

/* Puts the object into `owing` unless it is there. */
void kvfi_core_todo(struct kvfi_worker_core *core, struct kvfi_work *work);
void kvfi_core_count(struct kvfi_worker_core *core, enum kvf_counter counter);
void kvfi_core_set_reason(char reason[KVF_REASON_LEN_MAX + 1], const char *fmt, ...)
    KVF_PRINTF(2, 3);

enum kvf_status kvfi_emit_result(struct kvfi_effects *effects, enum kvf_result_kind kind,
                                 enum kvf_status status, bool blocks_free, const char *request_id,
                                 const char *reason) KVF_MUST_USE;
/* Sends what is in core->scratch. */
enum kvf_status kvfi_emit_send(struct kvfi_worker_core *core, struct kvfi_effects *effects,
                               const struct kvfi_peer *peer, uint64_t token) KVF_MUST_USE;
/* Records and observations are never worth failing for: without memory they are dropped, counted.
 * Pairs of fields whose name is NULL are left out. */
struct kvfi_record {
    const char *event;
    const char *request_id; /* NULL: none */
    const char *reason;
    const char *peer;    /* engine id */
    const char *match;   /* the other side's request id */
    int64_t block_count; /* < 0: left out */
    uint64_t bytes;      /* 0: left out */
    uint64_t runs;       /* same */
    const uint32_t *block_ids;
    size_t block_id_count;
};
/* The first initialiser of a record: what is not given is left out. */
#define KVFI_RECORD_INIT .block_count = -1 /* NOLINT(bugprone-macro-parentheses) */
void kvfi_emit_record(struct kvfi_worker_core *core, struct kvfi_effects *effects,
                      const struct kvfi_record *record);
void kvfi_emit_observe(struct kvfi_effects *effects, enum kvf_histogram histogram, double value);
/* Moves core->counts into effects as far as memory reaches. */
void kvfi_emit_counts(struct kvfi_worker_core *core, struct kvfi_effects *effects);

/* ---- peer.c --------------------------------------------------------------------------------- */

/* Finds or makes the peer of that engine. Where it is not connected, host and port are the newest.
 * KVF_ENOMEM, KVF_ELIMIT. */
enum kvf_status kvfi_peer_get(struct kvfi_worker_core *core, const char *engine_id,
                              const char *host, uint16_t port,
                              struct kvfi_peer **peer_p) KVF_MUST_USE;
/* Where the next handshake goes. The host's length has been checked. */
void kvfi_peer_set_address(struct kvfi_peer *peer, const char *host, uint16_t port);
/* What a user of the peer has to expect. Starts a handshake when none runs. */
enum kvfi_peer_wish {
    KVFI_PEER_READY,
    KVFI_PEER_WAIT,
    KVFI_PEER_REFUSED, /* in back-off: last_status and last_reason say why */
};
enum kvfi_peer_wish kvfi_peer_want(struct kvfi_worker_core *core, struct kvfi_peer *peer);
/* The agent behind a connected peer is gone or was replaced. Who needs the next one asks for it. */
void kvfi_peer_disconnect(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                          const char *reason);
bool kvfi_peer_is_agent(const struct kvfi_peer *peer, const char *agent_name);
struct kvfi_peer *kvfi_peer_by_agent_name(const struct kvfi_worker_core *core, const char *name);

void kvfi_peer_on_reply(struct kvfi_worker_core *core, const struct kvfi_event *event,
                        struct kvfi_effects *effects);
enum kvf_status kvfi_peer_on_loaded(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                    struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_peer_on_lost(struct kvfi_worker_core *core, const struct kvfi_event *event,
                       struct kvfi_effects *effects);
void kvfi_peer_on_deadline(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                           struct kvfi_effects *effects);
enum kvf_status kvfi_peer_flush(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                                struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_peer_free(struct kvfi_worker_core *core, struct kvfi_peer *peer);

/* ---- handshake.c ---------------------------------------------------------------------------- */

/* Checks a reply in the peer's own order: hash, engine id, geometry. *offer is filled on KVF_OK and
 * released with kvfi_offer_free. */
enum kvf_status kvfi_handshake_check(const struct kvfi_worker_core *core, const char *engine_id,
                                     const char *host, uint16_t port, const void *payload,
                                     size_t payload_len, struct kvfi_offer *offer,
                                     struct kvf_error *error) KVF_MUST_USE;
void kvfi_offer_free(const struct kvfi_worker_core *core, struct kvfi_offer *offer);

/* ---- send.c --------------------------------------------------------------------------------- */

/* KVF_ENOMEM: nothing has changed. */
enum kvf_status kvfi_send_schedule(struct kvfi_worker_core *core,
                                   const char *request_id) KVF_MUST_USE;
enum kvf_status kvfi_send_stage(struct kvfi_worker_core *core,
                                const struct kvf_step_finished *finished, uint64_t clock_ns,
                                struct kvfi_effects *effects) KVF_MUST_USE;
enum kvf_status kvfi_send_abandon(struct kvfi_worker_core *core, const char *request_id,
                                  struct kvfi_effects *effects) KVF_MUST_USE;

/* True for those that a registration may still be matched with. */
bool kvfi_send_is_open(const struct kvfi_party *party);
void kvfi_send_match(struct kvfi_worker_core *core, struct kvfi_send *send,
                     struct kvfi_registration *registration, struct kvfi_effects *effects);
/* The send ends; its registration, if any, is the caller's business. */
void kvfi_send_end(struct kvfi_worker_core *core, struct kvfi_send *send, enum kvf_status status,
                   const char *reason);
/* Its registration is of no use; it waits for another one under the same lease. */
void kvfi_send_reopen(struct kvfi_worker_core *core, struct kvfi_send *send);
/* A heartbeat named it. */
void kvfi_send_renew(struct kvfi_worker_core *core, struct kvfi_send *send);
void kvfi_send_on_deadline(struct kvfi_worker_core *core, struct kvfi_send *send,
                           struct kvfi_effects *effects);
void kvfi_send_on_done(struct kvfi_worker_core *core, const struct kvfi_event *event,
                       struct kvfi_effects *effects);
enum kvf_status kvfi_send_flush(struct kvfi_worker_core *core, struct kvfi_send *send,
                                struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_send_free(struct kvfi_worker_core *core, struct kvfi_send *send);

/* ---- registration.c ------------------------------------------------------------------------- */

enum kvf_status kvfi_registration_on_message(struct kvfi_worker_core *core,
                                             const struct kvfi_event *event,
                                             struct kvfi_effects *effects) KVF_MUST_USE;
enum kvf_status kvfi_registration_on_drop(struct kvfi_worker_core *core, const char *sender,
                                          struct kvfi_span request_id,
                                          struct kvfi_effects *effects) KVF_MUST_USE;
/* Decode gets a PUSH_FAIL with this reason on our record; the id is remembered. */
void kvfi_registration_refuse(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                              struct kvfi_effects *effects, const char *fmt, ...) KVF_PRINTF(4, 5);
/* Its WRITE failed after it was posted: decode hears of that when nothing can land any more. Until
 * then its id counts as alive, so that no answer to a withdrawal says so earlier. */
void kvfi_registration_settle(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                              const char *reason);
/* Ends without a word: delivered, or there is nobody to tell. The id is remembered. */
void kvfi_registration_end(struct kvfi_worker_core *core, struct kvfi_registration *registration);
/* Pairs a newly staged send with what waits, or refuses what cannot be told apart. */
void kvfi_registration_match_send(struct kvfi_worker_core *core, struct kvfi_send *send,
                                  struct kvfi_effects *effects);
/* Refuses every pending one that only this ended prefill request could have served. */
void kvfi_registration_refuse_for(struct kvfi_worker_core *core, const struct kvfi_party *ended,
                                  const char *reason, struct kvfi_effects *effects);
void kvfi_registration_on_deadline(struct kvfi_worker_core *core,
                                   struct kvfi_registration *registration,
                                   struct kvfi_effects *effects);
enum kvf_status kvfi_registration_flush(struct kvfi_worker_core *core,
                                        struct kvfi_registration *registration,
                                        struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_registration_free(struct kvfi_worker_core *core, struct kvfi_registration *registration);

/* ---- receive.c ------------------------------------------------------------------------------ */

enum kvf_status kvfi_receive_register(struct kvfi_worker_core *core,
                                      const struct kvf_step_registration *registration,
                                      struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_receive_withdraw(struct kvfi_worker_core *core, const char *request_id,
                           struct kvfi_effects *effects);
/* `delivered` false: PUSH_FAIL. */
void kvfi_receive_on_message(struct kvfi_worker_core *core, const char *sender,
                             struct kvfi_span request_id, bool delivered,
                             struct kvfi_effects *effects);
void kvfi_receive_on_send_failed(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                 struct kvfi_effects *effects);
void kvfi_receive_on_peer_ready(struct kvfi_worker_core *core, struct kvfi_receive *receive);
void kvfi_receive_on_peer_failed(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                 struct kvfi_effects *effects);
void kvfi_receive_on_peer_lost(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                               const char *reason);
void kvfi_receive_on_deadline(struct kvfi_worker_core *core, struct kvfi_receive *receive);
enum kvf_status kvfi_receive_flush(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                   struct kvfi_effects *effects) KVF_MUST_USE;
void kvfi_receive_free(struct kvfi_worker_core *core, struct kvfi_receive *receive);

/* ---- steps.c -------------------------------------------------------------------------------- */

/* Copies the step and applies what it can. KVF_ENOMEM: the step was not taken. */
enum kvf_status kvfi_steps_add(struct kvfi_worker_core *core, const struct kvf_step *step,
                               struct kvfi_effects *effects) KVF_MUST_USE;
/* Goes on with steps that are behind. KVF_ENOMEM: still behind. */
enum kvf_status kvfi_steps_apply(struct kvfi_worker_core *core,
                                 struct kvfi_effects *effects) KVF_MUST_USE;

#endif
