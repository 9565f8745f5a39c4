/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's stories, continued: what the network, dead processes, unlucky ids and bad peers
 * do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/scenario_testing.h"

/* ---- doubled, late, lost, reordered --------------------------------------------------------- */

static unsigned two_of_each_registration(struct w_world *w, enum w_side from, const char *message,
                                         uint64_t delay_ns[4])
{
    if (strncmp(message, "PUSH_REG", 8) != 0)
        return 1;
    delay_ns[1] = 8 * W_MS;   /* while the WRITE runs */
    delay_ns[2] = 100 * W_MS; /* after all is over */
    return 3;
}

static void test_doubled_registrations_write_once(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w->network = two_of_each_registration;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w->write_ns = 20 * W_MS;
    w_run(w, 50 * W_MS);
    w_decode_end(w, D_ID);
    /* The same X-Request-Id again: gap 5 of the original wrote into the first one's blocks here. */
    w_prefill_start(w, "cmpl-u-0-cccccccc", NULL, 16);
    w_prefill_finish(w, "cmpl-u-0-cccccccc");
    w_run(w, 100 * W_MS);
    assert_int_equal(times(w, "p posts a WRITE"), 1);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_late_messages), 2);
    assert_int_equal(w_usage(w, W_P).staged, 1);
    w_run(w, 31 * W_S);
    clean(w);
}

static void test_doubled_registration_that_waits(void **state)
{
    struct w_world *w = *state;
    w->network = two_of_each_registration;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 20 * W_MS);
    assert_int_equal(w_usage(w, W_P).registrations, 1);
    w_prefill_finish(w, P_ID);
    w_run(w, 20 * W_MS);
    assert_int_equal(times(w, "p posts a WRITE"), 1);
    w_decode_end(w, D_ID);
    w_run(w, 200 * W_MS);
    clean(w);
}

static const char *lost_prefix;

static unsigned lose(struct w_world *w, enum w_side from, const char *message, uint64_t delay_ns[4])
{
    return strncmp(message, lost_prefix, strlen(lost_prefix)) != 0;
}

static void test_lost_completion(void **state) /* B62 */
{
    struct w_world *w = *state;
    w->network = lose;
    lost_prefix = D_ID;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 99 * W_S);
    tells(w, "p tells its engine SENT " P_ID);
    never(w, "d tells");
    w_run(w, 2 * W_S);
    tells(w, "100000.000 ms  d tells its engine FAILED " D_ID ", blocks quarantined");
    tells(w, "100002.000 ms  d tells its engine RELEASED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_lost_registration(void **state)
{
    struct w_world *w = *state;
    w->network = lose;
    lost_prefix = "PUSH_REG";
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 101 * W_S);
    tells(w, "d tells its engine FAILED " D_ID ", blocks quarantined");
    w_decode_end(w, D_ID);
    /* Prefill does not know d and cannot answer, until a registration tells it who that is. */
    never(w, "p asks");
    w->network = NULL;
    w_run(w, 5 * W_S);
    assert_int_equal(times(w, "d sends PUSH_REG"), 2);
    tells(w, "d tells its engine RELEASED " D_ID);
    w_prefill_abort(w, P_ID);
    clean(w);
}

static void test_lost_refusal(void **state)
{
    struct w_world *w = *state;
    w->network = lose;
    lost_prefix = "PUSH_FAIL";
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_abort(w, P_ID);
    w_run(w, 101 * W_S);
    tells(w, "d tells its engine FAILED " D_ID ", blocks quarantined (prefill did not deliver");
    w_decode_end(w, D_ID);
    w->network = NULL;
    w_run(w, 5 * W_S);
    tells(w, "d tells its engine RELEASED " D_ID);
    clean(w);
}

static unsigned slow_registration(struct w_world *w, enum w_side from, const char *message,
                                  uint64_t delay_ns[4])
{
    if (strncmp(message, "PUSH_REG", 8) == 0)
        delay_ns[0] = 50 * W_MS;
    return 1;
}

static void test_withdrawal_overtakes_the_registration(void **state) /* B60 */
{
    struct w_world *w = *state;
    warm_up(w);
    w->network = slow_registration;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 1 * W_MS);
    w_decode_end(w, D_ID);
    w_run(w, 2 * W_MS);
    tells(w, "d tells its engine RELEASED " D_ID);
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID); /* the withdrawal waited for it */
    tells(w, "p tells its engine SENT " P_ID " (withdrawn by decode)");
    w_run(w, 100 * W_MS); /* the registration arrives, and finds its id ended */
    never(w, "WRITE");
    clean(w);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_late_messages), 1);
}

static void test_strangers_messages(void **state) /* B06 */
{
    struct w_world *w = *state;
    warm_up(w);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 5 * W_MS);
    w_inject(w, W_D, "p01", "nobody-0-aaaaaaaa:1", 19);
    w_inject(w, W_D, "p01", "cmpl-u-0:1", 10);             /* a base id is not an id */
    w_inject(w, W_D, "p99", D_ID ":1", strlen(D_ID ":1")); /* not whom we registered with */
    w_inject(w, W_D, "p01", "warm-0-bbbbbbbb:1", 17);
    w_inject(w, W_D, "p01", "PUSH_FAIL:warm-0-bbbbbbbb:1", 27);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_unknown_messages), 3);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_late_messages), 2);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_notifications_after_expiry), 4);
    static const char *const rubbish[] = {"",
                                          "x",
                                          ":",
                                          ":1",
                                          "a:b",
                                          "\xff\xfe:1",
                                          "HB:",
                                          "HB:,,,",
                                          "PUSH_REG:",
                                          "PUSH_REG:\x8b",
                                          "PUSH_DROP:",
                                          "a:0",
                                          "PUSH_FAIL:a",
                                          "a:99999999999999999999"};
    for (size_t i = 0; i < sizeof(rubbish) / sizeof(rubbish[0]); i++) {
        w_inject(w, W_D, "p01", rubbish[i], strlen(rubbish[i]));
        w_inject(w, W_P, "d01", rubbish[i], strlen(rubbish[i]));
    }
    assert_true(w_count(w, W_P, KVF_COUNTER_bad_messages) >= 10);
    assert_int_equal(w_usage(w, W_D).receives, 1);
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_run(w, 10 * W_MS);
    tells(w, "d tells its engine RECEIVED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

/* ---- lost peers and restarts ---------------------------------------------------------------- */

static void test_prefill_dies_before_it_finishes(void **state) /* B28, B35 */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_kill(w, W_P);
    w_tell_lost(w, W_D);
    w_run(w, 2 * W_MS);
    tells(w, "d tells its engine FAILED " D_ID
             ", blocks quarantined (prefill pre was lost: endpoint error)");
    w_decode_end(w, D_ID);
    assert_int_equal(w_usage(w, W_D).quarantined, 1);
    w_run(w, 6 * W_S); /* nobody answers for it */
    tells(w, "d tells its engine RELEASED " D_ID);
    clean(w);
    w_start(w, W_P);
    push(w, "b-0-aaaaaaaa", "b-0-bbbbbbbb", 16, 16, 0);
    tells(w, "d tells its engine RECEIVED b-0-bbbbbbbb");
    clean(w);
}

static void test_prefill_restarts_at_once(void **state)
{
    struct w_world *w = *state;
    w->write_ns = 10 * W_S;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 1 * W_MS);
    w_kill(w, W_P); /* in the middle of the WRITE: its last bytes land for a while */
    w_start(w, W_P);
    w_tell_lost(w, W_D);
    w_run(w, 900 * W_MS);
    assert_int_equal(w_usage(w, W_D).quarantined, 1); /* peer_settle_ns is a second */
    w_run(w, 200 * W_MS);
    tells(w, "d tells its engine RELEASED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
    w->write_ns = 5 * W_MS;
    push(w, "b-0-aaaaaaaa", "b-0-bbbbbbbb", 16, 16, 0);
    tells(w, "d tells its engine RECEIVED b-0-bbbbbbbb");
}

static void test_prefill_dies_and_its_name_does_not_resolve(void **state)
{
    struct w_world *w = *state;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_kill(w, W_P);
    w->side_channel_status = KVF_ESYSTEM; /* that says little about the process */
    w_tell_lost(w, W_D);
    w_run(w, 20 * W_S);
    never(w, "RELEASED");
    w_run(w, 120 * W_S); /* but not for ever */
    tells(w, "d tells its engine RELEASED " D_ID);
    assert_int_equal(times(w, "d asks p"), 1 + 8);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_only_the_connection_breaks(void **state) /* B36 */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w->write_ns = 10 * W_S;
    w_prefill_finish(w, P_ID);
    w_tell_lost(w, W_D);
    w_run(w, 3 * W_S);
    /* Prefill lives and writes. The settling time alone would have freed the blocks at 1 s. */
    tells(w, "d tells its engine FAILED " D_ID ", blocks quarantined");
    tells(w, "d sends PUSH_DROP:" D_ID);
    never(w, "RELEASED");
    w_decode_end(w, D_ID);
    w_run(w, 8 * W_S);
    tells(w, "10010.000 ms  d tells its engine RELEASED " D_ID);
    clean(w);
}

static void test_decode_restarts(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_kill(w, W_D);
    w_start(w, W_D);
    /* Prefill notices by the new one's registration; the old one's is void. */
    w_decode_start(w, "b-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 10 * W_MS);
    assert_int_equal(times(w, "p asks d"), 2);
    assert_int_equal(w_usage(w, W_P).registrations, 1);
    w_prefill_finish(w, P_ID);
    w_prefill_start(w, "b-0-aaaaaaaa", NULL, 16);
    w_prefill_finish(w, "b-0-aaaaaaaa");
    w_run(w, 10 * W_MS);
    assert_int_equal(times(w, "p posts a WRITE"), 1);
    tells(w, "d tells its engine RECEIVED b-0-bbbbbbbb");
    w_decode_end(w, "b-0-bbbbbbbb");
    w_run(w, 31 * W_S);
    clean(w);
}

static void test_decode_restarts_while_the_write_is_deferred(void **state)
{
    struct w_world *w = *state;
    w->handshake_ns = 20 * W_MS;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 21 * W_MS + W_MS / 2); /* the registration has arrived, the question is out */
    assert_int_equal(w_usage(w, W_P).deferred, 1);
    w_lose_all(w); /* nobody answers the first question */
    w_kill(w, W_D);
    w_start(w, W_D);
    w_run(w, 20 * W_S); /* the second one is answered by the new process */
    never(w, "p posts a WRITE");
    assert_int_equal(w_usage(w, W_P).deferred, 0);
    w_run(w, 11 * W_S);
    clean(w);
}

static void test_message_of_a_replaced_decode(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_kill(w, W_D);
    w_start(w, W_D);
    push(w, "b-0-aaaaaaaa", "b-0-bbbbbbbb", 16, 16, 0);
    assert_int_equal(times(w, "p asks d"), 1);
    /* What the old process had sent comes late. It must not cost the new one its connection. */
    const uint32_t ids[] = {0};
    const struct kvfi_block_group group = {ids, 1};
    inject_registration(w, (struct kvfi_push_reg){.request_id = D_ID,
                                                  .decode_engine_id = "dec",
                                                  .decode_host = "host-d",
                                                  .decode_port = 5601,
                                                  .decode_tp_size = 1,
                                                  .groups = &group,
                                                  .group_count = 1,
                                                  .remote_engine_id = "pre",
                                                  .remote_host = "host-p",
                                                  .remote_port = 5600,
                                                  .remote_tp_size = 1,
                                                  .remote_pp_size = 1});
    assert_int_equal(w_usage(w, W_P).registrations, 0);
    assert_int_equal(w_usage(w, W_P).peers, 1);
    assert_int_equal(times(w, "p asks d"), 1);
    clean(w);
}

static void test_decode_dies_during_the_write(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_kill(w, W_D);
    w_tell_lost(w, W_P);
    w_run(w, 10 * W_MS);
    tells(w, "p tells its engine SENT " P_ID " (WRITE failed");
    w_run(w, 10 * W_S);
    clean(w);
}

/* ---- ids ------------------------------------------------------------------------------------ */

static void test_ambiguous_registrations_are_refused(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_decode_start(w, "u-0-bbbbbbb1", NULL, 16, 0);
    w_decode_start(w, "u-0-bbbbbbb2", NULL, 16, 0);
    w_run(w, 5 * W_MS);
    w_prefill_start(w, "u-0-aaaaaaaa", NULL, 16);
    w_prefill_finish(w, "u-0-aaaaaaaa");
    w_run(w, 5 * W_MS);
    never(w, "WRITE");
    tells(w, "p sends PUSH_FAIL:u-0-bbbbbbb1:1");
    tells(w, "p sends PUSH_FAIL:u-0-bbbbbbb2:1");
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_matches_ambiguous), 1);
    w_decode_end(w, "u-0-bbbbbbb1");
    w_decode_end(w, "u-0-bbbbbbb2");
    w_run(w, 31 * W_S);
    clean(w);
}

static void test_ambiguous_prefills(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_prefill_start(w, "u-0-aaaaaaa1", NULL, 16);
    w_prefill_finish(w, "u-0-aaaaaaa1");
    w_prefill_start(w, "u-0-aaaaaaa2", NULL, 16);
    w_decode_start(w, "u-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 5 * W_MS);
    tells(w, "p sends PUSH_FAIL:u-0-bbbbbbbb:1");
    w_decode_end(w, "u-0-bbbbbbbb");
    w_prefill_abort(w, "u-0-aaaaaaa2");
    w_run(w, 31 * W_S);
    clean(w);
}

static void test_transfer_ids_tell_them_apart(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_decode_start(w, "u-0-bbbbbbb1", "t1", 16, 0);
    w_decode_start(w, "u-0-bbbbbbb2", "t2", 16, 0);
    w_decode_start(w, "other-name", "t3", 16, 3);
    w_run(w, 5 * W_MS);
    w_prefill_start(w, "u-0-aaaaaaa2", "t2", 16);
    w_prefill_finish(w, "u-0-aaaaaaa2");
    tells(w, "then u-0-bbbbbbb2:1");
    w_prefill_start(w, "u-0-aaaaaaa1", "t1", 16);
    w_prefill_finish(w, "u-0-aaaaaaa1");
    tells(w, "then u-0-bbbbbbb1:1");
    w_prefill_start(w, "any-name", "t3", 16);
    w_prefill_finish(w, "any-name");
    tells(w, "p posts a WRITE of any-name, 1 blocks, then other-name:1");
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_matches_ambiguous), 0);
    /* The names of that last pair differ, so the patterns do: only its flow is looked at. */
    tells(w, "p posts a WRITE");
}

static void test_other_transfer_id_is_no_match(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_prefill_start(w, P_ID, "t1", 16);
    w_prefill_finish(w, P_ID);
    w_decode_start(w, D_ID, "t2", 16, 0);
    w_run(w, 31 * W_S);
    never(w, "WRITE");
    w_decode_end(w, D_ID);
    w_run(w, 31 * W_S); /* a heartbeat carries no transfer id, so it had renewed the lease */
    clean(w);
}

static void test_ids_without_tails(void **state) /* B03 */
{
    struct w_world *w = *state;
    push(w, "a-0", "a-0", 16, 16, 0);
    push(w, "b-0-aaaaaaaa", "b-0", 16, 16, 0);
    push(w, "c-0", "c-0-bbbbbbbb", 16, 16, 0);
    assert_int_equal(times(w, "RECEIVED"), 3);
    clean(w);
}

static void test_similar_ids_are_kept_apart(void **state) /* B06 */
{
    struct w_world *w = *state;
    w_decode_start(w, "cmpl-u-1-bbbbbbbb", NULL, 8, 0);
    w_decode_start(w, "cmpl-u-11-bbbbbbbb", NULL, 8, 0);
    w_run(w, 10 * W_MS);
    w_prefill_start(w, "cmpl-u-11-aaaaaaaa", NULL, 8);
    w_prefill_finish(w, "cmpl-u-11-aaaaaaaa");
    w_prefill_start(w, "cmpl-u-1-aaaaaaaa", NULL, 8);
    w_prefill_finish(w, "cmpl-u-1-aaaaaaaa");
    w_run(w, 10 * W_MS);
    assert_int_equal(times(w, "RECEIVED"), 2);
    w_decode_end(w, "cmpl-u-1-bbbbbbbb");
    w_decode_end(w, "cmpl-u-11-bbbbbbbb");
    clean(w);
}

/* ---- peers without our extensions, bad peers ------------------------------------------------ */

static void test_peer_that_cannot_be_asked(void **state)
{
    struct w_world *w = *state;
    w->no_caps = true;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_decode_end(w, D_ID);
    w_run(w, 40 * W_S);
    assert_int_equal(w_usage(w, W_D).quarantined, 1);
    w_prefill_finish(w, P_ID); /* it writes: nobody could tell it */
    w_run(w, 10 * W_MS);
    tells(w, "d tells its engine RELEASED " D_ID);
    never(w, "PUSH_DROP");
    never(w, "PUSH_FAIL");
    clean(w);
}

static void test_block_ids_out_of_range(void **state) /* P7 */
{
    struct w_world *w = *state;
    warm_up(w);
    const uint32_t ids[] = {3, W_BLOCKS};
    const struct kvfi_block_group groups[] = {{ids, 2}, {ids, 1}};
    struct kvfi_push_reg reg = {.request_id = D_ID,
                                .decode_engine_id = "dec",
                                .decode_host = "host-d",
                                .decode_port = 5601,
                                .decode_tp_size = 1,
                                .groups = groups,
                                .group_count = 1,
                                .remote_engine_id = "pre",
                                .remote_host = "host-p",
                                .remote_port = 5600,
                                .remote_tp_size = 1,
                                .remote_pp_size = 1};
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    inject_registration(w, reg);
    never(w, "WRITE");
    tells(w, "p tells its engine SENT " P_ID " (a block id of decode is out of range");
    reg.request_id = "x";
    reg.decode_tp_size = 2;
    inject_registration(w, reg);
    reg.request_id = "y";
    reg.decode_tp_size = 1;
    reg.group_count = 2;
    inject_registration(w, reg);
    reg.request_id = "z";
    reg.group_count = 1;
    reg.remote_engine_id = "another";
    inject_registration(w, reg);
    reg.remote_engine_id = "pre";
    reg.decode_engine_id = "pre";
    inject_registration(w, reg);
    w_run(w, 5 * W_MS);
    assert_int_equal(times(w, "p sends PUSH_FAIL"), 3);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_bad_messages), 3);
    clean(w);
}

static void test_registration_nobody_serves(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w->engines[W_D].scheduler->registration_timeout_ns = 300 * W_S;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 101 * W_S);
    tells(w, "p sends PUSH_FAIL:" D_ID ":1"); /* prefill's own limit */
    tells(w, "d tells its engine FAILED " D_ID " (prefill will not deliver");
    w_decode_end(w, D_ID);
    clean(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_doubled_registrations_write_once),
        T(test_doubled_registration_that_waits),
        T(test_lost_completion),
        T(test_lost_registration),
        T(test_lost_refusal),
        T(test_withdrawal_overtakes_the_registration),
        T(test_strangers_messages),
        T(test_prefill_dies_before_it_finishes),
        T(test_prefill_restarts_at_once),
        T(test_prefill_dies_and_its_name_does_not_resolve),
        T(test_only_the_connection_breaks),
        T(test_decode_restarts),
        T(test_decode_restarts_while_the_write_is_deferred),
        T(test_message_of_a_replaced_decode),
        T(test_decode_dies_during_the_write),
        T(test_ambiguous_registrations_are_refused),
        T(test_ambiguous_prefills),
        T(test_transfer_ids_tell_them_apart),
        T(test_other_transfer_id_is_no_match),
        T(test_ids_without_tails),
        T(test_similar_ids_are_kept_apart),
        T(test_peer_that_cannot_be_asked),
        T(test_block_ids_out_of_range),
        T(test_registration_nobody_serves),
    };
    return cmocka_run_group_tests_name("core/scenario_faults", tests, NULL, NULL);
}
