/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/notif.h"

#include <string.h>

#define BASE_TAIL_LEN 9 /* '-' and 8 hex digits */

const char *kvfi_notif_kind_name(enum kvfi_notif_kind kind)
{
    switch (kind) {
    case KVFI_NOTIF_PUSH_REG:
        return "PUSH_REG";
    case KVFI_NOTIF_HEARTBEAT:
        return "HB";
    case KVFI_NOTIF_DONE:
        return "completion";
    case KVFI_NOTIF_PUSH_FAIL:
        return "PUSH_FAIL";
    case KVFI_NOTIF_PUSH_DROP:
        return "PUSH_DROP";
    }
    return "unknown";
}

static bool cut_prefix(struct kvfi_span *text, const char *prefix)
{
    size_t len = strlen(prefix);
    if (text->len < len || memcmp(text->data, prefix, len) != 0)
        return false;
    *text = kvfi_span(text->data + len, text->len - len);
    return true;
}

/* The rules for an id, whoever wrote it; malformed is what a breach is called. */
static enum kvf_status check_id(const char *kind, struct kvfi_span id, enum kvf_status malformed,
                                struct kvf_error *error)
{
    struct kvfi_quote quote;
    if (id.len == 0)
        return kvf_fail(error, malformed, "%s: the request id is empty", kind);
    if (id.len > KVFI_NOTIF_ID_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "%s: a request id of %zu bytes, at most %d", kind,
                        id.len, KVFI_NOTIF_ID_LEN_MAX);
    if (!kvfi_utf8_valid(id) || memchr(id.data, 0, id.len))
        return kvf_fail(error, malformed, "%s: request id '%s' is not UTF-8 text without NUL", kind,
                        kvfi_quote(&quote, id));
    return KVF_OK;
}

/* "<id>:<n>", cut at the last colon because ids may contain colons. */
static enum kvf_status parse_counted(struct kvfi_span text, struct kvfi_notif *notif,
                                     struct kvf_error *error)
{
    const char *kind = kvfi_notif_kind_name(notif->kind);
    struct kvfi_quote quote;
    uint64_t count;
    const uint8_t *colon = text.len ? memrchr(text.data, ':', text.len) : NULL;
    if (!colon)
        return kvf_fail(error, KVF_EFORMAT, "%s: no colon in '%s'", kind, kvfi_quote(&quote, text));
    size_t id_len = (size_t)(colon - text.data);
    struct kvfi_span number = kvfi_span(colon + 1, text.len - id_len - 1);
    notif->request_id = kvfi_span(text.data, id_len);
    KVF_TRY(check_id(kind, notif->request_id, KVF_EFORMAT, error));
    if (!kvfi_parse_decimal(number, KVFI_NOTIF_COUNT_MAX, &count) || count == 0)
        return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is not a number from 1 to %d", kind,
                        kvfi_quote(&quote, number), KVFI_NOTIF_COUNT_MAX);
    notif->count = (uint32_t)count;
    return KVF_OK;
}

enum kvf_status kvfi_notif_classify(const void *data, size_t len, struct kvfi_notif *notif,
                                    struct kvf_error *error)
{
    struct kvfi_span text = kvfi_span(data, len);
    struct kvfi_notif found = {.kind = KVFI_NOTIF_DONE};
    if (len > KVFI_NOTIF_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "notification of %zu bytes, at most %zu", len,
                        KVFI_NOTIF_LEN_MAX);
    if (cut_prefix(&text, KVFI_PUSH_REG_PREFIX)) {
        found.kind = KVFI_NOTIF_PUSH_REG;
        found.body = kvfi_span(data, len);
    } else if (cut_prefix(&text, KVFI_NOTIF_HB_PREFIX)) {
        found.kind = KVFI_NOTIF_HEARTBEAT;
        found.body = text;
        if (!kvfi_utf8_valid(text))
            return kvf_fail(error, KVF_EFORMAT, "HB: the list is not UTF-8");
    } else if (cut_prefix(&text, KVFI_NOTIF_DROP_PREFIX)) {
        found.kind = KVFI_NOTIF_PUSH_DROP;
        found.request_id = text;
        KVF_TRY(check_id(kvfi_notif_kind_name(found.kind), text, KVF_EFORMAT, error));
    } else {
        if (cut_prefix(&text, KVFI_NOTIF_FAIL_PREFIX))
            found.kind = KVFI_NOTIF_PUSH_FAIL;
        KVF_TRY(parse_counted(text, &found, error));
    }
    *notif = found;
    return KVF_OK;
}

bool kvfi_notif_heartbeat_next(struct kvfi_span *list, struct kvfi_span *request_id)
{
    while (list->len != 0) {
        const uint8_t *comma = memchr(list->data, ',', list->len);
        size_t id_len = comma ? (size_t)(comma - list->data) : list->len;
        struct kvfi_span id = kvfi_span(list->data, id_len);
        size_t step = comma ? id_len + 1 : id_len;
        *list = kvfi_span(list->data + step, list->len - step);
        if (id.len != 0 && id.len <= KVFI_NOTIF_ID_LEN_MAX) {
            *request_id = id;
            return true;
        }
    }
    return false;
}

static enum kvf_status put_counted(const char *prefix, enum kvfi_notif_kind kind,
                                   struct kvfi_span id, uint32_t count, struct kvfi_buf *buf,
                                   struct kvf_error *error)
{
    const char *name = kvfi_notif_kind_name(kind);
    KVF_TRY(check_id(name, id, KVF_EINVAL, error));
    if (count == 0 || count > KVFI_NOTIF_COUNT_MAX)
        return kvf_fail(error, KVF_EINVAL, "%s: count %u, expected 1 to %d", name, count,
                        KVFI_NOTIF_COUNT_MAX);
    kvfi_buf_put_text(buf, prefix);
    kvfi_buf_put(buf, id.data, id.len);
    kvfi_buf_put_text(buf, ":");
    kvfi_buf_put_decimal(buf, count);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_notif_done_encode(struct kvfi_span request_id, uint32_t count,
                                       struct kvfi_buf *buf, struct kvf_error *error)
{
    static const char *const prefixes[] = {KVFI_PUSH_REG_PREFIX, KVFI_NOTIF_HB_PREFIX,
                                           KVFI_NOTIF_FAIL_PREFIX, KVFI_NOTIF_DROP_PREFIX};
    struct kvfi_quote quote;
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        struct kvfi_span rest = request_id;
        if (cut_prefix(&rest, prefixes[i]))
            return kvf_fail(error, KVF_EINVAL,
                            "completion: request id '%s' would be read as another kind of message",
                            kvfi_quote(&quote, request_id));
    }
    return put_counted("", KVFI_NOTIF_DONE, request_id, count, buf, error);
}

enum kvf_status kvfi_notif_fail_encode(struct kvfi_span request_id, uint32_t prefill_tp_size,
                                       struct kvfi_buf *buf, struct kvf_error *error)
{
    return put_counted(KVFI_NOTIF_FAIL_PREFIX, KVFI_NOTIF_PUSH_FAIL, request_id, prefill_tp_size,
                       buf, error);
}

enum kvf_status kvfi_notif_drop_encode(struct kvfi_span request_id, struct kvfi_buf *buf,
                                       struct kvf_error *error)
{
    KVF_TRY(check_id(kvfi_notif_kind_name(KVFI_NOTIF_PUSH_DROP), request_id, KVF_EINVAL, error));
    kvfi_buf_put_text(buf, KVFI_NOTIF_DROP_PREFIX);
    kvfi_buf_put(buf, request_id.data, request_id.len);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_notif_heartbeat_encode(const struct kvfi_span *request_ids, size_t count,
                                            struct kvfi_buf *buf, struct kvf_error *error)
{
    struct kvfi_quote quote;
    size_t start = buf->len;
    if (count == 0)
        return kvf_fail(error, KVF_EINVAL, "HB: the list is empty");
    kvfi_buf_put_text(buf, KVFI_NOTIF_HB_PREFIX);
    for (size_t i = 0; i < count; i++) {
        KVF_TRY(check_id("HB", request_ids[i], KVF_EINVAL, error));
        if (memchr(request_ids[i].data, ',', request_ids[i].len))
            return kvf_fail(error, KVF_EINVAL, "HB: request id '%s' contains a comma",
                            kvfi_quote(&quote, request_ids[i]));
        kvfi_buf_put_text(buf, i ? "," : "");
        kvfi_buf_put(buf, request_ids[i].data, request_ids[i].len);
    }
    KVF_TRY(kvfi_buf_status(buf, error));
    if (buf->len - start > KVFI_NOTIF_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "HB: %zu bytes, at most %zu", buf->len - start,
                        KVFI_NOTIF_LEN_MAX);
    return KVF_OK;
}

static bool is_hex_digit(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

size_t kvfi_base_request_id(struct kvfi_span id)
{
    if (id.len < BASE_TAIL_LEN)
        return id.len;
    const uint8_t *tail = id.data + id.len - BASE_TAIL_LEN;
    if (tail[0] != '-')
        return id.len;
    for (size_t i = 1; i < BASE_TAIL_LEN; i++) {
        if (!is_hex_digit(tail[i]))
            return id.len;
    }
    return id.len - BASE_TAIL_LEN;
}
