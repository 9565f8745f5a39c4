/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_impl.h"

#include <stdlib.h>
#include <string.h>

const char *engine_finish_name(enum engine_finish reason)
{
    switch (reason) {
    case ENGINE_FINISH_STOP:
        return "stop";
    case ENGINE_FINISH_LENGTH:
        return "length";
    case ENGINE_FINISH_ABORT:
        return "abort";
    case ENGINE_FINISH_ERROR:
        return "error";
    }
    return "unknown";
}

static uint32_t clip_model_len(const struct engine_scheduler_options *options)
{
    uint64_t pool_tokens = (uint64_t)options->block_count * options->block_size;
    return pool_tokens < options->model_len_max ? (uint32_t)pool_tokens : options->model_len_max;
}

enum kvf_status engine_scheduler_create(const struct engine_scheduler_options *options,
                                        struct engine_scheduler **scheduler_p,
                                        struct kvf_error *error)
{
    if (options->batch_tokens_max == 0 || options->sequences_max == 0)
        return kvf_fail(error, KVF_EINVAL, "a batch of %u tokens and %u sequences cannot run",
                        options->batch_tokens_max, options->sequences_max);
    if (options->model_len_max < 2)
        return kvf_fail(error, KVF_EINVAL, "model length is %u tokens, it must be 2 or more",
                        options->model_len_max);
    struct engine_scheduler *scheduler = calloc(1, sizeof(*scheduler));
    if (!scheduler)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the scheduler");
    scheduler->options = *options;
    scheduler->has_hooks = options->hooks != NULL;
    if (options->hooks)
        scheduler->hooks = *options->hooks;
    enum kvf_status status = engine_block_pool_create(options->block_count, options->block_size,
                                                      options->hash_key, &scheduler->pool, error);
    if (status != KVF_OK)
        goto err_scheduler;
    scheduler->options.model_len_max = clip_model_len(options);
    scheduler->sequences = calloc(options->sequences_max, sizeof(*scheduler->sequences));
    scheduler->batch = calloc(options->sequences_max, sizeof(struct engine_request *));
    if (!scheduler->sequences || !scheduler->batch) {
        status = kvf_fail(error, KVF_ENOMEM, "no memory for a batch of %u sequences",
                          options->sequences_max);
        goto err_scheduler;
    }
    *scheduler_p = scheduler;
    return KVF_OK;

err_scheduler:
    engine_scheduler_destroy(scheduler);
    return status;
}

void engine_scheduler_destroy(struct engine_scheduler *scheduler)
{
    if (!scheduler)
        return;
    struct engine_request *request = NULL;
    struct engine_request *next = NULL;
    HASH_ITER (hh, scheduler->by_id, request, next) {
        HASH_DEL(scheduler->by_id, request);
        engine_request_destroy(request);
    }
    engine_block_pool_destroy(scheduler->pool);
    free(scheduler->sequences);
    free((void *)scheduler->batch);
    free(scheduler);
}

/* ---- lists ---------------------------------------------------------------------------------- */

static void leave_list(struct engine_scheduler *scheduler, struct engine_request *request)
{
    DL_DELETE(scheduler->lists[request->stage], request);
    scheduler->counts[request->stage]--;
}

void engine_move(struct engine_scheduler *scheduler, struct engine_request *request,
                 enum engine_stage stage)
{
    leave_list(scheduler, request);
    request->stage = stage;
    DL_APPEND(scheduler->lists[stage], request);
    scheduler->counts[stage]++;
}

void engine_move_front(struct engine_scheduler *scheduler, struct engine_request *request,
                       enum engine_stage stage)
{
    leave_list(scheduler, request);
    request->stage = stage;
    DL_PREPEND(scheduler->lists[stage], request);
    scheduler->counts[stage]++;
}

void engine_forget_request(struct engine_scheduler *scheduler, struct engine_request *request)
{
    leave_list(scheduler, request);
    HASH_DEL(scheduler->by_id, request);
    engine_request_destroy(request);
}

/* ---- blocks --------------------------------------------------------------------------------- */

void engine_drop_blocks(struct engine_scheduler *scheduler, struct engine_request *request)
{
    engine_block_pool_give(scheduler->pool, request->blocks.ids, request->blocks.count);
    request->blocks.count = 0;
    request->computed = 0;
    request->scheduled = 0;
    request->hashed_blocks = 0;
    request->hash = ENGINE_PREFIX_ROOT;
}

void engine_cache_blocks(struct engine_scheduler *scheduler, struct engine_request *request)
{
    uint32_t block_size = scheduler->options.block_size;
    while (request->computed / block_size > request->hashed_blocks) {
        uint32_t i = request->hashed_blocks++;
        request->hash =
            engine_block_pool_cache(scheduler->pool, request->blocks.ids[i], request->hash,
                                    request->tokens + (size_t)i * block_size);
    }
}

/* ---- entering ------------------------------------------------------------------------------- */

/* The part of an id that both engines share: without "-" and 8 hex digits at its end. */
static size_t base_len(const char *id)
{
    size_t len = strlen(id);
    if (len < 9 || id[len - 9] != '-' || strspn(id + len - 8, "0123456789abcdefABCDEF") != 8)
        return len;
    return len - 9;
}

/* Whether peers could take one leg for the other: by the transfer id, or by the base id where not
 * both have a transfer id. */
static bool is_namesake(const struct engine_request *request,
                        const struct engine_request_spec *spec)
{
    if (!request->remote_prefill && !request->remote_decode)
        return false;
    const char *transfer_id = spec->transfer->transfer_id;
    if (request->transfer_id && transfer_id)
        return strcmp(request->transfer_id, transfer_id) == 0;
    size_t len = base_len(spec->id);
    return len > 0 && len == base_len(request->id) && memcmp(request->id, spec->id, len) == 0;
}

/* A second leg of the same name would get the first one's blocks, or its peer (bug B05). */
static enum kvf_status check_name(const struct engine_scheduler *scheduler,
                                  const struct engine_request_spec *spec, struct kvf_error *error)
{
    if (!spec->transfer ||
        (!spec->transfer->do_remote_prefill && !spec->transfer->do_remote_decode))
        return KVF_OK;
    for (const struct engine_request *r = scheduler->by_id; r; r = r->hh.next)
        if (is_namesake(r, spec))
            return kvf_fail(error, KVF_EEXIST,
                            "request %.128s is under way, or its blocks wait to be fetched; a "
                            "transfer needs an X-Request-Id of its own or another transfer_id",
                            r->id);
    return KVF_OK;
}

static enum kvf_status check_spec(const struct engine_scheduler *scheduler,
                                  const struct engine_request_spec *spec, struct kvf_error *error)
{
    uint32_t len_max = scheduler->options.model_len_max;
    if (spec->prompt_count == 0 || spec->max_tokens == 0)
        return kvf_fail(error, KVF_EINVAL, "request %.64s has %u prompt tokens and wants %u",
                        spec->id, spec->prompt_count, spec->max_tokens);
    if (spec->prompt_count > len_max || spec->max_tokens > len_max - spec->prompt_count)
        return kvf_fail(error, KVF_ELIMIT,
                        "prompt of %u tokens and max_tokens %u together exceed the %u tokens that "
                        "this engine can hold for one request (%u blocks of %u)",
                        spec->prompt_count, spec->max_tokens, len_max,
                        scheduler->options.block_count, scheduler->options.block_size);
    struct engine_request *same = NULL;
    HASH_FIND_STR(scheduler->by_id, spec->id, same);
    if (same)
        return kvf_fail(error, KVF_EEXIST, "request id %.128s is in use", spec->id);
    return check_name(scheduler, spec, error);
}

/* NOLINTNEXTLINE(readability-function-size): it is one macro of uthash. */
static enum kvf_status remember(struct engine_scheduler *scheduler, struct engine_request *request,
                                struct kvf_error *error)
{
    HASH_ADD_KEYPTR(hh, scheduler->by_id, request->id, strlen(request->id), request);
    if (!request->hh.tbl)
        return kvf_fail(error, KVF_ENOMEM, "no memory for request %.64s", request->id);
    return KVF_OK;
}

enum kvf_status engine_scheduler_add(struct engine_scheduler *scheduler, uint64_t now_ns,
                                     const struct engine_request_spec *spec,
                                     struct kvf_error *error)
{
    KVF_TRY(check_spec(scheduler, spec, error));
    struct engine_request *request = engine_request_create(spec, scheduler->options.block_size);
    if (!request)
        return kvf_fail(error, KVF_ENOMEM, "no memory for request %.64s", spec->id);
    enum kvf_status status = remember(scheduler, request, error);
    if (status != KVF_OK)
        goto err_request;
    if (scheduler->has_hooks)
        status = scheduler->hooks.on_new_request(scheduler->hooks.ctx, now_ns, spec->id,
                                                 spec->transfer, spec->prompt_count, error);
    if (status != KVF_OK)
        goto err_remember;
    request->stage = ENGINE_WAITING;
    request->added_ns = now_ns;
    DL_APPEND(scheduler->lists[ENGINE_WAITING], request);
    scheduler->counts[ENGINE_WAITING]++;
    return KVF_OK;

err_remember:
    HASH_DEL(scheduler->by_id, request);
err_request:
    engine_request_destroy(request);
    return status;
}

/* ---- accounts ------------------------------------------------------------------------------- */

void engine_scheduler_usage(const struct engine_scheduler *scheduler,
                            struct engine_scheduler_usage *usage)
{
    struct engine_block_usage blocks;
    engine_block_pool_usage(scheduler->pool, &blocks);
    uint32_t held = 0;
    uint32_t waiting_remote = 0;
    for (const struct engine_request *r = scheduler->by_id; r; r = r->hh.next) {
        if (r->stage == ENGINE_HELD)
            held += r->blocks.count;
        held += r->quarantine.count;
        waiting_remote += r->stage == ENGINE_WAITING && r->remote_prefill && !r->admitted_before;
    }
    *usage = (struct engine_scheduler_usage){
        .block_size = scheduler->options.block_size,
        .model_len_max = scheduler->options.model_len_max,
        .blocks_total = blocks.total,
        .blocks_free = blocks.free,
        .blocks_cached = blocks.cached,
        .blocks_held = held,
        .waiting = scheduler->counts[ENGINE_WAITING],
        .waiting_remote = waiting_remote,
        .parked = scheduler->counts[ENGINE_PARKED],
        .ready = scheduler->counts[ENGINE_READY],
        .running = scheduler->counts[ENGINE_RUNNING],
        .held = scheduler->counts[ENGINE_HELD],
        .prompt_tokens = scheduler->prompt_tokens,
        .cached_tokens = scheduler->cached_tokens,
        .generation_tokens = scheduler->generation_tokens,
        .preemptions = scheduler->preemptions,
        .steps = scheduler->steps,
    };
    memcpy(usage->finished, scheduler->finished, sizeof(usage->finished));
}

static bool request_consistent(const struct engine_scheduler *scheduler,
                               const struct engine_request *request)
{
    uint32_t block_size = scheduler->options.block_size;
    if (request->stage == ENGINE_WAITING && request->blocks.count != 0)
        return false;
    if (request->stage != ENGINE_HELD &&
        (request->computed > request->token_count ||
         engine_blocks_for(request->computed, block_size) > request->blocks.count ||
         request->hashed_blocks * block_size > request->computed))
        return false;
    for (uint32_t i = 0; i < request->blocks.count; i++)
        if (engine_block_pool_holders(scheduler->pool, request->blocks.ids[i]) == 0)
            return false;
    return true;
}

bool engine_scheduler_consistent(const struct engine_scheduler *scheduler)
{
    if (!engine_block_pool_consistent(scheduler->pool))
        return false;
    uint64_t holdings = 0;
    uint32_t counts[ENGINE_STAGE_COUNT] = {0};
    for (const struct engine_request *r = scheduler->by_id; r; r = r->hh.next) {
        if (!request_consistent(scheduler, r))
            return false;
        holdings += r->blocks.count + r->quarantine.count;
        counts[r->stage]++;
    }
    uint64_t holders = 0;
    for (uint32_t id = 0; id < scheduler->options.block_count; id++)
        holders += engine_block_pool_holders(scheduler->pool, id);
    return holders == holdings && memcmp(counts, scheduler->counts, sizeof(counts)) == 0;
}
