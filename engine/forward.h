/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

/*
 * What the scheduler needs of a model: compute a batch over the paged cache, then choose a token
 * for each sequence that is complete. The real one is engine/runner.h; tests plug in arithmetic
 * whose answer depends on every byte of the cache.
 */

#include "engine/model/model.h"
#include "engine/model/sampler.h"

enum {
    ENGINE_NO_LOGPROBS = -1,
    ENGINE_LOGPROBS_MAX = 20,
};

/* A chosen token and, when asked for, how probable it and the best others were. */
struct engine_choice {
    uint32_t token;
    float logprob;
    uint32_t top_count;
    struct engine_logprob top[ENGINE_LOGPROBS_MAX];
};

struct engine_forward {
    void *ctx;
    /* Computes one batch, blocks until done. The logits stay with the model until the next run. */
    enum kvf_status (*run)(void *ctx, const struct engine_sequence *sequences, uint32_t count,
                           struct kvf_error *error);
    /* Output token number `index` of the row-th sequence of the last run that wanted logits.
     * forbid_end: tokens that end the generation are out of the question. logprobs: how many of the
     * best tokens to list, ENGINE_NO_LOGPROBS to leave all of that out. */
    enum kvf_status (*choose)(void *ctx, uint32_t row, const struct engine_sampler_params *params,
                              uint64_t index, bool forbid_end, int logprobs,
                              struct engine_choice *choice, struct kvf_error *error);
    /* True for tokens after which generation ends. */
    bool (*is_end)(void *ctx, uint32_t token);
};

#endif
