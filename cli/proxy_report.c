/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the proxy says of itself. */

static void family(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void counter(FILE *out, const char *name, const char *help, uint64_t value)
{
    char total[96];
    snprintf(total, sizeof(total), "%s_total", name);
    family(out, total, "counter", help);
    fprintf(out, "%s %" PRIu64 "\n", total, value);
}

static void gauge(FILE *out, const char *name, const char *help, uint64_t value)
{
    family(out, name, "gauge", help);
    fprintf(out, "%s %" PRIu64 "\n", name, value);
}

/* A label value: backslash, quote and line break are escaped. */
static void label(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            fputc('\\', out);
        fputc(*text == '\n' ? ' ' : *text, out);
    }
}

enum engine_figure { ENGINE_UP, ENGINE_LEGS, ENGINE_LEG_TOTAL, ENGINE_FAILED, ENGINE_DOWN };

static uint64_t figure_of(const struct kvfi_upstream *upstream, enum engine_figure figure)
{
    switch (figure) {
    case ENGINE_UP:
        return upstream->state == KVFI_UPSTREAM_UP;
    case ENGINE_LEGS:
        return upstream->leg_count;
    case ENGINE_LEG_TOTAL:
        return upstream->leg_total;
    case ENGINE_FAILED:
        return upstream->failure_total;
    case ENGINE_DOWN:
        return upstream->down_total;
    }
    return 0;
}

static void per_engine(FILE *out, const struct kvfi_pool *pool, const char *name, const char *type,
                       const char *help, enum engine_figure figure)
{
    family(out, name, type, help);
    for (size_t i = 0; kvfi_pool_at(pool, i); i++) {
        const struct kvfi_upstream *upstream = kvfi_pool_at(pool, i);
        fprintf(out, "%s{side=\"%s\",engine=\"", name, kvfi_side_name(upstream->side));
        label(out, upstream->name);
        fprintf(out, "\"} %" PRIu64 "\n", figure_of(upstream, figure));
    }
}

char *kvfi_proxy_metrics(const struct kvfi_router *router,
                         const struct kvfi_http_server_counters *http, size_t *len_p)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, len_p);
    if (!out)
        return NULL;
    const struct kvfi_router_counters *counts = &router->counters;
    counter(out, "kvferry:proxy_requests", "Requests to route", counts->request_total);
    counter(out, "kvferry:proxy_answered", "Requests answered in full", counts->answered_total);
    counter(out, "kvferry:proxy_refused", "Requests refused: malformed, no engine, other model",
            counts->refused_total);
    counter(out, "kvferry:proxy_client_left", "Requests whose client left or did not read",
            counts->client_left_total);
    counter(out, "kvferry:proxy_duplicate_ids", "Request ids replaced because they were in use",
            counts->duplicate_id_total);
    counter(out, "kvferry:proxy_body_bytes", "Bytes of answers handed on",
            counts->body_bytes_total);
    family(out, "kvferry:proxy_legs_failed_total", "counter", "Requests ended by a failed leg");
    for (int side = 0; side < KVFI_SIDE_COUNT; side++)
        fprintf(out, "kvferry:proxy_legs_failed_total{side=\"%s\"} %" PRIu64 "\n",
                kvfi_side_name((enum kvfi_side)side), counts->leg_failed_total[side]);
    gauge(out, "kvferry:proxy_requests_running", "Requests under way", router->route_count);
    gauge(out, "kvferry:proxy_legs_running", "Legs under way", router->leg_count);
    per_engine(out, router->pool, "kvferry:proxy_engine_up", "gauge", "1: the engine can be used",
               ENGINE_UP);
    per_engine(out, router->pool, "kvferry:proxy_engine_legs_running", "gauge",
               "Legs under way on the engine", ENGINE_LEGS);
    per_engine(out, router->pool, "kvferry:proxy_engine_legs_total", "counter",
               "Legs sent to the engine", ENGINE_LEG_TOTAL);
    per_engine(out, router->pool, "kvferry:proxy_engine_failures_total", "counter",
               "Legs that the engine failed", ENGINE_FAILED);
    per_engine(out, router->pool, "kvferry:proxy_engine_down_total", "counter",
               "Times the engine went down", ENGINE_DOWN);
    counter(out, "kvferry:http_connections", "Connections accepted", http->accepted_count);
    counter(out, "kvferry:http_requests", "Requests read", http->request_count);
    counter(out, "kvferry:http_malformed", "Requests refused as malformed or too large",
            http->malformed_count);
    counter(out, "kvferry:http_timeouts", "Clients that sent no complete request in time",
            http->timeout_count);
    counter(out, "kvferry:http_clients_gone", "Clients that left before their answer ended",
            http->gone_count);
    counter(out, "kvferry:http_clients_slow", "Clients dropped because they did not read",
            http->slow_count);
    counter(out, "kvferry:http_connections_refused", "Connections over the limit",
            http->refused_count);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

static json_t *engines(const struct kvfi_pool *pool)
{
    json_t *list = json_array();
    for (size_t i = 0; list && kvfi_pool_at(pool, i); i++) {
        const struct kvfi_upstream *upstream = kvfi_pool_at(pool, i);
        json_t *entry =
            json_pack("{s:s,s:s,s:s,s:s,s:s}", "side", kvfi_side_name(upstream->side), "url",
                      upstream->name, "state", kvfi_upstream_state_name(upstream->state), "model",
                      upstream->model, "reason", upstream->reason);
        if (!entry || json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

json_t *kvfi_proxy_usage(const struct kvfi_router *router)
{
    return json_pack("{s:I,s:I,s:o}", "requests", (json_int_t)router->route_count, "legs",
                     (json_int_t)router->leg_count, "engines", engines(router->pool));
}

json_t *kvfi_proxy_health(const struct kvfi_router *router, bool *healthy_p)
{
    bool up[KVFI_SIDE_COUNT] = {false, false};
    for (size_t i = 0; kvfi_pool_at(router->pool, i); i++) {
        const struct kvfi_upstream *upstream = kvfi_pool_at(router->pool, i);
        up[upstream->side] |= upstream->state == KVFI_UPSTREAM_UP;
    }
    *healthy_p = up[KVFI_SIDE_PREFILL] && up[KVFI_SIDE_DECODE];
    return json_pack("{s:s,s:o}", "status", *healthy_p ? "ok" : "unavailable", "engines",
                     engines(router->pool));
}
