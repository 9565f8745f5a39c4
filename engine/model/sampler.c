/* SPDX-License-Identifier: Apache-2.0 */
#include "sampler.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    float logit;
    uint32_t id;
};

struct engine_sampler {
    uint32_t vocab_size;
    struct candidate *heap;   /* vocab_size */
    struct candidate *chosen; /* vocab_size: what came off the heap, best first */
};

enum kvf_status engine_sampler_check(const struct engine_sampler_params *params,
                                     struct kvf_error *error)
{
    if (!isfinite(params->temperature) || params->temperature < 0)
        return kvf_fail(error, KVF_EINVAL, "temperature is %g; it must be 0 or above",
                        (double)params->temperature);
    if (!(params->top_p > 0 && params->top_p <= 1))
        return kvf_fail(error, KVF_EINVAL, "top_p is %g; it must be above 0 and at most 1",
                        (double)params->top_p);
    return KVF_OK;
}

enum kvf_status engine_sampler_create(uint32_t vocab_size, struct engine_sampler **sampler_p,
                                      struct kvf_error *error)
{
    if (vocab_size == 0)
        return kvf_fail(error, KVF_EINVAL, "a vocabulary of 0 tokens");
    struct engine_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler) {
        sampler->vocab_size = vocab_size;
        sampler->heap = calloc(vocab_size, sizeof *sampler->heap);
        sampler->chosen = calloc(vocab_size, sizeof *sampler->chosen);
    }
    if (!sampler || !sampler->heap || !sampler->chosen) {
        engine_sampler_destroy(sampler);
        return kvf_fail(error, KVF_ENOMEM, "no memory to sample from %u tokens", vocab_size);
    }
    *sampler_p = sampler;
    return KVF_OK;
}

void engine_sampler_destroy(struct engine_sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->heap);
    free(sampler->chosen);
    free(sampler);
}

/* The id of the greatest logit, the lowest among equals. */
static enum kvf_status find_best(const float *logits, uint32_t n, uint32_t *best_p,
                                 struct kvf_error *error)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return kvf_fail(error, KVF_EINTERNAL, "logit %u of %u is not a number", i, n);
        if (logits[i] > logits[best])
            best = i;
    }
    if (!isfinite(logits[best]))
        return kvf_fail(error, KVF_EINTERNAL, "the greatest of %u logits is %g", n,
                        (double)logits[best]);
    *best_p = best;
    return KVF_OK;
}

static bool better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && better(heap[child + 1], heap[child]))
            child++;
        if (!better(heap[child], moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void fill_heap(struct engine_sampler *s, const float *logits)
{
    for (uint32_t i = 0; i < s->vocab_size; i++)
        s->heap[i] = (struct candidate){logits[i], i};
    for (uint32_t i = s->vocab_size / 2; i-- > 0;)
        sift_down(s->heap, s->vocab_size, i);
}

static struct candidate take_best(struct engine_sampler *s, uint32_t *n_left_p)
{
    struct candidate best = s->heap[0];
    s->heap[0] = s->heap[--*n_left_p];
    if (*n_left_p > 0)
        sift_down(s->heap, *n_left_p, 0);
    return best;
}

/* A well-mixed function of (seed, index) in [0, 1): two rounds of the splitmix64 finaliser. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double uniform(uint64_t seed, uint64_t index)
{
    return (double)(mix(mix(seed) ^ index) >> 11) * 0x1p-53;
}

static double weight(float logit, float best, const struct engine_sampler_params *params)
{
    return exp(((double)logit - (double)best) / (double)params->temperature);
}

/* No cut: the draw walks through the vocabulary in its own order. */
static uint32_t draw_from_all(const struct engine_sampler *s,
                              const struct engine_sampler_params *params, const float *logits,
                              uint32_t best, double u)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < s->vocab_size; i++)
        total += weight(logits[i], logits[best], params);
    for (uint32_t i = 0; i < s->vocab_size; i++) {
        sum += weight(logits[i], logits[best], params);
        if (sum > u * total)
            return i;
    }
    return best;
}

/* top-k first, then top-p of what is left, as vLLM orders them. */
static uint32_t draw_from_best(struct engine_sampler *s, const struct engine_sampler_params *params,
                               const float *logits, uint32_t best, double u)
{
    uint32_t left = s->vocab_size, kept = 0, most = s->vocab_size;
    double total = 0, sum = 0;
    fill_heap(s, logits);
    if (params->top_k != 0 && params->top_k < most) {
        most = params->top_k;
        for (uint32_t i = 0; i < most; i++) {
            s->chosen[i] = take_best(s, &left);
            total += weight(s->chosen[i].logit, logits[best], params);
        }
        while (kept < most && (kept == 0 || sum < (double)params->top_p * total))
            sum += weight(s->chosen[kept++].logit, logits[best], params);
    } else {
        for (uint32_t i = 0; i < s->vocab_size; i++)
            total += weight(logits[i], logits[best], params);
        while (kept < most && (kept == 0 || sum < (double)params->top_p * total)) {
            s->chosen[kept] = take_best(s, &left);
            sum += weight(s->chosen[kept++].logit, logits[best], params);
        }
    }
    double at = 0;
    for (uint32_t i = 0; i < kept; i++) {
        at += weight(s->chosen[i].logit, logits[best], params);
        if (at > u * sum)
            return s->chosen[i].id;
    }
    return best;
}

enum kvf_status engine_sampler_choose(struct engine_sampler *sampler,
                                      const struct engine_sampler_params *params,
                                      const float *logits, uint64_t index, uint32_t *token_p,
                                      struct kvf_error *error)
{
    uint32_t best = 0;
    KVF_TRY(engine_sampler_check(params, error));
    KVF_TRY(find_best(logits, sampler->vocab_size, &best, error));
    double u = uniform(params->seed, index);
    if (params->temperature == 0 || params->top_k == 1)
        *token_p = best;
    else if (params->top_k == 0 && params->top_p == 1)
        *token_p = draw_from_all(sampler, params, logits, best, u);
    else
        *token_p = draw_from_best(sampler, params, logits, best, u);
    return KVF_OK;
}

enum kvf_status engine_sampler_logprobs(struct engine_sampler *sampler, const float *logits,
                                        uint32_t token, float *logprob_p, uint32_t n_top,
                                        struct engine_logprob *top, uint32_t *n_top_p,
                                        struct kvf_error *error)
{
    uint32_t best = 0, left = sampler->vocab_size;
    double sum = 0;
    if (token >= sampler->vocab_size)
        return kvf_fail(error, KVF_EINVAL, "token id %u is outside the vocabulary of %u tokens",
                        token, sampler->vocab_size);
    KVF_TRY(find_best(logits, sampler->vocab_size, &best, error));
    for (uint32_t i = 0; i < sampler->vocab_size; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    double norm = (double)logits[best] + log(sum);
    *logprob_p = (float)((double)logits[token] - norm);
    if (n_top > sampler->vocab_size)
        n_top = sampler->vocab_size;
    if (n_top > 0)
        fill_heap(sampler, logits);
    for (uint32_t i = 0; i < n_top; i++) {
        struct candidate c = take_best(sampler, &left);
        top[i] = (struct engine_logprob){c.id, (float)((double)c.logit - norm)};
    }
    if (n_top_p)
        *n_top_p = n_top;
    return KVF_OK;
}
