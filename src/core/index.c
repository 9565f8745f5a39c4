/* SPDX-License-Identifier: Apache-2.0 */
#include "core/index.h"

#include "wire/bytes.h"

#include <string.h>

static uint64_t hash_bytes(const void *key, size_t len)
{
    const uint8_t *p = key;
    uint64_t hash = 0xcbf29ce484222325ull ^ len;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    hash ^= hash >> 32;
    hash *= 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

void kvfi_index_init(struct kvfi_index *index, const struct kvf_allocator *allocator)
{
    memset(index, 0, sizeof(*index));
    index->allocator = allocator;
    index->buckets = index->inline_buckets;
    index->bucket_count = KVFI_INDEX_INLINE_BUCKETS;
}

void kvfi_index_deinit(struct kvfi_index *index)
{
    if (index->buckets != index->inline_buckets)
        kvfi_wire_free(index->allocator, index->buckets);
    kvfi_index_init(index, index->allocator);
}

static void grow(struct kvfi_index *index)
{
    size_t bucket_count = index->bucket_count * 2;
    if (bucket_count > SIZE_MAX / sizeof(struct kvfi_index_node *))
        return;
    struct kvfi_index_node **buckets =
        kvfi_wire_alloc(index->allocator, bucket_count * sizeof(struct kvfi_index_node *));
    if (!buckets)
        return;
    for (size_t i = 0; i < bucket_count; i++)
        buckets[i] = NULL;
    for (size_t i = 0; i < index->bucket_count; i++) {
        while (index->buckets[i]) {
            struct kvfi_index_node *node = index->buckets[i];
            index->buckets[i] = node->next;
            struct kvfi_index_node **slot = &buckets[node->hash & (bucket_count - 1)];
            node->next = *slot;
            *slot = node;
        }
    }
    if (index->buckets != index->inline_buckets)
        kvfi_wire_free(index->allocator, index->buckets);
    index->buckets = buckets;
    index->bucket_count = bucket_count;
}

void kvfi_index_add(struct kvfi_index *index, struct kvfi_index_node *node, const void *key,
                    size_t key_len)
{
    if (index->count >= index->bucket_count)
        grow(index);
    node->key = key;
    node->key_len = key_len;
    node->hash = hash_bytes(key, key_len);
    node->linked = true;
    struct kvfi_index_node **slot = &index->buckets[node->hash & (index->bucket_count - 1)];
    node->next = *slot;
    *slot = node;
    index->count++;
}

void kvfi_index_remove(struct kvfi_index *index, struct kvfi_index_node *node)
{
    if (!node->linked)
        return;
    struct kvfi_index_node **slot = &index->buckets[node->hash & (index->bucket_count - 1)];
    while (*slot && *slot != node)
        slot = &(*slot)->next;
    if (!*slot)
        return;
    *slot = node->next;
    node->next = NULL;
    node->linked = false;
    index->count--;
}

static bool same_key(const struct kvfi_index_node *node, uint64_t hash, const void *key, size_t len)
{
    return node->hash == hash && node->key_len == len &&
           (len == 0 || memcmp(node->key, key, len) == 0);
}

struct kvfi_index_node *kvfi_index_find(const struct kvfi_index *index, const void *key,
                                        size_t key_len)
{
    uint64_t hash = hash_bytes(key, key_len);
    struct kvfi_index_node *node = index->buckets[hash & (index->bucket_count - 1)];
    while (node && !same_key(node, hash, key, key_len))
        node = node->next;
    return node;
}

struct kvfi_index_node *kvfi_index_next(const struct kvfi_index_node *node)
{
    struct kvfi_index_node *next = node->next;
    while (next && !same_key(next, node->hash, node->key, node->key_len))
        next = next->next;
    return next;
}
