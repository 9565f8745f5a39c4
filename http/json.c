/* SPDX-License-Identifier: Apache-2.0 */
#include "http/json.h"

#include <string.h>

enum kvf_status kvfi_json_parse_object(const char *what, const char *data, size_t len,
                                       json_t **object_p, struct kvf_error *error)
{
    json_error_t at;
    if (!len)
        return kvf_fail(error, KVF_EFORMAT, "%s: empty, expected a JSON object", what);
    json_t *value = json_loadb(data, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &at);
    if (!value)
        return kvf_fail(error, KVF_EFORMAT, "%s: not JSON: %s (line %d, column %d)", what, at.text,
                        at.line, at.column);
    if (!json_is_object(value)) {
        (void)kvf_fail(error, KVF_EFORMAT, "%s: expected a JSON object, found %s", what,
                       kvfi_json_kind(value));
        json_decref(value);
        return KVF_EFORMAT;
    }
    *object_p = value;
    return KVF_OK;
}

char *kvfi_json_dump(const json_t *value, size_t *len_p)
{
    if (!value)
        return NULL;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text && len_p)
        *len_p = strlen(text);
    return text;
}

const char *kvfi_json_kind(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "an unknown value";
}

static json_t *find(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static enum kvf_status need(const json_t *object, const char *key, const char *kind,
                            json_t **value_p, struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (!value)
        return kvf_fail(error, KVF_EINVAL, "'%s' is missing, expected %s", key, kind);
    *value_p = value;
    return KVF_OK;
}

static enum kvf_status wrong(const char *key, const char *kind, const json_t *value,
                             struct kvf_error *error)
{
    return kvf_fail(error, KVF_EINVAL, "'%s' is %s, expected %s", key, kvfi_json_kind(value), kind);
}

static enum kvf_status as_string(const char *key, const json_t *value, const char **value_p,
                                 struct kvf_error *error)
{
    if (!json_is_string(value))
        return wrong(key, "a string", value, error);
    if (strlen(json_string_value(value)) != json_string_length(value))
        return kvf_fail(error, KVF_EINVAL, "'%s' holds a NUL character", key);
    *value_p = json_string_value(value);
    return KVF_OK;
}

enum kvf_status kvfi_json_need_string(const json_t *object, const char *key, const char **value_p,
                                      struct kvf_error *error)
{
    json_t *value = NULL;
    KVF_TRY(need(object, key, "a string", &value, error));
    return as_string(key, value, value_p, error);
}

enum kvf_status kvfi_json_opt_string(const json_t *object, const char *key, const char *fallback,
                                     const char **value_p, struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (value)
        return as_string(key, value, value_p, error);
    *value_p = fallback;
    return KVF_OK;
}

static enum kvf_status as_int(const char *key, const json_t *value, int64_t min, int64_t max,
                              int64_t *value_p, struct kvf_error *error)
{
    if (!json_is_integer(value))
        return wrong(key, "an integer", value, error);
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return kvf_fail(error, KVF_EINVAL, "'%s' is %lld, expected %lld to %lld", key,
                        (long long)number, (long long)min, (long long)max);
    *value_p = number;
    return KVF_OK;
}

enum kvf_status kvfi_json_need_int(const json_t *object, const char *key, int64_t min, int64_t max,
                                   int64_t *value_p, struct kvf_error *error)
{
    json_t *value = NULL;
    KVF_TRY(need(object, key, "an integer", &value, error));
    return as_int(key, value, min, max, value_p, error);
}

enum kvf_status kvfi_json_opt_int(const json_t *object, const char *key, int64_t min, int64_t max,
                                  int64_t fallback, int64_t *value_p, struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (value)
        return as_int(key, value, min, max, value_p, error);
    *value_p = fallback;
    return KVF_OK;
}

enum kvf_status kvfi_json_opt_number(const json_t *object, const char *key, double min, double max,
                                     double fallback, double *value_p, struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (!value) {
        *value_p = fallback;
        return KVF_OK;
    }
    if (!json_is_number(value))
        return wrong(key, "a number", value, error);
    double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return kvf_fail(error, KVF_EINVAL, "'%s' is %g, expected %g to %g", key, number, min, max);
    *value_p = number;
    return KVF_OK;
}

static enum kvf_status as_bool(const char *key, const json_t *value, bool *value_p,
                               struct kvf_error *error)
{
    if (!json_is_boolean(value))
        return wrong(key, "true or false", value, error);
    *value_p = json_is_true(value);
    return KVF_OK;
}

enum kvf_status kvfi_json_need_bool(const json_t *object, const char *key, bool *value_p,
                                    struct kvf_error *error)
{
    json_t *value = NULL;
    KVF_TRY(need(object, key, "true or false", &value, error));
    return as_bool(key, value, value_p, error);
}

enum kvf_status kvfi_json_opt_bool(const json_t *object, const char *key, bool fallback,
                                   bool *value_p, struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (value)
        return as_bool(key, value, value_p, error);
    *value_p = fallback;
    return KVF_OK;
}

enum kvf_status kvfi_json_opt_object(const json_t *object, const char *key, json_t **value_p,
                                     struct kvf_error *error)
{
    json_t *value = find(object, key);
    if (value && !json_is_object(value))
        return wrong(key, "an object", value, error);
    *value_p = value;
    return KVF_OK;
}

enum kvf_status kvfi_json_need_array(const json_t *object, const char *key, json_t **value_p,
                                     struct kvf_error *error)
{
    json_t *value = NULL;
    KVF_TRY(need(object, key, "an array", &value, error));
    if (!json_is_array(value))
        return wrong(key, "an array", value, error);
    *value_p = value;
    return KVF_OK;
}
