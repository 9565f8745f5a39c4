/* SPDX-License-Identifier: Apache-2.0 */
#include "http/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_BYTES_MAX = 64 * 1024,
    INPUT_BYTES_MAX = 256 * 1024,
    CONNECT_TIMEOUT_MS = 5000,
};

struct kvfi_http_client {
    struct event_base *base;
    struct evdns_base *dns; /* made for the first name that is not an address */
    struct kvfi_http_call *first;
    size_t call_count;
};

struct kvfi_http_call {
    struct kvfi_http_client *client;
    struct kvfi_http_call *prev;
    struct kvfi_http_call *next;
    struct kvfi_http_call_events events;
    struct bufferevent *bev;
    struct event *timer;
    struct event *finish; /* runs on_done outside of everything else */
    struct kvfi_http_parser parser;
    char host[256];
    uint16_t port;
    int family; /* tried for a name: AF_INET, then AF_INET6 */
    uint32_t head_timeout_ms;
    uint32_t body_timeout_ms;
    uint64_t body_bytes_max;
    bool send_failed;
    bool ended; /* the result is decided, only on_done is left */
    struct kvfi_http_result result;
    struct kvf_error error;
};

enum kvf_status kvfi_http_client_create(struct event_base *base, struct kvfi_http_client **client_p,
                                        struct kvf_error *error)
{
    struct kvfi_http_client *client = calloc(1, sizeof(*client));
    if (!client)
        return kvf_fail(error, KVF_ENOMEM, "no memory for an http client");
    /* A server that leaves in the middle of a write is an error of that call only. */
    (void)signal(SIGPIPE, SIG_IGN);
    client->base = base;
    *client_p = client;
    return KVF_OK;
}

static void free_call(struct kvfi_http_call *call)
{
    if (call->bev)
        bufferevent_free(call->bev);
    if (call->timer)
        event_free(call->timer);
    if (call->finish)
        event_free(call->finish);
    kvfi_http_parser_reset(&call->parser);
    free(call);
}

/* Unlinks the call, tells its owner and frees it. */
static void finish_call(struct kvfi_http_call *call)
{
    struct kvfi_http_client *client = call->client;
    if (call->prev)
        call->prev->next = call->next;
    else
        client->first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    client->call_count--;
    call->result.reason = call->error.text;
    call->events.on_done(call->events.ctx, &call->result);
    free_call(call);
}

static void on_finish(evutil_socket_t fd, short what, void *ctx)
{
    finish_call(ctx);
}

/* Decides the result, once, and closes the connection; call->error holds the text. */
static void end_call(struct kvfi_http_call *call, enum kvf_status status)
{
    if (call->ended)
        return;
    call->ended = true;
    call->result.status = status;
    if (status == KVF_OK)
        call->error.text[0] = '\0';
    bufferevent_disable(call->bev, EV_READ | EV_WRITE);
    evutil_socket_t fd = bufferevent_getfd(call->bev);
    if (fd >= 0)
        shutdown(fd, SHUT_RDWR);
    event_del(call->timer);
    event_active(call->finish, EV_TIMEOUT, 0);
}

void kvfi_http_call_cancel(struct kvfi_http_call *call)
{
    if (call->ended)
        return;
    end_call(call, kvf_fail(&call->error, KVF_ECANCELED, "cancelled"));
}

void kvfi_http_client_destroy(struct kvfi_http_client *client)
{
    if (!client)
        return;
    while (client->first) {
        struct kvfi_http_call *call = client->first;
        /* The analyzer allows for a call that is its own successor. */
        kvfi_http_call_cancel(call); /* NOLINT(clang-analyzer-unix.Malloc) */
        event_del(call->finish);
        finish_call(call);
    }
    if (client->dns)
        evdns_base_free(client->dns, 1);
    free(client);
}

size_t kvfi_http_client_call_count(const struct kvfi_http_client *client)
{
    return client->call_count;
}

static void arm(struct kvfi_http_call *call, uint32_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    if (ms)
        event_add(call->timer, &tv);
    else
        event_del(call->timer);
}

static void on_timer(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_http_call *call = ctx;
    const char *stage = !call->result.connected   ? "the connection was not accepted"
                        : !call->result.head_seen ? "no answer"
                                                  : "the answer stopped";
    end_call(call, kvf_fail(&call->error, KVF_ETIMEDOUT, "%s:%u: %s within the time allowed",
                            call->host, call->port, stage));
}

/* One piece of the response; false when there is nothing more to do now. */
static bool read_piece(struct kvfi_http_call *call, struct evbuffer *input)
{
    struct evbuffer_iovec span = {0};
    if (evbuffer_peek(input, -1, NULL, &span, 1) < 1)
        span.iov_len = 0;
    struct kvfi_http_piece piece;
    struct kvf_error error = {0};
    size_t consumed = 0;
    enum kvf_status status = kvfi_http_parser_next(&call->parser, span.iov_base, span.iov_len,
                                                   &consumed, &piece, &error);
    if (status != KVF_OK) {
        end_call(call, kvf_fail(&call->error, status, "%s:%u: malformed answer: %.300s", call->host,
                                call->port, error.text));
        return false;
    }
    bool more = consumed > 0;
    switch (piece.kind) {
    case KVFI_HTTP_MORE:
        break;
    case KVFI_HTTP_HEAD:
        call->result.http_status = call->parser.http_status;
        call->result.head_seen = true;
        arm(call, call->body_timeout_ms);
        if (call->events.on_head)
            call->events.on_head(call->events.ctx, call->parser.http_status, &call->parser.headers);
        break;
    case KVFI_HTTP_BODY:
        call->result.body_bytes += piece.len;
        arm(call, call->body_timeout_ms);
        if (call->body_bytes_max && call->result.body_bytes > call->body_bytes_max)
            end_call(call, kvf_fail(&call->error, KVF_ELIMIT,
                                    "%s:%u: the answer is larger than %llu bytes", call->host,
                                    call->port, (unsigned long long)call->body_bytes_max));
        else if (call->events.on_body)
            call->events.on_body(call->events.ctx, piece.data, piece.len);
        break;
    case KVFI_HTTP_END:
        end_call(call, KVF_OK);
        return false;
    }
    evbuffer_drain(input, consumed);
    return more && !call->ended;
}

static void on_read(struct bufferevent *bev, void *ctx)
{
    struct kvfi_http_call *call = ctx;
    struct evbuffer *input = bufferevent_get_input(bev);
    while (!call->ended && read_piece(call, input))
        ;
}

static void connect_by_name(struct kvfi_http_call *call)
{
    struct kvfi_http_client *client = call->client;
    if (!client->dns)
        client->dns = evdns_base_new(client->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                                       EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    /* Without a resolver configuration libevent asks the C library, which may block. */
    if (bufferevent_socket_connect_hostname(call->bev, client->dns, call->family, call->host,
                                            call->port) != 0)
        end_call(call, kvf_fail(&call->error, KVF_ESYSTEM, "cannot connect to %s:%u: %s",
                                call->host, call->port, strerror(errno)));
}

static void connect_call(struct kvfi_http_call *call)
{
    struct sockaddr_in ip4 = {.sin_family = AF_INET, .sin_port = htons(call->port)};
    struct sockaddr_in6 ip6 = {.sin6_family = AF_INET6, .sin6_port = htons(call->port)};
    const struct sockaddr *address = NULL;
    int address_len = 0;
    if (inet_pton(AF_INET, call->host, &ip4.sin_addr) == 1) {
        address = (const struct sockaddr *)&ip4;
        address_len = sizeof(ip4);
    } else if (inet_pton(AF_INET6, call->host, &ip6.sin6_addr) == 1) {
        address = (const struct sockaddr *)&ip6;
        address_len = sizeof(ip6);
    }
    if (!address) {
        connect_by_name(call);
        return;
    }
    if (bufferevent_socket_connect(call->bev, address, address_len) != 0)
        end_call(call, kvf_fail(&call->error, KVF_EDISCONNECTED, "cannot connect to %s:%u: %s",
                                call->host, call->port, strerror(errno)));
}

static void on_connect_failed(struct kvfi_http_call *call, int reason)
{
    int dns_reason = bufferevent_socket_get_dns_error(call->bev);
    if (dns_reason && call->family == AF_INET) {
        call->family = AF_INET6;
        connect_by_name(call);
        return;
    }
    end_call(call,
             kvf_fail(&call->error, KVF_EDISCONNECTED, "cannot connect to %s:%u: %s", call->host,
                      call->port, dns_reason ? evutil_gai_strerror(dns_reason) : strerror(reason)));
}

static void on_event(struct bufferevent *bev, short what, void *ctx)
{
    struct kvfi_http_call *call = ctx;
    int reason = EVUTIL_SOCKET_ERROR();
    if (call->ended)
        return;
    if (what & BEV_EVENT_CONNECTED) {
        int on = 1;
        (void)setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        call->result.connected = true;
        arm(call, call->head_timeout_ms);
        return;
    }
    if (!call->result.connected) {
        on_connect_failed(call, reason);
        return;
    }
    if ((what & BEV_EVENT_WRITING) && !call->send_failed) {
        /* The server may have answered (413, say) before it closed: read that first. */
        call->send_failed = true;
        evbuffer_drain(bufferevent_get_output(bev), SIZE_MAX);
        bufferevent_enable(bev, EV_READ);
        return;
    }
    struct kvf_error cut = {0};
    enum kvf_status status = KVF_EDISCONNECTED;
    if (what & BEV_EVENT_EOF)
        status = kvfi_http_parser_eof(&call->parser, &cut);
    else
        (void)kvf_fail(&cut, KVF_EDISCONNECTED, "the connection broke: %s", strerror(reason));
    if (status != KVF_OK)
        (void)kvf_fail(&call->error, status, "%s:%u: %.300s", call->host, call->port, cut.text);
    end_call(call, status);
}

static bool is_header_text(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

static enum kvf_status write_request(struct kvfi_http_call *call,
                                     const struct kvfi_http_call_options *options,
                                     struct kvf_error *error)
{
    struct evbuffer *output = bufferevent_get_output(call->bev);
    bool bracket = strchr(call->host, ':') != NULL;
    int bad = evbuffer_add_printf(output, "%s %s HTTP/1.1\r\nHost: %s%s%s:%u\r\n", options->method,
                                  options->path, bracket ? "[" : "", call->host, bracket ? "]" : "",
                                  call->port) < 0;
    bad |= evbuffer_add_printf(output, "Connection: close\r\nAccept: */*\r\n") < 0;
    for (size_t i = 0; i < options->header_count; i++)
        bad |= evbuffer_add_printf(output, "%s: %s\r\n", options->headers[i].name,
                                   options->headers[i].value) < 0;
    if (options->content_type)
        bad |= evbuffer_add_printf(output, "Content-Type: %s\r\nContent-Length: %zu\r\n",
                                   options->content_type, options->body_len) < 0;
    bad |= evbuffer_add(output, "\r\n", 2);
    if (options->content_type && options->body_len)
        bad |= evbuffer_add(output, options->body, options->body_len);
    if (bad)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a request of %zu bytes",
                        options->body_len);
    return KVF_OK;
}

static enum kvf_status check_options(const struct kvfi_http_call_options *options,
                                     struct kvf_error *error)
{
    if (!options->host || !*options->host || !options->port || !options->method || !options->path)
        return kvf_fail(error, KVF_EINVAL, "an http call needs host, port, method and path");
    if (strlen(options->host) >= sizeof(((struct kvfi_http_call *)NULL)->host))
        return kvf_fail(error, KVF_EINVAL, "the host name is longer than 255 characters");
    if (options->path[0] != '/' || strpbrk(options->path, " \t") || !is_header_text(options->path))
        return kvf_fail(error, KVF_EINVAL, "the path '%.200s' cannot be sent", options->path);
    if (options->content_type && !is_header_text(options->content_type))
        return kvf_fail(error, KVF_EINVAL, "the content type holds a control character");
    for (size_t i = 0; i < options->header_count; i++)
        if (!is_header_text(options->headers[i].name) || !is_header_text(options->headers[i].value))
            return kvf_fail(error, KVF_EINVAL, "a header holds a control character");
    return KVF_OK;
}

enum kvf_status kvfi_http_call_start(struct kvfi_http_client *client,
                                     const struct kvfi_http_call_options *options,
                                     const struct kvfi_http_call_events *events,
                                     struct kvfi_http_call **call_p, struct kvf_error *error)
{
    KVF_TRY(check_options(options, error));
    struct kvfi_http_call *call = calloc(1, sizeof(*call));
    if (!call)
        return kvf_fail(error, KVF_ENOMEM, "no memory for an http call");
    enum kvf_status status = KVF_OK;
    call->client = client;
    call->events = *events;
    call->port = options->port;
    call->family = AF_INET;
    call->head_timeout_ms = options->head_timeout_ms;
    call->body_timeout_ms = options->body_timeout_ms;
    call->body_bytes_max = options->body_bytes_max;
    snprintf(call->host, sizeof(call->host), "%s", options->host);
    kvfi_http_parser_init(&call->parser, KVFI_HTTP_RESPONSE, HEAD_BYTES_MAX);
    call->parser.head_response = strcmp(options->method, "HEAD") == 0;
    call->bev = bufferevent_socket_new(client->base, -1, BEV_OPT_CLOSE_ON_FREE);
    call->timer = evtimer_new(client->base, on_timer, call);
    call->finish = event_new(client->base, -1, 0, on_finish, call);
    if (!call->bev || !call->timer || !call->finish) {
        status = kvf_fail(error, KVF_ENOMEM, "no memory for an http call");
        goto err_free;
    }
    status = write_request(call, options, error);
    if (status != KVF_OK)
        goto err_free;
    bufferevent_setcb(call->bev, on_read, NULL, on_event, call);
    bufferevent_setwatermark(call->bev, EV_READ, 0, INPUT_BYTES_MAX);
    bufferevent_enable(call->bev, EV_READ | EV_WRITE);
    call->next = client->first;
    if (client->first)
        client->first->prev = call;
    client->first = call;
    client->call_count++;
    arm(call, options->connect_timeout_ms ? options->connect_timeout_ms : CONNECT_TIMEOUT_MS);
    connect_call(call);
    *call_p = call;
    return KVF_OK;

err_free:
    free_call(call);
    return status;
}
