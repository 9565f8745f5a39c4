/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/testing.h"

#include "runtime/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- heap ----------------------------------------------------------------------------------- */

static bool heap_fails(struct test_heap *heap)
{
    long call = atomic_fetch_add(&heap->calls, 1) + 1;
    long every = atomic_load(&heap->fail_every);
    long at = atomic_load(&heap->fail_at);
    if (at > 0 && call == at)
        return true;
    return every > 0 && call % every == 0 && atomic_fetch_sub(&heap->failures_left, 1) > 0;
}

static void *heap_alloc(void *ctx, size_t size)
{
    struct test_heap *heap = ctx;
    void *ptr = heap_fails(heap) ? NULL : malloc(size);
    if (ptr)
        atomic_fetch_add(&heap->live, 1);
    return ptr;
}

static void *heap_realloc(void *ctx, void *ptr, size_t size)
{
    struct test_heap *heap = ctx;
    if (!ptr)
        return heap_alloc(ctx, size);
    return heap_fails(heap) ? NULL : realloc(ptr, size);
}

static void heap_free(void *ctx, void *ptr)
{
    struct test_heap *heap = ctx;
    if (ptr)
        atomic_fetch_sub(&heap->live, 1);
    free(ptr);
}

void test_heap_init(struct test_heap *heap)
{
    atomic_store(&heap->live, 0);
    atomic_store(&heap->calls, 0);
    atomic_store(&heap->fail_every, 0);
    atomic_store(&heap->failures_left, 0);
    atomic_store(&heap->fail_at, 0);
    heap->allocator = (struct kvf_allocator){
        .ctx = heap, .alloc = heap_alloc, .realloc = heap_realloc, .free = heap_free};
}

/* ---- engine --------------------------------------------------------------------------------- */

static void fill_config(struct test_engine *engine, const struct test_engine_options *options)
{
    engine->config = (struct kvf_kv_config)KVF_KV_CONFIG_INIT;
    engine->config.engine_id = options->engine_id;
    engine->config.host = "127.0.0.1";
    engine->config.port = options->port;
    engine->config.compat.model = "tiny";
    engine->config.compat.head_size = 8;
    engine->config.compat.kv_head_count = 2;
    engine->config.compat.layer_count = TEST_REGION_COUNT;
    engine->config.peer_settle_ns = KVFI_NS_PER_MS;
    if (options->lease_ns > 0)
        engine->config.lease_ns = options->lease_ns;
    if (options->registration_timeout_ns > 0)
        engine->config.registration_timeout_ns = options->registration_timeout_ns;
    if (options->handshake_timeout_ns > 0)
        engine->config.handshake_timeout_ns = options->handshake_timeout_ns;
}

void test_engine_fill_options(struct test_engine *engine, const struct test_engine_options *options,
                              struct kvf_kv_region regions[TEST_REGION_COUNT],
                              struct kvf_kv_storage *storage,
                              struct kvf_worker_options *worker_options)
{
    static const char *const names[TEST_REGION_COUNT] = {"layers.0", "layers.1", "layers.2"};
    for (size_t r = 0; r < TEST_REGION_COUNT; r++)
        regions[r] = (struct kvf_kv_region){.name = names[r],
                                            .base = engine->cache + r * TEST_REGION_BYTES,
                                            .block_bytes = TEST_BLOCK_BYTES,
                                            .stride_bytes = TEST_STRIDE_BYTES,
                                            .block_count = TEST_BLOCK_COUNT};
    *storage = (struct kvf_kv_storage){.base = engine->cache,
                                       .length_bytes = TEST_REGION_COUNT * TEST_REGION_BYTES};
    *worker_options = (struct kvf_worker_options)KVF_WORKER_OPTIONS_INIT;
    worker_options->config = engine->config;
    worker_options->cache = (struct kvf_kv_cache){.layout = "LBHNC",
                                                  .regions = regions,
                                                  .region_count = TEST_REGION_COUNT,
                                                  .storages = storage,
                                                  .storage_count = 1};
    worker_options->lane = options->lane;
    worker_options->lane_ctx = options->net;
    worker_options->metrics = engine->metrics;
    worker_options->events = engine->events;
    worker_options->debug_checksums = engine->events != NULL;
    worker_options->allocator = &engine->heap.allocator;
    if (options->result_queue_len_max > 0)
        worker_options->result_queue_len_max = options->result_queue_len_max;
}

static void must(enum kvf_status status, const struct kvf_error *error, const char *what)
{
    if (status != KVF_OK)
        fail_msg("%s: %s: %s", what, kvf_status_name(status), error->text);
}

void test_engine_start(struct test_engine *engine, const struct test_engine_options *options)
{
    struct kvf_error error = {0};
    memset(engine, 0, sizeof(*engine));
    test_heap_init(&engine->heap);
    test_heap_init(&engine->scheduler_heap);
    engine->prefill = options->prefill;
    engine->metrics = kvf_metrics_create();
    assert_non_null(engine->metrics);
    engine->cache = malloc(TEST_REGION_COUNT * TEST_REGION_BYTES);
    assert_non_null(engine->cache);
    memset(engine->cache, TEST_UNTOUCHED, TEST_REGION_COUNT * TEST_REGION_BYTES);
    fill_config(engine, options);
    if (options->events_path)
        must(kvf_events_open(options->events_path, options->engine_id,
                             options->prefill ? "prefill" : "decode", engine->metrics,
                             &engine->events, &error),
             &error, "events");
    must(kvf_listener_create(engine->config.host, engine->config.port, NULL, 0, engine->metrics,
                             &engine->listener, &error),
         &error, "listener");
    engine->config.port = kvf_listener_port(engine->listener);
    must(kvf_scheduler_create(&engine->config, &engine->scheduler_heap.allocator,
                              &engine->scheduler, &error),
         &error, "scheduler");

    struct kvf_kv_region regions[TEST_REGION_COUNT];
    struct kvf_kv_storage storage;
    struct kvf_worker_options worker_options;
    test_engine_fill_options(engine, options, regions, &storage, &worker_options);
    must(kvf_worker_create(&worker_options, &engine->worker, &error), &error, "worker");
    struct kvf_listener_rank rank = {0};
    kvf_worker_handshake_payload(engine->worker, &rank.payload, &rank.payload_len);
    must(kvf_listener_publish(engine->listener, &rank, &error), &error, "publish");
}

void test_engine_stop(struct test_engine *engine)
{
    kvf_listener_destroy(engine->listener);
    kvf_worker_destroy(engine->worker);
    kvf_step_free(engine->unposted);
    kvf_scheduler_destroy(engine->scheduler);
    kvf_events_close(engine->events);
    kvf_metrics_destroy(engine->metrics);
    free(engine->cache);
    assert_int_equal(atomic_load(&engine->heap.live), 0);
    assert_int_equal(atomic_load(&engine->scheduler_heap.live), 0);
}

static void post_step(struct test_engine *engine)
{
    uint64_t now_ns = kvfi_clock_mono_ns();
    if (!engine->unposted) {
        if (!kvf_scheduler_has_pending_work(engine->scheduler, now_ns) &&
            kvf_scheduler_deadline_ns(engine->scheduler) > now_ns)
            return;
        /* Short of memory: nothing is lost, the next engine step gets it. */
        if (kvf_scheduler_build_step(engine->scheduler, now_ns, &engine->unposted, NULL) != KVF_OK)
            return;
    }
    if (kvf_step_is_empty(engine->unposted)) {
        kvf_step_free(engine->unposted);
        engine->unposted = NULL;
    } else if (kvf_worker_post_step(engine->worker, engine->unposted) == KVF_OK) {
        engine->unposted = NULL;
    }
}

size_t test_engine_step(struct test_engine *engine, struct kvf_result *results, size_t count_max)
{
    post_step(engine);
    size_t count = kvf_worker_take_results(engine->worker, results, count_max);
    for (size_t i = 0; i < count; i++) {
        enum kvf_status status =
            kvf_scheduler_apply_result(engine->scheduler, kvfi_clock_mono_ns(), &results[i]);
        if (status != KVF_OK)
            fail_msg("result %d for %s is not for anybody: %s", (int)results[i].kind,
                     results[i].request_id, kvf_status_name(status));
    }
    return count;
}

void test_engines_wait(struct test_engine *const *engines, size_t count)
{
    struct pollfd fds[4];
    assert_in_range(count, 1, 4);
    uint64_t due_ns = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        uint64_t now_ns = kvfi_clock_mono_ns();
        fds[i] = (struct pollfd){.fd = kvf_worker_fd(engines[i]->worker), .events = POLLIN};
        uint64_t own_ns = kvf_scheduler_deadline_ns(engines[i]->scheduler);
        if (kvf_scheduler_has_pending_work(engines[i]->scheduler, now_ns) || engines[i]->unposted)
            own_ns = now_ns;
        due_ns = own_ns < due_ns ? own_ns : due_ns;
    }
    uint64_t now_ns = kvfi_clock_mono_ns();
    int timeout_ms = -1;
    if (due_ns <= now_ns)
        timeout_ms = 0;
    else if (due_ns - now_ns < (uint64_t)INT32_MAX * KVFI_NS_PER_MS)
        timeout_ms = (int)((due_ns - now_ns) / KVFI_NS_PER_MS) + 1;
    poll(fds, count, timeout_ms);
}

/* ---- requests ------------------------------------------------------------------------------- */

void test_request_id(const struct test_engine *engine, int number, char id[64])
{
    snprintf(id, 64, "cmpl-test-%d-0-%s", number, engine->prefill ? "0a1b2c3d" : "9f8e7d6c");
}

int test_request_number(const char *request_id)
{
    return (int)strtol(request_id + strlen("cmpl-test-"), NULL, 10);
}

void test_prefill_begin(struct test_engine *engine, int number, const uint32_t *blocks,
                        size_t count)
{
    char id[64];
    test_request_id(engine, number, id);
    struct kvf_error error = {0};
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_decode = true;
    uint64_t now_ns = kvfi_clock_mono_ns();
    must(kvf_scheduler_on_new_request(engine->scheduler, now_ns, id, &params,
                                      (uint32_t)count * engine->config.block_size, &error),
         &error, "prefill request");
    must(kvf_scheduler_after_alloc(engine->scheduler, now_ns, id, blocks, count, 0, 0, &error),
         &error, "prefill blocks");
}

void test_prefill_finish(struct test_engine *engine, int number, const uint32_t *blocks,
                         size_t count)
{
    char id[64];
    test_request_id(engine, number, id);
    struct kvf_error error = {0};
    struct kvf_transfer_params response;
    bool delay_free = false;
    bool has_response = false;
    must(kvf_scheduler_request_finished(engine->scheduler, kvfi_clock_mono_ns(), id,
                                        KVF_FINISH_LENGTH, blocks, count, &delay_free, &response,
                                        &has_response, &error),
         &error, "prefill finished");
    assert_true(delay_free);
    assert_true(has_response);
}

void test_decode_begin(struct test_engine *engine, const struct kvf_kv_config *prefill, int number,
                       const uint32_t *blocks, size_t count)
{
    char id[64];
    char remote_id[64];
    test_request_id(engine, number, id);
    snprintf(remote_id, sizeof(remote_id), "cmpl-test-%d-0", number);
    struct kvf_error error = {0};
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_prefill = true;
    params.remote_engine_id = prefill->engine_id;
    params.remote_request_id = remote_id;
    params.remote_host = prefill->host;
    params.remote_port = prefill->port;
    params.tp_size = 1;
    uint32_t tokens = (uint32_t)count * engine->config.block_size;
    uint64_t now_ns = kvfi_clock_mono_ns();
    must(kvf_scheduler_on_new_request(engine->scheduler, now_ns, id, &params, tokens, &error),
         &error, "decode request");
    uint32_t external = kvf_scheduler_matched_tokens(engine->scheduler, id, 0);
    assert_true(external > 0);
    must(kvf_scheduler_after_alloc(engine->scheduler, now_ns, id, blocks, count, 0, external,
                                   &error),
         &error, "decode blocks");
}

void test_request_end(struct test_engine *engine, const char *request_id)
{
    struct kvf_error error = {0};
    bool delay_free = false;
    must(kvf_scheduler_request_finished(engine->scheduler, kvfi_clock_mono_ns(), request_id,
                                        KVF_FINISH_STOP, NULL, 0, &delay_free, NULL, NULL, &error),
         &error, "end");
}

/* ---- bytes ---------------------------------------------------------------------------------- */

uint8_t *test_block(const struct test_engine *engine, size_t region, uint32_t block)
{
    return engine->cache + region * TEST_REGION_BYTES + (size_t)block * TEST_STRIDE_BYTES;
}

void test_fill_block(struct test_engine *engine, uint32_t block, int number)
{
    for (size_t r = 0; r < TEST_REGION_COUNT; r++) {
        uint8_t *bytes = test_block(engine, r, block);
        uint32_t x = (uint32_t)number * 2654435761u + (uint32_t)r * 40503u + block * 977u + 1;
        for (size_t i = 0; i < TEST_BLOCK_BYTES; i++) {
            x = x * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(x >> 24);
        }
    }
}

bool test_blocks_equal(const struct test_engine *a, uint32_t block_a, const struct test_engine *b,
                       uint32_t block_b)
{
    for (size_t r = 0; r < TEST_REGION_COUNT; r++) {
        if (memcmp(test_block(a, r, block_a), test_block(b, r, block_b), TEST_BLOCK_BYTES) != 0)
            return false;
    }
    return true;
}

static bool all_untouched(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != TEST_UNTOUCHED)
            return false;
    }
    return true;
}

void test_reset_block(struct test_engine *engine, uint32_t block)
{
    for (size_t r = 0; r < TEST_REGION_COUNT; r++) {
        uint8_t *bytes = test_block(engine, r, block);
        assert_true(all_untouched(bytes + TEST_BLOCK_BYTES, TEST_STRIDE_BYTES - TEST_BLOCK_BYTES));
        memset(bytes, TEST_UNTOUCHED, TEST_BLOCK_BYTES);
    }
}

bool test_block_untouched(const struct test_engine *engine, uint32_t block)
{
    for (size_t r = 0; r < TEST_REGION_COUNT; r++) {
        if (!all_untouched(test_block(engine, r, block), TEST_STRIDE_BYTES))
            return false;
    }
    return true;
}

bool test_engine_is_idle(const struct test_engine *engine)
{
    struct kvf_worker_usage usage;
    struct kvf_scheduler_usage scheduler;
    kvf_worker_usage(engine->worker, &usage);
    kvf_scheduler_usage(engine->scheduler, &scheduler);
    return usage.registrations + usage.staged + usage.deferred + usage.writes + usage.leases +
                   usage.receives + usage.quarantined + usage.handshakes + usage.agent.transfers +
                   usage.agent.notifications + scheduler.requests + scheduler.receiving +
                   scheduler.held + scheduler.quarantined ==
               0 &&
           usage.agent.regions == 1;
}
