/* SPDX-License-Identifier: Apache-2.0 */
#include "core/core.h"

void kvfi_worker_core_usage(const struct kvfi_worker_core *core, struct kvf_worker_usage *usage)
{
    const size_t *sends = core->send_counts;
    const size_t *registrations = core->registration_counts;
    const size_t *receives = core->receive_counts;
    struct kvf_agent_usage agent = usage->agent;
    size_t given_up = receives[KVFI_RECEIVE_WITHDRAWN] + receives[KVFI_RECEIVE_SETTLING];
    *usage = (struct kvf_worker_usage){
        .registrations = registrations[KVFI_REGISTRATION_PENDING] +
                         registrations[KVFI_REGISTRATION_SETTLING] +
                         registrations[KVFI_REGISTRATION_REFUSED],
        .staged = sends[KVFI_SEND_STAGED],
        .deferred = sends[KVFI_SEND_DEFERRED],
        .writes = sends[KVFI_SEND_WRITING],
        .leases = sends[KVFI_SEND_STAGED] + sends[KVFI_SEND_DEFERRED] + sends[KVFI_SEND_WRITING],
        .receives = receives[KVFI_RECEIVE_NOTICE] + receives[KVFI_RECEIVE_WAITING] +
                    receives[KVFI_RECEIVE_SENT] + given_up,
        .quarantined = core->quarantined_send_count + given_up,
        .handshakes =
            core->peer_counts[KVFI_PEER_HANDSHAKING] + core->peer_counts[KVFI_PEER_LOADING],
        .peers = core->peer_counts[KVFI_PEER_CONNECTED],
        .tombstones = core->tombstones.count,
        .agent = agent,
    };
}

/* ---- invariants ----------------------------------------------------------------------------- */

/* What is wrong with one object, or NULL. */
typedef const char *(*check_fn)(const struct kvfi_worker_core *core,
                                const struct kvfi_index_node *node);

static const char *check_each(const struct kvfi_worker_core *core, const struct kvfi_index *index,
                              check_fn check)
{
    const char *fault = NULL;
    for (size_t i = 0; !fault && i < index->bucket_count; i++) {
        const struct kvfi_index_node *node = index->buckets[i];
        for (; !fault && node; node = node->next)
            fault = check(core, node);
    }
    return fault;
}

static const char *check_send(const struct kvfi_worker_core *core,
                              const struct kvfi_index_node *node)
{
    const struct kvfi_send *send = KVFI_CONTAINER_OF(node, struct kvfi_send, party.by_id);
    bool matched = send->state == KVFI_SEND_DEFERRED || send->state == KVFI_SEND_WRITING;
    bool leased = matched || send->state == KVFI_SEND_STAGED;
    if (matched != (send->registration != NULL))
        return "send: matched without a registration, or the reverse";
    if (matched && send->registration->send != send)
        return "send: its registration belongs to another";
    if (send->by_token.linked != (send->state == KVFI_SEND_WRITING))
        return "send: a token without a WRITE, or the reverse";
    if (send->quarantined && send->state != KVFI_SEND_WRITING)
        return "send: quarantined without a WRITE";
    if ((leased && !send->quarantined) != (send->lease.position != 0))
        return "send: a lease without a deadline, or the reverse";
    if (!send->tombstone)
        return "send: cannot be remembered";
    return NULL;
}

static const char *check_registration(const struct kvfi_worker_core *core,
                                      const struct kvfi_index_node *node)
{
    const struct kvfi_registration *registration =
        KVFI_CONTAINER_OF(node, struct kvfi_registration, party.by_id);
    if (registration->state == KVFI_REGISTRATION_REFUSED)
        return "registration: refused and still in the table";
    if ((registration->state == KVFI_REGISTRATION_MATCHED) != (registration->send != NULL))
        return "registration: matched without a send, or the reverse";
    if (registration->send && registration->send->registration != registration)
        return "registration: its send belongs to another";
    if (!registration->send && registration->timeout.position == 0)
        return "registration: waits without a deadline";
    if (kvfi_tombstones_find(&core->tombstones, KVFI_TOMBSTONE_REGISTRATION, registration->party.id,
                             registration->party.id_len))
        return "registration: alive and ended at once";
    return NULL;
}

static const char *check_receive(const struct kvfi_worker_core *core,
                                 const struct kvfi_index_node *node)
{
    const struct kvfi_receive *receive = KVFI_CONTAINER_OF(node, struct kvfi_receive, by_id);
    if (receive->state == KVFI_RECEIVE_OVER)
        return "receive: over and still in the table";
    if (!receive->peer || kvfi_list_empty(&receive->of_peer))
        return "receive: has no peer";
    if (receive->state == KVFI_RECEIVE_SENT && receive->completed >= receive->expected)
        return "receive: complete and still waiting";
    bool attended =
        receive->peer->state != KVFI_PEER_IDLE && receive->peer->state != KVFI_PEER_BACKOFF;
    if (!attended && receive->deadline.position == 0)
        return "receive: waits for a peer that nobody asks";
    return NULL;
}

static const char *check_peer(const struct kvfi_worker_core *core,
                              const struct kvfi_index_node *node)
{
    const struct kvfi_peer *peer = KVFI_CONTAINER_OF(node, struct kvfi_peer, by_engine_id);
    bool connected = peer->state == KVFI_PEER_CONNECTED;
    bool asking = peer->state == KVFI_PEER_HANDSHAKING || peer->state == KVFI_PEER_LOADING;
    if (connected != peer->by_id.linked || asking != peer->by_handshake.linked)
        return "peer: is found where it should not be, or the reverse";
    if (connected == (peer->deadline.position != 0))
        return "peer: has no deadline, or one too many";
    if ((connected || peer->state == KVFI_PEER_LOADING) != peer->by_agent_name.linked)
        return "peer: its agent's name does not lead to it, or the reverse";
    return NULL;
}

const char *kvfi_worker_core_check(const struct kvfi_worker_core *core)
{
    const char *fault = kvfi_deadlines_check(&core->deadlines);
    fault = fault ? fault : check_each(core, &core->sends.by_id, check_send);
    fault = fault ? fault : check_each(core, &core->registrations.by_id, check_registration);
    fault = fault ? fault : check_each(core, &core->receives, check_receive);
    fault = fault ? fault : check_each(core, &core->peers, check_peer);
    if (fault)
        return fault;
    if (core->write_tokens.count != core->send_counts[KVFI_SEND_WRITING])
        return "send: WRITEs are miscounted";
    if (core->quarantined_send_count > core->send_counts[KVFI_SEND_WRITING])
        return "send: quarantine is miscounted";
    if (core->tombstones.count > core->tombstones.count_max)
        return "tombstones: too many";
    return NULL;
}
