/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_WAKE_H
#define KVFI_RUNTIME_WAKE_H

/*
 * A wake-up that coalesces: many signals, one readable eventfd, one system call.
 *
 * Protocol of the sleeper: sleep on the descriptor, kvfi_wake_clear(), then look at everything that
 * others may have changed. A change that was made before its kvfi_wake_signal() is then either seen
 * by this look or makes the descriptor readable again.
 */

#include "kvferry/status.h"

#include <stdatomic.h>

struct kvfi_wake {
    int fd; /* owned; -1 when not initialised */
    _Atomic bool raised;
};

/* KVF_ESYSTEM when no descriptor is left. */
enum kvf_status kvfi_wake_init(struct kvfi_wake *wake, struct kvf_error *error) KVF_MUST_USE;
/* Also after a failed init. */
void kvfi_wake_deinit(struct kvfi_wake *wake);
/* Any thread; does not block; async-signal-safe. */
void kvfi_wake_signal(struct kvfi_wake *wake);
/* The sleeper's thread; does not block. One system call: only the descriptor itself knows whether a
 * signaller is between raising the flag and writing. */
void kvfi_wake_clear(struct kvfi_wake *wake);

#endif
