/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/worker.h"

#include "runtime/alloc.h"
#include "runtime/thread.h"

#include <string.h>

/* Lays the given options over *options, which holds the defaults. */
static enum kvf_status check_options(const struct kvf_worker_options *given,
                                     struct kvf_worker_options *options, struct kvf_error *error)
{
    if (!given || given->size < sizeof(given->size) || given->size > sizeof(*given))
        return kvf_fail(error, KVF_EINVAL,
                        "worker options of %zu bytes are not of this library (%zu); start with "
                        "KVF_WORKER_OPTIONS_INIT",
                        given ? given->size : 0, sizeof(*given));
    memcpy(options, given, given->size);
    const struct kvf_kv_cache *cache = &options->cache;
    if (!cache->regions || cache->region_count == 0 || !cache->storages ||
        cache->storage_count == 0)
        return kvf_fail(error, KVF_EINVAL, "a cache with %zu regions in %zu storages",
                        cache->region_count, cache->storage_count);
    return KVF_OK;
}

/* Everything that is not the writer thread's; every part may be missing. */
static void free_worker(struct kvf_worker *worker)
{
    struct kvf_step *step;
    while (worker->steps && (step = kvfi_queue_pop(worker->steps)))
        kvf_step_free(step);
    struct kvfi_result_node *node;
    while (worker->results && (node = kvfi_queue_pop(worker->results)))
        kvfi_free(&worker->allocator, node);
    kvfi_handshake_client_destroy(worker->client);
    kvfi_queue_destroy(worker->steps);
    kvfi_queue_destroy(worker->results);
    kvfi_wake_deinit(&worker->wake);
    pthread_mutex_destroy(&worker->usage_lock);
    struct kvf_allocator allocator = worker->allocator;
    kvfi_free(&allocator, worker);
}

static enum kvf_status start_writer(struct kvf_worker *worker,
                                    const struct kvf_worker_options *options,
                                    struct kvf_error *error)
{
    struct kvfi_writer_start start = {.worker = worker, .options = options};
    sem_init(&start.done, 0, 0);
    enum kvf_status status =
        kvfi_thread_start("kvf-writer", kvfi_writer_main, &start, &worker->thread, error);
    if (status == KVF_OK) {
        while (sem_wait(&start.done) != 0)
            ; /* a signal handler of the program ran */
        status = start.status;
        if (status != KVF_OK) {
            pthread_join(worker->thread, NULL);
            if (error)
                *error = start.error;
        }
    }
    sem_destroy(&start.done);
    return status;
}

enum kvf_status kvf_worker_create(const struct kvf_worker_options *options,
                                  struct kvf_worker **worker_p, struct kvf_error *error)
{
    struct kvf_worker_options given = KVF_WORKER_OPTIONS_INIT;
    KVF_TRY(check_options(options, &given, error));
    struct kvf_worker *worker = kvfi_calloc(given.allocator, 1, sizeof(*worker));
    if (!worker)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a worker");
    worker->allocator = *kvfi_allocator(given.allocator);
    worker->metrics = given.metrics;
    worker->events = given.events;
    pthread_mutex_init(&worker->usage_lock, NULL);
    enum kvf_status status = kvfi_wake_init(&worker->wake, error);
    if (status == KVF_OK)
        status =
            kvfi_queue_create(given.step_queue_len_max, &worker->allocator, &worker->steps, error);
    if (status == KVF_OK)
        status = kvfi_queue_create(given.result_queue_len_max, &worker->allocator, &worker->results,
                                   error);
    if (status == KVF_OK)
        status = kvfi_handshake_client_create(0, &worker->allocator, &worker->client, error);
    if (status == KVF_OK)
        status = start_writer(worker, &given, error);
    if (status != KVF_OK) {
        free_worker(worker);
        return status;
    }
    *worker_p = worker;
    return KVF_OK;
}

void kvf_worker_destroy(struct kvf_worker *worker)
{
    if (!worker)
        return;
    atomic_store(&worker->stop, true);
    kvfi_wake_signal(&worker->wake);
    pthread_join(worker->thread, NULL);
    free_worker(worker);
}

void kvf_worker_handshake_payload(const struct kvf_worker *worker, const void **bytes_p,
                                  size_t *len_p)
{
    *bytes_p = worker->payload;
    *len_p = worker->payload_len;
}

enum kvf_status kvf_worker_post_step(struct kvf_worker *worker, struct kvf_step *step)
{
    return step ? kvfi_queue_push(worker->steps, step) : KVF_EINVAL;
}

size_t kvf_worker_take_results(struct kvf_worker *worker, struct kvf_result *results,
                               size_t count_max)
{
    kvfi_queue_clear(worker->results);
    size_t count = 0;
    struct kvfi_result_node *node;
    while (count < count_max && (node = kvfi_queue_pop(worker->results))) {
        results[count++] = node->result;
        kvfi_free(&worker->allocator, node);
    }
    if (count == count_max && !kvfi_queue_is_empty(worker->results))
        kvfi_queue_resignal(worker->results);
    /* Acquire and release: see kvfi_worker_flush_results. */
    if (count > 0 && atomic_exchange_explicit(&worker->room_wanted, false, memory_order_acq_rel))
        kvfi_wake_signal(&worker->wake);
    return count;
}

int kvf_worker_fd(const struct kvf_worker *worker)
{
    return kvfi_queue_fd(worker->results);
}

void kvf_worker_usage(const struct kvf_worker *worker, struct kvf_worker_usage *usage)
{
    pthread_mutex_t *lock = &((struct kvf_worker *)worker)->usage_lock;
    pthread_mutex_lock(lock);
    *usage = worker->usage;
    pthread_mutex_unlock(lock);
}
