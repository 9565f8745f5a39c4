/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connection.h"

#include <event2/buffer.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

enum {
    INPUT_BYTES_MAX = 256 * 1024,    /* read ahead of the parser */
    PIPELINED_BYTES_MAX = 64 * 1024, /* sent by a client that has not got its answer yet */
    LINGER_MS = 2000,
};

static void set_deadline(struct kvfi_connection *connection, uint32_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    event_add(connection->deadline, &tv);
}

void kvfi_connection_kick(struct kvfi_connection *connection)
{
    event_active(connection->kick, EV_TIMEOUT, 0);
}

void kvfi_connection_drop_later(struct kvfi_connection *connection, enum kvfi_reply_end reason)
{
    if (!connection->drop) {
        connection->drop = true;
        connection->drop_reason = reason;
    }
    bufferevent_disable(connection->bev, EV_READ | EV_WRITE);
    kvfi_connection_kick(connection);
}

/* Runs on_end, exactly once for a reply. */
static void end_reply(struct kvfi_connection *connection, enum kvfi_reply_end reason)
{
    if (!connection->reply_open)
        return;
    struct kvfi_http_server_counters *counters = &connection->server->counters;
    if (reason == KVFI_REPLY_GONE)
        counters->gone_count++;
    if (reason == KVFI_REPLY_SLOW)
        counters->slow_count++;
    struct kvfi_reply *reply = &connection->reply;
    kvfi_reply_end_fn on_end = reply->on_end;
    reply->on_end = NULL;
    if (on_end)
        on_end(reply->on_end_ctx, reason);
    connection->reply_open = false;
    kvfi_reply_clear(reply);
}

void kvfi_connection_close(struct kvfi_connection *connection, enum kvfi_reply_end reason)
{
    struct kvfi_http_server *server = connection->server;
    connection->drop = true;
    end_reply(connection, reason);
    server->slots[connection->slot] = NULL;
    server->counters.open_count--;
    event_free(connection->kick);
    event_free(connection->deadline);
    bufferevent_free(connection->bev);
    kvfi_http_parser_reset(&connection->parser);
    free(connection->body);
    free(connection);
}

static void forget_body(struct kvfi_connection *connection)
{
    free(connection->body);
    connection->body = NULL;
    connection->body_len = 0;
    connection->body_cap = 0;
}

/* All bytes of the last reply are out: a FIN, then what the client still sends is read over for a
 * moment, because closing with unread input resets the connection and may lose the reply. */
static void linger(struct kvfi_connection *connection)
{
    connection->phase = KVFI_CONNECTION_LINGERING;
    shutdown(bufferevent_getfd(connection->bev), SHUT_WR);
    evbuffer_drain(bufferevent_get_input(connection->bev), SIZE_MAX);
    bufferevent_enable(connection->bev, EV_READ);
    set_deadline(connection, LINGER_MS);
}

/* Opens the reply of a request that is answered by the server itself or by a handler. */
static struct kvfi_reply *open_reply(struct kvfi_connection *connection)
{
    struct kvfi_http_server *server = connection->server;
    memset(&connection->reply, 0, sizeof(connection->reply));
    connection->reply.connection = connection;
    connection->reply.id = ++server->reply_sequence * server->options.connection_count_max +
                           (uint64_t)connection->slot;
    connection->reply_open = true;
    connection->phase = KVFI_CONNECTION_ANSWERING;
    event_del(connection->deadline);
    return &connection->reply;
}

/* Answers what is not a request and closes afterwards. */
static void refuse(struct kvfi_connection *connection, int http_status, const char *text)
{
    connection->keep_alive = false;
    forget_body(connection);
    kvfi_reply_error(open_reply(connection), http_status, NULL, "%s", text);
}

static void answer_no_route(const struct kvfi_connection *connection, struct kvfi_reply *reply,
                            const char *path, bool known_path)
{
    if (!known_path) {
        kvfi_reply_error(reply, 404, NULL, "no such path: %.200s", path);
        return;
    }
    const struct kvfi_http_server *server = connection->server;
    char allow[128] = "";
    size_t len = 0;
    for (size_t i = 0; i < server->route_count; i++)
        if (strcmp(server->routes[i].path, path) == 0 && len < sizeof(allow))
            len += (size_t)snprintf(allow + len, sizeof(allow) - len, "%s%s", len ? ", " : "",
                                    server->routes[i].method);
    if (kvfi_reply_header(reply, "Allow", allow) != KVF_OK) {
        kvfi_reply_error(reply, 503, NULL, "no memory for an answer");
        return;
    }
    kvfi_reply_error(reply, 405, NULL, "%.200s takes %s, not %.20s", path, allow,
                     connection->parser.method);
}

static void dispatch(struct kvfi_connection *connection)
{
    struct kvfi_http_server *server = connection->server;
    struct kvfi_http_parser *parser = &connection->parser;
    server->counters.request_count++;
    struct kvfi_reply *reply = open_reply(connection);
    char *query = strchr(parser->target, '?');
    if (query)
        *query++ = '\0';
    connection->keep_alive = parser->keep_alive && !server->stopping;
    reply->chunked = parser->minor_version >= 1;
    reply->without_body = strcmp(parser->method, "HEAD") == 0;
    bool known_path = false;
    const struct kvfi_route *route =
        kvfi_route_find(server, parser->method, parser->target, &known_path);
    if (!route) {
        answer_no_route(connection, reply, parser->target, known_path);
    } else {
        struct kvfi_http_request request = {
            .method = parser->method,
            .path = parser->target,
            .query = query ? query : "",
            .headers = &parser->headers,
            .body = connection->body ? connection->body : "",
            .body_len = connection->body_len,
            .peer = connection->peer,
        };
        route->handler(route->ctx, &request, reply);
    }
    forget_body(connection);
    kvfi_http_parser_reset(parser);
}

static bool keep_body(struct kvfi_connection *connection, const char *data, size_t len)
{
    size_t max = connection->server->options.body_bytes_max;
    if (len > max - connection->body_len) {
        char text[128];
        snprintf(text, sizeof(text), "the request body is larger than %zu bytes", max);
        connection->server->counters.malformed_count++;
        refuse(connection, 413, text);
        return false;
    }
    size_t need = connection->body_len + len + 1;
    if (need > connection->body_cap) {
        size_t cap = connection->body_cap ? connection->body_cap * 2 : 4096;
        if (cap < need)
            cap = need;
        char *body = realloc(connection->body, cap);
        if (!body) {
            refuse(connection, 503, "no memory for the request body");
            return false;
        }
        connection->body = body;
        connection->body_cap = cap;
    }
    memcpy(connection->body + connection->body_len, data, len);
    connection->body_len += len;
    connection->body[connection->body_len] = '\0';
    return true;
}

static bool head_seen(struct kvfi_connection *connection)
{
    struct kvfi_http_parser *parser = &connection->parser;
    size_t max = connection->server->options.body_bytes_max;
    if (parser->framing == KVFI_HTTP_BY_LENGTH && parser->content_length > max) {
        char text[128];
        snprintf(text, sizeof(text), "the request body has %llu bytes, at most %zu are taken",
                 (unsigned long long)parser->content_length, max);
        connection->server->counters.malformed_count++;
        refuse(connection, 413, text);
        return false;
    }
    set_deadline(connection, connection->server->options.read_timeout_ms);
    if (parser->framing != KVFI_HTTP_NO_BODY && parser->minor_version >= 1 &&
        kvfi_http_headers_has_token(&parser->headers, "expect", "100-continue")) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        bufferevent_write(connection->bev, go_on, sizeof(go_on) - 1);
    }
    return true;
}

/* One piece of input; false when there is nothing more to do now. */
static bool read_piece(struct kvfi_connection *connection, struct evbuffer *input)
{
    struct evbuffer_iovec span = {0};
    if (evbuffer_peek(input, -1, NULL, &span, 1) < 1)
        span.iov_len = 0;
    struct kvfi_http_piece piece;
    struct kvf_error error = {0};
    size_t consumed = 0;
    if (kvfi_http_parser_next(&connection->parser, span.iov_base, span.iov_len, &consumed, &piece,
                              &error) != KVF_OK) {
        connection->server->counters.malformed_count++;
        refuse(connection, connection->parser.refuse_status, error.text);
        return false;
    }
    bool more = consumed > 0;
    switch (piece.kind) {
    case KVFI_HTTP_MORE:
        break;
    case KVFI_HTTP_HEAD:
        more = head_seen(connection);
        break;
    case KVFI_HTTP_BODY:
        set_deadline(connection, connection->server->options.read_timeout_ms);
        more = keep_body(connection, piece.data, piece.len);
        break;
    case KVFI_HTTP_END:
        evbuffer_drain(input, consumed);
        dispatch(connection);
        return false;
    }
    evbuffer_drain(input, consumed);
    return more;
}

static void on_read(struct bufferevent *bev, void *ctx)
{
    struct kvfi_connection *connection = ctx;
    struct evbuffer *input = bufferevent_get_input(bev);
    if (connection->drop)
        return;
    bool answering = connection->phase == KVFI_CONNECTION_ANSWERING;
    if (connection->phase == KVFI_CONNECTION_LINGERING || (answering && !connection->keep_alive)) {
        evbuffer_drain(input, SIZE_MAX);
        return;
    }
    if (answering) {
        if (evbuffer_get_length(input) > PIPELINED_BYTES_MAX) {
            connection->server->counters.malformed_count++;
            kvfi_connection_drop_later(connection, KVFI_REPLY_GONE);
        }
        return;
    }
    if (connection->phase == KVFI_CONNECTION_IDLE && evbuffer_get_length(input)) {
        connection->phase = KVFI_CONNECTION_READING;
        set_deadline(connection, connection->server->options.read_timeout_ms);
    }
    while (connection->phase == KVFI_CONNECTION_READING && read_piece(connection, input))
        ;
}

/* The reply's last byte has left: the next request, or the end of the connection. */
static void reply_sent(struct kvfi_connection *connection)
{
    end_reply(connection, connection->reply.cut ? KVFI_REPLY_ABORTED : KVFI_REPLY_SENT);
    if (!connection->keep_alive) {
        linger(connection);
        return;
    }
    kvfi_http_parser_reset(&connection->parser);
    connection->phase = KVFI_CONNECTION_IDLE;
    set_deadline(connection, connection->server->options.idle_timeout_ms);
    on_read(connection->bev, connection);
}

static void on_kick(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_connection *connection = ctx;
    if (connection->drop) {
        kvfi_connection_close(connection, connection->drop_reason);
        return;
    }
    if (connection->phase == KVFI_CONNECTION_ANSWERING && connection->reply_open &&
        connection->reply.ended &&
        evbuffer_get_length(bufferevent_get_output(connection->bev)) == 0)
        reply_sent(connection);
}

static void on_written(struct bufferevent *bev, void *ctx)
{
    on_kick(-1, 0, ctx);
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    struct kvfi_connection *connection = ctx;
    bool slow = (what & BEV_EVENT_TIMEOUT) && (what & BEV_EVENT_WRITING);
    bool half_closed = (what & BEV_EVENT_EOF) && connection->phase == KVFI_CONNECTION_ANSWERING &&
                       connection->reply.ended && !connection->drop;
    if (half_closed) {
        /* It has sent all it had to say and may still read the answer that is on its way. */
        connection->keep_alive = false;
        bufferevent_disable(bev, EV_READ);
        return;
    }
    enum kvfi_reply_end reason = slow ? KVFI_REPLY_SLOW : KVFI_REPLY_GONE;
    kvfi_connection_close(connection, connection->drop ? connection->drop_reason : reason);
}

static void on_deadline(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_connection *connection = ctx;
    if (connection->phase != KVFI_CONNECTION_READING) {
        kvfi_connection_close(connection, KVFI_REPLY_GONE);
        return;
    }
    connection->server->counters.timeout_count++;
    char text[96];
    snprintf(text, sizeof(text), "no complete request within %u ms",
             connection->server->options.read_timeout_ms);
    refuse(connection, 408, text);
}

static void name_peer(struct kvfi_connection *connection, const struct sockaddr *address,
                      int address_len)
{
    char host[64];
    char port[8];
    if (getnameinfo(address, (socklen_t)address_len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(connection->peer, sizeof(connection->peer), "unknown");
    else
        snprintf(connection->peer, sizeof(connection->peer), "%s:%s", host, port);
}

static size_t free_slot(const struct kvfi_http_server *server)
{
    size_t slot = 0;
    while (slot < server->options.connection_count_max && server->slots[slot])
        slot++;
    return slot;
}

void kvfi_connection_open(struct kvfi_http_server *server, evutil_socket_t fd,
                          const struct sockaddr *address, int address_len)
{
    const struct kvfi_http_server_options *options = &server->options;
    size_t slot = free_slot(server);
    struct kvfi_connection *connection = calloc(1, sizeof(*connection));
    if (!connection)
        goto err_close;
    connection->bev = bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!connection->bev)
        goto err_free;
    connection->deadline = evtimer_new(server->base, on_deadline, connection);
    connection->kick = event_new(server->base, -1, 0, on_kick, connection);
    if (!connection->deadline || !connection->kick)
        goto err_events;
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connection->server = server;
    connection->slot = slot;
    connection->phase = KVFI_CONNECTION_READING;
    kvfi_http_parser_init(&connection->parser, KVFI_HTTP_REQUEST, options->head_bytes_max);
    name_peer(connection, address, address_len);
    server->slots[slot] = connection;
    server->counters.accepted_count++;
    server->counters.open_count++;
    struct timeval write_tv = {.tv_sec = options->write_timeout_ms / 1000,
                               .tv_usec = (suseconds_t)(options->write_timeout_ms % 1000) * 1000};
    bufferevent_setcb(connection->bev, on_read, on_written, on_event, connection);
    bufferevent_set_timeouts(connection->bev, NULL, &write_tv);
    bufferevent_setwatermark(connection->bev, EV_READ, 0, INPUT_BYTES_MAX);
    bufferevent_enable(connection->bev, EV_READ | EV_WRITE);
    set_deadline(connection, options->read_timeout_ms);
    return;

err_events:
    if (connection->deadline)
        event_free(connection->deadline);
    if (connection->kick)
        event_free(connection->kick);
    bufferevent_free(connection->bev);
    free(connection);
    return;
err_free:
    free(connection);
err_close:
    evutil_closesocket(fd);
}
