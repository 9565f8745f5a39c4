/* SPDX-License-Identifier: Apache-2.0 */
#include "geometry/plan.h"

#include <inttypes.h>

/* The largest id of each side of one block list. Regions of one group come together as a rule, so
 * remembering the last group keeps the scan linear in the ids. */
struct id_bounds {
    bool known;
    uint32_t group;
    uint32_t local_max;
    uint32_t remote_max;
};

static const char *side_name(bool remote)
{
    return remote ? "remote" : "local";
}

static enum kvf_status check_table(const struct kvf_block_table *table, uint64_t length_bytes,
                                   size_t region, bool remote, struct kvf_error *error)
{
    const char *side = side_name(remote);
    if (table->kind != KVF_MEMORY_DRAM && table->kind != KVF_MEMORY_VRAM)
        return kvf_fail(error, KVF_EINVAL, "plan region %zu: %s memory kind %d is unknown", region,
                        side, (int)table->kind);
    if (table->stride_bytes == 0) {
        if (table->block_count > 1)
            return kvf_fail(error, KVF_EINVAL,
                            "plan region %zu: %s stride is 0 with %" PRIu64
                            " blocks; a stride of 0 serves one block only",
                            region, side, table->block_count);
    } else if (table->offset_bytes > table->stride_bytes ||
               length_bytes > table->stride_bytes - table->offset_bytes) {
        return kvf_fail(error, KVF_EINVAL,
                        "plan region %zu: %s slice [%" PRIu64 ", +%" PRIu64
                        ") leaves the stride of %" PRIu64 " bytes",
                        region, side, table->offset_bytes, length_bytes, table->stride_bytes);
    }
    if (table->block_count == 0)
        return KVF_OK;

    /* base + (block_count - 1) * stride + offset + length must not wrap */
    uint64_t room = UINT64_MAX - table->base;
    uint64_t last = table->block_count - 1;
    bool fits = table->stride_bytes == 0 || last <= room / table->stride_bytes;
    if (fits) {
        room -= last * table->stride_bytes;
        fits = table->offset_bytes <= room && length_bytes <= room - table->offset_bytes;
    }
    if (!fits)
        return kvf_fail(error, KVF_EINVAL,
                        "plan region %zu: %s base 0x%" PRIx64 " with %" PRIu64
                        " blocks of stride %" PRIu64 " passes the end of the address space",
                        region, side, table->base, table->block_count, table->stride_bytes);
    return KVF_OK;
}

static void find_bounds(const struct kvf_plan *plan, uint32_t group, struct id_bounds *bounds)
{
    if (bounds->known && bounds->group == group)
        return;
    const struct kvf_block_pairs *pairs = &plan->groups[group];
    uint32_t local_max = 0;
    uint32_t remote_max = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        if (pairs->local_ids[i] > local_max)
            local_max = pairs->local_ids[i];
        if (pairs->remote_ids[i] > remote_max)
            remote_max = pairs->remote_ids[i];
    }
    *bounds = (struct id_bounds){
        .known = true, .group = group, .local_max = local_max, .remote_max = remote_max};
}

static enum kvf_status check_id(const struct kvf_block_table *table, uint32_t id_max, size_t region,
                                bool remote, struct kvf_error *error)
{
    if (id_max < table->block_count)
        return KVF_OK;
    return kvf_fail(error, KVF_EINVAL,
                    "plan region %zu: %s block id %" PRIu32
                    " is out of range, the region has %" PRIu64 " blocks",
                    region, side_name(remote), id_max, table->block_count);
}

static enum kvf_status check_groups(const struct kvf_plan *plan, struct kvf_error *error)
{
    if (plan->region_count > 0 && !plan->regions)
        return kvf_fail(error, KVF_EINVAL, "plan: %zu regions but no region array",
                        plan->region_count);
    if (plan->group_count > 0 && !plan->groups)
        return kvf_fail(error, KVF_EINVAL, "plan: %zu groups but no group array",
                        plan->group_count);
    for (size_t i = 0; i < plan->group_count; i++) {
        const struct kvf_block_pairs *pairs = &plan->groups[i];
        if (pairs->count > 0 && (!pairs->local_ids || !pairs->remote_ids))
            return kvf_fail(error, KVF_EINVAL, "plan group %zu: %zu pairs but no id array", i,
                            pairs->count);
    }
    return KVF_OK;
}

enum kvf_status kvfi_plan_check(const struct kvf_plan *plan, struct kvfi_plan_extent *extent,
                                struct kvf_error *error)
{
    struct kvfi_plan_extent sum = {0};
    struct id_bounds bounds = {0};

    KVF_TRY(check_groups(plan, error));
    for (size_t i = 0; i < plan->region_count; i++) {
        const struct kvf_plan_region *region = &plan->regions[i];
        if (region->group >= plan->group_count)
            return kvf_fail(error, KVF_EINVAL,
                            "plan region %zu: group %" PRIu32
                            " does not exist, the plan has %zu groups",
                            i, region->group, plan->group_count);
        if (region->length_bytes == 0)
            return kvf_fail(error, KVF_EINVAL, "plan region %zu: length per block is 0", i);
        KVF_TRY(check_table(&region->local, region->length_bytes, i, false, error));
        KVF_TRY(check_table(&region->remote, region->length_bytes, i, true, error));

        size_t count = plan->groups[region->group].count;
        if (count == 0)
            continue;
        find_bounds(plan, region->group, &bounds);
        KVF_TRY(check_id(&region->local, bounds.local_max, i, false, error));
        KVF_TRY(check_id(&region->remote, bounds.remote_max, i, true, error));
        if (count > (UINT64_MAX - sum.bytes) / region->length_bytes)
            return kvf_fail(error, KVF_EINVAL,
                            "plan region %zu: %zu blocks of %" PRIu64
                            " bytes make the transfer larger than 2^64 bytes",
                            i, count, region->length_bytes);
        sum.bytes += count * region->length_bytes;
        sum.descriptors += count;
    }
    if (extent)
        *extent = sum;
    return KVF_OK;
}

void kvfi_plan_iter(struct kvfi_plan_iter *iter, const struct kvf_plan *plan)
{
    *iter = (struct kvfi_plan_iter){.plan = plan};
}

static void enter_side(struct kvfi_plan_side *side, const struct kvf_block_table *table,
                       const uint32_t *ids)
{
    *side = (struct kvfi_plan_side){.ids = ids,
                                    .first = table->base + table->offset_bytes,
                                    .stride_bytes = table->stride_bytes};
}

/* Makes the next descriptor one of the present region; false at the end. Skips regions without
 * blocks. */
static bool has_next(struct kvfi_plan_iter *iter)
{
    const struct kvf_plan *plan = iter->plan;
    while (iter->block >= iter->block_count) {
        if (iter->region == plan->region_count)
            return false;
        const struct kvf_plan_region *region = &plan->regions[iter->region++];
        const struct kvf_block_pairs *pairs = &plan->groups[region->group];
        iter->present = region;
        iter->block = 0;
        iter->block_count = pairs->count;
        enter_side(&iter->local, &region->local, pairs->local_ids);
        enter_side(&iter->remote, &region->remote, pairs->remote_ids);
    }
    return true;
}

static uint64_t address(const struct kvfi_plan_side *side, size_t block)
{
    return side->first + side->ids[block] * side->stride_bytes;
}

static bool same_memory(const struct kvfi_run *run, const struct kvf_plan_region *region)
{
    return run->local_device == region->local.device_id &&
           run->remote_device == region->remote.device_id &&
           run->local_kind == region->local.kind && run->remote_kind == region->remote.kind;
}

bool kvfi_plan_next(struct kvfi_plan_iter *iter, struct kvfi_run *run)
{
    if (!has_next(iter))
        return false;
    const struct kvf_plan_region *region = iter->present;
    *run = (struct kvfi_run){
        .local_addr = address(&iter->local, iter->block),
        .remote_addr = address(&iter->remote, iter->block),
        .length_bytes = region->length_bytes,
        .local_device = region->local.device_id,
        .remote_device = region->remote.device_id,
        .local_kind = region->local.kind,
        .remote_kind = region->remote.kind,
    };
    iter->block++;

    uint64_t local_end = run->local_addr + run->length_bytes;
    uint64_t remote_end = run->remote_addr + run->length_bytes;
    while (has_next(iter) && address(&iter->local, iter->block) == local_end &&
           address(&iter->remote, iter->block) == remote_end &&
           (iter->present == region || same_memory(run, iter->present))) {
        local_end += iter->present->length_bytes;
        remote_end += iter->present->length_bytes;
        iter->block++;
    }
    run->length_bytes = local_end - run->local_addr;
    return true;
}
