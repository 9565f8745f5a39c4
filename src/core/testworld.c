/* SPDX-License-Identifier: Apache-2.0 */
#include "core/testworld_internal.h"

#include <stdarg.h>
#include <string.h>

const char *const w_int_side_names[W_SIDES] = {"p", "d"};

void w_note(struct w_world *w, const char *fmt, ...)
{
    if (w->trace_len > sizeof(w->trace) - 512)
        return;
    w->trace_len +=
        (size_t)snprintf(w->trace + w->trace_len, 32, "%8.3f ms  ", (double)w->now_ns / 1e6);
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(w->trace + w->trace_len, 400, fmt, args);
    va_end(args);
    w->trace_len += (size_t)(len < 400 ? len : 399);
    w->trace[w->trace_len++] = '\n';
    w->trace[w->trace_len] = '\0';
}

void w_int_fault(struct w_world *w, const char *fmt, ...)
{
    if (w->fault[0])
        return;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(w->fault, sizeof(w->fault), fmt, args);
    va_end(args);
    w_note(w, "FAULT %s", w->fault);
}

uint64_t w_random(struct w_world *w, uint64_t below)
{
    w->seed += 0x9e3779b97f4a7c15ull;
    uint64_t z = w->seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % below;
}

/* ---- engines -------------------------------------------------------------------------------- */

struct w_request *w_find(struct w_world *w, enum w_side side, const char *id)
{
    for (size_t i = 0; i < W_REQUEST_MAX; i++) {
        struct w_request *r = &w->engines[side].requests[i];
        if (r->used && strcmp(r->id, id) == 0)
            return r;
    }
    return NULL;
}

size_t w_free_blocks(struct w_world *w, enum w_side side)
{
    size_t count = 0;
    for (size_t i = 0; i < W_BLOCKS; i++)
        count += w->engines[side].owner[i] == 0;
    return count;
}

static void free_blocks(struct w_world *w, struct w_engine *e, struct w_request *r)
{
    for (size_t i = 0; i < r->block_count; i++) {
        uint32_t block = r->blocks[i];
        if (!w_int_owned_by(e, block, r->id)) {
            w_int_fault(w, "P5: block %u of %s is freed twice", block, r->id);
            continue;
        }
        e->owner[block] = 0;
        for (size_t g = 0; g < W_REGIONS; g++)
            memset(e->memory[g][block], 0xEE, W_BLOCK_BYTES);
    }
    r->block_count = 0;
    r->held = false;
    /* A WRITE must not be under way on any of them. */
    for (size_t i = 0; i < w->flying_count; i++)
        if (w->flying[i].kind == W_WRITE)
            w_int_check_write(w, &w->flying[i], "blocks were freed");
}

static struct w_request *new_request(struct w_world *w, enum w_side side, const char *id,
                                     uint32_t tokens)
{
    struct w_engine *e = &w->engines[side];
    for (size_t i = 0; i < W_REQUEST_MAX; i++) {
        struct w_request *r = &e->requests[i];
        if (r->used)
            continue;
        memset(r, 0, sizeof(*r));
        r->used = true;
        r->in_engine = true;
        r->tokens = tokens;
        snprintf(r->id, sizeof(r->id), "%s", id);
        return r;
    }
    FATAL("too many requests");
}

static void take_blocks(struct w_engine *e, struct w_request *r)
{
    size_t wanted = (r->tokens - 1) / W_BLOCK_SIZE + 1;
    /* From the end, so that lists are not trivially equal on both sides. */
    for (size_t i = e->side == W_P ? W_BLOCKS : 0; r->block_count < wanted;) {
        size_t block = e->side == W_P ? --i : i++;
        MUST(block < W_BLOCKS);
        if (e->owner[block] == 0) {
            e->owner[block] = (int)(r - e->requests) + 1;
            r->blocks[r->block_count++] = (uint32_t)block;
        }
    }
}

void w_int_take_result(struct w_world *w, struct w_engine *e, const struct kvf_result *result)
{
    static const char *const names[] = {"SENT", "RECEIVED", "FAILED", "RELEASED"};
    w_note(w, "%s tells its engine %s %s%s%s%s%s", w_int_side_names[e->side], names[result->kind],
           result->request_id,
           result->kind == KVF_RESULT_FAILED && !result->blocks_free ? ", blocks quarantined" : "",
           result->status == KVF_OK ? "" : " (", result->status == KVF_OK ? "" : result->reason,
           result->status == KVF_OK ? "" : ")");
    struct w_request *r = w_find(w, e->side, result->request_id);
    enum kvf_status status = kvf_scheduler_apply_result(e->scheduler, w->now_ns, result);
    if (!r || (status != KVF_OK && status != KVF_ENOTFOUND)) {
        w_int_fault(w, "P2: a result for %s, which nobody has", result->request_id);
        return;
    }
    if (status == KVF_ENOTFOUND) {
        e->unknown_results++;
        return;
    }
    r->status = result->status;
    snprintf(r->reason, sizeof(r->reason), "%s", result->reason);
    switch (result->kind) {
    case KVF_RESULT_SENT:
        if (r->sent)
            w_int_fault(w, "P2: %s is sent twice", r->id);
        r->sent = true;
        free_blocks(w, e, r);
        break;
    case KVF_RESULT_RECEIVED:
        if (r->received || r->failed)
            w_int_fault(w, "P2: %s ends twice", r->id);
        w_int_check_received(w, e, r);
        r->received = true;
        if (r->held)
            free_blocks(w, e, r);
        break;
    case KVF_RESULT_FAILED:
        if (r->received || r->failed)
            w_int_fault(w, "P2: %s ends twice", r->id);
        r->failed = true;
        r->released = result->blocks_free;
        if (r->held && result->blocks_free)
            free_blocks(w, e, r);
        break;
    case KVF_RESULT_RELEASED:
        r->released = true;
        if (r->held)
            free_blocks(w, e, r);
        break;
    }
}

void w_step(struct w_world *w, enum w_side side)
{
    struct w_engine *e = &w->engines[side];
    if (!e->alive)
        return;
    struct kvf_step *step = NULL;
    while (kvf_scheduler_build_step(e->scheduler, w->now_ns, &step, NULL) == KVF_ENOMEM)
        ;
    struct kvfi_event event = {.kind = KVFI_EVENT_STEP, .step = step};
    w_int_feed(w, e, &event);
    kvf_step_free(step);
}

/* ---- the engine's acts ---------------------------------------------------------------------- */

void w_prefill_start(struct w_world *w, const char *id, const char *transfer_id, uint32_t tokens)
{
    struct w_engine *e = &w->engines[W_P];
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_decode = true;
    params.transfer_id = transfer_id;
    if (kvf_scheduler_on_new_request(e->scheduler, w->now_ns, id, &params, tokens, NULL) != KVF_OK)
        FATAL("prefill refuses %s", id);
    struct w_request *r = new_request(w, W_P, id, tokens);
    r->prefill = true;
    take_blocks(e, r);
    MUST(kvf_scheduler_after_alloc(e->scheduler, w->now_ns, id, r->blocks, r->block_count, 0, 0,
                                   NULL) == KVF_OK);
    w_note(w, "p starts %s, %zu blocks", id, r->block_count);
    w_step(w, W_P);
}

static void end_request(struct w_world *w, enum w_side side, const char *id,
                        enum kvf_finish_reason reason)
{
    struct w_engine *e = &w->engines[side];
    struct w_request *r = w_find(w, side, id);
    MUST(r && r->in_engine);
    bool delay = false;
    MUST(kvf_scheduler_request_finished(e->scheduler, w->now_ns, id, reason, r->blocks,
                                        r->block_count, &delay, NULL, NULL, NULL) == KVF_OK);
    r->in_engine = false;
    r->held = delay;
    if (!delay)
        free_blocks(w, e, r);
    w_step(w, side);
}

void w_prefill_finish(struct w_world *w, const char *id)
{
    w_int_fill_blocks(&w->engines[W_P], w_find(w, W_P, id));
    w_note(w, "p finishes %s", id);
    end_request(w, W_P, id, KVF_FINISH_LENGTH);
}

void w_prefill_abort(struct w_world *w, const char *id)
{
    w_note(w, "p aborts %s", id);
    end_request(w, W_P, id, KVF_FINISH_ABORT);
}

void w_decode_start(struct w_world *w, const char *id, const char *transfer_id, uint32_t tokens,
                    size_t cached_blocks)
{
    struct w_engine *e = &w->engines[W_D];
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_prefill = true;
    params.remote_engine_id = "pre";
    params.remote_request_id = "router";
    params.remote_host = "host-p";
    params.remote_port = 5600;
    params.tp_size = 1;
    params.transfer_id = transfer_id;
    if (kvf_scheduler_on_new_request(e->scheduler, w->now_ns, id, &params, tokens, NULL) != KVF_OK)
        FATAL("decode refuses %s", id);
    struct w_request *r = new_request(w, W_D, id, tokens);
    take_blocks(e, r);
    r->cached = cached_blocks;
    bool full = cached_blocks >= r->block_count;
    MUST(kvf_scheduler_after_alloc(
             e->scheduler, w->now_ns, id, r->blocks, r->block_count, cached_blocks,
             full ? 0 : tokens - (uint32_t)cached_blocks * W_BLOCK_SIZE, NULL) == KVF_OK);
    w_note(w, "d starts %s, %zu blocks, %zu cached", id, r->block_count, cached_blocks);
    w_step(w, W_D);
}

void w_decode_end(struct w_world *w, const char *id)
{
    w_note(w, "d ends %s", id);
    end_request(w, W_D, id, KVF_FINISH_ABORT);
}

/* ---- processes ------------------------------------------------------------------------------ */

void w_kill(struct w_world *w, enum w_side side)
{
    struct w_engine *e = &w->engines[side];
    w_note(w, "%s dies", w_int_side_names[side]);
    /* What a dead process had posted is in the transport for a moment more, not for ever. */
    for (size_t i = 0; i < w->flying_count; i++) {
        struct w_flying *f = &w->flying[i];
        if (f->kind == W_WRITE && f->to == side && f->to_start == e->starts &&
            f->at_ns > w->now_ns + 50 * W_MS)
            f->at_ns = w->now_ns + 50 * W_MS;
    }
    kvf_scheduler_destroy(e->scheduler);
    kvfi_worker_core_destroy(e->core);
    kvfi_effects_destroy(e->effects);
    e->scheduler = NULL;
    e->core = NULL;
    e->effects = NULL;
    e->alive = false;
    memset(e->requests, 0, sizeof(e->requests));
    memset(e->owner, 0, sizeof(e->owner));
    memset(e->peers, 0, sizeof(e->peers));
    e->peer_count = 0;
}

void w_start(struct w_world *w, enum w_side side)
{
    struct w_engine *e = &w->engines[side];
    e->side = side;
    e->starts++;
    MUST(e->starts < 100);
    snprintf(e->agent_name, sizeof(e->agent_name), "%s%02u", w_int_side_names[side], e->starts);
    memset(e->memory, 0xEE, sizeof(e->memory));
    struct kvf_kv_region regions[W_REGIONS];
    for (size_t g = 0; g < W_REGIONS; g++)
        regions[g] = (struct kvf_kv_region){.name = g ? "layer.1" : "layer.0",
                                            .base = e->memory[g],
                                            .block_bytes = W_BLOCK_BYTES,
                                            .stride_bytes = W_BLOCK_BYTES,
                                            .block_count = W_BLOCKS};
    const struct kvf_kv_cache cache = {
        .layout = "LBHNC", .regions = regions, .region_count = W_REGIONS};
    const struct kvfi_worker_core_options options = {
        .config = &e->config, .cache = &cache, .allocator = &w->alloc.allocator};
    while (!e->core)
        (void)!kvfi_worker_core_create(&options, &e->core, NULL);
    while (!e->scheduler)
        (void)!kvf_scheduler_create(&e->config, &w->alloc.allocator, &e->scheduler, NULL);
    while (!e->effects)
        e->effects = kvfi_effects_create(&w->alloc.allocator);
    e->alive = true;
    if (e->starts > 1)
        w_note(w, "%s starts again", w_int_side_names[side]);
}

void w_lose_all(struct w_world *w)
{
    for (size_t i = 0; i < w->flying_count; i++)
        free(w->flying[i].bytes);
    w->flying_count = 0;
}

void w_tell_lost(struct w_world *w, enum w_side observer)
{
    struct w_engine *e = &w->engines[observer];
    for (size_t i = 0; i < e->peer_count; i++)
        w_int_lose_peer(w, observer, i + 1);
}

struct w_world *w_create(void (*tweak)(struct kvf_kv_config *config, enum w_side side))
{
    struct w_world *w = calloc(1, sizeof(*w));
    MUST(w);
    test_alloc_init(&w->alloc);
    w->wire_ns = W_MS;
    w->write_ns = 5 * W_MS;
    w->handshake_ns = 2 * W_MS;
    w->side_channel_status = KVF_ETIMEDOUT;
    for (int side = 0; side < W_SIDES; side++) {
        struct kvf_kv_config config = KVF_KV_CONFIG_INIT;
        config.engine_id = side == W_P ? "pre" : "dec";
        config.host = side == W_P ? "host-p" : "host-d";
        config.port = side == W_P ? 5600 : 5601;
        config.block_size = W_BLOCK_SIZE;
        config.registration_timeout_ns = 100 * W_S;
        config.compat.model = "m";
        config.compat.head_size = 2;
        config.compat.kv_head_count = 1;
        config.compat.layer_count = W_REGIONS;
        if (tweak)
            tweak(&config, (enum w_side)side);
        w->engines[side].config = config;
        w_start(w, (enum w_side)side);
    }
    return w;
}

void w_destroy(struct w_world *w)
{
    for (int side = 0; side < W_SIDES; side++)
        if (w->engines[side].alive)
            w_kill(w, (enum w_side)side);
    w_lose_all(w);
    MUST(w->alloc.live == 0);
    free(w);
}

/* ---- the pump ------------------------------------------------------------------------------- */

void w_inject(struct w_world *w, enum w_side to, const char *sender, const void *bytes, size_t len)
{
    struct w_flying *f = w_int_fly(w, W_NOTIFICATION, 0, to);
    snprintf(f->sender, sizeof(f->sender), "%s", sender);
    w_int_set_bytes(f, bytes, len);
    w_run(w, 0);
}

static void land_write(struct w_world *w, struct w_flying *f)
{
    w_int_check_write(w, f, "landing");
    struct w_engine *target = &w->engines[f->target];
    bool lives = target->alive && target->starts == f->target_start;
    if (f->status == KVF_OK && lives) {
        for (size_t g = 0; g < W_REGIONS; g++)
            for (size_t i = 0; i < f->count; i++)
                memcpy((void *)(uintptr_t)(f->remote[g].base +
                                           f->remote_ids[i] * f->remote[g].stride_bytes),
                       (void *)(uintptr_t)(f->local[g].base +
                                           f->local_ids[i] * f->local[g].stride_bytes),
                       W_BLOCK_BYTES);
    }
    struct w_engine *e = &w->engines[f->to];
    if (!e->alive || e->starts != f->to_start)
        return;
    if (f->status == KVF_OK && lives) {
        char text[160];
        w_int_describe(f->bytes, f->len, text);
        uint64_t delays[4] = {0, 0, 0, 0};
        unsigned copies = w->network ? w->network(w, f->to, text, delays) : 1;
        for (unsigned i = 0; i < copies; i++) {
            struct w_flying *n = w_int_fly(w, W_NOTIFICATION, delays[i], f->target);
            snprintf(n->sender, sizeof(n->sender), "%s", e->agent_name);
            w_int_set_bytes(n, f->bytes, f->len);
        }
        if (copies == 0)
            w_note(w, "  lost: %s", text);
    }
    struct kvfi_event event = {.kind = KVFI_EVENT_TRANSFER_DONE};
    event.transfer_done.token = f->token;
    event.transfer_done.status = lives || f->status != KVF_OK ? f->status : KVF_EDISCONNECTED;
    event.transfer_done.stats =
        (struct kvf_transfer_stats){.bytes = f->count * W_REGIONS * W_BLOCK_BYTES,
                                    .run_count = 1,
                                    .post_start_ns = f->posted_ns,
                                    .post_end_ns = f->posted_ns,
                                    .done_ns = w->now_ns};
    w_int_feed(w, e, &event);
}

static void arrive(struct w_world *w, struct w_flying *f)
{
    if (f->kind == W_WRITE) {
        land_write(w, f);
        return;
    }
    struct w_engine *e = &w->engines[f->to];
    if (!e->alive || e->starts != f->to_start)
        return;
    struct kvfi_event event = {.kind = KVFI_EVENT_TICK};
    switch (f->kind) {
    case W_NOTIFICATION:
        event.kind = KVFI_EVENT_NOTIFICATION;
        event.notification.sender = f->sender;
        event.notification.message = f->bytes;
        event.notification.message_len = f->len;
        break;
    case W_REPLY:
        event.kind = KVFI_EVENT_HANDSHAKE_REPLY;
        event.handshake_reply.handshake_id = f->id;
        event.handshake_reply.status = f->status;
        event.handshake_reply.payload = f->bytes;
        event.handshake_reply.payload_len = f->len;
        event.handshake_reply.reason = f->status == KVF_OK ? NULL : "no reply";
        break;
    case W_LOADED:
        event.kind = KVFI_EVENT_PEER_LOADED;
        event.peer_loaded.handshake_id = f->id;
        event.peer_loaded.status = f->status;
        event.peer_loaded.peer.value = f->token;
        break;
    case W_LOST:
        event.kind = KVFI_EVENT_PEER_LOST;
        event.peer_lost.peer.value = f->id;
        event.peer_lost.reason = "endpoint error";
        w_note(w, "%s loses its peer", w_int_side_names[f->to]);
        break;
    case W_SEND_FAILED:
        event.kind = KVFI_EVENT_SEND_FAILED;
        event.send_failed.token = f->token;
        event.send_failed.status = f->status;
        break;
    case W_WRITE:
        break;
    }
    w_int_feed(w, e, &event);
}

static size_t earliest(const struct w_world *w)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < w->flying_count; i++)
        if (best == SIZE_MAX || w->flying[i].at_ns < w->flying[best].at_ns ||
            (w->flying[i].at_ns == w->flying[best].at_ns &&
             w->flying[i].order < w->flying[best].order))
            best = i;
    return best;
}

/* When an engine acts by itself: its core's deadline, or its scheduler's. */
static uint64_t engine_due(const struct w_engine *e, bool *core_p)
{
    uint64_t core = kvfi_worker_core_deadline_ns(e->core);
    uint64_t scheduler = kvf_scheduler_deadline_ns(e->scheduler);
    *core_p = core <= scheduler;
    return *core_p ? core : scheduler;
}

/* One thing happens, at the latest at `until_ns`. */
static bool turn(struct w_world *w, uint64_t until_ns)
{
    size_t next = earliest(w);
    uint64_t at_ns = next == SIZE_MAX ? UINT64_MAX : w->flying[next].at_ns;
    int side = -1;
    bool core = false;
    for (int s = 0; s < W_SIDES; s++) {
        bool by_core = false;
        if (!w->engines[s].alive)
            continue;
        uint64_t due = engine_due(&w->engines[s], &by_core);
        if (due < at_ns) {
            at_ns = due;
            side = s;
            core = by_core;
        }
    }
    if (at_ns > until_ns)
        return false;
    if (at_ns > w->now_ns)
        w->now_ns = at_ns;
    if (side < 0) {
        struct w_flying f = w->flying[next];
        w->flying[next] = w->flying[--w->flying_count];
        arrive(w, &f);
        free(f.bytes);
    } else if (core) {
        struct kvfi_event tick = {.kind = KVFI_EVENT_TICK};
        w_int_feed(w, &w->engines[side], &tick);
    } else {
        w_step(w, (enum w_side)side);
    }
    return true;
}

void w_run(struct w_world *w, uint64_t ns)
{
    uint64_t until_ns = w->now_ns + ns;
    while (!w->fault[0] && turn(w, until_ns))
        ;
    w->now_ns = until_ns;
}

struct kvf_worker_usage w_usage(struct w_world *w, enum w_side side)
{
    struct kvf_worker_usage usage = {0};
    if (w->engines[side].alive)
        kvfi_worker_core_usage(w->engines[side].core, &usage);
    return usage;
}

uint64_t w_count(struct w_world *w, enum w_side side, enum kvf_counter counter)
{
    return w->engines[side].counters[counter];
}

static bool busy(struct w_world *w, enum w_side side)
{
    struct kvf_worker_usage u = w_usage(w, side);
    return u.registrations || u.staged || u.deferred || u.writes || u.leases || u.receives ||
           u.quarantined || u.handshakes;
}

void w_run_until_quiet(struct w_world *w, uint64_t ns_max)
{
    uint64_t until_ns = w->now_ns + ns_max;
    while (!w->fault[0] && (w->flying_count || busy(w, W_P) || busy(w, W_D)) && turn(w, until_ns))
        ;
}

const char *w_leftovers(struct w_world *w)
{
    static char text[200];
    for (int s = 0; s < W_SIDES; s++) {
        if (!w->engines[s].alive)
            continue;
        struct kvf_worker_usage u = w_usage(w, (enum w_side)s);
        struct kvf_scheduler_usage su;
        kvf_scheduler_usage(w->engines[s].scheduler, &su);
        size_t blocks = w_free_blocks(w, (enum w_side)s);
        if (!busy(w, (enum w_side)s) && su.requests == 0 && blocks == W_BLOCKS)
            continue;
        snprintf(text, sizeof(text),
                 "%s: %zu registrations, %zu staged, %zu deferred, %zu writes, %zu receives, %zu "
                 "quarantined, %zu handshakes; scheduler: %zu requests; %zu of %d blocks free",
                 w_int_side_names[s], u.registrations, u.staged, u.deferred, u.writes, u.receives,
                 u.quarantined, u.handshakes, su.requests, blocks, W_BLOCKS);
        return text;
    }
    return NULL;
}
