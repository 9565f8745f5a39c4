/* SPDX-License-Identifier: Apache-2.0 */
#include "http/mailbox.h"

#include <event2/event.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct item {
    uint32_t poster;
    uint32_t number;
};

enum { POSTER_COUNT = 3, ITEM_COUNT = 5000, QUEUE_LEN = 16 };

struct reader {
    struct event_base *base;
    uint32_t next[POSTER_COUNT];
    uint32_t count;
    bool out_of_order;
};

static void count_item(void *ctx, void *item)
{
    ++*(int *)ctx;
}

static void test_bounds_and_drop(void **state)
{
    struct kvfi_mailbox *mailbox = NULL;
    int dropped = 0;
    assert_int_equal(kvfi_mailbox_create(0, 1, NULL, NULL, &mailbox, NULL), KVF_EINVAL);
    assert_int_equal(kvfi_mailbox_create(8, SIZE_MAX / 4, NULL, NULL, &mailbox, NULL), KVF_EINVAL);
    assert_int_equal(
        kvfi_mailbox_create(sizeof(struct item), 2, count_item, &dropped, &mailbox, NULL), KVF_OK);
    struct item item = {.number = 1};
    assert_int_equal(kvfi_mailbox_take(mailbox, &item), KVF_AGAIN);
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_OK);
    item.number = 2;
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_OK);
    item.number = 3;
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_AGAIN);
    assert_int_equal(kvfi_mailbox_full_count(mailbox), 1);
    assert_int_equal(kvfi_mailbox_take(mailbox, &item), KVF_OK);
    assert_int_equal(item.number, 1);
    item.number = 3;
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_OK);
    kvfi_mailbox_close(mailbox);
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_ECLOSED);
    kvfi_mailbox_destroy(mailbox);
    assert_int_equal(dropped, 2);
    kvfi_mailbox_destroy(NULL);
}

static void test_descriptor(void **state)
{
    struct kvfi_mailbox *mailbox = NULL;
    assert_int_equal(kvfi_mailbox_create(sizeof(struct item), 4, NULL, NULL, &mailbox, NULL),
                     KVF_OK);
    struct pollfd fd = {.fd = kvfi_mailbox_fd(mailbox), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 0), 0);
    struct item item = {0};
    assert_int_equal(kvfi_mailbox_post(mailbox, &item), KVF_OK);
    assert_int_equal(poll(&fd, 1, 0), 1);
    kvfi_mailbox_clear(mailbox);
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(kvfi_mailbox_take(mailbox, &item), KVF_OK);
    kvfi_mailbox_destroy(mailbox);
}

struct poster {
    struct kvfi_mailbox *mailbox;
    uint32_t index;
};

static void *post_all(void *ctx)
{
    struct poster *poster = ctx;
    for (uint32_t i = 0; i < ITEM_COUNT;) {
        struct item item = {.poster = poster->index, .number = i};
        if (kvfi_mailbox_post(poster->mailbox, &item) == KVF_OK)
            i++;
        else
            sched_yield();
    }
    return NULL;
}

static void on_item(void *ctx, void *data)
{
    struct reader *reader = ctx;
    const struct item *item = data;
    reader->out_of_order |= item->number != reader->next[item->poster];
    reader->next[item->poster] = item->number + 1;
    if (++reader->count == POSTER_COUNT * ITEM_COUNT)
        event_base_loopbreak(reader->base);
}

/* Every item arrives once and in its poster's order, through a queue that is full most of the
 * time. */
static void test_threads(void **state)
{
    struct reader reader = {.base = event_base_new()};
    struct kvfi_mailbox *mailbox = NULL;
    assert_int_equal(
        kvfi_mailbox_create(sizeof(struct item), QUEUE_LEN, NULL, NULL, &mailbox, NULL), KVF_OK);
    assert_int_equal(kvfi_mailbox_attach(mailbox, reader.base, on_item, &reader, NULL), KVF_OK);
    assert_int_equal(kvfi_mailbox_attach(mailbox, reader.base, on_item, &reader, NULL), KVF_EEXIST);
    pthread_t threads[POSTER_COUNT];
    struct poster posters[POSTER_COUNT];
    for (uint32_t i = 0; i < POSTER_COUNT; i++) {
        posters[i] = (struct poster){.mailbox = mailbox, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
    }
    event_base_dispatch(reader.base);
    for (int i = 0; i < POSTER_COUNT; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(reader.count, POSTER_COUNT * ITEM_COUNT);
    assert_false(reader.out_of_order);
    kvfi_mailbox_destroy(mailbox);
    event_base_free(reader.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_and_drop),
        cmocka_unit_test(test_descriptor),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
