/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/leg.h"

#include <string.h>

enum { PARALLEL_SIZE_MAX = 65536 };

enum kvf_status kvfi_leg_check(const json_t *body, struct kvf_error *error)
{
    if (!json_is_object(body))
        return kvf_fail(error, KVF_EINVAL, "the request body is %s, expected an object",
                        kvfi_json_kind(body));
    bool stream = false;
    int64_t n = 0;
    KVF_TRY(kvfi_json_opt_bool(body, "stream", false, &stream, error));
    KVF_TRY(kvfi_json_opt_int(body, "n", 1, INT32_MAX, 1, &n, error));
    return KVF_OK;
}

bool kvfi_leg_is_stream(const json_t *body)
{
    return json_is_true(json_object_get(body, "stream"));
}

/* Writes a leg's text with kv_transfer_params set; takes both references, which may be NULL. */
static enum kvf_status finish(json_t *leg, json_t *params, char **text_p, size_t *len_p,
                              struct kvf_error *error)
{
    char *text = NULL;
    size_t len = 0;
    if (leg && params && json_object_set(leg, "kv_transfer_params", params) == 0)
        text = kvfi_json_dump(leg, &len);
    json_decref(leg);
    json_decref(params);
    if (!text)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a leg's body");
    *text_p = text;
    *len_p = len;
    return KVF_OK;
}

enum kvf_status kvfi_leg_prefill(const json_t *body, const struct kvfi_leg_ids *ids, char **text_p,
                                 size_t *len_p, struct kvf_error *error)
{
    /* A shallow copy: the values are shared with the body and only replaced, never changed. */
    json_t *leg = json_copy((json_t *)body);
    json_t *params =
        json_pack("{s:b,s:b,s:n,s:n,s:n,s:n,s:n,s:s}", "do_remote_decode", 1, "do_remote_prefill",
                  0, "remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host",
                  "remote_port", "transfer_id", ids->transfer_id);
    bool bad = !leg || json_object_set_new(leg, "stream", json_false()) != 0 ||
               json_object_set_new(leg, "max_tokens", json_integer(1)) != 0;
    if (!bad && json_object_get(leg, "max_completion_tokens"))
        bad = json_object_set_new(leg, "max_completion_tokens", json_integer(1)) != 0;
    if (bad) {
        json_decref(leg);
        json_decref(params);
        return kvf_fail(error, KVF_ENOMEM, "no memory for the prefill leg's body");
    }
    json_object_del(leg, "stream_options");
    json_object_del(leg, "min_tokens");
    json_object_del(leg, "min_completion_tokens");
    return finish(leg, params, text_p, len_p, error);
}

enum kvf_status kvfi_leg_decode(const json_t *body, const struct kvfi_leg_ids *ids,
                                const struct kvfi_coordinates *prefill, char **text_p,
                                size_t *len_p, struct kvf_error *error)
{
    json_t *leg = json_copy((json_t *)body);
    json_t *params = json_pack("{s:b,s:b,s:s,s:s,s:s,s:i,s:i,s:i,s:s}", "do_remote_decode", 0,
                               "do_remote_prefill", 1, "remote_engine_id", prefill->engine_id,
                               "remote_request_id", ids->request_id, "remote_host", prefill->host,
                               "remote_port", (int)prefill->port, "tp_size", (int)prefill->tp_size,
                               "pp_size", (int)prefill->pp_size, "transfer_id", ids->transfer_id);
    return finish(leg, params, text_p, len_p, error);
}

static enum kvf_status copy_text(const json_t *answer, const char *key, char *out, size_t size,
                                 struct kvf_error *error)
{
    const char *text = NULL;
    KVF_TRY(kvfi_json_need_string(answer, key, &text, error));
    if (!*text || strlen(text) >= size)
        return kvf_fail(error, KVF_EINVAL, "'%s' has %zu characters, expected 1 to %zu", key,
                        strlen(text), size - 1);
    memcpy(out, text, strlen(text) + 1);
    return KVF_OK;
}

enum kvf_status kvfi_coordinates_read(const json_t *answer, struct kvfi_coordinates *coordinates_p,
                                      struct kvf_error *error)
{
    struct kvfi_coordinates read = {0};
    int64_t port = 0;
    int64_t tp_size = 0;
    int64_t pp_size = 0;
    KVF_TRY(copy_text(answer, "engine_id", read.engine_id, sizeof(read.engine_id), error));
    KVF_TRY(copy_text(answer, "host", read.host, sizeof(read.host), error));
    KVF_TRY(kvfi_json_need_int(answer, "port", 1, UINT16_MAX, &port, error));
    KVF_TRY(kvfi_json_opt_int(answer, "tp_size", 1, PARALLEL_SIZE_MAX, 1, &tp_size, error));
    KVF_TRY(kvfi_json_opt_int(answer, "pp_size", 1, PARALLEL_SIZE_MAX, 1, &pp_size, error));
    read.port = (uint16_t)port;
    read.tp_size = (uint32_t)tp_size;
    read.pp_size = (uint32_t)pp_size;
    *coordinates_p = read;
    return KVF_OK;
}
