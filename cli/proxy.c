/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy.h"

#include "http/loop.h"
#include "kvferry/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODELS_BYTES_MAX = 1024 * 1024, MODELS_TIMEOUT_MS = 5000, HANDOFF_MS = 5000 };

struct kvfi_proxy {
    struct kvfi_router router;
    struct kvfi_http_server *server;

    struct kvfi_timer *drained; /* looks whether the last reply is out */
    uint64_t drain_until_ms;
    void (*on_drained)(void *ctx);
    void *on_drained_ctx;
};

/* GET /v1/models handed to a decode engine. Lives until its reply and its call have ended. */
struct models_request {
    struct kvfi_reply *reply;
    struct kvfi_http_call *call;
    int http_status;
    char *body;
    size_t body_len;
};

static void handle_generate(void *ctx, const struct kvfi_http_request *request,
                            struct kvfi_reply *reply)
{
    struct kvfi_proxy *proxy = ctx;
    kvfi_route_begin(&proxy->router, request, reply);
}

static void handle_health(void *ctx, const struct kvfi_http_request *request,
                          struct kvfi_reply *reply)
{
    struct kvfi_proxy *proxy = ctx;
    bool healthy = false;
    json_t *body = kvfi_proxy_health(&proxy->router, &healthy);
    kvfi_reply_json(reply, healthy ? 200 : 503, body);
    json_decref(body);
}

static void handle_usage(void *ctx, const struct kvfi_http_request *request,
                         struct kvfi_reply *reply)
{
    struct kvfi_proxy *proxy = ctx;
    json_t *body = kvfi_proxy_usage(&proxy->router);
    kvfi_reply_json(reply, 200, body);
    json_decref(body);
}

static void handle_metrics(void *ctx, const struct kvfi_http_request *request,
                           struct kvfi_reply *reply)
{
    struct kvfi_proxy *proxy = ctx;
    size_t len = 0;
    char *text = kvfi_proxy_metrics(&proxy->router, kvfi_http_server_counters(proxy->server), &len);
    if (text)
        kvfi_reply_bytes(reply, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
    else
        kvfi_reply_error(reply, 503, NULL, "no memory for the metrics");
    free(text);
}

static void free_models_request(struct models_request *models)
{
    if (models->reply || models->call)
        return;
    free(models->body);
    free(models);
}

static void on_models_reply_end(void *ctx, enum kvfi_reply_end end)
{
    struct models_request *models = ctx;
    models->reply = NULL;
    if (models->call)
        kvfi_http_call_cancel(models->call);
    free_models_request(models);
}

static void on_models_head(void *ctx, int http_status, const struct kvfi_http_headers *headers)
{
    struct models_request *models = ctx;
    models->http_status = http_status;
}

static void on_models_body(void *ctx, const char *data, size_t len)
{
    struct models_request *models = ctx;
    char *grown = realloc(models->body, models->body_len + len);
    if (!grown) {
        kvfi_http_call_cancel(models->call);
        return;
    }
    memcpy(grown + models->body_len, data, len);
    models->body = grown;
    models->body_len += len;
}

static void on_models_done(void *ctx, const struct kvfi_http_result *result)
{
    struct models_request *models = ctx;
    models->call = NULL;
    if (models->reply && result->status == KVF_OK)
        kvfi_reply_bytes(models->reply, models->http_status, "application/json",
                         models->body ? models->body : "", models->body_len);
    else if (models->reply)
        kvfi_reply_error(models->reply, 502, NULL, "decode engine: %s", result->reason);
    free_models_request(models);
}

static void handle_models(void *ctx, const struct kvfi_http_request *request,
                          struct kvfi_reply *reply)
{
    struct kvfi_proxy *proxy = ctx;
    struct kvf_error error = {0};
    struct kvfi_upstream *upstream = NULL;
    enum kvf_status status =
        kvfi_pool_choose(proxy->router.pool, KVFI_SIDE_DECODE, kvfi_now_ms(), &upstream, &error);
    if (status != KVF_OK) {
        kvfi_reply_error(reply, 503, NULL, "%s",
                         status == KVF_IN_PROGRESS ? "no decode engine has answered yet"
                                                   : error.text);
        return;
    }
    struct models_request *models = calloc(1, sizeof(*models));
    if (!models) {
        kvfi_reply_error(reply, 503, NULL, "no memory for the request");
        return;
    }
    char path[1024];
    snprintf(path, sizeof(path), "%s/v1/models", upstream->url.path);
    struct kvfi_http_call_options options = {.host = upstream->url.host,
                                             .port = upstream->url.port,
                                             .method = "GET",
                                             .path = path,
                                             .head_timeout_ms = MODELS_TIMEOUT_MS,
                                             .body_timeout_ms = MODELS_TIMEOUT_MS,
                                             .body_bytes_max = MODELS_BYTES_MAX};
    struct kvfi_http_call_events events = {.on_head = on_models_head,
                                           .on_body = on_models_body,
                                           .on_done = on_models_done,
                                           .ctx = models};
    status = kvfi_http_call_start(proxy->router.client, &options, &events, &models->call, &error);
    if (status != KVF_OK) {
        kvfi_reply_error(reply, 503, NULL, "%s", error.text);
        free(models);
        return;
    }
    models->reply = reply;
    kvfi_reply_on_end(reply, on_models_reply_end, models);
}

static enum kvf_status add_routes(struct kvfi_proxy *proxy, struct kvf_error *error)
{
    static const struct {
        const char *method;
        const char *path;
        kvfi_http_handler_fn handler;
    } routes[] = {
        {"POST", "/v1/completions", handle_generate},
        {"POST", "/v1/chat/completions", handle_generate},
        {"GET", "/v1/models", handle_models},
        {"GET", "/health", handle_health},
        {"GET", "/metrics", handle_metrics},
        {"GET", "/kvferry/usage", handle_usage},
    };
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        if (kvfi_http_server_route(proxy->server, routes[i].method, routes[i].path,
                                   routes[i].handler, proxy) != KVF_OK)
            return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy");
    return KVF_OK;
}

static enum kvf_status add_engines(struct kvfi_proxy *proxy,
                                   const struct kvfi_proxy_options *options,
                                   struct kvf_error *error)
{
    for (size_t i = 0; i < options->prefill_count; i++)
        KVF_TRY(kvfi_pool_add(proxy->router.pool, KVFI_SIDE_PREFILL, options->prefill[i], error));
    for (size_t i = 0; i < options->decode_count; i++)
        KVF_TRY(kvfi_pool_add(proxy->router.pool, KVFI_SIDE_DECODE, options->decode[i], error));
    return KVF_OK;
}

static void on_drain_timer(void *ctx)
{
    struct kvfi_proxy *proxy = ctx;
    if (proxy->router.route_count && kvfi_now_ms() < proxy->drain_until_ms)
        kvfi_timer_arm(proxy->drained, 5);
    else
        proxy->on_drained(proxy->on_drained_ctx);
}

static enum kvf_status set_up(struct kvfi_proxy *proxy, struct event_base *loop,
                              const struct kvfi_proxy_options *options, struct kvf_error *error)
{
    struct kvfi_http_server_options http = kvfi_http_server_defaults();
    http.host = options->host;
    http.port = options->port;
    http.connection_count_max = options->connection_count_max;
    http.body_bytes_max = options->body_bytes_max;
    http.mail_count_max = 0;
    struct kvfi_pool_options pool = {.mode = "push",
                                     .dead_after_ms = options->dead_after_ms,
                                     .fresh_ms = options->fresh_ms,
                                     .least_outstanding = options->least_outstanding,
                                     .on_checked = kvfi_router_on_checked,
                                     .on_down = kvfi_router_on_down,
                                     .ctx = &proxy->router};
    KVF_TRY(kvfi_http_server_create(loop, &http, &proxy->server, error));
    KVF_TRY(add_routes(proxy, error));
    KVF_TRY(kvfi_http_client_create(loop, &proxy->router.client, error));
    KVF_TRY(kvfi_pool_create(loop, proxy->router.client, &pool, &proxy->router.pool, error));
    proxy->drained = kvfi_timer_create(loop, on_drain_timer, proxy);
    if (!proxy->drained)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy");
    return add_engines(proxy, options, error);
}

enum kvf_status kvfi_proxy_create(struct event_base *loop, const struct kvfi_proxy_options *options,
                                  struct kvfi_proxy **proxy_p, struct kvf_error *error)
{
    if (!options->prefill_count || !options->decode_count)
        return kvf_fail(error, KVF_EINVAL, "no %s engine: pass --%s URL at least once",
                        options->prefill_count ? "decode" : "prefill",
                        options->prefill_count ? "decode" : "prefill");
    struct kvfi_proxy *proxy = calloc(1, sizeof(*proxy));
    if (!proxy)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy");
    proxy->router.loop = loop;
    proxy->router.events = options->events;
    proxy->router.leg_timeout_ms = options->leg_timeout_ms;
    proxy->router.handoff_ms = HANDOFF_MS;
    enum kvf_status status = set_up(proxy, loop, options, error);
    if (status != KVF_OK) {
        kvfi_proxy_destroy(proxy);
        return status;
    }
    *proxy_p = proxy;
    return KVF_OK;
}

void kvfi_proxy_destroy(struct kvfi_proxy *proxy)
{
    if (!proxy)
        return;
    /* Replies first: their ends cancel calls, which the client then completes. */
    if (proxy->router.pool)
        kvfi_pool_close(proxy->router.pool);
    kvfi_http_server_destroy(proxy->server);
    kvfi_http_client_destroy(proxy->router.client);
    kvfi_pool_destroy(proxy->router.pool);
    kvfi_timer_destroy(proxy->drained);
    free(proxy);
}

uint16_t kvfi_proxy_port(const struct kvfi_proxy *proxy)
{
    return kvfi_http_server_port(proxy->server);
}

void kvfi_proxy_shut_down(struct kvfi_proxy *proxy, uint32_t wait_ms, void (*done)(void *ctx),
                          void *ctx)
{
    proxy->on_drained = done;
    proxy->on_drained_ctx = ctx;
    proxy->drain_until_ms = kvfi_now_ms() + wait_ms;
    kvfi_http_server_stop_accepting(proxy->server);
    kvfi_router_end_all(&proxy->router, "the proxy is shutting down");
    kvfi_timer_arm(proxy->drained, 0);
}

const struct kvfi_router *kvfi_proxy_router(const struct kvfi_proxy *proxy)
{
    return &proxy->router;
}
