/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "engine/api.h"
#include "engine/ready_file.h"
#include "http/loop.h"

struct values {
    const char *model;
    const char *model_name;
    const char *role;
    const char *host;
    int64_t port;
    const char *side_host;
    int64_t side_port;
    const char *engine_id;
    const char *allow_remote;
    int64_t block_size;
    int64_t blocks;
    int64_t max_batch_tokens;
    int64_t max_seqs;
    int64_t max_model_len;
    int64_t max_requests;
    int64_t threads;
    int64_t lease_ms;
    int64_t registration_timeout_ms;
    const char *policy;
    const char *events;
    const char *ready_file;
    const char *log_level;
    bool debug_kv;
};

#define AT(field) offsetof(struct values, field)

static const struct kvfi_option options[] = {
    {.name = "model",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     .required = true,
     .help = "the model: a GGUF file of the Llama architecture",
     .offset = AT(model)},
    {.name = "model-name",
     .kind = KVFI_OPTION_STRING,
     .argument = "NAME",
     .help = "what the API calls the model; must be the same on the prefill and the decode side "
             "(default: the name in the file)",
     .offset = AT(model_name)},
    {.name = "role",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "prefill|decode|both",
     .fallback = "both",
     .help =
         "prefill computes prompts for other engines, decode answers with their KV blocks, both "
         "does either; each also answers ordinary requests alone",
     .offset = AT(role)},
    {.name = "host",
     .kind = KVFI_OPTION_STRING,
     .argument = "ADDRESS",
     .fallback = "127.0.0.1",
     .help = "address that HTTP listens on",
     .offset = AT(host)},
    {.name = "port",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "8000",
     .max = 65535,
     .help = "port that HTTP listens on, 0 for any free one",
     .offset = AT(port)},
    {.name = "side-host",
     .kind = KVFI_OPTION_STRING,
     .argument = "ADDRESS",
     .fallback = "127.0.0.1",
     .help = "address that handshakes are answered on; the other engines are told this one, so "
             "across hosts it must be one that they reach",
     .offset = AT(side_host)},
    {.name = "side-port",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "5600",
     .max = 65535,
     .help = "port that handshakes are answered on, 0 for any free one",
     .offset = AT(side_port)},
    {.name = "engine-id",
     .kind = KVFI_OPTION_STRING,
     .argument = "ID",
     .help = "name of this engine towards other engines, unique among them (default: a fresh "
             "uuid)",
     .offset = AT(engine_id)},
    {.name = "allow-remote",
     .kind = KVFI_OPTION_STRING,
     .argument = "HOST[,HOST...]",
     .help = "the hosts that the remote_host of a request may name, compared as they are written; "
             "others get 403 (default: any)",
     .offset = AT(allow_remote)},
    {.name = "block-size",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .unit = "tokens",
     .fallback = "16",
     .min = 1,
     .max = 4096,
     .help = "tokens in a KV block, a power of two, the same on both sides",
     .offset = AT(block_size)},
    {.name = "blocks",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "512",
     .min = 1,
     .max = 1 << 20,
     .help = "number of KV blocks in the cache",
     .offset = AT(blocks)},
    {.name = "max-batch-tokens",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "512",
     .min = 1,
     .max = 1 << 16,
     .help = "most tokens computed in one step; longer prompts are computed in chunks",
     .offset = AT(max_batch_tokens)},
    {.name = "max-seqs",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "64",
     .min = 1,
     .max = 4096,
     .help = "most sequences computed in one step",
     .offset = AT(max_seqs)},
    {.name = "max-model-len",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .unit = "tokens",
     .fallback = "0",
     .max = 1 << 24,
     .help = "longest prompt and answer together, 0 for the model's context; never more than the "
             "blocks hold",
     .offset = AT(max_model_len)},
    {.name = "max-requests",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "4096",
     .min = 1,
     .max = 1 << 20,
     .help = "sequences under way at once; more get 503",
     .offset = AT(max_requests)},
    {.name = "threads",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "0",
     .max = 1024,
     .help = "threads that compute, 0 for one on each core",
     .offset = AT(threads)},
    {.name = "lease",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "30",
     .min = 1,
     .max = 86400000,
     .help = "how long a prefill engine keeps finished blocks that nobody fetches; a decode engine "
             "that waits for them renews it. A prefill request that finds no room among such "
             "blocks gets 503 after the same time",
     .offset = AT(lease_ms)},
    {.name = "registration-timeout",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "480",
     .min = 1,
     .max = 86400000,
     .help = "how long a decode engine waits for the blocks of a request",
     .offset = AT(registration_timeout_ms)},
    {.name = "kv-load-failure-policy",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "fail|recompute",
     .fallback = "fail",
     .help = "when blocks do not arrive: answer with an error, or compute the prompt here",
     .offset = AT(policy)},
    {.name = "events",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     .help = "append event records to FILE, see kvferry trace",
     .offset = AT(events)},
    {.name = "debug-kv",
     .kind = KVFI_OPTION_FLAG,
     .help = "put the SHA-256 of transferred blocks into the event records; needs --events",
     .offset = AT(debug_kv)},
    {.name = "ready-file",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     .help = "write ports, engine id and pid as JSON to FILE once the engine is ready",
     .offset = AT(ready_file)},
    {.name = "log-level",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "error|warning|info|debug|trace",
     .fallback = "warning",
     .help = "how much is logged to stderr",
     .offset = AT(log_level)},
};

static const struct kvfi_command command = {
    .name = "kvferry engine",
    .usage = "--model FILE [options]",
    .summary =
        "Serves a model over HTTP. A prefill engine pushes the KV cache of a prompt to a decode "
        "engine.",
    .details = "paths: /v1/completions /v1/chat/completions /v1/models /health /metrics\n"
               "/kvferry/coordinates /kvferry/usage\n"
               "\n"
               "exit codes: 0 ended by SIGTERM or SIGINT, 1 it could not start, 2 wrong usage\n",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static enum kvf_log_level log_level(const char *word)
{
    static const char *const words[] = {"error", "warning", "info", "debug", "trace"};
    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(word, words[i]) == 0)
            return (enum kvf_log_level)i;
    return KVF_LOG_WARNING;
}

static void fill_engine_options(const struct values *values, struct engine_options *options_p)
{
    *options_p = (struct engine_options){
        .model_path = values->model,
        .model_name = values->model_name,
        .role = strcmp(values->role, "prefill") == 0  ? ENGINE_ROLE_PREFILL
                : strcmp(values->role, "decode") == 0 ? ENGINE_ROLE_DECODE
                                                      : ENGINE_ROLE_BOTH,
        .engine_id = values->engine_id,
        .allow_remote = values->allow_remote,
        .side_host = values->side_host,
        .side_port = (uint16_t)values->side_port,
        .block_size = (uint32_t)values->block_size,
        .block_count = (uint32_t)values->blocks,
        .batch_tokens_max = (uint32_t)values->max_batch_tokens,
        .sequences_max = (uint32_t)values->max_seqs,
        .model_len_max = (uint32_t)values->max_model_len,
        .threads = (uint32_t)values->threads,
        .lease_ns = (uint64_t)values->lease_ms * 1000000u,
        .registration_timeout_ns = (uint64_t)values->registration_timeout_ms * 1000000u,
        .recompute_failed = strcmp(values->policy, "recompute") == 0,
        .debug_checksums = values->debug_kv,
        .events_path = values->events,
        .jobs_max = (uint32_t)values->max_requests,
    };
}

/* ---- one run -------------------------------------------------------------------------------- */

struct service {
    struct event_base *loop;
    struct kvfi_timer *signals[2];
    struct kvfi_timer *patience; /* while stopping: with clients that do not read */
    bool impatient;
    struct engine *engine;
    struct kvfi_http_server *server;
    struct engine_api *api;
};

static void on_signal(void *ctx)
{
    struct service *service = ctx;
    kvf_log(KVF_LOG_INFO, "asked to stop");
    kvfi_loop_stop(service->loop);
}

static void on_patience_end(void *ctx)
{
    struct service *service = ctx;
    service->impatient = true;
}

static enum kvf_status start_loop(struct service *service, struct kvf_error *error)
{
    service->loop = kvfi_loop_create();
    if (!service->loop)
        return kvf_fail(error, KVF_ESYSTEM, "no event loop");
    service->patience = kvfi_timer_create(service->loop, on_patience_end, service);
    service->signals[0] = kvfi_loop_on_signal(service->loop, SIGTERM, on_signal, service);
    service->signals[1] = kvfi_loop_on_signal(service->loop, SIGINT, on_signal, service);
    if (!service->patience || !service->signals[0] || !service->signals[1])
        return kvf_fail(error, KVF_ESYSTEM, "cannot watch for signals");
    (void)signal(SIGPIPE, SIG_IGN);
    return KVF_OK;
}

static enum kvf_status start_service(struct service *service, const struct values *values,
                                     struct kvf_error *error)
{
    KVF_TRY(start_loop(service, error));
    struct kvfi_http_server_options http = kvfi_http_server_defaults();
    http.host = values->host;
    http.port = (uint16_t)values->port;
    /* The port first: a wrong one is known before the model is read. */
    KVF_TRY(kvfi_http_server_create(service->loop, &http, &service->server, error));
    struct engine_options engine_options;
    fill_engine_options(values, &engine_options);
    KVF_TRY(engine_create(&engine_options, &service->engine, error));
    KVF_TRY(
        engine_api_create(service->loop, service->server, service->engine, &service->api, error));
    return engine_start(service->engine, error);
}

/* Jobs end first, so that their clients hear of it; then the loop runs until the answers are out,
 * but not for clients that do not read. */
static void drain(struct service *service)
{
    kvfi_http_server_stop_accepting(service->server);
    engine_stop(service->engine);
    kvfi_timer_arm(service->patience, 1000);
    while (engine_api_call_count(service->api) > 0 && !service->impatient)
        kvfi_loop_step(service->loop, true);
}

static void stop_service(struct service *service)
{
    if (service->engine)
        engine_stop(service->engine);
    kvfi_http_server_destroy(service->server);
    engine_api_destroy(service->api);
    engine_destroy(service->engine);
    for (int i = 0; i < 2; i++)
        kvfi_timer_destroy(service->signals[i]);
    kvfi_timer_destroy(service->patience);
    kvfi_loop_destroy(service->loop);
}

static void announce(const struct service *service, const struct values *values)
{
    const struct engine_info *info = engine_info(service->engine);
    printf("kvferry engine: %s ready at http://%s:%u, side channel %s:%u, model %s (%s), %u blocks "
           "of %u tokens\n",
           engine_role_name(info->role), values->host, kvfi_http_server_port(service->server),
           info->side_host, info->side_port, info->model_name, info->model->isa, info->block_count,
           info->block_size);
    (void)fflush(stdout);
}

static enum kvf_status write_ready(const struct service *service, const struct values *values,
                                   struct kvf_error *error)
{
    if (!values->ready_file)
        return KVF_OK;
    const struct engine_info *info = engine_info(service->engine);
    return engine_ready_file_write(values->ready_file, values->host,
                                   kvfi_http_server_port(service->server), info, error);
}

static int serve(const struct values *values)
{
    struct service service = {0};
    struct kvf_error error = {0};
    kvf_log_set(kvf_log_to_file, NULL, log_level(values->log_level));
    enum kvf_status status = start_service(&service, values, &error);
    if (status == KVF_OK)
        status = write_ready(&service, values, &error);
    if (status != KVF_OK) {
        (void)fprintf(stderr, "kvferry engine: %s\n", error.text);
        stop_service(&service);
        return 1;
    }
    announce(&service, values);
    kvfi_loop_run(service.loop);
    drain(&service);
    stop_service(&service);
    if (values->ready_file)
        (void)remove(values->ready_file);
    return 0;
}

int kvf_engine_main(int argc, char **argv)
{
    struct values values = {0};
    struct kvfi_positionals positionals = {0};
    int code = kvfi_options_enter(&command, argc, argv, &values, &positionals);
    if (code >= 0)
        return code;
    if ((values.block_size & (values.block_size - 1)) != 0) {
        (void)fprintf(stderr, "kvferry engine: --block-size %lld is not a power of two\n",
                      (long long)values.block_size);
        code = 2;
    } else {
        code = serve(&values);
    }
    kvfi_options_free(&command, &values, &positionals);
    return code;
}
