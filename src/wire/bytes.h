/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_BYTES_H
#define KVFI_WIRE_BYTES_H

/*
 * The ground under every encoder and decoder of this folder: memory from the caller's allocator,
 * a growable output buffer, a bounded reader, and text checks. Nothing here blocks or keeps state
 * outside its arguments; each object belongs to one thread at a time.
 */

#include "kvferry/status.h"

/* A run of bytes that somebody else owns. data may be NULL only when len is 0. */
struct kvfi_span {
    const uint8_t *data;
    size_t len;
};

static inline struct kvfi_span kvfi_span(const void *data, size_t len)
{
    return (struct kvfi_span){.data = data, .len = len};
}

/* The bytes of a C string without its terminator. NULL gives the empty span. */
struct kvfi_span kvfi_span_str(const char *text);

bool kvfi_span_equal(struct kvfi_span a, struct kvfi_span b);

/* Bytewise order, shorter first on a tie; <0, 0, >0. */
int kvfi_span_compare(struct kvfi_span a, struct kvfi_span b);

/* allocator NULL means malloc and free. size 0 is served as 1, so NULL always means out of
 * memory. The caller frees with the same allocator. */
void *kvfi_wire_alloc(const struct kvf_allocator *allocator, size_t size) KVF_MUST_USE;
void *kvfi_wire_realloc(const struct kvf_allocator *allocator, void *ptr, size_t size) KVF_MUST_USE;
void kvfi_wire_free(const struct kvf_allocator *allocator, void *ptr);

/* Largest message that any encoder builds. */
#define KVFI_BUF_LEN_MAX ((size_t)256 << 20)

/*
 * Growable output. Failure is sticky: after the first failed append every later one does nothing,
 * and kvfi_buf_status() says so once at the end.
 */
struct kvfi_buf {
    const struct kvf_allocator *allocator; /* borrowed, must outlive the buffer; may be NULL */
    uint8_t *data;                         /* owned by the buffer until kvfi_buf_release() */
    size_t len;
    size_t cap;
    enum kvf_status status;
};

/* Takes no memory yet. */
void kvfi_buf_init(struct kvfi_buf *buf, const struct kvf_allocator *allocator);

/* Frees the bytes; the buffer may be used again. */
void kvfi_buf_deinit(struct kvfi_buf *buf);

/* Forgets contents and failure, keeps the memory for the next message. */
void kvfi_buf_clear(struct kvfi_buf *buf);

/* Hands the bytes to the caller, who frees them with kvfi_wire_free and the same allocator. */
uint8_t *kvfi_buf_release(struct kvfi_buf *buf, size_t *len) KVF_MUST_USE;

void kvfi_buf_put(struct kvfi_buf *buf, const void *data, size_t len);
void kvfi_buf_put_text(struct kvfi_buf *buf, const char *text);
void kvfi_buf_put_decimal(struct kvfi_buf *buf, uint64_t value);
void kvfi_buf_put_u8(struct kvfi_buf *buf, uint8_t value);
void kvfi_buf_put_u32le(struct kvfi_buf *buf, uint32_t value);
void kvfi_buf_put_u64le(struct kvfi_buf *buf, uint64_t value);

/* KVF_OK, KVF_ENOMEM or KVF_ELIMIT (more than KVFI_BUF_LEN_MAX). */
enum kvf_status kvfi_buf_status(const struct kvfi_buf *buf, struct kvf_error *error) KVF_MUST_USE;

/*
 * Bounded input. Each take either moves past exactly what it returns, or fails with KVF_EFORMAT
 * and moves nothing. Spans point into the input.
 */
struct kvfi_reader {
    const uint8_t *data; /* borrowed */
    size_t len;
    size_t pos; /* pos <= len always */
};

static inline struct kvfi_reader kvfi_reader(const void *data, size_t len)
{
    return (struct kvfi_reader){.data = data, .len = len};
}

static inline size_t kvfi_reader_left(const struct kvfi_reader *reader)
{
    return reader->len - reader->pos;
}

enum kvf_status kvfi_reader_take(struct kvfi_reader *reader, size_t len,
                                 struct kvfi_span *out) KVF_MUST_USE;
enum kvf_status kvfi_reader_u8(struct kvfi_reader *reader, uint8_t *out) KVF_MUST_USE;
enum kvf_status kvfi_reader_u32le(struct kvfi_reader *reader, uint32_t *out) KVF_MUST_USE;
enum kvf_status kvfi_reader_u64le(struct kvfi_reader *reader, uint64_t *out) KVF_MUST_USE;

/* Strict UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
bool kvfi_utf8_valid(struct kvfi_span text);

/* Reads one code point at *pos of valid UTF-8 and moves *pos past it. */
uint32_t kvfi_utf8_next(struct kvfi_span text, size_t *pos);

/* One or more ASCII digits and nothing else, at most value_max; false otherwise. */
bool kvfi_parse_decimal(struct kvfi_span text, uint64_t value_max, uint64_t *out) KVF_MUST_USE;

/* A peer's bytes, made fit for an error text: printable ASCII, other bytes as '?', at most 48
 * characters and then "...". Returns quote->text. */
struct kvfi_quote {
    char text[52];
};
const char *kvfi_quote(struct kvfi_quote *quote, struct kvfi_span bytes);

#endif
