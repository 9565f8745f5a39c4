/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_CHAT_REPLY_H
#define KVFERRY_CLI_CHAT_REPLY_H

/*
 * The answer to one chat request, put together from the events of its stream. No I/O; the text is
 * handed out piece by piece.
 */

#include "http/json.h"
#include "kvferry/status.h"

#include <stdint.h>

struct kvfi_chat_reply {
    /* Called for each piece of text; may be NULL. */
    void (*on_text)(void *ctx, const char *text, size_t len);
    void *ctx;

    char *text; /* all of it, terminated; NULL when there was none */
    size_t text_len;
    uint64_t piece_count;
    int64_t usage_tokens; /* as the server counts, -1 when it does not say */
    char finish_reason[32];
    bool done;                /* "[DONE]" was seen */
    struct kvf_error failure; /* text is "" unless the stream reported or was an error */
};

void kvfi_chat_reply_init(struct kvfi_chat_reply *reply,
                          void (*on_text)(void *ctx, const char *text, size_t len), void *ctx);
void kvfi_chat_reply_free(struct kvfi_chat_reply *reply);

/* One server-sent event's data. What cannot be understood becomes the failure. */
void kvfi_chat_reply_event(struct kvfi_chat_reply *reply, const char *data, size_t len);

/* A sentence out of an error answer: its error.message, else its beginning. */
void kvfi_chat_error_text(const char *body, size_t len, char *out, size_t size);

/* Replaces control characters that could steer a terminal by '?', in place. Line breaks and tabs
 * stay. */
void kvfi_chat_tame(char *text, size_t len);

#endif
