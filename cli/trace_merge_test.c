/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_merge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add(struct kvfi_trace *trace, const char *line)
{
    struct kvf_error error = {0};
    if (kvfi_trace_add(trace, line, strlen(line), &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static char *print(struct kvfi_trace *trace, bool json)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    assert_int_equal(kvfi_trace_sort(trace, NULL), KVF_OK);
    assert_int_equal(kvfi_trace_print(trace, json, out, NULL), KVF_OK);
    fclose(out);
    return text;
}

/* Two requests whose records come from three files, out of order. */
static void add_two_requests(struct kvfi_trace *trace)
{
    add(trace, "{\"t_wall_ns\":3000000,\"engine\":\"d\",\"role\":\"decode\",\"event\":\"landed\","
               "\"request\":\"cmpl-b-0-0a1b2c3d\",\"base\":\"cmpl-b-0\",\"bytes\":42}");
    add(trace, "{\"t_wall_ns\":9000000,\"engine\":\"d\",\"role\":\"decode\",\"event\":\"end\","
               "\"request\":\"cmpl-a-0-0a1b2c3d\",\"base\":\"cmpl-a-0\",\"reason\":\"stop\"}");
    add(trace, "{\"t_wall_ns\":1000000,\"engine\":\"proxy\",\"role\":\"proxy\",\"event\":"
               "\"received\",\"request\":\"cmpl-b-0\",\"base\":\"cmpl-b-0\",\"transfer\":\"t-1\"}");
    /* No base: it is made from the request id. */
    add(trace, "{\"t_wall_ns\":2500000,\"engine\":\"p\",\"role\":\"prefill\",\"event\":\"posted\","
               "\"request\":\"cmpl-b-0-ffff0000\"}");
}

static void test_timeline(void **state)
{
    struct kvfi_trace trace = {0};
    add_two_requests(&trace);
    char *text = print(&trace, false);
    assert_string_equal(text,
                        "request cmpl-b-0, transfer t-1: 3 records, 2.000 ms\n"
                        "        at ms     after ms  role     engine           event\n"
                        "        0.000       +0.000  proxy    proxy            received\n"
                        "        1.500       +1.500  prefill  p                posted\n"
                        "        2.000       +0.500  decode   d                landed bytes=42\n"
                        "\n"
                        "request cmpl-a-0: 1 records, 0.000 ms\n"
                        "        at ms     after ms  role     engine           event\n"
                        "        0.000       +0.000  decode   d                end reason=stop\n"
                        "\n");
    free(text);
    kvfi_trace_free(&trace);
}

static void test_json(void **state)
{
    struct kvfi_trace trace = {0};
    add_two_requests(&trace);
    char *text = print(&trace, true);
    char *second = strchr(text, '\n');
    *second++ = '\0';
    json_t *line = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(line, "base")), "cmpl-b-0");
    assert_string_equal(json_string_value(json_object_get(line, "transfer")), "t-1");
    assert_int_equal(json_integer_value(json_object_get(line, "duration_ns")), 2000000);
    json_t *records = json_object_get(line, "records");
    assert_int_equal(json_array_size(records), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(records, 2), "at_ns")),
                     2000000);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(records, 2), "delta_ns")),
                     500000);
    json_decref(line);
    assert_non_null(strstr(second, "cmpl-a-0"));
    free(text);
    kvfi_trace_free(&trace);
}

static void test_filter(void **state)
{
    static const struct {
        const char *filter;
        size_t count;
    } cases[] = {{"cmpl-a", 1}, {"ffff0000", 1}, {"t-1", 1}, {"cmpl-b-0", 3}, {"zzz", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvfi_trace trace = {.filter = cases[i].filter};
        add_two_requests(&trace);
        assert_int_equal(trace.count, cases[i].count);
        char *text = print(&trace, false);
        free(text);
        kvfi_trace_free(&trace);
    }
}

static void test_equal_times_keep_their_order(void **state)
{
    struct kvfi_trace trace = {0};
    for (int i = 0; i < 1000; i++) {
        char line[128];
        snprintf(line, sizeof(line), "{\"t_wall_ns\":5,\"event\":\"e%d\",\"request\":\"r\"}", i);
        add(&trace, line);
    }
    assert_int_equal(kvfi_trace_sort(&trace, NULL), KVF_OK);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(trace.records[i].order, i);
    kvfi_trace_free(&trace);
}

static void test_malformed_lines(void **state)
{
    static const char *const cases[][2] = {
        {"{\"t_wall_ns\":1", "not JSON"},
        {"7", "an integer"},
        {"{\"event\":\"x\"}", "'t_wall_ns' is missing"},
        {"{\"t_wall_ns\":-1,\"event\":\"x\"}", "'t_wall_ns' is -1"},
        {"{\"t_wall_ns\":1.5,\"event\":\"x\"}", "fraction"},
        {"{\"t_wall_ns\":99999999999999999999,\"event\":\"x\"}", "not JSON"},
        {"{\"t_wall_ns\":1}", "'event' is missing"},
        {"{\"t_wall_ns\":1,\"event\":\"x\",\"base\":[]}", "'base' is an array"},
        {"{\"t_wall_ns\":1,\"event\":\"x\",\"request\":5}", "'request'"},
    };
    struct kvfi_trace trace = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvf_error error = {0};
        assert_int_equal(kvfi_trace_add(&trace, cases[i][0], strlen(cases[i][0]), &error),
                         KVF_EFORMAT);
        if (!strstr(error.text, cases[i][1]))
            fail_msg("'%s' does not say '%s'", error.text, cases[i][1]);
    }
    assert_int_equal(trace.count, 0);
    char *text = print(&trace, false);
    assert_string_equal(text, "");
    free(text);
    kvfi_trace_free(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeline),        cmocka_unit_test(test_json),
        cmocka_unit_test(test_filter),          cmocka_unit_test(test_equal_times_keep_their_order),
        cmocka_unit_test(test_malformed_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
