/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_JOB_H
#define ENGINE_JOB_H

/*
 * One sequence on its way between the HTTP thread and the engine thread.
 *
 * Ownership: the HTTP thread makes a job and owns it until engine_submit returned KVF_OK; then it
 * is lent to the engine. The engine writes output under `lock` and posts the pointer to the outbox,
 * at most once at a time. The publication with `finished` is the engine's last touch: from then on
 * the HTTP thread owns the job again and frees it. If the engine stops, every job is published as
 * finished first.
 */

#include <pthread.h>
#include <stdatomic.h>

#include "engine/scheduler.h"
#include "engine/text_stream.h"

/* kv_transfer_params with strings of its own. */
struct engine_transfer {
    bool given;
    struct kvf_transfer_params params;
    int64_t prefill_cached_tokens; /* < 0: not given */
    char *strings[5];
};

/* What the engine has to say; the taker owns the memory. */
struct engine_output {
    struct engine_text text;       /* new since the last take */
    struct engine_tokens tokens;   /* same */
    struct engine_choice *choices; /* of each of the tokens, when the job wants logprobs */
    size_t choice_cap;
    bool finished;
    bool refused; /* it never entered the scheduler: the request itself is at fault */
    enum engine_finish reason;
    enum kvf_status status; /* of ENGINE_FINISH_ERROR */
    char message[512];
    const char *stop; /* the stop string that ended it, borrowed from the job; NULL */
    uint32_t cached_tokens;
    struct engine_transfer handover; /* with the finish of a prefill */
    uint32_t *block_ids;
    size_t block_count;
};

struct engine_job {
    /* Immutable from submission on. */
    char *id;
    struct engine_tokens prompt;
    uint32_t max_tokens;
    uint32_t min_tokens;
    bool ignore_end;
    int logprobs; /* ENGINE_NO_LOGPROBS: none */
    struct engine_sampler_params sampling;
    struct engine_transfer transfer;
    struct engine_stop_list stops; /* owned by the job's owner, outlives the job */
    void *owner;                   /* HTTP thread only */
    size_t index;                  /* HTTP thread only */

    atomic_bool abort; /* set by the HTTP thread, read by the engine */

    pthread_mutex_t lock;
    struct engine_output output; /* guarded by lock */
    bool posted;                 /* guarded by lock: the outbox holds this job */

    /* Engine thread only. */
    struct engine_text_stream stream;
    uint32_t token_count;
    struct engine_job *prev;
    struct engine_job *next;
};

/* A job with nothing in it; NULL when memory is short. */
struct engine_job *engine_job_create(void);
void engine_job_destroy(struct engine_job *job);

/* Moves the output collected so far to *output. HTTP thread, after the outbox gave the job. */
void engine_job_take(struct engine_job *job, struct engine_output *output);
void engine_output_free(struct engine_output *output);

/* Deep copies; KVF_ENOMEM leaves *to empty. */
KVF_MUST_USE enum kvf_status engine_transfer_copy(const struct kvf_transfer_params *from,
                                                  struct engine_transfer *to);
void engine_transfer_free(struct engine_transfer *transfer);

#endif
