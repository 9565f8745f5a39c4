/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_OBSERVE_H
#define KVFERRY_OBSERVE_H

/*
 * What an operator sees: log lines, counters and event records.
 *
 * Nothing here blocks the caller or fails it. A full event ring or a line over the rate limit is
 * dropped and counted; the counts are themselves metrics.
 */

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- log ------------------------------------------------------------------------------------ */

/* Levels are defined by volume: error and warning once per failure (rate limited per site), info
 * once per change of a peer or engine, debug once per request, trace once per message. */
enum kvf_log_level {
    KVF_LOG_ERROR,
    KVF_LOG_WARNING,
    KVF_LOG_INFO,
    KVF_LOG_DEBUG,
    KVF_LOG_TRACE,
};

/* Receives one line without a newline. Called from any thread, possibly at the same time.
 * `line` is borrowed until return. */
typedef void (*kvf_log_fn)(void *ctx, enum kvf_log_level level, const char *line);

/* Sets the process-wide sink. The library writes nothing until this is called. Call it before
 * creating objects; NULL switches the log off. */
KVF_API void kvf_log_set(kvf_log_fn sink, void *ctx, enum kvf_log_level level);

/* A ready sink: "2026-11-30T12:00:00.000Z warning text" to the FILE given as ctx (NULL: stderr). */
KVF_API void kvf_log_to_file(void *file, enum kvf_log_level level, const char *line);

/* One line at `level`. Costs one load when the level is off. Preserves errno. Any thread. */
KVF_API void kvf_log(enum kvf_log_level level, const char *fmt, ...) KVF_PRINTF(2, 3);

/* ---- metrics -------------------------------------------------------------------------------- */

/*
 * X(field, name, help). Names that start with "vllm:" are those of vLLM's NIXL connector, so that
 * dashboards work on both; the others are kvferry's own. Text exposition adds "_total".
 */
#define KVF_COUNTER_LIST(X)                                                                        \
    X(failed_transfers, "vllm:nixl_num_failed_transfers",                                          \
      "Failed transfers, handshakes and notifications together")                                   \
    X(failed_notifications, "vllm:nixl_num_failed_notifications",                                  \
      "Notifications that could not be sent")                                                      \
    X(kv_expired_reqs, "vllm:nixl_num_kv_expired_reqs", "Leases that ended unread")                \
    X(notifications_after_expiry, "vllm:nixl_num_notifications_after_expiry",                      \
      "Completions for requests that are no longer tracked")                                       \
    X(failed_handshakes, "kvferry:failed_handshakes", "Handshakes that failed")                    \
    X(failed_writes, "kvferry:failed_writes", "WRITEs that could not be posted or failed")         \
    X(handshakes, "kvferry:handshakes", "Handshakes completed")                                    \
    X(registrations_sent, "kvferry:registrations_sent", "PUSH_REG messages sent")                  \
    X(registrations_received, "kvferry:registrations_received", "PUSH_REG messages received")      \
    X(matches, "kvferry:matches", "Registrations matched with finished blocks")                    \
    X(matches_ambiguous, "kvferry:matches_ambiguous",                                              \
      "Base ids with two candidates, both refused")                                                \
    X(writes_posted, "kvferry:writes_posted", "WRITEs posted")                                     \
    X(writes_done, "kvferry:writes_done", "WRITEs completed")                                      \
    X(runs_posted, "kvferry:runs_posted", "Contiguous runs posted after merging")                  \
    X(bytes_written, "kvferry:bytes_written", "Bytes of completed WRITEs")                         \
    X(receives_done, "kvferry:receives_done", "Receives that completed")                           \
    X(receives_failed, "kvferry:receives_failed", "Receives that failed")                          \
    X(negative_completions_sent, "kvferry:negative_completions_sent", "PUSH_FAIL messages sent")   \
    X(negative_completions_received, "kvferry:negative_completions_received",                      \
      "PUSH_FAIL messages received")                                                               \
    X(withdrawals_sent, "kvferry:withdrawals_sent", "PUSH_DROP messages sent")                     \
    X(withdrawals_received, "kvferry:withdrawals_received", "PUSH_DROP messages received")         \
    X(heartbeats_sent, "kvferry:heartbeats_sent", "Heartbeat messages sent")                       \
    X(heartbeats_received, "kvferry:heartbeats_received", "Heartbeat messages received")           \
    X(leases_renewed, "kvferry:leases_renewed", "Leases extended by a heartbeat")                  \
    X(registrations_expired, "kvferry:registrations_expired", "Decode watchdogs that fired")       \
    X(bad_messages, "kvferry:bad_messages", "Messages refused: malformed or out of range")         \
    X(late_messages, "kvferry:late_messages", "Messages for a request that has already ended")     \
    X(unknown_messages, "kvferry:unknown_messages", "Messages for a request never seen")           \
    X(peers_lost, "kvferry:peers_lost", "Peers whose connection failed")                           \
    X(quarantined, "kvferry:quarantined", "Requests whose blocks waited for a live transfer")      \
    X(bad_handshake_requests, "kvferry:bad_handshake_requests", "Side-channel requests refused")   \
    X(fallback_polls, "kvferry:fallback_polls", "1 ms polls of lanes without a descriptor")        \
    X(events_dropped, "kvferry:events_dropped", "Event records lost because the ring was full")

/* X(field, name, help, bucket list): buckets and units as in vLLM, section 8 of its facts. */
#define KVF_HISTOGRAM_LIST(X)                                                                      \
    X(xfer_time_seconds, "vllm:nixl_xfer_time_seconds", "Post to completion of a transfer", .005,  \
      .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5)                                             \
    X(post_time_seconds, "vllm:nixl_post_time_seconds", "Time to post a transfer", .001, .005,     \
      .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5)                                             \
    X(bytes_transferred, "vllm:nixl_bytes_transferred", "Bytes of a transfer", 2048, 8192, 32768,  \
      131072, 524288, 2097152, 8388608, 33554432, 134217728, 536870912, 2147483648, 8589934592)    \
    X(num_descriptors, "vllm:nixl_num_descriptors", "Descriptors of a transfer after merging", 10, \
      20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)                        \
    X(match_to_post_seconds, "kvferry:match_to_post_seconds",                                      \
      "Second of registration and finished blocks to first operation posted", .00001, .00003,      \
      .0001, .0003, .001, .003, .01, .03, .1, .3, 1)

/* A set of counters and histograms. Any thread may add and read; adding never blocks. */
struct kvf_metrics;

enum kvf_counter {
#define KVF_COUNTER_ENUM(field, name, help) KVF_COUNTER_##field,
    KVF_COUNTER_LIST(KVF_COUNTER_ENUM)
#undef KVF_COUNTER_ENUM
        KVF_COUNTER_COUNT,
};

enum kvf_histogram {
#define KVF_HISTOGRAM_ENUM(field, name, help, ...) KVF_HISTOGRAM_##field,
    KVF_HISTOGRAM_LIST(KVF_HISTOGRAM_ENUM)
#undef KVF_HISTOGRAM_ENUM
        KVF_HISTOGRAM_COUNT,
};

/* Returns owned; NULL when memory is short. */
KVF_API struct kvf_metrics *kvf_metrics_create(void);
KVF_API void kvf_metrics_destroy(struct kvf_metrics *metrics);
/* NULL metrics: no effect, so that call sites need no test. */
KVF_API void kvf_metrics_add(struct kvf_metrics *metrics, enum kvf_counter counter, uint64_t n);
KVF_API void kvf_metrics_observe(struct kvf_metrics *metrics, enum kvf_histogram histogram,
                                 double value);
KVF_API uint64_t kvf_metrics_get(const struct kvf_metrics *metrics, enum kvf_counter counter);

/* Prometheus text exposition of all of them into buf (always terminated when cap > 0). `labels` is
 * put between the braces, e.g. "model_name=\"m\",engine=\"0\"" (may be ""). Returns the length
 * needed without the terminator, as snprintf does. */
KVF_API size_t kvf_metrics_render(const struct kvf_metrics *metrics, const char *labels, char *buf,
                                  size_t cap);

/* ---- event records -------------------------------------------------------------------------- */

/*
 * One JSON line per step in a request's life, written by a background thread from a bounded ring:
 *
 *   {"t_wall_ns":...,"t_mono_ns":...,"engine":"id","role":"decode","event":"landed",
 *    "request":"cmpl-x-0-0a1b2c3d","base":"cmpl-x-0", ...fields}
 *
 * `kvferry trace` merges the files of several processes into one timeline. "base" is the request id
 * without its random suffix and pairs the two engines' records.
 */
struct kvf_events;

struct kvf_event_field {
    const char *name;
    const char *text; /* NULL: the field is `number` */
    int64_t number;
};

/* Opens (appends to) the file and starts the writer thread. Returns owned. KVF_ESYSTEM with the
 * path and reason when the file cannot be opened. */
KVF_API enum kvf_status kvf_events_open(const char *path, const char *engine_id, const char *role,
                                        struct kvf_metrics *metrics, struct kvf_events **events_p,
                                        struct kvf_error *error) KVF_MUST_USE;
/* Writes what is queued, then frees. NULL is allowed. Blocks until written. */
KVF_API void kvf_events_close(struct kvf_events *events);
/* Queues one record; drops and counts it when the ring is full or the record exceeds 1 KiB.
 * NULL events: no effect. Any thread, never blocks. Texts are borrowed until return. */
KVF_API void kvf_events_emit(struct kvf_events *events, const char *event, const char *request,
                             const struct kvf_event_field *fields, size_t field_count);

#ifdef __cplusplus
}
#endif
#endif
