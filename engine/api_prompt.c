/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <stdlib.h>
#include <string.h>

void engine_api_prompts_free(struct engine_api_prompts *prompts)
{
    for (size_t i = 0; i < prompts->count; i++)
        engine_tokens_free(&prompts->list[i]);
    free(prompts->list);
    *prompts = (struct engine_api_prompts){0};
}

static enum kvf_status check_length(const struct engine_tokens *tokens, const char *key,
                                    const struct engine_api_limits *limits, struct kvf_error *error)
{
    if (tokens->count == 0)
        return kvf_fail(error, KVF_EINVAL, "'%s' is empty, at least one token is needed", key);
    if (tokens->count >= limits->model_len_max)
        return kvf_fail(error, KVF_EINVAL,
                        "'%s' has %zu tokens; this engine takes %u in all, prompt and answer "
                        "together (--max-model-len, --blocks)",
                        key, tokens->count, limits->model_len_max);
    return KVF_OK;
}

/* Ids from a JSON list. */
static enum kvf_status ids_from_list(const json_t *list, const char *key,
                                     const struct engine_api_limits *limits,
                                     struct engine_tokens *tokens, struct kvf_error *error)
{
    size_t count = json_array_size(list);
    tokens->ids = malloc((count + 1) * sizeof(*tokens->ids));
    if (!tokens->ids)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a prompt of %zu tokens", count);
    tokens->cap = count + 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item))
            return kvf_fail(error, KVF_EINVAL, "'%s' holds %s among token ids", key,
                            kvfi_json_kind(item));
        json_int_t id = json_integer_value(item);
        if (id < 0 || id >= (json_int_t)limits->vocab_size)
            return kvf_fail(error, KVF_EINVAL,
                            "'%s' holds token id %lld, the vocabulary has ids 0 to %u", key,
                            (long long)id, limits->vocab_size - 1);
        tokens->ids[i] = (uint32_t)id;
    }
    tokens->count = count;
    return check_length(tokens, key, limits, error);
}

/* Megabytes of text take seconds to encode, in which this thread answers nobody: what cannot fit
 * in any case is refused before. */
static enum kvf_status encode(const char *text, size_t len, unsigned flags, const char *key,
                              const struct engine_api_limits *limits, struct engine_tokens *tokens,
                              struct kvf_error *error)
{
    size_t token_len_max = engine_tokenizer_token_len_max(limits->tokenizer);
    if (len / limits->model_len_max > token_len_max)
        return kvf_fail(error, KVF_EINVAL,
                        "'%s' has %zu bytes; this engine takes %u tokens in all, prompt and answer "
                        "together, of at most %zu bytes each (--max-model-len, --blocks)",
                        key, len, limits->model_len_max, token_len_max);
    KVF_TRY(engine_tokenizer_encode(limits->tokenizer, text, len, flags, tokens, error));
    return check_length(tokens, key, limits, error);
}

static enum kvf_status ids_from_text(const json_t *text, const char *key,
                                     const struct engine_api_limits *limits,
                                     struct engine_tokens *tokens, struct kvf_error *error)
{
    if (!limits->tokenizer)
        return kvf_fail(error, KVF_ENOTSUP, "there is no tokenizer here, send token ids");
    return encode(json_string_value(text), json_string_length(text),
                  ENGINE_ENCODE_SPECIAL | ENGINE_ENCODE_BOS, key, limits, tokens, error);
}

/* ---- /v1/completions ------------------------------------------------------------------------ */

static enum kvf_status one_prompt(const json_t *value, const struct engine_api_limits *limits,
                                  struct engine_tokens *tokens, struct kvf_error *error)
{
    if (json_is_string(value))
        return ids_from_text(value, "prompt", limits, tokens, error);
    if (json_is_array(value))
        return ids_from_list(value, "prompt", limits, tokens, error);
    return kvf_fail(error, KVF_EINVAL,
                    "'prompt' is or holds %s; expected a string, a list of strings, a list of "
                    "token ids or a list of such lists",
                    kvfi_json_kind(value));
}

static enum kvf_status parse_prompts(const json_t *body, const struct engine_api_limits *limits,
                                     struct engine_api_prompts *prompts, struct kvf_error *error)
{
    const json_t *value = json_object_get(body, "prompt");
    if (!value || json_is_null(value))
        return kvf_fail(error, KVF_EINVAL, "'prompt' is missing");
    const json_t *first = json_array_get(value, 0);
    bool several = json_is_array(value) && (json_is_string(first) || json_is_array(first));
    size_t count = several ? json_array_size(value) : 1;
    if (count > ENGINE_API_CHOICES_MAX)
        return kvf_fail(error, KVF_EINVAL, "'prompt' holds %zu prompts, at most %d are taken",
                        count, ENGINE_API_CHOICES_MAX);
    prompts->list = calloc(count, sizeof(*prompts->list));
    if (!prompts->list)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %zu prompts", count);
    prompts->count = count;
    if (!several)
        return one_prompt(value, limits, &prompts->list[0], error);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        if (json_typeof(item) != json_typeof(first))
            return kvf_fail(error, KVF_EINVAL, "'prompt' holds %s and %s in one list",
                            kvfi_json_kind(first), kvfi_json_kind(item));
        KVF_TRY(one_prompt(item, limits, &prompts->list[i], error));
    }
    return KVF_OK;
}

/* ---- /v1/chat/completions ------------------------------------------------------------------- */

/* Appends the text of a message's content: a string, or a list of {"type":"text","text":...}. */
static enum kvf_status append_content(const json_t *content, struct engine_text *text,
                                      struct kvf_error *error)
{
    size_t count = json_is_array(content) ? json_array_size(content) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *part = content;
        if (json_is_array(content)) {
            const json_t *item = json_array_get(content, i);
            const char *type = json_string_value(json_object_get(item, "type"));
            if (!type || strcmp(type, "text") != 0)
                return kvf_fail(error, KVF_EINVAL,
                                "'content' holds a part of type '%.40s', only 'text' is supported",
                                type ? type : "(none)");
            part = json_object_get(item, "text");
        }
        if (!json_is_string(part))
            return kvf_fail(error, KVF_EINVAL,
                            "'content' of a message is %s, expected a string or a list of text "
                            "parts",
                            kvfi_json_kind(part));
        if (engine_text_append(text, json_string_value(part), json_string_length(part)) != KVF_OK)
            return kvf_fail(error, KVF_ENOMEM, "no memory for the messages");
    }
    return KVF_OK;
}

static enum kvf_status get_message(const json_t *item, struct engine_message *message,
                                   struct engine_text *content, struct kvf_error *error)
{
    static const char *const roles[] = {"system", "user", "assistant", "developer", "tool"};
    if (!json_is_object(item))
        return kvf_fail(error, KVF_EINVAL, "'messages' holds %s, expected objects",
                        kvfi_json_kind(item));
    KVF_TRY(kvfi_json_need_string(item, "role", &message->role, error));
    bool known = false;
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        known = known || strcmp(message->role, roles[i]) == 0;
    if (!known)
        return kvf_fail(error, KVF_EINVAL,
                        "'role' is '%.40s', expected system, user, assistant, developer or tool",
                        message->role);
    message->role_len = strlen(message->role);
    const json_t *value = json_object_get(item, "content");
    if (!value || json_is_null(value))
        return kvf_fail(error, KVF_EINVAL, "'content' of a message is missing");
    KVF_TRY(append_content(value, content, error));
    message->content = content->data ? content->data : "";
    message->content_len = content->len;
    return KVF_OK;
}

static enum kvf_status render(const json_t *list, const struct engine_api_limits *limits,
                              struct engine_message *messages, struct engine_text *contents,
                              struct engine_tokens *tokens, struct kvf_error *error)
{
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++)
        KVF_TRY(get_message(json_array_get(list, i), &messages[i], &contents[i], error));
    if (!limits->tokenizer)
        return kvf_fail(error, KVF_ENOTSUP, "there is no tokenizer here, send token ids");
    struct engine_text text = {0};
    enum kvf_status status =
        engine_tokenizer_chat(limits->tokenizer, messages, count, true, &text, error);
    if (status == KVF_OK)
        status =
            encode(text.data, text.len, ENGINE_ENCODE_SPECIAL, "messages", limits, tokens, error);
    engine_text_free(&text);
    return status;
}

static enum kvf_status parse_messages(const json_t *body, const struct engine_api_limits *limits,
                                      struct engine_tokens *tokens, struct kvf_error *error)
{
    json_t *list;
    KVF_TRY(kvfi_json_need_array(body, "messages", &list, error));
    size_t count = json_array_size(list);
    if (count == 0)
        return kvf_fail(error, KVF_EINVAL, "'messages' is empty");
    struct engine_message *messages = calloc(count, sizeof(*messages));
    struct engine_text *contents = calloc(count, sizeof(*contents));
    enum kvf_status status = KVF_OK;
    if (messages && contents)
        status = render(list, limits, messages, contents, tokens, error);
    else
        status = kvf_fail(error, KVF_ENOMEM, "no memory for %zu messages", count);
    for (size_t i = 0; contents && i < count; i++)
        engine_text_free(&contents[i]);
    free(contents);
    free(messages);
    return status;
}

static enum kvf_status parse_chat(const json_t *body, const struct engine_api_params *params,
                                  const struct engine_api_limits *limits,
                                  struct engine_api_prompts *prompts, struct kvf_error *error)
{
    prompts->list = calloc(1, sizeof(*prompts->list));
    if (!prompts->list)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the prompt");
    prompts->count = 1;
    const json_t *ids = params->transfer_token_ids;
    if (!ids)
        return parse_messages(body, limits, &prompts->list[0], error);
    /* The prefill engine's own token ids: decode must not tokenize differently. */
    if (!json_is_array(ids))
        return kvf_fail(error, KVF_EINVAL, "'prompt_token_ids' is %s, expected a list of token ids",
                        kvfi_json_kind(ids));
    return ids_from_list(ids, "prompt_token_ids", limits, &prompts->list[0], error);
}

enum kvf_status engine_api_prompts_parse(const json_t *body, const struct engine_api_params *params,
                                         const struct engine_api_limits *limits,
                                         struct engine_api_prompts *prompts,
                                         struct kvf_error *error)
{
    *prompts = (struct engine_api_prompts){0};
    enum kvf_status status = params->chat ? parse_chat(body, params, limits, prompts, error)
                                          : parse_prompts(body, limits, prompts, error);
    if (status != KVF_OK)
        engine_api_prompts_free(prompts);
    return status;
}
