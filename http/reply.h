/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_REPLY_H
#define KVFERRY_HTTP_REPLY_H

/*
 * The answer to one request.
 *
 * The server makes a reply when it calls a handler. It is answered in one of two ways:
 *   whole     kvfi_reply_json, kvfi_reply_error, kvfi_reply_bytes
 *   streamed  kvfi_reply_start (or kvfi_reply_sse_start), any number of kvfi_reply_write (or
 *             kvfi_reply_sse_event), then kvfi_reply_end (or kvfi_reply_sse_done); or
 *             kvfi_reply_abort, which closes the connection so that the client sees a cut.
 * Answering ends the handler's use of the pointer: after a whole reply, end, done or abort it must
 * not be used again. While a reply is open the pointer stays valid until the on_end callback ran,
 * also when the client has left; what is written to a client that has left is dropped.
 *
 * Another thread never touches a struct kvfi_reply: it keeps the id and posts (end of this file).
 */

#include "kvferry/status.h"

#include <jansson.h>

#include <stdint.h>

struct kvfi_http_server;
struct kvfi_reply;

enum kvfi_reply_end {
    KVFI_REPLY_SENT,    /* everything was handed to the kernel */
    KVFI_REPLY_GONE,    /* the client closed or reset the connection */
    KVFI_REPLY_SLOW,    /* the client did not read and was dropped */
    KVFI_REPLY_ABORTED, /* kvfi_reply_cut, kvfi_reply_abort */
    KVFI_REPLY_CLOSED,  /* the server was destroyed */
};

const char *kvfi_reply_end_name(enum kvfi_reply_end end);

/* Called exactly once for a reply it was set on, on the http thread, from the event loop or from
 * kvfi_http_server_destroy and never inside another kvfi_reply_ call. The reply is freed when it
 * returns. With GONE, SLOW and CLOSED the handler may still hold an open reply: that use ends
 * here. */
typedef void (*kvfi_reply_end_fn)(void *ctx, enum kvfi_reply_end end);

/* Sets (or replaces) the callback. Handlers that answer later set it before they return. */
void kvfi_reply_on_end(struct kvfi_reply *reply, kvfi_reply_end_fn on_end, void *ctx);

/* Never reused during the life of the server. */
uint64_t kvfi_reply_id(const struct kvfi_reply *reply);

/* Adds a header to an answer that has not begun. Name and value are copied. KVF_EINVAL when one
 * of them holds a control character or the answer has begun. */
KVF_MUST_USE enum kvf_status kvfi_reply_header(struct kvfi_reply *reply, const char *name,
                                               const char *value);

/* True once the status line was written. True also for a client that has left. */
bool kvfi_reply_begun(const struct kvfi_reply *reply);

/* Whole replies. None of them can fail for the caller: when memory runs out or the client has
 * left, the connection is closed and on_end says so. */
void kvfi_reply_bytes(struct kvfi_reply *reply, int http_status, const char *content_type,
                      const void *data, size_t len);
/* Borrows body. */
void kvfi_reply_json(struct kvfi_reply *reply, int http_status, const json_t *body);
/* {"error":{"message":...,"type":...,"code":http_status}}; type NULL is the usual one of the
 * status. */
void kvfi_reply_error(struct kvfi_reply *reply, int http_status, const char *type, const char *fmt,
                      ...) KVF_PRINTF(4, 5);

/* Streamed replies. KVF_EDISCONNECTED: the client has left or was dropped for not reading (on_end
 * follows or has run); the caller may stop producing. */
KVF_MUST_USE enum kvf_status kvfi_reply_start(struct kvfi_reply *reply, int http_status,
                                              const char *content_type);
KVF_MUST_USE enum kvf_status kvfi_reply_write(struct kvfi_reply *reply, const void *data,
                                              size_t len);
void kvfi_reply_end(struct kvfi_reply *reply);
/* Sends what was written and then closes without an end, so that the client sees that the answer
 * is not whole. on_end gets KVFI_REPLY_ABORTED. */
void kvfi_reply_cut(struct kvfi_reply *reply);
/* Closes at once; what was not sent yet is lost. */
void kvfi_reply_abort(struct kvfi_reply *reply);

/* Server-sent events: status 200, text/event-stream. data is one line of text (JSON without line
 * breaks): it goes out as "data: <data>\n\n". done sends "data: [DONE]\n\n" and ends. */
KVF_MUST_USE enum kvf_status kvfi_reply_sse_start(struct kvfi_reply *reply);
KVF_MUST_USE enum kvf_status kvfi_reply_sse_event(struct kvfi_reply *reply, const char *data,
                                                  size_t len);
KVF_MUST_USE enum kvf_status kvfi_reply_sse_json(struct kvfi_reply *reply, const json_t *event);
void kvfi_reply_sse_done(struct kvfi_reply *reply);

/* The reply of an id on the http thread; NULL when it has ended. */
struct kvfi_reply *kvfi_reply_find(struct kvfi_http_server *server, uint64_t id);

/*
 * From any thread: the same steps, carried out by the http thread in the order in which one thread
 * posted them. Data is copied. KVF_AGAIN: the server's mailbox (mail_count_max) is full, nothing
 * was queued, post again later. KVF_ENOMEM. KVF_ECLOSED: the server is going away. A mail whose
 * reply has ended in the meantime is dropped and counted: that is not an error.
 */
KVF_MUST_USE enum kvf_status kvfi_reply_post_bytes(struct kvfi_http_server *server, uint64_t id,
                                                   int http_status, const char *content_type,
                                                   const void *data, size_t len);
KVF_MUST_USE enum kvf_status kvfi_reply_post_error(struct kvfi_http_server *server, uint64_t id,
                                                   int http_status, const char *message);
/* The first event also starts the stream. */
KVF_MUST_USE enum kvf_status kvfi_reply_post_sse_event(struct kvfi_http_server *server, uint64_t id,
                                                       const char *data, size_t len);
KVF_MUST_USE enum kvf_status kvfi_reply_post_sse_done(struct kvfi_http_server *server, uint64_t id);
KVF_MUST_USE enum kvf_status kvfi_reply_post_abort(struct kvfi_http_server *server, uint64_t id);

/* {"error":{"message":message,"type":type or the usual one,"code":http_status}}: new reference,
 * NULL when memory runs out. Any thread. */
json_t *kvfi_http_error_json(int http_status, const char *type, const char *message);

#endif
