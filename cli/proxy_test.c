/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy.h"
#include "http/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A proxy, fake engines that do what a test wants, and a client, all on one loop. */

enum behaviour {
    ANSWERS,   /* a whole JSON answer */
    STREAMS,   /* three events and [DONE] */
    BEGINS,    /* the first event, then nothing */
    CUTS,      /* the first event, then a cut */
    FAILS_500, /* an error answer */
    REFUSES_400,
    HANGS, /* takes the request and says nothing */
};

struct engine {
    struct kvfi_http_server *server;
    const char *role;
    const char *model;
    const char *mode;
    int started;
    enum behaviour behaviour;
    bool deaf; /* answers no probe either */
    int request_count;
    int left_count; /* requests whose client went away */
    json_t *body;   /* of the last request */
    char request_id[160];
    char path[64];
    struct kvfi_reply *held;
};

enum { ENGINE_COUNT_MAX = 4 };

struct rig {
    struct event_base *loop;
    struct engine engines[ENGINE_COUNT_MAX];
    char *specs[ENGINE_COUNT_MAX];
    size_t prefill_count;
    size_t decode_count;
    struct kvfi_proxy *proxy;
    struct kvfi_http_client *client;
};

struct answer {
    struct kvfi_http_call *call;
    bool done;
    enum kvf_status status;
    int http_status;
    char text[4096];
    char type[80];
    char request_id[160];
};

static void on_end(void *ctx, enum kvfi_reply_end end)
{
    struct engine *engine = ctx;
    engine->left_count += end == KVFI_REPLY_GONE;
    engine->held = NULL;
}

static void handle_coordinates(void *ctx, const struct kvfi_http_request *request,
                               struct kvfi_reply *reply)
{
    struct engine *engine = ctx;
    if (engine->deaf)
        return;
    json_t *body =
        json_pack("{s:s,s:s,s:i,s:i,s:i,s:s,s:s,s:s,s:i}", "engine_id", "engine-p", "host",
                  "10.0.0.1", "port", 5600, "tp_size", 2, "pp_size", 1, "role", engine->role,
                  "mode", engine->mode, "model", engine->model, "started", engine->started);
    kvfi_reply_json(reply, 200, body);
    json_decref(body);
}

static void handle_health(void *ctx, const struct kvfi_http_request *request,
                          struct kvfi_reply *reply)
{
    struct engine *engine = ctx;
    if (!engine->deaf)
        kvfi_reply_bytes(reply, 200, "text/plain", "", 0);
}

static void handle_models(void *ctx, const struct kvfi_http_request *request,
                          struct kvfi_reply *reply)
{
    kvfi_reply_bytes(reply, 200, "application/json", "{\"data\":[]}", 11);
}

static void stream(struct engine *engine, struct kvfi_reply *reply)
{
    assert_int_equal(kvfi_reply_sse_start(reply), KVF_OK);
    int count = engine->behaviour == STREAMS ? 3 : 1;
    for (int i = 0; i < count; i++)
        assert_int_equal(kvfi_reply_sse_event(reply, "{\"t\":1}", 7), KVF_OK);
    if (engine->behaviour == STREAMS)
        kvfi_reply_sse_done(reply);
    else if (engine->behaviour == CUTS)
        kvfi_reply_cut(reply);
}

static void handle_generate(void *ctx, const struct kvfi_http_request *request,
                            struct kvfi_reply *reply)
{
    struct engine *engine = ctx;
    const char *id = kvfi_http_headers_find(request->headers, "x-request-id");
    engine->request_count++;
    json_decref(engine->body);
    engine->body = json_loadb(request->body, request->body_len, 0, NULL);
    snprintf(engine->request_id, sizeof(engine->request_id), "%s", id ? id : "");
    snprintf(engine->path, sizeof(engine->path), "%s", request->path);
    engine->held = reply;
    kvfi_reply_on_end(reply, on_end, engine);
    switch (engine->behaviour) {
    case ANSWERS:
        kvfi_reply_bytes(reply, 200, "application/json", "{\"whole\":true}", 14);
        break;
    case STREAMS:
    case BEGINS:
    case CUTS:
        stream(engine, reply);
        break;
    case FAILS_500:
        kvfi_reply_error(reply, 500, NULL, "the engine is unwell");
        break;
    case REFUSES_400:
        kvfi_reply_error(reply, 400, NULL, "temperature is too hot");
        break;
    case HANGS:
        break;
    }
}

static void open_engine(struct rig *rig, struct engine *engine, uint16_t port)
{
    struct kvfi_http_server_options options = kvfi_http_server_defaults();
    options.port = port;
    struct kvf_error error = {0};
    if (kvfi_http_server_create(rig->loop, &options, &engine->server, &error) != KVF_OK)
        fail_msg("%s", error.text);
    struct kvfi_http_server *server = engine->server;
    assert_int_equal(
        kvfi_http_server_route(server, "GET", "/kvferry/coordinates", handle_coordinates, engine),
        KVF_OK);
    assert_int_equal(kvfi_http_server_route(server, "GET", "/health", handle_health, engine),
                     KVF_OK);
    assert_int_equal(kvfi_http_server_route(server, "GET", "/v1/models", handle_models, engine),
                     KVF_OK);
    assert_int_equal(
        kvfi_http_server_route(server, "POST", "/v1/completions", handle_generate, engine), KVF_OK);
    assert_int_equal(
        kvfi_http_server_route(server, "POST", "/v1/chat/completions", handle_generate, engine),
        KVF_OK);
}

/* The first prefill_count engines are prefill engines. They can be changed before begin_proxy. */
static void start(struct rig *rig, size_t prefill_count, size_t decode_count)
{
    *rig = (struct rig){
        .loop = kvfi_loop_create(), .prefill_count = prefill_count, .decode_count = decode_count};
    for (size_t i = 0; i < prefill_count + decode_count; i++) {
        struct engine *engine = &rig->engines[i];
        bool prefill = i < prefill_count;
        *engine = (struct engine){.role = prefill ? "prefill" : "decode",
                                  .model = "m",
                                  .mode = "push",
                                  .started = 1,
                                  .behaviour = prefill ? ANSWERS : STREAMS};
        open_engine(rig, engine, 0);
        rig->specs[i] = malloc(64);
        assert_non_null(rig->specs[i]);
        snprintf(rig->specs[i], 64, "http://127.0.0.1:%u", kvfi_http_server_port(engine->server));
    }
    assert_int_equal(kvfi_http_client_create(rig->loop, &rig->client, NULL), KVF_OK);
}

static struct kvfi_proxy_options proxy_options(const struct rig *rig)
{
    return (struct kvfi_proxy_options){.host = "127.0.0.1",
                                       .prefill = rig->specs,
                                       .prefill_count = rig->prefill_count,
                                       .decode = rig->specs + rig->prefill_count,
                                       .decode_count = rig->decode_count,
                                       .leg_timeout_ms = 60000,
                                       .dead_after_ms = 6000,
                                       .fresh_ms = 2000,
                                       .least_outstanding = true,
                                       .connection_count_max = 64,
                                       .body_bytes_max = (size_t)1024 * 1024};
}

static void begin_proxy_with(struct rig *rig, const struct kvfi_proxy_options *options)
{
    struct kvf_error error = {0};
    if (kvfi_proxy_create(rig->loop, options, &rig->proxy, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void begin_proxy(struct rig *rig)
{
    struct kvfi_proxy_options options = proxy_options(rig);
    begin_proxy_with(rig, &options);
}

static void stop(struct rig *rig)
{
    kvfi_http_client_destroy(rig->client);
    kvfi_proxy_destroy(rig->proxy);
    for (size_t i = 0; i < ENGINE_COUNT_MAX; i++) {
        kvfi_http_server_destroy(rig->engines[i].server);
        json_decref(rig->engines[i].body);
        free(rig->specs[i]);
    }
    kvfi_loop_destroy(rig->loop);
}

static void on_head(void *ctx, int http_status, const struct kvfi_http_headers *headers)
{
    struct answer *answer = ctx;
    const char *type = kvfi_http_headers_find(headers, "content-type");
    const char *id = kvfi_http_headers_find(headers, "x-request-id");
    snprintf(answer->type, sizeof(answer->type), "%s", type ? type : "");
    snprintf(answer->request_id, sizeof(answer->request_id), "%s", id ? id : "");
    answer->http_status = http_status;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct answer *answer = ctx;
    size_t used = strlen(answer->text);
    snprintf(answer->text + used, sizeof(answer->text) - used, "%.*s", (int)len, data);
}

static void on_done(void *ctx, const struct kvfi_http_result *result)
{
    struct answer *answer = ctx;
    answer->done = true;
    answer->status = result->status;
}

static void send_request(struct rig *rig, struct answer *answer, const char *method,
                         const char *path, const char *body, const char *request_id)
{
    struct kvfi_http_header header = {.name = "X-Request-Id", .value = request_id};
    struct kvfi_http_call_options options = {.host = "127.0.0.1",
                                             .port = kvfi_proxy_port(rig->proxy),
                                             .method = method,
                                             .path = path,
                                             .content_type = body ? "application/json" : NULL,
                                             .body = body,
                                             .body_len = body ? strlen(body) : 0,
                                             .headers = &header,
                                             .header_count = request_id ? 1 : 0};
    struct kvfi_http_call_events events = {
        .on_head = on_head, .on_body = on_body, .on_done = on_done, .ctx = answer};
    struct kvf_error error = {0};
    memset(answer, 0, sizeof(*answer));
    if (kvfi_http_call_start(rig->client, &options, &events, &answer->call, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void complete(struct rig *rig, struct answer *answer, const char *body)
{
    send_request(rig, answer, "POST", "/v1/completions", body, NULL);
}

#define WAIT(rig, condition)                                                                       \
    while (!(condition))                                                                           \
    kvfi_loop_step((rig)->loop, true)

static const char hello[] = "{\"model\":\"m\",\"prompt\":\"hello\",\"stream\":true}";

static void wait_rest(struct rig *rig)
{
    WAIT(rig, kvfi_proxy_router(rig->proxy)->route_count == 0 &&
                  kvfi_proxy_router(rig->proxy)->leg_count == 0);
}

static void assert_error(struct rig *rig, struct answer *answer, int http_status, const char *words)
{
    WAIT(rig, answer->done);
    if (answer->http_status != http_status || !strstr(answer->text, words))
        fail_msg("%d %s, expected %d with '%s'", answer->http_status, answer->text, http_status,
                 words);
    json_t *body = json_loads(answer->text, 0, NULL);
    json_t *error = json_object_get(body, "error");
    assert_true(json_is_string(json_object_get(error, "message")));
    assert_true(json_is_string(json_object_get(error, "type")));
    assert_int_equal(json_integer_value(json_object_get(error, "code")), http_status);
    json_decref(body);
    wait_rest(rig);
}

static void test_both_legs(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    begin_proxy(&rig);
    send_request(&rig, &answer, "POST", "/v1/completions", hello, "client-id.1");
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_OK);
    assert_int_equal(answer.http_status, 200);
    assert_string_equal(answer.type, "text/event-stream; charset=utf-8");
    assert_string_equal(answer.request_id, "client-id.1");
    assert_string_equal(answer.text, "data: {\"t\":1}\n\ndata: {\"t\":1}\n\ndata: {\"t\":1}\n\n"
                                     "data: [DONE]\n\n");
    const json_t *p = json_object_get(rig.engines[0].body, "kv_transfer_params");
    const json_t *d = json_object_get(rig.engines[1].body, "kv_transfer_params");
    assert_string_equal(rig.engines[0].request_id, "client-id.1");
    assert_string_equal(rig.engines[1].request_id, "client-id.1");
    assert_string_equal(json_string_value(json_object_get(p, "transfer_id")),
                        json_string_value(json_object_get(d, "transfer_id")));
    assert_string_equal(json_string_value(json_object_get(d, "remote_engine_id")), "engine-p");
    assert_string_equal(json_string_value(json_object_get(d, "remote_host")), "10.0.0.1");
    assert_int_equal(json_integer_value(json_object_get(d, "remote_port")), 5600);
    assert_int_equal(json_integer_value(json_object_get(d, "tp_size")), 2);
    wait_rest(&rig);
    assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.answered_total, 1);
    stop(&rig);
}

static void test_whole_answer_and_chat(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[1].behaviour = ANSWERS;
    begin_proxy(&rig);
    send_request(&rig, &answer, "POST", "/v1/chat/completions", "{\"messages\":[]}", "bad id!");
    WAIT(&rig, answer.done);
    assert_string_equal(answer.text, "{\"whole\":true}");
    assert_string_equal(answer.type, "application/json");
    assert_string_equal(rig.engines[1].path, "/v1/chat/completions");
    /* An id with odd characters is replaced, on both legs by the same one. */
    assert_int_equal(strlen(rig.engines[0].request_id), 36);
    assert_string_equal(rig.engines[0].request_id, rig.engines[1].request_id);
    stop(&rig);
}

static void test_bad_requests(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    begin_proxy(&rig);
    complete(&rig, &answer, "{\"prompt\":");
    assert_error(&rig, &answer, 400, "not JSON");
    complete(&rig, &answer, "[]");
    assert_error(&rig, &answer, 400, "an array");
    complete(&rig, &answer, "{\"stream\":\"yes\"}");
    assert_error(&rig, &answer, 400, "'stream'");
    complete(&rig, &answer, "{\"n\":0}");
    assert_error(&rig, &answer, 400, "'n'");
    send_request(&rig, &answer, "GET", "/v1/nothing", NULL, NULL);
    assert_error(&rig, &answer, 404, "/v1/nothing");
    assert_int_equal(rig.engines[0].request_count, 0);
    stop(&rig);
}

static void assert_leg_failure(enum behaviour prefill, enum behaviour decode, int http_status,
                               const char *words, const char *leg)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[0].behaviour = prefill;
    rig.engines[1].behaviour = decode;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, http_status, words);
    assert_non_null(strstr(answer.text, leg));
    assert_non_null(strstr(answer.text, "\"engine\":\"http://127.0.0.1:"));
    assert_non_null(strstr(answer.text, "\"reason\":"));
    /* The leg that hung was cancelled: its engine saw the proxy leave. */
    struct engine *hung = &rig.engines[prefill == HANGS ? 0 : 1];
    WAIT(&rig, hung->left_count == 1);
    stop(&rig);
}

static void test_a_failed_leg_cancels_the_other(void **state)
{
    assert_leg_failure(FAILS_500, HANGS, 502, "the engine is unwell", "\"leg\":\"prefill\"");
    assert_leg_failure(HANGS, FAILS_500, 502, "the engine is unwell", "\"leg\":\"decode\"");
    assert_leg_failure(REFUSES_400, HANGS, 400, "temperature is too hot", "\"leg\":\"prefill\"");
    assert_leg_failure(HANGS, REFUSES_400, 400, "temperature is too hot", "\"leg\":\"decode\"");
}

static void test_reset_before_the_answer(void **state)
{
    for (int victim = 0; victim < 2; victim++) {
        struct rig rig;
        struct answer answer;
        start(&rig, 1, 1);
        rig.engines[0].behaviour = HANGS;
        rig.engines[1].behaviour = HANGS;
        begin_proxy(&rig);
        complete(&rig, &answer, hello);
        WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
        kvfi_http_server_destroy(rig.engines[victim].server);
        rig.engines[victim].server = NULL;
        assert_error(&rig, &answer, 502, victim ? "\"leg\":\"decode\"" : "\"leg\":\"prefill\"");
        WAIT(&rig, rig.engines[1 - victim].left_count == 1);
        /* The next request learns before it is sent that the engine is gone. */
        complete(&rig, &answer, hello);
        assert_error(&rig, &answer, 503, victim ? "no decode engine" : "no prefill engine");
        assert_int_equal(rig.engines[1 - victim].request_count, 1);
        stop(&rig);
    }
}

static void test_stream_that_breaks(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[1].behaviour = CUTS;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    assert_int_equal(answer.status, KVF_EDISCONNECTED);
    assert_non_null(strstr(answer.text, "data: {\"t\":1}\n\ndata: {\"error\":{"));
    assert_non_null(strstr(answer.text, "\"leg\":\"decode\""));
    assert_null(strstr(answer.text, "[DONE]"));
    wait_rest(&rig);
    stop(&rig);
}

/* Once decode speaks, it has what it needs of prefill. */
static void test_prefill_that_fails_late_does_not_matter(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = BEGINS;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    WAIT(&rig, strstr(answer.text, "data: "));
    WAIT(&rig, rig.engines[0].held);
    kvfi_reply_error(rig.engines[0].held, 500, NULL, "late");
    WAIT(&rig, kvfi_proxy_router(rig.proxy)->leg_count == 1);
    assert_false(answer.done);
    kvfi_reply_sse_done(rig.engines[1].held);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_OK);
    assert_non_null(strstr(answer.text, "[DONE]"));
    stop(&rig);
}

static void test_client_leaves(void **state)
{
    for (int after_first = 0; after_first < 2; after_first++) {
        struct rig rig;
        struct answer answer;
        start(&rig, 1, 1);
        rig.engines[0].behaviour = HANGS;
        rig.engines[1].behaviour = after_first ? BEGINS : HANGS;
        begin_proxy(&rig);
        complete(&rig, &answer, hello);
        WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
        if (after_first)
            WAIT(&rig, strstr(answer.text, "data: "));
        kvfi_http_call_cancel(answer.call);
        WAIT(&rig, rig.engines[0].left_count == 1 && rig.engines[1].left_count == 1);
        wait_rest(&rig);
        assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.client_left_total, 1);
        stop(&rig);
    }
}

static void test_silent_leg_times_out(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[1].behaviour = HANGS;
    struct kvfi_proxy_options options = proxy_options(&rig);
    options.leg_timeout_ms = 50;
    begin_proxy_with(&rig, &options);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, 502, "no answer within the time allowed");
    stop(&rig);
}

/* Accepts connections and requests, answers nothing at all: a stopped process. */
static void test_stopped_engine_is_declared_dead(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = HANGS;
    struct kvfi_proxy_options options = proxy_options(&rig);
    options.dead_after_ms = 150;
    begin_proxy_with(&rig, &options);
    complete(&rig, &answer, hello);
    WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
    rig.engines[0].deaf = true;
    assert_error(&rig, &answer, 503, "the engine is down");
    WAIT(&rig, rig.engines[1].left_count == 1);
    stop(&rig);
}

static void test_no_engine_and_its_return(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    uint16_t port = kvfi_http_server_port(rig.engines[1].server);
    kvfi_http_server_destroy(rig.engines[1].server);
    rig.engines[1].server = NULL;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, 503, "no decode engine is available");
    assert_non_null(strstr(answer.text, "refused"));
    send_request(&rig, &answer, "GET", "/health", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 503);
    /* Back on its port: the next request finds it without waiting for a probe that is due. */
    open_engine(&rig, &rig.engines[1], port);
    complete(&rig, &answer, hello);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    send_request(&rig, &answer, "GET", "/health", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_int_equal(answer.http_status, 200);
    stop(&rig);
}

static void test_mismatches_are_refused(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[1].model = "other";
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, 503, "serves 'm'");
    assert_non_null(strstr(answer.text, "serves 'other'"));
    assert_int_equal(rig.engines[0].request_count, 0);
    stop(&rig);

    start(&rig, 1, 1);
    rig.engines[0].role = "decode";
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, 503, "role is 'decode'");
    stop(&rig);

    start(&rig, 1, 1);
    rig.engines[0].mode = "pull";
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    assert_error(&rig, &answer, 503, "mode is 'pull'");
    stop(&rig);
}

static bool all_up(const struct rig *rig)
{
    const struct kvfi_pool *pool = kvfi_proxy_router(rig->proxy)->pool;
    for (size_t i = 0; kvfi_pool_at(pool, i); i++)
        if (kvfi_pool_at(pool, i)->state != KVFI_UPSTREAM_UP)
            return false;
    return true;
}

static void test_load_is_spread(void **state)
{
    for (int least = 0; least < 2; least++) {
        struct rig rig;
        struct answer answers[4];
        start(&rig, 2, 2);
        for (int i = 0; i < 4; i++)
            rig.engines[i].behaviour = HANGS;
        struct kvfi_proxy_options options = proxy_options(&rig);
        options.least_outstanding = least;
        begin_proxy_with(&rig, &options);
        WAIT(&rig, all_up(&rig));
        for (int i = 0; i < 4; i++)
            complete(&rig, &answers[i], hello);
        WAIT(&rig, kvfi_proxy_router(rig.proxy)->leg_count == 8);
        int total = 0;
        while (total < 8) {
            kvfi_loop_step(rig.loop, true);
            total = 0;
            for (int i = 0; i < 4; i++)
                total += rig.engines[i].request_count;
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(rig.engines[i].request_count, 2);
        stop(&rig);
    }
}

/* A dead engine of two costs its own request only. */
static void test_survivor_serves(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 2, 1);
    begin_proxy(&rig);
    kvfi_http_server_destroy(rig.engines[0].server);
    rig.engines[0].server = NULL;
    for (int i = 0; i < 4; i++) {
        complete(&rig, &answer, hello);
        WAIT(&rig, answer.done);
        assert_int_equal(answer.http_status, 200);
    }
    assert_int_equal(rig.engines[1].request_count, 4);
    stop(&rig);
}

static void test_same_id_twice(void **state)
{
    struct rig rig;
    struct answer first;
    struct answer second;
    start(&rig, 1, 1);
    rig.engines[1].behaviour = HANGS;
    begin_proxy(&rig);
    send_request(&rig, &first, "POST", "/v1/completions", hello, "same");
    WAIT(&rig, rig.engines[1].request_count == 1);
    assert_string_equal(rig.engines[1].request_id, "same");
    rig.engines[1].behaviour = STREAMS;
    send_request(&rig, &second, "POST", "/v1/completions", hello, "same");
    WAIT(&rig, second.done);
    assert_int_equal(second.http_status, 200);
    assert_string_not_equal(rig.engines[1].request_id, "same");
    assert_string_equal(second.request_id, rig.engines[1].request_id);
    assert_int_equal(kvfi_proxy_router(rig.proxy)->counters.duplicate_id_total, 1);
    kvfi_http_call_cancel(first.call);
    wait_rest(&rig);
    stop(&rig);
}

static void note(void *ctx)
{
    *(bool *)ctx = true;
}

static void test_shut_down(void **state)
{
    struct rig rig;
    struct answer answer;
    bool drained = false;
    start(&rig, 1, 1);
    rig.engines[0].behaviour = HANGS;
    rig.engines[1].behaviour = HANGS;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    WAIT(&rig, rig.engines[0].held && rig.engines[1].held);
    kvfi_proxy_shut_down(rig.proxy, 60000, note, &drained);
    WAIT(&rig, drained && answer.done);
    assert_int_equal(answer.http_status, 503);
    assert_non_null(strstr(answer.text, "shutting down"));
    WAIT(&rig, rig.engines[0].left_count == 1 && rig.engines[1].left_count == 1);
    stop(&rig);
}

static void test_destroy_with_requests_under_way(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    rig.engines[1].behaviour = BEGINS;
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    WAIT(&rig, strstr(answer.text, "data: "));
    kvfi_proxy_destroy(rig.proxy);
    rig.proxy = NULL;
    WAIT(&rig, answer.done);
    assert_int_equal(answer.status, KVF_EDISCONNECTED);
    stop(&rig);
}

static void test_reports(void **state)
{
    struct rig rig;
    struct answer answer;
    start(&rig, 1, 1);
    begin_proxy(&rig);
    complete(&rig, &answer, hello);
    WAIT(&rig, answer.done);
    send_request(&rig, &answer, "GET", "/v1/models", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_string_equal(answer.text, "{\"data\":[]}");
    wait_rest(&rig);
    send_request(&rig, &answer, "GET", "/kvferry/usage", NULL, NULL);
    WAIT(&rig, answer.done);
    assert_non_null(strstr(answer.text, "\"requests\":0,\"legs\":0"));
    size_t len = 0;
    struct kvfi_http_server_counters http = {0};
    char *text = kvfi_proxy_metrics(kvfi_proxy_router(rig.proxy), &http, &len);
    assert_non_null(strstr(text, "\nkvferry:proxy_requests_total 1\n"));
    assert_non_null(strstr(text, "kvferry:proxy_engine_up{side=\"decode\",engine=\"http://127."));
    free(text);
    stop(&rig);
}

static void test_bad_options(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    struct kvfi_proxy *proxy = NULL;
    start(&rig, 1, 1);
    struct kvfi_proxy_options options = proxy_options(&rig);
    options.port = kvfi_http_server_port(rig.engines[0].server);
    assert_int_equal(kvfi_proxy_create(rig.loop, &options, &proxy, &error), KVF_EBUSY);
    assert_non_null(strstr(error.text, "in use"));
    options.port = 0;
    options.decode_count = 0;
    assert_int_equal(kvfi_proxy_create(rig.loop, &options, &proxy, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "--decode"));
    assert_null(proxy);
    stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_legs),
        cmocka_unit_test(test_whole_answer_and_chat),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_a_failed_leg_cancels_the_other),
        cmocka_unit_test(test_reset_before_the_answer),
        cmocka_unit_test(test_stream_that_breaks),
        cmocka_unit_test(test_prefill_that_fails_late_does_not_matter),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_silent_leg_times_out),
        cmocka_unit_test(test_stopped_engine_is_declared_dead),
        cmocka_unit_test(test_no_engine_and_its_return),
        cmocka_unit_test(test_mismatches_are_refused),
        cmocka_unit_test(test_load_is_spread),
        cmocka_unit_test(test_survivor_serves),
        cmocka_unit_test(test_same_id_twice),
        cmocka_unit_test(test_shut_down),
        cmocka_unit_test(test_destroy_with_requests_under_way),
        cmocka_unit_test(test_reports),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
