/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_CARRY_WIRE_H
#define KVFI_LANE_UCX_CARRY_WIRE_H

/*
 * The bytes of a carried WRITE, little-endian. Pure functions.
 *
 *   data     u8 version 1, u8 kind 1, u16 0, u32 0,      u64 token, u64 address; payload: what goes
 *                                                        there
 *   landed   u8 version 1, u8 kind 2, u16 0, u32 result, u64 token, u64 0
 *
 * Both are the header of an active message with KVFI_CARRY_AM_ID. The ability to take them is told
 * behind the worker address, where UCX does not look: "KVFERRY" and a NUL, then u64 of ability
 * bits.
 */

#include "kvferry/status.h"

#include <stdint.h>

#define KVFI_CARRY_AM_ID      7 /* NIXL has used 0 to 2 */
#define KVFI_CARRY_HEADER_LEN 24
#define KVFI_TRAILER_LEN      16
#define KVFI_TRAILER_CARRY    (UINT64_C(1) << 0) /* takes WRITEs as messages */

enum kvfi_carry_kind {
    KVFI_CARRY_DATA = 1,
    KVFI_CARRY_LANDED = 2,
};

enum kvfi_carry_result {
    KVFI_CARRY_OK = 0,
    KVFI_CARRY_REFUSED = 1, /* the target has not registered what was to be written */
};

struct kvfi_carry_header {
    enum kvfi_carry_kind kind;
    uint32_t result; /* enum kvfi_carry_result; a later one may be unknown, and is no success */
    uint64_t token;  /* the initiator's, returned as it came */
    uint64_t addr;   /* KVFI_CARRY_DATA: at the target */
};

void kvfi_carry_encode(const struct kvfi_carry_header *header,
                       unsigned char out[KVFI_CARRY_HEADER_LEN]);
/* False for another length, version or kind. */
bool kvfi_carry_decode(const void *bytes, size_t len,
                       struct kvfi_carry_header *header) KVF_MUST_USE;

void kvfi_trailer_encode(uint64_t abilities, unsigned char out[KVFI_TRAILER_LEN]);
/* Returns the length of the address in front, which is len where there is no trailer; then
 * *abilities_p is 0. */
size_t kvfi_trailer_decode(const void *address, size_t len, uint64_t *abilities_p);

#endif
