/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill side, stray results, want of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/scheduler_testing.h"

/* ---- prefill -------------------------------------------------------------------------------- */

static void test_prefill_holds_and_is_sent(void **state)
{
    struct world *w = *state;
    new_prefill(w, S, "cmpl-u-0-bbbbbbbb", 33);
    alloc_decode(w, S, "cmpl-u-0-bbbbbbbb", 1, 0, 0);
    alloc_decode(w, S, "cmpl-u-0-bbbbbbbb", 3, 0, 0); /* chunked prefill: announced once */
    struct kvf_step *step = build(w, S);
    assert_int_equal(step->in_batch_count, 1);
    kvf_step_free(step);

    bool delay = false;
    bool has_response = false;
    struct kvf_transfer_params response;
    assert_int_equal(kvf_scheduler_request_finished(w->scheduler, 2 * S, "cmpl-u-0-bbbbbbbb",
                                                    KVF_FINISH_LENGTH, blocks, 4, &delay, &response,
                                                    &has_response, NULL),
                     KVF_OK);
    assert_true(delay && has_response);
    assert_true(response.do_remote_prefill && !response.do_remote_decode);
    assert_string_equal(response.remote_engine_id, "self");
    assert_string_equal(response.remote_request_id, "cmpl-u-0-bbbbbbbb");
    assert_string_equal(response.remote_host, "10.0.0.9");
    assert_int_equal(response.remote_port, 5700);
    assert_int_equal(response.remote_num_tokens, 33);
    assert_string_equal(response.transfer_mode, "push");
    assert_string_equal(response.transfer_id, "tid-1");
    /* B09: an abort right after finds it held; nothing changes. */
    assert_false(finish(w, 2 * S, "cmpl-u-0-bbbbbbbb", KVF_FINISH_ABORT, 4));
    step = build(w, 3 * S);
    assert_int_equal(step->finished_count, 1);
    assert_int_equal(step->not_processed_count, 0);
    assert_int_equal(step->finished[0].deadline_ns, 32 * S);
    assert_int_equal(step->scheduler_clock_ns, 3 * S);
    /* Only blocks of the prompt: decode's last n pair with prefill's last n (B54). */
    assert_int_equal(step->finished[0].block_count, 3);
    assert_string_equal(step->finished[0].transfer_id, "tid-1");
    kvf_step_free(step);
    assert_int_equal(usage(w).held, 1);
    assert_int_equal(result(w, "cmpl-u-0-bbbbbbbb", KVF_RESULT_SENT, true), KVF_OK);
    assert_int_equal(result(w, "cmpl-u-0-bbbbbbbb", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    assert_int_equal(usage(w).requests, 0);
    build_empty(w, 4 * S);
}

static void test_prefill_abort_is_told(void **state)
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 33);
    alloc_decode(w, 0, "r", 3, 0, 0);
    assert_false(finish(w, 0, "r", KVF_FINISH_ABORT, 3));
    assert_int_equal(usage(w).requests, 0);
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->in_batch_count, 0);
    assert_int_equal(step->not_processed_count, 1);
    assert_string_equal(step->not_processed[0], "r");
    kvf_step_free(step);
    build_empty(w, 0);
}

static void test_in_batch_and_finished_in_one_step(void **state)
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 16);
    alloc_decode(w, 0, "r", 1, 0, 0);
    assert_true(finish(w, 0, "r", KVF_FINISH_STOP, 1));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->in_batch_count, 1);
    assert_int_equal(step->finished_count, 1);
    kvf_step_free(step);
    assert_int_equal(result(w, "r", KVF_RESULT_SENT, true), KVF_OK);
}

static void test_two_live_requests_with_one_id(void **state) /* B05 */
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 16);
    struct kvf_transfer_params params = prefill_params();
    struct kvf_error error;
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, 99, &error),
                     KVF_EEXIST);
    assert_non_null(strstr(error.text, "'r'"));
    assert_true(finish(w, 0, "r", KVF_FINISH_STOP, 1));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->finished[0].block_count, 1);
    kvf_step_free(step);
    assert_int_equal(result(w, "r", KVF_RESULT_SENT, true), KVF_OK);
    new_prefill(w, 0, "r", 16);
}

static void test_results_for_strangers(void **state)
{
    struct world *w = *state;
    assert_int_equal(result(w, "nobody", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    receiving(w, "d");
    assert_int_equal(result(w, "d", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    assert_int_equal(result(w, "d", KVF_RESULT_RELEASED, true), KVF_ENOTFOUND);
    new_prefill(w, 0, "p", 16);
    assert_int_equal(result(w, "p", KVF_RESULT_RECEIVED, true), KVF_ENOTFOUND);
    assert_int_equal(result(w, "p", KVF_RESULT_FAILED, true), KVF_ENOTFOUND);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* One life of three requests; every call is repeated until it does not report want of memory. */
#define RETRY(expr)                                                                                \
    do {                                                                                           \
        enum kvf_status s_;                                                                        \
        do {                                                                                       \
            s_ = (expr);                                                                           \
            *failures_p += s_ == KVF_ENOMEM;                                                       \
        } while (s_ == KVF_ENOMEM);                                                                \
        assert_int_equal(s_, KVF_OK);                                                              \
    } while (0)

static void life(struct test_alloc *ta, unsigned *failures_p)
{
    struct kvf_kv_config config = base_config();
    struct kvf_scheduler *s = NULL;
    struct kvf_transfer_params dp = decode_params();
    struct kvf_transfer_params pp = prefill_params();
    struct kvf_step *step = NULL;
    bool delay = false;
    RETRY(kvf_scheduler_create(&config, &ta->allocator, &s, NULL));
    RETRY(kvf_scheduler_on_new_request(s, 0, "d", &dp, 40, NULL));
    RETRY(kvf_scheduler_on_new_request(s, 0, "p", &pp, 40, NULL));
    for (int i = 0; i < 40; i++) {
        char id[16];
        snprintf(id, sizeof(id), "x%d", i);
        RETRY(kvf_scheduler_on_new_request(s, 0, id, &dp, 40, NULL));
    }
    RETRY(kvf_scheduler_after_alloc(s, 0, "d", blocks, 3, 0, 40, NULL));
    RETRY(kvf_scheduler_after_alloc(s, 0, "p", blocks, 3, 0, 0, NULL));
    RETRY(kvf_scheduler_request_finished(s, 0, "p", KVF_FINISH_STOP, blocks, 3, &delay, NULL, NULL,
                                         NULL));
    RETRY(kvf_scheduler_build_step(s, 0, &step, NULL));
    assert_int_equal(step->registration_count, 1);
    assert_int_equal(step->finished_count, 1);
    assert_int_equal(step->in_batch_count, 1);
    assert_int_equal(step->heartbeat_count, 1);
    /* The router's id is the same for all 41, each of ours is its own. */
    assert_int_equal(step->heartbeats[0].request_count, 82);
    kvf_step_free(step);
    kvf_scheduler_destroy(s);
    assert_int_equal(ta->live, 0);
}

static void test_each_allocation_may_fail(void **state)
{
    unsigned failures = 0;
    unsigned fired = 0;
    struct test_alloc ta;
    test_alloc_init(&ta);
    life(&ta, &failures);
    uint64_t uses = ta.uses;
    assert_int_equal(failures, 0);
    for (uint64_t n = 1; n <= uses; n++) {
        test_alloc_init(&ta);
        ta.fail_at = n;
        failures = 0;
        life(&ta, &failures);
        fired += failures;
    }
    assert_true(fired > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_prefill_holds_and_is_sent),
        T(test_prefill_abort_is_told),
        T(test_in_batch_and_finished_in_one_step),
        T(test_two_live_requests_with_one_id),
        T(test_results_for_strangers),
        cmocka_unit_test(test_each_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("core/scheduler_prefill", tests, NULL, NULL);
}
