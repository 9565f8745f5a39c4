/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CHANNEL_CLIENT_H
#define KVFI_CHANNEL_CLIENT_H

/*
 * The asking side of the handshake: a thread ("kvf-control") that talks to any number of peers at
 * once. Each call has a socket and a deadline of its own, so one dead peer, and one name that does
 * not resolve, delays nobody else.
 *
 * The requester is one thread: it starts calls, sleeps on the descriptor and takes results. Every
 * call that was started gives exactly one result, or none when the client is destroyed first.
 */

#include "kvferry/status.h"

struct kvfi_handshake_client;

#define KVFI_HANDSHAKE_CALLS_MAX_DEFAULT 256

/* calls_max: results not taken yet, calls under way included; 0: the default. Blocks until the
 * thread runs. Returns owned. */
enum kvf_status kvfi_handshake_client_create(size_t calls_max,
                                             const struct kvf_allocator *allocator,
                                             struct kvfi_handshake_client **client_p,
                                             struct kvf_error *error) KVF_MUST_USE;
/* Gives up what is under way and waits for the thread (and for a name lookup that is under way).
 * Results not freed before are leaked by their taker. NULL is allowed. */
void kvfi_handshake_client_destroy(struct kvfi_handshake_client *client);

/* Strings are borrowed until return. KVF_EINVAL, KVF_ENOMEM, KVF_ELIMIT (calls_max). Requester's
 * thread; never blocks. */
enum kvf_status kvfi_handshake_client_start(struct kvfi_handshake_client *client,
                                            uint64_t handshake_id, const char *host, uint16_t port,
                                            uint32_t pp_rank, uint32_t tp_rank, uint64_t timeout_ns,
                                            struct kvf_error *error) KVF_MUST_USE;

struct kvfi_handshake_result {
    uint64_t handshake_id;
    enum kvf_status status; /* KVF_OK with payload; KVF_ETIMEDOUT, KVF_EFORMAT, ... with a reason */
    const void *payload;    /* not trusted; owned by the result */
    size_t payload_len;
    bool has_timestamp;
    double timestamp_s; /* the peer's monotonic clock */
    struct kvf_error error;
};

/* The next result, owned by the caller until kvfi_handshake_result_free; NULL: none. Requester's
 * thread; never blocks. */
struct kvfi_handshake_result *kvfi_handshake_client_take(struct kvfi_handshake_client *client);
void kvfi_handshake_result_free(struct kvfi_handshake_client *client,
                                struct kvfi_handshake_result *result);

/* Readable while results wait; clear it (requester's thread) before taking until NULL. */
int kvfi_handshake_client_fd(const struct kvfi_handshake_client *client);
void kvfi_handshake_client_clear(struct kvfi_handshake_client *client);

#endif
