/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_API_PARAMS_H
#define ENGINE_API_PARAMS_H

/*
 * The body of POST /v1/completions and /v1/chat/completions, checked key by key. Fields that we do
 * not know are ignored; those that we know but cannot honour are refused by name, unless they have
 * the value that changes nothing.
 */

#include "engine/engine.h"
#include "http/json.h"

enum {
    ENGINE_API_CHOICES_MAX = 128, /* n, and prompts in one call */
    ENGINE_API_STOPS_MAX = 64,
    ENGINE_API_BASE_ID_LEN_MAX = 384,
};

/* What the checks are made against; all borrowed. */
struct engine_api_limits {
    const char *model_name;
    const struct engine_tokenizer *tokenizer; /* NULL in tests that send token ids */
    enum engine_role role;
    const char *allow_remote; /* hosts that a decode leg may name, comma-separated; NULL: any */
    uint32_t vocab_size;
    uint32_t model_len_max;
};

struct engine_api_params {
    bool chat;
    bool stream;
    bool include_usage;
    bool return_token_ids;
    bool ignore_end;
    bool seed_given;
    uint32_t n;
    uint32_t max_tokens; /* 0: not given */
    uint32_t min_tokens;
    int logprobs;
    struct engine_sampler_params sampling;
    struct engine_stop_list stops;    /* owned */
    struct engine_transfer transfer;  /* owned */
    const json_t *transfer_token_ids; /* prompt_token_ids of kv_transfer_params, borrowed from the
                                         body; NULL */
    const char *request_id;           /* borrowed from the body; NULL */
};

/* The body as a JSON object; where it is not JSON, the text also names the key that came before.
 * New reference. */
KVF_MUST_USE enum kvf_status engine_api_body_parse(const char *data, size_t len, json_t **body_p,
                                                   struct kvf_error *error);

/* The failure's text is for the client. KVF_ENOTFOUND: another model is asked for; KVF_ENOTALLOWED
 * as below; else KVF_EINVAL or KVF_ENOMEM. On success the caller frees params; on failure there is
 * nothing to free. */
KVF_MUST_USE enum kvf_status engine_api_params_parse(const json_t *body, bool chat,
                                                     const struct engine_api_limits *limits,
                                                     struct engine_api_params *params,
                                                     struct kvf_error *error);
void engine_api_params_free(struct engine_api_params *params);

/* kv_transfer_params of a request; value is an object. Checks types and ranges of each key, and the
 * role of this engine; which keys must be there is the connector's to say. KVF_ENOTALLOWED: the
 * host is not one that this engine connects to. */
KVF_MUST_USE enum kvf_status engine_api_transfer_parse(const json_t *value,
                                                       const struct engine_api_limits *limits,
                                                       struct engine_transfer *transfer,
                                                       struct kvf_error *error);
/* kv_transfer_params of a response, in vLLM's order of keys. NULL when memory is short. */
json_t *engine_api_transfer_json(const struct engine_output *output);

/* The prompts of a call as token ids. */
struct engine_api_prompts {
    struct engine_tokens *list;
    size_t count;
};

/* "prompt" (string, list of strings, token ids, list of lists) or "messages" (chat). Every prompt
 * has 1 to model_len_max - 1 tokens. Errors as above. */
KVF_MUST_USE enum kvf_status engine_api_prompts_parse(const json_t *body,
                                                      const struct engine_api_params *params,
                                                      const struct engine_api_limits *limits,
                                                      struct engine_api_prompts *prompts,
                                                      struct kvf_error *error);
void engine_api_prompts_free(struct engine_api_prompts *prompts);

/* Base id of a call (facts 4.4): header, else body, else 16 random hex characters. buf holds
 * ENGINE_API_BASE_ID_LEN_MAX + 1. KVF_EINVAL for ids that are too long or not printable. */
KVF_MUST_USE enum kvf_status engine_api_base_id(const char *header, const char *body, char *buf,
                                                struct kvf_error *error);
/* The engine's internal id of choice k of n of a prompt: suffix is 8 hex characters. On the heap;
 * NULL when memory is short. */
char *engine_api_internal_id(bool chat, const char *base, size_t prompt_index, uint32_t k,
                             uint32_t n, const char *suffix);
/* count random lower-case hex characters and a terminator. */
KVF_MUST_USE enum kvf_status engine_api_random_hex(char *buf, size_t count);

#endif
