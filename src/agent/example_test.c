/* SPDX-License-Identifier: Apache-2.0 */
#include <kvferry/kvferry.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)64)

struct side {
    struct kvf_agent *agent;
    unsigned char pool[BLOCKS * BLOCK];
    int done;     /* transfers that ended */
    int messages; /* that arrived */
};

static void check(enum kvf_status status, const struct kvf_error *error)
{
    if (status == KVF_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", kvf_status_name(status), error ? error->text : "");
    exit(1);
}

static void on_notification(void *ctx, const char *name, const void *message, size_t message_len)
{
    struct side *side = ctx;
    side->messages++;
    (void)printf("\"%.*s\" from %s\n", (int)message_len, (const char *)message, name);
}

static void on_transfer_done(void *ctx, struct kvf_transfer_id transfer, uint64_t user_data,
                             enum kvf_status status, const struct kvf_transfer_stats *stats)
{
    struct side *side = ctx;
    side->done++;
    (void)printf("transfer %d: %s, %d bytes in %d operations\n", (int)user_data,
                 kvf_status_name(status), (int)stats->bytes, (int)stats->run_count);
}

static void open_side(struct side *side, const char *name)
{
    struct kvf_error error;
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    options.name = name;
    options.callbacks = (struct kvf_agent_callbacks){
        .ctx = side, .notification = on_notification, .transfer_done = on_transfer_done};
    check(kvf_agent_create(&options, &side->agent, &error), &error);
    struct kvf_memory range = {.addr = side->pool, .length = sizeof(side->pool)};
    check(kvf_agent_register_many(side->agent, &range, 1, &error), &error);
}

/* The blob goes to the peer over a channel of yours; here both are in one process. */
static struct kvf_peer_id introduce(struct side *from, struct side *to)
{
    struct kvf_error error;
    struct kvf_peer_id peer;
    void *blob;
    size_t len;
    check(kvf_agent_metadata(from->agent, &blob, &len, &error), &error);
    check(kvf_agent_load(to->agent, blob, len, &peer, &error), &error);
    kvf_agent_blob_free(from->agent, blob);
    return peer;
}

/* Progress until nothing moves, arm, sleep: nothing spins and nothing is missed. */
static void turn(struct side *a, struct side *b)
{
    if (kvf_agent_progress(a->agent) + kvf_agent_progress(b->agent) > 0 ||
        kvf_agent_arm(a->agent) != KVF_OK || kvf_agent_arm(b->agent) != KVF_OK)
        return;
    struct pollfd fds[2] = {{.fd = kvf_agent_fd(a->agent), .events = POLLIN},
                            {.fd = kvf_agent_fd(b->agent), .events = POLLIN}};
    (void)poll(fds, 2, -1);
}

int main(void)
{
    static struct side prefill, decode;
    struct kvf_error error;
    open_side(&prefill, "prefill");
    open_side(&decode, "decode");
    struct kvf_peer_id peer = introduce(&decode, &prefill);

    /* blocks 3, 4, 9 of prefill go to blocks 20, 21, 7 of decode */
    const uint32_t from[] = {3, 4, 9};
    const uint32_t to[] = {20, 21, 7};
    struct kvf_block_pairs group = {.local_ids = from, .remote_ids = to, .count = 3};
    struct kvf_plan_region region = {
        .local = {(uint64_t)(uintptr_t)prefill.pool, BLOCK, BLOCKS, 0, 0, KVF_MEMORY_DRAM},
        .remote = {(uint64_t)(uintptr_t)decode.pool, BLOCK, BLOCKS, 0, 0, KVF_MEMORY_DRAM},
        .length_bytes = BLOCK};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    struct kvf_transfer_id transfer;
    check(kvf_agent_prepare(prefill.agent, KVF_WRITE, peer, &plan, &transfer, &error), &error);
    for (int i = 1; i <= 2; i++) {
        memset(prefill.pool, i, sizeof(prefill.pool));
        check(kvf_agent_post_prepared(prefill.agent, transfer, "blocks are there", 16, (uint64_t)i,
                                      &error),
              &error);
        while (prefill.done < i || decode.messages < i)
            turn(&prefill, &decode);
        if (memcmp(decode.pool + 20 * BLOCK, prefill.pool, 2 * BLOCK) != 0)
            return 1;
    }
    check(kvf_agent_release(prefill.agent, transfer), NULL);
    kvf_agent_destroy(prefill.agent);
    kvf_agent_destroy(decode.agent);
    return 0;
}
