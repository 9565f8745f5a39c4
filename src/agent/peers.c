/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: connections with handles that know when they are stale, and how they go. */
#include "agent/state.h"

#include <string.h>

struct agent_peer *kvfi_agent_find_peer(const struct kvf_agent *agent, struct kvf_peer_id id)
{
    return kvfi_slots_find(&agent->peers, id.value);
}

struct agent_peer *kvfi_agent_find_name(const struct kvf_agent *agent, struct kvfi_span name)
{
    for (size_t i = 0; i < agent->peers.count; i++) {
        struct agent_peer *peer = agent->peers.slots[i].object;
        if (peer && kvfi_span_equal(kvfi_span_str(peer->name), name))
            return peer;
    }
    return NULL;
}

enum kvf_status kvfi_agent_take_slot(struct kvf_agent *agent, struct agent_peer *peer,
                                     struct kvf_error *error)
{
    enum kvf_status status =
        kvfi_slots_take(&agent->peers, agent->allocator, peer, &peer->id.value);
    if (status != KVF_OK)
        return kvf_fail(error, status, "load: no memory for peer %zu", agent->peers.used + 1);
    return KVF_OK;
}

void kvfi_agent_free_peer(struct kvf_agent *agent, struct agent_peer *peer)
{
    for (size_t i = 0; i < peer->regions.count; i++)
        kvfi_agent_free_region(agent, peer->regions.sorted[i]);
    kvfi_region_set_deinit(&peer->regions);
    if (peer->lane_peer)
        agent->ops->disconnect(agent->lane, peer->lane_peer);
    kvfi_wire_free(agent->allocator, peer->address);
    kvfi_wire_free(agent->allocator, peer->name);
    kvfi_wire_free(agent->allocator, peer);
}

enum kvf_status kvfi_agent_new_peer(struct kvf_agent *agent, struct kvfi_span name,
                                    struct kvfi_span address, struct agent_peer **peer_p,
                                    struct kvf_error *error)
{
    struct agent_peer *peer = kvfi_wire_alloc(agent->allocator, sizeof(*peer));
    if (!peer)
        return kvf_fail(error, KVF_ENOMEM, "load: no memory for a peer");
    memset(peer, 0, sizeof(*peer));
    kvfi_region_set_init(&peer->regions, agent->allocator);
    enum kvf_status status = KVF_ENOMEM;
    peer->name = kvfi_wire_alloc(agent->allocator, name.len + 1);
    peer->address = kvfi_wire_alloc(agent->allocator, address.len);
    if (!peer->name || !peer->address) {
        status = kvf_fail(error, KVF_ENOMEM, "load: no memory for a peer");
        goto err_peer;
    }
    memcpy(peer->name, name.data, name.len);
    peer->name[name.len] = '\0';
    memcpy(peer->address, address.data, address.len);
    peer->address_len = address.len;
    status =
        agent->ops->connect(agent->lane, address.data, address.len, peer, &peer->lane_peer, error);
    if (status != KVF_OK)
        goto err_peer;
    *peer_p = peer;
    return KVF_OK;

err_peer:
    kvfi_agent_free_peer(agent, peer);
    return status;
}

static void drop(struct kvf_agent *agent, struct agent_peer *peer)
{
    kvfi_slots_leave(&agent->peers, peer->id.value);
    if (peer == agent->self)
        agent->self = NULL;
    peer->dropped = true;
    if (peer->operations == 0) {
        kvfi_agent_free_peer(agent, peer);
        return;
    }
    agent->ops->cancel(agent->lane, peer->lane_peer);
    peer->next = agent->closing;
    agent->closing = peer;
    agent->closing_count++;
}

enum kvf_status kvf_agent_drop(struct kvf_agent *agent, struct kvf_peer_id id)
{
    struct agent_peer *peer = kvfi_agent_find_peer(agent, id);
    if (!peer)
        return KVF_ENOTFOUND;
    drop(agent, peer);
    return KVF_OK;
}

void kvfi_agent_drop_peers(struct kvf_agent *agent)
{
    for (size_t i = 0; i < agent->peers.count; i++) {
        if (agent->peers.slots[i].object)
            drop(agent, agent->peers.slots[i].object);
    }
}

void kvfi_agent_reap_peers(struct kvf_agent *agent)
{
    struct agent_peer **link_p = &agent->closing;
    while (*link_p) {
        struct agent_peer *peer = *link_p;
        if (peer->operations > 0) {
            link_p = &peer->next;
            continue;
        }
        *link_p = peer->next;
        agent->closing_count--;
        kvfi_agent_free_peer(agent, peer);
    }
}

const char *kvf_agent_peer_name(const struct kvf_agent *agent, struct kvf_peer_id id)
{
    const struct agent_peer *peer = kvfi_agent_find_peer(agent, id);
    return peer ? peer->name : NULL;
}
