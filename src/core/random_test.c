/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thousands of short histories drawn from a seed: two engines, messages lost, doubled, delayed and
 * reordered, failing WRITEs, silent side channels, broken connections, aborts, restarts, want of
 * memory. While that goes on nothing may be wrong (P1, P3, P4, P7 and the tables' invariants, all
 * watched from outside); when it stops everything must come to an end (P2) and nothing may be left
 * (P5).
 *
 *   random_test [first seed] [how many]     prints the trace of a seed that fails
 */
#include "core/testworld.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAIR_MAX 24

/* One prompt: a leg on each side. */
struct pair {
    char p_id[64];
    char d_id[64];
    bool p_started;
    bool d_started;
    uint32_t p_tokens;
    uint32_t d_tokens;
};

struct history {
    struct w_world *w;
    unsigned loss_percent;
    unsigned double_percent;
    unsigned delay_percent;
    bool restarts;
    bool broken_connections;
    bool silent_side_channel;
    bool failing_loads;
    bool failing_writes;
    bool shared_bases;
    bool transfer_ids;
    struct pair pairs[PAIR_MAX];
    size_t pair_count;
};

static struct history *current;

static bool chance(struct w_world *w, unsigned percent)
{
    return w_random(w, 100) < percent;
}

static void tweak(struct kvf_kv_config *config, enum w_side side)
{
    config->lease_ns = 6 * W_S;
    config->registration_timeout_ns = 5 * W_S;
    config->handshake_timeout_ns = W_S / 2;
    config->peer_settle_ns = W_S / 5;
}

static unsigned network(struct w_world *w, enum w_side from, const char *message,
                        uint64_t delay_ns[4])
{
    const struct history *h = current;
    if (chance(w, h->loss_percent))
        return 0;
    unsigned copies = chance(w, h->double_percent) ? 2 + (unsigned)w_random(w, 3) : 1;
    for (unsigned i = 0; i < copies; i++)
        if (chance(w, h->delay_percent) || i > 0)
            delay_ns[i] += w_random(w, chance(w, 20) ? 8 * W_S : 20 * W_MS);
    return copies;
}

static void draw(struct history *h)
{
    struct w_world *w = h->w;
    h->loss_percent = chance(w, 50) ? (unsigned)w_random(w, 25) : 0;
    h->double_percent = chance(w, 50) ? (unsigned)w_random(w, 40) : 0;
    h->delay_percent = chance(w, 60) ? (unsigned)w_random(w, 60) : 0;
    h->restarts = chance(w, 40);
    h->broken_connections = chance(w, 40);
    h->silent_side_channel = !h->broken_connections && chance(w, 40);
    h->failing_loads = h->broken_connections && chance(w, 50);
    h->failing_writes = chance(w, 30);
    h->shared_bases = chance(w, 40);
    h->transfer_ids = chance(w, 40);
    w->no_caps = chance(w, 15);
    w->write_ns = 1 + w_random(w, chance(w, 30) ? 12 * W_S : 30 * W_MS);
    if (chance(w, 25))
        w->oom = 1 + (unsigned)w_random(w, 60);
    w->network = network;
}

static size_t blocks_of(uint32_t tokens)
{
    return (tokens - 1) / W_BLOCK_SIZE + 1;
}

static void start_leg(struct history *h, struct pair *pair, size_t index, bool prefill)
{
    struct w_world *w = h->w;
    enum w_side side = prefill ? W_P : W_D;
    uint32_t tokens = prefill ? pair->p_tokens : pair->d_tokens;
    const char *id = prefill ? pair->p_id : pair->d_id;
    if (!w->engines[side].alive || w_free_blocks(w, side) < blocks_of(tokens))
        return;
    char transfer_id[16];
    (void)snprintf(transfer_id, sizeof(transfer_id), "t%zu", index);
    const char *given = h->transfer_ids && chance(w, 80) ? transfer_id : NULL;
    if (prefill) {
        pair->p_started = true;
        w_prefill_start(w, id, given, tokens);
    } else {
        pair->d_started = true;
        w_decode_start(w, id, given, tokens, w_random(w, blocks_of(tokens) + 1));
    }
}

static void add_pair(struct history *h)
{
    struct w_world *w = h->w;
    if (h->pair_count == PAIR_MAX)
        return;
    size_t index = h->pair_count++;
    struct pair *pair = &h->pairs[index];
    size_t base = h->shared_bases ? w_random(w, 4) : index;
    (void)snprintf(pair->p_id, sizeof(pair->p_id), "cmpl-%zu-0-aaaa%04zx", base, index);
    (void)snprintf(pair->d_id, sizeof(pair->d_id), "cmpl-%zu-0-bbbb%04zx", base, index);
    pair->p_tokens = 1 + (uint32_t)w_random(w, 24);
    pair->d_tokens = chance(w, 90) ? pair->p_tokens : 1 + (uint32_t)w_random(w, 24);
    bool prefill_first = chance(w, 50);
    start_leg(h, pair, index, prefill_first);
    if (chance(w, 80))
        start_leg(h, pair, index, !prefill_first);
}

static struct w_request *pick(struct w_world *w, enum w_side side)
{
    if (!w->engines[side].alive)
        return NULL;
    size_t start = w_random(w, W_REQUEST_MAX);
    for (size_t i = 0; i < W_REQUEST_MAX; i++) {
        struct w_request *r = &w->engines[side].requests[(start + i) % W_REQUEST_MAX];
        if (r->used && r->in_engine)
            return r;
    }
    return NULL;
}

static void toggle_process(struct w_world *w)
{
    enum w_side side = chance(w, 50) ? W_P : W_D;
    if (!w->engines[side].alive) {
        w_start(w, side);
        return;
    }
    w_kill(w, side);
    if (w->engines[!side].alive && chance(w, 80))
        w_tell_lost(w, (enum w_side) !side);
    if (chance(w, 60))
        w_start(w, side);
}

static void act(struct history *h)
{
    struct w_world *w = h->w;
    struct w_request *r = NULL;
    switch (w_random(w, 12)) {
    case 0:
    case 1:
    case 2:
        add_pair(h);
        break;
    case 3: {
        size_t i = h->pair_count ? w_random(w, h->pair_count) : 0;
        if (i < h->pair_count && !h->pairs[i].p_started)
            start_leg(h, &h->pairs[i], i, true);
        else if (i < h->pair_count && !h->pairs[i].d_started)
            start_leg(h, &h->pairs[i], i, false);
        break;
    }
    case 4:
    case 5:
    case 6:
        if ((r = pick(w, W_P)))
            w_prefill_finish(w, r->id);
        break;
    case 7:
        if ((r = pick(w, W_P)) && chance(w, 40))
            w_prefill_abort(w, r->id);
        break;
    case 8:
        if ((r = pick(w, W_D)) && (r->received || r->failed || chance(w, 40)))
            w_decode_end(w, r->id);
        break;
    case 9:
        if (h->restarts && chance(w, 30))
            toggle_process(w);
        break;
    case 10:
        if (h->broken_connections && chance(w, 30)) {
            enum w_side side = chance(w, 50) ? W_P : W_D;
            if (w->engines[side].alive)
                w_tell_lost(w, side);
        }
        if (h->failing_loads)
            w->load_status[w_random(w, 2)] = chance(w, 50) ? KVF_ETRANSPORT : KVF_OK;
        if (h->silent_side_channel)
            w->side_channel_dead[w_random(w, 2)] = chance(w, 50);
        break;
    default:
        w->write_status = h->failing_writes && chance(w, 30) ? KVF_ETRANSPORT : KVF_OK;
        break;
    }
    w_run(w, w_random(w, chance(w, 20) ? 4 * W_S : 10 * W_MS));
}

/* The faults are over, clients go, engines end what they have. */
static void heal(struct history *h)
{
    struct w_world *w = h->w;
    h->loss_percent = 0;
    h->double_percent = 0;
    h->delay_percent = 0;
    w->oom = 0;
    w->write_status = KVF_OK;
    w->load_status[W_P] = KVF_OK;
    w->load_status[W_D] = KVF_OK;
    w->side_channel_dead[W_P] = false;
    w->side_channel_dead[W_D] = false;
    for (int side = 0; side < W_SIDES; side++)
        if (!w->engines[side].alive)
            w_start(w, (enum w_side)side);
    struct w_request *r = NULL;
    while (!w->fault[0] && (r = pick(w, W_P)))
        w_prefill_finish(w, r->id);
    /* Every receive ends by itself, at the latest by its watchdog. */
    w_run(w, 30 * W_S);
    for (size_t i = 0; i < W_REQUEST_MAX; i++) {
        r = &w->engines[W_D].requests[i];
        if (!r->used || !r->in_engine || w->fault[0])
            continue;
        if (r->cached < blocks_of(r->tokens) && !r->received && !r->failed) {
            w_note(w, "FAULT P2: %s still waits", r->id);
            (void)snprintf(w->fault, sizeof(w->fault), "P2: %s still waits", r->id);
        }
        w_decode_end(w, r->id);
    }
    if (w->no_caps) {
        /* A peer that cannot be asked keeps decode's blocks in quarantine while it lives. */
        w_kill(w, W_P);
        w_tell_lost(w, W_D);
        w_start(w, W_P);
    }
    w_run_until_quiet(w, 200 * W_S);
}

static bool run_seed(uint64_t seed, bool verbose)
{
    static struct history h;
    memset(&h, 0, sizeof(h));
    current = &h;
    h.w = w_create(tweak);
    h.w->seed = seed * 0x2545f4914f6cdd1dull + 1;
    draw(&h);
    for (int i = 0; i < 40 && !h.w->fault[0]; i++)
        act(&h);
    heal(&h);
    const char *left = h.w->fault[0] ? h.w->fault : w_leftovers(h.w);
    bool good = left == NULL;
    if (!good || verbose)
        /* print_error would cut it. */
        (void)fprintf(stderr, "seed %llu: %s\n%s", (unsigned long long)seed, left ? left : "good",
                      h.w->trace);
    w_destroy(h.w);
    return good;
}

static uint64_t first_seed = 1;
static uint64_t seed_count = 1500;

static void test_random_histories(void **state)
{
    for (uint64_t seed = first_seed; seed < first_seed + seed_count; seed++)
        if (!run_seed(seed, false))
            fail_msg("seed %llu", (unsigned long long)seed);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seed_count = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_histories)};
    return cmocka_run_group_tests_name("core/random", tests, NULL, NULL);
}
