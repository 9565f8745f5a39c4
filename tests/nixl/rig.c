/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides: starting, driving and ending them. */
#include "rig.h"

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

struct nixl_options nixl_options;
struct surroundings surroundings;

/* ---- ours ----------------------------------------------------------------------------------- */

static void *grow(void *array, size_t count, size_t size)
{
    void *grown = realloc(array, (count + 1) * size);
    assert_non_null(grown);
    return grown;
}

static void on_notification(void *ctx, const char *name, const void *message, size_t len)
{
    struct ours *us = ctx;
    us->messages = grow(us->messages, us->message_count, sizeof(us->messages[0]));
    struct message *kept = &us->messages[us->message_count++];
    *kept = (struct message){.name = strdup(name), .data = malloc(len + 1), .len = len};
    assert_non_null(kept->name);
    assert_non_null(kept->data);
    if (len > 0)
        memcpy(kept->data, message, len);
}

static void on_done(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                    enum kvf_status status, const struct kvf_transfer_stats *stats)
{
    struct ours *us = ctx;
    us->results = grow(us->results, us->result_count, sizeof(us->results[0]));
    us->results[us->result_count++] = (struct result){.user_data = user_data, .status = status};
}

static void on_lost(void *ctx, struct kvf_peer_id peer, const char *reason)
{
    struct ours *us = ctx;
    us->lost_count++;
}

static void on_notify_failed(void *ctx, struct kvf_peer_id peer, uint64_t user_data,
                             enum kvf_status status)
{
    struct ours *us = ctx;
    us->notify_failed_count++;
}

void ours_start(struct ours *us, const char *name, size_t regions)
{
    struct kvf_error error = {0};
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    *us = (struct ours){.region_count = regions};
    options.name = name;
    options.callbacks = (struct kvf_agent_callbacks){.ctx = us,
                                                     .notification = on_notification,
                                                     .transfer_done = on_done,
                                                     .peer_lost = on_lost,
                                                     .notify_failed = on_notify_failed};
    if (kvf_agent_create(&options, &us->agent, &error) != KVF_OK)
        fail_msg("create: %s", error.text);
    us->pool = aligned_alloc(BLOCK, POOL_LEN);
    assert_non_null(us->pool);
    memset(us->pool, UNTOUCHED, POOL_LEN);
    size_t each = POOL_LEN / regions;
    for (size_t i = 0; i < regions; i++) {
        if (kvf_agent_register(us->agent, us->pool + i * each, each, KVF_MEMORY_DRAM, 0, &error) !=
            KVF_OK)
            fail_msg("register: %s", error.text);
    }
}

void ours_stop(struct ours *us)
{
    kvf_agent_destroy(us->agent);
    for (size_t i = 0; i < us->message_count; i++) {
        free(us->messages[i].name);
        free(us->messages[i].data);
    }
    free(us->messages);
    free(us->results);
    free(us->pool);
    *us = (struct ours){0};
}

void expect_usage(const struct ours *us, struct kvf_agent_usage expected)
{
    struct kvf_agent_usage usage;
    kvf_agent_usage(us->agent, &usage);
    assert_int_equal(usage.regions, expected.regions);
    assert_int_equal(usage.peers, expected.peers);
    assert_int_equal(usage.peers_closing, expected.peers_closing);
    assert_int_equal(usage.transfers, expected.transfers);
    assert_int_equal(usage.notifications, expected.notifications);
}

/* ---- the peer ------------------------------------------------------------------------------- */

/* UCX's settings here are for our side alone. */
static void forget_settings(void)
{
    for (char **at = environ; *at;) {
        char name[64];
        size_t len = strcspn(*at, "=");
        if (strncmp(*at, "UCX_", 4) != 0 || len >= sizeof(name)) {
            at++;
            continue;
        }
        memcpy(name, *at, len);
        name[len] = '\0';
        (void)unsetenv(name); /* moves the next one here */
    }
}

static void run_peer(const char *name, int socket, int pool_fd, size_t regions)
{
    char words[5][32];
    const unsigned long long values[5] = {(unsigned)pool_fd, POOL_LEN, regions,
                                          nixl_options.progress_thread, nixl_options.workers};
    for (size_t i = 0; i < 5; i++)
        (void)snprintf(words[i], sizeof(words[i]), "%llu", values[i]);
    forget_settings();
    /* the EFA module of NIXL's own UCX crashes at exit where Debian's RDMA libraries are */
    if (dup2(socket, STDIN_FILENO) < 0 || setenv("UCX_MODULES", "cma", 1) != 0)
        _exit(126);
    execl(surroundings.python, surroundings.python, surroundings.script, name, words[0], words[1],
          words[2], words[3], words[4], (char *)NULL);
    _exit(127);
}

void nixl_start(struct rig *rig, const char *name, size_t regions)
{
    struct nixl *peer = &rig->peer;
    *peer = (struct nixl){0};
    (void)snprintf(peer->name, sizeof(peer->name), "%s", name);
    int pool_fd = memfd_create("kvferry-nixl-test", 0);
    assert_true(pool_fd >= 0);
    assert_int_equal(ftruncate(pool_fd, (off_t)POOL_LEN), 0);
    void *pool = mmap(NULL, POOL_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd, 0);
    assert_ptr_not_equal(pool, MAP_FAILED);
    peer->pool = pool;
    memset(peer->pool, UNTOUCHED, POOL_LEN);

    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    peer->pid = fork();
    assert_true(peer->pid >= 0);
    if (peer->pid == 0)
        run_peer(name, sockets[1], pool_fd, regions);
    close(sockets[1]);
    close(pool_fd);
    peer->socket = sockets[0];
    must_ask(rig, NULL, 0, "hello");
    assert_int_equal(peer->answer_len, sizeof(peer->base));
    memcpy(&peer->base, peer->answer, sizeof(peer->base));
}

static int end_peer(struct nixl *peer)
{
    int status = 0;
    close(peer->socket);
    assert_int_equal(waitpid(peer->pid, &status, 0), peer->pid);
    peer->pid = 0;
    return status;
}

/* Its process ends while ours is progressed: to close politely it needs our answers. */
static bool has_hung_up(struct rig *rig)
{
    char byte;
    return recv(rig->peer.socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

void nixl_leave(struct rig *rig)
{
    tell(rig, NULL, 0, "leave");
    drive(rig, has_hung_up);
    int status = end_peer(&rig->peer);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the NIXL peer ended with wait status 0x%x", (unsigned)status);
}

void nixl_kill(struct rig *rig)
{
    assert_int_equal(kill(rig->peer.pid, SIGKILL), 0);
    (void)end_peer(&rig->peer);
}

void nixl_free(struct nixl *peer)
{
    assert_int_equal(munmap(peer->pool, POOL_LEN), 0);
    free(peer->answer);
    peer->pool = NULL;
    peer->answer = NULL;
}

/* ---- commands ------------------------------------------------------------------------------- */

static void send_all(int fd, const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            fail_msg("the NIXL peer does not take commands: errno %d", errno);
        at += sent;
        len -= (size_t)sent;
    }
}

static void tell_v(struct rig *rig, const void *data, size_t len, const char *format, va_list args)
    KVF_PRINTF(4, 0);
static void tell_v(struct rig *rig, const void *data, size_t len, const char *format, va_list args)
{
    char line[512];
    int words_len = vsnprintf(line, sizeof(line), format, args);
    assert_true(words_len > 0 && (size_t)words_len < sizeof(line) - 32);
    (void)snprintf(line + words_len, 32, " %zu\n", len);
    rig->peer.answer_got = 0;
    send_all(rig->peer.socket, line, strlen(line));
    send_all(rig->peer.socket, data, len);
}

void tell(struct rig *rig, const void *data, size_t len, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell_v(rig, data, len, format, args);
    va_end(args);
}

/* Takes what is there of the answer; never waits. */
bool is_answered(struct rig *rig)
{
    struct nixl *peer = &rig->peer;
    const size_t header_len = sizeof(peer->answer_header);
    for (;;) {
        bool in_header = peer->answer_got < header_len;
        unsigned char *at = in_header ? (unsigned char *)peer->answer_header + peer->answer_got
                                      : peer->answer + (peer->answer_got - header_len);
        size_t left = (in_header ? header_len : header_len + peer->answer_len) - peer->answer_got;
        if (left == 0)
            return true;
        ssize_t got = recv(peer->socket, at, left, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (got <= 0)
            fail_msg("the NIXL peer has ended");
        peer->answer_got += (size_t)got;
        if (peer->answer_got == header_len) {
            peer->answer_len = peer->answer_header[1];
            free(peer->answer);
            peer->answer = calloc(1, peer->answer_len + 1);
            assert_non_null(peer->answer);
        }
    }
}

bool ask(struct rig *rig, const void *data, size_t len, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell_v(rig, data, len, format, args);
    va_end(args);
    drive(rig, is_answered);
    return rig->peer.answer_header[0] == 1;
}

void assert_answer(struct rig *rig, bool ok, const char *raised)
{
    const char *text = (const char *)rig->peer.answer;
    if (!raised && !ok)
        fail_msg("NIXL raised %s", text);
    if (raised && (ok || strcmp(text, raised) != 0))
        fail_msg("NIXL should have raised %s, not %s", raised, ok ? "nothing" : text);
}

/* ---- both ----------------------------------------------------------------------------------- */

void drive(struct rig *rig, bool (*done)(struct rig *rig))
{
    struct kvf_agent *agent = rig->us.agent;
    while (!done(rig)) {
        if (agent && (kvf_agent_progress(agent) > 0 || kvf_agent_arm(agent) != KVF_OK))
            continue;
        if (done(rig))
            return;
        struct pollfd fds[2] = {{.fd = agent ? kvf_agent_fd(agent) : -1, .events = POLLIN},
                                {.fd = rig->peer.pid ? rig->peer.socket : -1, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0)
            assert_int_equal(errno, EINTR);
    }
}

static size_t wanted_results, wanted_messages;

static bool has_counts(struct rig *rig)
{
    return rig->us.result_count >= wanted_results && rig->us.message_count >= wanted_messages;
}

void drive_counts(struct rig *rig, size_t results, size_t messages)
{
    wanted_results = results;
    wanted_messages = messages;
    drive(rig, has_counts);
}

static bool is_settled(struct rig *rig)
{
    struct kvf_agent_usage usage;
    kvf_agent_usage(rig->us.agent, &usage);
    return usage.transfers == 0 && usage.notifications == 0 && usage.peers_closing == 0;
}

void settle(struct rig *rig)
{
    drive(rig, is_settled);
}

void rig_start(struct rig *rig, const char *peer_name, size_t regions)
{
    *rig = (struct rig){0};
    ours_start(&rig->us, NULL, regions);
    nixl_start(rig, peer_name, regions);
}

void rig_start_joined(struct rig *rig, const char *peer_name)
{
    struct kvf_error error = {0};
    rig_start(rig, peer_name, 1);
    if (load_here(rig, "metadata", &error) != KVF_OK)
        fail_msg("load: %s", error.text);
    load_there(rig);
}

void rig_stop(struct rig *rig)
{
    if (rig->peer.pid)
        nixl_leave(rig);
    if (kvf_agent_peer_name(rig->us.agent, rig->peer.at_us))
        assert_int_equal(kvf_agent_drop(rig->us.agent, rig->peer.at_us), KVF_OK);
    settle(rig);
    expect_usage(&rig->us, (struct kvf_agent_usage){.regions = rig->us.region_count});
    nixl_free(&rig->peer);
    ours_stop(&rig->us);
}

enum kvf_status load_here(struct rig *rig, const char *what, struct kvf_error *error)
{
    must_ask(rig, NULL, 0, "%s", what);
    return kvf_agent_load(rig->us.agent, rig->peer.answer, rig->peer.answer_len, &rig->peer.at_us,
                          error);
}

void load_there(struct rig *rig)
{
    void *blob = NULL;
    size_t len = 0;
    struct kvf_error error = {0};
    if (kvf_agent_metadata(rig->us.agent, &blob, &len, &error) != KVF_OK)
        fail_msg("metadata: %s", error.text);
    must_ask(rig, blob, len, "load");
    kvf_agent_blob_free(rig->us.agent, blob);
    assert_string_equal((const char *)rig->peer.answer, kvf_agent_name(rig->us.agent));
}
