/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CACHE_H
#define ENGINE_CACHE_H

/* The memory of the paged KV cache: one pool, which engines of the same host can map, and one
 * region for each layer. */

#include "kvferry/kv.h"
#include "kvferry/pool.h"

struct engine_cache {
    struct kvf_pool *pool; /* owned */
    void *base;            /* of the pool */
    uint64_t length_bytes;
    uint32_t layer_count;
    uint32_t block_count;
    uint64_t block_bytes; /* of one layer; blocks follow each other without a gap */
    uint8_t **layer_bases;
    char (*names)[48]; /* "model.layers.N.self_attn.attn" */
    struct kvf_kv_region *regions;
    struct kvf_kv_storage storage;
};

/* KVF_ENOMEM names the size that was wanted, KVF_ELIMIT when it does not fit the address space. */
KVF_MUST_USE enum kvf_status engine_cache_create(uint32_t layer_count, uint32_t block_count,
                                                 uint64_t block_bytes, struct engine_cache *cache,
                                                 struct kvf_error *error);
/* No transfer may be under way any more. A zeroed cache is allowed. */
void engine_cache_destroy(struct engine_cache *cache);

/* How a worker sees it; borrowed from the cache. */
void engine_cache_describe(const struct engine_cache *cache, struct kvf_kv_cache *description);

#endif
