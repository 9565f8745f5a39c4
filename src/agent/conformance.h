/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_AGENT_CONFORMANCE_H
#define KVFI_AGENT_CONFORMANCE_H

/*
 * What every lane must do, as one suite. conformance_<lane>_test.c runs it on its lane and adds
 * what only that lane can be asked for.
 */

#include "kvferry/agent.h"
#include "kvferry/pool.h"
#include "lane/mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum {
    CONF_UNTOUCHED = 0xee, /* gear F1: what nobody may change */
};

struct conf_message {
    char name[128];
    unsigned char *data; /* owned */
    size_t len;
};

struct conf_result {
    struct kvf_transfer_id transfer;
    uint64_t user_data;
    enum kvf_status status;
    struct kvf_transfer_stats stats;
};

/* One agent and everything it was told. */
struct conf_side {
    struct kvf_agent *agent;
    struct kvf_pool *memory; /* so that every lane for one host can be taken */
    unsigned char *pool;     /* of the above */
    size_t pool_len;
    struct conf_message *messages;
    size_t message_count, message_cap;
    struct conf_result *results;
    size_t result_count, result_cap;
    size_t lost_count;
    struct kvf_peer_id lost_peer;
    size_t notify_failed_count;
    enum kvf_status notify_failed_status;
    bool ids_come_again; /* prepared transfers are posted more than once */
    void (*on_message)(struct conf_side *side, const void *data, size_t len); /* may be NULL */
    void (*on_result)(struct conf_side *side, const struct conf_result *result);
    void *test; /* for the two above */
};

struct conf_rig {
    const char *lane;
    struct kvfi_mem_net *net; /* lane "mem" */
    struct conf_side a, b;
    struct kvf_peer_id b_at_a; /* valid after conf_join() */
    struct kvf_peer_id a_at_b;
};

/* The lane under test, set by main(). */
extern const char *conf_lane;

/* Two agents with pools of pool_len bytes, 0xee all over; the pools are registered. */
void conf_start(struct conf_rig *rig, size_t pool_len);
/* Drops the peers, waits until nothing is in flight or closing, destroys and frees everything. */
void conf_stop(struct conf_rig *rig);
/* One more agent on the rig's lane. name NULL: a fresh one. */
void conf_open(struct conf_rig *rig, struct conf_side *side, const char *name, size_t pool_len);
/* The same with the agent's memory from there. */
void conf_open_with(struct conf_rig *rig, struct conf_side *side, const char *name, size_t pool_len,
                    const struct kvf_allocator *allocator);
/* Memory for a side that was opened without; it is not registered. */
void conf_take_pool(struct conf_side *side, size_t pool_len);
void conf_close(struct conf_side *side);
/* Loads each agent's metadata into the other. */
void conf_join(struct conf_rig *rig);
/* Drops the peer, if it and the agent are still there. */
void conf_drop(struct conf_side *side, struct kvf_peer_id peer);
struct kvf_peer_id conf_load(struct conf_side *into, struct conf_side *from);

/* Progresses both sides, asleep between, until done(rig) holds. A test that waits for what never
 * comes ends by the test runner's limit. */
void conf_drive(struct conf_rig *rig, bool (*done)(struct conf_rig *rig));
/* The same for counts of side a's results and side b's messages since the start. */
void conf_drive_counts(struct conf_rig *rig, size_t a_results, size_t b_messages);
/* Progresses until nothing is in flight and nothing is closing on either side. */
void conf_settle(struct conf_rig *rig);

/* Gear F1: the byte at offset of the pool with that seed. */
unsigned char conf_pattern(uint64_t seed, uint64_t offset);
void conf_fill(unsigned char *bytes, size_t len, uint64_t seed);

/* Seeded numbers and permutations, the same everywhere. */
uint64_t conf_random(uint64_t *state, uint64_t below);
void conf_shuffle(uint32_t *ids, size_t count, uint64_t *state);

/* A region over a whole pool on both sides. */
struct kvf_plan_region conf_region(const struct conf_side *local, const struct conf_side *remote,
                                   uint64_t stride, uint64_t length);
/* Posts from a to b and expects acceptance. */
struct kvf_transfer_id conf_post(struct conf_rig *rig, enum kvf_operation operation,
                                 const struct kvf_plan *plan, const char *notification);
/* One region, one pair list. */
struct kvf_transfer_id conf_post_blocks(struct conf_rig *rig, enum kvf_operation operation,
                                        struct kvf_plan_region region, const uint32_t *local,
                                        const uint32_t *remote, size_t count,
                                        const char *notification);

/* Registers the pool again; peers that know an old key never use it. */
void conf_register_again(struct conf_side *side);

/* One block of the pools, id for id. */
struct conf_block_plan {
    uint32_t id;
    struct kvf_plan_region region;
    struct kvf_block_pairs group;
    struct kvf_plan plan;
};
void conf_one_block(struct conf_block_plan *made, struct kvf_plan_region region, uint32_t id);

/* Counts what an agent takes from its allocator. */
struct conf_memory {
    struct kvf_allocator allocator; /* set by conf_memory_init() */
    uint64_t calls;                 /* alloc and realloc */
    size_t live;                    /* bytes */
};
void conf_memory_init(struct conf_memory *memory);

void conf_expect_usage(const struct kvf_agent *agent, struct kvf_agent_usage expected);

/* The suite, and its groups in order. Each returns the number of failed tests. */
int conf_run_all(void);
int conf_run_transfers(void);
int conf_run_prepared(void);
int conf_run_slices(void);
int conf_run_memory(void);
int conf_run_peers(void);
int conf_run_hostile(void);
int conf_run_costs(void);

#endif
