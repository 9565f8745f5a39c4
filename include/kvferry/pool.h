/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_POOL_H
#define KVFERRY_POOL_H

/*
 * Memory that peers of the same host can map: a KV cache allocated here is reached by them with a
 * plain copy, where ordinary memory takes a system call (cma) or the network stack (ucx).
 *
 * A pool is shared memory without a name (memfd): nothing is left behind when a process is killed.
 * Other processes get it through /proc/PID/fd, so the same user (or CAP_SYS_PTRACE) and the same
 * pid namespace are needed; where that is not given, transfers take another lane and work all the
 * same. Who may map a pool may read and write all of it.
 */

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvf_pool;

/* Page-aligned, zeroed on first touch, huge pages where the host gives them to shared memory.
 * length is rounded up to pages. Returns owned. KVF_EINVAL for 0, KVF_ENOMEM, KVF_ENOTSUP when the
 * host has no memfd_create. Any thread. */
KVF_API enum kvf_status kvf_pool_create(size_t length, struct kvf_pool **pool_p,
                                        struct kvf_error *error) KVF_MUST_USE;
/* Deregister its memory at every agent before. A peer that still has it mapped keeps the pages
 * until it lets go. NULL is allowed. Any thread. */
KVF_API void kvf_pool_destroy(struct kvf_pool *pool);

/* Valid until destroy. */
KVF_API void *kvf_pool_address(const struct kvf_pool *pool);
KVF_API size_t kvf_pool_length(const struct kvf_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
