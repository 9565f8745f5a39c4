/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_TOMBSTONES_H
#define KVFI_CORE_TOMBSTONES_H

/*
 * Ended requests, remembered for a while, so that a late or second message is recognised and can
 * never reach blocks that have gone back to their engine.
 *
 * Bounded in count and in time; the oldest goes first. A tombstone is made together with the
 * object whose end it will mark, so that ending needs no memory.
 */

#include "core/list.h"
#include "core/matching.h"

enum kvfi_tombstone_kind {
    KVFI_TOMBSTONE_SEND,         /* prefill: a request of ours; found by the matching rule */
    KVFI_TOMBSTONE_REGISTRATION, /* prefill: one of decode's; found by its exact id */
    KVFI_TOMBSTONE_RECEIVE,      /* decode: a request of ours; found by its exact id */
    KVFI_TOMBSTONE_KIND_COUNT,
};

struct kvfi_tombstone {
    enum kvfi_tombstone_kind kind;
    struct kvfi_party party;
    struct kvfi_list age;
    uint64_t expires_ns;
    /* A withdrawal that came before prefill knew the request: it waits here for it. */
    bool withdraws;
};

struct kvfi_tombstones {
    const struct kvf_allocator *allocator;
    struct kvfi_party_table tables[KVFI_TOMBSTONE_KIND_COUNT];
    struct kvfi_list by_age; /* oldest first */
    size_t count;
    size_t count_max;
    uint64_t ttl_ns;
};

void kvfi_tombstones_init(struct kvfi_tombstones *tombstones, const struct kvf_allocator *allocator,
                          size_t count_max, uint64_t ttl_ns);
void kvfi_tombstones_deinit(struct kvfi_tombstones *tombstones);

/* Copies the ids. Not in the table yet. NULL when memory is short. */
struct kvfi_tombstone *kvfi_tombstone_make(const struct kvf_allocator *allocator,
                                           enum kvfi_tombstone_kind kind, const char *id,
                                           const char *transfer_id) KVF_MUST_USE;
/* For one that was never put. NULL is allowed. */
void kvfi_tombstone_discard(const struct kvf_allocator *allocator,
                            struct kvfi_tombstone *tombstone);

/* Takes the tombstone. One of the same kind and id is replaced. */
void kvfi_tombstones_put(struct kvfi_tombstones *tombstones, struct kvfi_tombstone *tombstone,
                         uint64_t now_ns);
void kvfi_tombstones_remove(struct kvfi_tombstones *tombstones, struct kvfi_tombstone *tombstone);
/* Forgets what is too old. */
void kvfi_tombstones_purge(struct kvfi_tombstones *tombstones, uint64_t now_ns);

struct kvfi_tombstone *kvfi_tombstones_find(const struct kvfi_tombstones *tombstones,
                                            enum kvfi_tombstone_kind kind, const char *id,
                                            size_t id_len);

#endif
