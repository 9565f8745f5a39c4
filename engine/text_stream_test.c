/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model/model.h"
#include "engine/model/tiny_model.h"

static struct engine_model *model;
static const struct engine_tokenizer *tokenizer;

static int open_model(void **state)
{
    (void)state;
    char path[] = "text_stream_XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return -1;
    (void)close(fd);
    struct kvf_error error;
    enum kvf_status status = tiny_model_write(path, NULL, &error);
    if (status == KVF_OK)
        status = engine_model_open(path, NULL, &model, &error);
    (void)unlink(path);
    if (status != KVF_OK)
        return -1;
    tokenizer = engine_model_tokenizer(model);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    engine_model_close(model);
    return 0;
}

/* Pushes the text byte by byte and checks that nothing was released which a stop string needed.
 * Returns the stop's index, -1 without one. */
static int feed(const char *text, char **stops, size_t stop_count, char *out, size_t cap)
{
    const struct engine_stop_list list = {.texts = stops, .count = stop_count};
    struct engine_text_stream stream = {.tokenizer = tokenizer, .stops = &list};
    struct engine_text got = {0};
    struct kvf_error error;
    for (const char *c = text; *c && !stream.stopped; c++) {
        uint32_t token = engine_tokenizer_find(tokenizer, c, 1);
        assert_true(token != ENGINE_TOKEN_NONE);
        assert_int_equal(KVF_OK, engine_text_stream_push(&stream, token, true, &got, &error));
        for (size_t i = 0; i < stop_count; i++)
            assert_true(!got.data || !strstr(got.data, stops[i]));
    }
    assert_int_equal(KVF_OK, engine_text_stream_finish(&stream, &got, &error));
    (void)snprintf(out, cap, "%s", got.data ? got.data : "");
    int index = stream.stopped ? (int)stream.stop_index : -1;
    engine_text_stream_free(&stream);
    engine_text_free(&got);
    return index;
}

static void test_stop_strings(void **state)
{
    (void)state;
    char first[] = "END";
    char second[] = "\n\n";
    char third[] = "aab";
    char *stops[] = {first, second, third};
    const struct {
        const char *text;
        const char *out;
        int stop;
    } cases[] = {
        {"hello", "hello", -1},
        {"helloEND", "hello", 0},
        {"helloENDmore", "hello", 0},
        {"EN D", "EN D", -1},
        {"EN", "EN", -1}, /* held back, let go at the end */
        {"line\nline\n\nline", "line\nline", 1},
        {"aaab", "a", 2},
        {"aaaaaab", "aaaa", 2},
        {"END", "", 0},
        {"", "", -1},
        {"EENEND", "EEN", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char out[64];
        assert_int_equal(cases[i].stop, feed(cases[i].text, stops, 3, out, sizeof(out)));
        assert_string_equal(cases[i].out, out);
    }
}

static void test_whole_characters_only(void **state)
{
    (void)state;
    const char *text = "a\xe2\x82\xac\xf0\x9f\x98\x80z";
    struct engine_text_stream stream = {.tokenizer = tokenizer};
    struct engine_text got = {0};
    struct kvf_error error;
    size_t expected_len[] = {1, 1, 1, 4, 4, 4, 4, 8, 9};
    for (size_t i = 0; text[i]; i++) {
        uint32_t token = engine_tokenizer_find(tokenizer, text + i, 1);
        assert_int_equal(KVF_OK, engine_text_stream_push(&stream, token, true, &got, &error));
        assert_int_equal(expected_len[i], got.len);
    }
    assert_string_equal(text, got.data);
    /* A character that never becomes whole is shown as U+FFFD. */
    uint32_t half = engine_tokenizer_find(tokenizer, "\xe2", 1);
    assert_int_equal(KVF_OK, engine_text_stream_push(&stream, half, true, &got, &error));
    assert_int_equal(9, got.len);
    assert_int_equal(KVF_OK, engine_text_stream_finish(&stream, &got, &error));
    assert_string_equal("\xef\xbf\xbd", got.data + 9);
    engine_text_stream_free(&stream);
    engine_text_free(&got);
}

/* Before min_tokens a stop string is ordinary text, and does not count later either. */
static void test_stops_can_wait(void **state)
{
    (void)state;
    char stop[] = "xx";
    char *stops[] = {stop};
    const struct engine_stop_list list = {.texts = stops, .count = 1};
    struct engine_text_stream stream = {.tokenizer = tokenizer, .stops = &list};
    struct engine_text got = {0};
    struct kvf_error error;
    uint32_t x = engine_tokenizer_find(tokenizer, "x", 1);
    for (int i = 0; i < 5; i++) {
        assert_false(stream.stopped);
        assert_int_equal(KVF_OK, engine_text_stream_push(&stream, x, i >= 3, &got, &error));
    }
    assert_true(stream.stopped);
    assert_string_equal("xxx", got.data);
    engine_text_stream_free(&stream);
    engine_text_free(&got);
}

static void test_a_bad_token_is_an_error(void **state)
{
    (void)state;
    struct engine_text_stream stream = {.tokenizer = tokenizer};
    struct engine_text got = {0};
    struct kvf_error error = {0};
    assert_int_equal(KVF_EINVAL, engine_text_stream_push(&stream, UINT32_MAX, true, &got, &error));
    assert_int_equal(0, got.len);
    engine_text_stream_free(&stream);
    engine_text_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_whole_characters_only),
        cmocka_unit_test(test_stops_can_wait),
        cmocka_unit_test(test_a_bad_token_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
