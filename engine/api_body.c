/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <string.h>

/* The last "key": that begins before `end`; what is not one (a string that holds such a thing) does
 * no harm, it is only shown. NULL: none. */
static const char *last_key(const char *data, size_t end, int *len_p)
{
    const char *key = NULL;
    const char *quote = NULL;
    for (size_t i = 0; i < end; i++) {
        if (data[i] == '"') {
            quote = quote ? NULL : data + i + 1;
            if (quote)
                continue;
            size_t start = i;
            while (start > 0 && data[start - 1] != '"')
                start--;
            size_t next = i + 1;
            while (next < end && (data[next] == ' ' || data[next] == '\t'))
                next++;
            if (next < end && data[next] == ':') {
                key = data + start;
                *len_p = i - start > 64 ? 64 : (int)(i - start);
            }
        } else if (data[i] == '\\') {
            i++;
        }
    }
    return key;
}

enum kvf_status engine_api_body_parse(const char *data, size_t len, json_t **body_p,
                                      struct kvf_error *error)
{
    struct kvf_error plain = {0};
    enum kvf_status status = kvfi_json_parse_object("request body", data, len, body_p, &plain);
    if (status == KVF_OK)
        return KVF_OK;
    json_error_t at = {.position = 0};
    json_t *value = json_loadb(data, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &at);
    json_decref(value);
    size_t end = at.position > 0 && (size_t)at.position < len ? (size_t)at.position : len;
    int key_len = 0;
    const char *key = value || memchr(data, '\0', len) ? NULL : last_key(data, end, &key_len);
    if (!key)
        return kvf_fail(error, status, "%s", plain.text);
    return kvf_fail(error, status, "%s, at or after key '%.*s'", plain.text, key_len, key);
}
