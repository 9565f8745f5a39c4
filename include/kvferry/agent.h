/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_AGENT_H
#define KVFERRY_AGENT_H

/*
 * The agent: registered memory, peers, one-sided transfers and notifications, with the semantics
 * and the wire format of a NIXL agent with its UCX backend. docs/agent.md is its user's page.
 *
 * Threads: one agent belongs to one thread at a time (the data thread); handing it to another one
 * is the caller's business (a lock, or a start and a join in between). Every function here that
 * takes an agent is called on that thread, and every callback runs on it, only from inside
 * kvf_agent_progress(), never inside the call that started the operation. A callback may call
 * everything except kvf_agent_destroy(). Different agents are independent of each other. Nothing
 * here blocks except kvf_agent_destroy(); nothing spins.
 *
 * Memory: posting takes none once as much has been in flight before as is now (the pools only
 * grow), except for a message that is longer than any before it.
 */

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvf_agent;

/* By-value handles. A stale one is answered with KVF_ENOTFOUND, never with undefined behaviour. */
struct kvf_peer_id {
    uint64_t value; /* 0 is never valid */
};
struct kvf_transfer_id {
    uint64_t value; /* 0 is never valid */
};

enum kvf_memory_kind { /* values are NIXL's */
                       KVF_MEMORY_DRAM = 0,
                       KVF_MEMORY_VRAM = 1,
};

enum kvf_operation { /* values are NIXL's */
                     KVF_READ = 0,
                     KVF_WRITE = 1,
};

/* What became of a finished transfer. Times are CLOCK_MONOTONIC nanoseconds. */
struct kvf_transfer_stats {
    uint64_t bytes;
    uint64_t run_count; /* operations after merging */
    uint64_t post_start_ns;
    uint64_t post_end_ns; /* everything was handed to the transport */
    uint64_t done_ns;
};

enum kvf_transfer_state {
    KVF_TRANSFER_PREPARED = 1, /* never posted */
    KVF_TRANSFER_ACTIVE = 2,   /* posted, not yet terminal */
    KVF_TRANSFER_DONE = 3,     /* terminal; may be posted again */
};

struct kvf_agent_callbacks {
    void *ctx;
    /* A notification arrived. `name` is what the sender wrote (not authenticated), NUL-terminated.
     * Both are borrowed until return. */
    void (*notification)(void *ctx, const char *name, const void *message, size_t message_len);
    /* A posted transfer is terminal: no operation of it can still touch local memory. The id of a
     * kvf_agent_post() is stale from here on, that of a kvf_agent_prepare() is not and may be
     * posted again in here. On KVF_OK all bytes are visible at the target and the notification, if
     * any, has been handed to the transport after that. Exactly once per successful post, unless
     * the transfer was released before. */
    void (*transfer_done)(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                          enum kvf_status status, const struct kvf_transfer_stats *stats);
    /* The connection to a peer failed. All its transfers have been or will be reported failed.
     * The peer stays loaded but dead: posts answer KVF_EDISCONNECTED until it is dropped and
     * loaded again. Once per load. */
    void (*peer_lost)(void *ctx, struct kvf_peer_id peer, const char *reason);
    /* A notification accepted by kvf_agent_notify could not be delivered. */
    void (*notify_failed)(void *ctx, struct kvf_peer_id peer, uint64_t user_data,
                          enum kvf_status status);
};

struct kvf_agent_options {
    size_t size;      /* sizeof(struct kvf_agent_options); set by KVF_AGENT_OPTIONS_INIT */
    const char *name; /* unique per process start; NULL: a fresh uuid4 */
    /* "auto" (default): UCX, and short cuts to peers of this host (KVFERRY_LANES in the environment
     * limits them, see docs/operations.md); "ucx": UCX alone; "mem": tests, simulator. */
    const char *lane;
    void *lane_ctx; /* "mem": the struct kvfi_mem_net to join */
    struct kvf_agent_callbacks callbacks;
    const struct kvf_allocator *allocator; /* NULL: malloc */
};
#define KVF_AGENT_OPTIONS_INIT                                                                     \
    {                                                                                              \
        .size = sizeof(struct kvf_agent_options)                                                   \
    }

/* Returns owned. KVF_ENOTSUP when the transport cannot serve (the text names it and the remedy). */
KVF_API enum kvf_status kvf_agent_create(const struct kvf_agent_options *options,
                                         struct kvf_agent **agent_p,
                                         struct kvf_error *error) KVF_MUST_USE;
/* Stops everything: what was handed to the transport is driven to its end first (no callbacks are
 * made any more; slices that are left are not posted), peers closed, memory released. After return
 * no operation of ours touches the registered memory. Blocks, asleep, for about three seconds at
 * most when a peer does not answer. Not from a callback. NULL is allowed. */
KVF_API void kvf_agent_destroy(struct kvf_agent *agent);

/* The agent's name, valid as long as the agent. */
KVF_API const char *kvf_agent_name(const struct kvf_agent *agent);

/* ---- progress ------------------------------------------------------------------------------- */

/* A descriptor for epoll (EPOLLIN), owned by the agent; -1 when the lane has none (then the caller
 * polls). Protocol: progress until it returns 0, then arm; KVF_OK means it is safe to sleep on the
 * descriptor, KVF_AGAIN means something arrived in between: progress again. A call that starts
 * something (post, notify, load, drop) undoes the arming, since it may end at once: arm again
 * before sleeping. */
KVF_API int kvf_agent_fd(const struct kvf_agent *agent);
KVF_API enum kvf_status kvf_agent_arm(struct kvf_agent *agent) KVF_MUST_USE;
/* Advances everything and makes callbacks. Returns how many things moved; bounded per call. */
KVF_API unsigned kvf_agent_progress(struct kvf_agent *agent);

/* ---- memory --------------------------------------------------------------------------------- */

/* One range of memory, as it is registered, advertised and looked for. */
struct kvf_memory {
    void *addr;
    size_t length;
    uint64_t device_id;
    enum kvf_memory_kind kind;
    uint32_t flags; /* enum kvf_memory_flag; for registration only */
    /* For registration only. Ranges of one call with the same number, not 0, lie in one allocation:
     * one registration of the transport covers all of them and what lies between. They are still
     * advertised as given, and are deregistered in one call. 0: a registration of its own. */
    uint32_t allocation;
};

enum kvf_memory_flag {
    /* The range may get another key than the one it was advertised with before: every peer that
     * loaded the old key has dropped this agent, or never posts there again. */
    KVF_MEMORY_NEW_KEY = 1,
};

/* Registers all ranges or none. The caller lends the memory until kvf_agent_deregister_many()
 * returned KVF_OK for it. Refused, and the text says which range: empty or wrapping, ranges of one
 * allocation number that differ in kind or device (KVF_EINVAL); an exact duplicate (KVF_EEXIST); a
 * range that was advertised, deregistered, and would now get another key (KVF_ENOTALLOWED; the last
 * 4096 such ranges are remembered; the transport decides about keys, RDMA changes them, TCP does
 * not): peers refuse two keys for one region. Overlapping and nested ranges are allowed.
 * KVF_ENOTSUP: VRAM without support. KVF_ENOMEM, KVF_ETRANSPORT. */
KVF_API enum kvf_status kvf_agent_register_many(struct kvf_agent *agent,
                                                const struct kvf_memory *ranges, size_t count,
                                                struct kvf_error *error) KVF_MUST_USE;
/* Deregisters all ranges or none. KVF_ENOTFOUND: one is not registered in exactly this form.
 * KVF_EBUSY: a transfer uses one, or one shares its allocation's registration with a range that is
 * not listed. KVF_EINVAL: one is listed twice. Peers are not told; those that have the metadata
 * fail when they post there. */
KVF_API enum kvf_status kvf_agent_deregister_many(struct kvf_agent *agent,
                                                  const struct kvf_memory *ranges, size_t count,
                                                  struct kvf_error *error) KVF_MUST_USE;

/* The same for one range with a registration of its own. */
KVF_API enum kvf_status kvf_agent_register(struct kvf_agent *agent, void *addr, size_t length,
                                           enum kvf_memory_kind kind, uint64_t device_id,
                                           struct kvf_error *error) KVF_MUST_USE;
KVF_API enum kvf_status kvf_agent_deregister(struct kvf_agent *agent, void *addr, size_t length,
                                             enum kvf_memory_kind kind,
                                             uint64_t device_id) KVF_MUST_USE;

/* ---- metadata and peers --------------------------------------------------------------------- */

/* The full metadata blob (NIXL's getLocalMD). *blob_p is returned owned: free it with
 * kvf_agent_blob_free. */
KVF_API enum kvf_status kvf_agent_metadata(struct kvf_agent *agent, void **blob_p, size_t *len_p,
                                           struct kvf_error *error) KVF_MUST_USE;
/* A partial blob (NIXL's getLocalPartialMD): the listed regions, each registered in exactly this
 * form (else KVF_ENOTFOUND), with the connection or without. A blob without connection can be
 * loaded only where the agent is loaded already. count 0: the connection alone, whatever
 * with_connection says. The same region twice: KVF_EEXIST. */
KVF_API enum kvf_status kvf_agent_metadata_partial(struct kvf_agent *agent,
                                                   const struct kvf_memory *regions, size_t count,
                                                   bool with_connection, void **blob_p,
                                                   size_t *len_p,
                                                   struct kvf_error *error) KVF_MUST_USE;
KVF_API void kvf_agent_blob_free(struct kvf_agent *agent, void *blob);

/* Loads a peer's blob (borrowed until return). NIXL's rules: a known name with the same connection
 * adds regions; with another connection: KVF_ENOTALLOWED and nothing changes; our own name:
 * KVF_EINVAL; malformed: KVF_EFORMAT; no common backend: KVF_ENOTSUP; a peer that was lost:
 * KVF_EDISCONNECTED until it is dropped. A blob that fails half-way leaves no trace. *peer_p is the
 * same for repeated loads of a live peer. */
KVF_API enum kvf_status kvf_agent_load(struct kvf_agent *agent, const void *blob, size_t len,
                                       struct kvf_peer_id *peer_p,
                                       struct kvf_error *error) KVF_MUST_USE;
/* Forgets the peer. New calls with its id answer KVF_ENOTFOUND at once; its transfers end as
 * KVF_ECANCELED or with their own result, and resources go when the last one is terminal. Posted
 * operations cannot be recalled: a peer that hangs without dying holds them, and the memory.
 * The same name may be loaded again at once. */
KVF_API enum kvf_status kvf_agent_drop(struct kvf_agent *agent,
                                       struct kvf_peer_id peer) KVF_MUST_USE;
/* The agent as its own peer, for transfers inside it and notifications to itself: all its regions,
 * those registered later included, are the peer's. The same id every time, until it is dropped like
 * any other. Connects on first use. A region is in use while a transfer reads or writes it on
 * either side. */
KVF_API enum kvf_status kvf_agent_self(struct kvf_agent *agent, struct kvf_peer_id *peer_p,
                                       struct kvf_error *error) KVF_MUST_USE;
/* The peer's name, valid until it is dropped; NULL for a stale id. */
KVF_API const char *kvf_agent_peer_name(const struct kvf_agent *agent, struct kvf_peer_id peer);

/* ---- transfers ------------------------------------------------------------------------------ */

/* One side of one region: where block `id` lies. address = base + id * stride + offset. */
struct kvf_block_table {
    uint64_t base;
    uint64_t stride_bytes;
    uint64_t block_count; /* ids at or above are refused */
    uint64_t offset_bytes;
    uint64_t device_id;
    enum kvf_memory_kind kind;
};

/* The same slice of every listed block of one region, on both sides. */
struct kvf_plan_region {
    struct kvf_block_table local;
    struct kvf_block_table remote;
    uint64_t length_bytes; /* per block; offset + length <= stride, stride 0 only with one block */
    uint32_t group;        /* which of the plan's block lists applies */
};

/* Block ids, paired by position. */
struct kvf_block_pairs {
    const uint32_t *local_ids;
    const uint32_t *remote_ids;
    size_t count;
};

/* A transfer is a plan, never one record per descriptor. Borrowed until kvf_agent_post returns.
 * Order: region, then block. Runs that touch on both sides become one operation. */
struct kvf_plan {
    const struct kvf_plan_region *regions;
    size_t region_count;
    const struct kvf_block_pairs *groups;
    size_t group_count;
};

/* Whether a post of this plan would be accepted now: the plan in itself, the local regions, and
 * what the peer has advertised so far. Posts nothing. Errors as kvf_agent_post(). */
KVF_API enum kvf_status kvf_agent_check_plan(struct kvf_agent *agent, struct kvf_peer_id peer,
                                             const struct kvf_plan *plan,
                                             struct kvf_error *error) KVF_MUST_USE;

/* Starts a transfer. Everything is checked first: ids against block_count, every address against
 * one registered local region and one region the peer advertised; nothing is posted otherwise
 * (KVF_EINVAL with the id or address in the text). `notification` (may be NULL with length 0:
 * none) is copied; it leaves only after all bytes are visible at the target. user_data comes back
 * in transfer_done. An empty plan is allowed when there is a notification.
 * A large one (over 1024 runs or 8 MiB) goes to the transport in slices, the first in here, the
 * rest from progress, of each transfer in turn: a small one behind it does not wait for all of it.
 * Errors: KVF_ENOTFOUND stale peer, KVF_EDISCONNECTED lost peer, KVF_ENOMEM. */
KVF_API enum kvf_status kvf_agent_post(struct kvf_agent *agent, enum kvf_operation operation,
                                       struct kvf_peer_id peer, const struct kvf_plan *plan,
                                       const void *notification, size_t notification_len,
                                       uint64_t user_data, struct kvf_transfer_id *transfer_p,
                                       struct kvf_error *error) KVF_MUST_USE;

/* Checks a plan as kvf_agent_post() does and keeps a copy: 8 bytes a pair, and one table of regions
 * for all transfers whose regions are the same. Nothing is posted, no memory is pinned. The id is
 * the caller's until kvf_agent_release(). An empty plan is allowed. */
KVF_API enum kvf_status kvf_agent_prepare(struct kvf_agent *agent, enum kvf_operation operation,
                                          struct kvf_peer_id peer, const struct kvf_plan *plan,
                                          struct kvf_transfer_id *transfer_p,
                                          struct kvf_error *error) KVF_MUST_USE;
/* Posts a prepared transfer, the first time or again. KVF_EBUSY while it is active; KVF_ENOTFOUND
 * for a stale id, one of kvf_agent_post(), or a peer that was dropped since (also when it was
 * loaded again); KVF_EINVAL when the plan is no longer covered because memory was deregistered, or
 * an empty plan has no notification. The rest as kvf_agent_post(). */
KVF_API enum kvf_status kvf_agent_post_prepared(struct kvf_agent *agent,
                                                struct kvf_transfer_id transfer,
                                                const void *notification, size_t notification_len,
                                                uint64_t user_data,
                                                struct kvf_error *error) KVF_MUST_USE;
/* How a transfer stands. Each output may be NULL; *result_p is KVF_IN_PROGRESS unless it is done,
 * *stats_p is zero before the first post. KVF_ENOTFOUND: the id is stale. */
KVF_API enum kvf_status kvf_agent_transfer_query(const struct kvf_agent *agent,
                                                 struct kvf_transfer_id transfer,
                                                 enum kvf_transfer_state *state_p,
                                                 enum kvf_status *result_p,
                                                 struct kvf_transfer_stats *stats_p) KVF_MUST_USE;
/* Lets go of a transfer; the id is stale at once and no callback is made for it any more. An active
 * one is not recalled, no transport can: what was handed to the transport runs to its end, the rest
 * is not posted any more, the memory stays pinned until then (kvf_agent_usage() counts it, and
 * deregistering answers KVF_EBUSY). Its notification leaves only if every byte had been handed to
 * the transport before. KVF_ENOTFOUND: stale. */
KVF_API enum kvf_status kvf_agent_release(struct kvf_agent *agent,
                                          struct kvf_transfer_id transfer) KVF_MUST_USE;

/* Sends a notification without a transfer; the message is copied. Delivery is reliable while the
 * connection lives and ordered among notifications to the same peer. */
KVF_API enum kvf_status kvf_agent_notify(struct kvf_agent *agent, struct kvf_peer_id peer,
                                         const void *message, size_t message_len,
                                         uint64_t user_data, struct kvf_error *error) KVF_MUST_USE;

/* What is alive, for leak gates and debug output. */
struct kvf_agent_usage {
    size_t regions;
    size_t peers;         /* loaded, dead ones included */
    size_t peers_closing; /* dropped, waiting for their last operation */
    size_t transfers;     /* active, released ones included */
    size_t notifications; /* handed to the transport, not yet complete */
    size_t prepared;      /* not yet released, active or not */
};
KVF_API void kvf_agent_usage(const struct kvf_agent *agent, struct kvf_agent_usage *usage);

/* What has happened since the agent was created. Bytes count at the initiator, when a transfer
 * ended with KVF_OK. */
struct kvf_agent_counters {
    size_t size; /* of the caller's struct; set by KVF_AGENT_COUNTERS_INIT */
    uint64_t bytes_written;
    uint64_t bytes_read;
    uint64_t writes_done;
    uint64_t reads_done;
    uint64_t transfers_failed;       /* ended with an error, cancelled ones included */
    uint64_t posts_refused;          /* posts and prepares that answered with an error */
    uint64_t runs_posted;            /* operations handed to the transport */
    uint64_t notifications_sent;     /* with a transfer or alone, handed to the transport */
    uint64_t notifications_failed;   /* lone ones that could not be delivered */
    uint64_t notifications_received; /* and handed to the callback, if there is one */
    uint64_t messages_refused;       /* arrived in no form of a notification */
    uint64_t messages_dropped;       /* arrived when there was no memory to keep them */
    uint64_t bytes_registered;       /* as advertised, overlaps counted twice */
    uint64_t bytes_deregistered;
    uint64_t loads_refused;
    uint64_t peers_lost;
};
#define KVF_AGENT_COUNTERS_INIT                                                                    \
    {                                                                                              \
        .size = sizeof(struct kvf_agent_counters)                                                  \
    }
/* counters->size says how much of it is written. */
KVF_API void kvf_agent_counters(const struct kvf_agent *agent, struct kvf_agent_counters *counters);

/* NIXL's number for a status (NIXL_SUCCESS 0, NIXL_IN_PROG 1, errors from -1 on; the table is in
 * docs/agent.md). Any thread. */
KVF_API int kvf_status_nixl(enum kvf_status status);

#ifdef __cplusplus
}
#endif
#endif
