/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_impl.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utlist.h>

/* With nothing to do but a deadline that has passed already, sleep at least this long. */
#define MIN_SLEEP_NS 1000000ull

static uint64_t clock_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* ---- output --------------------------------------------------------------------------------- */

/* Call with job->lock held, after the output was changed; releases it. The outbox has room for all
 * live jobs and holds each at most once, so the post cannot fail. */
static void publish(struct engine *engine, struct engine_job *job)
{
    bool post = !job->posted;
    job->posted = true;
    (void)pthread_mutex_unlock(&job->lock);
    if (post && kvfi_mailbox_post(engine->outbox, &job) != KVF_OK)
        kvf_log(KVF_LOG_ERROR, "the outbox refuses a job");
}

static void set_message(struct engine_output *output, const char *message)
{
    (void)snprintf(output->message, sizeof(output->message), "%s", message);
}

static enum kvf_status append_token(struct engine_job *job, const struct engine_choice *choice)
{
    struct engine_output *output = &job->output;
    struct engine_tokens *tokens = &output->tokens;
    if (tokens->count == tokens->cap) {
        size_t cap = tokens->cap ? tokens->cap * 2 : 16;
        uint32_t *ids = realloc(tokens->ids, cap * sizeof(*ids));
        if (!ids)
            return KVF_ENOMEM;
        tokens->ids = ids;
        tokens->cap = cap;
    }
    if (job->logprobs != ENGINE_NO_LOGPROBS) {
        if (output->choice_cap < tokens->cap) {
            struct engine_choice *choices =
                realloc(output->choices, tokens->cap * sizeof(*choices));
            if (!choices)
                return KVF_ENOMEM;
            output->choices = choices;
            output->choice_cap = tokens->cap;
        }
        output->choices[tokens->count] = *choice;
    }
    tokens->ids[tokens->count++] = choice->token;
    return KVF_OK;
}

/* Output that cannot be stored is lost for this job alone: it is aborted in the next turn and its
 * report says why. */
static void lose_output(struct engine *engine, struct engine_job *job, const char *why)
{
    set_message(&job->output, why);
    atomic_store_explicit(&job->abort, true, memory_order_relaxed);
    atomic_store_explicit(&engine->abort_wanted, true, memory_order_release);
}

static bool sink_token(void *ctx, void *user, const struct engine_choice *choice, bool ends)
{
    struct engine *engine = ctx;
    struct engine_job *job = user;
    struct kvf_error error = {0};
    job->token_count++;
    (void)pthread_mutex_lock(&job->lock);
    if (append_token(job, choice) != KVF_OK)
        lose_output(engine, job, "no memory for the output tokens");
    else if (!ends && engine_text_stream_push(&job->stream, choice->token,
                                              job->token_count > job->min_tokens, &job->output.text,
                                              &error) != KVF_OK)
        lose_output(engine, job, error.text);
    publish(engine, job);
    return job->stream.stopped;
}

static void copy_handover(struct engine_output *output, const struct engine_report *report)
{
    if (!report->handover)
        return;
    output->block_ids = malloc((report->block_count + 1) * sizeof(*output->block_ids));
    if (!output->block_ids || engine_transfer_copy(report->handover, &output->handover) != KVF_OK) {
        /* Without coordinates nobody fetches the blocks; the lease takes care of them. */
        kvf_log(KVF_LOG_ERROR, "no memory for kv_transfer_params of a response");
        return;
    }
    memcpy(output->block_ids, report->block_ids, report->block_count * sizeof(*output->block_ids));
    output->block_count = report->block_count;
}

static void sink_finished(void *ctx, void *user, const struct engine_report *report)
{
    struct engine *engine = ctx;
    struct engine_job *job = user;
    struct kvf_error error = {0};
    DL_DELETE(engine->live, job);
    (void)pthread_mutex_lock(&job->lock);
    struct engine_output *output = &job->output;
    output->reason = report->reason;
    output->status = report->status;
    if (engine_text_stream_finish(&job->stream, &output->text, &error) != KVF_OK)
        set_message(output, error.text);
    if (report->message[0])
        set_message(output, report->message);
    if (output->message[0] && report->reason != ENGINE_FINISH_ERROR) {
        output->reason = ENGINE_FINISH_ERROR;
        output->status = KVF_ENOMEM;
    }
    if (job->stream.stopped && report->reason == ENGINE_FINISH_STOP)
        output->stop = job->stops.texts[job->stream.stop_index];
    output->cached_tokens = report->cached_tokens;
    copy_handover(output, report);
    output->finished = true;
    publish(engine, job);
}

struct engine_sink engine_loop_sink(struct engine *engine)
{
    return (struct engine_sink){.ctx = engine, .token = sink_token, .finished = sink_finished};
}

/* ---- input ---------------------------------------------------------------------------------- */

static void refuse(struct engine *engine, struct engine_job *job, enum engine_finish reason,
                   enum kvf_status status, const char *message)
{
    (void)pthread_mutex_lock(&job->lock);
    job->output.reason = reason;
    job->output.status = status;
    set_message(&job->output, message);
    job->output.finished = true;
    job->output.refused = true;
    publish(engine, job);
}

static void admit(struct engine *engine, uint64_t now_ns, struct engine_job *job)
{
    const struct kvf_event_field fields[] = {
        {.name = "tokens", .number = (int64_t)job->prompt.count},
        {.name = "max_tokens", .number = job->max_tokens},
    };
    kvf_events_emit(engine->events, "received", job->id, fields, 2);
    const struct engine_request_spec spec = {
        .id = job->id,
        .prompt = job->prompt.ids,
        .prompt_count = (uint32_t)job->prompt.count,
        .max_tokens = job->max_tokens,
        .min_tokens = job->min_tokens,
        .ignore_end = job->ignore_end,
        .logprobs = job->logprobs,
        .sampling = job->sampling,
        .transfer = job->transfer.given ? &job->transfer.params : NULL,
        .user = job,
    };
    struct kvf_error error = {0};
    job->stream.tokenizer = engine->info.tokenizer;
    job->stream.stops = &job->stops;
    enum kvf_status status = engine_scheduler_add(engine->scheduler, now_ns, &spec, &error);
    if (status == KVF_OK) {
        DL_APPEND(engine->live, job);
        /* Aborted on its way here: the connector still tells the other engine. */
        if (atomic_load_explicit(&job->abort, memory_order_relaxed))
            engine_scheduler_abort(engine->scheduler, now_ns, job->id);
        return;
    }
    const struct kvf_event_field end[] = {
        {.name = "reason", .text = "refused"},
        {.name = "message", .text = error.text},
    };
    kvf_events_emit(engine->events, "end", job->id, end, 2);
    refuse(engine, job, ENGINE_FINISH_ERROR, status, error.text);
}

static bool drain_inbox(struct engine *engine, uint64_t now_ns)
{
    bool any = false;
    struct engine_job *job;
    kvfi_mailbox_clear(engine->inbox);
    while (kvfi_mailbox_take(engine->inbox, &job) == KVF_OK) {
        any = true;
        if (job)
            admit(engine, now_ns, job);
        else
            atomic_store_explicit(&engine->woken, false, memory_order_release);
    }
    return any;
}

static void carry_out_aborts(struct engine *engine, uint64_t now_ns)
{
    if (!atomic_exchange_explicit(&engine->abort_wanted, false, memory_order_acquire))
        return;
    struct engine_job *job = NULL;
    struct engine_job *next = NULL;
    DL_FOREACH_SAFE (engine->live, job, next) {
        if (atomic_load_explicit(&job->abort, memory_order_relaxed))
            engine_scheduler_abort(engine->scheduler, now_ns, job->id);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void act_on_result(void *ctx, uint64_t now_ns, const struct kvf_result *result)
{
    struct engine *engine = ctx;
    engine_scheduler_kv_result(engine->scheduler, now_ns, result);
}

static void take_snapshot(struct engine *engine)
{
    struct engine_snapshot snapshot = {.turns = engine->turns};
    engine_scheduler_usage(engine->scheduler, &snapshot.scheduler);
    engine_connector_scheduler_usage(engine->connector, &snapshot.kv_scheduler);
    (void)pthread_mutex_lock(&engine->snapshot_lock);
    engine->snapshot = snapshot;
    (void)pthread_mutex_unlock(&engine->snapshot_lock);
}

static void sleep_until_something(struct engine *engine)
{
    struct pollfd fds[] = {
        {.fd = kvfi_mailbox_fd(engine->inbox), .events = POLLIN},
        {.fd = engine_connector_fd(engine->connector), .events = POLLIN},
    };
    uint64_t now_ns = clock_now_ns();
    uint64_t deadline_ns = engine_connector_deadline_ns(engine->connector, now_ns);
    uint64_t plan_ns = engine_scheduler_deadline_ns(engine->scheduler);
    if (plan_ns < deadline_ns)
        deadline_ns = plan_ns;
    struct timespec timeout;
    if (deadline_ns != UINT64_MAX) {
        uint64_t wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        if (wait_ns < MIN_SLEEP_NS)
            wait_ns = MIN_SLEEP_NS;
        timeout.tv_sec = (time_t)(wait_ns / 1000000000ull);
        timeout.tv_nsec = (long)(wait_ns % 1000000000ull);
    }
    (void)ppoll(fds, 2, deadline_ns == UINT64_MAX ? NULL : &timeout, NULL);
}

/* One turn. True when something happened, so that the next turn follows at once. */
static bool turn(struct engine *engine)
{
    uint64_t now_ns = clock_now_ns();
    bool busy = drain_inbox(engine, now_ns);
    carry_out_aborts(engine, now_ns);
    bool runs = engine_scheduler_plan(engine->scheduler, now_ns);
    engine_connector_flush(engine->connector, now_ns);
    if (runs)
        engine_scheduler_run(engine->scheduler, clock_now_ns());
    bool results = engine_connector_take(engine->connector, clock_now_ns(), act_on_result, engine);
    return busy || runs || results;
}

void *engine_loop(void *ctx)
{
    struct engine *engine = ctx;
    (void)pthread_setname_np(pthread_self(), "kvf-engine");
    while (!atomic_load_explicit(&engine->stop, memory_order_acquire)) {
        bool busy = turn(engine);
        engine->turns++;
        take_snapshot(engine);
        if (!busy)
            sleep_until_something(engine);
    }
    uint64_t now_ns = clock_now_ns();
    kvfi_mailbox_close(engine->inbox);
    (void)drain_inbox(engine, now_ns);
    engine_scheduler_abort_all(engine->scheduler, now_ns);
    engine_connector_flush(engine->connector, now_ns);
    take_snapshot(engine);
    return NULL;
}
