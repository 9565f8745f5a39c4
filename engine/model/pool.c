/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/*
 * The ticket is the whole state of a job in one word: generation (24 bits), number of tasks (20)
 * and next task (20). A worker takes a task by adding one with compare-and-swap. If that succeeds
 * the job is this one and not yet over, because pool_run() returns only after every task taken is
 * done, so fn and ctx may be read afterwards.
 */
enum {
    FIELD_BITS = 20,
    SPINS = 4000, /* tens of microseconds */
};
#define FIELD_MASK ((UINT64_C(1) << FIELD_BITS) - 1)

struct worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct pool {
    _Atomic uint64_t ticket;
    _Atomic uint32_t done; /* tasks of the job finished; release, pairs with pool_run's acquire */
    _Atomic uint32_t sleepers; /* workers in or on the way into cond_wait */
    _Atomic bool caller_waits;
    _Atomic bool active; /* between begin and end */
    _Atomic bool stop;
    /* Written by pool_run() before the ticket is published, read after a task was taken. */
    pool_task_fn fn;
    void *ctx;
    uint64_t generation;
    pthread_mutex_t lock;
    pthread_cond_t work;     /* a new job, or stop */
    pthread_cond_t finished; /* the last task is done */
    uint32_t threads;
    struct worker workers[]; /* threads - 1 */
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static bool has_tasks(uint64_t ticket)
{
    return (ticket & FIELD_MASK) < (ticket >> FIELD_BITS & FIELD_MASK);
}

static void finish_task(struct pool *pool, uint64_t ticket)
{
    uint32_t total = (uint32_t)(ticket >> FIELD_BITS & FIELD_MASK);
    /* seq_cst with caller_waits: either this thread sees the flag or the caller sees the count. */
    if (atomic_fetch_add(&pool->done, 1) + 1 == total && atomic_load(&pool->caller_waits)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* Takes tasks until the current job has none left. */
static void take_tasks(struct pool *pool, uint32_t worker)
{
    uint64_t ticket = atomic_load(&pool->ticket);
    while (has_tasks(ticket)) {
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1))
            continue;
        pool->fn(pool->ctx, (uint32_t)(ticket & FIELD_MASK), worker);
        finish_task(pool, ticket);
        ticket = atomic_load(&pool->ticket);
    }
}

static void wait_for_work(struct pool *pool)
{
    for (unsigned i = 0; i < SPINS && atomic_load_explicit(&pool->active, memory_order_relaxed);
         i++) {
        if (has_tasks(atomic_load(&pool->ticket)))
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    /* seq_cst: the publisher stores the ticket, then reads sleepers; here it is the other way
     * round, so one of the two sees the other. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (!has_tasks(atomic_load(&pool->ticket)) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    while (!atomic_load(&worker->pool->stop)) {
        take_tasks(worker->pool, worker->index);
        wait_for_work(worker->pool);
    }
    return NULL;
}

uint32_t pool_usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : count > POOL_THREADS_MAX ? POOL_THREADS_MAX : (uint32_t)count;
}

enum kvf_status pool_create(uint32_t threads, struct pool **pool_p, struct kvf_error *error)
{
    if (threads < 1 || threads > POOL_THREADS_MAX)
        return kvf_fail(error, KVF_EINVAL, "%u compute threads; 1 to %d are allowed", threads,
                        POOL_THREADS_MAX);
    struct pool *pool = calloc(1, sizeof *pool + (threads - 1) * sizeof pool->workers[0]);
    if (!pool)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %u compute threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->threads = 1;
    for (uint32_t i = 0; i + 1 < threads; i++) {
        struct worker *worker = &pool->workers[i];
        worker->pool = pool;
        worker->index = i + 1;
        int err = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (err != 0) {
            pool_destroy(pool);
            return kvf_fail(error, KVF_ESYSTEM, "cannot start compute thread %u of %u: %s", i + 1,
                            threads - 1, strerrordesc_np(err));
        }
        (void)pthread_setname_np(worker->thread, "kvf-compute");
        pool->threads++;
    }
    *pool_p = pool;
    return KVF_OK;
}

void pool_destroy(struct pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i + 1 < pool->threads; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->finished);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_begin(struct pool *pool)
{
    atomic_store(&pool->active, true);
}

void pool_end(struct pool *pool)
{
    atomic_store(&pool->active, false);
}

static void wait_until_done(struct pool *pool, uint32_t n_tasks)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->done) == n_tasks)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_waits, true);
    while (atomic_load(&pool->done) != n_tasks)
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_waits, false);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(struct pool *pool, uint32_t n_tasks, pool_task_fn fn, void *ctx)
{
    if (n_tasks <= 1 || pool->threads == 1) {
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->generation++;
    atomic_store(&pool->done, 0);
    atomic_store(&pool->ticket,
                 pool->generation << (2 * FIELD_BITS) | (uint64_t)n_tasks << FIELD_BITS);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
    take_tasks(pool, 0);
    wait_until_done(pool, n_tasks);
}
