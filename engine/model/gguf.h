/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_GGUF_H
#define ENGINE_MODEL_GGUF_H

/*
 * Reader for GGUF files, versions 2 and 3, little-endian, mapped into memory.
 *
 * Opening checks every count, length, offset and alignment against the file's size, so that what
 * the accessors hand out lies inside the mapping. Strings are lengths and bytes; they are not
 * terminated. A gguf is immutable after opening: any thread may read it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

enum gguf_value_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

/* Tensor types that this engine computes with; the numbers are the file's. */
enum gguf_tensor_type {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_Q6_K = 14,
};

struct gguf_string {
    const char *data; /* lent by the mapping; not terminated */
    size_t len;
};

/* One metadata entry. data points at the value (for an array: at its first element). */
struct gguf_entry {
    struct gguf_string key;
    enum gguf_value_type type;
    enum gguf_value_type element_type; /* arrays only */
    uint64_t count;                    /* arrays only: elements */
    const uint8_t *data;
    size_t size; /* bytes of the value, from data */
};

struct gguf_tensor {
    struct gguf_string name;
    enum gguf_tensor_type type;
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length; unused ones are 1 */
    uint64_t row_bytes;
    const uint8_t *data; /* aligned to the file's alignment */
    uint64_t size;
};

struct gguf;

/* Maps and checks the file. Returns owned in *file_p. KVF_ESYSTEM, KVF_EFORMAT, KVF_ENOTSUP (byte
 * order, version or a tensor type, each named), KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status gguf_open(const char *path, struct gguf **file_p,
                                       struct kvf_error *error);
void gguf_close(struct gguf *file);

const char *gguf_path(const struct gguf *file);
uint64_t gguf_file_bytes(const struct gguf *file);

/* NULL when there is no such key or tensor. */
const struct gguf_entry *gguf_find(const struct gguf *file, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name);

uint64_t gguf_tensor_count(const struct gguf *file);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t index);

/* Typed access. A missing key leaves *value_p alone and returns KVF_ENOTFOUND (with a text); a
 * value of another kind or out of range is KVF_EFORMAT. Integers of any width are accepted. */
KVF_MUST_USE enum kvf_status gguf_get_u32(const struct gguf *file, const char *key,
                                          uint32_t *value_p, struct kvf_error *error);
KVF_MUST_USE enum kvf_status gguf_get_f32(const struct gguf *file, const char *key, float *value_p,
                                          struct kvf_error *error);
KVF_MUST_USE enum kvf_status gguf_get_bool(const struct gguf *file, const char *key, bool *value_p,
                                           struct kvf_error *error);
KVF_MUST_USE enum kvf_status gguf_get_string(const struct gguf *file, const char *key,
                                             struct gguf_string *value_p, struct kvf_error *error);

/* Walks an array of strings: start with the entry's data and its size, call count times. False when
 * the next string does not fit (only if the file changed after it was opened). */
struct gguf_strings {
    const uint8_t *at;
    size_t left;
};
bool gguf_next_string(struct gguf_strings *strings, struct gguf_string *value_p);

/* "f16", "q4_1", ...: also of types this engine cannot compute with; "type 99" has no name: NULL.
 */
const char *gguf_tensor_type_name(uint32_t type);
/* Elements and bytes of one block of a type; false for types that are not supported. */
bool gguf_tensor_type_block(uint32_t type, uint32_t *elements_p, uint32_t *bytes_p);

#endif
