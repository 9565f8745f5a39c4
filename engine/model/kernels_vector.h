/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_KERNELS_VECTOR_H
#define ENGINE_MODEL_KERNELS_VECTOR_H

/*
 * Vectors of KERNEL_LANES floats, for the kernel files that are built once per instruction set
 * (KERNEL_ISA: its name, KERNEL_LANES: 16, 8 or 4). Everything here is static and inlined.
 */

#include <stdint.h>
#include <string.h>

#define KERNEL_JOIN_(a, b) a##_##b
#define KERNEL_JOIN(a, b)  KERNEL_JOIN_(a, b)
/* An external name of this build. */
#define KERNEL_NAME(name) KERNEL_JOIN(name, KERNEL_ISA)
#define KERNEL_INLINE     static inline __attribute__((always_inline, unused))

/* Before a loop of constant bounds over an array of vectors that is to live in registers. */
#if defined(__clang__)
#define KERNEL_UNROLL _Pragma("unroll")
#else
#define KERNEL_UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    LANES = KERNEL_LANES,
};

typedef float vec __attribute__((vector_size(4 * KERNEL_LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * KERNEL_LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * KERNEL_LANES)));
typedef float vec_at __attribute__((vector_size(4 * KERNEL_LANES), aligned(4), may_alias));

KERNEL_INLINE vec load(const float *from)
{
    return *(const vec_at *)from;
}

KERNEL_INLINE void store(float *to, vec v)
{
    *(vec_at *)to = v;
}

KERNEL_INLINE vec splat(float x)
{
    return x - (vec){0};
}

/* a * b + c; one rounding where the processor has it, and then always (-ffp-contract=fast). */
KERNEL_INLINE vec fma_vec(vec a, vec b, vec c)
{
    return a * b + c;
}

/* Lane-wise mask ? a : b; mask lanes are all ones or all zeros. */
KERNEL_INLINE vec choose(ivec mask, vec a, vec b)
{
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

KERNEL_INLINE vec max_vec(vec a, vec b)
{
    return choose(a > b, a, b);
}

/* fold_G(a, b): both are made of groups of G lanes; the upper half of each group is added to its
 * lower half, and the folded groups of a are followed by those of b. Folding down to groups of one
 * lane is the one reduction tree of this engine. */
#if KERNEL_LANES == 16
KERNEL_INLINE vec fold_16(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                   31);
}

KERNEL_INLINE vec fold_8(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30,
                                   31);
}

KERNEL_INLINE vec fold_4(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30,
                                   31);
}

KERNEL_INLINE vec fold_2(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                   30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#elif KERNEL_LANES == 8
KERNEL_INLINE vec fold_8(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}

KERNEL_INLINE vec fold_4(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
}

KERNEL_INLINE vec fold_2(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
#else
KERNEL_INLINE vec fold_4(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
}

KERNEL_INLINE vec fold_2(vec a, vec b)
{
    return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}
#endif

/* Lane i of the result is the sum of the lanes of a[i]. */
KERNEL_INLINE vec reduce_each(const vec *a)
{
#if KERNEL_LANES == 16
    vec b0 = fold_16(a[0], a[1]), b1 = fold_16(a[2], a[3]), b2 = fold_16(a[4], a[5]);
    vec b3 = fold_16(a[6], a[7]), b4 = fold_16(a[8], a[9]), b5 = fold_16(a[10], a[11]);
    vec b6 = fold_16(a[12], a[13]), b7 = fold_16(a[14], a[15]);
    vec c0 = fold_8(b0, b1), c1 = fold_8(b2, b3), c2 = fold_8(b4, b5), c3 = fold_8(b6, b7);
    return fold_2(fold_4(c0, c1), fold_4(c2, c3));
#elif KERNEL_LANES == 8
    vec b0 = fold_8(a[0], a[1]), b1 = fold_8(a[2], a[3]);
    vec b2 = fold_8(a[4], a[5]), b3 = fold_8(a[6], a[7]);
    return fold_2(fold_4(b0, b1), fold_4(b2, b3));
#else
    return fold_2(fold_4(a[0], a[1]), fold_4(a[2], a[3]));
#endif
}

/* The same tree for one vector. */
KERNEL_INLINE float reduce(vec a)
{
#if KERNEL_LANES == 16
    a = fold_16(a, a);
#endif
#if KERNEL_LANES >= 8
    a = fold_8(a, a);
#endif
    a = fold_4(a, a);
    a = fold_2(a, a);
    return a[0];
}

/* e to the x, to about 2 units in the last place; x is clamped to [-87, 88]. */
KERNEL_INLINE vec exp_vec(vec x)
{
    const vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = choose(x < splat(-87.0f), splat(-87.0f), x);
    x = choose(x > splat(88.0f), splat(88.0f), x);
    vec shifted = fma_vec(x, splat(1.44269504f), magic);
    vec n = shifted - magic;
    vec r = fma_vec(n, splat(-0.693359375f), x);
    r = fma_vec(n, splat(2.12194440e-4f), r);
    vec p = splat(1.9875691500e-4f);
    p = fma_vec(p, r, splat(1.3981999507e-3f));
    p = fma_vec(p, r, splat(8.3334519073e-3f));
    p = fma_vec(p, r, splat(4.1665795894e-2f));
    p = fma_vec(p, r, splat(1.6666665459e-1f));
    p = fma_vec(p, r, splat(5.0000001201e-1f));
    p = fma_vec(p, r * r, r + splat(1.0f));
    ivec exponent = ((ivec)shifted - (ivec)magic + 127) << 23;
    return p * (vec)exponent;
}

#endif
