/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attempt that settles it: one process writes into another one's memory, with two agents, by
 * the lanes that an engine would use. The target is the parent and the initiator its child, so that
 * the initiator has no right over the target that a peer would not have.
 */
#include "doctor/doctor.h"

#include "kvferry/agent.h"
#include "runtime/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TRANSFER_BYTES = 1 << 20,
    BLOB_BYTES_MAX = 64 << 10,
    LIMIT_MS = 20 * 1000,
    PATTERN = 0x5a,
};
#define INNER_NS (15 * KVFI_NS_PER_S) /* less than LIMIT_MS, so that the reason is told */

struct transfer_result {
    bool moved;
    char failure[KVFI_TEXT_SIZE];
};

/* One of the two processes. */
struct side {
    struct kvf_agent *agent;
    unsigned char *memory; /* TRANSFER_BYTES, registered */
    int fd;                /* a socket to the other side */
    bool notified;
    bool done;
    enum kvf_status done_status;
    bool lost;
    char lost_reason[128];
};

static void on_notification(void *ctx, const char *name, const void *message, size_t message_len)
{
    ((struct side *)ctx)->notified = true;
}

static void on_done(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                    enum kvf_status status, const struct kvf_transfer_stats *stats)
{
    struct side *side = ctx;
    side->done = true;
    side->done_status = status;
}

static void on_lost(void *ctx, struct kvf_peer_id peer, const char *reason)
{
    struct side *side = ctx;
    side->lost = true;
    (void)snprintf(side->lost_reason, sizeof(side->lost_reason), "%s", reason);
}

static enum kvf_status open_side(struct side *side, const char *name, struct kvf_error *error)
{
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    options.name = name;
    options.callbacks = (struct kvf_agent_callbacks){.ctx = side,
                                                     .notification = on_notification,
                                                     .transfer_done = on_done,
                                                     .peer_lost = on_lost};
    KVF_TRY(kvf_agent_create(&options, &side->agent, error));
    side->memory =
        mmap(NULL, TRANSFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (side->memory == MAP_FAILED)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %d bytes", TRANSFER_BYTES);
    return kvf_agent_register(side->agent, side->memory, TRANSFER_BYTES, KVF_MEMORY_DRAM, 0, error);
}

/* Drives the agent until *flag is set or the socket can be read. */
static enum kvf_status drive(struct side *side, const bool *flag, bool *readable_p,
                             uint64_t deadline_ns, struct kvf_error *error)
{
    *readable_p = false;
    for (;;) {
        unsigned moved = kvf_agent_progress(side->agent);
        if (*flag)
            return KVF_OK;
        if (side->lost)
            return kvf_fail(error, KVF_EDISCONNECTED, "the connection was lost: %s",
                            side->lost_reason);
        uint64_t now_ns = kvfi_clock_mono_ns();
        if (now_ns >= deadline_ns)
            return kvf_fail(error, KVF_ETIMEDOUT, "nothing arrived in 15 s");
        if (moved > 0)
            continue;
        enum kvf_status armed = kvf_agent_arm(side->agent);
        if (armed == KVF_AGAIN)
            continue;
        if (armed != KVF_OK)
            return kvf_fail(error, armed, "the agent cannot sleep: %s", kvf_status_text(armed));
        struct pollfd waiters[] = {{.fd = kvf_agent_fd(side->agent), .events = POLLIN},
                                   {.fd = side->fd, .events = POLLIN}};
        (void)poll(waiters, 2, (int)((deadline_ns - now_ns) / KVFI_NS_PER_MS) + 1);
        if (waiters[1].revents) {
            *readable_p = true;
            return KVF_OK;
        }
    }
}

static enum kvf_status write_to(struct side *side, const void *blob, size_t len,
                                uint64_t deadline_ns, struct kvf_error *error)
{
    static const char message[] = "kvferry doctor";
    static const uint32_t zero = 0;
    struct kvf_peer_id peer;
    uint64_t target = 0;
    struct kvf_transfer_id transfer;
    bool readable = false;
    memcpy(&target, blob, sizeof(target));
    KVF_TRY(kvf_agent_load(side->agent, (const char *)blob + sizeof(target), len - sizeof(target),
                           &peer, error));
    const struct kvf_plan_region region = {
        .local = {.base = (uintptr_t)side->memory,
                  .stride_bytes = TRANSFER_BYTES,
                  .block_count = 1},
        .remote = {.base = target, .stride_bytes = TRANSFER_BYTES, .block_count = 1},
        .length_bytes = TRANSFER_BYTES,
    };
    const struct kvf_block_pairs group = {.local_ids = &zero, .remote_ids = &zero, .count = 1};
    const struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    KVF_TRY(kvf_agent_post(side->agent, KVF_WRITE, peer, &plan, message, sizeof(message), 0,
                           &transfer, error));
    KVF_TRY(drive(side, &side->done, &readable, deadline_ns, error));
    if (!side->done)
        return kvf_fail(error, KVF_EDISCONNECTED, "the target's process ended");
    if (side->done_status != KVF_OK)
        return kvf_fail(error, side->done_status, "the WRITE ended with %s",
                        kvf_status_name(side->done_status));
    /* Goes on until the target has what it waits for and hangs up. */
    static const bool never = false;
    return drive(side, &never, &readable, deadline_ns, error);
}

/* The initiator's process: says on the socket what failed, nothing when all went well. */
static _Noreturn void be_initiator(int fd, uint64_t deadline_ns)
{
    struct side side = {.fd = fd};
    struct kvf_error error = {0};
    static char blob[BLOB_BYTES_MAX];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    enum kvf_status status = open_side(&side, "kvferry-doctor-initiator", &error);
    if (status == KVF_OK) {
        memset(side.memory, PATTERN, TRANSFER_BYTES);
        ssize_t len = recv(fd, blob, sizeof(blob), 0);
        if (len <= (ssize_t)sizeof(uint64_t))
            status = kvf_fail(&error, KVF_EDISCONNECTED, "the target's process ended");
        else
            status = write_to(&side, blob, (size_t)len, deadline_ns, &error);
    }
    if (status != KVF_OK)
        (void)send(fd, error.text, strlen(error.text), MSG_NOSIGNAL);
    _exit(0);
}

static enum kvf_status send_blob(struct side *side, struct kvf_error *error)
{
    static char message[BLOB_BYTES_MAX];
    void *blob = NULL;
    size_t len = 0;
    KVF_TRY(kvf_agent_metadata(side->agent, &blob, &len, error));
    uint64_t target = (uintptr_t)side->memory;
    memcpy(message, &target, sizeof(target));
    bool fits = len <= sizeof(message) - sizeof(target);
    if (fits)
        memcpy(message + sizeof(target), blob, len);
    kvf_agent_blob_free(side->agent, blob);
    if (!fits || send(side->fd, message, sizeof(target) + len, MSG_NOSIGNAL) < 0)
        return kvf_fail(error, KVF_ESYSTEM, "metadata of %zu bytes could not be handed over: %s",
                        len, strerror(errno));
    return KVF_OK;
}

static enum kvf_status be_target(struct side *side, uint64_t deadline_ns, struct kvf_error *error)
{
    bool readable = false;
    KVF_TRY(open_side(side, "kvferry-doctor-target", error));
    KVF_TRY(send_blob(side, error));
    KVF_TRY(drive(side, &side->notified, &readable, deadline_ns, error));
    if (!side->notified) {
        char reason[400];
        ssize_t len = recv(side->fd, reason, sizeof(reason) - 1, 0);
        reason[len > 0 ? len : 0] = '\0';
        return kvf_fail(error, KVF_EDISCONNECTED, "%s",
                        len > 0 ? reason : "the initiator's process ended");
    }
    for (size_t i = 0; i < TRANSFER_BYTES; i++)
        if (side->memory[i] != PATTERN)
            return kvf_fail(error, KVF_EINTERNAL,
                            "byte %zu of %d had not arrived when the notification did", i,
                            TRANSFER_BYTES);
    return KVF_OK;
}

static void attempt(void *ctx, int out_fd)
{
    struct transfer_result *result = ctx;
    struct kvf_error error = {0};
    int fds[2];
    uint64_t deadline_ns = kvfi_deadline_ns(kvfi_clock_mono_ns(), INNER_NS);
    pid_t pid = -1;
    enum kvf_status status = KVF_ESYSTEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0)
        pid = fork(); /* before this process has an agent */
    if (pid == 0) {
        (void)close(fds[0]);
        (void)close(out_fd);
        be_initiator(fds[1], deadline_ns);
    }
    if (pid < 0) {
        (void)snprintf(result->failure, sizeof(result->failure), "no second process: %s",
                       strerror(errno));
    } else {
        struct side side = {.fd = fds[0]};
        (void)close(fds[1]);
        status = be_target(&side, deadline_ns, &error);
        (void)snprintf(result->failure, sizeof(result->failure), "%s", error.text);
    }
    result->moved = status == KVF_OK;
    (void)kvfi_child_tell(out_fd, result, sizeof(*result));
}

void kvfi_try_transfer(struct kvfi_machine *machine)
{
    struct transfer_result result = {0};
    machine->transfer_end = kvfi_child_run(attempt, &result, &result, sizeof(result), LIMIT_MS,
                                           &machine->transfer_signal);
    machine->transfer_moved = machine->transfer_end == KVFI_CHILD_DONE && result.moved;
    if (machine->transfer_end == KVFI_CHILD_DONE)
        (void)snprintf(machine->transfer_failure, sizeof(machine->transfer_failure), "%s",
                       result.failure);
}
