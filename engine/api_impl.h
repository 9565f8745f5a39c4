/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_API_IMPL_H
#define ENGINE_API_IMPL_H

/* Private to engine/api*.c. HTTP thread only. */

#include "engine/api.h"
#include "engine/api_params.h"
#include "http/reply.h"

/* One answer of a call: choice `index` of the response. */
struct api_choice {
    struct engine_job *job; /* lent to the engine until finished; NULL afterwards */
    uint32_t prompt_count;
    bool role_sent;              /* chat stream: the first chunk went out */
    size_t text_offset;          /* completions: characters of text in what was sent so far */
    uint64_t completion_count;   /* output tokens in all */
    struct engine_output output; /* not sent yet, or all of it when not streaming */
};

/* One HTTP request that is being answered. Freed when the reply has ended and the engine has
 * finished every job. */
struct api_call {
    struct engine_api *api;
    struct kvfi_reply *reply; /* NULL when it was answered or the client has left */
    bool reply_ended;
    bool streaming; /* the first event went out */
    struct engine_api_params params;
    char id[ENGINE_API_BASE_ID_LEN_MAX + 32]; /* of the response */
    int64_t created_unix_s;
    struct api_choice *choices;
    size_t choice_count;
    size_t unfinished_count;
    json_t *handover; /* kv_transfer_params of the response; NULL: none (yet) */
    struct api_call *prev;
    struct api_call *next;
};

struct engine_api {
    struct engine *engine;
    struct kvfi_http_server *server;
    struct engine_api_limits limits;
    struct api_call *calls;
    size_t call_count;
    uint64_t remotes_refused; /* requests that named a host that is not allowed */
};

/* api_format.c: JSON of a response; all return a new reference, NULL when memory is short. */
json_t *api_whole_json(const struct api_call *call);
/* The chunk of one choice with its unsent output; finish: with the reason. */
json_t *api_chunk_json(const struct api_call *call, size_t index, bool finish);
/* The first chunk of a chat stream. */
json_t *api_role_json(const struct api_call *call, size_t index);
/* The last chunk, when usage was asked for. */
json_t *api_usage_chunk_json(const struct api_call *call);

/* api_logprobs.c */
json_t *api_logprobs_json(const struct api_call *call, const struct api_choice *choice);

/* api_info.c: handlers of everything but the two that generate. */
enum kvf_status api_info_routes(struct engine_api *api);

/* api_call.c */
enum kvf_status api_call_routes(struct engine_api *api);
void api_call_deliver(void *ctx, void *item);

#endif
