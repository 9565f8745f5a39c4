/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode's half: a receive from its registration to the moment when nothing can write its blocks.
 *
 * Once the PUSH_REG has left, prefill may write at any time, so the blocks are free only when
 * prefill has said a last word (completion or PUSH_FAIL), or is gone for peer_settle_ns (P1).
 * Prefill is asked for that word (PUSH_DROP), again and again, with the registration in front, so
 * that the loss of any one message does not keep the blocks for ever (P2).
 */
#include "core/core.h"
#include "wire/handshake.h"
#include "wire/notif.h"
#include "wire/push_reg.h"

#include <assert.h>
#include <string.h>

static const unsigned __attribute__((unused)) legal_next[KVFI_RECEIVE_STATE_COUNT] = {
#define KVFI_RECEIVE_STATE_NEXT(state, next) [KVFI_RECEIVE_##state] = (next),
    KVFI_RECEIVE_STATE_LIST(KVFI_RECEIVE_STATE_NEXT)
#undef KVFI_RECEIVE_STATE_NEXT
};

static void move(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                 enum kvfi_receive_state state)
{
    assert(legal_next[receive->state] & (1u << state));
    core->receive_counts[receive->state]--;
    core->receive_counts[state]++;
    receive->state = state;
    kvfi_deadlines_cancel(&core->deadlines, &receive->deadline);
    kvfi_index_remove(&core->registration_tokens, &receive->by_token);
    if (state == KVFI_RECEIVE_NOTICE || state == KVFI_RECEIVE_OVER)
        kvfi_index_remove(&core->receives, &receive->by_id);
    receive->owes_drop = state == KVFI_RECEIVE_WITHDRAWN;
    kvfi_core_todo(core, &receive->work);
}

/* ---- life ----------------------------------------------------------------------------------- */

static const char *put_text(char **at, const char *text)
{
    if (!text)
        return NULL;
    size_t size = strlen(text) + 1;
    char *copy = *at;
    memcpy(copy, text, size);
    *at += size;
    return copy;
}

static struct kvfi_receive *make(struct kvfi_worker_core *core,
                                 const struct kvf_step_registration *step)
{
    if (kvfi_deadlines_reserve(&core->deadlines) != KVF_OK)
        return NULL;
    size_t blocks_size = step->block_count * sizeof(*step->block_ids);
    size_t text_size = strlen(step->request_id) + 1;
    text_size += step->transfer_id ? strlen(step->transfer_id) + 1 : 0;
    struct kvfi_receive *receive =
        kvfi_wire_alloc(core->allocator, sizeof(*receive) + blocks_size + text_size);
    struct kvfi_tombstone *tombstone =
        kvfi_tombstone_make(core->allocator, KVFI_TOMBSTONE_RECEIVE, step->request_id, NULL);
    if (!receive || !tombstone) {
        kvfi_wire_free(core->allocator, receive);
        kvfi_tombstone_discard(core->allocator, tombstone);
        core->deadlines.reserved--;
        return NULL;
    }
    memset(receive, 0, sizeof(*receive));
    uint32_t *ids = (uint32_t *)(receive + 1);
    char *text = (char *)(ids + step->block_count);
    if (step->block_count)
        memcpy(ids, step->block_ids, blocks_size);
    receive->request_id = put_text(&text, step->request_id);
    receive->transfer_id = put_text(&text, step->transfer_id);
    receive->block_ids = ids;
    receive->block_count = step->block_count;
    receive->tombstone = tombstone;
    receive->registered_ns = core->now_ns;
    receive->work.kind = KVFI_WORK_RECEIVE;
    receive->deadline.kind = KVFI_WORK_RECEIVE;
    kvfi_list_init(&receive->work.link);
    kvfi_list_init(&receive->of_peer);
    receive->state = step->block_count ? KVFI_RECEIVE_WAITING : KVFI_RECEIVE_NOTICE;
    core->receive_counts[receive->state]++;
    /* A notice is nobody's to find: its engine may use the id again at once. */
    if (receive->state == KVFI_RECEIVE_WAITING)
        kvfi_index_add(&core->receives, &receive->by_id, receive->request_id,
                       strlen(receive->request_id));
    kvfi_core_todo(core, &receive->work);
    return receive;
}

void kvfi_receive_free(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    kvfi_index_remove(&core->receives, &receive->by_id);
    kvfi_index_remove(&core->registration_tokens, &receive->by_token);
    kvfi_list_remove(&receive->work.link);
    kvfi_list_remove(&receive->of_peer);
    kvfi_deadlines_release(&core->deadlines, &receive->deadline);
    kvfi_tombstone_discard(core->allocator, receive->tombstone);
    core->receive_counts[receive->state]--;
    kvfi_wire_free(core->allocator, receive);
}

static struct kvfi_receive *find(const struct kvfi_worker_core *core, struct kvfi_span request_id)
{
    struct kvfi_index_node *node =
        kvfi_index_find(&core->receives, request_id.data, request_id.len);
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_receive, by_id) : NULL;
}

/* Nothing can write the blocks any more; only results are owed. */
static void end(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    kvfi_list_remove(&receive->of_peer);
    kvfi_tombstones_put(&core->tombstones, receive->tombstone, core->now_ns);
    receive->tombstone = NULL;
    move(core, receive, KVFI_RECEIVE_OVER);
}

static void release(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    receive->owes_released = true;
    end(core, receive);
}

/* The engine hears of it now; the caller moves the receive on. */
static void owe_failed(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                       enum kvf_status status, bool blocks_free, const char *reason)
{
    receive->owes_failed = true;
    receive->status = status;
    receive->blocks_free = blocks_free;
    kvfi_core_set_reason(receive->reason, "%s", reason);
    kvfi_core_count(core, KVF_COUNTER_receives_failed);
    if (!blocks_free)
        kvfi_core_count(core, KVF_COUNTER_quarantined);
}

static void fail(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                 enum kvf_status status, const char *reason)
{
    owe_failed(core, receive, status, true, reason);
    end(core, receive);
}

/* ---- from the engine ------------------------------------------------------------------------ */

static const char *step_fault(const struct kvfi_worker_core *core,
                              const struct kvf_step_registration *step, enum kvf_status *status_p)
{
    *status_p = KVF_EINVAL;
    for (size_t i = 0; i < step->block_count; i++)
        if (step->block_ids[i] >= core->block_count_min)
            return "a block id of the engine is out of range";
    if (strcmp(step->remote.engine_id, core->config.engine_id) == 0)
        return "the prefill engine is this engine";
    *status_p = KVF_ENOTSUP;
    if (step->remote.tp_size != 1 || step->remote.pp_size != 1)
        return "prefill's tp_size and pp_size must be 1";
    return NULL;
}

enum kvf_status kvfi_receive_register(struct kvfi_worker_core *core,
                                      const struct kvf_step_registration *step,
                                      struct kvfi_effects *effects)
{
    if (find(core, kvfi_span_str(step->request_id)))
        return KVF_OK; /* the scheduler does not do that; the first stays intact (bug B05) */
    struct kvfi_peer *peer = NULL;
    enum kvf_status status =
        kvfi_peer_get(core, step->remote.engine_id, step->remote.host, step->remote.port, &peer);
    if (status == KVF_ENOMEM)
        return KVF_ENOMEM;
    struct kvfi_receive *receive = make(core, step);
    if (!receive)
        return KVF_ENOMEM;
    enum kvf_status fault_status = KVF_OK;
    const char *fault = step_fault(core, step, &fault_status);
    if (!peer) {
        fault = "too many peers, or the name of this one is too long";
        fault_status = KVF_ELIMIT;
    }
    if (!fault) {
        receive->peer = peer;
        kvfi_list_append(&peer->receives, &receive->of_peer);
        /* Facts section 3.4: each pp stage, and each of prefill's ranks that writes to this one. */
        uint32_t ratio = step->remote.tp_size / core->config.tp_size;
        receive->expected = step->remote.pp_size * (ratio > 1 ? ratio : 1);
        if (kvfi_peer_want(core, peer) != KVFI_PEER_REFUSED)
            return KVF_OK;
        fault = peer->last_reason;
        fault_status = peer->last_status;
    }
    if (receive->state == KVFI_RECEIVE_NOTICE)
        end(core, receive); /* nobody waits for it; prefill's lease ends by itself */
    else
        fail(core, receive, fault_status, fault);
    return KVF_OK;
}

void kvfi_receive_withdraw(struct kvfi_worker_core *core, const char *request_id,
                           struct kvfi_effects *effects)
{
    struct kvfi_receive *receive = find(core, kvfi_span_str(request_id));
    if (!receive || (receive->state != KVFI_RECEIVE_WAITING && receive->state != KVFI_RECEIVE_SENT))
        return; /* its end, or its failure, has been told already */
    /*
     * The step does not say whether the watchdog or an abort withdraws it. The age does, roughly,
     * and only the reason that a person reads depends on it.
     */
    uint64_t timeout_ns = core->config.registration_timeout_ns;
    bool late = core->now_ns - receive->registered_ns >= timeout_ns - timeout_ns / 8;
    if (late)
        kvfi_core_count(core, KVF_COUNTER_registrations_expired);
    owe_failed(core, receive, late ? KVF_ETIMEDOUT : KVF_ECANCELED,
               receive->state == KVFI_RECEIVE_WAITING,
               late ? "prefill did not deliver in time" : "withdrawn by the engine");
    move(core, receive,
         receive->state == KVFI_RECEIVE_WAITING ? KVFI_RECEIVE_NOTICE : KVFI_RECEIVE_WITHDRAWN);
}

/* ---- from prefill --------------------------------------------------------------------------- */

static void count_stranger(struct kvfi_worker_core *core, struct kvfi_span request_id,
                           bool delivered)
{
    bool late = kvfi_tombstones_find(&core->tombstones, KVFI_TOMBSTONE_RECEIVE,
                                     (const char *)request_id.data, request_id.len) != NULL;
    kvfi_core_count(core, late ? KVF_COUNTER_late_messages : KVF_COUNTER_unknown_messages);
    if (delivered)
        kvfi_core_count(core, KVF_COUNTER_notifications_after_expiry);
}

void kvfi_receive_on_message(struct kvfi_worker_core *core, const char *sender,
                             struct kvfi_span request_id, bool delivered,
                             struct kvfi_effects *effects)
{
    if (!delivered)
        kvfi_core_count(core, KVF_COUNTER_negative_completions_received);
    struct kvfi_receive *receive = find(core, request_id);
    bool registered = receive && (receive->state == KVFI_RECEIVE_SENT ||
                                  receive->state == KVFI_RECEIVE_WITHDRAWN ||
                                  receive->state == KVFI_RECEIVE_SETTLING);
    /* Only the agent that we registered with has a say. */
    if (!registered || receive->incarnation != receive->peer->incarnation ||
        !kvfi_peer_is_agent(receive->peer, sender)) {
        count_stranger(core, request_id, delivered);
        return;
    }
    /* A failure of one rank counts like its completion: its blocks are written by nobody now. */
    if (++receive->completed < receive->expected)
        return;
    if (receive->state != KVFI_RECEIVE_SENT) {
        release(core, receive);
    } else if (delivered) {
        receive->owes_received = true;
        kvfi_core_count(core, KVF_COUNTER_receives_done);
        end(core, receive);
    } else {
        fail(core, receive, KVF_ECANCELED, "prefill will not deliver (PUSH_FAIL)");
    }
}

void kvfi_receive_on_send_failed(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                 struct kvfi_effects *effects)
{
    kvfi_core_count(core, KVF_COUNTER_failed_notifications);
    kvfi_core_count(core, KVF_COUNTER_failed_transfers);
    uint64_t token = event->send_failed.token;
    struct kvfi_index_node *node =
        kvfi_index_find(&core->registration_tokens, &token, sizeof(token));
    if (!node)
        return;
    struct kvfi_receive *receive = KVFI_CONTAINER_OF(node, struct kvfi_receive, by_token);
    enum kvf_status status = event->send_failed.status;
    char reason[KVF_REASON_LEN_MAX + 1];
    kvfi_core_set_reason(reason, "the registration could not be sent: %s",
                         event->send_failed.reason ? event->send_failed.reason
                                                   : kvf_status_text(status));
    bool never_left = status == KVF_EINVAL || status == KVF_ENOMEM || status == KVF_ENOTFOUND ||
                      status == KVF_ELIMIT || status == KVF_ENOTSUP;
    if (never_left) {
        fail(core, receive, status, reason);
        return;
    }
    /* It may have arrived all the same. */
    owe_failed(core, receive, status, false, reason);
    move(core, receive, KVFI_RECEIVE_WITHDRAWN);
}

/* ---- from the peer -------------------------------------------------------------------------- */

/*
 * The time for last bytes is over. That frees the blocks only when the agent that may write them is
 * known to be gone: it was replaced, or nobody answered for it. Else it is asked again.
 */
static void settle(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    struct kvfi_peer *peer = receive->peer;
    if (peer->absent || receive->incarnation != peer->incarnation) {
        release(core, receive);
        return;
    }
    receive->settled = true;
    if (kvfi_peer_want(core, peer) == KVFI_PEER_REFUSED)
        kvfi_deadlines_set(&core->deadlines, &receive->deadline, peer->not_before_ns);
}

void kvfi_receive_on_peer_ready(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    if (receive->state == KVFI_RECEIVE_SETTLING) {
        if (receive->incarnation == receive->peer->incarnation) {
            /* Only the connection broke: the same agent lives and may still write. */
            receive->settled = false;
            move(core, receive, KVFI_RECEIVE_WITHDRAWN);
        } else if (receive->settled) {
            release(core, receive);
        }
        return;
    }
    kvfi_core_todo(core, &receive->work);
}

void kvfi_receive_on_peer_failed(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                 struct kvfi_effects *effects)
{
    const struct kvfi_peer *peer = receive->peer;
    if (receive->state == KVFI_RECEIVE_WAITING)
        fail(core, receive, peer->last_status, peer->last_reason);
    else if (receive->state == KVFI_RECEIVE_NOTICE)
        end(core, receive);
    else if (receive->state == KVFI_RECEIVE_SETTLING && receive->settled)
        settle(core, receive);
}

void kvfi_receive_on_peer_lost(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                               const char *reason)
{
    if (receive->state == KVFI_RECEIVE_SENT) {
        char text[KVF_REASON_LEN_MAX + 1];
        kvfi_core_set_reason(text, "prefill %.64s was lost: %s", receive->peer->engine_id, reason);
        owe_failed(core, receive, KVF_EDISCONNECTED, false, text);
    } else if (receive->state != KVFI_RECEIVE_WITHDRAWN) {
        return;
    }
    move(core, receive, KVFI_RECEIVE_SETTLING);
    kvfi_deadlines_set(&core->deadlines, &receive->deadline,
                       kvfi_ns_add(core->now_ns, core->config.peer_settle_ns));
}

void kvfi_receive_on_deadline(struct kvfi_worker_core *core, struct kvfi_receive *receive)
{
    if (receive->state == KVFI_RECEIVE_WITHDRAWN) {
        receive->owes_drop = true;
        kvfi_core_todo(core, &receive->work);
    } else if (receive->state == KVFI_RECEIVE_SETTLING) {
        settle(core, receive);
    }
}

/* ---- effects -------------------------------------------------------------------------------- */

static enum kvf_status encode_registration(struct kvfi_worker_core *core,
                                           const struct kvfi_receive *receive)
{
    const struct kvfi_block_group group = {receive->block_ids, receive->block_count};
    struct kvfi_push_reg message = {
        .request_id = receive->request_id,
        .decode_engine_id = core->config.engine_id,
        .decode_host = core->config.host,
        .decode_port = core->config.port,
        .decode_tp_size = core->config.tp_size,
        .groups = &group,
        .group_count = 1,
        .remote_engine_id = receive->peer->engine_id,
        .remote_host = receive->peer->host,
        .remote_port = receive->peer->port,
        .remote_tp_size = 1,
        .remote_pp_size = 1,
        .has_remote_port = true,
        .has_remote_tp_size = true,
        .has_remote_pp_size = true,
        .transfer_id = receive->transfer_id,
    };
    kvfi_buf_clear(&core->scratch);
    return kvfi_push_reg_encode(&message, &core->scratch, NULL);
}

static enum kvf_status flush_registration(struct kvfi_worker_core *core,
                                          struct kvfi_receive *receive,
                                          struct kvfi_effects *effects)
{
    enum kvf_status status = encode_registration(core, receive);
    if (status == KVF_OK)
        status = kvfi_emit_send(core, effects, receive->peer, core->next_token);
    if (status == KVF_ENOMEM)
        return KVF_ENOMEM;
    if (status != KVF_OK) {
        fail(core, receive, status, "the registration cannot be encoded");
        return KVF_OK;
    }
    move(core, receive, KVFI_RECEIVE_SENT);
    receive->incarnation = receive->peer->incarnation;
    receive->token = core->next_token++;
    kvfi_index_add(&core->registration_tokens, &receive->by_token, &receive->token,
                   sizeof(receive->token));
    kvfi_core_count(core, KVF_COUNTER_registrations_sent);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){.event = "registered",
                                           .request_id = receive->request_id,
                                           .peer = receive->peer->engine_id,
                                           .block_count = (int64_t)receive->block_count});
    return KVF_OK;
}

static enum kvf_status emit_drop(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                 struct kvfi_effects *effects)
{
    kvfi_buf_clear(&core->scratch);
    enum kvf_status status =
        kvfi_notif_drop_encode(kvfi_span_str(receive->request_id), &core->scratch, NULL);
    if (status == KVF_OK)
        status = kvfi_emit_send(core, effects, receive->peer, core->next_token);
    if (status != KVF_OK)
        return status;
    core->next_token++;
    kvfi_core_count(core, KVF_COUNTER_withdrawals_sent);
    return KVF_OK;
}

static enum kvf_status flush_drop(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                  struct kvfi_effects *effects)
{
    receive->owes_drop = false;
    if (!(receive->peer->offer.caps & KVFI_CAP_PUSH_DROP))
        return KVF_OK; /* its completion, or its loss, is all that can free the blocks */
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    enum kvf_status status = KVF_OK;
    if (receive->asked > 0) {
        /* No answer: prefill may not know whom to answer, which the registration tells. */
        status = encode_registration(core, receive);
        if (status == KVF_OK)
            status = kvfi_emit_send(core, effects, receive->peer, core->next_token++);
    }
    if (status == KVF_OK)
        status = emit_drop(core, receive, effects);
    if (status == KVF_ENOMEM) {
        kvfi_effects_rollback(effects, mark);
        receive->owes_drop = true;
        return KVF_ENOMEM;
    }
    unsigned shift = receive->asked < 8 ? receive->asked : 8;
    uint64_t pause_ns = KVFI_WITHDRAW_RETRY_NS << shift;
    if (pause_ns > KVFI_WITHDRAW_REPEAT_NS)
        pause_ns = KVFI_WITHDRAW_REPEAT_NS;
    receive->asked++;
    kvfi_deadlines_set(&core->deadlines, &receive->deadline, kvfi_ns_add(core->now_ns, pause_ns));
    return KVF_OK;
}

static enum kvf_status flush_notice(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                    struct kvfi_effects *effects)
{
    if (receive->peer->offer.caps & KVFI_CAP_PUSH_DROP)
        if (emit_drop(core, receive, effects) == KVF_ENOMEM)
            return KVF_ENOMEM;
    end(core, receive);
    return KVF_OK;
}

static void record(struct kvfi_worker_core *core, struct kvfi_effects *effects, const char *event,
                   const struct kvfi_receive *receive, const char *reason)
{
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){.event = event,
                                           .request_id = receive->request_id,
                                           .reason = reason,
                                           .block_count = (int64_t)receive->block_count,
                                           .block_ids = receive->block_ids,
                                           .block_id_count = receive->block_count});
}

static enum kvf_status flush_results(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                     struct kvfi_effects *effects)
{
    if (receive->owes_received) {
        /* The record first: with the result the blocks are the engine's, and it writes into them.
         */
        struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
        record(core, effects, "landed", receive, NULL);
        enum kvf_status status =
            kvfi_emit_result(effects, KVF_RESULT_RECEIVED, KVF_OK, true, receive->request_id, "");
        if (status != KVF_OK) {
            kvfi_effects_rollback(effects, mark);
            return status;
        }
        receive->owes_received = false;
    }
    if (receive->owes_failed) {
        KVF_TRY(kvfi_emit_result(effects, KVF_RESULT_FAILED, receive->status, receive->blocks_free,
                                 receive->request_id, receive->reason));
        receive->owes_failed = false;
        record(core, effects, "failed", receive, receive->reason);
        if (!receive->blocks_free)
            record(core, effects, "quarantined", receive, receive->reason);
    }
    if (receive->owes_released) {
        KVF_TRY(
            kvfi_emit_result(effects, KVF_RESULT_RELEASED, KVF_OK, true, receive->request_id, ""));
        receive->owes_released = false;
        record(core, effects, "released", receive, NULL);
    }
    return KVF_OK;
}

enum kvf_status kvfi_receive_flush(struct kvfi_worker_core *core, struct kvfi_receive *receive,
                                   struct kvfi_effects *effects)
{
    KVF_TRY(flush_results(core, receive, effects));
    bool connected = receive->peer && receive->peer->state == KVFI_PEER_CONNECTED;
    if (connected && receive->state == KVFI_RECEIVE_WAITING)
        KVF_TRY(flush_registration(core, receive, effects));
    else if (connected && receive->state == KVFI_RECEIVE_NOTICE)
        KVF_TRY(flush_notice(core, receive, effects));
    else if (connected && receive->owes_drop)
        KVF_TRY(flush_drop(core, receive, effects));
    else if (receive->state == KVFI_RECEIVE_OVER)
        kvfi_receive_free(core, receive);
    return KVF_OK;
}
