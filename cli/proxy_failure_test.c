/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_rig.h"

static void assert_leg_failure(enum behaviour prefill, enum behaviour decode, int http_status,
                               const char *words, const char *leg)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[0].behaviour = prefill;
    rig.engines[1].behaviour = decode;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, http_status, words);
    assert_non_null(strstr(answer.text, leg));
    assert_non_null(strstr(answer.text, "\"engine\":\"http://127.0.0.1:"));
    assert_non_null(strstr(answer.text, "\"reason\":"));
    /* The leg that hung was cancelled: its engine saw the proxy leave. */
    struct engine *hung = &rig.engines[prefill == HANGS ? 0 : 1];
    WAIT(&rig, hung->left_count == 1);
    rig_stop(&rig);
}

static void test_a_failed_leg_cancels_the_other(void **state)
{
    assert_leg_failure(FAILS_500, HANGS, 502, "the engine is unwell", "\"leg\":\"prefill\"");
    assert_leg_failure(HANGS, FAILS_500, 502, "the engine is unwell", "\"leg\":\"decode\"");
    assert_leg_failure(REFUSES_400, HANGS, 400, "temperature is too hot", "\"leg\":\"prefill\"");
    assert_leg_failure(HANGS, REFUSES_400, 400, "temperature is too hot", "\"leg\":\"decode\"");
}

static void test_reset_before_the_answer(void **state)
{
    for (int victim = 0; victim < 2; victim++) {
        struct rig rig;
        struct answer answer;
        rig_start(&rig, 1, 1);
        rig.engines[0].behaviour = HANGS;
        rig.engines[1].behaviour = HANGS;
        rig_begin_proxy(&rig);
        rig_complete(&rig, &answer, HELLO);
        WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
        kvfi_http_server_destroy(rig.engines[victim].server);
        rig.engines[victim].server = NULL;
        rig_assert_error(&rig, &answer, 502, victim ? "\"leg\":\"decode\"" : "\"leg\":\"prefill\"");
        WAIT(&rig, rig.engines[1 - victim].left_count == 1);
        /* The next request learns before it is sent that the engine is gone. */
        rig_complete(&rig, &answer, HELLO);
        rig_assert_error(&rig, &answer, 503, victim ? "no decode engine" : "no prefill engine");
        assert_int_equal(rig.engines[1 - victim].request_count, 1);
        rig_stop(&rig);
    }
}

static void test_stream_that_breaks(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[1].behaviour = CUTS;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    assert_int_equal(answer.status, KVF_EDISCONNECTED);
    assert_non_null(strstr(answer.text, "data: {\"t\":1}\n\ndata: {\"error\":{"));
    assert_non_null(strstr(answer.text, "\"leg\":\"decode\""));
    assert_null(strstr(answer.text, "[DONE]"));
    rig_wait_rest(&rig);
    rig_stop(&rig);
}

/* Once decode speaks, it has what it needs of prefill. */
static void test_prefill_that_fails_late_does_not_matter(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = BEGINS;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, strstr(answer.text, "data: "));
    WAIT(&rig, rig.engines[0].held);
    kvfi_reply_error(rig.engines[0].held, 500, NULL, "late");
    WAIT(&rig, kvfi_proxy_router(rig.proxy)->leg_count == 1);
    assert_false(answer.done);
    kvfi_reply_sse_done(rig.engines[1].held);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_OK);
    assert_non_null(strstr(answer.text, "[DONE]"));
    rig_stop(&rig);
}

static void test_client_leaves(void **state)
{
    for (int after_first = 0; after_first < 2; after_first++) {
        struct rig rig;
        struct answer answer;
        rig_start(&rig, 1, 1);
        rig.engines[0].behaviour = HANGS;
        rig.engines[1].behaviour = after_first ? BEGINS : HANGS;
        rig_begin_proxy(&rig);
        rig_complete(&rig, &answer, HELLO);
        WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
        if (after_first)
            WAIT(&rig, strstr(answer.text, "data: "));
        kvfi_http_call_cancel(answer.call);
        WAIT(&rig, rig.engines[0].left_count == 1 && rig.engines[1].left_count == 1);
        rig_wait_rest(&rig);
        assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.client_left_total, 1);
        rig_stop(&rig);
    }
}

static void test_silent_leg_times_out(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[1].behaviour = HANGS;
    struct kvfi_proxy_options options = rig_proxy_options(&rig);
    options.leg_timeout_ms = 50;
    rig_begin_proxy_with(&rig, &options);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 502, "no answer within the time allowed");
    rig_stop(&rig);
}

/* Accepts connections and requests, answers nothing at all: a stopped process. */
static void test_stopped_engine_is_declared_dead(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = HANGS;
    struct kvfi_proxy_options options = rig_proxy_options(&rig);
    options.dead_after_ms = 150;
    rig_begin_proxy_with(&rig, &options);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
    rig.engines[0].deaf = true;
    rig_assert_error(&rig, &answer, 503, "the engine is down");
    WAIT(&rig, rig.engines[1].left_count == 1);
    rig_stop(&rig);
}

static void test_no_engine_and_its_return(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    uint16_t port = kvfi_http_server_port(rig.engines[1].server);
    kvfi_http_server_destroy(rig.engines[1].server);
    rig.engines[1].server = NULL;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 503, "no decode engine is available");
    assert_non_null(strstr(answer.text, "refused"));
    rig_send_request(&rig, &answer, "GET", "/health", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 503);
    /* Back on its port: the next request finds it without waiting for a probe that is due. */
    rig_open_engine(&rig, &rig.engines[1], port);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    rig_send_request(&rig, &answer, "GET", "/health", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    rig_stop(&rig);
}

/* A dead engine of two costs its own request only. */
static void test_survivor_serves(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 2, 1);
    rig_begin_proxy(&rig);
    kvfi_http_server_destroy(rig.engines[0].server);
    rig.engines[0].server = NULL;
    for (int i = 0; i < 4; i++) {
        rig_complete(&rig, &answer, HELLO);
        WAIT(&rig, answer.done);
        assert_int_equal(answer.http_status, 200);
    }
    assert_int_equal(rig.engines[1].request_count, 4);
    rig_stop(&rig);
}

static void note(void *ctx)
{
    *(bool *)ctx = true;
}

/* Probes of silent engines overlap for ever; a request waits for one of each engine. */
static void test_silent_engines_do_not_keep_a_request(void **state)
{
    struct rig rig;
    rig_start(&rig, 2, 1);
    rig.engines[0].deaf = true;
    rig.engines[1].deaf = true;
    struct kvfi_proxy_options options = rig_proxy_options(&rig);
    options.dead_after_ms = 30;
    rig_begin_proxy_with(&rig, &options);
    struct kvfi_pool *pool = kvfi_proxy_router(rig.proxy)->pool;
    const struct kvfi_upstream *first = kvfi_pool_at(pool, 0);
    const struct kvfi_upstream *second = kvfi_pool_at(pool, 1);
    struct kvfi_upstream *chosen = NULL;
    struct kvf_error error = {0};
    uint64_t since_ms = kvfi_now_ms();
    assert_int_equal(kvfi_pool_choose(pool, KVFI_SIDE_PREFILL, since_ms, &chosen, &error),
                     KVF_IN_PROGRESS);
    WAIT(&rig, first->ended_ms > since_ms && second->ended_ms > since_ms && first->probe);
    assert_int_equal(kvfi_pool_choose(pool, KVFI_SIDE_PREFILL, since_ms, &chosen, &error),
                     KVF_ENOTFOUND);
    assert_non_null(strstr(error.text, "no prefill engine is available"));
    struct answer answer;
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 503, "no prefill engine is available");
    rig_stop(&rig);
}

static void test_shut_down(void **state)
{
    struct rig rig;
    struct answer answer;
    bool drained = false;
    rig_start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = HANGS;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
    kvfi_proxy_shut_down(rig.proxy, 60000, note, &drained);
    WAIT(&rig, drained && answer.done);
    assert_int_equal(answer.http_status, 503);
    assert_non_null(strstr(answer.text, "shutting down"));
    WAIT(&rig, rig.engines[0].left_count == 1 && rig.engines[1].left_count == 1);
    rig_stop(&rig);
}

static void test_destroy_with_requests_under_way(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[1].behaviour = BEGINS;
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, strstr(answer.text, "data: "));
    kvfi_proxy_destroy(rig.proxy);
    rig.proxy = NULL;
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_EDISCONNECTED);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_leg_cancels_the_other),
        cmocka_unit_test(test_reset_before_the_answer),
        cmocka_unit_test(test_stream_that_breaks),
        cmocka_unit_test(test_prefill_that_fails_late_does_not_matter),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_silent_leg_times_out),
        cmocka_unit_test(test_stopped_engine_is_declared_dead),
        cmocka_unit_test(test_no_engine_and_its_return),
        cmocka_unit_test(test_survivor_serves),
        cmocka_unit_test(test_silent_engines_do_not_keep_a_request),
        cmocka_unit_test(test_shut_down),
        cmocka_unit_test(test_destroy_with_requests_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
