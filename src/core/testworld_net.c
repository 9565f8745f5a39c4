/* SPDX-License-Identifier: Apache-2.0 */
#include "core/testworld_internal.h"

#include "wire/bytes.h"
#include "wire/handshake.h"
#include "wire/nixl_metadata.h"
#include "wire/notif.h"
#include "wire/push_reg.h"

#include <string.h>

/* ---- the network ---------------------------------------------------------------------------- */

struct w_flying *w_int_fly(struct w_world *w, enum w_flying_kind kind, uint64_t delay_ns,
                           enum w_side to)
{
    MUST(w->flying_count < W_FLYING_MAX);
    struct w_flying *f = &w->flying[w->flying_count++];
    memset(f, 0, sizeof(*f));
    f->kind = kind;
    f->at_ns = w->now_ns + delay_ns;
    f->order = w->order++;
    f->to = to;
    f->to_start = w->engines[to].starts;
    return f;
}

void w_int_set_bytes(struct w_flying *f, const void *bytes, size_t len)
{
    f->bytes = malloc(len ? len : 1);
    MUST(f->bytes);
    memcpy(f->bytes, bytes, len);
    f->len = len;
}

void w_int_describe(const void *bytes, size_t len, char text[160])
{
    struct kvfi_notif notif;
    if (kvfi_notif_classify(bytes, len, &notif, NULL) != KVF_OK) {
        snprintf(text, 160, "(%zu bytes of rubbish)", len);
    } else if (notif.kind == KVFI_NOTIF_PUSH_REG) {
        struct kvfi_push_reg reg;
        if (kvfi_push_reg_decode(bytes, len, NULL, &reg, NULL) != KVF_OK) {
            snprintf(text, 160, "PUSH_REG (malformed)");
            return;
        }
        snprintf(text, 160, "PUSH_REG %s, %zu blocks", reg.request_id,
                 reg.group_count ? reg.groups[0].count : 0);
        kvfi_push_reg_free(&reg);
    } else {
        snprintf(text, 160, "%.*s", (int)(len < 150 ? len : 150), (const char *)bytes);
    }
}

static bool peer_alive(struct w_world *w, enum w_side from, uint64_t peer, enum w_side *side_p)
{
    struct w_engine *e = &w->engines[from];
    if (peer == 0 || peer > e->peer_count || !e->peers[peer - 1].loaded)
        return false;
    *side_p = e->peers[peer - 1].side;
    struct w_engine *target = &w->engines[*side_p];
    return target->alive && target->starts == e->peers[peer - 1].start;
}

void w_int_lose_peer(struct w_world *w, enum w_side observer, uint64_t peer)
{
    struct w_engine *e = &w->engines[observer];
    if (peer == 0 || peer > e->peer_count || !e->peers[peer - 1].loaded ||
        e->peers[peer - 1].lost_told)
        return;
    e->peers[peer - 1].lost_told = true;
    w_int_fly(w, W_LOST, W_MS, observer)->id = peer;
}

static void send_message(struct w_world *w, enum w_side from, uint64_t peer, uint64_t token,
                         const void *bytes, size_t len)
{
    char text[160];
    w_int_describe(bytes, len, text);
    w_note(w, "%s sends %s", w_int_side_names[from], text);
    enum w_side to = W_P;
    bool registration = strncmp(text, "PUSH_REG", 8) == 0;
    bool alive = peer_alive(w, from, peer, &to);
    if (!alive || (registration && w->send_status != KVF_OK)) {
        struct w_flying *f = w_int_fly(w, W_SEND_FAILED, w->wire_ns, from);
        f->token = token;
        f->status = alive ? w->send_status : KVF_EDISCONNECTED;
        if (!alive)
            w_int_lose_peer(w, from, peer);
        return;
    }
    uint64_t delays[4] = {w->wire_ns, w->wire_ns, w->wire_ns, w->wire_ns};
    unsigned copies = w->network ? w->network(w, from, text, delays) : 1;
    for (unsigned i = 0; i < copies; i++) {
        struct w_flying *f = w_int_fly(w, W_NOTIFICATION, delays[i], to);
        snprintf(f->sender, sizeof(f->sender), "%s", w->engines[from].agent_name);
        w_int_set_bytes(f, bytes, len);
    }
    if (copies == 0)
        w_note(w, "  lost: %s", text);
}

/* ---- P1 and P4, from outside ---------------------------------------------------------------- */

bool w_int_owned_by(struct w_engine *e, uint32_t block, const char *id)
{
    return block < W_BLOCKS && e->owner[block] != 0 &&
           strcmp(e->requests[e->owner[block] - 1].id, id) == 0;
}

void w_int_check_write(struct w_world *w, const struct w_flying *f, const char *when)
{
    struct w_engine *p = &w->engines[f->to];
    struct w_engine *d = &w->engines[f->target];
    struct kvfi_notif notif;
    MUST(kvfi_notif_classify(f->bytes, f->len, &notif, NULL) == KVF_OK);
    char id[96];
    snprintf(id, sizeof(id), "%.*s", (int)notif.request_id.len,
             (const char *)notif.request_id.data);
    bool p_lives = p->alive && p->starts == f->to_start;
    bool d_lives = d->alive && d->starts == f->target_start;
    for (size_t i = 0; i < f->count; i++) {
        if (p_lives && !w_int_owned_by(p, f->local_ids[i], f->request_id))
            w_int_fault(w, "P1: %s, a WRITE of %s reads block %u which is not its own", when,
                        f->request_id, f->local_ids[i]);
        if (d_lives && !w_int_owned_by(d, f->remote_ids[i], id))
            w_int_fault(w, "P1: %s, a WRITE for %s writes block %u which is not its own", when, id,
                        f->remote_ids[i]);
    }
}

static uint8_t pattern(const char *id, size_t from_end, size_t region, size_t byte)
{
    size_t base = kvf_base_request_id_len(id);
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < base; i++)
        h = (h ^ (uint8_t)id[i]) * 1099511628211ull;
    h = (h ^ from_end) * 1099511628211ull;
    h = (h ^ region) * 1099511628211ull;
    h = (h ^ byte) * 1099511628211ull;
    return (uint8_t)(h >> 24);
}

void w_int_fill_blocks(struct w_engine *e, const struct w_request *r)
{
    for (size_t i = 0; i < r->block_count; i++)
        for (size_t g = 0; g < W_REGIONS; g++)
            for (size_t b = 0; b < W_BLOCK_BYTES; b++)
                e->memory[g][r->blocks[i]][b] = pattern(r->id, r->block_count - i, g, b);
}

void w_int_check_received(struct w_world *w, struct w_engine *e, const struct w_request *r)
{
    for (size_t i = r->cached; i < r->block_count; i++)
        for (size_t g = 0; g < W_REGIONS; g++)
            for (size_t b = 0; b < W_BLOCK_BYTES; b++)
                if (e->memory[g][r->blocks[i]][b] != pattern(r->id, r->block_count - i, g, b)) {
                    w_int_fault(w, "P3/P4: %s is received, its block %zu is wrong", r->id, i);
                    return;
                }
}

/* ---- driver: effects ------------------------------------------------------------------------ */

static void load_peer(struct w_world *w, struct w_engine *e, const struct kvfi_effect *effect)
{
    struct kvfi_nixl_metadata md;
    MUST(kvfi_nixl_metadata_decode(effect->load_peer.blob, effect->load_peer.blob_len, NULL, &md,
                                   NULL) == KVF_OK);
    enum w_side side = md.agent.data[0] == 'p' ? W_P : W_D;
    unsigned start = (unsigned)(md.agent.data[1] - '0') * 10 + (unsigned)(md.agent.data[2] - '0');
    kvfi_nixl_metadata_free(&md);
    if (w->load_status[e->side] != KVF_OK) {
        struct w_flying *refusal = w_int_fly(w, W_LOADED, 0, e->side);
        refusal->id = effect->load_peer.handshake_id;
        refusal->status = w->load_status[e->side];
        return;
    }
    MUST(e->peer_count < W_PEER_MAX);
    size_t at = e->peer_count++;
    e->peers[at].side = side;
    e->peers[at].start = start;
    e->peers[at].loaded = true;
    struct w_flying *f = w_int_fly(w, W_LOADED, 0, e->side);
    f->id = effect->load_peer.handshake_id;
    f->token = at + 1;
}

static void ask(struct w_world *w, struct w_engine *e, const struct kvfi_effect *effect)
{
    enum w_side to = strcmp(effect->handshake.host, "host-p") == 0 ? W_P : W_D;
    w_note(w, "%s asks %s for its handshake", w_int_side_names[e->side], w_int_side_names[to]);
    struct w_engine *target = &w->engines[to];
    bool dead = !target->alive || w->side_channel_dead[to];
    struct w_flying *f =
        w_int_fly(w, W_REPLY, dead ? effect->handshake.timeout_ns : w->handshake_ns, e->side);
    f->id = effect->handshake.handshake_id;
    f->status = dead ? w->side_channel_status : KVF_OK;
    if (dead)
        return;
    struct kvfi_buf blob;
    kvfi_buf_init(&blob, NULL);
    struct kvfi_nixl_conn conn = {.backend = kvfi_span_str("UCX"), .info = kvfi_span_str("addr")};
    struct kvfi_nixl_metadata md = {
        .agent = kvfi_span_str(target->agent_name), .conns = &conn, .conn_count = 1};
    MUST(kvfi_nixl_metadata_encode(&md, &blob, NULL) == KVF_OK);
    void *payload = NULL;
    size_t len = 0;
    MUST(kvfi_worker_core_payload(target->core, blob.data, blob.len, &payload, &len, NULL) ==
         KVF_OK);
    kvfi_buf_deinit(&blob);
    if (w->no_caps) {
        struct kvfi_handshake_payload outer;
        struct kvfi_buf plain;
        kvfi_buf_init(&plain, NULL);
        MUST(kvfi_handshake_payload_decode(payload, len, NULL, &outer, NULL) == KVF_OK);
        outer.caps = 0;
        MUST(kvfi_handshake_payload_encode(&outer, &plain, NULL) == KVF_OK);
        w_int_set_bytes(f, plain.data, plain.len);
        kvfi_buf_deinit(&plain);
    } else {
        w_int_set_bytes(f, payload, len);
    }
    kvfi_worker_core_payload_free(target->core, payload);
}

static void post_write(struct w_world *w, struct w_engine *e, const struct kvfi_effect *effect)
{
    const struct kvf_plan *plan = &effect->write.plan;
    MUST(plan->group_count == 1 && plan->region_count == W_REGIONS);
    MUST(plan->groups[0].count <= W_BLOCKS);
    w_note(w, "%s posts a WRITE of %s, %zu blocks, then %.*s", w_int_side_names[e->side],
           effect->write.request_id, plan->groups[0].count, (int)effect->write.message_len,
           (const char *)effect->write.message);
    enum w_side to = W_D;
    bool alive = peer_alive(w, e->side, effect->write.peer.value, &to);
    struct w_flying *f = w_int_fly(w, W_WRITE, alive ? w->write_ns : W_MS, e->side);
    f->token = effect->write.token;
    f->status = alive ? w->write_status : KVF_EDISCONNECTED;
    f->target = to;
    f->target_start = alive ? w->engines[to].starts : 0;
    f->posted_ns = w->now_ns;
    f->count = plan->groups[0].count;
    for (size_t g = 0; g < W_REGIONS; g++) {
        f->local[g] = plan->regions[g].local;
        f->remote[g] = plan->regions[g].remote;
        MUST(plan->regions[g].length_bytes == W_BLOCK_BYTES);
    }
    for (size_t i = 0; i < f->count; i++) {
        f->local_ids[i] = plan->groups[0].local_ids[i];
        f->remote_ids[i] = plan->groups[0].remote_ids[i];
        if (f->local_ids[i] >= f->local[0].block_count ||
            f->remote_ids[i] >= f->remote[0].block_count)
            w_int_fault(w, "P7: a WRITE outside the advertised blocks");
    }
    snprintf(f->request_id, sizeof(f->request_id), "%s", effect->write.request_id);
    w_int_set_bytes(f, effect->write.message, effect->write.message_len);
    if (alive)
        w_int_check_write(w, f, "posted");
    else
        w_int_lose_peer(w, e->side, effect->write.peer.value);
}

static void perform(struct w_world *w, struct w_engine *e)
{
    size_t count = kvfi_effects_count(e->effects);
    for (size_t i = 0; i < count; i++) {
        const struct kvfi_effect *effect = kvfi_effects_at(e->effects, i);
        switch (effect->kind) {
        case KVFI_EFFECT_HANDSHAKE:
            ask(w, e, effect);
            break;
        case KVFI_EFFECT_LOAD_PEER:
            load_peer(w, e, effect);
            break;
        case KVFI_EFFECT_DROP_PEER:
            MUST(effect->drop_peer.peer.value <= e->peer_count);
            e->peers[effect->drop_peer.peer.value - 1].loaded = false;
            break;
        case KVFI_EFFECT_SEND:
            send_message(w, e->side, effect->send.peer.value, effect->send.token,
                         effect->send.message, effect->send.message_len);
            break;
        case KVFI_EFFECT_WRITE:
            post_write(w, e, effect);
            break;
        case KVFI_EFFECT_RESULT:
            w_int_take_result(w, e, &effect->result);
            break;
        case KVFI_EFFECT_COUNT:
            e->counters[effect->count.counter] += effect->count.n;
            break;
        case KVFI_EFFECT_RECORD:
        case KVFI_EFFECT_OBSERVE:
            break;
        }
    }
    kvfi_effects_reset(e->effects);
}

static void feed_again(struct w_world *w, struct w_engine *e, struct kvfi_event *event);

void w_int_feed(struct w_world *w, struct w_engine *e, struct kvfi_event *event)
{
    event->now_ns = w->now_ns;
    if (w->oom)
        w->alloc.fail_at = w->alloc.uses + 1 + w_random(w, w->oom);
    enum kvf_status status = kvfi_worker_core_step(e->core, event, e->effects);
    w->alloc.fail_at = 0;
    const char *broken = kvfi_worker_core_check(e->core);
    if (broken)
        w_int_fault(w, "%s: %s", w_int_side_names[e->side], broken);
    if (status == KVF_OK)
        perform(w, e);
    else if (event->kind == KVFI_EVENT_STEP || event->kind == KVFI_EVENT_PEER_LOADED)
        feed_again(w, e, event); /* what a driver does, here at once */
}

static void feed_again(struct w_world *w, struct w_engine *e, struct kvfi_event *event)
{
    unsigned oom = w->oom;
    w->oom = 0;
    w_int_feed(w, e, event);
    w->oom = oom;
}
