/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_RKEY_H
#define KVFI_LANE_UCX_RKEY_H

/*
 * The envelope of a packed UCX rkey: u64 map, u8 memory type, then for each set bit of the map u8
 * size and that many bytes; UCX 1.20 and later append more. Pure functions.
 */

#include "kvferry/status.h"

#include <stdint.h>

/*
 * What UCX may read past the last byte of a key that kvfi_rkey_check accepts: a component reads its
 * own structure whatever the size byte says (that byte's largest value bounds it), and after the
 * last entry a newer UCX expects what an older sender leaves out.
 */
#define KVFI_RKEY_PAD_LEN (UINT8_MAX + 16)

/* True when every entry that the map names lies inside the bytes. ucp_ep_rkey_unpack takes no
 * length, so nothing else keeps it inside. */
bool kvfi_rkey_check(const void *bytes, size_t len) KVF_MUST_USE;

/*
 * Removes the entries of size 0 in place and returns the new length. UCX up to 1.18 writes them for
 * tcp and cma, and from 1.19 on their presence fails the whole unpack; a receiver needs none of
 * them. Bytes that are not a valid envelope stay as they are.
 */
size_t kvfi_rkey_strip(void *bytes, size_t len);

/* True for host memory into which no transport has put a key of its own (only entries of size 0):
 * then puts are emulated, whatever connects the two. False for bytes that are not a valid envelope.
 */
bool kvfi_rkey_is_plain(const void *bytes, size_t len) KVF_MUST_USE;

#endif
