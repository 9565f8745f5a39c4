/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/wake.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum kvf_status kvfi_wake_init(struct kvfi_wake *wake, struct kvf_error *error)
{
    atomic_init(&wake->raised, false);
    wake->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (wake->fd < 0)
        return kvf_fail(error, KVF_ESYSTEM, "eventfd: %s", strerrordesc_np(errno));
    return KVF_OK;
}

void kvfi_wake_deinit(struct kvfi_wake *wake)
{
    if (wake->fd >= 0)
        close(wake->fd);
    wake->fd = -1;
}

void kvfi_wake_signal(struct kvfi_wake *wake)
{
    /* Release: pairs with the exchange in kvfi_wake_clear, which then sees what came before. A
     * signal that finds the flag up is safe to skip: the clear that takes it down comes later. */
    if (atomic_exchange_explicit(&wake->raised, true, memory_order_acq_rel))
        return;
    /* Cannot fail or block: the counter is 0 or 1, far from its limit. */
    eventfd_write(wake->fd, 1);
}

void kvfi_wake_clear(struct kvfi_wake *wake)
{
    /* The descriptor first: a signal after the exchange must leave it readable. */
    eventfd_t count = 0;
    eventfd_read(wake->fd, &count);
    atomic_exchange_explicit(&wake->raised, false, memory_order_acq_rel);
}
