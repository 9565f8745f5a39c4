/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_LIST_H
#define KVFI_CORE_LIST_H

/*
 * A circular, intrusive, doubly linked list. The node lies in the object; nothing is allocated, so
 * linking and unlinking cannot fail. A node that is in no list points at itself.
 */

#include <stdbool.h>
#include <stddef.h>

struct kvfi_list {
    struct kvfi_list *prev;
    struct kvfi_list *next;
};

#define KVFI_CONTAINER_OF(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void kvfi_list_init(struct kvfi_list *node)
{
    node->prev = node;
    node->next = node;
}

/* True for a head without members and for a node that is in no list. */
static inline bool kvfi_list_empty(const struct kvfi_list *node)
{
    return node->next == node;
}

static inline void kvfi_list_remove(struct kvfi_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    kvfi_list_init(node);
}

/* The node leaves the list it is in, if any. */
static inline void kvfi_list_append(struct kvfi_list *head, struct kvfi_list *node)
{
    kvfi_list_remove(node);
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

#endif
