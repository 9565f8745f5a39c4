/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/slots.h"

#include "wire/bytes.h"

static enum kvf_status grow(struct kvfi_slots *slots, const struct kvf_allocator *allocator)
{
    size_t count = slots->count ? 2 * slots->count : 8;
    if (count > UINT32_MAX)
        return KVF_ENOMEM;
    struct kvfi_slot *grown =
        kvfi_wire_realloc(allocator, slots->slots, count * sizeof(slots->slots[0]));
    if (!grown)
        return KVF_ENOMEM;
    slots->slots = grown;
    for (size_t i = count; i > slots->count; i--) {
        grown[i - 1] = (struct kvfi_slot){.next_free = slots->first_free};
        slots->first_free = (uint32_t)i;
    }
    slots->count = count;
    return KVF_OK;
}

enum kvf_status kvfi_slots_take(struct kvfi_slots *slots, const struct kvf_allocator *allocator,
                                void *object, uint64_t *id_p)
{
    if (slots->first_free == 0)
        KVF_TRY(grow(slots, allocator));
    uint32_t place = slots->first_free;
    struct kvfi_slot *slot = &slots->slots[place - 1];
    slots->first_free = slot->next_free;
    slot->object = object;
    slot->generation++;
    slots->used++;
    *id_p = ((uint64_t)slot->generation << 32) | place;
    return KVF_OK;
}

void kvfi_slots_set(struct kvfi_slots *slots, uint64_t id, void *object)
{
    slots->slots[(uint32_t)id - 1].object = object;
}

void kvfi_slots_leave(struct kvfi_slots *slots, uint64_t id)
{
    uint32_t place = (uint32_t)id;
    struct kvfi_slot *slot = &slots->slots[place - 1];
    slot->object = NULL;
    slot->next_free = slots->first_free;
    slots->first_free = place;
    slots->used--;
}

void *kvfi_slots_find(const struct kvfi_slots *slots, uint64_t id)
{
    uint32_t place = (uint32_t)id;
    if (place == 0 || place > slots->count)
        return NULL;
    const struct kvfi_slot *slot = &slots->slots[place - 1];
    return slot->generation == id >> 32 ? slot->object : NULL;
}

void kvfi_slots_free(struct kvfi_slots *slots, const struct kvf_allocator *allocator)
{
    kvfi_wire_free(allocator, slots->slots);
    *slots = (struct kvfi_slots){0};
}
