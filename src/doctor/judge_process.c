/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of this host may do to each other's memory. */
#include "doctor/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAP_SYS_PTRACE_BIT = 19 };
#define INITIAL_PID_NAMESPACE UINT64_C(0xeffffffc) /* of the kernel, on every host */
#define DEV_SHM_LOW_BYTES     ((uint64_t)16 << 20)

static void fact_errno(struct kvf_host_report *report, const char *name, int number)
{
    if (number < 0)
        kvfi_fact_none(report, name);
    else
        kvfi_fact_text(report, name, number ? kvfi_errno_name(number) : "ok");
}

/* The number in "pid:[4026531836]", what the link /proc/self/ns/pid says; 0 when it is not told. */
static uint64_t pid_namespace(const struct kvfi_machine *machine)
{
    char text[64];
    if (!kvfi_read_link(machine, text, sizeof(text), "/proc/self/ns/pid") ||
        strncmp(text, "pid:[", 5) != 0)
        return 0;
    return strtoull(text + 5, NULL, 10);
}

static bool has_seccomp(const struct kvfi_machine *machine)
{
    char status[4096];
    char value[16];
    return kvfi_read_text(machine, status, sizeof(status), "/proc/self/status") &&
           kvfi_line_value(status, "Seccomp", value, sizeof(value)) && strcmp(value, "0") != 0;
}

static void cma_refused(struct kvf_host_report *report, const struct kvfi_machine *machine,
                        bool scope_known, uint64_t scope)
{
    int number = machine->read_errno ? machine->read_errno : machine->write_errno;
    kvfi_finding_level(report, KVF_FINDING_WARN);
    kvfi_finding_found(report, "%s into another process fails with %s%s.",
                       machine->read_errno ? "process_vm_readv" : "process_vm_writev",
                       kvfi_errno_name(number),
                       has_seccomp(machine) ? " under a seccomp filter" : "");
    kvfi_finding_follows(report,
                         "The lane cma is not used; memory of peers of this host that is no "
                         "pool goes over UCX, at a fraction of the rate.");
    if (scope_known && scope > 0) {
        kvfi_finding_found(report, "kernel.yama.ptrace_scope is %llu.", (unsigned long long)scope);
        if (scope < 3)
            kvfi_finding_remedy(report, "sysctl -w kernel.yama.ptrace_scope=0, and the same in "
                                        "/etc/sysctl.d; or give both processes CAP_SYS_PTRACE "
                                        "(docker run --cap-add SYS_PTRACE).");
        else
            kvfi_finding_remedy(report, "The value 3 stays until the next boot: set "
                                        "kernel.yama.ptrace_scope=0 in /etc/sysctl.d and reboot.");
    } else if (has_seccomp(machine)) {
        kvfi_finding_remedy(report, "Let the container's seccomp profile pass process_vm_readv and "
                                    "process_vm_writev: docker run --cap-add SYS_PTRACE, or "
                                    "--security-opt seccomp=unconfined.");
    } else if (number == ENOSYS) {
        kvfi_finding_remedy(report, "Use a kernel with CONFIG_CROSS_MEMORY_ATTACH.");
    } else {
        kvfi_finding_remedy(report, "Look for a security module that forbids it (dmesg, the audit "
                                    "log), or give both processes CAP_SYS_PTRACE.");
    }
}

void kvfi_judge_cma(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    uint64_t scope = 0;
    bool scope_known = kvfi_read_number(machine, &scope, "/proc/sys/kernel/yama/ptrace_scope");
    bool privileged = kvfi_has_capability(machine, CAP_SYS_PTRACE_BIT);
    uint64_t space = pid_namespace(machine);
    kvfi_finding_begin(report, "cma");
    fact_errno(report, "read", machine->read_errno);
    fact_errno(report, "write", machine->write_errno);
    if (scope_known)
        kvfi_fact_number(report, "ptrace_scope", scope);
    else
        kvfi_fact_none(report, "ptrace_scope");
    kvfi_fact_bool(report, "cap_sys_ptrace", privileged);
    kvfi_fact_bool(report, "seccomp", has_seccomp(machine));
    kvfi_fact_number(report, "uid", machine->uid);
    if (space)
        kvfi_fact_number(report, "pid_namespace", space);
    else
        kvfi_fact_none(report, "pid_namespace");

    if (machine->read_errno < 0 || machine->write_errno < 0) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_found(report, "Cross-memory attach could not be tried.");
        kvfi_finding_follows(report, "An agent finds out when it meets a peer of this host.");
        kvfi_finding_remedy(report, "Raise the limit of processes (ulimit -u, the cgroup's "
                                    "pids.max).");
        return;
    }
    if (machine->read_errno || machine->write_errno) {
        cma_refused(report, machine, scope_known, scope);
        return;
    }
    kvfi_finding_found(report, "A process may read and write the memory of another one.");
    kvfi_finding_follows(report,
                         "The lane cma reaches peers of this host that run as uid %u and "
                         "see the same pids.",
                         (unsigned)machine->uid);
    if (scope_known && scope > 0) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_found(report,
                           "But kernel.yama.ptrace_scope is %llu: CAP_SYS_PTRACE makes it "
                           "work.",
                           (unsigned long long)scope);
        kvfi_finding_follows(report, "An engine without that capability does without cma.");
        kvfi_finding_remedy(report, "If engines run with less: sysctl -w "
                                    "kernel.yama.ptrace_scope=0, and the same in /etc/sysctl.d.");
    }
    if (space && space != INITIAL_PID_NAMESPACE) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_found(report, "This is a pid namespace of its own.");
        kvfi_finding_follows(report,
                             "Peers in other containers of this host are reached over UCX.");
        kvfi_finding_remedy(report, "For cma and shm between containers share one pid namespace: "
                                    "docker run --pid=host, or shareProcessNamespace in a pod.");
    }
}

void kvfi_judge_pools(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    bool works = machine->pool_errno == 0;
    kvfi_finding_begin(report, "pools");
    if (machine->pool_errno < 0)
        kvfi_fact_none(report, "mapped");
    else
        kvfi_fact_bool(report, "mapped", works);
    if (machine->pool_errno > 0)
        kvfi_fact_text(report, "failed_step", machine->pool_step);
    else
        kvfi_fact_none(report, "failed_step");
    fact_errno(report, "pidfd_open", machine->pidfd_errno);
    if (machine->pool_errno < 0) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_found(report, "Sharing a pool could not be tried.");
        kvfi_finding_follows(report, "An agent finds out when it meets a peer of this host.");
        kvfi_finding_remedy(report, "Raise the limit of processes (ulimit -u, the cgroup's "
                                    "pids.max).");
    } else if (!works) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_found(report, "A pool cannot be shared: %s fails with %s.", machine->pool_step,
                           kvfi_errno_name(machine->pool_errno));
        kvfi_finding_follows(report, "The lane shm is not used; peers of this host are reached by "
                                     "cma or over UCX.");
        if (strcmp(machine->pool_step, "memfd_create") == 0)
            kvfi_finding_remedy(report,
                                "Let the container's seccomp profile pass memfd_create; the "
                                "kernel must be 3.17 or newer.");
        else
            kvfi_finding_remedy(report,
                                "Peers open /proc/PID/fd: mount /proc (without hidepid), and "
                                "run them as the same user.");
    } else {
        kvfi_finding_found(report, "Another process could map a pool (memfd).");
        kvfi_finding_follows(report,
                             "The lane shm reaches the pools of peers of this host that run "
                             "as uid %u and see the same pids.",
                             (unsigned)machine->uid);
    }
    if (machine->pidfd_errno > 0) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_found(report, "pidfd_open fails with %s.",
                           kvfi_errno_name(machine->pidfd_errno));
        kvfi_finding_follows(report, "Neither shm nor cma is used without it, because a dead peer "
                                     "could not be told from a new process.");
        kvfi_finding_remedy(report, "Use a kernel from 5.3 on, and let the seccomp profile pass "
                                    "pidfd_open.");
    }
}

/* "rw,relatime tmpfs rw,size=64k" of the last mount on /dev/shm; empty when there is none. */
static void shm_mount(const struct kvfi_machine *machine, char *text, size_t size)
{
    static const char place[] = " /dev/shm ";
    char mounts[65536];
    text[0] = '\0';
    if (!kvfi_read_text(machine, mounts, sizeof(mounts), "/proc/self/mountinfo"))
        return;
    for (const char *line = mounts; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t len = strcspn(line, "\n");
        const char *at = memmem(line, len, place, sizeof(place) - 1);
        const char *dash = at ? memmem(at, len - (size_t)(at - line), " - ", 3) : NULL;
        if (!dash)
            continue;
        const char *options = at + sizeof(place) - 1;
        (void)snprintf(text, size, "%.*s %.*s", (int)strcspn(options, " \n"), options,
                       (int)strcspn(dash + 3, "\n"), dash + 3);
    }
}

void kvfi_judge_dev_shm(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char options[256];
    char total[KVFI_SIZE_TEXT];
    char left[KVFI_SIZE_TEXT];
    bool posix = kvfi_ucx_offers(machine, "posix", NULL);
    shm_mount(machine, options, sizeof(options));
    kvfi_finding_begin(report, "dev_shm");
    if (machine->shm_known) {
        kvfi_fact_number(report, "size_bytes", machine->shm_bytes);
        kvfi_fact_number(report, "free_bytes", machine->shm_free_bytes);
        kvfi_fact_bool(report, "read_only", machine->shm_read_only);
    } else {
        kvfi_fact_none(report, "size_bytes");
        kvfi_fact_none(report, "free_bytes");
        kvfi_fact_none(report, "read_only");
    }
    if (*options)
        kvfi_fact_text(report, "mount", options);
    else
        kvfi_fact_none(report, "mount");
    kvfi_fact_bool(report, "ucx_uses_it", posix);
    if (!machine->shm_known) {
        kvfi_finding_found(report, "There is no /dev/shm.");
        kvfi_finding_follows(report, "kvferry's pools do without it, and UCX leaves out its "
                                     "transport posix.");
        return;
    }
    kvfi_finding_found(report, "/dev/shm has %s, of which %s are free%s.",
                       kvfi_size_text(machine->shm_bytes, total),
                       kvfi_size_text(machine->shm_free_bytes, left),
                       machine->shm_read_only ? "; it is read-only" : "");
    bool low = machine->shm_read_only || machine->shm_free_bytes < DEV_SHM_LOW_BYTES;
    if (!low || !posix) {
        kvfi_finding_follows(report, "kvferry's pools do not live there. %s.",
                             posix ? "UCX takes about 4 MiB for each process"
                                   : "UCX does not use it either");
        return;
    }
    bool fatal = machine->transfer_end == KVFI_CHILD_DONE && !machine->transfer_moved;
    kvfi_finding_level(report, fatal ? KVF_FINDING_FAIL : KVF_FINDING_WARN);
    kvfi_finding_follows(report, "UCX takes about 4 MiB there for each process, and older versions "
                                 "(1.13) make no worker without: then no agent can be created.");
    kvfi_finding_remedy(report, "mount -o remount,rw,size=1G /dev/shm (docker run --shm-size=1g); "
                                "or do without it: UCX_TLS=^posix.");
}
