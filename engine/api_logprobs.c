/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_impl.h"

#include <math.h>

/* The token as text; ill-formed UTF-8 is replaced. */
static json_t *token_text(const struct api_call *call, uint32_t token, size_t *characters_p)
{
    struct engine_text text = {0};
    struct kvf_error ignored;
    json_t *value = NULL;
    if (engine_tokenizer_decode(call->api->limits.tokenizer, &token, 1, true, &text, &ignored) ==
        KVF_OK)
        value = json_stringn(text.data ? text.data : "", text.len);
    if (characters_p) {
        *characters_p = 0;
        for (size_t i = 0; text.data && i < text.len; i++)
            *characters_p += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    }
    engine_text_free(&text);
    return value;
}

/* JSON has no infinity: what has no probability is shown as vLLM shows it. */
static json_t *number(float logprob)
{
    return json_real(isfinite(logprob) ? (double)logprob : -9999.0);
}

/* ---- completions: four parallel lists ------------------------------------------------------- */

static json_t *best_map(const struct api_call *call, const struct engine_choice *choice)
{
    json_t *map = json_object();
    for (uint32_t i = 0; map && i < choice->top_count; i++) {
        json_t *text = token_text(call, choice->top[i].token, NULL);
        /* The first of two tokens with the same text is the better one. */
        if (text && !json_object_get(map, json_string_value(text)))
            (void)json_object_set_new(map, json_string_value(text), number(choice->top[i].logprob));
        json_decref(text);
    }
    json_t *own = token_text(call, choice->token, NULL);
    if (map && own && !json_object_get(map, json_string_value(own)))
        (void)json_object_set_new(map, json_string_value(own), number(choice->logprob));
    json_decref(own);
    return map;
}

static json_t *completion_logprobs(const struct api_call *call, const struct api_choice *choice)
{
    json_t *offsets = json_array();
    json_t *values = json_array();
    json_t *tokens = json_array();
    json_t *best = json_array();
    size_t offset = choice->text_offset;
    for (size_t i = 0; i < choice->output.tokens.count; i++) {
        const struct engine_choice *chosen = &choice->output.choices[i];
        size_t characters = 0;
        (void)json_array_append_new(offsets, json_integer((json_int_t)offset));
        (void)json_array_append_new(values, number(chosen->logprob));
        (void)json_array_append_new(tokens, token_text(call, chosen->token, &characters));
        (void)json_array_append_new(best, best_map(call, chosen));
        offset += characters;
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "text_offset", offsets, "token_logprobs", values,
                     "tokens", tokens, "top_logprobs", best);
}

/* ---- chat: one object for each token -------------------------------------------------------- */

static json_t *token_entry(const struct api_call *call, uint32_t token, float logprob)
{
    size_t len = 0;
    const char *bytes = engine_tokenizer_token_bytes(call->api->limits.tokenizer, token, &len);
    json_t *list = json_array();
    for (size_t i = 0; i < len; i++)
        (void)json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return json_pack("{s:o, s:o, s:o}", "token", token_text(call, token, NULL), "logprob",
                     number(logprob), "bytes", list);
}

static json_t *chat_logprobs(const struct api_call *call, const struct api_choice *choice)
{
    json_t *content = json_array();
    for (size_t i = 0; i < choice->output.tokens.count; i++) {
        const struct engine_choice *chosen = &choice->output.choices[i];
        json_t *entry = token_entry(call, chosen->token, chosen->logprob);
        json_t *best = json_array();
        for (uint32_t k = 0; k < chosen->top_count; k++)
            (void)json_array_append_new(
                best, token_entry(call, chosen->top[k].token, chosen->top[k].logprob));
        (void)json_object_set_new(entry, "top_logprobs", best);
        (void)json_array_append_new(content, entry);
    }
    return json_pack("{s:o}", "content", content);
}

json_t *api_logprobs_json(const struct api_call *call, const struct api_choice *choice)
{
    if (call->params.logprobs == ENGINE_NO_LOGPROBS || !choice->output.choices)
        return json_null();
    return call->params.chat ? chat_logprobs(call, choice) : completion_logprobs(call, choice);
}
