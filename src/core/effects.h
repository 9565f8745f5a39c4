/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_EFFECTS_H
#define KVFI_CORE_EFFECTS_H

/* The writing side of the effect list. Reading it is in core/worker.h. */

#include "core/worker.h"

/* A point to which the list can be taken back: what one object has to say goes in whole or not at
 * all. */
struct kvfi_effects_mark {
    size_t count;
    size_t chunk;
    size_t used;
};

struct kvfi_effects_mark kvfi_effects_mark(const struct kvfi_effects *effects);
void kvfi_effects_rollback(struct kvfi_effects *effects, struct kvfi_effects_mark mark);

/* A zeroed effect of this kind; valid until the next add. NULL when memory is short. */
struct kvfi_effect *kvfi_effects_add(struct kvfi_effects *effects,
                                     enum kvfi_effect_kind kind) KVF_MUST_USE;
/* Memory that lives as long as the list is not reset; aligned for anything. NULL when short. */
void *kvfi_effects_alloc(struct kvfi_effects *effects, size_t size) KVF_MUST_USE;
void *kvfi_effects_copy(struct kvfi_effects *effects, const void *data, size_t size) KVF_MUST_USE;
const char *kvfi_effects_text(struct kvfi_effects *effects, const char *text) KVF_MUST_USE;

#endif
