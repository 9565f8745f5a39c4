/* SPDX-License-Identifier: Apache-2.0 */
#include "http/loop.h"

#include <event2/event.h>
#include <stdlib.h>

struct kvfi_timer {
    struct event *event;
    kvfi_timer_fn fire;
    void *ctx;
};

struct event_base *kvfi_loop_create(void)
{
    return event_base_new();
}

void kvfi_loop_destroy(struct event_base *loop)
{
    if (loop)
        event_base_free(loop);
}

void kvfi_loop_run(struct event_base *loop)
{
    event_base_dispatch(loop);
}

void kvfi_loop_step(struct event_base *loop, bool wait)
{
    event_base_loop(loop, wait ? EVLOOP_ONCE : EVLOOP_NONBLOCK);
}

void kvfi_loop_stop(struct event_base *loop)
{
    event_base_loopbreak(loop);
}

static void on_event(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_timer *timer = ctx;
    timer->fire(timer->ctx);
}

static struct kvfi_timer *create(struct event_base *loop, int fd, short what, kvfi_timer_fn fire,
                                 void *ctx)
{
    struct kvfi_timer *timer = calloc(1, sizeof(*timer));
    if (!timer)
        return NULL;
    timer->fire = fire;
    timer->ctx = ctx;
    timer->event = event_new(loop, fd, what, on_event, timer);
    if (timer->event)
        return timer;
    free(timer);
    return NULL;
}

struct kvfi_timer *kvfi_timer_create(struct event_base *loop, kvfi_timer_fn fire, void *ctx)
{
    return create(loop, -1, 0, fire, ctx);
}

struct kvfi_timer *kvfi_loop_on_signal(struct event_base *loop, int signal_number,
                                       kvfi_timer_fn fire, void *ctx)
{
    struct kvfi_timer *timer = create(loop, signal_number, EV_SIGNAL | EV_PERSIST, fire, ctx);
    if (timer && event_add(timer->event, NULL) != 0) {
        kvfi_timer_destroy(timer);
        return NULL;
    }
    return timer;
}

void kvfi_timer_destroy(struct kvfi_timer *timer)
{
    if (!timer)
        return;
    event_free(timer->event);
    free(timer);
}

void kvfi_timer_arm(struct kvfi_timer *timer, uint32_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    event_add(timer->event, &tv);
}

void kvfi_timer_disarm(struct kvfi_timer *timer)
{
    event_del(timer->event);
}

bool kvfi_timer_is_armed(const struct kvfi_timer *timer)
{
    return event_pending(timer->event, EV_TIMEOUT, NULL) != 0;
}
