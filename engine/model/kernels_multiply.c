/* SPDX-License-Identifier: Apache-2.0 */
/* Weight matrix times activations. Built once per instruction set. */
#include "kernels_build.h"

enum {
    TILE_ROWS = 4,
    TILE_TOKENS = 4,
    TALL_ROWS = 8, /* for one token: more rows, to have as many sums under way */
};

/* One tile: n_rows times n_tokens dot products side by side, each with its own accumulator, all in
 * registers; the two counts are constants wherever this is inlined. */
KERNEL_INLINE void tile(const float *const *w, unsigned n_rows, const float *x, size_t x_stride,
                        unsigned n_tokens, uint32_t cols, float *y, size_t y_stride, bool add)
{
    vec sums[16] = {0};
    for (uint32_t c = 0; c < cols; c += LANES) {
        vec row[TALL_ROWS];
        KERNEL_UNROLL
        for (unsigned r = 0; r < n_rows; r++)
            row[r] = load(w[r] + c);
        KERNEL_UNROLL
        for (unsigned t = 0; t < n_tokens; t++) {
            vec column = load(x + t * x_stride + c);
            KERNEL_UNROLL
            for (unsigned r = 0; r < n_rows; r++)
                sums[t * n_rows + r] = fma_vec(row[r], column, sums[t * n_rows + r]);
        }
    }
    KERNEL_UNROLL
    for (unsigned first = 0; first < n_rows * n_tokens; first += LANES) {
        vec reduced = reduce_each(sums + first);
        unsigned n = n_rows * n_tokens - first < LANES ? n_rows * n_tokens - first : LANES;
        for (unsigned i = 0; i < n; i++) {
            float *to = y + (first + i) / n_rows * y_stride + (first + i) % n_rows;
            *to = add ? *to + reduced[i] : reduced[i];
        }
    }
}

#define TILE_FUNCTION(rows, tokens)                                                                \
    static void tile_##rows##x##tokens(const float *const *w, const float *x, size_t x_stride,     \
                                       uint32_t cols, float *y, size_t y_stride, bool add)         \
    {                                                                                              \
        tile(w, rows, x, x_stride, tokens, cols, y, y_stride, add);                                \
    }
TILE_FUNCTION(1, 1)
TILE_FUNCTION(1, 4)
TILE_FUNCTION(4, 1)
TILE_FUNCTION(4, 2)
TILE_FUNCTION(4, 3)
TILE_FUNCTION(4, 4)
TILE_FUNCTION(8, 1)

/* All tokens with n_rows (at most KERNEL_ROW_BLOCK) rows of floats. */
static void multiply_rows(const float *const *w, uint32_t n_rows, uint32_t cols, const float *x,
                          size_t x_stride, uint32_t n_tokens, float *y, size_t y_stride, bool add)
{
    uint32_t t = 0;
    while (t < n_tokens) {
        uint32_t tokens = n_tokens - t < TILE_TOKENS ? n_tokens - t : TILE_TOKENS, r = 0;
        const float *xt = x + t * x_stride;
        float *yt = y + t * y_stride;
        if (tokens == 1)
            for (; r + TALL_ROWS <= n_rows; r += TALL_ROWS)
                tile_8x1(w + r, xt, x_stride, cols, yt + r, y_stride, add);
        for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS) {
            if (tokens == 4)
                tile_4x4(w + r, xt, x_stride, cols, yt + r, y_stride, add);
            else if (tokens == 3)
                tile_4x3(w + r, xt, x_stride, cols, yt + r, y_stride, add);
            else if (tokens == 2)
                tile_4x2(w + r, xt, x_stride, cols, yt + r, y_stride, add);
            else
                tile_4x1(w + r, xt, x_stride, cols, yt + r, y_stride, add);
        }
        for (; r < n_rows; r++) {
            if (tokens == 4)
                tile_1x4(w + r, xt, x_stride, cols, yt + r, y_stride, add);
            else
                for (uint32_t i = 0; i < tokens; i++)
                    tile_1x1(w + r, xt + i * x_stride, x_stride, cols, yt + i * y_stride + r,
                             y_stride, add);
        }
        t += tokens;
    }
}

void KERNEL_NAME(kernels_multiply)(const struct kernel_matrix *w, uint32_t first, uint32_t n_rows,
                                   const float *x, size_t x_stride, uint32_t n_tokens, float *y,
                                   size_t y_stride, bool add, float *scratch)
{
    /* With few tokens a row is used only a few times: fewer rows at once stay in the first cache.
     */
    uint32_t block = n_tokens < 8 ? TALL_ROWS : KERNEL_ROW_BLOCK;
    for (uint32_t done = 0; done < n_rows; done += block) {
        const float *rows[KERNEL_ROW_BLOCK];
        uint32_t n = n_rows - done < block ? n_rows - done : block;
        for (uint32_t i = 0; i < n; i++) {
            const uint8_t *source = kernel_matrix_row(w, first + done + i);
            rows[i] = scratch + (size_t)i * w->cols;
            if (w->type == GGUF_TENSOR_F32)
                rows[i] = (const float *)(const void *)source;
            else
                KERNEL_NAME(kernels_dequantize)
            (w->type, source, scratch + (size_t)i * w->cols, w->cols);
        }
        multiply_rows(rows, n, w->cols, x, x_stride, n_tokens, y + done, y_stride, add);
    }
}
