/* SPDX-License-Identifier: Apache-2.0 */
/* Both legs of a split request, seen from the scheduler. */
#include "engine/scheduler_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct engine_scheduler_options ROOMY = {
    .block_count = 128,
    .block_size = 4,
    .batch_tokens_max = 16,
    .sequences_max = 8,
    .model_len_max = 200,
};

static struct world *open_world(const struct engine_scheduler_options *options)
{
    struct world *world = malloc(sizeof(*world));
    assert_non_null(world);
    world_open(world, options, true);
    return world;
}

static void close_world(struct world *world)
{
    world_close(world);
    free(world);
}

static struct world_request *decode_leg(struct world *world, uint32_t text_seed, uint32_t count,
                                        uint32_t max_tokens)
{
    struct world_request *request = world_request(world, text_seed, count, max_tokens);
    request->has_transfer = true;
    request->transfer.do_remote_prefill = true;
    request->transfer.remote_host = "prefill";
    return request;
}

static struct world_request *prefill_leg(struct world *world, uint32_t text_seed, uint32_t count,
                                         uint32_t max_tokens)
{
    struct world_request *request = world_request(world, text_seed, count, max_tokens);
    request->has_transfer = true;
    request->transfer.do_remote_decode = true;
    return request;
}

static uint32_t count_in(const struct world *world, size_t field)
{
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    return *(const uint32_t *)((const char *)&usage + field);
}

#define USAGE(world, field) count_in(world, offsetof(struct engine_scheduler_usage, field))

static void test_decode_waits_and_runs(void **state)
{
    (void)state;
    for (uint32_t length = 1; length <= 33; length++) {
        struct world *world = open_world(&ROOMY);
        struct world_request *request = decode_leg(world, 1, length, 9);
        world_submit(world, request);
        assert_false(world_step(world));
        assert_false(world_step(world)); /* an engine with a parked request runs nothing */
        assert_int_equal(1, USAGE(world, parked));
        assert_true(request->registered);
        assert_int_equal(length, request->external);
        /* Only blocks of the prompt are registered (bug B58). */
        assert_int_equal((length + 3) / 4, request->block_count);
        world_write(world, request);
        world_result(world, request, KVF_RESULT_RECEIVED, true);
        assert_int_equal(1, USAGE(world, ready));
        assert_true(world_step(world));
        assert_int_equal(1, request->output_count); /* one token was computed, at once */
        assert_int_equal(1, world->batch_tokens_seen);
        world_run(world);
        assert_int_equal(ENGINE_FINISH_LENGTH, request->reason);
        world_check(world, request);
        close_world(world);
    }
}

static void test_received_blocks_are_cached_and_hit(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY);
    struct world_request *first = decode_leg(world, 1, 30, 3);
    world_submit(world, first);
    (void)world_step(world);
    world_write(world, first);
    world_result(world, first, KVF_RESULT_RECEIVED, true);
    world_run(world);
    struct world_request *second = decode_leg(world, 1, 30, 3);
    world_submit(world, second);
    (void)world_step(world);
    assert_int_equal(7, second->cached_count); /* 28 of 30 tokens */
    assert_int_equal(2, second->external);
    world_write(world, second);
    world_result(world, second, KVF_RESULT_RECEIVED, true);
    world_run(world);
    world_check(world, second);
    assert_int_equal(28, second->cached_tokens);
    /* A prompt of whole blocks still fetches the block of its last token (bug B55). */
    struct world_request *third = decode_leg(world, 1, 28, 3);
    world_submit(world, third);
    (void)world_step(world);
    assert_int_equal(6, third->cached_count);
    assert_int_equal(7, third->block_count);
    world_write(world, third);
    world_result(world, third, KVF_RESULT_RECEIVED, true);
    world_run(world);
    world_check(world, third);
    close_world(world);
}

/* A receive that failed is never taken for a prefix: nothing of it was hashed. */
static void test_failed_receive(void **state)
{
    (void)state;
    for (int blocks_free = 0; blocks_free < 2; blocks_free++) {
        struct world *world = open_world(&ROOMY);
        struct world_request *request = decode_leg(world, 1, 30, 3);
        world_submit(world, request);
        (void)world_step(world);
        world_result(world, request, KVF_RESULT_FAILED, blocks_free);
        assert_true(request->finished);
        assert_int_equal(ENGINE_FINISH_ERROR, request->reason);
        assert_non_null(strstr(request->message, "the peer is gone"));
        assert_int_equal(blocks_free ? 0 : 8, USAGE(world, blocks_held));
        struct world_request *local = world_request(world, 1, 30, 3);
        world_submit(world, local);
        world_run(world);
        world_check(world, local);
        assert_int_equal(0, local->cached_tokens);
        if (!blocks_free)
            world_result(world, request, KVF_RESULT_RELEASED, true);
        close_world(world);
    }
}

static void test_failed_receive_recomputed(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.recompute_failed = true;
    for (int blocks_free = 0; blocks_free < 2; blocks_free++) {
        struct world *world = open_world(&options);
        struct world_request *request = decode_leg(world, 1, 30, 30);
        world_submit(world, request);
        (void)world_step(world);
        world_result(world, request, KVF_RESULT_FAILED, blocks_free);
        assert_false(request->finished);
        assert_true(world_step(world));
        assert_true(world_step(world));
        /* The late bytes of the other engine harm nobody: the blocks are set aside. */
        if (!blocks_free) {
            assert_int_equal(8, USAGE(world, blocks_held));
            for (size_t i = 0; i < request->block_count; i++)
                for (uint32_t k = 0; k < 4; k++)
                    world->cache[request->blocks[i] * 4 + k] = 0xdead;
        }
        world_run(world);
        assert_int_equal(ENGINE_FINISH_LENGTH, request->reason);
        world_check(world, request);
        if (!blocks_free) {
            assert_int_equal(1, USAGE(world, held));
            world_result(world, request, KVF_RESULT_RELEASED, true);
        }
        close_world(world);
    }
}

/* The blocks of an aborted receive stay away from everybody until the connector lets them go. */
static void test_abort_while_parked(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 20;
    options.model_len_max = 80;
    struct world *world = open_world(&options);
    struct world_request *leaves = decode_leg(world, 1, 30, 3);
    world_submit(world, leaves);
    (void)world_step(world);
    engine_scheduler_abort(world->scheduler, world->now_ns, leaves->id);
    assert_int_equal(ENGINE_FINISH_ABORT, leaves->reason);
    assert_int_equal(8, USAGE(world, blocks_held));
    for (uint32_t i = 0; i < 10; i++) {
        struct world_request *other = world_request(world, 2 + i, 20, 20);
        world_submit(world, other);
        (void)world_step(world);
        leaves->registered = true;
        world_write(world, leaves);
        world_run(world);
        world_check(world, other);
    }
    /* The write completes after all; then the release. */
    world_result(world, leaves, KVF_RESULT_RECEIVED, false);
    assert_int_equal(1, USAGE(world, held));
    world_result(world, leaves, KVF_RESULT_RELEASED, true);
    assert_int_equal(0, USAGE(world, held));
    world_result(world, leaves, KVF_RESULT_RELEASED, true); /* late and unknown: no effect */
    close_world(world);
}

/* Preempted after its receive: computed here, nothing is asked for again (bug B16). */
static void test_preempted_after_receive(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 16;
    options.model_len_max = 64;
    struct world *world = open_world(&options);
    struct world_request *old = world_request(world, 1, 16, 40);
    world_submit(world, old);
    (void)world_step(world);
    struct world_request *young = decode_leg(world, 2, 24, 20);
    world_submit(world, young);
    (void)world_step(world);
    assert_int_equal(1, USAGE(world, parked));
    world_write(world, young);
    world_result(world, young, KVF_RESULT_RECEIVED, true);
    world_run(world);
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    assert_true(usage.preemptions > 0);
    assert_int_equal(1, young->after_alloc_count);
    world_check(world, old);
    world_check(world, young);
    assert_int_equal(20, young->output_count);
    close_world(world);
}

/* "Received" lasts until the request runs, however long that takes (bug B17). */
static void test_received_while_the_batch_is_full(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.sequences_max = 1;
    struct world *world = open_world(&options);
    struct world_request *request = decode_leg(world, 2, 24, 5);
    world_submit(world, request);
    (void)world_step(world);
    struct world_request *busy = world_request(world, 1, 8, 30);
    world_submit(world, busy);
    assert_true(world_step(world));
    world_write(world, request);
    world_result(world, request, KVF_RESULT_RECEIVED, true);
    for (int i = 0; i < 10; i++) {
        assert_true(world_step(world));
        assert_int_equal(1, USAGE(world, ready));
    }
    world_run(world);
    world_check(world, request);
    world_check(world, busy);
    assert_int_equal(1, request->after_alloc_count);
    close_world(world);
}

static void test_prefill_holds_its_blocks(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY);
    struct world_request *leg = prefill_leg(world, 1, 30, 1);
    world_submit(world, leg);
    world_run(world);
    assert_int_equal(ENGINE_FINISH_LENGTH, leg->reason);
    assert_true(leg->handed_over);
    assert_int_equal(8, leg->handover_count);
    assert_int_equal(8, USAGE(world, blocks_held));
    /* An abort that comes too late does nothing (bug B09). */
    engine_scheduler_abort(world->scheduler, world->now_ns, leg->id);
    assert_int_equal(1, USAGE(world, held));
    /* Its id is in use until then (bug B05). */
    const struct engine_request_spec again = {
        .id = leg->id, .prompt = leg->prompt, .prompt_count = 5, .max_tokens = 5};
    assert_int_equal(KVF_EEXIST, engine_scheduler_add(world->scheduler, 0, &again, NULL));
    world_result(world, leg, KVF_RESULT_SENT, true);
    assert_int_equal(0, USAGE(world, held));
    close_world(world);
}

/* The final list counts: chunks, a preemption and other block ids on the way (bug B19); and what a
 * prefill generates beyond the prompt is not offered (bug B54). */
static void test_prefill_offers_the_prompt(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 24;
    options.model_len_max = 96;
    options.batch_tokens_max = 12;
    struct world *world = open_world(&options);
    struct world_request *old = world_request(world, 9, 10, 60);
    world_submit(world, old);
    (void)world_step(world);
    struct world_request *leg = prefill_leg(world, 1, 40, 25);
    world_submit(world, leg);
    world_run(world);
    struct engine_scheduler_usage usage;
    world_usage(world, &usage);
    assert_true(usage.preemptions > 0);
    assert_true(leg->handed_over);
    assert_int_equal(10, leg->handover_count);
    /* The held blocks have the prompt's words: a decode leg that is given them agrees. */
    struct world_request *reader = decode_leg(world, 1, 40, 5);
    reader->registered = true;
    reader->cached_count = 0;
    memcpy(reader->blocks, leg->handover_blocks, sizeof(reader->blocks));
    for (uint32_t p = 0; p < 40; p++) {
        uint64_t before = world->cache[leg->handover_blocks[p / 4] * 4 + p % 4];
        world_write(world, reader);
        assert_true(before == world->cache[leg->handover_blocks[p / 4] * 4 + p % 4]);
    }
    world->request_count--;
    world_check(world, leg);
    world_check(world, old);
    world_result(world, leg, KVF_RESULT_SENT, true);
    close_world(world);
}

/* Stop and length hold and return coordinates, abort and error do not (bug B102). */
static void test_which_ends_hand_over(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY);
    struct world_request *stop = prefill_leg(world, 1, 9, 5);
    stop->stop_after = 1;
    struct world_request *length = prefill_leg(world, 2, 9, 1);
    world_submit(world, stop);
    world_submit(world, length);
    world_run(world);
    assert_int_equal(ENGINE_FINISH_STOP, stop->reason);
    assert_true(stop->handed_over);
    assert_true(length->handed_over);
    struct world_request *aborted = prefill_leg(world, 3, 40, 1);
    world_submit(world, aborted);
    (void)world_step(world);
    engine_scheduler_abort(world->scheduler, world->now_ns, aborted->id);
    assert_false(aborted->handed_over);
    struct world_request *failed = prefill_leg(world, 4, 9, 1);
    world_submit(world, failed);
    world->fail_next_run = true;
    (void)world_step(world);
    assert_int_equal(ENGINE_FINISH_ERROR, failed->reason);
    assert_false(failed->handed_over);
    world_result(world, stop, KVF_RESULT_SENT, true);
    world_result(world, length, KVF_RESULT_SENT, true);
    close_world(world);
}

/* Receives, local requests, aborts, failures and late writes, in a pool that is too small. */
static void test_random_traffic(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        struct engine_scheduler_options options = ROOMY;
        options.block_count = 48;
        options.model_len_max = 100;
        options.recompute_failed = recompute;
        struct world *world = open_world(&options);
        for (uint32_t turn = 0; turn < 4000; turn++) {
            uint32_t dice = world_random(world, 12);
            if (dice == 0 && world->request_count < WORLD_REQUESTS_MAX) {
                uint32_t text = world_random(world, 6);
                uint32_t count = 1 + world_random(world, 50);
                uint32_t output = 1 + world_random(world, 30);
                uint32_t kind = world_random(world, 3);
                world_submit(world, kind == 0   ? world_request(world, text, count, output)
                                    : kind == 1 ? decode_leg(world, text, count, output)
                                                : prefill_leg(world, text, count, 1));
            }
            (void)world_step(world);
            if (world->request_count == 0)
                continue;
            struct world_request *request =
                &world->requests[world_random(world, world->request_count)];
            if (dice == 1)
                engine_scheduler_abort(world->scheduler, world->now_ns, request->id);
            if (request->registered && !request->receive_done && dice < 8) {
                world_write(world, request);
                if (request->finished)
                    world_result(world, request, KVF_RESULT_RELEASED, true);
                else if (dice < 6)
                    world_result(world, request, KVF_RESULT_RECEIVED, true);
                else
                    world_result(world, request, KVF_RESULT_FAILED, dice == 6);
            } else if (request->registered && dice < 8) {
                world_write(world, request); /* a failed receive's bytes still come */
                world_result(world, request, KVF_RESULT_RELEASED, true);
            } else if (request->finished && request->delay_free) {
                world_result(world, request, KVF_RESULT_SENT, true);
            }
        }
        for (int settle = 0; settle < 300; settle++) {
            world_run(world);
            for (uint32_t i = 0; i < world->request_count; i++) {
                struct world_request *request = &world->requests[i];
                if (request->registered && !request->receive_done && !request->finished) {
                    world_write(world, request);
                    world_result(world, request, KVF_RESULT_RECEIVED, true);
                } else if (request->registered || request->delay_free) {
                    world_result(world, request, KVF_RESULT_RELEASED, true);
                }
            }
        }
        for (uint32_t i = 0; i < world->request_count; i++) {
            assert_true(world->requests[i].finished);
            world_check(world, &world->requests[i]);
        }
        close_world(world);
    }
}

static void test_a_leg_does_not_wait_for_held_blocks_for_ever(void **state)
{
    (void)state;
    struct engine_scheduler_options options = ROOMY;
    options.block_count = 10;
    options.model_len_max = 40;
    options.patience_ns = 10000000; /* ten steps of the world */
    struct world *world = open_world(&options);
    struct world_request *first = prefill_leg(world, 1, 30, 1);
    world_submit(world, first);
    world_run(world);
    assert_int_equal(UINT64_MAX, engine_scheduler_deadline_ns(world->scheduler));
    for (int i = 0; i < 50; i++) /* long ago, when the next one comes */
        (void)world_step(world);
    struct world_request *second = prefill_leg(world, 2, 30, 1);
    struct world_request *third = prefill_leg(world, 3, 30, 1);
    world_submit(world, second);
    world_submit(world, third);
    uint64_t due_ns = world->now_ns + options.patience_ns;
    assert_int_equal(due_ns, engine_scheduler_deadline_ns(world->scheduler));
    while (world->now_ns + 1000000 < due_ns)
        assert_false(world_step(world));
    assert_false(second->finished);
    assert_false(world_step(world));
    assert_true(second->finished && !third->finished);
    assert_int_equal(ENGINE_FINISH_ERROR, second->reason);
    assert_non_null(strstr(second->message, "no room: 2 of 10 blocks are free"));
    /* The next one has its time too. */
    assert_int_equal(world->now_ns + options.patience_ns,
                     engine_scheduler_deadline_ns(world->scheduler));
    world_result(world, first, KVF_RESULT_SENT, true);
    assert_int_equal(UINT64_MAX, engine_scheduler_deadline_ns(world->scheduler));
    world_run(world);
    assert_int_equal(ENGINE_FINISH_LENGTH, third->reason);
    world_result(world, third, KVF_RESULT_SENT, true);
    close_world(world);
}

static struct world_request *named(struct world_request *request, const char *id,
                                   const char *transfer_id)
{
    (void)snprintf(request->id, sizeof(request->id), "%s", id);
    request->transfer.transfer_id = transfer_id;
    return request;
}

/* Two legs that peers could not tell apart would get each other's blocks (bug B05). */
static void test_one_leg_for_each_name(void **state)
{
    (void)state;
    static const struct {
        const char *id;
        const char *transfer_id;
        enum kvf_status status;
    } second[] = {
        {"cmpl-a-0-00000002", NULL, KVF_EEXIST}, {"cmpl-a-0-00000002", "u", KVF_OK},
        {"cmpl-a-0-00000002", "t", KVF_EEXIST},  {"cmpl-b-0-00000002", "t", KVF_EEXIST},
        {"cmpl-b-0-00000002", "u", KVF_OK},      {"cmpl-a-1-00000002", NULL, KVF_OK},
        {"cmpl-a-0", NULL, KVF_EEXIST},
    };
    for (size_t i = 0; i < sizeof(second) / sizeof(second[0]); i++) {
        struct world *world = open_world(&ROOMY);
        struct world_request *first = named(prefill_leg(world, 1, 9, 1), "cmpl-a-0-00000001",
                                            second[i].transfer_id ? "t" : NULL);
        world_submit(world, first);
        world_run(world);
        assert_int_equal(1, USAGE(world, held)); /* ended, and still somebody's to fetch */
        struct world_request *other =
            named(prefill_leg(world, 2, 9, 1), second[i].id, second[i].transfer_id);
        assert_int_equal(second[i].status, world_offer(world, other));
        world_run(world);
        world_result(world, first, KVF_RESULT_SENT, true);
        if (other->finished)
            world_result(world, other, KVF_RESULT_SENT, true);
        /* Free again. */
        struct world_request *again =
            named(prefill_leg(world, 3, 9, 1), "cmpl-a-0-00000003", first->transfer.transfer_id);
        world_submit(world, again);
        world_run(world);
        world_result(world, again, KVF_RESULT_SENT, true);
        close_world(world);
    }
}

/* A name that only one of the two gives as a transfer id is taken; one without a leg is not. */
static void test_names_of_mixed_requests(void **state)
{
    (void)state;
    struct world *world = open_world(&ROOMY);
    struct world_request *first = named(decode_leg(world, 1, 9, 1), "cmpl-a-0-00000001", "t");
    world_submit(world, first);
    assert_int_equal(KVF_EEXIST, world_offer(world, named(decode_leg(world, 2, 9, 1),
                                                          "cmpl-a-0-00000002", NULL)));
    struct world_request *plain = named(world_request(world, 3, 9, 1), "cmpl-a-0-00000003", NULL);
    world_submit(world, plain);
    (void)world_step(world);
    world_write(world, first);
    world_result(world, first, KVF_RESULT_RECEIVED, true);
    world_run(world);
    world_check(world, first);
    world_check(world, plain);
    close_world(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_waits_and_runs),
        cmocka_unit_test(test_received_blocks_are_cached_and_hit),
        cmocka_unit_test(test_failed_receive),
        cmocka_unit_test(test_failed_receive_recomputed),
        cmocka_unit_test(test_abort_while_parked),
        cmocka_unit_test(test_preempted_after_receive),
        cmocka_unit_test(test_received_while_the_batch_is_full),
        cmocka_unit_test(test_prefill_holds_its_blocks),
        cmocka_unit_test(test_prefill_offers_the_prompt),
        cmocka_unit_test(test_which_ends_hand_over),
        cmocka_unit_test(test_a_leg_does_not_wait_for_held_blocks_for_ever),
        cmocka_unit_test(test_one_leg_for_each_name),
        cmocka_unit_test(test_names_of_mixed_requests),
        cmocka_unit_test(test_random_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
