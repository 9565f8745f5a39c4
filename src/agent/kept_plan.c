/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/kept_plan.h"

#include "wire/bytes.h"

#include <string.h>

enum {
    TABLES_COMPARED_MAX = 8, /* an agent has few shapes: one a peer and operation */
    TABLES_UNUSED_MAX = 8,
};

/* ---- tables --------------------------------------------------------------------------------- */

static bool same_side(const struct kvf_block_table *a, const struct kvf_block_table *b)
{
    return a->base == b->base && a->stride_bytes == b->stride_bytes &&
           a->block_count == b->block_count && a->offset_bytes == b->offset_bytes &&
           a->device_id == b->device_id && a->kind == b->kind;
}

static bool same_regions(const struct kvfi_plan_table *table, const struct kvf_plan *plan)
{
    if (table->region_count != plan->region_count)
        return false;
    for (size_t i = 0; i < plan->region_count; i++) {
        const struct kvf_plan_region *a = &table->regions[i];
        const struct kvf_plan_region *b = &plan->regions[i];
        if (a->length_bytes != b->length_bytes || a->group != b->group ||
            !same_side(&a->remote, &b->remote) || !same_side(&a->local, &b->local))
            return false;
    }
    return true;
}

/* Frees the unused tables that were used longest ago, beyond what is kept. */
static void trim(struct kvfi_plan_tables *tables, size_t unused_max)
{
    size_t seen = 0;
    struct kvfi_plan_table **link_p = &tables->first;
    while (*link_p && tables->unused > unused_max) {
        struct kvfi_plan_table *table = *link_p;
        seen += table->plans == 0;
        if (table->plans > 0 || seen <= unused_max) {
            link_p = &table->next;
            continue;
        }
        *link_p = table->next;
        tables->count--;
        tables->unused--;
        kvfi_wire_free(tables->allocator, table);
    }
}

static void put_first(struct kvfi_plan_tables *tables, struct kvfi_plan_table *table)
{
    table->next = tables->first;
    tables->first = table;
}

static struct kvfi_plan_table *find(struct kvfi_plan_tables *tables, const struct kvf_plan *plan)
{
    struct kvfi_plan_table **link_p = &tables->first;
    for (size_t i = 0; *link_p && i < TABLES_COMPARED_MAX; i++, link_p = &(*link_p)->next) {
        struct kvfi_plan_table *table = *link_p;
        if (!same_regions(table, plan))
            continue;
        *link_p = table->next;
        put_first(tables, table);
        return table;
    }
    return NULL;
}

static struct kvfi_plan_table *take_table(struct kvfi_plan_tables *tables,
                                          const struct kvf_plan *plan)
{
    struct kvfi_plan_table *table = find(tables, plan);
    if (!table) {
        /* the caller's array has this size, so the product does not wrap */
        size_t size = plan->region_count * sizeof(table->regions[0]);
        table = kvfi_wire_alloc(tables->allocator, sizeof(*table) + size);
        if (!table)
            return NULL;
        *table = (struct kvfi_plan_table){.region_count = plan->region_count};
        if (size > 0)
            memcpy(table->regions, plan->regions, size);
        put_first(tables, table);
        tables->count++;
        tables->unused++;
    }
    if (table->plans++ == 0)
        tables->unused--;
    return table;
}

/* ---- plans ---------------------------------------------------------------------------------- */

static enum kvf_status copy_lists(struct kvfi_kept_plan *kept,
                                  const struct kvf_allocator *allocator,
                                  const struct kvf_plan *plan)
{
    size_t pairs = 0;
    for (size_t i = 0; i < plan->group_count; i++)
        pairs += plan->groups[i].count;
    size_t size = plan->group_count * sizeof(plan->groups[0]) + pairs * 2 * sizeof(uint32_t);
    if (size > kept->lists_cap) {
        void *lists = kvfi_wire_alloc(allocator, size); /* nothing of the old one is needed */
        if (!lists)
            return KVF_ENOMEM;
        kvfi_wire_free(allocator, kept->lists);
        kept->lists = lists;
        kept->lists_cap = size;
    }
    struct kvf_block_pairs *groups = kept->lists;
    uint32_t *ids = (void *)(groups + plan->group_count);
    for (size_t i = 0; i < plan->group_count; i++) {
        size_t count = plan->groups[i].count;
        groups[i] =
            (struct kvf_block_pairs){.local_ids = ids, .remote_ids = ids + count, .count = count};
        if (count > 0) {
            memcpy(ids, plan->groups[i].local_ids, count * sizeof(ids[0]));
            memcpy(ids + count, plan->groups[i].remote_ids, count * sizeof(ids[0]));
        }
        ids += 2 * count;
    }
    return KVF_OK;
}

enum kvf_status kvfi_kept_plan_set(struct kvfi_kept_plan *kept, struct kvfi_plan_tables *tables,
                                   const struct kvf_plan *plan)
{
    KVF_TRY(copy_lists(kept, tables->allocator, plan));
    struct kvfi_plan_table *table = take_table(tables, plan);
    if (!table)
        return KVF_ENOMEM;
    kept->table = table;
    kept->plan = (struct kvf_plan){.regions = table->regions,
                                   .region_count = table->region_count,
                                   .groups = kept->lists,
                                   .group_count = plan->group_count};
    return KVF_OK;
}

void kvfi_kept_plan_clear(struct kvfi_kept_plan *kept, struct kvfi_plan_tables *tables,
                          size_t lists_max)
{
    if (kept->table && --kept->table->plans == 0) {
        tables->unused++;
        trim(tables, TABLES_UNUSED_MAX);
    }
    kept->table = NULL;
    kept->plan = (struct kvf_plan){0};
    if (kept->lists_cap <= lists_max)
        return;
    kvfi_wire_free(tables->allocator, kept->lists);
    kept->lists = NULL;
    kept->lists_cap = 0;
}

void kvfi_plan_tables_free(struct kvfi_plan_tables *tables)
{
    trim(tables, 0);
}
