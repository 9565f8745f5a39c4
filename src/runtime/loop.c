/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loop.h"

#include "runtime/clock.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TIMER_BIT 31u
#define READY_MAX 8

enum kvf_status kvfi_loop_init(struct kvfi_loop *loop, struct kvf_error *error)
{
    *loop = (struct kvfi_loop){.epoll_fd = -1, .timer_fd = -1, .armed_ns = UINT64_MAX};
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        return kvf_fail(error, KVF_ESYSTEM, "epoll_create1: %s", strerrordesc_np(errno));
    loop->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (loop->timer_fd < 0) {
        kvf_fail(error, KVF_ESYSTEM, "timerfd_create: %s", strerrordesc_np(errno));
        kvfi_loop_deinit(loop);
        return KVF_ESYSTEM;
    }
    enum kvf_status status = kvfi_loop_add(loop, loop->timer_fd, TIMER_BIT, error);
    if (status != KVF_OK)
        kvfi_loop_deinit(loop);
    return status;
}

void kvfi_loop_deinit(struct kvfi_loop *loop)
{
    if (loop->timer_fd >= 0)
        close(loop->timer_fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    loop->timer_fd = -1;
    loop->epoll_fd = -1;
}

enum kvf_status kvfi_loop_add(struct kvfi_loop *loop, int fd, unsigned bit, struct kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1u << bit};
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return kvf_fail(error, KVF_ESYSTEM, "epoll_ctl of descriptor %d: %s", fd,
                        strerrordesc_np(errno));
    return KVF_OK;
}

static void arm_timer(struct kvfi_loop *loop, uint64_t deadline_ns)
{
    if (deadline_ns == loop->armed_ns)
        return;
    struct itimerspec when = {0}; /* all zero disarms */
    if (deadline_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(deadline_ns / KVFI_NS_PER_S);
        when.it_value.tv_nsec = (long)(deadline_ns % KVFI_NS_PER_S);
    }
    /* Setting a timer also forgets an expiration that nobody read. */
    timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    loop->armed_ns = deadline_ns;
}

uint32_t kvfi_loop_wait(struct kvfi_loop *loop, uint64_t deadline_ns)
{
    if (deadline_ns > 0)
        arm_timer(loop, deadline_ns);
    struct epoll_event ready[READY_MAX];
    int count = 0;
    do {
        count = epoll_wait(loop->epoll_fd, ready, READY_MAX, deadline_ns == 0 ? 0 : -1);
    } while (count < 0 && errno == EINTR);
    uint32_t bits = 0;
    for (int i = 0; i < count; i++)
        bits |= ready[i].data.u32;
    if (bits & (1u << TIMER_BIT)) {
        uint64_t expirations = 0;
        /* Only empties the descriptor; that the deadline has passed is seen on the clock. */
        ssize_t len = read(loop->timer_fd, &expirations, sizeof(expirations));
        (void)len;
        loop->armed_ns = UINT64_MAX;
    }
    return bits & ~(1u << TIMER_BIT);
}
