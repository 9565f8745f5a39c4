/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/agent_metadata.h"

#include "wire/agent_metadata_keys.h"

#include <string.h>

#define DEVICE_ID_MAX INT32_MAX
#define GROUP_ID_MAX  65535

static enum kvf_status check_text(const char *key, const char *text, struct kvf_error *error)
{
    struct kvfi_span span = kvfi_span_str(text);
    if (!text)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is missing", key);
    if (span.len > KVFI_AGENT_METADATA_TEXT_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": '%s' has %zu bytes, at most %d", key, span.len,
                        KVFI_AGENT_METADATA_TEXT_LEN_MAX);
    if (!kvfi_utf8_valid(span))
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is not UTF-8", key);
    return KVF_OK;
}

static enum kvf_status check_texts(const char *key, const struct kvfi_text_array *texts,
                                   struct kvf_error *error)
{
    for (size_t i = 0; i < texts->count; i++)
        KVF_TRY(check_text(key, texts->items[i], error));
    return KVF_OK;
}

static enum kvf_status check_range(const char *key, uint64_t value, uint64_t min, uint64_t max,
                                   struct kvf_error *error)
{
    if (value < min || value > max)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is %llu, expected %llu to %llu", key,
                        (unsigned long long)value, (unsigned long long)min,
                        (unsigned long long)max);
    return KVF_OK;
}

static enum kvf_status check_count(const char *key, size_t count, size_t region_count,
                                   struct kvf_error *error)
{
    if (count != region_count)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' has %zu entries for %zu regions", key,
                        count, region_count);
    return KVF_OK;
}

static enum kvf_status check_scalars(const struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    KVF_TRY(check_text(KEY_ENGINE_ID, md->engine_id, error));
    KVF_TRY(check_text(KEY_LAYOUT, md->kv_cache_layout, error));
    KVF_TRY(check_text(KEY_BACKEND, md->attn_backend_name, error));
    if (md->engine_id[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is empty", KEY_ENGINE_ID);
    KVF_TRY(check_range(KEY_DEVICE_ID, md->device_id, 0, DEVICE_ID_MAX, error));
    KVF_TRY(check_range(KEY_NUM_BLOCKS, md->num_blocks, 0, KVFI_AGENT_METADATA_BLOCK_MAX, error));
    KVF_TRY(check_range(KEY_BLOCK_SIZE, md->block_size, 1, KVFI_AGENT_METADATA_BLOCK_MAX, error));
    KVF_TRY(check_range(KEY_PHYSICAL, md->physical_blocks_per_logical_kv_block, 1,
                        KVFI_AGENT_METADATA_BLOCK_MAX, error));
    KVF_TRY(check_range(KEY_DCP_SIZE, md->dcp_size, 1, KVFI_AGENT_METADATA_PARALLEL_MAX, error));
    return check_range(KEY_PCP_SIZE, md->pcp_size, 1, KVFI_AGENT_METADATA_PARALLEL_MAX, error);
}

/* What the optional arrays say about one region. */
static enum kvf_status check_region_extras(const struct kvfi_agent_metadata *md, size_t i,
                                           struct kvf_error *error)
{
    struct kvfi_quote quote;
    if (md->has_region_num_blocks)
        KVF_TRY(check_range(KEY_REGION_NUM_BLOCKS, md->region_num_blocks.items[i], 0,
                            KVFI_AGENT_METADATA_BLOCK_MAX, error));
    if (md->has_region_group_ids && (md->region_group_ids.items[i] < KVFI_REGION_GROUP_SHARED ||
                                     md->region_group_ids.items[i] > GROUP_ID_MAX))
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' has %lld, expected -1 to %d",
                        KEY_REGION_GROUP_IDS, (long long)md->region_group_ids.items[i],
                        GROUP_ID_MAX);
    if (md->has_region_mem_types && strcmp(md->region_mem_types.items[i], "DRAM") != 0 &&
        strcmp(md->region_mem_types.items[i], "VRAM") != 0)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' has '%s', expected DRAM or VRAM",
                        KEY_REGION_MEM_TYPES,
                        kvfi_quote(&quote, kvfi_span_str(md->region_mem_types.items[i])));
    return KVF_OK;
}

/* Every block of the region must have an address: base + (blocks - 1) * stride + len <= 2^64. */
static enum kvf_status check_extent(const struct kvfi_agent_metadata *md, size_t i,
                                    struct kvf_error *error)
{
    uint64_t base = md->kv_caches_base_addr.items[i];
    uint64_t len = md->block_lens.items[i];
    uint64_t stride = md->block_strides.items[i];
    uint64_t blocks = md->has_region_num_blocks ? md->region_num_blocks.items[i] : md->num_blocks;
    uint64_t last_block, end;
    if (stride < len)
        return kvf_fail(error, KVF_EINVAL,
                        WHAT ": region %zu has block stride %llu below block length %llu", i,
                        (unsigned long long)stride, (unsigned long long)len);
    if (blocks != 0 && (__builtin_mul_overflow(blocks - 1, stride, &last_block) ||
                        __builtin_add_overflow(last_block, len, &end) || end > UINT64_MAX - base))
        return kvf_fail(error, KVF_EINVAL,
                        WHAT ": region %zu (base 0x%llx, %llu blocks, stride %llu) ends beyond the "
                             "address space",
                        i, (unsigned long long)base, (unsigned long long)blocks,
                        (unsigned long long)stride);
    return KVF_OK;
}

static enum kvf_status check_regions(const struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    size_t count = md->kv_caches_base_addr.count;
    if (count > KVFI_AGENT_METADATA_REGION_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": %zu regions, at most %d", count,
                        KVFI_AGENT_METADATA_REGION_MAX);
    KVF_TRY(check_count(KEY_BLOCK_LENS, md->block_lens.count, count, error));
    KVF_TRY(check_count(KEY_BLOCK_STRIDES, md->block_strides.count, count, error));
    if (md->has_region_num_blocks)
        KVF_TRY(check_count(KEY_REGION_NUM_BLOCKS, md->region_num_blocks.count, count, error));
    if (md->has_region_group_ids)
        KVF_TRY(check_count(KEY_REGION_GROUP_IDS, md->region_group_ids.count, count, error));
    if (md->has_region_names) {
        KVF_TRY(check_count(KEY_REGION_NAMES, md->region_names.count, count, error));
        KVF_TRY(check_texts(KEY_REGION_NAMES, &md->region_names, error));
    }
    if (md->has_region_mem_types) {
        KVF_TRY(check_count(KEY_REGION_MEM_TYPES, md->region_mem_types.count, count, error));
        KVF_TRY(check_texts(KEY_REGION_MEM_TYPES, &md->region_mem_types, error));
    }
    for (size_t i = 0; i < count; i++) {
        KVF_TRY(check_region_extras(md, i, error));
        KVF_TRY(check_extent(md, i, error));
    }
    if (md->region_member_count != 0)
        KVF_TRY(check_count(KEY_REGION_MEMBERS, md->region_member_count, count, error));
    for (size_t i = 0; i < md->region_member_count; i++)
        KVF_TRY(check_texts(KEY_REGION_MEMBERS, &md->region_members[i], error));
    return KVF_OK;
}

enum kvf_status kvfi_agent_metadata_check(const struct kvfi_agent_metadata *md,
                                          struct kvf_error *error)
{
    KVF_TRY(check_scalars(md, error));
    KVF_TRY(check_regions(md, error));
    for (size_t i = 0; i < md->packed_member_count; i++) {
        const struct kvfi_packed_member *member = &md->packed_member_layouts[i];
        KVF_TRY(check_text(KEY_PACKED_LAYOUTS, member->layer, error));
        if (member->page_bytes > UINT64_MAX - member->offset_bytes)
            return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' has offset %llu, which wraps",
                            KEY_PACKED_LAYOUTS, (unsigned long long)member->offset_bytes);
    }
    return KVF_OK;
}
