/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum kvf_status text_reserve(struct engine_text *text, size_t more, struct kvf_error *error)
{
    if (text->data && more < text->cap - text->len)
        return KVF_OK;
    if (more > SIZE_MAX / 4 || text->len > SIZE_MAX / 4)
        return kvf_fail(error, KVF_ENOMEM, "a text of %zu and %zu bytes is too long", text->len,
                        more);
    size_t cap = text->cap < 64 ? 64 : text->cap;
    while (cap - text->len <= more)
        cap *= 2;
    char *data = realloc(text->data, cap);
    if (!data)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a text of %zu bytes", cap);
    text->data = data;
    text->cap = cap;
    data[text->len] = '\0';
    return KVF_OK;
}

enum kvf_status text_append(struct engine_text *text, const char *data, size_t len,
                            struct kvf_error *error)
{
    KVF_TRY(text_reserve(text, len, error));
    if (len > 0)
        memcpy(text->data + text->len, data, len);
    text->len += len;
    text->data[text->len] = '\0';
    return KVF_OK;
}

void engine_text_free(struct engine_text *text)
{
    free(text->data);
    *text = (struct engine_text){0};
}

void engine_tokens_free(struct engine_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct engine_tokens){0};
}
