/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

static void *memory_alloc(void *ctx, size_t size)
{
    struct fuzz_memory *memory = ctx;
    FUZZ_CHECK(size <= memory->size_max);
    memory->live++;
    return malloc(size);
}

static void *memory_realloc(void *ctx, void *ptr, size_t size)
{
    struct fuzz_memory *memory = ctx;
    FUZZ_CHECK(size <= memory->size_max);
    return realloc(ptr, size);
}

static void memory_free(void *ctx, void *ptr)
{
    struct fuzz_memory *memory = ctx;
    FUZZ_CHECK(memory->live > 0);
    memory->live--;
    free(ptr);
}

void fuzz_memory_init(struct fuzz_memory *memory, size_t input_size)
{
    *memory = (struct fuzz_memory){
        .size_max = FUZZ_MEMORY_BASE + input_size * FUZZ_MEMORY_PER_BYTE,
        .allocator = {.ctx = memory,
                      .alloc = memory_alloc,
                      .realloc = memory_realloc,
                      .free = memory_free},
    };
}

void fuzz_memory_check(const struct fuzz_memory *memory)
{
    FUZZ_CHECK(memory->live == 0);
}
