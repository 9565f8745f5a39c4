/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_rig.h"

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

void rig_open_engine(struct rig *rig, struct engine *engine, uint16_t port)
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
void rig_start(struct rig *rig, size_t prefill_count, size_t decode_count)
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
        rig_open_engine(rig, engine, 0);
        rig->specs[i] = malloc(64);
        assert_non_null(rig->specs[i]);
        snprintf(rig->specs[i], 64, "http://127.0.0.1:%u", kvfi_http_server_port(engine->server));
    }
    assert_int_equal(kvfi_http_client_create(rig->loop, &rig->client, NULL), KVF_OK);
}

struct kvfi_proxy_options rig_proxy_options(const struct rig *rig)
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

void rig_begin_proxy_with(struct rig *rig, const struct kvfi_proxy_options *options)
{
    struct kvf_error error = {0};
    if (kvfi_proxy_create(rig->loop, options, &rig->proxy, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void rig_begin_proxy(struct rig *rig)
{
    struct kvfi_proxy_options options = rig_proxy_options(rig);
    rig_begin_proxy_with(rig, &options);
}

void rig_stop(struct rig *rig)
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

void rig_send_request(struct rig *rig, struct answer *answer, const char *method, const char *path,
                      const char *body, const char *request_id)
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

void rig_complete(struct rig *rig, struct answer *answer, const char *body)
{
    rig_send_request(rig, answer, "POST", "/v1/completions", body, NULL);
}

void rig_wait_rest(struct rig *rig)
{
    WAIT(rig, kvfi_proxy_router(rig->proxy)->route_count == 0 &&
                  kvfi_proxy_router(rig->proxy)->leg_count == 0);
}

void rig_assert_error(struct rig *rig, struct answer *answer, int http_status, const char *words)
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
    rig_wait_rest(rig);
}
