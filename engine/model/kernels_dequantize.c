/* SPDX-License-Identifier: Apache-2.0 */
/* From a file's encodings to float. Built once per instruction set. */
#include "kernels_build.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

/* Half precision to single, exact for every value. */
KERNEL_INLINE vec half_to_float(uvec h)
{
    uvec magnitude = (h & 0x7fff) << 13;
    /* Moves the exponent's bias from 15 to 127; also right for subnormal numbers. */
    uvec bits = (uvec)((vec)magnitude * splat(0x1p112f));
    uvec special = (uvec)(magnitude >= (uint32_t)(0x1f << 23)) & 0x7f800000u;
    return (vec)(bits | special | (h & 0x8000) << 16);
}

KERNEL_INLINE float half_at(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    return half_to_float((uvec){half})[0];
#endif
}

/* LANES bytes to as many integers. Each compiler has its own way to recognise the one instruction
 * for this: clang in a conversion of vectors, gcc in a plain loop. */
KERNEL_INLINE ivec widen_bytes(const uint8_t *at)
{
#if defined(__clang__)
    typedef uint8_t byte_vec __attribute__((vector_size(LANES)));
    byte_vec bytes;
    memcpy(&bytes, at, sizeof bytes);
    return __builtin_convertvector(bytes, ivec);
#else
    int32_t wide[LANES] = {0};
    ivec result;
    for (unsigned i = 0; i < LANES; i++)
        wide[i] = at[i];
    memcpy(&result, wide, sizeof result);
    return result;
#endif
}

/* The same for signed bytes. */
KERNEL_INLINE ivec sign_bytes(const uint8_t *at)
{
    return (ivec)((uvec)widen_bytes(at) << 24) >> 24;
}

KERNEL_INLINE vec to_float(ivec v)
{
    return __builtin_convertvector(v, vec);
}

static void from_f16(const uint8_t *src, float *dst, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        uint16_t half[LANES];
        uvec wide = {0};
        memcpy(half, src + 2 * (size_t)i, sizeof half);
        for (unsigned j = 0; j < LANES; j++)
            wide[j] = half[j];
        store(dst + i, half_to_float(wide));
    }
}

/* 32 elements: f16 scale, 32 signed bytes. */
static void from_q8_0(const uint8_t *src, float *dst, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32, src += 34, dst += 32) {
        vec scale = splat(half_at(src));
        for (size_t j = 0; j < 32; j += LANES)
            store(dst + j, scale * to_float(sign_bytes(src + 2 + j)));
    }
}

/* 32 elements: f16 scale, f16 minimum, 16 bytes; byte j holds element j below and j + 16 above. */
static void from_q4_1(const uint8_t *src, float *dst, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32, src += 20, dst += 32) {
        vec scale = splat(half_at(src)), minimum = splat(half_at(src + 2));
        for (size_t j = 0; j < 16; j += LANES) {
            ivec pair = widen_bytes(src + 4 + j);
            store(dst + j, fma_vec(scale, to_float(pair & 15), minimum));
            store(dst + 16 + j, fma_vec(scale, to_float(pair >> 4), minimum));
        }
    }
}

/* 256 elements: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, f16 scale.
 * Each half of 128 is four runs of 32: runs 0 and 1 take the low nibbles of 64 bytes, runs 2 and 3
 * the high ones; run k takes bits 2k and 2k + 1 of 32 bytes. Elements are offset by 32. */
static void from_q6_k(const uint8_t *src, float *dst, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 256, src += 210) {
        float scale = half_at(src + 208);
        for (size_t run = 0; run < 8; run++, dst += 32) {
            const uint8_t *low = src + run / 4 * 64 + run % 2 * 32;
            const uint8_t *high = src + 128 + run / 4 * 32;
            int low_shift = run % 4 >= 2 ? 4 : 0, high_shift = 2 * (int)(run % 4);
            for (size_t j = 0; j < 32; j += LANES) {
                vec factor = splat(scale * (float)(int8_t)src[192 + run * 2 + j / 16]);
                ivec q = (widen_bytes(low + j) >> low_shift & 15) |
                         (widen_bytes(high + j) >> high_shift & 3) << 4;
                store(dst + j, factor * to_float(q - 32));
            }
        }
    }
}

void KERNEL_NAME(kernels_dequantize)(enum gguf_tensor_type type, const uint8_t *src, float *dst,
                                     uint32_t n)
{
    switch (type) {
    case GGUF_TENSOR_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case GGUF_TENSOR_F16:
        from_f16(src, dst, n);
        break;
    case GGUF_TENSOR_Q8_0:
        from_q8_0(src, dst, n);
        break;
    case GGUF_TENSOR_Q4_1:
        from_q4_1(src, dst, n);
        break;
    case GGUF_TENSOR_Q6_K:
        from_q6_k(src, dst, n);
        break;
    }
}
