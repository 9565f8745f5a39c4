/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { BACKLOG = 256, ACCEPT_AGAIN_MS = 100 };

struct kvfi_http_server_options kvfi_http_server_defaults(void)
{
    return (struct kvfi_http_server_options){
        .host = "127.0.0.1",
        .head_bytes_max = (size_t)32 * 1024,
        .body_bytes_max = (size_t)16 * 1024 * 1024,
        .output_bytes_max = (size_t)4 * 1024 * 1024,
        .connection_count_max = 1024,
        .read_timeout_ms = 30 * 1000,
        .idle_timeout_ms = 75 * 1000,
        .write_timeout_ms = 30 * 1000,
        .mail_count_max = 4096,
    };
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int address_len, void *ctx)
{
    struct kvfi_http_server *server = ctx;
    if (server->counters.open_count < server->options.connection_count_max) {
        kvfi_connection_open(server, fd, address, address_len);
        return;
    }
    static const char body[] = "{\"error\":{\"message\":\"too many connections\","
                               "\"type\":\"ServiceUnavailableError\",\"code\":503}}";
    char text[256];
    int len = snprintf(text, sizeof(text),
                       "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                       sizeof(body) - 1, body);
    server->counters.refused_count++;
    (void)send(fd, text, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
    evutil_closesocket(fd);
}

/* Out of descriptors, most likely: the pending connection would wake the loop at once again. */
static void on_accept_error(struct evconnlistener *listener, void *ctx)
{
    struct kvfi_http_server *server = ctx;
    struct timeval tv = {.tv_usec = (suseconds_t)ACCEPT_AGAIN_MS * 1000};
    evconnlistener_disable(listener);
    event_add(server->accept_again, &tv);
}

static void on_accept_again(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_http_server *server = ctx;
    if (server->listener)
        evconnlistener_enable(server->listener);
}

static enum kvf_status check_options(const struct kvfi_http_server_options *options,
                                     struct kvf_error *error)
{
    if (!options->head_bytes_max || !options->body_bytes_max || !options->output_bytes_max ||
        !options->connection_count_max || !options->read_timeout_ms || !options->idle_timeout_ms ||
        !options->write_timeout_ms)
        return kvf_fail(error, KVF_EINVAL, "http server: every limit and timeout must be above 0");
    if (options->body_bytes_max > SIZE_MAX / 4)
        return kvf_fail(error, KVF_EINVAL, "http server: body_bytes_max %zu is too large",
                        options->body_bytes_max);
    return KVF_OK;
}

static enum kvf_status bind_one(struct kvfi_http_server *server, const struct addrinfo *address,
                                struct kvf_error *error)
{
    const char *host = server->options.host;
    unsigned port = server->options.port;
    server->listener =
        evconnlistener_new_bind(server->base, on_accept, server,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                                BACKLOG, address->ai_addr, (int)address->ai_addrlen);
    int reason = errno;
    if (!server->listener && reason == EADDRINUSE)
        return kvf_fail(error, KVF_EBUSY,
                        "cannot listen on %s:%u: the port is in use; stop the program that has it "
                        "or pass --port with another number",
                        host, port);
    if (!server->listener && reason == EACCES)
        return kvf_fail(error, KVF_ESYSTEM,
                        "cannot listen on %s:%u: permission denied; pass --port with a number "
                        "above 1023",
                        host, port);
    if (!server->listener)
        return kvf_fail(error, KVF_ESYSTEM, "cannot listen on %s:%u: %s", host, port,
                        strerror(reason));
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    union {
        struct sockaddr any;
        struct sockaddr_in ip4;
        struct sockaddr_in6 ip6;
    } bound = {.ip6 = {0}};
    socklen_t bound_len = sizeof(bound);
    if (getsockname(evconnlistener_get_fd(server->listener), &bound.any, &bound_len) != 0)
        return kvf_fail(error, KVF_ESYSTEM, "cannot read the port of %s: %s", host,
                        strerror(errno));
    server->port =
        ntohs(bound.any.sa_family == AF_INET6 ? bound.ip6.sin6_port : bound.ip4.sin_port);
    return KVF_OK;
}

static enum kvf_status listen_on(struct kvfi_http_server *server, struct kvf_error *error)
{
    char port[8];
    snprintf(port, sizeof(port), "%u", server->options.port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int failed = getaddrinfo(server->options.host, port, &hints, &list);
    if (failed)
        return kvf_fail(error, KVF_EINVAL, "cannot listen on '%s': %s", server->options.host,
                        gai_strerror(failed));
    enum kvf_status status = bind_one(server, list, error);
    freeaddrinfo(list);
    return status;
}

enum kvf_status kvfi_http_server_create(struct event_base *base,
                                        const struct kvfi_http_server_options *options,
                                        struct kvfi_http_server **server_p, struct kvf_error *error)
{
    KVF_TRY(check_options(options, error));
    struct kvfi_http_server *server = calloc(1, sizeof(*server));
    if (!server)
        return kvf_fail(error, KVF_ENOMEM, "no memory for an http server");
    enum kvf_status status = KVF_OK;
    /* A client that leaves in the middle of a write is an error of that write only. */
    (void)signal(SIGPIPE, SIG_IGN);
    server->base = base;
    server->options = *options;
    server->options.host = strdup(options->host ? options->host : "127.0.0.1");
    server->slots = calloc(options->connection_count_max, sizeof(struct kvfi_connection *));
    server->accept_again = evtimer_new(base, on_accept_again, server);
    if (!server->options.host || !server->slots || !server->accept_again) {
        status = kvf_fail(error, KVF_ENOMEM, "no memory for an http server");
        goto err_destroy;
    }
    if (options->mail_count_max) {
        status = kvfi_mailbox_create(kvfi_reply_mail_bytes(), options->mail_count_max,
                                     kvfi_reply_drop_mail, server, &server->mailbox, error);
        if (status == KVF_OK)
            status = kvfi_mailbox_attach(server->mailbox, base, kvfi_reply_deliver, server, error);
        if (status != KVF_OK)
            goto err_destroy;
    }
    status = listen_on(server, error);
    if (status != KVF_OK)
        goto err_destroy;
    *server_p = server;
    return KVF_OK;

err_destroy:
    kvfi_http_server_destroy(server);
    return status;
}

void kvfi_http_server_destroy(struct kvfi_http_server *server)
{
    if (!server)
        return;
    kvfi_http_server_stop_accepting(server);
    for (size_t i = 0; server->slots && i < server->options.connection_count_max; i++)
        if (server->slots[i])
            kvfi_connection_close(server->slots[i], KVFI_REPLY_CLOSED);
    kvfi_mailbox_destroy(server->mailbox);
    for (size_t i = 0; i < server->route_count; i++) {
        free(server->routes[i].method);
        free(server->routes[i].path);
    }
    free(server->routes);
    if (server->accept_again)
        event_free(server->accept_again);
    free(server->slots);
    free((char *)server->options.host);
    free(server);
}

enum kvf_status kvfi_http_server_route(struct kvfi_http_server *server, const char *method,
                                       const char *path, kvfi_http_handler_fn handler, void *ctx)
{
    struct kvfi_route *routes =
        realloc(server->routes, (server->route_count + 1) * sizeof(*server->routes));
    if (!routes)
        return KVF_ENOMEM;
    server->routes = routes;
    struct kvfi_route route = {
        .method = strdup(method), .path = strdup(path), .handler = handler, .ctx = ctx};
    if (!route.method || !route.path) {
        free(route.method);
        free(route.path);
        return KVF_ENOMEM;
    }
    server->routes[server->route_count++] = route;
    return KVF_OK;
}

const struct kvfi_route *kvfi_route_find(const struct kvfi_http_server *server, const char *method,
                                         const char *path, bool *known_path_p)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    bool known_path = false;
    for (size_t i = 0; i < server->route_count; i++) {
        if (strcmp(server->routes[i].path, path) != 0)
            continue;
        known_path = true;
        if (strcmp(server->routes[i].method, wanted) == 0)
            return &server->routes[i];
    }
    *known_path_p = known_path;
    return NULL;
}

void kvfi_http_server_stop_accepting(struct kvfi_http_server *server)
{
    server->stopping = true;
    if (server->listener)
        evconnlistener_free(server->listener);
    server->listener = NULL;
    for (size_t i = 0; server->slots && i < server->options.connection_count_max; i++)
        if (server->slots[i] && server->slots[i]->phase == KVFI_CONNECTION_IDLE)
            kvfi_connection_close(server->slots[i], KVFI_REPLY_CLOSED);
}

uint16_t kvfi_http_server_port(const struct kvfi_http_server *server)
{
    return server->port;
}

const struct kvfi_http_server_counters *
kvfi_http_server_counters(const struct kvfi_http_server *server)
{
    return &server->counters;
}
