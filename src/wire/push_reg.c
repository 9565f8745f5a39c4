/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/push_reg.h"

#include "wire/msgpack_doc.h"

#include <string.h>

#define WHAT "PUSH_REG"

#define KEY_REQUEST_ID       "request_id"
#define KEY_DECODE_ENGINE_ID "decode_engine_id"
#define KEY_DECODE_HOST      "decode_host"
#define KEY_DECODE_PORT      "decode_port"
#define KEY_DECODE_TP_SIZE   "decode_tp_size"
#define KEY_LOCAL_BLOCK_IDS  "local_block_ids"
#define KEY_REMOTE_ENGINE_ID "remote_engine_id"
#define KEY_REMOTE_HOST      "remote_host"
#define KEY_REMOTE_PORT      "remote_port"
#define KEY_REMOTE_TP_SIZE   "remote_tp_size"
#define KEY_REMOTE_PP_SIZE   "remote_pp_size"
#define KEY_TRANSFER_ID      "transfer_id"

#define KEY_COUNT 11 /* without transfer_id */

/* Encoding */

static enum kvf_status check_text(const char *key, const char *text, struct kvf_error *error)
{
    struct kvfi_span span = kvfi_span_str(text);
    if (span.len == 0)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is empty", key);
    if (span.len > KVFI_PUSH_REG_TEXT_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": '%s' has %zu bytes, at most %d", key, span.len,
                        KVFI_PUSH_REG_TEXT_LEN_MAX);
    if (!kvfi_utf8_valid(span))
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is not UTF-8", key);
    return KVF_OK;
}

static enum kvf_status check_number(const char *key, uint32_t value, uint32_t value_max,
                                    struct kvf_error *error)
{
    if (value == 0 || value > value_max)
        return kvf_fail(error, KVF_EINVAL, WHAT ": '%s' is %u, expected 1 to %u", key, value,
                        value_max);
    return KVF_OK;
}

static enum kvf_status check_groups(const struct kvfi_push_reg *reg, struct kvf_error *error)
{
    size_t total = 0;
    if (reg->group_count > KVFI_PUSH_REG_GROUP_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": %zu block groups, at most %d", reg->group_count,
                        KVFI_PUSH_REG_GROUP_MAX);
    for (size_t g = 0; g < reg->group_count; g++) {
        const struct kvfi_block_group *group = &reg->groups[g];
        if (group->count > KVFI_PUSH_REG_BLOCK_MAX - total)
            return kvf_fail(error, KVF_ELIMIT, WHAT ": more than %zu blocks",
                            KVFI_PUSH_REG_BLOCK_MAX);
        total += group->count;
        for (size_t i = 0; i < group->count; i++) {
            if (group->ids[i] > KVFI_BLOCK_ID_MAX)
                return kvf_fail(error, KVF_EINVAL, WHAT ": block id %u, at most %d", group->ids[i],
                                KVFI_BLOCK_ID_MAX);
        }
    }
    return KVF_OK;
}

static enum kvf_status check(const struct kvfi_push_reg *reg, struct kvf_error *error)
{
    KVF_TRY(check_text(KEY_REQUEST_ID, reg->request_id, error));
    KVF_TRY(check_text(KEY_DECODE_ENGINE_ID, reg->decode_engine_id, error));
    KVF_TRY(check_text(KEY_DECODE_HOST, reg->decode_host, error));
    KVF_TRY(check_number(KEY_DECODE_PORT, reg->decode_port, UINT16_MAX, error));
    KVF_TRY(
        check_number(KEY_DECODE_TP_SIZE, reg->decode_tp_size, KVFI_PUSH_REG_PARALLEL_MAX, error));
    KVF_TRY(check_groups(reg, error));
    KVF_TRY(check_text(KEY_REMOTE_ENGINE_ID, reg->remote_engine_id, error));
    KVF_TRY(check_text(KEY_REMOTE_HOST, reg->remote_host, error));
    KVF_TRY(check_number(KEY_REMOTE_PORT, reg->remote_port, UINT16_MAX, error));
    KVF_TRY(
        check_number(KEY_REMOTE_TP_SIZE, reg->remote_tp_size, KVFI_PUSH_REG_PARALLEL_MAX, error));
    KVF_TRY(
        check_number(KEY_REMOTE_PP_SIZE, reg->remote_pp_size, KVFI_PUSH_REG_PARALLEL_MAX, error));
    return reg->transfer_id ? check_text(KEY_TRANSFER_ID, reg->transfer_id, error) : KVF_OK;
}

static void pack_text(msgpack_packer *packer, const char *key, const char *text)
{
    kvfi_mp_pack_text(packer, key);
    kvfi_mp_pack_text(packer, text);
}

static void pack_number(msgpack_packer *packer, const char *key, uint32_t value)
{
    kvfi_mp_pack_text(packer, key);
    msgpack_pack_uint32(packer, value);
}

static void pack_groups(msgpack_packer *packer, const struct kvfi_push_reg *reg)
{
    kvfi_mp_pack_text(packer, KEY_LOCAL_BLOCK_IDS);
    msgpack_pack_array(packer, reg->group_count);
    for (size_t g = 0; g < reg->group_count; g++) {
        msgpack_pack_array(packer, reg->groups[g].count);
        for (size_t i = 0; i < reg->groups[g].count; i++)
            msgpack_pack_uint32(packer, reg->groups[g].ids[i]);
    }
}

enum kvf_status kvfi_push_reg_encode(const struct kvfi_push_reg *reg, struct kvfi_buf *buf,
                                     struct kvf_error *error)
{
    KVF_TRY(check(reg, error));
    msgpack_packer packer;
    kvfi_buf_put_text(buf, KVFI_PUSH_REG_PREFIX);
    kvfi_mp_packer(&packer, buf);
    msgpack_pack_map(&packer, reg->transfer_id ? KEY_COUNT + 1 : KEY_COUNT);
    pack_text(&packer, KEY_REQUEST_ID, reg->request_id);
    pack_text(&packer, KEY_DECODE_ENGINE_ID, reg->decode_engine_id);
    pack_text(&packer, KEY_DECODE_HOST, reg->decode_host);
    pack_number(&packer, KEY_DECODE_PORT, reg->decode_port);
    pack_number(&packer, KEY_DECODE_TP_SIZE, reg->decode_tp_size);
    pack_groups(&packer, reg);
    pack_text(&packer, KEY_REMOTE_ENGINE_ID, reg->remote_engine_id);
    pack_text(&packer, KEY_REMOTE_HOST, reg->remote_host);
    pack_number(&packer, KEY_REMOTE_PORT, reg->remote_port);
    pack_number(&packer, KEY_REMOTE_TP_SIZE, reg->remote_tp_size);
    pack_number(&packer, KEY_REMOTE_PP_SIZE, reg->remote_pp_size);
    if (reg->transfer_id)
        pack_text(&packer, KEY_TRANSFER_ID, reg->transfer_id);
    return kvfi_buf_status(buf, error);
}

/* Decoding: everything is checked where it lies first, then copied into one allocation. */
struct found {
    struct kvfi_span request_id;
    struct kvfi_span decode_engine_id;
    struct kvfi_span decode_host;
    struct kvfi_span remote_engine_id; /* data NULL: absent; so for the next two */
    struct kvfi_span remote_host;
    struct kvfi_span transfer_id;
    msgpack_object_array blocks;
    bool flat; /* one group, its ids directly in blocks */
    size_t group_count;
    size_t block_count;
};

static enum kvf_status read_text(const msgpack_object *map, const char *key, struct kvfi_span *out,
                                 struct kvf_error *error)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, map, key);
    KVF_TRY(kvfi_mp_text(&field, KVFI_PUSH_REG_TEXT_LEN_MAX, out, error));
    if (out->len == 0)
        return kvf_fail(error, KVF_EFORMAT, WHAT ": '%s' is empty", key);
    return KVF_OK;
}

/* The receiver has no need of the remote_ keys, and released peers fill them from what a router
 * sent, so anything unexpected there reads as absent. */
static void read_loose_text(const msgpack_object *map, const char *key, struct kvfi_span *out)
{
    if (read_text(map, key, out, NULL) != KVF_OK)
        *out = (struct kvfi_span){0};
}

static bool read_loose_number(const msgpack_object *map, const char *key, uint64_t max,
                              uint64_t *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, map, key);
    *out = 0;
    return kvfi_mp_u64(&field, 1, max, out, NULL) == KVF_OK;
}

static enum kvf_status read_number(const msgpack_object *map, const char *key, uint64_t max,
                                   uint64_t *out, struct kvf_error *error)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, map, key);
    return kvfi_mp_u64(&field, 1, max, out, error);
}

static enum kvf_status check_ids(const msgpack_object_array *ids, struct kvf_error *error)
{
    for (uint32_t i = 0; i < ids->size; i++) {
        struct kvfi_mp_field field = {
            .message = WHAT, .name = KEY_LOCAL_BLOCK_IDS, .object = &ids->ptr[i]};
        uint64_t id;
        KVF_TRY(kvfi_mp_u64(&field, 0, KVFI_BLOCK_ID_MAX, &id, error));
    }
    return KVF_OK;
}

static enum kvf_status read_blocks(const msgpack_object *map, struct found *found,
                                   struct kvf_error *error)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, map, KEY_LOCAL_BLOCK_IDS);
    KVF_TRY(kvfi_mp_array(&field, KVFI_PUSH_REG_BLOCK_MAX, &found->blocks, error));
    const msgpack_object_array *blocks = &found->blocks;
    found->flat = blocks->size != 0 && blocks->ptr[0].type != MSGPACK_OBJECT_ARRAY;
    if (found->flat) {
        found->group_count = 1;
        found->block_count = blocks->size;
        return check_ids(blocks, error);
    }
    if (blocks->size > KVFI_PUSH_REG_GROUP_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": %u block groups, at most %d", blocks->size,
                        KVFI_PUSH_REG_GROUP_MAX);
    found->group_count = blocks->size;
    for (uint32_t g = 0; g < blocks->size; g++) {
        msgpack_object_array ids;
        field.object = &blocks->ptr[g];
        KVF_TRY(kvfi_mp_array(&field, KVFI_PUSH_REG_BLOCK_MAX - found->block_count, &ids, error));
        KVF_TRY(check_ids(&ids, error));
        found->block_count += ids.size;
    }
    return KVF_OK;
}

static enum kvf_status read_map(const msgpack_object *root, struct found *found,
                                struct kvfi_push_reg *reg, struct kvf_error *error)
{
    uint64_t port, tp_size;
    KVF_TRY(kvfi_mp_check_map(WHAT, root, error));
    KVF_TRY(read_text(root, KEY_REQUEST_ID, &found->request_id, error));
    KVF_TRY(read_text(root, KEY_DECODE_ENGINE_ID, &found->decode_engine_id, error));
    KVF_TRY(read_text(root, KEY_DECODE_HOST, &found->decode_host, error));
    KVF_TRY(read_number(root, KEY_DECODE_PORT, UINT16_MAX, &port, error));
    KVF_TRY(read_number(root, KEY_DECODE_TP_SIZE, KVFI_PUSH_REG_PARALLEL_MAX, &tp_size, error));
    KVF_TRY(read_blocks(root, found, error));
    reg->decode_port = (uint16_t)port;
    reg->decode_tp_size = (uint32_t)tp_size;

    uint64_t pp_size;
    read_loose_text(root, KEY_REMOTE_ENGINE_ID, &found->remote_engine_id);
    read_loose_text(root, KEY_REMOTE_HOST, &found->remote_host);
    reg->has_remote_port = read_loose_number(root, KEY_REMOTE_PORT, UINT16_MAX, &port);
    reg->has_remote_tp_size =
        read_loose_number(root, KEY_REMOTE_TP_SIZE, KVFI_PUSH_REG_PARALLEL_MAX, &tp_size);
    reg->has_remote_pp_size =
        read_loose_number(root, KEY_REMOTE_PP_SIZE, KVFI_PUSH_REG_PARALLEL_MAX, &pp_size);
    reg->remote_port = (uint16_t)port;
    reg->remote_tp_size = (uint32_t)tp_size;
    reg->remote_pp_size = (uint32_t)pp_size;

    struct kvfi_mp_field field = kvfi_mp_field(WHAT, root, KEY_TRANSFER_ID);
    if (!kvfi_mp_absent(&field))
        KVF_TRY(read_text(root, KEY_TRANSFER_ID, &found->transfer_id, error));
    return KVF_OK;
}

static void copy_ids(const msgpack_object_array *from, uint32_t *to)
{
    for (uint32_t i = 0; i < from->size; i++)
        to[i] = (uint32_t)from->ptr[i].via.u64;
}

static enum kvf_status copy_groups(const struct found *found, struct kvfi_mp_arena *arena,
                                   struct kvfi_push_reg *reg, struct kvf_error *error)
{
    void *memory;
    KVF_TRY(kvfi_mp_arena_take(arena, found->group_count * sizeof(struct kvfi_block_group), &memory,
                               error));
    struct kvfi_block_group *groups = memory;
    KVF_TRY(kvfi_mp_arena_take(arena, found->block_count * sizeof(uint32_t), &memory, error));
    uint32_t *ids = memory;
    for (size_t g = 0; g < found->group_count; g++) {
        const msgpack_object_array *from =
            found->flat ? &found->blocks : &found->blocks.ptr[g].via.array;
        copy_ids(from, ids);
        groups[g] = (struct kvfi_block_group){.ids = ids, .count = from->size};
        ids += from->size;
    }
    reg->groups = groups;
    reg->group_count = found->group_count;
    return KVF_OK;
}

static enum kvf_status copy_text(struct kvfi_mp_arena *arena, struct kvfi_span text,
                                 const char **out, struct kvf_error *error)
{
    *out = NULL;
    return text.data ? kvfi_mp_arena_text(arena, text, out, error) : KVF_OK;
}

static enum kvf_status copy_found(const struct found *found, struct kvfi_mp_arena *arena,
                                  struct kvfi_push_reg *reg, struct kvf_error *error)
{
    KVF_TRY(copy_groups(found, arena, reg, error));
    KVF_TRY(copy_text(arena, found->request_id, &reg->request_id, error));
    KVF_TRY(copy_text(arena, found->decode_engine_id, &reg->decode_engine_id, error));
    KVF_TRY(copy_text(arena, found->decode_host, &reg->decode_host, error));
    KVF_TRY(copy_text(arena, found->remote_engine_id, &reg->remote_engine_id, error));
    KVF_TRY(copy_text(arena, found->remote_host, &reg->remote_host, error));
    return copy_text(arena, found->transfer_id, &reg->transfer_id, error);
}

static size_t arena_cap(const struct found *found)
{
    const struct kvfi_span *const texts[] = {&found->request_id,  &found->decode_engine_id,
                                             &found->decode_host, &found->remote_engine_id,
                                             &found->remote_host, &found->transfer_id};
    size_t cap = found->group_count * sizeof(struct kvfi_block_group) +
                 found->block_count * sizeof(uint32_t) + KVFI_MP_ARENA_ALIGN;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        cap += texts[i]->len + 1;
    return cap;
}

enum kvf_status kvfi_push_reg_decode(const void *data, size_t len,
                                     const struct kvf_allocator *allocator,
                                     struct kvfi_push_reg *reg, struct kvf_error *error)
{
    static const struct kvfi_mp_limits limits = {
        .len_max = KVFI_PUSH_REG_LEN_MAX,
        .element_count_max = KVFI_PUSH_REG_BLOCK_MAX + 4096,
        .depth_max = KVFI_MP_DEPTH_MAX,
    };
    if (len < KVFI_PUSH_REG_PREFIX_LEN ||
        memcmp(data, KVFI_PUSH_REG_PREFIX, KVFI_PUSH_REG_PREFIX_LEN) != 0)
        return kvf_fail(error, KVF_EFORMAT, WHAT ": the prefix '%s' is missing",
                        KVFI_PUSH_REG_PREFIX);
    struct kvfi_mp_doc doc;
    KVF_TRY(kvfi_mp_parse(WHAT, (const uint8_t *)data + KVFI_PUSH_REG_PREFIX_LEN,
                          len - KVFI_PUSH_REG_PREFIX_LEN, &limits, allocator, &doc, error));
    struct found found = {0};
    struct kvfi_push_reg copy = {.owner = allocator};
    struct kvfi_mp_arena arena = {0};
    enum kvf_status status = read_map(&doc.root, &found, &copy, error);
    if (status == KVF_OK)
        status = kvfi_mp_arena_init(&arena, arena_cap(&found), allocator, error);
    if (status == KVF_OK)
        status = copy_found(&found, &arena, &copy, error);
    kvfi_mp_free(&doc);
    if (status != KVF_OK) {
        kvfi_wire_free(allocator, arena.base);
        return status;
    }
    copy.memory = arena.base;
    *reg = copy;
    return KVF_OK;
}

void kvfi_push_reg_free(struct kvfi_push_reg *reg)
{
    kvfi_wire_free(reg->owner, reg->memory);
    *reg = (struct kvfi_push_reg){0};
}
