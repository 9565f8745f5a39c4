/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_HANDSHAKE_H
#define KVFI_WIRE_HANDSHAKE_H

/*
 * The side channel: one request frame, two reply frames (payload, timestamp), all msgpack.
 * ZeroMQ's own frames (identity, delimiter) are not seen here.
 */

#include "wire/bytes.h"

#define KVFI_HANDSHAKE_REQUEST_LEN_MAX   256
#define KVFI_HANDSHAKE_PAYLOAD_LEN_MAX   ((size_t)128 << 20)
#define KVFI_HANDSHAKE_TIMESTAMP_LEN_MAX 9
#define KVFI_RANK_MAX                    65535 /* highest tp or pp rank we believe in */
#define KVFI_HANDSHAKE_CAP_COUNT_MAX     64    /* entries of kvferry_caps */
#define KVFI_COMPAT_HASH_LEN             64    /* lowercase hex characters */

struct kvfi_handshake_request {
    uint32_t pp_rank;
    uint32_t tp_rank;
    bool legacy; /* the 2-element form of old peers, which has no pp_rank (then 0) */
};

/* Always the 3-element form; legacy is ignored. KVF_EINVAL for a rank above KVFI_RANK_MAX. */
enum kvf_status kvfi_handshake_request_encode(const struct kvfi_handshake_request *request,
                                              struct kvfi_buf *buf,
                                              struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_handshake_request_decode(const void *data, size_t len,
                                              struct kvfi_handshake_request *request,
                                              struct kvf_error *error) KVF_MUST_USE;

/* What a kvferry peer says it understands beyond vLLM, key "kvferry_caps" of the payload map. */
enum kvfi_cap {
    KVFI_CAP_PUSH_FAIL = 1u << 0, /* "push_fail": takes PUSH_FAIL: notifications */
    KVFI_CAP_PUSH_DROP = 1u << 1, /* "push_drop": takes PUSH_DROP: notifications */
};

struct kvfi_handshake_payload {
    char compatibility_hash[KVFI_COMPAT_HASH_LEN + 1];
    struct kvfi_span agent_metadata; /* bytes of wire/agent_metadata.h; decoded: into the input */
    uint32_t caps;                   /* bits of enum kvfi_cap; 0 leaves the key out */
};

/* KVF_EINVAL for a hash that is not 64 lowercase hex characters or an unknown cap bit. */
enum kvf_status kvfi_handshake_payload_encode(const struct kvfi_handshake_payload *payload,
                                              struct kvfi_buf *buf,
                                              struct kvf_error *error) KVF_MUST_USE;

/* Unknown keys and unknown capability names are ignored; a missing or mistyped key is KVF_EFORMAT
 * and named. payload->agent_metadata points into data. allocator serves scratch memory only. */
enum kvf_status kvfi_handshake_payload_decode(const void *data, size_t len,
                                              const struct kvf_allocator *allocator,
                                              struct kvfi_handshake_payload *payload,
                                              struct kvf_error *error) KVF_MUST_USE;

/* The listener's monotonic clock in seconds, as a float64. */
enum kvf_status kvfi_handshake_timestamp_encode(double seconds, struct kvfi_buf *buf,
                                                struct kvf_error *error) KVF_MUST_USE;
/* Any finite msgpack number. */
enum kvf_status kvfi_handshake_timestamp_decode(const void *data, size_t len, double *seconds,
                                                struct kvf_error *error) KVF_MUST_USE;

#endif
