/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_INDEX_H
#define KVFI_CORE_INDEX_H

/*
 * An intrusive hash index that allows equal keys.
 *
 * Adding never fails: the first buckets are part of the index, and growth is best effort (without
 * memory the chains only get longer). The machines above rely on that: once an object exists,
 * moving it between tables needs no memory, so an event is applied whole or not at all. This is
 * why it is not uthash, whose add may need memory.
 */

#include "core/list.h"
#include "kvferry/status.h"

#define KVFI_INDEX_INLINE_BUCKETS 16

struct kvfi_index_node {
    struct kvfi_index_node *next;
    const void *key; /* borrowed while the node is in the index */
    size_t key_len;
    uint64_t hash;
    bool linked;
};

struct kvfi_index {
    const struct kvf_allocator *allocator;
    struct kvfi_index_node **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    struct kvfi_index_node *inline_buckets[KVFI_INDEX_INLINE_BUCKETS];
};

/* The index must stay where it is from here on. The allocator is borrowed. */
void kvfi_index_init(struct kvfi_index *index, const struct kvf_allocator *allocator);
/* Frees the buckets; the nodes are their owners'. */
void kvfi_index_deinit(struct kvfi_index *index);

/* The node must be zeroed or removed. */
void kvfi_index_add(struct kvfi_index *index, struct kvfi_index_node *node, const void *key,
                    size_t key_len);
/* A node that is not in the index is left alone. */
void kvfi_index_remove(struct kvfi_index *index, struct kvfi_index_node *node);

struct kvfi_index_node *kvfi_index_find(const struct kvfi_index *index, const void *key,
                                        size_t key_len);
/* The next node with the same key, or NULL. */
struct kvfi_index_node *kvfi_index_next(const struct kvfi_index_node *node);

#endif
