/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/block_pool.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct block {
    uint32_t holders;
    uint32_t previous; /* free list, NONE at the ends */
    uint32_t next;
    uint32_t chain; /* next block in the same hash bucket */
    bool cached;
    struct engine_prefix_hash parent;
    struct engine_prefix_hash hash;
};

struct engine_block_pool {
    uint32_t block_count;
    uint32_t block_size;
    uint64_t hash_key[2];
    struct block *blocks;
    uint32_t *tokens; /* block_size ids of each block, valid while it is cached */
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t first_free; /* handed out next */
    uint32_t last_free;
    uint32_t free_count;
    uint32_t cached_free_count;
};

enum kvf_status engine_block_pool_create(uint32_t block_count, uint32_t block_size,
                                         const uint64_t hash_key[2],
                                         struct engine_block_pool **pool_p, struct kvf_error *error)
{
    if (block_size == 0 || (block_size & (block_size - 1)) != 0 || block_size > 4096)
        return kvf_fail(error, KVF_EINVAL,
                        "block size is %u tokens, it must be a power of two up to 4096",
                        block_size);
    if (block_count == 0 || block_count > 1u << 24)
        return kvf_fail(error, KVF_EINVAL, "block count is %u, it must be 1 to %u", block_count,
                        1u << 24);
    uint32_t bucket_count = 16;
    while (bucket_count < block_count)
        bucket_count *= 2;
    struct engine_block_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the block pool");
    pool->blocks = calloc(block_count, sizeof(*pool->blocks));
    pool->tokens = calloc((size_t)block_count * block_size, sizeof(*pool->tokens));
    pool->buckets = malloc(bucket_count * sizeof(*pool->buckets));
    if (!pool->blocks || !pool->tokens || !pool->buckets) {
        engine_block_pool_destroy(pool);
        return kvf_fail(error, KVF_ENOMEM, "no memory for a pool of %u blocks", block_count);
    }
    pool->block_count = block_count;
    pool->block_size = block_size;
    pool->hash_key[0] = hash_key[0];
    pool->hash_key[1] = hash_key[1];
    pool->bucket_mask = bucket_count - 1;
    memset(pool->buckets, 0xff, bucket_count * sizeof(*pool->buckets));
    for (uint32_t id = 0; id < block_count; id++) {
        pool->blocks[id].previous = id == 0 ? NONE : id - 1;
        pool->blocks[id].next = id + 1 == block_count ? NONE : id + 1;
        pool->blocks[id].chain = NONE;
    }
    pool->first_free = 0;
    pool->last_free = block_count - 1;
    pool->free_count = block_count;
    *pool_p = pool;
    return KVF_OK;
}

void engine_block_pool_destroy(struct engine_block_pool *pool)
{
    if (!pool)
        return;
    free(pool->blocks);
    free(pool->tokens);
    free(pool->buckets);
    free(pool);
}

uint32_t engine_block_pool_block_size(const struct engine_block_pool *pool)
{
    return pool->block_size;
}

uint32_t engine_block_pool_block_count(const struct engine_block_pool *pool)
{
    return pool->block_count;
}

uint32_t engine_block_pool_free_count(const struct engine_block_pool *pool)
{
    return pool->free_count;
}

uint32_t engine_block_pool_holders(const struct engine_block_pool *pool, uint32_t id)
{
    return id < pool->block_count ? pool->blocks[id].holders : 0;
}

/* ---- the free list -------------------------------------------------------------------------- */

static void unlink_free(struct engine_block_pool *pool, uint32_t id)
{
    struct block *block = &pool->blocks[id];
    if (block->previous == NONE)
        pool->first_free = block->next;
    else
        pool->blocks[block->previous].next = block->next;
    if (block->next == NONE)
        pool->last_free = block->previous;
    else
        pool->blocks[block->next].previous = block->previous;
    block->previous = block->next = NONE;
    pool->free_count--;
    if (block->cached)
        pool->cached_free_count--;
}

/* Uncached blocks go to the front: they are worth nothing to anybody. */
static void link_free(struct engine_block_pool *pool, uint32_t id)
{
    struct block *block = &pool->blocks[id];
    if (block->cached) {
        block->previous = pool->last_free;
        block->next = NONE;
        if (pool->last_free == NONE)
            pool->first_free = id;
        else
            pool->blocks[pool->last_free].next = id;
        pool->last_free = id;
        pool->cached_free_count++;
    } else {
        block->previous = NONE;
        block->next = pool->first_free;
        if (pool->first_free == NONE)
            pool->last_free = id;
        else
            pool->blocks[pool->first_free].previous = id;
        pool->first_free = id;
    }
    pool->free_count++;
}

/* ---- the table of cached content ------------------------------------------------------------ */

static uint32_t *bucket_of(struct engine_block_pool *pool, struct engine_prefix_hash hash)
{
    return &pool->buckets[hash.lo & pool->bucket_mask];
}

static uint32_t find_cached(struct engine_block_pool *pool, struct engine_prefix_hash parent,
                            struct engine_prefix_hash hash, const uint32_t *tokens)
{
    for (uint32_t id = *bucket_of(pool, hash); id != NONE; id = pool->blocks[id].chain) {
        const struct block *block = &pool->blocks[id];
        if (engine_prefix_equal(block->hash, hash) && engine_prefix_equal(block->parent, parent) &&
            memcmp(pool->tokens + (size_t)id * pool->block_size, tokens,
                   pool->block_size * sizeof(*tokens)) == 0)
            return id;
    }
    return NONE;
}

static void forget_content(struct engine_block_pool *pool, uint32_t id)
{
    struct block *block = &pool->blocks[id];
    if (!block->cached)
        return;
    uint32_t *link = bucket_of(pool, block->hash);
    while (*link != id)
        link = &pool->blocks[*link].chain;
    *link = block->chain;
    block->chain = NONE;
    block->cached = false;
}

/* ---- holders -------------------------------------------------------------------------------- */

enum kvf_status engine_block_pool_take(struct engine_block_pool *pool, uint32_t count,
                                       uint32_t *ids)
{
    if (count > pool->free_count)
        return KVF_AGAIN;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = pool->first_free;
        unlink_free(pool, id);
        forget_content(pool, id);
        pool->blocks[id].holders = 1;
        ids[i] = id;
    }
    return KVF_OK;
}

void engine_block_pool_give(struct engine_block_pool *pool, const uint32_t *ids, uint32_t count)
{
    while (count > 0) {
        struct block *block = &pool->blocks[ids[--count]];
        if (--block->holders == 0)
            link_free(pool, ids[count]);
    }
}

uint32_t engine_block_pool_match(struct engine_block_pool *pool, const uint32_t *tokens,
                                 uint32_t token_count, uint32_t *ids,
                                 struct engine_prefix_hash *hash_p)
{
    struct engine_prefix_hash parent = ENGINE_PREFIX_ROOT;
    uint32_t count = 0;
    while (token_count - count * pool->block_size >= pool->block_size) {
        const uint32_t *part = tokens + (size_t)count * pool->block_size;
        struct engine_prefix_hash hash =
            engine_prefix_hash(pool->hash_key, parent, part, pool->block_size);
        uint32_t id = find_cached(pool, parent, hash, part);
        if (id == NONE)
            break;
        if (pool->blocks[id].holders++ == 0)
            unlink_free(pool, id);
        ids[count++] = id;
        parent = hash;
    }
    if (hash_p)
        *hash_p = parent;
    return count;
}

struct engine_prefix_hash engine_block_pool_cache(struct engine_block_pool *pool, uint32_t id,
                                                  struct engine_prefix_hash parent,
                                                  const uint32_t *tokens)
{
    struct engine_prefix_hash hash =
        engine_prefix_hash(pool->hash_key, parent, tokens, pool->block_size);
    struct block *block = &pool->blocks[id];
    if (block->cached || find_cached(pool, parent, hash, tokens) != NONE)
        return hash;
    memcpy(pool->tokens + (size_t)id * pool->block_size, tokens,
           pool->block_size * sizeof(*tokens));
    block->parent = parent;
    block->hash = hash;
    block->cached = true;
    uint32_t *bucket = bucket_of(pool, hash);
    block->chain = *bucket;
    *bucket = id;
    return hash;
}

/* ---- accounts ------------------------------------------------------------------------------- */

void engine_block_pool_usage(const struct engine_block_pool *pool, struct engine_block_usage *usage)
{
    usage->total = pool->block_count;
    usage->free = pool->free_count;
    usage->cached = pool->cached_free_count;
    usage->used = pool->block_count - pool->free_count;
}

static bool free_list_consistent(const struct engine_block_pool *pool)
{
    uint32_t count = 0;
    uint32_t cached = 0;
    uint32_t previous = NONE;
    for (uint32_t id = pool->first_free; id != NONE; id = pool->blocks[id].next) {
        const struct block *block = &pool->blocks[id];
        if (++count > pool->block_count || block->previous != previous || block->holders != 0)
            return false;
        cached += block->cached;
        previous = id;
    }
    return previous == pool->last_free && count == pool->free_count &&
           cached == pool->cached_free_count;
}

bool engine_block_pool_consistent(const struct engine_block_pool *pool)
{
    if (!free_list_consistent(pool))
        return false;
    uint32_t unheld = 0;
    uint32_t cached = 0;
    for (uint32_t id = 0; id < pool->block_count; id++) {
        unheld += pool->blocks[id].holders == 0;
        cached += pool->blocks[id].cached;
    }
    uint32_t chained = 0;
    for (uint32_t bucket = 0; bucket <= pool->bucket_mask; bucket++) {
        for (uint32_t id = pool->buckets[bucket]; id != NONE; id = pool->blocks[id].chain) {
            const struct block *block = &pool->blocks[id];
            struct engine_prefix_hash hash =
                engine_prefix_hash(pool->hash_key, block->parent,
                                   pool->tokens + (size_t)id * pool->block_size, pool->block_size);
            if (++chained > pool->block_count || !block->cached ||
                !engine_prefix_equal(hash, block->hash) || (hash.lo & pool->bucket_mask) != bucket)
                return false;
        }
    }
    return unheld == pool->free_count && chained == cached;
}
