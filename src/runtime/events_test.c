/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include "runtime/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char path[64];
    struct kvf_metrics *metrics;
    struct kvf_events *events;
};

static void setup(struct fixture *f)
{
    snprintf(f->path, sizeof(f->path), "events_test.XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    f->metrics = kvf_metrics_create();
    struct kvf_error error = {0};
    if (kvf_events_open(f->path, "engine\"1", "decode", f->metrics, &f->events, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

/* Closes, returns the file's text (to be freed) and removes the file. */
static char *finish(struct fixture *f)
{
    kvf_events_close(f->events);
    kvf_metrics_destroy(f->metrics);
    FILE *file = fopen(f->path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t cap = 0;
    if (getdelim(&text, &cap, '\0', file) < 0)
        text[0] = '\0';
    fclose(file);
    unlink(f->path);
    return text;
}

static void test_a_record_is_one_json_line(void **state)
{
    struct fixture f = {0};
    setup(&f);
    const struct kvf_event_field fields[] = {
        {.name = "blocks", .number = 12},
        {.name = "least", .number = INT64_MIN},
        {.name = "reason", .text = "peer lost"},
    };
    kvf_events_emit(f.events, "landed", "cmpl-x-0-0a1b2c3d", fields, 3);
    kvf_events_emit(f.events, "started", NULL, NULL, 0);
    char *text = finish(&f);
    long long wall = 0, mono = 0;
    int end = 0;
    assert_int_equal(sscanf(text, "{\"t_wall_ns\":%lld,\"t_mono_ns\":%lld%n", &wall, &mono, &end),
                     2);
    assert_true(wall > 1700000000000000000ll && mono > 0);
    const char *rest = ",\"engine\":\"engine\\u00221\",\"role\":\"decode\",\"event\":\"landed\","
                       "\"request\":\"cmpl-x-0-0a1b2c3d\",\"base\":\"cmpl-x-0\",\"blocks\":12,"
                       "\"least\":-9223372036854775808,\"reason\":\"peer lost\"}\n";
    assert_memory_equal(text + end, rest, strlen(rest));
    assert_non_null(strstr(text, "\"event\":\"started\"}\n"));
    free(text);
}

static void test_hostile_ids_are_escaped(void **state)
{
    struct fixture f = {0};
    setup(&f);
    kvf_events_emit(f.events, "a", "q\"\\\n\x01", NULL, 0);
    kvf_events_emit(f.events, "b", "caf\xc3\xa9", NULL, 0);
    kvf_events_emit(f.events, "c", "bad\xff\xc3", NULL, 0);
    char *text = finish(&f);
    assert_non_null(strstr(text, "\"request\":\"q\\u0022\\u005c\\u000a\\u0001\""));
    assert_non_null(strstr(text, "\"request\":\"caf\xc3\xa9\""));
    assert_non_null(strstr(text, "\"request\":\"bad\\u00ff\\u00c3\""));
    free(text);
}

static void test_a_record_over_the_limit_is_dropped_and_counted(void **state)
{
    struct fixture f = {0};
    setup(&f);
    char longer[1200];
    memset(longer, 'i', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    kvf_events_emit(f.events, "landed", longer, NULL, 0);
    longer[300] = '\0';
    kvf_events_emit(f.events, "landed", longer, NULL, 0);
    assert_int_equal(kvf_metrics_get(f.metrics, KVF_COUNTER_events_dropped), 1);
    char *text = finish(&f);
    char *newline = strchr(text, '\n');
    assert_non_null(newline);
    assert_string_equal(newline, "\n");
    free(text);
}

static void *emit_many(void *ctx)
{
    for (int i = 0; i < 10000; i++) {
        struct kvf_event_field field = {.name = "n", .number = i};
        kvf_events_emit(ctx, "step", "r", &field, 1);
    }
    return NULL;
}

/* Every record is either in the file, whole, or counted as dropped. */
static void test_threads_lose_nothing_uncounted(void **state)
{
    struct fixture f = {0};
    setup(&f);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvfi_thread_start("emitter", emit_many, f.events, &threads[i], NULL),
                         KVF_OK);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    uint64_t dropped = kvf_metrics_get(f.metrics, KVF_COUNTER_events_dropped);
    char *text = finish(&f);
    uint64_t written = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_memory_equal(line, "{\"t_wall_ns\":", 13);
        assert_int_equal(line[strlen(line) - 1], '}');
        written++;
    }
    assert_int_equal(written + dropped, 30000);
    assert_true(written > 0);
    free(text);
}

static void test_open_names_what_is_wrong(void **state)
{
    struct kvf_events *events = NULL;
    struct kvf_error error;
    assert_int_equal(kvf_events_open("no/such/dir/x", "e", "prefill", NULL, &events, &error),
                     KVF_ESYSTEM);
    assert_string_equal(error.text, "event file no/such/dir/x: No such file or directory");
    char longer[600];
    memset(longer, 'e', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(kvf_events_open("events_test.unused", longer, "x", NULL, &events, &error),
                     KVF_ELIMIT);
    assert_int_equal(kvf_events_open(NULL, "e", "x", NULL, &events, &error), KVF_EINVAL);
    assert_null(events);
    kvf_events_emit(NULL, "x", "y", NULL, 0);
    kvf_events_close(NULL);
}

/* B75 in small: opening and closing at once, many times, ends every time. */
static void test_open_and_close_at_once(void **state)
{
    for (int i = 0; i < 50; i++) {
        struct fixture f = {0};
        setup(&f);
        if (i % 2)
            kvf_events_emit(f.events, "only", "r", NULL, 0);
        char *text = finish(&f);
        assert_int_equal(text[0] != '\0', i % 2);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_is_one_json_line),
        cmocka_unit_test(test_hostile_ids_are_escaped),
        cmocka_unit_test(test_a_record_over_the_limit_is_dropped_and_counted),
        cmocka_unit_test(test_threads_lose_nothing_uncounted),
        cmocka_unit_test(test_open_names_what_is_wrong),
        cmocka_unit_test(test_open_and_close_at_once),
    };
    return cmocka_run_group_tests_name("runtime/events", tests, NULL, NULL);
}
