/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The text of a small file of /proc, NUL-terminated. False when it cannot be read. */
static bool read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, size - 1);
    (void)close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    return true;
}

/* Field 22 of /proc/PID/stat. The second one, the name, may hold anything, brackets too. */
static bool read_start_time(pid_t pid, uint64_t *start_time_p)
{
    char path[64];
    char text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    if (!read_text(path, text, sizeof(text)))
        return false;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return false;
    char *end = NULL;
    errno = 0;
    *start_time_p = strtoull(at + 1, &end, 10);
    return errno == 0 && end != at + 1;
}

static bool read_boot_id(uint8_t boot_id[16])
{
    char text[64];
    if (!read_text("/proc/sys/kernel/random/boot_id", text, sizeof(text)))
        return false;
    size_t digits = 0;
    memset(boot_id, 0, 16);
    for (const char *c = text; *c && digits < 32; c++) {
        const char hex[] = "0123456789abcdef";
        const char *digit = strchr(hex, *c);
        if (!digit)
            continue;
        boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | (uint8_t)(digit - hex));
        digits++;
    }
    return digits == 32;
}

bool kvfi_host_self(uint8_t offers, const uint8_t nonce[16], struct kvfi_host_identity *identity)
{
    struct stat st;
    *identity = (struct kvfi_host_identity){
        .offers = offers, .pid = (uint32_t)getpid(), .nonce_addr = (uintptr_t)nonce};
    memcpy(identity->nonce, nonce, sizeof(identity->nonce));
    if (stat("/proc/self/ns/pid", &st) < 0)
        return false;
    identity->pid_namespace = st.st_ino;
    return read_boot_id(identity->boot_id) && read_start_time(getpid(), &identity->start_time);
}

/* Whether reading its memory is allowed, and reads what it should. */
static bool try_cma(pid_t pid, const struct kvfi_host_identity *identity, const char **reason_p)
{
    uint8_t nonce[sizeof(identity->nonce)] = {0};
    const struct iovec local = {.iov_base = nonce, .iov_len = sizeof(nonce)};
    /* NOLINTNEXTLINE: an address in another process */
    const struct iovec remote = {.iov_base = (void *)(uintptr_t)identity->nonce_addr,
                                 .iov_len = sizeof(nonce)};
    ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EPERM)
        *reason_p = "the kernel refuses cross-memory attach (another user, or "
                    "kernel.yama.ptrace_scope is not 0)";
    else if (got < 0 && errno == ENOSYS)
        *reason_p = "cross-memory attach is not available (seccomp, or the kernel lacks it)";
    else if (got != (ssize_t)sizeof(nonce) || memcmp(nonce, identity->nonce, sizeof(nonce)) != 0)
        *reason_p = "the memory of the process is not what its agent announced";
    else
        return true;
    return false;
}

void kvfi_host_process_open(const struct kvfi_host_identity *self,
                            const struct kvfi_host_identity *identity, uint8_t wanted,
                            struct kvfi_host_process *process, const char **reason_p)
{
    *process = (struct kvfi_host_process){.pidfd = -1};
    *reason_p = NULL;
    wanted &= identity->offers;
    if (!wanted || memcmp(self->boot_id, identity->boot_id, sizeof(self->boot_id)) != 0)
        return; /* another host */
    if (self->pid_namespace != identity->pid_namespace) {
        *reason_p = "it is in another pid namespace of this host";
        return;
    }
    if (identity->pid == 0 || identity->pid > INT32_MAX)
        return;
    process->pid = (pid_t)identity->pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (process->pidfd < 0) {
        *reason_p = errno == ESRCH ? "its process has ended" : "pidfd_open is not available";
        return;
    }
    /* after the pidfd, so that both mean the same process */
    uint64_t start_time = 0;
    if (!read_start_time(process->pid, &start_time) || start_time != identity->start_time) {
        *reason_p = "its process has ended";
        kvfi_host_process_close(process);
        return;
    }
    if ((wanted & KVFI_HOST_CMA) && try_cma(process->pid, identity, reason_p))
        process->reach |= KVFI_HOST_CMA;
    process->reach |= wanted & KVFI_HOST_SHM; /* each pool is tried when its key comes */
    if (!process->reach)
        kvfi_host_process_close(process);
}

void kvfi_host_process_close(struct kvfi_host_process *process)
{
    if (process->pidfd >= 0)
        (void)close(process->pidfd);
    process->pidfd = -1;
    process->reach = 0;
}

bool kvfi_host_process_lives(const struct kvfi_host_process *process)
{
    struct pollfd waiter = {.fd = process->pidfd, .events = POLLIN};
    return poll(&waiter, 1, 0) == 0;
}

void *kvfi_host_process_map(const struct kvfi_host_process *process, uint32_t fd, uint64_t inode,
                            size_t *length_p)
{
    enum { SEALS = F_SEAL_SHRINK };
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/proc/%ld/fd/%lu", (long)process->pid, (unsigned long)fd);
    int own = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (own < 0)
        return NULL;
    void *map = MAP_FAILED;
    int seals = fcntl(own, F_GET_SEALS);
    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(own, &st) == 0 && st.st_ino == inode &&
        S_ISREG(st.st_mode) && st.st_size > 0) {
        *length_p = (size_t)st.st_size;
        map = mmap(NULL, *length_p, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    }
    (void)close(own);
    return map == MAP_FAILED ? NULL : map;
}
