/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_impl.h"

#include <stdio.h>

static uint32_t pending_tokens(const struct engine_request *request)
{
    return request->token_count - request->computed;
}

static uint32_t at_most(uint32_t value, uint32_t limit)
{
    return value < limit ? value : limit;
}

/* Makes room for `token_count` tokens in all. KVF_AGAIN: not enough free blocks. */
static enum kvf_status grow(struct engine_scheduler *scheduler, struct engine_request *request,
                            uint32_t token_count)
{
    uint32_t need = engine_blocks_for(token_count, scheduler->options.block_size);
    if (need <= request->blocks.count)
        return KVF_OK;
    KVF_TRY(engine_block_pool_take(scheduler->pool, need - request->blocks.count,
                                   request->blocks.ids + request->blocks.count));
    request->blocks.count = need;
    return KVF_OK;
}

static void preempt(struct engine_scheduler *scheduler, struct engine_request *request)
{
    scheduler->budget += request->scheduled;
    scheduler->preemptions++;
    const struct kvf_event_field fields[] = {
        {.name = "computed_tokens", .number = request->computed},
        {.name = "blocks", .number = request->blocks.count},
    };
    kvf_events_emit(scheduler->options.events, "preempted", request->id, fields, 2);
    engine_drop_blocks(scheduler, request);
    engine_move_front(scheduler, request, ENGINE_WAITING);
}

/* Schedules up to the budget of a running request. False: it was preempted itself. */
static bool plan_running(struct engine_scheduler *scheduler, struct engine_request *request,
                         bool *preempted)
{
    uint32_t count = at_most(pending_tokens(request), scheduler->budget);
    while (grow(scheduler, request, request->computed + count) != KVF_OK) {
        struct engine_request *youngest = scheduler->lists[ENGINE_RUNNING]->prev;
        preempt(scheduler, youngest);
        *preempted = true;
        if (youngest == request)
            return false;
    }
    request->scheduled = count;
    scheduler->budget -= count;
    return true;
}

/* One pass over the running requests: those that decode (one token is missing), or the others. */
static void plan_pass(struct engine_scheduler *scheduler, bool decoding, bool *preempted)
{
    struct engine_request *request = scheduler->lists[ENGINE_RUNNING];
    while (request && scheduler->budget > 0) {
        /* The youngest go first, so whoever follows is still there unless this one goes too. */
        struct engine_request *next = request->next;
        if (request->scheduled == 0 && (pending_tokens(request) == 1) == decoding) {
            if (!plan_running(scheduler, request, preempted))
                return;
            next = request->next;
        }
        request = next;
    }
}

static void note_admission(struct engine_scheduler *scheduler, struct engine_request *request,
                           uint32_t cached)
{
    if (request->admitted_before)
        return;
    request->admitted_before = true;
    request->cached_tokens = cached;
    scheduler->prompt_tokens += request->prompt_count;
    scheduler->cached_tokens += cached;
}

static void admit_ready(struct engine_scheduler *scheduler)
{
    struct engine_request *request;
    while ((request = scheduler->lists[ENGINE_READY]) != NULL && scheduler->budget > 0 &&
           scheduler->counts[ENGINE_RUNNING] < scheduler->options.sequences_max) {
        /* Its blocks cover the prompt already, so this takes none. */
        request->scheduled = at_most(pending_tokens(request), scheduler->budget);
        scheduler->budget -= request->scheduled;
        engine_move(scheduler, request, ENGINE_RUNNING);
    }
}

/* Blocks for a prompt that another engine computes: all at once, then it waits for the bytes. */
static enum kvf_status park(struct engine_scheduler *scheduler, uint64_t now_ns,
                            struct engine_request *request, uint32_t external_tokens,
                            struct kvf_error *error)
{
    uint32_t cached_count = request->blocks.count;
    KVF_TRY(grow(scheduler, request, request->computed + external_tokens));
    KVF_TRY(scheduler->hooks.after_alloc(scheduler->hooks.ctx, now_ns, request->id,
                                         request->blocks.ids, request->blocks.count, cached_count,
                                         external_tokens, error));
    note_admission(scheduler, request, request->computed);
    engine_move(scheduler, request, ENGINE_PARKED);
    return KVF_OK;
}

static enum kvf_status start(struct engine_scheduler *scheduler, uint64_t now_ns,
                             struct engine_request *request, struct kvf_error *error)
{
    uint32_t cached = request->blocks.count;
    uint32_t count = at_most(pending_tokens(request), scheduler->budget);
    KVF_TRY(grow(scheduler, request, request->computed + count));
    if (request->remote_decode && scheduler->has_hooks)
        KVF_TRY(scheduler->hooks.after_alloc(scheduler->hooks.ctx, now_ns, request->id,
                                             request->blocks.ids, request->blocks.count, cached, 0,
                                             error));
    const struct kvf_event_field fields[] = {
        {.name = "tokens", .number = request->prompt_count},
        {.name = "cached_tokens", .number = request->computed},
    };
    kvf_events_emit(scheduler->options.events, "prefill_start", request->id, fields, 2);
    note_admission(scheduler, request, request->computed);
    request->scheduled = count;
    scheduler->budget -= count;
    engine_move(scheduler, request, ENGINE_RUNNING);
    return KVF_OK;
}

/* The first waiting request: prefix hits, then room for all of it (less would only be preempted),
 * then the connector's share. KVF_AGAIN: no room, it keeps its place. */
static enum kvf_status admit(struct engine_scheduler *scheduler, uint64_t now_ns,
                             struct engine_request *request, struct kvf_error *error)
{
    uint32_t block_size = scheduler->options.block_size;
    /* At least one token is computed here, otherwise there would be no logits. */
    request->blocks.count =
        engine_block_pool_match(scheduler->pool, request->tokens, request->token_count - 1,
                                request->blocks.ids, &request->hash);
    request->hashed_blocks = request->blocks.count;
    request->computed = request->blocks.count * block_size;
    uint32_t missing = engine_blocks_for(request->token_count, block_size) - request->blocks.count;
    if (missing > engine_block_pool_free_count(scheduler->pool))
        return KVF_AGAIN;
    uint32_t external = 0;
    if (scheduler->has_hooks && request->computed < request->prompt_count)
        external =
            scheduler->hooks.matched_tokens(scheduler->hooks.ctx, request->id, request->computed);
    if (external > request->prompt_count - at_most(request->computed, request->prompt_count))
        return kvf_fail(error, KVF_EINTERNAL, "connector offers %u of %u missing tokens", external,
                        request->prompt_count - request->computed);
    if (external > 0)
        return park(scheduler, now_ns, request, external, error);
    return start(scheduler, now_ns, request, error);
}

static void admit_waiting(struct engine_scheduler *scheduler, uint64_t now_ns)
{
    struct engine_request *request;
    while ((request = scheduler->lists[ENGINE_WAITING]) != NULL && scheduler->budget > 0 &&
           scheduler->counts[ENGINE_RUNNING] < scheduler->options.sequences_max) {
        struct kvf_error error = {0};
        enum kvf_status status = admit(scheduler, now_ns, request, &error);
        if (status == KVF_AGAIN) {
            engine_drop_blocks(scheduler, request);
            return;
        }
        if (status != KVF_OK)
            engine_end_request(scheduler, now_ns, request, ENGINE_FINISH_ERROR, status, error.text);
    }
}

/* The first prefill leg, when it waits for room that only other engines can make. */
static struct engine_request *stuck_leg(const struct engine_scheduler *scheduler)
{
    if (scheduler->options.patience_ns == 0 || scheduler->counts[ENGINE_HELD] == 0 ||
        scheduler->counts[ENGINE_RUNNING] + scheduler->counts[ENGINE_READY] > 0)
        return NULL;
    struct engine_request *request;
    DL_FOREACH (scheduler->lists[ENGINE_WAITING], request)
        if (request->remote_decode)
            return request;
    return NULL;
}

uint64_t engine_scheduler_deadline_ns(const struct engine_scheduler *scheduler)
{
    const struct engine_request *leg = stuck_leg(scheduler);
    if (!leg)
        return UINT64_MAX;
    uint64_t since_ns = leg->added_ns > scheduler->moved_ns ? leg->added_ns : scheduler->moved_ns;
    return since_ns + scheduler->options.patience_ns;
}

/* Two legs may wait for each other: decode has given its blocks to the one whose prompt waits here,
 * and the blocks here wait for one that has no room there. */
static void refuse_stuck_leg(struct engine_scheduler *scheduler, uint64_t now_ns)
{
    if (engine_scheduler_deadline_ns(scheduler) > now_ns)
        return;
    struct engine_request *leg = stuck_leg(scheduler);
    char message[200];
    (void)snprintf(message, sizeof(message),
                   "no room: %u of %u blocks are free, the others hold prompts that decode engines "
                   "have not fetched for %llu ms",
                   engine_block_pool_free_count(scheduler->pool), scheduler->options.block_count,
                   (unsigned long long)(scheduler->options.patience_ns / 1000000));
    engine_end_request(scheduler, now_ns, leg, ENGINE_FINISH_ERROR, KVF_AGAIN, message);
}

static void collect_batch(struct engine_scheduler *scheduler)
{
    struct engine_request *request;
    scheduler->batch_count = 0;
    DL_FOREACH (scheduler->lists[ENGINE_RUNNING], request) {
        if (request->scheduled == 0)
            continue;
        uint32_t i = scheduler->batch_count++;
        scheduler->batch[i] = request;
        scheduler->sequences[i] = (struct engine_sequence){
            .tokens = request->tokens + request->computed,
            .n_tokens = request->scheduled,
            .position = request->computed,
            .blocks = request->blocks.ids,
            .n_blocks = request->blocks.count,
            .want_logits = request->scheduled == pending_tokens(request),
        };
    }
}

bool engine_scheduler_plan(struct engine_scheduler *scheduler, uint64_t now_ns)
{
    bool preempted = false;
    scheduler->budget = scheduler->options.batch_tokens_max;
    struct engine_request *request;
    DL_FOREACH (scheduler->lists[ENGINE_RUNNING], request)
        request->scheduled = 0;
    plan_pass(scheduler, true, &preempted);
    plan_pass(scheduler, false, &preempted);
    admit_ready(scheduler);
    /* What was just pushed out must not be let in again by the blocks it gave up. */
    if (!preempted)
        admit_waiting(scheduler, now_ns);
    refuse_stuck_leg(scheduler, now_ns);
    collect_batch(scheduler);
    return scheduler->batch_count > 0;
}
