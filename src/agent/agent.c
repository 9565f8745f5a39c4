/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/state.h"

#include "wire/nixl_notif.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define UUID_TEXT_LEN 36

static void on_received(void *ctx, const void *message, size_t message_len)
{
    struct kvf_agent *agent = ctx;
    struct kvfi_nixl_notif notif;
    if (kvfi_nixl_notif_decode(message, message_len, &notif, NULL) != KVF_OK ||
        notif.name.len >= sizeof(agent->sender) || memchr(notif.name.data, '\0', notif.name.len)) {
        agent->counters.messages_refused++;
        return;
    }
    agent->counters.notifications_received++;
    if (agent->silent || !agent->callbacks.notification)
        return;
    memcpy(agent->sender, notif.name.data, notif.name.len);
    agent->sender[notif.name.len] = '\0';
    agent->callbacks.notification(agent->callbacks.ctx, agent->sender, notif.msg.data,
                                  notif.msg.len);
}

static void on_peer_lost(void *ctx, void *user, const char *reason)
{
    struct kvf_agent *agent = ctx;
    struct agent_peer *peer = user;
    peer->lost = true;
    agent->counters.peers_lost++;
    if (peer->dropped || agent->silent || !agent->callbacks.peer_lost)
        return;
    agent->callbacks.peer_lost(agent->callbacks.ctx, peer->id, reason);
}

static enum kvf_status random_name(char text[UUID_TEXT_LEN + 1], struct kvf_error *error)
{
    unsigned char b[16];
    if (getrandom(b, sizeof(b), 0) != (ssize_t)sizeof(b))
        return kvf_fail(error, KVF_ESYSTEM, "agent: getrandom: errno %d", errno);
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40); /* version 4 */
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80); /* variant 1 */
    (void)snprintf(text, UUID_TEXT_LEN + 1,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
    return KVF_OK;
}

static enum kvf_status check_name(const char *name, struct kvf_error *error)
{
    struct kvfi_span span = kvfi_span_str(name);
    struct kvfi_quote quote;
    if (span.len == 0 || span.len > KVFI_NIXL_NAME_LEN_MAX)
        return kvf_fail(error, KVF_EINVAL, "agent: a name has 1 to %d bytes, not %zu",
                        KVFI_NIXL_NAME_LEN_MAX, span.len);
    if (!kvfi_utf8_valid(span))
        return kvf_fail(error, KVF_EINVAL, "agent: the name \"%s\" is not UTF-8",
                        kvfi_quote(&quote, span));
    return KVF_OK;
}

enum kvf_status kvf_agent_create(const struct kvf_agent_options *options,
                                 struct kvf_agent **agent_p, struct kvf_error *error)
{
    if (!options || options->size < sizeof(options->size) || options->size > sizeof(*options))
        return kvf_fail(error, KVF_EINVAL,
                        "agent: options.size is not of this library, use KVF_AGENT_OPTIONS_INIT");
    struct kvf_agent_options given = KVF_AGENT_OPTIONS_INIT;
    memcpy(&given, options, options->size);

    const char *lane_name = given.lane ? given.lane : "auto";
    const struct kvfi_lane_ops *ops = kvfi_lane_find(lane_name);
    if (!ops)
        return kvf_fail(error, KVF_EINVAL, "agent: lane \"%s\" does not exist, use \"ucx\"",
                        lane_name);
    char uuid[UUID_TEXT_LEN + 1];
    if (!given.name) {
        KVF_TRY(random_name(uuid, error));
        given.name = uuid;
    }
    KVF_TRY(check_name(given.name, error));

    struct kvf_agent *agent = kvfi_wire_alloc(given.allocator, sizeof(*agent));
    char *name = kvfi_wire_alloc(given.allocator, strlen(given.name) + 1);
    enum kvf_status status = KVF_ENOMEM;
    if (!agent || !name) {
        status = kvf_fail(error, KVF_ENOMEM, "agent: no memory for an agent");
        goto err_free;
    }
    memcpy(name, given.name, strlen(given.name) + 1);
    memset(agent, 0, sizeof(*agent));
    agent->ops = ops;
    agent->allocator = given.allocator;
    agent->callbacks = given.callbacks;
    agent->name = name;
    agent->tables.allocator = given.allocator;
    kvfi_agent_slices_init(agent);
    kvfi_region_set_init(&agent->regions, given.allocator);
    kvfi_region_set_init(&agent->retired, given.allocator);

    struct kvfi_lane_config config = {.name = name,
                                      .lane_ctx = given.lane_ctx,
                                      .callbacks = {.ctx = agent,
                                                    .received = on_received,
                                                    .transfer_done = kvfi_agent_transfer_done,
                                                    .notify_done = kvfi_agent_notify_done,
                                                    .peer_lost = on_peer_lost},
                                      .allocator = given.allocator};
    status = ops->create(&config, &agent->lane, error);
    if (status != KVF_OK)
        goto err_free;
    *agent_p = agent;
    return KVF_OK;

err_free:
    kvfi_wire_free(given.allocator, name);
    kvfi_wire_free(given.allocator, agent);
    return status;
}

void kvf_agent_destroy(struct kvf_agent *agent)
{
    if (!agent)
        return;
    assert(!agent->in_progress);
    agent->silent = true;
    kvfi_agent_slices_stop(agent);
    agent->ops->drain(agent->lane);
    assert(agent->transfer_count == 0 && agent->notification_count == 0);
    kvfi_agent_drop_peers(agent);
    kvfi_agent_reap_peers(agent);
    kvfi_agent_release_regions(agent);
    agent->ops->destroy(agent->lane);
    kvfi_agent_free_prepared(agent);
    kvfi_agent_free_slicings(agent);
    kvfi_agent_free_transfers(agent);
    kvfi_plan_tables_free(&agent->tables);
    kvfi_region_set_deinit(&agent->regions);
    kvfi_region_set_deinit(&agent->retired);
    kvfi_slots_free(&agent->peers, agent->allocator);
    kvfi_slots_free(&agent->once, agent->allocator);
    kvfi_slots_free(&agent->prepared, agent->allocator);
    kvfi_wire_free(agent->allocator, agent->name);
    kvfi_wire_free(agent->allocator, agent);
}

const char *kvf_agent_name(const struct kvf_agent *agent)
{
    return agent->name;
}

int kvf_agent_fd(const struct kvf_agent *agent)
{
    return agent->ops->fd(agent->lane);
}

enum kvf_status kvf_agent_arm(struct kvf_agent *agent)
{
    if (kvfi_agent_slices_wait(agent))
        return KVF_AGAIN;
    return agent->ops->arm(agent->lane);
}

unsigned kvf_agent_progress(struct kvf_agent *agent)
{
    if (agent->in_progress) /* from a callback: its caller goes on anyway */
        return 0;
    agent->in_progress = true;
    unsigned moved = agent->ops->progress(agent->lane);
    moved += kvfi_agent_slices_progress(agent);
    kvfi_agent_reap_peers(agent);
    agent->in_progress = false;
    return moved;
}

void kvf_agent_usage(const struct kvf_agent *agent, struct kvf_agent_usage *usage)
{
    struct kvfi_lane_usage lane;
    agent->ops->usage(agent->lane, &lane);
    *usage = (struct kvf_agent_usage){
        .regions = agent->regions.count,
        .peers = agent->peers.used,
        .peers_closing = agent->closing_count + lane.peers_closing,
        .transfers = agent->transfer_count,
        .notifications = agent->notification_count,
        .prepared = agent->prepared.used,
    };
}

void kvf_agent_counters(const struct kvf_agent *agent, struct kvf_agent_counters *counters)
{
    struct kvfi_lane_usage lane;
    agent->ops->usage(agent->lane, &lane);
    struct kvf_agent_counters now = agent->counters;
    size_t size = counters->size < sizeof(now) ? counters->size : sizeof(now);
    now.size = counters->size;
    now.messages_dropped = lane.messages_dropped;
    memcpy(counters, &now, size);
}
