/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_CLIENT_H
#define KVFERRY_HTTP_CLIENT_H

/*
 * Asynchronous HTTP/1.1 requests on the caller's event_base. One call is one connection: to cancel
 * is to close it, so the other side notices at once.
 *
 * It stands on bufferevents and not on evhttp's client, which cannot be cancelled inside its own
 * callbacks and takes a chunked body that was cut for a complete one.
 *
 * Everything here is called on the thread that runs the base.
 */

#include "http/message.h"
#include "kvferry/status.h"

#include <stdint.h>

struct event_base;
struct kvfi_http_client;
struct kvfi_http_call;

/* "http://host:port/path": the parts. */
struct kvfi_http_url {
    char host[256];
    uint16_t port;
    char path[512]; /* "" or begins with '/', no trailing '/' */
};

/* http only; port defaults to 80; IPv6 addresses in brackets. KVF_EINVAL names the text. */
KVF_MUST_USE enum kvf_status kvfi_http_url_parse(const char *text, struct kvfi_http_url *url_p,
                                                 struct kvf_error *error);

struct kvfi_http_result {
    enum kvf_status status; /* KVF_OK: the response is complete, whatever its http_status.
                             * KVF_ECANCELED, KVF_ETIMEDOUT, KVF_EDISCONNECTED (refused, reset,
                             * cut), KVF_EFORMAT, KVF_ELIMIT, KVF_ENOMEM, KVF_ESYSTEM */
    int http_status;        /* 0 when no head came */
    bool connected;         /* false: refused, unreachable, unknown name, or no answer to connect */
    bool head_seen;
    uint64_t body_bytes;
    const char *reason; /* a sentence for a person; "" on KVF_OK; borrowed during the call */
};

/* All three may be NULL but on_done. on_head and on_body may cancel the call. on_done comes exactly
 * once for each started call, from the event loop (or kvfi_http_client_destroy) and never inside
 * kvfi_http_call_start or kvfi_http_call_cancel; the call is freed when it returns. After a cancel
 * nothing but on_done comes. */
struct kvfi_http_call_events {
    void (*on_head)(void *ctx, int http_status, const struct kvfi_http_headers *headers);
    void (*on_body)(void *ctx, const char *data, size_t len);
    void (*on_done)(void *ctx, const struct kvfi_http_result *result);
    void *ctx;
};

/* Everything is copied by kvfi_http_call_start. */
struct kvfi_http_call_options {
    const char *host;
    uint16_t port;
    const char *method;
    const char *path;
    const char *content_type; /* of the body; NULL when there is none */
    const void *body;
    size_t body_len;
    const struct kvfi_http_header *headers; /* further ones */
    size_t header_count;
    uint32_t connect_timeout_ms; /* 0: 5 s */
    uint32_t head_timeout_ms;    /* from connected to the response head; 0: none */
    uint32_t body_timeout_ms;    /* longest pause between two pieces of the body; 0: none */
    uint64_t body_bytes_max;     /* of the response; 0: none */
};

/* A client holds the calls under way and the resolver. The caller owns it. */
KVF_MUST_USE enum kvf_status kvfi_http_client_create(struct event_base *base,
                                                     struct kvfi_http_client **client_p,
                                                     struct kvf_error *error);
/* Ends every call (on_done with KVF_ECANCELED, inside this call) and frees the client. */
void kvfi_http_client_destroy(struct kvfi_http_client *client);

/* Starts a call; KVF_OK means that on_done will come. The call belongs to the client; the pointer
 * is valid until on_done has returned. Never blocks (names are resolved asynchronously). */
KVF_MUST_USE enum kvf_status kvfi_http_call_start(struct kvfi_http_client *client,
                                                  const struct kvfi_http_call_options *options,
                                                  const struct kvfi_http_call_events *events,
                                                  struct kvfi_http_call **call_p,
                                                  struct kvf_error *error);

/* Closes the connection now; on_done(KVF_ECANCELED) follows. Allowed inside every callback of the
 * call; in on_done and on a call that is already ending it does nothing. */
void kvfi_http_call_cancel(struct kvfi_http_call *call);

/* Calls under way. */
size_t kvfi_http_client_call_count(const struct kvfi_http_client *client);

#endif
