/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/queue.h"

#include "runtime/thread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>
#include <poll.h>

static struct kvfi_queue *make_queue(size_t len_max)
{
    struct kvfi_queue *queue = NULL;
    assert_int_equal(kvfi_queue_create(len_max, NULL, &queue, NULL), KVF_OK);
    return queue;
}

static bool is_readable(const struct kvfi_queue *queue)
{
    struct pollfd fd = {.fd = kvfi_queue_fd(queue), .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void test_full_is_again_and_order_is_kept(void **state)
{
    int items[9];
    struct kvfi_queue *queue = make_queue(8);
    assert_null(kvfi_queue_pop(queue));
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 8; i++)
            assert_int_equal(kvfi_queue_push(queue, &items[i]), KVF_OK);
        assert_int_equal(kvfi_queue_push(queue, &items[8]), KVF_AGAIN);
        assert_ptr_equal(kvfi_queue_pop(queue), &items[0]);
        assert_int_equal(kvfi_queue_push(queue, &items[8]), KVF_OK);
        for (int i = 1; i < 9; i++)
            assert_ptr_equal(kvfi_queue_pop(queue), &items[i]);
        assert_null(kvfi_queue_pop(queue));
        assert_true(kvfi_queue_is_empty(queue));
    }
    kvfi_queue_destroy(queue);
}

static void test_a_length_that_is_no_power_of_two_is_exact(void **state)
{
    int item;
    struct kvfi_queue *queue = make_queue(5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(kvfi_queue_push(queue, &item), KVF_OK);
    assert_int_equal(kvfi_queue_push(queue, &item), KVF_AGAIN);
    kvfi_queue_destroy(queue);
}

static void test_wake_ups_coalesce(void **state)
{
    int item;
    struct kvfi_queue *queue = make_queue(8);
    assert_false(is_readable(queue));
    assert_int_equal(kvfi_queue_push(queue, &item), KVF_OK);
    assert_int_equal(kvfi_queue_push(queue, &item), KVF_OK);
    assert_true(is_readable(queue));
    kvfi_queue_clear(queue);
    assert_false(is_readable(queue));
    assert_non_null(kvfi_queue_pop(queue));
    assert_false(kvfi_queue_is_empty(queue));
    kvfi_queue_resignal(queue);
    assert_true(is_readable(queue));
    kvfi_queue_destroy(queue);
}

static void test_absurd_lengths_are_refused(void **state)
{
    struct kvfi_queue *queue = NULL;
    struct kvf_error error;
    assert_int_equal(kvfi_queue_create(0, NULL, &queue, &error), KVF_EINVAL);
    assert_int_equal(kvfi_queue_create(SIZE_MAX, NULL, &queue, &error), KVF_EINVAL);
    assert_null(queue);
    kvfi_queue_destroy(NULL);
}

struct countdown {
    int left;
    int live;
};

static void *failing_alloc(void *ctx, size_t size)
{
    struct countdown *countdown = ctx;
    if (countdown->left-- == 0)
        return NULL;
    countdown->live++;
    return malloc(size);
}

static void counting_free(void *ctx, void *ptr)
{
    ((struct countdown *)ctx)->live--;
    free(ptr);
}

static void test_each_failing_allocation_leaves_nothing(void **state)
{
    enum kvf_status status = KVF_ENOMEM;
    int n = 0;
    for (; status != KVF_OK; n++) {
        struct countdown countdown = {.left = n};
        struct kvf_allocator allocator = {
            .ctx = &countdown, .alloc = failing_alloc, .free = counting_free};
        struct kvfi_queue *queue = NULL;
        struct kvf_error error = {0};
        status = kvfi_queue_create(4, &allocator, &queue, &error);
        if (status != KVF_OK)
            assert_int_equal(error.status, KVF_ENOMEM);
        kvfi_queue_destroy(queue);
        assert_int_equal(countdown.live, 0);
    }
    assert_int_equal(n, 3);
}

#define PRODUCER_COUNT 3
#define ITEMS_EACH     20000

struct item {
    int producer;
    int sequence;
};

struct producer {
    struct kvfi_queue *queue;
    struct item items[ITEMS_EACH];
    pthread_t thread;
};

static void *produce(void *ctx)
{
    struct producer *producer = ctx;
    for (int i = 0; i < ITEMS_EACH; i++) {
        while (kvfi_queue_push(producer->queue, &producer->items[i]) == KVF_AGAIN)
            sched_yield();
    }
    return NULL;
}

/* A lost wake-up shows as a test that never ends, a lost or doubled item as a wrong sequence. */
static void test_many_producers_lose_nothing(void **state)
{
    struct kvfi_queue *queue = make_queue(64);
    struct producer *producers = calloc(PRODUCER_COUNT, sizeof(*producers));
    assert_non_null(producers);
    for (int p = 0; p < PRODUCER_COUNT; p++) {
        producers[p].queue = queue;
        for (int i = 0; i < ITEMS_EACH; i++)
            producers[p].items[i] = (struct item){.producer = p, .sequence = i};
        assert_int_equal(
            kvfi_thread_start("producer", produce, &producers[p], &producers[p].thread, NULL),
            KVF_OK);
    }
    int next[PRODUCER_COUNT] = {0};
    for (int taken = 0; taken < PRODUCER_COUNT * ITEMS_EACH;) {
        struct pollfd fd = {.fd = kvfi_queue_fd(queue), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, -1), 1);
        kvfi_queue_clear(queue);
        for (struct item *item; (item = kvfi_queue_pop(queue)); taken++)
            assert_int_equal(item->sequence, next[item->producer]++);
    }
    for (int p = 0; p < PRODUCER_COUNT; p++)
        pthread_join(producers[p].thread, NULL);
    assert_true(kvfi_queue_is_empty(queue));
    kvfi_queue_destroy(queue);
    free(producers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_is_again_and_order_is_kept),
        cmocka_unit_test(test_a_length_that_is_no_power_of_two_is_exact),
        cmocka_unit_test(test_wake_ups_coalesce),
        cmocka_unit_test(test_absurd_lengths_are_refused),
        cmocka_unit_test(test_each_failing_allocation_leaves_nothing),
        cmocka_unit_test(test_many_producers_lose_nothing),
    };
    return cmocka_run_group_tests_name("runtime/queue", tests, NULL, NULL);
}
