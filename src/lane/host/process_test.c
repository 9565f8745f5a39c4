/* SPDX-License-Identifier: Apache-2.0 */
/* Whom this process believes to be whom, with a real child process at the other end. */
#include "lane/host/process.h"

#include "lane/host/pool.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { BOTH = KVFI_HOST_CMA | KVFI_HOST_SHM };

static const uint8_t nonce[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
static uint8_t other_nonce[16];

static struct kvfi_host_identity self;
static struct kvfi_host_identity peer; /* a child's */
static pid_t child;

static int start(void **state)
{
    int fds[2];
    assert_true(kvfi_host_self(BOTH, nonce, &self));
    assert_int_equal(self.pid, getpid());
    assert_int_equal(pipe(fds), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct kvfi_host_identity mine;
        if (!kvfi_host_self(BOTH, nonce, &mine) ||
            write(fds[1], &mine, sizeof(mine)) != (ssize_t)sizeof(mine))
            _exit(1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(fds[0], &peer, sizeof(peer)), sizeof(peer));
    close(fds[0]);
    close(fds[1]);
    return 0;
}

static int stop(void **state)
{
    if (child > 0) {
        (void)kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    child = 0;
    return 0;
}

static void expect_reach(const struct kvfi_host_identity *identity, uint8_t wanted, uint8_t reach,
                         const char *words)
{
    struct kvfi_host_process process;
    const char *reason = "unset";
    kvfi_host_process_open(&self, identity, wanted, &process, &reason);
    assert_int_equal(process.reach, reach);
    assert_int_equal(process.pidfd >= 0, reach != 0);
    if (words)
        assert_non_null(strstr(reason, words));
    else
        assert_null(reason);
    kvfi_host_process_close(&process);
    kvfi_host_process_close(&process); /* again is allowed */
}

static void the_right_process(void **state)
{
    expect_reach(&peer, BOTH, BOTH, NULL);
    expect_reach(&peer, KVFI_HOST_CMA, KVFI_HOST_CMA, NULL);
    expect_reach(&peer, KVFI_HOST_SHM, KVFI_HOST_SHM, NULL);
    expect_reach(&peer, 0, 0, NULL);
    expect_reach(&self, BOTH, BOTH, NULL); /* two agents in one process */
    peer.offers = KVFI_HOST_SHM;
    expect_reach(&peer, BOTH, KVFI_HOST_SHM, NULL);
}

static void another_host_or_namespace(void **state)
{
    struct kvfi_host_identity changed = peer;
    changed.boot_id[15] ^= 1;
    expect_reach(&changed, BOTH, 0, NULL);
    changed = peer;
    changed.pid_namespace++;
    expect_reach(&changed, BOTH, 0, "pid namespace");
}

/* The pid belongs to somebody else by now. */
static void a_reused_pid(void **state)
{
    struct kvfi_host_identity changed = peer;
    changed.start_time++;
    expect_reach(&changed, BOTH, 0, "has ended");
    changed.pid = (uint32_t)getpid();
    expect_reach(&changed, BOTH, 0, "has ended");
}

static void impossible_pids(void **state)
{
    static const uint32_t pids[] = {0, UINT32_MAX, (uint32_t)INT32_MAX + 1};
    struct kvfi_host_identity changed = peer;
    for (size_t i = 0; i < sizeof(pids) / sizeof(pids[0]); i++) {
        changed.pid = pids[i];
        expect_reach(&changed, BOTH, 0, NULL);
    }
}

/* The memory there is not what its agent says: no copies by address, whatever else fits. */
static void a_wrong_nonce(void **state)
{
    struct kvfi_host_identity changed = peer;
    changed.nonce[0] ^= 1;
    expect_reach(&changed, KVFI_HOST_CMA, 0, "not what its agent announced");
    changed = peer;
    changed.nonce_addr = (uintptr_t)other_nonce;
    expect_reach(&changed, BOTH, KVFI_HOST_SHM, "not what its agent announced");
    changed.nonce_addr = 0;
    expect_reach(&changed, KVFI_HOST_CMA, 0, "not what its agent announced");
}

static void a_dead_process(void **state)
{
    struct kvfi_host_process process;
    const char *reason;
    kvfi_host_process_open(&self, &peer, BOTH, &process, &reason);
    assert_true(kvfi_host_process_lives(&process));
    assert_int_equal(kill(child, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_false(kvfi_host_process_lives(&process)); /* a zombie has no memory either */
    assert_int_equal(waitpid(child, NULL, 0), child);
    child = 0;
    assert_false(kvfi_host_process_lives(&process));
    kvfi_host_process_close(&process);
    expect_reach(&peer, BOTH, 0, "has ended");
}

/* Only a sealed memfd with the announced inode is mapped. */
static void what_is_not_a_pool(void **state)
{
    struct kvfi_host_process process = {.pid = getpid(), .pidfd = -1};
    struct kvfi_pool_place place;
    struct kvf_pool *pool = NULL;
    size_t length = 0;
    assert_int_equal(kvf_pool_create(10000, &pool, NULL), KVF_OK);
    uint64_t addr = (uintptr_t)kvf_pool_address(pool);
    assert_true(kvfi_pool_find(addr, 1, &place));
    unsigned char *map = kvfi_host_process_map(&process, (uint32_t)place.fd, place.inode, &length);
    assert_non_null(map);
    assert_int_equal(length, kvf_pool_length(pool));
    map[9999] = 42;
    assert_int_equal(((unsigned char *)kvf_pool_address(pool))[9999], 42);
    (void)munmap(map, length);
    assert_null(kvfi_host_process_map(&process, (uint32_t)place.fd, place.inode + 1, &length));
    assert_null(kvfi_host_process_map(&process, UINT32_MAX, place.inode, &length));

    int unsealed = memfd_create("unsealed", MFD_CLOEXEC);
    int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fds[2];
    assert_true(unsealed >= 0 && folder >= 0);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(ftruncate(unsealed, 4096), 0);
    const int wrong[] = {unsealed, folder, fds[0], fds[1]};
    for (size_t i = 0; i < 4; i++) {
        for (uint64_t inode = 0; inode < 64; inode++)
            assert_null(kvfi_host_process_map(&process, (uint32_t)wrong[i], inode, &length));
    }
    close(unsealed);
    close(folder);
    close(fds[0]);
    close(fds[1]);
    kvf_pool_destroy(pool);
}

#define CHILD_TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CHILD_TEST(the_right_process),
        CHILD_TEST(another_host_or_namespace),
        CHILD_TEST(a_reused_pid),
        CHILD_TEST(impossible_pids),
        CHILD_TEST(a_wrong_nonce),
        CHILD_TEST(a_dead_process),
        cmocka_unit_test(what_is_not_a_pool),
    };
    return cmocka_run_group_tests_name("lane/host_process", tests, NULL, NULL);
}
