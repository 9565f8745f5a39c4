/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_SKEW_H
#define KVFI_LANE_UCX_SKEW_H

/* Which UCX 1.x a peer runs, and whether it and ours can meet. Pure functions. */

#include "kvferry/status.h"

enum {
    KVFI_SKEW_UNKNOWN = 0, /* unreadable, or of a format that does not tell */
    KVFI_SKEW_LEGACY = 15, /* announces nothing, as up to 1.15 */
    KVFI_SKEW_LOOPBACK_CHANGED = 22,
};

/*
 * The minor version that the writer of a worker address announces: from 1.16 on, modulo 16, so the
 * one nearest to ours is meant. The address is untrusted. Layout of format 1, as far as needed:
 *
 *   u8 format 0 | flags << 4;  u64 uuid, u64 client id and u8 length + name, as the flags say
 *   devices:     u8 memory domain | 0x80 when no transport follows
 *                u8 address length (5 bits) | 0x80 the last device | 0x40 u8 paths follows
 *                | 0x20 u8 system device follows; those; the address
 *     transports: u16 name checksum, 16 bytes of attributes, u8 length (6 bits) | 0x80 the last one
 *                | 0x40 an endpoint address follows (never in a worker's); the address
 *   and the announcement as one more device: u8 0x80 | minor % 16, u8 0x80
 *
 * Format 2 has it in the high half of its first byte, where 0 is anybody's guess.
 */
unsigned kvfi_skew_minor(const void *address, size_t len, unsigned ours);

/*
 * True when two versions do not find each other over the loopback device alone: its address changed
 * with 1.22, and 1.19 changed what the two choose; measured for 1.13, 1.18 to 1.21 against 1.23.
 * False when theirs is not known.
 */
bool kvfi_skew_cuts_loopback(unsigned ours, unsigned theirs) KVF_MUST_USE;

#endif
