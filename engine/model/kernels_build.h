/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_KERNELS_BUILD_H
#define ENGINE_MODEL_KERNELS_BUILD_H

/* What the kernel files of one instruction set's build share. */

#include "kernels.h"
#include "kernels_vector.h"

void KERNEL_NAME(kernels_dequantize)(enum gguf_tensor_type type, const uint8_t *src, float *dst,
                                     uint32_t n);
void KERNEL_NAME(kernels_multiply)(const struct kernel_matrix *w, uint32_t first, uint32_t n_rows,
                                   const float *x, size_t x_stride, uint32_t n_tokens, float *y,
                                   size_t y_stride, bool add, float *scratch);
void KERNEL_NAME(kernels_attend)(const struct kernel_attention *a);
extern const struct kernels KERNEL_NAME(kernels);

#endif
