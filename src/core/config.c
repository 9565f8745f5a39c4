/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"

#include <string.h>

#define NS_PER_S 1000000000ull

static enum kvf_status check_text(const char *field, const char *text, size_t len_max,
                                  struct kvf_error *error)
{
    if (!text || text[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, "%s is missing", field);
    if (strnlen(text, len_max + 1) > len_max)
        return kvf_fail(error, KVF_ELIMIT, "%s is longer than %zu bytes", field, len_max);
    return KVF_OK;
}

static enum kvf_status check_span(const char *field, uint64_t value, struct kvf_error *error)
{
    /* A year: far above any sane setting and far below where sums of times wrap. */
    const uint64_t max = 365ull * 86400ull * NS_PER_S;
    if (value == 0 || value > max)
        return kvf_fail(error, KVF_EINVAL, "%s is %llu, must be 1 to %llu", field,
                        (unsigned long long)value, (unsigned long long)max);
    return KVF_OK;
}

enum kvf_status kvfi_kv_config_check(const struct kvf_kv_config *config, struct kvf_error *error)
{
    if (!config)
        return kvf_fail(error, KVF_EINVAL, "config is NULL");
    if (config->size != sizeof(*config))
        return kvf_fail(error, KVF_EINVAL,
                        "config.size is %zu, this library's is %zu: use KVF_KV_CONFIG_INIT",
                        config->size, sizeof(*config));
    if (config->mode != KVF_MODE_PUSH)
        return kvf_fail(error, KVF_ENOTSUP, "mode %d: only push is supported by this version",
                        (int)config->mode);
    if (config->tp_size != 1)
        return kvf_fail(error, KVF_ENOTSUP, "tp_size is %u, this version supports 1",
                        config->tp_size);
    if (config->pp_size != 1)
        return kvf_fail(error, KVF_ENOTSUP, "pp_size is %u, this version supports 1",
                        config->pp_size);
    if (config->tp_rank != 0 || config->pp_rank != 0)
        return kvf_fail(error, KVF_EINVAL, "rank (pp %u, tp %u) does not exist: both sizes are 1",
                        config->pp_rank, config->tp_rank);
    KVF_TRY(check_text("engine_id", config->engine_id, KVF_ENGINE_ID_LEN_MAX, error));
    KVF_TRY(check_text("host", config->host, KVF_HOST_LEN_MAX, error));
    if (config->block_size == 0 || config->block_size > 65536)
        return kvf_fail(error, KVF_EINVAL, "block_size is %u, must be 1 to 65536",
                        config->block_size);
    KVF_TRY(check_span("lease_ns", config->lease_ns, error));
    KVF_TRY(check_span("registration_timeout_ns", config->registration_timeout_ns, error));
    KVF_TRY(check_span("handshake_timeout_ns", config->handshake_timeout_ns, error));
    if (config->peer_settle_ns)
        KVF_TRY(check_span("peer_settle_ns", config->peer_settle_ns, error));
    return KVF_OK;
}

static uint64_t fraction(uint64_t lease_ns, uint64_t numerator, uint64_t denominator)
{
    if (lease_ns % NS_PER_S == 0) {
        uint64_t seconds = lease_ns / NS_PER_S * numerator / denominator;
        if (seconds > 0)
            return seconds * NS_PER_S;
    }
    uint64_t ns = lease_ns * numerator / denominator;
    return ns ? ns : 1;
}

uint64_t kvfi_lease_extension_ns(uint64_t lease_ns)
{
    return fraction(lease_ns, 2, 3);
}

uint64_t kvfi_heartbeat_interval_ns(uint64_t lease_ns)
{
    return fraction(lease_ns, 1, 6);
}
