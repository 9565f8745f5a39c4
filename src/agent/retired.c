/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges that peers may still know. A NIXL peer that has loaded a region refuses to load it with
 * another key, and then forgets the whole agent. So what was advertised and deregistered is
 * remembered with its key, and the same range with another key is refused here, where it can be
 * understood. The number is bounded: the oldest is forgotten first.
 */
#include "agent/state.h"

#include <inttypes.h>
#include <string.h>

enum {
    RETIRED_COUNT_MAX = 4096,
};

static struct kvfi_region *find(const struct kvf_agent *agent, const struct kvfi_region *region)
{
    return kvfi_region_set_exact(&agent->retired, region->kind, region->device_id, region->addr,
                                 region->length);
}

enum kvf_status kvfi_agent_check_key(const struct kvf_agent *agent,
                                     const struct kvfi_region *region, struct kvf_error *error)
{
    const struct kvfi_region *old = find(agent, region);
    if (!old ||
        kvfi_span_equal(kvfi_span(old->rkey_bytes, old->rkey_len), kvfi_agent_key(agent, region)))
        return KVF_OK;
    return kvf_fail(error, KVF_ENOTALLOWED,
                    "register: 0x%" PRIx64 ", +%" PRIu64
                    " was advertised with another key before; peers that know it refuse the new "
                    "one. Keep it registered, or say that they have dropped this agent "
                    "(KVF_MEMORY_NEW_KEY)",
                    region->addr, region->length);
}

/* Takes out and frees what is marked as leaving. */
static void remove_leaving(struct kvf_agent *agent, struct kvfi_region **leaving, size_t count)
{
    kvfi_region_set_remove_leaving(&agent->retired);
    for (size_t i = 0; i < count; i++)
        kvfi_agent_free_region(agent, leaving[i]);
}

void kvfi_agent_unretire(struct kvf_agent *agent, struct kvfi_region *const *regions, size_t count)
{
    enum { BATCH = 64 };
    struct kvfi_region *leaving[BATCH];
    size_t found = 0;
    for (size_t i = 0; i < count && agent->retired.count > 0; i++) {
        struct kvfi_region *old = find(agent, regions[i]);
        if (!old)
            continue;
        old->leaving = true;
        regions[i]->advertised = true; /* if under this key; if not, they dropped us */
        leaving[found++] = old;
        if (found == BATCH) {
            remove_leaving(agent, leaving, found);
            found = 0;
        }
    }
    if (found > 0)
        remove_leaving(agent, leaving, found);
}

static void forget_oldest(struct kvf_agent *agent)
{
    struct kvfi_region *oldest = agent->retired.sorted[0];
    for (size_t i = 1; i < agent->retired.count; i++) {
        if (agent->retired.sorted[i]->mark < oldest->mark)
            oldest = agent->retired.sorted[i];
    }
    oldest->leaving = true;
    remove_leaving(agent, &oldest, 1);
}

/* Keeps the key; false without memory. */
static bool keep_key(struct kvf_agent *agent, struct kvfi_region *region)
{
    struct kvfi_span key = kvfi_agent_key(agent, region);
    region->rkey_bytes = kvfi_wire_alloc(agent->allocator, key.len);
    if (!region->rkey_bytes)
        return false;
    if (key.len > 0)
        memcpy(region->rkey_bytes, key.data, key.len);
    region->rkey_len = key.len;
    return true;
}

/* Without memory a range is forgotten: then the peers refuse, as with NIXL. */
void kvfi_agent_retire(struct kvf_agent *agent, struct kvfi_region **regions, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct kvfi_region *region = regions[i];
        if (!region->advertised || kept == RETIRED_COUNT_MAX || !keep_key(agent, region)) {
            kvfi_agent_free_region(agent, region);
            continue;
        }
        kvfi_agent_drop_mapping(agent, region);
        region->leaving = false;
        region->mark = ++agent->last_mark;
        regions[kept++] = region;
    }
    while (agent->retired.count > 0 && agent->retired.count + kept > RETIRED_COUNT_MAX)
        forget_oldest(agent);
    if (kvfi_region_set_add(&agent->retired, regions, kept) == KVF_OK)
        return;
    for (size_t i = 0; i < kept; i++)
        kvfi_agent_free_region(agent, regions[i]);
}
