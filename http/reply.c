/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connection.h"
#include "http/json.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>

enum { ADDED_HEADER_BYTES_MAX = 16 * 1024 };

const char *kvfi_reply_end_name(enum kvfi_reply_end end)
{
    switch (end) {
    case KVFI_REPLY_SENT:
        return "sent";
    case KVFI_REPLY_GONE:
        return "client gone";
    case KVFI_REPLY_SLOW:
        return "client too slow";
    case KVFI_REPLY_ABORTED:
        return "aborted";
    case KVFI_REPLY_CLOSED:
        return "server closed";
    }
    return "unknown";
}

void kvfi_reply_clear(struct kvfi_reply *reply)
{
    free(reply->headers);
    reply->headers = NULL;
    reply->headers_len = 0;
}

void kvfi_reply_on_end(struct kvfi_reply *reply, kvfi_reply_end_fn on_end, void *ctx)
{
    reply->on_end = on_end;
    reply->on_end_ctx = ctx;
}

uint64_t kvfi_reply_id(const struct kvfi_reply *reply)
{
    return reply->id;
}

bool kvfi_reply_begun(const struct kvfi_reply *reply)
{
    return reply->begun || reply->connection->drop;
}

static bool is_header_text(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

enum kvf_status kvfi_reply_header(struct kvfi_reply *reply, const char *name, const char *value)
{
    if (reply->begun || !*name || !is_header_text(name) || !is_header_text(value))
        return KVF_EINVAL;
    size_t name_len = strlen(name);
    size_t value_len = strlen(value);
    if (name_len > ADDED_HEADER_BYTES_MAX || value_len > ADDED_HEADER_BYTES_MAX ||
        reply->headers_len > ADDED_HEADER_BYTES_MAX)
        return KVF_ELIMIT;
    size_t line_len = name_len + 2 + value_len + 2;
    char *headers = realloc(reply->headers, reply->headers_len + line_len + 1);
    if (!headers)
        return KVF_ENOMEM;
    snprintf(headers + reply->headers_len, line_len + 1, "%s: %s\r\n", name, value);
    reply->headers = headers;
    reply->headers_len += line_len;
    return KVF_OK;
}

static struct evbuffer *output_of(const struct kvfi_reply *reply)
{
    return bufferevent_get_output(reply->connection->bev);
}

static void count_status(struct kvfi_http_server_counters *counters, int http_status)
{
    if (http_status < 400)
        counters->reply_2xx_count++;
    else if (http_status < 500)
        counters->reply_4xx_count++;
    else
        counters->reply_5xx_count++;
}

/* Writes the head; false when memory has run out. body_len SIZE_MAX: streamed. */
static bool write_head(struct kvfi_reply *reply, int http_status, const char *content_type,
                       size_t body_len)
{
    struct kvfi_connection *connection = reply->connection;
    bool streamed = body_len == SIZE_MAX;
    if (streamed && !reply->chunked)
        connection->keep_alive = false; /* HTTP/1.0: the end of the connection is the end */
    struct evbuffer *output = output_of(reply);
    int bad = evbuffer_add_printf(output, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", http_status,
                                  kvfi_http_reason(http_status), content_type) < 0;
    if (reply->headers_len)
        bad |= evbuffer_add(output, reply->headers, reply->headers_len);
    if (!streamed)
        bad |= evbuffer_add_printf(output, "Content-Length: %zu\r\n", body_len) < 0;
    else if (reply->chunked)
        bad |= evbuffer_add_printf(output, "Transfer-Encoding: chunked\r\n") < 0;
    bad |= evbuffer_add_printf(output, "Connection: %s\r\n\r\n",
                               connection->keep_alive ? "keep-alive" : "close") < 0;
    reply->begun = true;
    count_status(&connection->server->counters, http_status);
    return !bad;
}

static bool is_usable(struct kvfi_reply *reply)
{
    return !reply->connection->drop && !reply->ended;
}

void kvfi_reply_bytes(struct kvfi_reply *reply, int http_status, const char *content_type,
                      const void *data, size_t len)
{
    if (!is_usable(reply))
        return;
    reply->ended = true;
    bool bad = reply->begun || !write_head(reply, http_status, content_type, len);
    if (!bad && len && !reply->without_body)
        bad = evbuffer_add(output_of(reply), data, len) != 0;
    if (bad)
        kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
    else
        kvfi_connection_kick(reply->connection);
}

void kvfi_reply_json(struct kvfi_reply *reply, int http_status, const json_t *body)
{
    size_t len = 0;
    char *text = kvfi_json_dump(body, &len);
    if (text)
        kvfi_reply_bytes(reply, http_status, "application/json", text, len);
    else
        kvfi_reply_abort(reply);
    free(text);
}

static const char *usual_type(int http_status)
{
    switch (http_status) {
    case 400:
        return "BadRequestError";
    case 401:
        return "AuthenticationError";
    case 403:
        return "PermissionDeniedError";
    case 404:
        return "NotFoundError";
    case 408:
        return "RequestTimeoutError";
    case 409:
        return "ConflictError";
    case 429:
        return "RateLimitError";
    case 502:
        return "BadGatewayError";
    case 503:
        return "ServiceUnavailableError";
    case 504:
        return "GatewayTimeoutError";
    default:
        return http_status < 500 ? "InvalidRequestError" : "InternalServerError";
    }
}

json_t *kvfi_http_error_json(int http_status, const char *type, const char *message)
{
    json_t *text = json_string(message);
    if (!text) /* not UTF-8: somebody else's bytes inside the message */
        text = json_string("the error text is not UTF-8");
    return json_pack("{s:{s:o,s:s,s:i}}", "error", "message", text, "type",
                     type ? type : usual_type(http_status), "code", http_status);
}

void kvfi_reply_error(struct kvfi_reply *reply, int http_status, const char *type, const char *fmt,
                      ...)
{
    char message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    json_t *body = kvfi_http_error_json(http_status, type, message);
    kvfi_reply_json(reply, http_status, body);
    json_decref(body);
}

enum kvf_status kvfi_reply_start(struct kvfi_reply *reply, int http_status,
                                 const char *content_type)
{
    if (!is_usable(reply))
        return KVF_EDISCONNECTED;
    if (reply->begun)
        return KVF_EINVAL;
    if (!is_header_text(content_type))
        return KVF_EINVAL;
    if (write_head(reply, http_status, content_type, SIZE_MAX))
        return KVF_OK;
    kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
    return KVF_EDISCONNECTED;
}

/* The limit is looked at before: at most output_bytes_max and one piece are ever held. */
enum kvf_status kvfi_reply_write(struct kvfi_reply *reply, const void *data, size_t len)
{
    if (!is_usable(reply))
        return KVF_EDISCONNECTED;
    if (!reply->begun)
        return KVF_EINVAL;
    if (!len || reply->without_body)
        return KVF_OK;
    struct evbuffer *output = output_of(reply);
    size_t max = reply->connection->server->options.output_bytes_max;
    size_t held = evbuffer_get_length(output);
    if (held && (held > max || len > max - held)) {
        kvfi_connection_drop_later(reply->connection, KVFI_REPLY_SLOW);
        return KVF_EDISCONNECTED;
    }
    int bad = reply->chunked ? evbuffer_add_printf(output, "%zx\r\n", len) < 0 : 0;
    bad |= evbuffer_add(output, data, len);
    if (reply->chunked)
        bad |= evbuffer_add(output, "\r\n", 2);
    if (!bad)
        return KVF_OK;
    kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
    return KVF_EDISCONNECTED;
}

void kvfi_reply_end(struct kvfi_reply *reply)
{
    if (!is_usable(reply))
        return;
    reply->ended = true;
    bool bad = !reply->begun;
    if (!bad && reply->chunked && !reply->without_body)
        bad = evbuffer_add(output_of(reply), "0\r\n\r\n", 5) != 0;
    if (bad)
        kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
    else
        kvfi_connection_kick(reply->connection);
}

void kvfi_reply_cut(struct kvfi_reply *reply)
{
    if (!is_usable(reply))
        return;
    reply->ended = true;
    reply->cut = true;
    reply->connection->keep_alive = false;
    kvfi_connection_kick(reply->connection);
}

void kvfi_reply_abort(struct kvfi_reply *reply)
{
    reply->ended = true;
    kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
}

enum kvf_status kvfi_reply_sse_start(struct kvfi_reply *reply)
{
    enum kvf_status status = kvfi_reply_header(reply, "Cache-Control", "no-cache");
    if (status != KVF_OK)
        return status;
    return kvfi_reply_start(reply, 200, "text/event-stream; charset=utf-8");
}

enum kvf_status kvfi_reply_sse_event(struct kvfi_reply *reply, const char *data, size_t len)
{
    char small[1024];
    if (len > SIZE_MAX - 8)
        return KVF_ELIMIT;
    size_t text_len = len + 8;
    char *text = text_len <= sizeof(small) ? small : malloc(text_len);
    if (!text) {
        kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
        return KVF_EDISCONNECTED;
    }
    static const char before[6] = {'d', 'a', 't', 'a', ':', ' '};
    static const char after[2] = {'\n', '\n'};
    memcpy(text, before, sizeof(before));
    memcpy(text + sizeof(before), data, len);
    memcpy(text + sizeof(before) + len, after, sizeof(after));
    enum kvf_status status = kvfi_reply_write(reply, text, text_len);
    if (text != small)
        free(text);
    return status;
}

enum kvf_status kvfi_reply_sse_json(struct kvfi_reply *reply, const json_t *event)
{
    size_t len = 0;
    char *text = kvfi_json_dump(event, &len);
    if (!text) {
        kvfi_connection_drop_later(reply->connection, KVFI_REPLY_ABORTED);
        return KVF_EDISCONNECTED;
    }
    enum kvf_status status = kvfi_reply_sse_event(reply, text, len);
    free(text);
    return status;
}

void kvfi_reply_sse_done(struct kvfi_reply *reply)
{
    if (kvfi_reply_sse_event(reply, "[DONE]", 6) == KVF_OK)
        kvfi_reply_end(reply);
}

struct kvfi_reply *kvfi_reply_find(struct kvfi_http_server *server, uint64_t id)
{
    struct kvfi_connection *connection = server->slots[id % server->options.connection_count_max];
    if (!connection || !connection->reply_open || connection->reply.id != id)
        return NULL;
    return &connection->reply;
}
