/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of a GGUF file's head. */
#include "tiny_model_impl.h"

#include <stdlib.h>
#include <string.h>

void tiny_put(struct tiny_buffer *buffer, const void *data, size_t len)
{
    if (buffer->failed || len == 0)
        return;
    if (len > buffer->cap - buffer->len) {
        size_t cap = buffer->cap < 4096 ? 4096 : buffer->cap;
        while (cap - buffer->len < len)
            cap *= 2;
        uint8_t *grown = realloc(buffer->data, cap);
        if (!grown) {
            buffer->failed = true;
            return;
        }
        buffer->data = grown;
        buffer->cap = cap;
    }
    memcpy(buffer->data + buffer->len, data, len);
    buffer->len += len;
}

void tiny_put_u32(struct tiny_buffer *buffer, uint32_t value)
{
    tiny_put(buffer, &value, sizeof value);
}

void tiny_put_u64(struct tiny_buffer *buffer, uint64_t value)
{
    tiny_put(buffer, &value, sizeof value);
}

void tiny_put_text(struct tiny_buffer *buffer, const char *text)
{
    tiny_put_u64(buffer, strlen(text));
    tiny_put(buffer, text, strlen(text));
}

static void put_key(struct tiny_buffer *buffer, const char *key, enum gguf_value_type type)
{
    tiny_put_text(buffer, key);
    tiny_put_u32(buffer, type);
}

void tiny_entry_u32(struct tiny_buffer *buffer, const char *key, uint32_t value)
{
    put_key(buffer, key, GGUF_U32);
    tiny_put_u32(buffer, value);
}

void tiny_entry_f32(struct tiny_buffer *buffer, const char *key, float value)
{
    put_key(buffer, key, GGUF_F32);
    tiny_put(buffer, &value, sizeof value);
}

void tiny_entry_bool(struct tiny_buffer *buffer, const char *key, bool value)
{
    uint8_t byte = value;
    put_key(buffer, key, GGUF_BOOL);
    tiny_put(buffer, &byte, sizeof byte);
}

void tiny_entry_text(struct tiny_buffer *buffer, const char *key, const char *text)
{
    put_key(buffer, key, GGUF_STRING);
    tiny_put_text(buffer, text);
}

void tiny_entry_array(struct tiny_buffer *buffer, const char *key, enum gguf_value_type type,
                      uint64_t count)
{
    put_key(buffer, key, GGUF_ARRAY);
    tiny_put_u32(buffer, type);
    tiny_put_u64(buffer, count);
}
