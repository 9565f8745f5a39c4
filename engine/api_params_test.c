/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct engine_api_limits LIMITS = {
    .model_name = "m", .role = ENGINE_ROLE_BOTH, .vocab_size = 100, .model_len_max = 64};

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_ALLOW_NUL, &error);
    if (!value)
        fail_msg("%s: %s", text, error.text);
    return value;
}

static enum kvf_status try_params(const char *text, bool chat, struct engine_api_params *params,
                                  struct kvf_error *error)
{
    json_t *body = parse(text);
    *error = (struct kvf_error){0};
    enum kvf_status status = engine_api_params_parse(body, chat, &LIMITS, params, error);
    json_decref(body);
    return status;
}

static void test_defaults(void **state)
{
    (void)state;
    struct engine_api_params params;
    struct kvf_error error;
    assert_int_equal(KVF_OK, try_params("{}", false, &params, &error));
    assert_int_equal(1, params.n);
    assert_int_equal(0, params.max_tokens);
    assert_int_equal(ENGINE_NO_LOGPROBS, params.logprobs);
    assert_true(params.sampling.temperature == 1.0f && params.sampling.top_p == 1.0f);
    assert_false(params.stream || params.seed_given || params.transfer.given);
    engine_api_params_free(&params);
}

static void test_everything(void **state)
{
    (void)state;
    struct engine_api_params params;
    struct kvf_error error;
    assert_int_equal(
        KVF_OK,
        try_params("{\"model\":\"m\",\"max_tokens\":9,\"min_tokens\":2,\"n\":3,\"temperature\":0,"
                   "\"top_p\":1,\"top_k\":-1,\"seed\":-5,\"stop\":[\"a\",\"b\"],\"stream\":true,"
                   "\"stream_options\":{\"include_usage\":true},\"logprobs\":0,"
                   "\"ignore_eos\":true,\"return_token_ids\":true,\"echo\":false,"
                   "\"best_of\":1,\"logit_bias\":{},\"presence_penalty\":0.0,\"tools\":[],"
                   "\"response_format\":{\"type\":\"text\"},\"user\":{\"unknown\":[]}}",
                   false, &params, &error));
    assert_int_equal(9, params.max_tokens);
    assert_int_equal(2, params.min_tokens);
    assert_int_equal(3, params.n);
    assert_int_equal(0, params.logprobs);
    assert_int_equal(2, params.stops.count);
    assert_string_equal("b", params.stops.texts[1]);
    assert_true(params.stream && params.include_usage && params.ignore_end && params.seed_given);
    assert_true(params.return_token_ids);
    engine_api_params_free(&params);
    assert_int_equal(KVF_OK, try_params("{\"max_tokens\":9,\"max_completion_tokens\":4,"
                                        "\"logprobs\":true,\"top_logprobs\":2,\"stop\":\"x\"}",
                                        true, &params, &error));
    assert_int_equal(4, params.max_tokens);
    assert_int_equal(2, params.logprobs);
    assert_int_equal(1, params.stops.count);
    engine_api_params_free(&params);
}

static void test_refused_fields(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        const char *says;
        bool chat;
    } cases[] = {
        {"{\"max_tokens\":0}", "max_tokens", false},
        {"{\"max_tokens\":-1}", "max_tokens", false},
        {"{\"max_tokens\":\"many\"}", "max_tokens", false},
        {"{\"max_tokens\":1.5}", "max_tokens", false},
        {"{\"max_tokens\":1000000000000}", "max_tokens", false},
        {"{\"max_completion_tokens\":0}", "max_completion_tokens", true},
        {"{\"max_tokens\":4,\"min_tokens\":5}", "min_tokens", false},
        {"{\"min_tokens\":-1}", "min_tokens", false},
        {"{\"n\":0}", "'n'", false},
        {"{\"n\":1000}", "'n'", false},
        {"{\"n\":true}", "'n'", false},
        {"{\"temperature\":-1}", "temperature", false},
        {"{\"temperature\":\"hot\"}", "temperature", false},
        {"{\"top_p\":1.5}", "top_p", false},
        {"{\"top_p\":0}", "top_p", false},
        {"{\"top_k\":-2}", "top_k", false},
        {"{\"seed\":1.5}", "seed", false},
        {"{\"seed\":\"x\"}", "seed", false},
        {"{\"logprobs\":21}", "logprobs", false},
        {"{\"logprobs\":true}", "logprobs", false},
        {"{\"logprobs\":1}", "logprobs", true},
        {"{\"top_logprobs\":1}", "top_logprobs", true},
        {"{\"stream\":\"yes\"}", "stream", false},
        {"{\"stream\":1}", "stream", false},
        {"{\"stream_options\":{}}", "stream_options", false},
        {"{\"stream\":true,\"stream_options\":[]}", "stream_options", false},
        {"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage", false},
        {"{\"stop\":5}", "stop", false},
        {"{\"stop\":\"\"}", "stop", false},
        {"{\"stop\":[\"a\",5]}", "stop", false},
        {"{\"stop\":\"a\\u0000b\"}", "stop", false},
        {"{\"ignore_eos\":1}", "ignore_eos", false},
        {"{\"request_id\":5}", "request_id", false},
        {"{\"model\":5}", "model", false},
        {"{\"echo\":true}", "echo", false},
        {"{\"suffix\":\"x\"}", "suffix", false},
        {"{\"best_of\":2}", "best_of", false},
        {"{\"logit_bias\":{\"5\":1}}", "logit_bias", false},
        {"{\"presence_penalty\":0.5}", "presence_penalty", false},
        {"{\"repetition_penalty\":1.5}", "repetition_penalty", false},
        {"{\"tools\":[{}]}", "tools", true},
        {"{\"response_format\":{\"type\":\"json_object\"}}", "response_format", true},
        {"{\"kv_transfer_params\":\"x\"}", "kv_transfer_params", false},
        {"{\"kv_transfer_params\":[]}", "kv_transfer_params", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_api_params params;
        struct kvf_error error;
        if (try_params(cases[i].body, cases[i].chat, &params, &error) != KVF_EINVAL)
            fail_msg("%s was not refused", cases[i].body);
        if (!strstr(error.text, cases[i].says))
            fail_msg("%s: the text does not name it: %s", cases[i].body, error.text);
    }
    struct engine_api_params params;
    struct kvf_error error;
    assert_int_equal(KVF_ENOTFOUND, try_params("{\"model\":\"other\"}", false, &params, &error));
}

static void test_bodies_that_are_not_json(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        const char *says;
    } cases[] = {
        {"", "empty"},
        {"{", "not JSON"},
        {"[]", "an array"},
        {"{\"a\":1,\"port\":1000000000000000000000000000000}", "'port'"},
        {"{\"a\" : {\"b\\\"c\" : tru}}", "not JSON"},
        {"{\"a\":1}{\"b\":2}", "not JSON"},
        {"{\"a\":\"\xff\"}", "'a'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *body = NULL;
        struct kvf_error error = {0};
        assert_int_equal(KVF_EFORMAT, engine_api_body_parse(cases[i].body, strlen(cases[i].body),
                                                            &body, &error));
        if (!strstr(error.text, cases[i].says))
            fail_msg("%s: the text does not say %s: %s", cases[i].body, cases[i].says, error.text);
    }
}

/* ---- kv_transfer_params --------------------------------------------------------------------- */

static enum kvf_status try_transfer(const char *text, enum engine_role role,
                                    struct engine_transfer *transfer, struct kvf_error *error)
{
    json_t *value = parse(text);
    *error = (struct kvf_error){0};
    struct engine_api_limits limits = LIMITS;
    limits.role = role;
    enum kvf_status status = engine_api_transfer_parse(value, &limits, transfer, error);
    json_decref(value);
    return status;
}

static void test_transfer_params(void **state)
{
    (void)state;
    struct engine_transfer transfer;
    struct kvf_error error;
    /* As vLLM's proxies send the prefill leg. */
    assert_int_equal(KVF_OK, try_transfer("{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                                          "\"remote_engine_id\":null,\"remote_block_ids\":null,"
                                          "\"remote_host\":null,\"remote_port\":null}",
                                          ENGINE_ROLE_PREFILL, &transfer, &error));
    assert_true(transfer.given && transfer.params.do_remote_decode);
    assert_null(transfer.params.remote_host);
    assert_true(transfer.params.remote_port < 0 && transfer.params.tp_size < 0);
    engine_transfer_free(&transfer);
    assert_int_equal(
        KVF_OK,
        try_transfer("{\"do_remote_prefill\":true,\"remote_engine_id\":\"e\","
                     "\"remote_request_id\":\"r\",\"remote_host\":\"h\",\"remote_port\":65535,"
                     "\"tp_size\":1,\"pp_size\":1,\"dcp_size\":1,\"remote_block_ids\":[[1,2]],"
                     "\"transfer_mode\":\"push\",\"transfer_id\":\"t\",\"remote_num_tokens\":7,"
                     "\"remote_prefill_cached_tokens\":3,\"something_new\":{}}",
                     ENGINE_ROLE_DECODE, &transfer, &error));
    assert_string_equal("e", transfer.params.remote_engine_id);
    assert_string_equal("t", transfer.params.transfer_id);
    assert_int_equal(65535, transfer.params.remote_port);
    assert_int_equal(7, transfer.params.remote_num_tokens);
    assert_int_equal(3, transfer.prefill_cached_tokens);
    engine_transfer_free(&transfer);
}

static void test_refused_transfer_params(void **state)
{
    (void)state;
    static const char *const values[][2] = {
        {"do_remote_decode", "1"},
        {"do_remote_decode", "\"yes\""},
        {"do_remote_prefill", "[]"},
        {"remote_engine_id", "5"},
        {"remote_engine_id", "\"\""},
        {"remote_request_id", "{}"},
        {"remote_host", "1"},
        {"remote_host", "\"a\\u0000b\""},
        {"remote_port", "0"},
        {"remote_port", "65536"},
        {"remote_port", "-1"},
        {"remote_port", "\"5600\""},
        {"remote_port", "1.5"},
        {"remote_port", "true"},
        {"tp_size", "0"},
        {"tp_size", "\"one\""},
        {"pp_size", "-1"},
        {"dcp_size", "0"},
        {"remote_num_tokens", "-1"},
        {"transfer_mode", "5"},
        {"transfer_id", "[]"},
        {"remote_prefill_cached_tokens", "-1"},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct engine_transfer transfer;
        struct kvf_error error;
        char text[200];
        (void)snprintf(text, sizeof(text), "{\"%s\":%s}", values[i][0], values[i][1]);
        if (try_transfer(text, ENGINE_ROLE_BOTH, &transfer, &error) != KVF_EINVAL)
            fail_msg("%s was not refused", text);
        if (!strstr(error.text, values[i][0]))
            fail_msg("%s: the text does not name it: %s", text, error.text);
    }
    struct engine_transfer transfer;
    struct kvf_error error;
    const char *both = "{\"do_remote_decode\":true,\"do_remote_prefill\":true}";
    assert_int_equal(KVF_EINVAL, try_transfer(both, ENGINE_ROLE_BOTH, &transfer, &error));
    const char *decode = "{\"do_remote_decode\":true}";
    assert_int_equal(KVF_EINVAL, try_transfer(decode, ENGINE_ROLE_DECODE, &transfer, &error));
    assert_non_null(strstr(error.text, "role decode"));
    const char *prefill = "{\"do_remote_prefill\":true}";
    assert_int_equal(KVF_EINVAL, try_transfer(prefill, ENGINE_ROLE_PREFILL, &transfer, &error));
}

/* Who may be connected to is not the client's choice (bug B85). */
static void test_allowed_remotes(void **state)
{
    (void)state;
    static const struct {
        const char *allowed;
        const char *host;
        bool taken;
    } cases[] = {
        {NULL, "169.254.169.254", true},
        {"p1", "p1", true},
        {"p1", "P1", true},
        {"p1", "p2", false},
        {"p1", "p1 ", false},
        {"p1", "p", false},
        {"p1", "p11", false},
        {"p1", "p1,", false},
        {"p0,p1", "p1", true},
        {"p0,p1", "p0,p1", false},
        {"p0,,p1,", "p1", true},
        {"", "p1", false},
        {"[fd00::1]", "fd00::1", true},
        {"fd00::1", "[fd00::1]", true},
        {"fd00::1", "[::1]", false},
        {"127.0.0.1", "0x7f.1", false},
        {"127.0.0.1", "localhost", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_api_limits limits = LIMITS;
        limits.allow_remote = cases[i].allowed;
        json_t *value =
            json_pack("{s:b, s:s}", "do_remote_prefill", 1, "remote_host", cases[i].host);
        assert_non_null(value);
        struct engine_transfer transfer;
        struct kvf_error error = {0};
        enum kvf_status status = engine_api_transfer_parse(value, &limits, &transfer, &error);
        if (status != (cases[i].taken ? KVF_OK : KVF_ENOTALLOWED))
            fail_msg("allowed '%s', host '%s': %s", cases[i].allowed ? cases[i].allowed : "any",
                     cases[i].host, kvf_status_name(status));
        if (status == KVF_OK)
            engine_transfer_free(&transfer);
        else
            assert_non_null(strstr(error.text, "--allow-remote"));
        json_decref(value);
    }
    /* The prefill leg names nobody. */
    struct engine_api_limits limits = LIMITS;
    limits.allow_remote = "p1";
    json_t *value = parse("{\"do_remote_decode\":true,\"remote_host\":null}");
    struct engine_transfer transfer;
    assert_int_equal(KVF_OK, engine_api_transfer_parse(value, &limits, &transfer, NULL));
    engine_transfer_free(&transfer);
    json_decref(value);
}

static void test_transfer_response(void **state)
{
    (void)state;
    uint32_t ids[] = {4, 9};
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.remote_engine_id = "e";
    params.remote_request_id = "cmpl-x-0-00000000";
    params.remote_host = "h";
    params.remote_port = 5600;
    params.tp_size = params.pp_size = params.dcp_size = 1;
    params.remote_num_tokens = 30;
    struct engine_output output = {.block_ids = ids, .block_count = 2, .cached_tokens = 16};
    output.handover.params = params;
    json_t *object = engine_api_transfer_json(&output);
    char *text = kvfi_json_dump(object, NULL);
    assert_string_equal("{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
                        "\"remote_block_ids\":[[4,9]],\"remote_engine_id\":\"e\","
                        "\"remote_request_id\":\"cmpl-x-0-00000000\",\"remote_host\":\"h\","
                        "\"remote_port\":5600,\"tp_size\":1,\"dcp_size\":1,\"pp_size\":1,"
                        "\"remote_num_tokens\":30,\"transfer_mode\":\"push\","
                        "\"remote_prefill_cached_tokens\":16}",
                        text);
    free(text);
    json_decref(object);
}

/* ---- prompts -------------------------------------------------------------------------------- */

static enum kvf_status try_prompts(const char *text, bool chat, struct engine_api_prompts *prompts,
                                   struct kvf_error *error)
{
    json_t *body = parse(text);
    struct engine_api_params params;
    *error = (struct kvf_error){0};
    enum kvf_status status = engine_api_params_parse(body, chat, &LIMITS, &params, error);
    if (status == KVF_OK) {
        status = engine_api_prompts_parse(body, &params, &LIMITS, prompts, error);
        engine_api_params_free(&params);
    }
    json_decref(body);
    return status;
}

static void test_prompts(void **state)
{
    (void)state;
    struct engine_api_prompts prompts;
    struct kvf_error error;
    assert_int_equal(KVF_OK, try_prompts("{\"prompt\":[1,2,99]}", false, &prompts, &error));
    assert_int_equal(1, prompts.count);
    assert_int_equal(3, prompts.list[0].count);
    assert_int_equal(99, prompts.list[0].ids[2]);
    engine_api_prompts_free(&prompts);
    assert_int_equal(KVF_OK, try_prompts("{\"prompt\":[[1],[2,3]]}", false, &prompts, &error));
    assert_int_equal(2, prompts.count);
    assert_int_equal(2, prompts.list[1].count);
    engine_api_prompts_free(&prompts);
    assert_int_equal(KVF_OK, try_prompts("{\"kv_transfer_params\":{\"prompt_token_ids\":[5,6]}}",
                                         true, &prompts, &error));
    assert_int_equal(2, prompts.list[0].count);
    engine_api_prompts_free(&prompts);
}

static void test_refused_prompts(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        const char *says;
        bool chat;
    } cases[] = {
        {"{}", "prompt", false},
        {"{\"prompt\":null}", "prompt", false},
        {"{\"prompt\":5}", "prompt", false},
        {"{\"prompt\":{}}", "prompt", false},
        {"{\"prompt\":true}", "prompt", false},
        {"{\"prompt\":[]}", "empty", false},
        {"{\"prompt\":[[]]}", "empty", false},
        {"{\"prompt\":[1,\"a\"]}", "string", false},
        {"{\"prompt\":[[1],\"a\"]}", "string", false},
        {"{\"prompt\":[[1],[\"a\"]]}", "string", false},
        {"{\"prompt\":[1,null]}", "null", false},
        {"{\"prompt\":[-1]}", "-1", false},
        {"{\"prompt\":[100]}", "100", false},
        {"{\"prompt\":[1.5]}", "fraction", false},
        {"{\"prompt\":[{}]}", "object", false},
        {"{\"messages\":null}", "messages", true},
        {"{\"messages\":[]}", "messages", true},
        {"{\"messages\":\"x\"}", "messages", true},
        {"{\"messages\":[5]}", "messages", true},
        {"{\"messages\":[{\"content\":\"x\"}]}", "role", true},
        {"{\"messages\":[{\"role\":\"user\"}]}", "content", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "content", true},
        {"{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "role", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "content", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "text",
         true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "content", true},
        {"{\"kv_transfer_params\":{\"prompt_token_ids\":[]}}", "prompt_token_ids", true},
        {"{\"kv_transfer_params\":{\"prompt_token_ids\":[100]}}", "prompt_token_ids", true},
        {"{\"kv_transfer_params\":{\"prompt_token_ids\":5}}", "prompt_token_ids", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_api_prompts prompts;
        struct kvf_error error;
        if (try_prompts(cases[i].body, cases[i].chat, &prompts, &error) != KVF_EINVAL)
            fail_msg("%s was not refused", cases[i].body);
        if (!strstr(error.text, cases[i].says))
            fail_msg("%s: the text does not say '%s': %s", cases[i].body, cases[i].says,
                     error.text);
    }
    char text[1000] = "{\"prompt\":[0";
    for (int i = 1; i < 64; i++)
        memcpy(text + strlen(text), ",0", 3);
    memcpy(text + strlen(text), "]}", 3);
    struct engine_api_prompts prompts;
    struct kvf_error error;
    assert_int_equal(KVF_EINVAL, try_prompts(text, false, &prompts, &error));
    assert_non_null(strstr(error.text, "64"));
}

/* ---- ids ------------------------------------------------------------------------------------ */

static void test_ids(void **state)
{
    (void)state;
    char base[ENGINE_API_BASE_ID_LEN_MAX + 1];
    struct kvf_error error;
    assert_int_equal(KVF_OK, engine_api_base_id("head", "body", base, &error));
    assert_string_equal("head", base);
    assert_int_equal(KVF_OK, engine_api_base_id(NULL, "body", base, &error));
    assert_string_equal("body", base);
    assert_int_equal(KVF_OK, engine_api_base_id("", "", base, &error));
    assert_int_equal(16, strlen(base));
    assert_int_equal(16, strspn(base, "0123456789abcdef"));
    assert_int_equal(KVF_EINVAL, engine_api_base_id("a b", NULL, base, &error));
    assert_int_equal(KVF_EINVAL, engine_api_base_id("a\nb", NULL, base, &error));
    char longest[ENGINE_API_BASE_ID_LEN_MAX + 2];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(KVF_EINVAL, engine_api_base_id(longest, NULL, base, &error));
    longest[sizeof(longest) - 2] = '\0';
    assert_int_equal(KVF_OK, engine_api_base_id(longest, NULL, base, &error));
    /* The longest one still fits the connector's limit in every form. */
    char *id = engine_api_internal_id(true, base, 0, 127, 128, "00c0ffee");
    assert_true(strlen(id) <= KVF_REQUEST_ID_LEN_MAX);
    free(id);

    static const struct {
        bool chat;
        size_t prompt;
        uint32_t k, n;
        const char *id;
        const char *base;
    } cases[] = {
        {false, 0, 0, 1, "cmpl-u-0-00c0ffee", "cmpl-u-0"},
        {false, 3, 0, 1, "cmpl-u-3-00c0ffee", "cmpl-u-3"},
        {false, 1, 2, 4, "2_cmpl-u-1-00c0ffee", "2_cmpl-u-1"},
        {true, 0, 0, 1, "chatcmpl-u-00c0ffee", "chatcmpl-u"},
        {true, 0, 1, 2, "1_chatcmpl-u-00c0ffee", "1_chatcmpl-u"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        id = engine_api_internal_id(cases[i].chat, "u", cases[i].prompt, cases[i].k, cases[i].n,
                                    "00c0ffee");
        assert_string_equal(cases[i].id, id);
        assert_int_equal(strlen(cases[i].base), kvf_base_request_id_len(id));
        free(id);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_bodies_that_are_not_json),
        cmocka_unit_test(test_transfer_params),
        cmocka_unit_test(test_refused_transfer_params),
        cmocka_unit_test(test_allowed_remotes),
        cmocka_unit_test(test_transfer_response),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_refused_prompts),
        cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
