/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts that may crash, hang or print are made in a process of their own. */
#include "doctor/doctor.h"

#include "runtime/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

bool kvfi_child_tell(int out_fd, const void *result, size_t size)
{
    const char *at = result;
    while (size > 0) {
        ssize_t put = write(out_fd, at, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        size -= (size_t)put;
    }
    return true;
}

static _Noreturn void be_child(void (*body)(void *ctx, int out_fd), void *ctx, int out_fd)
{
    (void)setpgid(0, 0); /* so that what it starts is killed with it */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)dup2(STDERR_FILENO, STDOUT_FILENO); /* UCX prints there */
    body(ctx, out_fd);
    _exit(0);
}

/* True when all of it came; false at the end of the pipe, or with *slow_p at the time limit. */
static bool collect(int fd, void *result, size_t size, int limit_ms, bool *slow_p)
{
    uint64_t deadline_ns =
        kvfi_deadline_ns(kvfi_clock_mono_ns(), (uint64_t)limit_ms * KVFI_NS_PER_MS);
    size_t len = 0;
    while (len < size) {
        uint64_t now_ns = kvfi_clock_mono_ns();
        if (now_ns >= deadline_ns) {
            *slow_p = true;
            return false;
        }
        struct pollfd waiter = {.fd = fd, .events = POLLIN};
        int ready = poll(&waiter, 1, (int)((deadline_ns - now_ns) / KVFI_NS_PER_MS) + 1);
        if (ready < 0 && errno != EINTR)
            return false;
        if (ready <= 0)
            continue;
        ssize_t got = read(fd, (char *)result + len, size - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        len += (size_t)got;
    }
    return true;
}

enum kvfi_child_end kvfi_child_run(void (*body)(void *ctx, int out_fd), void *ctx, void *result,
                                   size_t size, int limit_ms, int *signal_p)
{
    int fds[2];
    *signal_p = 0;
    if (pipe2(fds, O_CLOEXEC) < 0)
        return KVFI_CHILD_NONE;
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        be_child(body, ctx, fds[1]);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return KVFI_CHILD_NONE;
    }
    (void)setpgid(pid, pid); /* here too: whichever comes first */
    bool slow = false;
    bool whole = collect(fds[0], result, size, limit_ms, &slow);
    (void)close(fds[0]);
    siginfo_t info;
    if (!whole && !slow) /* its end tells the reason; it is not reaped, so that pid stays its own */
        while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
            ;
    (void)kill(-pid, SIGKILL); /* and what it has started */
    int how = 0;
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    if (whole)
        return KVFI_CHILD_DONE;
    if (slow)
        return KVFI_CHILD_SLOW;
    if (WIFSIGNALED(how))
        *signal_p = WTERMSIG(how);
    return KVFI_CHILD_DIED;
}
