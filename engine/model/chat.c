/* SPDX-License-Identifier: Apache-2.0 */
/* The ChatML template, rendered by hand. Of the file's own template two facts are taken: that it is
 * ChatML, and the system message that it puts in when the conversation begins without one. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#define IM_START "<|im_start|>"
#define IM_END   "<|im_end|>"

static const char *find_text(const char *data, size_t len, const char *needle)
{
    return memmem(data, len, needle, strlen(needle));
}

/* A newline in a template is either itself or a backslash and n, which only the template engine
 * would have turned into one. Returns its length, 0 for anything else. */
static size_t newline_at(const char *data, size_t len)
{
    if (len >= 1 && data[0] == '\n')
        return 1;
    if (len >= 2 && data[0] == '\\' && data[1] == 'n')
        return 2;
    return 0;
}

/* Copies a template literal, escapes resolved. NULL: no memory. */
static char *copy_literal(const char *data, size_t len)
{
    char *copy = malloc(len + 1);
    size_t n = 0;
    if (!copy)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\\' && i + 1 < len) {
            i++;
            copy[n++] = data[i];
            if (data[i] == 'n')
                copy[n - 1] = '\n';
            else if (data[i] == 't')
                copy[n - 1] = '\t';
        } else {
            copy[n++] = data[i];
        }
    }
    copy[n] = '\0';
    return copy;
}

/* Looks for a literal "<|im_start|>system NEWLINE text <|im_end|>" in one piece, which is how
 * templates write their default. */
static enum kvf_status find_default_system(struct engine_tokenizer *tokenizer, const char *data,
                                           size_t len, struct kvf_error *error)
{
    static const char head[] = IM_START "system";
    const char *end = data + len, *at = data;
    while ((at = find_text(at, (size_t)(end - at), head)) != NULL) {
        at += sizeof head - 1;
        size_t newline = newline_at(at, (size_t)(end - at));
        if (newline == 0)
            continue;
        const char *text = at + newline;
        const char *stop = find_text(text, (size_t)(end - text), IM_END);
        if (!stop)
            return KVF_OK;
        if (find_text(text, (size_t)(stop - text), "}}"))
            continue;
        tokenizer->default_system = copy_literal(text, (size_t)(stop - text));
        if (!tokenizer->default_system)
            return kvf_fail(error, KVF_ENOMEM, "no memory for the template's system message");
        return KVF_OK;
    }
    return KVF_OK;
}

enum kvf_status tokenizer_load_chat(struct engine_tokenizer *tokenizer, const struct gguf *file,
                                    struct kvf_error *error)
{
    static const char start[] = IM_START, stop[] = IM_END;
    struct gguf_string source = {0};
    bool known = engine_tokenizer_find(tokenizer, start, sizeof start - 1) != ENGINE_TOKEN_NONE &&
                 engine_tokenizer_find(tokenizer, stop, sizeof stop - 1) != ENGINE_TOKEN_NONE;
    if (!gguf_find(file, "tokenizer.chat_template")) {
        tokenizer->chat = known;
        return KVF_OK;
    }
    KVF_TRY(gguf_get_string(file, "tokenizer.chat_template", &source, error));
    tokenizer->chat = known && find_text(source.data, source.len, IM_START) &&
                      find_text(source.data, source.len, IM_END);
    if (!tokenizer->chat)
        return KVF_OK;
    return find_default_system(tokenizer, source.data, source.len, error);
}

static enum kvf_status put_message(struct engine_text *text, const char *role, size_t role_len,
                                   const char *content, size_t content_len, struct kvf_error *error)
{
    KVF_TRY(text_append(text, IM_START, sizeof IM_START - 1, error));
    KVF_TRY(text_append(text, role, role_len, error));
    KVF_TRY(text_append(text, "\n", 1, error));
    KVF_TRY(text_append(text, content, content_len, error));
    return text_append(text, IM_END "\n", sizeof IM_END, error);
}

static enum kvf_status put_messages(const struct engine_tokenizer *tokenizer,
                                    const struct engine_message *messages, size_t count,
                                    bool generate, struct engine_text *text,
                                    struct kvf_error *error)
{
    static const char system[] = "system";
    const char *preset = tokenizer->default_system;
    bool has_system = messages[0].role_len == sizeof system - 1 &&
                      memcmp(messages[0].role, system, sizeof system - 1) == 0;
    if (preset && !has_system)
        KVF_TRY(put_message(text, system, sizeof system - 1, preset, strlen(preset), error));
    for (size_t i = 0; i < count; i++)
        KVF_TRY(put_message(text, messages[i].role, messages[i].role_len, messages[i].content,
                            messages[i].content_len, error));
    if (generate)
        return text_append(text, IM_START "assistant\n", sizeof(IM_START "assistant\n") - 1, error);
    return KVF_OK;
}

enum kvf_status engine_tokenizer_chat(const struct engine_tokenizer *tokenizer,
                                      const struct engine_message *messages, size_t count,
                                      bool generate, struct engine_text *text,
                                      struct kvf_error *error)
{
    if (!tokenizer->chat)
        return kvf_fail(error, KVF_ENOTSUP,
                        "the model has no ChatML template; send a plain completion instead");
    if (count == 0)
        return kvf_fail(error, KVF_EINVAL, "the list of messages is empty");
    size_t before = text->len;
    enum kvf_status status = put_messages(tokenizer, messages, count, generate, text, error);
    if (status != KVF_OK && text->data) {
        text->len = before;
        text->data[before] = '\0';
    }
    return status;
}
