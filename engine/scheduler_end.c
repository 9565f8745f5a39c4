/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_impl.h"

#include <stdio.h>
#include <stdlib.h>

static enum kvf_finish_reason kv_reason(enum engine_finish reason)
{
    switch (reason) {
    case ENGINE_FINISH_STOP:
        return KVF_FINISH_STOP;
    case ENGINE_FINISH_LENGTH:
        return KVF_FINISH_LENGTH;
    case ENGINE_FINISH_ABORT:
    case ENGINE_FINISH_ERROR:
        return KVF_FINISH_ABORT;
    }
    return KVF_FINISH_ABORT;
}

/* The blocks that another engine may want: those of the prompt, as far as they are complete. What
 * was generated on top (a client may ask a prefill for more than one token) is nobody else's, and
 * decode counts its blocks from the end of the prompt (bug B54). */
static uint32_t offered_blocks(const struct engine_scheduler *scheduler,
                               const struct engine_request *request)
{
    if (!request->remote_decode)
        return request->blocks.count;
    uint32_t tokens =
        request->computed < request->prompt_count ? request->computed : request->prompt_count;
    return engine_blocks_for(tokens, scheduler->options.block_size);
}

static void emit_end(const struct engine_scheduler *scheduler, const struct engine_request *request,
                     enum engine_finish reason, const char *message)
{
    const struct kvf_event_field fields[] = {
        {.name = "reason", .text = engine_finish_name(reason)},
        {.name = "tokens", .number = engine_request_output_count(request)},
        {.name = "message", .text = message},
    };
    kvf_events_emit(scheduler->options.events, "end", request->id, fields, message[0] ? 3 : 2);
}

void engine_end_request(struct engine_scheduler *scheduler, uint64_t now_ns,
                        struct engine_request *request, enum engine_finish reason,
                        enum kvf_status status, const char *message)
{
    bool hold = false;
    bool has_response = false;
    struct kvf_transfer_params response = KVF_TRANSFER_PARAMS_INIT;
    uint32_t block_count = offered_blocks(scheduler, request);
    if (scheduler->has_hooks) {
        struct kvf_error error = {0};
        enum kvf_status hook_status = scheduler->hooks.request_finished(
            scheduler->hooks.ctx, now_ns, request->id, kv_reason(reason), request->blocks.ids,
            block_count, &hold, &response, &has_response, &error);
        if (hook_status != KVF_OK) {
            kvf_log(KVF_LOG_ERROR, "request %s cannot be handed over: %s", request->id, error.text);
            hold = false;
            has_response = false;
        }
    }
    const struct engine_report report = {
        .reason = reason,
        .status = status,
        .message = message ? message : "",
        .cached_tokens = request->cached_tokens,
        .handover = has_response ? &response : NULL,
        .block_ids = request->blocks.ids,
        .block_count = has_response ? block_count : 0,
    };
    scheduler->finished[reason]++;
    scheduler->moved_ns = now_ns;
    emit_end(scheduler, request, reason, report.message);
    scheduler->options.sink.finished(scheduler->options.sink.ctx, request->user, &report);
    request->user = NULL;
    request->scheduled = 0;
    if (hold || request->awaits_release) {
        engine_move(scheduler, request, ENGINE_HELD);
        return;
    }
    engine_drop_blocks(scheduler, request);
    engine_forget_request(scheduler, request);
}

void engine_scheduler_abort(struct engine_scheduler *scheduler, uint64_t now_ns, const char *id)
{
    struct engine_request *request = NULL;
    HASH_FIND_STR(scheduler->by_id, id, request);
    if (request && request->stage != ENGINE_HELD)
        engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_ABORT, KVF_ECANCELED, NULL);
}

void engine_scheduler_abort_all(struct engine_scheduler *scheduler, uint64_t now_ns)
{
    struct engine_request *request = NULL;
    struct engine_request *next = NULL;
    HASH_ITER (hh, scheduler->by_id, request, next) {
        if (request->stage != ENGINE_HELD)
            engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_ABORT, KVF_ECANCELED,
                               NULL);
    }
}

/* ---- results of transfers ------------------------------------------------------------------- */

static void give_quarantine(struct engine_scheduler *scheduler, struct engine_request *request)
{
    engine_block_pool_give(scheduler->pool, request->quarantine.ids, request->quarantine.count);
    free(request->quarantine.ids);
    request->quarantine = (struct engine_block_list){0};
    request->awaits_release = false;
}

static void release(struct engine_scheduler *scheduler, uint64_t now_ns,
                    struct engine_request *request)
{
    scheduler->moved_ns = now_ns;
    give_quarantine(scheduler, request);
    if (request->stage != ENGINE_HELD)
        return;
    engine_drop_blocks(scheduler, request);
    engine_forget_request(scheduler, request);
}

static void received(struct engine_scheduler *scheduler, struct engine_request *request)
{
    /* All of the prompt is here, but not the logits of its last token: that one is computed again,
     * into the same place with the same result. Its block becomes cacheable with it. */
    request->computed = request->prompt_count - 1;
    request->prefill_done = true;
    engine_cache_blocks(scheduler, request);
    engine_move(scheduler, request, ENGINE_READY);
}

/* Lets the request start over. Blocks that may still be written stay aside until RELEASED. */
static enum kvf_status restart(struct engine_scheduler *scheduler, struct engine_request *request,
                               bool blocks_free)
{
    if (!blocks_free) {
        uint32_t cap = engine_blocks_for(request->prompt_count + request->max_tokens,
                                         scheduler->options.block_size);
        uint32_t *ids = malloc((size_t)cap * sizeof(*ids));
        if (!ids)
            return KVF_ENOMEM;
        request->quarantine = request->blocks;
        request->blocks = (struct engine_block_list){.ids = ids};
    }
    engine_drop_blocks(scheduler, request);
    engine_move_front(scheduler, request, ENGINE_WAITING);
    return KVF_OK;
}

static void receive_failed(struct engine_scheduler *scheduler, uint64_t now_ns,
                           struct engine_request *request, const struct kvf_result *result)
{
    request->awaits_release = !result->blocks_free;
    if (scheduler->options.recompute_failed &&
        restart(scheduler, request, result->blocks_free) == KVF_OK) {
        kvf_log(KVF_LOG_WARNING, "request %s: receive failed, computing the prompt here: %s",
                request->id, result->reason);
        return;
    }
    char message[KVF_REASON_LEN_MAX + 64];
    (void)snprintf(message, sizeof(message), "receiving the KV cache failed: %s", result->reason);
    engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_ERROR, result->status, message);
}

void engine_scheduler_kv_result(struct engine_scheduler *scheduler, uint64_t now_ns,
                                const struct kvf_result *result)
{
    struct engine_request *request = NULL;
    HASH_FIND_STR(scheduler->by_id, result->request_id, request);
    if (!request) {
        kvf_log(KVF_LOG_DEBUG, "a result for request %s, which has ended", result->request_id);
        return;
    }
    switch (result->kind) {
    case KVF_RESULT_SENT:
        if (request->stage == ENGINE_HELD)
            release(scheduler, now_ns, request);
        break;
    case KVF_RESULT_RELEASED:
        release(scheduler, now_ns, request);
        break;
    case KVF_RESULT_RECEIVED:
        if (request->stage == ENGINE_PARKED)
            received(scheduler, request);
        else if (request->stage == ENGINE_HELD && result->blocks_free)
            release(scheduler, now_ns, request);
        break;
    case KVF_RESULT_FAILED:
        if (request->stage == ENGINE_PARKED)
            receive_failed(scheduler, now_ns, request, result);
        else if (request->stage == ENGINE_HELD && result->blocks_free)
            release(scheduler, now_ns, request);
        break;
    }
}
