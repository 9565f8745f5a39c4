/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_CLOCK_H
#define KVFI_RUNTIME_CLOCK_H

#include <stdint.h>

#define KVFI_NS_PER_S  1000000000ull
#define KVFI_NS_PER_MS 1000000ull

/* CLOCK_MONOTONIC; the time of events, deadlines and records. Any thread. */
uint64_t kvfi_clock_mono_ns(void);
/* CLOCK_REALTIME; only for people to read. Any thread. */
uint64_t kvfi_clock_wall_ns(void);

/* a + b, or UINT64_MAX ("never") when that does not fit. */
static inline uint64_t kvfi_deadline_ns(uint64_t now_ns, uint64_t delay_ns)
{
    return delay_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + delay_ns;
}

#endif
