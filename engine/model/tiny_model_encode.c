/* SPDX-License-Identifier: Apache-2.0 */
/* From float to the encodings of GGUF files. Simple rounding to the nearest step, no search for
 * better scales: the values only have to be representative. */
#include "tiny_model_impl.h"

#include <math.h>
#include <string.h>

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To half precision, nearest even; the values here are far below its largest. */
static uint16_t to_half(float x)
{
    uint32_t sign = float_bits(x) >> 16 & 0x8000;
    float size = fabsf(x);
    if (size < 0x1p-14f) /* subnormal: adding 0.5 leaves the wanted bits at the end */
        return (uint16_t)(sign | (float_bits(size + 0.5f) - float_bits(0.5f)));
    uint32_t bits = float_bits(size);
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits >> 13) - (112 << 10)));
}

static float from_half(uint16_t half)
{
    float size = bits_float((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
    return half & 0x8000 ? -size : size;
}

static int nearest(float x, int low, int high)
{
    int n = (int)floorf(x + 0.5f);
    return n < low ? low : n > high ? high : n;
}

static float largest(const float *x, uint32_t n)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static void put_half(uint8_t *dst, float x)
{
    uint16_t half = to_half(x);
    memcpy(dst, &half, sizeof half);
}

static void encode_q8_0(const float *src, uint8_t *dst)
{
    float scale = from_half(to_half(largest(src, 32) / 127.0f));
    put_half(dst, scale);
    for (unsigned i = 0; i < 32; i++)
        dst[2 + i] = (uint8_t)nearest(scale > 0 ? src[i] / scale : 0, -127, 127);
}

static void encode_q4_1(const float *src, uint8_t *dst)
{
    float low = src[0], high = src[0];
    for (unsigned i = 1; i < 32; i++) {
        low = src[i] < low ? src[i] : low;
        high = src[i] > high ? src[i] : high;
    }
    low = from_half(to_half(low));
    float scale = from_half(to_half((high - low) / 15.0f));
    put_half(dst, scale);
    put_half(dst + 2, low);
    for (unsigned i = 0; i < 16; i++) {
        int a = nearest(scale > 0 ? (src[i] - low) / scale : 0, 0, 15);
        int b = nearest(scale > 0 ? (src[i + 16] - low) / scale : 0, 0, 15);
        dst[4 + i] = (uint8_t)(a | b << 4);
    }
}

static void encode_q6_k(const float *src, uint8_t *dst)
{
    float scale = from_half(to_half(largest(src, 256) / (31.0f * 127.0f)));
    memset(dst, 0, 210);
    put_half(dst + 208, scale);
    for (size_t group = 0; group < 16; group++) {
        int factor =
            nearest(scale > 0 ? largest(src + group * 16, 16) / (31.0f * scale) : 0, 0, 127);
        dst[192 + group] = (uint8_t)factor;
        float step = scale * (float)factor;
        for (unsigned j = 0; j < 16; j++) {
            size_t i = group * 16 + j, run = i / 32;
            int q = nearest(step > 0 ? src[i] / step : 0, -32, 31) + 32;
            dst[run / 4 * 64 + run % 2 * 32 + i % 32] |=
                (uint8_t)((q & 15) << (run % 4 >= 2 ? 4 : 0));
            dst[128 + run / 4 * 32 + i % 32] |= (uint8_t)(q >> 4 << 2 * (run % 4));
        }
    }
}

void tiny_block(enum gguf_tensor_type type, uint32_t *elements_p, uint32_t *bytes_p)
{
    static const struct {
        uint32_t elements, bytes;
    } blocks[] = {
        [GGUF_TENSOR_F32] = {1, 4},      [GGUF_TENSOR_F16] = {1, 2},
        [GGUF_TENSOR_Q4_1] = {32, 20},   [GGUF_TENSOR_Q8_0] = {32, 34},
        [GGUF_TENSOR_Q6_K] = {256, 210},
    };
    *elements_p = blocks[type].elements;
    *bytes_p = blocks[type].bytes;
}

void tiny_encode(enum gguf_tensor_type type, const float *src, uint32_t n, uint8_t *dst)
{
    uint32_t elements, bytes;
    tiny_block(type, &elements, &bytes);
    for (uint32_t i = 0; i < n; i += elements, src += elements, dst += bytes) {
        switch (type) {
        case GGUF_TENSOR_F32:
            memcpy(dst, src, sizeof *src);
            break;
        case GGUF_TENSOR_F16:
            put_half(dst, *src);
            break;
        case GGUF_TENSOR_Q8_0:
            encode_q8_0(src, dst);
            break;
        case GGUF_TENSOR_Q4_1:
            encode_q4_1(src, dst);
            break;
        case GGUF_TENSOR_Q6_K:
            encode_q6_k(src, dst);
            break;
        }
    }
}
