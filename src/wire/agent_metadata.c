/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/agent_metadata.h"

#include "wire/agent_metadata_keys.h"
#include "wire/msgpack_doc.h"

#include <string.h>

#define KEY_COUNT         21
#define ELEMENT_COUNT_MAX ((size_t)1 << 20)

/* Encoding */

static void pack_key_text(msgpack_packer *p, const char *key, const char *text)
{
    kvfi_mp_pack_text(p, key);
    kvfi_mp_pack_text(p, text);
}

static void pack_key_u64(msgpack_packer *p, const char *key, uint64_t value)
{
    kvfi_mp_pack_text(p, key);
    msgpack_pack_uint64(p, value);
}

/* absent packs nil. */
static void pack_key_u64s(msgpack_packer *p, const char *key, bool present,
                          const struct kvfi_u64_array *array)
{
    kvfi_mp_pack_text(p, key);
    if (!present) {
        msgpack_pack_nil(p);
        return;
    }
    msgpack_pack_array(p, array->count);
    for (size_t i = 0; i < array->count; i++)
        msgpack_pack_uint64(p, array->items[i]);
}

static void pack_key_i64s(msgpack_packer *p, const char *key, bool present,
                          const struct kvfi_i64_array *array)
{
    kvfi_mp_pack_text(p, key);
    if (!present) {
        msgpack_pack_nil(p);
        return;
    }
    msgpack_pack_array(p, array->count);
    for (size_t i = 0; i < array->count; i++)
        msgpack_pack_int64(p, array->items[i]);
}

static void pack_texts(msgpack_packer *p, const struct kvfi_text_array *array)
{
    msgpack_pack_array(p, array->count);
    for (size_t i = 0; i < array->count; i++)
        kvfi_mp_pack_text(p, array->items[i]);
}

static void pack_key_texts(msgpack_packer *p, const char *key, bool present,
                           const struct kvfi_text_array *array)
{
    kvfi_mp_pack_text(p, key);
    if (present)
        pack_texts(p, array);
    else
        msgpack_pack_nil(p);
}

static void pack_pair(msgpack_packer *p, uint64_t first, uint64_t second)
{
    msgpack_pack_array(p, 2);
    msgpack_pack_uint64(p, first);
    msgpack_pack_uint64(p, second);
}

static void pack_fields(msgpack_packer *p, const struct kvfi_agent_metadata *md)
{
    msgpack_pack_map(p, KEY_COUNT);
    pack_key_text(p, KEY_ENGINE_ID, md->engine_id);
    kvfi_mp_pack_text(p, KEY_AGENT_METADATA);
    kvfi_mp_pack_bin(p, md->agent_metadata);
    pack_key_u64s(p, KEY_BASE_ADDR, true, &md->kv_caches_base_addr);
    pack_key_u64(p, KEY_DEVICE_ID, md->device_id);
    pack_key_u64(p, KEY_NUM_BLOCKS, md->num_blocks);
    pack_key_u64s(p, KEY_BLOCK_LENS, true, &md->block_lens);
    pack_key_u64s(p, KEY_BLOCK_STRIDES, true, &md->block_strides);
    pack_key_text(p, KEY_LAYOUT, md->kv_cache_layout);
    pack_key_u64(p, KEY_BLOCK_SIZE, md->block_size);
    kvfi_mp_pack_text(p, KEY_SSM_SIZES);
    pack_pair(p, md->ssm_sizes[0], md->ssm_sizes[1]);
    pack_key_text(p, KEY_BACKEND, md->attn_backend_name);
    pack_key_u64(p, KEY_PHYSICAL, md->physical_blocks_per_logical_kv_block);
    pack_key_u64s(p, KEY_REGION_NUM_BLOCKS, md->has_region_num_blocks, &md->region_num_blocks);
    pack_key_i64s(p, KEY_REGION_GROUP_IDS, md->has_region_group_ids, &md->region_group_ids);
    pack_key_texts(p, KEY_REGION_NAMES, md->has_region_names, &md->region_names);
    pack_key_texts(p, KEY_REGION_MEM_TYPES, md->has_region_mem_types, &md->region_mem_types);
    pack_key_u64(p, KEY_DCP_SIZE, md->dcp_size);
    pack_key_u64(p, KEY_PCP_SIZE, md->pcp_size);
    kvfi_mp_pack_text(p, KEY_PLE_BLOCK_LEN);
    if (md->has_ple_block_len)
        msgpack_pack_uint64(p, md->ple_block_len);
    else
        msgpack_pack_nil(p);
    kvfi_mp_pack_text(p, KEY_REGION_MEMBERS);
    msgpack_pack_array(p, md->region_member_count);
    for (size_t i = 0; i < md->region_member_count; i++)
        pack_texts(p, &md->region_members[i]);
    kvfi_mp_pack_text(p, KEY_PACKED_LAYOUTS);
    msgpack_pack_map(p, md->packed_member_count);
    for (size_t i = 0; i < md->packed_member_count; i++) {
        const struct kvfi_packed_member *member = &md->packed_member_layouts[i];
        kvfi_mp_pack_text(p, member->layer);
        pack_pair(p, member->offset_bytes, member->page_bytes);
    }
}

enum kvf_status kvfi_agent_metadata_encode(const struct kvfi_agent_metadata *md,
                                           struct kvfi_buf *buf, struct kvf_error *error)
{
    size_t start = buf->len;
    KVF_TRY(kvfi_agent_metadata_check(md, error));
    msgpack_packer packer;
    kvfi_mp_packer(&packer, buf);
    pack_fields(&packer, md);
    KVF_TRY(kvfi_buf_status(buf, error));
    if (buf->len - start > KVFI_AGENT_METADATA_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, WHAT ": %zu bytes, at most %zu", buf->len - start,
                        KVFI_AGENT_METADATA_LEN_MAX);
    return KVF_OK;
}

/* Decoding */

struct decoder {
    const msgpack_object *map;
    struct kvfi_mp_arena arena;
    struct kvf_error *error;
};

static enum kvf_status read_text_object(struct decoder *d, const struct kvfi_mp_field *field,
                                        const char **out)
{
    struct kvfi_span text;
    KVF_TRY(kvfi_mp_text(field, KVFI_AGENT_METADATA_TEXT_LEN_MAX, &text, d->error));
    return kvfi_mp_arena_text(&d->arena, text, out, d->error);
}

static enum kvf_status read_text(struct decoder *d, const char *key, const char **out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    return read_text_object(d, &field, out);
}

static enum kvf_status read_u64(struct decoder *d, const char *key, uint64_t *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    return kvfi_mp_u64(&field, 0, UINT64_MAX, out, d->error);
}

static enum kvf_status read_u64_or(struct decoder *d, const char *key, uint64_t absent,
                                   uint64_t *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    *out = absent;
    return kvfi_mp_absent(&field) ? KVF_OK : kvfi_mp_u64(&field, 0, UINT64_MAX, out, d->error);
}

static enum kvf_status read_bytes(struct decoder *d, const char *key, struct kvfi_span *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    struct kvfi_span bytes;
    void *copy;
    KVF_TRY(kvfi_mp_bin(&field, &bytes, d->error));
    KVF_TRY(kvfi_mp_arena_take(&d->arena, bytes.len, &copy, d->error));
    if (bytes.len != 0)
        memcpy(copy, bytes.data, bytes.len);
    *out = kvfi_span(copy, bytes.len);
    return KVF_OK;
}

/* Opens an array and takes room for its items. */
static enum kvf_status begin_array(struct decoder *d, const struct kvfi_mp_field *field,
                                   size_t item_size, msgpack_object_array *array, void **items)
{
    KVF_TRY(kvfi_mp_array(field, ELEMENT_COUNT_MAX, array, d->error));
    return kvfi_mp_arena_take(&d->arena, array->size * item_size, items, d->error);
}

static enum kvf_status read_u64s_object(struct decoder *d, struct kvfi_mp_field field,
                                        struct kvfi_u64_array *out)
{
    msgpack_object_array array;
    void *memory;
    KVF_TRY(begin_array(d, &field, sizeof(*out->items), &array, &memory));
    uint64_t *items = memory;
    for (uint32_t i = 0; i < array.size; i++) {
        field.object = &array.ptr[i];
        KVF_TRY(kvfi_mp_u64(&field, 0, UINT64_MAX, &items[i], d->error));
    }
    *out = (struct kvfi_u64_array){.items = items, .count = array.size};
    return KVF_OK;
}

static enum kvf_status read_u64s(struct decoder *d, const char *key, struct kvfi_u64_array *out)
{
    return read_u64s_object(d, kvfi_mp_field(WHAT, d->map, key), out);
}

static enum kvf_status read_texts_object(struct decoder *d, struct kvfi_mp_field field,
                                         struct kvfi_text_array *out)
{
    msgpack_object_array array;
    void *memory;
    KVF_TRY(begin_array(d, &field, sizeof(*out->items), &array, &memory));
    const char **items = memory;
    for (uint32_t i = 0; i < array.size; i++) {
        field.object = &array.ptr[i];
        KVF_TRY(read_text_object(d, &field, &items[i]));
    }
    *out = (struct kvfi_text_array){.items = items, .count = array.size};
    return KVF_OK;
}

/* For fields whose default is nil: absent and nil are the same. */
static bool is_present(const struct kvfi_mp_field *field)
{
    return !kvfi_mp_absent(field) && !kvfi_mp_is_nil(field);
}

static enum kvf_status read_optional_texts(struct decoder *d, const char *key, bool *present,
                                           struct kvfi_text_array *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    *present = is_present(&field);
    return *present ? read_texts_object(d, field, out) : KVF_OK;
}

static enum kvf_status read_optional_u64s(struct decoder *d, const char *key, bool *present,
                                          struct kvfi_u64_array *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, key);
    *present = is_present(&field);
    return *present ? read_u64s_object(d, field, out) : KVF_OK;
}

static enum kvf_status read_group_ids(struct decoder *d, bool *present, struct kvfi_i64_array *out)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, KEY_REGION_GROUP_IDS);
    msgpack_object_array array;
    void *memory;
    *present = is_present(&field);
    if (!*present)
        return KVF_OK;
    KVF_TRY(begin_array(d, &field, sizeof(*out->items), &array, &memory));
    int64_t *items = memory;
    for (uint32_t i = 0; i < array.size; i++) {
        field.object = &array.ptr[i];
        KVF_TRY(kvfi_mp_i64(&field, INT64_MIN, INT64_MAX, &items[i], d->error));
    }
    *out = (struct kvfi_i64_array){.items = items, .count = array.size};
    return KVF_OK;
}

static enum kvf_status read_pair(struct decoder *d, const struct kvfi_mp_field *field,
                                 uint64_t out[2])
{
    msgpack_object_array pair;
    KVF_TRY(kvfi_mp_array(field, 2, &pair, d->error));
    if (pair.size != 2)
        return kvf_fail(d->error, KVF_EFORMAT, WHAT ": '%s' has %u entries, expected 2",
                        field->name, pair.size);
    for (int i = 0; i < 2; i++) {
        struct kvfi_mp_field entry = *field;
        entry.object = &pair.ptr[i];
        KVF_TRY(kvfi_mp_u64(&entry, 0, UINT64_MAX, &out[i], d->error));
    }
    return KVF_OK;
}

static enum kvf_status read_members(struct decoder *d, struct kvfi_agent_metadata *md)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, KEY_REGION_MEMBERS);
    msgpack_object_array array;
    void *memory;
    if (kvfi_mp_absent(&field))
        return KVF_OK;
    KVF_TRY(begin_array(d, &field, sizeof(struct kvfi_text_array), &array, &memory));
    struct kvfi_text_array *members = memory;
    for (uint32_t i = 0; i < array.size; i++) {
        field.object = &array.ptr[i];
        KVF_TRY(read_texts_object(d, field, &members[i]));
    }
    md->region_members = members;
    md->region_member_count = array.size;
    return KVF_OK;
}

static enum kvf_status read_packed(struct decoder *d, struct kvfi_agent_metadata *md)
{
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, KEY_PACKED_LAYOUTS);
    msgpack_object_map map;
    void *memory;
    if (kvfi_mp_absent(&field))
        return KVF_OK;
    KVF_TRY(kvfi_mp_map(&field, ELEMENT_COUNT_MAX, &map, d->error));
    KVF_TRY(kvfi_mp_arena_take(&d->arena, map.size * sizeof(struct kvfi_packed_member), &memory,
                               d->error));
    struct kvfi_packed_member *members = memory;
    for (uint32_t i = 0; i < map.size; i++) {
        uint64_t pair[2] = {0};
        field.object = &map.ptr[i].key;
        KVF_TRY(read_text_object(d, &field, &members[i].layer));
        field.object = &map.ptr[i].val;
        KVF_TRY(read_pair(d, &field, pair));
        members[i].offset_bytes = pair[0];
        members[i].page_bytes = pair[1];
    }
    md->packed_member_layouts = members;
    md->packed_member_count = map.size;
    return KVF_OK;
}

static enum kvf_status read_required(struct decoder *d, struct kvfi_agent_metadata *md)
{
    KVF_TRY(read_text(d, KEY_ENGINE_ID, &md->engine_id));
    KVF_TRY(read_bytes(d, KEY_AGENT_METADATA, &md->agent_metadata));
    KVF_TRY(read_u64s(d, KEY_BASE_ADDR, &md->kv_caches_base_addr));
    KVF_TRY(read_u64(d, KEY_DEVICE_ID, &md->device_id));
    KVF_TRY(read_u64(d, KEY_NUM_BLOCKS, &md->num_blocks));
    KVF_TRY(read_u64s(d, KEY_BLOCK_LENS, &md->block_lens));
    KVF_TRY(read_u64s(d, KEY_BLOCK_STRIDES, &md->block_strides));
    KVF_TRY(read_text(d, KEY_LAYOUT, &md->kv_cache_layout));
    KVF_TRY(read_u64(d, KEY_BLOCK_SIZE, &md->block_size));
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, KEY_SSM_SIZES);
    KVF_TRY(read_pair(d, &field, md->ssm_sizes));
    KVF_TRY(read_text(d, KEY_BACKEND, &md->attn_backend_name));
    return read_u64(d, KEY_PHYSICAL, &md->physical_blocks_per_logical_kv_block);
}

static enum kvf_status read_optional(struct decoder *d, struct kvfi_agent_metadata *md)
{
    KVF_TRY(read_optional_u64s(d, KEY_REGION_NUM_BLOCKS, &md->has_region_num_blocks,
                               &md->region_num_blocks));
    KVF_TRY(read_group_ids(d, &md->has_region_group_ids, &md->region_group_ids));
    KVF_TRY(read_optional_texts(d, KEY_REGION_NAMES, &md->has_region_names, &md->region_names));
    KVF_TRY(read_optional_texts(d, KEY_REGION_MEM_TYPES, &md->has_region_mem_types,
                                &md->region_mem_types));
    KVF_TRY(read_u64_or(d, KEY_DCP_SIZE, 1, &md->dcp_size));
    KVF_TRY(read_u64_or(d, KEY_PCP_SIZE, 1, &md->pcp_size));
    struct kvfi_mp_field field = kvfi_mp_field(WHAT, d->map, KEY_PLE_BLOCK_LEN);
    md->has_ple_block_len = is_present(&field);
    if (md->has_ple_block_len)
        KVF_TRY(kvfi_mp_u64(&field, 0, UINT64_MAX, &md->ple_block_len, d->error));
    KVF_TRY(read_members(d, md));
    return read_packed(d, md);
}

static enum kvf_status read_fields(struct decoder *d, struct kvfi_agent_metadata *md)
{
    KVF_TRY(kvfi_mp_check_map(WHAT, d->map, d->error));
    KVF_TRY(read_required(d, md));
    KVF_TRY(read_optional(d, md));
    /* A rule that a peer breaks is its message's fault, not our caller's. */
    enum kvf_status status = kvfi_agent_metadata_check(md, d->error);
    if (status != KVF_EINVAL)
        return status;
    if (d->error)
        d->error->status = KVF_EFORMAT;
    return KVF_EFORMAT;
}

enum kvf_status kvfi_agent_metadata_decode(const void *data, size_t len,
                                           const struct kvf_allocator *allocator,
                                           struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    static const struct kvfi_mp_limits limits = {
        .len_max = KVFI_AGENT_METADATA_LEN_MAX,
        .element_count_max = ELEMENT_COUNT_MAX,
        .depth_max = KVFI_MP_DEPTH_MAX,
    };
    struct kvfi_mp_doc doc;
    struct kvfi_agent_metadata found = {.owner = allocator};
    KVF_TRY(kvfi_mp_parse(WHAT, data, len, &limits, allocator, &doc, error));
    struct decoder d = {.map = &doc.root, .error = error};
    /* The largest thing one element becomes is a text array, and a packed member takes four
     * elements; then a terminator or less than one step of padding. */
    size_t per_element = sizeof(struct kvfi_text_array) + KVFI_MP_ARENA_ALIGN;
    enum kvf_status status = kvfi_mp_arena_init(
        &d.arena, doc.payload_len + doc.element_count * per_element, allocator, error);
    if (status == KVF_OK)
        status = read_fields(&d, &found);
    kvfi_mp_free(&doc);
    if (status != KVF_OK) {
        kvfi_wire_free(allocator, d.arena.base);
        return status;
    }
    found.memory = d.arena.base;
    *md = found;
    return KVF_OK;
}

void kvfi_agent_metadata_free(struct kvfi_agent_metadata *md)
{
    kvfi_wire_free(md->owner, md->memory);
    *md = (struct kvfi_agent_metadata){0};
}
