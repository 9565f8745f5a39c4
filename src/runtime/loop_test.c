/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loop.h"

#include "runtime/clock.h"
#include "runtime/thread.h"
#include "runtime/wake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct fixture {
    struct kvfi_loop loop;
    struct kvfi_wake wakes[2];
};

static void setup(struct fixture *f)
{
    assert_int_equal(kvfi_loop_init(&f->loop, NULL), KVF_OK);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(kvfi_wake_init(&f->wakes[i], NULL), KVF_OK);
        assert_int_equal(kvfi_loop_add(&f->loop, f->wakes[i].fd, i, NULL), KVF_OK);
    }
}

static void teardown(struct fixture *f)
{
    kvfi_wake_deinit(&f->wakes[0]);
    kvfi_wake_deinit(&f->wakes[1]);
    kvfi_loop_deinit(&f->loop);
}

static void test_bits_say_what_is_readable(void **state)
{
    struct fixture f;
    setup(&f);
    assert_int_equal(kvfi_loop_wait(&f.loop, 0), 0);
    kvfi_wake_signal(&f.wakes[1]);
    assert_int_equal(kvfi_loop_wait(&f.loop, UINT64_MAX), 2);
    kvfi_wake_signal(&f.wakes[0]);
    assert_int_equal(kvfi_loop_wait(&f.loop, UINT64_MAX), 3);
    kvfi_wake_clear(&f.wakes[0]);
    kvfi_wake_clear(&f.wakes[1]);
    assert_int_equal(kvfi_loop_wait(&f.loop, 0), 0);
    teardown(&f);
}

static void test_a_deadline_ends_the_sleep_and_not_earlier(void **state)
{
    struct fixture f;
    setup(&f);
    for (int i = 0; i < 3; i++) {
        uint64_t deadline_ns = kvfi_clock_mono_ns() + 3 * KVFI_NS_PER_MS;
        assert_int_equal(kvfi_loop_wait(&f.loop, deadline_ns), 0);
        assert_true(kvfi_clock_mono_ns() >= deadline_ns);
    }
    /* One that has passed already returns at once; so does the same one again. */
    assert_int_equal(kvfi_loop_wait(&f.loop, 1), 0);
    assert_int_equal(kvfi_loop_wait(&f.loop, 1), 0);
    teardown(&f);
}

static void test_a_forgotten_deadline_does_not_fire(void **state)
{
    struct fixture f;
    setup(&f);
    kvfi_wake_signal(&f.wakes[0]);
    assert_int_equal(kvfi_loop_wait(&f.loop, kvfi_clock_mono_ns() + KVFI_NS_PER_MS), 1);
    /* The timer of the first wait would end this one without a bit. */
    kvfi_wake_clear(&f.wakes[0]);
    assert_int_equal(kvfi_loop_wait(&f.loop, kvfi_clock_mono_ns() + 5 * KVFI_NS_PER_MS), 0);
    kvfi_wake_signal(&f.wakes[1]);
    assert_int_equal(kvfi_loop_wait(&f.loop, UINT64_MAX), 2);
    teardown(&f);
}

static void *signal_many(void *ctx)
{
    struct fixture *f = ctx;
    for (int i = 0; i < 20000; i++)
        kvfi_wake_signal(&f->wakes[0]);
    kvfi_wake_signal(&f->wakes[1]);
    return NULL;
}

/* A wake-up that gets lost leaves this test asleep for ever. */
static void test_no_wake_up_is_lost(void **state)
{
    struct fixture f;
    setup(&f);
    pthread_t thread;
    assert_int_equal(kvfi_thread_start("signaller", signal_many, &f, &thread, NULL), KVF_OK);
    uint32_t bits = 0;
    while (!(bits & 2)) {
        bits = kvfi_loop_wait(&f.loop, UINT64_MAX);
        assert_int_not_equal(bits, 0);
        if (bits & 1)
            kvfi_wake_clear(&f.wakes[0]);
    }
    pthread_join(thread, NULL);
    kvfi_wake_clear(&f.wakes[0]);
    kvfi_wake_clear(&f.wakes[1]);
    assert_int_equal(kvfi_loop_wait(&f.loop, 0), 0);
    teardown(&f);
}

static void test_a_bad_descriptor_is_named(void **state)
{
    struct kvfi_loop loop;
    struct kvf_error error;
    assert_int_equal(kvfi_loop_init(&loop, NULL), KVF_OK);
    assert_int_equal(kvfi_loop_add(&loop, -1, 0, &error), KVF_ESYSTEM);
    assert_string_equal(error.text, "epoll_ctl of descriptor -1: Bad file descriptor");
    kvfi_loop_deinit(&loop);
    kvfi_loop_deinit(&loop);
}

static void test_deadlines_do_not_wrap(void **state)
{
    assert_int_equal(kvfi_deadline_ns(5, 6), 11);
    assert_true(kvfi_deadline_ns(5, UINT64_MAX) == UINT64_MAX);
    assert_true(kvfi_deadline_ns(UINT64_MAX, 1) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_say_what_is_readable),
        cmocka_unit_test(test_a_deadline_ends_the_sleep_and_not_earlier),
        cmocka_unit_test(test_a_forgotten_deadline_does_not_fire),
        cmocka_unit_test(test_no_wake_up_is_lost),
        cmocka_unit_test(test_a_bad_descriptor_is_named),
        cmocka_unit_test(test_deadlines_do_not_wrap),
    };
    return cmocka_run_group_tests_name("runtime/loop", tests, NULL, NULL);
}
