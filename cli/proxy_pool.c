/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_pool.h"

#include "http/loop.h"
#include "kvferry/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ANSWER_BYTES_MAX = 64 * 1024 };

struct kvfi_pool {
    struct event_base *base;
    struct kvfi_http_client *client;
    struct kvfi_pool_options options;
    struct kvfi_upstream **list;
    size_t count;
    size_t next[KVFI_SIDE_COUNT]; /* where the search for the next engine begins */
    bool closing;
};

const char *kvfi_side_name(enum kvfi_side side)
{
    return side == KVFI_SIDE_PREFILL ? "prefill" : "decode";
}

const char *kvfi_upstream_state_name(enum kvfi_upstream_state state)
{
    switch (state) {
    case KVFI_UPSTREAM_UNKNOWN:
        return "unknown";
    case KVFI_UPSTREAM_UP:
        return "up";
    case KVFI_UPSTREAM_DOWN:
        return "down";
    case KVFI_UPSTREAM_UNUSABLE:
        return "unusable";
    }
    return "unknown";
}

uint64_t kvfi_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void probe(struct kvfi_upstream *upstream, bool reads);

/* A third of the time in which an engine may be silent, so that three failures make it down. */
static uint32_t probe_ms(const struct kvfi_pool *pool)
{
    uint32_t ms = pool->options.dead_after_ms / 3;
    return ms ? ms : 1;
}

static bool needs_probes(const struct kvfi_upstream *upstream)
{
    return upstream->leg_count || upstream->watch_count || upstream->first_failure_ms ||
           upstream->state != KVFI_UPSTREAM_UP;
}

static void arm(struct kvfi_upstream *upstream)
{
    if (!needs_probes(upstream) || kvfi_timer_is_armed(upstream->timer))
        return;
    kvfi_timer_arm(upstream->timer, probe_ms(upstream->pool));
}

static void on_timer(void *ctx)
{
    struct kvfi_upstream *upstream = ctx;
    if (!upstream->probe && needs_probes(upstream))
        probe(upstream, upstream->state != KVFI_UPSTREAM_UP);
    arm(upstream);
}

static void set_down(struct kvfi_upstream *upstream, enum kvfi_upstream_state state,
                     const char *reason)
{
    bool was_up = upstream->state == KVFI_UPSTREAM_UP;
    if (upstream->state != state)
        kvf_log(KVF_LOG_WARNING, "%s engine %s is %s: %s", kvfi_side_name(upstream->side),
                upstream->name, kvfi_upstream_state_name(state), reason);
    upstream->state = state;
    upstream->checked_ms = 0;
    snprintf(upstream->reason, sizeof(upstream->reason), "%.*s", (int)sizeof(upstream->reason) - 1,
             reason);
    if (!was_up)
        return;
    upstream->down_total++;
    upstream->pool->options.on_down(upstream->pool->options.ctx, upstream);
}

static void set_up(struct kvfi_upstream *upstream)
{
    if (upstream->state != KVFI_UPSTREAM_UP)
        kvf_log(KVF_LOG_INFO, "%s engine %s is up, id '%s', model '%s'",
                kvfi_side_name(upstream->side), upstream->name, upstream->coordinates.engine_id,
                upstream->model);
    upstream->state = KVFI_UPSTREAM_UP;
    upstream->reason[0] = '\0';
    upstream->first_failure_ms = 0;
    upstream->checked_ms = kvfi_now_ms();
}

static void probe_failed(struct kvfi_upstream *upstream, bool refused, const char *reason)
{
    uint64_t now = kvfi_now_ms();
    upstream->checked_ms = now;
    if (!upstream->first_failure_ms)
        upstream->first_failure_ms = upstream->probe_started_ms;
    uint32_t patience = upstream->pool->options.dead_after_ms;
    /* A refused connection is the kernel's word that nobody listens; silence may be a busy engine.
     * The timers are not exact, so a little less than the whole time counts. */
    bool over = now - upstream->first_failure_ms + patience / 20 >= patience;
    if (refused || over || upstream->state != KVFI_UPSTREAM_UP)
        set_down(upstream, KVFI_UPSTREAM_DOWN, reason);
}

/* What an engine says of itself must fit the side it was given for. */
static enum kvf_status take_coordinates(struct kvfi_upstream *upstream, const json_t *answer,
                                        struct kvf_error *error)
{
    struct kvfi_coordinates read;
    const char *role = NULL;
    const char *mode = NULL;
    const char *model = NULL;
    KVF_TRY(kvfi_coordinates_read(answer, &read, error));
    KVF_TRY(kvfi_json_opt_string(answer, "role", "both", &role, error));
    KVF_TRY(kvfi_json_opt_string(answer, "mode", upstream->pool->options.mode, &mode, error));
    KVF_TRY(kvfi_json_opt_string(answer, "model", "", &model, error));
    const char *side = kvfi_side_name(upstream->side);
    if (strcmp(role, side) != 0 && strcmp(role, "both") != 0)
        return kvf_fail(error, KVF_EMISMATCH,
                        "the engine's role is '%.40s', but it was given as --%s; start it with "
                        "--role %s or --role both",
                        role, side, side);
    if (strcmp(mode, upstream->pool->options.mode) != 0)
        return kvf_fail(error, KVF_EMISMATCH, "the engine's mode is '%.40s', the proxy's is '%s'",
                        mode, upstream->pool->options.mode);
    char started[sizeof(upstream->started)] = "";
    char *text = kvfi_json_dump(json_object_get(answer, "started"), NULL);
    if (text)
        snprintf(started, sizeof(started), "%s", text);
    free(text);
    if (upstream->started[0] && strcmp(started, upstream->started) != 0)
        kvf_log(KVF_LOG_INFO, "%s engine %s has restarted", side, upstream->name);
    memcpy(upstream->started, started, sizeof(started));
    upstream->coordinates = read;
    snprintf(upstream->model, sizeof(upstream->model), "%s", model);
    return KVF_OK;
}

static void read_answer(struct kvfi_upstream *upstream, int http_status)
{
    struct kvf_error error = {0};
    if (http_status == 404 && upstream->side == KVFI_SIDE_DECODE) {
        /* Not kvferry's: nothing needs to be known of a decode engine but that it lives. */
        upstream->foreign = true;
        upstream->probe_again = true;
        return;
    }
    if (http_status != 200) {
        (void)kvf_fail(&error, KVF_ENOTSUP,
                       "GET /kvferry/coordinates answers %d; if it is not a kvferry engine, give "
                       "its coordinates: --prefill URL,engine-id=ID,side=HOST:PORT",
                       http_status);
        if (http_status >= 500)
            probe_failed(upstream, false, error.text);
        else
            set_down(upstream, KVFI_UPSTREAM_UNUSABLE, error.text);
        return;
    }
    json_t *answer = NULL;
    enum kvf_status status =
        kvfi_json_parse_object("/kvferry/coordinates", upstream->answer ? upstream->answer : "",
                               upstream->answer_len, &answer, &error);
    if (status == KVF_OK)
        status = take_coordinates(upstream, answer, &error);
    json_decref(answer);
    if (status == KVF_OK)
        set_up(upstream);
    else
        set_down(upstream, KVFI_UPSTREAM_UNUSABLE, error.text);
}

static void on_probe_body(void *ctx, const char *data, size_t len)
{
    struct kvfi_upstream *upstream = ctx;
    if (!upstream->probe_reads)
        return;
    char *grown = realloc(upstream->answer, upstream->answer_len + len);
    if (!grown) {
        kvfi_http_call_cancel(upstream->probe);
        return;
    }
    memcpy(grown + upstream->answer_len, data, len);
    upstream->answer = grown;
    upstream->answer_len += len;
}

static void on_probe_done(void *ctx, const struct kvfi_http_result *result)
{
    struct kvfi_upstream *upstream = ctx;
    struct kvfi_pool *pool = upstream->pool;
    upstream->probe = NULL;
    upstream->ended_ms = kvfi_now_ms();
    if (pool->closing)
        return;
    bool again = upstream->probe_again && result->status == KVF_OK;
    upstream->probe_again = false;
    if (result->status != KVF_OK) {
        probe_failed(upstream, !result->connected && result->status == KVF_EDISCONNECTED,
                     result->reason);
    } else if (upstream->probe_reads) {
        read_answer(upstream, result->http_status);
    } else if (result->http_status == 200) {
        uint64_t checked_ms = upstream->checked_ms;
        set_up(upstream);
        if (!upstream->foreign)
            upstream->checked_ms = checked_ms;
    } else {
        char text[80];
        snprintf(text, sizeof(text), "GET /health answers %d", result->http_status);
        probe_failed(upstream, false, text);
    }
    free(upstream->answer);
    upstream->answer = NULL;
    upstream->answer_len = 0;
    if (again || upstream->probe_again) {
        upstream->probe_again = false;
        probe(upstream, true);
        if (upstream->probe)
            return;
    }
    arm(upstream);
    pool->options.on_checked(pool->options.ctx, upstream);
}

static void probe(struct kvfi_upstream *upstream, bool reads)
{
    struct kvfi_pool *pool = upstream->pool;
    upstream->probe_reads = reads && !upstream->foreign;
    upstream->probe_started_ms = kvfi_now_ms();
    struct kvfi_http_call_options options = {
        .host = upstream->url.host,
        .port = upstream->url.port,
        .method = "GET",
        .path = upstream->probe_reads ? upstream->describe : upstream->health,
        .connect_timeout_ms = probe_ms(pool),
        .head_timeout_ms = probe_ms(pool),
        .body_timeout_ms = probe_ms(pool),
        .body_bytes_max = ANSWER_BYTES_MAX,
    };
    struct kvfi_http_call_events events = {
        .on_body = on_probe_body, .on_done = on_probe_done, .ctx = upstream};
    struct kvf_error error = {0};
    if (kvfi_http_call_start(pool->client, &options, &events, &upstream->probe, &error) != KVF_OK)
        probe_failed(upstream, false, error.text);
    arm(upstream);
}

enum kvf_status kvfi_pool_create(struct event_base *base, struct kvfi_http_client *client,
                                 const struct kvfi_pool_options *options, struct kvfi_pool **pool_p,
                                 struct kvf_error *error)
{
    struct kvfi_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy's engines");
    pool->base = base;
    pool->client = client;
    pool->options = *options;
    *pool_p = pool;
    return KVF_OK;
}

static void free_upstream(struct kvfi_upstream *upstream)
{
    kvfi_timer_destroy(upstream->timer);
    free(upstream->answer);
    free(upstream->name);
    free(upstream);
}

void kvfi_pool_close(struct kvfi_pool *pool)
{
    pool->closing = true;
}

void kvfi_pool_destroy(struct kvfi_pool *pool)
{
    if (!pool)
        return;
    for (size_t i = 0; i < pool->count; i++)
        free_upstream(pool->list[i]);
    free(pool->list);
    free(pool);
}

enum kvf_status kvfi_pool_add(struct kvfi_pool *pool, enum kvfi_side side, const char *spec,
                              struct kvf_error *error)
{
    struct kvfi_upstream **list =
        realloc(pool->list, (pool->count + 1) * sizeof(struct kvfi_upstream *));
    if (!list)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy's engines");
    pool->list = list;
    struct kvfi_upstream *upstream = calloc(1, sizeof(*upstream));
    if (!upstream)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the proxy's engines");
    upstream->pool = pool;
    enum kvf_status status = kvfi_upstream_parse(side, spec, upstream, error);
    if (status == KVF_OK) {
        upstream->timer = kvfi_timer_create(pool->base, on_timer, upstream);
        if (!upstream->timer)
            status = kvf_fail(error, KVF_ENOMEM, "no memory for the proxy's engines");
    }
    if (status != KVF_OK) {
        free_upstream(upstream);
        return status;
    }
    pool->list[pool->count++] = upstream;
    probe(upstream, true);
    return KVF_OK;
}

static enum kvf_status none_up(const struct kvfi_pool *pool, enum kvfi_side side, uint64_t since_ms,
                               struct kvf_error *error)
{
    char text[sizeof(error->text)] = "";
    size_t len = 0;
    for (size_t i = 0; i < pool->count && len < sizeof(text); i++) {
        const struct kvfi_upstream *upstream = pool->list[i];
        if (upstream->side != side)
            continue;
        if (upstream->probe && upstream->ended_ms <= since_ms)
            return KVF_IN_PROGRESS;
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s (%s)", len ? "; " : "",
                                upstream->name, upstream->reason);
    }
    return kvf_fail(error, KVF_ENOTFOUND, "no %s engine is available: %s", kvfi_side_name(side),
                    text);
}

enum kvf_status kvfi_pool_choose(struct kvfi_pool *pool, enum kvfi_side side, uint64_t since_ms,
                                 struct kvfi_upstream **upstream_p, struct kvf_error *error)
{
    struct kvfi_upstream *best = NULL;
    size_t best_at = 0;
    for (size_t i = 0; i < pool->count; i++) {
        size_t at = (pool->next[side] + i) % pool->count;
        struct kvfi_upstream *upstream = pool->list[at];
        if (upstream->side != side || upstream->state != KVFI_UPSTREAM_UP)
            continue;
        bool better =
            !best || (pool->options.least_outstanding && upstream->leg_count < best->leg_count);
        if (!better)
            continue;
        best = upstream;
        best_at = at;
    }
    if (!best)
        return none_up(pool, side, since_ms, error);
    pool->next[side] = (best_at + 1) % pool->count;
    *upstream_p = best;
    return KVF_OK;
}

void kvfi_pool_revive(struct kvfi_pool *pool, enum kvfi_side side)
{
    for (size_t i = 0; i < pool->count; i++) {
        struct kvfi_upstream *upstream = pool->list[i];
        if (upstream->side == side && upstream->state != KVFI_UPSTREAM_UP && !upstream->probe)
            probe(upstream, true);
    }
}

enum kvf_status kvfi_upstream_refresh(struct kvfi_upstream *upstream, uint64_t since_ms)
{
    uint64_t age = kvfi_now_ms() - upstream->checked_ms;
    bool fresh = age < upstream->pool->options.fresh_ms || upstream->checked_ms > since_ms;
    if (upstream->checked_ms && fresh)
        return KVF_OK;
    if (!upstream->probe)
        probe(upstream, true);
    else if (!upstream->probe_reads && !upstream->foreign)
        upstream->probe_again = true;
    /* A probe that could not even be started has set checked_ms: use what is known. */
    return upstream->probe ? KVF_IN_PROGRESS : KVF_OK;
}

void kvfi_upstream_suspect(struct kvfi_upstream *upstream)
{
    upstream->checked_ms = 0;
    upstream->failure_total++;
    if (!upstream->probe && !upstream->pool->closing)
        probe(upstream, true);
}

void kvfi_upstream_hold(struct kvfi_upstream *upstream)
{
    upstream->leg_count++;
    arm(upstream);
}

void kvfi_upstream_release(struct kvfi_upstream *upstream)
{
    upstream->leg_count--;
}

void kvfi_upstream_watch(struct kvfi_upstream *upstream)
{
    upstream->watch_count++;
    arm(upstream);
}

void kvfi_upstream_unwatch(struct kvfi_upstream *upstream)
{
    upstream->watch_count--;
}

const struct kvfi_upstream *kvfi_pool_at(const struct kvfi_pool *pool, size_t index)
{
    return index < pool->count ? pool->list[index] : NULL;
}
