/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_LEG_H
#define KVFERRY_CLI_LEG_H

/*
 * The two bodies that one client request becomes. Pure functions, JSON in and text out: no I/O,
 * any thread. The keys are those of vLLM's push contract; an engine that misses one of the
 * mandatory ones may end, so all of them are always sent.
 */

#include "http/json.h"
#include "kvferry/status.h"

#include <stdint.h>

/* Where the decode engine finds the prefill engine. */
struct kvfi_coordinates {
    char engine_id[128];
    char host[256];
    uint16_t port;
    uint32_t tp_size;
    uint32_t pp_size;
};

/* One dispatch of one client request. Strings are borrowed. */
struct kvfi_leg_ids {
    const char *request_id;  /* the X-Request-Id of both legs */
    const char *transfer_id; /* fresh for each dispatch */
};

/* What a client may send: an object; "n" and "stream", when there, of the right type. KVF_EINVAL
 * names the key. */
KVF_MUST_USE enum kvf_status kvfi_leg_check(const json_t *body, struct kvf_error *error);

/* The client's body asks for a stream. */
bool kvfi_leg_is_stream(const json_t *body);

/* One token, no stream, KV cache kept for the other engine. *text_p is on the heap, free() it. The
 * body is not changed. Several prompts and n samples are handed on as they are: both engines number
 * them in the same way. KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status kvfi_leg_prefill(const json_t *body, const struct kvfi_leg_ids *ids,
                                              char **text_p, size_t *len_p,
                                              struct kvf_error *error);

/* The client's body with the place its KV cache comes from. As above. */
KVF_MUST_USE enum kvf_status kvfi_leg_decode(const json_t *body, const struct kvfi_leg_ids *ids,
                                             const struct kvfi_coordinates *prefill, char **text_p,
                                             size_t *len_p, struct kvf_error *error);

/* Reads an engine's answer to GET /kvferry/coordinates. KVF_EINVAL names the key. */
KVF_MUST_USE enum kvf_status kvfi_coordinates_read(const json_t *answer,
                                                   struct kvfi_coordinates *coordinates_p,
                                                   struct kvf_error *error);

#endif
