/* SPDX-License-Identifier: Apache-2.0 */
#include "http/sse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Events as "name=data|". */
struct record {
    char text[512];
};

static void on_event(void *ctx, const char *name, const char *data, size_t len)
{
    struct record *record = ctx;
    size_t used = strlen(record->text);
    assert_int_equal(strlen(data), len);
    snprintf(record->text + used, sizeof(record->text) - used, "%s=%s|", name, data);
}

static void assert_events(const char *stream, const char *expected)
{
    size_t len = strlen(stream);
    for (size_t step = 1; step <= len; step++) {
        struct record record = {0};
        struct kvfi_sse_parser parser;
        kvfi_sse_parser_init(&parser, 64, on_event, &record);
        for (size_t at = 0; at < len; at += step)
            assert_int_equal(
                kvfi_sse_parser_feed(&parser, stream + at, len - at < step ? len - at : step, NULL),
                KVF_OK);
        kvfi_sse_parser_reset(&parser);
        assert_string_equal(record.text, expected);
    }
}

static void test_events(void **state)
{
    assert_events("data: one\n\ndata:two\n\n", "message=one|message=two|");
    assert_events("data: one\r\n\r\ndata: two\r\rdata: three\n\n",
                  "message=one|message=two|message=three|");
    assert_events("\xef\xbb\xbf"
                  "data: a\ndata: b\n\n",
                  "message=a\nb|");
    assert_events(": comment\nid: 4\nevent: error\ndata:\n\n", "error=|");
    assert_events("event: lost\n\ndata: x\n\n", "message=x|");
    assert_events("data\n\n", "message=|");
    assert_events("data: not closed\n", "");
}

static void test_limit(void **state)
{
    struct record record = {0};
    struct kvfi_sse_parser parser;
    struct kvf_error error;
    kvfi_sse_parser_init(&parser, 8, on_event, &record);
    assert_int_equal(kvfi_sse_parser_feed(&parser, "data: abcdefgh\n\n", 16, &error), KVF_ELIMIT);
    assert_non_null(strstr(error.text, "8 bytes"));
    kvfi_sse_parser_reset(&parser);
    assert_int_equal(kvfi_sse_parser_feed(&parser, "data:a\ndata:b\ndata:c\n", 21, NULL), KVF_OK);
    assert_int_equal(kvfi_sse_parser_feed(&parser, "data:d\ndata:e\n", 14, NULL), KVF_ELIMIT);
    kvfi_sse_parser_reset(&parser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
