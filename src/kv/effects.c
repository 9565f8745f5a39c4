/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/worker.h"

#include "runtime/alloc.h"
#include "runtime/clock.h"
#include "runtime/ratelimit.h"

#include <stdio.h>
#include <string.h>

/* The slot for what became of the effect at hand; the loop in kvfi_worker_settle empties it. */
static struct kvfi_event *feed_back(struct kvf_worker *worker, enum kvfi_event_kind kind,
                                    const char *reason)
{
    struct kvfi_late_event *feedback = &worker->writer.feedback;
    worker->writer.has_feedback = true;
    feedback->event = (struct kvfi_event){.kind = kind};
    snprintf(feedback->reason, sizeof(feedback->reason), "%.*s", KVF_REASON_LEN_MAX, reason);
    return &feedback->event;
}

static void start_handshake(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    uint64_t handshake_id = effect->handshake.handshake_id;
    struct kvf_error error;
    enum kvf_status status = kvfi_handshake_client_start(
        worker->client, handshake_id, effect->handshake.host, effect->handshake.port,
        effect->handshake.pp_rank, effect->handshake.tp_rank, effect->handshake.timeout_ns, &error);
    if (status == KVF_OK)
        return;
    KVFI_LOG_LIMITED(KVF_LOG_WARNING, "no handshake: %s", error.text);
    struct kvfi_event *event = feed_back(worker, KVFI_EVENT_HANDSHAKE_REPLY, error.text);
    event->handshake_reply.handshake_id = handshake_id;
    event->handshake_reply.status = status;
    event->handshake_reply.reason = worker->writer.feedback.reason;
}

static void load_peer(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    struct kvfi_writer *writer = &worker->writer;
    uint64_t handshake_id = effect->load_peer.handshake_id;
    struct kvf_peer_id peer = {0};
    struct kvf_error error = {0};
    enum kvf_status status = kvf_agent_load(writer->agent, effect->load_peer.blob,
                                            effect->load_peer.blob_len, &peer, &error);
    if (status == KVF_OK)
        kvf_log(KVF_LOG_INFO, "peer %s loaded", kvf_agent_peer_name(writer->agent, peer));
    else
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "peer not loaded: %s", error.text);
    struct kvfi_event *event = feed_back(worker, KVFI_EVENT_PEER_LOADED, error.text);
    event->peer_loaded.handshake_id = handshake_id;
    event->peer_loaded.status = status;
    event->peer_loaded.peer = peer;
    event->peer_loaded.reason = writer->feedback.reason;
}

static void drop_peer(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    const char *name = kvf_agent_peer_name(worker->writer.agent, effect->drop_peer.peer);
    if (name)
        kvf_log(KVF_LOG_INFO, "peer %s dropped", name);
    /* A stale id is a peer that is gone already, which is what was wanted. */
    enum kvf_status status = kvf_agent_drop(worker->writer.agent, effect->drop_peer.peer);
    (void)status;
}

static void send_message(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    uint64_t token = effect->send.token;
    struct kvf_error error;
    enum kvf_status status =
        kvf_agent_notify(worker->writer.agent, effect->send.peer, effect->send.message,
                         effect->send.message_len, token, &error);
    if (status == KVF_OK)
        return;
    KVFI_LOG_LIMITED(KVF_LOG_WARNING, "notification not sent: %s", error.text);
    struct kvfi_event *event = feed_back(worker, KVFI_EVENT_SEND_FAILED, error.text);
    event->send_failed.token = token;
    event->send_failed.status = status;
    event->send_failed.reason = worker->writer.feedback.reason;
}

static void post_write(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    struct kvfi_writer *writer = &worker->writer;
    uint64_t token = effect->write.token;
    struct kvf_error error;
    enum kvf_status status = KVF_ENOMEM;
    struct kvfi_write *write = kvfi_calloc(&worker->allocator, 1, sizeof(*write));
    if (write) {
        struct kvf_transfer_id transfer;
        write->token = token;
        status = kvf_agent_post(writer->agent, KVF_WRITE, effect->write.peer, &effect->write.plan,
                                effect->write.message, effect->write.message_len,
                                (uint64_t)(uintptr_t)write, &transfer, &error);
    } else {
        kvf_fail(&error, KVF_ENOMEM, "no memory for a WRITE");
    }
    if (status == KVF_OK) {
        LIST_INSERT_HEAD(&writer->writes, write, link);
        return;
    }
    kvfi_free(&worker->allocator, write);
    KVFI_LOG_LIMITED(KVF_LOG_WARNING, "WRITE of request %s not posted: %s",
                     effect->write.request_id ? effect->write.request_id : "", error.text);
    struct kvfi_event *event = feed_back(worker, KVFI_EVENT_TRANSFER_DONE, error.text);
    event->transfer_done.token = token;
    event->transfer_done.status = status;
    event->transfer_done.reason = writer->feedback.reason;
}

/* ---- results -------------------------------------------------------------------------------- */

void kvfi_worker_flush_results(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    if (STAILQ_EMPTY(&writer->backlog))
        return;
    /* Before the attempt, acquire and release: either the engine's exchange comes later and wakes
     * us, or it came earlier and the room it made is seen here. */
    atomic_exchange_explicit(&worker->room_wanted, true, memory_order_acq_rel);
    struct kvfi_result_node *node;
    while ((node = STAILQ_FIRST(&writer->backlog))) {
        STAILQ_REMOVE_HEAD(&writer->backlog, link);
        if (kvfi_queue_push(worker->results, node) != KVF_OK) {
            STAILQ_INSERT_HEAD(&writer->backlog, node, link);
            return;
        }
    }
    atomic_store_explicit(&worker->room_wanted, false, memory_order_relaxed);
}

static bool give_result(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    struct kvfi_result_node *node = kvfi_calloc(&worker->allocator, 1, sizeof(*node));
    if (!node)
        return false;
    node->result = effect->result;
    STAILQ_INSERT_TAIL(&worker->writer.backlog, node, link);
    kvfi_worker_flush_results(worker);
    return true;
}

/* ---- records -------------------------------------------------------------------------------- */

static void emit_record(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    const struct kvfi_writer *writer = &worker->writer;
    struct kvf_event_field fields[KVFI_RECORD_FIELDS_MAX + 1];
    char hex[KVFI_CHECKSUM_LEN + 1];
    size_t count = effect->record.field_count;
    memcpy(fields, effect->record.fields, count * sizeof(fields[0]));
    if (writer->debug_checksums && worker->events && effect->record.block_count > 0 &&
        kvfi_checksum_blocks(writer->regions, writer->region_count, effect->record.block_ids,
                             effect->record.block_count, hex))
        fields[count++] = (struct kvf_event_field){.name = "sha256", .text = hex};
    kvf_events_emit(worker->events, effect->record.event, effect->record.request_id, fields, count);
}

/* ---- the list ------------------------------------------------------------------------------- */

/* False when it could not be done now and has to be tried again as it stands. */
static bool perform(struct kvf_worker *worker, const struct kvfi_effect *effect)
{
    switch (effect->kind) {
    case KVFI_EFFECT_HANDSHAKE:
        start_handshake(worker, effect);
        return true;
    case KVFI_EFFECT_LOAD_PEER:
        load_peer(worker, effect);
        return true;
    case KVFI_EFFECT_DROP_PEER:
        drop_peer(worker, effect);
        return true;
    case KVFI_EFFECT_SEND:
        send_message(worker, effect);
        return true;
    case KVFI_EFFECT_WRITE:
        post_write(worker, effect);
        return true;
    case KVFI_EFFECT_RESULT:
        return give_result(worker, effect);
    case KVFI_EFFECT_RECORD:
        emit_record(worker, effect);
        return true;
    case KVFI_EFFECT_COUNT:
        kvf_metrics_add(worker->metrics, effect->count.counter, effect->count.n);
        return true;
    case KVFI_EFFECT_OBSERVE:
        kvf_metrics_observe(worker->metrics, effect->observe.histogram, effect->observe.value);
        return true;
    }
    return true;
}

bool kvfi_worker_settle(struct kvf_worker *worker)
{
    struct kvfi_writer *writer = &worker->writer;
    for (;;) {
        if (writer->has_feedback) {
            /* Appends to the list that is being performed; nothing recurses. */
            writer->feedback.event.now_ns = kvfi_clock_mono_ns();
            if (kvfi_worker_core_step(writer->core, &writer->feedback.event, writer->effects) !=
                KVF_OK)
                return false;
            writer->has_feedback = false;
        }
        if (writer->effect_next == kvfi_effects_count(writer->effects))
            break;
        if (!perform(worker, kvfi_effects_at(writer->effects, writer->effect_next)))
            return false;
        writer->effect_next++;
    }
    kvfi_effects_reset(writer->effects);
    writer->effect_next = 0;
    return true;
}
