/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/testing.h"

#include "lane/mem/mem.h"
#include "runtime/clock.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCKS_PER_REQUEST_MAX 5

/* Two engines that face each other over one lane. */
struct rig {
    struct kvfi_mem_net *net; /* NULL on UCX */
    struct test_engine prefill;
    struct test_engine decode;
};

struct request {
    uint32_t prefill_blocks[BLOCKS_PER_REQUEST_MAX];
    uint32_t decode_blocks[BLOCKS_PER_REQUEST_MAX];
    size_t block_count;
    bool sent;     /* prefill's end was told */
    bool received; /* decode's end was told and its blocks are free */
    enum kvf_status sent_status;
    enum kvf_status received_status;
};

static void start_rig(struct rig *rig, const char *lane, const struct test_engine_options *extra)
{
    memset(rig, 0, sizeof(*rig));
    struct test_engine_options options = {0};
    if (extra)
        options = *extra;
    if (strcmp(lane, "mem") == 0) {
        const struct kvfi_mem_net_options net_options = {.eventfd = true};
        rig->net = kvfi_mem_net_create(&net_options);
        assert_non_null(rig->net);
    }
    options.lane = lane;
    options.net = rig->net;
    options.engine_id = "engine-decode";
    test_engine_start(&rig->decode, &options);
    options.prefill = true;
    options.engine_id = "engine-prefill";
    test_engine_start(&rig->prefill, &options);
}

static void stop_rig(struct rig *rig)
{
    test_engine_stop(&rig->prefill);
    test_engine_stop(&rig->decode);
    kvfi_mem_net_destroy(rig->net);
}

/* ---- a run of many requests ----------------------------------------------------------------- */

struct run {
    struct rig *rig;
    struct request *requests;
    int request_count;
    int first_number; /* ids are never used twice: what ended is remembered by its peer */
    int started;
    int ended;
    int failed; /* allowed only when failures are injected */
    uint32_t free_prefill[TEST_BLOCK_COUNT];
    uint32_t free_decode[TEST_BLOCK_COUNT];
    size_t free_prefill_count;
    size_t free_decode_count;
};

static void begin_run(struct run *run, struct rig *rig, int request_count)
{
    memset(run, 0, sizeof(*run));
    run->rig = rig;
    run->request_count = request_count;
    run->requests = calloc((size_t)request_count, sizeof(*run->requests));
    assert_non_null(run->requests);
    /* Different orders, so that no block keeps its number on the way. */
    for (uint32_t i = 0; i < TEST_BLOCK_COUNT; i++) {
        run->free_prefill[run->free_prefill_count++] = i * 37 % TEST_BLOCK_COUNT;
        run->free_decode[run->free_decode_count++] = TEST_BLOCK_COUNT - 1 - i;
    }
}

static struct request *request_of(struct run *run, int number)
{
    assert_in_range(number - run->first_number, 0, run->request_count - 1);
    return &run->requests[number - run->first_number];
}

static void start_request(struct run *run)
{
    int number = run->first_number + run->started++;
    struct request *request = request_of(run, number);
    request->block_count = 1 + (size_t)number % BLOCKS_PER_REQUEST_MAX;
    for (size_t i = 0; i < request->block_count; i++) {
        request->prefill_blocks[i] = run->free_prefill[--run->free_prefill_count];
        request->decode_blocks[i] = run->free_decode[--run->free_decode_count];
        test_fill_block(&run->rig->prefill, request->prefill_blocks[i], number);
    }
    struct test_engine *prefill = &run->rig->prefill;
    struct test_engine *decode = &run->rig->decode;
    struct kvf_result none;
    /* Who comes first changes: decode, prefill, nobody in particular. */
    if (number % 3 == 0) {
        test_decode_begin(decode, &prefill->config, number, request->decode_blocks,
                          request->block_count);
        test_engine_step(decode, &none, 0);
    }
    test_prefill_begin(prefill, number, request->prefill_blocks, request->block_count);
    test_prefill_finish(prefill, number, request->prefill_blocks, request->block_count);
    if (number % 3 == 1)
        test_engine_step(prefill, &none, 0);
    if (number % 3 != 0)
        test_decode_begin(decode, &prefill->config, number, request->decode_blocks,
                          request->block_count);
}

static void end_if_both(struct run *run, int number)
{
    struct request *request = request_of(run, number);
    if (!request->sent || !request->received)
        return;
    for (size_t i = 0; i < request->block_count; i++) {
        test_reset_block(&run->rig->decode, request->decode_blocks[i]);
        run->free_prefill[run->free_prefill_count++] = request->prefill_blocks[i];
        run->free_decode[run->free_decode_count++] = request->decode_blocks[i];
    }
    run->ended++;
}

static void on_prefill_result(struct run *run, const struct kvf_result *result)
{
    int number = test_request_number(result->request_id);
    struct request *request = request_of(run, number);
    assert_int_equal(result->kind, KVF_RESULT_SENT);
    assert_false(request->sent);
    request->sent = true;
    request->sent_status = result->status;
    if (result->status != KVF_OK) {
        assert_int_not_equal(result->reason[0], '\0');
        run->failed++;
    }
    end_if_both(run, number);
}

static void on_decode_result(struct run *run, const struct kvf_result *result)
{
    int number = test_request_number(result->request_id);
    struct request *request = request_of(run, number);
    assert_false(request->received);
    if (result->kind == KVF_RESULT_RELEASED) {
        assert_int_not_equal(request->received_status, KVF_OK);
        request->received = true;
    } else if (result->kind == KVF_RESULT_FAILED) {
        assert_int_not_equal(result->reason[0], '\0');
        request->received_status = result->status;
        request->received = result->blocks_free;
        run->failed++;
        test_request_end(&run->rig->decode, result->request_id);
    } else {
        assert_int_equal(result->kind, KVF_RESULT_RECEIVED);
        assert_int_equal(result->status, KVF_OK);
        for (size_t i = 0; i < request->block_count; i++)
            assert_true(test_blocks_equal(&run->rig->prefill, request->prefill_blocks[i],
                                          &run->rig->decode, request->decode_blocks[i]));
        request->received = true;
        test_request_end(&run->rig->decode, result->request_id);
    }
    end_if_both(run, number);
}

/* One engine step on both sides; waits when nothing was to be done. */
static void step_both(struct run *run, size_t results_max)
{
    struct kvf_result results[16];
    struct test_engine *both[] = {&run->rig->prefill, &run->rig->decode};
    assert_true(results_max <= 16);
    size_t count = test_engine_step(both[0], results, results_max);
    for (size_t i = 0; i < count; i++)
        on_prefill_result(run, &results[i]);
    size_t decode_count = test_engine_step(both[1], results, results_max);
    for (size_t i = 0; i < decode_count; i++)
        on_decode_result(run, &results[i]);
    if (count + decode_count == 0)
        test_engines_wait(both, 2);
}

static void run_requests(struct run *run, int at_once, size_t results_max)
{
    while (run->ended < run->request_count) {
        while (run->started < run->request_count && run->started - run->ended < at_once &&
               run->free_prefill_count >= BLOCKS_PER_REQUEST_MAX &&
               run->free_decode_count >= BLOCKS_PER_REQUEST_MAX)
            start_request(run);
        step_both(run, results_max);
    }
}

/* The usage is published a moment after the last result; engine steps go on meanwhile. */
static void await_idle(struct run *run)
{
    struct kvf_result result;
    while (!test_engine_is_idle(&run->rig->prefill) || !test_engine_is_idle(&run->rig->decode)) {
        assert_int_equal(test_engine_step(&run->rig->prefill, &result, 1), 0);
        assert_int_equal(test_engine_step(&run->rig->decode, &result, 1), 0);
        poll(NULL, 0, 1);
    }
}

static void end_run(struct run *run)
{
    await_idle(run);
    assert_int_equal(run->free_decode_count, TEST_BLOCK_COUNT);
    for (uint32_t block = 0; block < TEST_BLOCK_COUNT; block++)
        assert_true(test_block_untouched(&run->rig->decode, block));
    free(run->requests);
}

/* A turn counts a moment after it gave its results. */
static void await_count(const struct test_engine *engine, enum kvf_counter counter, uint64_t count)
{
    while (kvf_metrics_get(engine->metrics, counter) < count)
        poll(NULL, 0, 1);
    assert_int_equal(kvf_metrics_get(engine->metrics, counter), count);
}

static void check_counters(const struct rig *rig, uint64_t request_count)
{
    await_count(&rig->prefill, KVF_COUNTER_writes_done, request_count);
    await_count(&rig->decode, KVF_COUNTER_receives_done, request_count);
    await_count(&rig->decode, KVF_COUNTER_handshakes, 1);
    await_count(&rig->prefill, KVF_COUNTER_failed_transfers, 0);
    await_count(&rig->prefill, KVF_COUNTER_fallback_polls, 0);
}

/* ---- tests on both lanes -------------------------------------------------------------------- */

static void test_one_request(void **state)
{
    struct rig rig;
    struct run run;
    start_rig(&rig, *state, NULL);
    begin_run(&run, &rig, 1);
    run_requests(&run, 1, 16);
    assert_int_equal(run.requests[0].sent_status, KVF_OK);
    check_counters(&rig, 1);
    await_count(&rig.prefill, KVF_COUNTER_bytes_written, TEST_REGION_COUNT * TEST_BLOCK_BYTES);
    end_run(&run);
    stop_rig(&rig);
}

static void test_a_thousand_requests(void **state)
{
    struct rig rig;
    struct run run;
    start_rig(&rig, *state, NULL);
    begin_run(&run, &rig, 1000);
    run_requests(&run, 16, 16);
    assert_int_equal(run.failed, 0);
    check_counters(&rig, 1000);
    end_run(&run);
    stop_rig(&rig);
}

/* Results wait in order for an engine that takes one at a time; nothing is lost. */
static void test_a_full_result_queue_loses_nothing(void **state)
{
    struct rig rig;
    struct run run;
    const struct test_engine_options options = {.result_queue_len_max = 1};
    start_rig(&rig, *state, &options);
    begin_run(&run, &rig, 100);
    run_requests(&run, 16, 1);
    assert_int_equal(run.failed, 0);
    end_run(&run);
    stop_rig(&rig);
}

static void test_stop_in_the_middle(void **state)
{
    for (int round = 0; round < 6; round++) {
        struct rig rig;
        struct run run;
        start_rig(&rig, *state, NULL);
        begin_run(&run, &rig, 15);
        while (run.started < run.request_count)
            start_request(&run);
        for (int i = 0; i < round; i++)
            step_both(&run, 1);
        if (round % 2) {
            stop_rig(&rig);
        } else {
            test_engine_stop(&rig.decode);
            test_engine_stop(&rig.prefill);
            kvfi_mem_net_destroy(rig.net);
        }
        free(run.requests);
    }
}

/* A decode engine that is gone: prefill's requests end and the next engine is served. */
static void test_decode_restarts(void **state)
{
    struct rig rig;
    struct run run;
    const struct test_engine_options options = {.lease_ns = 2 * KVFI_NS_PER_S};
    start_rig(&rig, *state, &options);
    begin_run(&run, &rig, 10);
    run_requests(&run, 4, 16);
    await_idle(&run);
    free(run.requests);
    struct test_engine_options again = options;
    again.lane = *state;
    again.net = rig.net;
    again.engine_id = "engine-decode";
    again.port = rig.decode.config.port;
    test_engine_stop(&rig.decode);
    test_engine_start(&rig.decode, &again);
    begin_run(&run, &rig, 10);
    run.first_number = 10;
    run_requests(&run, 4, 16);
    assert_int_equal(run.failed, 0);
    end_run(&run);
    stop_rig(&rig);
}

/* ---- tests of one lane ---------------------------------------------------------------------- */

static void test_nobody_answers_the_handshake(void **state)
{
    struct rig rig;
    struct run run;
    const struct test_engine_options options = {.handshake_timeout_ns = 20 * KVFI_NS_PER_MS,
                                                .lease_ns = 100 * KVFI_NS_PER_MS};
    start_rig(&rig, "mem", &options);
    kvf_listener_destroy(rig.prefill.listener);
    rig.prefill.listener = NULL;
    begin_run(&run, &rig, 3);
    run_requests(&run, 3, 16);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run.requests[i].sent_status, KVF_ETIMEDOUT);
        assert_int_not_equal(run.requests[i].received_status, KVF_OK);
    }
    assert_true(kvf_metrics_get(rig.decode.metrics, KVF_COUNTER_failed_handshakes) > 0);
    await_count(&rig.prefill, KVF_COUNTER_kv_expired_reqs, 3);
    end_run(&run);
    stop_rig(&rig);
}

static void test_a_lane_without_descriptor_is_polled(void **state)
{
    struct rig rig = {0};
    struct run run;
    rig.net = kvfi_mem_net_create(NULL);
    struct test_engine_options options = {.lane = "mem", .net = rig.net, .engine_id = "d"};
    test_engine_start(&rig.decode, &options);
    options.prefill = true;
    options.engine_id = "p";
    test_engine_start(&rig.prefill, &options);
    begin_run(&run, &rig, 5);
    run_requests(&run, 5, 16);
    assert_int_equal(run.failed, 0);
    assert_true(kvf_metrics_get(rig.prefill.metrics, KVF_COUNTER_fallback_polls) > 0);
    end_run(&run);
    stop_rig(&rig);
}

static void test_a_failed_write_ends_its_request_only(void **state)
{
    struct rig rig;
    struct run run;
    const struct test_engine_options options = {.lease_ns = KVFI_NS_PER_S};
    start_rig(&rig, "mem", &options);
    begin_run(&run, &rig, 12);
    kvfi_mem_net_fail_operation(rig.net, 4);
    run_requests(&run, 1, 16);
    int failed = 0;
    for (int i = 0; i < 12; i++) {
        bool lost = run.requests[i].received_status != KVF_OK;
        assert_int_equal(run.requests[i].sent_status != KVF_OK, lost);
        failed += lost;
    }
    assert_int_equal(failed, 1);
    await_count(&rig.prefill, KVF_COUNTER_failed_writes, 1);
    end_run(&run);
    stop_rig(&rig);
}

static void fail_every(struct rig *rig, long every, long failures)
{
    struct test_heap *heaps[] = {&rig->prefill.heap, &rig->decode.heap};
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&heaps[i]->failures_left, failures);
        atomic_store(&heaps[i]->fail_every, every);
    }
}

/*
 * Every so-manieth allocation of both workers fails, so often: requests may fail, but each ends, on
 * both sides, and nothing is left. The failures come to an end, because P2 promises a bound after
 * the last fault only: a handshake makes more allocations than `every`, so it would never succeed,
 * and decode may not have its blocks back before prefill can be asked.
 */
static void test_short_of_memory(void **state)
{
    const struct test_engine_options options = {.lease_ns = 200 * KVFI_NS_PER_MS,
                                                .registration_timeout_ns = KVFI_NS_PER_S};
    for (long every = 19; every >= 7; every -= 6) {
        struct rig rig;
        struct run run;
        start_rig(&rig, "mem", &options);
        /* From before the handshakes, which then fail. */
        begin_run(&run, &rig, 8);
        fail_every(&rig, every, 20);
        run_requests(&run, 8, 16);
        fail_every(&rig, 0, 0);
        end_run(&run);
        stop_rig(&rig);

        /* Between connected peers. */
        start_rig(&rig, "mem", &options);
        begin_run(&run, &rig, 1);
        run_requests(&run, 1, 16);
        end_run(&run);
        begin_run(&run, &rig, 100);
        run.first_number = 1;
        fail_every(&rig, every, 200);
        run_requests(&run, 8, 16);
        fail_every(&rig, 0, 0);
        assert_in_range(run.failed, 0, 100);
        end_run(&run);
        stop_rig(&rig);
    }
}

/* The checksums of both sides' records agree (P4), and are there at all. */
static void test_checksums_in_the_records(void **state)
{
    char path[] = "worker_test.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct rig rig;
    struct run run;
    const struct test_engine_options options = {.events_path = path};
    start_rig(&rig, *state, &options);
    begin_run(&run, &rig, 6);
    run_requests(&run, 2, 16);
    end_run(&run);
    stop_rig(&rig);

    char sent[6][65] = {{0}};
    char landed[6][65] = {{0}};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[2048];
    while (fgets(line, sizeof(line), file)) {
        const char *sum = strstr(line, "\"sha256\":\"");
        const char *request = strstr(line, "\"request\":\"");
        if (!sum || !request)
            continue;
        int number = test_request_number(request + strlen("\"request\":\""));
        assert_in_range(number, 0, 5);
        char *slot = strstr(line, "\"role\":\"decode\"") ? landed[number] : sent[number];
        memcpy(slot, sum + strlen("\"sha256\":\""), 64);
    }
    fclose(file);
    unlink(path);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(strlen(sent[i]), 64);
        assert_string_equal(sent[i], landed[i]);
    }
    assert_string_not_equal(sent[0], sent[5]);
}

int main(void)
{
#define ON_LANE(test, lane)                                                                        \
    {                                                                                              \
#test " on " lane, test, NULL, NULL, (void *)(uintptr_t)(lane)                             \
    }
#define ON_BOTH(test) ON_LANE(test, "mem"), ON_LANE(test, "ucx")
    const struct CMUnitTest tests[] = {
        ON_BOTH(test_one_request),
        ON_BOTH(test_a_thousand_requests),
        ON_BOTH(test_a_full_result_queue_loses_nothing),
        ON_BOTH(test_stop_in_the_middle),
        ON_BOTH(test_decode_restarts),
        ON_BOTH(test_checksums_in_the_records),
        cmocka_unit_test(test_nobody_answers_the_handshake),
        cmocka_unit_test(test_a_lane_without_descriptor_is_polled),
        cmocka_unit_test(test_a_failed_write_ends_its_request_only),
        cmocka_unit_test(test_short_of_memory),
    };
    return cmocka_run_group_tests_name("kv/worker", tests, NULL, NULL);
}
