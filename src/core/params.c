/* SPDX-License-Identifier: Apache-2.0 */
#include "core/params.h"

#include "wire/bytes.h"
#include "wire/notif.h"

#include <string.h>

size_t kvf_base_request_id_len(const char *request_id)
{
    return request_id ? kvfi_base_request_id(kvfi_span_str(request_id)) : 0;
}

static enum kvf_status check_text(const char *key, const char *text, size_t len_max,
                                  struct kvf_error *error)
{
    if (!text || text[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, "kv_transfer_params: %s is missing", key);
    size_t len = strnlen(text, len_max + 1);
    if (len > len_max)
        return kvf_fail(error, KVF_ELIMIT, "kv_transfer_params: %s is longer than %zu bytes", key,
                        len_max);
    if (!kvfi_utf8_valid(kvfi_span(text, len)))
        return kvf_fail(error, KVF_EINVAL, "kv_transfer_params: %s is not UTF-8", key);
    return KVF_OK;
}

enum kvf_status kvfi_request_id_check(const char *name, const char *request_id,
                                      struct kvf_error *error)
{
    if (!request_id || request_id[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, "%s is missing", name);
    size_t len = strnlen(request_id, KVF_REQUEST_ID_LEN_MAX + 1);
    if (len > KVF_REQUEST_ID_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "%s is longer than %d bytes", name,
                        KVF_REQUEST_ID_LEN_MAX);
    if (!kvfi_utf8_valid(kvfi_span(request_id, len)))
        return kvf_fail(error, KVF_EINVAL, "%s is not UTF-8", name);
    return KVF_OK;
}

/* A parallel size: 1 is what this version serves. `absent` is used when the key is not given. */
static enum kvf_status check_size_key(const char *key, int64_t value, bool required,
                                      struct kvf_error *error)
{
    if (value < 0) {
        if (required)
            return kvf_fail(error, KVF_EINVAL, "kv_transfer_params: %s is missing", key);
        return KVF_OK;
    }
    if (value == 0 || value > 65536)
        return kvf_fail(error, KVF_EINVAL, "kv_transfer_params: %s is %lld, must be 1 to 65536",
                        key, (long long)value);
    if (value != 1)
        return kvf_fail(error, KVF_ENOTSUP,
                        "kv_transfer_params: %s is %lld, this version supports 1", key,
                        (long long)value);
    return KVF_OK;
}

static enum kvf_status check_decode(const struct kvf_transfer_params *params,
                                    const char *own_engine_id, struct kvf_error *error)
{
    KVF_TRY(check_text("remote_engine_id", params->remote_engine_id, KVF_ENGINE_ID_LEN_MAX, error));
    if (strcmp(params->remote_engine_id, own_engine_id) == 0)
        return kvf_fail(error, KVF_EINVAL,
                        "kv_transfer_params: remote_engine_id is this engine's own id '%s'",
                        own_engine_id);
    KVF_TRY(
        check_text("remote_request_id", params->remote_request_id, KVF_REQUEST_ID_LEN_MAX, error));
    KVF_TRY(check_text("remote_host", params->remote_host, KVF_HOST_LEN_MAX, error));
    if (params->remote_port < 0)
        return kvf_fail(error, KVF_EINVAL, "kv_transfer_params: remote_port is missing");
    if (params->remote_port == 0 || params->remote_port > 65535)
        return kvf_fail(error, KVF_EINVAL,
                        "kv_transfer_params: remote_port is %lld, must be 1 to 65535",
                        (long long)params->remote_port);
    KVF_TRY(check_size_key("tp_size", params->tp_size, true, error));
    KVF_TRY(check_size_key("pp_size", params->pp_size, false, error));
    return check_size_key("dcp_size", params->dcp_size, false, error);
}

enum kvf_status kvfi_params_check(const struct kvf_transfer_params *params,
                                  const char *own_engine_id, enum kvfi_params_role *role_p,
                                  struct kvf_error *error)
{
    if (!params || (!params->do_remote_decode && !params->do_remote_prefill)) {
        *role_p = KVFI_PARAMS_ORDINARY;
        return KVF_OK;
    }
    if (params->do_remote_decode && params->do_remote_prefill)
        return kvf_fail(error, KVF_EINVAL,
                        "kv_transfer_params: do_remote_decode and do_remote_prefill are both true");
    if (params->transfer_mode && strcmp(params->transfer_mode, "push") != 0)
        return kvf_fail(error, KVF_ENOTSUP,
                        "kv_transfer_params: transfer_mode is '%.32s', this engine serves 'push'",
                        params->transfer_mode);
    if (params->transfer_id)
        KVF_TRY(check_text("transfer_id", params->transfer_id, KVF_REQUEST_ID_LEN_MAX, error));
    if (params->do_remote_prefill)
        KVF_TRY(check_decode(params, own_engine_id, error));
    *role_p = params->do_remote_prefill ? KVFI_PARAMS_DECODE : KVFI_PARAMS_PREFILL;
    return KVF_OK;
}
