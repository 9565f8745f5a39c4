/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_impl.h"

#include <stdio.h>

static void fail_batch(struct engine_scheduler *scheduler, uint64_t now_ns, enum kvf_status status,
                       const char *text)
{
    char message[600];
    (void)snprintf(message, sizeof(message), "the forward pass failed: %s", text);
    kvf_log(KVF_LOG_ERROR, "%s", message);
    for (uint32_t i = 0; i < scheduler->batch_count; i++)
        engine_end_request(scheduler, now_ns, scheduler->batch[i], ENGINE_FINISH_ERROR, status,
                           message);
}

static void note_prefill(struct engine_scheduler *scheduler, struct engine_request *request)
{
    if (request->prefill_done || request->computed < request->prompt_count)
        return;
    request->prefill_done = true;
    const struct kvf_event_field fields[] = {
        {.name = "tokens", .number = request->prompt_count},
        {.name = "blocks", .number = request->blocks.count},
    };
    kvf_events_emit(scheduler->options.events, "prefill_end", request->id, fields, 2);
}

/* A new token was chosen: appends, reports, and ends the request when it was the last one. */
static void accept_token(struct engine_scheduler *scheduler, uint64_t now_ns,
                         struct engine_request *request, const struct engine_choice *choice)
{
    request->tokens[request->token_count++] = choice->token;
    scheduler->generation_tokens++;
    uint32_t output_count = engine_request_output_count(request);
    if (output_count == 1)
        kvf_events_emit(scheduler->options.events, "first_token", request->id, NULL, 0);
    const struct engine_forward *forward = &scheduler->options.forward;
    bool ends = !request->ignore_end && output_count > request->min_tokens &&
                forward->is_end(forward->ctx, choice->token);
    const struct engine_sink *sink = &scheduler->options.sink;
    bool stop = sink->token(sink->ctx, request->user, choice, ends);
    if (ends || stop)
        engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_STOP, KVF_OK, NULL);
    else if (output_count >= request->max_tokens)
        engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_LENGTH, KVF_OK, NULL);
}

void engine_scheduler_run(struct engine_scheduler *scheduler, uint64_t now_ns)
{
    if (scheduler->batch_count == 0)
        return;
    const struct engine_forward *forward = &scheduler->options.forward;
    struct kvf_error error = {0};
    scheduler->steps++;
    enum kvf_status status =
        forward->run(forward->ctx, scheduler->sequences, scheduler->batch_count, &error);
    if (status != KVF_OK) {
        fail_batch(scheduler, now_ns, status, error.text);
        scheduler->batch_count = 0;
        return;
    }
    uint32_t row = 0;
    for (uint32_t i = 0; i < scheduler->batch_count; i++) {
        struct engine_request *request = scheduler->batch[i];
        request->computed += request->scheduled;
        request->scheduled = 0;
        engine_cache_blocks(scheduler, request);
        note_prefill(scheduler, request);
        if (!scheduler->sequences[i].want_logits)
            continue;
        uint32_t output_count = engine_request_output_count(request);
        struct engine_choice choice;
        status = forward->choose(forward->ctx, row++, &request->sampling, output_count,
                                 !request->ignore_end && output_count < request->min_tokens,
                                 request->logprobs, &choice, &error);
        if (status == KVF_OK)
            accept_token(scheduler, now_ns, request, &choice);
        else
            engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_ERROR, status, error.text);
    }
    scheduler->batch_count = 0;
}
