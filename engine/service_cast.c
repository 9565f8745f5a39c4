/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/service_cast.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model/tiny_model.h"
#include "http/loop.h"

struct event_base *loop;
static struct kvfi_http_client *client;
struct service single;
struct service prefill;
struct service decode;

/* ---- the cast ------------------------------------------------------------------------------- */

static void start(struct service *service, const char *model, const char *id, enum engine_role role)
{
    struct kvf_error error = {0};
    const struct engine_options options = {
        .model_path = model,
        .model_name = "test",
        .role = role,
        .engine_id = id,
        .side_host = "127.0.0.1",
        .block_size = 16,
        .block_count = 128,
        .batch_tokens_max = 64,
        .sequences_max = 8,
        .threads = 1,
        .lease_ns = 30000000000ull,
        .registration_timeout_ns = 30000000000ull,
        .jobs_max = 200,
    };
    if (engine_create(&options, &service->engine, &error) != KVF_OK)
        fail_msg("engine: %s", error.text);
    struct kvfi_http_server_options http = kvfi_http_server_defaults();
    assert_int_equal(KVF_OK, kvfi_http_server_create(loop, &http, &service->server, &error));
    assert_int_equal(
        KVF_OK, engine_api_create(loop, service->server, service->engine, &service->api, &error));
    assert_int_equal(KVF_OK, engine_start(service->engine, &error));
}

static void stop(struct service *service)
{
    engine_stop(service->engine);
    kvfi_http_server_destroy(service->server);
    engine_api_destroy(service->api);
    engine_destroy(service->engine);
}

int cast_open(void **state)
{
    (void)state;
    char path[] = "service_XXXXXX";
    struct kvf_error error = {0};
    int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0)
        return -1;
    assert_int_equal(KVF_OK, tiny_model_write(path, NULL, &error));
    loop = kvfi_loop_create();
    assert_non_null(loop);
    assert_int_equal(KVF_OK, kvfi_http_client_create(loop, &client, &error));
    start(&single, path, "single", ENGINE_ROLE_BOTH);
    start(&prefill, path, "prefill", ENGINE_ROLE_PREFILL);
    start(&decode, path, "decode", ENGINE_ROLE_DECODE);
    (void)unlink(path);
    return 0;
}

int cast_close(void **state)
{
    (void)state;
    kvfi_http_client_destroy(client);
    stop(&decode);
    stop(&prefill);
    stop(&single);
    kvfi_loop_destroy(loop);
    return 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void on_body(void *ctx, const char *data, size_t len)
{
    struct call *call = ctx;
    assert_int_equal(KVF_OK, engine_text_append(&call->body, data, len));
    if (call->leave_at_first_byte)
        kvfi_http_call_cancel(call->call);
}

static void on_done(void *ctx, const struct kvfi_http_result *result)
{
    struct call *call = ctx;
    call->done = true;
    call->status = result->status;
    call->http_status = result->http_status;
}

void cast_send(const struct service *service, const char *method, const char *path, const char *id,
               const char *body, struct call *call)
{
    const struct kvfi_http_header header = {"X-Request-Id", id};
    const struct kvfi_http_call_options options = {
        .host = "127.0.0.1",
        .port = kvfi_http_server_port(service->server),
        .method = method,
        .path = path,
        .content_type = body ? "application/json" : NULL,
        .body = body,
        .body_len = body ? strlen(body) : 0,
        .headers = &header,
        .header_count = id ? 1 : 0,
    };
    const struct kvfi_http_call_events events = {
        .on_body = on_body, .on_done = on_done, .ctx = call};
    struct kvf_error error;
    assert_int_equal(KVF_OK, kvfi_http_call_start(client, &options, &events, &call->call, &error));
}

void cast_wait(struct call *call)
{
    while (!call->done)
        kvfi_loop_step(loop, true);
}

json_t *cast_json(struct call *call)
{
    json_t *value = NULL;
    struct kvf_error error = {0};
    if (kvfi_json_parse_object("answer", call->body.data, call->body.len, &value, &error) != KVF_OK)
        fail_msg("%s: %s", error.text, call->body.data);
    engine_text_free(&call->body);
    return value;
}

json_t *cast_ask(const struct service *service, const char *path, const char *body, int status)
{
    struct call call = {0};
    cast_send(service, "POST", path, NULL, body, &call);
    cast_wait(&call);
    if (call.http_status != status)
        fail_msg("%d: %s", call.http_status, call.body.data);
    return cast_json(&call);
}

void cast_rest(struct service *service)
{
    struct engine_snapshot s;
    do {
        kvfi_loop_step(loop, false);
        (void)sched_yield();
        engine_snapshot(service->engine, &s);
    } while (s.scheduler.blocks_free != s.scheduler.blocks_total || s.scheduler.waiting ||
             s.scheduler.parked || s.scheduler.ready || s.scheduler.running || s.scheduler.held ||
             s.kv_scheduler.requests || s.kv_worker.leases || s.kv_worker.receives ||
             s.kv_worker.writes || engine_api_call_count(service->api) != 0);
}
