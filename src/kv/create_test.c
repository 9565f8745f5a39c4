/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/testing.h"

#include "lane/mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct bench {
    struct test_engine engine;
    struct kvfi_mem_net *net;
    struct kvf_kv_region regions[TEST_REGION_COUNT];
    struct kvf_kv_storage storage;
    struct kvf_worker_options options;
};

/* Options of a worker that is not created yet. */
static void make_bench(struct bench *bench, const char *lane)
{
    const struct test_engine_options options = {.engine_id = "e", .lane = lane};
    memset(bench, 0, sizeof(*bench));
    const struct kvfi_mem_net_options net_options = {.eventfd = true};
    bench->net = kvfi_mem_net_create(&net_options);
    struct test_engine_options with_net = options;
    with_net.net = bench->net;
    test_heap_init(&bench->engine.heap);
    bench->engine.cache = calloc(TEST_REGION_COUNT, TEST_REGION_BYTES);
    assert_non_null(bench->engine.cache);
    bench->engine.config = (struct kvf_kv_config)KVF_KV_CONFIG_INIT;
    bench->engine.config.engine_id = "e";
    bench->engine.config.compat.model = "tiny";
    bench->engine.config.compat.head_size = 8;
    bench->engine.config.compat.kv_head_count = 2;
    bench->engine.config.compat.layer_count = TEST_REGION_COUNT;
    test_engine_fill_options(&bench->engine, &with_net, bench->regions, &bench->storage,
                             &bench->options);
}

static void free_bench(struct bench *bench)
{
    assert_int_equal(atomic_load(&bench->engine.heap.live), 0);
    free(bench->engine.cache);
    kvfi_mem_net_destroy(bench->net);
}

/* B74 */
static void test_each_failing_allocation_of_create(void **state)
{
    struct bench bench;
    make_bench(&bench, "mem");
    enum kvf_status status = KVF_ENOMEM;
    for (long n = 1; status != KVF_OK; n++) {
        assert_in_range(n, 1, 1000);
        atomic_store(&bench.engine.heap.calls, 0);
        atomic_store(&bench.engine.heap.fail_at, n);
        struct kvf_worker *worker = NULL;
        struct kvf_error error = {0};
        status = kvf_worker_create(&bench.options, &worker, &error);
        if (status != KVF_OK) {
            assert_int_equal(status, KVF_ENOMEM);
            assert_int_equal(error.status, KVF_ENOMEM);
            assert_null(worker);
        }
        kvf_worker_destroy(worker);
        assert_int_equal(atomic_load(&bench.engine.heap.live), 0);
    }
    free_bench(&bench);
}

static void expect_refusal(struct bench *bench, enum kvf_status status)
{
    struct kvf_worker *worker = NULL;
    struct kvf_error error = {0};
    assert_int_equal(kvf_worker_create(&bench->options, &worker, &error), status);
    assert_int_equal(error.status, status);
    assert_int_not_equal(error.text[0], '\0');
    assert_null(worker);
    assert_int_equal(atomic_load(&bench->engine.heap.live), 0);
}

static void test_what_create_refuses(void **state)
{
    struct bench bench;
    make_bench(&bench, "mem");
    const struct kvf_worker_options good = bench.options;
    bench.options.size = 4;
    expect_refusal(&bench, KVF_EINVAL);
    bench.options = good;
    bench.options.cache.regions = NULL;
    expect_refusal(&bench, KVF_EINVAL);
    bench.options = good;
    bench.options.cache.storage_count = 0;
    expect_refusal(&bench, KVF_EINVAL);
    bench.options = good;
    bench.options.lane = "carrier pigeon";
    expect_refusal(&bench, KVF_EINVAL);
    bench.options = good;
    bench.options.step_queue_len_max = 0;
    expect_refusal(&bench, KVF_EINVAL);
    bench.options = good;
    bench.options.config.mode = KVF_MODE_PULL;
    expect_refusal(&bench, KVF_ENOTSUP);
    bench.options = good;
    bench.options.config.tp_size = 2;
    expect_refusal(&bench, KVF_ENOTSUP);
    bench.options = good;
    bench.storage.length_bytes = 0;
    expect_refusal(&bench, KVF_EINVAL);
    kvf_worker_destroy(NULL);
    free_bench(&bench);
}

/* B75: start and stop at once, many times. */
static void test_create_and_destroy_at_once(void **state)
{
    struct bench bench;
    make_bench(&bench, *state);
    for (int i = 0; i < 20; i++) {
        struct kvf_worker *worker = NULL;
        assert_int_equal(kvf_worker_create(&bench.options, &worker, NULL), KVF_OK);
        const void *payload = NULL;
        size_t payload_len = 0;
        kvf_worker_handshake_payload(worker, &payload, &payload_len);
        assert_non_null(payload);
        assert_true(payload_len > 64);
        assert_int_equal(kvf_worker_post_step(worker, NULL), KVF_EINVAL);
        kvf_worker_destroy(worker);
    }
    free_bench(&bench);
}

int main(void)
{
#define ON_LANE(test, lane)                                                                        \
    {                                                                                              \
#test " on " lane, test, NULL, NULL, (void *)(uintptr_t)(lane)                             \
    }
    const struct CMUnitTest tests[] = {
        ON_LANE(test_create_and_destroy_at_once, "mem"),
        ON_LANE(test_create_and_destroy_at_once, "ucx"),
        cmocka_unit_test(test_each_failing_allocation_of_create),
        cmocka_unit_test(test_what_create_refuses),
    };
    return cmocka_run_group_tests_name("kv/create", tests, NULL, NULL);
}
