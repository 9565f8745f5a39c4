/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_SCHEDULER_IMPL_H
#define ENGINE_SCHEDULER_IMPL_H

/* Private to engine/scheduler*.c: scheduler.c keeps the accounts, scheduler_plan.c chooses batches,
 * scheduler_run.c computes them, scheduler_end.c ends requests. */

#include "engine/request.h"

#include <utlist.h>

enum { ENGINE_STAGE_COUNT = ENGINE_HELD + 1 };

struct engine_scheduler {
    struct engine_scheduler_options options;
    struct engine_kv_hooks hooks;
    bool has_hooks;
    struct engine_block_pool *pool;
    struct engine_request *by_id;
    struct engine_request *lists[ENGINE_STAGE_COUNT]; /* of each stage, oldest first */
    uint32_t counts[ENGINE_STAGE_COUNT];

    /* The batch under way, in order. */
    struct engine_sequence *sequences;
    struct engine_request **batch;
    uint32_t batch_count;
    uint32_t budget;   /* tokens left while planning */
    uint64_t moved_ns; /* a request ended, or gave its blocks back, last */

    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t generation_tokens;
    uint64_t preemptions;
    uint64_t steps;
    uint64_t finished[ENGINE_FINISH_ERROR + 1];
};

/* Moves a request to the end (or the front) of another stage's list. */
void engine_move(struct engine_scheduler *scheduler, struct engine_request *request,
                 enum engine_stage stage);
void engine_move_front(struct engine_scheduler *scheduler, struct engine_request *request,
                       enum engine_stage stage);

/* Gives all its blocks back and forgets what was computed. */
void engine_drop_blocks(struct engine_scheduler *scheduler, struct engine_request *request);

/* Tells the pool about whole blocks that are complete now. */
void engine_cache_blocks(struct engine_scheduler *scheduler, struct engine_request *request);

/* Ends a request: asks the connector, frees or holds the blocks, reports. The request may be gone
 * afterwards. message may be NULL. */
void engine_end_request(struct engine_scheduler *scheduler, uint64_t now_ns,
                        struct engine_request *request, enum engine_finish reason,
                        enum kvf_status status, const char *message);

/* Removes it from every table and frees it; its blocks have been given back. */
void engine_forget_request(struct engine_scheduler *scheduler, struct engine_request *request);

#endif
