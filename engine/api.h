/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_API_H
#define ENGINE_API_H

/*
 * The engine's HTTP API, as vLLM's: completions, chat completions, models, health, metrics, and our
 * own /kvferry/coordinates and /kvferry/usage. Everything runs on the HTTP thread.
 */

#include "engine/engine.h"
#include "http/server.h"

struct engine_api;

/* Adds the routes and takes what the engine puts out. Server and engine are borrowed; the server is
 * destroyed before the API, the engine after it. Returns owned. */
KVF_MUST_USE enum kvf_status engine_api_create(struct event_base *base,
                                               struct kvfi_http_server *server,
                                               struct engine *engine, struct engine_api **api_p,
                                               struct kvf_error *error);
/* The engine has been stopped and every job was delivered or is dropped here. NULL is allowed. */
void engine_api_destroy(struct engine_api *api);

/* Calls that are not over. */
size_t engine_api_call_count(const struct engine_api *api);

#endif
