/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol's stories, continued: ids that are used again, connections that break again and
 * again, and peers that send more than anybody should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/scenario_testing.h"

/* A registration that d did not send, of this engine and request. */
static struct kvfi_push_reg foreign(const char *engine_id, const char *request_id,
                                    const struct kvfi_block_group *group)
{
    return (struct kvfi_push_reg){.request_id = request_id,
                                  .decode_engine_id = engine_id,
                                  .decode_host = "host-d",
                                  .decode_port = 5601,
                                  .decode_tp_size = 1,
                                  .groups = group,
                                  .group_count = 1,
                                  .remote_engine_id = "pre",
                                  .remote_host = "host-p",
                                  .remote_port = 5600,
                                  .remote_tp_size = 1,
                                  .remote_pp_size = 1};
}

static void inject_from(struct w_world *w, const char *sender, struct kvfi_push_reg reg)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_push_reg_encode(&reg, &buf, NULL), KVF_OK);
    w_inject(w, W_P, sender, buf.data, buf.len);
    kvfi_buf_deinit(&buf);
}

/* ---- ids used again ------------------------------------------------------------------------- */

static void test_two_decode_engines_use_one_id(void **state) /* B05 */
{
    struct w_world *w = *state;
    const uint32_t ids[] = {0, 1, 2, 3};
    const struct kvfi_block_group group = {ids, 4};
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    inject_from(w, "x01", foreign("dec2", D_ID, &group));
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 10 * W_MS);
    tells(w, "d tells its engine RECEIVED " D_ID); /* the first one stays intact */
    w_decode_end(w, D_ID);
    w_run(w, 10 * W_MS);
    clean(w);
}

static void test_lease_is_over_before_the_blocks_are_staged(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w->engines[W_P].scheduler->lease_ns = 0;
    w_prefill_finish(w, P_ID);
    tells(w, "p tells its engine SENT " P_ID " (lease ended");
    w_run(w, 5 * W_MS);
    tells(w, "d tells its engine FAILED " D_ID " (prefill will not deliver");
    w_decode_end(w, D_ID);
    clean(w);
}

static void test_failed_write_settles_before_decode_is_told(void **state) /* P1 */
{
    struct w_world *w = *state;
    w->write_status = KVF_EDISCONNECTED;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, P_ID);
    w_run(w, 10 * W_MS);
    tells(w, "  15.000 ms  p tells its engine SENT " P_ID " (WRITE failed"); /* it read the last */
    /* On the old connection bytes may be on their way; a message on a new one would overtake. */
    w_decode_end(w, D_ID);
    w_run(w, 990 * W_MS);
    tells(w, "d sends PUSH_DROP:" D_ID);
    never(w, "PUSH_FAIL");
    assert_int_equal(w_usage(w, W_P).registrations, 1);
    w_run(w, 10 * W_MS);
    tells(w, "1015.000 ms  p sends PUSH_FAIL:" D_ID ":1");
    tells(w, "d tells its engine RELEASED " D_ID);
    clean(w);
}

static void test_decode_comes_back_at_another_address(void **state)
{
    struct w_world *w = *state;
    warm_up(w); /* and nobody notices that this process has gone */
    w->side_channel_dead[W_D] = true;
    const uint32_t ids[] = {0, 1, 2, 3};
    const struct kvfi_block_group group = {ids, 4};
    struct kvfi_push_reg reg = foreign("dec", D_ID, &group);
    reg.decode_host = "host-d2";
    reg.decode_port = 5700;
    inject_from(w, "d02", reg);
    w_prefill_start(w, P_ID, NULL, 16);
    w_prefill_finish(w, P_ID);
    w_run(w, 20 * W_S);
    tells(w, "p tells its engine SENT " P_ID " (handshake with dec at host-d2:5700 failed");
    clean(w);
}

/* ---- connections that do not last ------------------------------------------------------------ */

static void test_connection_breaks_again_and_again(void **state)
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    /* The side channel answers, the data port does not: each handshake is good and in vain. */
    for (int i = 0; i < 40; i++) {
        w_tell_lost(w, W_P);
        w_run(w, 25 * W_MS);
    }
    assert_true(times(w, "p asks d") <= 4);
    assert_int_equal(w_usage(w, W_P).registrations, 1);
    /* It ends, and the request that waited is served. */
    w_run(w, 2 * W_S);
    w_prefill_finish(w, P_ID);
    w_run(w, 20 * W_MS);
    tells(w, "d tells its engine RECEIVED " D_ID);
    w_decode_end(w, D_ID);
    clean(w);
}

static unsigned no_answer(struct w_world *w, enum w_side from, const char *message,
                          uint64_t delay_ns[4])
{
    return strncmp(message, "PUSH_FAIL", 9) != 0;
}

static void test_receives_survive_a_peer_in_back_off(void **state)
{
    struct w_world *w = *state;
    w->network = no_answer;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    for (int i = 0; i < 20; i++) {
        w_tell_lost(w, W_D);
        w_run(w, 25 * W_MS);
    }
    assert_true(times(w, "d asks p") <= 4);
    tells(w, "d tells its engine FAILED " D_ID ", blocks quarantined (prefill pre was lost");
    never(w, "RELEASED"); /* prefill lives and may write */
    w_decode_end(w, D_ID);
    w->network = NULL;
    w_run(w, 10 * W_S);
    tells(w, "d tells its engine RELEASED " D_ID);
    w_prefill_abort(w, P_ID);
    w_run(w, 10 * W_MS);
    clean(w);
}

static void test_live_prefill_that_cannot_be_loaded(void **state) /* P1 */
{
    struct w_world *w = *state;
    w_prefill_start(w, P_ID, NULL, 16);
    w_decode_start(w, D_ID, NULL, 16, 0);
    w_run(w, 10 * W_MS);
    /* Each handshake shows that the same prefill lives; only our way to it is broken. */
    w->load_status[W_D] = KVF_ETRANSPORT;
    w_tell_lost(w, W_D);
    w_run(w, 5 * W_MS);
    w_decode_end(w, D_ID);
    w_run(w, 95 * W_S);
    never(w, "RELEASED");
    w_prefill_finish(w, P_ID); /* its way to us is not */
    w_run(w, 10 * W_MS);
    tells(w, "p posts a WRITE of " P_ID);
    tells(w, "d tells its engine RELEASED " D_ID);
    w->load_status[W_D] = KVF_OK;
    clean(w);
}

/* ---- too much ------------------------------------------------------------------------------- */

static void test_crowd_under_one_base_id(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    const uint32_t ids[] = {0};
    const struct kvfi_block_group group = {ids, 1};
    for (unsigned i = 0; i < 300; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "u-0-%08x", i);
        inject_from(w, "d01", foreign("dec", id, &group));
    }
    assert_int_equal(w_usage(w, W_P).registrations, 64);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_bad_messages), 300 - 64);
    w_run(w, 101 * W_S);
    clean(w);
}

static void test_crowd_under_one_transfer_id(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    const uint32_t ids[] = {0};
    const struct kvfi_block_group group = {ids, 1};
    for (unsigned i = 0; i < 300; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "u-%u", i);
        struct kvfi_push_reg reg = foreign("dec", id, &group);
        reg.transfer_id = "one";
        inject_from(w, "d01", reg);
    }
    assert_int_equal(w_usage(w, W_P).registrations, 64);
    w_run(w, 101 * W_S);
    clean(w);
}

static void test_block_ids_are_bounded_in_all(void **state)
{
    struct w_world *w = *state;
    warm_up(w);
    enum { COUNT = 1 << 20 };
    uint32_t *ids = calloc(COUNT, sizeof(*ids));
    assert_non_null(ids);
    const struct kvfi_block_group group = {ids, COUNT};
    for (unsigned i = 0; i < 20; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "u-%u", i);
        inject_from(w, "d01", foreign("dec", id, &group));
    }
    free(ids);
    assert_int_equal(w_usage(w, W_P).registrations, 16);
    assert_int_equal(w_count(w, W_P, KVF_COUNTER_bad_messages), 4);
    w_run(w, 101 * W_S);
    clean(w);
    push(w, P_ID, D_ID, 16, 16, 0);
    tells(w, "d tells its engine RECEIVED " D_ID);
    clean(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_two_decode_engines_use_one_id),
        T(test_lease_is_over_before_the_blocks_are_staged),
        T(test_decode_comes_back_at_another_address),
        T(test_failed_write_settles_before_decode_is_told),
        T(test_connection_breaks_again_and_again),
        T(test_receives_survive_a_peer_in_back_off),
        T(test_live_prefill_that_cannot_be_loaded),
        T(test_crowd_under_one_base_id),
        T(test_crowd_under_one_transfer_id),
        T(test_block_ids_are_bounded_in_all),
    };
    return cmocka_run_group_tests_name("core/scenario_limits", tests, NULL, NULL);
}
