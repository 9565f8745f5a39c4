/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reply_taken(struct kvfi_reply *reply, json_t *body)
{
    if (body)
        kvfi_reply_json(reply, 200, body);
    else
        kvfi_reply_error(reply, 503, NULL, "no memory for the response");
    json_decref(body);
}

static void health(void *ctx, const struct kvfi_http_request *request, struct kvfi_reply *reply)
{
    (void)ctx;
    (void)request;
    kvfi_reply_bytes(reply, 200, "text/plain", "", 0);
}

static void models(void *ctx, const struct kvfi_http_request *request, struct kvfi_reply *reply)
{
    (void)request;
    const struct engine_api *api = ctx;
    const struct engine_info *info = engine_info(api->engine);
    reply_taken(reply, json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:s, s:n, s:I}]}", "object", "list",
                                 "data", "id", info->model_name, "object", "model", "created",
                                 (json_int_t)info->started_unix_s, "owned_by", "kvferry", "root",
                                 info->model_name, "parent", "max_model_len",
                                 (json_int_t)info->model_len_max));
}

static void coordinates(void *ctx, const struct kvfi_http_request *request,
                        struct kvfi_reply *reply)
{
    (void)request;
    const struct engine_api *api = ctx;
    const struct engine_info *info = engine_info(api->engine);
    reply_taken(reply, json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:I}", "engine_id",
                                 info->engine_id, "host", info->side_host, "port",
                                 (int)info->side_port, "tp_size", 1, "pp_size", 1, "role",
                                 engine_role_name(info->role), "mode", "push", "model",
                                 info->model_name, "started", (json_int_t)info->started_unix_s));
}

/* ---- usage ---------------------------------------------------------------------------------- */

static json_t *engine_usage(const struct engine_api *api,
                            const struct engine_scheduler_usage *usage)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "blocks",
                     (json_int_t)usage->blocks_total, "free_blocks", (json_int_t)usage->blocks_free,
                     "cached_blocks", (json_int_t)usage->blocks_cached, "used_blocks",
                     (json_int_t)(usage->blocks_total - usage->blocks_free), "held_blocks",
                     (json_int_t)usage->blocks_held, "waiting", (json_int_t)usage->waiting,
                     "parked", (json_int_t)usage->parked, "ready", (json_int_t)usage->ready,
                     "running", (json_int_t)usage->running, "held", (json_int_t)usage->held,
                     "calls", (json_int_t)api->call_count);
}

static json_t *worker_usage(const struct kvf_worker_usage *usage)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:I}}",
        "registrations", (json_int_t)usage->registrations, "staged", (json_int_t)usage->staged,
        "deferred", (json_int_t)usage->deferred, "writes", (json_int_t)usage->writes, "leases",
        (json_int_t)usage->leases, "receives", (json_int_t)usage->receives, "quarantined",
        (json_int_t)usage->quarantined, "handshakes", (json_int_t)usage->handshakes, "peers",
        (json_int_t)usage->peers, "tombstones", (json_int_t)usage->tombstones, "agent", "regions",
        (json_int_t)usage->agent.regions, "peers", (json_int_t)usage->agent.peers, "peers_closing",
        (json_int_t)usage->agent.peers_closing, "transfers", (json_int_t)usage->agent.transfers,
        "notifications", (json_int_t)usage->agent.notifications);
}

static void usage(void *ctx, const struct kvfi_http_request *request, struct kvfi_reply *reply)
{
    (void)request;
    const struct engine_api *api = ctx;
    struct engine_snapshot snapshot;
    engine_snapshot(api->engine, &snapshot);
    const struct kvf_scheduler_usage *kv = &snapshot.kv_scheduler;
    reply_taken(reply,
                json_pack("{s:o, s:{s:I, s:I, s:I, s:I}, s:o}", "engine",
                          engine_usage(api, &snapshot.scheduler), "scheduler", "requests",
                          (json_int_t)kv->requests, "receiving", (json_int_t)kv->receiving, "held",
                          (json_int_t)kv->held, "quarantined", (json_int_t)kv->quarantined,
                          "worker", worker_usage(&snapshot.kv_worker)));
}

/* ---- metrics -------------------------------------------------------------------------------- */

static void KVF_PRINTF(2, 3) print(struct engine_text *text, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    /* clang 14 loses track of va_start when it checks several files in one run. */
    int len = vsnprintf(line, sizeof(line), fmt, args); /* NOLINT(clang-analyzer-valist.*) */
    va_end(args);
    /* A line that finds no memory is missing; the next scrape has it. */
    if (len > 0 && (size_t)len < sizeof(line) &&
        engine_text_append(text, line, (size_t)len) != KVF_OK)
        return;
}

static void print_one(struct engine_text *text, const char *labels, const char *name,
                      const char *type, const char *help, double value)
{
    print(text, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %.17g\n", name, help, name, type, name, labels,
          value);
}

/* The label set with a quoted model name in it. */
static void make_labels(const char *model_name, char *labels, size_t cap)
{
    char quoted[300];
    size_t len = 0;
    for (const char *c = model_name; *c && len < sizeof(quoted) - 3; c++) {
        if (*c == '"' || *c == '\\')
            quoted[len++] = '\\';
        quoted[len++] = *c == '\n' ? ' ' : *c;
    }
    quoted[len] = '\0';
    (void)snprintf(labels, cap, "model_name=\"%s\",engine=\"0\"", quoted);
}

static void print_engine(struct engine_text *text, const char *labels,
                         const struct engine_scheduler_usage *u)
{
    double used = u->blocks_total ? 1.0 - (double)u->blocks_free / u->blocks_total : 0;
    print_one(text, labels, "vllm:num_requests_running", "gauge", "Requests in the running batch",
              u->running);
    print_one(text, labels, "vllm:num_requests_waiting", "gauge",
              "Requests that wait, for room or for KV blocks", u->waiting + u->parked + u->ready);
    print_one(text, labels, "vllm:kv_cache_usage_perc", "gauge", "KV cache in use, 1 is all of it",
              used);
    print_one(text, labels, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed",
              (double)u->prompt_tokens);
    print_one(text, labels, "vllm:generation_tokens_total", "counter", "Tokens generated",
              (double)u->generation_tokens);
    print_one(text, labels, "vllm:num_preemptions_total", "counter", "Preemptions",
              (double)u->preemptions);
    print_one(text, labels, "vllm:prefix_cache_queries_total", "counter",
              "Prompt tokens looked up in the prefix cache", (double)u->prompt_tokens);
    print_one(text, labels, "vllm:prefix_cache_hits_total", "counter",
              "Prompt tokens found in the prefix cache", (double)u->cached_tokens);
    print(text, "# HELP vllm:request_success_total Requests that ended, by reason\n"
                "# TYPE vllm:request_success_total counter\n");
    for (enum engine_finish reason = ENGINE_FINISH_STOP; reason <= ENGINE_FINISH_ERROR; reason++)
        print(text, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", labels,
              engine_finish_name(reason), (unsigned long long)u->finished[reason]);
    print(text,
          "# HELP vllm:num_requests_kv_fetch_by_stage Requests that take their KV from another "
          "engine\n# TYPE vllm:num_requests_kv_fetch_by_stage gauge\n"
          "vllm:num_requests_kv_fetch_by_stage{%s,stage=\"waiting_to_start\"} %u\n"
          "vllm:num_requests_kv_fetch_by_stage{%s,stage=\"in_progress\"} %u\n"
          "vllm:num_requests_kv_fetch_by_stage{%s,stage=\"completed_waiting\"} %u\n",
          labels, u->waiting_remote, labels, u->parked, labels, u->ready);
    print_one(text, labels, "kvferry:held_blocks", "gauge",
              "Blocks of ended requests that wait for a transfer", u->blocks_held);
    print_one(text, labels, "kvferry:engine_steps_total", "counter", "Forward passes",
              (double)u->steps);
}

static void print_http(struct engine_text *text, const char *labels,
                       const struct kvfi_http_server_counters *http)
{
    print_one(text, labels, "kvferry:http_requests_total", "counter", "HTTP requests",
              (double)http->request_count);
    print_one(text, labels, "kvferry:http_connections", "gauge", "Open HTTP connections",
              (double)http->open_count);
    print_one(text, labels, "kvferry:http_malformed_total", "counter",
              "HTTP requests that were malformed or over a limit", (double)http->malformed_count);
    print_one(text, labels, "kvferry:http_clients_gone_total", "counter",
              "Clients that left before their answer was complete", (double)http->gone_count);
}

static void metrics(void *ctx, const struct kvfi_http_request *request, struct kvfi_reply *reply)
{
    (void)request;
    const struct engine_api *api = ctx;
    const struct kvf_metrics *kv = engine_metrics(api->engine);
    struct engine_snapshot snapshot;
    engine_snapshot(api->engine, &snapshot);
    char labels[400];
    make_labels(api->limits.model_name, labels, sizeof(labels));
    struct engine_text text = {0};
    print_engine(&text, labels, &snapshot.scheduler);
    print_http(&text, labels, kvfi_http_server_counters(api->server));
    print_one(&text, labels, "kvferry:remotes_refused_total", "counter",
              "Requests that named a host outside --allow-remote", (double)api->remotes_refused);
    print_one(&text, labels, "kvferry:engine_turns_total", "counter",
              "Turns of the engine's loop; an idle engine makes none", (double)snapshot.turns);
    size_t len = kvf_metrics_render(kv, labels, NULL, 0);
    char *kv_text = malloc(len + 1);
    if (!kv_text || !text.data) {
        kvfi_reply_error(reply, 503, NULL, "no memory for the metrics");
    } else {
        size_t got = kvf_metrics_render(kv, labels, kv_text, len + 1);
        /* Counters that grew a digit in between are cut at the end of a line. */
        if (got > len)
            got = (size_t)((char *)memrchr(kv_text, '\n', len) - kv_text + 1);
        if (engine_text_append(&text, kv_text, got) == KVF_OK)
            kvfi_reply_bytes(reply, 200, "text/plain; version=0.0.4", text.data, text.len);
        else
            kvfi_reply_error(reply, 503, NULL, "no memory for the metrics");
    }
    free(kv_text);
    engine_text_free(&text);
}

enum kvf_status api_info_routes(struct engine_api *api)
{
    static const struct {
        const char *path;
        kvfi_http_handler_fn handler;
    } routes[] = {
        {"/health", health},       {"/v1/models", models},
        {"/metrics", metrics},     {"/kvferry/coordinates", coordinates},
        {"/kvferry/usage", usage},
    };
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
        KVF_TRY(kvfi_http_server_route(api->server, "GET", routes[i].path, routes[i].handler, api));
    return KVF_OK;
}
