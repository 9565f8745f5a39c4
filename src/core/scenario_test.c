/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's stories: who says what to whom, when, and what is left. p is prefill, d decode.
 * Here: the flow, the seed's failure cases, aborts, leases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/scenario_testing.h"

/* ---- the main flow -------------------------------------------------------------------------- */

static void test_registration_first(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 4 * W_MS);
    assert_int_equal(w_usage(w, W_P).registrations, 1);
    assert_int_equal(w_usage(w, W_D).receives, 1);
    w_run(w, 6 * W_MS);
    w_prefill_finish(w, P_ID);
    assert_int_equal(w_usage(w, W_P).writes, 1);
    assert_int_equal(w_usage(w, W_P).registrations, 0);
    w_run(w, 10 * W_MS);
    assert_int_equal(w_usage(w, W_D).receives, 0);
    w_decode_end(w, D_ID);
    trace_is(w, "   0.000 ms  p starts " P_ID ", 4 blocks\n"
                "   0.000 ms  d starts " D_ID ", 4 blocks, 0 cached\n"
                "   0.000 ms  d asks p for its handshake\n"
                "   2.000 ms  d sends PUSH_REG " D_ID ", 4 blocks\n"
                "   3.000 ms  p asks d for its handshake\n"
                "  10.000 ms  p finishes " P_ID "\n"
                "  10.000 ms  p posts a WRITE of " P_ID ", 4 blocks, then " D_ID ":1\n"
                "  15.000 ms  p tells its engine SENT " P_ID "\n"
                "  15.000 ms  d tells its engine RECEIVED " D_ID "\n"
                "  20.000 ms  d ends " D_ID "\n");
    clean(w);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_matches), 1);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_writes_done), 1);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_bytes_written), 4 * W_REGIONS * W_BLOCK_BYTES);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_receives_done), 1);
}

static void test_blocks_first(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    assert_int_equal(w_usage(w, W_P).staged, 1);
    w_run(w, 10 * W_MS);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 4 * W_MS);
    assert_int_equal(w_usage(w, W_P).deferred, 1); /* matched, the handshake with d runs */
    w_run(w, 10 * W_MS);
    w_decode_end(w, D_ID);
    trace_is(w, "   0.000 ms  p starts " P_ID ", 4 blocks\n"
                "   0.000 ms  p finishes " P_ID "\n"
                "  10.000 ms  d starts " D_ID ", 4 blocks, 0 cached\n"
                "  10.000 ms  d asks p for its handshake\n"
                "  12.000 ms  d sends PUSH_REG " D_ID ", 4 blocks\n"
                "  13.000 ms  p asks d for its handshake\n"
                "  15.000 ms  p posts a WRITE of " P_ID ", 4 blocks, then " D_ID ":1\n"
                "  20.000 ms  p tells its engine SENT " P_ID "\n"
                "  20.000 ms  d tells its engine RECEIVED " D_ID "\n"
                "  24.000 ms  d ends " D_ID "\n");
    clean(w);
}

static void test_partial_hits_take_the_tail(void **state) /* B54 */
{
    struct w_world *w = *state;
    push(w, "a-0-aaaaaaaa", "a-0-bbbbbbbb", 32, 32, 7);
    tells(w, "p posts a WRITE of a-0-aaaaaaaa, 1 blocks");
    push(w, "b-0-aaaaaaaa", "b-0-bbbbbbbb", 32, 32, 3);
    tells(w, "p posts a WRITE of b-0-aaaaaaaa, 5 blocks");
    push(w, "c-0-aaaaaaaa", "c-0-bbbbbbbb", 32, 32, 0);
    tells(w, "p posts a WRITE of c-0-aaaaaaaa, 8 blocks");
    assert_int_equal(times(w, "RECEIVED"), 3); /* each compared byte by byte */
    /* Decode asks for more than prefill has: B61. */
    push(w, "d-0-aaaaaaaa", "d-0-bbbbbbbb", 32, 36, 0);
    never(w, "a WRITE of d-0");
    tells(w, "p tells its engine SENT d-0-aaaaaaaa (decode asks for 9 blocks, prefill has 8)");
    tells(w, "d tells its engine FAILED d-0-bbbbbbbb (prefill will not deliver (PUSH_FAIL))");
    clean(w);
}

static void test_full_hit_frees_prefill(void **state) /* B55 */
{
    struct w_world *w = *state;
    warm_up(w);
    /* Before prefill knows the request, while it computes, after it has staged. */
    w_decode_start(w, "a-0-bbbbbbbb", NULL, 16, 4);
    w_run(w, 5 * W_MS);
    w_prefill_start(w, "a-0-aaaaaaaa", NULL, 16);
    w_prefill_finish(w, "a-0-aaaaaaaa");
    w_prefill_start(w, "b-0-aaaaaaaa", NULL, 16);
    w_decode_start(w, "b-0-bbbbbbbb", NULL, 16, 4);
    w_run(w, 5 * W_MS);
    w_prefill_finish(w, "b-0-aaaaaaaa");
    w_prefill_start(w, "c-0-aaaaaaaa", NULL, 16);
    w_prefill_finish(w, "c-0-aaaaaaaa");
    w_decode_start(w, "c-0-bbbbbbbb", NULL, 16, 4);
    w_run(w, 5 * W_MS);
    assert_int_equal(times(w, "(withdrawn by decode)"), 3);
    never(w, "PUSH_REG");
    never(w, "WRITE");
    w_decode_end(w, "a-0-bbbbbbbb");
    w_decode_end(w, "b-0-bbbbbbbb");
    w_decode_end(w, "c-0-bbbbbbbb");
    clean(w);
}

static void test_registration_with_no_blocks(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    const struct kvfi_block_group none = {NULL, 0};
    struct kvfi_push_reg reg = {.request_id = D_ID,
                                .decode_engine_id = "dec",
                                .decode_host = "host-d",
                                .decode_port = 5601,
                                .decode_tp_size = 1,
                                .groups = &none,
                                .group_count = 1,
                                .remote_engine_id = "pre",
                                .remote_host = "host-p",
                                .remote_port = 5600,
                                .remote_tp_size = 1,
                                .remote_pp_size = 1};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_push_reg_encode(&reg, &buf, NULL), KVF_OK);
    w_inject(w, W_P, "d01", buf.data, buf.len);
    kvfi_buf_deinit(&buf);
    tells(w, "p sends " D_ID ":1");
    tells(w, "p tells its engine SENT " P_ID "\n");
    never(w, "WRITE");
    w_run(w, 5 * W_MS);
    clean(w);
}

/* ---- the seed's four failure cases ---------------------------------------------------------- */

static void test_decode_cannot_handshake(void **state)
{
    struct w_world *w = *state;
    w->side_channel_dead[W_P] = true;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 5 * W_S);
    tells(w, "d tells its engine FAILED " D_ID
             " (handshake with pre at host-p:5600 failed: no reply)");
    w_decode_end(w, D_ID);
    clean(w);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_failed_handshakes), 1);
    /* The next one tries again at once; after that there is a pause, and nobody waits for it. */
    w_decode_start(w, "b-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 5 * W_S);
    assert_int_equal(times(w, "d asks p"), 2);
    w_decode_start(w, "c-0-bbbbbbbb", NULL, 16, 0);
    tells(w, "d tells its engine FAILED c-0-bbbbbbbb (handshake with pre");
    assert_int_equal(times(w, "d asks p"), 2);
    w->side_channel_dead[W_P] = false;
    w_run(w, 1 * W_S);
    w_decode_start(w, "e-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 5 * W_MS);
    tells(w, "d sends PUSH_REG e-0-bbbbbbbb");
}

static void test_registration_cannot_be_sent(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    w->send_status = KVF_ENOTFOUND; /* it has not left */
    w_decode_start(w, "a-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 5 * W_MS);
    tells(w, "d tells its engine FAILED a-0-bbbbbbbb (the registration could not be sent");
    w_decode_end(w, "a-0-bbbbbbbb");
    clean(w);
    w->send_status = KVF_ETRANSPORT; /* nobody knows */
    w_decode_start(w, "b-0-bbbbbbbb", NULL, 16, 0);
    w_run(w, 1 * W_MS);
    tells(w, "FAILED b-0-bbbbbbbb, blocks quarantined (the registration could not be sent");
    w_decode_end(w, "b-0-bbbbbbbb");
    assert_int_equal(w_usage(w, W_D).quarantined, 1);
    w_run(w, 5 * W_MS);
    tells(w, "d sends PUSH_DROP:b-0-bbbbbbbb");
    tells(w, "p sends PUSH_FAIL:b-0-bbbbbbbb:1");
    tells(w, "d tells its engine RELEASED b-0-bbbbbbbb");
    clean(w);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_failed_notifications), 2);
}

static void test_prefill_cannot_handshake(void **state)
{
    struct w_world *w = *state;
    w->side_channel_dead[W_D] = true;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 6 * W_S);
    w_prefill_finish(w, P_ID); /* matches, and asks once more */
    w_run(w, 6 * W_S);
    tells(w,
          "p tells its engine SENT " P_ID " (handshake with dec at host-d:5601 failed: no reply)");
    never(w, "WRITE");
    /* Decode cannot be told: its watchdog ends the request, and later the blocks are released. */
    w->side_channel_dead[W_D] = false;
    w_run(w, 100 * W_S);
    tells(w, "d tells its engine FAILED " D_ID
             ", blocks quarantined (prefill did not deliver in time)");
    w_decode_end(w, D_ID);
    w_run(w, 20 * W_S);
    tells(w, "d tells its engine RELEASED " D_ID);
    clean(w);
    assert_int_equal(w_count(w, W_D, KVF_COUNTER_registrations_expired), 1);
}

static void test_write_fails(void **state) /* B63 */
{
    struct w_world *w = *state;
    w->write_status = KVF_ETRANSPORT;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 1010 * W_MS); /* peer_settle_ns is a second */
    tells(w, "  15.000 ms  p tells its engine SENT " P_ID " (WRITE failed: the transport failed)");
    tells(w, "1015.000 ms  p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "1016.000 ms  d tells its engine FAILED " D_ID " (prefill will not");
    w_decode_end(w, D_ID);
    clean(w);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_failed_writes), 1);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_writes_done), 0);
}

/* ---- aborts --------------------------------------------------------------------------------- */

static void test_prefill_aborts_with_a_registration(void **state) /* B11, B15 */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_abort(w, P_ID);
    w_run(w, 1 * W_MS);
    tells(w, "  10.000 ms  p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "  11.000 ms  d tells its engine FAILED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_registration_after_prefill_aborted(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_abort(w, P_ID);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    tells(w, "   5.000 ms  p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "   6.000 ms  d tells its engine FAILED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
    /* The client tries again under the same X-Request-Id. */
    push(w, "cmpl-u-0-cccccccc", "cmpl-u-0-dddddddd", 16, 16, 0);
    tells(w, "d tells its engine RECEIVED cmpl-u-0-dddddddd");
    clean(w);
}

static void test_decode_aborts_before_it_registered(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_decode_end(w, D_ID); /* the handshake still runs */
    tells(w, "d tells its engine FAILED " D_ID " (withdrawn by the engine)");
    w_run(w, 10 * W_MS);
    never(w, "PUSH_REG");
    tells(w, "d sends PUSH_DROP:" D_ID);
    w_prefill_finish(w, P_ID);
    tells(w, "p tells its engine SENT " P_ID " (withdrawn by decode)");
    clean(w);
}

static void test_decode_aborts_while_prefill_computes(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_decode_end(w, D_ID);
    assert_int_equal(w_usage(w, W_D).quarantined, 1);
    w_run(w, 2 * W_MS);
    tells(w, "  10.000 ms  d sends PUSH_DROP:" D_ID);
    tells(w, "  11.000 ms  p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "  12.000 ms  d tells its engine RELEASED " D_ID);
    assert_int_equal(w_usage(w, W_P).registrations, 0);
    w_prefill_finish(w, P_ID);
    tells(w, "p tells its engine SENT " P_ID " (withdrawn by decode)");
    never(w, "WRITE");
    clean(w);
}

static void test_decode_aborts_while_the_write_is_deferred(void **state)
{
    struct w_world *w = *state;
    w->handshake_ns = 20 * W_MS;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 22 * W_MS);
    assert_int_equal(w_usage(w, W_P).deferred, 1);
    w_decode_end(w, D_ID);
    w_run(w, 2 * W_MS);
    tells(w, "p tells its engine SENT " P_ID " (withdrawn by decode)");
    assert_int_equal(w_usage(w, W_P).leases, 0);
    w_run(w, 30 * W_MS);
    never(w, "WRITE");
    tells(w, "d tells its engine RELEASED " D_ID); /* once p can speak to d */
    clean(w);
}

static void test_decode_aborts_during_the_write(void **state) /* B07 */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_decode_end(w, D_ID);
    w_run(w, 4 * W_MS);
    assert_int_equal(w_free_blocks(w, W_D), W_BLOCKS - 4);
    assert_int_equal(w_usage(w, W_D).quarantined, 1);
    w_run(w, 2 * W_MS);
    tells(w, "  15.000 ms  d tells its engine RELEASED " D_ID);
    never(w, "PUSH_FAIL"); /* it would have been a lie until 15 ms */
    clean(w);
}

static void test_decode_is_rejected_before_admission(void **state) /* B12 */
{
    struct w_world *w = *state;
    warm_up(w);
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_prefill = true;
    params.remote_engine_id = "pre";
    params.remote_request_id = P_ID;
    params.remote_host = "host-p";
    params.remote_port = 5600;
    params.tp_size = 1;
    struct kvf_scheduler *d = w->engines[W_D].scheduler;
    bool delay = true;
    assert_int_equal(kvf_scheduler_on_new_request(d, w->now_ns, D_ID, &params, 16, NULL), KVF_OK);
    assert_int_equal(kvf_scheduler_request_finished(d, w->now_ns, D_ID, KVF_FINISH_ABORT, NULL, 0,
                                                    &delay, NULL, NULL, NULL),
                     KVF_OK);
    assert_false(delay);
    w_step(w, W_D);
    w_run(w, 2 * W_MS);
    tells(w, "p tells its engine SENT " P_ID " (withdrawn by decode)");
    clean(w);
}

static void test_decode_uses_an_id_again_at_once(void **state)
{
    struct w_world *w = *state;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_decode_end(w, D_ID); /* what is left of it waits for the handshake to tell prefill */
    w_find(w, W_D, D_ID)->used = false;
    w_decode_start(w, D_ID, NULL, 16, 0);
    assert_int_equal(w_usage(w, W_D).receives, 2);
    w_run(w, 20 * W_MS);
    /* Prefill has heard that this id is withdrawn. The second one fails, and does not hang. */
    tells(w, "d tells its engine FAILED " D_ID " (prefill will not deliver");
    w_decode_end(w, D_ID);
    clean(w);
}

/* ---- leases --------------------------------------------------------------------------------- */

static void test_lease_ends_unread(void **state) /* B14: nobody makes a step */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_run(w, 30 * W_S - 1);
    assert_int_equal(w_usage(w, W_P).leases, 1);
    w_run(w, 1);
    tells(w, "p tells its engine SENT " P_ID " (lease ended, no registration came)");
    clean(w);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_kv_expired_reqs), 1);
    /* Who comes now is told at once. */
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    tells(w, "d tells its engine FAILED " D_ID " (prefill will not deliver");
}

static void test_lease_ends_during_the_write(void **state) /* P1 */
{
    struct w_world *w = *state;
    w->write_ns = 60 * W_S;
    w->no_caps = true;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    /* Nobody renews: decode's heartbeats are lost with its scheduler's id. */
    w->engines[W_D].scheduler->heartbeat_interval_ns = 1000 * W_S;
    w_run(w, 31 * W_S);
    assert_int_equal(w_usage(w, W_P).quarantined, 1);
    assert_int_equal(w_free_blocks(w, W_P), W_BLOCKS - 4);
    never(w, "SENT");
    w_run(w, 30 * W_S);
    tells(w, "p tells its engine SENT " P_ID "\n"); /* delivered: no reason */
    tells(w, "d tells its engine RECEIVED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_lease_ends_while_deferred(void **state) /* B24 */
{
    struct w_world *w = *state;
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 2 * W_MS); /* d is connected; its registration is on its way */
    w->handshake_ns = 4 * W_S;
    w_prefill_start(w, P_ID, NULL, 16);
    w->engines[W_P].scheduler->lease_ns = 2 * W_S;
    w_prefill_finish(w, P_ID);
    w_run(w, 1 * W_S);
    assert_int_equal(w_usage(w, W_P).deferred, 1);
    w_run(w, 2 * W_S);
    tells(w, "p tells its engine SENT " P_ID " (lease ended before the WRITE could be posted)");
    w_run(w, 2 * W_S);
    never(w, "posts a WRITE");
    tells(w, "p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "d tells its engine FAILED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_heartbeats_renew_by_base_id(void **state) /* B01 */
{
    struct w_world *w = *state;
    w->write_ns = 60 * W_S;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 59 * W_S);
    assert_int_equal(w_usage(w, W_P).quarantined, 0);
    assert_int_equal(w_usage(w, W_P).leases, 1);
    assert_true(w_count(w, W_P, KVF_COUNTER_leases_renewed) >= 9);
    w_run(w, 2 * W_S);
    tells(w, "d tells its engine RECEIVED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_each_lease_ends_by_itself(void **state) /* B20 */
{
    struct w_world *w = *state;
    warm_up(w);
    w->engines[W_P].scheduler->lease_ns = 480 * W_S;
    w_prefill_start(w, "a-0-aaaaaaaa", NULL, 4);
    w_prefill_finish(w, "a-0-aaaaaaaa");
    w->engines[W_P].scheduler->lease_ns = 30 * W_S;
    w_prefill_start(w, "b-0-aaaaaaaa", NULL, 4);
    w_prefill_finish(w, "b-0-aaaaaaaa");
    w_prefill_start(w, "c-0-aaaaaaaa", NULL, 4);
    w_prefill_finish(w, "c-0-aaaaaaaa");
    w_run(w, 31 * W_S);
    tells(w, "SENT b-0-aaaaaaaa (lease");
    tells(w, "SENT c-0-aaaaaaaa (lease");
    never(w, "SENT a-0");
    w_run(w, 450 * W_S);
    tells(w, "SENT a-0-aaaaaaaa (lease");
    clean(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_registration_first),
        T(test_blocks_first),
        T(test_partial_hits_take_the_tail),
        T(test_full_hit_frees_prefill),
        T(test_registration_with_no_blocks),
        T(test_decode_cannot_handshake),
        T(test_registration_cannot_be_sent),
        T(test_prefill_cannot_handshake),
        T(test_write_fails),
        T(test_prefill_aborts_with_a_registration),
        T(test_registration_after_prefill_aborted),
        T(test_decode_aborts_before_it_registered),
        T(test_decode_aborts_while_prefill_computes),
        T(test_decode_aborts_while_the_write_is_deferred),
        T(test_decode_aborts_during_the_write),
        T(test_decode_is_rejected_before_admission),
        T(test_decode_uses_an_id_again_at_once),
        T(test_lease_ends_unread),
        T(test_lease_ends_during_the_write),
        T(test_lease_ends_while_deferred),
        T(test_heartbeats_renew_by_base_id),
        T(test_each_lease_ends_by_itself),
    };
    return cmocka_run_group_tests_name("core/scenario", tests, NULL, NULL);
}
