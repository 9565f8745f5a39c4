/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PREFIX_HASH_H
#define ENGINE_PREFIX_HASH_H

/*
 * The name of a block's content in the prefix cache: SipHash-2-4 with 128 bits of output over the
 * parent block's hash and the block's token ids. Keyed with a secret of the process, so that a
 * client cannot construct two prompts with the same name.
 */

#include <stdbool.h>
#include <stdint.h>

struct engine_prefix_hash {
    uint64_t lo;
    uint64_t hi;
};

/* The parent of a sequence's first block. */
#define ENGINE_PREFIX_ROOT ((struct engine_prefix_hash){0, 0})

static inline bool engine_prefix_equal(struct engine_prefix_hash a, struct engine_prefix_hash b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* Pure. Borrows tokens. */
struct engine_prefix_hash engine_prefix_hash(const uint64_t key[2],
                                             struct engine_prefix_hash parent,
                                             const uint32_t *tokens, uint32_t token_count);

#endif
