/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of calls within one transfer, against a scripted UCX: over one tcp connection a missing
 * flush or an early message cannot be seen in the bytes, because everything stays in order there.
 * This program's definitions of the four functions take the place of the library's.
 */
#include "lane/ucx/ucx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { CALLS_MAX = 16 };

struct call {
    ucp_send_nbx_callback_t cb;
    void *user_data;
    char kind; /* p put, g get, f flush, m message */
    bool freed;
};

/* What UCX is to answer, by call: '.' done at once, 'x' fails at once, '-' pending. */
static const char *script;
static struct call calls[CALLS_MAX];
static size_t call_count;

static ucs_status_ptr_t answer(char kind, const ucp_request_param_t *param)
{
    assert_true(call_count < CALLS_MAX);
    struct call *call = &calls[call_count];
    *call = (struct call){.kind = kind, .cb = param->cb.send, .user_data = param->user_data};
    assert_true(param->op_attr_mask & UCP_OP_ATTR_FIELD_CALLBACK);
    char result = script[call_count++];
    if (result == '.')
        return NULL;
    return result == 'x' ? UCS_STATUS_PTR(UCS_ERR_IO_ERROR) : call;
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    return answer('p', param);
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    return answer('g', param);
}

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    return answer('f', param);
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length,
                                 const void *buffer, size_t count, const ucp_request_param_t *param)
{
    assert_int_equal(id, 0);
    assert_int_equal(header_length, 0);
    assert_true(param->flags & UCP_AM_SEND_FLAG_EAGER);
    return answer('m', param);
}

void ucp_request_free(void *request)
{
    struct call *call = request;
    assert_false(call->freed);
    call->freed = true;
}

/* ---- one transfer --------------------------------------------------------------------------- */

static struct kvfi_lane lane;
static struct kvfi_lane_peer peer;
static struct kvfi_lane_op op;

struct pieces {
    size_t left;
};

static bool next_piece(void *ctx, struct kvfi_lane_piece *piece)
{
    static struct kvfi_lane_memory memory;
    static struct kvfi_lane_rkey rkey;
    struct pieces *pieces = ctx;
    if (pieces->left == 0)
        return false;
    pieces->left--;
    *piece = (struct kvfi_lane_piece){.length_bytes = 1, .memory = &memory, .rkey = &rkey};
    return true;
}

static enum kvf_status start(enum kvf_operation operation, size_t pieces, const char *answers,
                             const char *message)
{
    static int endpoint;
    struct pieces left = {pieces};
    script = answers;
    call_count = 0;
    lane = (struct kvfi_lane){0};
    kvfi_lane_queue_init(&lane.events);
    peer = (struct kvfi_lane_peer){.lane = &lane, .ep = (ucp_ep_h)(void *)&endpoint};
    op = (struct kvfi_lane_op){.message = message, .message_len = message ? strlen(message) : 0};
    return kvfi_ucx_post(&lane, &peer, operation, next_piece, &left, &op);
}

static void expect_calls(const char *kinds)
{
    char seen[CALLS_MAX + 1] = {0};
    for (size_t i = 0; i < call_count; i++)
        seen[i] = calls[i].kind;
    assert_string_equal(seen, kinds);
}

static void complete(size_t i, ucs_status_t status)
{
    calls[i].cb(&calls[i], status, calls[i].user_data);
    assert_true(calls[i].freed);
}

static bool is_done(void)
{
    return lane.events.head == &op.event;
}

static void expect_done(enum kvf_status status)
{
    assert_true(is_done());
    assert_int_equal(op.status, status);
    assert_ptr_equal(kvfi_lane_queue_take(&lane.events), &op.event);
    assert_null(lane.events.head); /* once */
    kvfi_ucx_forget_op(&lane, &op);
    assert_int_equal(lane.usage.operations, 0);
    assert_int_equal(peer.operations, 0);
}

static void message_waits_for_the_flush(void **state)
{
    assert_int_equal(start(KVF_WRITE, 2, "..--", "x"), KVF_OK);
    expect_calls("ppf");
    assert_false(is_done());
    complete(2, UCS_OK);
    expect_calls("ppfm");
    assert_false(is_done());
    complete(3, UCS_OK);
    expect_done(KVF_OK);
}

/* A flush may end before a get's data has come (B67). */
static void message_waits_for_every_part(void **state)
{
    assert_int_equal(start(KVF_READ, 3, "-.-..", "x"), KVF_OK);
    expect_calls("gggf");
    complete(0, UCS_OK);
    expect_calls("gggf");
    complete(2, UCS_OK);
    expect_calls("gggfm");
    expect_done(KVF_OK);
}

static void all_at_once(void **state)
{
    assert_int_equal(start(KVF_WRITE, 1, "...", "x"), KVF_OK);
    expect_calls("pfm");
    expect_done(KVF_OK);
    assert_int_equal(start(KVF_WRITE, 1, "..", NULL), KVF_OK);
    expect_calls("pf");
    expect_done(KVF_OK);
    assert_int_equal(start(KVF_WRITE, 0, ".", "x"), KVF_OK);
    expect_calls("m");
    expect_done(KVF_OK);
}

/* P1, B40: the failure is told when nothing is outstanding any more, and no message leaves. */
static void failure_waits_for_the_others(void **state)
{
    assert_int_equal(start(KVF_WRITE, 3, "----", "x"), KVF_OK);
    expect_calls("pppf");
    complete(1, UCS_ERR_IO_ERROR);
    complete(0, UCS_OK);
    complete(3, UCS_OK);
    assert_false(is_done());
    complete(2, UCS_OK);
    expect_calls("pppf");
    expect_done(KVF_ETRANSPORT);
}

/* What was posted before a refused part is flushed too, since it may still be landing. */
static void refused_part(void **state)
{
    assert_int_equal(start(KVF_WRITE, 5, "..x-", "x"), KVF_OK);
    expect_calls("pppf");
    assert_false(is_done());
    complete(3, UCS_OK);
    expect_done(KVF_ETRANSPORT);

    assert_int_equal(start(KVF_WRITE, 5, "x", "x"), KVF_ETRANSPORT); /* nothing was posted */
    expect_calls("p");
    assert_false(is_done());
    assert_int_equal(lane.usage.operations, 0);
}

static void failed_flush_and_message(void **state)
{
    assert_int_equal(start(KVF_WRITE, 1, ".-", "x"), KVF_OK);
    complete(1, UCS_ERR_ENDPOINT_TIMEOUT);
    expect_calls("pf");
    expect_done(KVF_EDISCONNECTED);
    assert_int_equal(start(KVF_WRITE, 1, "..x", "x"), KVF_OK);
    expect_calls("pfm");
    expect_done(KVF_ETRANSPORT);
    assert_int_equal(start(KVF_WRITE, 1, "..-", "x"), KVF_OK);
    complete(2, UCS_ERR_CONNECTION_RESET);
    expect_done(KVF_EDISCONNECTED);
}

static void cancelled(void **state)
{
    assert_int_equal(start(KVF_WRITE, 1, "--", "x"), KVF_OK);
    kvfi_ucx_cancel(&lane, &peer);
    complete(1, UCS_OK);
    assert_false(is_done());
    complete(0, UCS_OK);
    expect_calls("pf");
    expect_done(KVF_ECANCELED);
    assert_int_equal(kvfi_ucx_notify(&lane, &peer, &op), KVF_ECLOSED);
}

static void closed_before_the_message(void **state)
{
    assert_int_equal(start(KVF_WRITE, 1, ".-", "x"), KVF_OK);
    peer.ep = NULL;
    complete(1, UCS_OK);
    expect_calls("pf");
    expect_done(KVF_EDISCONNECTED);
    assert_int_equal(kvfi_ucx_notify(&lane, &peer, &op), KVF_EDISCONNECTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_waits_for_the_flush),
        cmocka_unit_test(message_waits_for_every_part),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(failure_waits_for_the_others),
        cmocka_unit_test(refused_part),
        cmocka_unit_test(failed_flush_and_message),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(closed_before_the_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
