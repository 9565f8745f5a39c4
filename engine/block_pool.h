/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_BLOCK_POOL_H
#define ENGINE_BLOCK_POOL_H

/*
 * The blocks of the paged KV cache: who holds each, and which prefix of tokens it contains.
 *
 * A block is used (one or more holders) or free. A free block may still be cached: its content is
 * known by the hash of all tokens up to its end, and a later request with the same prefix takes it
 * back. Free blocks are handed out uncached ones first, then the least recently freed.
 *
 * The pool knows ids only, never memory. One thread. All memory is taken at creation.
 */

#include "engine/prefix_hash.h"
#include "kvferry/status.h"

struct engine_block_pool;

/* block_size: tokens in a block, a power of two. hash_key: secret of this process. Returns owned.
 * KVF_EINVAL naming the value, KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status engine_block_pool_create(uint32_t block_count, uint32_t block_size,
                                                      const uint64_t hash_key[2],
                                                      struct engine_block_pool **pool_p,
                                                      struct kvf_error *error);
/* NULL is allowed. */
void engine_block_pool_destroy(struct engine_block_pool *pool);

uint32_t engine_block_pool_block_size(const struct engine_block_pool *pool);
uint32_t engine_block_pool_block_count(const struct engine_block_pool *pool);
/* Free blocks, cached ones included. */
uint32_t engine_block_pool_free_count(const struct engine_block_pool *pool);

/* Takes `count` blocks, each with one holder and nothing cached, into ids[]. KVF_AGAIN: there are
 * not enough free ones, nothing was taken. */
KVF_MUST_USE enum kvf_status engine_block_pool_take(struct engine_block_pool *pool, uint32_t count,
                                                    uint32_t *ids);

/* Gives blocks back, one holder each. They are freed last one first, so that a prefix is evicted
 * from its end. */
void engine_block_pool_give(struct engine_block_pool *pool, const uint32_t *ids, uint32_t count);

/* The longest cached prefix of whole blocks among the first token_count tokens. Adds a holder to
 * each block found, writes their ids and the hash of the last one (the root when none was found;
 * may be NULL). ids must hold token_count / block_size entries. Returns how many blocks. A hit is
 * verified against the stored tokens. */
uint32_t engine_block_pool_match(struct engine_block_pool *pool, const uint32_t *tokens,
                                 uint32_t token_count, uint32_t *ids,
                                 struct engine_prefix_hash *hash_p);

/* A held block is complete: it contains the KV of `tokens` (block_size of them) after `parent`.
 * Returns its hash, the parent of the next one. When another block with the same content is cached
 * already, this one stays uncached. */
struct engine_prefix_hash engine_block_pool_cache(struct engine_block_pool *pool, uint32_t id,
                                                  struct engine_prefix_hash parent,
                                                  const uint32_t *tokens);

struct engine_block_usage {
    uint32_t total;
    uint32_t free;   /* cached ones included */
    uint32_t cached; /* free ones whose content is known */
    uint32_t used;
};
void engine_block_pool_usage(const struct engine_block_pool *pool,
                             struct engine_block_usage *usage);

/* Holders of a block. */
uint32_t engine_block_pool_holders(const struct engine_block_pool *pool, uint32_t id);

/* True when every list, count and table agrees. Costs a walk over all blocks; for tests and debug
 * output. */
bool engine_block_pool_consistent(const struct engine_block_pool *pool);

#endif
