/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H

/* Private: engine.c builds and takes apart, engine_loop.c is the thread. */

#include "engine/engine.h"
#include "engine/runner.h"

struct engine {
    struct engine_info info;
    char model_name[256];
    char side_host[KVF_HOST_LEN_MAX + 1];
    char engine_id[KVF_ENGINE_ID_LEN_MAX + 1];
    struct engine_model *model;
    struct engine_cache cache;
    struct engine_runner *runner;
    struct engine_connector *connector;
    struct engine_scheduler *scheduler;
    struct kvf_metrics *metrics;
    struct kvf_events *events;
    struct kvfi_mailbox *inbox;  /* struct engine_job *, NULL: wake up */
    struct kvfi_mailbox *outbox; /* struct engine_job * */
    uint32_t jobs_max;
    uint32_t jobs_live; /* HTTP thread only */
    bool running;       /* HTTP thread only */
    pthread_t thread;

    atomic_bool stop;
    atomic_bool woken;        /* the inbox holds a wake-up already */
    atomic_bool abort_wanted; /* a live job's abort flag was set */

    pthread_mutex_t snapshot_lock;
    struct engine_snapshot snapshot; /* guarded by snapshot_lock */

    struct engine_job *live; /* engine thread only */
    uint64_t turns;          /* engine thread only */
};

/* The thread's function. */
void *engine_loop(void *ctx);

/* Reports of the scheduler become publications of jobs. */
struct engine_sink engine_loop_sink(struct engine *engine);

#endif
