/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVF_FUZZ_H
#define KVF_FUZZ_H

/*
 * One target a decoder: decode; what decodes must encode, and what was encoded must decode and
 * encode to the same bytes. Built for libFuzzer with -Dfuzz=true and clang; linked with replay.c
 * the same targets run the seed corpus with any compiler.
 */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "wire/bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that does not hold ends the process, so that the fuzzer keeps the input. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Memory of a decoder that was given size bytes; it must stay in proportion to them. Anything more
 * is what a hostile count would ask for. */
#define FUZZ_MEMORY_PER_BYTE 128
#define FUZZ_MEMORY_BASE     4096

struct fuzz_memory {
    size_t live;
    size_t size_max;
    struct kvf_allocator allocator;
};

void fuzz_memory_init(struct fuzz_memory *memory, size_t input_size);
/* Everything was freed. */
void fuzz_memory_check(const struct fuzz_memory *memory);

static inline struct kvfi_span fuzz_span(const struct kvfi_buf *buf)
{
    return kvfi_span(buf->data, buf->len);
}

#endif
