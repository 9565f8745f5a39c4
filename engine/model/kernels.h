/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_KERNELS_H
#define ENGINE_MODEL_KERNELS_H

/*
 * The arithmetic, built once for each instruction set and chosen when the program runs.
 *
 * Every result is computed in one order that depends on nothing but its own operands: a dot product
 * runs through the columns with one accumulator vector and one reduction tree; a softmax and a
 * weighted sum run through the positions from 0. How many rows and tokens share a tile in registers
 * changes the speed and never a bit. That is what makes the engine batch-invariant.
 *
 * All functions are pure, allocate nothing and may run on several threads at once.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf.h"

enum {
    /* Rows that one call of multiply() dequantises into its scratch memory at a time. */
    KERNEL_ROW_BLOCK = 16,
    /* Vectors are computed in steps of this; row lengths and head sizes are multiples of it. */
    KERNEL_STEP = 16,
};

/* A weight matrix in the file's own encoding, row after row. */
struct kernel_matrix {
    const uint8_t *data; /* lent by the mapped file */
    uint64_t row_bytes;
    enum gguf_tensor_type type;
    uint32_t rows;
    uint32_t cols;
    /* Not 0: rows come in heads of this many, in the file with the rotary pair (i, i + half) at 2i
     * and 2i + 1; row() undoes that. */
    uint32_t rotary_head;
};

/* The keys and values that one query token sees in one KV head. */
struct kernel_attention {
    const float *const *rows; /* position -> K (head_size floats), V (head_size floats) */
    uint32_t n_positions;
    uint32_t head_size;
    uint32_t n_heads;   /* query heads that share this KV head */
    const float *query; /* n_heads * head_size */
    float *out;         /* n_heads * head_size */
    float *scores;      /* scratch: n_positions rounded up to KERNEL_STEP */
};

struct kernels {
    const char *name;
    /* src is one row of n elements. */
    void (*dequantize)(enum gguf_tensor_type type, const uint8_t *src, float *dst, uint32_t n);
    /* y[t * y_stride + i] = dot(row (first + i), x + t * x_stride) for i < n_rows, t < n_tokens;
     * with `add` it is added to y instead. scratch: KERNEL_ROW_BLOCK * cols floats. */
    void (*multiply)(const struct kernel_matrix *w, uint32_t first, uint32_t n_rows, const float *x,
                     size_t x_stride, uint32_t n_tokens, float *y, size_t y_stride, bool add,
                     float *scratch);
    void (*rms_norm)(const float *x, const float *weight, uint32_t n, float epsilon, float *y);
    /* Rotary embedding in place, element i with i + head_size / 2. cosines and sines: head_size / 2
     * each. */
    void (*rotate)(float *x, uint32_t n_heads, uint32_t head_size, const float *cosines,
                   const float *sines);
    /* gate[i] = silu(gate[i]) * up[i] */
    void (*gate)(float *gate, const float *up, uint32_t n);
    void (*attend)(const struct kernel_attention *attention);
};

/* The best build for this processor. */
const struct kernels *kernels_best(void);
/* Builds this processor can run, best first; NULL past the last. For tests. */
const struct kernels *kernels_at(unsigned index);

/* Where row `row` of the matrix lies in the file. */
const uint8_t *kernel_matrix_row(const struct kernel_matrix *matrix, uint32_t row);

#endif
