/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_POOL_H
#define ENGINE_MODEL_POOL_H

/*
 * Threads that share the tasks of one job after another.
 *
 * Between pool_begin() and pool_end() idle workers spin for some microseconds before they sleep, as
 * the next job is near; outside they sleep at once. A job never waits for a worker that has not
 * come: the calling thread takes tasks too, and only tasks that somebody has taken are waited for.
 */

#include <stdint.h>

#include "kvferry/status.h"

struct pool;

enum {
    POOL_THREADS_MAX = 256,
    POOL_TASKS_MAX = (1 << 20) - 1,
};

/* worker is below the pool's thread count and differs between tasks that run at the same time. */
typedef void (*pool_task_fn)(void *ctx, uint32_t task, uint32_t worker);

/* threads counts the caller's: 1 makes no thread at all. Returns owned. */
KVF_MUST_USE enum kvf_status pool_create(uint32_t threads, struct pool **pool_p,
                                         struct kvf_error *error);
/* Not while a job runs. */
void pool_destroy(struct pool *pool);

uint32_t pool_threads(const struct pool *pool);
/* Processors that this process may use. Any thread. */
uint32_t pool_usable_cores(void);

/* One thread at a time calls these three. */
void pool_begin(struct pool *pool);
void pool_end(struct pool *pool);
/* Runs fn for tasks 0 .. n_tasks - 1 (at most POOL_TASKS_MAX) in no particular order; returns when
 * all are done. What the tasks wrote is visible to the caller and to the next job. */
void pool_run(struct pool *pool, uint32_t n_tasks, pool_task_fn fn, void *ctx);

#endif
