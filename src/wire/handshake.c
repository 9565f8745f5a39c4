/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "wire/compat_hash.h"
#include "wire/msgpack_doc.h"

#include <math.h>
#include <string.h>

#define REQUEST_WORD "get_meta_msg"
#define WHAT_REQUEST "handshake request"
#define WHAT_PAYLOAD "handshake payload"
#define WHAT_CLOCK   "handshake timestamp"

#define KEY_HASH     "compatibility_hash"
#define KEY_METADATA "agent_metadata_bytes"
#define KEY_CAPS     "kvferry_caps"

#define PAYLOAD_ELEMENT_COUNT_MAX 1024
#define CAP_NAME_LEN_MAX          64

static const struct {
    uint32_t bit;
    const char *name;
} cap_names[] = {
    {KVFI_CAP_PUSH_FAIL, "push_fail"},
    {KVFI_CAP_PUSH_DROP, "push_drop"},
};
#define CAP_NAME_COUNT (sizeof(cap_names) / sizeof(cap_names[0]))
#define CAPS_KNOWN     (KVFI_CAP_PUSH_FAIL | KVFI_CAP_PUSH_DROP)

enum kvf_status kvfi_handshake_request_encode(const struct kvfi_handshake_request *request,
                                              struct kvfi_buf *buf, struct kvf_error *error)
{
    if (request->pp_rank > KVFI_RANK_MAX || request->tp_rank > KVFI_RANK_MAX)
        return kvf_fail(error, KVF_EINVAL, WHAT_REQUEST ": rank (pp %u, tp %u) is above %d",
                        request->pp_rank, request->tp_rank, KVFI_RANK_MAX);
    msgpack_packer packer;
    kvfi_mp_packer(&packer, buf);
    msgpack_pack_array(&packer, 3);
    kvfi_mp_pack_bin(&packer, kvfi_span_str(REQUEST_WORD));
    msgpack_pack_uint32(&packer, request->pp_rank);
    msgpack_pack_uint32(&packer, request->tp_rank);
    return kvfi_buf_status(buf, error);
}

static enum kvf_status read_rank(const char *name, const msgpack_object *object, uint32_t *out,
                                 struct kvf_error *error)
{
    struct kvfi_mp_field field = {.message = WHAT_REQUEST, .name = name, .object = object};
    uint64_t rank;
    KVF_TRY(kvfi_mp_u64(&field, 0, KVFI_RANK_MAX, &rank, error));
    *out = (uint32_t)rank;
    return KVF_OK;
}

static enum kvf_status read_request(const msgpack_object *root,
                                    struct kvfi_handshake_request *request, struct kvf_error *error)
{
    struct kvfi_mp_field whole = {.message = WHAT_REQUEST, .name = "request", .object = root};
    struct kvfi_quote quote;
    struct kvfi_span word;
    msgpack_object_array array;
    KVF_TRY(kvfi_mp_array(&whole, 3, &array, error));
    if (array.size < 2)
        return kvf_fail(error, KVF_EFORMAT, WHAT_REQUEST ": %u elements, expected 3 (or 2)",
                        array.size);
    struct kvfi_mp_field first = {
        .message = WHAT_REQUEST, .name = "message", .object = &array.ptr[0]};
    KVF_TRY(kvfi_mp_bin(&first, &word, error));
    if (!kvfi_span_equal(word, kvfi_span_str(REQUEST_WORD)))
        return kvf_fail(error, KVF_EFORMAT, WHAT_REQUEST ": '%s' is unknown, expected %s",
                        kvfi_quote(&quote, word), REQUEST_WORD);
    struct kvfi_handshake_request found = {.legacy = array.size == 2};
    if (!found.legacy)
        KVF_TRY(read_rank("pp_rank", &array.ptr[1], &found.pp_rank, error));
    KVF_TRY(read_rank("tp_rank", &array.ptr[array.size - 1], &found.tp_rank, error));
    *request = found;
    return KVF_OK;
}

enum kvf_status kvfi_handshake_request_decode(const void *data, size_t len,
                                              struct kvfi_handshake_request *request,
                                              struct kvf_error *error)
{
    static const struct kvfi_mp_limits limits = {
        .len_max = KVFI_HANDSHAKE_REQUEST_LEN_MAX, .element_count_max = 4, .depth_max = 1};
    struct kvfi_mp_doc doc;
    KVF_TRY(kvfi_mp_parse(WHAT_REQUEST, data, len, &limits, NULL, &doc, error));
    enum kvf_status status = read_request(&doc.root, request, error);
    kvfi_mp_free(&doc);
    return status;
}

static void pack_caps(msgpack_packer *packer, uint32_t caps)
{
    size_t count = 0;
    for (size_t i = 0; i < CAP_NAME_COUNT; i++)
        count += (caps & cap_names[i].bit) != 0;
    kvfi_mp_pack_text(packer, KEY_CAPS);
    msgpack_pack_array(packer, count);
    for (size_t i = 0; i < CAP_NAME_COUNT; i++) {
        if (caps & cap_names[i].bit)
            kvfi_mp_pack_text(packer, cap_names[i].name);
    }
}

enum kvf_status kvfi_handshake_payload_encode(const struct kvfi_handshake_payload *payload,
                                              struct kvfi_buf *buf, struct kvf_error *error)
{
    if (!kvfi_compat_hash_valid(payload->compatibility_hash))
        return kvf_fail(error, KVF_EINVAL,
                        WHAT_PAYLOAD ": the compatibility hash is not 64 lowercase hex characters");
    if (payload->caps & ~(uint32_t)CAPS_KNOWN)
        return kvf_fail(error, KVF_EINVAL, WHAT_PAYLOAD ": capability bits 0x%x are unknown",
                        payload->caps & ~(uint32_t)CAPS_KNOWN);
    if (payload->agent_metadata.len > KVFI_HANDSHAKE_PAYLOAD_LEN_MAX / 2)
        return kvf_fail(error, KVF_ELIMIT,
                        WHAT_PAYLOAD ": agent metadata of %zu bytes, at most %zu",
                        payload->agent_metadata.len, KVFI_HANDSHAKE_PAYLOAD_LEN_MAX / 2);
    msgpack_packer packer;
    kvfi_mp_packer(&packer, buf);
    msgpack_pack_map(&packer, payload->caps ? 3 : 2);
    kvfi_mp_pack_text(&packer, KEY_HASH);
    kvfi_mp_pack_text(&packer, payload->compatibility_hash);
    kvfi_mp_pack_text(&packer, KEY_METADATA);
    kvfi_mp_pack_bin(&packer, payload->agent_metadata);
    if (payload->caps)
        pack_caps(&packer, payload->caps);
    return kvfi_buf_status(buf, error);
}

static enum kvf_status read_caps(const struct kvfi_mp_field *field, uint32_t *caps,
                                 struct kvf_error *error)
{
    msgpack_object_array array;
    *caps = 0;
    if (kvfi_mp_absent(field))
        return KVF_OK;
    KVF_TRY(kvfi_mp_array(field, KVFI_HANDSHAKE_CAP_COUNT_MAX, &array, error));
    for (uint32_t i = 0; i < array.size; i++) {
        struct kvfi_mp_field entry = {
            .message = WHAT_PAYLOAD, .name = KEY_CAPS, .object = &array.ptr[i]};
        struct kvfi_span name;
        KVF_TRY(kvfi_mp_text(&entry, CAP_NAME_LEN_MAX, &name, error));
        for (size_t k = 0; k < CAP_NAME_COUNT; k++) {
            if (kvfi_span_equal(name, kvfi_span_str(cap_names[k].name)))
                *caps |= cap_names[k].bit;
        }
    }
    return KVF_OK;
}

static enum kvf_status read_payload(const msgpack_object *root,
                                    struct kvfi_handshake_payload *payload, struct kvf_error *error)
{
    struct kvfi_handshake_payload found = {0};
    struct kvfi_quote quote;
    struct kvfi_span hash;
    KVF_TRY(kvfi_mp_check_map(WHAT_PAYLOAD, root, error));
    struct kvfi_mp_field field = kvfi_mp_field(WHAT_PAYLOAD, root, KEY_HASH);
    KVF_TRY(kvfi_mp_text(&field, KVFI_COMPAT_HASH_LEN, &hash, error));
    if (hash.len != 0)
        memcpy(found.compatibility_hash, hash.data, hash.len);
    if (!kvfi_compat_hash_valid(found.compatibility_hash))
        return kvf_fail(error, KVF_EFORMAT,
                        WHAT_PAYLOAD ": '%s' is '%s', expected 64 lowercase hex characters",
                        KEY_HASH, kvfi_quote(&quote, hash));
    field = kvfi_mp_field(WHAT_PAYLOAD, root, KEY_METADATA);
    KVF_TRY(kvfi_mp_bin(&field, &found.agent_metadata, error));
    field = kvfi_mp_field(WHAT_PAYLOAD, root, KEY_CAPS);
    KVF_TRY(read_caps(&field, &found.caps, error));
    *payload = found;
    return KVF_OK;
}

enum kvf_status kvfi_handshake_payload_decode(const void *data, size_t len,
                                              const struct kvf_allocator *allocator,
                                              struct kvfi_handshake_payload *payload,
                                              struct kvf_error *error)
{
    static const struct kvfi_mp_limits limits = {.len_max = KVFI_HANDSHAKE_PAYLOAD_LEN_MAX,
                                                 .element_count_max = PAYLOAD_ELEMENT_COUNT_MAX,
                                                 .depth_max = KVFI_MP_DEPTH_MAX};
    struct kvfi_mp_doc doc;
    KVF_TRY(kvfi_mp_parse(WHAT_PAYLOAD, data, len, &limits, allocator, &doc, error));
    enum kvf_status status = read_payload(&doc.root, payload, error);
    kvfi_mp_free(&doc);
    return status;
}

enum kvf_status kvfi_handshake_timestamp_encode(double seconds, struct kvfi_buf *buf,
                                                struct kvf_error *error)
{
    if (!isfinite(seconds))
        return kvf_fail(error, KVF_EINVAL, WHAT_CLOCK ": not a finite number");
    msgpack_packer packer;
    kvfi_mp_packer(&packer, buf);
    msgpack_pack_double(&packer, seconds);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_handshake_timestamp_decode(const void *data, size_t len, double *seconds,
                                                struct kvf_error *error)
{
    static const struct kvfi_mp_limits limits = {
        .len_max = KVFI_HANDSHAKE_TIMESTAMP_LEN_MAX, .element_count_max = 1, .depth_max = 1};
    struct kvfi_mp_doc doc;
    KVF_TRY(kvfi_mp_parse(WHAT_CLOCK, data, len, &limits, NULL, &doc, error));
    double value = NAN;
    if (doc.root.type == MSGPACK_OBJECT_FLOAT32 || doc.root.type == MSGPACK_OBJECT_FLOAT64)
        value = doc.root.via.f64;
    else if (doc.root.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        value = (double)doc.root.via.u64;
    else if (doc.root.type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        value = (double)doc.root.via.i64;
    kvfi_mp_free(&doc);
    if (!isfinite(value))
        return kvf_fail(error, KVF_EFORMAT, WHAT_CLOCK ": not a finite number");
    *seconds = value;
    return KVF_OK;
}
