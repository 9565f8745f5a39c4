/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the worker core that stories do not reach: creation, what a handshake may say, the
 * tables, and want of memory at each single allocation. */
#include "core/core.h"
#include "core/testing.h"

#include "wire/agent_metadata.h"
#include "wire/handshake.h"
#include "wire/nixl_metadata.h"
#include "wire/notif.h"
#include "wire/push_reg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define S 1000000000ull

static uint8_t memory[2][64];

static struct kvf_kv_config config_of(const char *engine_id)
{
    struct kvf_kv_config config = KVF_KV_CONFIG_INIT;
    config.engine_id = engine_id;
    config.host = "here";
    config.port = 5600;
    config.compat.model = "m";
    return config;
}

static const struct kvf_kv_region two_regions[2] = {
    {.name = "l.0", .base = memory[0], .block_bytes = 4, .stride_bytes = 8, .block_count = 8},
    {.name = "l.1", .base = memory[1], .block_bytes = 4, .stride_bytes = 8, .block_count = 8},
};

static const struct kvf_kv_cache two_region_cache = {
    .layout = "LBHNC", .regions = two_regions, .region_count = 2};

static enum kvf_status create(const struct kvf_kv_config *config, const struct kvf_kv_cache *cache,
                              const struct kvf_allocator *allocator,
                              struct kvfi_worker_core **core_p, struct kvf_error *error)
{
    const struct kvfi_worker_core_options options = {
        .config = config, .cache = cache, .allocator = allocator};
    return kvfi_worker_core_create(&options, core_p, error);
}

/* ---- creation ------------------------------------------------------------------------------- */

static void refuses_cache(struct kvf_kv_region region, enum kvf_status status, const char *word)
{
    struct kvf_kv_config config = config_of("e");
    const struct kvf_kv_cache cache = {.layout = "LBHNC", .regions = &region, .region_count = 1};
    struct kvfi_worker_core *core = NULL;
    struct kvf_error error = {0};
    assert_int_equal(create(&config, &cache, NULL, &core, &error), status);
    if (!strstr(error.text, word))
        fail_msg("'%s' does not say '%s'", error.text, word);
}

static void test_cache_is_checked(void **state)
{
    struct kvf_kv_region region = two_regions[0];
    region.name = NULL;
    refuses_cache(region, KVF_EINVAL, "name");
    region = two_regions[0];
    region.base = NULL;
    refuses_cache(region, KVF_EINVAL, "empty");
    region = two_regions[0];
    region.stride_bytes = 3;
    refuses_cache(region, KVF_EINVAL, "stride 3");
    region = two_regions[0];
    region.stride_bytes = UINT64_MAX / 4;
    refuses_cache(region, KVF_EINVAL, "fit");
    region = two_regions[0];
    region.group = 1;
    refuses_cache(region, KVF_ENOTSUP, "group 1");
    struct kvf_kv_config config = config_of("e");
    config.compat.model = NULL;
    struct kvfi_worker_core *core = NULL;
    struct kvf_error error;
    assert_int_equal(create(&config, &two_region_cache, NULL, &core, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "compat.model"));
}

/* ---- handshake ------------------------------------------------------------------------------ */

struct offer_case {
    struct kvfi_worker_core *core;
    struct kvf_kv_config config;
    struct kvf_kv_region regions[2];
    struct kvf_kv_cache cache;
    const char *expected_engine;
};

static void blob_of(const char *agent, struct kvfi_buf *blob)
{
    const struct kvfi_nixl_conn conn = {kvfi_span_str("UCX"), kvfi_span_str("address")};
    const struct kvfi_nixl_metadata md = {
        .agent = kvfi_span_str(agent), .conns = &conn, .conn_count = 1};
    kvfi_buf_init(blob, NULL);
    assert_int_equal(kvfi_nixl_metadata_encode(&md, blob, NULL), KVF_OK);
}

/* The payload of a peer with this configuration and cache. */
static void *payload_of(const struct kvf_kv_config *config, const struct kvf_kv_cache *cache,
                        const char *agent, size_t *len_p)
{
    struct kvfi_worker_core *peer = NULL;
    assert_int_equal(create(config, cache, NULL, &peer, NULL), KVF_OK);
    struct kvfi_buf blob;
    blob_of(agent, &blob);
    void *bytes = NULL;
    assert_int_equal(kvfi_worker_core_payload(peer, blob.data, blob.len, &bytes, len_p, NULL),
                     KVF_OK);
    kvfi_buf_deinit(&blob);
    kvfi_worker_core_destroy(peer);
    return bytes;
}

static enum kvf_status offer(struct offer_case *c, struct kvf_error *error)
{
    size_t len = 0;
    void *payload = payload_of(&c->config, &c->cache, "agent", &len);
    struct kvfi_offer got;
    enum kvf_status status =
        kvfi_handshake_check(c->core, c->expected_engine, "there", 5700, payload, len, &got, error);
    if (status == KVF_OK) {
        assert_string_equal(got.agent_name, "agent");
        assert_int_equal(got.caps, KVFI_CAP_PUSH_FAIL | KVFI_CAP_PUSH_DROP);
        assert_int_equal(got.block_count_min, c->regions[0].block_count);
        assert_int_equal(got.tables[0].base, (uintptr_t)c->regions[0].base);
        kvfi_offer_free(c->core, &got);
    }
    kvfi_wire_free(NULL, payload);
    return status;
}

static void refuses_offer(struct offer_case *c, enum kvf_status status, const char *first,
                          const char *second)
{
    struct kvf_error error = {0};
    assert_int_equal(offer(c, &error), status);
    if (!strstr(error.text, first) || !strstr(error.text, second))
        fail_msg("'%s' does not say '%s' and '%s'", error.text, first, second);
}

static struct offer_case fresh_case(struct kvfi_worker_core *core)
{
    struct offer_case c = {.core = core, .config = config_of("peer"), .expected_engine = "peer"};
    memcpy(c.regions, two_regions, sizeof(c.regions));
    return c;
}

#define CASE(field_change)                                                                         \
    c = fresh_case(core);                                                                          \
    c.cache = (struct kvf_kv_cache){.layout = "LBHNC", .regions = c.regions, .region_count = 2};   \
    field_change

static void test_handshake_names_both_values(void **state) /* B27, B41, B42, B44 */
{
    struct kvf_kv_config config = config_of("self");
    struct kvfi_worker_core *core = NULL;
    assert_int_equal(create(&config, &two_region_cache, NULL, &core, NULL), KVF_OK);
    struct offer_case c;
    CASE(c.regions[0].block_count = 5); /* pools need not be equal */
    assert_int_equal(offer(&c, NULL), KVF_OK);
    CASE(c.config.compat.model = "other");
    refuses_offer(&c, KVF_EMISMATCH, "hash", "here");
    CASE(c.expected_engine = "wanted");
    refuses_offer(&c, KVF_EMISMATCH, "'peer' answers at there:5700", "expected 'wanted'");
    CASE(c.config.block_size = 32);
    refuses_offer(&c, KVF_EMISMATCH, "block_size is 32 there", "16 here");
    CASE(c.cache.layout = "LBNHC");
    refuses_offer(&c, KVF_EMISMATCH, "'LBNHC' there", "'LBHNC' here");
    CASE(c.cache.region_count = 1);
    refuses_offer(&c, KVF_EMISMATCH, "1 there", "2 here");
    CASE(c.regions[1].block_bytes = 8);
    refuses_offer(&c, KVF_EMISMATCH, "block_lens[1] is 8 bytes there", "4 here");
    CASE(c.regions[0].name = "l.1"; c.regions[1].name = "l.0");
    refuses_offer(&c, KVF_EMISMATCH, "'l.1' is region 0 there", "1 here");
    kvfi_worker_core_destroy(core);
}

static void test_hash_can_be_ignored(void **state)
{
    struct kvf_kv_config config = config_of("self");
    config.compat.enforce = false;
    struct kvfi_worker_core *core = NULL;
    assert_int_equal(create(&config, &two_region_cache, NULL, &core, NULL), KVF_OK);
    struct offer_case c;
    CASE(c.config.compat.model = "other");
    assert_int_equal(offer(&c, NULL), KVF_OK);
    CASE(c.config.block_size = 32); /* geometry never */
    assert_int_equal(offer(&c, NULL), KVF_EMISMATCH);
    kvfi_worker_core_destroy(core);
}

static void test_each_byte_of_a_handshake_may_be_wrong(void **state)
{
    struct kvf_kv_config config = config_of("self");
    struct kvf_kv_config peer = config_of("peer");
    struct kvfi_worker_core *core = NULL;
    assert_int_equal(create(&config, &two_region_cache, NULL, &core, NULL), KVF_OK);
    size_t len = 0;
    uint8_t *payload = payload_of(&peer, &two_region_cache, "agent", &len);
    struct kvfi_offer got;
    unsigned refused = 0;
    for (size_t i = 0; i < len; i++) {
        static const uint8_t masks[] = {0x01, 0x80, 0xff};
        for (size_t k = 0; k < sizeof(masks); k++) {
            payload[i] ^= masks[k];
            if (kvfi_handshake_check(core, "peer", "there", 1, payload, len, &got, NULL) == KVF_OK)
                kvfi_offer_free(core, &got);
            else
                refused++;
            payload[i] ^= masks[k];
        }
        assert_int_not_equal(kvfi_handshake_check(core, "peer", "there", 1, payload, i, &got, NULL),
                             KVF_OK);
    }
    assert_true(refused > len);
    kvfi_wire_free(NULL, payload);
    kvfi_worker_core_destroy(core);
}

/* ---- want of memory ------------------------------------------------------------------------- */

/*
 * Two cores live through a push, an aborted one and a lease that ends, with the n-th allocation of
 * either failing. The driver does what worker.h asks for: it repeats steps and ticks, and drops
 * notifications. However that ends, both sides come to rest and nothing leaks.
 */
struct duo {
    struct test_alloc ta;
    struct kvfi_worker_core *cores[2];
    struct kvfi_effects *effects;
    uint64_t now;
    unsigned results[2];
    struct {
        int to;
        struct kvfi_event event;
        uint8_t bytes[4096];
    } queue[128];
    size_t queue_count;
};

static const char *const duo_agents[2] = {"agent-p", "agent-d"};

static void duo_feed(struct duo *d, int side, struct kvfi_event *event);

static void duo_queue(struct duo *d, int to, const struct kvfi_event *event, const void *bytes,
                      size_t len)
{
    assert_true(d->queue_count < 128 && len <= sizeof(d->queue[0].bytes));
    size_t at = d->queue_count++;
    d->queue[at].to = to;
    d->queue[at].event = *event;
    if (len)
        memcpy(d->queue[at].bytes, bytes, len);
}

static void duo_perform(struct duo *d, int side)
{
    for (size_t i = 0; i < kvfi_effects_count(d->effects); i++) {
        const struct kvfi_effect *e = kvfi_effects_at(d->effects, i);
        struct kvfi_event event = {.kind = KVFI_EVENT_TICK};
        if (e->kind == KVFI_EFFECT_HANDSHAKE) {
            struct kvf_kv_config peer = config_of(side ? "p" : "d");
            size_t len = 0;
            void *payload = payload_of(&peer, &two_region_cache, duo_agents[!side], &len);
            event.kind = KVFI_EVENT_HANDSHAKE_REPLY;
            event.handshake_reply.handshake_id = e->handshake.handshake_id;
            event.handshake_reply.payload_len = len;
            duo_queue(d, side, &event, payload, len);
            kvfi_wire_free(NULL, payload);
        } else if (e->kind == KVFI_EFFECT_LOAD_PEER) {
            event.kind = KVFI_EVENT_PEER_LOADED;
            event.peer_loaded.handshake_id = e->load_peer.handshake_id;
            event.peer_loaded.peer.value = 1;
            duo_queue(d, side, &event, NULL, 0);
        } else if (e->kind == KVFI_EFFECT_SEND) {
            event.kind = KVFI_EVENT_NOTIFICATION;
            event.notification.sender = duo_agents[side];
            event.notification.message_len = e->send.message_len;
            duo_queue(d, !side, &event, e->send.message, e->send.message_len);
        } else if (e->kind == KVFI_EFFECT_WRITE) {
            event.kind = KVFI_EVENT_NOTIFICATION;
            event.notification.sender = duo_agents[side];
            event.notification.message_len = e->write.message_len;
            duo_queue(d, !side, &event, e->write.message, e->write.message_len);
            event = (struct kvfi_event){.kind = KVFI_EVENT_TRANSFER_DONE};
            event.transfer_done.token = e->write.token;
            duo_queue(d, side, &event, NULL, 0);
        } else if (e->kind == KVFI_EFFECT_RESULT) {
            d->results[side]++;
        }
    }
    kvfi_effects_reset(d->effects);
}

static void duo_feed(struct duo *d, int side, struct kvfi_event *event)
{
    enum kvf_status status = KVF_OK;
    do {
        event->now_ns = d->now;
        status = kvfi_worker_core_step(d->cores[side], event, d->effects);
        assert_null(kvfi_worker_core_check(d->cores[side]));
        if (status != KVF_OK) {
            assert_int_equal(status, KVF_ENOMEM);
            assert_int_equal(kvfi_effects_count(d->effects), 0);
        }
    } while (status != KVF_OK && event->kind != KVFI_EVENT_NOTIFICATION);
    duo_perform(d, side);
}

static void duo_run(struct duo *d, uint64_t until)
{
    for (;;) {
        while (d->queue_count) {
            int to = d->queue[0].to;
            struct kvfi_event event = d->queue[0].event;
            static uint8_t bytes[4096];
            memcpy(bytes, d->queue[0].bytes, sizeof(bytes));
            memmove(&d->queue[0], &d->queue[1], --d->queue_count * sizeof(d->queue[0]));
            if (event.kind == KVFI_EVENT_NOTIFICATION)
                event.notification.message = bytes;
            else if (event.kind == KVFI_EVENT_HANDSHAKE_REPLY)
                event.handshake_reply.payload = bytes;
            duo_feed(d, to, &event);
        }
        uint64_t p = kvfi_worker_core_deadline_ns(d->cores[0]);
        uint64_t q = kvfi_worker_core_deadline_ns(d->cores[1]);
        uint64_t next = p < q ? p : q;
        if (next > until)
            break;
        d->now = next > d->now ? next : d->now;
        struct kvfi_event tick = {.kind = KVFI_EVENT_TICK};
        duo_feed(d, p <= q ? 0 : 1, &tick);
    }
    d->now = until;
}

static void duo_step(struct duo *d, int side, struct kvf_step step)
{
    step.scheduler_clock_ns = 1;
    struct kvfi_event event = {.kind = KVFI_EVENT_STEP, .step = &step};
    duo_feed(d, side, &event);
}

static void duo_quiet(struct duo *d)
{
    for (int side = 0; side < 2; side++) {
        struct kvf_worker_usage u = {0};
        kvfi_worker_core_usage(d->cores[side], &u);
        assert_int_equal(u.registrations + u.staged + u.deferred + u.writes + u.leases +
                             u.receives + u.quarantined + u.handshakes,
                         0);
    }
}

static uint64_t duo_life(uint64_t fail_at, bool onwards)
{
    static struct duo d;
    memset(&d, 0, sizeof(d));
    test_alloc_init(&d.ta);
    struct kvf_kv_config p = config_of("p");
    struct kvf_kv_config q = config_of("d");
    assert_int_equal(create(&p, &two_region_cache, &d.ta.allocator, &d.cores[0], NULL), KVF_OK);
    assert_int_equal(create(&q, &two_region_cache, &d.ta.allocator, &d.cores[1], NULL), KVF_OK);
    d.effects = kvfi_effects_create(&d.ta.allocator);
    d.ta.uses = 0;
    d.ta.fail_at = fail_at;
    d.now = S;
    const uint32_t blocks[] = {1, 2, 3};
    const struct kvf_remote_engine remote = {"p", "here", 5600, 1, 1};
    const struct kvf_step_registration registrations[] = {
        {"a-0-bbbbbbbb", "t", "a", remote, blocks, 3},
        {"b-0-bbbbbbbb", NULL, "b", remote, blocks, 2},
        {"c-0-bbbbbbbb", NULL, "c", remote, NULL, 0}};
    const char *const ids[] = {"a-0-aaaaaaaa", "b-0-aaaaaaaa", "c-0-aaaaaaaa", "d-0-aaaaaaaa"};
    const struct kvf_step_heartbeat beat = {remote, ids, 3};
    const struct kvf_step_finished finished[] = {{ids[0], "t", blocks, 3, 30 * S},
                                                 {ids[2], NULL, blocks, 3, 30 * S},
                                                 {ids[3], NULL, blocks, 3, 30 * S}};
    duo_step(&d, 1,
             (struct kvf_step){.registrations = registrations,
                               .registration_count = 3,
                               .heartbeats = &beat,
                               .heartbeat_count = 1});
    duo_step(&d, 0, (struct kvf_step){.in_batch = ids, .in_batch_count = 3});
    duo_run(&d, 2 * S);
    duo_step(&d, 0,
             (struct kvf_step){.finished = finished,
                               .finished_count = 3,
                               .not_processed = ids + 1,
                               .not_processed_count = 1});
    duo_run(&d, 3 * S);
    d.ta.fail_onwards = onwards;
    if (onwards) { /* a drought, and then rain */
        d.ta.fail_at = d.ta.uses + 1;
        duo_run(&d, 4 * S);
        d.ta.fail_at = 0;
    }
    const char *const withdrawn[] = {"a-0-bbbbbbbb", "b-0-bbbbbbbb"};
    duo_step(&d, 1, (struct kvf_step){.withdrawn = withdrawn, .withdrawn_count = 2});
    /* A dropped registration or withdrawal costs a lease or a time-out, nothing more. */
    duo_run(&d, 1000 * S);
    duo_quiet(&d);
    assert_true(d.results[0] == 3 && d.results[1] >= 2 && d.results[1] <= 4);
    uint64_t uses = d.ta.uses;
    kvfi_worker_core_destroy(d.cores[0]);
    kvfi_worker_core_destroy(d.cores[1]);
    kvfi_effects_destroy(d.effects);
    assert_int_equal(d.ta.live, 0);
    return uses;
}

static void test_each_allocation_may_fail(void **state)
{
    uint64_t uses = duo_life(0, false);
    assert_true(uses > 50);
    for (uint64_t n = 1; n <= uses; n++)
        (void)duo_life(n, false);
    (void)duo_life(0, true);
}

static void test_creation_without_memory(void **state)
{
    struct kvf_kv_config config = config_of("p");
    for (uint64_t n = 1;; n++) {
        struct test_alloc ta;
        test_alloc_init(&ta);
        ta.fail_at = n;
        struct kvfi_worker_core *core = NULL;
        enum kvf_status status = create(&config, &two_region_cache, &ta.allocator, &core, NULL);
        void *bytes = NULL;
        size_t len = 0;
        if (status == KVF_OK)
            status = kvfi_worker_core_payload(core, "x", 1, &bytes, &len, NULL);
        bool fired = ta.uses >= n;
        assert_int_equal(status, fired ? KVF_ENOMEM : KVF_OK);
        if (core)
            kvfi_worker_core_payload_free(core, bytes);
        kvfi_worker_core_destroy(core);
        assert_int_equal(ta.live, 0);
        if (!fired)
            break;
    }
}

/* ---- destruction and limits ----------------------------------------------------------------- */

static void test_destroyed_in_the_middle(void **state)
{
    static struct duo d;
    memset(&d, 0, sizeof(d));
    test_alloc_init(&d.ta);
    struct kvf_kv_config p = config_of("p");
    struct kvf_kv_config q = config_of("d");
    assert_int_equal(create(&p, &two_region_cache, &d.ta.allocator, &d.cores[0], NULL), KVF_OK);
    assert_int_equal(create(&q, &two_region_cache, &d.ta.allocator, &d.cores[1], NULL), KVF_OK);
    d.effects = kvfi_effects_create(&d.ta.allocator);
    const uint32_t blocks[] = {1};
    const struct kvf_step_registration registration = {
        "a-0-bbbbbbbb", NULL, "a", {"p", "here", 5600, 1, 1}, blocks, 1};
    const struct kvf_step_finished finished = {"z-0-aaaaaaaa", NULL, blocks, 1, 30 * S};
    duo_step(&d, 1, (struct kvf_step){.registrations = &registration, .registration_count = 1});
    duo_run(&d, S);
    duo_step(&d, 0, (struct kvf_step){.finished = &finished, .finished_count = 1});
    kvfi_worker_core_destroy(d.cores[0]);
    kvfi_worker_core_destroy(d.cores[1]);
    kvfi_effects_destroy(d.effects);
    assert_int_equal(d.ta.live, 0);
}

static void test_registrations_are_bounded(void **state)
{
    struct kvf_kv_config config = config_of("p");
    const struct kvfi_worker_core_options options = {
        .config = &config, .cache = &two_region_cache, .registration_count_max = 10};
    struct kvfi_worker_core *core = NULL;
    assert_int_equal(kvfi_worker_core_create(&options, &core, NULL), KVF_OK);
    struct kvfi_effects *effects = kvfi_effects_create(NULL);
    const uint32_t ids[] = {1};
    const struct kvfi_block_group group = {ids, 1};
    uint64_t bad = 0;
    for (int i = 0; i < 100; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "r-%d", i);
        const struct kvfi_push_reg reg = {.request_id = id,
                                          .decode_engine_id = "d",
                                          .decode_host = "h",
                                          .decode_port = 1,
                                          .decode_tp_size = 1,
                                          .groups = &group,
                                          .group_count = 1,
                                          .remote_engine_id = "p",
                                          .remote_host = "here",
                                          .remote_port = 5600,
                                          .remote_tp_size = 1,
                                          .remote_pp_size = 1};
        struct kvfi_buf buf;
        kvfi_buf_init(&buf, NULL);
        assert_int_equal(kvfi_push_reg_encode(&reg, &buf, NULL), KVF_OK);
        struct kvfi_event event = {.kind = KVFI_EVENT_NOTIFICATION};
        event.notification.sender = "agent";
        event.notification.message = buf.data;
        event.notification.message_len = buf.len;
        assert_int_equal(kvfi_worker_core_step(core, &event, effects), KVF_OK);
        kvfi_buf_deinit(&buf);
    }
    for (size_t i = 0; i < kvfi_effects_count(effects); i++) {
        const struct kvfi_effect *e = kvfi_effects_at(effects, i);
        if (e->kind == KVFI_EFFECT_COUNT && e->count.counter == KVF_COUNTER_bad_messages)
            bad += e->count.n;
    }
    struct kvf_worker_usage usage = {0};
    kvfi_worker_core_usage(core, &usage);
    assert_int_equal(usage.registrations, 10);
    assert_int_equal(bad, 90);
    kvfi_effects_destroy(effects);
    kvfi_worker_core_destroy(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_is_checked),
        cmocka_unit_test(test_handshake_names_both_values),
        cmocka_unit_test(test_hash_can_be_ignored),
        cmocka_unit_test(test_each_byte_of_a_handshake_may_be_wrong),
        cmocka_unit_test(test_each_allocation_may_fail),
        cmocka_unit_test(test_creation_without_memory),
        cmocka_unit_test(test_destroyed_in_the_middle),
        cmocka_unit_test(test_registrations_are_bounded),
    };
    return cmocka_run_group_tests_name("core/worker", tests, NULL, NULL);
}
