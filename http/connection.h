/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_CONNECTION_H
#define KVFERRY_HTTP_CONNECTION_H

/*
 * What server.c, connection.c and reply.c share; nobody else includes it.
 *
 * A connection serves one request at a time: idle -> reading -> answering -> idle, or lingering
 * before it is closed. Whatever happens inside a kvfi_reply_ call is only noted here and carried
 * out by the connection's kick event, so that on_end never runs inside such a call.
 */

#include "http/mailbox.h"
#include "http/message.h"
#include "http/reply.h"
#include "http/server.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

enum kvfi_connection_phase {
    KVFI_CONNECTION_IDLE,      /* kept alive, no byte of a request yet */
    KVFI_CONNECTION_READING,   /* new, or inside a request */
    KVFI_CONNECTION_ANSWERING, /* a handler has the reply, or its bytes are on their way */
    KVFI_CONNECTION_LINGERING, /* last bytes sent; reads on so that they are not lost by a reset */
};

struct kvfi_reply {
    struct kvfi_connection *connection;
    uint64_t id;
    kvfi_reply_end_fn on_end;
    void *on_end_ctx;
    char *headers; /* lines added by kvfi_reply_header */
    size_t headers_len;
    bool begun;
    bool ended; /* the handler has no more to say */
    bool cut;   /* ended without its end */
    bool chunked;
    bool without_body; /* answer to HEAD */
};

struct kvfi_connection {
    struct kvfi_http_server *server;
    size_t slot;
    struct bufferevent *bev;
    struct event *deadline;
    struct event *kick;
    enum kvfi_connection_phase phase;
    struct kvfi_http_parser parser;
    char *body; /* of the request; freed when the handler has returned */
    size_t body_len;
    size_t body_cap;
    struct kvfi_reply reply; /* in use while answering */
    bool reply_open;
    bool keep_alive;
    bool drop; /* by the next kick, for drop_reason */
    enum kvfi_reply_end drop_reason;
    char peer[80];
};

struct kvfi_route {
    char *method;
    char *path;
    kvfi_http_handler_fn handler;
    void *ctx;
};

struct kvfi_http_server {
    struct event_base *base;
    struct kvfi_http_server_options options;
    struct evconnlistener *listener;
    struct event *accept_again;
    uint16_t port;
    bool stopping;
    struct kvfi_route *routes;
    size_t route_count;
    struct kvfi_connection **slots; /* connection_count_max entries */
    uint64_t reply_sequence;
    struct kvfi_mailbox *mailbox;
    struct kvfi_http_server_counters counters;
};

/* Takes over an accepted socket; closes it when it cannot. */
void kvfi_connection_open(struct kvfi_http_server *server, evutil_socket_t fd,
                          const struct sockaddr *address, int address_len);
/* Ends the reply under way with this reason and frees the connection. */
void kvfi_connection_close(struct kvfi_connection *connection, enum kvfi_reply_end reason);
/* Notes that the connection must go; the kick event does it. */
void kvfi_connection_drop_later(struct kvfi_connection *connection, enum kvfi_reply_end reason);
/* Has the kick event look at the connection: a reply may be complete. */
void kvfi_connection_kick(struct kvfi_connection *connection);

/* The route of a request: NULL with *known_path_p telling 405 from 404. */
const struct kvfi_route *kvfi_route_find(const struct kvfi_http_server *server, const char *method,
                                         const char *path, bool *known_path_p);

/* One mail of kvfi_reply_post_*; takes what it owns. */
void kvfi_reply_deliver(void *ctx, void *item);
void kvfi_reply_drop_mail(void *ctx, void *item);
size_t kvfi_reply_mail_bytes(void);

/* Frees what a reply holds. */
void kvfi_reply_clear(struct kvfi_reply *reply);

#endif
