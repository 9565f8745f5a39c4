/* SPDX-License-Identifier: Apache-2.0 */
#include "core/core.h"

#include "wire/agent_metadata.h"
#include "wire/handshake.h"
#include "wire/nixl_metadata.h"

#include <string.h>

void kvfi_offer_free(const struct kvfi_worker_core *core, struct kvfi_offer *offer)
{
    kvfi_wire_free(core->allocator, offer->agent_name);
    kvfi_wire_free(core->allocator, offer->blob);
    kvfi_wire_free(core->allocator, offer->tables);
    memset(offer, 0, sizeof(*offer));
}

/* ---- what the peer says --------------------------------------------------------------------- */

static enum kvf_status check_number(const char *what, uint64_t peers, uint64_t ours,
                                    struct kvf_error *error)
{
    if (peers == ours)
        return KVF_OK;
    return kvf_fail(error, KVF_EMISMATCH, "%s is %llu there and %llu here", what,
                    (unsigned long long)peers, (unsigned long long)ours);
}

/* Regions are paired by index. That is only right when both list the layers in one order. */
static enum kvf_status check_order(const struct kvfi_worker_core *core,
                                   const struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    if (!md->has_region_names || md->region_names.count != core->region_count)
        return KVF_OK;
    for (size_t i = 0; i < core->region_count; i++) {
        const char *name = md->region_names.items[i];
        if (strcmp(name, core->regions[i].name) == 0)
            continue;
        for (size_t k = 0; k < core->region_count; k++) {
            if (strcmp(name, core->regions[k].name) == 0)
                return kvf_fail(error, KVF_EMISMATCH,
                                "layer '%.100s' is region %zu there and %zu here: list the layers "
                                "in one order",
                                name, i, k);
        }
    }
    return KVF_OK;
}

static enum kvf_status check_geometry(const struct kvfi_worker_core *core,
                                      const struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    KVF_TRY(check_number("dcp_size", md->dcp_size, 1, error));
    KVF_TRY(check_number("pcp_size", md->pcp_size, 1, error));
    KVF_TRY(check_number("physical_blocks_per_logical_kv_block",
                         md->physical_blocks_per_logical_kv_block, 1, error));
    KVF_TRY(check_number("block_size", md->block_size, core->config.block_size, error));
    if (strcmp(md->kv_cache_layout, core->layout) != 0)
        return kvf_fail(error, KVF_EMISMATCH, "kv_cache_layout is '%.32s' there and '%.32s' here",
                        md->kv_cache_layout, core->layout);
    KVF_TRY(check_number("number of regions", md->block_lens.count, core->region_count, error));
    KVF_TRY(check_number("ssm_sizes[0]", md->ssm_sizes[0], 0, error));
    KVF_TRY(check_number("ssm_sizes[1]", md->ssm_sizes[1], 0, error));
    if (md->has_ple_block_len)
        return kvf_fail(error, KVF_ENOTSUP, "ple_block_len: this version has no such regions");
    if (md->kv_caches_base_addr.count != core->region_count ||
        md->block_strides.count != core->region_count ||
        (md->has_region_num_blocks && md->region_num_blocks.count != core->region_count) ||
        (md->has_region_group_ids && md->region_group_ids.count != core->region_count) ||
        (md->has_region_mem_types && md->region_mem_types.count != core->region_count))
        return kvf_fail(error, KVF_EMISMATCH, "an array has not one entry for each of %zu regions",
                        core->region_count);
    for (size_t i = 0; i < core->region_count; i++) {
        if (md->block_lens.items[i] != core->regions[i].block_bytes)
            return kvf_fail(error, KVF_EMISMATCH,
                            "block_lens[%zu] is %llu bytes there and %llu here (other cache dtype, "
                            "block size or heads?)",
                            i, (unsigned long long)md->block_lens.items[i],
                            (unsigned long long)core->regions[i].block_bytes);
        if (md->has_region_group_ids && md->region_group_ids.items[i] != 0 &&
            md->region_group_ids.items[i] != KVFI_REGION_GROUP_SHARED)
            return kvf_fail(error, KVF_ENOTSUP,
                            "region_group_ids[%zu] is %lld: this version has one cache group", i,
                            (long long)md->region_group_ids.items[i]);
    }
    return check_order(core, md, error);
}

static enum kvf_status fill_tables(const struct kvfi_worker_core *core,
                                   const struct kvfi_agent_metadata *md, struct kvfi_offer *offer,
                                   struct kvf_error *error)
{
    offer->block_count_min = UINT64_MAX;
    for (size_t i = 0; i < core->region_count; i++) {
        struct kvf_block_table *table = &offer->tables[i];
        bool vram = false;
        if (md->has_region_mem_types) {
            const char *kind = md->region_mem_types.items[i];
            vram = strcmp(kind, "VRAM") == 0;
            if (!vram && strcmp(kind, "DRAM") != 0)
                return kvf_fail(error, KVF_ENOTSUP, "region_mem_types[%zu] is '%.32s'", i, kind);
        } else {
            vram = core->regions[i].table.kind == KVF_MEMORY_VRAM;
        }
        *table = (struct kvf_block_table){
            .base = md->kv_caches_base_addr.items[i],
            .stride_bytes = md->block_strides.items[i],
            .block_count =
                md->has_region_num_blocks ? md->region_num_blocks.items[i] : md->num_blocks,
            .device_id = (uint64_t)md->device_id,
            .kind = vram ? KVF_MEMORY_VRAM : KVF_MEMORY_DRAM,
        };
        /* The decoder has checked strides and ends; this is what addresses are computed from. */
        if (table->block_count == 0 || table->stride_bytes < md->block_lens.items[i] ||
            table->block_count > (UINT64_MAX - table->base) / table->stride_bytes)
            return kvf_fail(error, KVF_EMISMATCH, "region %zu is empty or does not fit in memory",
                            i);
        if (table->block_count < offer->block_count_min)
            offer->block_count_min = table->block_count;
    }
    return KVF_OK;
}

static char *copy_span(const struct kvfi_worker_core *core, struct kvfi_span span, size_t extra)
{
    char *copy = kvfi_wire_alloc(core->allocator, span.len + extra);
    if (copy && span.len)
        memcpy(copy, span.data, span.len);
    if (copy && extra)
        copy[span.len] = '\0';
    return copy;
}

static enum kvf_status take_blob(const struct kvfi_worker_core *core,
                                 const struct kvfi_agent_metadata *md, struct kvfi_offer *offer,
                                 struct kvf_error *error)
{
    struct kvfi_nixl_metadata nixl = {0};
    KVF_TRY(kvfi_nixl_metadata_decode(md->agent_metadata.data, md->agent_metadata.len,
                                      core->allocator, &nixl, error));
    enum kvf_status status = KVF_OK;
    if (nixl.agent.len == 0 || memchr(nixl.agent.data, '\0', nixl.agent.len))
        status = kvf_fail(error, KVF_EFORMAT, "agent_metadata names no agent");
    offer->agent_name = copy_span(core, nixl.agent, 1);
    offer->blob = copy_span(core, md->agent_metadata, 0);
    offer->blob_len = md->agent_metadata.len;
    offer->tables = kvfi_wire_alloc(core->allocator, core->region_count * sizeof(*offer->tables));
    if (status == KVF_OK && (!offer->agent_name || !offer->blob || !offer->tables))
        status = kvf_fail(error, KVF_ENOMEM, "out of memory for a peer");
    kvfi_nixl_metadata_free(&nixl);
    return status;
}

enum kvf_status kvfi_handshake_check(const struct kvfi_worker_core *core, const char *engine_id,
                                     const char *host, uint16_t port, const void *payload,
                                     size_t payload_len, struct kvfi_offer *offer,
                                     struct kvf_error *error)
{
    struct kvfi_handshake_payload outer;
    KVF_TRY(kvfi_handshake_payload_decode(payload, payload_len, core->allocator, &outer, error));
    if (core->config.compat.enforce && strcmp(outer.compatibility_hash, core->compat_hash) != 0)
        return kvf_fail(error, KVF_EMISMATCH,
                        "compatibility hash is %.12s... there and %.12s... here: model, dtypes, "
                        "attention backend, transfer mode and versions must be the same",
                        outer.compatibility_hash, core->compat_hash);
    struct kvfi_agent_metadata md;
    KVF_TRY(kvfi_agent_metadata_decode(outer.agent_metadata.data, outer.agent_metadata.len,
                                       core->allocator, &md, error));
    struct kvfi_offer mine = {.caps = outer.caps};
    enum kvf_status status = KVF_OK;
    if (strcmp(md.engine_id, engine_id) != 0)
        status =
            kvf_fail(error, KVF_EMISMATCH, "engine '%.64s' answers at %.64s:%u, expected '%.64s'",
                     md.engine_id, host, port, engine_id);
    if (status == KVF_OK)
        status = check_geometry(core, &md, error);
    if (status == KVF_OK)
        status = take_blob(core, &md, &mine, error);
    if (status == KVF_OK)
        status = fill_tables(core, &md, &mine, error);
    kvfi_agent_metadata_free(&md);
    if (status != KVF_OK) {
        kvfi_offer_free(core, &mine);
        return status;
    }
    *offer = mine;
    return KVF_OK;
}

/* ---- what we say ---------------------------------------------------------------------------- */

/* The arrays of our metadata, one allocation. */
struct metadata_arrays {
    uint64_t *base_addrs;
    uint64_t *block_lens;
    uint64_t *block_strides;
    uint64_t *num_blocks;
    int64_t *group_ids;
    const char **names;
    const char **mem_types;
    void *memory;
};

static bool make_arrays(const struct kvfi_worker_core *core, struct metadata_arrays *arrays)
{
    size_t n = core->region_count;
    uint64_t *memory = kvfi_wire_alloc(core->allocator, n * 7 * sizeof(*memory));
    if (!memory)
        return false;
    *arrays = (struct metadata_arrays){
        .base_addrs = memory,
        .block_lens = memory + n,
        .block_strides = memory + 2 * n,
        .num_blocks = memory + 3 * n,
        .group_ids = (int64_t *)(memory + 4 * n),
        .names = (void *)(memory + 5 * n),
        .mem_types = (void *)(memory + 6 * n),
        .memory = memory,
    };
    for (size_t i = 0; i < n; i++) {
        const struct kvfi_core_region *region = &core->regions[i];
        arrays->base_addrs[i] = region->table.base;
        arrays->block_lens[i] = region->block_bytes;
        arrays->block_strides[i] = region->table.stride_bytes;
        arrays->num_blocks[i] = region->table.block_count;
        arrays->group_ids[i] = 0;
        arrays->names[i] = region->name;
        arrays->mem_types[i] = region->table.kind == KVF_MEMORY_VRAM ? "VRAM" : "DRAM";
    }
    return true;
}

static enum kvf_status encode_payload(const struct kvfi_worker_core *core,
                                      const struct metadata_arrays *arrays, struct kvfi_span blob,
                                      struct kvfi_buf *inner, struct kvfi_buf *outer,
                                      struct kvf_error *error)
{
    size_t n = core->region_count;
    struct kvfi_agent_metadata md = {
        .engine_id = core->config.engine_id,
        .agent_metadata = blob,
        .kv_caches_base_addr = {arrays->base_addrs, n},
        .device_id = (int64_t)core->regions[0].table.device_id,
        .num_blocks = core->block_count_min,
        .block_lens = {arrays->block_lens, n},
        .block_strides = {arrays->block_strides, n},
        .kv_cache_layout = core->layout,
        .block_size = core->config.block_size,
        .attn_backend_name = core->config.compat.attn_backend,
        .physical_blocks_per_logical_kv_block = 1,
        .has_region_num_blocks = true,
        .region_num_blocks = {arrays->num_blocks, n},
        .has_region_group_ids = true,
        .region_group_ids = {arrays->group_ids, n},
        .has_region_names = true,
        .region_names = {arrays->names, n},
        .has_region_mem_types = true,
        .region_mem_types = {arrays->mem_types, n},
        .dcp_size = 1,
        .pcp_size = 1,
    };
    KVF_TRY(kvfi_agent_metadata_encode(&md, inner, error));
    struct kvfi_handshake_payload payload = {
        .agent_metadata = kvfi_span(inner->data, inner->len),
        .caps = KVFI_CAP_PUSH_FAIL | KVFI_CAP_PUSH_DROP,
    };
    memcpy(payload.compatibility_hash, core->compat_hash, sizeof(payload.compatibility_hash));
    return kvfi_handshake_payload_encode(&payload, outer, error);
}

enum kvf_status kvfi_worker_core_payload(const struct kvfi_worker_core *core,
                                         const void *agent_blob, size_t agent_blob_len,
                                         void **bytes_p, size_t *len_p, struct kvf_error *error)
{
    struct metadata_arrays arrays;
    if (!make_arrays(core, &arrays))
        return kvf_fail(error, KVF_ENOMEM, "out of memory for the handshake payload");
    struct kvfi_buf inner;
    struct kvfi_buf outer;
    kvfi_buf_init(&inner, core->allocator);
    kvfi_buf_init(&outer, core->allocator);
    enum kvf_status status =
        encode_payload(core, &arrays, kvfi_span(agent_blob, agent_blob_len), &inner, &outer, error);
    if (status == KVF_OK)
        *bytes_p = kvfi_buf_release(&outer, len_p);
    kvfi_buf_deinit(&inner);
    kvfi_buf_deinit(&outer);
    kvfi_wire_free(core->allocator, arrays.memory);
    return status;
}

void kvfi_worker_core_payload_free(const struct kvfi_worker_core *core, void *bytes)
{
    kvfi_wire_free(core->allocator, bytes);
}
