/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_SHA256_H
#define KVFI_WIRE_SHA256_H

/* SHA-256 of bytes that come in pieces. One thread at a time. */

#include "wire/bytes.h"
#include "wire/handshake.h"

struct kvfi_sha256 {
    void *state; /* owned by libcrypto; NULL after a failure, which is sticky */
};

/* Failures are told by kvfi_sha256_end. */
void kvfi_sha256_begin(struct kvfi_sha256 *sha);
void kvfi_sha256_put(struct kvfi_sha256 *sha, const void *data, size_t len);
/* Writes 64 lowercase hex characters and a NUL and frees the state. False when memory is short or
 * libcrypto refuses: then hex is "". Once per begin, in any case. */
bool kvfi_sha256_end(struct kvfi_sha256 *sha, char hex[KVFI_COMPAT_HASH_LEN + 1]);

#endif
