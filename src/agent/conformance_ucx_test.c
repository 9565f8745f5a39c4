/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The suite on UCX, and what needs another process: a peer that is killed, stopped, or restarted.
 * The peer is this program again, started before UCX is touched in it, with a socket as standard
 * input; it sends its blob and its pool's address, then does as each command byte says.
 */
#include "agent/conformance.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK  ((size_t)16384)
#define BLOCKS ((size_t)4096)
#define POOL   (BLOCK * BLOCKS) /* 64 MiB */

struct hello {
    uint64_t pool;
    uint64_t blob_len;
};

/* ---- the child ------------------------------------------------------------------------------ */

static bool send_all(int fd, const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        len -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t len)
{
    char *at = data;
    while (len > 0) {
        ssize_t got = recv(fd, at, len, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        len -= (size_t)got;
    }
    return true;
}

/* B67 with a process of its own: compares all blocks inside the callback and answers with one
 * byte. The message is the seed. */
static void child_compare(struct conf_side *side, const void *data, size_t len)
{
    uint64_t seed = 0;
    if (len != sizeof(seed))
        return; /* a message without a question */
    memcpy(&seed, data, sizeof(seed));
    char answer = 'y';
    for (size_t i = 0; i < POOL; i += 61) {
        if (side->pool[i] != conf_pattern(seed, i))
            answer = 'n';
    }
    memset(side->pool, CONF_UNTOUCHED, POOL);
    if (!send_all(STDIN_FILENO, &answer, 1))
        _exit(3);
}

static int child_main(const char *name)
{
    struct conf_rig rig = {.lane = "ucx"};
    struct conf_side side;
    conf_open(&rig, &side, name, POOL);
    side.on_message = child_compare;
    void *blob = NULL;
    size_t len = 0;
    if (kvf_agent_metadata(side.agent, &blob, &len, NULL) != KVF_OK)
        return 2;
    struct hello hello = {.pool = (uint64_t)(uintptr_t)side.pool, .blob_len = len};
    if (!send_all(STDIN_FILENO, &hello, sizeof(hello)) || !send_all(STDIN_FILENO, blob, len))
        return 2;
    kvf_agent_blob_free(side.agent, blob);
    for (;;) { /* until the parent hangs up */
        if (kvf_agent_progress(side.agent) > 0 || kvf_agent_arm(side.agent) != KVF_OK)
            continue;
        struct pollfd fds[2] = {{.fd = kvf_agent_fd(side.agent), .events = POLLIN},
                                {.fd = STDIN_FILENO, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return 2;
        if (fds[1].revents)
            break;
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
};

/* Starts a peer process and loads its blob into agent a. */
static void start_child(struct conf_rig *rig, struct child *child, const char *name)
{
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    child->pid = fork();
    assert_true(child->pid >= 0);
    if (child->pid == 0) {
        if (dup2(sockets[1], STDIN_FILENO) < 0)
            _exit(126);
        execl("/proc/self/exe", "conformance_ucx_peer", name, (char *)NULL);
        _exit(127);
    }
    close(sockets[1]);
    child->socket = sockets[0];
    struct hello hello;
    struct kvf_error error = {0};
    assert_true(receive_all(child->socket, &hello, sizeof(hello)));
    assert_true(hello.blob_len < 65536);
    unsigned char blob[65536];
    assert_true(receive_all(child->socket, blob, hello.blob_len));
    if (kvf_agent_load(rig->a.agent, blob, hello.blob_len, &child->peer, &error) != KVF_OK)
        fail_msg("load: %s", error.text);
    child->region = conf_region(&rig->a, &rig->a, BLOCK, BLOCK);
    child->region.remote.base = hello.pool;
    rig->b_at_a = child->peer; /* so that conf_post() goes to it */
}

static void reap(struct child *child)
{
    int status = 0;
    close(child->socket);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
}

static void start_rig(struct conf_rig *rig)
{
    *rig = (struct conf_rig){.lane = "ucx"};
    rig->net = kvfi_mem_net_create(NULL);
    assert_non_null(rig->net);
    conf_open(rig, &rig->a, NULL, POOL);
}

static const uint32_t *shuffled_ids(void)
{
    static uint32_t ids[BLOCKS];
    uint64_t state = 5;
    conf_shuffle(ids, BLOCKS, &state);
    return ids;
}

static void post_to(struct conf_rig *rig, const struct child *child, enum kvf_operation operation,
                    const char *notification)
{
    rig->b_at_a = child->peer;
    conf_post_blocks(rig, operation, child->region, shuffled_ids(), shuffled_ids(), BLOCKS,
                     notification);
}

/* 64 MiB in 4096 parts; the other process compares when the notification is there. */
static void notification_after_data_between_processes(void **state)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child, "verifier");
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct kvf_error error;
        struct kvf_transfer_id id;
        char answer = 0;
        struct kvf_block_pairs group = {
            .local_ids = shuffled_ids(), .remote_ids = shuffled_ids(), .count = BLOCKS};
        struct kvf_plan plan = {
            .regions = &child.region, .region_count = 1, .groups = &group, .group_count = 1};
        conf_fill(rig.a.pool, POOL, seed);
        assert_int_equal(kvf_agent_post(rig.a.agent, KVF_WRITE, child.peer, &plan, &seed,
                                        sizeof(seed), 0, &id, &error),
                         KVF_OK);
        conf_drive_counts(&rig, seed, 0);
        assert_int_equal(rig.a.results[seed - 1].status, KVF_OK);
        assert_true(receive_all(child.socket, &answer, 1));
        assert_int_equal(answer, 'y');
    }
    conf_drop(&rig.a, child.peer);
    conf_settle(&rig);
    reap(&child);
    conf_stop(&rig);
}

static bool lost_once(struct conf_rig *rig)
{
    return rig->a.lost_count > 0;
}

static void kill_during(enum kvf_operation operation, bool connected)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child, "victim");
    if (connected) {
        post_to(&rig, &child, operation, "first");
        conf_drive_counts(&rig, 1, 0);
        assert_int_equal(rig.a.results[0].status, KVF_OK);
    }
    assert_int_equal(kill(child.pid, SIGSTOP), 0); /* so that it answers nothing any more */
    size_t before = rig.a.result_count;
    for (size_t i = 0; i < 3; i++)
        post_to(&rig, &child, operation, "lost");
    (void)kvf_agent_progress(rig.a.agent);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    conf_drive(&rig, lost_once);
    conf_settle(&rig);
    assert_int_equal(rig.a.lost_count, 1);
    assert_int_equal(rig.a.result_count, before + 3);
    for (size_t i = before; i < before + 3; i++)
        assert_int_not_equal(rig.a.results[i].status, KVF_ECANCELED);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    /* the memory is ours again */
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    memset(rig.a.pool, 0, POOL);
    conf_register_again(&rig.a);
    reap(&child);

    /* the same name comes back; the survivor serves it at once */
    conf_drop(&rig.a, child.peer);
    start_child(&rig, &child, "victim");
    size_t results = rig.a.result_count;
    post_to(&rig, &child, operation, "after");
    conf_drive_counts(&rig, results + 1, 0);
    assert_int_equal(rig.a.results[results].status, KVF_OK);
    conf_drop(&rig.a, child.peer);
    conf_settle(&rig);
    reap(&child);
    conf_stop(&rig);
}

/* B28: the peer comes back while the survivor has not seen it go, with transfers to the old one
 * under way. They end once, as they may; the new ones are good. */
static void restarted_with_transfers_under_way(void **state)
{
    enum { ROUNDS = 5, TRANSFERS = 8 };
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child, "phoenix");
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t before = rig.a.result_count;
        for (size_t i = 0; i < TRANSFERS; i++)
            post_to(&rig, &child, i % 2 ? KVF_READ : KVF_WRITE, "old");
        (void)kvf_agent_progress(rig.a.agent);
        assert_int_equal(kill(child.pid, SIGKILL), 0);
        reap(&child);
        conf_drop(&rig.a, child.peer);
        start_child(&rig, &child, "phoenix"); /* loads at once, beside the old endpoint */
        struct kvf_transfer_id ids[TRANSFERS];
        for (size_t i = 0; i < TRANSFERS; i++)
            ids[i] = conf_post_blocks(&rig, KVF_WRITE, child.region, shuffled_ids(), shuffled_ids(),
                                      BLOCKS, "new");
        conf_settle(&rig);
        assert_int_equal(rig.a.result_count, before + 2 * (size_t)TRANSFERS);
        size_t good = 0;
        for (size_t i = before; i < rig.a.result_count; i++) {
            for (size_t j = 0; j < TRANSFERS; j++) {
                if (rig.a.results[i].transfer.value != ids[j].value)
                    continue;
                assert_int_equal(rig.a.results[i].status, KVF_OK);
                good++;
            }
        }
        assert_int_equal(good, TRANSFERS);
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    }
    conf_drop(&rig.a, child.peer);
    conf_settle(&rig);
    reap(&child);
    conf_stop(&rig);
}

static void killed_during_write(void **state)
{
    kill_during(KVF_WRITE, true);
}

static void killed_during_read(void **state)
{
    kill_during(KVF_READ, true);
}

static void killed_before_the_connection_is_up(void **state)
{
    kill_during(KVF_WRITE, false);
}

/* Killed while it is idle: the survivor learns of it without posting anything. */
static void killed_while_idle(void **state)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child, "victim");
    post_to(&rig, &child, KVF_WRITE, "hello");
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    conf_drive(&rig, lost_once);
    reap(&child);
    conf_drop(&rig.a, child.peer);
    conf_stop(&rig);
}

/* P1 with a peer that hangs but lives: a drop does not give the memory back before the operations
 * are over, and they end as soon as it moves again. */
static void stopped_peer(void **state)
{
    struct conf_rig rig;
    struct child child;
    struct kvf_error error;
    start_rig(&rig);
    start_child(&rig, &child, "sleeper");
    post_to(&rig, &child, KVF_WRITE, "first");
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    for (size_t i = 0; i < 3; i++)
        post_to(&rig, &child, KVF_WRITE, "stuck");
    assert_int_equal(kvf_agent_notify(rig.a.agent, child.peer, "x", 1, 0, &error), KVF_OK);
    conf_drop(&rig.a, child.peer);
    for (size_t i = 0; i < 1000; i++)
        (void)kvf_agent_progress(rig.a.agent);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    assert_int_equal(kill(child.pid, SIGCONT), 0);
    conf_settle(&rig);
    assert_int_equal(rig.a.result_count, 4);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(rig.a.results[i].status, KVF_ECANCELED);
    assert_int_equal(rig.a.lost_count, 0);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    reap(&child);
    conf_stop(&rig);
}

/* Destroying does not hang either. */
static void destroy_with_stopped_peer(void **state)
{
    struct conf_rig rig;
    struct child child;
    start_rig(&rig);
    start_child(&rig, &child, "sleeper");
    post_to(&rig, &child, KVF_WRITE, "first");
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(kill(child.pid, SIGSTOP), 0);
    for (size_t i = 0; i < 3; i++)
        post_to(&rig, &child, KVF_WRITE, "stuck");
    conf_close(&rig.a);
    assert_int_equal(kill(child.pid, SIGKILL), 0);
    reap(&child);
    conf_stop(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest processes[] = {
        cmocka_unit_test(notification_after_data_between_processes),
        cmocka_unit_test(killed_during_write),
        cmocka_unit_test(killed_during_read),
        cmocka_unit_test(killed_before_the_connection_is_up),
        cmocka_unit_test(killed_while_idle),
        cmocka_unit_test(restarted_with_transfers_under_way),
        cmocka_unit_test(stopped_peer),
        cmocka_unit_test(destroy_with_stopped_peer),
    };
    conf_lane = "ucx";
    if (strcmp(argv[0], "conformance_ucx_peer") == 0 && argc == 2)
        return child_main(argv[1]);
    return conf_run_all() + cmocka_run_group_tests(processes, NULL, NULL);
}
