/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/region_set.h"

#include "wire/bytes.h"

#include <stdlib.h>
#include <string.h>

void kvfi_region_set_init(struct kvfi_region_set *set, const struct kvf_allocator *allocator)
{
    *set = (struct kvfi_region_set){.allocator = allocator};
}

void kvfi_region_set_deinit(struct kvfi_region_set *set)
{
    kvfi_wire_free(set->allocator, set->sorted);
    kvfi_wire_free(set->allocator, set->reach);
    *set = (struct kvfi_region_set){.allocator = set->allocator};
}

static int order(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_space(const struct kvfi_region *a, const struct kvfi_region *b)
{
    int result = order((uint64_t)a->kind, (uint64_t)b->kind);
    return result ? result : order(a->device_id, b->device_id);
}

static int compare(const struct kvfi_region *a, const struct kvfi_region *b)
{
    int result = compare_space(a, b);
    if (!result)
        result = order(a->addr, b->addr);
    return result ? result : order(a->length, b->length);
}

static int compare_slots(const void *a, const void *b)
{
    return compare(*(struct kvfi_region *const *)a, *(struct kvfi_region *const *)b);
}

/* How many entries are not above key, lengths included. */
static size_t upper_bound(const struct kvfi_region_set *set, const struct kvfi_region *key)
{
    size_t low = 0;
    size_t high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(set->sorted[middle], key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void compute_reach(struct kvfi_region_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        set->reach[i] = (uint32_t)i;
        if (i == 0)
            continue;
        const struct kvfi_region *here = set->sorted[i];
        const struct kvfi_region *best = set->sorted[set->reach[i - 1]];
        if (compare_space(here, best) == 0 && best->addr + best->length > here->addr + here->length)
            set->reach[i] = set->reach[i - 1];
    }
}

struct kvfi_region *kvfi_region_set_exact(const struct kvfi_region_set *set,
                                          enum kvf_memory_kind kind, uint64_t device_id,
                                          uint64_t addr, uint64_t length)
{
    struct kvfi_region key = {.kind = kind, .device_id = device_id, .addr = addr, .length = length};
    size_t count = upper_bound(set, &key);
    if (count == 0 || compare(set->sorted[count - 1], &key) != 0)
        return NULL;
    return set->sorted[count - 1];
}

struct kvfi_region *kvfi_region_set_cover(const struct kvfi_region_set *set,
                                          enum kvf_memory_kind kind, uint64_t device_id,
                                          uint64_t addr)
{
    struct kvfi_region key = {
        .kind = kind, .device_id = device_id, .addr = addr, .length = UINT64_MAX};
    size_t count = upper_bound(set, &key);
    if (count == 0)
        return NULL;
    struct kvfi_region *best = set->sorted[set->reach[count - 1]];
    if (compare_space(best, &key) != 0 || best->addr + best->length <= addr)
        return NULL;
    return best;
}

static enum kvf_status reserve(struct kvfi_region_set *set, size_t count)
{
    if (count <= set->cap)
        return KVF_OK;
    if (count > UINT32_MAX)
        return KVF_ENOMEM;
    size_t cap = set->cap ? set->cap : 8;
    while (cap < count)
        cap *= 2;
    struct kvfi_region **sorted =
        kvfi_wire_realloc(set->allocator, set->sorted, cap * sizeof(void *));
    if (!sorted)
        return KVF_ENOMEM;
    set->sorted = sorted;
    uint32_t *reach = kvfi_wire_realloc(set->allocator, set->reach, cap * sizeof(set->reach[0]));
    if (!reach)
        return KVF_ENOMEM;
    set->reach = reach;
    set->cap = cap;
    return KVF_OK;
}

enum kvf_status kvfi_region_set_add(struct kvfi_region_set *set, struct kvfi_region *const *regions,
                                    size_t count)
{
    if (count == 0)
        return KVF_OK;
    KVF_TRY(reserve(set, set->count + count));
    /* Behind the end they are not in the set yet, so that refusing them needs no undoing: taking
     * them out again one by one would let a peer that lists a million twins stop its reader. */
    struct kvfi_region **added = set->sorted + set->count;
    memcpy(added, regions, count * sizeof(void *));
    qsort(added, count, sizeof(void *), compare_slots);
    for (size_t i = 0; i < count; i++) {
        const struct kvfi_region *here = added[i];
        if ((i > 0 && compare(added[i - 1], here) == 0) ||
            kvfi_region_set_exact(set, here->kind, here->device_id, here->addr, here->length))
            return KVF_EEXIST;
    }
    set->count += count;
    set->epoch++;
    qsort(set->sorted, set->count, sizeof(void *), compare_slots);
    compute_reach(set);
    return KVF_OK;
}

void kvfi_region_set_remove_leaving(struct kvfi_region_set *set)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (!set->sorted[i]->leaving)
            set->sorted[kept++] = set->sorted[i];
    }
    set->count = kept;
    set->epoch++;
    compute_reach(set);
}
