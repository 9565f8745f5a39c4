/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_WORKER_H
#define KVFI_CORE_WORKER_H

/*
 * The worker's state machine: everything the writer thread decides, as a function.
 *
 *   kvfi_worker_core_step(core, event, effects)
 *
 * The event carries the time, read once by the driver. The effects are data: the driver performs
 * them in order and returns what became of them as later events. Nothing is called out of here;
 * the simulator is another driver of the same code.
 *
 * One core serves one rank of one engine, which may prefill, decode or do both.
 */

#include "kvferry/kv.h"

struct kvfi_worker_core;

/* What this side offers: regions as kernels see them, borrowed until create returns (copied). */
struct kvfi_worker_core_options {
    const struct kvf_kv_config *config;
    const struct kvf_kv_cache *cache;
    const struct kvf_allocator *allocator;
    size_t tombstone_count_max;    /* default 8192 */
    uint64_t tombstone_ns;         /* how long an ended request is remembered; default 600 s */
    size_t registration_count_max; /* default 65536 */
};

/* ---- events --------------------------------------------------------------------------------- */

enum kvfi_event_kind {
    KVFI_EVENT_STEP,            /* from the engine */
    KVFI_EVENT_NOTIFICATION,    /* from a peer, not trusted */
    KVFI_EVENT_HANDSHAKE_REPLY, /* ends a KVFI_EFFECT_HANDSHAKE */
    KVFI_EVENT_PEER_LOADED,     /* ends a KVFI_EFFECT_LOAD_PEER */
    KVFI_EVENT_PEER_LOST,
    KVFI_EVENT_TRANSFER_DONE, /* ends a KVFI_EFFECT_WRITE: no operation of it is left */
    KVFI_EVENT_SEND_FAILED,   /* a KVFI_EFFECT_SEND was not delivered */
    KVFI_EVENT_TICK,          /* a deadline may have passed */
};

struct kvfi_event {
    enum kvfi_event_kind kind;
    uint64_t now_ns; /* the driver's monotonic clock; never goes back */
    union {
        const struct kvf_step *step; /* borrowed */
        struct {
            const char *sender; /* agent name as the sender wrote it */
            const void *message;
            size_t message_len; /* all borrowed */
        } notification;
        struct {
            uint64_t handshake_id;
            enum kvf_status status; /* KVF_ETIMEDOUT, ... or KVF_OK with the reply */
            const void *payload;    /* the outer msgpack map, borrowed, not trusted */
            size_t payload_len;
            const char *reason; /* when status is not KVF_OK */
        } handshake_reply;
        struct {
            uint64_t handshake_id;
            enum kvf_status status;
            struct kvf_peer_id peer;
            const char *reason;
        } peer_loaded;
        struct {
            struct kvf_peer_id peer;
            const char *reason;
        } peer_lost;
        struct {
            uint64_t token; /* of the effect */
            enum kvf_status status;
            struct kvf_transfer_stats stats; /* all 0: nothing was posted */
            const char *reason;              /* may be NULL */
        } transfer_done;
        struct {
            uint64_t token; /* of the effect */
            enum kvf_status status;
            const char *reason; /* may be NULL */
        } send_failed;
    };
};

/* ---- effects -------------------------------------------------------------------------------- */

enum kvfi_effect_kind {
    KVFI_EFFECT_HANDSHAKE, /* ask (host, port) for the payload of (pp_rank, tp_rank) */
    KVFI_EFFECT_LOAD_PEER, /* load this agent blob; answer with PEER_LOADED */
    KVFI_EFFECT_DROP_PEER,
    KVFI_EFFECT_SEND,    /* a notification */
    KVFI_EFFECT_WRITE,   /* post this plan with this notification */
    KVFI_EFFECT_RESULT,  /* tell the engine */
    KVFI_EFFECT_RECORD,  /* an event record */
    KVFI_EFFECT_COUNT,   /* add to a counter */
    KVFI_EFFECT_OBSERVE, /* add to a histogram */
};

#define KVFI_RECORD_FIELDS_MAX 8

/* Pointers inside an effect point into the effect list and are valid until it is reset. */
struct kvfi_effect {
    enum kvfi_effect_kind kind;
    union {
        struct {
            uint64_t handshake_id;
            const char *engine_id; /* expected; for messages only, the core checks the answer */
            const char *host;
            uint16_t port;
            uint32_t pp_rank;
            uint32_t tp_rank;
            uint64_t timeout_ns;
        } handshake;
        struct {
            uint64_t handshake_id;
            const void *blob;
            size_t blob_len;
        } load_peer;
        struct {
            struct kvf_peer_id peer;
        } drop_peer;
        struct {
            uint64_t token;
            struct kvf_peer_id peer;
            const void *message;
            size_t message_len;
        } send;
        struct {
            uint64_t token;
            struct kvf_peer_id peer;
            struct kvf_plan plan; /* with its arrays in the list */
            const void *message;
            size_t message_len;
            const char *request_id; /* ours, for records and the debug checksum */
        } write;
        struct kvf_result result;
        struct {
            const char *event;
            const char *request_id;
            struct kvf_event_field fields[KVFI_RECORD_FIELDS_MAX];
            size_t field_count;
            /* The blocks it speaks of, for the debug checksum; may be empty. */
            const uint32_t *block_ids;
            size_t block_count;
        } record;
        struct {
            enum kvf_counter counter;
            uint64_t n;
        } count;
        struct {
            enum kvf_histogram histogram;
            double value;
        } observe;
    };
};

/* A reusable list with its own memory for what effects point to. */
struct kvfi_effects;

struct kvfi_effects *kvfi_effects_create(const struct kvf_allocator *allocator);
void kvfi_effects_destroy(struct kvfi_effects *effects);
/* Empties the list, keeps its memory. */
void kvfi_effects_reset(struct kvfi_effects *effects);
size_t kvfi_effects_count(const struct kvfi_effects *effects);
const struct kvfi_effect *kvfi_effects_at(const struct kvfi_effects *effects, size_t index);

/* ---- the machine ---------------------------------------------------------------------------- */

KVF_MUST_USE enum kvf_status kvfi_worker_core_create(const struct kvfi_worker_core_options *options,
                                                     struct kvfi_worker_core **core_p,
                                                     struct kvf_error *error);
void kvfi_worker_core_destroy(struct kvfi_worker_core *core);

/* Appends the effects of one event. KVF_ENOMEM: the event has not been applied (or only to requests
 * that were failed for it) and the list is as before; the driver retries a STEP and drops a
 * NOTIFICATION, counted. No other failure: what a peer sends costs that message at most (P6). */
KVF_MUST_USE enum kvf_status kvfi_worker_core_step(struct kvfi_worker_core *core,
                                                   const struct kvfi_event *event,
                                                   struct kvfi_effects *effects);

/* When the next KVFI_EVENT_TICK is due; UINT64_MAX: never. */
uint64_t kvfi_worker_core_deadline_ns(const struct kvfi_worker_core *core);

/* Fills all but `.agent`. */
void kvfi_worker_core_usage(const struct kvfi_worker_core *core, struct kvf_worker_usage *usage);

/* This rank's handshake payload (outer map with hash, metadata and capabilities) around the given
 * agent blob. *bytes_p is returned owned from the options' allocator;
 * kvfi_worker_core_payload_free. */
KVF_MUST_USE enum kvf_status kvfi_worker_core_payload(const struct kvfi_worker_core *core,
                                                      const void *agent_blob, size_t agent_blob_len,
                                                      void **bytes_p, size_t *len_p,
                                                      struct kvf_error *error);
void kvfi_worker_core_payload_free(const struct kvfi_worker_core *core, void *bytes);

/* Checks every invariant of the tables (tests, simulator, debug builds). NULL or a static text. */
const char *kvfi_worker_core_check(const struct kvfi_worker_core *core);

#endif
