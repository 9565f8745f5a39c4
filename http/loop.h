/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_LOOP_H
#define KVFERRY_HTTP_LOOP_H

/*
 * The event loop that servers, clients and mailboxes run on, so that their users need not include
 * libevent: loop, timers, signals. Everything is called on the thread that runs the loop, unless a
 * comment says otherwise. An idle loop sleeps without a timeout.
 */

#include "kvferry/status.h"

#include <stdint.h>

struct event_base; /* libevent's, opaque here */
struct kvfi_timer;

/* Returned owned; NULL when memory or descriptors run out. */
struct event_base *kvfi_loop_create(void);
/* After everything that runs on it was destroyed. NULL is allowed. */
void kvfi_loop_destroy(struct event_base *loop);

/* Runs until kvfi_loop_stop, or until nothing is left to wait for. */
void kvfi_loop_run(struct event_base *loop);
/* Runs what is due now, waiting for the first event when wait is set. */
void kvfi_loop_step(struct event_base *loop, bool wait);
/* kvfi_loop_run returns after the callback under way. From a callback. */
void kvfi_loop_stop(struct event_base *loop);

typedef void (*kvfi_timer_fn)(void *ctx);

/* A timer that is not armed. Returned owned; NULL when memory runs out. */
struct kvfi_timer *kvfi_timer_create(struct event_base *loop, kvfi_timer_fn fire, void *ctx);
/* Disarms and frees. Allowed in the timer's own callback. NULL is allowed. */
void kvfi_timer_destroy(struct kvfi_timer *timer);
/* Calls fire once, ms from now; replaces an earlier arming. */
void kvfi_timer_arm(struct kvfi_timer *timer, uint32_t ms);
void kvfi_timer_disarm(struct kvfi_timer *timer);
bool kvfi_timer_is_armed(const struct kvfi_timer *timer);

/* Calls fire on the loop each time the signal arrives, until kvfi_timer_destroy (it is freed as a
 * timer is). One loop of a process may watch signals. NULL when memory runs out. */
struct kvfi_timer *kvfi_loop_on_signal(struct event_base *loop, int signal_number,
                                       kvfi_timer_fn fire, void *ctx);

#endif
