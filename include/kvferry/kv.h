/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_KV_H
#define KVFERRY_KV_H

/*
 * The P/D connector: KV cache blocks go from a prefill engine to a decode engine.
 *
 * It has two halves, as in vLLM:
 *
 *   struct kvf_scheduler  lives in the engine's scheduler, is pure and synchronous, decides which
 *                         requests register, hold or release blocks, and describes each engine step
 *                         as a struct kvf_step;
 *   struct kvf_worker     one per rank; owns one data thread ("kvf-writer") that does everything
 *                         else: handshakes, registrations, matching, WRITEs, leases, completions.
 *
 * The engine's loop, once per step:
 *
 *   kvf_scheduler_build_step -> kvf_worker_post_step -> forward pass -> kvf_worker_take_results
 *   -> kvf_scheduler_apply_result for each -> act on it (start, fail, free)
 *
 * and, when it has nothing to run, waits on kvf_worker_fd() beside its own wake-up.
 *
 * Source: seed 000 and facts page vllm-kv-connector, sections 3 to 6.
 */

#include "kvferry/agent.h"
#include "kvferry/observe.h"
#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- configuration -------------------------------------------------------------------------- */

enum kvf_kv_mode {
    KVF_MODE_PUSH,
    KVF_MODE_PULL,
};

/* What both sides must agree on, as the compatibility hash covers it (facts section 2.4). All
 * strings are borrowed until the object that is being created has been created. */
struct kvf_kv_compat {
    uint32_t connector_version; /* 15 for vLLM 0.33.0, 14 for 0.32.0 */
    const char *vllm_version;   /* "0.33.0" */
    const char *model;          /* exactly as the peer's operator configured it */
    const char *dtype;          /* "torch.float32" */
    const char *cache_dtype;    /* "auto" */
    const char *attn_backend;   /* "KVFERRY" between two of our engines */
    uint32_t head_size;
    uint32_t kv_head_count; /* of the whole model */
    uint32_t layer_count;   /* of the whole model */
    bool hma_enabled;
    bool enforce; /* false: the hash is not compared, geometry still is */
};

struct kvf_kv_config {
    size_t size; /* set by KVF_KV_CONFIG_INIT */
    const char *engine_id;
    const char *host; /* side channel, as peers reach it */
    uint16_t port;
    enum kvf_kv_mode mode; /* KVF_MODE_PULL is refused by this version */
    uint32_t tp_size;      /* this version: 1 */
    uint32_t pp_size;      /* this version: 1 */
    uint32_t tp_rank;
    uint32_t pp_rank;
    uint32_t block_size;              /* tokens per block */
    uint64_t lease_ns;                /* prefill keeps finished blocks this long */
    uint64_t registration_timeout_ns; /* decode's watchdog, from registration to landed */
    uint64_t handshake_timeout_ns;    /* per reply */
    uint64_t peer_settle_ns; /* decode's blocks stay quarantined this long after a peer was lost,
                                so that bytes already in the transport cannot land in new data */
    struct kvf_kv_compat compat;
};
#define KVF_KV_CONFIG_INIT                                                                         \
    {                                                                                              \
        .size = sizeof(struct kvf_kv_config), .host = "localhost", .port = 5600,                   \
        .mode = KVF_MODE_PUSH, .tp_size = 1, .pp_size = 1, .block_size = 16,                       \
        .lease_ns = 30000000000ull, .registration_timeout_ns = 480000000000ull,                    \
        .handshake_timeout_ns = 5000000000ull, .peer_settle_ns = 1000000000ull,                    \
        .compat = {.connector_version = 15,                                                        \
                   .vllm_version = "0.33.0",                                                       \
                   .dtype = "torch.float32",                                                       \
                   .cache_dtype = "auto",                                                          \
                   .attn_backend = "KVFERRY",                                                      \
                   .hma_enabled = true,                                                            \
                   .enforce = true},                                                               \
    }

/* Limits: a longer id, a longer host or more blocks are refused with KVF_ELIMIT. */
#define KVF_REQUEST_ID_LEN_MAX 512
#define KVF_ENGINE_ID_LEN_MAX  256
#define KVF_HOST_LEN_MAX       256
#define KVF_BLOCKS_MAX         (1u << 20) /* per request */

/* kv_transfer_params of a request or of a response (facts section 4.1). A NULL string or absent
 * number is "not given". Borrowed by every function that takes it, until return. */
struct kvf_transfer_params {
    bool do_remote_decode;  /* a prefill whose blocks another engine takes */
    bool do_remote_prefill; /* a decode whose blocks come from another engine */
    const char *remote_engine_id;
    const char *remote_request_id;
    const char *remote_host;
    int64_t remote_port; /* < 0: not given */
    int64_t tp_size;     /* < 0: not given */
    int64_t pp_size;     /* < 0: not given, taken as 1 */
    int64_t dcp_size;    /* < 0: not given, taken as 1 */
    int64_t remote_num_tokens;
    const char *transfer_mode;
    const char *transfer_id; /* ours; never required */
};
#define KVF_TRANSFER_PARAMS_INIT                                                                   \
    {                                                                                              \
        .remote_port = -1, .tp_size = -1, .pp_size = -1, .dcp_size = -1, .remote_num_tokens = -1   \
    }

/* Length of the id without its random suffix: one trailing "-" + 8 hex digits removed (facts
 * section 4.4). Pure. */
KVF_API size_t kvf_base_request_id_len(const char *request_id);

/* ---- one step, from the scheduler to the workers -------------------------------------------- */

struct kvf_remote_engine {
    const char *engine_id;
    const char *host;
    uint16_t port;
    uint32_t tp_size;
    uint32_t pp_size;
};

/* decode: these blocks wait for prefill's bytes. */
struct kvf_step_registration {
    const char *request_id;
    const char *transfer_id; /* NULL: none */
    const char *remote_request_id;
    struct kvf_remote_engine remote;
    const uint32_t *block_ids; /* logical, only blocks that are not cached, in order */
    size_t block_count;
};

/* prefill: these blocks are complete and leased until the deadline. */
struct kvf_step_finished {
    const char *request_id;
    const char *transfer_id;
    const uint32_t *block_ids;
    size_t block_count;
    uint64_t deadline_ns; /* scheduler's clock */
};

/* decode: the leases of these prefill-side requests are to be renewed. */
struct kvf_step_heartbeat {
    struct kvf_remote_engine remote;
    const char *const *request_ids;
    size_t request_count;
};

/* Per-step metadata (vLLM's connector metadata). One allocation; free with kvf_step_free. */
struct kvf_step {
    uint64_t scheduler_clock_ns;
    const struct kvf_step_registration *registrations;
    size_t registration_count;
    const struct kvf_step_finished *finished;
    size_t finished_count;
    const char *const *in_batch; /* prefill: scheduled, will finish or end as not_processed */
    size_t in_batch_count;
    const char *const *not_processed; /* prefill: ended before its blocks were complete */
    size_t not_processed_count;
    const char *const *withdrawn; /* decode: registered, no longer wanted (abort, watchdog) */
    size_t withdrawn_count;
    const struct kvf_step_heartbeat *heartbeats;
    size_t heartbeat_count;
};

/* True when posting the step would tell the workers nothing. */
KVF_API bool kvf_step_is_empty(const struct kvf_step *step);
KVF_API void kvf_step_free(struct kvf_step *step);

/* ---- results, from the workers to the scheduler --------------------------------------------- */

enum kvf_result_kind {
    KVF_RESULT_SENT,     /* prefill: the blocks are free (status says why: KVF_OK delivered,
                            KVF_ETIMEDOUT lease ended, other: not delivered) */
    KVF_RESULT_RECEIVED, /* decode: every byte is in place, the request may run */
    KVF_RESULT_FAILED,   /* decode: the receive failed, `reason` says why; blocks_free says whether
                            the blocks may be reused now or only after KVF_RESULT_RELEASED */
    KVF_RESULT_RELEASED, /* decode: nothing can write the blocks any more (follows a withdrawal or
                            a KVF_RESULT_FAILED with blocks_free false) */
};

#define KVF_REASON_LEN_MAX 200

struct kvf_result {
    enum kvf_result_kind kind;
    enum kvf_status status;
    bool blocks_free;
    char request_id[KVF_REQUEST_ID_LEN_MAX + 1];
    char reason[KVF_REASON_LEN_MAX + 1]; /* "" when status is KVF_OK */
};

/* ---- scheduler side ------------------------------------------------------------------------- */

/*
 * Pure and synchronous; one thread at a time; reads no clock: `now_ns` is the caller's monotonic
 * time and must not go back. Request ids are the engine's internal ids, unique among live requests
 * (KVF_EEXIST otherwise: the first one stays intact).
 *
 * A request enters by kvf_scheduler_on_new_request and leaves by kvf_scheduler_request_finished
 * plus, when that said delay_free, a result with blocks_free or of kind SENT/RELEASED.
 */
struct kvf_scheduler;

/* KVF_ENOTSUP for pull, tp_size or pp_size above 1; KVF_EINVAL for missing or absurd values (the
 * text names field and value). Returns owned. */
KVF_API enum kvf_status kvf_scheduler_create(const struct kvf_kv_config *config,
                                             const struct kvf_allocator *allocator,
                                             struct kvf_scheduler **scheduler_p,
                                             struct kvf_error *error) KVF_MUST_USE;
KVF_API void kvf_scheduler_destroy(struct kvf_scheduler *scheduler);

/* A request arrived. params NULL or without both flags: an ordinary request, nothing is kept.
 * Refused with the key's name: do_remote_prefill without remote_engine_id, remote_request_id,
 * remote_host, remote_port or tp_size; values out of range; remote sizes this version cannot serve;
 * both flags at once; transfer_mode "pull". From a successful do_remote_prefill on, prefill's lease
 * is renewed by heartbeats until the request ends here. */
KVF_API enum kvf_status kvf_scheduler_on_new_request(struct kvf_scheduler *scheduler,
                                                     uint64_t now_ns, const char *request_id,
                                                     const struct kvf_transfer_params *params,
                                                     uint32_t prompt_tokens,
                                                     struct kvf_error *error) KVF_MUST_USE;

/* How many tokens beyond `computed_tokens` (local prefix hits, < prompt_tokens) prefill will
 * provide. 0 for an ordinary request and for one that already had its receive: a preempted request
 * is computed locally (bug B16). When > 0 the receive is asynchronous: allocate, call after_alloc,
 * park the request until its result. */
KVF_API uint32_t kvf_scheduler_matched_tokens(struct kvf_scheduler *scheduler,
                                              const char *request_id, uint32_t computed_tokens);

/* Blocks were allocated. For a receive: block_ids are the request's blocks in order, the first
 * cached_count of which are prefix hits and are not transferred; only the blocks that hold prompt
 * tokens are registered, later ones are ignored (bug B58). Arms the watchdog. For a
 * do_remote_decode request: notes that it is in the batch. */
KVF_API enum kvf_status kvf_scheduler_after_alloc(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                                  const char *request_id, const uint32_t *block_ids,
                                                  size_t block_count, size_t cached_count,
                                                  uint32_t external_tokens,
                                                  struct kvf_error *error) KVF_MUST_USE;

enum kvf_finish_reason {
    KVF_FINISH_STOP,
    KVF_FINISH_LENGTH,
    KVF_FINISH_ABORT, /* client left, error, preempted for good */
};

/* The request ended in the engine. block_ids: all its blocks that cover computed tokens.
 * *delay_free_p true: the blocks now belong to the connector until a result says otherwise (prefill
 * after stop/length: leased; decode while a write may still arrive: quarantined).
 * *response_p (may be NULL) is filled for a prefill response, *has_response_p says so; its strings
 * are the scheduler's and valid until the next call. Unknown ids: delay_free false, no response.
 * A second call for the same id: KVF_OK, delay_free false (bug B09: a held request stays held). */
KVF_API enum kvf_status
kvf_scheduler_request_finished(struct kvf_scheduler *scheduler, uint64_t now_ns,
                               const char *request_id, enum kvf_finish_reason reason,
                               const uint32_t *block_ids, size_t block_count, bool *delay_free_p,
                               struct kvf_transfer_params *response_p, bool *has_response_p,
                               struct kvf_error *error) KVF_MUST_USE;

/* What the workers must know. Fires watchdogs and due heartbeats. Returns owned. When memory is
 * short nothing is lost: the next call returns it. */
KVF_API enum kvf_status kvf_scheduler_build_step(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                                 struct kvf_step **step_p,
                                                 struct kvf_error *error) KVF_MUST_USE;

/* Applies one result. KVF_ENOTFOUND for an id it does not track (drop the result, count it). */
KVF_API enum kvf_status kvf_scheduler_apply_result(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                                   const struct kvf_result *result) KVF_MUST_USE;

/* True when the next build_step would say something now (registrations, finished blocks,
 * withdrawals waiting). The engine then makes a step even without work of its own. */
KVF_API bool kvf_scheduler_has_pending_work(const struct kvf_scheduler *scheduler, uint64_t now_ns);
/* When build_step must be called at the latest (heartbeat or watchdog due); UINT64_MAX: never. */
KVF_API uint64_t kvf_scheduler_deadline_ns(const struct kvf_scheduler *scheduler);

struct kvf_scheduler_usage {
    size_t requests;    /* all that are tracked */
    size_t receiving;   /* decode: registered, no result yet */
    size_t held;        /* prefill: leased */
    size_t quarantined; /* decode: ended here, blocks not free yet */
};
KVF_API void kvf_scheduler_usage(const struct kvf_scheduler *scheduler,
                                 struct kvf_scheduler_usage *usage);

/* ---- worker side ---------------------------------------------------------------------------- */

struct kvf_worker;

/* One region of the paged cache: a layer, in layer order. Block b lies at base + b * stride. */
struct kvf_kv_region {
    const char *name; /* "model.layers.0.self_attn.attn" */
    void *base;
    uint64_t block_bytes;
    uint64_t stride_bytes;
    uint32_t block_count;
    uint32_t group; /* this version: 0 */
    enum kvf_memory_kind kind;
    uint64_t device_id;
};

/* The cache of one rank. The memory is lent to the worker until kvf_worker_destroy returns. */
struct kvf_kv_cache {
    const char *layout; /* "LBHNC" */
    const struct kvf_kv_region *regions;
    size_t region_count;
    /* The allocations that hold the regions; each is registered once. */
    const struct kvf_kv_storage {
        void *base;
        uint64_t length_bytes;
        enum kvf_memory_kind kind;
        uint64_t device_id;
    } * storages;
    size_t storage_count;
};

struct kvf_worker_options {
    size_t size; /* set by KVF_WORKER_OPTIONS_INIT */
    struct kvf_kv_config config;
    struct kvf_kv_cache cache;
    const char *lane; /* see kvf_agent_options: "auto" (default), "ucx" or "mem" */
    void *lane_ctx;
    size_t step_queue_len_max;   /* steps not yet taken by the writer; power of two, default 256 */
    size_t result_queue_len_max; /* results not yet taken by the engine; a full queue holds back the
                                    writer's results, never loses one; default 4096 */
    struct kvf_metrics *metrics; /* borrowed until destroy; may be NULL */
    struct kvf_events *events;   /* same */
    bool debug_checksums;        /* record SHA-256 of each request's blocks, before and after */
    const struct kvf_allocator *allocator;
};
#define KVF_WORKER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(struct kvf_worker_options), .config = KVF_KV_CONFIG_INIT, .lane = "auto",   \
        .step_queue_len_max = 256, .result_queue_len_max = 4096                                    \
    }

/* Creates the agent, registers the storages, starts the writer and the handshake client threads.
 * Blocks until they run. Every failure names its cause and leaves nothing behind. */
KVF_API enum kvf_status kvf_worker_create(const struct kvf_worker_options *options,
                                          struct kvf_worker **worker_p,
                                          struct kvf_error *error) KVF_MUST_USE;
/* Stops the threads, lets running transfers end, releases everything. After return no operation
 * touches the cache. Blocks. NULL is allowed. */
KVF_API void kvf_worker_destroy(struct kvf_worker *worker);

/* This rank's handshake payload (facts section 1.3), to be served by a listener. Borrowed, valid
 * until destroy. */
KVF_API void kvf_worker_handshake_payload(const struct kvf_worker *worker, const void **bytes_p,
                                          size_t *len_p);

/* Hands a step over. Takes the step on KVF_OK; KVF_AGAIN when the queue is full (the caller keeps
 * it and tries again next step: nothing is lost). Engine thread only; does not block. */
KVF_API enum kvf_status kvf_worker_post_step(struct kvf_worker *worker,
                                             struct kvf_step *step) KVF_MUST_USE;
/* Moves up to `count_max` results out. Returns how many. Engine thread only; does not block. */
KVF_API size_t kvf_worker_take_results(struct kvf_worker *worker, struct kvf_result *results,
                                       size_t count_max);
/* Readable (EPOLLIN) while results wait. Owned by the worker. */
KVF_API int kvf_worker_fd(const struct kvf_worker *worker);

struct kvf_worker_usage {
    size_t registrations; /* prefill: received, waiting for blocks */
    size_t staged;        /* prefill: finished blocks waiting for a registration */
    size_t deferred;      /* prefill: matched, waiting for the handshake */
    size_t writes;        /* prefill: requests with a WRITE in flight */
    size_t leases;        /* prefill */
    size_t receives;      /* decode: registered, not terminal (quarantined ones included) */
    size_t quarantined;   /* both */
    size_t handshakes;    /* in progress */
    size_t peers;         /* connected */
    size_t tombstones;    /* ended requests remembered so that late messages are recognised */
    struct kvf_agent_usage agent;
};
/* A snapshot the writer publishes after each turn. Any thread; does not block. */
KVF_API void kvf_worker_usage(const struct kvf_worker *worker, struct kvf_worker_usage *usage);

/* ---- the handshake listener ----------------------------------------------------------------- */

/* Answers handshakes for all ranks of one engine on a ZeroMQ ROUTER ("kvf-listener" thread). */
struct kvf_listener;

struct kvf_listener_rank {
    uint32_t pp_rank;
    uint32_t tp_rank;
    const void *payload; /* copied */
    size_t payload_len;
};

/* Binds tcp://host:port (port 0: ephemeral; IPv6 literals allowed, bracketed or not). KVF_EBUSY
 * naming host and port when the port is in use. rank_count may be 0: an engine that lets the system
 * choose its port binds first, creates its workers with that port and publishes their payloads.
 * Returns owned. Blocks until bound. */
KVF_API enum kvf_status kvf_listener_create(const char *host, uint16_t port,
                                            const struct kvf_listener_rank *ranks,
                                            size_t rank_count, struct kvf_metrics *metrics,
                                            struct kvf_listener **listener_p,
                                            struct kvf_error *error) KVF_MUST_USE;
/* Adds a rank's payload or replaces it; requests for it are answered from here on (until then they
 * are dropped and counted, as for a rank that does not exist). Any thread. */
KVF_API enum kvf_status kvf_listener_publish(struct kvf_listener *listener,
                                             const struct kvf_listener_rank *rank,
                                             struct kvf_error *error) KVF_MUST_USE;
KVF_API uint16_t kvf_listener_port(const struct kvf_listener *listener);
/* Blocks until its thread has ended. NULL is allowed. */
KVF_API void kvf_listener_destroy(struct kvf_listener *listener);

#ifdef __cplusplus
}
#endif
#endif
