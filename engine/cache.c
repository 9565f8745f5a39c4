/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cache.h"

#include <stdio.h>
#include <stdlib.h>

static enum kvf_status no_memory(struct engine_cache *cache, uint64_t bytes,
                                 struct kvf_error *error)
{
    engine_cache_destroy(cache);
    return kvf_fail(error, KVF_ENOMEM,
                    "the KV cache needs %llu MiB, which this machine does not give; use fewer "
                    "blocks (--blocks)",
                    (unsigned long long)(bytes >> 20));
}

enum kvf_status engine_cache_create(uint32_t layer_count, uint32_t block_count,
                                    uint64_t block_bytes, struct engine_cache *cache,
                                    struct kvf_error *error)
{
    *cache = (struct engine_cache){0};
    uint64_t layer_bytes;
    uint64_t bytes;
    if (layer_count == 0 || block_count == 0 || block_bytes == 0 ||
        __builtin_mul_overflow(block_bytes, (uint64_t)block_count, &layer_bytes) ||
        __builtin_mul_overflow(layer_bytes, (uint64_t)layer_count, &bytes) || bytes > SIZE_MAX / 2)
        return kvf_fail(error, KVF_ELIMIT, "a KV cache of %u layers, %u blocks of %llu bytes",
                        layer_count, block_count, (unsigned long long)block_bytes);
    cache->layer_bases = calloc(layer_count, sizeof(uint8_t *));
    cache->names = calloc(layer_count, sizeof(*cache->names));
    cache->regions = calloc(layer_count, sizeof(*cache->regions));
    if (!cache->layer_bases || !cache->names || !cache->regions)
        return no_memory(cache, bytes, error);
    if (kvf_pool_create(bytes, &cache->pool, NULL) != KVF_OK)
        return no_memory(cache, bytes, error);
    void *base = kvf_pool_address(cache->pool);
    cache->base = base;
    cache->length_bytes = bytes;
    cache->layer_count = layer_count;
    cache->block_count = block_count;
    cache->block_bytes = block_bytes;
    for (uint32_t layer = 0; layer < layer_count; layer++) {
        cache->layer_bases[layer] = (uint8_t *)base + layer * layer_bytes;
        (void)snprintf(cache->names[layer], sizeof(cache->names[layer]),
                       "model.layers.%u.self_attn.attn", layer);
        cache->regions[layer] = (struct kvf_kv_region){
            .name = cache->names[layer],
            .base = cache->layer_bases[layer],
            .block_bytes = block_bytes,
            .stride_bytes = block_bytes,
            .block_count = block_count,
            .kind = KVF_MEMORY_DRAM,
        };
    }
    cache->storage =
        (struct kvf_kv_storage){.base = base, .length_bytes = bytes, .kind = KVF_MEMORY_DRAM};
    return KVF_OK;
}

void engine_cache_destroy(struct engine_cache *cache)
{
    kvf_pool_destroy(cache->pool);
    free((void *)cache->layer_bases);
    free(cache->names);
    free(cache->regions);
    *cache = (struct engine_cache){0};
}

void engine_cache_describe(const struct engine_cache *cache, struct kvf_kv_cache *description)
{
    *description = (struct kvf_kv_cache){
        .layout = "LBHNC",
        .regions = cache->regions,
        .region_count = cache->layer_count,
        .storages = &cache->storage,
        .storage_count = 1,
    };
}
