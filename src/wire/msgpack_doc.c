/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/msgpack_doc.h"

#include <string.h>

/* What one type byte announces. */
struct head {
    enum { SCALAR, PAYLOAD, CONTAINER, REFUSED } kind;
    size_t len;           /* SCALAR, PAYLOAD: bytes that follow the head */
    uint32_t child_count; /* CONTAINER: objects that follow */
    size_t tree_size;     /* CONTAINER: bytes msgpack-c takes for its children */
};

static struct head container(uint64_t child_count, size_t tree_size)
{
    /* At most 2^33 children of 24 bytes: no wrap, and the element limit comes long before. */
    if (child_count > UINT32_MAX)
        return (struct head){.kind = REFUSED};
    return (struct head){
        .kind = CONTAINER, .child_count = (uint32_t)child_count, .tree_size = tree_size};
}

static struct head array_head(uint32_t count)
{
    return container(count, (size_t)count * sizeof(msgpack_object));
}

static struct head map_head(uint32_t count)
{
    return container((uint64_t)count * 2, (size_t)count * sizeof(msgpack_object_kv));
}

/* Reads a big-endian length of width bytes. */
static enum kvf_status take_be(struct kvfi_reader *reader, size_t width, uint32_t *out)
{
    struct kvfi_span bytes;
    KVF_TRY(kvfi_reader_take(reader, width, &bytes));
    uint32_t value = 0;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | bytes.data[i];
    *out = value;
    return KVF_OK;
}

/* Types 0xc0 to 0xdf. */
static enum kvf_status wide_head(struct kvfi_reader *reader, uint8_t type, struct head *out)
{
    uint32_t len;
    switch (type) {
    case 0xc0: /* nil, false, true */
    case 0xc2:
    case 0xc3:
        *out = (struct head){.kind = SCALAR};
        return KVF_OK;
    case 0xca: /* float 32, 64 */
    case 0xcb:
        *out = (struct head){.kind = SCALAR, .len = (size_t)4 << (type - 0xca)};
        return KVF_OK;
    case 0xcc: /* uint 8 to 64 */
    case 0xcd:
    case 0xce:
    case 0xcf:
        *out = (struct head){.kind = SCALAR, .len = (size_t)1 << (type - 0xcc)};
        return KVF_OK;
    case 0xd0: /* int 8 to 64 */
    case 0xd1:
    case 0xd2:
    case 0xd3:
        *out = (struct head){.kind = SCALAR, .len = (size_t)1 << (type - 0xd0)};
        return KVF_OK;
    case 0xc4: /* bin 8, 16, 32 */
    case 0xc5:
    case 0xc6:
        KVF_TRY(take_be(reader, (size_t)1 << (type - 0xc4), &len));
        *out = (struct head){.kind = PAYLOAD, .len = len};
        return KVF_OK;
    case 0xd9: /* str 8, 16, 32 */
    case 0xda:
    case 0xdb:
        KVF_TRY(take_be(reader, (size_t)1 << (type - 0xd9), &len));
        *out = (struct head){.kind = PAYLOAD, .len = len};
        return KVF_OK;
    case 0xdc: /* array 16, 32 */
    case 0xdd:
        KVF_TRY(take_be(reader, (size_t)2 << (type - 0xdc), &len));
        *out = array_head(len);
        return KVF_OK;
    case 0xde: /* map 16, 32 */
    case 0xdf:
        KVF_TRY(take_be(reader, (size_t)2 << (type - 0xde), &len));
        *out = map_head(len);
        return KVF_OK;
    default: /* 0xc1 is unassigned; extensions have no place in our messages */
        *out = (struct head){.kind = REFUSED};
        return KVF_OK;
    }
}

static enum kvf_status read_head(struct kvfi_reader *reader, struct head *out)
{
    uint8_t type;
    KVF_TRY(kvfi_reader_u8(reader, &type));
    if (type <= 0x7f || type >= 0xe0)
        *out = (struct head){.kind = SCALAR};
    else if (type <= 0x8f)
        *out = map_head(type & 0x0f);
    else if (type <= 0x9f)
        *out = array_head(type & 0x0f);
    else if (type <= 0xbf)
        *out = (struct head){.kind = PAYLOAD, .len = type & 0x1f};
    else
        return wide_head(reader, type, out);
    return KVF_OK;
}

struct scan {
    size_t element_count;
    size_t payload_len;
    size_t tree_size;
};

/* Walks one whole object without recursion. pending[d] is how many objects level d still owes. */
static enum kvf_status scan_object(const char *what, struct kvfi_reader *reader,
                                   const struct kvfi_mp_limits *limits, struct scan *scan,
                                   struct kvf_error *error)
{
    uint32_t pending[KVFI_MP_DEPTH_MAX + 1] = {1};
    size_t depth = 0;
    for (;;) {
        while (pending[depth] == 0) {
            if (depth == 0)
                return KVF_OK;
            depth--;
        }
        pending[depth]--;
        size_t at = reader->pos;
        struct head head;
        struct kvfi_span skipped;
        if (read_head(reader, &head) != KVF_OK)
            return kvf_fail(error, KVF_EFORMAT, "%s: ends at byte %zu in the middle of an object",
                            what, at);
        if (head.kind == REFUSED)
            return kvf_fail(error, KVF_EFORMAT, "%s: type 0x%02x at byte %zu is not allowed", what,
                            reader->data[at], at);
        if (++scan->element_count > limits->element_count_max)
            return kvf_fail(error, KVF_ELIMIT, "%s: more than %zu elements", what,
                            limits->element_count_max);
        if (head.kind != CONTAINER) {
            if (kvfi_reader_take(reader, head.len, &skipped) != KVF_OK)
                return kvf_fail(error, KVF_EFORMAT,
                                "%s: byte %zu claims %zu bytes, but only %zu are left", what, at,
                                head.len, kvfi_reader_left(reader));
            scan->payload_len += head.kind == PAYLOAD ? head.len : 0;
            continue;
        }
        /* Each child takes a byte at least, so this bounds tree_size by the input. */
        if (head.child_count > kvfi_reader_left(reader))
            return kvf_fail(error, KVF_EFORMAT,
                            "%s: byte %zu claims %u elements, but only %zu bytes are left", what,
                            at, head.child_count, kvfi_reader_left(reader));
        if (depth == limits->depth_max || depth == KVFI_MP_DEPTH_MAX)
            return kvf_fail(error, KVF_ELIMIT, "%s: nested deeper than %zu", what,
                            limits->depth_max);
        scan->tree_size += head.tree_size;
        pending[++depth] = head.child_count;
    }
}

enum kvf_status kvfi_mp_parse(const char *what, const void *data, size_t len,
                              const struct kvfi_mp_limits *limits,
                              const struct kvf_allocator *allocator, struct kvfi_mp_doc *doc,
                              struct kvf_error *error)
{
    if (len > limits->len_max)
        return kvf_fail(error, KVF_ELIMIT, "%s: %zu bytes, at most %zu", what, len,
                        limits->len_max);
    struct kvfi_reader reader = kvfi_reader(data, len);
    struct scan scan = {0};
    KVF_TRY(scan_object(what, &reader, limits, &scan, error));
    if (kvfi_reader_left(&reader) != 0)
        return kvf_fail(error, KVF_EFORMAT, "%s: %zu bytes after the end of the object", what,
                        kvfi_reader_left(&reader));

    doc->owner = allocator;
    doc->memory = NULL;
    void *tree = doc->small;
    if (scan.tree_size > sizeof(doc->small)) {
        tree = doc->memory = kvfi_wire_alloc(allocator, scan.tree_size);
        if (!tree)
            return kvf_fail(error, KVF_ENOMEM, "%s: no memory to read %zu elements", what,
                            scan.element_count);
    }
    /* A zone that is one chunk of exactly the size the tree needs: children are multiples of the
     * zone's alignment, so nothing is lost to padding and the zone never grows. */
    msgpack_zone zone = {.chunk_list = {.free = scan.tree_size, .ptr = tree},
                         .chunk_size = MSGPACK_ZONE_CHUNK_SIZE};
    size_t off = 0;
    msgpack_unpack_return result = msgpack_unpack(data, len, &off, &zone, &doc->root);
    if (result != MSGPACK_UNPACK_SUCCESS || off != len) {
        kvfi_mp_free(doc);
        return kvf_fail(error, KVF_EFORMAT, "%s: not well-formed msgpack (result %d)", what,
                        (int)result);
    }
    doc->element_count = scan.element_count;
    doc->payload_len = scan.payload_len;
    return KVF_OK;
}

void kvfi_mp_free(struct kvfi_mp_doc *doc)
{
    kvfi_wire_free(doc->owner, doc->memory);
    *doc = (struct kvfi_mp_doc){0};
}

static int append(void *buf, const char *data, size_t len)
{
    kvfi_buf_put(buf, data, len);
    return 0;
}

void kvfi_mp_packer(msgpack_packer *packer, struct kvfi_buf *buf)
{
    msgpack_packer_init(packer, buf, append);
}

void kvfi_mp_pack_text(msgpack_packer *packer, const char *text)
{
    size_t len = strlen(text);
    msgpack_pack_str(packer, len);
    msgpack_pack_str_body(packer, text, len);
}

void kvfi_mp_pack_bin(msgpack_packer *packer, struct kvfi_span bytes)
{
    msgpack_pack_bin(packer, bytes.len);
    msgpack_pack_bin_body(packer, bytes.data, bytes.len);
}

static const char *type_name(const msgpack_object *object)
{
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        return "nil";
    case MSGPACK_OBJECT_BOOLEAN:
        return "a bool";
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return "an int";
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return "a float";
    case MSGPACK_OBJECT_STR:
        return "a string";
    case MSGPACK_OBJECT_ARRAY:
        return "an array";
    case MSGPACK_OBJECT_MAP:
        return "a map";
    case MSGPACK_OBJECT_BIN:
        return "bytes";
    case MSGPACK_OBJECT_EXT:
        return "an extension";
    }
    return "unknown";
}

static enum kvf_status fail_type(const struct kvfi_mp_field *field, const char *expected,
                                 struct kvf_error *error)
{
    if (!field->object)
        return kvf_fail(error, KVF_EFORMAT, "%s: key '%s' %s", field->message, field->name,
                        field->repeated ? "occurs twice" : "is missing");
    return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is %s, expected %s", field->message, field->name,
                    type_name(field->object), expected);
}

static struct kvfi_span str_span(const msgpack_object *object)
{
    return kvfi_span(object->via.str.ptr, object->via.str.size);
}

enum kvf_status kvfi_mp_check_map(const char *what, const msgpack_object *object,
                                  struct kvf_error *error)
{
    if (object->type != MSGPACK_OBJECT_MAP)
        return kvf_fail(error, KVF_EFORMAT, "%s: it is %s, expected a map", what,
                        type_name(object));
    for (uint32_t i = 0; i < object->via.map.size; i++) {
        const msgpack_object *key = &object->via.map.ptr[i].key;
        if (key->type != MSGPACK_OBJECT_STR)
            return kvf_fail(error, KVF_EFORMAT, "%s: a key is %s, expected a string", what,
                            type_name(key));
    }
    return KVF_OK;
}

struct kvfi_mp_field kvfi_mp_field(const char *message, const msgpack_object *map, const char *name)
{
    struct kvfi_mp_field field = {.message = message, .name = name};
    struct kvfi_span wanted = kvfi_span_str(name);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        if (!kvfi_span_equal(str_span(&map->via.map.ptr[i].key), wanted))
            continue;
        if (field.object)
            field.repeated = true;
        field.object = &map->via.map.ptr[i].val;
    }
    if (field.repeated)
        field.object = NULL;
    return field;
}

bool kvfi_mp_is_nil(const struct kvfi_mp_field *field)
{
    return field->object && field->object->type == MSGPACK_OBJECT_NIL;
}

enum kvf_status kvfi_mp_u64(const struct kvfi_mp_field *field, uint64_t min, uint64_t max,
                            uint64_t *out, struct kvf_error *error)
{
    const msgpack_object *object = field->object;
    if (object && object->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is %lld, at least %llu", field->message,
                        field->name, (long long)object->via.i64, (unsigned long long)min);
    if (!object || object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return fail_type(field, "an int", error);
    if (object->via.u64 < min || object->via.u64 > max)
        return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is %llu, expected %llu to %llu",
                        field->message, field->name, (unsigned long long)object->via.u64,
                        (unsigned long long)min, (unsigned long long)max);
    *out = object->via.u64;
    return KVF_OK;
}

enum kvf_status kvfi_mp_i64(const struct kvfi_mp_field *field, int64_t min, int64_t max,
                            int64_t *out, struct kvf_error *error)
{
    const msgpack_object *object = field->object;
    if (object && object->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        uint64_t value = 0;
        KVF_TRY(kvfi_mp_u64(field, min > 0 ? (uint64_t)min : 0, max > 0 ? (uint64_t)max : 0, &value,
                            error));
        *out = (int64_t)value;
        return KVF_OK;
    }
    if (!object || object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER)
        return fail_type(field, "an int", error);
    if (object->via.i64 < min || object->via.i64 > max)
        return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is %lld, expected %lld to %lld",
                        field->message, field->name, (long long)object->via.i64, (long long)min,
                        (long long)max);
    *out = object->via.i64;
    return KVF_OK;
}

enum kvf_status kvfi_mp_text(const struct kvfi_mp_field *field, size_t len_max,
                             struct kvfi_span *out, struct kvf_error *error)
{
    if (!field->object || field->object->type != MSGPACK_OBJECT_STR)
        return fail_type(field, "a string", error);
    struct kvfi_span text = str_span(field->object);
    if (text.len > len_max)
        return kvf_fail(error, KVF_ELIMIT, "%s: '%s' has %zu bytes, at most %zu", field->message,
                        field->name, text.len, len_max);
    if (!kvfi_utf8_valid(text) || (text.len != 0 && memchr(text.data, 0, text.len)))
        return kvf_fail(error, KVF_EFORMAT, "%s: '%s' is not UTF-8 text without NUL",
                        field->message, field->name);
    *out = text;
    return KVF_OK;
}

enum kvf_status kvfi_mp_bin(const struct kvfi_mp_field *field, struct kvfi_span *out,
                            struct kvf_error *error)
{
    if (!field->object || field->object->type != MSGPACK_OBJECT_BIN)
        return fail_type(field, "bytes", error);
    *out = kvfi_span(field->object->via.bin.ptr, field->object->via.bin.size);
    return KVF_OK;
}

enum kvf_status kvfi_mp_array(const struct kvfi_mp_field *field, size_t count_max,
                              msgpack_object_array *out, struct kvf_error *error)
{
    if (!field->object || field->object->type != MSGPACK_OBJECT_ARRAY)
        return fail_type(field, "an array", error);
    if (field->object->via.array.size > count_max)
        return kvf_fail(error, KVF_ELIMIT, "%s: '%s' has %u entries, at most %zu", field->message,
                        field->name, field->object->via.array.size, count_max);
    *out = field->object->via.array;
    return KVF_OK;
}

enum kvf_status kvfi_mp_map(const struct kvfi_mp_field *field, size_t count_max,
                            msgpack_object_map *out, struct kvf_error *error)
{
    if (!field->object || field->object->type != MSGPACK_OBJECT_MAP)
        return fail_type(field, "a map", error);
    KVF_TRY(kvfi_mp_check_map(field->message, field->object, error));
    if (field->object->via.map.size > count_max)
        return kvf_fail(error, KVF_ELIMIT, "%s: '%s' has %u entries, at most %zu", field->message,
                        field->name, field->object->via.map.size, count_max);
    *out = field->object->via.map;
    return KVF_OK;
}

enum kvf_status kvfi_mp_arena_init(struct kvfi_mp_arena *arena, size_t cap,
                                   const struct kvf_allocator *allocator, struct kvf_error *error)
{
    uint8_t *base = kvfi_wire_alloc(allocator, cap);
    if (!base)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %zu bytes of a decoded message", cap);
    *arena = (struct kvfi_mp_arena){.base = base, .cap = cap};
    return KVF_OK;
}

enum kvf_status kvfi_mp_arena_take(struct kvfi_mp_arena *arena, size_t size, void **out,
                                   struct kvf_error *error)
{
    size_t start =
        (arena->used + KVFI_MP_ARENA_ALIGN - 1) / KVFI_MP_ARENA_ALIGN * KVFI_MP_ARENA_ALIGN;
    if (start > arena->cap || size > arena->cap - start)
        return kvf_fail(error, KVF_EINTERNAL, "a decoded message outgrew its %zu bytes",
                        arena->cap);
    *out = arena->base + start;
    arena->used = start + size;
    return KVF_OK;
}

enum kvf_status kvfi_mp_arena_text(struct kvfi_mp_arena *arena, struct kvfi_span text,
                                   const char **out, struct kvf_error *error)
{
    if (text.len >= arena->cap - arena->used)
        return kvf_fail(error, KVF_EINTERNAL, "a decoded message outgrew its %zu bytes",
                        arena->cap);
    char *copy = (char *)arena->base + arena->used;
    if (text.len != 0)
        memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    arena->used += text.len + 1;
    *out = copy;
    return KVF_OK;
}
