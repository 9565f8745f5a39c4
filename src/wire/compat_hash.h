/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_COMPAT_HASH_H
#define KVFI_WIRE_COMPAT_HASH_H

/*
 * The compatibility hash of the handshake: SHA-256 over a JSON text of everything both engines
 * must agree on. The text is what Python's json.dumps(factors, sort_keys=True) writes.
 */

#include "wire/bytes.h"
#include "wire/handshake.h"

/* An EAGLE or MTP style speculator. NULL strings are written as null. */
struct kvfi_speculative_factors {
    bool has_auxiliary_layer_ids; /* false writes null */
    const int64_t *auxiliary_layer_ids;
    size_t auxiliary_layer_id_count;
    const char *code_revision;
    const char *kv_cache_dtype;
    const char *method;
    const char *model;
    bool parallel_drafting;
    const char *revision;
};

/* All strings are UTF-8, required and borrowed for the call. */
struct kvfi_compat_factors {
    const char *attn_backend_name;
    const char *cache_dtype;
    const char *dtype;
    int64_t head_size;
    bool is_hma_enabled;
    const char *model;
    int64_t nixl_connector_version;
    int64_t num_hidden_layers;
    int64_t num_kv_heads;
    const struct kvfi_speculative_factors *speculative_config; /* NULL: null */
    const char *transfer_mode;                                 /* "pull" or "push" */
    const char *vllm_version;
};

/* Appends the JSON text, not terminated. KVF_EINVAL names a missing or non-UTF-8 string. */
enum kvf_status kvfi_compat_json(const struct kvfi_compat_factors *factors, struct kvfi_buf *buf,
                                 struct kvf_error *error) KVF_MUST_USE;

/* Writes 64 lowercase hex characters and a NUL. allocator serves scratch memory only. */
enum kvf_status kvfi_compat_hash(const struct kvfi_compat_factors *factors,
                                 const struct kvf_allocator *allocator,
                                 char hex[KVFI_COMPAT_HASH_LEN + 1],
                                 struct kvf_error *error) KVF_MUST_USE;

/* SHA-256 of any bytes in the same form. KVF_EINTERNAL when libcrypto refuses. */
enum kvf_status kvfi_sha256_hex(const void *data, size_t len, char hex[KVFI_COMPAT_HASH_LEN + 1],
                                struct kvf_error *error) KVF_MUST_USE;

/* 64 lowercase hex characters and a NUL. */
bool kvfi_compat_hash_valid(const char *hex);

#endif
