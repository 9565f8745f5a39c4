/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "pool.h"

enum {
    TASKS = 300,
    JOBS = 2000,
};

struct counts {
    /* Each element is written by the one task of its number; pool_run() orders it with the test. */
    uint32_t runs[TASKS];
    uint32_t workers;
};

static void count_task(void *ctx, uint32_t task, uint32_t worker)
{
    struct counts *counts = ctx;
    counts->runs[task] += worker < counts->workers;
}

static void runs_every_task_once(void **state)
{
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct pool *pool;
        struct counts counts = {.workers = threads};
        uint32_t wanted[TASKS] = {0};
        assert_int_equal(pool_create(threads, &pool, NULL), KVF_OK);
        assert_int_equal(pool_threads(pool), threads);
        for (uint32_t job = 0; job < JOBS; job++) {
            uint32_t tasks = job * 7 % (TASKS + 1);
            /* With and without the bracket, so that workers are met awake and asleep. */
            if (job % 100 == 0)
                pool_begin(pool);
            pool_run(pool, tasks, count_task, &counts);
            if (job % 100 == 50)
                pool_end(pool);
            for (uint32_t i = 0; i < tasks; i++)
                wanted[i]++;
        }
        pool_end(pool);
        assert_memory_equal(counts.runs, wanted, sizeof wanted);
        pool_destroy(pool);
    }
}

static void refuses_bad_thread_counts(void **state)
{
    struct pool *pool = NULL;
    struct kvf_error error;
    assert_int_equal(pool_create(0, &pool, &error), KVF_EINVAL);
    assert_int_equal(pool_create(POOL_THREADS_MAX + 1, &pool, &error), KVF_EINVAL);
    test_contains(error.text, "257");
    assert_null(pool);
    assert_true(pool_usable_cores() >= 1);
    pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_every_task_once),
        cmocka_unit_test(refuses_bad_thread_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
