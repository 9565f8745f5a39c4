/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_AGENT_METADATA_H
#define KVFI_WIRE_AGENT_METADATA_H

/*
 * What a worker tells its peers about its KV caches: NixlAgentMetadata of vLLM's NIXL connector,
 * version 15 (vLLM 0.33.0); version 14 (0.32.0) has the same bytes. It travels inside
 * struct kvfi_handshake_payload.
 */

#include "wire/bytes.h"

#define KVFI_CONNECTOR_VERSION           15
#define KVFI_AGENT_METADATA_LEN_MAX      ((size_t)96 << 20)
#define KVFI_AGENT_METADATA_REGION_MAX   65536
#define KVFI_AGENT_METADATA_TEXT_LEN_MAX 4096 /* each string */
#define KVFI_AGENT_METADATA_BLOCK_MAX    ((uint64_t)1 << 31)
#define KVFI_AGENT_METADATA_PARALLEL_MAX 65536 /* dcp_size, pcp_size */
#define KVFI_REGION_GROUP_SHARED         (-1)  /* region_group_ids: several groups share it */

struct kvfi_u64_array {
    const uint64_t *items;
    size_t count;
};

struct kvfi_i64_array {
    const int64_t *items;
    size_t count;
};

struct kvfi_text_array {
    const char *const *items; /* each NUL-terminated */
    size_t count;
};

struct kvfi_packed_member {
    const char *layer;
    uint64_t offset_bytes; /* in the row */
    uint64_t page_bytes;
};

/*
 * Fields in wire order, with the wire's names. Arrays whose name starts with region_ have one entry
 * per region when present; has_* false stands for nil.
 * For encoding: everything is the caller's. After decoding: all strings, bytes and arrays are one
 * allocation, which kvfi_agent_metadata_free() releases; the input is not referenced.
 */
struct kvfi_agent_metadata {
    const char *engine_id;
    struct kvfi_span agent_metadata; /* NIXL blob, opaque here */
    struct kvfi_u64_array kv_caches_base_addr;
    uint64_t device_id;
    uint64_t num_blocks; /* kernel blocks per attention region */
    struct kvfi_u64_array block_lens;
    struct kvfi_u64_array block_strides;
    const char *kv_cache_layout;
    uint64_t block_size; /* tokens per kernel block */
    uint64_t ssm_sizes[2];
    const char *attn_backend_name;
    uint64_t physical_blocks_per_logical_kv_block;
    struct kvfi_u64_array region_num_blocks;
    struct kvfi_i64_array region_group_ids;
    struct kvfi_text_array region_names;
    struct kvfi_text_array region_mem_types;
    uint64_t dcp_size; /* decoded: 1 when absent */
    uint64_t pcp_size;
    uint64_t ple_block_len;
    const struct kvfi_text_array *region_members;
    size_t region_member_count; /* 0 or one per region */
    const struct kvfi_packed_member *packed_member_layouts;
    size_t packed_member_count;
    bool has_region_num_blocks;
    bool has_region_group_ids;
    bool has_region_names;
    bool has_region_mem_types;
    bool has_ple_block_len;
    const struct kvf_allocator *owner;
    void *memory;
};

/*
 * The rules that a sender keeps and a receiver relies on before it computes an address: arrays
 * have one entry per region, a stride is not smaller than its length, no region's end
 * (base + blocks * stride) wraps, sizes and counts are in range. Encode and decode both call it.
 * KVF_EINVAL names the field.
 */
enum kvf_status kvfi_agent_metadata_check(const struct kvfi_agent_metadata *md,
                                          struct kvf_error *error) KVF_MUST_USE;

/* Appends all 21 keys in order. KVF_EINVAL, KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_agent_metadata_encode(const struct kvfi_agent_metadata *md,
                                           struct kvfi_buf *buf,
                                           struct kvf_error *error) KVF_MUST_USE;

/* Untrusted bytes. Unknown keys are ignored; a missing, mistyped or out-of-range field is
 * KVF_EFORMAT and named. KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_agent_metadata_decode(const void *data, size_t len,
                                           const struct kvf_allocator *allocator,
                                           struct kvfi_agent_metadata *md,
                                           struct kvf_error *error) KVF_MUST_USE;

void kvfi_agent_metadata_free(struct kvfi_agent_metadata *md);

#endif
