/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void on_text(void *ctx, const char *text, size_t len)
{
    size_t used = strlen(ctx);
    snprintf((char *)ctx + used, 64 - used, "%.*s|", (int)len, text);
}

static void event(struct kvfi_chat_reply *reply, const char *data)
{
    kvfi_chat_reply_event(reply, data, strlen(data));
}

static void test_stream(void **state)
{
    char seen[64] = "";
    struct kvfi_chat_reply reply;
    kvfi_chat_reply_init(&reply, on_text, seen);
    event(&reply, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
    event(&reply, "{\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}");
    event(&reply, "{\"choices\":[{\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}");
    event(&reply, "{\"choices\":[],\"usage\":{\"completion_tokens\":7}}");
    assert_false(reply.done);
    event(&reply, "[DONE]");
    assert_true(reply.done);
    assert_string_equal(reply.text, "Hello");
    assert_string_equal(seen, "Hel|lo|");
    assert_string_equal(reply.finish_reason, "stop");
    assert_int_equal(reply.usage_tokens, 7);
    assert_int_equal(reply.piece_count, 2);
    assert_string_equal(reply.failure.text, "");
    kvfi_chat_reply_free(&reply);
}

static void assert_failure(const char *data, const char *words)
{
    struct kvfi_chat_reply reply;
    kvfi_chat_reply_init(&reply, NULL, NULL);
    event(&reply, data);
    if (!strstr(reply.failure.text, words))
        fail_msg("'%s' does not say '%s'", reply.failure.text, words);
    kvfi_chat_reply_free(&reply);
}

static void test_failures(void **state)
{
    assert_failure("{\"error\":{\"message\":\"prefill died\"}}", "prefill died");
    assert_failure("{\"error\":\"plain\"}", "plain");
    assert_failure("{\"choices\":", "not JSON");
    assert_failure("[]", "an array");
}

/* Shapes that are not what they should be are passed over. */
static void test_odd_shapes(void **state)
{
    static const char *const odd[] = {
        "{}",
        "{\"choices\":{}}",
        "{\"choices\":[5]}",
        "{\"choices\":[{\"delta\":[]}]}",
        "{\"choices\":[{\"delta\":{\"content\":5},\"finish_reason\":{}}],\"usage\":\"x\"}",
    };
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        struct kvfi_chat_reply reply;
        kvfi_chat_reply_init(&reply, NULL, NULL);
        event(&reply, odd[i]);
        assert_null(reply.text);
        assert_string_equal(reply.failure.text, "");
        assert_int_equal(reply.usage_tokens, -1);
        kvfi_chat_reply_free(&reply);
    }
}

static void test_error_text(void **state)
{
    static const char *const cases[][2] = {
        {"{\"error\":{\"message\":\"a\"}}", "a"},
        {"{\"message\":\"b\"}", "b"},
        {"plain\x1b[2J", "plain?[2J"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        kvfi_chat_error_text(cases[i][0], strlen(cases[i][0]), text, sizeof(text));
        assert_string_equal(text, cases[i][1]);
    }
}

static void test_terminal_is_not_steered(void **state)
{
    char text[] = "a\x1b]0;x\x07\tb\n\xc2\x9b"
                  "31m\xc3\xa9\x7f";
    kvfi_chat_tame(text, strlen(text));
    assert_string_equal(text, "a?]0;x?\tb\n??31m\xc3\xa9?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_odd_shapes),
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_terminal_is_not_steered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
