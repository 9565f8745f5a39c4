/* SPDX-License-Identifier: Apache-2.0 */
/* The real attempts on this machine, free and under a seccomp filter, and the child processes. */
#include "doctor/doctor.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct kvfi_machine machine;

static void test_this_machine(void **state)
{
    kvfi_machine_look(&machine);
    assert_int_equal(KVFI_CHILD_DONE, machine.ucx_end);
    assert_true(machine.ucx.usable);
    assert_true(machine.ucx.resource_count > 0);
    assert_int_equal(KVFI_CHILD_DONE, machine.transfer_end);
    if (!machine.transfer_moved)
        fail_msg("%s", machine.transfer_failure);
    assert_true(machine.read_errno >= 0);
    assert_true(machine.zeromq[0] >= 4);
    struct kvf_host_report *report = NULL;
    struct kvf_error error = {0};
    assert_int_equal(KVF_OK, kvfi_judge(&machine, NULL, &report, &error));
    assert_true(kvf_host_report_level(report) < KVF_FINDING_FAIL);
    kvf_host_report_free(report);
}

/* Refuses four system calls with an errno, as a container's profile may. */
static bool refuse_calls(unsigned number)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (number & SECCOMP_RET_DATA)),
    };
    const struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

enum { FILTERED = 0, NO_FILTER = 77, WRONG = 1 };

/* A filter cannot be taken off again, so a process of its own has it. */
static int look_under_filter(unsigned number)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (!refuse_calls(number))
            _exit(NO_FILTER);
        kvfi_machine_look(&machine);
        bool right = machine.read_errno == (int)number && machine.write_errno == (int)number &&
                     machine.pool_errno == (int)number &&
                     strcmp(machine.pool_step, "memfd_create") == 0 &&
                     machine.ucx_end == KVFI_CHILD_DONE && machine.transfer_moved;
        _exit(right ? FILTERED : WRONG);
    }
    int how = 0;
    assert_true(pid > 0);
    assert_int_equal(pid, waitpid(pid, &how, 0));
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

static void test_under_seccomp(void **state)
{
    int code = look_under_filter(EPERM);
    if (code == NO_FILTER)
        skip();
    assert_int_equal(FILTERED, code);
    assert_int_equal(FILTERED, look_under_filter(ENOSYS));
}

/* ---- child processes ------------------------------------------------------------------------ */

static void tell(void *ctx, int out_fd)
{
    (void)kvfi_child_tell(out_fd, ctx, sizeof(uint64_t));
}

static void tell_half(void *ctx, int out_fd)
{
    (void)kvfi_child_tell(out_fd, ctx, sizeof(uint32_t));
}

static void die(void *ctx, int out_fd)
{
    (void)signal(SIGTERM, SIG_DFL);
    (void)raise(SIGTERM);
}

static void hang(void *ctx, int out_fd)
{
    if (fork() >= 0) /* and what it started hangs too, with the pipe open */
        for (;;)
            (void)pause();
}

static void test_children(void **state)
{
    uint64_t given = 0x0123456789abcdef;
    uint64_t result = 0;
    int number = -1;
    assert_int_equal(KVFI_CHILD_DONE,
                     kvfi_child_run(tell, &given, &result, sizeof(result), 20000, &number));
    assert_true(result == given);
    assert_int_equal(0, number);
    assert_int_equal(KVFI_CHILD_DIED,
                     kvfi_child_run(tell_half, &given, &result, sizeof(result), 20000, &number));
    assert_int_equal(0, number);
    assert_int_equal(KVFI_CHILD_DIED,
                     kvfi_child_run(die, NULL, &result, sizeof(result), 20000, &number));
    assert_int_equal(SIGTERM, number);
    assert_int_equal(KVFI_CHILD_SLOW,
                     kvfi_child_run(hang, NULL, &result, sizeof(result), 1, &number));
    assert_int_equal(-1, waitpid(-1, NULL, WNOHANG)); /* nobody is left behind */
    assert_int_equal(ECHILD, errno);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_children),
        cmocka_unit_test(test_under_seccomp),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
