/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_SCHEDULER_TESTING_H
#define KVFI_CORE_SCHEDULER_TESTING_H

/* What the scheduler's tests share. Include it after cmocka. */

#include "core/testing.h"
#include "kvferry/kv.h"

#include <stdio.h>
#include <string.h>

#define MS 1000000ull
#define S  1000000000ull

struct world {
    struct test_alloc alloc;
    struct kvf_scheduler *scheduler;
};

static inline struct kvf_kv_config base_config(void)
{
    struct kvf_kv_config config = KVF_KV_CONFIG_INIT;
    config.engine_id = "self";
    config.host = "10.0.0.9";
    config.port = 5700;
    config.registration_timeout_ns = 100 * S;
    config.compat.model = "m";
    return config;
}

static inline int setup(void **state)
{
    static struct world the_world;
    struct world *w = &the_world;
    memset(w, 0, sizeof(*w));
    test_alloc_init(&w->alloc);
    struct kvf_kv_config config = base_config();
    assert_int_equal(kvf_scheduler_create(&config, &w->alloc.allocator, &w->scheduler, NULL),
                     KVF_OK);
    *state = w;
    return 0;
}

static inline int teardown(void **state)
{
    struct world *w = *state;
    kvf_scheduler_destroy(w->scheduler);
    assert_int_equal(w->alloc.live, 0);
    return 0;
}

static inline struct kvf_transfer_params decode_params(void)
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

static inline struct kvf_transfer_params prefill_params(void)
{
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    params.do_remote_decode = true;
    params.transfer_id = "tid-1";
    return params;
}

static inline void new_decode(struct world *w, uint64_t now, const char *id, uint32_t tokens)
{
    struct kvf_transfer_params params = decode_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, now, id, &params, tokens, NULL),
                     KVF_OK);
}

static inline void new_prefill(struct world *w, uint64_t now, const char *id, uint32_t tokens)
{
    struct kvf_transfer_params params = prefill_params();
    assert_int_equal(kvf_scheduler_on_new_request(w->scheduler, now, id, &params, tokens, NULL),
                     KVF_OK);
}

static const uint32_t blocks[] = {10, 11, 12, 13, 14, 15, 16, 17};

static inline void alloc_decode(struct world *w, uint64_t now, const char *id, size_t count,
                                size_t cached, uint32_t external)
{
    assert_int_equal(
        kvf_scheduler_after_alloc(w->scheduler, now, id, blocks, count, cached, external, NULL),
        KVF_OK);
}

static inline struct kvf_step *build(struct world *w, uint64_t now)
{
    struct kvf_step *step = NULL;
    assert_int_equal(kvf_scheduler_build_step(w->scheduler, now, &step, NULL), KVF_OK);
    return step;
}

static inline void build_empty(struct world *w, uint64_t now)
{
    struct kvf_step *step = build(w, now);
    assert_true(kvf_step_is_empty(step));
    kvf_step_free(step);
}

static inline enum kvf_status result(struct world *w, const char *id, enum kvf_result_kind kind,
                                     bool free)
{
    struct kvf_result r = {.kind = kind, .blocks_free = free};
    snprintf(r.request_id, sizeof(r.request_id), "%s", id);
    return kvf_scheduler_apply_result(w->scheduler, 0, &r);
}

static inline bool finish(struct world *w, uint64_t now, const char *id,
                          enum kvf_finish_reason reason, size_t count)
{
    bool delay = true;
    assert_int_equal(kvf_scheduler_request_finished(w->scheduler, now, id, reason, blocks, count,
                                                    &delay, NULL, NULL, NULL),
                     KVF_OK);
    return delay;
}

static inline struct kvf_scheduler_usage usage(struct world *w)
{
    struct kvf_scheduler_usage u;
    kvf_scheduler_usage(w->scheduler, &u);
    return u;
}

static inline void receiving(struct world *w, const char *id)
{
    new_decode(w, 0, id, 40);
    alloc_decode(w, 0, id, 4, 0, 40);
    kvf_step_free(build(w, 0));
    assert_int_equal(usage(w).receiving, 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
