/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <stdlib.h>
#include <string.h>

/* ---- what we know and cannot do ------------------------------------------------------------- */

enum neutral {
    NEUTRAL_FALSE,
    NEUTRAL_ZERO,
    NEUTRAL_ONE,
    NEUTRAL_EMPTY,
    NEUTRAL_NULL,
    NEUTRAL_TEXT, /* {"type": "text"} */
};

static const struct {
    const char *key;
    enum neutral neutral;
} refused[] = {
    {"echo", NEUTRAL_FALSE},
    {"use_beam_search", NEUTRAL_FALSE},
    {"suffix", NEUTRAL_NULL},
    {"best_of", NEUTRAL_ONE},
    {"logit_bias", NEUTRAL_EMPTY},
    {"presence_penalty", NEUTRAL_ZERO},
    {"frequency_penalty", NEUTRAL_ZERO},
    {"repetition_penalty", NEUTRAL_ONE},
    {"min_p", NEUTRAL_ZERO},
    {"prompt_logprobs", NEUTRAL_NULL},
    {"response_format", NEUTRAL_TEXT},
    {"structured_outputs", NEUTRAL_NULL},
    {"tools", NEUTRAL_EMPTY},
};

static bool is_neutral(const json_t *value, enum neutral neutral)
{
    if (!value || json_is_null(value))
        return true;
    switch (neutral) {
    case NEUTRAL_FALSE:
        return json_is_false(value);
    case NEUTRAL_ZERO:
        return json_is_number(value) && json_number_value(value) == 0;
    case NEUTRAL_ONE:
        return json_is_number(value) && json_number_value(value) == 1;
    case NEUTRAL_EMPTY:
        return json_array_size(value) == 0 && json_object_size(value) == 0 &&
               (json_is_array(value) || json_is_object(value));
    case NEUTRAL_NULL:
        return false;
    case NEUTRAL_TEXT: {
        const char *type = json_string_value(json_object_get(value, "type"));
        return type && strcmp(type, "text") == 0;
    }
    }
    return false;
}

static enum kvf_status refuse_unsupported(const json_t *body, struct kvf_error *error)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        if (!is_neutral(json_object_get(body, refused[i].key), refused[i].neutral))
            return kvf_fail(error, KVF_EINVAL, "'%s' is not supported by this engine",
                            refused[i].key);
    return KVF_OK;
}

/* ---- stop strings --------------------------------------------------------------------------- */

static enum kvf_status add_stop(struct engine_stop_list *stops, const json_t *value,
                                struct kvf_error *error)
{
    if (!json_is_string(value))
        return kvf_fail(error, KVF_EINVAL,
                        "'stop' holds %s, expected a string or a list of strings",
                        kvfi_json_kind(value));
    size_t len = json_string_length(value);
    const char *text = json_string_value(value);
    if (len == 0)
        return kvf_fail(error, KVF_EINVAL, "'stop' holds an empty string");
    if (strlen(text) != len)
        return kvf_fail(error, KVF_EINVAL, "'stop' holds a string with a NUL character");
    stops->texts[stops->count] = strdup(text);
    if (!stops->texts[stops->count])
        return kvf_fail(error, KVF_ENOMEM, "no memory for the stop strings");
    stops->count++;
    return KVF_OK;
}

static enum kvf_status parse_stops(const json_t *body, struct engine_stop_list *stops,
                                   struct kvf_error *error)
{
    const json_t *value = json_object_get(body, "stop");
    if (!value || json_is_null(value))
        return KVF_OK;
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (count == 0)
        return KVF_OK;
    if (count > ENGINE_API_STOPS_MAX)
        return kvf_fail(error, KVF_EINVAL, "'stop' holds %zu strings, at most %d are taken", count,
                        ENGINE_API_STOPS_MAX);
    stops->texts = calloc(count, sizeof(char *));
    if (!stops->texts)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the stop strings");
    if (!json_is_array(value))
        return add_stop(stops, value, error);
    for (size_t i = 0; i < count; i++)
        KVF_TRY(add_stop(stops, json_array_get(value, i), error));
    return KVF_OK;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static enum kvf_status parse_lengths(const json_t *body, struct engine_api_params *params,
                                     struct kvf_error *error)
{
    int64_t max_tokens;
    int64_t min_tokens;
    int64_t n;
    KVF_TRY(kvfi_json_opt_int(body, "max_tokens", 1, INT32_MAX, 0, &max_tokens, error));
    if (params->chat)
        KVF_TRY(kvfi_json_opt_int(body, "max_completion_tokens", 1, INT32_MAX, max_tokens,
                                  &max_tokens, error));
    KVF_TRY(kvfi_json_opt_int(body, "min_tokens", 0, INT32_MAX, 0, &min_tokens, error));
    KVF_TRY(kvfi_json_opt_int(body, "n", 1, ENGINE_API_CHOICES_MAX, 1, &n, error));
    if (max_tokens != 0 && min_tokens > max_tokens)
        return kvf_fail(error, KVF_EINVAL, "'min_tokens' is %lld, more than 'max_tokens' (%lld)",
                        (long long)min_tokens, (long long)max_tokens);
    params->max_tokens = (uint32_t)max_tokens;
    params->min_tokens = (uint32_t)min_tokens;
    params->n = (uint32_t)n;
    return KVF_OK;
}

static enum kvf_status parse_sampling(const json_t *body, struct engine_api_params *params,
                                      struct kvf_error *error)
{
    double temperature;
    double top_p;
    int64_t top_k;
    int64_t seed;
    KVF_TRY(kvfi_json_opt_number(body, "temperature", 0, 1000, 1, &temperature, error));
    KVF_TRY(kvfi_json_opt_number(body, "top_p", 0, 1, 1, &top_p, error));
    KVF_TRY(kvfi_json_opt_int(body, "top_k", -1, INT32_MAX, 0, &top_k, error));
    KVF_TRY(kvfi_json_opt_int(body, "seed", INT64_MIN, INT64_MAX, 0, &seed, error));
    const json_t *given = json_object_get(body, "seed");
    params->seed_given = given && !json_is_null(given);
    params->sampling = (struct engine_sampler_params){
        .temperature = (float)temperature,
        .top_p = (float)top_p,
        .top_k = top_k < 0 ? 0 : (uint32_t)top_k,
        .seed = (uint64_t)seed,
    };
    return engine_sampler_check(&params->sampling, error);
}

static enum kvf_status parse_logprobs(const json_t *body, struct engine_api_params *params,
                                      struct kvf_error *error)
{
    int64_t count;
    if (!params->chat) {
        KVF_TRY(kvfi_json_opt_int(body, "logprobs", 0, ENGINE_LOGPROBS_MAX, ENGINE_NO_LOGPROBS,
                                  &count, error));
        params->logprobs = (int)count;
        return KVF_OK;
    }
    bool wanted;
    KVF_TRY(kvfi_json_opt_bool(body, "logprobs", false, &wanted, error));
    KVF_TRY(kvfi_json_opt_int(body, "top_logprobs", 0, ENGINE_LOGPROBS_MAX, 0, &count, error));
    if (!wanted && count > 0)
        return kvf_fail(error, KVF_EINVAL, "'top_logprobs' is given without 'logprobs': true");
    params->logprobs = wanted ? (int)count : ENGINE_NO_LOGPROBS;
    return KVF_OK;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static enum kvf_status parse_stream(const json_t *body, struct engine_api_params *params,
                                    struct kvf_error *error)
{
    json_t *options;
    KVF_TRY(kvfi_json_opt_bool(body, "stream", false, &params->stream, error));
    KVF_TRY(kvfi_json_opt_object(body, "stream_options", &options, error));
    if (!options)
        return KVF_OK;
    if (!params->stream)
        return kvf_fail(error, KVF_EINVAL, "'stream_options' is given without 'stream': true");
    return kvfi_json_opt_bool(options, "include_usage", false, &params->include_usage, error);
}

static enum kvf_status parse_transfer(const json_t *body, const struct engine_api_limits *limits,
                                      struct engine_api_params *params, struct kvf_error *error)
{
    json_t *transfer;
    KVF_TRY(kvfi_json_opt_object(body, "kv_transfer_params", &transfer, error));
    if (!transfer)
        return KVF_OK;
    const json_t *ids = json_object_get(transfer, "prompt_token_ids");
    if (params->chat && ids && !json_is_null(ids))
        params->transfer_token_ids = ids;
    return engine_api_transfer_parse(transfer, limits, &params->transfer, error);
}

static enum kvf_status check_model(const json_t *body, const struct engine_api_limits *limits,
                                   struct kvf_error *error)
{
    const char *model;
    KVF_TRY(kvfi_json_opt_string(body, "model", NULL, &model, error));
    if (model && strcmp(model, limits->model_name) != 0)
        return kvf_fail(error, KVF_ENOTFOUND,
                        "the model '%.100s' does not exist here, this engine serves '%.100s'",
                        model, limits->model_name);
    return KVF_OK;
}

static enum kvf_status parse_all(const json_t *body, const struct engine_api_limits *limits,
                                 struct engine_api_params *params, struct kvf_error *error)
{
    KVF_TRY(check_model(body, limits, error));
    KVF_TRY(refuse_unsupported(body, error));
    KVF_TRY(parse_lengths(body, params, error));
    KVF_TRY(parse_sampling(body, params, error));
    KVF_TRY(parse_logprobs(body, params, error));
    KVF_TRY(parse_stream(body, params, error));
    KVF_TRY(kvfi_json_opt_bool(body, "ignore_eos", false, &params->ignore_end, error));
    KVF_TRY(kvfi_json_opt_bool(body, "return_token_ids", false, &params->return_token_ids, error));
    KVF_TRY(kvfi_json_opt_string(body, "request_id", NULL, &params->request_id, error));
    KVF_TRY(parse_stops(body, &params->stops, error));
    return parse_transfer(body, limits, params, error);
}

enum kvf_status engine_api_params_parse(const json_t *body, bool chat,
                                        const struct engine_api_limits *limits,
                                        struct engine_api_params *params, struct kvf_error *error)
{
    *params = (struct engine_api_params){
        .chat = chat, .logprobs = ENGINE_NO_LOGPROBS, .transfer = {.prefill_cached_tokens = -1}};
    enum kvf_status status = parse_all(body, limits, params, error);
    if (status != KVF_OK)
        engine_api_params_free(params);
    return status;
}

void engine_api_params_free(struct engine_api_params *params)
{
    for (size_t i = 0; i < params->stops.count; i++)
        free(params->stops.texts[i]);
    free((void *)params->stops.texts);
    params->stops = (struct engine_stop_list){0};
    engine_transfer_free(&params->transfer);
}
