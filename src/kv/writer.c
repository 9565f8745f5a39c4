/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/worker.h"

#include "runtime/alloc.h"
#include "runtime/clock.h"
#include "runtime/ratelimit.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define FALLBACK_POLL_NS KVFI_NS_PER_MS
#define MEMORY_RETRY_MS  10
/* Turns of the agent before steps and handshakes get theirs. */
#define AGENT_ROUNDS_MAX 32

enum {
    BIT_WAKE,
    BIT_STEPS,
    BIT_HANDSHAKES,
    BIT_AGENT,
};

/* False when the core has no memory for it: the event has not happened yet. */
static bool apply(struct kvf_worker *worker, struct kvfi_event *event)
{
    event->now_ns = kvfi_clock_mono_ns();
    return kvfi_worker_core_step(worker->writer.core, event, worker->writer.effects) == KVF_OK;
}

/* ---- what the agent reports, from inside its progress --------------------------------------- */

static void set_reason(struct kvfi_event *event, const char *reason)
{
    switch (event->kind) {
    case KVFI_EVENT_PEER_LOST:
        event->peer_lost.reason = reason;
        break;
    case KVFI_EVENT_TRANSFER_DONE:
        event->transfer_done.reason = reason;
        break;
    case KVFI_EVENT_SEND_FAILED:
        event->send_failed.reason = reason;
        break;
    case KVFI_EVENT_STEP:
    case KVFI_EVENT_NOTIFICATION:
    case KVFI_EVENT_HANDSHAKE_REPLY:
    case KVFI_EVENT_PEER_LOADED:
    case KVFI_EVENT_TICK:
        break;
    }
}

/* Applies the event, or keeps it in `spare` (taken over; NULL: allocate) until there is memory.
 * Behind one that waits, all wait. */
static void apply_or_keep(struct kvf_worker *worker, struct kvfi_event *event, const char *reason,
                          struct kvfi_late_event *spare)
{
    struct kvfi_writer *writer = &worker->writer;
    set_reason(event, reason ? reason : "");
    if (STAILQ_EMPTY(&writer->late_events) && apply(worker, event)) {
        kvfi_free(&worker->allocator, spare);
        return;
    }
    struct kvfi_late_event *late =
        spare ? spare : kvfi_calloc(&worker->allocator, 1, sizeof(*late));
    if (!late) {
        /* A lost peer or an undelivered message. The core needs no memory for those, and out of
         * turn is better than never: a peer whose loss it missed would be used for ever. */
        if (!apply(worker, event))
            KVFI_LOG_LIMITED(KVF_LOG_ERROR, "no memory for an event of the agent");
        return;
    }
    late->event = *event;
    snprintf(late->reason, sizeof(late->reason), "%s", reason ? reason : "");
    set_reason(&late->event, late->reason);
    STAILQ_INSERT_TAIL(&writer->late_events, late, link);
}

/* A copy with what the event points to; NULL when there is no memory for that either. */
static struct kvfi_late_event *copy_notification(struct kvf_worker *worker,
                                                 const struct kvfi_event *event)
{
    size_t sender_size = strlen(event->notification.sender) + 1;
    size_t message_len = event->notification.message_len;
    struct kvfi_late_event *late =
        message_len < SIZE_MAX - sizeof(*late) - sender_size
            ? kvfi_calloc(&worker->allocator, 1, sizeof(*late) + sender_size + message_len)
            : NULL;
    if (!late)
        return NULL;
    char *sender = (char *)(late + 1);
    memcpy(sender, event->notification.sender, sender_size);
    if (message_len > 0)
        memcpy(sender + sender_size, event->notification.message, message_len);
    late->event = *event;
    late->event.notification.sender = sender;
    late->event.notification.message = sender + sender_size;
    return late;
}

static void on_notification(void *ctx, const char *name, const void *message, size_t message_len)
{
    struct kvf_worker *worker = ctx;
    struct kvfi_writer *writer = &worker->writer;
    struct kvfi_event event = {
        .kind = KVFI_EVENT_NOTIFICATION,
        .notification = {.sender = name, .message = message, .message_len = message_len}};
    if (STAILQ_EMPTY(&writer->late_events) && apply(worker, &event))
        return;
    struct kvfi_late_event *late = copy_notification(worker, &event);
    if (late) {
        STAILQ_INSERT_TAIL(&writer->late_events, late, link);
        return;
    }
    /* Its request ends by lease and watchdog. */
    kvf_metrics_add(worker->metrics, KVF_COUNTER_bad_messages, 1);
    KVFI_LOG_LIMITED(KVF_LOG_ERROR, "no memory for a notification of %zu bytes", message_len);
}

static void on_transfer_done(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                             enum kvf_status status, const struct kvf_transfer_stats *stats)
{
    struct kvf_worker *worker = ctx;
    struct kvfi_write *write = (struct kvfi_write *)(uintptr_t)user_data;
    LIST_REMOVE(write, link);
    const char *reason = status == KVF_OK ? "" : kvf_status_text(status);
    if (status != KVF_OK)
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "WRITE failed: %s", reason);
    struct kvfi_event event = {
        .kind = KVFI_EVENT_TRANSFER_DONE,
        .transfer_done = {.token = write->token, .status = status, .stats = *stats}};
    apply_or_keep(worker, &event, reason, &write->late);
}

static void on_peer_lost(void *ctx, struct kvf_peer_id peer, const char *reason)
{
    struct kvf_worker *worker = ctx;
    const char *name = kvf_agent_peer_name(worker->writer.agent, peer);
    kvf_log(KVF_LOG_WARNING, "peer %s lost: %s", name ? name : "", reason ? reason : "");
    struct kvfi_event event = {.kind = KVFI_EVENT_PEER_LOST, .peer_lost = {.peer = peer}};
    apply_or_keep(worker, &event, reason, NULL);
}

static void on_notify_failed(void *ctx, struct kvf_peer_id peer, uint64_t user_data,
                             enum kvf_status status)
{
    const char *reason = kvf_status_text(status);
    KVFI_LOG_LIMITED(KVF_LOG_WARNING, "notification not delivered: %s", reason);
    struct kvfi_event event = {.kind = KVFI_EVENT_SEND_FAILED,
                               .send_failed = {.token = user_data, .status = status}};
    apply_or_keep(ctx, &event, reason, NULL);
}

/* ---- one turn: each source to its end; false when memory is short ---------------------------- */

static bool drain_late_events(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    struct kvfi_late_event *late;
    while ((late = STAILQ_FIRST(&writer->late_events))) {
        if (!apply(worker, &late->event))
            return false;
        STAILQ_REMOVE_HEAD(&writer->late_events, link);
        kvfi_free(&worker->allocator, late);
        if (!kvfi_worker_settle(worker))
            return false;
    }
    return kvfi_worker_settle(worker);
}

static bool drain_steps(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    while (writer->step || (writer->step = kvfi_queue_pop(worker->steps))) {
        struct kvfi_event event = {.kind = KVFI_EVENT_STEP, .step = writer->step};
        if (!apply(worker, &event))
            return false;
        kvf_step_free(writer->step);
        writer->step = NULL;
        if (!kvfi_worker_settle(worker))
            return false;
    }
    return true;
}

static bool drain_handshakes(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    while (writer->reply || (writer->reply = kvfi_handshake_client_take(worker->client))) {
        const struct kvfi_handshake_result *reply = writer->reply;
        struct kvfi_event event = {.kind = KVFI_EVENT_HANDSHAKE_REPLY,
                                   .handshake_reply = {.handshake_id = reply->handshake_id,
                                                       .status = reply->status,
                                                       .payload = reply->payload,
                                                       .payload_len = reply->payload_len,
                                                       .reason = reply->error.text}};
        if (!apply(worker, &event))
            return false;
        if (reply->status != KVF_OK)
            KVFI_LOG_LIMITED(KVF_LOG_WARNING, "handshake failed: %s", reply->error.text);
        kvfi_handshake_result_free(worker->client, writer->reply);
        writer->reply = NULL;
        if (!kvfi_worker_settle(worker))
            return false;
    }
    return true;
}

static bool tick_if_due(struct kvf_worker *worker)
{
    if (kvfi_worker_core_deadline_ns(worker->writer.core) > kvfi_clock_mono_ns())
        return true;
    struct kvfi_event event = {.kind = KVFI_EVENT_TICK};
    return apply(worker, &event) && kvfi_worker_settle(worker);
}

static bool drain_agent(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    writer->busy = true;
    for (int i = 0; i < AGENT_ROUNDS_MAX && writer->busy; i++) {
        writer->busy = kvf_agent_progress(writer->agent) > 0;
        if (!kvfi_worker_settle(worker) || !drain_late_events(worker))
            return false;
    }
    return true;
}

static bool turn(struct kvf_worker *worker)
{
    kvfi_worker_flush_results(worker);
    return kvfi_worker_settle(worker) && drain_late_events(worker) && drain_steps(worker) &&
           drain_handshakes(worker) && tick_if_due(worker) && drain_agent(worker);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void publish_usage(struct kvf_worker *worker)
{
    struct kvf_worker_usage usage = {0};
    kvfi_worker_core_usage(worker->writer.core, &usage);
    kvf_agent_usage(worker->writer.agent, &usage.agent);
    pthread_mutex_lock(&worker->usage_lock);
    worker->usage = usage;
    pthread_mutex_unlock(&worker->usage_lock);
}

/* When the next turn is due if nothing wakes us: 0 for at once. */
static uint64_t next_turn_ns(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    uint64_t deadline_ns = kvfi_worker_core_deadline_ns(writer->core);
    if (writer->busy)
        return 0;
    if (kvf_agent_fd(writer->agent) >= 0) {
        /* Arming is the agent's last word before the sleep: nothing may be posted after it. */
        enum kvf_status status = kvf_agent_arm(writer->agent);
        if (status == KVF_OK)
            return deadline_ns;
        if (status == KVF_AGAIN)
            return 0;
        /* A descriptor that cannot be armed is as good as none. */
    }
    kvf_metrics_add(worker->metrics, KVF_COUNTER_fallback_polls, 1);
    uint64_t poll_ns = kvfi_clock_mono_ns() + FALLBACK_POLL_NS;
    return poll_ns < deadline_ns ? poll_ns : deadline_ns;
}

/* Memory is short: everything stays as it is for a moment; only stop is listened to. */
static void sleep_without_memory(struct kvf_worker *worker)
{
    KVFI_LOG_LIMITED(KVF_LOG_ERROR, "no memory: the worker pauses and tries again");
    struct pollfd wake = {.fd = worker->wake.fd, .events = POLLIN};
    if (poll(&wake, 1, MEMORY_RETRY_MS) > 0)
        kvfi_wake_clear(&worker->wake); /* else the next pause would be none */
}

static void run(struct kvf_worker *worker)
{
    while (!atomic_load(&worker->stop)) {
        bool done = turn(worker);
        publish_usage(worker);
        if (!done) {
            sleep_without_memory(worker);
            continue;
        }
        uint32_t bits = kvfi_loop_wait(&worker->writer.loop, next_turn_ns(worker));
        if (bits & (1u << BIT_WAKE))
            kvfi_wake_clear(&worker->wake);
        if (bits & (1u << BIT_STEPS))
            kvfi_queue_clear(worker->steps);
        if (bits & (1u << BIT_HANDSHAKES))
            kvfi_handshake_client_clear(worker->client);
    }
}

/* ---- set-up and take-down, on the thread, because the agent belongs to it -------------------- */

static enum kvf_status make_agent(struct kvf_worker *worker,
                                  const struct kvf_worker_options *options, struct kvf_error *error)
{
    struct kvf_agent_options agent_options = KVF_AGENT_OPTIONS_INIT;
    agent_options.lane = options->lane;
    agent_options.lane_ctx = options->lane_ctx;
    agent_options.allocator = &worker->allocator;
    agent_options.callbacks = (struct kvf_agent_callbacks){.ctx = worker,
                                                           .notification = on_notification,
                                                           .transfer_done = on_transfer_done,
                                                           .peer_lost = on_peer_lost,
                                                           .notify_failed = on_notify_failed};
    KVF_TRY(kvf_agent_create(&agent_options, &worker->writer.agent, error));
    for (size_t i = 0; i < options->cache.storage_count; i++) {
        const struct kvf_kv_storage *storage = &options->cache.storages[i];
        KVF_TRY(kvf_agent_register(worker->writer.agent, storage->base, storage->length_bytes,
                                   storage->kind, storage->device_id, error));
    }
    return KVF_OK;
}

static enum kvf_status make_payload(struct kvf_worker *worker, struct kvf_error *error)
{
    struct kvfi_writer *writer = &worker->writer;
    void *blob = NULL;
    size_t blob_len = 0;
    KVF_TRY(kvf_agent_metadata(writer->agent, &blob, &blob_len, error));
    enum kvf_status status = kvfi_worker_core_payload(
        writer->core, blob, blob_len, &worker->payload, &worker->payload_len, error);
    kvf_agent_blob_free(writer->agent, blob);
    return status;
}

static enum kvf_status make_loop(struct kvf_worker *worker, struct kvf_error *error)
{
    struct kvfi_writer *writer = &worker->writer;
    KVF_TRY(kvfi_loop_init(&writer->loop, error));
    KVF_TRY(kvfi_loop_add(&writer->loop, worker->wake.fd, BIT_WAKE, error));
    KVF_TRY(kvfi_loop_add(&writer->loop, kvfi_queue_fd(worker->steps), BIT_STEPS, error));
    KVF_TRY(kvfi_loop_add(&writer->loop, kvfi_handshake_client_fd(worker->client), BIT_HANDSHAKES,
                          error));
    int agent_fd = kvf_agent_fd(writer->agent);
    return agent_fd >= 0 ? kvfi_loop_add(&writer->loop, agent_fd, BIT_AGENT, error) : KVF_OK;
}

static enum kvf_status copy_regions(struct kvf_worker *worker,
                                    const struct kvf_worker_options *options,
                                    struct kvf_error *error)
{
    struct kvfi_writer *writer = &worker->writer;
    size_t count = options->cache.region_count;
    writer->regions = kvfi_calloc(&worker->allocator, count, sizeof(*writer->regions));
    if (!writer->regions)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %zu regions", count);
    memcpy(writer->regions, options->cache.regions, count * sizeof(*writer->regions));
    for (size_t i = 0; i < count; i++)
        writer->regions[i].name = NULL;
    writer->region_count = count;
    writer->debug_checksums = options->debug_checksums;
    return KVF_OK;
}

static enum kvf_status set_up(struct kvf_worker *worker, const struct kvf_worker_options *options,
                              struct kvf_error *error)
{
    struct kvfi_writer *writer = &worker->writer;
    writer->loop = (struct kvfi_loop){.epoll_fd = -1, .timer_fd = -1};
    STAILQ_INIT(&writer->late_events);
    STAILQ_INIT(&writer->backlog);
    LIST_INIT(&writer->writes);
    const struct kvfi_worker_core_options core_options = {
        .config = &options->config, .cache = &options->cache, .allocator = &worker->allocator};
    KVF_TRY(kvfi_worker_core_create(&core_options, &writer->core, error));
    KVF_TRY(copy_regions(worker, options, error));
    writer->effects = kvfi_effects_create(&worker->allocator);
    if (!writer->effects)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the list of effects");
    KVF_TRY(make_agent(worker, options, error));
    KVF_TRY(make_payload(worker, error));
    KVF_TRY(make_loop(worker, error));
    publish_usage(worker);
    return KVF_OK;
}

/* Whatever there is, after any part of set_up: first those who use the cache. */
static void take_down(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    kvf_agent_destroy(writer->agent);
    kvfi_loop_deinit(&writer->loop);
    /* The agent has ended every transfer without calling back. */
    struct kvfi_write *write;
    while ((write = LIST_FIRST(&writer->writes))) {
        LIST_REMOVE(write, link);
        kvfi_free(&worker->allocator, write);
    }
    struct kvfi_late_event *late;
    while ((late = STAILQ_FIRST(&writer->late_events))) {
        STAILQ_REMOVE_HEAD(&writer->late_events, link);
        kvfi_free(&worker->allocator, late);
    }
    struct kvfi_result_node *node;
    while ((node = STAILQ_FIRST(&writer->backlog))) {
        STAILQ_REMOVE_HEAD(&writer->backlog, link);
        kvfi_free(&worker->allocator, node);
    }
    kvf_step_free(writer->step);
    kvfi_handshake_result_free(worker->client, writer->reply);
    kvfi_effects_destroy(writer->effects);
    kvfi_free(&worker->allocator, writer->regions);
    if (worker->payload)
        kvfi_worker_core_payload_free(writer->core, worker->payload);
    kvfi_worker_core_destroy(writer->core);
}

void *kvfi_writer_main(void *ctx)
{
    struct kvfi_writer_start *start = ctx;
    struct kvf_worker *worker = start->worker;
    enum kvf_status status = set_up(worker, start->options, &start->error);
    start->status = status;
    sem_post(&start->done); /* the creator goes on; *start is gone */
    if (status == KVF_OK)
        run(worker);
    take_down(worker);
    return NULL;
}
