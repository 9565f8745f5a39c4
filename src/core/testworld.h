/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_TESTWORLD_H
#define KVFI_CORE_TESTWORLD_H

/*
 * Two engines in one thread under a fake clock: real schedulers, real worker cores, and a pump that
 * plays agent, network and side channel. Every rule of the network (delay, loss, doubling) is the
 * test's. Blocks are real memory, so that what landed where can be compared byte for byte, and the
 * pump watches from outside the core that no operation touches a block which is not its request's
 * (P1), and that what is reported as received is all there (P3, P4).
 */

#include "core/testing.h"
#include "core/worker.h"

#include <stdio.h>

#define W_MS 1000000ull
#define W_S  1000000000ull

#define W_BLOCKS      48
#define W_BLOCK_BYTES 8
#define W_REGIONS     2
#define W_BLOCK_SIZE  4 /* tokens */
#define W_REQUEST_MAX 64
#define W_PEER_MAX    64
#define W_FLYING_MAX  4096

enum w_side { W_P, W_D, W_SIDES };

/* What an engine knows of one request of its own. */
struct w_request {
    bool used;
    bool prefill;
    bool in_engine; /* not finished there */
    bool held;      /* blocks belong to the connector */
    bool received;
    bool failed;
    bool released;
    bool sent;
    enum kvf_status status;
    char reason[KVF_REASON_LEN_MAX + 1];
    char id[96];
    uint32_t tokens;
    uint32_t blocks[W_BLOCKS];
    size_t block_count;
    size_t cached;
};

struct w_engine {
    enum w_side side;
    bool alive;
    unsigned starts; /* of the process: names its agent */
    char agent_name[16];
    struct kvf_scheduler *scheduler;
    struct kvfi_worker_core *core;
    struct kvfi_effects *effects;
    struct kvf_kv_config config;
    uint8_t memory[W_REGIONS][W_BLOCKS][W_BLOCK_BYTES];
    int owner[W_BLOCKS]; /* index of the request plus one; 0: free */
    struct w_request requests[W_REQUEST_MAX];
    struct {
        enum w_side side;
        unsigned start; /* which process of the other side */
        bool loaded;
        bool lost_told;
    } peers[W_PEER_MAX]; /* index is the peer id minus one */
    size_t peer_count;
    uint64_t counters[KVF_COUNTER_COUNT];
    size_t unknown_results;
};

enum w_flying_kind { W_NOTIFICATION, W_WRITE, W_REPLY, W_LOADED, W_LOST, W_SEND_FAILED };

struct w_flying {
    enum w_flying_kind kind;
    uint64_t at_ns;
    uint64_t order;
    enum w_side to;
    unsigned to_start; /* which process of it */
    char sender[16];
    uint8_t *bytes;
    size_t len;
    /* WRITE: terminal at at_ns */
    enum kvf_status status;
    uint64_t token;
    enum w_side target;
    unsigned target_start;
    struct kvf_block_table local[W_REGIONS];
    struct kvf_block_table remote[W_REGIONS];
    uint32_t local_ids[W_BLOCKS];
    uint32_t remote_ids[W_BLOCKS];
    size_t count;
    char request_id[96];
    uint64_t posted_ns;
    /* REPLY, LOADED, LOST */
    uint64_t id;
};

struct w_world;

/* Decides the fate of one notification. Returns how many copies arrive, each with its delay. */
typedef unsigned (*w_network_fn)(struct w_world *w, enum w_side from, const char *message,
                                 uint64_t delay_ns[4]);

struct w_world {
    uint64_t now_ns;
    uint64_t order;
    struct test_alloc alloc;
    struct w_engine engines[W_SIDES];
    struct w_flying flying[W_FLYING_MAX];
    size_t flying_count;
    uint64_t seed;

    /* settings */
    uint64_t wire_ns;                     /* a notification */
    uint64_t write_ns;                    /* a WRITE from post to done */
    uint64_t handshake_ns;                /* the side channel */
    bool side_channel_dead[W_SIDES];      /* handshakes with that side get no answer */
    enum kvf_status side_channel_status;  /* how such a handshake ends */
    enum kvf_status write_status;         /* of the next WRITEs; KVF_OK by default */
    enum kvf_status load_status[W_SIDES]; /* what the agent there says to each LOAD_PEER */
    enum kvf_status send_status;          /* KVF_OK, or how each PUSH_REG fails */
    bool no_caps;                         /* peers look like vLLM: no PUSH_FAIL, no PUSH_DROP */
    unsigned oom;                         /* > 0: one in so many allocations of a core fails */
    w_network_fn network;

    char trace[65536];
    size_t trace_len;
    char fault[256]; /* the first broken promise; "" while all hold */
};

/* `tweak` (may be NULL) changes both configurations before the start. */
struct w_world *w_create(void (*tweak)(struct kvf_kv_config *config, enum w_side side));
/* Checks that no memory is left behind. */
void w_destroy(struct w_world *w);

/* The engine's own acts. Each makes the engine's step unless told otherwise. */
void w_prefill_start(struct w_world *w, const char *id, const char *transfer_id, uint32_t tokens);
void w_prefill_finish(struct w_world *w, const char *id);
void w_prefill_abort(struct w_world *w, const char *id);
void w_decode_start(struct w_world *w, const char *id, const char *transfer_id, uint32_t tokens,
                    size_t cached_blocks);
void w_decode_end(struct w_world *w, const char *id);
/* A step of the engine: what the scheduler has to say goes to the core. */
void w_step(struct w_world *w, enum w_side side);
/* The process dies at once; what it had posted may still land for a moment. */
void w_kill(struct w_world *w, enum w_side side);
void w_start(struct w_world *w, enum w_side side);
/* The other side's agent notices that this process is gone. */
void w_tell_lost(struct w_world *w, enum w_side observer);
/* Whatever is under way is lost. */
void w_lose_all(struct w_world *w);
/* A notification out of nowhere. */
void w_inject(struct w_world *w, enum w_side to, const char *sender, const void *bytes, size_t len);

/* Lets time pass; engines step whenever their scheduler has a reason to. */
void w_run(struct w_world *w, uint64_t ns);
void w_run_until_quiet(struct w_world *w, uint64_t ns_max);

struct w_request *w_find(struct w_world *w, enum w_side side, const char *id);
struct kvf_worker_usage w_usage(struct w_world *w, enum w_side side);
size_t w_free_blocks(struct w_world *w, enum w_side side);
uint64_t w_count(struct w_world *w, enum w_side side, enum kvf_counter counter);
/* NULL, or what is left that should not be. */
const char *w_leftovers(struct w_world *w);
void w_note(struct w_world *w, const char *fmt, ...) KVF_PRINTF(2, 3);
uint64_t w_random(struct w_world *w, uint64_t below);

#endif
