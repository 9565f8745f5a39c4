/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_PROXY_ROUTE_H
#define KVFERRY_CLI_PROXY_ROUTE_H

/*
 * One client request on its way through the proxy: choose two engines, send both legs at once, hand
 * decode's bytes to the client, and end exactly once whatever fails.
 *
 * The answer begins with decode's first byte and not with its head, so that whatever fails before
 * is an HTTP error. A failed request is never sent again: the engines may hold its cache already.
 *
 * One thread, that of the loop.
 */

#include "cli/proxy_pool.h"
#include "http/client.h"
#include "http/reply.h"
#include "http/server.h"

struct event_base;
struct kvf_events;
struct kvfi_route;

struct kvfi_router_counters {
    uint64_t request_total;
    uint64_t answered_total;
    uint64_t client_left_total;
    uint64_t refused_total; /* no engine, wrong model, bad request */
    uint64_t leg_failed_total[KVFI_SIDE_COUNT];
    uint64_t duplicate_id_total; /* an X-Request-Id that was under way already */
    uint64_t body_bytes_total;
};

struct kvfi_router {
    struct event_base *loop;
    struct kvfi_http_client *client;
    struct kvfi_pool *pool;
    struct kvf_events *events; /* may be NULL */
    uint32_t leg_timeout_ms;   /* first byte of a leg, and each pause after it */
    uint32_t handoff_ms;       /* a prefill engine that dies so soon after its leg takes the cache
                                * that it was sending with it */
    struct kvfi_router_counters counters;
    struct kvfi_route *first; /* all routes, newest first */
    size_t route_count;
    size_t leg_count;
};

/* Takes a completions or chat request: answers it at once when it is refused, else later. */
void kvfi_route_begin(struct kvfi_router *router, const struct kvfi_http_request *request,
                      struct kvfi_reply *reply);

/* The pool's callbacks; ctx is the router. */
void kvfi_router_on_checked(void *ctx, struct kvfi_upstream *upstream);
void kvfi_router_on_down(void *ctx, struct kvfi_upstream *upstream);

/* Ends every route with this reason (503). */
void kvfi_router_end_all(struct kvfi_router *router, const char *reason);

/* {"error":{...,"leg":...,"engine":...,"reason":...}}; side and engine may be absent (NULL engine).
 * New reference, NULL when memory runs out. */
json_t *kvfi_route_error(int http_status, const char *message, enum kvfi_side side,
                         const char *engine, const char *reason);

#endif
