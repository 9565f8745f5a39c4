/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_MATCHING_H
#define KVFI_CORE_MATCHING_H

/*
 * One rule for everything that pairs decode's ids with prefill's: registrations, staged blocks,
 * heartbeats, withdrawals, memories of ended requests.
 *
 *   1. the same id;
 *   2. the same base id, and, where both sides carry a transfer id, the same one of it;
 *   3. the same transfer id.
 *
 * The first step that finds anything decides. Two candidates in one step are MANY: the caller
 * refuses them, nobody guesses (bug B06). Hash lookups only; candidates under one key are walked.
 */

#include "core/index.h"

/* What takes part in matching. Lives in the object; its strings are the object's. */
struct kvfi_party {
    const char *id; /* NUL-terminated */
    size_t id_len;
    size_t base_len;
    const char *transfer_id; /* NULL: none */
    size_t transfer_id_len;
    struct kvfi_index_node by_id;
    struct kvfi_index_node by_base;
    struct kvfi_index_node by_transfer_id;
};

struct kvfi_party_table {
    struct kvfi_index by_id;
    struct kvfi_index by_base;
    struct kvfi_index by_transfer_id;
};

/* Zeroes the nodes and keeps the pointers. transfer_id may be NULL. */
void kvfi_party_set(struct kvfi_party *party, const char *id, const char *transfer_id);

void kvfi_party_table_init(struct kvfi_party_table *table, const struct kvf_allocator *allocator);
void kvfi_party_table_deinit(struct kvfi_party_table *table);
void kvfi_party_add(struct kvfi_party_table *table, struct kvfi_party *party);
void kvfi_party_remove(struct kvfi_party_table *table, struct kvfi_party *party);

struct kvfi_party *kvfi_party_find_id(const struct kvfi_party_table *table, const char *id,
                                      size_t id_len);
/* Any party with this base id; kvfi_party_next_base walks on. */
struct kvfi_party *kvfi_party_find_base(const struct kvfi_party_table *table, const char *base,
                                        size_t base_len);
struct kvfi_party *kvfi_party_next_base(const struct kvfi_party *party);

/* How many share the key's base id, or its transfer id if those are more; not more than `max`. */
size_t kvfi_party_count(const struct kvfi_party_table *table, const struct kvfi_party *key,
                        size_t max);

enum kvfi_match_step {
    KVFI_MATCH_NONE,
    KVFI_MATCH_ID,
    KVFI_MATCH_BASE,
    KVFI_MATCH_TRANSFER_ID,
};

struct kvfi_match {
    enum kvfi_match_step step;
    bool many;
    struct kvfi_party *party; /* the only candidate, or one of the many */
};

/* Whether a candidate counts. NULL in its place: all do. */
typedef bool (*kvfi_party_fn)(const struct kvfi_party *candidate);

struct kvfi_match kvfi_party_match(const struct kvfi_party_table *table,
                                   const struct kvfi_party *key, kvfi_party_fn eligible);

#endif
