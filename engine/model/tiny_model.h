/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_TINY_MODEL_H
#define ENGINE_MODEL_TINY_MODEL_H

/*
 * Writes a small Llama GGUF with random but reproducible weights and a byte-level vocabulary, so
 * that tests need no download. Its answers mean nothing, but they depend on every token before.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvferry/status.h"

struct tiny_model_options {
    uint64_t seed;
    uint32_t layers;         /* 0: 2 */
    uint32_t heads;          /* 0: 4 */
    uint32_t kv_heads;       /* 0: 2; must divide heads */
    uint32_t head_size;      /* 0: 16; multiple of 16; for "q6_k" heads * head_size must be a
                                multiple of 256 (0: 64) */
    uint32_t feed_forward;   /* 0: 3 times heads * head_size; multiple of 32 (q6_k: of 256) */
    uint32_t context_length; /* 0: 4096 */
    const char *type;        /* of the matrices: "f32" (NULL), "f16", "q8_0", "q4_1", "q6_k" */
    bool tied;               /* leave output.weight out */
};

/* The vocabulary: 256 byte tokens, the specials and a few dozen merges. */
enum {
    TINY_MODEL_ENDOFTEXT = 0,
    TINY_MODEL_IM_START = 1, /* bos */
    TINY_MODEL_IM_END = 2,   /* eos */
};

/* Writes the file. NULL options: all defaults, seed 0. The same options give the same bytes on
 * every machine. KVF_EINVAL (names the option), KVF_ESYSTEM, KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status tiny_model_write(const char *path,
                                              const struct tiny_model_options *options,
                                              struct kvf_error *error);

#endif
