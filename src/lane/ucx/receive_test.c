/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that sends faster than its messages can be handled, against a scripted UCX: this program's
 * ucp_worker_progress takes the place of the library's and always has more.
 */
#include "lane/ucx/ucx.h"

#include "wire/nixl_notif.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    TURNS = 60,
    BACKLOG_MAX = 256, /* messages that may wait before the transport is asked for more */
};
#define BACKLOG_BYTES_MAX ((size_t)16 << 20)

static struct kvfi_lane lane;
static ucp_am_recv_callback_t handler;
static void *handler_arg;

/* What each call of ucp_worker_progress brings. */
static size_t burst;
static size_t burst_len;
static unsigned char *bytes;
static uint32_t arrived;
static uint32_t delivered;
static size_t longest; /* backlog seen before a burst */

ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                            const ucp_am_handler_param_t *param)
{
    if (param->id != KVFI_NIXL_NOTIF_AM_ID)
        return UCS_OK;
    handler = param->cb;
    handler_arg = param->arg;
    return UCS_OK;
}

unsigned ucp_worker_progress(ucp_worker_h worker)
{
    const ucp_am_recv_param_t param = {0};
    if (arrived - delivered > longest)
        longest = arrived - delivered;
    for (size_t i = 0; i < burst; i++) {
        memcpy(bytes, &arrived, sizeof(arrived));
        arrived++;
        assert_int_equal(handler(handler_arg, NULL, 0, bytes, burst_len, &param), UCS_OK);
    }
    return (unsigned)burst;
}

static void on_received(void *ctx, const void *message, size_t message_len)
{
    assert_int_equal(message_len, burst_len);
    assert_memory_equal(message, &delivered, sizeof(delivered)); /* none lost, in order */
    delivered++;
}

static void flood(size_t count, size_t len)
{
    lane = (struct kvfi_lane){.callbacks = {.received = on_received}};
    kvfi_lane_queue_init(&lane.events);
    assert_int_equal(kvfi_ucx_receive_start(&lane, NULL), KVF_OK);
    bytes = calloc(1, len);
    assert_non_null(bytes);
    arrived = delivered = 0;
    longest = 0;
    burst = count;
    burst_len = len;
    for (unsigned i = 0; i < TURNS; i++)
        assert_true(kvfi_lane_ucx.progress(&lane) > 0);
    burst = 0;
    while (kvfi_lane_ucx.progress(&lane) > 0)
        ;
    burst = count;
    assert_int_equal(delivered, arrived);
    assert_true(arrived >= TURNS); /* it went on all the time */
    kvfi_ucx_receive_stop(&lane);
    kvfi_ucx_carry_free(&lane);
    free(bytes);
}

static void small_messages_wait_in_the_transport(void **state)
{
    flood(100, 64);
    assert_true(longest <= BACKLOG_MAX);
}

static void large_messages_wait_in_the_transport(void **state)
{
    flood(2, (size_t)1 << 20);
    assert_true(longest * burst_len <= BACKLOG_BYTES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_messages_wait_in_the_transport),
        cmocka_unit_test(large_messages_wait_in_the_transport),
    };
    return cmocka_run_group_tests_name("lane/ucx_receive", tests, NULL, NULL);
}
