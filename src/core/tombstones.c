/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tombstones.h"

#include "core/deadline.h"
#include "wire/bytes.h"

#include <string.h>

void kvfi_tombstones_init(struct kvfi_tombstones *tombstones, const struct kvf_allocator *allocator,
                          size_t count_max, uint64_t ttl_ns)
{
    *tombstones =
        (struct kvfi_tombstones){.allocator = allocator, .count_max = count_max, .ttl_ns = ttl_ns};
    for (int kind = 0; kind < KVFI_TOMBSTONE_KIND_COUNT; kind++)
        kvfi_party_table_init(&tombstones->tables[kind], allocator);
    kvfi_list_init(&tombstones->by_age);
}

static struct kvfi_tombstone *oldest(struct kvfi_tombstones *tombstones)
{
    if (kvfi_list_empty(&tombstones->by_age))
        return NULL;
    return KVFI_CONTAINER_OF(tombstones->by_age.next, struct kvfi_tombstone, age);
}

void kvfi_tombstones_deinit(struct kvfi_tombstones *tombstones)
{
    struct kvfi_tombstone *tombstone = NULL;
    while ((tombstone = oldest(tombstones)))
        kvfi_tombstones_remove(tombstones, tombstone);
    for (int kind = 0; kind < KVFI_TOMBSTONE_KIND_COUNT; kind++)
        kvfi_party_table_deinit(&tombstones->tables[kind]);
}

struct kvfi_tombstone *kvfi_tombstone_make(const struct kvf_allocator *allocator,
                                           enum kvfi_tombstone_kind kind, const char *id,
                                           const char *transfer_id)
{
    size_t id_size = strlen(id) + 1;
    size_t transfer_id_size = transfer_id ? strlen(transfer_id) + 1 : 0;
    struct kvfi_tombstone *tombstone =
        kvfi_wire_alloc(allocator, sizeof(*tombstone) + id_size + transfer_id_size);
    if (!tombstone)
        return NULL;
    memset(tombstone, 0, sizeof(*tombstone));
    char *text = (char *)(tombstone + 1);
    memcpy(text, id, id_size);
    if (transfer_id)
        memcpy(text + id_size, transfer_id, transfer_id_size);
    tombstone->kind = kind;
    kvfi_list_init(&tombstone->age);
    kvfi_party_set(&tombstone->party, text, transfer_id ? text + id_size : NULL);
    return tombstone;
}

void kvfi_tombstone_discard(const struct kvf_allocator *allocator, struct kvfi_tombstone *tombstone)
{
    kvfi_wire_free(allocator, tombstone);
}

void kvfi_tombstones_remove(struct kvfi_tombstones *tombstones, struct kvfi_tombstone *tombstone)
{
    kvfi_party_remove(&tombstones->tables[tombstone->kind], &tombstone->party);
    kvfi_list_remove(&tombstone->age);
    tombstones->count--;
    kvfi_wire_free(tombstones->allocator, tombstone);
}

void kvfi_tombstones_put(struct kvfi_tombstones *tombstones, struct kvfi_tombstone *tombstone,
                         uint64_t now_ns)
{
    struct kvfi_tombstone *same = kvfi_tombstones_find(
        tombstones, tombstone->kind, tombstone->party.id, tombstone->party.id_len);
    if (same)
        kvfi_tombstones_remove(tombstones, same);
    while (tombstones->count > 0 && tombstones->count >= tombstones->count_max)
        kvfi_tombstones_remove(tombstones, oldest(tombstones));
    tombstone->expires_ns = kvfi_ns_add(now_ns, tombstones->ttl_ns);
    kvfi_party_add(&tombstones->tables[tombstone->kind], &tombstone->party);
    kvfi_list_append(&tombstones->by_age, &tombstone->age);
    tombstones->count++;
}

void kvfi_tombstones_purge(struct kvfi_tombstones *tombstones, uint64_t now_ns)
{
    struct kvfi_tombstone *tombstone = NULL;
    while ((tombstone = oldest(tombstones)) && tombstone->expires_ns <= now_ns)
        kvfi_tombstones_remove(tombstones, tombstone);
}

struct kvfi_tombstone *kvfi_tombstones_find(const struct kvfi_tombstones *tombstones,
                                            enum kvfi_tombstone_kind kind, const char *id,
                                            size_t id_len)
{
    struct kvfi_party *party = kvfi_party_find_id(&tombstones->tables[kind], id, id_len);
    return party ? KVFI_CONTAINER_OF(party, struct kvfi_tombstone, party) : NULL;
}
