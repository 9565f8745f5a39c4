/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVF_TESTS_NIXL_RIG_H
#define KVF_TESTS_NIXL_RIG_H

/*
 * One agent of ours, on the public API alone, and one real NIXL agent in a process of its own
 * (peer.py). The peer's pool is shared memory, so that this side can prepare and compare every byte
 * of it; NIXL does not know.
 */

#include "kvferry/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

enum {
    UNTOUCHED = 0xee,
    REGIONS_MAX = 8,
    NAME_LEN = 64,
};
#define BLOCK    ((size_t)4096)
#define POOL_LEN ((size_t)8 << 20)
#define BLOCKS   (POOL_LEN / BLOCK)

/* How the peers of this group of tests are started. */
struct nixl_options {
    unsigned progress_thread;
    unsigned workers;
};
extern struct nixl_options nixl_options;

/* From the command line. */
struct surroundings {
    const char *python;
    const char *script;
    unsigned ucx_minor; /* of the UCX under our side */
};
extern struct surroundings surroundings;

struct message {
    char *name; /* owned */
    unsigned char *data;
    size_t len;
};

struct result {
    uint64_t user_data;
    enum kvf_status status;
};

struct ours {
    struct kvf_agent *agent;
    unsigned char *pool; /* owned, all of it registered in equal regions */
    size_t region_count;
    struct message *messages; /* owned */
    size_t message_count;
    struct result *results; /* owned */
    size_t result_count;
    size_t lost_count;
    size_t notify_failed_count;
};

struct nixl {
    pid_t pid; /* 0: not running */
    int socket;
    char name[NAME_LEN];
    unsigned char *pool; /* owned; our view of it */
    uint64_t base;       /* where the peer has it */
    struct kvf_peer_id at_us;
    unsigned char *answer; /* owned; of the last command, NUL behind it */
    size_t answer_len;
    size_t answer_got; /* header included */
    uint32_t answer_header[2];
};

struct rig {
    struct ours us;
    struct nixl peer;
};

/* Starts ours with its pool cut into regions, and a peer likewise; loads nothing. */
void rig_start(struct rig *rig, const char *peer_name, size_t regions);
/* rig_start, then each side loads the other's full metadata. */
void rig_start_joined(struct rig *rig, const char *peer_name);
/* Has the peer leave politely when it runs, drops it, checks that nothing is left, frees. */
void rig_stop(struct rig *rig);

void ours_start(struct ours *us, const char *name, size_t regions);
void ours_stop(struct ours *us);

/* The peer alone. Stopping by nixl_leave() waits for its exit status, which must be 0. */
void nixl_start(struct rig *rig, const char *name, size_t regions);
void nixl_leave(struct rig *rig);
void nixl_kill(struct rig *rig);
/* Gives the pool back; the peer has ended. */
void nixl_free(struct nixl *peer);

/* Progresses ours, asleep in between, until done(rig) holds. A test that waits for what never comes
 * ends by the runner's limit. */
void drive(struct rig *rig, bool (*done)(struct rig *rig));
void drive_counts(struct rig *rig, size_t results, size_t messages);
/* Until nothing is in flight or closing here. */
void settle(struct rig *rig);

/* Sends a command with bytes, and drives ours until its answer is there. True when NIXL raised
 * nothing; what it answered, or the class that it raised, is in peer.answer. */
bool ask(struct rig *rig, const void *data, size_t len, const char *format, ...) KVF_PRINTF(4, 5);
/* The same, and it must succeed, or raise exactly that. */
#define must_ask(rig, data, len, ...) assert_answer(rig, ask(rig, data, len, __VA_ARGS__), NULL)
#define must_raise(rig, class_name, data, len, ...)                                                \
    assert_answer(rig, ask(rig, data, len, __VA_ARGS__), class_name)
void assert_answer(struct rig *rig, bool ok, const char *raised);
/* Sends only. */
void tell(struct rig *rig, const void *data, size_t len, const char *format, ...) KVF_PRINTF(4, 5);
bool is_answered(struct rig *rig);

/* The peer's blob (full, or what `what` asks for) into ours; ours into the peer. */
enum kvf_status load_here(struct rig *rig, const char *what, struct kvf_error *error);
void load_there(struct rig *rig);

/* Transfers. A case says which block goes where, and what both pools must hold after it. */
struct blocks {
    size_t count;
    size_t block_len;
    uint32_t *here; /* owned */
    uint32_t *there;
};
/* count distinct blocks on each side, all shuffled. */
struct blocks blocks_make(size_t count, size_t block_len, uint64_t seed);
void blocks_free(struct blocks *blocks);

/* Who starts it, and how. */
enum initiator {
    BY_US,
    BY_NIXL_LIST,
    BY_NIXL_PREPARED,
};
/* Fills the sources, runs it to the end with the notification, compares both pools whole. */
void move_and_compare(struct rig *rig, enum initiator initiator, enum kvf_operation operation,
                      const struct blocks *blocks, unsigned worker);
/* Only starts one of ours. */
void post(struct rig *rig, enum kvf_operation operation, const struct blocks *blocks,
          const void *notification, size_t notification_len);
/* The table of a transfer command of the peer; freed by the caller. */
unsigned char *transfer_table(const struct rig *rig, const struct blocks *blocks,
                              const void *message, size_t message_len, size_t *len_p);
/* Takes one notification from the peer's queue, which must be this one of ours. */
void expect_notif_there(struct rig *rig, const void *message, size_t len);
/* The index-th that ours was told must be this one of the peer's. */
void expect_notif_here(const struct rig *rig, size_t index, const void *message, size_t len);
/* Both directions from both sides, once each. */
void move_all_ways(struct rig *rig, size_t count, size_t block_len);

unsigned char pattern(uint64_t seed, uint64_t offset);
void fill(unsigned char *bytes, size_t len, uint64_t seed);
/* Every byte of the pool: the destination blocks hold the other side's, the rest is untouched. */
void expect_moved(const struct rig *rig, enum kvf_operation toward, const struct blocks *blocks,
                  uint64_t seed);
void expect_usage(const struct ours *us, struct kvf_agent_usage expected);

/* The groups of tests; each returns the number of failures. */
int run_transfers(const char *group);
int run_metadata(const char *group);
int run_deaths(const char *group);

#endif
