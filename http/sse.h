/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_SSE_H
#define KVFERRY_HTTP_SSE_H

/*
 * Reads a stream of server-sent events: bytes in, events out. Lines may end in LF, CR LF or CR,
 * data lines of one event are joined by LF, comments and unknown fields are skipped. One thread.
 */

#include "kvferry/status.h"

/* One event, borrowed during the call; data is terminated. name is "message" unless the stream
 * says otherwise. */
typedef void (*kvfi_sse_event_fn)(void *ctx, const char *name, const char *data, size_t len);

struct kvfi_sse_parser {
    kvfi_sse_event_fn on_event;
    void *ctx;
    size_t event_bytes_max;

    /* Private. */
    char *line;
    size_t line_len;
    size_t line_cap;
    char *data;
    size_t data_len;
    size_t data_cap;
    bool data_seen;
    bool skip_lf;
    bool first_line;
    char name[64];
};

void kvfi_sse_parser_init(struct kvfi_sse_parser *parser, size_t event_bytes_max,
                          kvfi_sse_event_fn on_event, void *ctx);
void kvfi_sse_parser_reset(struct kvfi_sse_parser *parser);

/* Calls on_event for each event that is now complete. KVF_ELIMIT: an event is larger than
 * event_bytes_max. KVF_ENOMEM. An event that was not closed by an empty line at the end of the
 * stream is dropped, as the specification wants. */
KVF_MUST_USE enum kvf_status kvfi_sse_parser_feed(struct kvfi_sse_parser *parser, const char *data,
                                                  size_t len, struct kvf_error *error);

#endif
