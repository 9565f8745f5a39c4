/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/leg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct kvfi_leg_ids ids = {.request_id = "rid", .transfer_id = "tid"};
static const struct kvfi_coordinates place = {
    .engine_id = "p_dp0", .host = "10.0.0.7", .port = 5559, .tp_size = 4, .pp_size = 2};

static void assert_legs(const char *body_text, const char *prefill, const char *decode)
{
    json_t *body = json_loads(body_text, JSON_ALLOW_NUL, NULL);
    json_t *before = json_deep_copy(body);
    assert_non_null(body);
    char *text = NULL;
    size_t len = 0;
    assert_int_equal(kvfi_leg_prefill(body, &ids, &text, &len, NULL), KVF_OK);
    assert_string_equal(text, prefill);
    assert_int_equal(len, strlen(prefill));
    free(text);
    assert_int_equal(kvfi_leg_decode(body, &ids, &place, &text, &len, NULL), KVF_OK);
    assert_string_equal(text, decode);
    free(text);
    assert_true(json_equal(body, before));
    json_decref(body);
    json_decref(before);
}

#define PREFILL_PARAMS                                                                             \
    "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"               \
    "\"remote_engine_id\":null,\"remote_request_id\":null,\"remote_block_ids\":null,"              \
    "\"remote_host\":null,\"remote_port\":null,\"transfer_id\":\"tid\"}"
#define DECODE_PARAMS                                                                              \
    "\"kv_transfer_params\":{\"do_remote_decode\":false,\"do_remote_prefill\":true,"               \
    "\"remote_engine_id\":\"p_dp0\",\"remote_request_id\":\"rid\",\"remote_host\":\"10.0.0.7\","   \
    "\"remote_port\":5559,\"tp_size\":4,\"pp_size\":2,\"transfer_id\":\"tid\"}"

static void test_rewriting(void **state)
{
    assert_legs("{\"prompt\":\"a\"}",
                "{\"prompt\":\"a\",\"stream\":false,\"max_tokens\":1," PREFILL_PARAMS "}",
                "{\"prompt\":\"a\"," DECODE_PARAMS "}");
    assert_legs("{\"prompt\":\"a\",\"max_tokens\":50,\"stream\":true,\"stream_options\":{\"include_"
                "usage\":true},\"min_tokens\":3,\"temperature\":0.5}",
                "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":false,\"temperature\":0."
                "5," PREFILL_PARAMS "}",
                "{\"prompt\":\"a\",\"max_tokens\":50,\"stream\":true,\"stream_options\":{\"include_"
                "usage\":true},\"min_tokens\":3,\"temperature\":0.5," DECODE_PARAMS "}");
    assert_legs("{\"messages\":[],\"max_completion_tokens\":9,\"min_completion_tokens\":2}",
                "{\"messages\":[],\"max_completion_tokens\":1,\"stream\":false,"
                "\"max_tokens\":1," PREFILL_PARAMS "}",
                "{\"messages\":[],\"max_completion_tokens\":9,"
                "\"min_completion_tokens\":2," DECODE_PARAMS "}");
}

/* Several prompts and samples: both engines number them alike, so they go through as they are. */
static void test_fan_out_is_handed_on(void **state)
{
    assert_legs(
        "{\"prompt\":[\"a\",\"b\"],\"n\":4}",
        "{\"prompt\":[\"a\",\"b\"],\"n\":4,\"stream\":false,\"max_tokens\":1," PREFILL_PARAMS "}",
        "{\"prompt\":[\"a\",\"b\"],\"n\":4," DECODE_PARAMS "}");
}

static void test_client_params_and_text_survive(void **state)
{
    /* What a client put into kv_transfer_params is not handed on. */
    assert_legs("{\"kv_transfer_params\":{\"remote_host\":\"evil\"},\"prompt\":\"\\u0000\\u00e9\"}",
                "{" PREFILL_PARAMS ",\"prompt\":\"\\u0000\xc3\xa9\",\"stream\":false,"
                "\"max_tokens\":1}",
                "{" DECODE_PARAMS ",\"prompt\":\"\\u0000\xc3\xa9\"}");
}

static void test_check(void **state)
{
    static const struct {
        const char *body;
        enum kvf_status status;
        const char *words;
    } cases[] = {
        {"{}", KVF_OK, ""},
        {"{\"stream\":null,\"n\":null}", KVF_OK, ""},
        {"{\"stream\":true,\"n\":2}", KVF_OK, ""},
        {"{\"stream\":1}", KVF_EINVAL, "'stream' is an integer"},
        {"{\"n\":0}", KVF_EINVAL, "'n' is 0"},
        {"{\"n\":\"2\"}", KVF_EINVAL, "'n' is a string"},
        {"[]", KVF_EINVAL, "an array"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *body = json_loads(cases[i].body, 0, NULL);
        struct kvf_error error = {0};
        assert_int_equal(kvfi_leg_check(body, &error), cases[i].status);
        assert_non_null(strstr(error.text, cases[i].words));
        json_decref(body);
    }
}

/* Every field absent, null, of the wrong type, too large: refused with its name. */
static void test_coordinates(void **state)
{
    static const char *const good =
        "{\"engine_id\":\"e\",\"host\":\"h\",\"port\":1,\"tp_size\":1,\"pp_size\":1,\"x\":0}";
    struct kvfi_coordinates read;
    json_t *answer = json_loads(good, 0, NULL);
    assert_int_equal(kvfi_coordinates_read(answer, &read, NULL), KVF_OK);
    assert_string_equal(read.engine_id, "e");
    assert_int_equal(read.port, 1);
    static const char *const needed[] = {"engine_id", "host", "port"};
    static const char *const bad_values[] = {"null",        "[]",   "0",   "-1",
                                             "99999999999", "\"\"", "true"};
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < sizeof(bad_values) / sizeof(bad_values[0]); k++) {
            json_t *changed = json_deep_copy(answer);
            json_object_set_new(changed, needed[i],
                                json_loads(bad_values[k], JSON_DECODE_ANY, NULL));
            struct kvf_error error = {0};
            assert_int_equal(kvfi_coordinates_read(changed, &read, &error), KVF_EINVAL);
            assert_non_null(strstr(error.text, needed[i]));
            json_decref(changed);
        }
    }
    char long_id[200];
    memset(long_id, 'x', sizeof(long_id) - 1);
    long_id[sizeof(long_id) - 1] = '\0';
    json_object_set_new(answer, "engine_id", json_string(long_id));
    assert_int_equal(kvfi_coordinates_read(answer, &read, NULL), KVF_EINVAL);
    json_decref(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewriting),
        cmocka_unit_test(test_fan_out_is_handed_on),
        cmocka_unit_test(test_client_params_and_text_survive),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_coordinates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
