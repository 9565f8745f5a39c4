/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_SCHEDULER_WORLD_H
#define ENGINE_SCHEDULER_WORLD_H

/*
 * A world for the scheduler's tests: a model that is arithmetic, a connector that is a list, and a
 * sink that remembers.
 *
 * The model keeps one word for each position in the cache: a hash of its token and of the word
 * before it. A token is chosen by a hash over the words of all positions, read through the block
 * table. So one wrong, stale or foreign block anywhere changes the output.
 */

#include "engine/scheduler.h"

enum {
    WORLD_REQUESTS_MAX = 256,
    WORLD_LEN_MAX = 512,
    WORLD_BLOCKS_MAX = 512,
    WORLD_VOCAB = 1000,
    WORLD_END_TOKEN = 7,
};

struct world_request {
    char id[32];
    struct world *world;
    uint32_t prompt[WORLD_LEN_MAX];
    uint32_t prompt_count;
    uint32_t max_tokens;
    uint32_t min_tokens;
    bool ignore_end;
    uint32_t stop_after; /* the sink asks to stop at this many tokens; 0: never */
    struct kvf_transfer_params transfer;
    bool has_transfer;

    uint32_t output[WORLD_LEN_MAX];
    uint32_t output_count;
    bool finished;
    enum engine_finish reason;
    char message[256];
    uint32_t cached_tokens;
    bool handed_over;
    uint32_t handover_blocks[WORLD_BLOCKS_MAX];
    size_t handover_count;

    /* The connector's view. */
    bool tracked;
    bool receive_done;
    bool registered; /* blocks that another engine may write */
    uint32_t blocks[WORLD_BLOCKS_MAX];
    size_t block_count;
    size_t cached_count;
    uint32_t external;
    bool delay_free; /* the connector owns its blocks */
    uint32_t after_alloc_count;
};

struct world {
    struct engine_scheduler *scheduler;
    struct engine_scheduler_options options;
    uint64_t *cache; /* a word for each position of each block */
    struct world_request requests[WORLD_REQUESTS_MAX];
    uint32_t request_count;
    uint64_t now_ns;
    uint64_t row_values[64];
    uint32_t row_count;
    uint32_t batch_tokens_seen; /* most tokens of one run */
    bool fail_next_run;
    uint64_t seed;
};

/* options: sizes only; the world fills in the rest. with_connector false: no hooks. */
void world_open(struct world *world, const struct engine_scheduler_options *options,
                bool with_connector);
/* Destroys, and asserts that the scheduler has given all blocks back. */
void world_close(struct world *world);

/* A request with `count` tokens derived from `text_seed`; not submitted yet. */
struct world_request *world_request(struct world *world, uint32_t text_seed, uint32_t count,
                                    uint32_t max_tokens);
/* What the scheduler answers to it. */
enum kvf_status world_offer(struct world *world, struct world_request *request);
void world_submit(struct world *world, struct world_request *request);
/* One turn; asserts that the scheduler is consistent. False when nothing ran. */
bool world_step(struct world *world);
/* Until everything has finished or nothing moves. */
void world_run(struct world *world);

/* What the other engine does for a registered request: writes the words of the prompt into the
 * blocks that are not cached. */
void world_write(struct world *world, const struct world_request *request);
void world_result(struct world *world, struct world_request *request, enum kvf_result_kind kind,
                  bool blocks_free);

/* Asserts that the output is what the model says without any cache. */
void world_check(const struct world *world, const struct world_request *request);
void world_usage(const struct world *world, struct engine_scheduler_usage *usage);
uint32_t world_random(struct world *world, uint32_t below);

#endif
