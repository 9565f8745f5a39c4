/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/proxy.h"
#include "cli/ready_file.h"
#include "http/loop.h"
#include "kvferry/observe.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { DRAIN_MS = 1000 };

struct values {
    const char *host;
    int64_t port;
    struct kvfi_option_list prefill;
    struct kvfi_option_list decode;
    const char *mode;
    const char *balance;
    int64_t leg_timeout_ms;
    int64_t dead_after_ms;
    int64_t fresh_ms;
    int64_t connections_max;
    int64_t body_bytes_max;
    const char *events;
    const char *ready_file;
    const char *log_level;
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct kvfi_option options[] = {
    {.name = "host",
     .kind = KVFI_OPTION_STRING,
     .argument = "HOST",
     .fallback = "127.0.0.1",
     AT(host),
     .help = "address to listen on"},
    {.name = "port",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "8000",
     .max = 65535,
     AT(port),
     .help = "port to listen on, 0 for any free one"},
    {.name = "prefill",
     .kind = KVFI_OPTION_LIST,
     .argument = "URL",
     AT(prefill),
     .help = "a prefill engine: http://HOST:PORT; for one that is not kvferry's followed by "
             ",engine-id=ID,side=HOST:PORT[,tp=N][,pp=N][,model=NAME]"},
    {.name = "decode",
     .kind = KVFI_OPTION_LIST,
     .argument = "URL",
     AT(decode),
     .help =
         "a decode engine: http://HOST:PORT[,foreign][,model=NAME]; foreign: it is not kvferry's"},
    {.name = "mode",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "push|pull",
     .fallback = "push",
     AT(mode),
     .help = "who moves the KV cache; pull is not supported yet"},
    {.name = "balance",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "least|round-robin",
     .fallback = "least",
     AT(balance),
     .help = "which engine is next: the one with the fewest requests, or each in turn"},
    {.name = "leg-timeout",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "120",
     .min = 1,
     .max = 86400000,
     AT(leg_timeout_ms),
     .help = "longest wait for an engine's first byte, and for the next one; raise it for long "
             "answers that are not streamed"},
    {.name = "dead-after",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "6",
     .min = 1,
     .max = 600000,
     AT(dead_after_ms),
     .help = "an engine that requests wait for and that does not answer /health for this long is "
             "taken for dead"},
    {.name = "fresh",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "2",
     .max = 600000,
     AT(fresh_ms),
     .help = "what an engine said of itself longer ago than this is read again before a request "
             "uses it"},
    {.name = "connections",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "1024",
     .min = 1,
     .max = 65536,
     AT(connections_max),
     .help = "clients connected at once; more get 503"},
    {.name = "body-max",
     .kind = KVFI_OPTION_BYTES,
     .argument = "SIZE",
     .fallback = "16M",
     .min = 1024,
     .max = 1073741824,
     AT(body_bytes_max),
     .help = "largest request body; larger ones get 413"},
    {.name = "events",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     AT(events),
     .help = "append event records to FILE, see kvferry trace"},
    {.name = "ready-file",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     AT(ready_file),
     .help = "write {\"port\":N,\"pid\":N} to FILE once the proxy listens"},
    {.name = "log-level",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "error|warning|info|debug|trace",
     .fallback = "info",
     AT(log_level),
     .help = "how much is logged to stderr"},
};

static const struct kvfi_command command = {
    .name = "kvferry proxy",
    .usage = "--prefill URL [--prefill URL]... --decode URL [--decode URL]... [options]",
    .summary = "Sends each request to a prefill and a decode engine at once and streams the "
               "decode engine's answer.",
    .details = "paths: /v1/completions /v1/chat/completions /v1/models /health /metrics "
               "/kvferry/usage\n\n"
               "exit codes: 0 ended by SIGTERM or SIGINT, 1 it could not start, 2 wrong usage\n",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

struct process {
    struct event_base *loop;
    struct kvfi_proxy *proxy;
    bool ending;
};

static enum kvf_log_level log_level(const char *name)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
        if (strcmp(names[i], name) == 0)
            return (enum kvf_log_level)i;
    return KVF_LOG_INFO;
}

static void on_drained(void *ctx)
{
    struct process *process = ctx;
    kvfi_loop_stop(process->loop);
}

/* The second signal does not wait for replies to leave. */
static void on_signal(void *ctx)
{
    struct process *process = ctx;
    if (process->ending) {
        kvfi_loop_stop(process->loop);
        return;
    }
    process->ending = true;
    kvf_log(KVF_LOG_INFO, "signal received, ending");
    kvfi_proxy_shut_down(process->proxy, DRAIN_MS, on_drained, process);
}

static enum kvf_status serve(struct process *process, const struct values *values,
                             struct kvf_error *error)
{
    uint16_t port = kvfi_proxy_port(process->proxy);
    struct kvfi_timer *term = kvfi_loop_on_signal(process->loop, SIGTERM, on_signal, process);
    struct kvfi_timer *interrupt = kvfi_loop_on_signal(process->loop, SIGINT, on_signal, process);
    enum kvf_status status = KVF_OK;
    if (!term || !interrupt)
        status = kvf_fail(error, KVF_ENOMEM, "no memory for the signals");
    if (status == KVF_OK && values->ready_file)
        status = kvfi_ready_file_write(values->ready_file, port, error);
    if (status == KVF_OK) {
        kvf_log(KVF_LOG_INFO, "proxy listens on http://%s:%u, prefill engines %zu, decode %zu",
                values->host, port, values->prefill.count, values->decode.count);
        kvfi_loop_run(process->loop);
    }
    kvfi_timer_destroy(term);
    kvfi_timer_destroy(interrupt);
    return status;
}

static enum kvf_status run(const struct values *values, struct kvf_events *events,
                           struct kvf_error *error)
{
    struct process process = {.loop = kvfi_loop_create()};
    if (!process.loop)
        return kvf_fail(error, KVF_ESYSTEM, "cannot create an event loop");
    struct kvfi_proxy_options proxy = {
        .host = values->host,
        .port = (uint16_t)values->port,
        .prefill = values->prefill.values,
        .prefill_count = values->prefill.count,
        .decode = values->decode.values,
        .decode_count = values->decode.count,
        .leg_timeout_ms = (uint32_t)values->leg_timeout_ms,
        .dead_after_ms = (uint32_t)values->dead_after_ms,
        .fresh_ms = (uint32_t)values->fresh_ms,
        .least_outstanding = strcmp(values->balance, "least") == 0,
        .connection_count_max = (uint32_t)values->connections_max,
        .body_bytes_max = (size_t)values->body_bytes_max,
        .events = events,
    };
    enum kvf_status status = kvfi_proxy_create(process.loop, &proxy, &process.proxy, error);
    if (status == KVF_OK)
        status = serve(&process, values, error);
    kvfi_proxy_destroy(process.proxy);
    kvfi_loop_destroy(process.loop);
    return status;
}

static int check_usage(const struct values *values)
{
    const char *missing = !values->prefill.count  ? "--prefill URL is missing"
                          : !values->decode.count ? "--decode URL is missing"
                                                  : NULL;
    if (strcmp(values->mode, "pull") == 0)
        missing = "--mode pull: not supported yet, only push is";
    if (missing)
        fprintf(stderr, "%s: %s; see %s --help\n", command.name, missing, command.name);
    return missing ? 2 : -1;
}

int kvfi_proxy_main(int argc, char **argv)
{
    struct values values;
    struct kvfi_positionals positionals;
    struct kvf_error error = {0};
    struct kvf_events *events = NULL;
    int code = kvfi_options_enter(&command, argc, argv, &values, &positionals);
    if (code >= 0)
        return code;
    code = check_usage(&values);
    if (code < 0) {
        kvf_log_set(kvf_log_to_file, stderr, log_level(values.log_level));
        enum kvf_status status = KVF_OK;
        if (values.events)
            status = kvf_events_open(values.events, "proxy", "proxy", NULL, &events, &error);
        if (status == KVF_OK)
            status = run(&values, events, &error);
        if (status != KVF_OK)
            fprintf(stderr, "%s: %s\n", command.name, error.text);
        kvf_events_close(events);
        code = status == KVF_OK ? 0 : status == KVF_EINVAL ? 2 : 1;
    }
    kvfi_options_free(&command, &values, &positionals);
    return code;
}
