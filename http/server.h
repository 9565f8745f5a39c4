/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_SERVER_H
#define KVFERRY_HTTP_SERVER_H

/*
 * An HTTP/1.1 server on the caller's event_base, in the one thread that runs that base.
 *
 * It stands on libevent's bufferevents and not on evhttp: evhttp (2.1) stops reading while a
 * request is answered, so it does not see a client leave, ends the process when reading is
 * switched on and the client sends one more byte, and answers malformed requests in HTML.
 *
 * Everything here is called on the thread that runs the base, unless a comment says otherwise.
 */

#include "http/message.h"
#include "kvferry/status.h"

#include <stdint.h>

struct event_base;
struct kvfi_http_server;
struct kvfi_reply;

struct kvfi_http_server_options {
    const char *host;            /* address or name to listen on; NULL is 127.0.0.1 */
    uint16_t port;               /* 0: the kernel picks, see kvfi_http_server_port */
    size_t head_bytes_max;       /* request line and headers; more is answered 431 */
    size_t body_bytes_max;       /* more is answered 413 */
    size_t output_bytes_max;     /* unsent bytes of a streamed reply; more drops the client */
    size_t connection_count_max; /* more are answered 503 at once */
    uint32_t read_timeout_ms;    /* head in full, and each pause inside the body; then 408 */
    uint32_t idle_timeout_ms;    /* kept-alive connection without a request: closed */
    uint32_t write_timeout_ms;   /* client that takes no byte of a waiting reply: dropped */
    size_t mail_count_max;       /* queue of kvfi_reply_post_*; 0: posting is not used */
};

/* 127.0.0.1, port 0, 32 KiB head, 16 MiB body, 4 MiB output, 1024 connections, 30 s read, 75 s
 * idle, 30 s write, 4096 mails. */
struct kvfi_http_server_options kvfi_http_server_defaults(void);

/* What a handler gets to see. Everything belongs to the server and ends when the handler returns;
 * the reply lives on (http/reply.h). */
struct kvfi_http_request {
    const char *method;
    const char *path;  /* without the query, not percent-decoded */
    const char *query; /* "" when absent */
    const struct kvfi_http_headers *headers;
    const char *body; /* never NULL, always terminated, may hold NUL bytes */
    size_t body_len;
    const char *peer; /* "address:port" of the client */
};

/* Answers through `reply` at once or later; each reply must end (http/reply.h). */
typedef void (*kvfi_http_handler_fn)(void *ctx, const struct kvfi_http_request *request,
                                     struct kvfi_reply *reply);

struct kvfi_http_server_counters {
    uint64_t accepted_count;
    uint64_t open_count;
    uint64_t request_count;
    uint64_t reply_2xx_count;
    uint64_t reply_4xx_count;
    uint64_t reply_5xx_count;
    uint64_t malformed_count; /* not HTTP, or over a limit */
    uint64_t timeout_count;   /* clients that sent nothing, or stopped half-way */
    uint64_t gone_count;      /* clients that left before their reply ended */
    uint64_t slow_count;      /* clients dropped because they did not read */
    uint64_t refused_count;   /* connections over connection_count_max */
    uint64_t stale_count;     /* posted mails whose reply had already ended */
};

/* Binds, listens and starts to accept. KVF_EINVAL for a name that does not resolve, KVF_EBUSY for
 * a port in use (the text names host:port and --port), KVF_ESYSTEM otherwise. Blocks only to
 * resolve a host name. The caller owns the server; base is borrowed until destroy. */
KVF_MUST_USE enum kvf_status kvfi_http_server_create(struct event_base *base,
                                                     const struct kvfi_http_server_options *options,
                                                     struct kvfi_http_server **server_p,
                                                     struct kvf_error *error);

/* Drops every connection (replies under way end with KVFI_REPLY_CLOSED, inside this call) and
 * frees the server. Posting threads must have stopped. NULL is allowed. */
void kvfi_http_server_destroy(struct kvfi_http_server *server);

/* Calls handler for each request with this method and path; the strings are copied. A GET route
 * also answers HEAD. Another method on a known path gets 405, an unknown path 404. */
KVF_MUST_USE enum kvf_status kvfi_http_server_route(struct kvfi_http_server *server,
                                                    const char *method, const char *path,
                                                    kvfi_http_handler_fn handler, void *ctx);

/* Closes the listening socket; connections under way go on, kept-alive ones end. */
void kvfi_http_server_stop_accepting(struct kvfi_http_server *server);

/* The port that is listened on, also when 0 was asked for. */
uint16_t kvfi_http_server_port(const struct kvfi_http_server *server);

const struct kvfi_http_server_counters *
kvfi_http_server_counters(const struct kvfi_http_server *server);

#endif
