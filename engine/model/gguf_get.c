/* SPDX-License-Identifier: Apache-2.0 */
/* Typed access to the metadata of a GGUF file that gguf.c has checked. */
#include "gguf.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *value_type_name(enum gguf_value_type type)
{
    static const char *const names[] = {
        [GGUF_U8] = "u8",         [GGUF_I8] = "i8",       [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",       [GGUF_I32] = "i32",     [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_STRING] = "string", [GGUF_ARRAY] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
        [GGUF_F64] = "f64",
    };
    return names[type];
}

static enum kvf_status find(const struct gguf *file, const char *key,
                            const struct gguf_entry **entry_p, struct kvf_error *error)
{
    *entry_p = gguf_find(file, key);
    if (!*entry_p)
        return kvf_fail(error, KVF_ENOTFOUND, "%s: key %s is missing", gguf_path(file), key);
    return KVF_OK;
}

static enum kvf_status wrong_type(const struct gguf *file, const struct gguf_entry *entry,
                                  const char *key, const char *wanted, struct kvf_error *error)
{
    return kvf_fail(error, KVF_EFORMAT, "%s: key %s is of type %s; expected %s", gguf_path(file),
                    key, value_type_name(entry->type), wanted);
}

/* The value of any integer type; false when it is not an integer. Negative ones come as such in
 * *negative_p. */
static bool integer(const struct gguf_entry *entry, uint64_t *value_p, bool *negative_p)
{
    int64_t i = 0;
    uint64_t u = 0;
    *negative_p = false;
    switch (entry->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        memcpy(&u, entry->data, entry->size);
        *value_p = u;
        return true;
    case GGUF_I8:
        i = entry->data[0] < 128 ? entry->data[0] : entry->data[0] - 256;
        break;
    case GGUF_I16: {
        int16_t v;
        memcpy(&v, entry->data, sizeof v);
        i = v;
        break;
    }
    case GGUF_I32: {
        int32_t v;
        memcpy(&v, entry->data, sizeof v);
        i = v;
        break;
    }
    case GGUF_I64:
        memcpy(&i, entry->data, sizeof i);
        break;
    case GGUF_F32:
    case GGUF_BOOL:
    case GGUF_STRING:
    case GGUF_ARRAY:
    case GGUF_F64:
        return false;
    }
    *negative_p = i < 0;
    *value_p = (uint64_t)i;
    return true;
}

enum kvf_status gguf_get_u32(const struct gguf *file, const char *key, uint32_t *value_p,
                             struct kvf_error *error)
{
    const struct gguf_entry *entry;
    uint64_t value;
    bool negative;
    KVF_TRY(find(file, key, &entry, error));
    if (!integer(entry, &value, &negative))
        return wrong_type(file, entry, key, "an integer", error);
    if (negative)
        return kvf_fail(error, KVF_EFORMAT, "%s: key %s is %" PRId64 "; it must not be negative",
                        gguf_path(file), key, (int64_t)value);
    if (value > UINT32_MAX)
        return kvf_fail(error, KVF_EFORMAT, "%s: key %s is %" PRIu64 "; the largest allowed is %u",
                        gguf_path(file), key, value, UINT32_MAX);
    *value_p = (uint32_t)value;
    return KVF_OK;
}

enum kvf_status gguf_get_f32(const struct gguf *file, const char *key, float *value_p,
                             struct kvf_error *error)
{
    const struct gguf_entry *entry;
    float value;
    KVF_TRY(find(file, key, &entry, error));
    if (entry->type == GGUF_F32) {
        memcpy(&value, entry->data, sizeof value);
    } else if (entry->type == GGUF_F64) {
        double wide;
        memcpy(&wide, entry->data, sizeof wide);
        value = (float)wide;
    } else {
        return wrong_type(file, entry, key, "f32 or f64", error);
    }
    if (!isfinite(value))
        return kvf_fail(error, KVF_EFORMAT, "%s: key %s is %g; it must be a finite number",
                        gguf_path(file), key, (double)value);
    *value_p = value;
    return KVF_OK;
}

enum kvf_status gguf_get_bool(const struct gguf *file, const char *key, bool *value_p,
                              struct kvf_error *error)
{
    const struct gguf_entry *entry;
    KVF_TRY(find(file, key, &entry, error));
    if (entry->type != GGUF_BOOL)
        return wrong_type(file, entry, key, "bool", error);
    if (entry->data[0] > 1)
        return kvf_fail(error, KVF_EFORMAT, "%s: key %s is %u; a bool is 0 or 1", gguf_path(file),
                        key, entry->data[0]);
    *value_p = entry->data[0] != 0;
    return KVF_OK;
}

enum kvf_status gguf_get_string(const struct gguf *file, const char *key,
                                struct gguf_string *value_p, struct kvf_error *error)
{
    const struct gguf_entry *entry;
    KVF_TRY(find(file, key, &entry, error));
    if (entry->type != GGUF_STRING)
        return wrong_type(file, entry, key, "string", error);
    struct gguf_strings strings = {entry->data, entry->size};
    if (!gguf_next_string(&strings, value_p))
        return kvf_fail(error, KVF_EFORMAT, "%s: key %s changed while it was read", gguf_path(file),
                        key);
    return KVF_OK;
}

bool gguf_next_string(struct gguf_strings *strings, struct gguf_string *value_p)
{
    uint64_t len;
    if (strings->left < sizeof len)
        return false;
    memcpy(&len, strings->at, sizeof len);
    if (len > strings->left - sizeof len)
        return false;
    *value_p = (struct gguf_string){(const char *)strings->at + sizeof len, (size_t)len};
    strings->at += sizeof len + (size_t)len;
    strings->left -= sizeof len + (size_t)len;
    return true;
}
