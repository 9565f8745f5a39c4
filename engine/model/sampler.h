/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_SAMPLER_H
#define ENGINE_MODEL_SAMPLER_H

/*
 * From logits to a token: greedy, or drawn with temperature, top-k and top-p.
 *
 * There is no generator state to carry: the random number of output token i of a request is a pure
 * function of (seed, i). So a draw does not depend on batching, and a decode engine that continues
 * a request which a prefill engine began draws what a single engine would have drawn.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

struct engine_sampler_params {
    float temperature; /* 0: greedy; else > 0 */
    float top_p;       /* (0, 1]; 1: all */
    uint32_t top_k;    /* 0: all */
    uint64_t seed;
};

/* Greedy. */
#define ENGINE_SAMPLER_PARAMS_INIT ((struct engine_sampler_params){.top_p = 1.0f})

/* KVF_EINVAL naming the field and its value when one is out of range or not a number. */
KVF_MUST_USE enum kvf_status engine_sampler_check(const struct engine_sampler_params *params,
                                                  struct kvf_error *error);

/* Scratch memory for one vocabulary; one per thread that samples. Returns owned. */
struct engine_sampler;
KVF_MUST_USE enum kvf_status engine_sampler_create(uint32_t vocab_size,
                                                   struct engine_sampler **sampler_p,
                                                   struct kvf_error *error);
void engine_sampler_destroy(struct engine_sampler *sampler);

/* Chooses output token number `index` (0 is the first generated one) from vocab_size logits, which
 * are left as they are. Equal logits: the lower id wins. KVF_EINTERNAL when a logit is NaN or none
 * is finite. Allocates nothing. */
KVF_MUST_USE enum kvf_status engine_sampler_choose(struct engine_sampler *sampler,
                                                   const struct engine_sampler_params *params,
                                                   const float *logits, uint64_t index,
                                                   uint32_t *token_p, struct kvf_error *error);

struct engine_logprob {
    uint32_t token;
    float logprob; /* natural logarithm of the softmax of the raw logits (before temperature) */
};

/* Log-probability of `token`, and the n_top best in descending order into top[] (n_top may be 0; it
 * is cut to the vocabulary: *n_top_p is how many were written; may be NULL when n_top is 0).
 * Allocates nothing. Errors as engine_sampler_choose, and KVF_EINVAL for an id out of range. */
KVF_MUST_USE enum kvf_status engine_sampler_logprobs(struct engine_sampler *sampler,
                                                     const float *logits, uint32_t token,
                                                     float *logprob_p, uint32_t n_top,
                                                     struct engine_logprob *top, uint32_t *n_top_p,
                                                     struct kvf_error *error);

#endif
