/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

/*
 * Continuous batching over the block pool. One step is
 *
 *   engine_scheduler_plan   who runs, with which blocks (calls the connector's hooks)
 *   ...                     the connector posts what plan made it say
 *   engine_scheduler_run    the forward pass, one token for each complete sequence, endings
 *
 * Decoding sequences come first, then prompts that are under way, then sequences whose KV has
 * arrived, then new ones, first come first served; a prompt is cut into chunks by the token budget.
 * When blocks run out the youngest running sequence is preempted: its blocks are freed and it is
 * computed again later.
 *
 * One thread; no clock, no I/O. Reports go to the sink and must not call back.
 */

#include "engine/forward.h"
#include "engine/kv_hooks.h"
#include "kvferry/observe.h"

struct engine_scheduler;

enum engine_finish {
    ENGINE_FINISH_STOP,
    ENGINE_FINISH_LENGTH,
    ENGINE_FINISH_ABORT,
    ENGINE_FINISH_ERROR,
};

/* "stop", "length", "abort", "error". */
const char *engine_finish_name(enum engine_finish reason);

/* How a request ended. All pointers are borrowed during the call. */
struct engine_report {
    enum engine_finish reason;
    enum kvf_status status; /* of ENGINE_FINISH_ERROR */
    const char *message;    /* of ENGINE_FINISH_ERROR; "" otherwise */
    uint32_t
        cached_tokens; /* of the prompt, found in the prefix cache when it was first admitted */
    const struct kvf_transfer_params *handover; /* prefill: where the blocks are; NULL: none */
    const uint32_t *block_ids;                  /* of the handover */
    size_t block_count;
};

/* user is the spec's. Nothing is reported for a request after its `finished`. */
struct engine_sink {
    void *ctx;
    /* A new output token. ends: it is an end token and will not be shown. True: its text completes
     * a stop string. */
    bool (*token)(void *ctx, void *user, const struct engine_choice *choice, bool ends);
    void (*finished)(void *ctx, void *user, const struct engine_report *report);
};

struct engine_scheduler_options {
    uint32_t block_count;
    uint32_t block_size;
    uint64_t hash_key[2];
    uint32_t batch_tokens_max; /* token budget of a step */
    uint32_t sequences_max;    /* running at once */
    uint32_t model_len_max;    /* prompt and output; clipped to what the pool can hold */
    uint64_t patience_ns;      /* see engine_scheduler_deadline_ns; 0: endless */
    bool recompute_failed;     /* a failed receive is computed here instead of failing */
    struct engine_forward forward;
    struct engine_sink sink;
    const struct engine_kv_hooks *hooks; /* copied; NULL: no connector */
    struct kvf_events *events;           /* borrowed until destroy; may be NULL */
};

struct engine_request_spec {
    const char *id;         /* internal id, unique among live and held requests */
    const uint32_t *prompt; /* 1 or more */
    uint32_t prompt_count;
    uint32_t max_tokens; /* 1 or more */
    uint32_t min_tokens;
    bool ignore_end; /* go on after an end token */
    int logprobs;    /* best tokens to list, or ENGINE_NO_LOGPROBS */
    struct engine_sampler_params sampling;
    const struct kvf_transfer_params *transfer; /* NULL: an ordinary request */
    void *user;
};

/* Returns owned. KVF_EINVAL naming the option, KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status engine_scheduler_create(const struct engine_scheduler_options *options,
                                                     struct engine_scheduler **scheduler_p,
                                                     struct kvf_error *error);
/* Requests that are still there are dropped without a report. NULL is allowed. */
void engine_scheduler_destroy(struct engine_scheduler *scheduler);

/* Takes a request in; the spec is borrowed. On failure nothing is reported to the sink:
 * KVF_ELIMIT (too long for this engine), KVF_EEXIST (id in use, or a leg that peers could not tell
 * from another one), KVF_ENOMEM, and what the connector refuses. */
KVF_MUST_USE enum kvf_status engine_scheduler_add(struct engine_scheduler *scheduler,
                                                  uint64_t now_ns,
                                                  const struct engine_request_spec *spec,
                                                  struct kvf_error *error);

/* Ends a request that has not ended: reported as ENGINE_FINISH_ABORT. Unknown, ended and held ones:
 * no effect (bug B09). */
void engine_scheduler_abort(struct engine_scheduler *scheduler, uint64_t now_ns, const char *id);
/* The same for all that have not ended. */
void engine_scheduler_abort_all(struct engine_scheduler *scheduler, uint64_t now_ns);

/* When plan is to be called at the latest, though nothing happens: a prefill leg that finds no room
 * because of held blocks, while nothing runs and nothing is released, is refused (KVF_AGAIN) after
 * patience_ns. UINT64_MAX: no such leg. */
uint64_t engine_scheduler_deadline_ns(const struct engine_scheduler *scheduler);

/* Chooses the batch. False: there is nothing to run. */
KVF_MUST_USE bool engine_scheduler_plan(struct engine_scheduler *scheduler, uint64_t now_ns);
/* Computes the planned batch and reports. */
void engine_scheduler_run(struct engine_scheduler *scheduler, uint64_t now_ns);

/* Acts on a result that the connector's own scheduler has applied. */
void engine_scheduler_kv_result(struct engine_scheduler *scheduler, uint64_t now_ns,
                                const struct kvf_result *result);

struct engine_scheduler_usage {
    uint32_t block_size;
    uint32_t model_len_max;
    uint32_t blocks_total;
    uint32_t blocks_free; /* cached ones included */
    uint32_t blocks_cached;
    uint32_t blocks_held; /* of ended requests, owned by the connector */
    uint32_t waiting;
    uint32_t waiting_remote; /* of those: for room to receive */
    uint32_t parked;
    uint32_t ready;
    uint32_t running;
    uint32_t held;
    uint64_t prompt_tokens; /* computed or received, once per request */
    uint64_t cached_tokens;
    uint64_t generation_tokens;
    uint64_t preemptions;
    uint64_t steps;
    uint64_t finished[ENGINE_FINISH_ERROR + 1];
};
void engine_scheduler_usage(const struct engine_scheduler *scheduler,
                            struct engine_scheduler_usage *usage);

/* Blocks, holders and lists agree; walks everything, for tests. */
bool engine_scheduler_consistent(const struct engine_scheduler *scheduler);

#endif
