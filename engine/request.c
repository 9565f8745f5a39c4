/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/request.h"

#include <stdlib.h>
#include <string.h>

struct engine_request *engine_request_create(const struct engine_request_spec *spec,
                                             uint32_t block_size)
{
    struct engine_request *request = calloc(1, sizeof(*request));
    if (!request)
        return NULL;
    uint32_t token_cap = spec->prompt_count + spec->max_tokens;
    request->id = strdup(spec->id);
    request->tokens = malloc((size_t)token_cap * sizeof(*request->tokens));
    request->blocks.ids =
        malloc((size_t)engine_blocks_for(token_cap, block_size) * sizeof(*request->blocks.ids));
    if (!request->id || !request->tokens || !request->blocks.ids) {
        engine_request_destroy(request);
        return NULL;
    }
    memcpy(request->tokens, spec->prompt, (size_t)spec->prompt_count * sizeof(*request->tokens));
    request->token_count = request->prompt_count = spec->prompt_count;
    request->max_tokens = spec->max_tokens;
    request->min_tokens = spec->min_tokens;
    request->ignore_end = spec->ignore_end;
    request->logprobs = spec->logprobs;
    request->sampling = spec->sampling;
    request->user = spec->user;
    request->remote_prefill = spec->transfer && spec->transfer->do_remote_prefill;
    request->remote_decode = spec->transfer && spec->transfer->do_remote_decode;
    if (spec->transfer && spec->transfer->transfer_id) {
        request->transfer_id = strdup(spec->transfer->transfer_id);
        if (!request->transfer_id) {
            engine_request_destroy(request);
            return NULL;
        }
    }
    return request;
}

void engine_request_destroy(struct engine_request *request)
{
    if (!request)
        return;
    free(request->id);
    free(request->transfer_id);
    free(request->tokens);
    free(request->blocks.ids);
    free(request->quarantine.ids);
    free(request);
}
