/* SPDX-License-Identifier: Apache-2.0 */
#include "core/deadline.h"

#include "wire/bytes.h"

void kvfi_deadlines_init(struct kvfi_deadlines *set, const struct kvf_allocator *allocator)
{
    *set = (struct kvfi_deadlines){.allocator = allocator};
}

void kvfi_deadlines_deinit(struct kvfi_deadlines *set)
{
    kvfi_wire_free(set->allocator, set->heap);
    kvfi_deadlines_init(set, set->allocator);
}

enum kvf_status kvfi_deadlines_reserve(struct kvfi_deadlines *set)
{
    if (set->reserved == set->cap) {
        size_t cap = set->cap ? set->cap * 2 : 16;
        if (cap > SIZE_MAX / sizeof(struct kvfi_deadline *))
            return KVF_ENOMEM;
        void *heap =
            kvfi_wire_realloc(set->allocator, set->heap, cap * sizeof(struct kvfi_deadline *));
        if (!heap)
            return KVF_ENOMEM;
        set->heap = heap;
        set->cap = cap;
    }
    set->reserved++;
    return KVF_OK;
}

static void place(struct kvfi_deadlines *set, struct kvfi_deadline *node, size_t slot)
{
    set->heap[slot] = node;
    node->position = slot + 1;
}

static void sift_up(struct kvfi_deadlines *set, struct kvfi_deadline *node, size_t slot)
{
    while (slot > 0) {
        size_t parent = (slot - 1) / 2;
        if (set->heap[parent]->at_ns <= node->at_ns)
            break;
        place(set, set->heap[parent], slot);
        slot = parent;
    }
    place(set, node, slot);
}

static void sift_down(struct kvfi_deadlines *set, struct kvfi_deadline *node, size_t slot)
{
    for (;;) {
        size_t child = slot * 2 + 1;
        if (child >= set->count)
            break;
        if (child + 1 < set->count && set->heap[child + 1]->at_ns < set->heap[child]->at_ns)
            child++;
        if (set->heap[child]->at_ns >= node->at_ns)
            break;
        place(set, set->heap[child], slot);
        slot = child;
    }
    place(set, node, slot);
}

void kvfi_deadlines_cancel(struct kvfi_deadlines *set, struct kvfi_deadline *node)
{
    if (node->position == 0)
        return;
    size_t slot = node->position - 1;
    node->position = 0;
    struct kvfi_deadline *last = set->heap[--set->count];
    if (last == node)
        return;
    if (slot > 0 && set->heap[(slot - 1) / 2]->at_ns > last->at_ns)
        sift_up(set, last, slot);
    else
        sift_down(set, last, slot);
}

void kvfi_deadlines_set(struct kvfi_deadlines *set, struct kvfi_deadline *node, uint64_t at_ns)
{
    kvfi_deadlines_cancel(set, node);
    node->at_ns = at_ns;
    if (at_ns == UINT64_MAX)
        return;
    sift_up(set, node, set->count++);
}

void kvfi_deadlines_release(struct kvfi_deadlines *set, struct kvfi_deadline *node)
{
    kvfi_deadlines_cancel(set, node);
    set->reserved--;
}

uint64_t kvfi_deadlines_next_ns(const struct kvfi_deadlines *set)
{
    return set->count ? set->heap[0]->at_ns : UINT64_MAX;
}

struct kvfi_deadline *kvfi_deadlines_pop(struct kvfi_deadlines *set, uint64_t now_ns)
{
    if (set->count == 0 || set->heap[0]->at_ns > now_ns)
        return NULL;
    struct kvfi_deadline *node = set->heap[0];
    kvfi_deadlines_cancel(set, node);
    return node;
}

const char *kvfi_deadlines_check(const struct kvfi_deadlines *set)
{
    if (set->count > set->reserved || set->reserved > set->cap)
        return "deadlines: more nodes than reserved";
    for (size_t i = 0; i < set->count; i++) {
        if (set->heap[i]->position != i + 1)
            return "deadlines: a node does not know its place";
        if (i > 0 && set->heap[(i - 1) / 2]->at_ns > set->heap[i]->at_ns)
            return "deadlines: out of order";
    }
    return NULL;
}
