/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in no form, peers that come and go faster than anybody wants, and threads. */
#include "agent/conformance.h"

#include "lane/lane.h"
#include "wire/nixl_metadata.h"
#include "wire/nixl_notif.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)16)
#define POOL   (BLOCK * BLOCKS)

/* ---- raw messages --------------------------------------------------------------------------- */

/* Somebody who has b's address and sends it whatever he likes. */
struct sender {
    const struct kvfi_lane_ops *ops;
    struct kvfi_lane *lane;
    struct kvfi_lane_peer *peer;
    struct kvfi_lane_op op;
    size_t done;
};

static void on_done(void *ctx, struct kvfi_lane_op *op, enum kvf_status status)
{
    struct sender *sender = ctx;
    assert_int_equal(status, KVF_OK);
    sender->done++;
}

static void on_received(void *ctx, const void *message, size_t message_len)
{
    fail_msg("nobody writes to the sender");
}

static void on_lost(void *ctx, void *user, const char *reason)
{
    fail_msg("lost: %s", reason);
}

static void open_sender(struct sender *sender, struct conf_rig *rig)
{
    struct kvf_error error = {0};
    struct kvfi_lane_config config = {.name = "stranger",
                                      .lane_ctx = rig->net,
                                      .callbacks = {.ctx = sender,
                                                    .received = on_received,
                                                    .transfer_done = on_done,
                                                    .notify_done = on_done,
                                                    .peer_lost = on_lost}};
    *sender = (struct sender){.ops = kvfi_lane_find(conf_lane)};
    if (sender->ops->create(&config, &sender->lane, &error) != KVF_OK)
        fail_msg("create: %s", error.text);
    void *blob = NULL;
    size_t len = 0;
    struct kvfi_nixl_metadata md;
    assert_int_equal(kvf_agent_metadata(rig->b.agent, &blob, &len, NULL), KVF_OK);
    assert_int_equal(kvfi_nixl_metadata_decode(blob, len, NULL, &md, NULL), KVF_OK);
    if (sender->ops->connect(sender->lane, md.conns[0].info.data, md.conns[0].info.len, NULL,
                             &sender->peer, &error) != KVF_OK)
        fail_msg("connect: %s", error.text);
    kvfi_nixl_metadata_free(&md);
    kvf_agent_blob_free(rig->b.agent, blob);
}

static void close_sender(struct sender *sender)
{
    sender->ops->drain(sender->lane);
    sender->ops->disconnect(sender->lane, sender->peer);
    sender->ops->destroy(sender->lane);
}

static uint64_t refused(const struct conf_side *side)
{
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(side->agent, &counters);
    return counters.messages_refused;
}

static void send_raw(struct sender *sender, struct conf_rig *rig, const void *data, size_t len)
{
    uint64_t before = refused(&rig->b);
    size_t messages = rig->b.message_count;
    size_t done = sender->done;
    sender->op = (struct kvfi_lane_op){.message = data, .message_len = len};
    assert_int_equal(sender->ops->notify(sender->lane, sender->peer, &sender->op), KVF_OK);
    while (refused(&rig->b) == before || sender->done == done) {
        (void)sender->ops->progress(sender->lane);
        (void)kvf_agent_progress(rig->b.agent);
    }
    assert_int_equal(refused(&rig->b), before + 1);
    assert_int_equal(rig->b.message_count, messages);
}

static bool b_heard(struct conf_rig *rig)
{
    return rig->b.message_count > 0;
}

/* B33: a bad message costs that message. After each of them a good one arrives. */
static void bad_messages_are_counted_and_dropped(void **state)
{
    enum { JUNK_LEN = 1 << 20 };
    struct conf_rig rig;
    struct sender sender;
    struct kvf_error error;
    struct kvfi_buf good;
    uint64_t seed = 11;
    unsigned char *junk = malloc(JUNK_LEN);
    assert_non_null(junk);
    for (size_t i = 0; i < JUNK_LEN; i++)
        junk[i] = (unsigned char)conf_random(&seed, 256);
    conf_start(&rig, POOL);
    conf_join(&rig);
    open_sender(&sender, &rig);
    kvfi_buf_init(&good, NULL);
    struct kvfi_nixl_notif notif = {.name = kvfi_span_str("someone"), .msg = kvfi_span_str("hi")};
    assert_int_equal(kvfi_nixl_notif_encode(&notif, &good, NULL), KVF_OK);

    uint64_t sent = 0;
    for (size_t len = 0; len < good.len; len++, sent++) /* every truncation */
        send_raw(&sender, &rig, good.data, len);
    for (size_t i = 0; i < good.len; i++) { /* every length and separator that does not fit */
        unsigned char kept = good.data[i];
        good.data[i] = (unsigned char)~kept;
        struct kvfi_nixl_notif found;
        if (kvfi_nixl_notif_decode(good.data, good.len, &found, NULL) != KVF_OK) {
            send_raw(&sender, &rig, good.data, good.len);
            sent++;
        }
        good.data[i] = kept;
    }
    static const size_t lens[] = {0, 1, 2, 3, 7, 100, 65536, JUNK_LEN};
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++, sent++)
        send_raw(&sender, &rig, junk, lens[i]);
    good.len = 0;
    notif.name = kvfi_span("a\0b", 3); /* no name for a C string */
    assert_int_equal(kvfi_nixl_notif_encode(&notif, &good, NULL), KVF_OK);
    send_raw(&sender, &rig, good.data, good.len);
    sent++;

    assert_int_equal(refused(&rig.b), sent);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "fine", 4, 0, &error), KVF_OK);
    conf_drive(&rig, b_heard);
    assert_int_equal(rig.b.message_count, 1);
    conf_expect_usage(rig.b.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    kvfi_buf_deinit(&good);
    close_sender(&sender);
    conf_stop(&rig);
    free(junk);
}

/* B33 for the metadata channel: a bad blob costs that blob. */
static void bad_blobs_are_counted(void **state)
{
    struct conf_rig rig;
    struct kvf_peer_id peer;
    struct kvf_error error;
    unsigned char junk[3000];
    uint64_t seed = 5;
    conf_start(&rig, POOL);
    for (size_t i = 0; i < sizeof(junk); i++)
        junk[i] = (unsigned char)conf_random(&seed, 256);
    static const size_t lens[] = {0, 1, 2, 3, 7, 11, 100, sizeof(junk)};
    uint64_t sent = 0;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++, sent++)
        assert_int_not_equal(kvf_agent_load(rig.a.agent, junk, lens[i], &peer, &error), KVF_OK);
    static const char prefix[] = "nixlSerDes|";
    for (size_t i = 0; i + 1 < sizeof(prefix); i++)
        junk[i] = (unsigned char)prefix[i];
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++, sent++)
        assert_int_not_equal(kvf_agent_load(rig.a.agent, junk, lens[i], &peer, &error), KVF_OK);
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.loads_refused, sent);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    conf_join(&rig);
    conf_stop(&rig);
}

/* ---- churn ---------------------------------------------------------------------------------- */

/* B31: peers are loaded and evicted all the time. A post to one that is loaded is accepted,
 * whatever happened to others or will happen to it; one to an evicted id is refused, and that is
 * all. */
static void evictions_race_with_nobody(void **state)
{
    enum { TARGETS_MAX = 50, STEPS = 3000 };
    const size_t targets = strcmp(conf_lane, "mem") == 0 ? TARGETS_MAX : 4;
    struct conf_rig rig;
    struct conf_side sides[TARGETS_MAX];
    struct kvf_peer_id peers[TARGETS_MAX] = {{0}};
    bool loaded[TARGETS_MAX] = {false};
    struct conf_block_plan made;
    uint64_t seed = 31;
    conf_start(&rig, POOL);
    for (size_t i = 0; i < targets; i++)
        conf_open(&rig, &sides[i], NULL, POOL);
    size_t posted = 0;
    for (size_t step = 0; step < STEPS; step++) {
        struct kvf_error error;
        struct kvf_transfer_id id;
        size_t i = conf_random(&seed, targets);
        uint64_t choice = conf_random(&seed, 10);
        if (choice == 0 && loaded[i]) {
            assert_int_equal(kvf_agent_drop(rig.a.agent, peers[i]), KVF_OK);
            loaded[i] = false;
        } else if (choice <= 2 && !loaded[i]) {
            peers[i] = conf_load(&rig.a, &sides[i]);
            loaded[i] = true;
        } else {
            conf_one_block(&made, conf_region(&rig.a, &sides[i], BLOCK, BLOCK),
                           (uint32_t)conf_random(&seed, BLOCKS));
            enum kvf_status status = kvf_agent_post(rig.a.agent, KVF_WRITE, peers[i], &made.plan,
                                                    "x", 1, i, &id, &error);
            assert_int_equal(status, loaded[i] ? KVF_OK : KVF_ENOTFOUND);
            posted += loaded[i];
        }
        (void)kvf_agent_progress(rig.a.agent);
        (void)kvf_agent_progress(sides[i].agent);
    }
    for (size_t i = 0; i < targets; i++)
        conf_drop(&rig.a, peers[i]);
    struct kvf_agent_usage usage;
    do {
        (void)kvf_agent_progress(rig.a.agent);
        for (size_t i = 0; i < targets; i++)
            (void)kvf_agent_progress(sides[i].agent);
        kvf_agent_usage(rig.a.agent, &usage);
    } while (usage.transfers > 0 || usage.peers_closing > 0);
    assert_int_equal(rig.a.result_count, posted);
    for (size_t i = 0; i < posted; i++)
        assert_true(rig.a.results[i].status == KVF_OK || rig.a.results[i].status == KVF_ECANCELED);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    for (size_t i = 0; i < targets; i++)
        conf_close(&sides[i]);
    conf_stop(&rig);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void *use_the_agent(void *arg)
{
    struct conf_rig *rig = arg;
    struct conf_block_plan made;
    conf_join(rig);
    conf_fill(rig->a.pool, POOL, 7);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        conf_one_block(&made, conf_region(&rig->a, &rig->b, BLOCK, BLOCK), i);
        (void)conf_post(rig, KVF_WRITE, &made.plan, "x");
    }
    conf_drive_counts(rig, BLOCKS, BLOCKS);
    return NULL;
}

/* B77: one thread at a time owns an agent; it may be handed on. */
static void handed_to_another_thread(void **state)
{
    struct conf_rig rig;
    pthread_t thread;
    conf_start(&rig, POOL);
    assert_int_equal(pthread_create(&thread, NULL, use_the_agent, &rig), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    conf_stop(&rig);
}

int conf_run_hostile(void)
{
    const struct CMUnitTest hostile[] = {
        cmocka_unit_test(bad_messages_are_counted_and_dropped),
        cmocka_unit_test(bad_blobs_are_counted),
        cmocka_unit_test(evictions_race_with_nobody),
        cmocka_unit_test(handed_to_another_thread),
    };
    return cmocka_run_group_tests(hostile, NULL, NULL);
}
