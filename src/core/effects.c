/* SPDX-License-Identifier: Apache-2.0 */
#include "core/effects.h"

#include "wire/bytes.h"

#include <string.h>

#define CHUNK_SIZE  65536u
#define CHUNK_ALIGN 16u

/* Memory that effects point into. Chunks do not move, so pointers stay good while it grows. */
struct chunk {
    size_t cap;
    _Alignas(CHUNK_ALIGN) unsigned char bytes[];
};

struct kvfi_effects {
    const struct kvf_allocator *allocator;
    struct kvf_allocator allocator_copy;
    struct kvfi_effect *items;
    size_t count;
    size_t cap;
    struct chunk **chunks;
    size_t chunk_count;
    size_t chunk_cap;
    size_t chunk; /* the one that is being filled */
    size_t used;  /* of it */
};

struct kvfi_effects *kvfi_effects_create(const struct kvf_allocator *allocator)
{
    struct kvfi_effects *effects = kvfi_wire_alloc(allocator, sizeof(*effects));
    if (!effects)
        return NULL;
    memset(effects, 0, sizeof(*effects));
    if (allocator) {
        effects->allocator_copy = *allocator;
        effects->allocator = &effects->allocator_copy;
    }
    return effects;
}

void kvfi_effects_destroy(struct kvfi_effects *effects)
{
    if (!effects)
        return;
    for (size_t i = 0; i < effects->chunk_count; i++)
        kvfi_wire_free(effects->allocator, effects->chunks[i]);
    kvfi_wire_free(effects->allocator, effects->chunks);
    kvfi_wire_free(effects->allocator, effects->items);
    struct kvf_allocator allocator = effects->allocator_copy;
    kvfi_wire_free(effects->allocator ? &allocator : NULL, effects);
}

void kvfi_effects_reset(struct kvfi_effects *effects)
{
    effects->count = 0;
    effects->chunk = 0;
    effects->used = 0;
}

size_t kvfi_effects_count(const struct kvfi_effects *effects)
{
    return effects->count;
}

const struct kvfi_effect *kvfi_effects_at(const struct kvfi_effects *effects, size_t index)
{
    return index < effects->count ? &effects->items[index] : NULL;
}

struct kvfi_effects_mark kvfi_effects_mark(const struct kvfi_effects *effects)
{
    return (struct kvfi_effects_mark){
        .count = effects->count, .chunk = effects->chunk, .used = effects->used};
}

void kvfi_effects_rollback(struct kvfi_effects *effects, struct kvfi_effects_mark mark)
{
    effects->count = mark.count;
    effects->chunk = mark.chunk;
    effects->used = mark.used;
}

struct kvfi_effect *kvfi_effects_add(struct kvfi_effects *effects, enum kvfi_effect_kind kind)
{
    if (effects->count == effects->cap) {
        size_t cap = effects->cap ? effects->cap * 2 : 32;
        if (cap > SIZE_MAX / sizeof(*effects->items))
            return NULL;
        void *items =
            kvfi_wire_realloc(effects->allocator, effects->items, cap * sizeof(*effects->items));
        if (!items)
            return NULL;
        effects->items = items;
        effects->cap = cap;
    }
    struct kvfi_effect *effect = &effects->items[effects->count++];
    memset(effect, 0, sizeof(*effect));
    effect->kind = kind;
    return effect;
}

/* Appends a chunk of at least `size` bytes. */
static bool add_chunk(struct kvfi_effects *effects, size_t size)
{
    if (effects->chunk_count == effects->chunk_cap) {
        size_t cap = effects->chunk_cap ? effects->chunk_cap * 2 : 8;
        void *chunks =
            kvfi_wire_realloc(effects->allocator, effects->chunks, cap * sizeof(struct chunk *));
        if (!chunks)
            return false;
        effects->chunks = chunks;
        effects->chunk_cap = cap;
    }
    /* Doubling keeps what is left behind by ever larger needs below the largest of them. */
    size_t cap = CHUNK_SIZE;
    while (cap < size)
        cap *= 2;
    struct chunk *chunk = kvfi_wire_alloc(effects->allocator, sizeof(*chunk) + cap);
    if (!chunk)
        return false;
    chunk->cap = cap;
    effects->chunks[effects->chunk_count++] = chunk;
    return true;
}

void *kvfi_effects_alloc(struct kvfi_effects *effects, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size_t need = (size + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
    size_t at = effects->chunk;
    size_t used = effects->used;
    while (at < effects->chunk_count && effects->chunks[at]->cap - used < need) {
        at++;
        used = 0;
    }
    if (at == effects->chunk_count && !add_chunk(effects, need))
        return NULL;
    effects->chunk = at;
    effects->used = used + need;
    return effects->chunks[at]->bytes + used;
}

void *kvfi_effects_copy(struct kvfi_effects *effects, const void *data, size_t size)
{
    void *copy = kvfi_effects_alloc(effects, size);
    if (copy && size)
        memcpy(copy, data, size);
    return copy;
}

const char *kvfi_effects_text(struct kvfi_effects *effects, const char *text)
{
    return kvfi_effects_copy(effects, text, strlen(text) + 1);
}
