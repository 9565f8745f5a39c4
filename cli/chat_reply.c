/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 64 * 1024 * 1024 };

void kvfi_chat_reply_init(struct kvfi_chat_reply *reply,
                          void (*on_text)(void *ctx, const char *text, size_t len), void *ctx)
{
    *reply = (struct kvfi_chat_reply){.on_text = on_text, .ctx = ctx, .usage_tokens = -1};
}

void kvfi_chat_reply_free(struct kvfi_chat_reply *reply)
{
    free(reply->text);
    reply->text = NULL;
}

static void fail(struct kvfi_chat_reply *reply, enum kvf_status status, const char *text)
{
    if (!reply->failure.text[0])
        (void)kvf_fail(&reply->failure, status, "%s", text);
}

static void add_text(struct kvfi_chat_reply *reply, const char *text, size_t len)
{
    if (len > TEXT_BYTES_MAX - reply->text_len) {
        fail(reply, KVF_ELIMIT, "the answer is too large");
        return;
    }
    char *grown = realloc(reply->text, reply->text_len + len + 1);
    if (!grown) {
        fail(reply, KVF_ENOMEM, "no memory for the answer");
        return;
    }
    memcpy(grown + reply->text_len, text, len);
    reply->text = grown;
    reply->text_len += len;
    reply->text[reply->text_len] = '\0';
    reply->piece_count++;
    if (reply->on_text)
        reply->on_text(reply->ctx, text, len);
}

static void take_choice(struct kvfi_chat_reply *reply, const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *content = json_object_get(delta, "content");
    if (json_string_length(content))
        add_text(reply, json_string_value(content), json_string_length(content));
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (finish)
        snprintf(reply->finish_reason, sizeof(reply->finish_reason), "%s", finish);
}

void kvfi_chat_reply_event(struct kvfi_chat_reply *reply, const char *data, size_t len)
{
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        reply->done = true;
        return;
    }
    json_t *event = NULL;
    struct kvf_error error = {0};
    if (kvfi_json_parse_object("event of the stream", data, len, &event, &error) != KVF_OK) {
        fail(reply, KVF_EFORMAT, error.text);
        return;
    }
    if (json_object_get(event, "error")) {
        char text[400];
        kvfi_chat_error_text(data, len, text, sizeof(text));
        fail(reply, KVF_ETRANSPORT, text);
    }
    const json_t *usage = json_object_get(event, "usage");
    const json_t *tokens = json_object_get(usage, "completion_tokens");
    if (json_is_integer(tokens))
        reply->usage_tokens = json_integer_value(tokens);
    const json_t *choices = json_object_get(event, "choices");
    if (json_array_size(choices))
        take_choice(reply, json_array_get(choices, 0));
    json_decref(event);
}

void kvfi_chat_error_text(const char *body, size_t len, char *out, size_t size)
{
    json_t *answer = len ? json_loadb(body, len, 0, NULL) : NULL;
    const json_t *error = json_object_get(answer, "error");
    const char *message = json_string_value(json_object_get(error ? error : answer, "message"));
    if (!message)
        message = json_string_value(error);
    if (message)
        snprintf(out, size, "%s", message);
    else
        snprintf(out, size, "%.*s", (int)(len < 300 ? len : 300), len ? body : "");
    kvfi_chat_tame(out, strlen(out));
    json_decref(answer);
}

void kvfi_chat_tame(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        /* C1 controls are two bytes in UTF-8: 0xc2 and 0x80 to 0x9f. */
        bool c1 = c >= 0x80 && c <= 0x9f && i && (unsigned char)text[i - 1] == 0xc2;
        if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
            text[i] = '?';
        if (c1)
            text[i - 1] = text[i] = '?';
    }
}
