/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_PROXY_H
#define KVFERRY_CLI_PROXY_H

/*
 * The proxy as one object on one loop: server, client, pool, router. `kvferry proxy` runs it as a
 * process, its tests run it beside fake engines. One thread.
 */

#include "cli/proxy_route.h"

struct kvfi_proxy;

struct kvfi_proxy_options {
    const char *host;
    uint16_t port;        /* 0: the kernel picks */
    char *const *prefill; /* specs, see kvfi_pool_add */
    size_t prefill_count;
    char *const *decode;
    size_t decode_count;
    uint32_t leg_timeout_ms;
    uint32_t dead_after_ms;
    uint32_t fresh_ms;
    bool least_outstanding;
    uint32_t connection_count_max;
    size_t body_bytes_max;
    struct kvf_events *events; /* borrowed, may be NULL */
};

/* Listens and begins to probe the engines. Errors name what to change. Returned owned. */
KVF_MUST_USE enum kvf_status kvfi_proxy_create(struct event_base *loop,
                                               const struct kvfi_proxy_options *options,
                                               struct kvfi_proxy **proxy_p,
                                               struct kvf_error *error);
/* Cancels what is under way and frees. NULL is allowed. */
void kvfi_proxy_destroy(struct kvfi_proxy *proxy);

uint16_t kvfi_proxy_port(const struct kvfi_proxy *proxy);

/* Refuses new connections and ends every request with an error. done is called, from the loop,
 * when all replies are out or wait_ms have passed. */
void kvfi_proxy_shut_down(struct kvfi_proxy *proxy, uint32_t wait_ms, void (*done)(void *ctx),
                          void *ctx);

/* The router's counts, for tests and reports. */
const struct kvfi_router *kvfi_proxy_router(const struct kvfi_proxy *proxy);

/* Reports, in proxy_report.c: Prometheus text (heap, free() it, NULL when memory runs out), what is
 * under way (new reference), and whether both sides have an engine (new reference). */
char *kvfi_proxy_metrics(const struct kvfi_router *router,
                         const struct kvfi_http_server_counters *http, size_t *len_p);
json_t *kvfi_proxy_usage(const struct kvfi_router *router);
json_t *kvfi_proxy_health(const struct kvfi_router *router, bool *healthy_p);

#endif
