/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include "runtime/clock.h"
#include "runtime/ratelimit.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LINE_LEN_MAX 1024

static _Atomic int log_level = -1; /* the highest level that is on; -1: none */
static _Atomic(kvf_log_fn) log_sink;
static _Atomic(void *) log_ctx;

void kvf_log_set(kvf_log_fn sink, void *ctx, enum kvf_log_level level)
{
    /* Off while the pair changes; the release store of the level publishes both. */
    atomic_store(&log_level, -1);
    atomic_store(&log_sink, sink);
    atomic_store(&log_ctx, ctx);
    if (sink)
        atomic_store(&log_level, (int)level);
}

static bool level_is_on(enum kvf_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* A peer's text may hold anything; a line must stay one line of the operator's terminal. */
static void make_printable(char *line)
{
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    }
}

static void write_line(enum kvf_log_level level, const char *suffix, const char *fmt, va_list args)
    KVF_PRINTF(3, 0);
static void write_line(enum kvf_log_level level, const char *suffix, const char *fmt, va_list args)
{
    char line[LINE_LEN_MAX];
    int len = vsnprintf(line, sizeof(line), fmt, args);
    if (len < 0)
        return;
    size_t used = (size_t)len;
    if (used >= sizeof(line)) {
        memcpy(line + sizeof(line) - 4, "...", 4);
        used = sizeof(line) - 1;
    }
    if (suffix)
        snprintf(line + used, sizeof(line) - used, "%s", suffix);
    make_printable(line);
    kvf_log_fn sink = atomic_load(&log_sink);
    if (sink)
        sink(atomic_load(&log_ctx), level, line);
}

void kvf_log(enum kvf_log_level level, const char *fmt, ...)
{
    if (!level_is_on(level))
        return;
    int saved_errno = errno;
    va_list args;
    va_start(args, fmt);
    write_line(level, NULL, fmt, args);
    va_end(args);
    errno = saved_errno;
}

void kvfi_log_limited(struct kvfi_ratelimit *limit, enum kvf_log_level level, const char *fmt, ...)
{
    uint64_t held_back = 0;
    if (!level_is_on(level) ||
        !kvfi_ratelimit_allow(limit, kvfi_clock_mono_ns(), KVFI_LOG_INTERVAL_NS, &held_back))
        return;
    int saved_errno = errno;
    char suffix[48] = "";
    if (held_back > 0)
        snprintf(suffix, sizeof(suffix), " (%llu more like this)", (unsigned long long)held_back);
    va_list args;
    va_start(args, fmt);
    write_line(level, suffix, fmt, args);
    va_end(args);
    errno = saved_errno;
}

static const char *level_name(enum kvf_log_level level)
{
    switch (level) {
    case KVF_LOG_ERROR:
        return "error";
    case KVF_LOG_WARNING:
        return "warning";
    case KVF_LOG_INFO:
        return "info";
    case KVF_LOG_DEBUG:
        return "debug";
    case KVF_LOG_TRACE:
        return "trace";
    }
    return "unknown";
}

void kvf_log_to_file(void *file, enum kvf_log_level level, const char *line)
{
    uint64_t now_ns = kvfi_clock_wall_ns();
    time_t now_s = (time_t)(now_ns / KVFI_NS_PER_S);
    struct tm utc = {0};
    gmtime_r(&now_s, &utc);
    char stamp[24];
    if (strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc) == 0)
        return;
    /* One call: stdio's lock keeps lines of several threads whole. */
    fprintf(file ? (FILE *)file : stderr, "%s.%03uZ %s %s\n", stamp,
            (unsigned)(now_ns % KVFI_NS_PER_S / KVFI_NS_PER_MS), level_name(level), line);
}
