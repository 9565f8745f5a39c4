/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "kernels.h"
#include "tiny_model_impl.h"

#include <math.h>

enum {
    COLS = 512,
    ROWS = 37,
    TOKENS = 21,
};

static const enum gguf_tensor_type types[] = {GGUF_TENSOR_F32, GGUF_TENSOR_F16, GGUF_TENSOR_Q8_0,
                                              GGUF_TENSOR_Q4_1, GGUF_TENSOR_Q6_K};
enum {
    N_TYPES = sizeof types / sizeof types[0],
};

static uint64_t random_state;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static float random_float(void)
{
    return (float)(int32_t)(random_bits() & 0xffff) / 32768.0f - 1.0f;
}

/* A half as the standard defines it. */
static double naive_half(const uint8_t *at)
{
    unsigned bits = at[0] | (unsigned)at[1] << 8, exponent = bits >> 10 & 31,
             fraction = bits & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, (int)exponent - 25);
    return bits & 0x8000 ? -size : size;
}

/* Element i of a row, straight from the description of each format. */
static double naive_element(enum gguf_tensor_type type, const uint8_t *row, unsigned i)
{
    const uint8_t *block;
    float single;
    switch (type) {
    case GGUF_TENSOR_F32:
        memcpy(&single, row + (size_t)i * 4, sizeof single);
        return (double)single;
    case GGUF_TENSOR_F16:
        return naive_half(row + (size_t)i * 2);
    case GGUF_TENSOR_Q8_0:
        block = row + (size_t)(i / 32) * 34;
        return naive_half(block) * (int8_t)block[2 + i % 32];
    case GGUF_TENSOR_Q4_1:
        block = row + (size_t)(i / 32) * 20;
        i %= 32;
        return naive_half(block) * (i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4) +
               naive_half(block + 2);
    case GGUF_TENSOR_Q6_K: {
        block = row + (size_t)(i / 256) * 210;
        i %= 256;
        unsigned half = i / 128, in_half = i % 128;
        unsigned low = block[half * 64 + in_half % 64] >> (in_half >= 64 ? 4 : 0) & 15;
        unsigned high = block[128 + half * 32 + in_half % 32] >> in_half / 32 * 2 & 3;
        return naive_half(block + 208) * (int8_t)block[192 + i / 16] *
               ((int)(low | high << 4) - 32);
    }
    }
    return NAN;
}

/* Random encoded rows with scales that are ordinary numbers. */
static uint8_t *random_matrix(enum gguf_tensor_type type, uint32_t rows, uint64_t *row_bytes_p)
{
    uint32_t elements, bytes;
    float row[COLS];
    tiny_block(type, &elements, &bytes);
    *row_bytes_p = (uint64_t)COLS / elements * bytes;
    uint8_t *data = malloc(rows * *row_bytes_p);
    assert_non_null(data);
    for (uint32_t r = 0; r < rows; r++) {
        for (unsigned i = 0; i < COLS; i++)
            row[i] = random_float();
        tiny_encode(type, row, COLS, data + r * *row_bytes_p);
        /* Random payload between the scales covers every code, not only those an encoder makes. */
        for (uint64_t i = 0; i < *row_bytes_p; i += bytes) {
            uint8_t *block = data + r * *row_bytes_p + i;
            for (unsigned j = 4; type == GGUF_TENSOR_Q8_0 && j < 34; j++)
                block[j] = (uint8_t)random_bits();
            for (unsigned j = 4; type == GGUF_TENSOR_Q4_1 && j < 20; j++)
                block[j] = (uint8_t)random_bits();
            for (unsigned j = 0; type == GGUF_TENSOR_Q6_K && j < 208; j++)
                block[j] = (uint8_t)random_bits();
        }
    }
    return data;
}

static void dequantizes_like_the_description(void **state)
{
    const struct kernels *k;
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        for (unsigned t = 0; t < N_TYPES; t++) {
            uint64_t row_bytes;
            float out[COLS];
            uint8_t *data = random_matrix(types[t], 8, &row_bytes);
            for (unsigned r = 0; r < 8; r++) {
                k->dequantize(types[t], data + r * row_bytes, out, COLS);
                for (unsigned i = 0; i < COLS; i++) {
                    double wanted = naive_element(types[t], data + r * row_bytes, i);
                    if (fabs((double)out[i] - wanted) > 1e-6 * fabs(wanted) + 1e-6)
                        fail_msg("%s %s element %u: %.9g, wanted %.9g", k->name,
                                 gguf_tensor_type_name(types[t]), i, (double)out[i], wanted);
                }
            }
            free(data);
        }
    }
}

/* All 65536 halves, infinities and NaNs included. */
static void converts_every_half(void **state)
{
    const struct kernels *k;
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        for (uint32_t first = 0; first < 65536; first += 16) {
            uint16_t halves[16];
            float out[16];
            for (uint32_t i = 0; i < 16; i++)
                halves[i] = (uint16_t)(first + i);
            k->dequantize(GGUF_TENSOR_F16, (const uint8_t *)halves, out, 16);
            for (uint32_t i = 0; i < 16; i++) {
                unsigned exponent = halves[i] >> 10 & 31, fraction = halves[i] & 1023;
                if (exponent == 31 && fraction != 0)
                    assert_true(isnan(out[i]));
                else if (exponent == 31)
                    assert_true(out[i] == (halves[i] & 0x8000 ? -INFINITY : INFINITY));
                else
                    assert_true((double)out[i] == naive_half((const uint8_t *)&halves[i]));
            }
        }
    }
}

static double naive_dot(const struct kernel_matrix *w, uint32_t row, const float *x)
{
    double sum = 0;
    const uint8_t *data = w->data + row * w->row_bytes;
    for (uint32_t i = 0; i < COLS; i++)
        sum += naive_element(w->type, data, i) * (double)x[i];
    return sum;
}

static void multiplies_like_naive_code(void **state)
{
    static float x[TOKENS * COLS], y[TOKENS * ROWS], scratch[KERNEL_ROW_BLOCK * COLS];
    const struct kernels *k;
    for (unsigned i = 0; i < TOKENS * COLS; i++)
        x[i] = random_float();
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        for (unsigned t = 0; t < N_TYPES; t++) {
            struct kernel_matrix w = {.type = types[t], .rows = ROWS, .cols = COLS};
            uint8_t *data = random_matrix(types[t], ROWS, &w.row_bytes);
            w.data = data;
            k->multiply(&w, 0, ROWS, x, COLS, TOKENS, y, ROWS, false, scratch);
            for (uint32_t i = 0; i < TOKENS * ROWS; i++) {
                double wanted = naive_dot(&w, i % ROWS, x + (size_t)(i / ROWS) * COLS);
                if (fabs((double)y[i] - wanted) > 2e-3)
                    fail_msg("%s %s: %.9g, wanted %.9g", k->name, gguf_tensor_type_name(types[t]),
                             (double)y[i], wanted);
            }
            k->multiply(&w, 0, ROWS, x, COLS, 1, y, ROWS, true, scratch);
            double wanted = 2 * naive_dot(&w, 3, x);
            assert_true(fabs((double)y[3] - wanted) < 4e-3);
            free(data);
        }
    }
}

/* Whatever the shape of the call, each dot product has the same bits. */
static void products_do_not_depend_on_the_shape(void **state)
{
    static float x[TOKENS * COLS], whole[TOKENS * ROWS], part[TOKENS * ROWS];
    static float scratch[KERNEL_ROW_BLOCK * COLS];
    const struct kernels *k;
    for (unsigned i = 0; i < TOKENS * COLS; i++)
        x[i] = random_float();
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        for (unsigned t = 0; t < N_TYPES; t++) {
            struct kernel_matrix w = {.type = types[t], .rows = ROWS, .cols = COLS};
            uint8_t *data = random_matrix(types[t], ROWS, &w.row_bytes);
            w.data = data;
            k->multiply(&w, 0, ROWS, x, COLS, TOKENS, whole, ROWS, false, scratch);
            for (uint32_t tokens = 1; tokens <= TOKENS; tokens++) {
                for (uint32_t rows = 1; rows <= 17; rows++) {
                    uint32_t row = random_bits() % (ROWS - rows + 1);
                    uint32_t token = random_bits() % (TOKENS - tokens + 1);
                    k->multiply(&w, row, rows, x + (size_t)token * COLS, COLS, tokens, part, rows,
                                false, scratch);
                    for (uint32_t i = 0; i < tokens; i++)
                        assert_memory_equal(part + (size_t)i * rows,
                                            whole + (size_t)(token + i) * ROWS + row,
                                            rows * sizeof *part);
                }
            }
            free(data);
        }
    }
}

static void undoes_the_rotary_row_order(void **state)
{
    static const uint8_t data[32];
    struct kernel_matrix w = {data, 1, GGUF_TENSOR_F32, 32, 1, 16};
    static const unsigned wanted[] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(kernel_matrix_row(&w, i) - data, wanted[i % 16] + i / 16 * 16);
}

static void attends_like_naive_code(void **state)
{
    enum {
        SIZE = 80,
        HEADS = 3,
        POSITIONS = 37,
    };
    static float cache[POSITIONS][2 * SIZE], query[HEADS * SIZE], out[HEADS * SIZE];
    float scores[48] = {0};
    const float *rows[POSITIONS];
    const struct kernels *k;
    for (unsigned p = 0; p < POSITIONS; p++) {
        rows[p] = cache[p];
        for (unsigned i = 0; i < 2 * SIZE; i++)
            cache[p][i] = 3 * random_float();
    }
    for (unsigned i = 0; i < HEADS * SIZE; i++)
        query[i] = random_float();
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        for (unsigned positions = 1; positions <= POSITIONS; positions++) {
            struct kernel_attention a = {rows, positions, SIZE, HEADS, query, out, scores};
            k->attend(&a);
            for (unsigned h = 0; h < HEADS; h++) {
                double weights[POSITIONS], total = 0, highest = -1e300;
                for (unsigned p = 0; p < positions; p++) {
                    weights[p] = 0;
                    for (unsigned i = 0; i < SIZE; i++)
                        weights[p] += (double)query[h * SIZE + i] * (double)cache[p][i];
                    weights[p] /= sqrt(SIZE);
                    highest = weights[p] > highest ? weights[p] : highest;
                }
                for (unsigned p = 0; p < positions; p++)
                    total += weights[p] = exp(weights[p] - highest);
                for (unsigned i = 0; i < SIZE; i++) {
                    double wanted = 0;
                    for (unsigned p = 0; p < positions; p++)
                        wanted += weights[p] / total * (double)cache[p][SIZE + i];
                    assert_true(fabs((double)out[h * SIZE + i] - wanted) < 1e-5);
                }
            }
        }
    }
}

static void small_functions_match_naive_code(void **state)
{
    enum {
        N = 2048,
    };
    static float x[N], w[N], y[N];
    const struct kernels *k;
    for (unsigned n = 0; (k = kernels_at(n)) != NULL; n++) {
        double sum = 0;
        for (unsigned i = 0; i < N; i++) {
            x[i] = 4 * random_float();
            w[i] = random_float();
            sum += (double)x[i] * (double)x[i];
        }
        k->rms_norm(x, w, N, 1e-5f, y);
        for (unsigned i = 0; i < N; i++) {
            double wanted = (double)x[i] / sqrt(sum / N + 1e-5) * (double)w[i];
            assert_true(fabs((double)y[i] - wanted) < 1e-5);
        }
        for (unsigned i = 0; i < N; i++)
            y[i] = ((float)i - 1024) / 8; /* -128 .. 128: past the exponential's clamp too */
        memcpy(x, y, sizeof x);
        k->gate(y, w, N);
        for (unsigned i = 0; i < N; i++) {
            double wanted = (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i];
            if (fabs((double)y[i] - wanted) > 1e-6 * fabs(wanted) + 1e-6)
                fail_msg("%s gate(%g): %.9g, wanted %.9g", k->name, (double)x[i], (double)y[i],
                         wanted);
        }
        float head[32], cosines[16], sines[16];
        for (unsigned i = 0; i < 16; i++) {
            cosines[i] = cosf((float)i);
            sines[i] = sinf((float)i);
            head[i] = (float)i + 1;
            head[i + 16] = -(float)i;
        }
        k->rotate(head, 1, 32, cosines, sines);
        for (unsigned i = 0; i < 16; i++) {
            double a = i + 1.0, b = -(double)i, c = cos(i), s = sin(i);
            assert_true(fabs((double)head[i] - (a * c - b * s)) < 1e-5);
            assert_true(fabs((double)head[i + 16] - (b * c + a * s)) < 1e-5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantizes_like_the_description),
        cmocka_unit_test(converts_every_half),
        cmocka_unit_test(multiplies_like_naive_code),
        cmocka_unit_test(products_do_not_depend_on_the_shape),
        cmocka_unit_test(undoes_the_rotary_row_order),
        cmocka_unit_test(attends_like_naive_code),
        cmocka_unit_test(small_functions_match_naive_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
