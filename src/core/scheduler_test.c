/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"
#include "core/testing.h"
#include "kvferry/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull
#define S  1000000000ull

struct world {
    struct test_alloc alloc;
    struct kvf_scheduler *scheduler;
};

static struct kvf_kv_config base_config(void)
{
    struct kvf_kv_config config = KVF_KV_CONFIG_INIT;
    config.engine_id = "self";
    config.host = "10.0.0.9";
    config.port = 5700;
    config.registration_timeout_ns = 100 * S;
    config.compat.model = "m";
    return config;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    test_alloc_init(&w->alloc);
    struct kvf_kv_config config = base_config();
    assert_int_equal(kvf_scheduler_create(&config, &w->alloc.allocator, &w->scheduler, NULL),
                     KVF_OK);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    kvf_scheduler_destroy(w->scheduler);
    assert_int_equal(w->alloc.live, 0);
    free(w);
    return 0;
}

static struct kvf_transfer_params decode_params(void)
{
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_prefill = true;
    params.remote_engine_id = "pre";
    params.remote_request_id = "router-uuid";
    params.remote_host = "10.0.0.1";
    params.remote_port = 5600;
    params.tp_size = 1;
    return params;
}

static struct kvf_transfer_params prefill_params(void)
{
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_decode = true;
    params.transfer_id = "tid-1";
    return params;
}

static void new_decode(struct world *w, uint64_t now, const char *id, uint32_t tokens)
{
    struct kvf_transfer_params params = decode_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, now, id, &params, tokens, NULL),
                     KVF_OK);
}

static void new_prefill(struct world *w, uint64_t now, const char *id, uint32_t tokens)
{
    struct kvf_transfer_params params = prefill_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, now, id, &params, tokens, NULL),
                     KVF_OK);
}

static const uint32_t blocks[] = {10, 11, 12, 13, 14, 15, 16, 17};

static void alloc_decode(struct world *w, uint64_t now, const char *id, size_t count, size_t cached,
                         uint32_t external)
{
    assert_int_equal(
        kvf_scheduler_after_alloc(w->scheduler, now, id, blocks, count, cached, external, NULL),
        KVF_OK);
}

static struct kvf_step *build(struct world *w, uint64_t now)
{
    struct kvf_step *step = NULL;
    assert_int_equal(kvf_scheduler_build_step(w->scheduler, now, &step, NULL), KVF_OK);
    return step;
}

static void build_empty(struct world *w, uint64_t now)
{
    struct kvf_step *step = build(w, now);
    assert_true(kvf_step_is_empty(step));
    kvf_step_free(step);
}

static enum kvf_status result(struct world *w, const char *id, enum kvf_result_kind kind, bool free)
{
    struct kvf_result r = {.kind = kind, .blocks_free = free};
    snprintf(r.request_id, sizeof(r.request_id), "%s", id);
    return kvf_scheduler_apply_result(w->scheduler, 0, &r);
}

static bool finish(struct world *w, uint64_t now, const char *id, enum kvf_finish_reason reason,
                   size_t count)
{
    bool delay = true;
    assert_int_equal(kvf_scheduler_request_finished(w->scheduler, now, id, reason, blocks, count,
                                                    &delay, NULL, NULL, NULL),
                     KVF_OK);
    return delay;
}

static struct kvf_scheduler_usage usage(struct world *w)
{
    struct kvf_scheduler_usage u;
    kvf_scheduler_usage(w->scheduler, &u);
    return u;
}

static void receiving(struct world *w, const char *id)
{
    new_decode(w, 0, id, 40);
    alloc_decode(w, 0, id, 4, 0, 40);
    kvf_step_free(build(w, 0));
    assert_int_equal(usage(w).receiving, 1);
}

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

/* ---- prefill -------------------------------------------------------------------------------- */

static void test_prefill_holds_and_is_sent(void **state)
{
    struct world *w = *state;
    new_prefill(w, S, "cmpl-u-0-bbbbbbbb", 33);
    alloc_decode(w, S, "cmpl-u-0-bbbbbbbb", 1, 0, 0);
    alloc_decode(w, S, "cmpl-u-0-bbbbbbbb", 3, 0, 0); /* chunked prefill: announced once */
    struct kvf_step *step = build(w, S);
    assert_int_equal(step->in_batch_count, 1);
    kvf_step_free(step);

    bool delay = false;
    bool has_response = false;
    struct kvf_transfer_params response;
    assert_int_equal(kvf_scheduler_request_finished(w->scheduler, 2 * S, "cmpl-u-0-bbbbbbbb",
                                                    KVF_FINISH_LENGTH, blocks, 4, &delay, &response,
                                                    &has_response, NULL),
                     KVF_OK);
    assert_true(delay && has_response);
    assert_true(response.do_remote_prefill && !response.do_remote_decode);
    assert_string_equal(response.remote_engine_id, "self");
    assert_string_equal(response.remote_request_id, "cmpl-u-0-bbbbbbbb");
    assert_string_equal(response.remote_host, "10.0.0.9");
    assert_int_equal(response.remote_port, 5700);
    assert_int_equal(response.remote_num_tokens, 33);
    assert_string_equal(response.transfer_mode, "push");
    assert_string_equal(response.transfer_id, "tid-1");
    /* B09: an abort right after finds it held; nothing changes. */
    assert_false(finish(w, 2 * S, "cmpl-u-0-bbbbbbbb", KVF_FINISH_ABORT, 4));
    step = build(w, 3 * S);
    assert_int_equal(step->finished_count, 1);
    assert_int_equal(step->not_processed_count, 0);
    assert_int_equal(step->finished[0].deadline_ns, 32 * S);
    assert_int_equal(step->scheduler_clock_ns, 3 * S);
    /* Only blocks of the prompt: decode's last n pair with prefill's last n (B54). */
    assert_int_equal(step->finished[0].block_count, 3);
    assert_string_equal(step->finished[0].transfer_id, "tid-1");
    kvf_step_free(step);
    assert_int_equal(usage(w).held, 1);
    assert_int_equal(result(w, "cmpl-u-0-bbbbbbbb", KVF_RESULT_SENT, true), KVF_OK);
    assert_int_equal(result(w, "cmpl-u-0-bbbbbbbb", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    assert_int_equal(usage(w).requests, 0);
    build_empty(w, 4 * S);
}

static void test_prefill_abort_is_told(void **state)
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 33);
    alloc_decode(w, 0, "r", 3, 0, 0);
    assert_false(finish(w, 0, "r", KVF_FINISH_ABORT, 3));
    assert_int_equal(usage(w).requests, 0);
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->in_batch_count, 0);
    assert_int_equal(step->not_processed_count, 1);
    assert_string_equal(step->not_processed[0], "r");
    kvf_step_free(step);
    build_empty(w, 0);
}

static void test_in_batch_and_finished_in_one_step(void **state)
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 16);
    alloc_decode(w, 0, "r", 1, 0, 0);
    assert_true(finish(w, 0, "r", KVF_FINISH_STOP, 1));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->in_batch_count, 1);
    assert_int_equal(step->finished_count, 1);
    kvf_step_free(step);
    assert_int_equal(result(w, "r", KVF_RESULT_SENT, true), KVF_OK);
}

static void test_two_live_requests_with_one_id(void **state) /* B05 */
{
    struct world *w = *state;
    new_prefill(w, 0, "r", 16);
    struct kvf_transfer_params params = prefill_params();
    struct kvf_error error;
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, 0, "r", &params, 99, &error),
                     KVF_EEXIST);
    assert_non_null(strstr(error.text, "'r'"));
    assert_true(finish(w, 0, "r", KVF_FINISH_STOP, 1));
    struct kvf_step *step = build(w, 0);
    assert_int_equal(step->finished[0].block_count, 1);
    kvf_step_free(step);
    assert_int_equal(result(w, "r", KVF_RESULT_SENT, true), KVF_OK);
    new_prefill(w, 0, "r", 16);
}

static void test_results_for_strangers(void **state)
{
    struct world *w = *state;
    assert_int_equal(result(w, "nobody", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    receiving(w, "d");
    assert_int_equal(result(w, "d", KVF_RESULT_SENT, true), KVF_ENOTFOUND);
    assert_int_equal(result(w, "d", KVF_RESULT_RELEASED, true), KVF_ENOTFOUND);
    new_prefill(w, 0, "p", 16);
    assert_int_equal(result(w, "p", KVF_RESULT_RECEIVED, true), KVF_ENOTFOUND);
    assert_int_equal(result(w, "p", KVF_RESULT_FAILED, true), KVF_ENOTFOUND);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* One life of three requests; every call is repeated until it does not report want of memory. */
#define RETRY(expr)                                                                                \
    do {                                                                                           \
        enum kvf_status s_;                                                                        \
        do {                                                                                       \
            s_ = (expr);                                                                           \
            *failures_p += s_ == KVF_ENOMEM;                                                       \
        } while (s_ == KVF_ENOMEM);                                                                \
        assert_int_equal(s_, KVF_OK);                                                              \
    } while (0)

static void life(struct test_alloc *ta, unsigned *failures_p)
{
    struct kvf_kv_config config = base_config();
    struct kvf_scheduler *s = NULL;
    struct kvf_transfer_params dp = decode_params();
    struct kvf_transfer_params pp = prefill_params();
    struct kvf_step *step = NULL;
    bool delay = false;
    RETRY(kvf_scheduler_create(&config, &ta->allocator, &s, NULL));
    RETRY(kvf_scheduler_on_new_request(s, 0, "d", &dp, 40, NULL));
    RETRY(kvf_scheduler_on_new_request(s, 0, "p", &pp, 40, NULL));
    for (int i = 0; i < 40; i++) {
        char id[16];
        snprintf(id, sizeof(id), "x%d", i);
        RETRY(kvf_scheduler_on_new_request(s, 0, id, &dp, 40, NULL));
    }
    RETRY(kvf_scheduler_after_alloc(s, 0, "d", blocks, 3, 0, 40, NULL));
    RETRY(kvf_scheduler_after_alloc(s, 0, "p", blocks, 3, 0, 0, NULL));
    RETRY(kvf_scheduler_request_finished(s, 0, "p", KVF_FINISH_STOP, blocks, 3, &delay, NULL, NULL,
                                         NULL));
    RETRY(kvf_scheduler_build_step(s, 0, &step, NULL));
    assert_int_equal(step->registration_count, 1);
    assert_int_equal(step->finished_count, 1);
    assert_int_equal(step->in_batch_count, 1);
    assert_int_equal(step->heartbeat_count, 1);
    /* The router's id is the same for all 41, each of ours is its own. */
    assert_int_equal(step->heartbeats[0].request_count, 82);
    kvf_step_free(step);
    kvf_scheduler_destroy(s);
    assert_int_equal(ta->live, 0);
}

static void test_each_allocation_may_fail(void **state)
{
    unsigned failures = 0;
    unsigned fired = 0;
    struct test_alloc ta;
    test_alloc_init(&ta);
    life(&ta, &failures);
    uint64_t uses = ta.uses;
    assert_int_equal(failures, 0);
    for (uint64_t n = 1; n <= uses; n++) {
        test_alloc_init(&ta);
        ta.fail_at = n;
        failures = 0;
        life(&ta, &failures);
        fired += failures;
    }
    assert_true(fired > 40);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
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
        T(test_prefill_holds_and_is_sent),
        T(test_prefill_abort_is_told),
        T(test_in_batch_and_finished_in_one_step),
        T(test_two_live_requests_with_one_id),
        T(test_results_for_strangers),
        cmocka_unit_test(test_each_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("core/scheduler", tests, NULL, NULL);
}
