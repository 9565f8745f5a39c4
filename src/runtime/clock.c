/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    /* Cannot fail: both clocks exist on every Linux and the pointer is valid. */
    struct timespec now = {0};
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * KVFI_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t kvfi_clock_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t kvfi_clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}
