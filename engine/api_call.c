/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utlist.h>

/* ---- the end of a call ---------------------------------------------------------------------- */

static void free_call(struct api_call *call)
{
    DL_DELETE(call->api->calls, call);
    call->api->call_count--;
    for (size_t i = 0; i < call->choice_count; i++) {
        engine_job_destroy(call->choices[i].job);
        engine_output_free(&call->choices[i].output);
    }
    free(call->choices);
    engine_api_params_free(&call->params);
    json_decref(call->handover);
    free(call);
}

static void free_if_over(struct api_call *call)
{
    if (call->reply_ended && call->unfinished_count == 0)
        free_call(call);
}

/* Nobody wants the rest: the engine is told, the jobs come back as finished. */
static void abort_jobs(struct api_call *call)
{
    for (size_t i = 0; i < call->choice_count; i++)
        if (call->choices[i].job)
            engine_abort(call->api->engine, call->choices[i].job);
}

static void on_reply_end(void *ctx, enum kvfi_reply_end end)
{
    struct api_call *call = ctx;
    call->reply = NULL;
    call->reply_ended = true;
    if (end != KVFI_REPLY_SENT)
        abort_jobs(call);
    free_if_over(call);
}

/* An error in place of the answer, or at the end of a stream that has begun. */
static void answer_error(struct api_call *call, int http_status, const char *message)
{
    struct kvfi_reply *reply = call->reply;
    call->reply = NULL;
    abort_jobs(call);
    if (!call->streaming) {
        kvfi_reply_error(reply, http_status, NULL, "%s", message);
        return;
    }
    json_t *event = kvfi_http_error_json(http_status, NULL, message);
    enum kvf_status status = event ? kvfi_reply_sse_json(reply, event) : KVF_ENOMEM;
    json_decref(event);
    /* A client that has left needs no end; on_end follows. */
    if (status == KVF_OK)
        kvfi_reply_sse_done(reply);
    else if (status != KVF_EDISCONNECTED)
        kvfi_reply_abort(reply);
}

/* A request that was refused before anything was computed. */
static int refusal_http_status(enum kvf_status status)
{
    if (status == KVF_ENOTFOUND)
        return 404;
    if (status == KVF_ENOTALLOWED)
        return 403;
    if (status == KVF_EEXIST)
        return 409;
    bool ours = status == KVF_ENOMEM || status == KVF_ESYSTEM || status == KVF_ECLOSED ||
                status == KVF_AGAIN || status == KVF_EINTERNAL;
    return ours ? 503 : 400;
}

static int error_http_status(const struct engine_output *output)
{
    if (output->reason == ENGINE_FINISH_ABORT)
        return 503;
    if (!output->refused)
        return output->status == KVF_AGAIN ? 503 : 500;
    return refusal_http_status(output->status);
}

/* ---- output --------------------------------------------------------------------------------- */

/* Sends one event; takes it. False: the stream is over for us. */
static bool send_event(struct api_call *call, json_t *event)
{
    if (!event) {
        answer_error(call, 500, "no memory for the response");
        return false;
    }
    enum kvf_status status = KVF_OK;
    if (!call->streaming) {
        call->streaming = true;
        status = kvfi_reply_sse_start(call->reply);
    }
    if (status == KVF_OK)
        status = kvfi_reply_sse_json(call->reply, event);
    json_decref(event);
    if (status == KVF_EDISCONNECTED)
        return false; /* on_end says so */
    if (status != KVF_OK)
        answer_error(call, 500, "no memory for the response");
    return status == KVF_OK;
}

/* What was sent is forgotten. */
static void drop_sent(struct api_choice *choice)
{
    struct engine_output *output = &choice->output;
    for (size_t i = 0; i < output->text.len; i++)
        choice->text_offset += ((unsigned char)output->text.data[i] & 0xc0) != 0x80;
    output->text.len = 0;
    output->tokens.count = 0;
}

static void stream_choice(struct api_call *call, size_t index)
{
    struct api_choice *choice = &call->choices[index];
    bool finish = choice->output.finished;
    if (call->params.chat && !choice->role_sent) {
        choice->role_sent = true;
        if (!send_event(call, api_role_json(call, index)))
            return;
    }
    if (choice->output.text.len == 0 && !finish)
        return;
    if (!send_event(call, api_chunk_json(call, index, finish)))
        return;
    drop_sent(choice);
    if (call->unfinished_count > 0)
        return;
    if (call->params.include_usage && !send_event(call, api_usage_chunk_json(call)))
        return;
    struct kvfi_reply *reply = call->reply;
    call->reply = NULL;
    kvfi_reply_sse_done(reply);
}

static void answer_whole(struct api_call *call)
{
    json_t *response = api_whole_json(call);
    if (!response) {
        answer_error(call, 500, "no memory for the response");
        return;
    }
    struct kvfi_reply *reply = call->reply;
    call->reply = NULL;
    kvfi_reply_json(reply, 200, response);
    json_decref(response);
}

/* Adds what the engine put out to what is not sent yet. */
static enum kvf_status merge(struct api_choice *choice, struct engine_output *fresh)
{
    struct engine_output *kept = &choice->output;
    choice->completion_count += fresh->tokens.count;
    size_t count = kept->tokens.count + fresh->tokens.count;
    if (engine_text_append(&kept->text, fresh->text.data, fresh->text.len) != KVF_OK)
        return KVF_ENOMEM;
    if (count > kept->tokens.cap) {
        uint32_t *ids = realloc(kept->tokens.ids, count * 2 * sizeof(*ids));
        if (!ids)
            return KVF_ENOMEM;
        kept->tokens.ids = ids;
        kept->tokens.cap = count * 2;
    }
    if (fresh->choices && count > kept->choice_cap) {
        struct engine_choice *choices = realloc(kept->choices, count * 2 * sizeof(*choices));
        if (!choices)
            return KVF_ENOMEM;
        kept->choices = choices;
        kept->choice_cap = count * 2;
    }
    if (fresh->tokens.count > 0)
        memcpy(kept->tokens.ids + kept->tokens.count, fresh->tokens.ids,
               fresh->tokens.count * sizeof(*kept->tokens.ids));
    if (fresh->choices && fresh->tokens.count > 0)
        memcpy(kept->choices + kept->tokens.count, fresh->choices,
               fresh->tokens.count * sizeof(*kept->choices));
    kept->tokens.count = count;
    return KVF_OK;
}

static void note_finish(struct api_call *call, struct api_choice *choice,
                        const struct engine_output *fresh)
{
    struct engine_output *kept = &choice->output;
    kept->finished = true;
    kept->reason = fresh->reason;
    kept->status = fresh->status;
    kept->refused = fresh->refused;
    kept->stop = NULL;
    for (size_t i = 0; fresh->stop && i < call->params.stops.count; i++)
        if (strcmp(call->params.stops.texts[i], fresh->stop) == 0)
            kept->stop = call->params.stops.texts[i];
    kept->cached_tokens = fresh->cached_tokens;
    memcpy(kept->message, fresh->message, sizeof(kept->message));
    /* As in vLLM, a call with several sequences returns the coordinates of the first one. */
    if (fresh->handover.given && choice == &call->choices[0] && !call->handover) {
        call->handover = engine_api_transfer_json(fresh);
        const char *id = call->params.transfer.params.transfer_id;
        if (call->handover && id)
            (void)json_object_set_new(call->handover, "transfer_id", json_string(id));
    }
    call->unfinished_count--;
}

void api_call_deliver(void *ctx, void *item)
{
    (void)ctx;
    struct engine_job *job = *(struct engine_job **)item;
    struct api_call *call = job->owner;
    size_t index = job->index;
    struct api_choice *choice = &call->choices[index];
    struct engine_output fresh;
    engine_job_take(job, &fresh);
    enum kvf_status status = call->reply ? merge(choice, &fresh) : KVF_OK;
    if (fresh.finished) {
        note_finish(call, choice, &fresh);
        choice->job = NULL;
        engine_job_destroy(job);
        engine_job_done(call->api->engine);
    }
    engine_output_free(&fresh);
    if (call->reply) {
        const struct engine_output *output = &choice->output;
        bool failed = output->finished && (output->reason == ENGINE_FINISH_ERROR ||
                                           output->reason == ENGINE_FINISH_ABORT);
        if (status != KVF_OK)
            answer_error(call, 500, "no memory for the response");
        else if (failed)
            answer_error(call, error_http_status(output),
                         output->message[0] ? output->message : "the engine is shutting down");
        else if (call->params.stream)
            stream_choice(call, index);
        else if (call->unfinished_count == 0)
            answer_whole(call);
    }
    free_if_over(call);
}

/* ---- a new call ----------------------------------------------------------------------------- */

/* With several sequences in one call each has a transfer id of its own, or they could not be told
 * apart; both legs derive the same one. */
static enum kvf_status copy_transfer(const struct api_call *call, size_t index,
                                     struct engine_job *job)
{
    const struct engine_transfer *from = &call->params.transfer;
    if (!from->given)
        return KVF_OK;
    struct kvf_transfer_params params = from->params;
    char *own = NULL;
    if (params.transfer_id && call->choice_count > 1) {
        if (asprintf(&own, "%s:%zu", params.transfer_id, index) < 0)
            return KVF_ENOMEM;
        params.transfer_id = own;
    }
    enum kvf_status status = engine_transfer_copy(&params, &job->transfer);
    free(own);
    return status;
}

static enum kvf_status make_job(struct api_call *call, size_t index, const char *base,
                                const char *suffix, const struct engine_tokens *prompt)
{
    const struct engine_api_params *params = &call->params;
    uint32_t room = call->api->limits.model_len_max - (uint32_t)prompt->count;
    uint32_t standard = params->chat || room < 16 ? room : 16;
    struct engine_job *job = engine_job_create();
    if (!job)
        return KVF_ENOMEM;
    call->choices[index].job = job;
    call->choices[index].prompt_count = (uint32_t)prompt->count;
    job->owner = call;
    job->index = index;
    job->id = engine_api_internal_id(params->chat, base, index / params->n,
                                     (uint32_t)(index % params->n), params->n, suffix);
    job->prompt.ids = malloc(prompt->count * sizeof(*prompt->ids));
    if (!job->id || !job->prompt.ids)
        return KVF_ENOMEM;
    memcpy(job->prompt.ids, prompt->ids, prompt->count * sizeof(*prompt->ids));
    job->prompt.count = job->prompt.cap = prompt->count;
    job->max_tokens = params->max_tokens ? params->max_tokens : standard;
    job->min_tokens = params->min_tokens < job->max_tokens ? params->min_tokens : job->max_tokens;
    job->ignore_end = params->ignore_end;
    job->logprobs = params->logprobs;
    job->sampling = params->sampling;
    /* n samples of one prompt with one seed are to differ, and to be the same next time. */
    job->sampling.seed += index % params->n;
    job->stops = params->stops;
    return copy_transfer(call, index, job);
}

static enum kvf_status check_room(const struct api_call *call,
                                  const struct engine_api_prompts *prompts, struct kvf_error *error)
{
    uint32_t len_max = call->api->limits.model_len_max;
    for (size_t i = 0; i < prompts->count; i++)
        if (call->params.max_tokens > len_max - prompts->list[i].count)
            return kvf_fail(error, KVF_EINVAL,
                            "'max_tokens' is %u and the prompt has %zu tokens; this engine takes "
                            "%u in all (--max-model-len, --blocks)",
                            call->params.max_tokens, prompts->list[i].count, len_max);
    if (prompts->count * call->params.n > ENGINE_API_CHOICES_MAX)
        return kvf_fail(error, KVF_EINVAL, "%zu prompts times 'n' %u are more than %d choices",
                        prompts->count, call->params.n, ENGINE_API_CHOICES_MAX);
    return KVF_OK;
}

static enum kvf_status make_jobs(struct api_call *call, const char *base,
                                 const struct engine_api_prompts *prompts, struct kvf_error *error)
{
    KVF_TRY(check_room(call, prompts, error));
    size_t count = prompts->count * call->params.n;
    call->choices = calloc(count + 1, sizeof(*call->choices));
    if (!call->choices)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %zu choices", count);
    call->choice_count = count;
    char suffix[9] = "";
    for (size_t i = 0; i < count; i++) {
        /* The n children of one prompt share its suffix. */
        if (i % call->params.n == 0 && engine_api_random_hex(suffix, 8) != KVF_OK)
            return kvf_fail(error, KVF_ESYSTEM, "the kernel gives no random numbers");
        if (make_job(call, i, base, suffix, &prompts->list[i / call->params.n]) != KVF_OK)
            return kvf_fail(error, KVF_ENOMEM, "no memory for %zu choices", count);
    }
    return KVF_OK;
}

static enum kvf_status fresh_seed(struct engine_api_params *params, struct kvf_error *error)
{
    char hex[17];
    if (params->seed_given)
        return KVF_OK;
    if (engine_api_random_hex(hex, 16) != KVF_OK)
        return kvf_fail(error, KVF_ESYSTEM, "the kernel gives no random numbers");
    params->sampling.seed = strtoull(hex, NULL, 16);
    return KVF_OK;
}

/* From body to jobs; nothing is submitted yet. */
static enum kvf_status prepare(struct api_call *call, const json_t *body, bool chat,
                               const char *header_id, struct kvf_error *error)
{
    char base[ENGINE_API_BASE_ID_LEN_MAX + 1];
    struct engine_api_prompts prompts;
    KVF_TRY(engine_api_params_parse(body, chat, &call->api->limits, &call->params, error));
    KVF_TRY(fresh_seed(&call->params, error));
    KVF_TRY(engine_api_base_id(header_id, call->params.request_id, base, error));
    (void)snprintf(call->id, sizeof(call->id), "%s-%s", chat ? "chatcmpl" : "cmpl", base);
    KVF_TRY(engine_api_prompts_parse(body, &call->params, &call->api->limits, &prompts, error));
    enum kvf_status status = make_jobs(call, base, &prompts, error);
    engine_api_prompts_free(&prompts);
    /* They point into the body, which goes now. */
    call->params.transfer_token_ids = NULL;
    call->params.request_id = NULL;
    return status;
}

static void submit(struct api_call *call)
{
    size_t submitted = 0;
    enum kvf_status status = engine_room(call->api->engine, call->choice_count);
    while (status == KVF_OK && submitted < call->choice_count) {
        status = engine_submit(call->api->engine, call->choices[submitted].job);
        if (status == KVF_OK)
            submitted++;
    }
    call->unfinished_count = submitted;
    for (size_t i = submitted; i < call->choice_count; i++) {
        engine_job_destroy(call->choices[i].job);
        call->choices[i].job = NULL;
    }
    if (status == KVF_OK)
        return;
    answer_error(call, 503,
                 status == KVF_AGAIN ? "too many requests are under way, try again later"
                                     : "the engine is shutting down");
}

static void generate(struct engine_api *api, const struct kvfi_http_request *request,
                     struct kvfi_reply *reply, bool chat)
{
    struct kvf_error error = {0};
    json_t *body = NULL;
    enum kvf_status status = engine_api_body_parse(request->body, request->body_len, &body, &error);
    if (status != KVF_OK) {
        kvfi_reply_error(reply, refusal_http_status(status), NULL, "%s", error.text);
        return;
    }
    struct api_call *call = calloc(1, sizeof(*call));
    if (!call) {
        json_decref(body);
        kvfi_reply_error(reply, 503, NULL, "no memory for the request");
        return;
    }
    call->api = api;
    call->reply = reply;
    call->created_unix_s = (int64_t)time(NULL);
    DL_APPEND(api->calls, call);
    api->call_count++;
    status =
        prepare(call, body, chat, kvfi_http_headers_find(request->headers, "X-Request-Id"), &error);
    json_decref(body);
    if (status != KVF_OK) {
        free_call(call);
        api->remotes_refused += status == KVF_ENOTALLOWED;
        kvfi_reply_error(reply, refusal_http_status(status), NULL, "%s", error.text);
        return;
    }
    kvfi_reply_on_end(reply, on_reply_end, call);
    submit(call);
}

static void completions(void *ctx, const struct kvfi_http_request *request,
                        struct kvfi_reply *reply)
{
    generate(ctx, request, reply, false);
}

static void chat_completions(void *ctx, const struct kvfi_http_request *request,
                             struct kvfi_reply *reply)
{
    generate(ctx, request, reply, true);
}

enum kvf_status api_call_routes(struct engine_api *api)
{
    KVF_TRY(kvfi_http_server_route(api->server, "POST", "/v1/completions", completions, api));
    return kvfi_http_server_route(api->server, "POST", "/v1/chat/completions", chat_completions,
                                  api);
}
