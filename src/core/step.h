/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_STEP_H
#define KVFI_CORE_STEP_H

/*
 * struct kvf_step in one allocation: the writer first adds up what it will put in, then makes the
 * step, then fills it. Filling cannot fail.
 */

#include "core/list.h"
#include "kvferry/kv.h"

struct kvfi_step_sizes {
    size_t registrations;
    size_t finished;
    size_t heartbeats;
    size_t ids; /* in_batch, not_processed, withdrawn and heartbeat ids together */
    size_t block_ids;
    size_t text_bytes;
};

struct kvfi_step_builder {
    struct kvf_step *step; /* returned owned to whoever began */
    struct kvf_step_registration *registrations;
    struct kvf_step_finished *finished;
    struct kvf_step_heartbeat *heartbeats;
    const char **ids; /* the next free one; same for the two below */
    uint32_t *block_ids;
    char *text;
};

/* Counts a string with its terminator. NULL counts nothing. */
void kvfi_step_count_text(struct kvfi_step_sizes *sizes, const char *text);
void kvfi_step_count_remote(struct kvfi_step_sizes *sizes, const struct kvf_remote_engine *remote);

/* KVF_ENOMEM. The allocator is copied into the step, so the step outlives its maker. */
enum kvf_status kvfi_step_begin(struct kvfi_step_builder *builder,
                                const struct kvf_allocator *allocator,
                                const struct kvfi_step_sizes *sizes) KVF_MUST_USE;

const char *kvfi_step_put_text(struct kvfi_step_builder *builder, const char *text);
const uint32_t *kvfi_step_put_blocks(struct kvfi_step_builder *builder, const uint32_t *block_ids,
                                     size_t count);
struct kvf_remote_engine kvfi_step_put_remote(struct kvfi_step_builder *builder,
                                              const struct kvf_remote_engine *remote);
void kvfi_step_put_registration(struct kvfi_step_builder *builder,
                                const struct kvf_step_registration *registration);
void kvfi_step_put_finished(struct kvfi_step_builder *builder,
                            const struct kvf_step_finished *finished);
/* One id; appended to the list that *list_p and *count_p describe, which must be the last begun. */
void kvfi_step_put_id(struct kvfi_step_builder *builder, const char *const **list_p,
                      size_t *count_p, const char *id);

/* A deep copy. KVF_ENOMEM. */
enum kvf_status kvfi_step_clone(const struct kvf_step *step, const struct kvf_allocator *allocator,
                                struct kvf_step **copy_p) KVF_MUST_USE;

/* A link that whoever owns the step may use to queue it, and the way back. */
struct kvfi_list *kvfi_step_link(struct kvf_step *step);
struct kvf_step *kvfi_step_of_link(struct kvfi_list *link);

#endif
