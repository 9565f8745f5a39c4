/* SPDX-License-Identifier: Apache-2.0 */
/* Real HTTP and a real transport between the engines of engine/service_cast.h. */
#include "engine/service_cast.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/loop.h"

static json_t *choice_of(json_t *answer, size_t index)
{
    json_t *choice = json_array_get(json_object_get(answer, "choices"), index);
    assert_non_null(choice);
    return choice;
}

static const char *text_at(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    assert_non_null(text);
    return text;
}

/* ---- one engine ----------------------------------------------------------------------------- */

static void test_completion(void **state)
{
    (void)state;
    json_t *answer = cast_ask(
        &single, "/v1/completions",
        "{\"model\":\"test\",\"prompt\":[5,6,7],\"max_tokens\":4,\"temperature\":0,"
        "\"ignore_eos\":true,\"logprobs\":2,\"return_token_ids\":true,\"request_id\":\"me\"}",
        200);
    assert_string_equal("cmpl-me", text_at(answer, "id"));
    assert_string_equal("text_completion", text_at(answer, "object"));
    json_t *choice = choice_of(answer, 0);
    assert_string_equal("length", text_at(choice, "finish_reason"));
    assert_int_equal(4, json_array_size(json_object_get(choice, "token_ids")));
    json_t *logprobs = json_object_get(choice, "logprobs");
    assert_int_equal(4, json_array_size(json_object_get(logprobs, "token_logprobs")));
    assert_int_equal(4, json_array_size(json_object_get(logprobs, "text_offset")));
    json_t *usage = json_object_get(answer, "usage");
    assert_int_equal(3, json_integer_value(json_object_get(usage, "prompt_tokens")));
    assert_int_equal(4, json_integer_value(json_object_get(usage, "completion_tokens")));
    assert_null(json_object_get(answer, "kv_transfer_params"));
    json_decref(answer);
    cast_rest(&single);
}

static void test_several_prompts_and_samples(void **state)
{
    (void)state;
    json_t *answer =
        cast_ask(&single, "/v1/completions",
                 "{\"prompt\":[[5,6,7],[8,9]],\"max_tokens\":3,\"temperature\":0,\"n\":2}", 200);
    assert_int_equal(4, json_array_size(json_object_get(answer, "choices")));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(i, json_integer_value(json_object_get(choice_of(answer, i), "index")));
    assert_string_equal(text_at(choice_of(answer, 0), "text"),
                        text_at(choice_of(answer, 1), "text"));
    json_t *usage = json_object_get(answer, "usage");
    assert_int_equal(5, json_integer_value(json_object_get(usage, "prompt_tokens")));
    json_decref(answer);
}

/* The pieces of a stream are the whole answer. */
static void test_stream_equals_whole(void **state)
{
    (void)state;
    json_t *answer = cast_ask(&single, "/v1/completions",
                              "{\"prompt\":\"once\",\"max_tokens\":40,\"temperature\":0}", 200);
    const char *whole = text_at(choice_of(answer, 0), "text");
    struct call call = {0};
    cast_send(&single, "POST", "/v1/completions", NULL,
              "{\"prompt\":\"once\",\"max_tokens\":40,\"temperature\":0,\"stream\":true,"
              "\"stream_options\":{\"include_usage\":true}}",
              &call);
    cast_wait(&call);
    assert_int_equal(200, call.http_status);
    struct engine_text joined = {0};
    bool done = false;
    bool usage = false;
    bool finished = false;
    char *save = NULL;
    for (char *line = strtok_r(call.body.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        assert_false(done);
        assert_int_equal(0, strncmp(line, "data: ", 6));
        done = strcmp(line + 6, "[DONE]") == 0;
        if (done)
            continue;
        json_t *chunk = json_loads(line + 6, 0, NULL);
        assert_non_null(chunk);
        if (json_array_size(json_object_get(chunk, "choices")) == 0) {
            usage = json_is_object(json_object_get(chunk, "usage"));
        } else {
            assert_false(finished);
            const char *text = text_at(choice_of(chunk, 0), "text");
            assert_int_equal(KVF_OK, engine_text_append(&joined, text, strlen(text)));
            finished = json_is_string(json_object_get(choice_of(chunk, 0), "finish_reason"));
        }
        json_decref(chunk);
    }
    assert_true(done && usage && finished);
    assert_string_equal(whole, joined.data ? joined.data : "");
    engine_text_free(&joined);
    engine_text_free(&call.body);
    json_decref(answer);
}

static void test_stop_string(void **state)
{
    (void)state;
    const char *body = "{\"prompt\":\"abc\",\"max_tokens\":40,\"temperature\":0}";
    json_t *answer = cast_ask(&single, "/v1/completions", body, 200);
    const char *whole = text_at(choice_of(answer, 0), "text");
    /* Stop at whatever character is in the middle of the answer. */
    size_t at = strlen(whole) / 2;
    while (at > 0 && ((unsigned char)whole[at] & 0xc0) == 0x80)
        at--;
    size_t end = at + 1;
    while (((unsigned char)whole[end] & 0xc0) == 0x80)
        end++;
    json_t *stop = json_stringn(whole + at, end - at);
    json_t *request = json_pack("{s:s, s:i, s:i, s:O}", "prompt", "abc", "max_tokens", 40,
                                "temperature", 0, "stop", stop);
    char *text = kvfi_json_dump(request, NULL);
    json_t *stopped = cast_ask(&single, "/v1/completions", text, 200);
    json_t *choice = choice_of(stopped, 0);
    const char *first = strstr(whole, json_string_value(stop));
    assert_string_equal("stop", text_at(choice, "finish_reason"));
    assert_string_equal(json_string_value(stop), text_at(choice, "stop_reason"));
    assert_int_equal(first - whole, strlen(text_at(choice, "text")));
    free(text);
    json_decref(stopped);
    json_decref(request);
    json_decref(stop);
    json_decref(answer);
}

static void test_chat(void **state)
{
    (void)state;
    json_t *answer = cast_ask(
        &single, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],"
        "\"max_tokens\":3,\"temperature\":0,\"logprobs\":true,\"top_logprobs\":1}",
        200);
    json_t *choice = choice_of(answer, 0);
    assert_string_equal("chat.completion", text_at(answer, "object"));
    assert_string_equal("assistant", text_at(json_object_get(choice, "message"), "role"));
    json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content");
    assert_true(json_array_size(content) > 0);
    json_decref(answer);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        int status;
    } cases[] = {
        {"", 400},
        {"{", 400},
        {"[]", 400},
        {"{\"prompt\":[1],\"model\":\"other\"}", 404},
        {"{\"prompt\":[1],\"max_tokens\":5000}", 400},
        {"{\"prompt\":[99999]}", 400},
        {"{\"prompt\":[1],\"n\":128,\"max_tokens\":0}", 400},
        {"{\"prompt\":[[1],[2]],\"n\":128}", 400},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *answer = cast_ask(&single, "/v1/completions", cases[i].body, cases[i].status);
        json_t *error = json_object_get(answer, "error");
        assert_true(strlen(text_at(error, "message")) > 10);
        assert_int_equal(cases[i].status, json_integer_value(json_object_get(error, "code")));
        json_decref(answer);
    }
    cast_rest(&single);
}

static void test_too_many_are_told_so(void **state)
{
    (void)state;
    struct call first = {0};
    struct call second = {0};
    const char *body =
        "{\"prompt\":[1],\"n\":128,\"max_tokens\":100,\"ignore_eos\":true,\"temperature\":0}";
    cast_send(&single, "POST", "/v1/completions", NULL, body, &first);
    cast_send(&single, "POST", "/v1/completions", NULL, body, &second);
    cast_wait(&second);
    cast_wait(&first);
    assert_int_equal(200 + 503, first.http_status + second.http_status);
    engine_text_free(&first.body);
    engine_text_free(&second.body);
    cast_rest(&single);
}

static void test_a_client_that_leaves(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct call call = {.leave_at_first_byte = true};
        cast_send(&single, "POST", "/v1/completions", NULL,
                  "{\"prompt\":[1,2,3],\"n\":3,\"max_tokens\":1000,\"ignore_eos\":true,"
                  "\"stream\":true,\"temperature\":0}",
                  &call);
        cast_wait(&call);
        assert_int_equal(KVF_ECANCELED, call.status);
        engine_text_free(&call.body);
    }
    cast_rest(&single);
    struct engine_snapshot snapshot;
    engine_snapshot(single.engine, &snapshot);
    assert_true(snapshot.scheduler.finished[ENGINE_FINISH_ABORT] > 0);
}

/* A text that cannot fit is refused by its size: encoding it would keep everybody waiting. */
static void test_huge_texts(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        const char *before;
        const char *after;
    } bodies[] = {
        {"/v1/completions", "{\"prompt\":\"", "\"}"},
        {"/v1/completions", "{\"prompt\":[\"a\",\"", "\"]}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
    };
    const struct engine_info *info = engine_info(single.engine);
    int len =
        (int)((size_t)2 * info->model_len_max * engine_tokenizer_token_len_max(info->tokenizer));
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        char *body = NULL;
        assert_true(asprintf(&body, "%s%*s%s", bodies[i].before, len, "", bodies[i].after) > len);
        json_t *answer = cast_ask(&single, bodies[i].path, body, 400);
        const char *message = text_at(json_object_get(answer, "error"), "message");
        if (!strstr(message, "bytes"))
            fail_msg("it was encoded first: %s", message);
        json_decref(answer);
        free(body);
    }
}

static void test_information(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        const char *holds;
    } cases[] = {
        {"/v1/models", "\"max_model_len\":2048"},
        {"/kvferry/coordinates", "\"engine_id\":\"single\""},
        {"/kvferry/usage", "\"free_blocks\":128"},
        {"/metrics", "vllm:num_requests_running{model_name=\"test\",engine=\"0\"} 0\n"},
        {"/metrics", "stage=\"in_progress\"} 0\n"},
        {"/metrics", "vllm:nixl_xfer_time_seconds_bucket{"},
    };
    cast_rest(&single);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct call call = {0};
        cast_send(&single, "GET", cases[i].path, NULL, NULL, &call);
        cast_wait(&call);
        assert_int_equal(200, call.http_status);
        if (!strstr(call.body.data, cases[i].holds))
            fail_msg("%s does not hold %s: %s", cases[i].path, cases[i].holds, call.body.data);
        engine_text_free(&call.body);
    }
}

/* ---- two engines ---------------------------------------------------------------------------- */

static json_t *completion_body(uint32_t text_seed, uint32_t count, uint32_t max_tokens)
{
    json_t *prompt = json_array();
    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(prompt,
                                    json_integer(3 + (i * 31 + text_seed * 7 + i / 9) % 250));
    return json_pack("{s:o, s:i, s:i, s:b, s:b}", "prompt", prompt, "max_tokens", max_tokens,
                     "temperature", 0, "ignore_eos", 1, "return_token_ids", 1);
}

static char *with_params(json_t *body, json_t *params, int max_tokens)
{
    json_t *copy = json_copy(body);
    if (max_tokens > 0)
        (void)json_object_set_new(copy, "max_tokens", json_integer(max_tokens));
    (void)json_object_set_new(copy, "kv_transfer_params", params);
    char *text = kvfi_json_dump(copy, NULL);
    json_decref(copy);
    return text;
}

static json_t *prefill_params(const char *transfer_id)
{
    return json_pack("{s:b, s:b, s:n, s:s}", "do_remote_decode", 1, "do_remote_prefill", 0,
                     "remote_host", "transfer_id", transfer_id);
}

static json_t *decode_params(const char *id)
{
    const struct engine_info *info = engine_info(prefill.engine);
    return json_pack("{s:b, s:b, s:s, s:s, s:s, s:i, s:i, s:i, s:s}", "do_remote_decode", 0,
                     "do_remote_prefill", 1, "remote_engine_id", info->engine_id,
                     "remote_request_id", id, "remote_host", info->side_host, "remote_port",
                     (int)info->side_port, "tp_size", 1, "pp_size", 1, "transfer_id", id);
}

/* Both legs at once, as a push proxy sends them. */
static void split(json_t *body, const char *id, struct call *first, struct call *second)
{
    char *prefill_body = with_params(body, prefill_params(id), 1);
    char *decode_body = with_params(body, decode_params(id), 0);
    cast_send(&decode, "POST", "/v1/completions", id, decode_body, second);
    cast_send(&prefill, "POST", "/v1/completions", id, prefill_body, first);
    free(prefill_body);
    free(decode_body);
}

static void check_split(json_t *body, struct call *first, struct call *second)
{
    cast_wait(first);
    cast_wait(second);
    json_t *handover = cast_json(first);
    json_t *params = json_object_get(handover, "kv_transfer_params");
    assert_string_equal("prefill", text_at(params, "remote_engine_id"));
    assert_true(json_is_true(json_object_get(params, "do_remote_prefill")));
    assert_int_equal(200, second->http_status);
    json_t *answer = cast_json(second);
    char *text = kvfi_json_dump(body, NULL);
    json_t *expected = cast_ask(&single, "/v1/completions", text, 200);
    assert_true(
        json_equal(json_object_get(expected, "choices"), json_object_get(answer, "choices")));
    free(text);
    json_decref(expected);
    json_decref(answer);
    json_decref(handover);
}

static void test_split_answers_are_the_same(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 100, 255, 256, 257, 700};
    for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (uint32_t again = 0; again < 2; again++) { /* the second time with prefix hits */
            char id[32];
            (void)snprintf(id, sizeof(id), "split-%u-%u", i, again);
            json_t *body = completion_body(i, lengths[i], 9);
            struct call first = {0};
            struct call second = {0};
            split(body, id, &first, &second);
            check_split(body, &first, &second);
            json_decref(body);
        }
    }
    cast_rest(&prefill);
    cast_rest(&decode);
}

static void test_many_at_once(void **state)
{
    (void)state;
    enum { COUNT = 24 };
    struct call first[COUNT] = {0};
    struct call second[COUNT] = {0};
    json_t *bodies[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "many-%u", i);
        bodies[i] = completion_body(i % 5, 10 + i * 17, 20);
        split(bodies[i], id, &first[i], &second[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        check_split(bodies[i], &first[i], &second[i]);
        json_decref(bodies[i]);
    }
    cast_rest(&prefill);
    cast_rest(&decode);
}

/* Each of n samples and of several prompts has blocks of its own (bugs B59, B61). */
static void test_samples_and_prompts_are_split_too(void **state)
{
    (void)state;
    json_t *body = json_loads("{\"prompt\":[[5,6,7,8],[9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9]],"
                              "\"max_tokens\":6,\"temperature\":0,\"n\":2,\"ignore_eos\":true,"
                              "\"return_token_ids\":true}",
                              0, NULL);
    struct call first = {0};
    struct call second = {0};
    split(body, "fan", &first, &second);
    check_split(body, &first, &second);
    json_decref(body);
    cast_rest(&prefill);
    cast_rest(&decode);
}

static void test_wrong_legs_are_refused(void **state)
{
    (void)state;
    json_t *body = completion_body(1, 40, 2);
    char *text = with_params(body, decode_params("x"), 0);
    json_decref(cast_ask(&prefill, "/v1/completions", text, 400));
    free(text);
    text = with_params(body, prefill_params("x"), 0);
    json_decref(cast_ask(&decode, "/v1/completions", text, 400));
    free(text);
    json_t *params = decode_params("x");
    (void)json_object_del(params, "remote_engine_id");
    text = with_params(body, params, 0);
    json_t *answer = cast_ask(&decode, "/v1/completions", text, 400);
    assert_non_null(
        strstr(text_at(json_object_get(answer, "error"), "message"), "remote_engine_id"));
    json_decref(answer);
    free(text);
    json_decref(body);
    cast_rest(&prefill);
    cast_rest(&decode);
}

/* A decode leg whose client leaves while it waits. */
static void test_leaving_while_parked(void **state)
{
    (void)state;
    json_t *body = completion_body(3, 200, 5);
    for (int i = 0; i < 5; i++) {
        struct engine_snapshot snapshot;
        char id[32];
        (void)snprintf(id, sizeof(id), "leave-%d", i);
        char *text = with_params(body, decode_params(id), 0);
        struct call call = {0};
        cast_send(&decode, "POST", "/v1/completions", id, text, &call);
        free(text);
        do {
            kvfi_loop_step(loop, false);
            (void)sched_yield();
            engine_snapshot(decode.engine, &snapshot);
        } while (snapshot.scheduler.parked == 0);
        kvfi_http_call_cancel(call.call);
        cast_wait(&call);
        cast_rest(&decode);
    }
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_huge_texts),
        cmocka_unit_test(test_several_prompts_and_samples),
        cmocka_unit_test(test_stream_equals_whole),
        cmocka_unit_test(test_stop_string),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_too_many_are_told_so),
        cmocka_unit_test(test_a_client_that_leaves),
        cmocka_unit_test(test_information),
        cmocka_unit_test(test_split_answers_are_the_same),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_samples_and_prompts_are_split_too),
        cmocka_unit_test(test_wrong_legs_are_refused),
        cmocka_unit_test(test_leaving_while_parked),
    };
    return cmocka_run_group_tests(tests, cast_open, cast_close);
}
