/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_impl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const char *engine_role_name(enum engine_role role)
{
    switch (role) {
    case ENGINE_ROLE_PREFILL:
        return "prefill";
    case ENGINE_ROLE_DECODE:
        return "decode";
    case ENGINE_ROLE_BOTH:
        return "both";
    }
    return "unknown";
}

static enum kvf_status fresh_uuid(char *text, size_t cap, struct kvf_error *error)
{
    unsigned char b[16];
    if (getrandom(b, sizeof(b), 0) != (ssize_t)sizeof(b))
        return kvf_fail(error, KVF_ESYSTEM, "the kernel gives no random numbers");
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    (void)snprintf(text, cap,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
    return KVF_OK;
}

static enum kvf_status open_model(struct engine *engine, const struct engine_options *options,
                                  struct kvf_error *error)
{
    const struct engine_model_options model_options = {
        .threads = options->threads,
        .batch_tokens_max = options->batch_tokens_max,
    };
    KVF_TRY(engine_model_open(options->model_path, &model_options, &engine->model, error));
    engine->info.model = engine_model_info(engine->model);
    engine->info.tokenizer = engine_model_tokenizer(engine->model);
    const char *name = options->model_name ? options->model_name : engine->info.model->name;
    (void)snprintf(engine->model_name, sizeof(engine->model_name), "%s", name);
    engine->info.model_name = engine->model_name;
    return engine_cache_create(engine->info.model->layers, options->block_count,
                               engine_model_kv_block_bytes(engine->model, options->block_size),
                               &engine->cache, error);
}

static enum kvf_status start_connector(struct engine *engine, const struct engine_options *options,
                                       struct kvf_error *error)
{
    const struct engine_connector_options connector_options = {
        .engine_id = engine->engine_id,
        .host = engine->side_host,
        .port = options->side_port,
        .model = engine->model_name,
        .head_size = engine->info.model->head_size,
        .kv_heads = engine->info.model->kv_heads,
        .block_size = options->block_size,
        .lease_ns = options->lease_ns,
        .registration_timeout_ns = options->registration_timeout_ns,
        .debug_checksums = options->debug_checksums,
        .cache = &engine->cache,
        .metrics = engine->metrics,
        .events = engine->events,
    };
    KVF_TRY(engine_connector_create(&connector_options, &engine->connector, error));
    engine->info.side_port = engine_connector_port(engine->connector);
    return KVF_OK;
}

static enum kvf_status start_scheduler(struct engine *engine, const struct engine_options *options,
                                       struct kvf_error *error)
{
    KVF_TRY(engine_runner_create(engine->model, &engine->cache, options->block_size,
                                 options->sequences_max, &engine->runner, error));
    const struct engine_kv_hooks hooks = engine_connector_hooks(engine->connector);
    uint32_t context = engine->info.model->context_length;
    uint32_t len_max = options->model_len_max ? options->model_len_max : context;
    if (len_max > context)
        return kvf_fail(error, KVF_EINVAL,
                        "--max-model-len %u is more than the model's context of %u tokens", len_max,
                        context);
    struct engine_scheduler_options scheduler_options = {
        .block_count = options->block_count,
        .block_size = options->block_size,
        .batch_tokens_max = options->batch_tokens_max,
        .sequences_max = options->sequences_max,
        .model_len_max = len_max,
        .patience_ns = options->lease_ns,
        .recompute_failed = options->recompute_failed,
        .forward = engine_runner_forward(engine->runner),
        .sink = engine_loop_sink(engine),
        .hooks = &hooks,
        .events = engine->events,
    };
    if (getrandom(scheduler_options.hash_key, sizeof(scheduler_options.hash_key), 0) !=
        (ssize_t)sizeof(scheduler_options.hash_key))
        return kvf_fail(error, KVF_ESYSTEM, "the kernel gives no random numbers");
    KVF_TRY(engine_scheduler_create(&scheduler_options, &engine->scheduler, error));
    struct engine_scheduler_usage usage;
    engine_scheduler_usage(engine->scheduler, &usage);
    engine->snapshot.scheduler = usage;
    engine->info.model_len_max = usage.model_len_max;
    return KVF_OK;
}

static enum kvf_status assemble(struct engine *engine, const struct engine_options *options,
                                struct kvf_error *error)
{
    if (options->engine_id)
        (void)snprintf(engine->engine_id, sizeof(engine->engine_id), "%s", options->engine_id);
    else
        KVF_TRY(fresh_uuid(engine->engine_id, sizeof(engine->engine_id), error));
    engine->metrics = kvf_metrics_create();
    if (!engine->metrics)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the metrics");
    KVF_TRY(kvfi_mailbox_create(sizeof(struct engine_job *), options->jobs_max + 16, NULL, NULL,
                                &engine->inbox, error));
    KVF_TRY(kvfi_mailbox_create(sizeof(struct engine_job *), options->jobs_max, NULL, NULL,
                                &engine->outbox, error));
    KVF_TRY(open_model(engine, options, error));
    if (options->events_path)
        KVF_TRY(kvf_events_open(options->events_path, engine->engine_id,
                                engine_role_name(options->role), engine->metrics, &engine->events,
                                error));
    KVF_TRY(start_connector(engine, options, error));
    return start_scheduler(engine, options, error);
}

enum kvf_status engine_create(const struct engine_options *options, struct engine **engine_p,
                              struct kvf_error *error)
{
    if (options->block_size == 0 || (options->block_size & (options->block_size - 1)) != 0)
        return kvf_fail(error, KVF_EINVAL, "block size %u is not a power of two",
                        options->block_size);
    if (strlen(options->side_host) > KVF_HOST_LEN_MAX ||
        (options->engine_id && strlen(options->engine_id) > KVF_ENGINE_ID_LEN_MAX))
        return kvf_fail(error, KVF_ELIMIT, "--side-host or --engine-id is longer than %d bytes",
                        KVF_HOST_LEN_MAX);
    struct engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the engine");
    if (pthread_mutex_init(&engine->snapshot_lock, NULL) != 0) {
        free(engine);
        return kvf_fail(error, KVF_ESYSTEM, "no mutex");
    }
    atomic_init(&engine->stop, false);
    atomic_init(&engine->abort_wanted, false);
    atomic_init(&engine->woken, false);
    (void)snprintf(engine->side_host, sizeof(engine->side_host), "%s", options->side_host);
    engine->jobs_max = options->jobs_max;
    engine->info.role = options->role;
    engine->info.side_host = engine->side_host;
    engine->info.engine_id = engine->engine_id;
    engine->info.block_size = options->block_size;
    engine->info.block_count = options->block_count;
    engine->info.started_unix_s = (int64_t)time(NULL);
    engine->info.allow_remote = options->allow_remote;
    enum kvf_status status = assemble(engine, options, error);
    if (status != KVF_OK) {
        engine_destroy(engine);
        return status;
    }
    *engine_p = engine;
    return KVF_OK;
}

enum kvf_status engine_start(struct engine *engine, struct kvf_error *error)
{
    /* Signals are the main thread's. */
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&engine->thread, NULL, engine_loop, engine);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return kvf_fail(error, KVF_ESYSTEM, "cannot start the engine thread (error %d)", rc);
    engine->running = true;
    return KVF_OK;
}

static void wake(struct engine *engine)
{
    struct engine_job *nobody = NULL;
    if (atomic_exchange_explicit(&engine->woken, true, memory_order_acq_rel))
        return;
    /* A full inbox is awake already. */
    if (kvfi_mailbox_post(engine->inbox, &nobody) != KVF_OK)
        return;
}

void engine_stop(struct engine *engine)
{
    if (!engine->running)
        return;
    engine->running = false;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    wake(engine);
    (void)pthread_join(engine->thread, NULL);
}

void engine_destroy(struct engine *engine)
{
    if (!engine)
        return;
    engine_stop(engine);
    /* The connector goes first: until then peers may write the cache. */
    engine_connector_destroy(engine->connector);
    engine_scheduler_destroy(engine->scheduler);
    engine_runner_destroy(engine->runner);
    engine_cache_destroy(&engine->cache);
    engine_model_close(engine->model);
    kvf_events_close(engine->events);
    kvf_metrics_destroy(engine->metrics);
    kvfi_mailbox_destroy(engine->inbox);
    kvfi_mailbox_destroy(engine->outbox);
    (void)pthread_mutex_destroy(&engine->snapshot_lock);
    free(engine);
}

const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}

struct kvf_metrics *engine_metrics(const struct engine *engine)
{
    return engine->metrics;
}

struct kvf_events *engine_events(const struct engine *engine)
{
    return engine->events;
}

struct kvfi_mailbox *engine_outbox(struct engine *engine)
{
    return engine->outbox;
}

void engine_snapshot(struct engine *engine, struct engine_snapshot *snapshot)
{
    (void)pthread_mutex_lock(&engine->snapshot_lock);
    *snapshot = engine->snapshot;
    (void)pthread_mutex_unlock(&engine->snapshot_lock);
    /* The worker goes on while the engine's thread sleeps. */
    engine_connector_worker_usage(engine->connector, &snapshot->kv_worker);
}

enum kvf_status engine_room(const struct engine *engine, size_t count)
{
    if (!engine->running)
        return KVF_ECLOSED;
    return count <= engine->jobs_max - engine->jobs_live ? KVF_OK : KVF_AGAIN;
}

enum kvf_status engine_submit(struct engine *engine, struct engine_job *job)
{
    KVF_TRY(engine_room(engine, 1));
    KVF_TRY(kvfi_mailbox_post(engine->inbox, &job));
    engine->jobs_live++;
    return KVF_OK;
}

void engine_abort(struct engine *engine, struct engine_job *job)
{
    atomic_store_explicit(&job->abort, true, memory_order_relaxed);
    atomic_store_explicit(&engine->abort_wanted, true, memory_order_release);
    wake(engine);
}

void engine_job_done(struct engine *engine)
{
    engine->jobs_live--;
}
