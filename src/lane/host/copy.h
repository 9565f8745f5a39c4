/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_HOST_COPY_H
#define KVFI_LANE_HOST_COPY_H

/*
 * Copies between this process and another one of the host, at once: by the kernel (cma), many
 * pieces in a call, or by this thread through a mapping (shm).
 */

#include "kvferry/agent.h"

#include <sys/types.h>
#include <sys/uio.h>

enum {
    KVFI_HOST_BATCH_MAX = 512,  /* pieces in one call */
    KVFI_HOST_BATCH_AFTER = 64, /* so many go alone: a small transfer is faster that way */
};

/* The pieces of one transfer, gathered. Not to be moved while in use. */
struct kvfi_host_gather {
    pid_t pid;
    enum kvf_operation operation;
    size_t count;
    size_t bytes;
    size_t seen;            /* pieces since the start */
    enum kvf_status status; /* the first failure; nothing is copied after it */
    struct iovec local[KVFI_HOST_BATCH_MAX];
    struct iovec remote[KVFI_HOST_BATCH_MAX];
};

void kvfi_host_gather_start(struct kvfi_host_gather *gather, pid_t pid,
                            enum kvf_operation operation);
/* Copies when enough pieces have come together. */
void kvfi_host_gather_add(struct kvfi_host_gather *gather, void *local, uint64_t remote,
                          uint64_t length);
/* Copies the rest. KVF_EDISCONNECTED: the process has ended. KVF_ETRANSPORT: its memory, or ours,
 * is not there; earlier pieces are copied. */
enum kvf_status kvfi_host_gather_finish(struct kvfi_host_gather *gather) KVF_MUST_USE;

/* Copies one piece past the caches when it is large and not read here again. The bytes are visible
 * to other processes after kvfi_host_copy_fence(). */
void kvfi_host_copy(void *to, const void *from, size_t length);
void kvfi_host_copy_fence(void);

#endif
