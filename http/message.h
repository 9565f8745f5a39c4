/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_MESSAGE_H
#define KVFERRY_HTTP_MESSAGE_H

/*
 * An incremental HTTP/1.1 parser for both sides: head with bounded size and count, body by
 * content-length, chunked or until the end of the connection. It reads bytes, owns its copies and
 * does no I/O. One thread.
 */

#include "kvferry/status.h"

#include <stdint.h>

enum { KVFI_HTTP_HEADER_COUNT_MAX = 100 };

struct kvfi_http_header {
    const char *name;
    const char *value;
};

struct kvfi_http_headers {
    size_t count;
    struct kvfi_http_header list[KVFI_HTTP_HEADER_COUNT_MAX];
};

/* The value of the first header of that name (case does not matter) or NULL. Borrowed from
 * headers. */
const char *kvfi_http_headers_find(const struct kvfi_http_headers *headers, const char *name);

/* True when a comma-separated header holds the token (case does not matter). */
bool kvfi_http_headers_has_token(const struct kvfi_http_headers *headers, const char *name,
                                 const char *token);

/* The reason phrase of a status, "Unknown" for others. Static text, any thread. */
const char *kvfi_http_reason(int http_status);

enum kvfi_http_side { KVFI_HTTP_REQUEST, KVFI_HTTP_RESPONSE };

enum kvfi_http_piece_kind {
    KVFI_HTTP_MORE, /* all input is used up, feed more */
    KVFI_HTTP_HEAD, /* the head is complete: the fields of the parser are set */
    KVFI_HTTP_BODY, /* piece.data, piece.len: a slice of the input */
    KVFI_HTTP_END,  /* the message is complete; input after it is not touched */
};

struct kvfi_http_piece {
    enum kvfi_http_piece_kind kind;
    const char *data; /* borrowed from the input of this call */
    size_t len;
};

enum kvfi_http_framing {
    KVFI_HTTP_NO_BODY,
    KVFI_HTTP_BY_LENGTH,
    KVFI_HTTP_BY_CHUNKS,
    KVFI_HTTP_BY_CLOSE,
};

struct kvfi_http_parser {
    enum kvfi_http_side side;
    size_t head_bytes_max;

    /* Set by the time KVFI_HTTP_HEAD was returned, valid until reset. */
    char *method;
    char *target;
    int http_status;
    int minor_version;
    bool keep_alive;
    enum kvfi_http_framing framing;
    uint64_t content_length; /* of KVFI_HTTP_BY_LENGTH */
    struct kvfi_http_headers headers;
    int refuse_status; /* after a failure: the status a server answers with (400, 431, ...) */

    /* Private. */
    bool head_response; /* the response to HEAD has no body */
    unsigned phase;
    char *head;
    size_t head_len;
    size_t head_cap;
    uint64_t left;
    char line[128];
    size_t line_len;
    size_t trailer_len;
};

/* Takes no memory. head_bytes_max bounds the first line and headers together. */
void kvfi_http_parser_init(struct kvfi_http_parser *parser, enum kvfi_http_side side,
                           size_t head_bytes_max);
/* Frees what the parser holds; it can be used again for the next message. */
void kvfi_http_parser_reset(struct kvfi_http_parser *parser);

/* Reads up to len bytes and returns the next piece; *consumed_p bytes of data were used.
 * KVF_EFORMAT for malformed input, KVF_ELIMIT for a head over its limits, KVF_ENOTSUP for what is
 * refused on purpose (another version, a transfer coding other than chunked), KVF_ENOMEM. After a
 * failure only reset is allowed. 1xx responses are skipped. */
KVF_MUST_USE enum kvf_status kvfi_http_parser_next(struct kvfi_http_parser *parser,
                                                   const char *data, size_t len, size_t *consumed_p,
                                                   struct kvfi_http_piece *piece,
                                                   struct kvf_error *error);

/* The connection has ended: KVF_OK when the message may end here (it is complete, or its body runs
 * until the connection ends), KVF_EDISCONNECTED with a text that says what was cut otherwise. */
KVF_MUST_USE enum kvf_status kvfi_http_parser_eof(struct kvfi_http_parser *parser,
                                                  struct kvf_error *error);

#endif
