/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_serdes.h"

#include <string.h>

#define PREFIX     "nixlSerDes|"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define FIELD_END  '|'

void kvfi_serdes_begin(struct kvfi_buf *buf)
{
    kvfi_buf_put(buf, PREFIX, PREFIX_LEN);
}

void kvfi_serdes_begin_field(struct kvfi_buf *buf, const char *tag, size_t len)
{
    kvfi_buf_put_text(buf, tag);
    kvfi_buf_put_u64le(buf, len);
}

void kvfi_serdes_end_field(struct kvfi_buf *buf)
{
    kvfi_buf_put_u8(buf, FIELD_END);
}

void kvfi_serdes_put(struct kvfi_buf *buf, const char *tag, struct kvfi_span data)
{
    kvfi_serdes_begin_field(buf, tag, data.len);
    kvfi_buf_put(buf, data.data, data.len);
    kvfi_serdes_end_field(buf);
}

void kvfi_serdes_put_u32(struct kvfi_buf *buf, const char *tag, uint32_t value)
{
    kvfi_serdes_begin_field(buf, tag, 4);
    kvfi_buf_put_u32le(buf, value);
    kvfi_serdes_end_field(buf);
}

void kvfi_serdes_put_u64(struct kvfi_buf *buf, const char *tag, uint64_t value)
{
    kvfi_serdes_begin_field(buf, tag, 8);
    kvfi_buf_put_u64le(buf, value);
    kvfi_serdes_end_field(buf);
}

enum kvf_status kvfi_serdes_open(struct kvfi_reader *reader, const void *data, size_t len,
                                 struct kvf_error *error)
{
    *reader = kvfi_reader(data, len);
    struct kvfi_span prefix;
    if (kvfi_reader_take(reader, PREFIX_LEN, &prefix) != KVF_OK ||
        memcmp(prefix.data, PREFIX, PREFIX_LEN) != 0)
        return kvf_fail(error, KVF_EFORMAT, "not a NIXL stream: it does not begin with %s", PREFIX);
    return KVF_OK;
}

enum kvf_status kvfi_serdes_take(struct kvfi_reader *reader, const char *tag, struct kvfi_span *out,
                                 struct kvf_error *error)
{
    struct kvfi_reader ahead = *reader;
    struct kvfi_quote quote;
    struct kvfi_span found = {0}, data = {0};
    uint64_t len = 0;
    uint8_t end = 0;
    size_t tag_len = strlen(tag);
    if (kvfi_reader_take(&ahead, tag_len, &found) != KVF_OK)
        return kvf_fail(error, KVF_EFORMAT, "NIXL stream ends at byte %zu where tag '%s' is due",
                        reader->pos, tag);
    if (tag_len != 0 && memcmp(found.data, tag, tag_len) != 0)
        return kvf_fail(error, KVF_EFORMAT, "NIXL stream has '%s' at byte %zu where '%s' is due",
                        kvfi_quote(&quote, found), reader->pos, tag);
    if (kvfi_reader_u64le(&ahead, &len) != KVF_OK)
        return kvf_fail(error, KVF_EFORMAT, "NIXL stream ends in the length of field '%s'", tag);
    if (len > kvfi_reader_left(&ahead) || kvfi_reader_take(&ahead, (size_t)len, &data) != KVF_OK ||
        kvfi_reader_u8(&ahead, &end) != KVF_OK)
        return kvf_fail(error, KVF_EFORMAT,
                        "NIXL field '%s' claims %llu bytes, but only %zu are left", tag,
                        (unsigned long long)len, kvfi_reader_left(&ahead));
    if (end != FIELD_END)
        return kvf_fail(error, KVF_EFORMAT, "NIXL field '%s' ends with byte 0x%02x, not '|'", tag,
                        end);
    *reader = ahead;
    *out = data;
    return KVF_OK;
}

static enum kvf_status take_sized(struct kvfi_reader *reader, const char *tag, size_t len,
                                  struct kvfi_reader *value, struct kvf_error *error)
{
    struct kvfi_reader ahead = *reader;
    struct kvfi_span data = {0};
    KVF_TRY(kvfi_serdes_take(&ahead, tag, &data, error));
    if (data.len != len)
        return kvf_fail(error, KVF_EFORMAT, "NIXL field '%s' has %zu bytes instead of %zu", tag,
                        data.len, len);
    *reader = ahead;
    *value = kvfi_reader(data.data, data.len);
    return KVF_OK;
}

enum kvf_status kvfi_serdes_take_u32(struct kvfi_reader *reader, const char *tag, uint32_t *out,
                                     struct kvf_error *error)
{
    struct kvfi_reader value;
    KVF_TRY(take_sized(reader, tag, 4, &value, error));
    return kvfi_reader_u32le(&value, out);
}

enum kvf_status kvfi_serdes_take_u64(struct kvfi_reader *reader, const char *tag, uint64_t *out,
                                     struct kvf_error *error)
{
    struct kvfi_reader value;
    KVF_TRY(take_sized(reader, tag, 8, &value, error));
    return kvfi_reader_u64le(&value, out);
}

enum kvf_status kvfi_serdes_close(const struct kvfi_reader *reader, struct kvf_error *error)
{
    if (kvfi_reader_left(reader) != 0)
        return kvf_fail(error, KVF_EFORMAT, "NIXL stream has %zu bytes after its last field",
                        kvfi_reader_left(reader));
    return KVF_OK;
}
