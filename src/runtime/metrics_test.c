/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include "runtime/thread.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *render(const struct kvf_metrics *metrics, const char *labels)
{
    size_t len = kvf_metrics_render(metrics, labels, NULL, 0);
    char *text = malloc(len + 1);
    assert_non_null(text);
    assert_int_equal(kvf_metrics_render(metrics, labels, text, len + 1), len);
    assert_int_equal(strlen(text), len);
    return text;
}

static void assert_has(const char *text, const char *lines)
{
    if (!strstr(text, lines))
        fail_msg("not found:\n%s\nin:\n%s", lines, text);
}

static void test_counters_in_prometheus_text(void **state)
{
    struct kvf_metrics *metrics = kvf_metrics_create();
    assert_non_null(metrics);
    kvf_metrics_add(metrics, KVF_COUNTER_kv_expired_reqs, 3);
    kvf_metrics_add(metrics, KVF_COUNTER_kv_expired_reqs, 4);
    assert_int_equal(kvf_metrics_get(metrics, KVF_COUNTER_kv_expired_reqs), 7);
    char *text = render(metrics, "model_name=\"m\",engine=\"0\"");
    assert_has(text, "# HELP vllm:nixl_num_kv_expired_reqs_total Leases that ended unread\n"
                     "# TYPE vllm:nixl_num_kv_expired_reqs_total counter\n"
                     "vllm:nixl_num_kv_expired_reqs_total{model_name=\"m\",engine=\"0\"} 7\n");
    free(text);
    text = render(metrics, "");
    assert_has(text, "\nvllm:nixl_num_kv_expired_reqs_total 7\n");
    free(text);
    kvf_metrics_destroy(metrics);
}

static void test_histograms_are_cumulative(void **state)
{
    struct kvf_metrics *metrics = kvf_metrics_create();
    kvf_metrics_observe(metrics, KVF_HISTOGRAM_xfer_time_seconds, 0.005); /* on the bound */
    kvf_metrics_observe(metrics, KVF_HISTOGRAM_xfer_time_seconds, 0.75);
    kvf_metrics_observe(metrics, KVF_HISTOGRAM_xfer_time_seconds, 100);
    kvf_metrics_observe(metrics, KVF_HISTOGRAM_xfer_time_seconds, NAN);
    char *text = render(metrics, "e=\"0\"");
    assert_has(text, "# TYPE vllm:nixl_xfer_time_seconds histogram\n"
                     "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"0.005\"} 1\n"
                     "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"0.01\"} 1\n");
    assert_has(text, "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"0.75\"} 2\n"
                     "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"1.0\"} 2\n"
                     "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"5.0\"} 2\n"
                     "vllm:nixl_xfer_time_seconds_bucket{e=\"0\",le=\"+Inf\"} 3\n"
                     "vllm:nixl_xfer_time_seconds_sum{e=\"0\"} 100.755\n"
                     "vllm:nixl_xfer_time_seconds_count{e=\"0\"} 3\n");
    free(text);
    /* Bounds as the Python client writes them. */
    text = render(metrics, "");
    assert_has(text, "vllm:nixl_bytes_transferred_bucket{le=\"2048.0\"} 0\n");
    assert_has(text, "vllm:nixl_bytes_transferred_bucket{le=\"131072.0\"} 0\n");
    assert_has(text, "vllm:nixl_bytes_transferred_bucket{le=\"2.097152e+06\"} 0\n");
    assert_has(text, "vllm:nixl_bytes_transferred_bucket{le=\"8.589934592e+09\"} 0\n");
    assert_has(text, "kvferry:match_to_post_seconds_bucket{le=\"1e-05\"} 0\n");
    assert_has(text, "vllm:nixl_bytes_transferred_sum 0.0\n");
    free(text);
    kvf_metrics_destroy(metrics);
}

static void test_a_short_buffer_is_terminated(void **state)
{
    struct kvf_metrics *metrics = kvf_metrics_create();
    char small[16];
    memset(small, 'x', sizeof(small));
    size_t needed = kvf_metrics_render(metrics, "", small, sizeof(small));
    assert_true(needed > sizeof(small));
    assert_string_equal(small, "# HELP vllm:nix");
    kvf_metrics_destroy(metrics);
}

static void test_null_and_unknown_are_harmless(void **state)
{
    kvf_metrics_add(NULL, KVF_COUNTER_handshakes, 1);
    kvf_metrics_observe(NULL, KVF_HISTOGRAM_xfer_time_seconds, 1);
    assert_int_equal(kvf_metrics_get(NULL, KVF_COUNTER_handshakes), 0);
    struct kvf_metrics *metrics = kvf_metrics_create();
    kvf_metrics_add(metrics, KVF_COUNTER_COUNT, 1);
    kvf_metrics_observe(metrics, KVF_HISTOGRAM_COUNT, 1);
    assert_int_equal(kvf_metrics_get(metrics, KVF_COUNTER_COUNT), 0);
    kvf_metrics_destroy(metrics);
    kvf_metrics_destroy(NULL);
}

static void *add_many(void *ctx)
{
    for (int i = 0; i < 10000; i++) {
        kvf_metrics_add(ctx, KVF_COUNTER_writes_done, 1);
        kvf_metrics_observe(ctx, KVF_HISTOGRAM_num_descriptors, 2);
    }
    return NULL;
}

static void test_threads_lose_no_count(void **state)
{
    struct kvf_metrics *metrics = kvf_metrics_create();
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvfi_thread_start("adder", add_many, metrics, &threads[i], NULL), KVF_OK);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(kvf_metrics_get(metrics, KVF_COUNTER_writes_done), 30000);
    char *text = render(metrics, "");
    assert_has(text, "vllm:nixl_num_descriptors_sum 60000.0\n"
                     "vllm:nixl_num_descriptors_count 30000\n");
    free(text);
    kvf_metrics_destroy(metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_in_prometheus_text),
        cmocka_unit_test(test_histograms_are_cumulative),
        cmocka_unit_test(test_a_short_buffer_is_terminated),
        cmocka_unit_test(test_null_and_unknown_are_harmless),
        cmocka_unit_test(test_threads_lose_no_count),
    };
    return cmocka_run_group_tests_name("runtime/metrics", tests, NULL, NULL);
}
