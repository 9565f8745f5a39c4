/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_LOOP_H
#define KVFI_RUNTIME_LOOP_H

/*
 * What a thread sleeps in: one epoll over its descriptors and one timerfd. It has no timeout of its
 * own: a sleeper with no deadline and silent descriptors is never woken.
 */

#include "kvferry/status.h"

struct kvfi_loop {
    int epoll_fd; /* both owned; -1 when not initialised */
    int timer_fd;
    uint64_t armed_ns; /* what the timer is set to; UINT64_MAX: nothing */
};

/* Level triggered; `bit` (0 to 30) is how kvfi_loop_wait names the descriptor. */
enum kvf_status kvfi_loop_init(struct kvfi_loop *loop, struct kvf_error *error) KVF_MUST_USE;
/* Also after a failed init. */
void kvfi_loop_deinit(struct kvfi_loop *loop);
/* fd stays the caller's. */
enum kvf_status kvfi_loop_add(struct kvfi_loop *loop, int fd, unsigned bit,
                              struct kvf_error *error) KVF_MUST_USE;

/* Sleeps until a descriptor is readable or deadline_ns (kvfi_clock_mono_ns; 0: do not sleep at all,
 * UINT64_MAX: no deadline) has passed. Returns the bits of what is readable; 0 for the deadline. */
uint32_t kvfi_loop_wait(struct kvfi_loop *loop, uint64_t deadline_ns);

#endif
