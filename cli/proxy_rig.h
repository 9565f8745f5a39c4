/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_PROXY_RIG_H
#define KVFERRY_CLI_PROXY_RIG_H

/* Test gear. */

#include "cli/proxy.h"
#include "http/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A proxy, fake engines that do what a test wants, and a client, all on one loop. */

enum behaviour {
    ANSWERS,   /* a whole JSON answer */
    STREAMS,   /* three events and [DONE] */
    BEGINS,    /* the first event, then nothing */
    CUTS,      /* the first event, then a cut */
    FAILS_500, /* an error answer */
    REFUSES_400,
    HANGS, /* takes the request and says nothing */
};

struct engine {
    struct kvfi_http_server *server;
    const char *role;
    const char *model;
    const char *mode;
    int started;
    enum behaviour behaviour;
    bool deaf; /* answers no probe either */
    int request_count;
    int left_count; /* requests whose client went away */
    json_t *body;   /* of the last request */
    char request_id[160];
    char path[64];
    struct kvfi_reply *held;
};

enum { ENGINE_COUNT_MAX = 4 };

struct rig {
    struct event_base *loop;
    struct engine engines[ENGINE_COUNT_MAX];
    char *specs[ENGINE_COUNT_MAX];
    size_t prefill_count;
    size_t decode_count;
    struct kvfi_proxy *proxy;
    struct kvfi_http_client *client;
};

struct answer {
    struct kvfi_http_call *call;
    bool done;
    enum kvf_status status;
    int http_status;
    char text[4096];
    char type[80];
    char request_id[160];
};

#define HELLO "{\"model\":\"m\",\"prompt\":\"hello\",\"stream\":true}"

#define WAIT(rig, condition)                                                                       \
    while (!(condition))                                                                           \
    kvfi_loop_step((rig)->loop, true)

/* Listens on the port (0: any) and serves the paths of an engine. */
void rig_open_engine(struct rig *rig, struct engine *engine, uint16_t port);
/* The first prefill_count engines are prefill engines. They may be changed before the proxy begins.
 */
void rig_start(struct rig *rig, size_t prefill_count, size_t decode_count);
/* The proxy with these options, or with those of rig_proxy_options. */
void rig_begin_proxy_with(struct rig *rig, const struct kvfi_proxy_options *options);
void rig_begin_proxy(struct rig *rig);
/* Frees everything. */
void rig_stop(struct rig *rig);
/* A request to the proxy; body and request_id may be NULL. The answer is filled while the loop
 * runs. */
void rig_send_request(struct rig *rig, struct answer *answer, const char *method, const char *path,
                      const char *body, const char *request_id);
/* POST /v1/completions. */
void rig_complete(struct rig *rig, struct answer *answer, const char *body);
/* Until no request and no leg is under way. */
void rig_wait_rest(struct rig *rig);
/* Waits for the answer: an error of this status in the usual form that holds the words. */
void rig_assert_error(struct rig *rig, struct answer *answer, int http_status, const char *words);
/* Options for a proxy before the engines of the rig. */
struct kvfi_proxy_options rig_proxy_options(const struct rig *rig);

#endif
