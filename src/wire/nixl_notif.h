/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_NIXL_NOTIF_H
#define KVFI_WIRE_NIXL_NOTIF_H

/* The body of the one active message NIXL sends: who notifies, and what. */

#include "wire/bytes.h"

#define KVFI_NIXL_NOTIF_LEN_MAX ((size_t)16 << 20) /* whole body */
#define KVFI_NIXL_NOTIF_AM_ID   0                  /* UCX active message id */

struct kvfi_nixl_notif {
    struct kvfi_span name; /* sender's agent name, never empty */
    struct kvfi_span msg;  /* payload, may be empty */
};

/* Appends the body. KVF_EINVAL for an empty or too long name, KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_nixl_notif_encode(const struct kvfi_nixl_notif *notif, struct kvfi_buf *buf,
                                       struct kvf_error *error) KVF_MUST_USE;

/* The same in two steps, for a sender who notifies often: begin fills an empty buf with what is the
 * same for every message of that name, finish appends the payload. Cutting buf back to its length
 * in between makes it ready for the next finish. */
enum kvf_status kvfi_nixl_notif_begin(struct kvfi_span name, struct kvfi_buf *buf,
                                      struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_nixl_notif_finish(struct kvfi_span msg, struct kvfi_buf *buf,
                                       struct kvf_error *error) KVF_MUST_USE;

/* Spans point into data. Takes no memory. KVF_EFORMAT, KVF_ELIMIT. */
enum kvf_status kvfi_nixl_notif_decode(const void *data, size_t len, struct kvfi_nixl_notif *notif,
                                       struct kvf_error *error) KVF_MUST_USE;

#endif
