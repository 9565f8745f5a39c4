/* SPDX-License-Identifier: Apache-2.0 */
/* This machine: asks the kernel, and tries out what only an attempt can tell. */
#include "doctor/doctor.h"

#include "channel/version.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHILD_LIMIT_MS = 20 * 1000, SHORT_LIMIT_MS = 5 * 1000, WORD = 0x6b766672 };

/* ---- memory of another process -------------------------------------------------------------- */

/* The child reaches for its parent: the parent is nobody's child there, as a peer is not, so
 * kernel.yama.ptrace_scope 1 counts. */
struct memory_attempt {
    pid_t parent;
    volatile uint32_t source; /* read by the child */
    volatile uint32_t target; /* written by the child */
};

struct memory_result {
    int read_errno, write_errno;
};

static void attempt_memory(void *ctx, int out_fd)
{
    struct memory_attempt *attempt = ctx;
    struct memory_result result = {0};
    uint32_t word = 0;
    struct iovec local = {.iov_base = &word, .iov_len = sizeof(word)};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)&attempt->source,
                           .iov_len = sizeof(word)};
    if (process_vm_readv(attempt->parent, &local, 1, &remote, 1, 0) < 0)
        result.read_errno = errno;
    else if (word != WORD)
        result.read_errno = EIO;
    word = WORD;
    remote.iov_base = (void *)(uintptr_t)&attempt->target;
    if (process_vm_writev(attempt->parent, &local, 1, &remote, 1, 0) < 0)
        result.write_errno = errno;
    (void)kvfi_child_tell(out_fd, &result, sizeof(result));
}

static void try_memory(struct kvfi_machine *machine)
{
    struct memory_attempt attempt = {.parent = getpid(), .source = WORD};
    struct memory_result result = {-1, -1};
    int signal_number = 0;
    enum kvfi_child_end end = kvfi_child_run(attempt_memory, &attempt, &result, sizeof(result),
                                             SHORT_LIMIT_MS, &signal_number);
    if (end == KVFI_CHILD_DIED && signal_number == SIGSYS) /* a seccomp filter that kills */
        result = (struct memory_result){ENOSYS, ENOSYS};
    else if (end != KVFI_CHILD_DONE)
        result = (struct memory_result){-1, -1};
    else if (result.write_errno == 0 && attempt.target != WORD)
        result.write_errno = EIO;
    machine->read_errno = result.read_errno;
    machine->write_errno = result.write_errno;
}

/* ---- pools ---------------------------------------------------------------------------------- */

struct pool_attempt {
    pid_t parent;
    int fd;
    size_t length;
};

struct pool_result {
    int number; /* errno */
    int step;   /* of pool_steps */
    int pidfd_errno;
};

static const char *const pool_steps[] = {NULL, "memfd_create", "sealing a memfd",
                                         "opening /proc/PID/fd", "mapping a memfd"};

static void attempt_pool(void *ctx, int out_fd)
{
    const struct pool_attempt *attempt = ctx;
    struct pool_result result = {0};
    char path[64];
    long pidfd = syscall(SYS_pidfd_open, attempt->parent, 0);
    if (pidfd < 0)
        result.pidfd_errno = errno;
    (void)snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)attempt->parent, attempt->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        result.step = 3;
        result.number = errno;
    } else {
        uint32_t *word = mmap(NULL, attempt->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        result.step = word == MAP_FAILED ? 4 : 0;
        result.number = word == MAP_FAILED ? errno : 0;
        if (word != MAP_FAILED)
            *word = WORD;
    }
    (void)kvfi_child_tell(out_fd, &result, sizeof(result));
}

/* Makes what kvf_pool_create() makes and lets another process map it as a peer does. */
static struct pool_result share_pool(int fd, size_t length)
{
    if (ftruncate(fd, (off_t)length) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return (struct pool_result){.number = errno, .step = 2};
    uint32_t *word = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (word == MAP_FAILED)
        return (struct pool_result){.number = errno, .step = 4};
    struct pool_attempt attempt = {.parent = getpid(), .fd = fd, .length = length};
    struct pool_result result;
    int signal_number = 0;
    enum kvfi_child_end end = kvfi_child_run(attempt_pool, &attempt, &result, sizeof(result),
                                             SHORT_LIMIT_MS, &signal_number);
    if (end != KVFI_CHILD_DONE)
        result = (struct pool_result){.number = -1, .pidfd_errno = -1};
    else if (result.number == 0 && *word != WORD)
        result = (struct pool_result){.number = EIO, .step = 4};
    (void)munmap(word, length);
    return result;
}

static void try_pool(struct kvfi_machine *machine)
{
    size_t length = (size_t)sysconf(_SC_PAGESIZE);
    struct pool_result result = {.step = 1, .pidfd_errno = -1};
    int fd = memfd_create("kvferry-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        result.number = errno;
    } else {
        result = share_pool(fd, length);
        (void)close(fd);
    }
    machine->pool_errno = result.number;
    machine->pool_step = pool_steps[result.number > 0 ? result.step : 0];
    machine->pidfd_errno = result.pidfd_errno;
}

/* ---- UCX ------------------------------------------------------------------------------------ */

static void attempt_ucx(void *ctx, int out_fd)
{
    struct kvfi_ucx_description *description = ctx;
    kvfi_ucx_describe(description);
    (void)kvfi_child_tell(out_fd, description, sizeof(*description));
}

static void try_ucx(struct kvfi_machine *machine)
{
    machine->ucx_end = kvfi_child_run(attempt_ucx, &machine->ucx, &machine->ucx,
                                      sizeof(machine->ucx), CHILD_LIMIT_MS, &machine->ucx_signal);
    if (machine->ucx_end != KVFI_CHILD_DONE)
        memset(&machine->ucx, 0, sizeof(machine->ucx));
}

/* ---- what the kernel says ------------------------------------------------------------------- */

static void ask_interfaces(struct kvfi_machine *machine)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) < 0)
        return;
    for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
        char address[INET6_ADDRSTRLEN] = "";
        const struct sockaddr *sa = at->ifa_addr;
        if (!sa || !(at->ifa_flags & IFF_UP) || machine->interface_count == KVFI_NAMES_MAX)
            continue;
        if (sa->sa_family == AF_INET) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
            (void)inet_ntop(AF_INET, &in->sin_addr, address, sizeof(address));
        } else if (sa->sa_family == AF_INET6) {
            const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)sa;
            if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr))
                continue; /* no address to give to a peer */
            (void)inet_ntop(AF_INET6, &in->sin6_addr, address, sizeof(address));
        } else {
            continue;
        }
        struct kvfi_interface *interface = &machine->interfaces[machine->interface_count++];
        (void)snprintf(interface->name, sizeof(interface->name), "%s", at->ifa_name);
        (void)snprintf(interface->address, sizeof(interface->address), "%s", address);
        interface->loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
    }
    freeifaddrs(list);
}

static void ask_kernel(struct kvfi_machine *machine)
{
    struct rlimit limit;
    struct statvfs shm;
    machine->uid = geteuid();
    machine->memlock_bytes = UINT64_MAX;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        machine->memlock_bytes = limit.rlim_cur;
    if (statvfs("/dev/shm", &shm) == 0) {
        machine->shm_known = true;
        machine->shm_read_only = (shm.f_flag & ST_RDONLY) != 0;
        machine->shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
        machine->shm_free_bytes = (uint64_t)shm.f_bavail * shm.f_frsize;
    }
    ask_interfaces(machine);
}

void kvfi_machine_look(struct kvfi_machine *machine)
{
    *machine = (struct kvfi_machine){.root = "", .environment = environ};
    ask_kernel(machine);
    kvfi_zeromq_version(machine->zeromq);
    try_memory(machine);
    try_pool(machine);
    try_ucx(machine);
    kvfi_try_transfer(machine);
}
