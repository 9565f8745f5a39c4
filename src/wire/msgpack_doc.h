/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_MSGPACK_DOC_H
#define KVFI_WIRE_MSGPACK_DOC_H

/*
 * msgpack-c behind bounds of our own. Untrusted bytes are first scanned without any allocation:
 * they must be exactly one object, within depth, element and size limits, with no extension types.
 * The scan also yields the exact memory the tree needs, which then comes from the caller's
 * allocator; msgpack-c itself never allocates. Only .c files of this folder include this.
 */

#include "wire/bytes.h"

#include <msgpack.h>

struct kvfi_mp_limits {
    size_t len_max;
    size_t element_count_max; /* objects, containers and keys included */
    size_t depth_max;         /* nested containers, at most KVFI_MP_DEPTH_MAX */
};

#define KVFI_MP_DEPTH_MAX 8

/* Stays where it was filled: the tree of a small document lies inside the struct. */
struct kvfi_mp_doc {
    msgpack_object root; /* strings and bytes point into the input */
    /* What the tree holds, so that a decoder can size its own copy before making it. */
    size_t element_count;
    size_t payload_len; /* of all strings and byte strings */
    const struct kvf_allocator *owner;
    void *memory;            /* of a tree that does not fit below */
    msgpack_object small[4]; /* a handshake request takes no memory */
};

/* KVF_EFORMAT, KVF_ELIMIT, KVF_ENOMEM. what names the message in errors. */
enum kvf_status kvfi_mp_parse(const char *what, const void *data, size_t len,
                              const struct kvfi_mp_limits *limits,
                              const struct kvf_allocator *allocator, struct kvfi_mp_doc *doc,
                              struct kvf_error *error) KVF_MUST_USE;
void kvfi_mp_free(struct kvfi_mp_doc *doc);

/* A packer that appends to buf; failure shows in kvfi_buf_status(). */
void kvfi_mp_packer(msgpack_packer *packer, struct kvfi_buf *buf);
void kvfi_mp_pack_text(msgpack_packer *packer, const char *text);
void kvfi_mp_pack_bin(msgpack_packer *packer, struct kvfi_span bytes);

/*
 * Strict accessors. Each fails with KVF_EFORMAT, naming the message and the field, when the object
 * is absent, has another type or is out of range; *out is written only on KVF_OK.
 */
struct kvfi_mp_field {
    const char *message;
    const char *name;
    const msgpack_object *object; /* NULL: absent, or there twice */
    bool repeated;
};

/* A map whose keys are all strings. */
enum kvf_status kvfi_mp_check_map(const char *what, const msgpack_object *object,
                                  struct kvf_error *error) KVF_MUST_USE;
/* map must have passed kvfi_mp_check_map(). A key that is there twice reads as an error. */
struct kvfi_mp_field kvfi_mp_field(const char *message, const msgpack_object *map,
                                   const char *name);

/* nil is not absent. */
static inline bool kvfi_mp_absent(const struct kvfi_mp_field *field)
{
    return !field->object && !field->repeated;
}
bool kvfi_mp_is_nil(const struct kvfi_mp_field *field);

enum kvf_status kvfi_mp_u64(const struct kvfi_mp_field *field, uint64_t min, uint64_t max,
                            uint64_t *out, struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_mp_i64(const struct kvfi_mp_field *field, int64_t min, int64_t max,
                            int64_t *out, struct kvf_error *error) KVF_MUST_USE;
/* Valid UTF-8 without NUL, at most len_max bytes. */
enum kvf_status kvfi_mp_text(const struct kvfi_mp_field *field, size_t len_max,
                             struct kvfi_span *out, struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_mp_bin(const struct kvfi_mp_field *field, struct kvfi_span *out,
                            struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_mp_array(const struct kvfi_mp_field *field, size_t count_max,
                              msgpack_object_array *out, struct kvf_error *error) KVF_MUST_USE;
/* All keys are strings; they may repeat. */
enum kvf_status kvfi_mp_map(const struct kvfi_mp_field *field, size_t count_max,
                            msgpack_object_map *out, struct kvf_error *error) KVF_MUST_USE;

/*
 * One block of memory that a decoded message is copied into piece by piece. Sized from the document
 * before the first piece, so running out is a defect (KVF_EINTERNAL), never the peer's doing.
 */
#define KVFI_MP_ARENA_ALIGN 8

struct kvfi_mp_arena {
    uint8_t *base;
    size_t used;
    size_t cap;
};

enum kvf_status kvfi_mp_arena_init(struct kvfi_mp_arena *arena, size_t cap,
                                   const struct kvf_allocator *allocator,
                                   struct kvf_error *error) KVF_MUST_USE;
/* Aligned to KVFI_MP_ARENA_ALIGN; never NULL on KVF_OK, also for size 0. */
enum kvf_status kvfi_mp_arena_take(struct kvfi_mp_arena *arena, size_t size, void **out,
                                   struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_mp_arena_text(struct kvfi_mp_arena *arena, struct kvfi_span text,
                                   const char **out, struct kvf_error *error) KVF_MUST_USE;

#endif
