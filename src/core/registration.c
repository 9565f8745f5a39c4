/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode's registrations, as prefill holds them.
 *
 * Each decode request id gets at most one WRITE, ever: an id that was matched, refused or withdrawn
 * is remembered, and what comes under it later is answered with a PUSH_FAIL. A PUSH_FAIL is never
 * sent while a WRITE for that id is under way, nor for peer_settle_ns after one has failed: decode
 * frees its blocks on it (P1), and over a new connection it may overtake what the old one holds.
 */
#include "core/core.h"
#include "wire/handshake.h"
#include "wire/notif.h"
#include "wire/push_reg.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static struct kvfi_registration *registration_of(const struct kvfi_party *party)
{
    return KVFI_CONTAINER_OF(party, struct kvfi_registration, party);
}

static struct kvfi_send *send_of(const struct kvfi_party *party)
{
    return KVFI_CONTAINER_OF(party, struct kvfi_send, party);
}

static bool is_pending(const struct kvfi_party *party)
{
    return registration_of(party)->state == KVFI_REGISTRATION_PENDING;
}

static void set_state(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                      enum kvfi_registration_state state)
{
    /* PENDING -> MATCHED -> SETTLING -> REFUSED, with any of them left out. */
    assert(state > registration->state);
    core->registration_counts[registration->state]--;
    core->registration_counts[state]++;
    registration->state = state;
}

static size_t count_all(const struct kvfi_worker_core *core)
{
    return core->registration_counts[KVFI_REGISTRATION_PENDING] +
           core->registration_counts[KVFI_REGISTRATION_MATCHED] +
           core->registration_counts[KVFI_REGISTRATION_SETTLING] +
           core->registration_counts[KVFI_REGISTRATION_REFUSED];
}

/* ---- life ----------------------------------------------------------------------------------- */

/* How many ids are kept of it; one of several groups is refused. */
static size_t block_count_of(const struct kvfi_push_reg *message)
{
    return message->group_count == 1 ? message->groups[0].count : 0;
}

/* PENDING, with its peer, not in the table. NULL when memory is short. */
static struct kvfi_registration *make(struct kvfi_worker_core *core,
                                      const struct kvfi_push_reg *message, const char *sender,
                                      struct kvfi_peer *peer)
{
    if (kvfi_deadlines_reserve(&core->deadlines) != KVF_OK)
        return NULL;
    size_t count = block_count_of(message);
    size_t id_size = strlen(message->request_id) + 1;
    size_t transfer_id_size = message->transfer_id ? strlen(message->transfer_id) + 1 : 0;
    size_t sender_size = strlen(sender) + 1;
    struct kvfi_registration *registration =
        kvfi_wire_alloc(core->allocator, sizeof(*registration) + count * sizeof(uint32_t) +
                                             id_size + transfer_id_size + sender_size);
    struct kvfi_tombstone *tombstone = kvfi_tombstone_make(
        core->allocator, KVFI_TOMBSTONE_REGISTRATION, message->request_id, message->transfer_id);
    if (!registration || !tombstone) {
        kvfi_wire_free(core->allocator, registration);
        kvfi_tombstone_discard(core->allocator, tombstone);
        core->deadlines.reserved--;
        return NULL;
    }
    memset(registration, 0, sizeof(*registration));
    uint32_t *ids = (uint32_t *)(registration + 1);
    char *text = (char *)(ids + count);
    if (count)
        memcpy(ids, message->groups[0].ids, count * sizeof(*ids));
    memcpy(text, message->request_id, id_size);
    if (message->transfer_id)
        memcpy(text + id_size, message->transfer_id, transfer_id_size);
    char *sender_copy = text + id_size + transfer_id_size;
    memcpy(sender_copy, sender, sender_size);
    registration->block_ids = ids;
    registration->block_count = count;
    registration->sender = sender_copy;
    registration->tombstone = tombstone;
    registration->peer = peer;
    registration->work.kind = KVFI_WORK_REGISTRATION;
    registration->timeout.kind = KVFI_WORK_REGISTRATION;
    kvfi_list_init(&registration->work.link);
    kvfi_list_init(&registration->of_peer);
    kvfi_list_append(&peer->registrations, &registration->of_peer);
    kvfi_party_set(&registration->party, text, message->transfer_id ? text + id_size : NULL);
    core->registration_counts[KVFI_REGISTRATION_PENDING]++;
    core->registration_block_count += count;
    return registration;
}

void kvfi_registration_free(struct kvfi_worker_core *core, struct kvfi_registration *registration)
{
    kvfi_party_remove(&core->registrations, &registration->party);
    kvfi_list_remove(&registration->work.link);
    kvfi_list_remove(&registration->of_peer);
    kvfi_deadlines_release(&core->deadlines, &registration->timeout);
    kvfi_tombstone_discard(core->allocator, registration->tombstone);
    core->registration_counts[registration->state]--;
    core->registration_block_count -= registration->block_count;
    kvfi_wire_free(core->allocator, registration);
}

static void remember(struct kvfi_worker_core *core, struct kvfi_registration *registration)
{
    if (registration->tombstone)
        kvfi_tombstones_put(&core->tombstones, registration->tombstone, core->now_ns);
    registration->tombstone = NULL;
}

void kvfi_registration_end(struct kvfi_worker_core *core, struct kvfi_registration *registration)
{
    remember(core, registration);
    kvfi_registration_free(core, registration);
}

void kvfi_registration_refuse(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                              struct kvfi_effects *effects, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(registration->reason, sizeof(registration->reason), fmt, args);
    va_end(args);
    remember(core, registration);
    kvfi_party_remove(&core->registrations, &registration->party);
    kvfi_deadlines_cancel(&core->deadlines, &registration->timeout);
    registration->send = NULL;
    set_state(core, registration, KVFI_REGISTRATION_REFUSED);
    kvfi_core_todo(core, &registration->work);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){
                         KVFI_RECORD_INIT, .event = "dropped", .request_id = registration->party.id,
                         .peer = registration->peer->engine_id, .reason = registration->reason});
}

void kvfi_registration_settle(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                              const char *reason)
{
    kvfi_core_set_reason(registration->reason, "%s", reason);
    registration->send = NULL;
    set_state(core, registration, KVFI_REGISTRATION_SETTLING);
    kvfi_deadlines_set(&core->deadlines, &registration->timeout,
                       kvfi_ns_add(core->now_ns, core->config.peer_settle_ns));
}

void kvfi_registration_on_deadline(struct kvfi_worker_core *core,
                                   struct kvfi_registration *registration,
                                   struct kvfi_effects *effects)
{
    char reason[sizeof(registration->reason)] = "no prefill request came for it in time";
    if (registration->state == KVFI_REGISTRATION_SETTLING)
        memcpy(reason, registration->reason, sizeof(reason));
    kvfi_registration_refuse(core, registration, effects, "%s", reason);
}

enum kvf_status kvfi_registration_flush(struct kvfi_worker_core *core,
                                        struct kvfi_registration *registration,
                                        struct kvfi_effects *effects)
{
    if (registration->state != KVFI_REGISTRATION_REFUSED)
        return KVF_OK;
    struct kvfi_peer *peer = registration->peer;
    switch (kvfi_peer_want(core, peer)) {
    case KVFI_PEER_WAIT:
        return KVF_OK; /* the peer calls again */
    case KVFI_PEER_REFUSED:
        kvfi_core_count(core, KVF_COUNTER_failed_notifications);
        kvfi_registration_free(core, registration);
        return KVF_OK;
    case KVFI_PEER_READY:
        break;
    }
    /* A restarted decode may use the same id for another request: it is not told about this one. */
    if ((peer->offer.caps & KVFI_CAP_PUSH_FAIL) && kvfi_peer_is_agent(peer, registration->sender)) {
        kvfi_buf_clear(&core->scratch);
        enum kvf_status status = kvfi_notif_fail_encode(kvfi_span_str(registration->party.id),
                                                        core->config.tp_size, &core->scratch, NULL);
        if (status == KVF_OK)
            status = kvfi_emit_send(core, effects, peer, core->next_token);
        if (status == KVF_ENOMEM)
            return KVF_ENOMEM;
        core->next_token++;
        kvfi_core_count(core, KVF_COUNTER_negative_completions_sent);
    }
    kvfi_registration_free(core, registration);
    return KVF_OK;
}

/* ---- matching ------------------------------------------------------------------------------- */

static void pair(struct kvfi_worker_core *core, struct kvfi_send *send,
                 struct kvfi_registration *registration, struct kvfi_effects *effects)
{
    registration->send = send;
    kvfi_deadlines_cancel(&core->deadlines, &registration->timeout);
    set_state(core, registration, KVFI_REGISTRATION_MATCHED);
    kvfi_send_match(core, send, registration, effects);
}

static void refuse_ambiguous(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                             struct kvfi_effects *effects)
{
    kvfi_registration_refuse(
        core, registration, effects,
        "two requests share the base id '%.*s'; give each a transfer_id",
        (int)(registration->party.base_len < 100 ? registration->party.base_len : 100),
        registration->party.id);
}

void kvfi_registration_match_send(struct kvfi_worker_core *core, struct kvfi_send *send,
                                  struct kvfi_effects *effects)
{
    for (;;) {
        struct kvfi_match found = kvfi_party_match(&core->registrations, &send->party, is_pending);
        if (!found.party)
            return;
        if (found.many) {
            /* Nobody can tell which is meant: each of them fails, the blocks stay for a better
             * key until their lease ends. */
            kvfi_core_count(core, KVF_COUNTER_matches_ambiguous);
            enum kvfi_match_step step = found.step;
            while (found.party && found.step == step) {
                refuse_ambiguous(core, registration_of(found.party), effects);
                found = kvfi_party_match(&core->registrations, &send->party, is_pending);
            }
            continue;
        }
        struct kvfi_registration *registration = registration_of(found.party);
        struct kvfi_match back =
            kvfi_party_match(&core->sends, &registration->party, kvfi_send_is_open);
        if (back.many) {
            kvfi_core_count(core, KVF_COUNTER_matches_ambiguous);
            refuse_ambiguous(core, registration, effects);
            continue;
        }
        if (back.party == &send->party)
            pair(core, send, registration, effects);
        return; /* paired, or it has a better partner */
    }
}

static void match_registration(struct kvfi_worker_core *core,
                               struct kvfi_registration *registration, struct kvfi_effects *effects)
{
    struct kvfi_match found =
        kvfi_party_match(&core->sends, &registration->party, kvfi_send_is_open);
    if (found.many) {
        kvfi_core_count(core, KVF_COUNTER_matches_ambiguous);
        refuse_ambiguous(core, registration, effects);
        return;
    }
    if (found.party) {
        struct kvfi_send *send = send_of(found.party);
        /* Decode does want it; the withdrawal was of an earlier attempt. */
        send->withdrawn = false;
        if (send->state == KVFI_SEND_STAGED)
            kvfi_registration_match_send(core, send, effects);
        return;
    }
    if (kvfi_party_match(&core->sends, &registration->party, NULL).party)
        kvfi_registration_refuse(core, registration, effects,
                                 "another decode request already takes this prefill's blocks");
    else if (kvfi_party_match(&core->tombstones.tables[KVFI_TOMBSTONE_SEND], &registration->party,
                              NULL)
                 .party)
        kvfi_registration_refuse(core, registration, effects,
                                 "its prefill request has already ended");
}

/* Refuses the registration unless some other request of ours may still serve it. */
static void refuse_if_orphan(struct kvfi_worker_core *core, struct kvfi_party *party,
                             const char *reason, struct kvfi_effects *effects)
{
    if (is_pending(party) && !kvfi_party_match(&core->sends, party, kvfi_send_is_open).party)
        kvfi_registration_refuse(core, registration_of(party), effects, "%s", reason);
}

void kvfi_registration_refuse_for(struct kvfi_worker_core *core, const struct kvfi_party *ended,
                                  const char *reason, struct kvfi_effects *effects)
{
    struct kvfi_party *party = kvfi_party_find_id(&core->registrations, ended->id, ended->id_len);
    if (party)
        refuse_if_orphan(core, party, reason, effects);
    party = kvfi_party_find_base(&core->registrations, ended->id, ended->base_len);
    while (party) {
        struct kvfi_party *next = kvfi_party_next_base(party);
        refuse_if_orphan(core, party, reason, effects);
        party = next;
    }
}

/* ---- PUSH_REG ------------------------------------------------------------------------------- */

static bool text_fits(const char *text, size_t len_max)
{
    return text && text[0] != '\0' && strlen(text) <= len_max;
}

/* Whether so many wait under the message's base id or transfer id that the walks which matching
 * makes along them would take long. */
static bool is_crowded(const struct kvfi_worker_core *core, const struct kvfi_push_reg *message)
{
    struct kvfi_party key;
    kvfi_party_set(&key, message->request_id, message->transfer_id);
    return kvfi_party_count(&core->registrations, &key, KVFI_REGISTRATION_NAMESAKES_MAX) >=
           KVFI_REGISTRATION_NAMESAKES_MAX;
}

/* NULL, or what is wrong with it before anything is kept. */
static const char *message_fault(const struct kvfi_worker_core *core,
                                 const struct kvfi_push_reg *message)
{
    if (!text_fits(message->request_id, KVF_REQUEST_ID_LEN_MAX))
        return "request_id is missing or too long";
    if (!text_fits(message->decode_engine_id, KVF_ENGINE_ID_LEN_MAX))
        return "decode_engine_id is missing or too long";
    if (strcmp(message->decode_engine_id, core->config.engine_id) == 0)
        return "decode_engine_id is our own";
    if (!text_fits(message->decode_host, KVF_HOST_LEN_MAX))
        return "decode_host is missing or too long";
    if (message->decode_port == 0)
        return "decode_port is 0";
    if (message->remote_engine_id && strcmp(message->remote_engine_id, core->config.engine_id) != 0)
        return "it is meant for another engine";
    if (message->transfer_id && strlen(message->transfer_id) > KVF_REQUEST_ID_LEN_MAX)
        return "transfer_id is too long";
    if (count_all(core) >= core->registration_count_max ||
        block_count_of(message) > KVFI_REGISTRATION_BLOCKS_MAX - core->registration_block_count)
        return "too many registrations";
    if (is_crowded(core, message))
        return "too many registrations for one request";
    return NULL;
}

static void drop_message(struct kvfi_worker_core *core, enum kvf_counter counter,
                         const char *request_id, const char *reason, struct kvfi_effects *effects)
{
    kvfi_core_count(core, counter);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){KVFI_RECORD_INIT, .event = "dropped",
                                           .request_id = request_id, .reason = reason});
}

/*
 * What is known under this id already. False: the newcomer is dealt with. A registration of an
 * earlier agent of that engine makes way, unless its WRITE runs; one of another engine only when
 * that engine is not connected.
 */
static bool clear_way(struct kvfi_worker_core *core, struct kvfi_registration *newcomer,
                      struct kvfi_effects *effects)
{
    struct kvfi_party *party =
        kvfi_party_find_id(&core->registrations, newcomer->party.id, newcomer->party.id_len);
    if (!party)
        return true;
    struct kvfi_registration *old = registration_of(party);
    struct kvfi_send *send = old->send;
    if (old->peer != newcomer->peer && old->peer->state == KVFI_PEER_CONNECTED) {
        /* Both are alive and use one id. The first stays intact (bug B05). */
        kvfi_core_count(core, KVF_COUNTER_late_messages);
        kvfi_tombstone_discard(core->allocator, newcomer->tombstone);
        newcomer->tombstone = NULL; /* the id lives */
        kvfi_registration_refuse(core, newcomer, effects,
                                 "engine %.64s has registered a request of this id",
                                 old->peer->engine_id);
        (void)kvfi_peer_want(core, newcomer->peer);
        return false;
    }
    if (strcmp(old->sender, newcomer->sender) == 0 || (send && send->state == KVFI_SEND_WRITING)) {
        drop_message(core, KVF_COUNTER_late_messages, newcomer->party.id,
                     "this request is registered already", effects);
        kvfi_registration_free(core, newcomer);
        return false;
    }
    if (send)
        kvfi_send_reopen(core, send);
    kvfi_registration_free(core, old);
    return true;
}

/* The peer behind the message. KVF_ENOTFOUND: the message is of an agent that was replaced. */
static enum kvf_status find_peer(struct kvfi_worker_core *core, const struct kvfi_push_reg *message,
                                 const char *sender, struct kvfi_peer **peer_p)
{
    struct kvfi_peer *peer = NULL;
    KVF_TRY(kvfi_peer_get(core, message->decode_engine_id, message->decode_host,
                          message->decode_port, &peer));
    if (peer->prior_name && strcmp(peer->prior_name, sender) == 0)
        return KVF_ENOTFOUND;
    *peer_p = peer;
    return KVF_OK;
}

/* Another agent registers for the engine that we are connected to. It is where it says. */
static void replace_agent(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                          const struct kvfi_push_reg *message)
{
    kvfi_peer_disconnect(core, peer, "another agent registers for this engine");
    kvfi_peer_set_address(peer, message->decode_host, message->decode_port);
}

static enum kvf_status take_message(struct kvfi_worker_core *core,
                                    const struct kvfi_push_reg *message, const char *sender,
                                    struct kvfi_effects *effects)
{
    const char *fault = message_fault(core, message);
    if (fault) {
        drop_message(core, KVF_COUNTER_bad_messages, message->request_id, fault, effects);
        return KVF_OK;
    }
    struct kvfi_peer *peer = NULL;
    enum kvf_status status = find_peer(core, message, sender, &peer);
    if (status == KVF_ENOMEM)
        return KVF_ENOMEM;
    if (status != KVF_OK) {
        drop_message(core,
                     status == KVF_ELIMIT ? KVF_COUNTER_bad_messages : KVF_COUNTER_late_messages,
                     message->request_id,
                     status == KVF_ELIMIT ? "too many peers" : "its sender was replaced", effects);
        return KVF_OK;
    }
    struct kvfi_registration *registration = make(core, message, sender, peer);
    if (!registration)
        return KVF_ENOMEM;
    if (!clear_way(core, registration, effects))
        return KVF_OK;
    if (peer->state == KVFI_PEER_CONNECTED && !kvfi_peer_is_agent(peer, sender))
        replace_agent(core, peer, message);
    /* The handshake can run while prefill computes. */
    (void)kvfi_peer_want(core, peer);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){.event = "registered",
                                           .request_id = message->request_id,
                                           .peer = peer->engine_id,
                                           .block_count = (int64_t)registration->block_count});
    if (kvfi_tombstones_find(&core->tombstones, KVFI_TOMBSTONE_REGISTRATION, message->request_id,
                             strlen(message->request_id))) {
        kvfi_core_count(core, KVF_COUNTER_late_messages);
        kvfi_registration_refuse(core, registration, effects,
                                 "this request was already served, refused or withdrawn");
    } else if (message->decode_tp_size != 1) {
        kvfi_registration_refuse(core, registration, effects,
                                 "decode_tp_size is %u, prefill supports 1",
                                 message->decode_tp_size);
    } else if (message->group_count > 1) {
        kvfi_registration_refuse(core, registration, effects,
                                 "%zu groups of blocks, prefill supports 1", message->group_count);
    } else {
        kvfi_party_add(&core->registrations, &registration->party);
        kvfi_deadlines_set(&core->deadlines, &registration->timeout,
                           kvfi_ns_add(core->now_ns, core->config.registration_timeout_ns));
        match_registration(core, registration, effects);
    }
    return KVF_OK;
}

enum kvf_status kvfi_registration_on_message(struct kvfi_worker_core *core,
                                             const struct kvfi_event *event,
                                             struct kvfi_effects *effects)
{
    struct kvf_error error = {.status = KVF_OK};
    struct kvfi_push_reg message;
    enum kvf_status status =
        kvfi_push_reg_decode(event->notification.message, event->notification.message_len,
                             core->allocator, &message, &error);
    if (status == KVF_ENOMEM)
        return KVF_ENOMEM;
    if (status != KVF_OK) {
        drop_message(core, KVF_COUNTER_bad_messages, NULL, error.text, effects);
        return KVF_OK;
    }
    status = take_message(core, &message, event->notification.sender, effects);
    if (status == KVF_OK)
        kvfi_core_count(core, KVF_COUNTER_registrations_received);
    kvfi_push_reg_free(&message);
    return status;
}

/* ---- PUSH_DROP ------------------------------------------------------------------------------ */

/* Decode will not come for what this key means. */
static bool withdraw_send(struct kvfi_worker_core *core, const struct kvfi_party *key)
{
    struct kvfi_match found = kvfi_party_match(&core->sends, key, kvfi_send_is_open);
    if (!found.party || found.many)
        return false;
    struct kvfi_send *send = send_of(found.party);
    if (send->state == KVFI_SEND_STAGED)
        kvfi_send_end(core, send, KVF_ECANCELED, "withdrawn by decode");
    else
        send->withdrawn = true; /* freed as soon as it is staged */
    return true;
}

/* An answer to one whom we know. If it gets lost, decode asks again. */
static void answer(struct kvfi_worker_core *core, const char *sender, const char *id,
                   struct kvfi_effects *effects)
{
    const struct kvfi_peer *peer = kvfi_peer_by_agent_name(core, sender);
    if (!peer || peer->state != KVFI_PEER_CONNECTED || !(peer->offer.caps & KVFI_CAP_PUSH_FAIL))
        return;
    kvfi_buf_clear(&core->scratch);
    if (kvfi_notif_fail_encode(kvfi_span_str(id), core->config.tp_size, &core->scratch, NULL) !=
            KVF_OK ||
        kvfi_emit_send(core, effects, peer, core->next_token) != KVF_OK)
        return;
    core->next_token++;
    kvfi_core_count(core, KVF_COUNTER_negative_completions_sent);
}

static void drop_known(struct kvfi_worker_core *core, struct kvfi_registration *registration,
                       struct kvfi_effects *effects)
{
    struct kvfi_send *send = registration->send;
    if ((send && send->state == KVFI_SEND_WRITING) ||
        registration->state == KVFI_REGISTRATION_SETTLING)
        return; /* its end is the answer */
    if (send)
        kvfi_send_end(core, send, KVF_ECANCELED, "withdrawn by decode");
    kvfi_registration_refuse(core, registration, effects, "withdrawn by decode");
    if (!send)
        (void)withdraw_send(core, &registration->party);
}

enum kvf_status kvfi_registration_on_drop(struct kvfi_worker_core *core, const char *sender,
                                          struct kvfi_span request_id, struct kvfi_effects *effects)
{
    if (request_id.len > KVF_REQUEST_ID_LEN_MAX || memchr(request_id.data, '\0', request_id.len)) {
        kvfi_core_count(core, KVF_COUNTER_bad_messages);
        return KVF_OK;
    }
    char id[KVF_REQUEST_ID_LEN_MAX + 1];
    memcpy(id, request_id.data, request_id.len);
    id[request_id.len] = '\0';
    struct kvfi_party *party = kvfi_party_find_id(&core->registrations, id, request_id.len);
    if (party) {
        struct kvfi_registration *registration = registration_of(party);
        if (strcmp(registration->sender, sender) != 0)
            kvfi_core_count(core, KVF_COUNTER_late_messages);
        else
            drop_known(core, registration, effects);
        kvfi_core_count(core, KVF_COUNTER_withdrawals_received);
        return KVF_OK;
    }
    if (!kvfi_tombstones_find(&core->tombstones, KVFI_TOMBSTONE_REGISTRATION, id, request_id.len)) {
        struct kvfi_tombstone *tombstone =
            kvfi_tombstone_make(core->allocator, KVFI_TOMBSTONE_REGISTRATION, id, NULL);
        if (!tombstone)
            return KVF_ENOMEM;
        const struct kvfi_party_table *ended = &core->tombstones.tables[KVFI_TOMBSTONE_SEND];
        tombstone->withdraws = !withdraw_send(core, &tombstone->party) &&
                               !kvfi_party_match(&core->sends, &tombstone->party, NULL).party &&
                               !kvfi_party_match(ended, &tombstone->party, NULL).party;
        kvfi_tombstones_put(&core->tombstones, tombstone, core->now_ns);
    }
    kvfi_core_count(core, KVF_COUNTER_withdrawals_received);
    answer(core, sender, id, effects);
    return KVF_OK;
}
