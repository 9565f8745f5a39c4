/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a peer's metadata, by NIXL's rules: the first time, again, and changed. */
#include "agent/state.h"

#include <inttypes.h>
#include <string.h>

enum kvf_status kvfi_agent_new_region(struct kvf_agent *agent, struct agent_peer *peer,
                                      enum kvf_memory_kind kind,
                                      const struct kvfi_nixl_region *entry,
                                      struct kvfi_region **region_p, struct kvf_error *error)
{
    if (entry->len > UINT64_MAX - entry->addr)
        return kvf_fail(error, KVF_EFORMAT,
                        "load: region 0x%" PRIx64 ", +%" PRIu64
                        " of peer \"%s\" passes the end of the address space",
                        entry->addr, entry->len, peer->name);
    struct kvfi_region *region = kvfi_wire_alloc(agent->allocator, sizeof(*region));
    if (!region)
        return kvf_fail(error, KVF_ENOMEM, "load: no memory for a region");
    *region = (struct kvfi_region){
        .addr = entry->addr, .length = entry->len, .device_id = entry->dev_id, .kind = kind};
    enum kvf_status status = KVF_ENOMEM;
    region->rkey_bytes = kvfi_wire_alloc(agent->allocator, entry->meta.len);
    if (!region->rkey_bytes) {
        status = kvf_fail(error, KVF_ENOMEM, "load: no memory for a region's key");
    } else {
        if (entry->meta.len > 0)
            memcpy(region->rkey_bytes, entry->meta.data, entry->meta.len);
        region->rkey_len = entry->meta.len;
        status = agent->ops->rkey_unpack(agent->lane, peer->lane_peer, entry->meta.data,
                                         entry->meta.len, &region->rkey, error);
    }
    if (status != KVF_OK) {
        kvfi_agent_free_region(agent, region);
        return status;
    }
    *region_p = region;
    return KVF_OK;
}

/* Regions on their way into a peer. */
struct staged {
    struct kvfi_region **items;
    size_t count;
};

/* Appends the section's regions that are new. */
static enum kvf_status stage_section(struct kvf_agent *agent, struct agent_peer *peer,
                                     const struct kvfi_nixl_section *section, struct staged *staged,
                                     struct kvf_error *error)
{
    if (section->mem_type != KVFI_NIXL_DRAM && section->mem_type != KVFI_NIXL_VRAM)
        return kvf_fail(error, KVF_EFORMAT,
                        "load: peer \"%s\" advertises %s memory for %s, which serves DRAM and VRAM",
                        peer->name, kvfi_nixl_mem_type_name(section->mem_type),
                        agent->ops->backend);
    enum kvf_memory_kind kind = (enum kvf_memory_kind)section->mem_type;
    for (size_t i = 0; i < section->region_count; i++) {
        const struct kvfi_nixl_region *entry = &section->regions[i];
        const struct kvfi_region *known =
            kvfi_region_set_exact(&peer->regions, kind, entry->dev_id, entry->addr, entry->len);
        if (known) {
            if (kvfi_span_equal(kvfi_span(known->rkey_bytes, known->rkey_len), entry->meta))
                continue;
            return kvf_fail(error, KVF_ENOTALLOWED,
                            "load: region 0x%" PRIx64 ", +%" PRIu64
                            " of peer \"%s\" has another key than before; drop the peer first",
                            entry->addr, entry->len, peer->name);
        }
        KVF_TRY(
            kvfi_agent_new_region(agent, peer, kind, entry, &staged->items[staged->count], error));
        staged->count++;
    }
    return KVF_OK;
}

static bool is_ours(const struct kvf_agent *agent, struct kvfi_span backend)
{
    return kvfi_span_equal(backend, kvfi_span_str(agent->ops->backend));
}

/* Adds all regions of the blob that are new, or none. */
static enum kvf_status add_regions(struct kvf_agent *agent, struct agent_peer *peer,
                                   const struct kvfi_nixl_metadata *md, struct kvf_error *error)
{
    size_t count = 0;
    for (size_t i = 0; i < md->section_count; i++)
        count += md->sections[i].region_count;
    struct staged staged = {0};
    staged.items = kvfi_wire_alloc(agent->allocator, (count + 1) * sizeof(void *));
    if (!staged.items)
        return kvf_fail(error, KVF_ENOMEM, "load: no memory for %zu regions", count);
    enum kvf_status status = KVF_OK;
    for (size_t i = 0; status == KVF_OK && i < md->section_count; i++) {
        if (is_ours(agent, md->sections[i].backend))
            status = stage_section(agent, peer, &md->sections[i], &staged, error);
    }
    if (status == KVF_OK) {
        status = kvfi_region_set_add(&peer->regions, staged.items, staged.count);
        if (status == KVF_EEXIST)
            status = kvf_fail(error, KVF_EFORMAT, "load: peer \"%s\" lists one region twice",
                              peer->name);
        else if (status != KVF_OK)
            (void)kvf_fail(error, status, "load: no memory for %zu regions", count);
    }
    if (status != KVF_OK) {
        for (size_t i = 0; i < staged.count; i++)
            kvfi_agent_free_region(agent, staged.items[i]);
    }
    kvfi_wire_free(agent->allocator, staged.items);
    return status;
}

static enum kvf_status load_known(struct kvf_agent *agent, struct agent_peer *peer,
                                  const struct kvfi_nixl_conn *conn,
                                  const struct kvfi_nixl_metadata *md, struct kvf_error *error)
{
    if (peer->lost)
        return kvf_fail(error, KVF_EDISCONNECTED,
                        "load: the connection to peer \"%s\" has failed; drop the peer first",
                        peer->name);
    if (conn && !kvfi_span_equal(conn->info, kvfi_span(peer->address, peer->address_len)))
        return kvf_fail(
            error, KVF_ENOTALLOWED,
            "load: peer \"%s\" is loaded with another address (it has restarted, or the "
            "name is used twice); drop it first",
            peer->name);
    return add_regions(agent, peer, md, error);
}

static enum kvf_status load_new(struct kvf_agent *agent, const struct kvfi_nixl_conn *conn,
                                const struct kvfi_nixl_metadata *md, struct agent_peer **peer_p,
                                struct kvf_error *error)
{
    struct kvfi_quote quote;
    if (!conn)
        return kvf_fail(error, KVF_ENOTFOUND,
                        "load: agent \"%s\" is not known and the blob has no connection; load its "
                        "full metadata first",
                        kvfi_quote(&quote, md->agent));
    struct agent_peer *peer = NULL;
    enum kvf_status status = kvfi_agent_new_peer(agent, md->agent, conn->info, &peer, error);
    if (!peer)
        return status;
    status = add_regions(agent, peer, md, error);
    if (status == KVF_OK)
        status = kvfi_agent_take_slot(agent, peer, error);
    if (status != KVF_OK) {
        kvfi_agent_free_peer(agent, peer);
        return status;
    }
    *peer_p = peer;
    return KVF_OK;
}

static enum kvf_status load_decoded(struct kvf_agent *agent, const struct kvfi_nixl_metadata *md,
                                    struct kvf_peer_id *peer_p, struct kvf_error *error)
{
    struct kvfi_quote quote;
    if (kvfi_span_equal(md->agent, kvfi_span_str(agent->name)))
        return kvf_fail(error, KVF_EINVAL, "load: \"%s\" is this agent's own name", agent->name);
    if (md->agent.len == 0 || memchr(md->agent.data, '\0', md->agent.len))
        return kvf_fail(error, KVF_EFORMAT, "load: the agent name \"%s\" is empty or holds a NUL",
                        kvfi_quote(&quote, md->agent));

    const struct kvfi_nixl_conn *conn = NULL;
    for (size_t i = 0; !conn && i < md->conn_count; i++) {
        if (is_ours(agent, md->conns[i].backend))
            conn = &md->conns[i];
    }
    if (md->conn_count > 0 && !conn)
        return kvf_fail(error, KVF_ENOTSUP,
                        "load: agent \"%s\" has %zu backends, none of them is %s",
                        kvfi_quote(&quote, md->agent), md->conn_count, agent->ops->backend);

    struct agent_peer *peer = kvfi_agent_find_name(agent, md->agent);
    enum kvf_status status =
        peer ? load_known(agent, peer, conn, md, error) : load_new(agent, conn, md, &peer, error);
    if (status == KVF_OK && peer)
        *peer_p = peer->id;
    return status;
}

enum kvf_status kvf_agent_load(struct kvf_agent *agent, const void *blob, size_t len,
                               struct kvf_peer_id *peer_p, struct kvf_error *error)
{
    struct kvfi_nixl_metadata md = {0};
    enum kvf_status status = kvfi_nixl_metadata_decode(blob, len, agent->allocator, &md, error);
    if (status == KVF_OK)
        status = load_decoded(agent, &md, peer_p, error);
    kvfi_nixl_metadata_free(&md);
    if (status != KVF_OK)
        agent->counters.loads_refused++;
    return status;
}
