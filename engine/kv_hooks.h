/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_KV_HOOKS_H
#define ENGINE_KV_HOOKS_H

/*
 * The four questions the scheduler asks the P/D connector, with the meaning of the functions of the
 * same names in kvferry/kv.h. engine/connector.h answers them with a struct kvf_scheduler.
 */

#include "kvferry/kv.h"

struct engine_kv_hooks {
    void *ctx;
    enum kvf_status (*on_new_request)(void *ctx, uint64_t now_ns, const char *id,
                                      const struct kvf_transfer_params *params,
                                      uint32_t prompt_tokens, struct kvf_error *error);
    uint32_t (*matched_tokens)(void *ctx, const char *id, uint32_t computed_tokens);
    enum kvf_status (*after_alloc)(void *ctx, uint64_t now_ns, const char *id,
                                   const uint32_t *block_ids, size_t block_count,
                                   size_t cached_count, uint32_t external_tokens,
                                   struct kvf_error *error);
    enum kvf_status (*request_finished)(void *ctx, uint64_t now_ns, const char *id,
                                        enum kvf_finish_reason reason, const uint32_t *block_ids,
                                        size_t block_count, bool *delay_free_p,
                                        struct kvf_transfer_params *response_p,
                                        bool *has_response_p, struct kvf_error *error);
};

#endif
