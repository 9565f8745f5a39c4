/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_HOST_PROCESS_H
#define KVFI_LANE_HOST_PROCESS_H

/*
 * Another process of this host: that it is the one we think, and what the kernel lets us do to its
 * memory. One thread; nothing blocks.
 */

#include "lane/host/wire.h"

#include <sys/types.h>

struct kvfi_host_process {
    pid_t pid;
    int pidfd;     /* owned; -1: not reachable */
    uint8_t reach; /* KVFI_HOST_*: what has been tried and works */
};

/* Who this process is; nonce must stay where it is while peers may ask for it. False when /proc
 * does not say. */
bool kvfi_host_self(uint8_t offers, const uint8_t nonce[16], struct kvfi_host_identity *identity);

/* Finds out what of `wanted` works towards that process; identity is a peer's word. reason: a
 * constant text why something that both sides want does not, NULL when nothing is amiss. */
void kvfi_host_process_open(const struct kvfi_host_identity *self,
                            const struct kvfi_host_identity *identity, uint8_t wanted,
                            struct kvfi_host_process *process, const char **reason_p);
void kvfi_host_process_close(struct kvfi_host_process *process);

/* False once it has ended. Between this and a system call that names the pid the kernel would have
 * to hand out every other pid before the number could mean another process. */
bool kvfi_host_process_lives(const struct kvfi_host_process *process);

/* Maps the whole pool that is behind a descriptor of that process. NULL when it is not the pool
 * that was announced; otherwise unmap with munmap(). */
void *kvfi_host_process_map(const struct kvfi_host_process *process, uint32_t fd, uint64_t inode,
                            size_t *length_p);

#endif
