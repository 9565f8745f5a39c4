/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/runner.h"

#include <math.h>
#include <stdlib.h>

#include "engine/model/tokenizer.h"

struct engine_runner {
    struct engine_model *model;
    const struct engine_tokenizer *tokenizer;
    struct engine_sampler *sampler;
    struct engine_kv kv;
    uint32_t vocab_size;
    float *logits; /* sequences_max rows */
    uint32_t *end_ids;
    float *end_values;
    uint32_t end_count;
};

static enum kvf_status collect_ends(struct engine_runner *runner, struct kvf_error *error)
{
    for (int fill = 0; fill < 2; fill++) {
        runner->end_count = 0;
        for (uint32_t id = 0; id < runner->vocab_size; id++) {
            if (!engine_tokenizer_is_end(runner->tokenizer, id))
                continue;
            if (fill)
                runner->end_ids[runner->end_count] = id;
            runner->end_count++;
        }
        if (!fill) {
            runner->end_ids = calloc(runner->end_count + 1, sizeof(*runner->end_ids));
            runner->end_values = calloc(runner->end_count + 1, sizeof(*runner->end_values));
        }
        if (!runner->end_ids || !runner->end_values)
            return kvf_fail(error, KVF_ENOMEM, "no memory for the end tokens");
    }
    return KVF_OK;
}

enum kvf_status engine_runner_create(struct engine_model *model, const struct engine_cache *cache,
                                     uint32_t block_size, uint32_t sequences_max,
                                     struct engine_runner **runner_p, struct kvf_error *error)
{
    struct engine_runner *runner = calloc(1, sizeof(*runner));
    if (!runner)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the model runner");
    const struct engine_model_info *info = engine_model_info(model);
    runner->model = model;
    runner->tokenizer = engine_model_tokenizer(model);
    runner->vocab_size = info->vocab_size;
    runner->kv = (struct engine_kv){
        .layer_bases = cache->layer_bases,
        .block_stride_bytes = cache->block_bytes,
        .block_size = block_size,
        .blocks = cache->block_count,
    };
    enum kvf_status status = engine_sampler_create(info->vocab_size, &runner->sampler, error);
    if (status == KVF_OK)
        status = collect_ends(runner, error);
    if (status == KVF_OK) {
        runner->logits = calloc((size_t)sequences_max * info->vocab_size, sizeof(float));
        if (!runner->logits)
            status = kvf_fail(error, KVF_ENOMEM, "no memory for the logits of %u sequences",
                              sequences_max);
    }
    if (status != KVF_OK) {
        engine_runner_destroy(runner);
        return status;
    }
    *runner_p = runner;
    return KVF_OK;
}

void engine_runner_destroy(struct engine_runner *runner)
{
    if (!runner)
        return;
    engine_sampler_destroy(runner->sampler);
    free(runner->logits);
    free(runner->end_ids);
    free(runner->end_values);
    free(runner);
}

static enum kvf_status run(void *ctx, const struct engine_sequence *sequences, uint32_t count,
                           struct kvf_error *error)
{
    struct engine_runner *runner = ctx;
    return engine_model_forward(runner->model, &runner->kv, sequences, count, runner->logits,
                                error);
}

/* Exchanges the logits of all end tokens with the values kept aside. */
static void swap_ends(struct engine_runner *runner, float *logits)
{
    for (uint32_t i = 0; i < runner->end_count; i++) {
        float value = logits[runner->end_ids[i]];
        logits[runner->end_ids[i]] = runner->end_values[i];
        runner->end_values[i] = value;
    }
}

static enum kvf_status choose(void *ctx, uint32_t row, const struct engine_sampler_params *params,
                              uint64_t index, bool forbid_end, int logprobs,
                              struct engine_choice *choice, struct kvf_error *error)
{
    struct engine_runner *runner = ctx;
    float *logits = runner->logits + (size_t)row * runner->vocab_size;
    if (forbid_end) {
        for (uint32_t i = 0; i < runner->end_count; i++)
            runner->end_values[i] = -INFINITY;
        swap_ends(runner, logits);
    }
    enum kvf_status status =
        engine_sampler_choose(runner->sampler, params, logits, index, &choice->token, error);
    if (forbid_end)
        swap_ends(runner, logits);
    choice->logprob = 0;
    choice->top_count = 0;
    if (status != KVF_OK || logprobs < 0)
        return status;
    uint32_t wanted = (uint32_t)logprobs;
    if (wanted > ENGINE_LOGPROBS_MAX)
        wanted = ENGINE_LOGPROBS_MAX;
    return engine_sampler_logprobs(runner->sampler, logits, choice->token, &choice->logprob, wanted,
                                   choice->top, &choice->top_count, error);
}

static bool is_end(void *ctx, uint32_t token)
{
    struct engine_runner *runner = ctx;
    return engine_tokenizer_is_end(runner->tokenizer, token);
}

struct engine_forward engine_runner_forward(struct engine_runner *runner)
{
    return (struct engine_forward){.ctx = runner, .run = run, .choose = choose, .is_end = is_end};
}
