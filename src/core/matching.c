/* SPDX-License-Identifier: Apache-2.0 */
#include "core/matching.h"

#include "wire/notif.h"

#include <string.h>

void kvfi_party_set(struct kvfi_party *party, const char *id, const char *transfer_id)
{
    memset(party, 0, sizeof(*party));
    party->id = id;
    party->id_len = strlen(id);
    party->base_len = kvfi_base_request_id(kvfi_span(id, party->id_len));
    party->transfer_id = transfer_id;
    party->transfer_id_len = transfer_id ? strlen(transfer_id) : 0;
}

void kvfi_party_table_init(struct kvfi_party_table *table, const struct kvf_allocator *allocator)
{
    kvfi_index_init(&table->by_id, allocator);
    kvfi_index_init(&table->by_base, allocator);
    kvfi_index_init(&table->by_transfer_id, allocator);
}

void kvfi_party_table_deinit(struct kvfi_party_table *table)
{
    kvfi_index_deinit(&table->by_id);
    kvfi_index_deinit(&table->by_base);
    kvfi_index_deinit(&table->by_transfer_id);
}

void kvfi_party_add(struct kvfi_party_table *table, struct kvfi_party *party)
{
    kvfi_index_add(&table->by_id, &party->by_id, party->id, party->id_len);
    /* An id that is nothing but a tail has no base that could mean anything. */
    if (party->base_len)
        kvfi_index_add(&table->by_base, &party->by_base, party->id, party->base_len);
    if (party->transfer_id_len)
        kvfi_index_add(&table->by_transfer_id, &party->by_transfer_id, party->transfer_id,
                       party->transfer_id_len);
}

void kvfi_party_remove(struct kvfi_party_table *table, struct kvfi_party *party)
{
    kvfi_index_remove(&table->by_id, &party->by_id);
    kvfi_index_remove(&table->by_base, &party->by_base);
    kvfi_index_remove(&table->by_transfer_id, &party->by_transfer_id);
}

struct kvfi_party *kvfi_party_find_id(const struct kvfi_party_table *table, const char *id,
                                      size_t id_len)
{
    struct kvfi_index_node *node = kvfi_index_find(&table->by_id, id, id_len);
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_party, by_id) : NULL;
}

struct kvfi_party *kvfi_party_find_base(const struct kvfi_party_table *table, const char *base,
                                        size_t base_len)
{
    if (base_len == 0)
        return NULL;
    struct kvfi_index_node *node = kvfi_index_find(&table->by_base, base, base_len);
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_party, by_base) : NULL;
}

struct kvfi_party *kvfi_party_next_base(const struct kvfi_party *party)
{
    struct kvfi_index_node *node = kvfi_index_next(&party->by_base);
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_party, by_base) : NULL;
}

static size_t count_same(const struct kvfi_index *index, const void *key, size_t key_len,
                         size_t max)
{
    size_t count = 0;
    const struct kvfi_index_node *node = key_len ? kvfi_index_find(index, key, key_len) : NULL;
    for (; node && count < max; node = kvfi_index_next(node))
        count++;
    return count;
}

size_t kvfi_party_count(const struct kvfi_party_table *table, const struct kvfi_party *key,
                        size_t max)
{
    size_t same_base = count_same(&table->by_base, key->id, key->base_len, max);
    size_t same_transfer_id =
        count_same(&table->by_transfer_id, key->transfer_id, key->transfer_id_len, max);
    return same_base > same_transfer_id ? same_base : same_transfer_id;
}

/* True when both have a transfer id; *equal_p then says whether it is the same. */
static bool both_have_transfer_id(const struct kvfi_party *a, const struct kvfi_party *b,
                                  bool *equal_p)
{
    *equal_p = a->transfer_id_len == b->transfer_id_len && a->transfer_id_len > 0 &&
               memcmp(a->transfer_id, b->transfer_id, a->transfer_id_len) == 0;
    return a->transfer_id_len > 0 && b->transfer_id_len > 0;
}

static struct kvfi_match match_base(const struct kvfi_party_table *table,
                                    const struct kvfi_party *key, kvfi_party_fn eligible)
{
    struct kvfi_match any = {KVFI_MATCH_NONE, false, NULL};
    struct kvfi_match same = any; /* those that carry the key's transfer id are the better ones */
    struct kvfi_party *at = kvfi_party_find_base(table, key->id, key->base_len);
    for (; at; at = kvfi_party_next_base(at)) {
        bool equal = false;
        bool both = both_have_transfer_id(at, key, &equal);
        if ((eligible && !eligible(at)) || (both && !equal))
            continue;
        struct kvfi_match *match = equal ? &same : &any;
        match->many = match->party != NULL;
        match->party = at;
        match->step = KVFI_MATCH_BASE;
        if (same.many)
            break;
    }
    return same.party ? same : any;
}

static struct kvfi_match match_transfer_id(const struct kvfi_party_table *table,
                                           const struct kvfi_party *key, kvfi_party_fn eligible)
{
    struct kvfi_match match = {KVFI_MATCH_NONE, false, NULL};
    if (key->transfer_id_len == 0)
        return match;
    struct kvfi_index_node *node =
        kvfi_index_find(&table->by_transfer_id, key->transfer_id, key->transfer_id_len);
    for (; node && !match.many; node = kvfi_index_next(node)) {
        struct kvfi_party *at = KVFI_CONTAINER_OF(node, struct kvfi_party, by_transfer_id);
        if (eligible && !eligible(at))
            continue;
        match.many = match.party != NULL;
        match.party = at;
        match.step = KVFI_MATCH_TRANSFER_ID;
    }
    return match;
}

struct kvfi_match kvfi_party_match(const struct kvfi_party_table *table,
                                   const struct kvfi_party *key, kvfi_party_fn eligible)
{
    struct kvfi_party *same = kvfi_party_find_id(table, key->id, key->id_len);
    if (same && (!eligible || eligible(same)))
        return (struct kvfi_match){KVFI_MATCH_ID, false, same};
    struct kvfi_match match = match_base(table, key, eligible);
    return match.party ? match : match_transfer_id(table, key, eligible);
}
