/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_NIXL_SERDES_H
#define KVFI_WIRE_NIXL_SERDES_H

/*
 * NIXL's tag-length-value stream: "nixlSerDes|", then fields back to back, each
 *
 *   tag (bytes both sides agree on)   u64 length, little endian   data   '|'
 *
 * There is no lookup by tag and no skipping: reader and writer must agree on tags and order. The
 * reader is stricter than NIXL's: a wrong tag, a length that does not fit what is left or a byte
 * other than '|' after the data is KVF_EFORMAT, and nothing is consumed.
 */

#include "wire/bytes.h"

void kvfi_serdes_begin(struct kvfi_buf *buf);
void kvfi_serdes_put(struct kvfi_buf *buf, const char *tag, struct kvfi_span data);
void kvfi_serdes_put_u32(struct kvfi_buf *buf, const char *tag, uint32_t value);
void kvfi_serdes_put_u64(struct kvfi_buf *buf, const char *tag, uint64_t value);

/* Starts a field whose data the caller appends in pieces: exactly len bytes, then
 * kvfi_serdes_end_field(). */
void kvfi_serdes_begin_field(struct kvfi_buf *buf, const char *tag, size_t len);
void kvfi_serdes_end_field(struct kvfi_buf *buf);

/* Checks the prefix. The reader borrows data. */
enum kvf_status kvfi_serdes_open(struct kvfi_reader *reader, const void *data, size_t len,
                                 struct kvf_error *error) KVF_MUST_USE;
/* *out points into the input. */
enum kvf_status kvfi_serdes_take(struct kvfi_reader *reader, const char *tag, struct kvfi_span *out,
                                 struct kvf_error *error) KVF_MUST_USE;
/* The field's length must be exactly 4 (or 8). */
enum kvf_status kvfi_serdes_take_u32(struct kvfi_reader *reader, const char *tag, uint32_t *out,
                                     struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_serdes_take_u64(struct kvfi_reader *reader, const char *tag, uint64_t *out,
                                     struct kvf_error *error) KVF_MUST_USE;
/* KVF_OK when every byte was consumed. */
enum kvf_status kvfi_serdes_close(const struct kvfi_reader *reader,
                                  struct kvf_error *error) KVF_MUST_USE;

#endif
