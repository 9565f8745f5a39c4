/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration, parameters and the decode side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/config.h"
#include "core/scheduler_testing.h"

/* ---- configuration and parameters ----------------------------------------------------------- */

static void refuses_config(struct kvf_kv_config config, enum kvf_status status, const char *word)
{
    struct kvf_scheduler *scheduler = NULL;
    struct kvf_error error = {0};
    assert_int_equal(kvf_scheduler_create(&config, NULL, &scheduler, &error), status);
    assert_null(scheduler);
    assert_non_null(strstr(error.text, word));
}

static void test_config_is_checked(void **state)
{
    struct kvf_kv_config config = base_config();
    config.tp_size = 2;
    refuses_config(config, KVF_ENOTSUP, "tp_size");
    config = base_config();
    config.pp_size = 4;
    refuses_config(config, KVF_ENOTSUP, "pp_size");
    config = base_config();
    config.mode = KVF_MODE_PULL;
    refuses_config(config, KVF_ENOTSUP, "push");
    config = base_config();
    config.engine_id = NULL;
    refuses_config(config, KVF_EINVAL, "engine_id");
    config = base_config();
    config.host = "";
    refuses_config(config, KVF_EINVAL, "host");
    config = base_config();
    config.block_size = 0;
    refuses_config(config, KVF_EINVAL, "block_size");
    config = base_config();
    config.lease_ns = 0;
    refuses_config(config, KVF_EINVAL, "lease_ns");
    config = base_config();
    config.registration_timeout_ns = UINT64_MAX;
    refuses_config(config, KVF_EINVAL, "registration_timeout_ns");
    config = base_config();
    config.handshake_timeout_ns = 0;
    refuses_config(config, KVF_EINVAL, "handshake_timeout_ns");
    config = base_config();
    config.tp_rank = 1;
    refuses_config(config, KVF_EINVAL, "rank");
    config = base_config();
    config.size = 8;
    refuses_config(config, KVF_EINVAL, "config.size");
}

static void test_lease_rules_are_the_peers(void **state)
{
    assert_int_equal(kvfi_lease_extension_ns(30 * S), 20 * S);
    assert_int_equal(kvfi_lease_extension_ns(31 * S), 20 * S);
    assert_int_equal(kvfi_lease_extension_ns(45 * S), 30 * S);
    assert_int_equal(kvfi_lease_extension_ns(60 * S), 40 * S);
    assert_int_equal(kvfi_heartbeat_interval_ns(30 * S), 5 * S);
    assert_int_equal(kvfi_heartbeat_interval_ns(45 * S), 7 * S);
    assert_int_equal(kvfi_heartbeat_interval_ns(60 * S), 10 * S);
    assert_int_equal(kvfi_heartbeat_interval_ns(3 * S), S / 2);
    assert_int_equal(kvfi_lease_extension_ns(1), 1);
}

static void refuses(struct world *w, struct kvf_transfer_params params, enum kvf_status status,
                    const char *word)
{
    struct kvf_error error = {0};
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, 16, &error),
                     status);
    if (!strstr(error.text, word))
        fail_msg("'%s' does not name '%s'", error.text, word);
    assert_int_equal(usage(w).requests, 0);
}

static void test_params_name_the_missing_key(void **state)
{
    struct world *w = *state;
    struct kvf_transfer_params p = decode_params();
    p.remote_engine_id = NULL;
    refuses(w, p, KVF_EINVAL, "remote_engine_id");
    p = decode_params();
    p.remote_request_id = "";
    refuses(w, p, KVF_EINVAL, "remote_request_id");
    p = decode_params();
    p.remote_host = NULL;
    refuses(w, p, KVF_EINVAL, "remote_host");
    p = decode_params();
    p.remote_port = -1;
    refuses(w, p, KVF_EINVAL, "remote_port is missing");
    p.remote_port = 65536;
    refuses(w, p, KVF_EINVAL, "65536");
    p = decode_params();
    p.tp_size = -1;
    refuses(w, p, KVF_EINVAL, "tp_size is missing");
    p.tp_size = 2;
    refuses(w, p, KVF_ENOTSUP, "tp_size is 2");
    p.tp_size = 0;
    refuses(w, p, KVF_EINVAL, "tp_size is 0");
    p = decode_params();
    p.pp_size = 2;
    refuses(w, p, KVF_ENOTSUP, "pp_size");
    p = decode_params();
    p.dcp_size = 2;
    refuses(w, p, KVF_ENOTSUP, "dcp_size");
    p = decode_params();
    p.transfer_mode = "pull";
    refuses(w, p, KVF_ENOTSUP, "transfer_mode");
    p = decode_params();
    p.do_remote_decode = true;
    refuses(w, p, KVF_EINVAL, "both true");
    p = decode_params();
    p.remote_engine_id = "self";
    refuses(w, p, KVF_EINVAL, "own id");
    p = decode_params();
    p.remote_host = "\xff\xfe";
    refuses(w, p, KVF_EINVAL, "UTF-8");
    char long_id[KVF_ENGINE_ID_LEN_MAX + 2];
    memset(long_id, 'x', sizeof(long_id));
    long_id[sizeof(long_id) - 1] = '\0';
    p = decode_params();
    p.remote_engine_id = long_id;
    refuses(w, p, KVF_ELIMIT, "remote_engine_id");
}

static void test_ordinary_requests_leave_no_trace(void **state)
{
    struct world *w = *state;
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", NULL, 16, NULL), KVF_OK);
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, 16, NULL), KVF_OK);
    assert_int_equal(kvf_scheduler_matched_tokens(w->scheduler, "r", 0), 0);
    alloc_decode(w, 0, "r", 1, 0, 0);
    assert_false(finish(w, 0, "r", KVF_FINISH_STOP, 1));
    assert_false(kvf_scheduler_has_pending_work(w->scheduler, 0));
    assert_int_equal(kvf_scheduler_deadline_ns(w->scheduler), UINT64_MAX);
    build_empty(w, 0);
}

static void test_absurd_prompts_are_refused(void **state)
{
    struct world *w = *state;
    struct kvf_transfer_params params = decode_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, 0, NULL),
                     KVF_EINVAL);
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "", &params, 1, NULL),
                     KVF_EINVAL);
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, UINT32_MAX, NULL),
                     KVF_ELIMIT);
}

/* ---- decode --------------------------------------------------------------------------------- */

static void test_decode_registers_and_receives(void **state)
{
    struct world *w = *state;
    new_decode(w, 5 * S, "cmpl-u-0-aaaaaaaa", 40);
    assert_int_equal(kvf_scheduler_matched_tokens(w->scheduler, "cmpl-u-0-aaaaaaaa", 0), 40);
    assert_int_equal(kvf_scheduler_matched_tokens(w->scheduler, "cmpl-u-0-aaaaaaaa", 16), 24);
    /* B58: 4 blocks allocated, 3 hold the 40 prompt tokens, the first is a prefix hit. */
    alloc_decode(w, 5 * S, "cmpl-u-0-aaaaaaaa", 4, 1, 24);
    assert_true(kvf_scheduler_has_pending_work(w->scheduler, 5 * S));
    struct kvf_step *step = build(w, 5 * S);
    assert_int_equal(step->registration_count, 1);
    const struct kvf_step_registration *reg = &step->registrations[0];
    assert_string_equal(reg->request_id, "cmpl-u-0-aaaaaaaa");
    assert_string_equal(reg->remote_request_id, "router-uuid");
    assert_string_equal(reg->remote.engine_id, "pre");
    assert_string_equal(reg->remote.host, "10.0.0.1");
    assert_int_equal(reg->remote.port, 5600);
    assert_null(reg->transfer_id);
    assert_int_equal(reg->block_count, 2);
    assert_int_equal(reg->block_ids[0], 11);
    assert_int_equal(reg->block_ids[1], 12);
    /* B01: the first heartbeat is due at once and carries both ids. */
    assert_int_equal(step->heartbeat_count, 1);
    assert_int_equal(step->heartbeats[0].request_count, 2);
    assert_string_equal(step->heartbeats[0].request_ids[0], "router-uuid");
    assert_string_equal(step->heartbeats[0].request_ids[1], "cmpl-u-0-aaaaaaaa");
    kvf_step_free(step);

    assert_false(kvf_scheduler_has_pending_work(w->scheduler, 6 * S));
    assert_int_equal(kvf_scheduler_deadline_ns(w->scheduler), 10 * S);
    build_empty(w, 6 * S);
    step = build(w, 10 * S);
    assert_int_equal(step->heartbeat_count, 1);
    assert_int_equal(step->registration_count, 0);
    kvf_step_free(step);

    assert_int_equal(result(w, "cmpl-u-0-aaaaaaaa", KVF_RESULT_RECEIVED, true), KVF_OK);
    assert_int_equal(usage(w).receiving, 0);
    assert_int_equal(kvf_scheduler_deadline_ns(w->scheduler), UINT64_MAX);
    /* B16: preempted and resumed, it is computed here; no second registration. */
    assert_int_equal(kvf_scheduler_matched_tokens(w->scheduler, "cmpl-u-0-aaaaaaaa", 0), 0);
    alloc_decode(w, 11 * S, "cmpl-u-0-aaaaaaaa", 4, 0, 0);
    build_empty(w, 200 * S);
    assert_false(finish(w, 200 * S, "cmpl-u-0-aaaaaaaa", KVF_FINISH_STOP, 4));
    assert_int_equal(usage(w).requests, 0);
}

static void test_heartbeat_sends_one_id_when_the_bases_agree(void **state)
{
    struct world *w = *state;
    struct kvf_transfer_params params = decode_params();
    params.remote_request_id = "cmpl-u-0-bbbbbbbb";
    assert_int_equal(
        kvf_scheduler_on_new_request(w->scheduler, 0, "cmpl-u-0-aaaaaaaa", &params, 16, NULL),
        KVF_OK);
    params.remote_request_id = "a,b";
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "c,d", &params, 16, NULL),
                     KVF_OK);
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->heartbeat_count, 1);
    assert_int_equal(step->heartbeats[0].request_count, 1);
    assert_string_equal(step->heartbeats[0].request_ids[0], "cmpl-u-0-bbbbbbbb");
    kvf_step_free(step);
}

static void test_full_hit_tells_prefill(void **state) /* B55 */
{
    struct world *w = *state;
    new_decode(w, 0, "r", 40);
    alloc_decode(w, 0, "r", 3, 3, 0);
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->registration_count, 1);
    assert_int_equal(step->registrations[0].block_count, 0);
    assert_int_equal(step->heartbeat_count, 0);
    kvf_step_free(step);
    assert_false(finish(w, 0, "r", KVF_FINISH_STOP, 3));
    assert_int_equal(usage(w).requests, 0);
    build_empty(w, 100 * S);
}

static void test_full_hit_that_ends_before_the_step(void **state)
{
    struct world *w = *state;
    new_decode(w, 0, "r", 40);
    alloc_decode(w, 0, "r", 3, 3, 0);
    assert_false(finish(w, 0, "r", KVF_FINISH_ABORT, 3));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->registration_count, 1);
    kvf_step_free(step);
    build_empty(w, 100 * S);
}

static void test_rejected_before_admission_tells_prefill(void **state) /* B12 */
{
    struct world *w = *state;
    new_decode(w, 0, "r", 40);
    assert_false(finish(w, 0, "r", KVF_FINISH_ABORT, 0));
    assert_int_equal(usage(w).requests, 0);
    assert_true(kvf_scheduler_has_pending_work(w->scheduler, 0));
    /* The id is free again at once. */
    new_decode(w, 0, "r", 40);
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->registration_count, 1);
    assert_int_equal(step->registrations[0].block_count, 0);
    assert_string_equal(step->registrations[0].request_id, "r");
    kvf_step_free(step);
}

static void test_abort_before_the_registration_left(void **state)
{
    struct world *w = *state;
    new_decode(w, 0, "r", 40);
    alloc_decode(w, 0, "r", 3, 0, 40);
    assert_false(finish(w, 0, "r", KVF_FINISH_ABORT, 3));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->registrations[0].block_count, 0);
    assert_int_equal(step->withdrawn_count, 0);
    kvf_step_free(step);
    build_empty(w, 200 * S);
}

static void test_abort_while_parked_quarantines(void **state) /* B07 */
{
    struct world *w = *state;
    receiving(w, "r");
    assert_true(finish(w, S, "r", KVF_FINISH_ABORT, 4));
    assert_int_equal(usage(w).quarantined, 1);
    struct kvf_step *step = build(w, S);
    assert_int_equal(step->withdrawn_count, 1);
    assert_string_equal(step->withdrawn[0], "r");
    kvf_step_free(step);
    /* Twice is harmless; the id stays taken. */
    assert_false(finish(w, S, "r", KVF_FINISH_ABORT, 4));
    struct kvf_transfer_params params = decode_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, S, "r", &params, 16, NULL),
                     KVF_EEXIST);
    /* The worker's word that the receive failed has no addressee any more. */
    assert_int_equal(result(w, "r", KVF_RESULT_FAILED, false), KVF_ENOTFOUND);
    assert_int_equal(usage(w).quarantined, 1);
    assert_int_equal(result(w, "r", KVF_RESULT_RELEASED, true), KVF_OK);
    assert_int_equal(usage(w).requests, 0);
    build_empty(w, 200 * S);
}

static void test_abort_meets_a_result_on_its_way(void **state)
{
    struct world *w = *state;
    receiving(w, "a");
    assert_true(finish(w, S, "a", KVF_FINISH_ABORT, 4));
    assert_int_equal(result(w, "a", KVF_RESULT_RECEIVED, true), KVF_OK);
    assert_int_equal(usage(w).requests, 0);
    receiving(w, "b");
    assert_true(finish(w, S, "b", KVF_FINISH_ABORT, 4));
    assert_int_equal(result(w, "b", KVF_RESULT_FAILED, true), KVF_OK);
    assert_int_equal(usage(w).requests, 0);
}

static void test_watchdog_ends_the_receive(void **state)
{
    struct world *w = *state;
    receiving(w, "r");
    assert_int_equal(kvf_scheduler_deadline_ns(w->scheduler), 5 * S);
    kvf_step_free(build(w, 99 * S));
    assert_int_equal(kvf_scheduler_deadline_ns(w->scheduler), 100 * S);
    assert_true(kvf_scheduler_has_pending_work(w->scheduler, 100 * S));
    struct kvf_step *step = build(w, 100 * S);
    assert_int_equal(step->withdrawn_count, 1);
    assert_int_equal(step->heartbeat_count, 0);
    kvf_step_free(step);
    assert_int_equal(result(w, "r", KVF_RESULT_FAILED, false), KVF_OK);
    assert_int_equal(usage(w).receiving, 0);
    assert_int_equal(kvf_scheduler_matched_tokens(w->scheduler, "r", 0), 0);
    /* The engine ends it; its blocks stay quarantined until the worker says so. */
    assert_true(finish(w, 101 * S, "r", KVF_FINISH_ABORT, 4));
    assert_int_equal(usage(w).quarantined, 1);
    assert_int_equal(result(w, "r", KVF_RESULT_RELEASED, true), KVF_OK);
    assert_int_equal(usage(w).requests, 0);
    build_empty(w, 300 * S);
}

static void test_watchdog_meets_a_result_on_its_way(void **state)
{
    struct world *w = *state;
    receiving(w, "r");
    kvf_step_free(build(w, 100 * S));
    assert_int_equal(result(w, "r", KVF_RESULT_RECEIVED, true), KVF_OK);
    assert_false(finish(w, 101 * S, "r", KVF_FINISH_STOP, 4));
}

static void test_watchdog_counts_from_the_step_that_registers(void **state)
{
    struct world *w = *state;
    new_decode(w, 0, "r", 40);
    alloc_decode(w, 0, "r", 3, 0, 40);
    struct kvf_step *step = build(w, 150 * S);
    assert_int_equal(step->withdrawn_count, 0);
    assert_int_equal(step->registrations[0].block_count, 3);
    kvf_step_free(step);
    kvf_step_free(build(w, 249 * S));
    step = build(w, 250 * S);
    assert_int_equal(step->withdrawn_count, 1);
    kvf_step_free(step);
}

static void test_released_before_the_engine_ends(void **state)
{
    struct world *w = *state;
    receiving(w, "r");
    assert_int_equal(result(w, "r", KVF_RESULT_FAILED, false), KVF_OK);
    assert_int_equal(result(w, "r", KVF_RESULT_RELEASED, true), KVF_OK);
    assert_int_equal(result(w, "r", KVF_RESULT_RELEASED, true), KVF_ENOTFOUND);
    assert_false(finish(w, S, "r", KVF_FINISH_ABORT, 4));
}

static void test_bad_allocations_are_refused(void **state)
{
    struct world *w = *state;
    struct kvf_scheduler *s = w->scheduler;
    new_decode(w, 0, "r", 40);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, 2, 0, 40, NULL), KVF_EINVAL);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, 4, 3, 8, NULL), KVF_EINVAL);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, 4, 5, 8, NULL), KVF_EINVAL);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", NULL, 4, 0, 40, NULL), KVF_EINVAL);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, KVF_BLOCKS_MAX + 1, 0, 40, NULL),
                     KVF_ELIMIT);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, 4, 0, 41, NULL), KVF_EINVAL);
    alloc_decode(w, 0, "r", 4, 0, 40);
    assert_int_equal(kvf_scheduler_after_alloc(s, 0, "r", blocks, 4, 0, 40, NULL), KVF_EEXIST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_is_checked),
        cmocka_unit_test(test_lease_rules_are_the_peers),
        T(test_params_name_the_missing_key),
        T(test_ordinary_requests_leave_no_trace),
        T(test_absurd_prompts_are_refused),
        T(test_decode_registers_and_receives),
        T(test_heartbeat_sends_one_id_when_the_bases_agree),
        T(test_full_hit_tells_prefill),
        T(test_full_hit_that_ends_before_the_step),
        T(test_rejected_before_admission_tells_prefill),
        T(test_abort_before_the_registration_left),
        T(test_abort_while_parked_quarantines),
        T(test_abort_meets_a_result_on_its_way),
        T(test_watchdog_ends_the_receive),
        T(test_watchdog_meets_a_result_on_its_way),
        T(test_watchdog_counts_from_the_step_that_registers),
        T(test_released_before_the_engine_ends),
        T(test_bad_allocations_are_refused),
    };
    return cmocka_run_group_tests_name("core/scheduler", tests, NULL, NULL);
}
