/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_KV_WORKER_H
#define KVFI_KV_WORKER_H

/*
 * Inside of kvf_worker: what the engine's side (worker.c), the writer thread (writer.c) and the
 * performing of effects (effects.c) share. Everything in struct kvfi_writer belongs to the writer
 * thread alone; the rest of struct kvf_worker is how the two threads meet.
 */

#include "channel/client.h"
#include "core/worker.h"
#include "runtime/loop.h"
#include "runtime/queue.h"
#include "runtime/wake.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/queue.h>

/* A result on its way. Owned by the writer's backlog, then by the result queue, then by whoever
 * takes it; destroy frees those nobody took. */
struct kvfi_result_node {
    STAILQ_ENTRY(kvfi_result_node) link;
    struct kvf_result result;
};

/* Something that came inside a turn of the agent while the core had no memory for it. */
struct kvfi_late_event {
    STAILQ_ENTRY(kvfi_late_event) link;
    struct kvfi_event event; /* what it points to is a copy, in the next field or behind it all */
    char reason[KVF_REASON_LEN_MAX + 1];
};

/* A WRITE under way, with the room to keep its end, so that no WRITE's end is ever lost for want of
 * memory. Owned by the writer's list until the transfer is terminal. */
struct kvfi_write {
    struct kvfi_late_event late; /* first: a late event is freed as what it was allocated as */
    LIST_ENTRY(kvfi_write) link;
    uint64_t token;
};
_Static_assert(offsetof(struct kvfi_write, late) == 0, "freed through its late event");

STAILQ_HEAD(kvfi_late_event_list, kvfi_late_event);
STAILQ_HEAD(kvfi_result_list, kvfi_result_node);
LIST_HEAD(kvfi_write_list, kvfi_write);

struct kvfi_writer {
    struct kvf_agent *agent;
    struct kvfi_worker_core *core;
    struct kvfi_loop loop;
    struct kvf_kv_region *regions; /* for checksums; names are not kept */
    size_t region_count;
    bool debug_checksums;

    struct kvfi_effects *effects;
    size_t effect_next; /* the first that has not been performed */

    /* What an effect came to, still to be told to the core. */
    struct kvfi_late_event feedback;
    bool has_feedback;

    /* Taken from their queues, not yet applied. */
    struct kvf_step *step;
    struct kvfi_handshake_result *reply;
    struct kvfi_late_event_list late_events;

    struct kvfi_write_list writes;
    struct kvfi_result_list backlog; /* results that found the queue full, in order */
    bool busy;                       /* the agent has more to do at once */
};

struct kvf_worker {
    struct kvf_allocator allocator; /* a copy: agent and core borrow it */
    struct kvf_metrics *metrics;    /* borrowed until destroy; may be NULL */
    struct kvf_events *events;      /* same */
    struct kvfi_queue *steps;       /* struct kvf_step: engine to writer, which frees them */
    struct kvfi_queue *results;     /* struct kvfi_result_node: writer to engine */
    struct kvfi_handshake_client *client;
    void *payload; /* owned by the core's allocator; written before create returns */
    size_t payload_len;

    struct kvfi_wake wake; /* stop, or room for results */
    _Atomic bool stop;
    _Atomic bool room_wanted; /* the writer has a backlog */

    pthread_mutex_t usage_lock; /* over usage; held for a copy */
    struct kvf_worker_usage usage;

    pthread_t thread;
    struct kvfi_writer writer;
};

/* What the writer thread is started with; lives on the creator's stack until `done` is posted. */
struct kvfi_writer_start {
    struct kvf_worker *worker;
    const struct kvf_worker_options *options;
    sem_t done;
    enum kvf_status status;
    struct kvf_error error;
};

/* The thread: sets up (telling the creator how it went), runs until stop, takes down. */
void *kvfi_writer_main(void *start);

/* ---- effects.c, writer thread --------------------------------------------------------------- */

/* Performs what is in the list, and what comes of it, to the end. False when memory is short: the
 * rest stays in place and the call is to be repeated a little later. */
bool kvfi_worker_settle(struct kvf_worker *worker) KVF_MUST_USE;
/* Moves the backlog into the result queue as far as it goes. */
void kvfi_worker_flush_results(struct kvf_worker *worker);

/* ---- checksum.c, writer thread -------------------------------------------------------------- */

#define KVFI_CHECKSUM_LEN 64

/* SHA-256 over these blocks in order region, block, as they are now. False (and hex "") when a
 * block or region is not host memory of ours, or memory is short. */
bool kvfi_checksum_blocks(const struct kvf_kv_region *regions, size_t region_count,
                          const uint32_t *block_ids, size_t block_count,
                          char hex[KVFI_CHECKSUM_LEN + 1]);

#endif
