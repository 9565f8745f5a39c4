/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_TEXT_STREAM_H
#define ENGINE_TEXT_STREAM_H

/*
 * Tokens in, text out, piece by piece: never half a character, never a part of a stop string. What
 * may be the beginning of a stop string is held back until it is decided. One thread.
 */

#include "engine/model/tokenizer.h"

struct engine_stop_list {
    char **texts; /* not empty each, owned by whoever owns the list */
    size_t count;
};

/* Start with {.tokenizer = ..., .stops = ...}; free with engine_text_stream_free. */
struct engine_text_stream {
    const struct engine_tokenizer *tokenizer; /* borrowed; NULL: text stays empty */
    const struct engine_stop_list *stops;     /* borrowed; may be NULL */
    struct engine_decoder decoder;
    struct engine_text held; /* decoded, not released yet */
    size_t stop_index;       /* after a stop: which one */
    bool stopped;
};

void engine_text_stream_free(struct engine_text_stream *stream);

/* Appends to *text what became certain with this token. stream->stopped is set when a stop string
 * is complete; what follows it is dropped. match_stops false: no stop string can end
 * at this token (min_tokens is not reached yet).
 * KVF_ENOMEM, KVF_EINVAL for an id outside the vocabulary. */
KVF_MUST_USE enum kvf_status engine_text_stream_push(struct engine_text_stream *stream,
                                                     uint32_t token, bool match_stops,
                                                     struct engine_text *text,
                                                     struct kvf_error *error);
/* No more tokens: appends what was held back, unless a stop string ended it. */
KVF_MUST_USE enum kvf_status engine_text_stream_finish(struct engine_text_stream *stream,
                                                       struct engine_text *text,
                                                       struct kvf_error *error);

/* Appends bytes to a text. KVF_ENOMEM: it is as before. */
KVF_MUST_USE enum kvf_status engine_text_append(struct engine_text *text, const char *data,
                                                size_t len);

#endif
