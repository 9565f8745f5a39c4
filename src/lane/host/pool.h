/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_HOST_POOL_H
#define KVFI_LANE_HOST_POOL_H

/* The pools of this process, by address: what a registration needs to know. Any thread. */

#include "kvferry/pool.h"

#include <stdint.h>

struct kvfi_pool_place {
    int fd; /* the pool's own; valid until the pool is destroyed */
    uint64_t inode;
    uint64_t offset;
};

/* True when [addr, addr + length) lies inside one pool. */
bool kvfi_pool_find(uint64_t addr, uint64_t length, struct kvfi_pool_place *place) KVF_MUST_USE;

#endif
