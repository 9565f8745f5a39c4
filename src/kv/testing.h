/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_KV_TESTING_H
#define KVFI_KV_TESTING_H

/*
 * Two small engines for tests: a scheduler, a worker, a listener and a cache filled with a pattern,
 * driven as a real engine drives them. There is no model: a request "computes" nothing.
 */

#include "kvferry/kv.h"

#include <stdatomic.h>

struct kvfi_mem_net;

#define TEST_REGION_COUNT 3
#define TEST_BLOCK_COUNT  96
#define TEST_BLOCK_BYTES  2048ull /* 16 tokens, 2 heads of 8, K and V, float32 */
#define TEST_STRIDE_BYTES 2112
#define TEST_REGION_BYTES ((size_t)TEST_STRIDE_BYTES * TEST_BLOCK_COUNT)
#define TEST_UNTOUCHED    0xEE

/* Counts what is alive; every fail_every-th allocation fails while that is not 0 and failures are
 * left, and the fail_at-th from now on. */
struct test_heap {
    struct kvf_allocator allocator;
    _Atomic long live;
    _Atomic long calls;
    _Atomic long fail_every;
    _Atomic long failures_left;
    _Atomic long fail_at;
};
void test_heap_init(struct test_heap *heap);

struct test_engine {
    struct test_heap heap;           /* the worker's */
    struct test_heap scheduler_heap; /* the scheduler's and its steps' */
    struct kvf_metrics *metrics;
    struct kvf_events *events;
    struct kvf_scheduler *scheduler;
    struct kvf_worker *worker;
    struct kvf_listener *listener;
    struct kvf_kv_config config;
    struct kvf_step *unposted; /* built, found the queue full */
    uint8_t *cache;            /* regions one after another in one storage */
    bool prefill;
};

/* Everything a test may choose; the rest is as KVF_..._INIT has it. */
struct test_engine_options {
    const char *engine_id;
    const char *lane;
    struct kvfi_mem_net *net;
    bool prefill;
    uint16_t port; /* 0: ephemeral */
    uint64_t lease_ns;
    uint64_t handshake_timeout_ns;
    uint64_t registration_timeout_ns;
    size_t result_queue_len_max;
    const char *events_path;
};

/* Fails the test when anything does. The struct must not move afterwards. */
void test_engine_start(struct test_engine *engine, const struct test_engine_options *options);
/* Checks that nothing of the allocator is alive afterwards. */
void test_engine_stop(struct test_engine *engine);
/* What the worker would be created with; used by tests that create workers themselves. */
void test_engine_fill_options(struct test_engine *engine, const struct test_engine_options *options,
                              struct kvf_kv_region regions[TEST_REGION_COUNT],
                              struct kvf_kv_storage *storage,
                              struct kvf_worker_options *worker_options);

/* One engine step without requests: posts what the scheduler has to say, applies up to count_max
 * results and stores them. Returns how many. */
size_t test_engine_step(struct test_engine *engine, struct kvf_result *results, size_t count_max);
/* Sleeps as an idle engine does: until results wait at one of them or a scheduler is due. */
void test_engines_wait(struct test_engine *const *engines, size_t count);

/* prefill: request `number` arrives and is scheduled / has finished with these blocks. */
void test_prefill_begin(struct test_engine *engine, int number, const uint32_t *blocks,
                        size_t count);
void test_prefill_finish(struct test_engine *engine, int number, const uint32_t *blocks,
                         size_t count);
/* decode: request `number` arrives for this prefill and waits in these blocks. */
void test_decode_begin(struct test_engine *engine, const struct kvf_kv_config *prefill, int number,
                       const uint32_t *blocks, size_t count);
/* The engine has acted on a result and the request is over. */
void test_request_end(struct test_engine *engine, const char *request_id);

/* "cmpl-test-<number>-0" plus the engine's own random tail, as vLLM makes it. */
void test_request_id(const struct test_engine *engine, int number, char id[64]);
int test_request_number(const char *request_id);

uint8_t *test_block(const struct test_engine *engine, size_t region, uint32_t block);
/* A pattern that tells engine, region, block and offset apart. */
void test_fill_block(struct test_engine *engine, uint32_t block, int number);
bool test_blocks_equal(const struct test_engine *a, uint32_t block_a, const struct test_engine *b,
                       uint32_t block_b);
/* Checks the padding behind the block and makes the block as at the start. */
void test_reset_block(struct test_engine *engine, uint32_t block);
/* Every byte of the block, and the padding behind it, is as at the start. */
bool test_block_untouched(const struct test_engine *engine, uint32_t block);

/* Nothing but connections and tombstones is left. */
bool test_engine_is_idle(const struct test_engine *engine);

#endif
