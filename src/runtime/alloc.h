/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_ALLOC_H
#define KVFI_RUNTIME_ALLOC_H

/* Memory through the allocator that an object was created with. Any thread; nothing blocks. */

#include "kvferry/status.h"

/* malloc, realloc and free. */
extern const struct kvf_allocator kvfi_allocator_default;

/* The allocator itself, or the default one for NULL. */
static inline const struct kvf_allocator *kvfi_allocator(const struct kvf_allocator *allocator)
{
    return allocator ? allocator : &kvfi_allocator_default;
}

/* Zeroed; NULL when memory is short or count * size wraps. allocator NULL: the default one. Freed
 * by kvfi_free with the same allocator. */
void *kvfi_calloc(const struct kvf_allocator *allocator, size_t count, size_t size) KVF_MUST_USE;
/* NULL is allowed. */
void kvfi_free(const struct kvf_allocator *allocator, void *ptr);

#endif
