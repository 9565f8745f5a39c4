/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

extern const struct kernels kernels_generic;
#if defined(ENGINE_KERNELS_X86)
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
#endif

const struct kernels *kernels_at(unsigned index)
{
    const struct kernels *usable[3];
    unsigned n = 0;
#if defined(ENGINE_KERNELS_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        usable[n++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        usable[n++] = &kernels_avx2;
#endif
    usable[n++] = &kernels_generic;
    return index < n ? usable[index] : NULL;
}

const struct kernels *kernels_best(void)
{
    return kernels_at(0);
}

const uint8_t *kernel_matrix_row(const struct kernel_matrix *matrix, uint32_t row)
{
    if (matrix->rotary_head != 0) {
        uint32_t in_head = row % matrix->rotary_head, half = matrix->rotary_head / 2;
        uint32_t source = in_head < half ? 2 * in_head : 2 * (in_head - half) + 1;
        row = row - in_head + source;
    }
    return matrix->data + row * matrix->row_bytes;
}
