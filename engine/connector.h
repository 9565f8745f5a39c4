/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CONNECTOR_H
#define ENGINE_CONNECTOR_H

/*
 * The P/D connector of this engine: scheduler half, worker and handshake listener of kvferry/kv.h,
 * in the order that its head comment asks for. Engine thread only, but for create and destroy.
 */

#include "engine/cache.h"
#include "engine/kv_hooks.h"

struct engine_connector;

struct engine_connector_options {
    const char *engine_id;
    const char *host;  /* side channel, as peers reach it */
    uint16_t port;     /* 0: the kernel picks */
    const char *model; /* as the compatibility hash covers it */
    uint32_t head_size;
    uint32_t kv_heads;
    uint32_t block_size;
    uint64_t lease_ns;
    uint64_t registration_timeout_ns;
    bool debug_checksums;
    const struct engine_cache *cache; /* lent until destroy */
    struct kvf_metrics *metrics;      /* borrowed until destroy */
    struct kvf_events *events;        /* same; may be NULL */
};

/* Binds the side channel, starts worker and listener. Blocks until they run. Returns owned. */
KVF_MUST_USE enum kvf_status engine_connector_create(const struct engine_connector_options *options,
                                                     struct engine_connector **connector_p,
                                                     struct kvf_error *error);
/* After return nothing touches the cache. NULL is allowed. */
void engine_connector_destroy(struct engine_connector *connector);

uint16_t engine_connector_port(const struct engine_connector *connector);

/* For the scheduler; valid as long as the connector. */
struct engine_kv_hooks engine_connector_hooks(struct engine_connector *connector);

/* Tells the worker what has happened since the last call, when there is something to tell or a
 * deadline is due. Never blocks; what finds no room is told next time. */
void engine_connector_flush(struct engine_connector *connector, uint64_t now_ns);

/* Applies up to a bounded number of results and hands each to `act`. True when there were any. */
typedef void (*engine_result_fn)(void *ctx, uint64_t now_ns, const struct kvf_result *result);
bool engine_connector_take(struct engine_connector *connector, uint64_t now_ns,
                           engine_result_fn act, void *ctx);

/* Readable while results wait. */
int engine_connector_fd(const struct engine_connector *connector);
/* When flush must be called at the latest; UINT64_MAX: not before something happens. */
uint64_t engine_connector_deadline_ns(const struct engine_connector *connector, uint64_t now_ns);

void engine_connector_scheduler_usage(const struct engine_connector *connector,
                                      struct kvf_scheduler_usage *usage);
/* Any thread. */
void engine_connector_worker_usage(const struct engine_connector *connector,
                                   struct kvf_worker_usage *usage);

#endif
