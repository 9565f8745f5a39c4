/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/alloc.h"

#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *ctx, size_t size)
{
    return malloc(size);
}

static void *default_realloc(void *ctx, void *ptr, size_t size)
{
    return realloc(ptr, size);
}

static void default_free(void *ctx, void *ptr)
{
    free(ptr);
}

const struct kvf_allocator kvfi_allocator_default = {
    .alloc = default_alloc, .realloc = default_realloc, .free = default_free};

void *kvfi_calloc(const struct kvf_allocator *allocator, size_t count, size_t size)
{
    size_t total = 0;
    if (__builtin_mul_overflow(count, size, &total))
        return NULL;
    if (total == 0)
        total = 1;
    allocator = kvfi_allocator(allocator);
    void *ptr = allocator->alloc(allocator->ctx, total);
    if (ptr)
        memset(ptr, 0, total);
    return ptr;
}

void kvfi_free(const struct kvf_allocator *allocator, void *ptr)
{
    if (!ptr)
        return;
    allocator = kvfi_allocator(allocator);
    allocator->free(allocator->ctx, ptr);
}
