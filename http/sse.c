/* SPDX-License-Identifier: Apache-2.0 */
#include "http/sse.h"

#include <stdlib.h>
#include <string.h>

void kvfi_sse_parser_init(struct kvfi_sse_parser *parser, size_t event_bytes_max,
                          kvfi_sse_event_fn on_event, void *ctx)
{
    memset(parser, 0, sizeof(*parser));
    parser->event_bytes_max = event_bytes_max;
    parser->on_event = on_event;
    parser->ctx = ctx;
    parser->first_line = true;
}

void kvfi_sse_parser_reset(struct kvfi_sse_parser *parser)
{
    free(parser->line);
    free(parser->data);
    kvfi_sse_parser_init(parser, parser->event_bytes_max, parser->on_event, parser->ctx);
}

/* Appends to one of the two bounded buffers and keeps it terminated. */
static enum kvf_status append(const struct kvfi_sse_parser *parser, char **buffer_p, size_t *len_p,
                              size_t *cap_p, const char *data, size_t len, struct kvf_error *error)
{
    if (len > parser->event_bytes_max || *len_p > parser->event_bytes_max - len)
        return kvf_fail(error, KVF_ELIMIT, "an event of the stream is larger than %zu bytes",
                        parser->event_bytes_max);
    size_t need = *len_p + len + 1;
    if (need > *cap_p) {
        size_t cap = *cap_p ? *cap_p * 2 : 256;
        if (cap < need)
            cap = need;
        char *buffer = realloc(*buffer_p, cap);
        if (!buffer)
            return kvf_fail(error, KVF_ENOMEM, "no memory for an event of %zu bytes", need);
        *buffer_p = buffer;
        *cap_p = cap;
    }
    if (len)
        memcpy(*buffer_p + *len_p, data, len);
    *len_p += len;
    (*buffer_p)[*len_p] = '\0';
    return KVF_OK;
}

static void dispatch(struct kvfi_sse_parser *parser)
{
    if (parser->data_seen)
        parser->on_event(parser->ctx, parser->name[0] ? parser->name : "message", parser->data,
                         parser->data_len);
    parser->data_seen = false;
    parser->data_len = 0;
    parser->name[0] = '\0';
}

static enum kvf_status field(struct kvfi_sse_parser *parser, const char *line, size_t len,
                             struct kvf_error *error)
{
    const char *colon = memchr(line, ':', len);
    size_t name_len = colon ? (size_t)(colon - line) : len;
    const char *value = colon ? colon + 1 : line + len;
    size_t value_len = len - (size_t)(value - line);
    if (value_len && value[0] == ' ') {
        value++;
        value_len--;
    }
    if (name_len == 4 && memcmp(line, "data", 4) == 0) {
        if (parser->data_seen)
            KVF_TRY(append(parser, &parser->data, &parser->data_len, &parser->data_cap, "\n", 1,
                           error));
        KVF_TRY(append(parser, &parser->data, &parser->data_len, &parser->data_cap, value,
                       value_len, error));
        parser->data_seen = true;
    } else if (name_len == 5 && memcmp(line, "event", 5) == 0) {
        size_t kept = value_len < sizeof(parser->name) ? value_len : sizeof(parser->name) - 1;
        memcpy(parser->name, value, kept);
        parser->name[kept] = '\0';
    }
    return KVF_OK;
}

static enum kvf_status end_line(struct kvfi_sse_parser *parser, struct kvf_error *error)
{
    const char *line = parser->line ? parser->line : "";
    size_t len = parser->line_len;
    if (parser->first_line && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        len -= 3;
    }
    parser->first_line = false;
    parser->line_len = 0;
    if (!len) {
        dispatch(parser);
        return KVF_OK;
    }
    return field(parser, line, len, error);
}

enum kvf_status kvfi_sse_parser_feed(struct kvfi_sse_parser *parser, const char *data, size_t len,
                                     struct kvf_error *error)
{
    size_t at = 0;
    while (at < len) {
        if (parser->skip_lf && data[at] == '\n') {
            parser->skip_lf = false;
            at++;
            continue;
        }
        parser->skip_lf = false;
        size_t end = at;
        while (end < len && data[end] != '\n' && data[end] != '\r')
            end++;
        KVF_TRY(append(parser, &parser->line, &parser->line_len, &parser->line_cap, data + at,
                       end - at, error));
        if (end == len)
            return KVF_OK;
        parser->skip_lf = data[end] == '\r';
        at = end + 1;
        KVF_TRY(end_line(parser, error));
    }
    return KVF_OK;
}
