/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/bytes.h"

#include "runtime/alloc.h"

#include <string.h>

#define BUF_CAP_MIN 256

struct kvfi_span kvfi_span_str(const char *text)
{
    return kvfi_span(text, text ? strlen(text) : 0);
}

bool kvfi_span_equal(struct kvfi_span a, struct kvfi_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

int kvfi_span_compare(struct kvfi_span a, struct kvfi_span b)
{
    size_t common = a.len < b.len ? a.len : b.len;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    if (order != 0)
        return order;
    return (a.len > b.len) - (a.len < b.len);
}

void *kvfi_wire_alloc(const struct kvf_allocator *allocator, size_t size)
{
    allocator = kvfi_allocator(allocator);
    return allocator->alloc(allocator->ctx, size ? size : 1);
}

void *kvfi_wire_realloc(const struct kvf_allocator *allocator, void *ptr, size_t size)
{
    allocator = kvfi_allocator(allocator);
    return allocator->realloc(allocator->ctx, ptr, size ? size : 1);
}

void kvfi_wire_free(const struct kvf_allocator *allocator, void *ptr)
{
    kvfi_free(allocator, ptr);
}

void kvfi_buf_init(struct kvfi_buf *buf, const struct kvf_allocator *allocator)
{
    *buf = (struct kvfi_buf){.allocator = allocator, .status = KVF_OK};
}

void kvfi_buf_deinit(struct kvfi_buf *buf)
{
    kvfi_wire_free(buf->allocator, buf->data);
    kvfi_buf_init(buf, buf->allocator);
}

void kvfi_buf_clear(struct kvfi_buf *buf)
{
    buf->len = 0;
    buf->status = KVF_OK;
}

uint8_t *kvfi_buf_release(struct kvfi_buf *buf, size_t *len)
{
    uint8_t *data = buf->data;
    *len = buf->len;
    kvfi_buf_init(buf, buf->allocator);
    return data;
}

/* Makes room for len more bytes; false leaves the failure in the buffer. */
static bool reserve(struct kvfi_buf *buf, size_t len)
{
    if (buf->status != KVF_OK)
        return false;
    if (len <= buf->cap - buf->len)
        return true;
    if (len > KVFI_BUF_LEN_MAX - buf->len) {
        buf->status = KVF_ELIMIT;
        return false;
    }
    size_t cap = buf->cap ? buf->cap : BUF_CAP_MIN;
    while (cap - buf->len < len)
        cap *= 2;
    void *data = buf->data ? kvfi_wire_realloc(buf->allocator, buf->data, cap)
                           : kvfi_wire_alloc(buf->allocator, cap);
    if (!data) {
        buf->status = KVF_ENOMEM;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

void kvfi_buf_put(struct kvfi_buf *buf, const void *data, size_t len)
{
    if (len == 0 || !reserve(buf, len))
        return;
    memcpy(buf->data + buf->len, data, len);
    buf->len += len;
}

void kvfi_buf_put_text(struct kvfi_buf *buf, const char *text)
{
    kvfi_buf_put(buf, text, strlen(text));
}

void kvfi_buf_put_decimal(struct kvfi_buf *buf, uint64_t value)
{
    char digits[20];
    size_t start = sizeof(digits);
    do {
        digits[--start] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    kvfi_buf_put(buf, digits + start, sizeof(digits) - start);
}

void kvfi_buf_put_u8(struct kvfi_buf *buf, uint8_t value)
{
    kvfi_buf_put(buf, &value, 1);
}

void kvfi_buf_put_u32le(struct kvfi_buf *buf, uint32_t value)
{
    uint8_t bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    kvfi_buf_put(buf, bytes, sizeof(bytes));
}

void kvfi_buf_put_u64le(struct kvfi_buf *buf, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    kvfi_buf_put(buf, bytes, sizeof(bytes));
}

enum kvf_status kvfi_buf_status(const struct kvfi_buf *buf, struct kvf_error *error)
{
    if (buf->status == KVF_OK)
        return KVF_OK;
    if (buf->status == KVF_ELIMIT)
        return kvf_fail(error, KVF_ELIMIT, "message is larger than %zu bytes", KVFI_BUF_LEN_MAX);
    return kvf_fail(error, buf->status, "no memory to grow a message beyond %zu bytes", buf->len);
}

enum kvf_status kvfi_reader_take(struct kvfi_reader *reader, size_t len, struct kvfi_span *out)
{
    if (len > kvfi_reader_left(reader))
        return KVF_EFORMAT;
    *out = kvfi_span(len ? reader->data + reader->pos : NULL, len);
    reader->pos += len;
    return KVF_OK;
}

enum kvf_status kvfi_reader_u8(struct kvfi_reader *reader, uint8_t *out)
{
    struct kvfi_span bytes;
    KVF_TRY(kvfi_reader_take(reader, 1, &bytes));
    *out = bytes.data[0];
    return KVF_OK;
}

static uint64_t load_le(struct kvfi_span bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes.len; i > 0; i--)
        value = value << 8 | bytes.data[i - 1];
    return value;
}

enum kvf_status kvfi_reader_u32le(struct kvfi_reader *reader, uint32_t *out)
{
    struct kvfi_span bytes;
    KVF_TRY(kvfi_reader_take(reader, 4, &bytes));
    *out = (uint32_t)load_le(bytes);
    return KVF_OK;
}

enum kvf_status kvfi_reader_u64le(struct kvfi_reader *reader, uint64_t *out)
{
    struct kvfi_span bytes;
    KVF_TRY(kvfi_reader_take(reader, 8, &bytes));
    *out = load_le(bytes);
    return KVF_OK;
}

/* Length of the well-formed sequence at the start of text, 0 when there is none. The second byte's
 * range excludes overlong forms, surrogates and values above U+10FFFF. */
static size_t utf8_sequence_len(const uint8_t *text, size_t len)
{
    uint8_t first = text[0];
    if (first < 0x80)
        return 1;
    size_t need;
    uint8_t low = 0x80, high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf) {
        need = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        need = 3;
        if (first == 0xe0)
            low = 0xa0;
        if (first == 0xed)
            high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
        need = 4;
        if (first == 0xf0)
            low = 0x90;
        if (first == 0xf4)
            high = 0x8f;
    } else {
        return 0;
    }
    if (len < need || text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < need; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return need;
}

bool kvfi_utf8_valid(struct kvfi_span text)
{
    size_t pos = 0;
    while (pos < text.len) {
        size_t step = utf8_sequence_len(text.data + pos, text.len - pos);
        if (step == 0)
            return false;
        pos += step;
    }
    return true;
}

uint32_t kvfi_utf8_next(struct kvfi_span text, size_t *pos)
{
    static const uint8_t first_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    const uint8_t *at = text.data + *pos;
    size_t step = utf8_sequence_len(at, text.len - *pos);
    uint32_t point = at[0] & first_mask[step];
    for (size_t i = 1; i < step; i++)
        point = point << 6 | (at[i] & 0x3f);
    *pos += step;
    return point;
}

bool kvfi_parse_decimal(struct kvfi_span text, uint64_t value_max, uint64_t *out)
{
    if (text.len == 0)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9')
            return false;
        uint64_t digit = (uint64_t)(text.data[i] - '0');
        if (digit > value_max || value > (value_max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

const char *kvfi_quote(struct kvfi_quote *quote, struct kvfi_span bytes)
{
    size_t shown_max = sizeof(quote->text) - 4;
    size_t shown = bytes.len < shown_max ? bytes.len : shown_max;
    for (size_t i = 0; i < shown; i++) {
        uint8_t c = bytes.data[i];
        quote->text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    memcpy(quote->text + shown, "...", 4);
    if (shown == bytes.len)
        quote->text[shown] = '\0';
    return quote->text;
}
