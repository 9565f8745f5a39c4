/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_COUNT_MAX 16

struct counter_info {
    const char *name;
    const char *help;
};

static const struct counter_info counter_infos[] = {
#define COUNTER_INFO(field, name, help) {(name), (help)},
    KVF_COUNTER_LIST(COUNTER_INFO)
#undef COUNTER_INFO
};
_Static_assert(sizeof(counter_infos) / sizeof(counter_infos[0]) == KVF_COUNTER_COUNT,
               "one row per counter");

#define BUCKET_ARRAY(field, name, help, ...)                                                       \
    static const double buckets_##field[] = {__VA_ARGS__};                                         \
    _Static_assert(sizeof(buckets_##field) / sizeof(double) < BUCKET_COUNT_MAX, "room for +Inf");
KVF_HISTOGRAM_LIST(BUCKET_ARRAY)
#undef BUCKET_ARRAY

struct histogram_info {
    const char *name;
    const char *help;
    const double *bounds;
    size_t bound_count;
};

static const struct histogram_info histogram_infos[] = {
#define HISTOGRAM_INFO(field, name, help, ...)                                                     \
    {(name), (help), buckets_##field, sizeof(buckets_##field) / sizeof(double)},
    KVF_HISTOGRAM_LIST(HISTOGRAM_INFO)
#undef HISTOGRAM_INFO
};

struct histogram {
    _Atomic uint64_t buckets[BUCKET_COUNT_MAX]; /* not cumulative; the last one used is +Inf */
    _Atomic uint64_t sum_bits;                  /* a double */
};

/* Every access is relaxed: values are statistics and order nothing else. */
struct kvf_metrics {
    _Atomic uint64_t counters[KVF_COUNTER_COUNT];
    struct histogram histograms[KVF_HISTOGRAM_COUNT];
};

struct kvf_metrics *kvf_metrics_create(void)
{
    return calloc(1, sizeof(struct kvf_metrics));
}

void kvf_metrics_destroy(struct kvf_metrics *metrics)
{
    free(metrics);
}

void kvf_metrics_add(struct kvf_metrics *metrics, enum kvf_counter counter, uint64_t n)
{
    if (!metrics || (unsigned)counter >= KVF_COUNTER_COUNT)
        return;
    atomic_fetch_add_explicit(&metrics->counters[counter], n, memory_order_relaxed);
}

uint64_t kvf_metrics_get(const struct kvf_metrics *metrics, enum kvf_counter counter)
{
    if (!metrics || (unsigned)counter >= KVF_COUNTER_COUNT)
        return 0;
    return atomic_load_explicit(&metrics->counters[counter], memory_order_relaxed);
}

static double bits_to_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t double_to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

void kvf_metrics_observe(struct kvf_metrics *metrics, enum kvf_histogram histogram, double value)
{
    if (!metrics || (unsigned)histogram >= KVF_HISTOGRAM_COUNT || value != value)
        return;
    const struct histogram_info *info = &histogram_infos[histogram];
    struct histogram *hist = &metrics->histograms[histogram];
    size_t bucket = 0;
    while (bucket < info->bound_count && value > info->bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&hist->buckets[bucket], 1, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&hist->sum_bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&hist->sum_bits, &old,
                                                  double_to_bits(bits_to_double(old) + value),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ---- text ----------------------------------------------------------------------------------- */

struct text {
    char *buf;
    size_t cap;
    size_t len; /* needed so far, may exceed cap */
};

static void put(struct text *text, const char *fmt, ...) KVF_PRINTF(2, 3);
static void put(struct text *text, const char *fmt, ...)
{
    bool fits = text->len < text->cap;
    va_list args;
    va_start(args, fmt);
    int len =
        vsnprintf(fits ? text->buf + text->len : NULL, fits ? text->cap - text->len : 0, fmt, args);
    va_end(args);
    if (len > 0)
        text->len += (size_t)len;
}

/* The shortest digits that read back as the same value, in the form the Python client library
 * gives them ("1.0", "0.005", "2.097152e+06"): label values are compared as strings. */
static void put_number(struct text *text, double value)
{
    char digits[32];
    for (int precision = 1; precision <= 17; precision++) {
        if (value >= 1e6 || (value != 0 && value < 1e-4 && value > -1e-4))
            snprintf(digits, sizeof(digits), "%.*e", precision - 1, value);
        else
            snprintf(digits, sizeof(digits), "%.*g", precision < 6 ? 6 : precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    put(text, "%s%s", digits, strpbrk(digits, ".e") ? "" : ".0");
}

static void put_series(struct text *text, const char *name, const char *suffix, const char *labels)
{
    if (labels[0])
        put(text, "%s%s{%s} ", name, suffix, labels);
    else
        put(text, "%s%s ", name, suffix);
}

static void put_counter(struct text *text, const struct counter_info *info, const char *labels,
                        uint64_t value)
{
    put(text, "# HELP %s_total %s\n# TYPE %s_total counter\n", info->name, info->help, info->name);
    put_series(text, info->name, "_total", labels);
    put(text, "%" PRIu64 "\n", value);
}

static void put_histogram(struct text *text, const struct histogram_info *info, const char *labels,
                          const struct histogram *hist)
{
    put(text, "# HELP %s %s\n# TYPE %s histogram\n", info->name, info->help, info->name);
    uint64_t count = 0;
    for (size_t i = 0; i <= info->bound_count; i++) {
        count += atomic_load_explicit(&hist->buckets[i], memory_order_relaxed);
        put(text, "%s_bucket{%s%sle=\"", info->name, labels, labels[0] ? "," : "");
        if (i < info->bound_count)
            put_number(text, info->bounds[i]);
        else
            put(text, "+Inf");
        put(text, "\"} %" PRIu64 "\n", count);
    }
    put_series(text, info->name, "_sum", labels);
    put_number(text, bits_to_double(atomic_load_explicit(&hist->sum_bits, memory_order_relaxed)));
    put(text, "\n");
    /* The buckets' own total, so that one exposition always agrees with itself. */
    put_series(text, info->name, "_count", labels);
    put(text, "%" PRIu64 "\n", count);
}

size_t kvf_metrics_render(const struct kvf_metrics *metrics, const char *labels, char *buf,
                          size_t cap)
{
    struct text text = {.buf = buf, .cap = cap};
    if (cap > 0)
        buf[0] = '\0';
    if (!metrics)
        return 0;
    if (!labels)
        labels = "";
    for (size_t i = 0; i < KVF_COUNTER_COUNT; i++)
        put_counter(&text, &counter_infos[i], labels,
                    atomic_load_explicit(&metrics->counters[i], memory_order_relaxed));
    for (size_t i = 0; i < KVF_HISTOGRAM_COUNT; i++)
        put_histogram(&text, &histogram_infos[i], labels, &metrics->histograms[i]);
    return text.len;
}
