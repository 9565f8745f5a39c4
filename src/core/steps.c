/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine's scheduler said, item by item. A step is copied first and kept until its last
 * item is applied, so that want of memory delays the rest of a step instead of losing it.
 */
#include "core/core.h"
#include "core/step.h"
#include "wire/notif.h"

#include <string.h>

#define HEARTBEAT_IDS_MAX 128 /* per message */

/* The order matters where one step says two things of one id: the end of an old request comes
 * before the start of a new one. */
enum part {
    PART_WITHDRAWN,
    PART_NOT_PROCESSED,
    PART_IN_BATCH,
    PART_FINISHED,
    PART_REGISTRATIONS,
    PART_HEARTBEATS,
    PART_COUNT,
};

static size_t part_size(const struct kvf_step *step, unsigned part)
{
    switch ((enum part)part) {
    case PART_WITHDRAWN:
        return step->withdrawn_count;
    case PART_NOT_PROCESSED:
        return step->not_processed_count;
    case PART_IN_BATCH:
        return step->in_batch_count;
    case PART_FINISHED:
        return step->finished_count;
    case PART_REGISTRATIONS:
        return step->registration_count;
    case PART_HEARTBEATS:
        return step->heartbeat_count;
    case PART_COUNT:
        break;
    }
    return 0;
}

static void send_heartbeat(struct kvfi_worker_core *core, const struct kvfi_peer *peer,
                           const char *const *request_ids, size_t count,
                           struct kvfi_effects *effects)
{
    struct kvfi_span ids[HEARTBEAT_IDS_MAX];
    for (size_t i = 0; i < count; i++)
        ids[i] = kvfi_span_str(request_ids[i]);
    kvfi_buf_clear(&core->scratch);
    if (kvfi_notif_heartbeat_encode(ids, count, &core->scratch, NULL) != KVF_OK ||
        kvfi_emit_send(core, effects, peer, core->next_token) != KVF_OK)
        return;
    core->next_token++;
    kvfi_core_count(core, KVF_COUNTER_heartbeats_sent);
}

/* A heartbeat is repeated anyway: one that cannot go now is left out. */
static void apply_heartbeat(struct kvfi_worker_core *core, const struct kvf_step_heartbeat *beat,
                            struct kvfi_effects *effects)
{
    struct kvfi_peer *peer = NULL;
    if (strcmp(beat->remote.engine_id, core->config.engine_id) == 0 ||
        kvfi_peer_get(core, beat->remote.engine_id, beat->remote.host, beat->remote.port, &peer) !=
            KVF_OK ||
        kvfi_peer_want(core, peer) != KVFI_PEER_READY)
        return;
    for (size_t at = 0; at < beat->request_count; at += HEARTBEAT_IDS_MAX) {
        size_t left = beat->request_count - at;
        send_heartbeat(core, peer, beat->request_ids + at,
                       left < HEARTBEAT_IDS_MAX ? left : HEARTBEAT_IDS_MAX, effects);
    }
}

static enum kvf_status apply_item(struct kvfi_worker_core *core, const struct kvf_step *step,
                                  unsigned part, size_t item, struct kvfi_effects *effects)
{
    switch ((enum part)part) {
    case PART_WITHDRAWN:
        kvfi_receive_withdraw(core, step->withdrawn[item], effects);
        return KVF_OK;
    case PART_NOT_PROCESSED:
        return kvfi_send_abandon(core, step->not_processed[item], effects);
    case PART_IN_BATCH:
        return kvfi_send_schedule(core, step->in_batch[item]);
    case PART_FINISHED:
        return kvfi_send_stage(core, &step->finished[item], step->scheduler_clock_ns, effects);
    case PART_REGISTRATIONS:
        return kvfi_receive_register(core, &step->registrations[item], effects);
    case PART_HEARTBEATS:
        apply_heartbeat(core, &step->heartbeats[item], effects);
        return KVF_OK;
    case PART_COUNT:
        break;
    }
    return KVF_OK;
}

enum kvf_status kvfi_steps_apply(struct kvfi_worker_core *core, struct kvfi_effects *effects)
{
    while (!kvfi_list_empty(&core->steps)) {
        struct kvf_step *step = kvfi_step_of_link(core->steps.next);
        for (; core->cursor.part < PART_COUNT; core->cursor.part++, core->cursor.item = 0)
            for (; core->cursor.item < part_size(step, core->cursor.part); core->cursor.item++)
                KVF_TRY(apply_item(core, step, core->cursor.part, core->cursor.item, effects));
        core->cursor = (struct kvfi_step_cursor){0, 0};
        kvfi_list_remove(kvfi_step_link(step));
        kvf_step_free(step);
    }
    return KVF_OK;
}

enum kvf_status kvfi_steps_add(struct kvfi_worker_core *core, const struct kvf_step *step,
                               struct kvfi_effects *effects)
{
    if (kvf_step_is_empty(step))
        return KVF_OK;
    struct kvf_step *copy = NULL;
    KVF_TRY(kvfi_step_clone(step, core->allocator, &copy));
    kvfi_list_append(&core->steps, kvfi_step_link(copy));
    return KVF_OK;
}
