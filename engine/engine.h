/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

/*
 * The engine: a model, its cache, the scheduler, the connector, and the thread that runs them
 * ("kvf-engine"). It sleeps in poll, without a timeout unless the connector has a deadline, until a
 * job, a transfer's result or a stop request arrives.
 */

#include "engine/connector.h"
#include "engine/job.h"
#include "http/mailbox.h"

struct engine;

enum engine_role {
    ENGINE_ROLE_PREFILL,
    ENGINE_ROLE_DECODE,
    ENGINE_ROLE_BOTH,
};

/* "prefill", "decode", "both". */
const char *engine_role_name(enum engine_role role);

struct engine_options {
    const char *model_path;
    const char *model_name; /* NULL: the file's own */
    enum engine_role role;
    const char *engine_id; /* NULL: a fresh uuid4 */
    const char *side_host;
    uint16_t side_port; /* 0: the kernel picks */
    uint32_t block_size;
    uint32_t block_count;
    uint32_t batch_tokens_max;
    uint32_t sequences_max;
    uint32_t model_len_max; /* 0: the model's context */
    uint32_t threads;       /* 0: one per core */
    uint64_t lease_ns;
    uint64_t registration_timeout_ns;
    bool recompute_failed;
    bool debug_checksums;
    const char *events_path;  /* NULL: no event records */
    uint32_t jobs_max;        /* live at once */
    const char *allow_remote; /* as in struct engine_info, borrowed until destroy */
};

/* Everything that does not change while the engine runs. Strings are the engine's, unless said. */
struct engine_info {
    const struct engine_model_info *model;
    const struct engine_tokenizer *tokenizer;
    const char *model_name;
    enum engine_role role;
    const char *engine_id;
    const char *side_host;
    uint16_t side_port;
    uint32_t block_size;
    uint32_t block_count;
    uint32_t model_len_max;
    int64_t started_unix_s;
    const char *allow_remote; /* hosts that requests may name, comma-separated; NULL: any. The
                                 options' */
};

/* The counts at the end of the engine's last turn, and the worker's of now. */
struct engine_snapshot {
    struct engine_scheduler_usage scheduler;
    struct kvf_scheduler_usage kv_scheduler;
    struct kvf_worker_usage kv_worker;
    uint64_t turns; /* of the loop: an idle engine makes none */
};

/* Opens the model, takes the memory, starts the connector; the thread does not run yet. Returns
 * owned. Errors name the file, port or size. */
KVF_MUST_USE enum kvf_status engine_create(const struct engine_options *options,
                                           struct engine **engine_p, struct kvf_error *error);
/* Starts the thread. */
KVF_MUST_USE enum kvf_status engine_start(struct engine *engine, struct kvf_error *error);
/* Ends every job (as aborted), tells peers, joins the thread. Blocks until the step under way is
 * done. Later submissions answer KVF_ECLOSED. Twice is allowed. */
void engine_stop(struct engine *engine);
/* Stops and frees. The outbox has been drained, or its jobs are dropped with it. NULL is allowed.
 */
void engine_destroy(struct engine *engine);

const struct engine_info *engine_info(const struct engine *engine);
struct kvf_metrics *engine_metrics(const struct engine *engine);
struct kvf_events *engine_events(const struct engine *engine);
/* Any thread. */
void engine_snapshot(struct engine *engine, struct engine_snapshot *snapshot);

/* Whether `count` more jobs find room: KVF_AGAIN, KVF_ECLOSED as below. HTTP thread. */
KVF_MUST_USE enum kvf_status engine_room(const struct engine *engine, size_t count);
/* Lends the job to the engine (engine/job.h). KVF_AGAIN: jobs_max are live, try later; KVF_ECLOSED.
 * HTTP thread, does not block. */
KVF_MUST_USE enum kvf_status engine_submit(struct engine *engine, struct engine_job *job);
/* The client is gone or wants no more: the job will be published as finished soon. HTTP thread. */
void engine_abort(struct engine *engine, struct engine_job *job);
/* The HTTP thread has freed a finished job. */
void engine_job_done(struct engine *engine);

/* Items are struct engine_job *. One reader: the HTTP thread. */
struct kvfi_mailbox *engine_outbox(struct engine *engine);

#endif
