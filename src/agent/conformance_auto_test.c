/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The suite on the auto lane, once with each way to a peer of the same host, and what those ways
 * can do wrong: a peer that dies while its memory is copied, one that is not who it says, memory
 * that is gone. A child process is this program again with a socket as standard input: it sends its
 * blob and its pool's address, then progresses until the parent hangs up.
 */
#include "agent/conformance.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK  ((size_t)16384)
#define BLOCKS ((size_t)2048)
#define POOL   (BLOCK * BLOCKS) /* 32 MiB */

#define CHILD "conformance_auto_peer"

struct hello {
    uint64_t pool;
    uint64_t blob_len;
};

/* ---- the child ------------------------------------------------------------------------------ */

static bool transfer_all(int fd, void *data, size_t len, bool sending)
{
    char *at = data;
    while (len > 0) {
        ssize_t moved = sending ? send(fd, at, len, MSG_NOSIGNAL) : recv(fd, at, len, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return false;
        at += moved;
        len -= (size_t)moved;
    }
    return true;
}

static int child_main(void)
{
    struct conf_rig rig = {.lane = "auto"};
    struct conf_side side;
    conf_open(&rig, &side, NULL, POOL);
    void *blob = NULL;
    size_t len = 0;
    if (kvf_agent_metadata(side.agent, &blob, &len, NULL) != KVF_OK)
        return 2;
    struct hello hello = {.pool = (uint64_t)(uintptr_t)side.pool, .blob_len = len};
    if (!transfer_all(STDIN_FILENO, &hello, sizeof(hello), true) ||
        !transfer_all(STDIN_FILENO, blob, len, true))
        return 2;
    kvf_agent_blob_free(side.agent, blob);
    for (;;) {
        if (kvf_agent_progress(side.agent) > 0 || kvf_agent_arm(side.agent) != KVF_OK)
            continue;
        struct pollfd fds[2] = {{.fd = kvf_agent_fd(side.agent), .events = POLLIN},
                                {.fd = STDIN_FILENO, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return 2;
        char command = 0;
        if (fds[1].revents && recv(STDIN_FILENO, &command, 1, 0) <= 0)
            break;
        if (command) { /* the number of messages so far */
            uint64_t count = side.message_count;
            if (!transfer_all(STDIN_FILENO, &count, sizeof(count), true))
                return 2;
        }
    }
    conf_close(&side);
    return 0;
}

/* ---- the parent ----------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int socket;
    struct kvf_peer_id peer;
    struct kvf_plan_region region; /* our pool to its pool */
    unsigned char blob[65536];
    size_t blob_len;
};

static void start_child(struct conf_rig *rig, struct child *child)
{
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    child->pid = fork();
    assert_true(child->pid >= 0);
    if (child->pid == 0) {
        if (dup2(sockets[1], STDIN_FILENO) < 0)
            _exit(126);
        execl("/proc/self/exe", CHILD, (char *)NULL);
        _exit(127);
    }
    close(sockets[1]);
    child->socket = sockets[0];
    struct hello hello;
    struct kvf_error error = {0};
    assert_true(transfer_all(child->socket, &hello, sizeof(hello), false));
    assert_true(hello.blob_len <= sizeof(child->blob));
    child->blob_len = hello.blob_len;
    assert_true(transfer_all(child->socket, child->blob, child->blob_len, false));
    if (kvf_agent_load(rig->a.agent, child->blob, child->blob_len, &child->peer, &error) != KVF_OK)
        fail_msg("load: %s", error.text);
    child->region = conf_region(&rig->a, &rig->a, BLOCK, BLOCK);
    child->region.remote.base = hello.pool;
    rig->b_at_a = child->peer;
}

static void reap(struct child *child)
{
    int status = 0;
    close(child->socket);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
}

static void start_rig(struct conf_rig *rig)
{
    *rig = (struct conf_rig){.lane = "auto", .net = kvfi_mem_net_create(NULL)};
    assert_non_null(rig->net);
    conf_open(rig, &rig->a, NULL, POOL);
}

static const uint32_t *shuffled(uint64_t seed)
{
    static uint32_t ids[2][BLOCKS];
    conf_shuffle(ids[seed & 1], BLOCKS, &seed);
    return ids[seed & 1];
}

static bool lost(struct conf_rig *rig)
{
    return rig->a.lost_count > 0;
}

/* There and back through the other process, with every byte compared. */
static void between_processes(void **state)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child);
    conf_fill(rig.a.pool, POOL, 7);
    conf_post_blocks(&rig, KVF_WRITE, child.region, shuffled(2), shuffled(5), BLOCKS, "there");
    conf_drive_counts(&rig, 1, 0);
    memset(rig.a.pool, CONF_UNTOUCHED, POOL);
    conf_post_blocks(&rig, KVF_READ, child.region, shuffled(2), shuffled(5), BLOCKS / 2, "back");
    conf_drive_counts(&rig, 2, 0);
    assert_int_equal(rig.a.results[0].status, KVF_OK);
    assert_int_equal(rig.a.results[1].status, KVF_OK);
    const uint32_t *ids = shuffled(2);
    for (size_t n = 0; n < BLOCKS; n++) {
        for (size_t i = ids[n] * BLOCK; i < (ids[n] + 1) * BLOCK; i++)
            assert_int_equal(rig.a.pool[i], n < BLOCKS / 2 ? conf_pattern(7, i) : CONF_UNTOUCHED);
    }
    uint64_t messages = 0;
    do {
        char ask = 1;
        assert_true(transfer_all(child.socket, &ask, 1, true));
        assert_true(transfer_all(child.socket, &messages, sizeof(messages), false));
    } while (messages < 2);
    conf_drop(&rig.a, child.peer);
    conf_settle(&rig);
    reap(&child);
    conf_stop(&rig);
}

/* Somebody else kills it at a moment that nobody knows. */
static pid_t kill_after(pid_t victim, int delay_ms)
{
    pid_t killer = fork();
    assert_true(killer >= 0);
    if (killer == 0) {
        (void)poll(NULL, 0, delay_ms);
        (void)kill(victim, SIGKILL);
        _exit(0);
    }
    return killer;
}

static void dies_while_it_is_copied(void **state)
{
    enum { ROUNDS = 12 };
    struct conf_rig rig;
    uint64_t seed = 11;
    start_rig(&rig);
    for (size_t round = 0; round < ROUNDS; round++) {
        enum kvf_operation operation = round % 2 ? KVF_READ : KVF_WRITE;
        struct child child;
        size_t lost_before = rig.a.lost_count;
        size_t posted = rig.a.result_count;
        start_child(&rig, &child);
        pid_t killer = kill_after(child.pid, (int)conf_random(&seed, 60));
        struct kvf_block_pairs group = {shuffled(2), shuffled(5), BLOCKS};
        struct kvf_plan plan = {
            .regions = &child.region, .region_count = 1, .groups = &group, .group_count = 1};
        for (;;) { /* until it is refused */
            struct kvf_transfer_id id;
            enum kvf_status status =
                kvf_agent_post(rig.a.agent, operation, child.peer, &plan, "x", 1, 0, &id, NULL);
            if (status != KVF_OK) {
                assert_int_equal(status, KVF_EDISCONNECTED);
                break;
            }
            posted++;
            conf_drive_counts(&rig, posted, 0);
            assert_int_not_equal(rig.a.results[posted - 1].status, KVF_ECANCELED);
        }
        while (rig.a.lost_count == lost_before)
            conf_drive(&rig, lost);
        assert_int_equal(rig.a.lost_count, lost_before + 1);
        conf_settle(&rig);
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        reap(&child);
        conf_drop(&rig.a, child.peer);
        conf_settle(&rig);
        assert_int_equal(rig.a.lost_count, lost_before + 1);
    }
    conf_stop(&rig);
}

/* A blob that outlives its process, as after a restart: the copy must not go to whoever is there.
 */
static void blob_of_a_dead_process(void **state)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child);
    conf_drop(&rig.a, child.peer);
    conf_settle(&rig);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    reap(&child);
    if (kvf_agent_load(rig.a.agent, child.blob, child.blob_len, &child.peer, NULL) == KVF_OK) {
        rig.b_at_a = child.peer;
        conf_post_blocks(&rig, KVF_WRITE, child.region, shuffled(2), shuffled(5), 8, "x");
        conf_drive_counts(&rig, 1, 0);
        assert_int_equal(rig.a.results[0].status, KVF_EDISCONNECTED);
    }
    conf_drop(&rig.a, child.peer);
    conf_stop(&rig);
}

/* Memory that its owner has unmapped meanwhile: an error, and nothing of ours is hurt. */
static void memory_that_is_gone(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_lane = "auto";
    conf_start(&rig, BLOCK * 4);
    conf_fill(rig.a.pool, BLOCK * 4, 3);
    unsigned char *gone =
        mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(gone, MAP_FAILED);
    assert_int_equal(kvf_agent_register(rig.b.agent, gone, BLOCK, KVF_MEMORY_DRAM, 0, &error),
                     KVF_OK);
    conf_join(&rig);
    struct kvf_plan_region region = conf_region(&rig.a, &rig.b, BLOCK, BLOCK);
    region.remote.base = (uint64_t)(uintptr_t)gone;
    region.remote.block_count = 1;
    const uint32_t zero = 0;
    assert_int_equal(munmap(gone, BLOCK), 0);
    for (size_t i = 0; i < 2; i++) {
        conf_post_blocks(&rig, i ? KVF_READ : KVF_WRITE, region, &zero, &zero, 1, "never sent");
        conf_drive_counts(&rig, i + 1, 0);
        assert_int_equal(rig.a.results[i].status, KVF_ETRANSPORT);
    }
    assert_int_equal(rig.b.message_count, 0);
    assert_int_equal(rig.a.lost_count, 0);
    for (size_t i = 0; i < BLOCK * 4; i++)
        assert_int_equal(rig.a.pool[i], conf_pattern(3, i));
    /* the connection is none the worse */
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), &zero, &zero, 1,
                     "sent");
    conf_drive_counts(&rig, 3, 1);
    assert_int_equal(rig.a.results[2].status, KVF_OK);
    conf_stop(&rig);
}

static void unknown_choice(void **state)
{
    struct kvf_agent *agent = NULL;
    struct kvf_error error = {0};
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    const char *saved = getenv("KVFERRY_LANES");
    char *kept = strdup(saved ? saved : "");
    assert_non_null(kept);
    options.lane = "auto";
    assert_int_equal(setenv("KVFERRY_LANES", "cma,rdma", 1), 0);
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "\"rdma\""));
    assert_int_equal(setenv("KVFERRY_LANES", kept, 1), 0);
    free(kept);
}

int main(int argc, char **argv)
{
    static const char *const choices[] = {"shm,cma,ucx", "cma,ucx", "shm", "ucx"};
    enum { WHOLE = 2 };
    const struct CMUnitTest always[] = {
        cmocka_unit_test(between_processes),
        cmocka_unit_test(dies_while_it_is_copied),
        cmocka_unit_test(blob_of_a_dead_process),
        cmocka_unit_test(unknown_choice),
    };
    const struct CMUnitTest with_cma[] = {cmocka_unit_test(memory_that_is_gone)};
    if (strcmp(argv[0], CHILD) == 0)
        return child_main();
    conf_lane = "auto";
    int failed = 0;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (setenv("KVFERRY_LANES", choices[i], 1) != 0)
            return 2;
        printf("KVFERRY_LANES=%s\n", choices[i]);
        if (i < WHOLE) /* the others are less of the same */
            failed += conf_run_all();
        failed += cmocka_run_group_tests(always, NULL, NULL);
        if (strstr(choices[i], "cma"))
            failed += cmocka_run_group_tests(with_cma, NULL, NULL);
    }
    return failed;
}
