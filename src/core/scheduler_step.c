/* SPDX-License-Identifier: Apache-2.0 */
#include "core/scheduler.h"

#include "core/step.h"
#include "wire/notif.h"

#include <string.h>

uint64_t kvfi_scheduler_heartbeat_due_ns(const struct kvf_scheduler *scheduler)
{
    if (scheduler->beating_count == 0)
        return UINT64_MAX;
    return scheduler->has_beaten
               ? kvfi_ns_add(scheduler->beaten_ns, scheduler->heartbeat_interval_ns)
               : 0;
}

uint64_t kvf_scheduler_deadline_ns(const struct kvf_scheduler *scheduler)
{
    uint64_t beat = kvfi_scheduler_heartbeat_due_ns(scheduler);
    uint64_t watchdog = kvfi_deadlines_next_ns(&scheduler->watchdogs);
    return beat < watchdog ? beat : watchdog;
}

bool kvf_scheduler_has_pending_work(const struct kvf_scheduler *scheduler, uint64_t now_ns)
{
    return !kvfi_list_empty(&scheduler->registration_queue) ||
           !kvfi_list_empty(&scheduler->finished_queue) ||
           !kvfi_list_empty(&scheduler->in_batch_queue) ||
           !kvfi_list_empty(&scheduler->not_processed_queue) ||
           !kvfi_list_empty(&scheduler->withdrawn_queue) ||
           kvf_scheduler_deadline_ns(scheduler) <= now_ns;
}

void kvf_scheduler_usage(const struct kvf_scheduler *scheduler, struct kvf_scheduler_usage *usage)
{
    const size_t *counts = scheduler->state_counts;
    *usage = (struct kvf_scheduler_usage){
        .requests = scheduler->by_id.count,
        .receiving = counts[KVFI_REQUEST_DECODE_TO_REGISTER] +
                     counts[KVFI_REQUEST_DECODE_RECEIVING] + counts[KVFI_REQUEST_DECODE_TIMED_OUT],
        .held = counts[KVFI_REQUEST_PREFILL_HELD],
        .quarantined = counts[KVFI_REQUEST_DECODE_ENDED],
    };
}

/* ---- heartbeats ----------------------------------------------------------------------------- */

/*
 * Which ids renew the lease of one request: the id that the router gave, and our own when its base
 * differs. In push the router's is often only its own uuid, which no prefill request has, while
 * ours shares the base id with prefill's (bug B01).
 */
static size_t heartbeat_ids(const struct kvfi_request *request, const char *ids[2])
{
    size_t count = 0;
    struct kvfi_span ours = kvfi_span_str(request->request_id);
    struct kvfi_span given = kvfi_span_str(request->remote_request_id);
    /* A comma separates ids in the message. */
    if (!memchr(given.data, ',', given.len))
        ids[count++] = request->remote_request_id;
    struct kvfi_span our_base = kvfi_span(ours.data, kvfi_base_request_id(ours));
    struct kvfi_span given_base = kvfi_span(given.data, kvfi_base_request_id(given));
    if ((count == 0 || !kvfi_span_equal(our_base, given_base)) && !memchr(ours.data, ',', ours.len))
        ids[count++] = request->request_id;
    return count;
}

static const struct kvfi_request *beat_of(const struct kvfi_list *node)
{
    return KVFI_CONTAINER_OF(node, struct kvfi_request, beat);
}

static void count_heartbeats(const struct kvf_scheduler *scheduler, struct kvfi_step_sizes *sizes)
{
    for (size_t i = 0; i < scheduler->remotes.bucket_count; i++) {
        const struct kvfi_index_node *node = scheduler->remotes.buckets[i];
        for (; node; node = node->next) {
            const struct kvfi_remote *remote = KVFI_CONTAINER_OF(node, struct kvfi_remote, by_key);
            if (kvfi_list_empty(&remote->requests))
                continue;
            sizes->heartbeats++;
            kvfi_step_count_remote(sizes, &remote->engine);
            const struct kvfi_list *at = remote->requests.next;
            for (; at != &remote->requests; at = at->next) {
                const char *ids[2];
                size_t count = heartbeat_ids(beat_of(at), ids);
                sizes->ids += count;
                for (size_t k = 0; k < count; k++)
                    kvfi_step_count_text(sizes, ids[k]);
            }
        }
    }
}

static void put_heartbeats(const struct kvf_scheduler *scheduler, struct kvfi_step_builder *builder)
{
    for (size_t i = 0; i < scheduler->remotes.bucket_count; i++) {
        const struct kvfi_index_node *node = scheduler->remotes.buckets[i];
        for (; node; node = node->next) {
            const struct kvfi_remote *remote = KVFI_CONTAINER_OF(node, struct kvfi_remote, by_key);
            if (kvfi_list_empty(&remote->requests))
                continue;
            struct kvf_step_heartbeat *beat = &builder->heartbeats[builder->step->heartbeat_count];
            *beat = (struct kvf_step_heartbeat){.remote =
                                                    kvfi_step_put_remote(builder, &remote->engine)};
            const struct kvfi_list *at = remote->requests.next;
            for (; at != &remote->requests; at = at->next) {
                const char *ids[2];
                size_t count = heartbeat_ids(beat_of(at), ids);
                for (size_t k = 0; k < count; k++)
                    kvfi_step_put_id(builder, &beat->request_ids, &beat->request_count, ids[k]);
            }
            /* All of them unsendable: nothing to say. The text it took is only slack. */
            if (beat->request_count > 0)
                builder->step->heartbeat_count++;
        }
    }
}

/* ---- the step ------------------------------------------------------------------------------- */

static struct kvfi_request *queued(struct kvfi_list *node)
{
    return KVFI_CONTAINER_OF(node, struct kvfi_request, queue);
}

static void fire_watchdogs(struct kvf_scheduler *scheduler, uint64_t now_ns)
{
    struct kvfi_deadline *node = NULL;
    while ((node = kvfi_deadlines_pop(&scheduler->watchdogs, now_ns))) {
        struct kvfi_request *request = KVFI_CONTAINER_OF(node, struct kvfi_request, watchdog);
        if (request->state == KVFI_REQUEST_DECODE_RECEIVING) {
            kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_TIMED_OUT);
            kvfi_list_append(&scheduler->withdrawn_queue, &request->queue);
        } else {
            /* The engine made no step for so long that the workers have never heard of it. */
            kvfi_deadlines_set(&scheduler->watchdogs, node,
                               kvfi_ns_add(now_ns, scheduler->registration_timeout_ns));
        }
    }
}

static void count_ids(struct kvfi_list *queue, struct kvfi_step_sizes *sizes)
{
    for (struct kvfi_list *at = queue->next; at != queue; at = at->next) {
        sizes->ids++;
        kvfi_step_count_text(sizes, queued(at)->request_id);
    }
}

static void count_step(struct kvf_scheduler *scheduler, bool beat, struct kvfi_step_sizes *sizes)
{
    struct kvfi_list *queue = &scheduler->registration_queue;
    for (struct kvfi_list *at = queue->next; at != queue; at = at->next) {
        const struct kvfi_request *request = queued(at);
        sizes->registrations++;
        kvfi_step_count_text(sizes, request->request_id);
        kvfi_step_count_text(sizes, request->transfer_id);
        kvfi_step_count_text(sizes, request->remote_request_id);
        kvfi_step_count_remote(sizes, &request->remote->engine);
        sizes->block_ids += request->block_count;
    }
    queue = &scheduler->finished_queue;
    for (struct kvfi_list *at = queue->next; at != queue; at = at->next) {
        const struct kvfi_request *request = queued(at);
        sizes->finished++;
        kvfi_step_count_text(sizes, request->request_id);
        kvfi_step_count_text(sizes, request->transfer_id);
        sizes->block_ids += request->block_count;
    }
    queue = &scheduler->in_batch_queue;
    for (struct kvfi_list *at = queue->next; at != queue; at = at->next) {
        sizes->ids++;
        kvfi_step_count_text(sizes,
                             KVFI_CONTAINER_OF(at, struct kvfi_request, batch_queue)->request_id);
    }
    count_ids(&scheduler->not_processed_queue, sizes);
    count_ids(&scheduler->withdrawn_queue, sizes);
    if (beat)
        count_heartbeats(scheduler, sizes);
}

static void put_registrations(struct kvf_scheduler *scheduler, struct kvfi_step_builder *builder)
{
    while (!kvfi_list_empty(&scheduler->registration_queue)) {
        struct kvfi_request *request = queued(scheduler->registration_queue.next);
        struct kvf_step_registration registration = {
            .request_id = request->request_id,
            .transfer_id = request->transfer_id,
            .remote_request_id = request->remote_request_id,
            .remote = request->remote->engine,
            .block_ids = request->block_ids,
            .block_count = request->block_count,
        };
        kvfi_step_put_registration(builder, &registration);
        kvfi_list_remove(&request->queue);
        if (request->state == KVFI_REQUEST_DECODE_TO_REGISTER)
            kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_RECEIVING);
        kvfi_request_reap(scheduler, request);
    }
}

static void put_finished(struct kvf_scheduler *scheduler, struct kvfi_step_builder *builder)
{
    while (!kvfi_list_empty(&scheduler->finished_queue)) {
        struct kvfi_request *request = queued(scheduler->finished_queue.next);
        struct kvf_step_finished finished = {
            .request_id = request->request_id,
            .transfer_id = request->transfer_id,
            .block_ids = request->block_ids,
            .block_count = request->block_count,
            .deadline_ns = request->lease_deadline_ns,
        };
        kvfi_step_put_finished(builder, &finished);
        kvfi_list_remove(&request->queue);
    }
}

static void put_ids(struct kvf_scheduler *scheduler, struct kvfi_step_builder *builder)
{
    struct kvf_step *step = builder->step;
    while (!kvfi_list_empty(&scheduler->in_batch_queue)) {
        struct kvfi_list *node = scheduler->in_batch_queue.next;
        kvfi_step_put_id(builder, &step->in_batch, &step->in_batch_count,
                         KVFI_CONTAINER_OF(node, struct kvfi_request, batch_queue)->request_id);
        kvfi_list_remove(node);
    }
    while (!kvfi_list_empty(&scheduler->not_processed_queue)) {
        struct kvfi_request *request = queued(scheduler->not_processed_queue.next);
        kvfi_step_put_id(builder, &step->not_processed, &step->not_processed_count,
                         request->request_id);
        kvfi_list_remove(&request->queue);
        kvfi_request_reap(scheduler, request);
    }
    while (!kvfi_list_empty(&scheduler->withdrawn_queue)) {
        struct kvfi_request *request = queued(scheduler->withdrawn_queue.next);
        kvfi_step_put_id(builder, &step->withdrawn, &step->withdrawn_count, request->request_id);
        kvfi_list_remove(&request->queue);
    }
}

enum kvf_status kvf_scheduler_build_step(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                         struct kvf_step **step_p, struct kvf_error *error)
{
    fire_watchdogs(scheduler, now_ns);
    bool beat = kvfi_scheduler_heartbeat_due_ns(scheduler) <= now_ns;
    struct kvfi_step_sizes sizes = {0};
    count_step(scheduler, beat, &sizes);
    struct kvfi_step_builder builder;
    if (kvfi_step_begin(&builder, scheduler->allocator, &sizes) != KVF_OK)
        return kvf_fail(error, KVF_ENOMEM, "out of memory for a step's metadata");

    /* From here on nothing can fail: what is put into the step leaves its queue. */
    builder.step->scheduler_clock_ns = now_ns;
    put_ids(scheduler, &builder);
    if (beat) {
        put_heartbeats(scheduler, &builder);
        scheduler->has_beaten = true;
        scheduler->beaten_ns = now_ns;
    }
    put_finished(scheduler, &builder);
    put_registrations(scheduler, &builder);
    *step_p = builder.step;
    return KVF_OK;
}
