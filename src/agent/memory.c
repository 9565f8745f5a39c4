/* SPDX-License-Identifier: Apache-2.0 */
/* Local memory: registration of many ranges at once, all or nothing, and the way back. */
#include "agent/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kvfi_agent_drop_mapping(struct kvf_agent *agent, struct kvfi_region *region)
{
    struct kvfi_mapping *mapping = region->mapping;
    region->mapping = NULL;
    region->memory = NULL;
    if (!mapping || --mapping->regions > 0)
        return;
    agent->ops->deregister_memory(agent->lane, mapping->memory);
    kvfi_wire_free(agent->allocator, mapping);
}

void kvfi_agent_free_region(struct kvf_agent *agent, struct kvfi_region *region)
{
    if (!region)
        return;
    kvfi_agent_drop_mapping(agent, region);
    if (region->rkey)
        agent->ops->rkey_release(agent->lane, region->rkey);
    kvfi_wire_free(agent->allocator, region->rkey_bytes);
    kvfi_wire_free(agent->allocator, region);
}

void kvfi_agent_release_regions(struct kvf_agent *agent)
{
    while (agent->regions.count > 0)
        kvfi_agent_free_region(agent, agent->regions.sorted[--agent->regions.count]);
    while (agent->retired.count > 0)
        kvfi_agent_free_region(agent, agent->retired.sorted[--agent->retired.count]);
}

struct kvfi_span kvfi_agent_key(const struct kvf_agent *agent, const struct kvfi_region *region)
{
    const void *rkey = NULL;
    size_t rkey_len = 0;
    agent->ops->memory_rkey(region->memory, &rkey, &rkey_len);
    return kvfi_span(rkey, rkey_len);
}

/* ---- registration --------------------------------------------------------------------------- */

/* A range and the region it becomes. */
struct entry {
    const struct kvf_memory *range;
    struct kvfi_region *region; /* owned until it is in the set */
};

static uint64_t start_of(const struct kvf_memory *range)
{
    return (uint64_t)(uintptr_t)range->addr;
}

static enum kvf_status check_range(const struct kvf_agent *agent, const struct kvf_memory *range,
                                   struct kvf_error *error)
{
    uint64_t start = start_of(range);
    if (range->kind != KVF_MEMORY_DRAM && range->kind != KVF_MEMORY_VRAM)
        return kvf_fail(error, KVF_EINVAL, "register: memory kind %d is unknown", (int)range->kind);
    if (range->flags & ~(uint32_t)KVF_MEMORY_NEW_KEY)
        return kvf_fail(error, KVF_EINVAL, "register: flags 0x%" PRIx32 " are unknown",
                        range->flags);
    if (!range->addr || range->length == 0)
        return kvf_fail(error, KVF_EINVAL, "register: nothing to register at 0x%" PRIx64 ", +%zu",
                        start, range->length);
    if (range->length > UINT64_MAX - start)
        return kvf_fail(error, KVF_EINVAL,
                        "register: 0x%" PRIx64 ", +%zu passes the end of the address space", start,
                        range->length);
    if (kvfi_region_set_exact(&agent->regions, range->kind, range->device_id, start, range->length))
        return kvf_fail(error, KVF_EEXIST,
                        "register: 0x%" PRIx64 ", +%zu on device %" PRIu64
                        " is registered already; peers refuse two keys for one region",
                        start, range->length, range->device_id);
    return KVF_OK;
}

static int by_allocation(const void *a, const void *b)
{
    const struct kvf_memory *left = ((const struct entry *)a)->range;
    const struct kvf_memory *right = ((const struct entry *)b)->range;
    if (left->allocation != right->allocation)
        return left->allocation < right->allocation ? -1 : 1;
    return (start_of(left) > start_of(right)) - (start_of(left) < start_of(right));
}

/* Registers with the transport what the first of the entries, sorted by allocation, lies in.
 * Returns how many entries that are in *taken_p. */
static enum kvf_status map(struct kvf_agent *agent, struct entry *entries, size_t count,
                           size_t *taken_p, struct kvf_error *error)
{
    const struct kvf_memory *first = entries[0].range;
    uint64_t start = start_of(first);
    uint64_t end = start + first->length;
    size_t taken = 1;
    for (; first->allocation != 0 && taken < count; taken++) {
        const struct kvf_memory *next = entries[taken].range;
        if (next->allocation != first->allocation)
            break;
        if (next->kind != first->kind || next->device_id != first->device_id)
            return kvf_fail(error, KVF_EINVAL,
                            "register: 0x%" PRIx64 " and 0x%" PRIx64 " of allocation %" PRIu32
                            " differ in kind or device (%" PRIu64 ", %" PRIu64 ")",
                            start, start_of(next), first->allocation, first->device_id,
                            next->device_id);
        if (start_of(next) + next->length > end)
            end = start_of(next) + next->length;
    }
    struct kvfi_mapping *mapping = kvfi_wire_alloc(agent->allocator, sizeof(*mapping));
    if (!mapping)
        return kvf_fail(error, KVF_ENOMEM, "register: no memory for a registration");
    *mapping = (struct kvfi_mapping){.regions = taken};
    enum kvf_status status = agent->ops->register_memory(agent->lane, first->addr, end - start,
                                                         first->kind, &mapping->memory, error);
    if (status != KVF_OK) {
        kvfi_wire_free(agent->allocator, mapping);
        return status;
    }
    for (size_t i = 0; i < taken; i++) {
        entries[i].region->mapping = mapping;
        entries[i].region->memory = mapping->memory;
    }
    *taken_p = taken;
    return KVF_OK;
}

static enum kvf_status map_all(struct kvf_agent *agent, struct entry *entries, size_t count,
                               struct kvf_error *error)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i += taken)
        KVF_TRY(map(agent, entries + i, count - i, &taken, error));
    for (size_t i = 0; i < count; i++) {
        if (!(entries[i].range->flags & KVF_MEMORY_NEW_KEY))
            KVF_TRY(kvfi_agent_check_key(agent, entries[i].region, error));
    }
    return KVF_OK;
}

static enum kvf_status new_entries(struct kvf_agent *agent, const struct kvf_memory *ranges,
                                   struct entry *entries, size_t count, struct kvf_error *error)
{
    for (size_t i = 0; i < count; i++) {
        const struct kvf_memory *range = &ranges[i];
        KVF_TRY(check_range(agent, range, error));
        entries[i].range = range;
        entries[i].region = kvfi_wire_alloc(agent->allocator, sizeof(struct kvfi_region));
        if (!entries[i].region)
            return kvf_fail(error, KVF_ENOMEM, "register: no memory for %zu regions", count);
        *entries[i].region = (struct kvfi_region){.addr = start_of(range),
                                                  .length = range->length,
                                                  .device_id = range->device_id,
                                                  .kind = range->kind};
    }
    return KVF_OK;
}

/* Into the agent's set, and its own peer's if there is one. */
static enum kvf_status adopt(struct kvf_agent *agent, struct kvfi_region *const *regions,
                             size_t count, struct kvf_error *error)
{
    enum kvf_status status = kvfi_region_set_add(&agent->regions, regions, count);
    if (status == KVF_EEXIST)
        return kvf_fail(error, status,
                        "register: two of the %zu ranges are the same; peers refuse two keys for "
                        "one region",
                        count);
    if (status != KVF_OK)
        return kvf_fail(error, status, "register: no memory for %zu regions",
                        agent->regions.count + count);
    status = kvfi_agent_self_add(agent, regions, count, error);
    if (status != KVF_OK) {
        for (size_t i = 0; i < count; i++)
            regions[i]->leaving = true;
        kvfi_region_set_remove_leaving(&agent->regions);
    }
    return status;
}

enum kvf_status kvf_agent_register_many(struct kvf_agent *agent, const struct kvf_memory *ranges,
                                        size_t count, struct kvf_error *error)
{
    if (count > 0 && !ranges)
        return kvf_fail(error, KVF_EINVAL, "register: %zu ranges at NULL", count);
    if (count > KVFI_NIXL_REGION_COUNT_MAX - agent->regions.count)
        return kvf_fail(error, KVF_ELIMIT,
                        "register: %zu regions more than the %zu there are; an "
                        "agent has at most %zu",
                        count, agent->regions.count, KVFI_NIXL_REGION_COUNT_MAX);
    struct entry *entries = kvfi_wire_alloc(agent->allocator, count * sizeof(entries[0]));
    struct kvfi_region **regions = kvfi_wire_alloc(agent->allocator, count * sizeof(void *));
    enum kvf_status status = KVF_ENOMEM;
    if (!entries || !regions) {
        status = kvf_fail(error, KVF_ENOMEM, "register: no memory for %zu ranges", count);
        goto out;
    }
    memset(entries, 0, count * sizeof(entries[0]));
    status = new_entries(agent, ranges, entries, count, error);
    if (status == KVF_OK) {
        qsort(entries, count, sizeof(entries[0]), by_allocation);
        status = map_all(agent, entries, count, error);
    }
    for (size_t i = 0; i < count; i++)
        regions[i] = entries[i].region;
    if (status == KVF_OK)
        status = adopt(agent, regions, count, error);
    if (status == KVF_OK) {
        kvfi_agent_unretire(agent, regions, count);
        for (size_t i = 0; i < count; i++)
            agent->counters.bytes_registered += regions[i]->length;
    } else {
        for (size_t i = 0; i < count; i++)
            kvfi_agent_free_region(agent, regions[i]);
    }
out:
    kvfi_wire_free(agent->allocator, regions);
    kvfi_wire_free(agent->allocator, entries);
    return status;
}

enum kvf_status kvf_agent_register(struct kvf_agent *agent, void *addr, size_t length,
                                   enum kvf_memory_kind kind, uint64_t device_id,
                                   struct kvf_error *error)
{
    struct kvf_memory range = {
        .addr = addr, .length = length, .device_id = device_id, .kind = kind};
    return kvf_agent_register_many(agent, &range, 1, error);
}

/* ---- deregistration ------------------------------------------------------------------------- */

/* Finds the regions and marks them as leaving. */
static enum kvf_status mark_leaving(struct kvf_agent *agent, const struct kvf_memory *ranges,
                                    struct kvfi_region **regions, size_t count, size_t *marked_p,
                                    struct kvf_error *error)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t start = start_of(&ranges[i]);
        struct kvfi_region *region = kvfi_region_set_exact(
            &agent->regions, ranges[i].kind, ranges[i].device_id, start, ranges[i].length);
        if (!region) {
            (void)kvf_fail(error, KVF_ENOTFOUND,
                           "deregister: 0x%" PRIx64 ", +%zu on device %" PRIu64
                           " is not registered in this form",
                           start, ranges[i].length, ranges[i].device_id);
            return KVF_ENOTFOUND;
        }
        if (region->leaving) {
            (void)kvf_fail(error, KVF_EINVAL, "deregister: 0x%" PRIx64 ", +%zu is listed twice",
                           start, ranges[i].length);
            return KVF_EINVAL;
        }
        if (region->uses > 0) {
            (void)kvf_fail(error, KVF_EBUSY,
                           "deregister: 0x%" PRIx64 ", +%zu is used by %" PRIu32 " transfers",
                           start, ranges[i].length, region->uses);
            return KVF_EBUSY;
        }
        region->leaving = true;
        region->mapping->leaving++;
        regions[i] = region;
        *marked_p = i + 1;
    }
    for (size_t i = 0; i < count; i++) {
        const struct kvfi_mapping *mapping = regions[i]->mapping;
        if (mapping->leaving == mapping->regions)
            continue;
        (void)kvf_fail(error, KVF_EBUSY,
                       "deregister: 0x%" PRIx64
                       " was registered together with others of its allocation; deregister all %zu "
                       "in one call, not %zu",
                       regions[i]->addr, mapping->regions, mapping->leaving);
        return KVF_EBUSY;
    }
    return KVF_OK;
}

enum kvf_status kvf_agent_deregister_many(struct kvf_agent *agent, const struct kvf_memory *ranges,
                                          size_t count, struct kvf_error *error)
{
    if (count > 0 && !ranges)
        return kvf_fail(error, KVF_EINVAL, "deregister: %zu ranges at NULL", count);
    if (count > agent->regions.count)
        return kvf_fail(error, KVF_ENOTFOUND, "deregister: %zu ranges, but %zu are registered",
                        count, agent->regions.count);
    struct kvfi_region *one = NULL;
    struct kvfi_region **regions = &one;
    if (count > 1)
        regions = kvfi_wire_alloc(agent->allocator, count * sizeof(void *));
    if (!regions)
        return kvf_fail(error, KVF_ENOMEM, "deregister: no memory for %zu ranges", count);
    size_t marked = 0;
    enum kvf_status status = mark_leaving(agent, ranges, regions, count, &marked, error);
    if (status == KVF_OK) {
        kvfi_agent_self_remove_leaving(agent);
        kvfi_region_set_remove_leaving(&agent->regions);
        for (size_t i = 0; i < count; i++)
            agent->counters.bytes_deregistered += regions[i]->length;
        kvfi_agent_retire(agent, regions, count);
    } else {
        for (size_t i = 0; i < marked; i++) {
            regions[i]->leaving = false;
            regions[i]->mapping->leaving = 0;
        }
    }
    if (regions != &one)
        kvfi_wire_free(agent->allocator, regions);
    return status;
}

enum kvf_status kvf_agent_deregister(struct kvf_agent *agent, void *addr, size_t length,
                                     enum kvf_memory_kind kind, uint64_t device_id)
{
    struct kvf_memory range = {
        .addr = addr, .length = length, .device_id = device_id, .kind = kind};
    return kvf_agent_deregister_many(agent, &range, 1, NULL);
}
