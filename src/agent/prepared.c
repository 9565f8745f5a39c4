/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers that are prepared once and posted again and again, and what may be asked of any. */
#include "agent/state.h"

#include <inttypes.h>
#include <string.h>

/* Tells the ids of the two tables apart; no table has so many slots. */
#define PREPARED_BIT (UINT64_C(1) << 31)

static struct prepared *find_prepared(const struct kvf_agent *agent, struct kvf_transfer_id id)
{
    if (!(id.value & PREPARED_BIT))
        return NULL;
    return kvfi_slots_find(&agent->prepared, id.value & ~PREPARED_BIT);
}

static struct transfer *find_once(const struct kvf_agent *agent, struct kvf_transfer_id id)
{
    return kvfi_slots_find(&agent->once, id.value);
}

static void free_prepared(struct kvf_agent *agent, struct prepared *prepared)
{
    kvfi_kept_plan_clear(&prepared->plan, &agent->tables, 0);
    kvfi_wire_free(agent->allocator, prepared);
}

static enum kvf_status new_prepared(struct kvf_agent *agent, struct kvf_peer_id peer,
                                    const struct posting *posting, struct prepared **prepared_p)
{
    uint64_t id = 0;
    struct prepared *prepared = kvfi_wire_alloc(agent->allocator, sizeof(*prepared));
    if (!prepared)
        return KVF_ENOMEM;
    *prepared = (struct prepared){.peer = peer,
                                  .extent = posting->extent,
                                  .operation = posting->operation,
                                  .state = KVF_TRANSFER_PREPARED,
                                  .result = KVF_IN_PROGRESS};
    enum kvf_status status = kvfi_kept_plan_set(&prepared->plan, &agent->tables, posting->plan);
    if (status == KVF_OK)
        status = kvfi_slots_take(&agent->prepared, agent->allocator, prepared, &id);
    if (status != KVF_OK) {
        free_prepared(agent, prepared);
        return status;
    }
    prepared->id.value = id | PREPARED_BIT;
    *prepared_p = prepared;
    return KVF_OK;
}

static enum kvf_status prepare(struct kvf_agent *agent, struct kvf_peer_id peer_id,
                               struct posting *posting, struct kvf_transfer_id *transfer_p,
                               struct kvf_error *error)
{
    struct agent_peer *peer = NULL;
    struct prepared *prepared = NULL;
    uint64_t run_count = 0;
    KVF_TRY(kvfi_agent_check_posting(agent, peer_id, posting, &peer, error));
    KVF_TRY(kvfi_agent_check_cover(agent, peer, posting, NULL, &run_count, error));
    enum kvf_status status = new_prepared(agent, peer_id, posting, &prepared);
    if (status != KVF_OK)
        return kvf_fail(error, status, "prepare: no memory for a plan of %" PRIu64 " descriptors",
                        posting->extent.descriptors);
    *transfer_p = prepared->id;
    return KVF_OK;
}

enum kvf_status kvf_agent_prepare(struct kvf_agent *agent, enum kvf_operation operation,
                                  struct kvf_peer_id peer, const struct kvf_plan *plan,
                                  struct kvf_transfer_id *transfer_p, struct kvf_error *error)
{
    struct posting posting = {.what = "prepare", .plan = plan, .operation = operation};
    enum kvf_status status = prepare(agent, peer, &posting, transfer_p, error);
    if (status != KVF_OK)
        agent->counters.posts_refused++;
    return status;
}

static enum kvf_status post_prepared(struct kvf_agent *agent, struct kvf_transfer_id id,
                                     struct posting *posting, struct kvf_error *error)
{
    struct agent_peer *peer = NULL;
    struct transfer *transfer = NULL;
    struct prepared *prepared = find_prepared(agent, id);
    if (!prepared)
        return kvf_fail(error, KVF_ENOTFOUND, "post: transfer id 0x%" PRIx64 " is stale", id.value);
    if (prepared->active)
        return kvf_fail(error, KVF_EBUSY, "post: transfer 0x%" PRIx64 " is still active", id.value);
    if (!posting->notification && posting->notification_len > 0)
        return kvf_fail(error, KVF_EINVAL, "post: a notification of %zu bytes at NULL",
                        posting->notification_len);
    KVF_TRY(kvfi_agent_find_live(agent, prepared->peer, "post", &peer, error));
    posting->plan = &prepared->plan.plan;
    posting->plan_is_kept = true;
    posting->extent = prepared->extent;
    posting->operation = prepared->operation;
    KVF_TRY(kvfi_agent_start(agent, peer, posting, &transfer, error));
    transfer->id = id;
    transfer->prepared = prepared;
    prepared->active = transfer;
    prepared->state = KVF_TRANSFER_ACTIVE;
    prepared->result = KVF_IN_PROGRESS;
    return KVF_OK;
}

enum kvf_status kvf_agent_post_prepared(struct kvf_agent *agent, struct kvf_transfer_id transfer,
                                        const void *notification, size_t notification_len,
                                        uint64_t user_data, struct kvf_error *error)
{
    struct posting posting = {.what = "post",
                              .notification = notification,
                              .notification_len = notification_len,
                              .user_data = user_data,
                              .start_ns = agent->ops->now_ns(agent->lane)};
    enum kvf_status status = post_prepared(agent, transfer, &posting, error);
    if (status != KVF_OK)
        agent->counters.posts_refused++;
    return status;
}

void kvfi_agent_prepared_done(struct kvf_agent *agent, const struct transfer *transfer,
                              enum kvf_status status)
{
    struct prepared *prepared = transfer->prepared;
    prepared->active = NULL;
    prepared->state = KVF_TRANSFER_DONE;
    prepared->result = status;
    prepared->stats = transfer->stats;
    if (transfer->released)
        free_prepared(agent, prepared);
}

enum kvf_status kvf_agent_transfer_query(const struct kvf_agent *agent, struct kvf_transfer_id id,
                                         enum kvf_transfer_state *state_p,
                                         enum kvf_status *result_p,
                                         struct kvf_transfer_stats *stats_p)
{
    enum kvf_transfer_state state = KVF_TRANSFER_ACTIVE;
    enum kvf_status result = KVF_IN_PROGRESS;
    const struct prepared *prepared = find_prepared(agent, id);
    const struct transfer *transfer = prepared ? prepared->active : find_once(agent, id);
    if (!prepared && !transfer)
        return KVF_ENOTFOUND;
    if (prepared) {
        state = prepared->state;
        result = prepared->result;
    }
    if (state_p)
        *state_p = state;
    if (result_p)
        *result_p = result;
    if (stats_p)
        *stats_p = transfer ? transfer->stats : prepared->stats;
    return KVF_OK;
}

enum kvf_status kvf_agent_release(struct kvf_agent *agent, struct kvf_transfer_id id)
{
    struct prepared *prepared = find_prepared(agent, id);
    struct transfer *transfer = prepared ? prepared->active : find_once(agent, id);
    if (prepared)
        kvfi_slots_leave(&agent->prepared, id.value & ~PREPARED_BIT);
    else if (transfer)
        kvfi_slots_leave(&agent->once, id.value);
    else
        return KVF_ENOTFOUND;
    if (transfer)
        transfer->released = true; /* its end frees the rest */
    else
        free_prepared(agent, prepared);
    return KVF_OK;
}

void kvfi_agent_free_prepared(struct kvf_agent *agent)
{
    for (size_t i = 0; i < agent->prepared.count; i++) {
        if (agent->prepared.slots[i].object)
            free_prepared(agent, agent->prepared.slots[i].object);
    }
}
