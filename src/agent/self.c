/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent as its own peer: a connection to its own address, and its own regions as the remote
 * side. Each remote region knows its local twin, so that a transfer pins memory that it reaches
 * through the key as well as memory that it reaches through the handle.
 */
#include "agent/state.h"

static enum kvf_status add(struct kvf_agent *agent, struct agent_peer *self,
                           struct kvfi_region *const *locals, size_t count, struct kvf_error *error)
{
    struct kvfi_region **regions = kvfi_wire_alloc(agent->allocator, count * sizeof(void *));
    if (!regions)
        return kvf_fail(error, KVF_ENOMEM, "self: no memory for %zu regions", count);
    size_t made = 0;
    enum kvf_status status = KVF_OK;
    for (; status == KVF_OK && made < count; made++) {
        struct kvfi_region *local = locals[made];
        struct kvfi_nixl_region entry = {.addr = local->addr,
                                         .len = local->length,
                                         .dev_id = local->device_id,
                                         .meta = kvfi_agent_key(agent, local)};
        status = kvfi_agent_new_region(agent, self, local->kind, &entry, &regions[made], error);
        if (status != KVF_OK)
            break;
        regions[made]->twin = local;
    }
    if (status == KVF_OK) {
        status = kvfi_region_set_add(&self->regions, regions, count);
        if (status != KVF_OK)
            (void)kvf_fail(error, status, "self: no memory for %zu regions", count);
    }
    if (status != KVF_OK) {
        for (size_t i = 0; i < made; i++)
            kvfi_agent_free_region(agent, regions[i]);
    }
    kvfi_wire_free(agent->allocator, regions);
    return status;
}

enum kvf_status kvfi_agent_self_add(struct kvf_agent *agent, struct kvfi_region *const *regions,
                                    size_t count, struct kvf_error *error)
{
    if (!agent->self || agent->self->lost)
        return KVF_OK;
    enum kvf_status status = add(agent, agent->self, regions, count, error);
    /* its connection has failed, though nobody was told yet: it takes no posts any more */
    return status == KVF_EDISCONNECTED ? KVF_OK : status;
}

void kvfi_agent_self_remove_leaving(struct kvf_agent *agent)
{
    if (!agent->self)
        return;
    struct kvfi_region_set *set = &agent->self->regions;
    /* Freed after the set has let go of them: chained through the twin, which is not needed. */
    struct kvfi_region *gone = NULL;
    for (size_t i = 0; i < set->count; i++) {
        struct kvfi_region *region = set->sorted[i];
        if (!region->twin->leaving)
            continue;
        region->leaving = true;
        region->twin = gone;
        gone = region;
    }
    if (!gone)
        return;
    kvfi_region_set_remove_leaving(set);
    while (gone) {
        struct kvfi_region *region = gone;
        gone = region->twin;
        kvfi_agent_free_region(agent, region);
    }
}

enum kvf_status kvf_agent_self(struct kvf_agent *agent, struct kvf_peer_id *peer_p,
                               struct kvf_error *error)
{
    if (agent->self) {
        *peer_p = agent->self->id;
        return KVF_OK;
    }
    const void *address = NULL;
    size_t address_len = 0;
    agent->ops->address(agent->lane, &address, &address_len);
    struct agent_peer *self = NULL;
    enum kvf_status status = kvfi_agent_new_peer(agent, kvfi_span_str(agent->name),
                                                 kvfi_span(address, address_len), &self, error);
    if (!self)
        return status;
    status = add(agent, self, agent->regions.sorted, agent->regions.count, error);
    if (status == KVF_OK)
        status = kvfi_agent_take_slot(agent, self, error);
    if (status != KVF_OK) {
        kvfi_agent_free_peer(agent, self);
        return status;
    }
    agent->self = self;
    *peer_p = self->id;
    return KVF_OK;
}
