/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/scheduler_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct engine_scheduler_options ROOMY = {
    .block_count = 256,
    .block_size = 4,
    .batch_tokens_max = 16,
    .sequences_max = 8,
    .model_len_max = 400,
};

static struct world *open_world(const struct engine_scheduler_options *options, bool connector)
{
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    world_open(world, options, connector);
    return world;
}

static void close_world(struct world *world)
{
    world_close(world);
    free(world);
}

static void check_done(const struct world *world, const struct world_request *request,
                       enum engine_finish reason)
{
    assert_true(request->finished);
    assert_int_equal(reason, request->reason);
    world_check(world, request);
}

static void test_one_request(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY, false);
    struct world_request *request = world_request(world, 1, 50, 20);
    world_submit(world, request);
    world_run(world);
    check_done(world, request, ENGINE_FINISH_LENGTH);
    assert_int_equal(20, request->output_count);
    assert_int_equal(16, world->batch_tokens_seen); /* the prompt was cut */
    close_world(world);
}

static void test_lengths_around_a_block(void **state)
{
    (void)state;
    for (uint32_t block_size = 1; block_size <= 16; block_size *= 2) {
        struct engine_scheduler_options options = ROOMY;
        options.block_size = block_size;
        options.model_len_max = 200;
        struct world *world = open_world(&options, false);
        for (uint32_t length = 1; length <= 36; length++)
            world_submit(world, world_request(world, length, length, 1 + length % 5));
        world_run(world);
        for (uint32_t i = 0; i < world->request_count; i++)
            check_done(world, &world->requests[i], ENGINE_FINISH_LENGTH);
        close_world(world);
    }
}

static void test_decode_goes_on_during_a_long_prefill(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY, false);
    struct world_request *first = world_request(world, 1, 10, 30);
    world_submit(world, first);
    assert_true(world_step(world));
    struct world_request *second = world_request(world, 2, 150, 1);
    world_submit(world, second);
    for (uint32_t i = 1; i < 10; i++) {
        assert_int_equal(i, first->output_count);
        assert_true(world_step(world));
    }
    assert_int_equal(0, second->output_count);
    world_run(world);
    check_done(world, first, ENGINE_FINISH_LENGTH);
    check_done(world, second, ENGINE_FINISH_LENGTH);
    close_world(world);
}

static void test_prefix_hits(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY, false);
    struct world_request *first = world_request(world, 1, 42, 5);
    world_submit(world, first);
    world_run(world);
    assert_int_equal(0, first->cached_tokens);
    struct world_request *same = world_request(world, 1, 42, 5);
    struct world_request *longer = world_request(world, 1, 60, 5);
    struct world_request *whole = world_request(world, 1, 40, 5); /* exactly ten blocks */
    struct world_request *other = world_request(world, 2, 42, 5);
    world_submit(world, same);
    world_submit(world, longer);
    world_submit(world, whole);
    world_submit(world, other);
    world_run(world);
    assert_int_equal(40, same->cached_tokens);
    assert_int_equal(40, longer->cached_tokens);
    assert_int_equal(36, whole->cached_tokens); /* its last token is computed */
    assert_int_equal(0, other->cached_tokens);
    for (uint32_t i = 0; i < world->request_count; i++)
        check_done(world, &world->requests[i], ENGINE_FINISH_LENGTH);
    close_world(world);
}

static void test_preemption_changes_no_token(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 24;
    options.model_len_max = 96;
    struct world *world = open_world(&options, false);
    for (uint32_t i = 0; i < 8; i++)
        world_submit(world, world_request(world, i, 8 + i, 60));
    world_run(world);
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    assert_true(usage.preemptions > 0);
    for (uint32_t i = 0; i < world->request_count; i++)
        check_done(world, &world->requests[i], ENGINE_FINISH_LENGTH);
    close_world(world);
}

static void test_ends(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY, false);
    bool stopped_at_end_token = false;
    for (uint32_t i = 0; i < 60; i++) {
        struct world_request *request = world_request(world, 100 + i, 5, 100);
        request->ignore_end = false;
        request->min_tokens = i % 2 ? 30 : 0;
        world_submit(world, request);
    }
    world_run(world);
    for (uint32_t i = 0; i < 60; i++) {
        struct world_request *request = &world->requests[i];
        world_check(world, request);
        bool at_end = request->output[request->output_count - 1] == WORLD_END_TOKEN;
        assert_int_equal(at_end ? ENGINE_FINISH_STOP : ENGINE_FINISH_LENGTH, request->reason);
        assert_true(request->output_count > request->min_tokens);
        stopped_at_end_token = stopped_at_end_token || at_end;
    }
    assert_true(stopped_at_end_token);
    struct world_request *stop = world_request(world, 1, 5, 100);
    stop->stop_after = 3;
    world_submit(world, stop);
    world_run(world);
    check_done(world, stop, ENGINE_FINISH_STOP);
    assert_int_equal(3, stop->output_count);
    close_world(world);
}

static void test_refusals(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 10;
    struct world *world = open_world(&options, true);
    struct kvf_error error = {0};
    const uint32_t prompt[60] = {0};
    struct engine_request_spec spec = {.id = "x", .prompt = prompt, .logprobs = -1};
    const struct {
        uint32_t prompt_count, max_tokens;
        enum kvf_status status;
    } cases[] = {
        {0, 5, KVF_EINVAL},          {5, 0, KVF_EINVAL},          {40, 1, KVF_ELIMIT},
        {41, 1, KVF_ELIMIT},         {1, 40, KVF_ELIMIT},         {5, UINT32_MAX, KVF_ELIMIT},
        {UINT32_MAX, 1, KVF_ELIMIT}, {1, UINT32_MAX, KVF_ELIMIT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        spec.prompt_count = cases[i].prompt_count;
        spec.max_tokens = cases[i].max_tokens;
        assert_int_equal(cases[i].status, engine_scheduler_add(world->scheduler, 0, &spec, &error));
        assert_true(strlen(error.text) > 10);
    }
    /* A connector's refusal leaves nothing behind. */
    struct world_request *bad = world_request(world, 1, 5, 5);
    bad->has_transfer = true;
    bad->transfer.do_remote_prefill = true;
    const struct engine_request_spec refused = {.id = bad->id,
                                                .prompt = bad->prompt,
                                                .prompt_count = 5,
                                                .max_tokens = 5,
                                                .transfer = &bad->transfer,
                                                .user = bad};
    assert_int_equal(KVF_EINVAL, engine_scheduler_add(world->scheduler, 0, &refused, &error));
    assert_non_null(strstr(error.text, "remote_host"));
    /* An id in use is refused, the first request is not touched (bug B05). */
    struct world_request *first = world_request(world, 2, 30, 5);
    world_submit(world, first);
    world_step(world);
    const struct engine_request_spec twice = {
        .id = first->id, .prompt = first->prompt, .prompt_count = 5, .max_tokens = 5};
    assert_int_equal(KVF_EEXIST, engine_scheduler_add(world->scheduler, 0, &twice, &error));
    world_run(world);
    check_done(world, first, ENGINE_FINISH_LENGTH);
    close_world(world);
}

static void test_abort_at_every_step(void **state)
{
    (void)state;
    for (uint32_t steps = 0; steps < 12; steps++) {
        struct world *world = open_world(&ROOMY, true);
        struct world_request *stays = world_request(world, 1, 30, 10);
        struct world_request *leaves = world_request(world, 2, 60, 5);
        world_submit(world, stays);
        world_submit(world, leaves);
        for (uint32_t i = 0; i < steps; i++)
            (void)world_step(world);
        engine_scheduler_abort(world->scheduler, world->now_ns, leaves->id);
        engine_scheduler_abort(world->scheduler, world->now_ns, leaves->id);
        engine_scheduler_abort(world->scheduler, world->now_ns, "nobody");
        assert_true(leaves->finished);
        world_run(world);
        check_done(world, stays, ENGINE_FINISH_LENGTH);
        close_world(world);
    }
}

static void test_a_failed_forward_pass_costs_its_batch(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY, false);
    struct world_request *first = world_request(world, 1, 10, 10);
    world_submit(world, first);
    world->fail_next_run = true;
    assert_true(world_step(world));
    assert_int_equal(ENGINE_FINISH_ERROR, first->reason);
    assert_non_null(strstr(first->message, "told to fail"));
    struct world_request *second = world_request(world, 1, 10, 10);
    world_submit(world, second);
    world_run(world);
    assert_int_equal(0, second->cached_tokens); /* nothing of the failed one was cached */
    check_done(world, second, ENGINE_FINISH_LENGTH);
    close_world(world);
}

/* Everything at once, in a pool that is too small. */
static void test_random_load(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 40;
    options.model_len_max = 120;
    struct world *world = open_world(&options, false);
    uint32_t aborted = 0;
    for (uint32_t i = 0; i < 150; i++) {
        struct world_request *request =
            world_request(world, world_random(world, 5), 1 + world_random(world, 60),
                          1 + world_random(world, 40));
        request->ignore_end = world_random(world, 2);
        world_submit(world, request);
        for (uint32_t k = world_random(world, 6); k > 0; k--)
            (void)world_step(world);
        if (world_random(world, 10) == 0) {
            struct world_request *victim =
                &world->requests[world_random(world, world->request_count)];
            aborted += !victim->finished;
            engine_scheduler_abort(world->scheduler, world->now_ns, victim->id);
        }
    }
    world_run(world);
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    assert_true(usage.preemptions > 10);
    assert_true(usage.cached_tokens > 100);
    assert_int_equal(aborted, usage.finished[ENGINE_FINISH_ABORT]);
    for (uint32_t i = 0; i < world->request_count; i++) {
        assert_true(world->requests[i].finished);
        world_check(world, &world->requests[i]);
    }
    close_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_lengths_around_a_block),
        cmocka_unit_test(test_decode_goes_on_during_a_long_prefill),
        cmocka_unit_test(test_prefix_hits),
        cmocka_unit_test(test_preemption_changes_no_token),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_abort_at_every_step),
        cmocka_unit_test(test_a_failed_forward_pass_costs_its_batch),
        cmocka_unit_test(test_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
