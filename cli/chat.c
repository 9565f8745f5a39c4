/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/chat_reply.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "http/client.h"
#include "http/loop.h"
#include "http/sse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENT_BYTES_MAX = 1024 * 1024,
    BODY_BYTES_MAX = 1024 * 1024,
    PROMPT_BYTES_MAX = 8 * 1024 * 1024,
};

struct values {
    const char *url;
    const char *model;
    int64_t max_tokens;
    const char *temperature;
    const char *system;
    bool json;
    int64_t timeout_ms;
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct kvfi_option options[] = {
    {.name = "url",
     .kind = KVFI_OPTION_STRING,
     .argument = "URL",
     .required = true,
     AT(url),
     .help = "proxy or engine to ask: http://HOST:PORT"},
    {.name = "model",
     .kind = KVFI_OPTION_STRING,
     .argument = "NAME",
     AT(model),
     .help = "model to ask for (default: the first one that the server lists)"},
    {.name = "max-tokens",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "256",
     .min = 1,
     .max = 1000000,
     AT(max_tokens),
     .help = "most tokens in an answer"},
    {.name = "temperature",
     .kind = KVFI_OPTION_STRING,
     .argument = "T",
     AT(temperature),
     .help = "0 for the likeliest token each time, up to 2 for more chance (default: the "
             "server's)"},
    {.name = "system",
     .kind = KVFI_OPTION_STRING,
     .argument = "TEXT",
     AT(system),
     .help = "system message to begin the conversation with"},
    {.name = "json",
     .kind = KVFI_OPTION_FLAG,
     AT(json),
     .help = "print one JSON object for each answer instead of its text and timing"},
    {.name = "timeout",
     .kind = KVFI_OPTION_DURATION,
     .argument = "TIME",
     .unit = "s",
     .fallback = "300",
     .min = 1,
     .max = 86400000,
     AT(timeout_ms),
     .help = "longest wait for the first token, and for each next one"},
};

static const struct kvfi_command command = {
    .name = "kvferry chat",
    .usage = "--url URL [options] [PROMPT...]",
    .summary = "Sends a prompt and prints the answer as it comes, then a line of timing (to "
               "stderr).",
    .details = "Without PROMPT it reads from stdin: line by line with a memory of the "
               "conversation on a\nterminal, else all of it as one prompt.\n\n"
               "exit codes: 0 answered, 1 the server could not be reached or failed, 2 wrong "
               "usage\n",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .positional_count_max = 4096,
};

struct session {
    const struct values *values;
    struct kvfi_http_url url;
    struct event_base *loop;
    struct kvfi_http_client *client;
    json_t *messages;
    char *model;
    double temperature;
};

/* One request under way. */
struct exchange {
    struct session *session;
    struct kvfi_http_call *call;
    struct kvfi_sse_parser sse;
    struct kvfi_chat_reply reply;
    int http_status;
    char *body; /* when it is no stream */
    size_t body_len;
    bool is_stream;
    double began_s;
    double first_s; /* 0: no text yet */
    double last_s;
    enum kvf_status status;
    struct kvf_error error;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void on_text(void *ctx, const char *text, size_t len)
{
    struct exchange *exchange = ctx;
    exchange->last_s = now_s();
    if (exchange->first_s == 0)
        exchange->first_s = exchange->last_s;
    if (exchange->session->values->json)
        return;
    /* The text may hold NUL: it is counted, not terminated. */
    char *tame = malloc(len + 1);
    if (!tame)
        return;
    memcpy(tame, text, len);
    kvfi_chat_tame(tame, len);
    (void)fwrite(tame, 1, len, stdout);
    fflush(stdout);
    free(tame);
}

static void on_sse(void *ctx, const char *name, const char *data, size_t len)
{
    struct exchange *exchange = ctx;
    kvfi_chat_reply_event(&exchange->reply, data, len);
}

static void on_head(void *ctx, int http_status, const struct kvfi_http_headers *headers)
{
    struct exchange *exchange = ctx;
    const char *type = kvfi_http_headers_find(headers, "content-type");
    exchange->http_status = http_status;
    exchange->is_stream = http_status == 200 && type && strncmp(type, "text/event-stream", 17) == 0;
}

static void keep_body(struct exchange *exchange, const char *data, size_t len)
{
    if (len > BODY_BYTES_MAX - exchange->body_len)
        len = BODY_BYTES_MAX - exchange->body_len;
    char *grown = len ? realloc(exchange->body, exchange->body_len + len) : NULL;
    if (!grown)
        return;
    memcpy(grown + exchange->body_len, data, len);
    exchange->body = grown;
    exchange->body_len += len;
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct exchange *exchange = ctx;
    if (!exchange->is_stream) {
        keep_body(exchange, data, len);
        return;
    }
    enum kvf_status status = kvfi_sse_parser_feed(&exchange->sse, data, len, &exchange->error);
    if (status != KVF_OK || exchange->reply.failure.text[0])
        kvfi_http_call_cancel(exchange->call);
}

static void on_done(void *ctx, const struct kvfi_http_result *result)
{
    struct exchange *exchange = ctx;
    exchange->status = result->status;
    if (result->status != KVF_OK && result->status != KVF_ECANCELED)
        (void)kvf_fail(&exchange->error, result->status, "%s", result->reason);
    kvfi_loop_stop(exchange->session->loop);
}

/* Runs one call to its end. */
static enum kvf_status run_call(struct exchange *exchange, const char *method, const char *path,
                                const char *body, size_t body_len)
{
    struct session *session = exchange->session;
    char full_path[600];
    snprintf(full_path, sizeof(full_path), "%s%s", session->url.path, path);
    struct kvfi_http_call_options call = {
        .host = session->url.host,
        .port = session->url.port,
        .method = method,
        .path = full_path,
        .content_type = body ? "application/json" : NULL,
        .body = body,
        .body_len = body_len,
        .head_timeout_ms = (uint32_t)session->values->timeout_ms,
        .body_timeout_ms = (uint32_t)session->values->timeout_ms,
    };
    struct kvfi_http_call_events events = {
        .on_head = on_head, .on_body = on_body, .on_done = on_done, .ctx = exchange};
    KVF_TRY(
        kvfi_http_call_start(session->client, &call, &events, &exchange->call, &exchange->error));
    kvfi_loop_run(session->loop);
    if (exchange->error.text[0])
        return exchange->status == KVF_OK ? KVF_EFORMAT : exchange->status;
    if (exchange->http_status != 200) {
        char words[400];
        kvfi_chat_error_text(exchange->body, exchange->body_len, words, sizeof(words));
        return kvf_fail(&exchange->error, KVF_ETRANSPORT, "the server answers %d: %s",
                        exchange->http_status, words);
    }
    return KVF_OK;
}

static void open_exchange(struct exchange *exchange, struct session *session)
{
    *exchange = (struct exchange){.session = session, .began_s = now_s()};
    kvfi_sse_parser_init(&exchange->sse, EVENT_BYTES_MAX, on_sse, exchange);
    kvfi_chat_reply_init(&exchange->reply, on_text, exchange);
}

static void close_exchange(struct exchange *exchange)
{
    kvfi_sse_parser_reset(&exchange->sse);
    kvfi_chat_reply_free(&exchange->reply);
    free(exchange->body);
}

/* The first model that the server lists. */
static enum kvf_status find_model(struct session *session, struct kvf_error *error)
{
    struct exchange exchange;
    open_exchange(&exchange, session);
    enum kvf_status status = run_call(&exchange, "GET", "/v1/models", NULL, 0);
    if (status != KVF_OK) {
        *error = exchange.error;
    } else {
        json_t *answer =
            exchange.body_len ? json_loadb(exchange.body, exchange.body_len, 0, NULL) : NULL;
        const json_t *first = json_array_get(json_object_get(answer, "data"), 0);
        const char *id = json_string_value(json_object_get(first, "id"));
        session->model = id ? strdup(id) : NULL;
        json_decref(answer);
        if (!session->model)
            status =
                kvf_fail(error, KVF_EFORMAT, "GET /v1/models lists no model; pass --model NAME");
    }
    close_exchange(&exchange);
    return status;
}

static char *request_text(const struct session *session, size_t *len_p)
{
    json_t *body =
        json_pack("{s:s,s:O,s:I,s:b,s:{s:b}}", "model", session->model, "messages",
                  session->messages, "max_tokens", (json_int_t)session->values->max_tokens,
                  "stream", 1, "stream_options", "include_usage", 1);
    if (body && session->temperature >= 0 &&
        json_object_set_new(body, "temperature", json_real(session->temperature)) != 0) {
        json_decref(body);
        return NULL;
    }
    char *text = kvfi_json_dump(body, len_p);
    json_decref(body);
    return text;
}

static void report(const struct exchange *exchange)
{
    const struct kvfi_chat_reply *reply = &exchange->reply;
    int64_t tokens = reply->usage_tokens >= 0 ? reply->usage_tokens : (int64_t)reply->piece_count;
    double first = exchange->first_s > 0 ? exchange->first_s - exchange->began_s : 0;
    /* Text that came in one piece tells nothing about the time between tokens. */
    bool pieces = reply->piece_count > 1 && tokens > 1;
    double rest = exchange->last_s - (pieces ? exchange->first_s : exchange->began_s);
    double rate = rest > 0 ? (double)(pieces ? tokens - 1 : tokens) / rest : 0;
    if (!exchange->session->values->json) {
        fputc('\n', stdout);
        fflush(stdout);
        fprintf(stderr, "[%lld tokens, first after %.3f s, then %.1f tokens/s]\n",
                (long long)tokens, first, rate);
        return;
    }
    json_t *line = json_pack("{s:s%,s:s,s:I,s:f,s:f}", "text", reply->text ? reply->text : "",
                             reply->text_len, "finish_reason", reply->finish_reason, "tokens",
                             (json_int_t)tokens, "first_token_s", first, "tokens_per_s", rate);
    char *text = kvfi_json_dump(line, NULL);
    if (text)
        puts(text);
    fflush(stdout);
    free(text);
    json_decref(line);
}

static enum kvf_status remember(struct session *session, const char *role, const char *text,
                                size_t len, struct kvf_error *error)
{
    json_t *message = json_pack("{s:s,s:s%}", "role", role, "content", text, len);
    if (!message)
        return kvf_fail(error, KVF_EINVAL, "the %s text is not UTF-8", role);
    if (json_array_append_new(session->messages, message) != 0)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the conversation");
    return KVF_OK;
}

static enum kvf_status judge(const struct exchange *exchange, struct kvf_error *error)
{
    if (exchange->reply.failure.text[0])
        return kvf_fail(error, exchange->reply.failure.status, "%s", exchange->reply.failure.text);
    if (!exchange->is_stream)
        return kvf_fail(error, KVF_EFORMAT, "the server's answer is not a stream of events");
    if (!exchange->reply.done)
        return kvf_fail(error, KVF_EDISCONNECTED, "the stream ended before its end");
    return KVF_OK;
}

/* Asks with the conversation so far and adds the answer to it. */
static enum kvf_status ask(struct session *session, const char *prompt, struct kvf_error *error)
{
    KVF_TRY(remember(session, "user", prompt, strlen(prompt), error));
    size_t len = 0;
    char *text = request_text(session, &len);
    if (!text)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the request");
    struct exchange exchange;
    open_exchange(&exchange, session);
    enum kvf_status status = run_call(&exchange, "POST", "/v1/chat/completions", text, len);
    free(text);
    bool reported = exchange.reply.failure.text[0] != '\0';
    if (status != KVF_OK && !reported)
        *error = exchange.error;
    else
        status = judge(&exchange, error);
    if (status == KVF_OK) {
        report(&exchange);
        status = remember(session, "assistant", exchange.reply.text ? exchange.reply.text : "",
                          exchange.reply.text_len, error);
    } else {
        if (exchange.reply.text && !session->values->json)
            fputc('\n', stdout);
        /* The question that got no answer is forgotten, so that the next one can be asked. */
        json_array_remove(session->messages, json_array_size(session->messages) - 1);
    }
    close_exchange(&exchange);
    return status;
}

static char *join(const struct kvfi_positionals *words)
{
    size_t len = 1;
    for (size_t i = 0; i < words->count; i++)
        len += strlen(words->values[i]) + 1;
    char *text = calloc(1, len);
    size_t used = 0;
    for (size_t i = 0; text && i < words->count; i++)
        used += (size_t)snprintf(text + used, len - used, "%s%s", i ? " " : "", words->values[i]);
    return text;
}

static char *read_all(FILE *in)
{
    char *text = NULL;
    size_t len = 0;
    for (;;) {
        char *grown = len < PROMPT_BYTES_MAX ? realloc(text, len + 4097) : NULL;
        if (!grown) {
            free(text);
            return NULL;
        }
        text = grown;
        size_t got = fread(text + len, 1, 4096, in);
        len += got;
        text[len] = '\0';
        if (!got)
            break;
    }
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        text[--len] = '\0';
    return text;
}

static int say(enum kvf_status status, const struct kvf_error *error)
{
    if (status == KVF_OK)
        return 0;
    fprintf(stderr, "%s: %s\n", command.name, error->text);
    return status == KVF_EINVAL ? 2 : 1;
}

/* Line by line; an error does not end the conversation. */
static int converse(struct session *session)
{
    char *line = NULL;
    size_t cap = 0;
    int code = 0;
    for (;;) {
        fputs("> ", stderr);
        ssize_t len = getline(&line, &cap, stdin);
        if (len < 0)
            break;
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            line[--len] = '\0';
        struct kvf_error error = {0};
        if (len)
            code = say(ask(session, line, &error), &error);
    }
    fputc('\n', stderr);
    free(line);
    return code;
}

static int ask_once(struct session *session, const struct kvfi_positionals *words)
{
    char *prompt = words->count ? join(words) : read_all(stdin);
    struct kvf_error error = {0};
    enum kvf_status status = KVF_OK;
    if (!prompt)
        status =
            kvf_fail(&error, KVF_EINVAL, "the prompt is larger than %d bytes", PROMPT_BYTES_MAX);
    else if (!*prompt)
        status = kvf_fail(&error, KVF_EINVAL, "the prompt is empty");
    else
        status = ask(session, prompt, &error);
    free(prompt);
    return say(status, &error);
}

static enum kvf_status open_session(struct session *session, struct kvf_error *error)
{
    const struct values *values = session->values;
    KVF_TRY(kvfi_http_url_parse(values->url, &session->url, error));
    session->temperature = -1;
    if (values->temperature) {
        char *end = NULL;
        session->temperature = strtod(values->temperature, &end);
        if (end == values->temperature || *end || !(session->temperature >= 0) ||
            session->temperature > 2)
            return kvf_fail(error, KVF_EINVAL, "--temperature: '%.40s' is not a number from 0 to 2",
                            values->temperature);
    }
    session->loop = kvfi_loop_create();
    session->messages = json_array();
    if (!session->loop || !session->messages)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a conversation");
    KVF_TRY(kvfi_http_client_create(session->loop, &session->client, error));
    if (values->system)
        KVF_TRY(remember(session, "system", values->system, strlen(values->system), error));
    if (!values->model)
        return find_model(session, error);
    session->model = strdup(values->model);
    return session->model ? KVF_OK : kvf_fail(error, KVF_ENOMEM, "no memory for a conversation");
}

static void close_session(struct session *session)
{
    kvfi_http_client_destroy(session->client);
    kvfi_loop_destroy(session->loop);
    json_decref(session->messages);
    free(session->model);
}

int kvfi_chat_main(int argc, char **argv)
{
    struct values values;
    struct kvfi_positionals words;
    int code = kvfi_options_enter(&command, argc, argv, &values, &words);
    if (code >= 0)
        return code;
    struct session session = {.values = &values};
    struct kvf_error error = {0};
    code = say(open_session(&session, &error), &error);
    if (code == 0)
        code =
            !words.count && isatty(STDIN_FILENO) ? converse(&session) : ask_once(&session, &words);
    close_session(&session);
    kvfi_options_free(&command, &values, &words);
    return code;
}
