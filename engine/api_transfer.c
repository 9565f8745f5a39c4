/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <string.h>
#include <strings.h>

/* Not given, or a string of 1 to len_max bytes. */
static enum kvf_status get_text(const json_t *object, const char *key, size_t len_max,
                                const char **value_p, struct kvf_error *error)
{
    KVF_TRY(kvfi_json_opt_string(object, key, NULL, value_p, error));
    if (!*value_p)
        return KVF_OK;
    size_t len = json_string_length(json_object_get(object, key));
    if (len == 0 || len > len_max || strlen(*value_p) != len)
        return kvf_fail(error, KVF_EINVAL,
                        "'%s' of kv_transfer_params has %zu bytes, expected 1 to %zu without NUL",
                        key, len, len_max);
    return KVF_OK;
}

static enum kvf_status check_role(const struct kvf_transfer_params *params, enum engine_role role,
                                  struct kvf_error *error)
{
    if (params->do_remote_decode && params->do_remote_prefill)
        return kvf_fail(error, KVF_EINVAL,
                        "'do_remote_decode' and 'do_remote_prefill' are both true; a request is "
                        "one leg or the other");
    if (params->do_remote_decode && role == ENGINE_ROLE_DECODE)
        return kvf_fail(error, KVF_EINVAL,
                        "'do_remote_decode' is true, but this engine has the role decode; send the "
                        "prefill leg to a prefill engine");
    if (params->do_remote_prefill && role == ENGINE_ROLE_PREFILL)
        return kvf_fail(error, KVF_EINVAL,
                        "'do_remote_prefill' is true, but this engine has the role prefill; send "
                        "the decode leg to a decode engine");
    return KVF_OK;
}

/* Without the brackets that an IPv6 address may be written in. */
static const char *bare_host(const char *host, size_t *len_p)
{
    if (*len_p < 2 || host[0] != '[' || host[*len_p - 1] != ']')
        return host;
    *len_p -= 2;
    return host + 1;
}

/* Names are compared as they are written, so nothing is resolved for a client's sake. */
static bool is_listed(const char *list, const char *host)
{
    size_t host_len = strlen(host);
    host = bare_host(host, &host_len);
    while (*list) {
        size_t len = strcspn(list, ",");
        size_t name_len = len;
        const char *name = bare_host(list, &name_len);
        if (name_len == host_len && strncasecmp(name, host, host_len) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

/* Whoever sends a request would otherwise choose what this engine connects to (bug B85). */
static enum kvf_status check_remote(const struct kvf_transfer_params *params, const char *allowed,
                                    struct kvf_error *error)
{
    if (!allowed || !params->remote_host || is_listed(allowed, params->remote_host))
        return KVF_OK;
    return kvf_fail(error, KVF_ENOTALLOWED,
                    "'remote_host' is '%.100s', which this engine does not connect to "
                    "(--allow-remote)",
                    params->remote_host);
}

enum kvf_status engine_api_transfer_parse(const json_t *value,
                                          const struct engine_api_limits *limits,
                                          struct engine_transfer *transfer, struct kvf_error *error)
{
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    int64_t cached;
    KVF_TRY(kvfi_json_opt_bool(value, "do_remote_decode", false, &params.do_remote_decode, error));
    KVF_TRY(
        kvfi_json_opt_bool(value, "do_remote_prefill", false, &params.do_remote_prefill, error));
    KVF_TRY(get_text(value, "remote_engine_id", KVF_ENGINE_ID_LEN_MAX, &params.remote_engine_id,
                     error));
    KVF_TRY(get_text(value, "remote_request_id", KVF_REQUEST_ID_LEN_MAX, &params.remote_request_id,
                     error));
    KVF_TRY(get_text(value, "remote_host", KVF_HOST_LEN_MAX, &params.remote_host, error));
    KVF_TRY(get_text(value, "transfer_mode", 16, &params.transfer_mode, error));
    KVF_TRY(get_text(value, "transfer_id", ENGINE_API_BASE_ID_LEN_MAX, &params.transfer_id, error));
    KVF_TRY(kvfi_json_opt_int(value, "remote_port", 1, UINT16_MAX, -1, &params.remote_port, error));
    KVF_TRY(kvfi_json_opt_int(value, "tp_size", 1, INT32_MAX, -1, &params.tp_size, error));
    KVF_TRY(kvfi_json_opt_int(value, "pp_size", 1, INT32_MAX, -1, &params.pp_size, error));
    KVF_TRY(kvfi_json_opt_int(value, "dcp_size", 1, INT32_MAX, -1, &params.dcp_size, error));
    KVF_TRY(kvfi_json_opt_int(value, "remote_num_tokens", 0, INT64_MAX, -1,
                              &params.remote_num_tokens, error));
    KVF_TRY(
        kvfi_json_opt_int(value, "remote_prefill_cached_tokens", 0, INT32_MAX, -1, &cached, error));
    KVF_TRY(check_role(&params, limits->role, error));
    KVF_TRY(check_remote(&params, limits->allow_remote, error));
    if (engine_transfer_copy(&params, transfer) != KVF_OK)
        return kvf_fail(error, KVF_ENOMEM, "no memory for kv_transfer_params");
    transfer->prefill_cached_tokens = cached;
    return KVF_OK;
}

static json_t *block_ids_json(const struct engine_output *output)
{
    json_t *group = json_array();
    for (size_t i = 0; group && i < output->block_count; i++)
        if (json_array_append_new(group, json_integer(output->block_ids[i])) != 0) {
            json_decref(group);
            return NULL;
        }
    return json_pack("[o]", group);
}

json_t *engine_api_transfer_json(const struct engine_output *output)
{
    const struct kvf_transfer_params *params = &output->handover.params;
    json_t *object =
        json_pack("{s:b, s:b, s:o, s:s?, s:s?, s:s?, s:I, s:I, s:I, s:I, s:I, s:s, s:I}",
                  "do_remote_prefill", true, "do_remote_decode", false, "remote_block_ids",
                  block_ids_json(output), "remote_engine_id", params->remote_engine_id,
                  "remote_request_id", params->remote_request_id, "remote_host",
                  params->remote_host, "remote_port", (json_int_t)params->remote_port, "tp_size",
                  (json_int_t)(params->tp_size < 0 ? 1 : params->tp_size), "dcp_size",
                  (json_int_t)(params->dcp_size < 0 ? 1 : params->dcp_size), "pp_size",
                  (json_int_t)(params->pp_size < 0 ? 1 : params->pp_size), "remote_num_tokens",
                  (json_int_t)params->remote_num_tokens, "transfer_mode",
                  params->transfer_mode ? params->transfer_mode : "push",
                  "remote_prefill_cached_tokens", (json_int_t)output->cached_tokens);
    if (object && params->transfer_id &&
        json_object_set_new(object, "transfer_id", json_string(params->transfer_id)) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}
