/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text_stream.h"

#include <stdlib.h>
#include <string.h>

enum kvf_status engine_text_append(struct engine_text *text, const char *data, size_t len)
{
    if (len > SIZE_MAX - 1 - text->len)
        return KVF_ENOMEM;
    size_t need = text->len + len + 1;
    if (need > text->cap) {
        size_t cap = text->cap < 64 ? 64 : text->cap;
        while (cap < need)
            cap = cap > SIZE_MAX / 2 ? need : cap * 2;
        char *grown = realloc(text->data, cap);
        if (!grown)
            return KVF_ENOMEM;
        text->data = grown;
        text->cap = cap;
    }
    if (len > 0)
        memcpy(text->data + text->len, data, len);
    text->len += len;
    text->data[text->len] = '\0';
    return KVF_OK;
}

void engine_text_stream_free(struct engine_text_stream *stream)
{
    engine_text_free(&stream->held);
}

/* Moves the first len held bytes to *text. */
static enum kvf_status let_go(struct engine_text_stream *stream, size_t len,
                              struct engine_text *text, struct kvf_error *error)
{
    if (len == 0)
        return KVF_OK;
    if (engine_text_append(text, stream->held.data, len) != KVF_OK)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the output text");
    stream->held.len -= len;
    memmove(stream->held.data, stream->held.data + len, stream->held.len + 1);
    return KVF_OK;
}

/* Where the first complete stop string begins. */
static bool find_stop(struct engine_text_stream *stream, size_t *at_p)
{
    bool found = false;
    for (size_t i = 0; i < stream->stops->count; i++) {
        const char *stop = stream->stops->texts[i];
        const char *hit = memmem(stream->held.data, stream->held.len, stop, strlen(stop));
        if (hit && (!found || (size_t)(hit - stream->held.data) < *at_p)) {
            found = true;
            *at_p = (size_t)(hit - stream->held.data);
            stream->stop_index = i;
        }
    }
    return found;
}

/* Length of the longest end of the held text that could begin a stop string. */
static size_t undecided_len(const struct engine_text_stream *stream)
{
    size_t longest = 0;
    for (size_t i = 0; i < stream->stops->count; i++) {
        const char *stop = stream->stops->texts[i];
        size_t len = strlen(stop) - 1;
        if (len > stream->held.len)
            len = stream->held.len;
        for (; len > longest; len--) {
            if (memcmp(stream->held.data + stream->held.len - len, stop, len) == 0)
                longest = len;
        }
    }
    return longest;
}

enum kvf_status engine_text_stream_push(struct engine_text_stream *stream, uint32_t token,
                                        bool match_stops, struct engine_text *text,
                                        struct kvf_error *error)
{
    if (!stream->tokenizer || stream->stopped)
        return KVF_OK;
    KVF_TRY(engine_decoder_push(&stream->decoder, stream->tokenizer, token, false, &stream->held,
                                error));
    if (stream->held.len == 0)
        return KVF_OK;
    if (!stream->stops || stream->stops->count == 0 || !match_stops)
        return let_go(stream, stream->held.len, text, error);
    size_t at = 0;
    if (find_stop(stream, &at)) {
        stream->stopped = true;
        return let_go(stream, at, text, error);
    }
    return let_go(stream, stream->held.len - undecided_len(stream), text, error);
}

enum kvf_status engine_text_stream_finish(struct engine_text_stream *stream,
                                          struct engine_text *text, struct kvf_error *error)
{
    if (!stream->tokenizer || stream->stopped)
        return KVF_OK;
    KVF_TRY(engine_decoder_finish(&stream->decoder, &stream->held, error));
    return let_go(stream, stream->held.len, text, error);
}
