/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_RUNNER_H
#define ENGINE_RUNNER_H

/* The model behind struct engine_forward: forward pass over the cache, then sampling. Engine thread
 * only. */

#include "engine/cache.h"
#include "engine/forward.h"

struct engine_runner;

/* Model and cache are borrowed until destroy. Returns owned. */
KVF_MUST_USE enum kvf_status engine_runner_create(struct engine_model *model,
                                                  const struct engine_cache *cache,
                                                  uint32_t block_size, uint32_t sequences_max,
                                                  struct engine_runner **runner_p,
                                                  struct kvf_error *error);
/* NULL is allowed. */
void engine_runner_destroy(struct engine_runner *runner);

struct engine_forward engine_runner_forward(struct engine_runner *runner);

#endif
