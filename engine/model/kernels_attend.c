/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one token over its cached keys and values, and the small vector functions. Built
 * once per instruction set. */
#include "kernels_build.h"

#include <math.h>

/* Vectors of V that are summed side by side. */
enum {
    VALUE_TILE = 4,
};

/* Scores of positions [first, first + LANES); those past the end repeat the last position and are
 * overwritten by the caller. */
KERNEL_INLINE vec score_positions(const struct kernel_attention *a, const float *query,
                                  uint32_t first)
{
    vec sums[LANES];
    KERNEL_UNROLL
    for (unsigned i = 0; i < LANES; i++) {
        uint32_t p = first + i < a->n_positions ? first + i : a->n_positions - 1;
        const float *key = a->rows[p];
        vec sum = {0};
        for (uint32_t d = 0; d < a->head_size; d += LANES)
            sum = fma_vec(load(query + d), load(key + d), sum);
        sums[i] = sum;
    }
    return reduce_each(sums);
}

/* Turns the query's scores into weights that are not yet divided by their sum, which it returns. */
static float weigh_positions(const struct kernel_attention *a, const float *query)
{
    const vec scale = splat(1.0f / sqrtf((float)a->head_size));
    uint32_t n = a->n_positions;
    vec top = splat(-INFINITY);
    for (uint32_t p = 0; p < n; p += LANES) {
        vec scores = score_positions(a, query, p) * scale;
        store(a->scores + p, scores);
        /* Repeats of the last position cannot change the maximum. */
        top = max_vec(top, scores);
    }
    float highest = top[0];
    for (unsigned i = 1; i < LANES; i++)
        highest = top[i] > highest ? top[i] : highest;

    vec sum = {0};
    for (uint32_t p = 0; p < n; p += LANES) {
        vec weights = exp_vec(load(a->scores + p) - splat(highest));
        for (uint32_t i = n - p; i < LANES; i++)
            weights[i] = 0;
        store(a->scores + p, weights);
        sum += weights;
    }
    return reduce(sum);
}

KERNEL_INLINE void sum_values(const struct kernel_attention *a, uint32_t offset, unsigned n_vecs,
                              float factor, float *out)
{
    vec sums[VALUE_TILE] = {0};
    for (uint32_t p = 0; p < a->n_positions; p++) {
        const float *value = a->rows[p] + a->head_size + offset;
        vec weight = splat(a->scores[p]);
        KERNEL_UNROLL
        for (size_t i = 0; i < n_vecs; i++)
            sums[i] = fma_vec(weight, load(value + i * LANES), sums[i]);
    }
    KERNEL_UNROLL
    for (size_t i = 0; i < n_vecs; i++)
        store(out + offset + i * LANES, sums[i] * splat(factor));
}

void KERNEL_NAME(kernels_attend)(const struct kernel_attention *a)
{
    for (size_t h = 0; h < a->n_heads; h++) {
        float factor = 1.0f / weigh_positions(a, a->query + h * a->head_size);
        float *out = a->out + h * a->head_size;
        uint32_t d = 0;
        for (; d + VALUE_TILE * LANES <= a->head_size; d += VALUE_TILE * LANES)
            sum_values(a, d, VALUE_TILE, factor, out);
        for (; d < a->head_size; d += LANES)
            sum_values(a, d, 1, factor, out);
    }
}

static void rms_norm(const float *x, const float *weight, uint32_t n, float epsilon, float *y)
{
    vec sum = {0};
    for (uint32_t i = 0; i < n; i += LANES) {
        vec v = load(x + i);
        sum = fma_vec(v, v, sum);
    }
    vec scale = splat(1.0f / sqrtf(reduce(sum) / (float)n + epsilon));
    for (uint32_t i = 0; i < n; i += LANES)
        store(y + i, load(x + i) * scale * load(weight + i));
}

static void rotate(float *x, uint32_t n_heads, uint32_t head_size, const float *cosines,
                   const float *sines)
{
    uint32_t half = head_size / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += head_size) {
        for (uint32_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            x[i] = a * cosines[i] - b * sines[i];
            x[i + half] = b * cosines[i] + a * sines[i];
        }
    }
}

static void gate_up(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        vec g = load(gate + i);
        vec silu = g / (splat(1.0f) + exp_vec(-g));
        store(gate + i, silu * load(up + i));
    }
}

#define KERNEL_TEXT_(name) #name
#define KERNEL_TEXT(name)  KERNEL_TEXT_(name)

const struct kernels KERNEL_NAME(kernels) = {
    .name = KERNEL_TEXT(KERNEL_ISA),
    .dequantize = KERNEL_NAME(kernels_dequantize),
    .multiply = KERNEL_NAME(kernels_multiply),
    .rms_norm = rms_norm,
    .rotate = rotate,
    .gate = gate_up,
    .attend = KERNEL_NAME(kernels_attend),
};
