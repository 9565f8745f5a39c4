/* SPDX-License-Identifier: Apache-2.0 */
/* The blobs that tell peers about this agent: full, partial, connection only. */
#include "agent/state.h"

#include <inttypes.h>
#include <string.h>

/* Appends the regions of one kind as a section; an empty one is left out. */
static size_t put_section(const struct kvf_agent *agent, struct kvfi_region *const *regions,
                          size_t count, enum kvf_memory_kind kind, struct kvfi_nixl_region *entries,
                          struct kvfi_nixl_section *section)
{
    size_t taken = 0;
    for (size_t i = 0; i < count; i++) {
        const struct kvfi_region *region = regions[i];
        if (region->kind != kind)
            continue;
        entries[taken++] = (struct kvfi_nixl_region){.addr = region->addr,
                                                     .len = region->length,
                                                     .dev_id = region->device_id,
                                                     .meta = kvfi_agent_key(agent, region)};
    }
    *section = (struct kvfi_nixl_section){.backend = kvfi_span_str(agent->ops->backend),
                                          .mem_type = (uint32_t)kind,
                                          .regions = entries,
                                          .region_count = taken};
    return taken;
}

static enum kvf_status encode(struct kvf_agent *agent, struct kvfi_region *const *regions,
                              size_t count, bool with_connection, void **blob_p, size_t *len_p,
                              struct kvf_error *error)
{
    struct kvfi_nixl_region *entries =
        kvfi_wire_alloc(agent->allocator, count * sizeof(entries[0]));
    if (!entries)
        return kvf_fail(error, KVF_ENOMEM, "metadata: no memory for %zu regions", count);
    struct kvfi_nixl_section sections[2];
    size_t dram = put_section(agent, regions, count, KVF_MEMORY_DRAM, entries, &sections[0]);
    (void)put_section(agent, regions, count, KVF_MEMORY_VRAM, entries + dram, &sections[1]);
    const void *address = NULL;
    size_t address_len = 0;
    agent->ops->address(agent->lane, &address, &address_len);
    struct kvfi_nixl_conn conn = {.backend = kvfi_span_str(agent->ops->backend),
                                  .info = kvfi_span(address, address_len)};
    struct kvfi_nixl_metadata md = {.agent = kvfi_span_str(agent->name),
                                    .conns = &conn,
                                    .conn_count = with_connection ? 1 : 0,
                                    .sections = sections,
                                    .section_count = 2};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, agent->allocator);
    enum kvf_status status = kvfi_nixl_metadata_encode(&md, &buf, error);
    kvfi_wire_free(agent->allocator, entries);
    if (status != KVF_OK) {
        kvfi_buf_deinit(&buf);
        return status;
    }
    for (size_t i = 0; i < count; i++)
        regions[i]->advertised = true;
    *blob_p = kvfi_buf_release(&buf, len_p);
    return KVF_OK;
}

enum kvf_status kvf_agent_metadata(struct kvf_agent *agent, void **blob_p, size_t *len_p,
                                   struct kvf_error *error)
{
    return encode(agent, agent->regions.sorted, agent->regions.count, true, blob_p, len_p, error);
}

enum kvf_status kvf_agent_metadata_partial(struct kvf_agent *agent,
                                           const struct kvf_memory *regions, size_t count,
                                           bool with_connection, void **blob_p, size_t *len_p,
                                           struct kvf_error *error)
{
    if (count > 0 && !regions)
        return kvf_fail(error, KVF_EINVAL, "metadata: %zu regions at NULL", count);
    if (count > KVFI_NIXL_REGION_COUNT_MAX)
        return kvf_fail(error, KVF_ELIMIT, "metadata: %zu regions, at most %zu", count,
                        KVFI_NIXL_REGION_COUNT_MAX);
    struct kvfi_region **found = kvfi_wire_alloc(agent->allocator, count * sizeof(void *));
    if (!found)
        return kvf_fail(error, KVF_ENOMEM, "metadata: no memory for %zu regions", count);
    enum kvf_status status = KVF_OK;
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        uint64_t start = (uint64_t)(uintptr_t)regions[i].addr;
        found[i] = kvfi_region_set_exact(&agent->regions, regions[i].kind, regions[i].device_id,
                                         start, regions[i].length);
        if (!found[i]) {
            status = KVF_ENOTFOUND;
            (void)kvf_fail(error, status,
                           "metadata: 0x%" PRIx64 ", +%zu on device %" PRIu64
                           " is not registered in this form",
                           start, regions[i].length, regions[i].device_id);
        }
    }
    if (status == KVF_OK)
        status = encode(agent, found, count, with_connection || count == 0, blob_p, len_p, error);
    kvfi_wire_free(agent->allocator, found);
    return status;
}

void kvf_agent_blob_free(struct kvf_agent *agent, void *blob)
{
    kvfi_wire_free(agent->allocator, blob);
}
