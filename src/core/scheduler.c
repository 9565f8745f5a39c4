/* SPDX-License-Identifier: Apache-2.0 */
#include "core/scheduler.h"

#include "core/config.h"
#include "core/params.h"
#include "wire/bytes.h"

#include <assert.h>
#include <string.h>

static const unsigned __attribute__((unused)) legal_next[KVFI_REQUEST_STATE_COUNT] = {
#define KVFI_REQUEST_STATE_NEXT(state, next) [KVFI_REQUEST_##state] = (next),
    KVFI_REQUEST_STATE_LIST(KVFI_REQUEST_STATE_NEXT)
#undef KVFI_REQUEST_STATE_NEXT
};

static void set_state(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                      enum kvfi_request_state state)
{
    scheduler->state_counts[request->state]--;
    scheduler->state_counts[state]++;
    request->state = state;
}

static void stop_heartbeat(struct kvf_scheduler *scheduler, struct kvfi_request *request)
{
    if (kvfi_list_empty(&request->beat))
        return;
    kvfi_list_remove(&request->beat);
    scheduler->beating_count--;
}

void kvfi_request_move(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                       enum kvfi_request_state state)
{
    assert(legal_next[request->state] & (1u << state));
    set_state(scheduler, request, state);
    bool waits = state == KVFI_REQUEST_DECODE_TO_REGISTER || state == KVFI_REQUEST_DECODE_RECEIVING;
    if (!waits) {
        kvfi_deadlines_cancel(&scheduler->watchdogs, &request->watchdog);
        stop_heartbeat(scheduler, request);
    }
    if (state == KVFI_REQUEST_GONE)
        kvfi_index_remove(&scheduler->by_id, &request->by_id);
}

static void release_remote(struct kvf_scheduler *scheduler, struct kvfi_remote *remote)
{
    if (!remote || --remote->user_count > 0)
        return;
    kvfi_index_remove(&scheduler->remotes, &remote->by_key);
    kvfi_wire_free(scheduler->allocator, remote);
}

static void free_request(struct kvf_scheduler *scheduler, struct kvfi_request *request)
{
    stop_heartbeat(scheduler, request);
    kvfi_list_remove(&request->queue);
    kvfi_list_remove(&request->batch_queue);
    kvfi_index_remove(&scheduler->by_id, &request->by_id);
    kvfi_deadlines_release(&scheduler->watchdogs, &request->watchdog);
    release_remote(scheduler, request->remote);
    scheduler->state_counts[request->state]--;
    kvfi_wire_free(scheduler->allocator, request->block_ids);
    kvfi_wire_free(scheduler->allocator, request);
}

void kvfi_request_reap(struct kvf_scheduler *scheduler, struct kvfi_request *request)
{
    if (request->state == KVFI_REQUEST_GONE && kvfi_list_empty(&request->queue) &&
        kvfi_list_empty(&request->batch_queue))
        free_request(scheduler, request);
}

enum kvf_status kvf_scheduler_create(const struct kvf_kv_config *config,
                                     const struct kvf_allocator *allocator,
                                     struct kvf_scheduler **scheduler_p, struct kvf_error *error)
{
    KVF_TRY(kvfi_kv_config_check(config, error));
    struct kvf_scheduler *scheduler = kvfi_wire_alloc(allocator, sizeof(*scheduler));
    if (!scheduler)
        return kvf_fail(error, KVF_ENOMEM, "out of memory for the scheduler");
    memset(scheduler, 0, sizeof(*scheduler));
    if (allocator) {
        scheduler->allocator_copy = *allocator;
        scheduler->allocator = &scheduler->allocator_copy;
    }
    memcpy(scheduler->engine_id, config->engine_id, strlen(config->engine_id) + 1);
    memcpy(scheduler->host, config->host, strlen(config->host) + 1);
    scheduler->port = config->port;
    scheduler->block_size = config->block_size;
    scheduler->lease_ns = config->lease_ns;
    scheduler->registration_timeout_ns = config->registration_timeout_ns;
    scheduler->heartbeat_interval_ns = kvfi_heartbeat_interval_ns(config->lease_ns);
    kvfi_index_init(&scheduler->by_id, scheduler->allocator);
    kvfi_index_init(&scheduler->remotes, scheduler->allocator);
    kvfi_deadlines_init(&scheduler->watchdogs, scheduler->allocator);
    kvfi_list_init(&scheduler->registration_queue);
    kvfi_list_init(&scheduler->finished_queue);
    kvfi_list_init(&scheduler->in_batch_queue);
    kvfi_list_init(&scheduler->not_processed_queue);
    kvfi_list_init(&scheduler->withdrawn_queue);
    *scheduler_p = scheduler;
    return KVF_OK;
}

static void free_queue(struct kvf_scheduler *scheduler, struct kvfi_list *queue)
{
    while (!kvfi_list_empty(queue))
        free_request(scheduler, KVFI_CONTAINER_OF(queue->next, struct kvfi_request, queue));
}

void kvf_scheduler_destroy(struct kvf_scheduler *scheduler)
{
    if (!scheduler)
        return;
    /* Requests that have left the table are only in a queue. */
    free_queue(scheduler, &scheduler->registration_queue);
    free_queue(scheduler, &scheduler->finished_queue);
    free_queue(scheduler, &scheduler->not_processed_queue);
    free_queue(scheduler, &scheduler->withdrawn_queue);
    for (size_t i = 0; i < scheduler->by_id.bucket_count; i++) {
        while (scheduler->by_id.buckets[i])
            free_request(scheduler, KVFI_CONTAINER_OF(scheduler->by_id.buckets[i],
                                                      struct kvfi_request, by_id));
    }
    kvfi_index_deinit(&scheduler->by_id);
    kvfi_index_deinit(&scheduler->remotes);
    kvfi_deadlines_deinit(&scheduler->watchdogs);
    struct kvf_allocator allocator = scheduler->allocator_copy;
    kvfi_wire_free(scheduler->allocator ? &allocator : NULL, scheduler);
}

static struct kvfi_request *find(const struct kvf_scheduler *scheduler, const char *request_id)
{
    if (!request_id)
        return NULL;
    struct kvfi_index_node *node =
        kvfi_index_find(&scheduler->by_id, request_id, strlen(request_id));
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_request, by_id) : NULL;
}

/* ---- on_new_request ------------------------------------------------------------------------- */

/* KVF_ENOMEM leaves nothing behind. */
static struct kvfi_remote *take_remote(struct kvf_scheduler *scheduler,
                                       const struct kvf_transfer_params *params)
{
    char key[KVF_ENGINE_ID_LEN_MAX + KVF_HOST_LEN_MAX + 4];
    uint16_t port = (uint16_t)params->remote_port;
    size_t engine_len = strlen(params->remote_engine_id) + 1;
    size_t host_len = strlen(params->remote_host) + 1;
    memcpy(key, params->remote_engine_id, engine_len);
    memcpy(key + engine_len, params->remote_host, host_len);
    memcpy(key + engine_len + host_len, &port, sizeof(port));
    size_t key_len = engine_len + host_len + sizeof(port);

    struct kvfi_index_node *node = kvfi_index_find(&scheduler->remotes, key, key_len);
    if (node) {
        struct kvfi_remote *known = KVFI_CONTAINER_OF(node, struct kvfi_remote, by_key);
        known->user_count++;
        return known;
    }
    struct kvfi_remote *remote = kvfi_wire_alloc(scheduler->allocator, sizeof(*remote) + key_len);
    if (!remote)
        return NULL;
    char *text = (char *)(remote + 1);
    memcpy(text, key, key_len);
    *remote = (struct kvfi_remote){
        .user_count = 1,
        .key_len = key_len,
        .engine = {.engine_id = text,
                   .host = text + engine_len,
                   .port = port,
                   .tp_size = 1,
                   .pp_size = 1},
    };
    kvfi_list_init(&remote->requests);
    kvfi_index_add(&scheduler->remotes, &remote->by_key, text, key_len);
    return remote;
}

static const char *copy_text(char **at, const char *text)
{
    if (!text)
        return NULL;
    char *copy = *at;
    size_t len = strlen(text) + 1;
    memcpy(copy, text, len);
    *at += len;
    return copy;
}

static struct kvfi_request *make_request(struct kvf_scheduler *scheduler, const char *request_id,
                                         const struct kvf_transfer_params *params,
                                         enum kvfi_params_role role)
{
    const char *remote_request_id = role == KVFI_PARAMS_DECODE ? params->remote_request_id : NULL;
    size_t text_len = strlen(request_id) + 1;
    text_len += params->transfer_id ? strlen(params->transfer_id) + 1 : 0;
    text_len += remote_request_id ? strlen(remote_request_id) + 1 : 0;
    struct kvfi_request *request =
        kvfi_wire_alloc(scheduler->allocator, sizeof(*request) + text_len);
    if (!request)
        return NULL;
    char *at = (char *)(request + 1);
    *request = (struct kvfi_request){
        .state = role == KVFI_PARAMS_DECODE ? KVFI_REQUEST_DECODE_NEW : KVFI_REQUEST_PREFILL_NEW,
        .request_id = copy_text(&at, request_id),
        .transfer_id = copy_text(&at, params->transfer_id),
        .remote_request_id = copy_text(&at, remote_request_id),
    };
    kvfi_list_init(&request->queue);
    kvfi_list_init(&request->batch_queue);
    kvfi_list_init(&request->beat);
    return request;
}

enum kvf_status kvf_scheduler_on_new_request(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                             const char *request_id,
                                             const struct kvf_transfer_params *params,
                                             uint32_t prompt_tokens, struct kvf_error *error)
{
    enum kvfi_params_role role = KVFI_PARAMS_ORDINARY;
    KVF_TRY(kvfi_request_id_check("request id", request_id, error));
    KVF_TRY(kvfi_params_check(params, scheduler->engine_id, &role, error));
    if (role == KVFI_PARAMS_ORDINARY)
        return KVF_OK;
    if (prompt_tokens == 0)
        return kvf_fail(error, KVF_EINVAL, "request '%s' has an empty prompt", request_id);
    if ((prompt_tokens - 1) / scheduler->block_size >= KVF_BLOCKS_MAX)
        return kvf_fail(error, KVF_ELIMIT,
                        "request '%s': %u prompt tokens need more than %u blocks", request_id,
                        prompt_tokens, KVF_BLOCKS_MAX);
    if (find(scheduler, request_id))
        return kvf_fail(error, KVF_EEXIST, "request '%s' is still being transferred", request_id);

    if (kvfi_deadlines_reserve(&scheduler->watchdogs) != KVF_OK)
        goto err_none;
    struct kvfi_request *request = make_request(scheduler, request_id, params, role);
    if (!request)
        goto err_reserve;
    if (role == KVFI_PARAMS_DECODE) {
        request->remote = take_remote(scheduler, params);
        if (!request->remote)
            goto err_request;
        kvfi_list_append(&request->remote->requests, &request->beat);
        scheduler->beating_count++;
    }
    request->prompt_tokens = prompt_tokens;
    scheduler->state_counts[request->state]++;
    kvfi_index_add(&scheduler->by_id, &request->by_id, request->request_id,
                   strlen(request->request_id));
    return KVF_OK;

err_request:
    kvfi_wire_free(scheduler->allocator, request);
err_reserve:
    scheduler->watchdogs.reserved--;
err_none:
    return kvf_fail(error, KVF_ENOMEM, "out of memory for request '%s'", request_id);
}

uint32_t kvf_scheduler_matched_tokens(struct kvf_scheduler *scheduler, const char *request_id,
                                      uint32_t computed_tokens)
{
    const struct kvfi_request *request = find(scheduler, request_id);
    /* Only before the one receive: a push is not repeated (bug B16). */
    if (!request || request->state != KVFI_REQUEST_DECODE_NEW ||
        computed_tokens >= request->prompt_tokens)
        return 0;
    return request->prompt_tokens - computed_tokens;
}

/* ---- after_alloc ---------------------------------------------------------------------------- */

static size_t prompt_blocks(const struct kvf_scheduler *scheduler,
                            const struct kvfi_request *request)
{
    return (request->prompt_tokens - 1) / scheduler->block_size + 1;
}

static enum kvf_status keep_blocks(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                                   const uint32_t *block_ids, size_t count, struct kvf_error *error)
{
    uint32_t *copy = kvfi_wire_alloc(scheduler->allocator, count * sizeof(*copy));
    if (!copy)
        return kvf_fail(error, KVF_ENOMEM, "out of memory for %zu block ids of request '%s'", count,
                        request->request_id);
    memcpy(copy, block_ids, count * sizeof(*copy));
    kvfi_wire_free(scheduler->allocator, request->block_ids);
    request->block_ids = copy;
    request->block_count = count;
    return KVF_OK;
}

static enum kvf_status register_receive(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                        struct kvfi_request *request, const uint32_t *block_ids,
                                        size_t block_count, size_t cached_count,
                                        struct kvf_error *error)
{
    /* Blocks behind the prompt (speculative slots, the next token) are not prefill's (bug B58). */
    size_t wanted = prompt_blocks(scheduler, request);
    if (block_count < wanted)
        return kvf_fail(error, KVF_EINVAL,
                        "request '%s': %zu blocks allocated, its %u prompt tokens need %zu",
                        request->request_id, block_count, request->prompt_tokens, wanted);
    if (cached_count >= wanted)
        return kvf_fail(error, KVF_EINVAL,
                        "request '%s': %zu of %zu prompt blocks are cached, nothing is to receive",
                        request->request_id, cached_count, wanted);
    KVF_TRY(
        keep_blocks(scheduler, request, block_ids + cached_count, wanted - cached_count, error));
    kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_TO_REGISTER);
    kvfi_list_append(&scheduler->registration_queue, &request->queue);
    kvfi_deadlines_set(&scheduler->watchdogs, &request->watchdog,
                       kvfi_ns_add(now_ns, scheduler->registration_timeout_ns));
    return KVF_OK;
}

enum kvf_status kvf_scheduler_after_alloc(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                          const char *request_id, const uint32_t *block_ids,
                                          size_t block_count, size_t cached_count,
                                          uint32_t external_tokens, struct kvf_error *error)
{
    struct kvfi_request *request = find(scheduler, request_id);
    if (!request)
        return KVF_OK;
    if (block_count > 0 && !block_ids)
        return kvf_fail(error, KVF_EINVAL, "request '%s': block_ids is NULL", request_id);
    if (block_count > KVF_BLOCKS_MAX)
        return kvf_fail(error, KVF_ELIMIT, "request '%s': %zu blocks, at most %u", request_id,
                        block_count, KVF_BLOCKS_MAX);
    if (cached_count > block_count)
        return kvf_fail(error, KVF_EINVAL, "request '%s': %zu cached of %zu blocks", request_id,
                        cached_count, block_count);
    if (request->state == KVFI_REQUEST_PREFILL_NEW) {
        kvfi_request_move(scheduler, request, KVFI_REQUEST_PREFILL_IN_BATCH);
        kvfi_list_append(&scheduler->in_batch_queue, &request->batch_queue);
        return KVF_OK;
    }
    if (request->state != KVFI_REQUEST_DECODE_NEW) {
        if (external_tokens > 0)
            return kvf_fail(error, KVF_EEXIST, "request '%s' has already had its receive",
                            request_id);
        return KVF_OK;
    }
    if (external_tokens > request->prompt_tokens)
        return kvf_fail(error, KVF_EINVAL, "request '%s': %u external tokens, its prompt has %u",
                        request_id, external_tokens, request->prompt_tokens);
    if (external_tokens == 0) {
        /* A full hit: nothing is received, but prefill must learn that it may let go (bug B55). */
        kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_SETTLED);
        kvfi_list_append(&scheduler->registration_queue, &request->queue);
        return KVF_OK;
    }
    return register_receive(scheduler, now_ns, request, block_ids, block_count, cached_count,
                            error);
}

/* ---- request_finished ----------------------------------------------------------------------- */

static void fill_response(const struct kvf_scheduler *scheduler, const struct kvfi_request *request,
                          struct kvf_transfer_params *response)
{
    *response = (struct kvf_transfer_params){
        .do_remote_prefill = true,
        .remote_engine_id = scheduler->engine_id,
        .remote_request_id = request->request_id,
        .remote_host = scheduler->host,
        .remote_port = scheduler->port,
        .tp_size = 1,
        .pp_size = 1,
        .dcp_size = 1,
        .remote_num_tokens = request->prompt_tokens,
        .transfer_mode = "push",
        .transfer_id = request->transfer_id,
    };
}

static enum kvf_status finish_prefill(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                      struct kvfi_request *request, enum kvf_finish_reason reason,
                                      const uint32_t *block_ids, size_t block_count,
                                      bool *delay_free_p, struct kvf_error *error)
{
    if (reason == KVF_FINISH_ABORT || block_count == 0) {
        kvfi_list_remove(&request->batch_queue);
        kvfi_request_move(scheduler, request, KVFI_REQUEST_GONE);
        kvfi_list_append(&scheduler->not_processed_queue, &request->queue);
        *delay_free_p = false;
        return KVF_OK;
    }
    /* Only what decode can ask for: pairs are aligned at the end of the prompt (bug B54). */
    size_t wanted = prompt_blocks(scheduler, request);
    if (block_count < wanted)
        return kvf_fail(error, KVF_EINVAL,
                        "request '%s': %zu blocks at the end, its %u prompt tokens need %zu",
                        request->request_id, block_count, request->prompt_tokens, wanted);
    KVF_TRY(keep_blocks(scheduler, request, block_ids, wanted, error));
    request->lease_deadline_ns = kvfi_ns_add(now_ns, scheduler->lease_ns);
    kvfi_request_move(scheduler, request, KVFI_REQUEST_PREFILL_HELD);
    kvfi_list_append(&scheduler->finished_queue, &request->queue);
    *delay_free_p = true;
    return KVF_OK;
}

static void finish_decode(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                          bool *delay_free_p)
{
    *delay_free_p = false;
    switch (request->state) {
    case KVFI_REQUEST_DECODE_NEW:
    case KVFI_REQUEST_DECODE_TO_REGISTER:
        /* Prefill has never heard of it. Tell it that nobody comes (bug B12). */
        request->block_count = 0;
        kvfi_list_append(&scheduler->registration_queue, &request->queue);
        kvfi_request_move(scheduler, request, KVFI_REQUEST_GONE);
        return;
    case KVFI_REQUEST_DECODE_RECEIVING:
        kvfi_list_append(&scheduler->withdrawn_queue, &request->queue);
        kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_ENDED);
        *delay_free_p = true;
        return;
    case KVFI_REQUEST_DECODE_TIMED_OUT:
    case KVFI_REQUEST_DECODE_FAILED:
        kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_ENDED);
        *delay_free_p = true;
        return;
    case KVFI_REQUEST_DECODE_SETTLED:
        kvfi_request_move(scheduler, request, KVFI_REQUEST_GONE);
        kvfi_request_reap(scheduler, request);
        return;
    case KVFI_REQUEST_DECODE_ENDED:
    case KVFI_REQUEST_PREFILL_NEW:
    case KVFI_REQUEST_PREFILL_IN_BATCH:
    case KVFI_REQUEST_PREFILL_HELD:
    case KVFI_REQUEST_GONE:
    case KVFI_REQUEST_STATE_COUNT:
        return;
    }
}

enum kvf_status kvf_scheduler_request_finished(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                               const char *request_id,
                                               enum kvf_finish_reason reason,
                                               const uint32_t *block_ids, size_t block_count,
                                               bool *delay_free_p,
                                               struct kvf_transfer_params *response_p,
                                               bool *has_response_p, struct kvf_error *error)
{
    struct kvfi_request *request = find(scheduler, request_id);
    bool prefill = request && (request->state == KVFI_REQUEST_PREFILL_NEW ||
                               request->state == KVFI_REQUEST_PREFILL_IN_BATCH);
    if (prefill) {
        if (block_count > 0 && !block_ids)
            return kvf_fail(error, KVF_EINVAL, "request '%s': block_ids is NULL", request_id);
        if (block_count > KVF_BLOCKS_MAX)
            return kvf_fail(error, KVF_ELIMIT, "request '%s': %zu blocks, at most %u", request_id,
                            block_count, KVF_BLOCKS_MAX);
        KVF_TRY(finish_prefill(scheduler, now_ns, request, reason, block_ids, block_count,
                               delay_free_p, error));
    } else if (request) {
        finish_decode(scheduler, request, delay_free_p);
    } else {
        *delay_free_p = false;
    }
    bool has_response = prefill && *delay_free_p;
    if (has_response && response_p)
        fill_response(scheduler, request, response_p);
    if (has_response_p)
        *has_response_p = has_response;
    return KVF_OK;
}

/* ---- results -------------------------------------------------------------------------------- */

static void go(struct kvf_scheduler *scheduler, struct kvfi_request *request)
{
    kvfi_list_remove(&request->queue);
    kvfi_list_remove(&request->batch_queue);
    kvfi_request_move(scheduler, request, KVFI_REQUEST_GONE);
    kvfi_request_reap(scheduler, request);
}

/* A receive that nothing can write any more. */
static void settle(struct kvf_scheduler *scheduler, struct kvfi_request *request)
{
    kvfi_list_remove(&request->queue);
    kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_SETTLED);
    kvfi_wire_free(scheduler->allocator, request->block_ids);
    request->block_ids = NULL;
    request->block_count = 0;
}

static enum kvf_status apply_failed(struct kvf_scheduler *scheduler, struct kvfi_request *request,
                                    bool blocks_free)
{
    bool waiting = request->state == KVFI_REQUEST_DECODE_RECEIVING ||
                   request->state == KVFI_REQUEST_DECODE_TIMED_OUT;
    if (request->state == KVFI_REQUEST_DECODE_ENDED && blocks_free)
        go(scheduler, request);
    else if (waiting && blocks_free)
        settle(scheduler, request);
    else if (waiting)
        kvfi_request_move(scheduler, request, KVFI_REQUEST_DECODE_FAILED);
    else
        return KVF_ENOTFOUND; /* the engine has ended it: there is nobody left to fail */
    return KVF_OK;
}

enum kvf_status kvf_scheduler_apply_result(struct kvf_scheduler *scheduler, uint64_t now_ns,
                                           const struct kvf_result *result)
{
    struct kvfi_request *request = find(scheduler, result->request_id);
    if (!request)
        return KVF_ENOTFOUND;
    bool waiting = request->state == KVFI_REQUEST_DECODE_RECEIVING ||
                   request->state == KVFI_REQUEST_DECODE_TIMED_OUT;
    switch (result->kind) {
    case KVF_RESULT_SENT:
        if (request->state != KVFI_REQUEST_PREFILL_HELD)
            return KVF_ENOTFOUND;
        go(scheduler, request);
        return KVF_OK;
    case KVF_RESULT_RECEIVED:
        if (waiting)
            settle(scheduler, request);
        else if (request->state == KVFI_REQUEST_DECODE_ENDED)
            go(scheduler, request);
        else
            return KVF_ENOTFOUND;
        return KVF_OK;
    case KVF_RESULT_FAILED:
        return apply_failed(scheduler, request, result->blocks_free);
    case KVF_RESULT_RELEASED:
        if (request->state == KVFI_REQUEST_DECODE_FAILED)
            settle(scheduler, request);
        else if (request->state == KVFI_REQUEST_DECODE_ENDED)
            go(scheduler, request);
        else
            return KVF_ENOTFOUND;
        return KVF_OK;
    }
    return KVF_ENOTFOUND;
}
