/* SPDX-License-Identifier: Apache-2.0 */
#include "core/core.h"

#include <assert.h>
#include <string.h>

static const unsigned __attribute__((unused)) legal_next[KVFI_PEER_STATE_COUNT] = {
#define KVFI_PEER_STATE_NEXT(state, next) [KVFI_PEER_##state] = (next),
    KVFI_PEER_STATE_LIST(KVFI_PEER_STATE_NEXT)
#undef KVFI_PEER_STATE_NEXT
};

static struct kvfi_receive *receive_of(struct kvfi_list *node)
{
    return KVFI_CONTAINER_OF(node, struct kvfi_receive, of_peer);
}

static struct kvfi_registration *registration_of(struct kvfi_list *node)
{
    return KVFI_CONTAINER_OF(node, struct kvfi_registration, of_peer);
}

static void move(struct kvfi_worker_core *core, struct kvfi_peer *peer, enum kvfi_peer_state state)
{
    assert(legal_next[peer->state] & (1u << state));
    core->peer_counts[peer->state]--;
    core->peer_counts[state]++;
    peer->state = state;
    uint64_t at = UINT64_MAX;
    if (state == KVFI_PEER_HANDSHAKING || state == KVFI_PEER_LOADING)
        /* The driver ends each attempt itself; this is for a driver that does not. */
        at = kvfi_ns_add(core->now_ns, 2 * core->config.handshake_timeout_ns);
    else if (state != KVFI_PEER_CONNECTED)
        at = kvfi_ns_add(core->now_ns, KVFI_PEER_FORGET_NS);
    kvfi_deadlines_set(&core->deadlines, &peer->deadline, at);
}

void kvfi_peer_free(struct kvfi_worker_core *core, struct kvfi_peer *peer)
{
    kvfi_index_remove(&core->peers, &peer->by_engine_id);
    kvfi_index_remove(&core->peers_by_agent_name, &peer->by_agent_name);
    kvfi_index_remove(&core->peers_by_id, &peer->by_id);
    kvfi_index_remove(&core->peers_by_handshake, &peer->by_handshake);
    kvfi_list_remove(&peer->work.link);
    kvfi_deadlines_release(&core->deadlines, &peer->deadline);
    core->peer_counts[peer->state]--;
    kvfi_offer_free(core, &peer->offer);
    kvfi_wire_free(core->allocator, peer->prior_name);
    kvfi_wire_free(core->allocator, peer);
}

void kvfi_peer_set_address(struct kvfi_peer *peer, const char *host, uint16_t port)
{
    memcpy(peer->host, host, strlen(host) + 1);
    peer->port = port;
}

enum kvf_status kvfi_peer_get(struct kvfi_worker_core *core, const char *engine_id,
                              const char *host, uint16_t port, struct kvfi_peer **peer_p)
{
    size_t engine_id_len = strlen(engine_id);
    size_t host_len = strlen(host);
    if (engine_id_len > KVF_ENGINE_ID_LEN_MAX || host_len > KVF_HOST_LEN_MAX)
        return KVF_ELIMIT;
    struct kvfi_index_node *node = kvfi_index_find(&core->peers, engine_id, engine_id_len);
    struct kvfi_peer *peer = node ? KVFI_CONTAINER_OF(node, struct kvfi_peer, by_engine_id) : NULL;
    if (!peer) {
        if (core->peers.count >= KVFI_PEER_COUNT_MAX)
            return KVF_ELIMIT;
        KVF_TRY(kvfi_deadlines_reserve(&core->deadlines));
        peer = kvfi_wire_alloc(core->allocator, sizeof(*peer) + engine_id_len + 1);
        if (!peer) {
            core->deadlines.reserved--;
            return KVF_ENOMEM;
        }
        memset(peer, 0, sizeof(*peer));
        char *text = (char *)(peer + 1);
        memcpy(text, engine_id, engine_id_len + 1);
        peer->engine_id = text;
        peer->work.kind = KVFI_WORK_PEER;
        peer->deadline.kind = KVFI_WORK_PEER;
        kvfi_list_init(&peer->work.link);
        kvfi_list_init(&peer->receives);
        kvfi_list_init(&peer->registrations);
        kvfi_index_add(&core->peers, &peer->by_engine_id, peer->engine_id, engine_id_len);
        kvfi_deadlines_set(&core->deadlines, &peer->deadline,
                           kvfi_ns_add(core->now_ns, KVFI_PEER_FORGET_NS));
        core->peer_counts[KVFI_PEER_IDLE]++;
    }
    if (peer->state == KVFI_PEER_IDLE || peer->state == KVFI_PEER_BACKOFF)
        kvfi_peer_set_address(peer, host, port);
    *peer_p = peer;
    return KVF_OK;
}

enum kvfi_peer_wish kvfi_peer_want(struct kvfi_worker_core *core, struct kvfi_peer *peer)
{
    switch (peer->state) {
    case KVFI_PEER_CONNECTED:
        return KVFI_PEER_READY;
    case KVFI_PEER_HANDSHAKING:
    case KVFI_PEER_LOADING:
        return KVFI_PEER_WAIT;
    case KVFI_PEER_BACKOFF:
        if (core->now_ns < peer->not_before_ns)
            return KVFI_PEER_REFUSED;
        break;
    case KVFI_PEER_IDLE:
        break;
    case KVFI_PEER_STATE_COUNT:
        return KVFI_PEER_REFUSED;
    }
    move(core, peer, KVFI_PEER_HANDSHAKING);
    peer->handshake_id = core->next_handshake_id++;
    kvfi_index_add(&core->peers_by_handshake, &peer->by_handshake, &peer->handshake_id,
                   sizeof(peer->handshake_id));
    peer->owes_handshake = true;
    kvfi_core_todo(core, &peer->work);
    return KVFI_PEER_WAIT;
}

bool kvfi_peer_is_agent(const struct kvfi_peer *peer, const char *agent_name)
{
    return peer->offer.agent_name && strcmp(peer->offer.agent_name, agent_name) == 0;
}

struct kvfi_peer *kvfi_peer_by_agent_name(const struct kvfi_worker_core *core, const char *name)
{
    struct kvfi_index_node *node = kvfi_index_find(&core->peers_by_agent_name, name, strlen(name));
    return node ? KVFI_CONTAINER_OF(node, struct kvfi_peer, by_agent_name) : NULL;
}

/* ---- the ends of an attempt ----------------------------------------------------------------- */

static uint64_t backoff_ns(unsigned failures)
{
    if (failures <= 1)
        return 0;
    unsigned shift = failures - 2 < 6 ? failures - 2 : 6;
    uint64_t ns = 1000000000ull << shift;
    return ns < KVFI_BACKOFF_MAX_NS ? ns : KVFI_BACKOFF_MAX_NS;
}

/*
 * Whether this end of an attempt says that the agent we knew is gone: silence, or an answer that is
 * not its own (a process never changes its answer). Want of memory here, for one, says nothing;
 * but after many attempts (a minute of them) without an answer it is given up whatever the reason,
 * because nobody waits for ever (P2). One that answers lives and may write, whatever comes after
 * the answer (P1).
 */
static bool shows_absence(const struct kvfi_peer *peer, enum kvf_status status)
{
    if (peer->state != KVFI_PEER_HANDSHAKING)
        return false;
    return peer->unanswered + 1 >= KVFI_PEER_UNREACHABLE_FAILURES ||
           (status == KVF_ETIMEDOUT || status == KVF_EDISCONNECTED || status == KVF_EMISMATCH ||
            status == KVF_EFORMAT || status == KVF_ENOTSUP);
}

static void fail(struct kvfi_worker_core *core, struct kvfi_peer *peer, enum kvf_status status,
                 const char *reason, struct kvfi_effects *effects)
{
    peer->absent = peer->absent || shows_absence(peer, status);
    if (peer->state == KVFI_PEER_HANDSHAKING)
        peer->unanswered++;
    kvfi_index_remove(&core->peers_by_handshake, &peer->by_handshake);
    kvfi_index_remove(&core->peers_by_agent_name, &peer->by_agent_name);
    peer->owes_handshake = false;
    peer->owes_load = false;
    peer->failures++;
    unsigned in_a_row = peer->failures > peer->early_losses ? peer->failures : peer->early_losses;
    peer->not_before_ns = kvfi_ns_add(core->now_ns, backoff_ns(in_a_row));
    peer->last_status = status;
    kvfi_core_set_reason(peer->last_reason, "handshake with %.64s at %.64s:%u failed: %s",
                         peer->engine_id, peer->host, peer->port, reason);
    move(core, peer, KVFI_PEER_BACKOFF);
    kvfi_core_count(core, KVF_COUNTER_failed_handshakes);
    kvfi_core_count(core, KVF_COUNTER_failed_transfers);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){KVFI_RECORD_INIT, .event = "handshake_failed",
                                           .peer = peer->engine_id, .reason = peer->last_reason});

    for (struct kvfi_list *at = peer->receives.next, *next; at != &peer->receives; at = next) {
        next = at->next;
        kvfi_receive_on_peer_failed(core, receive_of(at), effects);
    }
    for (struct kvfi_list *at = peer->registrations.next, *next; at != &peer->registrations;
         at = next) {
        next = at->next;
        struct kvfi_registration *registration = registration_of(at);
        if (registration->state == KVFI_REGISTRATION_REFUSED) {
            /* Decode cannot be told. Its watchdog ends the request. */
            kvfi_core_count(core, KVF_COUNTER_failed_notifications);
            kvfi_registration_free(core, registration);
        } else if (registration->send && registration->send->state == KVFI_SEND_DEFERRED) {
            kvfi_send_end(core, registration->send, status, peer->last_reason);
            kvfi_registration_end(core, registration);
        }
    }
}

/* Everybody who waited goes on; what an earlier agent of the engine said is void. */
static void ready(struct kvfi_worker_core *core, struct kvfi_peer *peer)
{
    for (struct kvfi_list *at = peer->receives.next, *next; at != &peer->receives; at = next) {
        next = at->next;
        kvfi_receive_on_peer_ready(core, receive_of(at));
    }
    for (struct kvfi_list *at = peer->registrations.next, *next; at != &peer->registrations;
         at = next) {
        next = at->next;
        struct kvfi_registration *registration = registration_of(at);
        struct kvfi_send *send = registration->send;
        if (send && send->state == KVFI_SEND_DEFERRED) {
            kvfi_core_todo(core, &send->work); /* it looks at the agent's name itself */
        } else if (registration->state == KVFI_REGISTRATION_REFUSED) {
            kvfi_core_todo(core, &registration->work);
        } else if (!send && !kvfi_peer_is_agent(peer, registration->sender)) {
            kvfi_core_count(core, KVF_COUNTER_late_messages);
            kvfi_registration_end(core, registration);
        }
    }
}

static struct kvfi_peer *by_handshake(const struct kvfi_worker_core *core, uint64_t handshake_id,
                                      enum kvfi_peer_state state)
{
    struct kvfi_index_node *node =
        kvfi_index_find(&core->peers_by_handshake, &handshake_id, sizeof(handshake_id));
    struct kvfi_peer *peer = node ? KVFI_CONTAINER_OF(node, struct kvfi_peer, by_handshake) : NULL;
    return peer && peer->state == state ? peer : NULL;
}

static void take_offer(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                       const struct kvfi_offer *offer)
{
    char *old_name = peer->offer.agent_name;
    if (!old_name || strcmp(old_name, offer->agent_name) != 0) {
        peer->incarnation++;
        if (old_name) {
            kvfi_wire_free(core->allocator, peer->prior_name);
            peer->prior_name = old_name;
            peer->offer.agent_name = NULL;
        }
    }
    kvfi_offer_free(core, &peer->offer);
    peer->offer = *offer;
    kvfi_index_add(&core->peers_by_agent_name, &peer->by_agent_name, peer->offer.agent_name,
                   strlen(peer->offer.agent_name));
}

void kvfi_peer_on_reply(struct kvfi_worker_core *core, const struct kvfi_event *event,
                        struct kvfi_effects *effects)
{
    struct kvfi_peer *peer =
        by_handshake(core, event->handshake_reply.handshake_id, KVFI_PEER_HANDSHAKING);
    if (!peer)
        return; /* given up before */
    if (event->handshake_reply.status != KVF_OK) {
        const char *reason = event->handshake_reply.reason;
        fail(core, peer, event->handshake_reply.status,
             reason ? reason : kvf_status_text(event->handshake_reply.status), effects);
        return;
    }
    struct kvf_error error = {.status = KVF_OK};
    struct kvfi_offer offer;
    enum kvf_status status = kvfi_handshake_check(
        core, peer->engine_id, peer->host, peer->port, event->handshake_reply.payload,
        event->handshake_reply.payload_len, &offer, &error);
    if (status != KVF_OK) {
        fail(core, peer, status, error.text, effects);
        return;
    }
    struct kvfi_peer *other = kvfi_peer_by_agent_name(core, offer.agent_name);
    if (other) {
        char reason[KVF_REASON_LEN_MAX + 1];
        kvfi_core_set_reason(reason, "its agent is already known as engine %.64s",
                             other->engine_id);
        kvfi_offer_free(core, &offer);
        fail(core, peer, KVF_EMISMATCH, reason, effects);
        return;
    }
    take_offer(core, peer, &offer);
    peer->absent = false;
    peer->unanswered = 0;
    move(core, peer, KVFI_PEER_LOADING);
    peer->owes_load = true;
    kvfi_core_todo(core, &peer->work);
}

enum kvf_status kvfi_peer_on_loaded(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                    struct kvfi_effects *effects)
{
    struct kvfi_peer *peer = by_handshake(core, event->peer_loaded.handshake_id, KVFI_PEER_LOADING);
    struct kvf_peer_id id = event->peer_loaded.peer;
    if (event->peer_loaded.status != KVF_OK) {
        const char *reason = event->peer_loaded.reason;
        if (peer)
            fail(core, peer, event->peer_loaded.status,
                 reason ? reason : kvf_status_text(event->peer_loaded.status), effects);
        return KVF_OK;
    }
    struct kvfi_index_node *same = kvfi_index_find(&core->peers_by_id, &id.value, sizeof(id.value));
    if (!peer) {
        /* Given up before. Nobody will use what was loaded. */
        if (same)
            return KVF_OK;
        struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_DROP_PEER);
        if (!effect)
            return KVF_ENOMEM;
        effect->drop_peer.peer = id;
        return KVF_OK;
    }
    if (same) {
        fail(core, peer, KVF_EINTERNAL, "the agent gave it the id of another peer", effects);
        return KVF_OK;
    }
    kvfi_index_remove(&core->peers_by_handshake, &peer->by_handshake);
    peer->id = id;
    kvfi_index_add(&core->peers_by_id, &peer->by_id, &peer->id.value, sizeof(peer->id.value));
    peer->connected_ns = core->now_ns;
    peer->failures = 0;
    move(core, peer, KVFI_PEER_CONNECTED);
    kvfi_core_count(core, KVF_COUNTER_handshakes);
    kvfi_emit_record(
        core, effects,
        &(struct kvfi_record){KVFI_RECORD_INIT, .event = "handshake", .peer = peer->engine_id});
    ready(core, peer);
    return KVF_OK;
}

/* ---- loss ----------------------------------------------------------------------------------- */

void kvfi_peer_disconnect(struct kvfi_worker_core *core, struct kvfi_peer *peer, const char *reason)
{
    kvfi_index_remove(&core->peers_by_id, &peer->by_id);
    kvfi_index_remove(&core->peers_by_agent_name, &peer->by_agent_name);
    peer->drop_id = peer->id;
    peer->id.value = 0;
    move(core, peer, KVFI_PEER_IDLE);
    kvfi_core_todo(core, &peer->work);
    for (struct kvfi_list *at = peer->receives.next, *next; at != &peer->receives; at = next) {
        next = at->next;
        kvfi_receive_on_peer_lost(core, receive_of(at), reason);
    }
}

void kvfi_peer_on_lost(struct kvfi_worker_core *core, const struct kvfi_event *event,
                       struct kvfi_effects *effects)
{
    uint64_t id = event->peer_lost.peer.value;
    struct kvfi_index_node *node = kvfi_index_find(&core->peers_by_id, &id, sizeof(id));
    if (!node)
        return; /* dropped before */
    struct kvfi_peer *peer = KVFI_CONTAINER_OF(node, struct kvfi_peer, by_id);
    const char *reason = event->peer_lost.reason ? event->peer_lost.reason : "connection failed";
    kvfi_core_count(core, KVF_COUNTER_peers_lost);
    kvfi_emit_record(core, effects,
                     &(struct kvfi_record){KVFI_RECORD_INIT, .event = "peer_lost",
                                           .peer = peer->engine_id, .reason = reason});
    bool early = core->now_ns - peer->connected_ns < KVFI_PEER_PROVEN_NS;
    kvfi_peer_disconnect(core, peer, reason);
    peer->early_losses = early ? peer->early_losses + 1 : 0;
    if (backoff_ns(peer->early_losses) > 0) {
        /* The side channel answers and the connection does not hold. Without a pause this would go
         * round as fast as the network does. */
        fail(core, peer, KVF_EDISCONNECTED, reason, effects);
        return;
    }
    /*
     * Ask again at once when somebody depends on the answer. The same agent: only the connection
     * broke, and prefill may still write for all we know. Another one, or none: the old agent is
     * gone, its registrations are void and nothing of it will land after peer_settle_ns.
     */
    if (!kvfi_list_empty(&peer->receives) || !kvfi_list_empty(&peer->registrations))
        (void)kvfi_peer_want(core, peer);
}

void kvfi_peer_on_deadline(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                           struct kvfi_effects *effects)
{
    if (peer->state == KVFI_PEER_HANDSHAKING || peer->state == KVFI_PEER_LOADING)
        fail(core, peer, KVF_ETIMEDOUT, "no answer", effects);
    else if (kvfi_list_empty(&peer->receives) && kvfi_list_empty(&peer->registrations) &&
             kvfi_list_empty(&peer->work.link))
        kvfi_peer_free(core, peer);
    else
        kvfi_deadlines_set(&core->deadlines, &peer->deadline,
                           kvfi_ns_add(core->now_ns, KVFI_PEER_FORGET_NS));
}

/* ---- effects -------------------------------------------------------------------------------- */

static enum kvf_status flush_handshake(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                                       struct kvfi_effects *effects)
{
    const char *engine_id = kvfi_effects_text(effects, peer->engine_id);
    const char *host = kvfi_effects_text(effects, peer->host);
    struct kvfi_effect *effect =
        engine_id && host ? kvfi_effects_add(effects, KVFI_EFFECT_HANDSHAKE) : NULL;
    if (!effect)
        return KVF_ENOMEM;
    effect->handshake.handshake_id = peer->handshake_id;
    effect->handshake.engine_id = engine_id;
    effect->handshake.host = host;
    effect->handshake.port = peer->port;
    effect->handshake.timeout_ns = core->config.handshake_timeout_ns;
    peer->owes_handshake = false;
    return KVF_OK;
}

static enum kvf_status flush_load(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                                  struct kvfi_effects *effects)
{
    void *blob = kvfi_effects_copy(effects, peer->offer.blob, peer->offer.blob_len);
    struct kvfi_effect *effect = blob ? kvfi_effects_add(effects, KVFI_EFFECT_LOAD_PEER) : NULL;
    if (!effect)
        return KVF_ENOMEM;
    effect->load_peer.handshake_id = peer->handshake_id;
    effect->load_peer.blob = blob;
    effect->load_peer.blob_len = peer->offer.blob_len;
    kvfi_wire_free(core->allocator, peer->offer.blob);
    peer->offer.blob = NULL;
    peer->offer.blob_len = 0;
    peer->owes_load = false;
    return KVF_OK;
}

enum kvf_status kvfi_peer_flush(struct kvfi_worker_core *core, struct kvfi_peer *peer,
                                struct kvfi_effects *effects)
{
    if (peer->drop_id.value) {
        struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_DROP_PEER);
        if (!effect)
            return KVF_ENOMEM;
        effect->drop_peer.peer = peer->drop_id;
        peer->drop_id.value = 0;
    }
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    enum kvf_status status = KVF_OK;
    if (peer->owes_handshake)
        status = flush_handshake(core, peer, effects);
    else if (peer->owes_load)
        status = flush_load(core, peer, effects);
    if (status != KVF_OK)
        kvfi_effects_rollback(effects, mark);
    return status;
}
