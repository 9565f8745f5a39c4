/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return x;
}

static uint32_t token_of(uint64_t value)
{
    return (uint32_t)(value % WORLD_VOCAB);
}

/* ---- the model ------------------------------------------------------------------------------ */

static uint64_t *word_at(struct world *world, const struct engine_sequence *sequence,
                         uint32_t position)
{
    uint32_t block_size = world->options.block_size;
    assert_true(position / block_size < sequence->n_blocks);
    uint32_t block = sequence->blocks[position / block_size];
    assert_true(block < world->options.block_count);
    return &world->cache[(size_t)block * block_size + position % block_size];
}

static enum kvf_status run(void *ctx, const struct engine_sequence *sequences, uint32_t count,
                           struct kvf_error *error)
{
    struct world *world = ctx;
    if (world->fail_next_run) {
        world->fail_next_run = false;
        return kvf_fail(error, KVF_EINTERNAL, "told to fail");
    }
    uint32_t tokens = 0;
    world->row_count = 0;
    assert_true(count <= world->options.sequences_max);
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_sequence *s = &sequences[i];
        assert_true(s->n_tokens > 0);
        tokens += s->n_tokens;
        uint64_t before = s->position == 0 ? 0 : *word_at(world, s, s->position - 1);
        for (uint32_t t = 0; t < s->n_tokens; t++) {
            before = mix(before, s->tokens[t]);
            *word_at(world, s, s->position + t) = before;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_sequence *s = &sequences[i];
        uint64_t fold = 1;
        if (!s->want_logits)
            continue;
        for (uint32_t p = 0; p < s->position + s->n_tokens; p++)
            fold = mix(fold, *word_at(world, s, p));
        world->row_values[world->row_count++] = fold;
    }
    assert_true(tokens <= world->options.batch_tokens_max);
    if (tokens > world->batch_tokens_seen)
        world->batch_tokens_seen = tokens;
    return KVF_OK;
}

static bool is_end(void *ctx, uint32_t token)
{
    (void)ctx;
    return token == WORLD_END_TOKEN;
}

static enum kvf_status choose(void *ctx, uint32_t row, const struct engine_sampler_params *params,
                              uint64_t index, bool forbid_end, int logprobs,
                              struct engine_choice *choice, struct kvf_error *error)
{
    struct world *world = ctx;
    (void)params;
    (void)index;
    (void)logprobs;
    (void)error;
    assert_true(row < world->row_count);
    *choice = (struct engine_choice){.token = token_of(world->row_values[row])};
    if (forbid_end && choice->token == WORLD_END_TOKEN)
        choice->token++;
    return KVF_OK;
}

/* ---- the sink ------------------------------------------------------------------------------- */

static bool sink_token(void *ctx, void *user, const struct engine_choice *choice, bool ends)
{
    struct world_request *request = user;
    (void)ctx;
    assert_false(request->finished);
    assert_int_equal(ends, !request->ignore_end && choice->token == WORLD_END_TOKEN);
    request->output[request->output_count++] = choice->token;
    return request->stop_after != 0 && request->output_count >= request->stop_after;
}

static void sink_finished(void *ctx, void *user, const struct engine_report *report)
{
    struct world_request *request = user;
    (void)ctx;
    assert_false(request->finished);
    request->finished = true;
    request->reason = report->reason;
    request->cached_tokens = report->cached_tokens;
    (void)snprintf(request->message, sizeof(request->message), "%s", report->message);
    request->handed_over = report->handover != NULL;
    request->handover_count = report->block_count;
    if (report->block_count > 0)
        memcpy(request->handover_blocks, report->block_ids,
               report->block_count * sizeof(*report->block_ids));
}

/* ---- the connector -------------------------------------------------------------------------- */

static struct world_request *find(struct world *world, const char *id)
{
    for (uint32_t i = 0; i < world->request_count; i++)
        if (strcmp(world->requests[i].id, id) == 0)
            return &world->requests[i];
    fail_msg("no request %s", id);
    return NULL;
}

static enum kvf_status on_new_request(void *ctx, uint64_t now_ns, const char *id,
                                      const struct kvf_transfer_params *params,
                                      uint32_t prompt_tokens, struct kvf_error *error)
{
    struct world_request *request = find(ctx, id);
    (void)now_ns;
    assert_int_equal(prompt_tokens, request->prompt_count);
    assert_int_equal(params != NULL, request->has_transfer);
    if (params && params->do_remote_prefill && !params->remote_host)
        return kvf_fail(error, KVF_EINVAL, "remote_host is missing");
    request->tracked = true;
    return KVF_OK;
}

static uint32_t matched_tokens(void *ctx, const char *id, uint32_t computed_tokens)
{
    struct world_request *request = find(ctx, id);
    assert_true(request->tracked);
    assert_true(computed_tokens < request->prompt_count);
    if (!request->has_transfer || !request->transfer.do_remote_prefill || request->receive_done)
        return 0;
    return request->prompt_count - computed_tokens;
}

static enum kvf_status after_alloc(void *ctx, uint64_t now_ns, const char *id,
                                   const uint32_t *block_ids, size_t block_count,
                                   size_t cached_count, uint32_t external_tokens,
                                   struct kvf_error *error)
{
    struct world_request *request = find(ctx, id);
    (void)now_ns;
    (void)error;
    request->after_alloc_count++;
    assert_true(cached_count <= block_count);
    if (external_tokens == 0)
        return KVF_OK;
    assert_false(request->registered);
    request->registered = true;
    request->external = external_tokens;
    request->block_count = block_count;
    request->cached_count = cached_count;
    memcpy(request->blocks, block_ids, block_count * sizeof(*block_ids));
    return KVF_OK;
}

static enum kvf_status request_finished(void *ctx, uint64_t now_ns, const char *id,
                                        enum kvf_finish_reason reason, const uint32_t *block_ids,
                                        size_t block_count, bool *delay_free_p,
                                        struct kvf_transfer_params *response_p,
                                        bool *has_response_p, struct kvf_error *error)
{
    struct world_request *request = find(ctx, id);
    (void)now_ns;
    (void)error;
    assert_true(request->tracked);
    request->tracked = false;
    bool prefill = request->has_transfer && request->transfer.do_remote_decode &&
                   reason != KVF_FINISH_ABORT && block_count > 0;
    request->delay_free = prefill || (request->registered && !request->receive_done);
    *delay_free_p = request->delay_free;
    *has_response_p = prefill;
    if (prefill) {
        request->block_count = block_count;
        memcpy(request->blocks, block_ids, block_count * sizeof(*block_ids));
        *response_p = (struct kvf_transfer_params)KVF_TRANSFER_PARAMS_INIT;
        response_p->remote_request_id = request->id;
    }
    return KVF_OK;
}

/* ---- the world ------------------------------------------------------------------------------ */

void world_open(struct world *world, const struct engine_scheduler_options *options,
                bool with_connector)
{
    memset(world, 0, sizeof(*world));
    world->seed = 88172645463325252ull;
    world->options = *options;
    world->options.forward =
        (struct engine_forward){.ctx = world, .run = run, .choose = choose, .is_end = is_end};
    world->options.sink =
        (struct engine_sink){.ctx = world, .token = sink_token, .finished = sink_finished};
    const struct engine_kv_hooks hooks = {.ctx = world,
                                          .on_new_request = on_new_request,
                                          .matched_tokens = matched_tokens,
                                          .after_alloc = after_alloc,
                                          .request_finished = request_finished};
    world->options.hooks = with_connector ? &hooks : NULL;
    world->cache =
        calloc((size_t)options->block_count * options->block_size, sizeof(*world->cache));
    assert_non_null(world->cache);
    assert_int_equal(KVF_OK, engine_scheduler_create(&world->options, &world->scheduler, NULL));
}

void world_close(struct world *world)
{
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    assert_int_equal(usage.blocks_total, usage.blocks_free);
    assert_int_equal(0, usage.waiting + usage.parked + usage.ready + usage.running + usage.held);
    engine_scheduler_destroy(world->scheduler);
    free(world->cache);
}

struct world_request *world_request(struct world *world, uint32_t text_seed, uint32_t count,
                                    uint32_t max_tokens)
{
    assert_true(world->request_count < WORLD_REQUESTS_MAX && count <= WORLD_LEN_MAX);
    struct world_request *request = &world->requests[world->request_count++];
    *request = (struct world_request){
        .world = world, .prompt_count = count, .max_tokens = max_tokens, .ignore_end = true};
    (void)snprintf(request->id, sizeof(request->id), "r%u", world->request_count);
    for (uint32_t i = 0; i < count; i++)
        request->prompt[i] = token_of(mix(text_seed, i));
    request->transfer = (struct kvf_transfer_params)KVF_TRANSFER_PARAMS_INIT;
    return request;
}

enum kvf_status world_offer(struct world *world, struct world_request *request)
{
    const struct engine_request_spec spec = {
        .id = request->id,
        .prompt = request->prompt,
        .prompt_count = request->prompt_count,
        .max_tokens = request->max_tokens,
        .min_tokens = request->min_tokens,
        .ignore_end = request->ignore_end,
        .logprobs = ENGINE_NO_LOGPROBS,
        .transfer = request->has_transfer ? &request->transfer : NULL,
        .user = request,
    };
    return engine_scheduler_add(world->scheduler, world->now_ns, &spec, NULL);
}

void world_submit(struct world *world, struct world_request *request)
{
    assert_int_equal(KVF_OK, world_offer(world, request));
}

bool world_step(struct world *world)
{
    world->now_ns += 1000000;
    bool ran = engine_scheduler_plan(world->scheduler, world->now_ns);
    assert_true(engine_scheduler_consistent(world->scheduler));
    engine_scheduler_run(world->scheduler, world->now_ns);
    assert_true(engine_scheduler_consistent(world->scheduler));
    return ran;
}

void world_run(struct world *world)
{
    for (int i = 0; world_step(world); i++)
        assert_true(i < 100000);
}

void world_write(struct world *world, const struct world_request *request)
{
    uint32_t block_size = world->options.block_size;
    uint64_t word = 0;
    assert_true(request->registered);
    for (uint32_t p = 0; p < request->prompt_count; p++) {
        word = mix(word, request->prompt[p]);
        if (p / block_size < request->cached_count)
            continue;
        world->cache[(size_t)request->blocks[p / block_size] * block_size + p % block_size] = word;
    }
}

void world_result(struct world *world, struct world_request *request, enum kvf_result_kind kind,
                  bool blocks_free)
{
    struct kvf_result result = {.kind = kind, .blocks_free = blocks_free};
    (void)snprintf(result.request_id, sizeof(result.request_id), "%s", request->id);
    if (kind == KVF_RESULT_FAILED) {
        result.status = KVF_EDISCONNECTED;
        (void)snprintf(result.reason, sizeof(result.reason), "the peer is gone");
    }
    request->receive_done = true;
    if (kind != KVF_RESULT_FAILED || blocks_free) {
        request->registered = false;
        request->delay_free = false;
    }
    engine_scheduler_kv_result(world->scheduler, world->now_ns, &result);
    assert_true(engine_scheduler_consistent(world->scheduler));
}

void world_check(const struct world *world, const struct world_request *request)
{
    uint64_t words[2 * WORLD_LEN_MAX];
    uint64_t word = 0;
    (void)world;
    for (uint32_t p = 0; p < request->prompt_count; p++)
        words[p] = word = mix(word, request->prompt[p]);
    for (uint32_t i = 0; i < request->output_count; i++) {
        uint64_t fold = 1;
        for (uint32_t p = 0; p < request->prompt_count + i; p++)
            fold = mix(fold, words[p]);
        uint32_t token = token_of(fold);
        if (!request->ignore_end && i < request->min_tokens && token == WORLD_END_TOKEN)
            token++;
        assert_int_equal(token, request->output[i]);
        words[request->prompt_count + i] = word = mix(word, token);
    }
}

void world_usage(const struct world *world, struct engine_scheduler_usage *usage)
{
    engine_scheduler_usage(world->scheduler, usage);
}

uint32_t world_random(struct world *world, uint32_t below)
{
    world->seed ^= world->seed << 13;
    world->seed ^= world->seed >> 7;
    world->seed ^= world->seed << 17;
    return (uint32_t)(world->seed % below);
}
