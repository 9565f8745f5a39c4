/* SPDX-License-Identifier: Apache-2.0 */
/* Machines that are made up: files below a folder, and what attempts would have told. */
#include "cli/doctor_print.h"
#include "cli/doctor_test_texts.h"
#include "doctor/doctor.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/kvferry-doctor-XXXXXX"; /* made anew for each test */
static char *no_environment[] = {NULL};
static struct kvfi_machine machine;

static void make_folder(const char *path)
{
    char whole[PATH_MAX];
    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *c = whole + strlen(root) + 1; *c; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        (void)mkdir(whole, 0755);
        *c = '/';
    }
}

static void make_file(const char *path, const char *text)
{
    char whole[PATH_MAX];
    make_folder(path);
    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    FILE *out = fopen(whole, "we");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(0, fclose(out));
}

static void add_resource(const char *name)
{
    (void)snprintf(machine.ucx.resources[machine.ucx.resource_count++],
                   sizeof(machine.ucx.resources[0]), "%s", name);
}

static void add_interface(const char *name, const char *address, bool loopback)
{
    struct kvfi_interface *interface = &machine.interfaces[machine.interface_count++];
    (void)snprintf(interface->name, sizeof(interface->name), "%s", name);
    (void)snprintf(interface->address, sizeof(interface->address), "%s", address);
    interface->loopback = loopback;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

/* A host on which everything works and that tells nothing in files. */
static int set_up(void **state)
{
    (void)snprintf(root, sizeof(root), "/tmp/kvferry-doctor-XXXXXX");
    assert_non_null(mkdtemp(root));
    machine = (struct kvfi_machine){
        .root = root,
        .environment = no_environment,
        .uid = 1000,
        .memlock_bytes = 8 << 20,
        .shm_known = true,
        .shm_bytes = (uint64_t)64 << 30,
        .shm_free_bytes = (uint64_t)48 << 30,
        .ucx = {.major = 1, .minor = 22, .usable = true},
        .transfer_moved = true,
        .zeromq = {4, 3, 4},
    };
    add_resource("self/memory");
    add_resource("tcp/eth0");
    add_resource("tcp/lo");
    add_interface("lo", "127.0.0.1", true);
    add_interface("eth0", "10.1.2.3", false);
    return 0;
}

static int tear_down(void **state)
{
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct kvf_host_report *judge(void)
{
    struct kvf_host_report *report = NULL;
    struct kvf_error error = {0};
    assert_int_equal(KVF_OK, kvfi_judge(&machine, NULL, &report, &error));
    for (size_t i = 0; i < kvf_host_report_count(report); i++) {
        const struct kvf_finding *finding = kvf_host_report_finding(report, i);
        assert_true(*finding->found && *finding->follows);
        assert_int_equal(finding->level != KVF_FINDING_OK, finding->remedy != NULL);
    }
    return report;
}

static const struct kvf_finding *find(const struct kvf_host_report *report, const char *topic)
{
    const struct kvf_finding *finding = NULL;
    for (size_t i = 0; (finding = kvf_host_report_finding(report, i)); i++)
        if (strcmp(finding->topic, topic) == 0)
            return finding;
    fail_msg("no finding %s", topic);
    return NULL;
}

static void expect(const char *topic, enum kvf_finding_level level, const char *part)
{
    struct kvf_host_report *report = judge();
    const struct kvf_finding *finding = find(report, topic);
    char text[8192];
    (void)snprintf(text, sizeof(text), "%s %s %s", finding->found, finding->follows,
                   finding->remedy ? finding->remedy : "");
    if (finding->level != level || !strstr(text, part))
        fail_msg("%s: %s %s\nbut expected %s and: %s", topic,
                 kvf_finding_level_name(finding->level), text, kvf_finding_level_name(level), part);
    kvf_host_report_free(report);
}

static char *print(bool json)
{
    struct kvf_host_report *report = judge();
    struct kvf_error error = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    if (json)
        assert_int_equal(KVF_OK, kvfi_doctor_print_json(report, out, &error));
    else
        kvfi_doctor_print_text(report, "kvferry on a machine", out);
    assert_int_equal(0, fclose(out));
    kvf_host_report_free(report);
    return text;
}

static void expect_whole(bool json, const char *expected)
{
    char *text = print(json);
    assert_string_equal(expected, text);
    free(text);
}

/* ---- whole reports -------------------------------------------------------------------------- */

/* Two ports, one of which UCX cannot use, a GPU without peermem, and a tight memlock limit. */
static void make_rdma_host(void)
{
    static char *environment[] = {(char *)"HOME=/", (char *)"UCX_TLS=rc,cuda,tcp", NULL};
    machine.environment = environment;
    add_resource("rc_mlx5/mlx5_0:1");
    add_resource("cuda_copy/cuda");
    make_file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    make_file("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    make_file("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    make_file("/sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
    make_file("/sys/class/infiniband/mlx5_1/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    make_file("/sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
    make_file("/dev/infiniband/uverbs0", "");
    make_file("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
    make_file("/proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC\n");
    make_file("/proc/driver/nvidia/gpus/0000:1b:00.0/information",
              "Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n");
    make_file("/dev/nvidiactl", "");
    make_file("/dev/nvidia0", "");
    make_file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\n"
                                   "Cpus_allowed_list:\t0-7,16\n");
    make_file("/proc/self/cgroup", "0::/kube/pod\n");
    make_file("/sys/fs/cgroup/kube/pod/cpu.max", "max 100000\n");
    make_file("/sys/fs/cgroup/kube/cpu.max", "400000 100000\n");
    make_file("/sys/fs/cgroup/kube/pod/memory.max", "17179869184\n");
    make_file("/proc/meminfo",
              "MemTotal:  1 kB\nMemAvailable:   33554432 kB\nHugePages_Free:  3\n");
    make_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
              "always within_size [advise] never deny force\n");
    make_file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    make_file("/proc/self/mountinfo",
              "24 1 0:1 / / rw - ext4 /dev/a rw\n"
              "25 24 0:23 / /dev/shm rw,nosuid - tmpfs shm rw,size=67108864k\n");
}

static void test_rdma_host(void **state)
{
    make_rdma_host();
    expect_whole(false, rdma_text);
    expect_whole(true, rdma_json);
}

/* No /dev/shm, ptrace_scope 2, seccomp, old UCX, loopback alone: and yet it works. */
static void test_narrow_container(void **state)
{
    machine.shm_known = false;
    machine.read_errno = EPERM;
    machine.write_errno = EPERM;
    machine.pool_errno = ENOSYS;
    machine.pool_step = "memfd_create";
    machine.pidfd_errno = -1;
    machine.ucx.minor = 13;
    machine.ucx.release = 1;
    machine.ucx.resource_count = 1;
    machine.interface_count = 1;
    add_resource("tcp/lo");
    make_file("/proc/sys/kernel/yama/ptrace_scope", "2\n");
    make_file("/proc/self/status", "Seccomp:\t2\nCpus_allowed_list:\t3\nCapEff:\t0\n");
    expect_whole(false, container_text);
}

/* ---- single findings ------------------------------------------------------------------------ */

static void test_failures_make_it_impossible(void **state)
{
    struct kvf_host_report *report = judge();
    assert_true(kvf_host_report_level(report) < KVF_FINDING_FAIL);
    kvf_host_report_free(report);
    machine.transfer_moved = false;
    (void)snprintf(machine.transfer_failure, sizeof(machine.transfer_failure), "ucx: no worker");
    expect("transfer", KVF_FINDING_FAIL, "Mount /proc");
    machine.transfer_end = KVFI_CHILD_DIED;
    machine.transfer_signal = SIGABRT;
    expect("transfer", KVF_FINDING_FAIL, "SIGABRT");
    machine.transfer_signal = 0;
    expect("transfer", KVF_FINDING_FAIL, "without a result");
    machine.transfer_end = KVFI_CHILD_SLOW;
    expect("transfer", KVF_FINDING_FAIL, "20 s");
    report = judge();
    assert_int_equal(KVF_FINDING_FAIL, kvf_host_report_level(report));
    kvf_host_report_free(report);
    machine.transfer_end = KVFI_CHILD_NONE;
    expect("transfer", KVF_FINDING_WARN, "ulimit -u");
}

static void test_ucx(void **state)
{
    expect("ucx", KVF_FINDING_OK, "Other hosts are reached over tcp/eth0.");
    expect("nixl_same_host", KVF_FINDING_OK, "1.22 or newer");
    machine.ucx.minor = 21;
    expect("nixl_same_host", KVF_FINDING_NOTE, "UCX_NET_DEVICES=eth0");
    expect("emulated_writes", KVF_FINDING_OK, "1.20 or newer");
    machine.ucx.minor = 19;
    expect("emulated_writes", KVF_FINDING_WARN, "LD_LIBRARY_PATH");
    add_resource("rc_verbs/mlx4_0:1");
    expect("emulated_writes", KVF_FINDING_NOTE, "TCP only");
    machine.ucx.resource_count = 2; /* without lo */
    expect("nixl_same_host", KVF_FINDING_OK, "reached over eth0");
    machine.ucx.resource_count = 1; /* self */
    expect("ucx", KVF_FINDING_FAIL, "ip link set lo up");
    expect("nixl_same_host", KVF_FINDING_OK, "See the finding ucx");
    static char *environment[] = {(char *)"UCX_TLS=self", NULL};
    machine.environment = environment;
    expect("ucx", KVF_FINDING_FAIL, "UCX_TLS, which is \"self\"");
    machine.ucx.usable = false;
    (void)snprintf(machine.ucx.failure, sizeof(machine.ucx.failure), "No such device");
    expect("ucx", KVF_FINDING_FAIL, "No such device");
    machine.ucx_end = KVFI_CHILD_DIED;
    machine.ucx_signal = SIGSEGV;
    expect("ucx", KVF_FINDING_FAIL, "SIGSEGV");
    expect("emulated_writes", KVF_FINDING_OK, "See the finding ucx");
}

static void test_cma(void **state)
{
    expect("cma", KVF_FINDING_OK, "uid 1000");
    make_file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
    expect("cma", KVF_FINDING_NOTE, "CAP_SYS_PTRACE makes it work");
    machine.write_errno = EPERM;
    expect("cma", KVF_FINDING_WARN, "sysctl -w kernel.yama.ptrace_scope=0");
    machine.read_errno = EPERM;
    make_file("/proc/sys/kernel/yama/ptrace_scope", "3\n");
    expect("cma", KVF_FINDING_WARN, "reboot");
    make_file("/proc/sys/kernel/yama/ptrace_scope", "0\n");
    expect("cma", KVF_FINDING_WARN, "security module");
    machine.read_errno = ENOSYS;
    expect("cma", KVF_FINDING_WARN, "CONFIG_CROSS_MEMORY_ATTACH");
    make_file("/proc/self/status", "Seccomp:\t2\n");
    expect("cma", KVF_FINDING_WARN, "seccomp=unconfined");
    machine.read_errno = -1;
    expect("cma", KVF_FINDING_WARN, "could not be tried");
}

static void test_another_pid_namespace(void **state)
{
    char path[PATH_MAX];
    make_folder("/proc/self/ns/pid");
    (void)snprintf(path, sizeof(path), "%s/proc/self/ns/pid", root);
    assert_int_equal(0, symlink("pid:[4026531836]", path));
    expect("cma", KVF_FINDING_OK, "see the same pids");
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, symlink("pid:[4026532001]", path));
    expect("cma", KVF_FINDING_NOTE, "--pid=host");
}

static void test_pools(void **state)
{
    machine.pool_errno = EACCES;
    machine.pool_step = "opening /proc/PID/fd";
    expect("pools", KVF_FINDING_WARN, "hidepid");
    machine.pool_errno = 0;
    machine.pidfd_errno = ENOSYS;
    expect("pools", KVF_FINDING_WARN, "5.3");
    machine.pidfd_errno = -1;
    machine.pool_errno = -1;
    expect("pools", KVF_FINDING_WARN, "could not be tried");
}

static void test_dev_shm(void **state)
{
    expect("dev_shm", KVF_FINDING_OK, "48.0 GiB are free");
    machine.shm_free_bytes = 1 << 20;
    expect("dev_shm", KVF_FINDING_OK, "does not use it");
    add_resource("posix/memory");
    expect("dev_shm", KVF_FINDING_WARN, "UCX_TLS=^posix");
    machine.transfer_moved = false;
    expect("dev_shm", KVF_FINDING_FAIL, "--shm-size");
    machine.shm_free_bytes = (uint64_t)1 << 30;
    expect("dev_shm", KVF_FINDING_OK, "about 4 MiB");
    machine.shm_read_only = true;
    expect("dev_shm", KVF_FINDING_FAIL, "remount,rw");
}

static void test_rdma(void **state)
{
    expect("rdma", KVF_FINDING_OK, "no RDMA device");
    make_file("/sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT\n");
    expect("rdma", KVF_FINDING_WARN, "opensm");
    make_file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    expect("rdma", KVF_FINDING_WARN, "--device=/dev/infiniband");
    expect("rdma", KVF_FINDING_WARN, "apt-get install rdma-core");
    make_file("/dev/infiniband/uverbs0", "");
    make_file("/usr/lib64/libibverbs.so.1", "");
    expect("rdma", KVF_FINDING_WARN, "libuct_ib");
    expect("memlock", KVF_FINDING_WARN, "ulimit -l unlimited");
    make_file("/proc/self/status", "CapEff:\t0000000000004000\n");
    expect("memlock", KVF_FINDING_OK, "any size");
    machine.memlock_bytes = UINT64_MAX;
    expect("memlock", KVF_FINDING_OK, "no limit");
    add_resource("rc_mlx5/mlx5_0:1");
    expect("rdma", KVF_FINDING_OK, "every active port");
}

static void test_gpu(void **state)
{
    expect("gpu", KVF_FINDING_OK, "host memory");
    make_file("/proc/driver/nvidia/version",
              "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1  Release\n");
    expect("gpu", KVF_FINDING_NOTE, "--gpus all");
    make_file("/dev/nvidiactl", "");
    expect("gpu", KVF_FINDING_NOTE, "no CUDA transport");
    add_resource("cuda_copy/cuda");
    expect("gpu", KVF_FINDING_OK, "can be registered");
}

static void test_limits(void **state)
{
    make_file("/proc/self/status", "Cpus_allowed_list:\t5\n");
    expect("cpu", KVF_FINDING_NOTE, "1 processor may be used.");
    make_file("/proc/self/status", "Cpus_allowed_list:\t0-3\n");
    expect("cpu", KVF_FINDING_OK, "4 processors");
    make_file("/proc/self/cgroup", "4:memory:/a\n1:cpu,cpuacct:/a/b\n0::/\n");
    make_file("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000\n");
    make_file("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    make_file("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    make_file("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
    make_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    expect("cpu", KVF_FINDING_NOTE, "the time of 1.50");
    expect("memory", KVF_FINDING_OK, "limits its processes to 1.0 GiB");
}

/* Files may hold anything. */
static void test_hostile_files(void **state)
{
    static const char *const paths[] = {"/proc/self/status",
                                        "/proc/self/cgroup",
                                        "/proc/meminfo",
                                        "/proc/self/mountinfo",
                                        "/sys/fs/cgroup/cpu.max",
                                        "/sys/class/infiniband/\xff\xfe/ports/1/state",
                                        "/proc/driver/nvidia/version",
                                        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                                        "/proc/driver/nvidia/gpus/\x01\n/information",
                                        "/proc/sys/kernel/yama/ptrace_scope"};
    static const char *const texts[] = {"",
                                        "\n\n\n",
                                        ":::::\n0:\n::",
                                        "99999999999999999999999 99999999999999999999999",
                                        "Cpus_allowed_list:\t0-99999999999999,7-3\nCapEff:\tzz",
                                        "[",
                                        "1 \xff / /dev/shm - \n",
                                        "Model:\n[never\nModule \x80\n - - / /dev/shm rw - \n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (size_t k = 0; k < sizeof(paths) / sizeof(paths[0]); k++)
            make_file(paths[k], texts[i]);
        char *text = print(true);
        for (const char *c = text; *c; c++)
            assert_true((*c >= ' ' && *c <= '~') || *c == '\n');
        free(text);
    }
}

struct countdown {
    size_t left;
    size_t live;
};

static void *counted_alloc(void *ctx, size_t size)
{
    struct countdown *countdown = ctx;
    if (countdown->left == 0)
        return NULL;
    countdown->left--;
    countdown->live++;
    return malloc(size);
}

static void *counted_realloc(void *ctx, void *ptr, size_t size)
{
    return NULL;
}

static void counted_free(void *ctx, void *ptr)
{
    ((struct countdown *)ctx)->live--;
    free(ptr);
}

static void test_want_of_memory(void **state)
{
    struct countdown countdown = {0};
    const struct kvf_allocator allocator = {&countdown, counted_alloc, counted_realloc,
                                            counted_free};
    size_t failures = 0;
    enum kvf_status status = KVF_ENOMEM;
    make_rdma_host();
    for (; status != KVF_OK; failures++) {
        struct kvf_host_report *report = NULL;
        struct kvf_error error = {0};
        countdown = (struct countdown){.left = failures};
        status = kvfi_judge(&machine, &allocator, &report, &error);
        assert_true(status == KVF_OK || status == KVF_ENOMEM);
        assert_int_equal(status == KVF_OK, report != NULL);
        kvf_host_report_free(report);
        assert_int_equal(0, countdown.live);
    }
    assert_true(failures > 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rdma_host),
        TEST(test_narrow_container),
        TEST(test_failures_make_it_impossible),
        TEST(test_ucx),
        TEST(test_cma),
        TEST(test_another_pid_namespace),
        TEST(test_pools),
        TEST(test_dev_shm),
        TEST(test_rdma),
        TEST(test_gpu),
        TEST(test_limits),
        TEST(test_hostile_files),
        TEST(test_want_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
