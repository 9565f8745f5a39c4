/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_SERVICE_CAST_H
#define ENGINE_SERVICE_CAST_H

/* For tests: three engines with a tiny model in one process, and a client for their HTTP. */

#include "engine/api.h"
#include "http/client.h"
#include "http/json.h"

struct service {
    struct engine *engine;
    struct kvfi_http_server *server;
    struct engine_api *api;
};

extern struct event_base *loop;
extern struct service single; /* role both */
extern struct service prefill;
extern struct service decode;

struct call {
    struct kvfi_http_call *call;
    struct engine_text body;
    enum kvf_status status;
    int http_status;
    bool done;
    bool leave_at_first_byte;
};

/* cmocka's group set-up and tear-down. */
int cast_open(void **state);
int cast_close(void **state);

/* Starts a call; id (X-Request-Id) and body may be NULL. */
void cast_send(const struct service *service, const char *method, const char *path, const char *id,
               const char *body, struct call *call);
void cast_wait(struct call *call);
/* The answer's body; frees the text. */
json_t *cast_json(struct call *call);
/* POST, and asserts the HTTP status. */
json_t *cast_ask(const struct service *service, const char *path, const char *body, int status);
/* Until every count of the engine is that of rest. Its thread publishes a moment after its last
 * act. */
void cast_rest(struct service *service);

#endif
