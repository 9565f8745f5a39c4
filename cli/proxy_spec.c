/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/proxy_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The command line's description of an engine. */

static enum kvf_status copy_value(const char *spec, const char *key, const char *value, char *out,
                                  size_t size, struct kvf_error *error)
{
    if (!*value || strlen(value) >= size)
        return kvf_fail(error, KVF_EINVAL, "engine '%.200s': %s must have 1 to %zu characters",
                        spec, key, size - 1);
    memcpy(out, value, strlen(value) + 1);
    return KVF_OK;
}

static enum kvf_status read_size(const char *spec, const char *key, const char *value,
                                 uint32_t *size_p, struct kvf_error *error)
{
    char *end = NULL;
    long size = strtol(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || size < 1 || size > 65536)
        return kvf_fail(error, KVF_EINVAL, "engine '%.200s': %s=%.40s, expected 1 to 65536", spec,
                        key, value);
    *size_p = (uint32_t)size;
    return KVF_OK;
}

static enum kvf_status read_side(const char *spec, const char *value,
                                 struct kvfi_coordinates *coordinates, struct kvf_error *error)
{
    struct kvfi_http_url url;
    struct kvf_error inner = {0};
    if (strchr(value, '/') || kvfi_http_url_parse(value, &url, &inner) != KVF_OK)
        return kvf_fail(error, KVF_EINVAL, "engine '%.200s': side=%.100s, expected HOST:PORT", spec,
                        value);
    memcpy(coordinates->host, url.host, sizeof(coordinates->host));
    coordinates->port = url.port;
    return KVF_OK;
}

static enum kvf_status read_part(const char *spec, char *part, struct kvfi_upstream *upstream,
                                 struct kvf_error *error)
{
    struct kvfi_coordinates *coordinates = &upstream->coordinates;
    if (strcmp(part, "foreign") == 0)
        return KVF_OK;
    char *value = strchr(part, '=');
    if (value)
        *value++ = '\0';
    if (value && strcmp(part, "engine-id") == 0)
        return copy_value(spec, part, value, coordinates->engine_id, sizeof(coordinates->engine_id),
                          error);
    if (value && strcmp(part, "side") == 0)
        return read_side(spec, value, coordinates, error);
    if (value && strcmp(part, "tp") == 0)
        return read_size(spec, part, value, &coordinates->tp_size, error);
    if (value && strcmp(part, "pp") == 0)
        return read_size(spec, part, value, &coordinates->pp_size, error);
    if (value && strcmp(part, "model") == 0)
        return copy_value(spec, part, value, upstream->model, sizeof(upstream->model), error);
    return kvf_fail(error, KVF_EINVAL,
                    "engine '%.200s': '%.60s' is not one of engine-id=, side=, tp=, pp=, model=, "
                    "foreign",
                    spec, part);
}

static enum kvf_status read_parts(enum kvfi_side side, const char *spec, char *parts,
                                  struct kvfi_upstream *upstream, struct kvf_error *error)
{
    char *state = NULL;
    for (char *part = strtok_r(parts, ",", &state); part; part = strtok_r(NULL, ",", &state)) {
        upstream->foreign = true;
        KVF_TRY(read_part(spec, part, upstream, error));
    }
    const struct kvfi_coordinates *coordinates = &upstream->coordinates;
    if (side == KVFI_SIDE_PREFILL && upstream->foreign &&
        (!coordinates->engine_id[0] || !coordinates->port))
        return kvf_fail(error, KVF_EINVAL,
                        "engine '%.200s': a prefill engine that is not kvferry's needs both "
                        "engine-id= and side=",
                        spec);
    return KVF_OK;
}

enum kvf_status kvfi_upstream_parse(enum kvfi_side side, const char *spec,
                                    struct kvfi_upstream *upstream, struct kvf_error *error)
{
    size_t url_len = strcspn(spec, ",");
    upstream->side = side;
    upstream->coordinates.tp_size = 1;
    upstream->coordinates.pp_size = 1;
    upstream->name = strndup(spec, url_len);
    char *parts = strdup(spec + url_len);
    enum kvf_status status = KVF_OK;
    if (!upstream->name || !parts)
        status = kvf_fail(error, KVF_ENOMEM, "no memory for an engine");
    if (status == KVF_OK)
        status = kvfi_http_url_parse(upstream->name, &upstream->url, error);
    if (status == KVF_OK)
        status = read_parts(side, spec, parts, upstream, error);
    free(parts);
    if (status != KVF_OK) {
        free(upstream->name);
        upstream->name = NULL;
        return status;
    }
    snprintf(upstream->health, sizeof(upstream->health), "%s/health", upstream->url.path);
    snprintf(upstream->describe, sizeof(upstream->describe), "%s/kvferry/coordinates",
             upstream->url.path);
    return KVF_OK;
}
