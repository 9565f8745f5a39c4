/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include "runtime/ratelimit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct sink {
    int count;
    enum kvf_log_level level;
    char line[2048];
};

static void take_line(void *ctx, enum kvf_log_level level, const char *line)
{
    struct sink *sink = ctx;
    sink->count++;
    sink->level = level;
    snprintf(sink->line, sizeof(sink->line), "%s", line);
    errno = EIO;
}

static void test_nothing_is_written_without_a_sink(void **state)
{
    struct sink sink = {0};
    kvf_log(KVF_LOG_ERROR, "lost");
    kvf_log_set(take_line, &sink, KVF_LOG_ERROR);
    kvf_log_set(NULL, NULL, KVF_LOG_TRACE);
    kvf_log(KVF_LOG_ERROR, "lost");
    assert_int_equal(sink.count, 0);
}

static void test_levels_and_errno(void **state)
{
    struct sink sink = {0};
    kvf_log_set(take_line, &sink, KVF_LOG_INFO);
    kvf_log(KVF_LOG_DEBUG, "not this one");
    assert_int_equal(sink.count, 0);
    errno = ENOENT;
    kvf_log(KVF_LOG_INFO, "peer %s loaded", "a");
    assert_int_equal(errno, ENOENT);
    assert_int_equal(sink.count, 1);
    assert_int_equal(sink.level, KVF_LOG_INFO);
    assert_string_equal(sink.line, "peer a loaded");
    kvf_log_set(NULL, NULL, KVF_LOG_ERROR);
}

static void test_a_hostile_text_stays_one_line(void **state)
{
    struct sink sink = {0};
    kvf_log_set(take_line, &sink, KVF_LOG_TRACE);
    kvf_log(KVF_LOG_WARNING, "id %s", "a\nb\x1b[31m\rc\x7f");
    assert_string_equal(sink.line, "id a?b?[31m?c?");
    char longer[4000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    kvf_log(KVF_LOG_WARNING, "%s", longer);
    assert_int_equal(strlen(sink.line), 1023);
    assert_string_equal(sink.line + 1020, "...");
    kvf_log_set(NULL, NULL, KVF_LOG_ERROR);
}

static void test_the_limiter_counts_what_it_holds_back(void **state)
{
    struct kvfi_ratelimit limit = {0};
    uint64_t held_back = 99;
    assert_true(kvfi_ratelimit_allow(&limit, 1000, 100, &held_back));
    assert_int_equal(held_back, 0);
    assert_false(kvfi_ratelimit_allow(&limit, 1099, 100, &held_back));
    assert_false(kvfi_ratelimit_allow(&limit, 1000, 100, &held_back));
    assert_true(kvfi_ratelimit_allow(&limit, 1100, 100, &held_back));
    assert_int_equal(held_back, 2);
    assert_true(kvfi_ratelimit_allow(&limit, 1200, 100, &held_back));
    assert_int_equal(held_back, 0);
}

static void test_a_limited_site_writes_once(void **state)
{
    struct sink sink = {0};
    kvf_log_set(take_line, &sink, KVF_LOG_WARNING);
    for (int i = 0; i < 100; i++)
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "bad message %d", i);
    /* The second of the limit may end in the middle of a very slow run. */
    assert_in_range(sink.count, 1, 2);
    kvf_log_set(NULL, NULL, KVF_LOG_ERROR);
}

static void test_the_file_sink_stamps_its_lines(void **state)
{
    char *text = NULL;
    size_t len = 0;
    FILE *file = open_memstream(&text, &len);
    assert_non_null(file);
    kvf_log_set(kvf_log_to_file, file, KVF_LOG_WARNING);
    kvf_log(KVF_LOG_WARNING, "port %d in use", 5600);
    kvf_log_set(NULL, NULL, KVF_LOG_ERROR);
    fclose(file);
    int year, month, day, hour, minute, second, milli, end = 0;
    assert_int_equal(sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day, &hour,
                            &minute, &second, &milli, &end),
                     7);
    assert_int_equal(end, 24);
    assert_string_equal(text + 24, " warning port 5600 in use\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_written_without_a_sink),
        cmocka_unit_test(test_levels_and_errno),
        cmocka_unit_test(test_a_hostile_text_stays_one_line),
        cmocka_unit_test(test_the_limiter_counts_what_it_holds_back),
        cmocka_unit_test(test_a_limited_site_writes_once),
        cmocka_unit_test(test_the_file_sink_stamps_its_lines),
    };
    return cmocka_run_group_tests_name("runtime/log", tests, NULL, NULL);
}
