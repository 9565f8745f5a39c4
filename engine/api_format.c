/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_impl.h"

#include <string.h>

static const char *finish_name(const struct engine_output *output)
{
    return engine_finish_name(output->reason);
}

static json_t *text_json(const struct engine_text *text)
{
    return json_stringn(text->data ? text->data : "", text->len);
}

static json_t *ids_json(const uint32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_integer(ids[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *usage_json(const struct api_call *call)
{
    json_int_t prompt = 0;
    json_int_t completion = 0;
    json_int_t cached = 0;
    for (size_t i = 0; i < call->choice_count; i++) {
        const struct api_choice *choice = &call->choices[i];
        completion += (json_int_t)choice->completion_count;
        /* n choices of one prompt count it once. */
        if (i % call->params.n != 0)
            continue;
        prompt += choice->prompt_count;
        cached += call->params.transfer.prefill_cached_tokens >= 0
                      ? call->params.transfer.prefill_cached_tokens
                      : choice->output.cached_tokens;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "total_tokens",
                     prompt + completion, "completion_tokens", completion, "prompt_tokens_details",
                     "cached_tokens", cached);
}

static json_t *head_json(const struct api_call *call, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", call->id, "object", object, "created",
                     (json_int_t)call->created_unix_s, "model", call->api->limits.model_name,
                     "choices", choices);
}

/* Members that every choice has at its end; takes the choice, NULL when memory is short. */
static json_t *finish_choice(const struct api_call *call, const struct api_choice *choice,
                             bool finish, json_t *object)
{
    if (!object)
        return NULL;
    const struct engine_output *output = &choice->output;
    int failed =
        json_object_set_new(object, "logprobs", api_logprobs_json(call, choice)) ||
        json_object_set_new(object, "finish_reason",
                            finish ? json_string(finish_name(output)) : json_null()) ||
        json_object_set_new(object, "stop_reason",
                            finish && output->stop ? json_string(output->stop) : json_null());
    if (!failed && call->params.return_token_ids)
        failed = json_object_set_new(object, "token_ids",
                                     ids_json(output->tokens.ids, output->tokens.count));
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *choice_json(const struct api_call *call, size_t index, bool streamed, bool finish)
{
    const struct api_choice *choice = &call->choices[index];
    json_t *text = text_json(&choice->output.text);
    json_t *object;
    if (!call->params.chat)
        object = json_pack("{s:I, s:o}", "index", (json_int_t)index, "text", text);
    else if (streamed)
        object = json_pack("{s:I, s:{s:o}}", "index", (json_int_t)index, "delta", "content", text);
    else
        object = json_pack("{s:I, s:{s:s, s:o}}", "index", (json_int_t)index, "message", "role",
                           "assistant", "content", text);
    return finish_choice(call, choice, finish, object);
}

/* Takes the response; adds kv_transfer_params when there are any. */
static json_t *with_handover(const struct api_call *call, json_t *response)
{
    if (response && call->handover &&
        json_object_set(response, "kv_transfer_params", call->handover) != 0) {
        json_decref(response);
        return NULL;
    }
    return response;
}

json_t *api_whole_json(const struct api_call *call)
{
    json_t *choices = json_array();
    for (size_t i = 0; choices && i < call->choice_count; i++)
        if (json_array_append_new(choices, choice_json(call, i, false, true)) != 0) {
            json_decref(choices);
            return NULL;
        }
    json_t *response =
        head_json(call, call->params.chat ? "chat.completion" : "text_completion", choices);
    if (response && json_object_set_new(response, "usage", usage_json(call)) != 0) {
        json_decref(response);
        return NULL;
    }
    return with_handover(call, response);
}

static json_t *chunk_of(const struct api_call *call, json_t *choice)
{
    return head_json(call, call->params.chat ? "chat.completion.chunk" : "text_completion",
                     json_pack("[o]", choice));
}

json_t *api_chunk_json(const struct api_call *call, size_t index, bool finish)
{
    json_t *chunk = chunk_of(call, choice_json(call, index, true, finish));
    return finish ? with_handover(call, chunk) : chunk;
}

json_t *api_role_json(const struct api_call *call, size_t index)
{
    return chunk_of(call,
                    json_pack("{s:I, s:{s:s, s:s}, s:n, s:n}", "index", (json_int_t)index, "delta",
                              "role", "assistant", "content", "", "logprobs", "finish_reason"));
}

json_t *api_usage_chunk_json(const struct api_call *call)
{
    json_t *chunk = head_json(call, call->params.chat ? "chat.completion.chunk" : "text_completion",
                              json_array());
    if (chunk && json_object_set_new(chunk, "usage", usage_json(call)) != 0) {
        json_decref(chunk);
        return NULL;
    }
    return chunk;
}
