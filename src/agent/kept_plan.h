/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_KEPT_PLAN_H
#define KVFI_AGENT_KEPT_PLAN_H

/*
 * A plan that outlives the call it was given in: its block lists are copied, 8 bytes a pair, and
 * its regions are shared with every other plan that has the same ones. An engine moves all its
 * requests between the same regions, so a request costs its block lists and little more.
 */

#include "kvferry/agent.h"

/* The regions of one or more kept plans. */
struct kvfi_plan_table {
    struct kvfi_plan_table *next; /* used last comes first */
    size_t plans;
    size_t region_count;
    struct kvf_plan_region regions[];
};

/* Of one agent. A few that no plan uses are kept, so that the next plan need not copy. */
struct kvfi_plan_tables {
    const struct kvf_allocator *allocator;
    struct kvfi_plan_table *first; /* owned */
    size_t count;
    size_t unused; /* of them */
};

struct kvfi_kept_plan {
    struct kvf_plan plan; /* points into what follows */
    struct kvfi_plan_table *table;
    void *lists; /* owned: the groups, then their ids; kept when the plan is cleared */
    size_t lists_cap;
};

/* Copies the plan, which was checked, into one that is clear. KVF_ENOMEM: it stays clear. */
enum kvf_status kvfi_kept_plan_set(struct kvfi_kept_plan *kept, struct kvfi_plan_tables *tables,
                                   const struct kvf_plan *plan) KVF_MUST_USE;
/* Lets go of the regions; a buffer for lists of more than lists_max bytes is freed. */
void kvfi_kept_plan_clear(struct kvfi_kept_plan *kept, struct kvfi_plan_tables *tables,
                          size_t lists_max);
/* After the last plan was cleared. */
void kvfi_plan_tables_free(struct kvfi_plan_tables *tables);

#endif
