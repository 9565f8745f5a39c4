/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_RATELIMIT_H
#define KVFI_RUNTIME_RATELIMIT_H

/*
 * One line per site and interval, so that a misbehaving peer cannot fill a disk. What is held back
 * is counted and told with the next line that passes.
 */

#include "kvferry/observe.h"

#include <stdatomic.h>

#define KVFI_LOG_INTERVAL_NS 1000000000ull

/* Zero-initialised, static at the site. Any thread. */
struct kvfi_ratelimit {
    _Atomic uint64_t next_ns;
    _Atomic uint64_t held_back;
};

/* True when the site may speak now; then *held_back_p is how many calls were refused since it last
 * did. Exactly one of several racing callers wins. */
static inline bool kvfi_ratelimit_allow(struct kvfi_ratelimit *limit, uint64_t now_ns,
                                        uint64_t interval_ns, uint64_t *held_back_p)
{
    /* Relaxed: the limiter orders nothing but itself. */
    uint64_t next_ns = atomic_load_explicit(&limit->next_ns, memory_order_relaxed);
    if (now_ns < next_ns ||
        !atomic_compare_exchange_strong_explicit(&limit->next_ns, &next_ns, now_ns + interval_ns,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&limit->held_back, 1, memory_order_relaxed);
        return false;
    }
    *held_back_p = atomic_exchange_explicit(&limit->held_back, 0, memory_order_relaxed);
    return true;
}

/* kvf_log through a limit; cheap when the level is off. */
void kvfi_log_limited(struct kvfi_ratelimit *limit, enum kvf_log_level level, const char *fmt, ...)
    KVF_PRINTF(3, 4);

/* Each use is a site of its own. */
#define KVFI_LOG_LIMITED(level, ...)                                                               \
    do {                                                                                           \
        static struct kvfi_ratelimit kvfi_limit_;                                                  \
        kvfi_log_limited(&kvfi_limit_, (level), __VA_ARGS__);                                      \
    } while (0)

#endif
