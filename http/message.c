/* SPDX-License-Identifier: Apache-2.0 */
#include "http/message.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum phase {
    PHASE_HEAD,
    PHASE_LENGTH,
    PHASE_CHUNK_SIZE,
    PHASE_CHUNK_DATA,
    PHASE_CHUNK_END,
    PHASE_TRAILER,
    PHASE_CLOSE,
    PHASE_DONE,
    PHASE_FAILED,
};

enum { LEADING_BLANK_BYTES_MAX = 64 };

const char *kvfi_http_headers_find(const struct kvfi_http_headers *headers, const char *name)
{
    for (size_t i = 0; i < headers->count; i++)
        if (strcasecmp(headers->list[i].name, name) == 0)
            return headers->list[i].value;
    return NULL;
}

bool kvfi_http_headers_has_token(const struct kvfi_http_headers *headers, const char *name,
                                 const char *token)
{
    size_t token_len = strlen(token);
    for (size_t i = 0; i < headers->count; i++) {
        if (strcasecmp(headers->list[i].name, name) != 0)
            continue;
        const char *at = headers->list[i].value;
        while (*at) {
            at += strspn(at, " \t,");
            size_t len = strcspn(at, " \t,;");
            if (len == token_len && strncasecmp(at, token, len) == 0)
                return true;
            at += strcspn(at, ",");
        }
    }
    return false;
}

const char *kvfi_http_reason(int http_status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {100, "Continue"},
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == http_status)
            return reasons[i].reason;
    return "Unknown";
}

void kvfi_http_parser_init(struct kvfi_http_parser *parser, enum kvfi_http_side side,
                           size_t head_bytes_max)
{
    memset(parser, 0, sizeof(*parser));
    parser->side = side;
    parser->head_bytes_max = head_bytes_max;
}

void kvfi_http_parser_reset(struct kvfi_http_parser *parser)
{
    free(parser->head);
    kvfi_http_parser_init(parser, parser->side, parser->head_bytes_max);
}

static enum kvf_status refuse(struct kvfi_http_parser *parser, int refuse_status)
{
    parser->phase = PHASE_FAILED;
    parser->refuse_status = refuse_status;
    return refuse_status == 431   ? KVF_ELIMIT
           : refuse_status == 500 ? KVF_ENOMEM
           : refuse_status >= 501 ? KVF_ENOTSUP
                                  : KVF_EFORMAT;
}

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++)
        if (!is_token_char((unsigned char)*text))
            return false;
    return true;
}

/* Appends to the head; the caller has checked head_bytes_max. */
static enum kvf_status head_append(struct kvfi_http_parser *parser, const char *data, size_t len,
                                   struct kvf_error *error)
{
    size_t need = parser->head_len + len + 1;
    if (need > parser->head_cap) {
        size_t cap = parser->head_cap ? parser->head_cap * 2 : 1024;
        if (cap < need)
            cap = need;
        char *head = realloc(parser->head, cap);
        if (!head)
            return kvf_fail(error, refuse(parser, 500), "no memory for a head of %zu bytes", need);
        parser->head = head;
        parser->head_cap = cap;
    }
    memcpy(parser->head + parser->head_len, data, len);
    parser->head_len += len;
    parser->head[parser->head_len] = '\0';
    return KVF_OK;
}

/* "HTTP/1.x" at text; the rest of the line follows after it. */
static bool parse_version(struct kvfi_http_parser *parser, const char *text)
{
    if (strncmp(text, "HTTP/1.", 7) != 0 || text[7] < '0' || text[7] > '9')
        return false;
    parser->minor_version = text[7] - '0';
    return true;
}

static enum kvf_status parse_request_line(struct kvfi_http_parser *parser, char *line,
                                          struct kvf_error *error)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version)
        return kvf_fail(error, refuse(parser, 400),
                        "the first line is not 'METHOD /path HTTP/1.1' (is the client speaking "
                        "https or another protocol?)");
    *target++ = '\0';
    *version++ = '\0';
    if (!is_token(line))
        return kvf_fail(error, refuse(parser, 400), "the method is not a word");
    if (strncmp(version, "HTTP/", 5) == 0 && strncmp(version, "HTTP/1.", 7) != 0)
        return kvf_fail(error, refuse(parser, 505), "only HTTP/1.0 and HTTP/1.1 are spoken here");
    if (!parse_version(parser, version) || version[8] != '\0')
        return kvf_fail(error, refuse(parser, 400), "the first line does not end in HTTP/1.1");
    if (strncasecmp(target, "http://", 7) == 0) {
        char *path = strchr(target + 7, '/');
        target = path ? path : version - 1;
        if (!path)
            return kvf_fail(error, refuse(parser, 400), "the request target has no path");
    }
    if (target[0] != '/' && strcmp(target, "*") != 0)
        return kvf_fail(error, refuse(parser, 400), "the request target does not begin with '/'");
    parser->method = line;
    parser->target = target;
    return KVF_OK;
}

static enum kvf_status parse_status_line(struct kvfi_http_parser *parser, const char *line,
                                         struct kvf_error *error)
{
    if (!parse_version(parser, line) || line[8] != ' ')
        return kvf_fail(error, refuse(parser, 400), "the answer is not HTTP/1.x");
    int status = 0;
    for (int i = 9; i < 12; i++) {
        if (line[i] < '0' || line[i] > '9')
            return kvf_fail(error, refuse(parser, 400), "the answer's status is not a number");
        status = status * 10 + (line[i] - '0');
    }
    if ((line[12] != ' ' && line[12] != '\0') || status < 100 || status > 599)
        return kvf_fail(error, refuse(parser, 400), "the answer's status is not a number");
    parser->http_status = status;
    return KVF_OK;
}

static enum kvf_status parse_header(struct kvfi_http_parser *parser, char *line,
                                    struct kvf_error *error)
{
    if (line[0] == ' ' || line[0] == '\t')
        return kvf_fail(error, refuse(parser, 400), "a header is folded over two lines");
    char *colon = strchr(line, ':');
    if (!colon)
        return kvf_fail(error, refuse(parser, 400), "a header line has no colon");
    *colon = '\0';
    if (!is_token(line))
        return kvf_fail(error, refuse(parser, 400), "a header name is not a word");
    char *value = colon + 1;
    value += strspn(value, " \t");
    size_t len = strlen(value);
    while (len && (value[len - 1] == ' ' || value[len - 1] == '\t'))
        value[--len] = '\0';
    struct kvfi_http_headers *headers = &parser->headers;
    if (headers->count == KVFI_HTTP_HEADER_COUNT_MAX)
        return kvf_fail(error, refuse(parser, 431), "more than %d headers",
                        KVFI_HTTP_HEADER_COUNT_MAX);
    headers->list[headers->count++] = (struct kvfi_http_header){.name = line, .value = value};
    return KVF_OK;
}

/* Decimal digits only: no sign, no blanks, no list. */
static bool parse_length(const char *text, uint64_t *length_p)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        uint64_t digit = (uint64_t)(*text - '0');
        if (value > ((uint64_t)INT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *length_p = value;
    return true;
}

static enum kvf_status decide_framing(struct kvfi_http_parser *parser, struct kvf_error *error)
{
    const char *coding = NULL;
    const char *length = NULL;
    for (size_t i = 0; i < parser->headers.count; i++) {
        const struct kvfi_http_header *header = &parser->headers.list[i];
        if (strcasecmp(header->name, "transfer-encoding") == 0) {
            if (coding)
                return kvf_fail(error, refuse(parser, 400), "two transfer-encoding headers");
            coding = header->value;
        } else if (strcasecmp(header->name, "content-length") == 0) {
            if (length && strcmp(length, header->value) != 0)
                return kvf_fail(error, refuse(parser, 400),
                                "two content-length headers that differ");
            length = header->value;
        }
    }
    if (coding && length)
        return kvf_fail(error, refuse(parser, 400), "both content-length and transfer-encoding");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return kvf_fail(error, refuse(parser, 501),
                        "transfer-encoding other than 'chunked' is not supported");
    if (coding && parser->minor_version == 0)
        return kvf_fail(error, refuse(parser, 400), "transfer-encoding in HTTP/1.0");
    if (length && !parse_length(length, &parser->content_length))
        return kvf_fail(error, refuse(parser, 400), "content-length is not a number");
    int status = parser->http_status;
    bool bodyless = parser->side == KVFI_HTTP_RESPONSE &&
                    (parser->head_response || status == 204 || status == 304);
    if (bodyless)
        parser->framing = KVFI_HTTP_NO_BODY;
    else if (coding)
        parser->framing = KVFI_HTTP_BY_CHUNKS;
    else if (length)
        parser->framing = parser->content_length ? KVFI_HTTP_BY_LENGTH : KVFI_HTTP_NO_BODY;
    else
        parser->framing =
            parser->side == KVFI_HTTP_RESPONSE ? KVFI_HTTP_BY_CLOSE : KVFI_HTTP_NO_BODY;
    return KVF_OK;
}

static unsigned first_body_phase(enum kvfi_http_framing framing)
{
    switch (framing) {
    case KVFI_HTTP_NO_BODY:
        return PHASE_DONE;
    case KVFI_HTTP_BY_LENGTH:
        return PHASE_LENGTH;
    case KVFI_HTTP_BY_CHUNKS:
        return PHASE_CHUNK_SIZE;
    case KVFI_HTTP_BY_CLOSE:
        return PHASE_CLOSE;
    }
    return PHASE_FAILED;
}

static enum kvf_status parse_head(struct kvfi_http_parser *parser, struct kvf_error *error)
{
    for (size_t i = 0; i < parser->head_len; i++) {
        unsigned char c = (unsigned char)parser->head[i];
        bool line_end = c == '\r' && parser->head[i + 1] == '\n';
        if ((c < ' ' && c != '\t' && c != '\n' && !line_end) || c == 0x7f)
            return kvf_fail(error, refuse(parser, 400),
                            "the head holds a control character (byte 0x%02x)", c);
    }
    bool first = true;
    for (char *line = parser->head; line && *line;) {
        char *end = strchr(line, '\n');
        char *next = end ? end + 1 : NULL;
        if (end) {
            *end = '\0';
            if (end > line && end[-1] == '\r')
                end[-1] = '\0';
        }
        if (!*line)
            break;
        if (!first)
            KVF_TRY(parse_header(parser, line, error));
        else if (parser->side == KVFI_HTTP_REQUEST)
            KVF_TRY(parse_request_line(parser, line, error));
        else
            KVF_TRY(parse_status_line(parser, line, error));
        first = false;
        line = next;
    }
    KVF_TRY(decide_framing(parser, error));
    parser->keep_alive =
        parser->minor_version >= 1
            ? !kvfi_http_headers_has_token(&parser->headers, "connection", "close")
            : kvfi_http_headers_has_token(&parser->headers, "connection", "keep-alive");
    parser->left = parser->content_length;
    parser->phase = first_body_phase(parser->framing);
    return KVF_OK;
}

/* Takes one line, or what there is of it, into the head. *complete_p: the head has ended. */
static enum kvf_status feed_head(struct kvfi_http_parser *parser, const char *data, size_t len,
                                 size_t *used_p, bool *complete_p, struct kvf_error *error)
{
    const char *line_end = memchr(data, '\n', len);
    size_t used = line_end ? (size_t)(line_end - data) + 1 : len;
    if (used > parser->head_bytes_max - parser->head_len)
        return kvf_fail(error, refuse(parser, 431), "the head is larger than %zu bytes",
                        parser->head_bytes_max);
    KVF_TRY(head_append(parser, data, used, error));
    *used_p = used;
    *complete_p = false;
    if (!line_end)
        return KVF_OK;
    const char *head = parser->head;
    size_t head_len = parser->head_len;
    bool blank = head_len >= 2 && head[head_len - 2] == '\r';
    size_t line_len = blank ? 2 : 1;
    if (head_len == line_len) {
        /* Blank lines before a message are allowed, a few of them. */
        parser->trailer_len += line_len;
        parser->head_len = 0;
        if (parser->trailer_len > LEADING_BLANK_BYTES_MAX)
            return kvf_fail(error, refuse(parser, 400), "blank lines instead of a message");
        return KVF_OK;
    }
    *complete_p = head[head_len - line_len - 1] == '\n';
    return KVF_OK;
}

/* Collects a line of the chunked framing; *complete_p: parser->line holds it without its end. */
static enum kvf_status feed_line(struct kvfi_http_parser *parser, const char *data, size_t len,
                                 size_t *used_p, bool *complete_p, struct kvf_error *error)
{
    const char *line_end = memchr(data, '\n', len);
    size_t used = line_end ? (size_t)(line_end - data) + 1 : len;
    if (used >= sizeof(parser->line) - parser->line_len)
        return kvf_fail(error, refuse(parser, 400), "a line of the chunked body is too long");
    memcpy(parser->line + parser->line_len, data, used);
    parser->line_len += used;
    *used_p = used;
    *complete_p = line_end != NULL;
    if (!line_end)
        return KVF_OK;
    parser->line_len--;
    if (parser->line_len && parser->line[parser->line_len - 1] == '\r')
        parser->line_len--;
    parser->line[parser->line_len] = '\0';
    return KVF_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static enum kvf_status chunk_size(struct kvfi_http_parser *parser, struct kvf_error *error)
{
    uint64_t size = 0;
    size_t at = 0;
    for (; at < parser->line_len; at++) {
        int digit = hex_digit(parser->line[at]);
        if (digit < 0)
            break;
        if (size > (uint64_t)INT64_MAX >> 4)
            return kvf_fail(error, refuse(parser, 400), "a chunk size overflows");
        size = size << 4 | (uint64_t)digit;
    }
    char after = at < parser->line_len ? parser->line[at] : '\0';
    if (!at || (after && !strchr("; \t", after)))
        return kvf_fail(error, refuse(parser, 400), "a chunk size is not a hexadecimal number");
    parser->line_len = 0;
    parser->left = size;
    parser->trailer_len = 0;
    parser->phase = size ? PHASE_CHUNK_DATA : PHASE_TRAILER;
    return KVF_OK;
}

/* Trailers are read over, not kept. */
static enum kvf_status feed_trailer(struct kvfi_http_parser *parser, const char *data, size_t len,
                                    size_t *used_p, struct kvf_error *error)
{
    const char *line_end = memchr(data, '\n', len);
    size_t used = line_end ? (size_t)(line_end - data) + 1 : len;
    if (used > parser->head_bytes_max - parser->trailer_len)
        return kvf_fail(error, refuse(parser, 431), "the trailer is larger than %zu bytes",
                        parser->head_bytes_max);
    parser->trailer_len += used;
    *used_p = used;
    size_t text = line_end ? used - 1 : used;
    if (text && data[text - 1] == '\r')
        text--;
    parser->line_len += text;
    if (!line_end)
        return KVF_OK;
    if (parser->line_len == 0)
        parser->phase = PHASE_DONE;
    parser->line_len = 0;
    return KVF_OK;
}

static enum kvf_status chunk_end(struct kvfi_http_parser *parser, struct kvf_error *error)
{
    if (parser->line_len)
        return kvf_fail(error, refuse(parser, 400), "a chunk is longer than its size says");
    parser->phase = PHASE_CHUNK_SIZE;
    return KVF_OK;
}

/* A body slice out of the input. */
static size_t body_slice(struct kvfi_http_parser *parser, const char *data, size_t len,
                         struct kvfi_http_piece *piece)
{
    size_t used = len;
    if (parser->phase != PHASE_CLOSE) {
        if (used > parser->left)
            used = (size_t)parser->left;
        parser->left -= used;
        if (!parser->left)
            parser->phase = parser->phase == PHASE_LENGTH ? PHASE_DONE : PHASE_CHUNK_END;
    }
    *piece = (struct kvfi_http_piece){.kind = KVFI_HTTP_BODY, .data = data, .len = used};
    return used;
}

/* One step on at least one byte of input; *made_p: a piece is ready. */
static enum kvf_status step(struct kvfi_http_parser *parser, const char *data, size_t len,
                            size_t *used_p, bool *made_p, struct kvfi_http_piece *piece,
                            struct kvf_error *error)
{
    bool complete = false;
    *made_p = false;
    switch ((enum phase)parser->phase) {
    case PHASE_HEAD:
        KVF_TRY(feed_head(parser, data, len, used_p, &complete, error));
        if (!complete)
            return KVF_OK;
        KVF_TRY(parse_head(parser, error));
        if (parser->side == KVFI_HTTP_RESPONSE && parser->http_status < 200) {
            if (parser->http_status == 101)
                return kvf_fail(error, refuse(parser, 501), "the answer switches protocols");
            bool head_response = parser->head_response;
            kvfi_http_parser_reset(parser);
            parser->head_response = head_response;
            return KVF_OK;
        }
        *piece = (struct kvfi_http_piece){.kind = KVFI_HTTP_HEAD};
        *made_p = true;
        return KVF_OK;
    case PHASE_LENGTH:
    case PHASE_CHUNK_DATA:
    case PHASE_CLOSE:
        *used_p = body_slice(parser, data, len, piece);
        *made_p = true;
        return KVF_OK;
    case PHASE_CHUNK_SIZE:
        KVF_TRY(feed_line(parser, data, len, used_p, &complete, error));
        return complete ? chunk_size(parser, error) : KVF_OK;
    case PHASE_CHUNK_END:
        KVF_TRY(feed_line(parser, data, len, used_p, &complete, error));
        return complete ? chunk_end(parser, error) : KVF_OK;
    case PHASE_TRAILER:
        return feed_trailer(parser, data, len, used_p, error);
    case PHASE_DONE:
    case PHASE_FAILED:
        break;
    }
    return kvf_fail(error, KVF_EINVAL, "the message has failed or ended already");
}

enum kvf_status kvfi_http_parser_next(struct kvfi_http_parser *parser, const char *data, size_t len,
                                      size_t *consumed_p, struct kvfi_http_piece *piece,
                                      struct kvf_error *error)
{
    size_t consumed = 0;
    *piece = (struct kvfi_http_piece){.kind = KVFI_HTTP_MORE};
    while (parser->phase != PHASE_DONE && consumed < len) {
        size_t used = 0;
        bool made = false;
        KVF_TRY(step(parser, data + consumed, len - consumed, &used, &made, piece, error));
        consumed += used;
        if (made) {
            *consumed_p = consumed;
            return KVF_OK;
        }
    }
    if (parser->phase == PHASE_DONE)
        piece->kind = KVFI_HTTP_END;
    *consumed_p = consumed;
    return KVF_OK;
}

enum kvf_status kvfi_http_parser_eof(struct kvfi_http_parser *parser, struct kvf_error *error)
{
    switch ((enum phase)parser->phase) {
    case PHASE_DONE:
    case PHASE_CLOSE:
        return KVF_OK;
    case PHASE_HEAD:
        return kvf_fail(error, KVF_EDISCONNECTED,
                        parser->head_len ? "the connection was closed inside the head"
                                         : "the connection was closed before an answer came");
    case PHASE_LENGTH:
        return kvf_fail(
            error, KVF_EDISCONNECTED, "the body was cut: %llu of %llu bytes are missing",
            (unsigned long long)parser->left, (unsigned long long)parser->content_length);
    case PHASE_CHUNK_SIZE:
    case PHASE_CHUNK_DATA:
    case PHASE_CHUNK_END:
    case PHASE_TRAILER:
        return kvf_fail(error, KVF_EDISCONNECTED, "the chunked body was cut before its last chunk");
    case PHASE_FAILED:
        break;
    }
    return kvf_fail(error, KVF_EFORMAT, "the message was malformed");
}
