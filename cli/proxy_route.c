/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_route.h"

#include "cli/leg.h"
#include "cli/request_id.h"
#include "kvferry/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_BYTES_MAX = 16 * 1024 };

struct leg {
    struct kvfi_route *route;
    enum kvfi_side side;
    struct kvfi_upstream *upstream; /* NULL until chosen */
    bool held;                      /* counts as a leg of upstream, also before it is sent */
    struct kvfi_http_call *call;    /* NULL: not sent, or done */
    int http_status;
    bool succeeded;
    uint64_t ended_ms;
    char content_type[128];
    char *error; /* the body of an answer that is none */
    size_t error_len;
};

struct kvfi_route {
    struct kvfi_router *router;
    struct kvfi_route *prev;
    struct kvfi_route *next;
    struct kvfi_reply *reply; /* NULL once it ended */
    json_t *body;             /* the client's; NULL once the legs are sent */
    char *path;
    char *authorization;
    char request_id[KVFI_REQUEST_ID_LEN_MAX + 1];
    char transfer_id[KVFI_UUID_LEN + 1];
    char engine_request[KVFI_REQUEST_ID_LEN_MAX + 16]; /* what the engines call it */
    struct leg legs[KVFI_SIDE_COUNT];
    uint64_t began_ms;
    bool stream;
    bool revived[KVFI_SIDE_COUNT];
    bool sent;    /* the legs are under way */
    bool watched; /* the prefill engine, until decode's first byte */
    bool over;    /* the reply has all it will get */
};

static void emit(const struct kvfi_route *route, const char *event,
                 const struct kvf_event_field *extra)
{
    struct kvf_event_field fields[2] = {{.name = "transfer", .text = route->transfer_id}};
    if (extra)
        fields[1] = *extra;
    kvf_events_emit(route->router->events, event, route->engine_request, fields, extra ? 2 : 1);
}

static void emit_dispatched(const struct kvfi_route *route)
{
    const struct kvf_event_field fields[] = {
        {.name = "transfer", .text = route->transfer_id},
        {.name = "prefill", .text = route->legs[KVFI_SIDE_PREFILL].upstream->name},
        {.name = "decode", .text = route->legs[KVFI_SIDE_DECODE].upstream->name},
    };
    kvf_events_emit(route->router->events, "dispatched", route->engine_request, fields, 3);
}

static void emit_text(const struct kvfi_route *route, const char *event, const char *name,
                      const char *text)
{
    emit(route, event, &(struct kvf_event_field){.name = name, .text = text});
}

static void unwatch(struct kvfi_route *route)
{
    if (route->watched)
        kvfi_upstream_unwatch(route->legs[KVFI_SIDE_PREFILL].upstream);
    route->watched = false;
}

static void release(struct leg *leg)
{
    if (leg->held)
        kvfi_upstream_release(leg->upstream);
    leg->held = false;
}

static void maybe_free(struct kvfi_route *route)
{
    struct kvfi_router *router = route->router;
    if (route->reply || route->legs[0].call || route->legs[1].call)
        return;
    unwatch(route);
    if (route->prev)
        route->prev->next = route->next;
    else
        router->first = route->next;
    if (route->next)
        route->next->prev = route->prev;
    router->route_count--;
    for (int side = 0; side < KVFI_SIDE_COUNT; side++) {
        release(&route->legs[side]);
        free(route->legs[side].error);
    }
    json_decref(route->body);
    free(route->path);
    free(route->authorization);
    free(route);
}

static void cancel_legs(struct kvfi_route *route)
{
    for (int side = 0; side < KVFI_SIDE_COUNT; side++)
        if (route->legs[side].call)
            kvfi_http_call_cancel(route->legs[side].call);
    unwatch(route);
}

json_t *kvfi_route_error(int http_status, const char *message, enum kvfi_side side,
                         const char *engine, const char *reason)
{
    json_t *body = kvfi_http_error_json(http_status, NULL, message);
    json_t *error = json_object_get(body, "error");
    if (!error || !engine)
        return body;
    json_t *text = json_string(reason);
    if (!text)
        text = json_string("the engine's error is not UTF-8");
    int bad = json_object_set_new(error, "leg", json_string(kvfi_side_name(side)));
    bad |= json_object_set_new(error, "engine", json_string(engine));
    bad |= json_object_set_new(error, "reason", text);
    if (!bad)
        return body;
    json_decref(body);
    return NULL;
}

/* Gives the client its error, as an HTTP error or as the last event of a stream. */
static void answer_error(struct kvfi_route *route, int http_status, const json_t *error)
{
    struct kvfi_reply *reply = route->reply;
    if (!kvfi_reply_begun(reply)) {
        kvfi_reply_json(reply, http_status, error);
        return;
    }
    bool said = route->stream && kvfi_reply_sse_json(reply, error) == KVF_OK;
    if (!said && route->stream)
        return; /* the client has left or does not read: on_end says so */
    kvfi_reply_cut(reply);
}

static void end_with_error(struct kvfi_route *route, int http_status, const char *message,
                           const struct leg *leg, const char *reason)
{
    if (route->over)
        return;
    route->over = true;
    kvf_log(KVF_LOG_WARNING, "request %s failed: %s", route->request_id, message);
    emit_text(route, "end", "reason", message);
    if (route->reply) {
        json_t *error = kvfi_route_error(http_status, message, leg ? leg->side : KVFI_SIDE_PREFILL,
                                         leg && leg->upstream ? leg->upstream->name : NULL, reason);
        answer_error(route, http_status, error);
        json_decref(error);
    }
    cancel_legs(route);
}

/* A leg failed: the other one is cancelled and the client told. */
static void fail_leg(struct leg *leg, int http_status, const char *reason)
{
    struct kvfi_route *route = leg->route;
    if (route->over)
        return;
    route->router->counters.leg_failed_total[leg->side]++;
    char message[700];
    snprintf(message, sizeof(message), "%s leg on %.200s failed: %.400s", kvfi_side_name(leg->side),
             leg->upstream->name, reason);
    end_with_error(route, http_status, message, leg, reason);
}

static void refuse(struct kvfi_route *route, int http_status, const char *message)
{
    route->router->counters.refused_total++;
    end_with_error(route, http_status, message, NULL, NULL);
}

/* The engine's own words: error.message of its JSON, else the beginning of its text. */
static void engine_words(const struct leg *leg, char *out, size_t size)
{
    json_t *answer = leg->error ? json_loadb(leg->error, leg->error_len, 0, NULL) : NULL;
    json_t *error = json_object_get(answer, "error");
    const char *words = json_string_value(json_object_get(error ? error : answer, "message"));
    if (!words)
        words = json_string_value(json_object_get(answer, "detail"));
    if (words)
        snprintf(out, size, "it answers %d: %s", leg->http_status, words);
    else
        snprintf(out, size, "it answers %d: %.*s", leg->http_status, (int)leg->error_len,
                 leg->error ? leg->error : "");
    json_decref(answer);
}

static void on_leg_head(void *ctx, int http_status, const struct kvfi_http_headers *headers)
{
    struct leg *leg = ctx;
    leg->http_status = http_status;
    const char *type = kvfi_http_headers_find(headers, "content-type");
    snprintf(leg->content_type, sizeof(leg->content_type), "%s",
             type ? type : "application/octet-stream");
}

static void keep_error(struct leg *leg, const char *data, size_t len)
{
    if (len > ERROR_BYTES_MAX - leg->error_len)
        len = ERROR_BYTES_MAX - leg->error_len;
    char *grown = len ? realloc(leg->error, leg->error_len + len) : NULL;
    if (!grown)
        return;
    memcpy(grown + leg->error_len, data, len);
    leg->error = grown;
    leg->error_len += len;
}

/* Begins the client's answer. */
static enum kvf_status start_reply(struct kvfi_route *route, const struct leg *leg)
{
    emit(route, "first_byte", NULL);
    unwatch(route);
    return kvfi_reply_start(route->reply, leg->http_status, leg->content_type);
}

static void on_leg_body(void *ctx, const char *data, size_t len)
{
    struct leg *leg = ctx;
    struct kvfi_route *route = leg->route;
    if (leg->http_status != 200) {
        keep_error(leg, data, len);
        return;
    }
    if (leg->side == KVFI_SIDE_PREFILL || !route->reply || route->over)
        return;
    enum kvf_status status = KVF_OK;
    if (!kvfi_reply_begun(route->reply))
        status = start_reply(route, leg);
    if (status == KVF_OK)
        status = kvfi_reply_write(route->reply, data, len);
    if (status == KVF_OK)
        route->router->counters.body_bytes_total += len;
    else
        cancel_legs(route); /* the client has left or does not read; on_end follows */
}

static void decode_succeeded(struct kvfi_route *route, const struct leg *leg)
{
    if (!route->reply || route->over)
        return;
    if (!kvfi_reply_begun(route->reply) && start_reply(route, leg) != KVF_OK)
        return;
    route->over = true;
    route->router->counters.answered_total++;
    emit_text(route, "end", "reason", "answered");
    kvfi_reply_end(route->reply);
    /* Decode had no need of what prefill still computes. */
    cancel_legs(route);
}

/* Once decode has spoken, prefill has done its part: how its leg ends does not matter then. */
static bool is_decided(const struct leg *leg)
{
    const struct kvfi_route *route = leg->route;
    return route->over ||
           (leg->side == KVFI_SIDE_PREFILL && route->reply && kvfi_reply_begun(route->reply));
}

static void on_leg_done(void *ctx, const struct kvfi_http_result *result)
{
    struct leg *leg = ctx;
    struct kvfi_route *route = leg->route;
    leg->call = NULL;
    leg->ended_ms = kvfi_now_ms();
    route->router->leg_count--;
    release(leg);
    if (result->status == KVF_OK && result->http_status == 200) {
        leg->succeeded = true;
        if (leg->side == KVFI_SIDE_DECODE)
            decode_succeeded(route, leg);
        else
            emit(route, "prefill_answered", NULL);
    } else if (result->status == KVF_OK) {
        char words[400];
        engine_words(leg, words, sizeof(words));
        int status = result->http_status;
        if (status >= 500)
            kvfi_upstream_suspect(leg->upstream);
        if (!is_decided(leg))
            fail_leg(leg,
                     status >= 400 && status < 500 ? status
                     : status == 503               ? 503
                                                   : 502,
                     words);
    } else if (result->status != KVF_ECANCELED) {
        kvfi_upstream_suspect(leg->upstream);
        if (!is_decided(leg))
            fail_leg(leg, result->connected ? 502 : 503, result->reason);
    }
    maybe_free(route);
}

static enum kvf_status send_leg(struct leg *leg, const char *text, size_t len,
                                struct kvf_error *error)
{
    struct kvfi_route *route = leg->route;
    struct kvfi_router *router = route->router;
    char path[1024];
    snprintf(path, sizeof(path), "%s%s", leg->upstream->url.path, route->path);
    struct kvfi_http_header headers[2] = {{.name = "X-Request-Id", .value = route->request_id}};
    size_t header_count = 1;
    if (route->authorization)
        headers[header_count++] =
            (struct kvfi_http_header){.name = "Authorization", .value = route->authorization};
    struct kvfi_http_call_options options = {
        .host = leg->upstream->url.host,
        .port = leg->upstream->url.port,
        .method = "POST",
        .path = path,
        .content_type = "application/json",
        .body = text,
        .body_len = len,
        .headers = headers,
        .header_count = header_count,
        .head_timeout_ms = router->leg_timeout_ms,
        .body_timeout_ms = router->leg_timeout_ms,
    };
    struct kvfi_http_call_events events = {
        .on_head = on_leg_head, .on_body = on_leg_body, .on_done = on_leg_done, .ctx = leg};
    KVF_TRY(kvfi_http_call_start(router->client, &options, &events, &leg->call, error));
    leg->upstream->leg_total++;
    router->leg_count++;
    return KVF_OK;
}

/* Both legs, prefill first by a few microseconds: it has the longer way to go. */
static void send_legs(struct kvfi_route *route)
{
    struct leg *prefill = &route->legs[KVFI_SIDE_PREFILL];
    struct leg *decode = &route->legs[KVFI_SIDE_DECODE];
    struct kvfi_leg_ids ids = {.request_id = route->request_id, .transfer_id = route->transfer_id};
    struct kvf_error error = {0};
    char *prefill_text = NULL;
    char *decode_text = NULL;
    size_t prefill_len = 0;
    size_t decode_len = 0;
    enum kvf_status status =
        kvfi_leg_prefill(route->body, &ids, &prefill_text, &prefill_len, &error);
    if (status == KVF_OK)
        status = kvfi_leg_decode(route->body, &ids, &prefill->upstream->coordinates, &decode_text,
                                 &decode_len, &error);
    json_decref(route->body);
    route->body = NULL;
    route->sent = true;
    emit_dispatched(route);
    if (status == KVF_OK)
        status = send_leg(prefill, prefill_text, prefill_len, &error);
    if (status == KVF_OK)
        status = send_leg(decode, decode_text, decode_len, &error);
    free(prefill_text);
    free(decode_text);
    if (status != KVF_OK) {
        refuse(route, 503, error.text);
        return;
    }
    kvfi_upstream_watch(prefill->upstream);
    route->watched = true;
}

/* KVF_IN_PROGRESS: on_checked will call again. */
static enum kvf_status choose(struct kvfi_route *route, enum kvfi_side side,
                              struct kvf_error *error)
{
    struct kvfi_router *router = route->router;
    struct leg *leg = &route->legs[side];
    if (leg->held && leg->upstream->state == KVFI_UPSTREAM_UP)
        return kvfi_upstream_refresh(leg->upstream, route->began_ms);
    release(leg);
    enum kvf_status status =
        kvfi_pool_choose(router->pool, side, route->began_ms, &leg->upstream, error);
    if (status == KVF_ENOTFOUND && !route->revived[side]) {
        route->revived[side] = true;
        kvfi_pool_revive(router->pool, side);
        status = kvfi_pool_choose(router->pool, side, route->began_ms, &leg->upstream, error);
    }
    if (status != KVF_OK)
        return status;
    kvfi_upstream_hold(leg->upstream);
    leg->held = true;
    return kvfi_upstream_refresh(leg->upstream, route->began_ms);
}

/* Goes as far as it can now. */
static void advance(struct kvfi_route *route)
{
    bool waiting = false;
    for (int side = 0; side < KVFI_SIDE_COUNT; side++) {
        struct kvf_error error = {0};
        enum kvf_status status = choose(route, (enum kvfi_side)side, &error);
        if (status == KVF_IN_PROGRESS) {
            waiting = true;
        } else if (status != KVF_OK) {
            refuse(route, 503, error.text);
            return;
        }
    }
    if (waiting)
        return;
    const struct kvfi_upstream *prefill = route->legs[KVFI_SIDE_PREFILL].upstream;
    const struct kvfi_upstream *decode = route->legs[KVFI_SIDE_DECODE].upstream;
    if (prefill->model[0] && decode->model[0] && strcmp(prefill->model, decode->model) != 0) {
        char message[900];
        snprintf(
            message, sizeof(message),
            "the two sides serve different models: prefill engine %.200s serves '%.100s', decode "
            "engine %.200s serves '%.100s'; start both with the same model and --model-name",
            prefill->name, prefill->model, decode->name, decode->model);
        refuse(route, 503, message);
        return;
    }
    send_legs(route);
}

void kvfi_router_on_checked(void *ctx, struct kvfi_upstream *upstream)
{
    struct kvfi_router *router = ctx;
    for (struct kvfi_route *route = router->first; route; route = route->next)
        if (!route->sent && !route->over)
            advance(route);
}

void kvfi_router_on_down(void *ctx, struct kvfi_upstream *upstream)
{
    struct kvfi_router *router = ctx;
    uint64_t now = kvfi_now_ms();
    for (struct kvfi_route *route = router->first; route; route = route->next) {
        for (int side = 0; side < KVFI_SIDE_COUNT; side++) {
            struct leg *leg = &route->legs[side];
            if (leg->upstream != upstream || !route->sent || route->over)
                continue;
            char reason[480];
            snprintf(reason, sizeof(reason), "the engine is down: %s", upstream->reason);
            bool sending = route->watched && side == KVFI_SIDE_PREFILL && leg->succeeded &&
                           now - leg->ended_ms < router->handoff_ms;
            if ((leg->call && !is_decided(leg)) || sending)
                fail_leg(leg, 503, reason);
        }
    }
}

static void on_reply_end(void *ctx, enum kvfi_reply_end end)
{
    struct kvfi_route *route = ctx;
    route->reply = NULL;
    if (!route->over) {
        route->over = true;
        route->router->counters.client_left_total++;
        kvf_log(KVF_LOG_DEBUG, "request %s ended early: %s", route->request_id,
                kvfi_reply_end_name(end));
        emit_text(route, "end", "reason", kvfi_reply_end_name(end));
        cancel_legs(route);
    }
    maybe_free(route);
}

static bool is_under_way(const struct kvfi_router *router, const char *request_id)
{
    for (const struct kvfi_route *route = router->first; route; route = route->next)
        if (strcmp(route->request_id, request_id) == 0)
            return true;
    return false;
}

/* The client's id when it can be used; engines pair the legs by it, so it must be alone. */
static enum kvf_status name_route(struct kvfi_router *router, struct kvfi_route *route,
                                  const struct kvfi_http_request *request, struct kvf_error *error)
{
    const char *given = kvfi_http_headers_find(request->headers, "x-request-id");
    bool sane = given && kvfi_request_id_is_sane(given);
    bool taken = sane && is_under_way(router, given);
    if (taken)
        router->counters.duplicate_id_total++;
    if (sane && !taken)
        snprintf(route->request_id, sizeof(route->request_id), "%s", given);
    else
        KVF_TRY(kvfi_uuid4(route->request_id, error));
    bool chat = strstr(request->path, "/chat/") != NULL;
    snprintf(route->engine_request, sizeof(route->engine_request),
             chat ? "chatcmpl-%s" : "cmpl-%s-0", route->request_id);
    return kvfi_uuid4(route->transfer_id, error);
}

static enum kvf_status open_route(struct kvfi_router *router,
                                  const struct kvfi_http_request *request, struct kvfi_route *route,
                                  struct kvf_error *error)
{
    const char *authorization = kvfi_http_headers_find(request->headers, "authorization");
    route->router = router;
    route->began_ms = kvfi_now_ms();
    for (int side = 0; side < KVFI_SIDE_COUNT; side++)
        route->legs[side] = (struct leg){.route = route, .side = (enum kvfi_side)side};
    KVF_TRY(kvfi_json_parse_object("request body", request->body, request->body_len, &route->body,
                                   error));
    KVF_TRY(kvfi_leg_check(route->body, error));
    KVF_TRY(name_route(router, route, request, error));
    route->stream = kvfi_leg_is_stream(route->body);
    route->path = strdup(request->path);
    route->authorization = authorization ? strdup(authorization) : NULL;
    if (!route->path || (authorization && !route->authorization))
        return kvf_fail(error, KVF_ENOMEM, "no memory for the request");
    return KVF_OK;
}

void kvfi_route_begin(struct kvfi_router *router, const struct kvfi_http_request *request,
                      struct kvfi_reply *reply)
{
    struct kvf_error error = {0};
    router->counters.request_total++;
    struct kvfi_route *route = calloc(1, sizeof(*route));
    enum kvf_status status = KVF_ENOMEM;
    if (route)
        status = open_route(router, request, route, &error);
    if (status == KVF_OK)
        status = kvfi_reply_header(reply, "X-Request-Id", route->request_id);
    if (status != KVF_OK) {
        router->counters.refused_total++;
        bool bad_request = status == KVF_EFORMAT || status == KVF_EINVAL;
        kvfi_reply_error(reply, bad_request ? 400 : 503, NULL, "%s",
                         error.text[0] ? error.text : "no memory for the request");
        if (route) {
            json_decref(route->body);
            free(route->path);
            free(route->authorization);
        }
        free(route);
        return;
    }
    route->reply = reply;
    kvfi_reply_on_end(reply, on_reply_end, route);
    route->next = router->first;
    if (router->first)
        router->first->prev = route;
    router->first = route;
    router->route_count++;
    emit(route, "received", NULL);
    advance(route);
}

void kvfi_router_end_all(struct kvfi_router *router, const char *reason)
{
    for (struct kvfi_route *route = router->first; route; route = route->next)
        end_with_error(route, 503, reason, NULL, NULL);
}
