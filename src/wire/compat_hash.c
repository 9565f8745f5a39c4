/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/compat_hash.h"

#include <openssl/evp.h>
#include <string.h>

#define WHAT "compatibility factors"

/* One JSON object in the making; keys are given in sorted order. */
struct json {
    struct kvfi_buf *buf;
    struct kvf_error *error;
    enum kvf_status status; /* first failure */
    bool first;
};

static void put_escape(struct kvfi_buf *buf, uint32_t unit)
{
    static const char hex[] = "0123456789abcdef";
    char text[6] = {'\\', 'u'};
    for (int i = 0; i < 4; i++)
        text[2 + i] = hex[unit >> (12 - 4 * i) & 0xf];
    kvfi_buf_put(buf, text, sizeof(text));
}

/* As Python escapes with ensure_ascii: short forms for five controls, \u for the rest and for
 * everything above ASCII, a surrogate pair above U+FFFF. DEL is written as it is. */
static void put_string(struct kvfi_buf *buf, struct kvfi_span text)
{
    static const char short_from[] = "\"\\\n\r\t\f\b";
    static const char short_to[] = "\"\\nrtfb";
    kvfi_buf_put_u8(buf, '"');
    for (size_t pos = 0; pos < text.len;) {
        uint32_t point = kvfi_utf8_next(text, &pos);
        const char *short_form = point != 0 && point < 0x80 ? strchr(short_from, (int)point) : NULL;
        if (short_form) {
            kvfi_buf_put_u8(buf, '\\');
            kvfi_buf_put_u8(buf, (uint8_t)short_to[short_form - short_from]);
        } else if (point >= 0x20 && point < 0x80) {
            kvfi_buf_put_u8(buf, (uint8_t)point);
        } else if (point < 0x10000) {
            put_escape(buf, point);
        } else {
            put_escape(buf, 0xd800 + ((point - 0x10000) >> 10));
            put_escape(buf, 0xdc00 + ((point - 0x10000) & 0x3ff));
        }
    }
    kvfi_buf_put_u8(buf, '"');
}

static void put_key(struct json *json, const char *key)
{
    kvfi_buf_put_text(json->buf, json->first ? "" : ", ");
    json->first = false;
    put_string(json->buf, kvfi_span_str(key));
    kvfi_buf_put_text(json->buf, ": ");
}

static void put_nullable(struct json *json, const char *key, const char *value)
{
    put_key(json, key);
    if (!value) {
        kvfi_buf_put_text(json->buf, "null");
        return;
    }
    if (!kvfi_utf8_valid(kvfi_span_str(value))) {
        if (json->status == KVF_OK)
            json->status = kvf_fail(json->error, KVF_EINVAL, WHAT ": '%s' is not UTF-8", key);
        return;
    }
    put_string(json->buf, kvfi_span_str(value));
}

static void put_text(struct json *json, const char *key, const char *value)
{
    if (!value && json->status == KVF_OK)
        json->status = kvf_fail(json->error, KVF_EINVAL, WHAT ": '%s' is missing", key);
    put_nullable(json, key, value);
}

static void put_number(struct kvfi_buf *buf, int64_t value)
{
    if (value < 0)
        kvfi_buf_put_u8(buf, '-');
    kvfi_buf_put_decimal(buf, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static void put_int(struct json *json, const char *key, int64_t value)
{
    put_key(json, key);
    put_number(json->buf, value);
}

static void put_bool(struct json *json, const char *key, bool value)
{
    put_key(json, key);
    kvfi_buf_put_text(json->buf, value ? "true" : "false");
}

static void put_layer_ids(struct json *json, const struct kvfi_speculative_factors *factors)
{
    put_key(json, "auxiliary_layer_ids");
    if (!factors->has_auxiliary_layer_ids) {
        kvfi_buf_put_text(json->buf, "null");
        return;
    }
    kvfi_buf_put_text(json->buf, "[");
    for (size_t i = 0; i < factors->auxiliary_layer_id_count; i++) {
        kvfi_buf_put_text(json->buf, i ? ", " : "");
        put_number(json->buf, factors->auxiliary_layer_ids[i]);
    }
    kvfi_buf_put_text(json->buf, "]");
}

static void put_speculative(struct json *json, const struct kvfi_speculative_factors *factors)
{
    put_key(json, "speculative_config");
    if (!factors) {
        kvfi_buf_put_text(json->buf, "null");
        return;
    }
    struct json inner = {.buf = json->buf, .error = json->error, .first = true};
    inner.status = json->status;
    kvfi_buf_put_text(json->buf, "{");
    put_layer_ids(&inner, factors);
    put_nullable(&inner, "code_revision", factors->code_revision);
    put_nullable(&inner, "kv_cache_dtype", factors->kv_cache_dtype);
    put_nullable(&inner, "method", factors->method);
    put_nullable(&inner, "model", factors->model);
    put_bool(&inner, "parallel_drafting", factors->parallel_drafting);
    put_nullable(&inner, "revision", factors->revision);
    kvfi_buf_put_text(json->buf, "}");
    json->status = inner.status;
}

enum kvf_status kvfi_compat_json(const struct kvfi_compat_factors *factors, struct kvfi_buf *buf,
                                 struct kvf_error *error)
{
    struct json json = {.buf = buf, .error = error, .status = KVF_OK, .first = true};
    kvfi_buf_put_text(buf, "{");
    put_text(&json, "attn_backend_name", factors->attn_backend_name);
    put_text(&json, "cache_dtype", factors->cache_dtype);
    put_text(&json, "dtype", factors->dtype);
    put_int(&json, "head_size", factors->head_size);
    put_bool(&json, "is_hma_enabled", factors->is_hma_enabled);
    put_text(&json, "model", factors->model);
    put_int(&json, "nixl_connector_version", factors->nixl_connector_version);
    put_int(&json, "num_hidden_layers", factors->num_hidden_layers);
    put_int(&json, "num_kv_heads", factors->num_kv_heads);
    put_speculative(&json, factors->speculative_config);
    put_text(&json, "transfer_mode", factors->transfer_mode);
    put_text(&json, "vllm_version", factors->vllm_version);
    kvfi_buf_put_text(buf, "}");
    KVF_TRY(json.status);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_sha256_hex(const void *data, size_t len, char hex[KVFI_COMPAT_HASH_LEN + 1],
                                struct kvf_error *error)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned digest_len = 0;
    if (EVP_Digest(data, len, digest, &digest_len, EVP_sha256(), NULL) != 1 ||
        digest_len * 2 != KVFI_COMPAT_HASH_LEN)
        return kvf_fail(error, KVF_EINTERNAL, "libcrypto does not compute SHA-256");
    for (size_t i = 0; i < digest_len; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 0xf];
    }
    hex[KVFI_COMPAT_HASH_LEN] = '\0';
    return KVF_OK;
}

enum kvf_status kvfi_compat_hash(const struct kvfi_compat_factors *factors,
                                 const struct kvf_allocator *allocator,
                                 char hex[KVFI_COMPAT_HASH_LEN + 1], struct kvf_error *error)
{
    struct kvfi_buf json;
    kvfi_buf_init(&json, allocator);
    enum kvf_status status = kvfi_compat_json(factors, &json, error);
    if (status == KVF_OK)
        status = kvfi_sha256_hex(json.data, json.len, hex, error);
    kvfi_buf_deinit(&json);
    return status;
}

bool kvfi_compat_hash_valid(const char *hex)
{
    return strspn(hex, "0123456789abcdef") == KVFI_COMPAT_HASH_LEN &&
           hex[KVFI_COMPAT_HASH_LEN] == '\0';
}
