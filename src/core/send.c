/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefill's half: a request from its batch to the end of its lease.
 *
 * The blocks belong to the connector from STAGED to the result. The lease ends that, except while a
 * WRITE runs: then the transfer's end does (P1).
 */
#include "core/config.h"
#include "core/core.h"
#include "wire/notif.h"

#include <assert.h>
#include <string.h>

static const unsigned __attribute__((unused)) legal_next[KVFI_SEND_STATE_COUNT] = {
#define KVFI_SEND_STATE_NEXT(state, next) [KVFI_SEND_##state] = (next),
    KVFI_SEND_STATE_LIST(KVFI_SEND_STATE_NEXT)
#undef KVFI_SEND_STATE_NEXT
};

static void move(struct kvfi_worker_core *core, struct kvfi_send *send, enum kvfi_send_state state)
{
    assert(legal_next[send->state] & (1u << state));
    core->send_counts[send->state]--;
    core->send_counts[state]++;
    send->state = state;
}

static struct kvfi_send *send_of(const struct kvfi_party *party)
{
    return KVFI_CONTAINER_OF(party, struct kvfi_send, party);
}

static struct kvfi_send *find(const struct kvfi_worker_core *core, const char *request_id)
{
    struct kvfi_party *party = kvfi_party_find_id(&core->sends, request_id, strlen(request_id));
    return party ? send_of(party) : NULL;
}

bool kvfi_send_is_open(const struct kvfi_party *party)
{
    const struct kvfi_send *send = send_of(party);
    return send->state == KVFI_SEND_SCHEDULED || send->state == KVFI_SEND_STAGED;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* In state SCHEDULED, in the tables. NULL when memory is short. */
static struct kvfi_send *make(struct kvfi_worker_core *core, const char *request_id,
                              const char *transfer_id, const uint32_t *block_ids, size_t count)
{
    if (kvfi_deadlines_reserve(&core->deadlines) != KVF_OK)
        return NULL;
    size_t id_size = strlen(request_id) + 1;
    size_t transfer_id_size = transfer_id ? strlen(transfer_id) + 1 : 0;
    size_t blocks_size = count * sizeof(*block_ids);
    struct kvfi_send *send =
        kvfi_wire_alloc(core->allocator, sizeof(*send) + blocks_size + id_size + transfer_id_size);
    struct kvfi_tombstone *tombstone =
        kvfi_tombstone_make(core->allocator, KVFI_TOMBSTONE_SEND, request_id, transfer_id);
    if (!send || !tombstone) {
        kvfi_wire_free(core->allocator, send);
        kvfi_tombstone_discard(core->allocator, tombstone);
        core->deadlines.reserved--;
        return NULL;
    }
    memset(send, 0, sizeof(*send));
    uint32_t *ids = (uint32_t *)(send + 1);
    char *text = (char *)(ids + count);
    if (count)
        memcpy(ids, block_ids, blocks_size);
    memcpy(text, request_id, id_size);
    if (transfer_id)
        memcpy(text + id_size, transfer_id, transfer_id_size);
    send->block_ids = ids;
    send->block_count = count;
    send->tombstone = tombstone;
    send->work.kind = KVFI_WORK_SEND;
    send->lease.kind = KVFI_WORK_SEND;
    kvfi_list_init(&send->work.link);
    kvfi_party_set(&send->party, text, transfer_id ? text + id_size : NULL);
    core->send_counts[KVFI_SEND_SCHEDULED]++;
    return send;
}

void kvfi_send_free(struct kvfi_worker_core *core, struct kvfi_send *send)
{
    kvfi_party_remove(&core->sends, &send->party);
    kvfi_index_remove(&core->write_tokens, &send->by_token);
    kvfi_list_remove(&send->work.link);
    kvfi_deadlines_release(&core->deadlines, &send->lease);
    kvfi_tombstone_discard(core->allocator, send->tombstone);
    if (send->quarantined)
        core->quarantined_send_count--;
    core->send_counts[send->state]--;
    kvfi_wire_free(core->allocator, send);
}

/* A new request of this base id: what was remembered of earlier ones no longer stands in its way,
 * and a withdrawal that came first finds its request. */
static void greet(struct kvfi_worker_core *core, struct kvfi_send *send)
{
    const struct kvfi_party *key = &send->party;
    struct kvfi_party_table *ended = &core->tombstones.tables[KVFI_TOMBSTONE_SEND];
    struct kvfi_party *party = NULL;
    while ((party = kvfi_party_find_id(ended, key->id, key->id_len)) ||
           (party = kvfi_party_find_base(ended, key->id, key->base_len)))
        kvfi_tombstones_remove(&core->tombstones,
                               KVFI_CONTAINER_OF(party, struct kvfi_tombstone, party));
    party = kvfi_party_find_base(&core->tombstones.tables[KVFI_TOMBSTONE_REGISTRATION], key->id,
                                 key->base_len);
    for (; party; party = kvfi_party_next_base(party)) {
        struct kvfi_tombstone *tombstone = KVFI_CONTAINER_OF(party, struct kvfi_tombstone, party);
        uint64_t put_ns = tombstone->expires_ns - core->tombstones.ttl_ns;
        if (tombstone->withdraws && core->now_ns - put_ns < core->config.lease_ns)
            send->withdrawn = true;
        tombstone->withdraws = false;
    }
}

enum kvf_status kvfi_send_schedule(struct kvfi_worker_core *core, const char *request_id)
{
    if (find(core, request_id))
        return KVF_OK;
    struct kvfi_send *send = make(core, request_id, NULL, NULL, 0);
    if (!send)
        return KVF_ENOMEM;
    greet(core, send);
    kvfi_party_add(&core->sends, &send->party);
    return KVF_OK;
}

void kvfi_send_end(struct kvfi_worker_core *core, struct kvfi_send *send, enum kvf_status status,
                   const char *reason)
{
    kvfi_deadlines_cancel(&core->deadlines, &send->lease);
    kvfi_party_remove(&core->sends, &send->party);
    kvfi_index_remove(&core->write_tokens, &send->by_token);
    kvfi_tombstones_put(&core->tombstones, send->tombstone, core->now_ns);
    send->tombstone = NULL;
    send->registration = NULL;
    send->status = status;
    kvfi_core_set_reason(send->reason, "%s", reason);
    move(core, send, KVFI_SEND_OVER);
    kvfi_core_todo(core, &send->work);
}

/* The engine ends it before it has blocks: no result is due. */
static void forget(struct kvfi_worker_core *core, struct kvfi_send *send, bool remember)
{
    if (remember) {
        kvfi_tombstones_put(&core->tombstones, send->tombstone, core->now_ns);
        send->tombstone = NULL;
    }
    kvfi_send_free(core, send);
}

static bool blocks_exist(const uint32_t *block_ids, size_t count, uint64_t block_count)
{
    for (size_t i = 0; i < count; i++)
        if (block_ids[i] >= block_count)
            return false;
    return true;
}

/* The scheduler's clock may be another machine's: only the distance counts. */
static uint64_t local_deadline(const struct kvfi_worker_core *core, uint64_t deadline_ns,
                               uint64_t clock_ns)
{
    if (clock_ns == 0)
        return deadline_ns;
    return deadline_ns > clock_ns ? kvfi_ns_add(core->now_ns, deadline_ns - clock_ns)
                                  : core->now_ns;
}

enum kvf_status kvfi_send_stage(struct kvfi_worker_core *core,
                                const struct kvf_step_finished *finished, uint64_t clock_ns,
                                struct kvfi_effects *effects)
{
    struct kvfi_send *scheduled = find(core, finished->request_id);
    if (scheduled && scheduled->state != KVFI_SEND_SCHEDULED)
        return KVF_OK; /* said twice; the first stays intact (bug B05) */
    struct kvfi_send *send = make(core, finished->request_id, finished->transfer_id,
                                  finished->block_ids, finished->block_count);
    if (!send)
        return KVF_ENOMEM;
    greet(core, send);
    if (scheduled) {
        send->withdrawn |= scheduled->withdrawn;
        forget(core, scheduled, false);
    }
    kvfi_party_add(&core->sends, &send->party);
    move(core, send, KVFI_SEND_STAGED);
    uint64_t deadline_ns = local_deadline(core, finished->deadline_ns, clock_ns);
    if (!blocks_exist(send->block_ids, send->block_count, core->block_count_min)) {
        kvfi_send_end(core, send, KVF_EINVAL, "a block id of the engine is out of range");
        kvfi_registration_refuse_for(core, &send->party, send->reason, effects);
        return KVF_OK;
    }
    kvfi_deadlines_set(&core->deadlines, &send->lease, deadline_ns);
    if (deadline_ns <= core->now_ns) {
        kvfi_deadlines_cancel(&core->deadlines, &send->lease);
        kvfi_send_on_deadline(core, send, effects);
        return KVF_OK;
    }
    kvfi_registration_match_send(core, send, effects);
    /* A registration that is there outweighs a withdrawal of some other decode request. */
    if (send->state == KVFI_SEND_STAGED && send->withdrawn)
        kvfi_send_end(core, send, KVF_ECANCELED, "withdrawn by decode");
    return KVF_OK;
}

enum kvf_status kvfi_send_abandon(struct kvfi_worker_core *core, const char *request_id,
                                  struct kvfi_effects *effects)
{
    struct kvfi_send *send = find(core, request_id);
    if (send && send->state != KVFI_SEND_SCHEDULED)
        return KVF_OK; /* held: it leaves by transfer or lease (bug B09) */
    if (!send) {
        send = make(core, request_id, NULL, NULL, 0);
        if (!send)
            return KVF_ENOMEM;
        greet(core, send);
    }
    struct kvfi_tombstone *tombstone = send->tombstone;
    forget(core, send, true);
    kvfi_registration_refuse_for(core, &tombstone->party, "prefill was aborted", effects);
    return KVF_OK;
}

/* ---- lease ---------------------------------------------------------------------------------- */

void kvfi_send_renew(struct kvfi_worker_core *core, struct kvfi_send *send)
{
    bool leased = send->state == KVFI_SEND_STAGED || send->state == KVFI_SEND_DEFERRED ||
                  (send->state == KVFI_SEND_WRITING && !send->quarantined);
    uint64_t at = kvfi_ns_add(core->now_ns, kvfi_lease_extension_ns(core->config.lease_ns));
    if (!leased || at <= send->lease.at_ns)
        return;
    kvfi_deadlines_set(&core->deadlines, &send->lease, at);
    kvfi_core_count(core, KVF_COUNTER_leases_renewed);
}

static void record(struct kvfi_worker_core *core, struct kvfi_effects *effects, const char *event,
                   const struct kvfi_send *send, const char *reason)
{
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){
                         .event = event,
                         .request_id = send->party.id,
                         .reason = reason,
                         .match = send->registration ? send->registration->party.id : NULL,
                         .peer = send->registration ? send->registration->peer->engine_id : NULL,
                         .block_count = (int64_t)send->block_count,
                         .bytes = send->sent_bytes,
                         .runs = send->sent_runs,
                     });
}

void kvfi_send_on_deadline(struct kvfi_worker_core *core, struct kvfi_send *send,
                           struct kvfi_effects *effects)
{
    struct kvfi_registration *registration = send->registration;
    switch (send->state) {
    case KVFI_SEND_WRITING:
        send->quarantined = true;
        core->quarantined_send_count++;
        kvfi_core_count(core, KVF_COUNTER_quarantined);
        record(core, effects, "quarantined", send, "lease ended during the WRITE");
        return;
    case KVFI_SEND_STAGED:
    case KVFI_SEND_DEFERRED:
        kvfi_core_count(core, KVF_COUNTER_kv_expired_reqs);
        record(core, effects, "lease_expired", send, NULL);
        kvfi_send_end(core, send, KVF_ETIMEDOUT,
                      registration ? "lease ended before the WRITE could be posted"
                                   : "lease ended, no registration came");
        if (registration)
            kvfi_registration_refuse(core, registration, effects, "prefill's lease ended");
        /* Blocks that were staged too late have not been matched with what waited for them. */
        kvfi_registration_refuse_for(core, &send->party, "prefill's lease ended", effects);
        return;
    case KVFI_SEND_SCHEDULED:
    case KVFI_SEND_OVER:
    case KVFI_SEND_STATE_COUNT:
        return;
    }
}

/* ---- match and WRITE ------------------------------------------------------------------------ */

void kvfi_send_match(struct kvfi_worker_core *core, struct kvfi_send *send,
                     struct kvfi_registration *registration, struct kvfi_effects *effects)
{
    send->registration = registration;
    send->matched_ns = core->now_ns;
    move(core, send, KVFI_SEND_DEFERRED);
    kvfi_core_count(core, KVF_COUNTER_matches);
    record(core, effects, "matched", send, NULL);
    kvfi_core_todo(core, &send->work);
}

void kvfi_send_reopen(struct kvfi_worker_core *core, struct kvfi_send *send)
{
    send->registration = NULL;
    move(core, send, KVFI_SEND_STAGED);
}

/* Both ends of a matched pair, before anything was posted. */
static void give_up(struct kvfi_worker_core *core, struct kvfi_send *send, enum kvf_status status,
                    const char *reason, struct kvfi_effects *effects)
{
    struct kvfi_registration *registration = send->registration;
    kvfi_send_end(core, send, status, reason);
    kvfi_registration_refuse(core, registration, effects, "%s", reason);
}

/* What is wrong with writing this pair now that the peer's geometry is known; false: nothing. */
static bool refuse_pair(struct kvfi_worker_core *core, struct kvfi_send *send,
                        struct kvfi_effects *effects)
{
    const struct kvfi_registration *registration = send->registration;
    const struct kvfi_peer *peer = registration->peer;
    char reason[KVF_REASON_LEN_MAX + 1];
    if (registration->block_count > send->block_count) {
        kvfi_core_set_reason(reason, "decode asks for %zu blocks, prefill has %zu",
                             registration->block_count, send->block_count);
    } else if (!blocks_exist(registration->block_ids, registration->block_count,
                             peer->offer.block_count_min)) {
        kvfi_core_set_reason(reason, "a block id of decode is out of range: it advertised %llu",
                             (unsigned long long)peer->offer.block_count_min);
        kvfi_core_count(core, KVF_COUNTER_bad_messages);
    } else {
        return false;
    }
    give_up(core, send, KVF_EMISMATCH, reason, effects);
    return true;
}

static enum kvf_status encode_done(struct kvfi_worker_core *core, const struct kvfi_send *send)
{
    kvfi_buf_clear(&core->scratch);
    return kvfi_notif_done_encode(kvfi_span_str(send->registration->party.id), core->config.tp_size,
                                  &core->scratch, NULL);
}

/* Nothing to write, but decode waits for the word and the lease may end. */
static enum kvf_status deliver_nothing(struct kvfi_worker_core *core, struct kvfi_send *send,
                                       struct kvfi_effects *effects)
{
    KVF_TRY(kvfi_emit_send(core, effects, send->registration->peer, core->next_token));
    core->next_token++;
    struct kvfi_registration *registration = send->registration;
    kvfi_send_end(core, send, KVF_OK, "");
    kvfi_registration_end(core, registration);
    return KVF_OK;
}

static enum kvf_status emit_write(struct kvfi_worker_core *core, struct kvfi_send *send,
                                  struct kvfi_effects *effects)
{
    const struct kvfi_registration *registration = send->registration;
    size_t count = registration->block_count;
    /* Decode's n blocks are the last n of the prompt, so they take our last n (bug B54). */
    const uint32_t *ours = send->block_ids + (send->block_count - count);
    const uint32_t *local_ids = kvfi_effects_copy(effects, ours, count * sizeof(*ours));
    const uint32_t *remote_ids =
        kvfi_effects_copy(effects, registration->block_ids, count * sizeof(*ours));
    struct kvf_plan_region *regions =
        kvfi_effects_alloc(effects, core->region_count * sizeof(*regions));
    struct kvf_block_pairs *pairs = kvfi_effects_alloc(effects, sizeof(*pairs));
    void *message = kvfi_effects_copy(effects, core->scratch.data, core->scratch.len);
    const char *request_id = kvfi_effects_text(effects, send->party.id);
    if (!local_ids || !remote_ids || !regions || !pairs || !message || !request_id)
        return KVF_ENOMEM;
    for (size_t i = 0; i < core->region_count; i++)
        regions[i] = (struct kvf_plan_region){
            .local = core->regions[i].table,
            .remote = registration->peer->offer.tables[i],
            .length_bytes = core->regions[i].block_bytes,
        };
    *pairs = (struct kvf_block_pairs){local_ids, remote_ids, count};
    struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_WRITE);
    if (!effect)
        return KVF_ENOMEM;
    effect->write.token = core->next_token;
    effect->write.peer = registration->peer->id;
    effect->write.plan = (struct kvf_plan){
        .regions = regions, .region_count = core->region_count, .groups = pairs, .group_count = 1};
    effect->write.message = message;
    effect->write.message_len = core->scratch.len;
    effect->write.request_id = request_id;
    return KVF_OK;
}

static enum kvf_status post(struct kvfi_worker_core *core, struct kvfi_send *send,
                            struct kvfi_effects *effects)
{
    const struct kvfi_registration *registration = send->registration;
    size_t count = registration->block_count;
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){
                         .event = "posted",
                         .request_id = send->party.id,
                         .match = registration->party.id,
                         .peer = registration->peer->engine_id,
                         .block_count = (int64_t)count,
                         .block_ids = send->block_ids + (send->block_count - count),
                         .block_id_count = count,
                     });
    enum kvf_status status = emit_write(core, send, effects);
    if (status != KVF_OK) {
        kvfi_effects_rollback(effects, mark);
        return status;
    }
    send->token = core->next_token++;
    kvfi_index_add(&core->write_tokens, &send->by_token, &send->token, sizeof(send->token));
    move(core, send, KVFI_SEND_WRITING);
    kvfi_core_count(core, KVF_COUNTER_writes_posted);
    return KVF_OK;
}

static enum kvf_status flush_deferred(struct kvfi_worker_core *core, struct kvfi_send *send,
                                      struct kvfi_effects *effects)
{
    struct kvfi_registration *registration = send->registration;
    struct kvfi_peer *peer = registration->peer;
    switch (kvfi_peer_want(core, peer)) {
    case KVFI_PEER_WAIT:
        return KVF_OK; /* the peer calls again */
    case KVFI_PEER_REFUSED:
        kvfi_send_end(core, send, peer->last_status, peer->last_reason);
        kvfi_registration_end(core, registration); /* decode cannot be told */
        return KVF_OK;
    case KVFI_PEER_READY:
        break;
    }
    /*
     * It may have waited long. Nothing is posted unless all of it still holds (bug B24): the lease
     * (a deadline that has passed was handled before), the request (a withdrawal would have ended
     * it), and the agent that registered.
     */
    if (!kvfi_peer_is_agent(peer, registration->sender)) {
        kvfi_core_count(core, KVF_COUNTER_late_messages);
        kvfi_send_reopen(core, send);
        kvfi_registration_end(core, registration);
        kvfi_registration_match_send(core, send, effects);
        return KVF_OK;
    }
    if (refuse_pair(core, send, effects))
        return KVF_OK;
    enum kvf_status status = encode_done(core, send);
    if (status == KVF_OK)
        status = registration->block_count == 0 ? deliver_nothing(core, send, effects)
                                                : post(core, send, effects);
    if (status != KVF_OK && status != KVF_ENOMEM)
        give_up(core, send, status, "the completion cannot be encoded", effects);
    return status == KVF_ENOMEM ? KVF_ENOMEM : KVF_OK;
}

static enum kvf_status flush_over(struct kvfi_worker_core *core, struct kvfi_send *send,
                                  struct kvfi_effects *effects)
{
    KVF_TRY(kvfi_emit_result(effects, KVF_RESULT_SENT, send->status, true, send->party.id,
                             send->reason));
    record(core, effects, send->status == KVF_OK ? "sent" : "failed", send,
           send->status == KVF_OK ? NULL : send->reason);
    kvfi_send_free(core, send);
    return KVF_OK;
}

enum kvf_status kvfi_send_flush(struct kvfi_worker_core *core, struct kvfi_send *send,
                                struct kvfi_effects *effects)
{
    if (send->state == KVFI_SEND_DEFERRED)
        return flush_deferred(core, send, effects);
    if (send->state == KVFI_SEND_OVER)
        return flush_over(core, send, effects);
    return KVF_OK;
}

/* A driver that did not take a time leaves it 0. */
static void observe_span(struct kvfi_effects *effects, enum kvf_histogram histogram,
                         uint64_t from_ns, uint64_t to_ns)
{
    if (to_ns >= from_ns)
        kvfi_emit_observe(effects, histogram, (double)(to_ns - from_ns) / 1e9);
}

void kvfi_send_on_done(struct kvfi_worker_core *core, const struct kvfi_event *event,
                       struct kvfi_effects *effects)
{
    uint64_t token = event->transfer_done.token;
    struct kvfi_index_node *node = kvfi_index_find(&core->write_tokens, &token, sizeof(token));
    if (!node)
        return;
    struct kvfi_send *send = KVFI_CONTAINER_OF(node, struct kvfi_send, by_token);
    struct kvfi_registration *registration = send->registration;
    const struct kvf_transfer_stats *stats = &event->transfer_done.stats;
    if (event->transfer_done.status != KVF_OK) {
        const char *text = event->transfer_done.reason;
        char reason[KVF_REASON_LEN_MAX + 1];
        kvfi_core_set_reason(reason, "WRITE failed: %s",
                             text ? text : kvf_status_text(event->transfer_done.status));
        kvfi_core_count(core, KVF_COUNTER_failed_writes);
        kvfi_core_count(core, KVF_COUNTER_failed_transfers);
        /*
         * The seed keeps the lease here. But a registration is used once, so nobody can read these
         * blocks any more, and the transfer is terminal: they are free now.
         */
        if (stats->post_start_ns == 0) { /* nothing was posted */
            give_up(core, send, event->transfer_done.status, reason, effects);
            return;
        }
        kvfi_send_end(core, send, event->transfer_done.status, reason);
        kvfi_registration_settle(core, registration, reason);
        return;
    }
    kvfi_core_count(core, KVF_COUNTER_writes_done);
    send->sent_bytes = stats->bytes;
    send->sent_runs = stats->run_count;
    core->counts[KVF_COUNTER_bytes_written] += stats->bytes;
    core->counts[KVF_COUNTER_runs_posted] += stats->run_count;
    observe_span(effects, KVF_HISTOGRAM_xfer_time_seconds, stats->post_start_ns, stats->done_ns);
    observe_span(effects, KVF_HISTOGRAM_post_time_seconds, stats->post_start_ns,
                 stats->post_end_ns);
    observe_span(effects, KVF_HISTOGRAM_match_to_post_seconds, send->matched_ns,
                 stats->post_start_ns);
    kvfi_emit_observe(effects, KVF_HISTOGRAM_bytes_transferred, (double)stats->bytes);
    kvfi_emit_observe(effects, KVF_HISTOGRAM_num_descriptors, (double)stats->run_count);
    kvfi_send_end(core, send, KVF_OK, "");
    kvfi_registration_end(core, registration);
}
