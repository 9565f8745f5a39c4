/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_rig.h"

static void test_both_legs(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig_begin_proxy(&rig);
    rig_send_request(&rig, &answer, "POST", "/v1/completions", HELLO, "client-id.1");
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_OK);
    assert_int_equal(answer.http_status, 200);
    assert_string_equal(answer.type, "text/event-stream; charset=utf-8");
    assert_string_equal(answer.request_id, "client-id.1");
    assert_string_equal(answer.text, "data: {\"t\":1}\n\ndata: {\"t\":1}\n\ndata: {\"t\":1}\n\n"
                                     "data: [DONE]\n\n");
    const json_t *p = json_object_get(rig.engines[0].body, "kv_transfer_params");
    const json_t *d = json_object_get(rig.engines[1].body, "kv_transfer_params");
    assert_string_equal(rig.engines[0].request_id, "client-id.1");
    assert_string_equal(rig.engines[1].request_id, "client-id.1");
    assert_string_equal(json_string_value(json_object_get(p, "transfer_id")),
                        json_string_value(json_object_get(d, "transfer_id")));
    assert_string_equal(json_string_value(json_object_get(d, "remote_engine_id")), "engine-p");
    assert_string_equal(json_string_value(json_object_get(d, "remote_host")), "10.0.0.1");
    assert_int_equal(json_integer_value(json_object_get(d, "remote_port")), 5600);
    assert_int_equal(json_integer_value(json_object_get(d, "tp_size")), 2);
    rig_wait_rest(&rig);
    assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.answered_total, 1);
    rig_stop(&rig);
}

static void test_whole_answer_and_chat(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[1].behaviour = ANSWERS;
    rig_begin_proxy(&rig);
    rig_send_request(&rig, &answer, "POST", "/v1/chat/completions", "{\"messages\":[]}", "bad id!");
    WAIT(&rig, answer.done);
    assert_string_equal(answer.text, "{\"whole\":true}");
    assert_string_equal(answer.type, "application/json");
    assert_string_equal(rig.engines[1].path, "/v1/chat/completions");
    /* An id with odd characters is replaced, on both legs by the same one. */
    assert_int_equal(strlen(rig.engines[0].request_id), 36);
    assert_string_equal(rig.engines[0].request_id, rig.engines[1].request_id);
    rig_stop(&rig);
}

static void test_bad_requests(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, "{\"prompt\":");
    rig_assert_error(&rig, &answer, 400, "not JSON");
    rig_complete(&rig, &answer, "[]");
    rig_assert_error(&rig, &answer, 400, "an array");
    rig_complete(&rig, &answer, "{\"stream\":\"yes\"}");
    rig_assert_error(&rig, &answer, 400, "'stream'");
    rig_complete(&rig, &answer, "{\"n\":0}");
    rig_assert_error(&rig, &answer, 400, "'n'");
    rig_send_request(&rig, &answer, "GET", "/v1/nothing", NULL, NULL);
    rig_assert_error(&rig, &answer, 404, "/v1/nothing");
    assert_int_equal(rig.engines[0].request_count, 0);
    rig_stop(&rig);
}

static void test_mismatches_are_refused(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig.engines[1].model = "other";
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 503, "serves 'm'");
    assert_non_null(strstr(answer.text, "serves 'other'"));
    assert_int_equal(rig.engines[0].request_count, 0);
    rig_stop(&rig);

    rig_start(&rig, 1, 1);
    rig.engines[0].role = "decode";
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 503, "role is 'decode'");
    rig_stop(&rig);

    rig_start(&rig, 1, 1);
    rig.engines[0].mode = "pull";
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    rig_assert_error(&rig, &answer, 503, "mode is 'pull'");
    rig_stop(&rig);
}

static bool all_up(const struct rig *rig)
{
    const struct kvfi_pool *pool = kvfi_proxy_router(rig->proxy)->pool;
    for (size_t i = 0; kvfi_pool_at(pool, i); i++)
        if (kvfi_pool_at(pool, i)->state != KVFI_UPSTREAM_UP)
            return false;
    return true;
}

/* Coordinates that are never young enough are read once for a request, not for ever. */
static void test_nothing_old_is_believed(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    struct kvfi_proxy_options options = rig_proxy_options(&rig);
    options.fresh_ms = 0;
    rig_begin_proxy_with(&rig, &options);
    for (int i = 1; i <= 3; i++) {
        rig_complete(&rig, &answer, HELLO);
        WAIT(&rig, answer.done);
        assert_int_equal(answer.http_status, 200);
        assert_int_equal(rig.engines[0].request_count, i);
    }
    rig_stop(&rig);
}

static void test_load_is_spread(void **state)
{
    for (int least = 0; least < 2; least++) {
        struct rig rig;
        struct answer answers[4];
        rig_start(&rig, 2, 2);
        for (int i = 0; i < 4; i++)
            rig.engines[i].behaviour = HANGS;
        struct kvfi_proxy_options options = rig_proxy_options(&rig);
        options.least_outstanding = least;
        rig_begin_proxy_with(&rig, &options);
        WAIT(&rig, all_up(&rig));
        for (int i = 0; i < 4; i++)
            rig_complete(&rig, &answers[i], HELLO);
        WAIT(&rig, kvfi_proxy_router(rig.proxy)->leg_count == 8);
        int total = 0;
        while (total < 8) {
            kvfi_loop_step(rig.loop, true);
            total = 0;
            for (int i = 0; i < 4; i++)
                total += rig.engines[i].request_count;
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(rig.engines[i].request_count, 2);
        rig_stop(&rig);
    }
}

static void test_same_id_twice(void **state)
{
    struct rig rig;
    struct answer first;
    struct answer second;
    rig_start(&rig, 1, 1);
    rig.engines[1].behaviour = HANGS;
    rig_begin_proxy(&rig);
    rig_send_request(&rig, &first, "POST", "/v1/completions", HELLO, "same");
    WAIT(&rig, rig.engines[1].request_count == 1);
    assert_string_equal(rig.engines[1].request_id, "same");
    rig.engines[1].behaviour = STREAMS;
    rig_send_request(&rig, &second, "POST", "/v1/completions", HELLO, "same");
    WAIT(&rig, second.done);
    assert_int_equal(second.http_status, 200);
    assert_string_not_equal(rig.engines[1].request_id, "same");
    assert_string_equal(second.request_id, rig.engines[1].request_id);
    assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.duplicate_id_total, 1);
    kvfi_http_call_cancel(first.call);
    rig_wait_rest(&rig);
    rig_stop(&rig);
}

static void test_reports(void **state)
{
    struct rig rig;
    struct answer answer;
    rig_start(&rig, 1, 1);
    rig_begin_proxy(&rig);
    rig_complete(&rig, &answer, HELLO);
    WAIT(&rig, answer.done);
    rig_send_request(&rig, &answer, "GET", "/v1/models", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_string_equal(answer.text, "{\"data\":[]}");
    rig_wait_rest(&rig);
    rig_send_request(&rig, &answer, "GET", "/kvferry/usage", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_non_null(strstr(answer.text, "\"requests\":0,\"legs\":0"));
    size_t len = 0;
    struct kvfi_http_server_counters http = {0};
    char *text = kvfi_proxy_metrics(kvfi_proxy_router(rig.proxy), &http, &len);
    assert_non_null(strstr(text, "\nkvferry:proxy_requests_total 1\n"));
    assert_non_null(strstr(text, "kvferry:proxy_engine_up{side=\"decode\",engine=\"http://127."));
    free(text);
    rig_stop(&rig);
}

static void test_bad_options(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    struct kvfi_proxy *proxy = NULL;
    rig_start(&rig, 1, 1);
    struct kvfi_proxy_options options = rig_proxy_options(&rig);
    options.port = kvfi_http_server_port(rig.engines[0].server);
    assert_int_equal(kvfi_proxy_create(rig.loop, &options, &proxy, &error), KVF_EBUSY);
    assert_non_null(strstr(error.text, "in use"));
    options.port = 0;
    options.decode_count = 0;
    assert_int_equal(kvfi_proxy_create(rig.loop, &options, &proxy, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "--decode"));
    assert_null(proxy);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_legs),
        cmocka_unit_test(test_whole_answer_and_chat),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_mismatches_are_refused),
        cmocka_unit_test(test_nothing_old_is_believed),
        cmocka_unit_test(test_load_is_spread),
        cmocka_unit_test(test_same_id_twice),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
