/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_PUSH_REG_H
#define KVFI_WIRE_PUSH_REG_H

/* PUSH_REG: a decode rank tells a prefill rank which of its blocks wait for one request. */

#include "wire/bytes.h"

#define KVFI_PUSH_REG_PREFIX       "PUSH_REG:"
#define KVFI_PUSH_REG_PREFIX_LEN   9
#define KVFI_PUSH_REG_LEN_MAX      ((size_t)16 << 20)
#define KVFI_PUSH_REG_GROUP_MAX    256
#define KVFI_PUSH_REG_BLOCK_MAX    ((size_t)1 << 20) /* of all groups together */
#define KVFI_PUSH_REG_TEXT_LEN_MAX 4096
#define KVFI_PUSH_REG_PARALLEL_MAX 65536 /* decode_tp_size, remote_tp_size, remote_pp_size */
#define KVFI_BLOCK_ID_MAX          INT32_MAX

struct kvfi_block_group {
    const uint32_t *ids; /* logical block ids */
    size_t count;
};

/*
 * For encoding: everything is the caller's. After decoding: strings and groups are one allocation
 * that kvfi_push_reg_free() releases; the input is not referenced.
 * Keys the receiver does not need are optional when decoding; absent ones are NULL or 0. The
 * encoder wants them all except transfer_id, which is ours: vLLM neither sends nor reads it.
 */
struct kvfi_push_reg {
    const char *request_id; /* decode's, echoed in the completion */
    const char *decode_engine_id;
    const char *decode_host;
    uint16_t decode_port;
    uint32_t decode_tp_size;
    const struct kvfi_block_group *groups; /* local_block_ids: only blocks decode has not cached */
    size_t group_count;
    const char *remote_engine_id; /* optional from here on */
    const char *remote_host;
    uint16_t remote_port;
    uint32_t remote_tp_size;
    uint32_t remote_pp_size;
    const char *transfer_id;
    bool has_remote_port;
    bool has_remote_tp_size;
    bool has_remote_pp_size;
    const struct kvf_allocator *owner;
    void *memory;
};

/* Appends the prefix and the map. KVF_EINVAL names the field; KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_push_reg_encode(const struct kvfi_push_reg *reg, struct kvfi_buf *buf,
                                     struct kvf_error *error) KVF_MUST_USE;

/* data is the whole notification, prefix included. Unknown keys are ignored. KVF_EFORMAT names the
 * key that is missing, mistyped or out of range. KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_push_reg_decode(const void *data, size_t len,
                                     const struct kvf_allocator *allocator,
                                     struct kvfi_push_reg *reg,
                                     struct kvf_error *error) KVF_MUST_USE;

void kvfi_push_reg_free(struct kvfi_push_reg *reg);

#endif
