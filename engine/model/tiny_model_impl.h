/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_TINY_MODEL_IMPL_H
#define ENGINE_MODEL_TINY_MODEL_IMPL_H

/* Shared by the files that write a tiny model. */

#include <stddef.h>
#include <stdint.h>

#include "gguf.h"
#include "tiny_model.h"

/* The head of a GGUF file while it is put together. After a failed allocation every function does
 * nothing and `failed` stays set. */
struct tiny_buffer {
    uint8_t *data;
    size_t len;
    size_t cap;
    bool failed;
};

void tiny_put(struct tiny_buffer *buffer, const void *data, size_t len);
void tiny_put_u32(struct tiny_buffer *buffer, uint32_t value);
void tiny_put_u64(struct tiny_buffer *buffer, uint64_t value);
void tiny_put_text(struct tiny_buffer *buffer, const char *text);
/* One metadata entry each. */
void tiny_entry_u32(struct tiny_buffer *buffer, const char *key, uint32_t value);
void tiny_entry_f32(struct tiny_buffer *buffer, const char *key, float value);
void tiny_entry_bool(struct tiny_buffer *buffer, const char *key, bool value);
void tiny_entry_text(struct tiny_buffer *buffer, const char *key, const char *text);
/* The head of an array; the elements follow. */
void tiny_entry_array(struct tiny_buffer *buffer, const char *key, enum gguf_value_type type,
                      uint64_t count);

/* The tokenizer's entries (tiny_model_vocab.c): how many, how many tokens, and the entries. */
uint32_t tiny_vocab_entries(void);
uint32_t tiny_vocab_size(void);
void tiny_vocab_put(struct tiny_buffer *buffer);

/* Encodes n floats (a multiple of the type's block) as the file keeps them. */
void tiny_encode(enum gguf_tensor_type type, const float *src, uint32_t n, uint8_t *dst);
/* Elements and bytes of a block. */
void tiny_block(enum gguf_tensor_type type, uint32_t *elements_p, uint32_t *bytes_p);

#endif
