/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_impl.h"

#include <stdlib.h>

enum kvf_status engine_api_create(struct event_base *base, struct kvfi_http_server *server,
                                  struct engine *engine, struct engine_api **api_p,
                                  struct kvf_error *error)
{
    struct engine_api *api = calloc(1, sizeof(*api));
    if (!api)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the HTTP API");
    const struct engine_info *info = engine_info(engine);
    api->engine = engine;
    api->server = server;
    api->limits = (struct engine_api_limits){
        .model_name = info->model_name,
        .tokenizer = info->tokenizer,
        .role = info->role,
        .allow_remote = info->allow_remote,
        .vocab_size = info->model->vocab_size,
        .model_len_max = info->model_len_max,
    };
    enum kvf_status status = api_call_routes(api);
    if (status == KVF_OK)
        status = api_info_routes(api);
    if (status != KVF_OK)
        (void)kvf_fail(error, status, "no memory for the HTTP routes");
    else
        status = kvfi_mailbox_attach(engine_outbox(engine), base, api_call_deliver, api, error);
    if (status != KVF_OK) {
        free(api);
        return status;
    }
    *api_p = api;
    return KVF_OK;
}

void engine_api_destroy(struct engine_api *api)
{
    if (!api)
        return;
    /* What the engine put out last is still in the outbox. */
    struct engine_job *job;
    while (kvfi_mailbox_take(engine_outbox(api->engine), &job) == KVF_OK)
        api_call_deliver(api, &job);
    free(api);
}

size_t engine_api_call_count(const struct engine_api *api)
{
    return api->call_count;
}
