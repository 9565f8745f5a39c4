/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_PROXY_POOL_H
#define KVFERRY_CLI_PROXY_POOL_H

/*
 * The engines behind a proxy: where they are, whether they live, which one is next.
 *
 * An engine is probed only while there is a reason to: it is unknown or dead, a leg waits for it,
 * its last probe failed, or a request is about to use coordinates that were read too long ago. A
 * proxy without requests whose engines are up sends nothing.
 *
 * One thread, that of the event_base.
 */

#include "cli/leg.h"
#include "http/client.h"

#include <stdint.h>

struct event_base;
struct kvfi_timer;
struct kvfi_pool;

enum kvfi_side { KVFI_SIDE_PREFILL, KVFI_SIDE_DECODE };
enum { KVFI_SIDE_COUNT = 2 };

/* "prefill", "decode". */
const char *kvfi_side_name(enum kvfi_side side);

enum kvfi_upstream_state {
    KVFI_UPSTREAM_UNKNOWN, /* not probed yet */
    KVFI_UPSTREAM_UP,
    KVFI_UPSTREAM_DOWN,     /* does not answer, see reason */
    KVFI_UPSTREAM_UNUSABLE, /* answers, but cannot play its part, see reason */
};

/* "unknown", "up", "down", "unusable". */
const char *kvfi_upstream_state_name(enum kvfi_upstream_state state);

struct kvfi_upstream {
    struct kvfi_pool *pool;
    enum kvfi_side side;
    char *name; /* the URL as it was given */
    struct kvfi_http_url url;
    bool foreign;       /* not a kvferry engine: coordinates from the command line */
    char health[576];   /* paths below the URL's own */
    char describe[576]; /* of the coordinates */
    struct kvfi_coordinates coordinates;
    char model[256];  /* "" when not known */
    char started[64]; /* tells one life of an engine from the next */
    enum kvfi_upstream_state state;
    char reason[400]; /* why it is not up */

    unsigned leg_count;   /* legs under way or about to be */
    unsigned watch_count; /* requests that depend on it without a leg */
    uint64_t leg_total;
    uint64_t failure_total;
    uint64_t down_total;

    /* Private. */
    struct kvfi_timer *timer;
    struct kvfi_http_call *probe;
    bool probe_reads; /* coordinates, not health */
    bool probe_again;
    char *answer;
    size_t answer_len;
    uint64_t checked_ms; /* end of the last probe that read coordinates; 0: read before use */
    uint64_t ended_ms;   /* end of the last probe; 0: none yet */
    uint64_t probe_started_ms;
    uint64_t first_failure_ms; /* 0: the last probe was good */
};

struct kvfi_pool_options {
    const char *mode;       /* "push": what an engine must speak */
    uint32_t dead_after_ms; /* an engine whose probes fail for so long is down */
    uint32_t fresh_ms;      /* coordinates read longer ago are read again before use */
    bool least_outstanding; /* else round-robin */
    /* A probe of the engine has ended: waiting requests may go on. */
    void (*on_checked)(void *ctx, struct kvfi_upstream *upstream);
    /* The engine went from up to down: its legs must fail. */
    void (*on_down)(void *ctx, struct kvfi_upstream *upstream);
    void *ctx;
};

/* The pool borrows base and client until destroy. Returned owned. */
KVF_MUST_USE enum kvf_status kvfi_pool_create(struct event_base *base,
                                              struct kvfi_http_client *client,
                                              const struct kvfi_pool_options *options,
                                              struct kvfi_pool **pool_p, struct kvf_error *error);
/* Starts no more probes and calls nobody back. Before the client is destroyed. */
void kvfi_pool_close(struct kvfi_pool *pool);
/* After the client was destroyed. NULL is allowed. */
void kvfi_pool_destroy(struct kvfi_pool *pool);

/* Adds an engine and probes it at once. spec: "http://host:port", for an engine that is not
 * kvferry's followed by ",engine-id=X,side=HOST:PORT[,tp=N][,pp=N][,model=NAME]" (prefill) or
 * ",foreign" (decode). KVF_EINVAL names the part that is wrong. */
KVF_MUST_USE enum kvf_status kvfi_pool_add(struct kvfi_pool *pool, enum kvfi_side side,
                                           const char *spec, struct kvf_error *error);

/* The engine to use next on a side, for a request that came at since_ms. KVF_IN_PROGRESS: none is
 * up, but the first probe since then of one of them is under way and on_checked will come; later
 * probes are not waited for, or a few silent engines could keep a request for ever. KVF_ENOTFOUND:
 * none; the text names each engine and its reason. */
KVF_MUST_USE enum kvf_status kvfi_pool_choose(struct kvfi_pool *pool, enum kvfi_side side,
                                              uint64_t since_ms, struct kvfi_upstream **upstream_p,
                                              struct kvf_error *error);

/* Probes every engine of a side that is not up, so that one that came back is used at once. */
void kvfi_pool_revive(struct kvfi_pool *pool, enum kvfi_side side);

/* KVF_OK: the coordinates were read a moment ago, or after since_ms. KVF_IN_PROGRESS: they are
 * being read again, on_checked will come. */
KVF_MUST_USE enum kvf_status kvfi_upstream_refresh(struct kvfi_upstream *upstream,
                                                   uint64_t since_ms);

/* A leg failed: probe now, and read the coordinates before the next use. */
void kvfi_upstream_suspect(struct kvfi_upstream *upstream);

/* Legs under way and requests that depend on the engine; while there is one it is probed. */
void kvfi_upstream_hold(struct kvfi_upstream *upstream);
void kvfi_upstream_release(struct kvfi_upstream *upstream);
void kvfi_upstream_watch(struct kvfi_upstream *upstream);
void kvfi_upstream_unwatch(struct kvfi_upstream *upstream);

/* All engines, for reports; index from 0, NULL after the last. */
const struct kvfi_upstream *kvfi_pool_at(const struct kvfi_pool *pool, size_t index);

/* Milliseconds of the monotonic clock. */
uint64_t kvfi_now_ms(void);

/* Reads the spec of an engine: name, url, foreign, coordinates, model. Pure. */
KVF_MUST_USE enum kvf_status kvfi_upstream_parse(enum kvfi_side side, const char *spec,
                                                 struct kvfi_upstream *upstream,
                                                 struct kvf_error *error);

#endif
