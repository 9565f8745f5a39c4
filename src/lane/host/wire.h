/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_HOST_WIRE_H
#define KVFI_LANE_HOST_WIRE_H

/*
 * What an agent tells about itself for peers of the same host: behind its address who it is, behind
 * each key what kind of memory it opens. Both are behind what the lane inside reads, where NIXL
 * does not look. Little-endian, fixed sizes. Pure functions.
 *
 *   address trailer, 80 bytes       u8 version 1, u8 offers, u16 0, u32 pid, u64 start time,
 *                                   u64 inode of the pid namespace, 16 bytes boot id,
 *                                   u64 address of the nonce, 16 bytes nonce, u64 0, "KVFHOST\0"
 *   key trailer, 56 bytes           u8 version 1, u8 kind, u16 0, u32 fd, u64 address, u64 length,
 *                                   u64 inode, u64 offset, u64 0, "KVFMEMY\0"
 */

#include "kvferry/status.h"

#include <stdint.h>

#define KVFI_HOST_TRAILER_LEN     80
#define KVFI_HOST_KEY_TRAILER_LEN 56

enum kvfi_host_offer {
    KVFI_HOST_CMA = 1 << 0, /* its memory may be copied by process_vm_readv and _writev */
    KVFI_HOST_SHM = 1 << 1, /* its pools may be mapped */
};

/* One process, so that another one can tell whether it sees the same one. */
struct kvfi_host_identity {
    uint8_t offers; /* enum kvfi_host_offer */
    uint32_t pid;
    uint64_t start_time;    /* field 22 of /proc/PID/stat: tells a reused pid */
    uint64_t pid_namespace; /* its inode */
    uint8_t boot_id[16];
    uint64_t nonce_addr; /* where the nonce lies in that process */
    uint8_t nonce[16];
};

enum kvfi_host_memory {
    KVFI_HOST_PLAIN = 1, /* host memory */
    KVFI_HOST_POOL = 2,  /* host memory inside a pool that can be mapped */
};

struct kvfi_host_key {
    enum kvfi_host_memory kind;
    uint64_t addr; /* the registered range, in the peer's addresses */
    uint64_t length;
    uint32_t fd;     /* KVFI_HOST_POOL: the pool's descriptor in the peer's process */
    uint64_t inode;  /* of the pool */
    uint64_t offset; /* of addr inside the pool */
};

void kvfi_host_identity_encode(const struct kvfi_host_identity *identity,
                               unsigned char out[KVFI_HOST_TRAILER_LEN]);
/* Both: the length of what is in front; len, and *found_p false, when there is no trailer that can
 * be used. */
size_t kvfi_host_identity_decode(const void *bytes, size_t len, struct kvfi_host_identity *identity,
                                 bool *found_p);

void kvfi_host_key_encode(const struct kvfi_host_key *key,
                          unsigned char out[KVFI_HOST_KEY_TRAILER_LEN]);
size_t kvfi_host_key_decode(const void *bytes, size_t len, struct kvfi_host_key *key,
                            bool *found_p);

#endif
