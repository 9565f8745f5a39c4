/* SPDX-License-Identifier: Apache-2.0 */
/* Local memory: registration, and the blob that tells peers about it. */
#include "agent/state.h"

#include <inttypes.h>
#include <string.h>

void kvfi_agent_free_region(struct kvf_agent *agent, struct kvfi_region *region)
{
    if (region->memory)
        agent->ops->deregister_memory(agent->lane, region->memory);
    if (region->rkey)
        agent->ops->rkey_release(agent->lane, region->rkey);
    kvfi_wire_free(agent->allocator, region->rkey_bytes);
    kvfi_wire_free(agent->allocator, region);
}

void kvfi_agent_release_regions(struct kvf_agent *agent)
{
    while (agent->regions.count > 0) {
        struct kvfi_region *region = agent->regions.sorted[--agent->regions.count];
        kvfi_agent_free_region(agent, region);
    }
}

enum kvf_status kvf_agent_register(struct kvf_agent *agent, void *addr, size_t length,
                                   enum kvf_memory_kind kind, uint64_t device_id,
                                   struct kvf_error *error)
{
    uint64_t start = (uint64_t)(uintptr_t)addr;
    if (kind != KVF_MEMORY_DRAM && kind != KVF_MEMORY_VRAM)
        return kvf_fail(error, KVF_EINVAL, "register: memory kind %d is unknown", (int)kind);
    if (!addr || length == 0)
        return kvf_fail(error, KVF_EINVAL, "register: nothing to register at 0x%" PRIx64 ", +%zu",
                        start, length);
    if (length > UINT64_MAX - start)
        return kvf_fail(error, KVF_EINVAL,
                        "register: 0x%" PRIx64 ", +%zu passes the end of the address space", start,
                        length);
    if (kvfi_region_set_exact(&agent->regions, kind, device_id, start, length))
        return kvf_fail(error, KVF_EEXIST,
                        "register: 0x%" PRIx64 ", +%zu on device %" PRIu64
                        " is registered already; peers refuse two keys for one region",
                        start, length, device_id);

    struct kvfi_region *region = kvfi_wire_alloc(agent->allocator, sizeof(*region));
    if (!region)
        return kvf_fail(error, KVF_ENOMEM, "register: no memory for a region");
    *region =
        (struct kvfi_region){.addr = start, .length = length, .device_id = device_id, .kind = kind};
    enum kvf_status status =
        agent->ops->register_memory(agent->lane, addr, length, kind, &region->memory, error);
    if (status == KVF_OK) {
        status = kvfi_region_set_add(&agent->regions, &region, 1);
        if (status != KVF_OK)
            (void)kvf_fail(error, status, "register: no memory for region %zu",
                           agent->regions.count + 1);
    }
    if (status != KVF_OK)
        kvfi_agent_free_region(agent, region);
    return status;
}

enum kvf_status kvf_agent_deregister(struct kvf_agent *agent, void *addr, size_t length,
                                     enum kvf_memory_kind kind, uint64_t device_id)
{
    struct kvfi_region *region =
        kvfi_region_set_exact(&agent->regions, kind, device_id, (uint64_t)(uintptr_t)addr, length);
    if (!region)
        return KVF_ENOTFOUND;
    if (region->uses > 0)
        return KVF_EBUSY;
    kvfi_region_set_remove(&agent->regions, region);
    kvfi_agent_free_region(agent, region);
    return KVF_OK;
}

/* The set is sorted by kind first, so each kind is one stretch of entries. */
static size_t fill_sections(const struct kvf_agent *agent, struct kvfi_nixl_region *entries,
                            struct kvfi_nixl_section sections[2])
{
    size_t count = 0;
    for (size_t i = 0; i < agent->regions.count; i++) {
        const struct kvfi_region *region = agent->regions.sorted[i];
        const void *rkey = NULL;
        size_t rkey_len = 0;
        agent->ops->memory_rkey(region->memory, &rkey, &rkey_len);
        entries[i] = (struct kvfi_nixl_region){.addr = region->addr,
                                               .len = region->length,
                                               .dev_id = region->device_id,
                                               .meta = kvfi_span(rkey, rkey_len)};
        if (count == 0 || sections[count - 1].mem_type != (uint32_t)region->kind)
            sections[count++] =
                (struct kvfi_nixl_section){.backend = kvfi_span_str(agent->ops->backend),
                                           .mem_type = (uint32_t)region->kind,
                                           .regions = &entries[i]};
        sections[count - 1].region_count++;
    }
    return count;
}

enum kvf_status kvf_agent_metadata(struct kvf_agent *agent, void **blob_p, size_t *len_p,
                                   struct kvf_error *error)
{
    size_t count = agent->regions.count;
    struct kvfi_nixl_region *entries =
        kvfi_wire_alloc(agent->allocator, (count + 1) * sizeof(entries[0]));
    if (!entries)
        return kvf_fail(error, KVF_ENOMEM, "metadata: no memory for %zu regions", count);
    struct kvfi_nixl_section sections[2];
    const void *address = NULL;
    size_t address_len = 0;
    agent->ops->address(agent->lane, &address, &address_len);
    struct kvfi_nixl_conn conn = {.backend = kvfi_span_str(agent->ops->backend),
                                  .info = kvfi_span(address, address_len)};
    struct kvfi_nixl_metadata md = {.agent = kvfi_span_str(agent->name),
                                    .conns = &conn,
                                    .conn_count = 1,
                                    .sections = sections,
                                    .section_count = fill_sections(agent, entries, sections)};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, agent->allocator);
    enum kvf_status status = kvfi_nixl_metadata_encode(&md, &buf, error);
    kvfi_wire_free(agent->allocator, entries);
    if (status != KVF_OK) {
        kvfi_buf_deinit(&buf);
        return status;
    }
    *blob_p = kvfi_buf_release(&buf, len_p);
    return KVF_OK;
}

void kvf_agent_blob_free(struct kvf_agent *agent, void *blob)
{
    kvfi_wire_free(agent->allocator, blob);
}
