/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/walk.h"

#include "wire/bytes.h"

void kvfi_walk_start(struct kvfi_walk *walk, const struct kvf_plan *plan,
                     const struct kvfi_region_set *local, const struct kvfi_region_set *remote)
{
    *walk = (struct kvfi_walk){.local = local, .remote = remote};
    kvfi_plan_iter(&walk->iter, plan);
}

/* The one found last is tried first: neighbouring runs mostly lie in one registration. */
static struct kvfi_region *cover(const struct kvfi_region_set *set, struct kvfi_region *last,
                                 enum kvf_memory_kind kind, uint64_t device_id, uint64_t addr,
                                 uint64_t length)
{
    if (last && last->kind == kind && last->device_id == device_id && addr >= last->addr &&
        addr - last->addr <= last->length && length <= last->length - (addr - last->addr))
        return last;
    return kvfi_region_set_cover(set, kind, device_id, addr);
}

bool kvfi_walk_has_more(struct kvfi_walk *walk)
{
    return walk->run.length_bytes > 0 || kvfi_plan_next(&walk->iter, &walk->run);
}

enum kvfi_walk_result kvfi_walk_step(struct kvfi_walk *walk, uint64_t length_max,
                                     struct kvfi_lane_piece *piece)
{
    struct kvfi_run *run = &walk->run;
    if (!kvfi_walk_has_more(walk))
        return KVFI_WALK_END;
    struct kvfi_region *local = cover(walk->local, walk->local_region, run->local_kind,
                                      run->local_device, run->local_addr, run->length_bytes);
    if (!local)
        return KVFI_WALK_LOCAL_UNCOVERED;
    struct kvfi_region *remote = cover(walk->remote, walk->remote_region, run->remote_kind,
                                       run->remote_device, run->remote_addr, run->length_bytes);
    if (!remote)
        return KVFI_WALK_REMOTE_UNCOVERED;
    walk->local_region = local;
    walk->remote_region = remote;

    uint64_t length = run->length_bytes < length_max ? run->length_bytes : length_max;
    uint64_t local_left = local->length - (run->local_addr - local->addr);
    uint64_t remote_left = remote->length - (run->remote_addr - remote->addr);
    if (length > local_left)
        length = local_left;
    if (length > remote_left)
        length = remote_left;
    *piece = (struct kvfi_lane_piece){.local_addr = run->local_addr,
                                      .remote_addr = run->remote_addr,
                                      .length_bytes = length,
                                      .memory = local->memory,
                                      .rkey = remote->rkey};
    run->local_addr += length;
    run->remote_addr += length;
    run->length_bytes -= length;
    return KVFI_WALK_PIECE;
}

static enum kvf_status append(struct kvfi_pins *pins, const struct kvf_allocator *allocator,
                              struct kvfi_region *region)
{
    if (pins->count == pins->cap) {
        size_t cap = pins->cap ? 2 * pins->cap : 16;
        struct kvfi_region **regions =
            kvfi_wire_realloc(allocator, pins->regions, cap * sizeof(void *));
        if (!regions)
            return KVF_ENOMEM;
        pins->regions = regions;
        pins->cap = cap;
    }
    pins->regions[pins->count++] = region;
    return KVF_OK;
}

enum kvf_status kvfi_pins_add(struct kvfi_pins *pins, const struct kvf_allocator *allocator,
                              struct kvfi_region *region, uint64_t mark)
{
    if (region->mark == mark)
        return KVF_OK;
    KVF_TRY(append(pins, allocator, region));
    region->mark = mark;
    return KVF_OK;
}

enum kvf_status kvfi_pins_hold_late(struct kvfi_pins *pins, const struct kvf_allocator *allocator,
                                    struct kvfi_region *region)
{
    for (size_t i = 0; i < pins->count; i++) {
        if (pins->regions[i] == region)
            return KVF_OK;
    }
    KVF_TRY(append(pins, allocator, region));
    region->uses++;
    return KVF_OK;
}

void kvfi_pins_hold(const struct kvfi_pins *pins)
{
    for (size_t i = 0; i < pins->count; i++)
        pins->regions[i]->uses++;
}

void kvfi_pins_drop(const struct kvfi_pins *pins)
{
    for (size_t i = 0; i < pins->count; i++)
        pins->regions[i]->uses--;
}
