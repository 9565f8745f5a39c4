/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ARRAY_DEPTH_MAX = 4,
    KEY_LEN_MAX = 65535,
    NAME_LEN_MAX = 4096,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
};

struct gguf {
    char *path;
    const uint8_t *map;
    size_t size;
    struct gguf_entry *entries; /* sorted by key */
    uint64_t n_entries;
    struct gguf_tensor *tensors; /* sorted by name */
    uint64_t n_tensors;
    uint32_t alignment;
};

/* Reads the file from front to back; `at` never passes `file->size`. */
struct reader {
    struct gguf *file;
    size_t at;
    struct kvf_error *error;
};

static const char *const tensor_type_names[] = {
    [0] = "f32",     [1] = "f16",      [2] = "q4_0",   [3] = "q4_1",    [6] = "q5_0",
    [7] = "q5_1",    [8] = "q8_0",     [9] = "q8_1",   [10] = "q2_k",   [11] = "q3_k",
    [12] = "q4_k",   [13] = "q5_k",    [14] = "q6_k",  [15] = "q8_k",   [16] = "iq2_xxs",
    [17] = "iq2_xs", [18] = "iq3_xxs", [19] = "iq1_s", [20] = "iq4_nl", [21] = "iq3_s",
    [22] = "iq2_s",  [23] = "iq4_xs",  [24] = "i8",    [25] = "i16",    [26] = "i32",
    [27] = "i64",    [28] = "f64",     [29] = "iq1_m", [30] = "bf16",   [34] = "tq1_0",
    [35] = "tq2_0",  [39] = "mxfp4",
};

static const uint8_t scalar_sizes[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

const char *gguf_tensor_type_name(uint32_t type)
{
    if (type >= sizeof tensor_type_names / sizeof tensor_type_names[0])
        return NULL;
    return tensor_type_names[type];
}

bool gguf_tensor_type_block(uint32_t type, uint32_t *elements_p, uint32_t *bytes_p)
{
    static const struct {
        uint8_t type, bytes;
        uint16_t elements;
    } blocks[] = {
        {GGUF_TENSOR_F32, 4, 1},    {GGUF_TENSOR_F16, 2, 1},      {GGUF_TENSOR_Q4_1, 20, 32},
        {GGUF_TENSOR_Q8_0, 34, 32}, {GGUF_TENSOR_Q6_K, 210, 256},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (blocks[i].type == type) {
            *elements_p = blocks[i].elements;
            *bytes_p = blocks[i].bytes;
            return true;
        }
    }
    return false;
}

/* Strings from the file go into messages cut to a readable length. */
static int shown_len(struct gguf_string s)
{
    return s.len > 80 ? 80 : (int)s.len;
}

static enum kvf_status need(struct reader *r, uint64_t size, const char *what)
{
    uint64_t left = r->file->size - r->at;
    if (size > left)
        return kvf_fail(r->error, KVF_EFORMAT,
                        "%s: %s at byte %zu needs %" PRIu64 " bytes but only %" PRIu64
                        " remain; the file is cut short or damaged",
                        r->file->path, what, r->at, size, left);
    return KVF_OK;
}

static enum kvf_status read_u32(struct reader *r, const char *what, uint32_t *value_p)
{
    KVF_TRY(need(r, sizeof *value_p, what));
    memcpy(value_p, r->file->map + r->at, sizeof *value_p);
    r->at += sizeof *value_p;
    return KVF_OK;
}

static enum kvf_status read_u64(struct reader *r, const char *what, uint64_t *value_p)
{
    KVF_TRY(need(r, sizeof *value_p, what));
    memcpy(value_p, r->file->map + r->at, sizeof *value_p);
    r->at += sizeof *value_p;
    return KVF_OK;
}

static enum kvf_status read_string(struct reader *r, const char *what, struct gguf_string *value_p)
{
    uint64_t len = 0;
    KVF_TRY(read_u64(r, what, &len));
    KVF_TRY(need(r, len, what));
    *value_p = (struct gguf_string){(const char *)r->file->map + r->at, (size_t)len};
    r->at += (size_t)len;
    return KVF_OK;
}

static enum kvf_status bad_type(struct reader *r, struct gguf_string key, uint32_t type)
{
    return kvf_fail(r->error, KVF_EFORMAT,
                    "%s: key %.*s has value type %u; the known ones are 0 to 12", r->file->path,
                    shown_len(key), key.data, type);
}

static enum kvf_status skip_array(struct reader *r, struct gguf_string key, unsigned depth,
                                  uint32_t *type_p, uint64_t *count_p)
{
    if (depth > ARRAY_DEPTH_MAX)
        return kvf_fail(r->error, KVF_EFORMAT, "%s: key %.*s nests arrays deeper than %d",
                        r->file->path, shown_len(key), key.data, ARRAY_DEPTH_MAX);
    KVF_TRY(read_u32(r, "an array's element type", type_p));
    KVF_TRY(read_u64(r, "an array's length", count_p));
    if (*type_p > GGUF_F64)
        return bad_type(r, key, *type_p);
    if (*type_p != GGUF_STRING && *type_p != GGUF_ARRAY) {
        uint64_t size = scalar_sizes[*type_p], left = r->file->size - r->at;
        if (*count_p > left / size)
            return kvf_fail(r->error, KVF_EFORMAT,
                            "%s: key %.*s says %" PRIu64 " elements of %" PRIu64
                            " bytes but only %" PRIu64 " bytes remain",
                            r->file->path, shown_len(key), key.data, *count_p, size, left);
        r->at += (size_t)(*count_p * size);
        return KVF_OK;
    }
    /* Each element takes at least 8 bytes, so a wild count ends at the file's end, not later. */
    for (uint64_t i = 0; i < *count_p; i++) {
        struct gguf_string s;
        uint32_t type;
        uint64_t count;
        if (*type_p == GGUF_STRING)
            KVF_TRY(read_string(r, "a string in an array", &s));
        else
            KVF_TRY(skip_array(r, key, depth + 1, &type, &count));
    }
    return KVF_OK;
}

static enum kvf_status read_entry(struct reader *r, struct gguf_entry *entry)
{
    uint32_t type = 0;
    KVF_TRY(read_string(r, "a key", &entry->key));
    if (entry->key.len == 0 || entry->key.len > KEY_LEN_MAX)
        return kvf_fail(r->error, KVF_EFORMAT, "%s: a key of %zu bytes; 1 to %d are allowed",
                        r->file->path, entry->key.len, KEY_LEN_MAX);
    KVF_TRY(read_u32(r, "a value type", &type));
    if (type > GGUF_F64)
        return bad_type(r, entry->key, type);
    entry->type = (enum gguf_value_type)type;

    size_t start = r->at;
    entry->data = r->file->map + start;
    if (entry->type == GGUF_ARRAY) {
        uint32_t element_type = 0;
        KVF_TRY(skip_array(r, entry->key, 1, &element_type, &entry->count));
        entry->element_type = (enum gguf_value_type)element_type;
        start += sizeof(uint32_t) + sizeof(uint64_t);
        entry->data = r->file->map + start;
    } else if (entry->type == GGUF_STRING) {
        struct gguf_string s;
        KVF_TRY(read_string(r, "a string value", &s));
    } else {
        KVF_TRY(need(r, scalar_sizes[type], "a value"));
        r->at += scalar_sizes[type];
    }
    entry->size = r->at - start;
    return KVF_OK;
}

static int compare_strings(struct gguf_string a, struct gguf_string b)
{
    size_t len = a.len < b.len ? a.len : b.len;
    int order = memcmp(a.data, b.data, len);
    if (order != 0)
        return order;
    return a.len < b.len ? -1 : a.len > b.len;
}

static int compare_entries(const void *a, const void *b)
{
    return compare_strings(((const struct gguf_entry *)a)->key,
                           ((const struct gguf_entry *)b)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_strings(((const struct gguf_tensor *)a)->name,
                           ((const struct gguf_tensor *)b)->name);
}

/* Refuses a count that the rest of the file cannot hold before memory is taken for it. */
static enum kvf_status check_count(struct reader *r, const char *what, uint64_t count,
                                   uint64_t bytes_min)
{
    uint64_t left = r->file->size - r->at;
    if (count > left / bytes_min)
        return kvf_fail(r->error, KVF_EFORMAT,
                        "%s: the header says %" PRIu64 " %s of at least %" PRIu64
                        " bytes each but only %" PRIu64 " bytes remain",
                        r->file->path, count, what, bytes_min, left);
    return KVF_OK;
}

static enum kvf_status read_metadata(struct reader *r, uint64_t count)
{
    struct gguf *file = r->file;
    KVF_TRY(check_count(r, "metadata entries", count, 8 + 1 + 4 + 1));
    if (count == 0)
        return KVF_OK;
    file->entries = calloc((size_t)count, sizeof *file->entries);
    if (!file->entries)
        return kvf_fail(r->error, KVF_ENOMEM, "%s: no memory for %" PRIu64 " metadata entries",
                        file->path, count);
    for (uint64_t i = 0; i < count; i++)
        KVF_TRY(read_entry(r, &file->entries[i]));
    file->n_entries = count;
    qsort(file->entries, (size_t)count, sizeof *file->entries, compare_entries);
    for (uint64_t i = 1; i < count; i++) {
        struct gguf_string key = file->entries[i].key;
        if (compare_entries(&file->entries[i - 1], &file->entries[i]) == 0)
            return kvf_fail(r->error, KVF_EFORMAT, "%s: key %.*s appears twice", file->path,
                            shown_len(key), key.data);
    }
    return KVF_OK;
}

/* Shape and type of one tensor; the offset is kept in `size` until the data section is known. */
static enum kvf_status read_tensor(struct reader *r, struct gguf_tensor *tensor)
{
    const char *path = r->file->path;
    uint32_t type = 0, elements = 0, bytes = 0;
    KVF_TRY(read_string(r, "a tensor name", &tensor->name));
    struct gguf_string name = tensor->name;
    if (name.len == 0 || name.len > NAME_LEN_MAX)
        return kvf_fail(r->error, KVF_EFORMAT,
                        "%s: a tensor name of %zu bytes; 1 to %d are allowed", path, name.len,
                        NAME_LEN_MAX);
    KVF_TRY(read_u32(r, "a dimension count", &tensor->n_dims));
    if (tensor->n_dims < 1 || tensor->n_dims > 4)
        return kvf_fail(r->error, KVF_EFORMAT,
                        "%s: tensor %.*s has %u dimensions; 1 to 4 are allowed", path,
                        shown_len(name), name.data, tensor->n_dims);
    uint64_t total = 1;
    for (uint32_t i = 0; i < 4; i++) {
        tensor->dims[i] = 1;
        if (i < tensor->n_dims)
            KVF_TRY(read_u64(r, "a dimension", &tensor->dims[i]));
        /* No supported element is smaller than half a byte. */
        if (tensor->dims[i] == 0 || tensor->dims[i] > 2 * (uint64_t)r->file->size / total)
            return kvf_fail(r->error, KVF_EFORMAT,
                            "%s: dimension %u of tensor %.*s is %" PRIu64
                            ", which a file of %zu bytes cannot hold",
                            path, i, shown_len(name), name.data, tensor->dims[i], r->file->size);
        total *= tensor->dims[i];
    }
    KVF_TRY(read_u32(r, "a tensor type", &type));
    KVF_TRY(read_u64(r, "a tensor offset", &tensor->size));
    if (!gguf_tensor_type_block(type, &elements, &bytes))
        return kvf_fail(
            r->error, KVF_ENOTSUP,
            "%s: tensor %.*s has type %s (%u); supported are f32, f16, q8_0, q4_1 and q6_k", path,
            shown_len(name), name.data,
            gguf_tensor_type_name(type) ? gguf_tensor_type_name(type) : "unknown", type);
    if (tensor->dims[0] % elements != 0)
        return kvf_fail(r->error, KVF_EFORMAT,
                        "%s: rows of tensor %.*s have %" PRIu64
                        " elements, not a multiple of the %u of a %s block",
                        path, shown_len(name), name.data, tensor->dims[0], elements,
                        gguf_tensor_type_name(type));
    tensor->type = (enum gguf_tensor_type)type;
    tensor->row_bytes = tensor->dims[0] / elements * bytes;
    return KVF_OK;
}

static enum kvf_status place_tensors(struct reader *r)
{
    struct gguf *file = r->file;
    size_t start = r->at, pad = (file->alignment - start % file->alignment) % file->alignment;
    if (pad > file->size - start)
        pad = file->size - start;
    start += pad;
    uint64_t room = file->size - start;
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *tensor = &file->tensors[i];
        struct gguf_string name = tensor->name;
        uint64_t offset = tensor->size, rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
        if (offset % file->alignment != 0)
            return kvf_fail(r->error, KVF_EFORMAT,
                            "%s: tensor %.*s begins at offset %" PRIu64
                            ", not a multiple of the file's alignment %u",
                            file->path, shown_len(name), name.data, offset, file->alignment);
        if (offset > room || tensor->row_bytes > (room - offset) / rows)
            return kvf_fail(
                r->error, KVF_EFORMAT,
                "%s: tensor %.*s needs %" PRIu64 " rows of %" PRIu64 " bytes from offset %" PRIu64
                " but the data section has %" PRIu64 " bytes; the file is cut short or damaged",
                file->path, shown_len(name), name.data, rows, tensor->row_bytes, offset, room);
        tensor->data = file->map + start + offset;
        tensor->size = tensor->row_bytes * rows;
    }
    return KVF_OK;
}

static enum kvf_status read_tensors(struct reader *r, uint64_t count)
{
    struct gguf *file = r->file;
    KVF_TRY(check_count(r, "tensors", count, 8 + 1 + 4 + 8 + 4 + 8));
    if (count == 0)
        return KVF_OK;
    file->tensors = calloc((size_t)count, sizeof *file->tensors);
    if (!file->tensors)
        return kvf_fail(r->error, KVF_ENOMEM, "%s: no memory for %" PRIu64 " tensors", file->path,
                        count);
    for (uint64_t i = 0; i < count; i++)
        KVF_TRY(read_tensor(r, &file->tensors[i]));
    file->n_tensors = count;
    KVF_TRY(place_tensors(r));
    qsort(file->tensors, (size_t)count, sizeof *file->tensors, compare_tensors);
    for (uint64_t i = 1; i < count; i++) {
        struct gguf_string name = file->tensors[i].name;
        if (compare_tensors(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return kvf_fail(r->error, KVF_EFORMAT, "%s: tensor %.*s appears twice", file->path,
                            shown_len(name), name.data);
    }
    return KVF_OK;
}

static enum kvf_status parse(struct gguf *file, struct kvf_error *error)
{
    struct reader r = {file, 0, error};
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_entries = 0;
    KVF_TRY(need(&r, 4, "the magic"));
    if (memcmp(file->map, "GGUF", 4) != 0)
        return kvf_fail(
            error, KVF_EFORMAT,
            "%s: begins with bytes %02x %02x %02x %02x, not with GGUF; is it a GGUF file?",
            file->path, file->map[0], file->map[1], file->map[2], file->map[3]);
    r.at = 4;
    KVF_TRY(read_u32(&r, "the version", &version));
    if (version == 0x02000000 || version == 0x03000000)
        return kvf_fail(error, KVF_ENOTSUP,
                        "%s: the file is big-endian; only little-endian files are supported",
                        file->path);
    if (version != 2 && version != 3)
        return kvf_fail(error, KVF_ENOTSUP, "%s: GGUF version %u; supported are 2 and 3",
                        file->path, version);
    KVF_TRY(read_u64(&r, "the tensor count", &n_tensors));
    KVF_TRY(read_u64(&r, "the metadata count", &n_entries));
    KVF_TRY(read_metadata(&r, n_entries));

    file->alignment = ALIGNMENT_DEFAULT;
    if (gguf_find(file, "general.alignment"))
        KVF_TRY(gguf_get_u32(file, "general.alignment", &file->alignment, error));
    if (file->alignment < 8 || file->alignment > ALIGNMENT_MAX ||
        (file->alignment & (file->alignment - 1)) != 0)
        return kvf_fail(error, KVF_EFORMAT,
                        "%s: general.alignment is %u; it must be a power of two from 8 to %d",
                        file->path, file->alignment, ALIGNMENT_MAX);
    return read_tensors(&r, n_tensors);
}

static enum kvf_status map_file(struct gguf *file, struct kvf_error *error)
{
    struct stat st;
    enum kvf_status status = KVF_OK;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kvf_fail(error, KVF_ESYSTEM, "%s: cannot open the model: %s", file->path,
                        strerrordesc_np(errno));
    if (fstat(fd, &st) != 0) {
        status = kvf_fail(error, KVF_ESYSTEM, "%s: fstat: %s", file->path, strerrordesc_np(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = kvf_fail(error, KVF_EFORMAT, "%s: not a regular file", file->path);
    } else if (st.st_size <= 0) {
        status = kvf_fail(error, KVF_EFORMAT, "%s: the file is empty", file->path);
    } else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            status =
                kvf_fail(error, KVF_ESYSTEM, "%s: mmap: %s", file->path, strerrordesc_np(errno));
        } else {
            file->map = map;
            file->size = (size_t)st.st_size;
            (void)madvise(map, file->size, MADV_WILLNEED);
        }
    }
    (void)close(fd);
    return status;
}

enum kvf_status gguf_open(const char *path, struct gguf **file_p, struct kvf_error *error)
{
    struct gguf *file = calloc(1, sizeof *file);
    if (file)
        file->path = strdup(path);
    if (!file || !file->path) {
        free(file);
        return kvf_fail(error, KVF_ENOMEM, "%s: no memory to open the model", path);
    }
    enum kvf_status status = map_file(file, error);
    if (file->map)
        status = parse(file, error);
    if (status != KVF_OK) {
        gguf_close(file);
        return status;
    }
    *file_p = file;
    return KVF_OK;
}

void gguf_close(struct gguf *file)
{
    if (!file)
        return;
    if (file->map)
        (void)munmap((void *)(uintptr_t)file->map, file->size);
    free(file->entries);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *gguf_path(const struct gguf *file)
{
    return file->path;
}

uint64_t gguf_file_bytes(const struct gguf *file)
{
    return file->size;
}

uint64_t gguf_tensor_count(const struct gguf *file)
{
    return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

const struct gguf_entry *gguf_find(const struct gguf *file, const char *key)
{
    struct gguf_entry wanted = {.key = {key, strlen(key)}};
    if (file->n_entries == 0)
        return NULL;
    return bsearch(&wanted, file->entries, (size_t)file->n_entries, sizeof wanted, compare_entries);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *file, const char *name)
{
    struct gguf_tensor wanted = {.name = {name, strlen(name)}};
    if (file->n_tensors == 0)
        return NULL;
    return bsearch(&wanted, file->tensors, (size_t)file->n_tensors, sizeof wanted, compare_tensors);
}
