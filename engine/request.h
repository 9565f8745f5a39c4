/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

/*
 * One sequence in the scheduler. Private to engine/scheduler*.c; others see ids and reports.
 *
 *   waiting --admitted--> running --finished--> (gone, or held while the connector owns the blocks)
 *      |  ^-- preempted ----'  ^
 *      |                       '-- ready <-- received --.
 *      '-- admitted, KV comes from another engine --> parked
 */

#include "engine/block_pool.h"
#include "engine/scheduler.h"

/* FNV-1a; uthash's own functions fall through switch labels without a mark. */
static inline unsigned engine_hash_bytes(const void *key, size_t len)
{
    const unsigned char *bytes = key;
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

#define HASH_FUNCTION(key, len, hash) ((hash) = engine_hash_bytes(key, len))
#define HASH_NONFATAL_OOM             1
#include <uthash.h>

enum engine_stage {
    ENGINE_WAITING, /* holds no blocks */
    ENGINE_PARKED,  /* holds blocks that another engine fills */
    ENGINE_READY,   /* its KV has arrived, it has not run since */
    ENGINE_RUNNING,
    ENGINE_HELD, /* ended; the connector says when its blocks are free */
};

struct engine_block_list {
    uint32_t *ids;
    uint32_t count;
};

struct engine_request {
    UT_hash_handle hh;
    struct engine_request *prev; /* in the list of its stage */
    struct engine_request *next;
    char *id;
    void *user;
    enum engine_stage stage;

    uint32_t *tokens; /* prompt, then output */
    uint32_t token_count;
    uint32_t prompt_count;
    uint32_t max_tokens;
    uint32_t min_tokens;
    bool ignore_end;
    int logprobs;
    struct engine_sampler_params sampling;

    uint64_t added_ns;
    uint32_t computed;  /* tokens whose KV is in the cache */
    uint32_t scheduled; /* tokens in the batch under way */
    uint32_t cached_tokens;
    bool admitted_before;
    bool prefill_done;
    bool remote_decode;
    bool remote_prefill;
    char *transfer_id; /* NULL: none */

    struct engine_block_list blocks;     /* capacity for the longest sequence, taken at creation */
    struct engine_block_list quarantine; /* of a failed receive, may still be written */
    bool awaits_release;
    uint32_t hashed_blocks; /* the first ones, known to the pool */
    struct engine_prefix_hash hash;
};

/* Copies what the spec lends. NULL when memory is short. */
struct engine_request *engine_request_create(const struct engine_request_spec *spec,
                                             uint32_t block_size);
/* The blocks have been given back. */
void engine_request_destroy(struct engine_request *request);

static inline uint32_t engine_request_output_count(const struct engine_request *request)
{
    return request->token_count - request->prompt_count;
}

static inline uint32_t engine_blocks_for(uint32_t token_count, uint32_t block_size)
{
    return token_count / block_size + (token_count % block_size != 0);
}

#endif
