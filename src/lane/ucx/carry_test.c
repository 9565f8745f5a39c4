/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carried WRITEs between two lanes, against a scripted UCX: this program's definitions take the
 * place of the library's, and a message is delivered when a test says so, or never, or twice.
 */
#include "lane/ucx/carry_wire.h"
#include "lane/ucx/ucx.h"

#include "wire/nixl_notif.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SENT_MAX = 80,
    POOL_LEN = 256 * 1024,
    UNTOUCHED = 0xEE,
};
#define CHUNK ((size_t)32 * 1024)

/* One call of ucp_am_send_nbx. Header and payload are read at delivery, as UCX may. */
struct sent {
    ucp_ep_h ep;
    const void *header;
    size_t header_len;
    const void *data;
    size_t len;
    ucp_send_nbx_callback_t cb;
    void *user_data;
    unsigned id;
    bool reply;
    bool freed;
};

static struct sent sent[SENT_MAX];
static size_t sent_count;
static size_t fail_at; /* this call fails at once; 0: none */
static bool at_once;   /* calls end within the call: only what is told is known */
static size_t lose_at; /* the peer is lost inside this call; 0: not */
static size_t put_count;
static struct kvfi_lane_peer peer; /* the target, as the initiator sees it */

static ucp_am_recv_callback_t handlers[2];
static void *handler_args[2];
static size_t handler_count;

ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                            const ucp_am_handler_param_t *param)
{
    assert_int_equal(param->id, KVFI_CARRY_AM_ID);
    assert_true(handler_count < 2);
    handlers[handler_count] = param->cb;
    handler_args[handler_count++] = param->arg;
    return UCS_OK;
}

ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length,
                                 const void *buffer, size_t count, const ucp_request_param_t *param)
{
    assert_true(sent_count < SENT_MAX);
    assert_true(param->flags & UCP_AM_SEND_FLAG_EAGER);
    struct sent *call = &sent[sent_count++];
    *call = (struct sent){.ep = ep,
                          .id = id,
                          .header = header,
                          .header_len = header_length,
                          .data = buffer,
                          .len = count,
                          .cb = param->cb.send,
                          .user_data = param->user_data,
                          .reply = param->flags & UCP_AM_SEND_FLAG_REPLY};
    if (sent_count == fail_at)
        return UCS_STATUS_PTR(UCS_ERR_IO_ERROR);
    if (sent_count == lose_at) {
        peer.failed = true;
        peer.failure = UCS_ERR_CONNECTION_RESET;
        kvfi_ucx_carry_lost(&peer);
    }
    return at_once ? NULL : call;
}

void ucp_request_free(void *request)
{
    struct sent *call = request;
    assert_false(call->freed);
    call->freed = true;
}

ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    put_count++;
    return NULL;
}

ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote_addr,
                             ucp_rkey_h rkey, const ucp_request_param_t *param)
{
    put_count++;
    return NULL;
}

ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param)
{
    return NULL;
}

static ucs_memory_type_t mapped_type;

ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                         ucp_mem_h *memh_p)
{
    static int handle;
    *memh_p = (ucp_mem_h)(void *)&handle;
    return UCS_OK;
}

ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh)
{
    return UCS_OK;
}

ucs_status_t ucp_mem_query(const ucp_mem_h memh, ucp_mem_attr_t *attr)
{
    attr->mem_type = mapped_type;
    return UCS_OK;
}

ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **rkey_p, size_t *len_p)
{
    static unsigned char key[9];
    *rkey_p = key;
    *len_p = sizeof(key);
    return UCS_OK;
}

void ucp_rkey_buffer_release(void *rkey_buffer)
{
}

/* ---- two lanes ------------------------------------------------------------------------------ */

enum { INITIATOR, TARGET };

/* Allocation number fail_alloc_at from now on fails; 0: none. */
static size_t alloc_count, fail_alloc_at;

static void *counted_alloc(void *ctx, size_t size)
{
    return ++alloc_count == fail_alloc_at ? NULL : malloc(size);
}

static void *counted_realloc(void *ctx, void *ptr, size_t size)
{
    return ++alloc_count == fail_alloc_at ? NULL : realloc(ptr, size);
}

static void counted_free(void *ctx, void *ptr)
{
    free(ptr);
}

static const struct kvf_allocator counted = {
    .alloc = counted_alloc, .realloc = counted_realloc, .free = counted_free};

static struct kvfi_lane lanes[2];
static struct kvfi_lane_memory *memory;
static struct kvfi_lane_rkey carried = {.carried = true};
static struct kvfi_lane_rkey plain;
static unsigned char *local, *remote;
static int endpoints[2];

static ucp_ep_h endpoint(int lane)
{
    return (ucp_ep_h)(void *)&endpoints[lane];
}

static int setup(void **state)
{
    sent_count = put_count = handler_count = fail_at = lose_at = alloc_count = fail_alloc_at = 0;
    at_once = false;
    mapped_type = UCS_MEMORY_TYPE_HOST;
    for (int i = 0; i < 2; i++) {
        lanes[i] = (struct kvfi_lane){.allocator = &counted};
        kvfi_lane_queue_init(&lanes[i].events);
        assert_int_equal(kvfi_ucx_carry_start(&lanes[i]), UCS_OK);
    }
    peer = (struct kvfi_lane_peer){.lane = &lanes[INITIATOR], .ep = endpoint(TARGET)};
    local = malloc(POOL_LEN);
    remote = malloc(POOL_LEN);
    assert_true(local && remote);
    for (size_t i = 0; i < POOL_LEN; i++)
        local[i] = (unsigned char)(i * 7 + (i >> 8));
    memset(remote, UNTOUCHED, POOL_LEN);
    assert_int_equal(
        kvfi_ucx_register(&lanes[TARGET], remote, POOL_LEN, KVF_MEMORY_DRAM, &memory, NULL),
        KVF_OK);
    return 0;
}

static int teardown(void **state)
{
    if (memory)
        kvfi_ucx_deregister(&lanes[TARGET], memory);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lanes[i].usage.operations, 0);
        assert_int_equal(lanes[i].usage.memories, 0);
        kvfi_ucx_carry_free(&lanes[i]);
        kvfi_ucx_free_memories(&lanes[i]);
    }
    memory = NULL;
    free(local);
    free(remote);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

struct pieces {
    const struct kvfi_lane_piece *next;
    size_t left;
};

static bool next_piece(void *ctx, struct kvfi_lane_piece *piece)
{
    struct pieces *pieces = ctx;
    if (pieces->left == 0)
        return false;
    pieces->left--;
    *piece = *pieces->next++;
    return true;
}

static struct kvfi_lane_piece piece_at(size_t local_at, size_t remote_at, size_t len)
{
    static struct kvfi_lane_memory handle;
    return (struct kvfi_lane_piece){.local_addr = (uintptr_t)local + local_at,
                                    .remote_addr = (uintptr_t)remote + remote_at,
                                    .length_bytes = len,
                                    .memory = &handle,
                                    .rkey = &carried};
}

static enum kvf_status post(struct kvfi_lane_op *op, const struct kvfi_lane_piece *pieces,
                            size_t count, const char *message)
{
    struct pieces left = {pieces, count};
    *op = (struct kvfi_lane_op){.message = message, .message_len = message ? strlen(message) : 0};
    return kvfi_ucx_post(&lanes[INITIATOR], &peer, KVF_WRITE, next_piece, &left, op);
}

static enum kvf_status post_one(struct kvfi_lane_op *op, size_t local_at, size_t remote_at,
                                size_t len, const char *message)
{
    const struct kvfi_lane_piece piece = piece_at(local_at, remote_at, len);
    return post(op, &piece, 1, message);
}

static void deliver_to(int lane, size_t i)
{
    const ucp_am_recv_param_t param = {.recv_attr =
                                           sent[i].reply ? UCP_AM_RECV_ATTR_FIELD_REPLY_EP : 0,
                                       .reply_ep = endpoint(INITIATOR)};
    void *data = malloc(sent[i].len + 1); /* the transport's own buffer */
    assert_non_null(data);
    if (sent[i].len > 0)
        memcpy(data, sent[i].data, sent[i].len);
    assert_int_equal(handlers[lane](handler_args[lane], sent[i].header, sent[i].header_len, data,
                                    sent[i].len, &param),
                     UCS_OK);
    free(data);
}

/* Message i arrives where its endpoint leads. */
static void deliver(size_t i)
{
    deliver_to(sent[i].ep == endpoint(TARGET) ? TARGET : INITIATOR, i);
}

/* UCX has let go of message i. */
static void release(size_t i, ucs_status_t status)
{
    sent[i].cb(&sent[i], status, sent[i].user_data);
    assert_true(sent[i].freed);
}

static bool is_done(const struct kvfi_lane_op *op)
{
    return lanes[INITIATOR].events.head == &op->event;
}

static void expect_done(struct kvfi_lane_op *op, enum kvf_status status)
{
    assert_true(is_done(op));
    assert_int_equal(op->status, status);
    assert_ptr_equal(kvfi_lane_queue_take(&lanes[INITIATOR].events), &op->event);
    kvfi_ucx_forget_op(&lanes[INITIATOR], op);
    assert_null(op->lane_data);
}

static void expect_written(size_t local_at, size_t remote_at, size_t len)
{
    for (size_t i = 0; i < POOL_LEN; i++) {
        bool inside = i >= remote_at && i - remote_at < len;
        assert_int_equal(remote[i], inside ? local[local_at + i - remote_at] : UNTOUCHED);
    }
}

static void expect_untouched(void)
{
    expect_written(0, 0, 0);
}

/* ---- initiator and target together ---------------------------------------------------------- */

static void message_leaves_when_all_has_landed(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 100, 1000, 2 * CHUNK + 5, "told"), KVF_OK);
    assert_int_equal(sent_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(sent[i].id, KVFI_CARRY_AM_ID);
        assert_int_equal(sent[i].len, i < 2 ? CHUNK : 5);
        assert_true(sent[i].reply);
        deliver(i);
    }
    assert_int_equal(sent_count, 6); /* one answer each */
    expect_written(100, 1000, 2 * CHUNK + 5);
    for (size_t i = 0; i < 6; i++)
        release(i, UCS_OK);
    deliver(5);
    deliver(3);
    assert_false(is_done(&op));
    assert_int_equal(sent_count, 6);
    deliver(4);
    assert_int_equal(sent_count, 7);
    assert_int_equal(sent[6].id, KVFI_NIXL_NOTIF_AM_ID);
    assert_false(is_done(&op));
    release(6, UCS_OK);
    expect_done(&op, KVF_OK);
    assert_int_equal(put_count, 0);
}

/* P1: what UCX still reads is not given back, whatever the target says. */
static void local_memory_is_lent_until_the_callback(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 0, 0, CHUNK + 1, NULL), KVF_OK);
    deliver(0);
    deliver(1);
    deliver(2);
    deliver(3);
    assert_false(is_done(&op));
    release(1, UCS_OK);
    assert_false(is_done(&op));
    release(0, UCS_OK);
    expect_done(&op, KVF_OK);
    release(2, UCS_OK);
    release(3, UCS_OK);
}

static void ends_within_the_call(void **state)
{
    struct kvfi_lane_op op;
    at_once = true;
    assert_int_equal(post_one(&op, 0, 0, 10, NULL), KVF_OK);
    assert_false(is_done(&op));
    deliver(0);
    assert_int_equal(sent_count, 2);
    deliver(1);
    expect_done(&op, KVF_OK);
}

static void carried_and_put_in_one(void **state)
{
    struct kvfi_lane_op op;
    struct kvfi_lane_piece pieces[2] = {piece_at(0, 0, 8), piece_at(8, 8, 8)};
    pieces[1].rkey = &plain;
    assert_int_equal(post(&op, pieces, 2, NULL), KVF_OK);
    assert_int_equal(put_count, 1);
    assert_int_equal(sent_count, 1);
    release(0, UCS_OK);
    deliver(0);
    assert_false(is_done(&op));
    deliver(1);
    expect_done(&op, KVF_OK);
    release(1, UCS_OK);
}

static void reads_are_not_carried(void **state)
{
    struct kvfi_lane_op op = {0};
    const struct kvfi_lane_piece piece = piece_at(0, 0, 8);
    struct pieces left = {&piece, 1};
    assert_int_equal(kvfi_ucx_post(&lanes[INITIATOR], &peer, KVF_READ, next_piece, &left, &op),
                     KVF_OK);
    assert_int_equal(sent_count, 0);
    assert_int_equal(put_count, 1);
    expect_done(&op, KVF_OK);
}

/* ---- what the target refuses ---------------------------------------------------------------- */

static void expect_refused(uint64_t remote_addr, size_t len)
{
    struct kvfi_lane_op op;
    struct kvfi_lane_piece piece = piece_at(0, 0, len);
    piece.remote_addr = remote_addr;
    size_t first = sent_count;
    assert_int_equal(post(&op, &piece, 1, "never sent"), KVF_OK);
    deliver(first);
    release(first, UCS_OK);
    assert_int_equal(sent_count, first + 2);
    deliver(first + 1);
    release(first + 1, UCS_OK);
    assert_int_equal(sent_count, first + 2);
    expect_done(&op, KVF_ENOTALLOWED);
    expect_untouched();
}

static void outside_of_registered_memory(void **state)
{
    uint64_t start = (uintptr_t)remote;
    expect_refused(start - 1, 8);
    expect_refused(start + POOL_LEN - 7, 8);
    expect_refused(start + POOL_LEN, 8);
    expect_refused(UINT64_MAX - 3, 8);
    expect_refused(0, 8);
    kvfi_ucx_deregister(&lanes[TARGET], memory);
    memory = NULL;
    expect_refused(start, 8);
}

static void memory_of_a_device(void **state)
{
    kvfi_ucx_deregister(&lanes[TARGET], memory);
    mapped_type = UCS_MEMORY_TYPE_CUDA;
    assert_int_equal(
        kvfi_ucx_register(&lanes[TARGET], remote, POOL_LEN, KVF_MEMORY_VRAM, &memory, NULL),
        KVF_OK);
    expect_refused((uintptr_t)remote, 8);
}

/* Registrations side by side, inside each other, and at one address. */
static void the_right_registration_is_found(void **state)
{
    static const struct {
        size_t at, len;
    } ranges[] = {{100, 50}, {150, 50}, {0, 1000}, {100, 10}, {400, 100}, {2000, 10}};
    enum { COUNT = sizeof(ranges) / sizeof(ranges[0]) };
    struct kvfi_lane *lane = &lanes[TARGET];
    struct kvfi_lane_memory *memories[COUNT];
    kvfi_ucx_deregister(lane, memory);
    memory = NULL;
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(kvfi_ucx_register(lane, remote + ranges[i].at, ranges[i].len,
                                           KVF_MEMORY_DRAM, &memories[i], NULL),
                         KVF_OK);
    uint64_t base = (uintptr_t)remote;
    assert_true(kvfi_ucx_is_writable(lane, base + 140, 20)); /* across two, inside the large one */
    assert_true(kvfi_ucx_is_writable(lane, base + 2000, 10));
    assert_false(kvfi_ucx_is_writable(lane, base + 990, 11));
    assert_false(kvfi_ucx_is_writable(lane, base + 1000, 1));
    kvfi_ucx_deregister(lane, memories[2]);
    assert_false(kvfi_ucx_is_writable(lane, base + 140, 20)); /* one message, one registration */
    assert_true(kvfi_ucx_is_writable(lane, base + 100, 50));
    kvfi_ucx_deregister(lane, memories[0]);
    assert_false(kvfi_ucx_is_writable(lane, base + 100, 50));
    assert_true(kvfi_ucx_is_writable(lane, base + 100, 10));
    kvfi_ucx_deregister(lane, memories[3]);
    kvfi_ucx_deregister(lane, memories[5]);
    kvfi_ucx_deregister(lane, memories[1]);
    kvfi_ucx_deregister(lane, memories[4]);
}

static void inject(int lane, const void *header, size_t header_len, uint64_t attr)
{
    const ucp_am_recv_param_t param = {.recv_attr = attr, .reply_ep = endpoint(INITIATOR)};
    unsigned char data[8] = {0};
    size_t dropped = lanes[lane].usage.messages_dropped;
    assert_int_equal(handlers[lane](handler_args[lane], header, header_len, data, 8, &param),
                     UCS_OK);
    assert_int_equal(lanes[lane].usage.messages_dropped, dropped + 1);
    assert_int_equal(sent_count, 0);
    expect_untouched();
}

static void malformed_messages(void **state)
{
    unsigned char header[KVFI_CARRY_HEADER_LEN];
    kvfi_carry_encode(
        &(struct kvfi_carry_header){.kind = KVFI_CARRY_DATA, .addr = (uintptr_t)remote}, header);
    inject(TARGET, header, 0, UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
    inject(TARGET, header, sizeof(header) - 1, UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
    inject(TARGET, header, sizeof(header), 0); /* nobody could be told */
    inject(TARGET, header, sizeof(header),
           UCP_AM_RECV_ATTR_FIELD_REPLY_EP | UCP_AM_RECV_ATTR_FLAG_RNDV);
}

/* ---- answers that are lost, doubled or late -------------------------------------------------- */

static void lost_peer_ends_the_wait(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 0, 0, CHUNK + 1, "never sent"), KVF_OK);
    deliver(0);
    deliver(1);
    deliver(2);
    release(0, UCS_OK);
    peer.failed = true;
    peer.failure = UCS_ERR_CONNECTION_RESET;
    kvfi_ucx_carry_lost(&peer);
    assert_false(is_done(&op)); /* message 1 is still lent */
    release(1, UCS_ERR_CONNECTION_RESET);
    assert_int_equal(sent_count, 4);
    expect_done(&op, KVF_EDISCONNECTED);
    deliver(3);
    assert_null(lanes[INITIATOR].events.head);
    release(2, UCS_OK);
    release(3, UCS_OK);
}

static void only_the_lost_peer(void **state)
{
    struct kvfi_lane_op op;
    struct kvfi_lane_peer other = {.lane = &lanes[INITIATOR], .failure = UCS_ERR_CONNECTION_RESET};
    assert_int_equal(post_one(&op, 0, 0, 8, NULL), KVF_OK);
    release(0, UCS_OK);
    kvfi_ucx_carry_lost(&other);
    assert_false(is_done(&op));
    deliver(0);
    deliver(1);
    expect_done(&op, KVF_OK);
    release(1, UCS_OK);
}

static void late_and_doubled_answers(void **state)
{
    struct kvfi_lane_op first, second;
    assert_int_equal(post_one(&first, 0, 0, 8, NULL), KVF_OK);
    release(0, UCS_OK);
    deliver(0);
    deliver(0); /* the data twice: written twice, answered twice */
    deliver(1);
    expect_done(&first, KVF_OK);
    deliver(2);
    assert_int_equal(post_one(&second, 0, 0, 8, NULL), KVF_OK); /* has the place of the first */
    release(3, UCS_OK);
    deliver(1);
    deliver(2);
    assert_false(is_done(&second));
    deliver(3);
    deliver(4);
    expect_done(&second, KVF_OK);
    release(1, UCS_OK);
    release(2, UCS_OK);
    release(4, UCS_OK);
}

static void unknown_tokens(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 0, 0, 8, NULL), KVF_OK);
    struct kvfi_carry_header right;
    assert_true(kvfi_carry_decode(sent[0].header, sent[0].header_len, &right));
    const uint64_t wrong[] = {0, right.token + 1, right.token + (UINT64_C(1) << 32), UINT64_MAX};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        unsigned char header[KVFI_CARRY_HEADER_LEN];
        const ucp_am_recv_param_t param = {0};
        kvfi_carry_encode(&(struct kvfi_carry_header){.kind = KVFI_CARRY_LANDED, .token = wrong[i]},
                          header);
        assert_int_equal(
            handlers[INITIATOR](handler_args[INITIATOR], header, sizeof(header), NULL, 0, &param),
            UCS_OK);
    }
    release(0, UCS_OK);
    assert_false(is_done(&op));
    deliver(0);
    deliver(1);
    expect_done(&op, KVF_OK);
    release(1, UCS_OK);
}

/* ---- failures here -------------------------------------------------------------------------- */

static void refused_first_message(void **state)
{
    struct kvfi_lane_op op;
    fail_at = 1;
    assert_int_equal(post_one(&op, 0, 0, 8, "x"), KVF_ETRANSPORT);
    assert_false(is_done(&op));
}

/* What has left is waited for; the message does not follow. */
static void refused_second_message(void **state)
{
    struct kvfi_lane_op op;
    fail_at = 2;
    assert_int_equal(post_one(&op, 0, 0, 3 * CHUNK, "x"), KVF_OK);
    assert_int_equal(sent_count, 2);
    release(0, UCS_OK);
    assert_false(is_done(&op));
    deliver(0);
    deliver(2);
    expect_done(&op, KVF_ETRANSPORT);
    assert_int_equal(sent_count, 3);
    release(2, UCS_OK);
}

static void a_message_fails_later(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 0, 0, 2 * CHUNK, "x"), KVF_OK);
    release(1, UCS_ERR_IO_ERROR);
    assert_false(is_done(&op));
    release(0, UCS_OK);
    assert_false(is_done(&op));
    deliver(0);
    deliver(2);
    expect_done(&op, KVF_ETRANSPORT);
    assert_int_equal(sent_count, 3);
    release(2, UCS_OK);
}

static void start_without_memory(void **state)
{
    struct kvfi_lane lane = {.allocator = &counted};
    alloc_count = 0;
    fail_alloc_at = 1;
    assert_int_equal(kvfi_ucx_carry_start(&lane), UCS_ERR_NO_MEMORY);
    kvfi_ucx_carry_free(&lane);
}

static void short_of_memory(void **state)
{
    struct kvfi_lane_op op;
    size_t needed = 0;
    for (;;) {
        alloc_count = 0;
        fail_alloc_at = ++needed;
        if (post_one(&op, 0, 0, 8, NULL) == KVF_OK)
            break;
        assert_int_equal(op.status, KVF_ENOMEM);
        assert_int_equal(sent_count, 0);
        assert_int_equal(lanes[INITIATOR].usage.operations, 0);
    }
    assert_true(needed > 2);
    release(0, UCS_OK);
    deliver(0);
    deliver(1);
    expect_done(&op, KVF_OK);
    release(1, UCS_OK);
}

/* The target cannot answer, first for want of memory, then of UCX's: rather than leave the
 * initiator waiting it gives up the connection, if that is one of its own. */
static void no_way_to_answer(void **state)
{
    enum { UNDER_WAY = 64 };
    struct kvfi_lane_op op;
    struct kvfi_lane_peer initiator = {.lane = &lanes[TARGET], .ep = endpoint(INITIATOR)};
    struct kvfi_lane_peer other = {
        .lane = &lanes[TARGET], .ep = endpoint(TARGET), .next = &initiator};
    lanes[TARGET].peers = &other;
    assert_int_equal(post_one(&op, 0, 0, 8, NULL), KVF_OK);
    release(0, UCS_OK);
    for (size_t i = 0; i < UNDER_WAY; i++)
        deliver(0);
    assert_false(initiator.failed);
    alloc_count = 0;
    fail_alloc_at = 1;
    deliver(0);
    assert_int_equal(lanes[TARGET].usage.messages_dropped, 1);
    assert_int_equal(sent_count, 1 + UNDER_WAY);
    assert_true(initiator.failed && initiator.forced);
    assert_false(other.failed);
    assert_ptr_equal(lanes[TARGET].to_force, &initiator);

    initiator.failed = initiator.forced = false;
    release(1, UCS_OK); /* one more may be under way again */
    fail_at = sent_count + 1;
    deliver(0);
    assert_int_equal(lanes[TARGET].usage.messages_dropped, 2);
    assert_true(initiator.failed);
    (void)kvfi_lane_queue_take(&lanes[TARGET].events);
    lanes[TARGET].peers = NULL;

    peer.failed = true;
    peer.failure = UCS_ERR_CONNECTION_RESET;
    kvfi_ucx_carry_lost(&peer);
    expect_done(&op, KVF_EDISCONNECTED);
}

/* The handler of failures may run inside a send. */
static void lost_inside_a_send(void **state)
{
    struct kvfi_lane_op op;
    lose_at = 2;
    assert_int_equal(post_one(&op, 0, 0, 3 * CHUNK, "never sent"), KVF_OK);
    assert_int_equal(sent_count, 2);
    release(0, UCS_ERR_CONNECTION_RESET);
    assert_false(is_done(&op));
    release(1, UCS_ERR_CONNECTION_RESET);
    expect_done(&op, KVF_EDISCONNECTED);
}

/* A second answer, after the message has left, is no failure of the WRITE. */
static void refusal_after_the_end(void **state)
{
    struct kvfi_lane_op op;
    assert_int_equal(post_one(&op, 0, 0, 8, "told"), KVF_OK);
    struct kvfi_carry_header header;
    assert_true(kvfi_carry_decode(sent[0].header, sent[0].header_len, &header));
    release(0, UCS_OK);
    deliver(0);
    deliver(1);
    assert_int_equal(sent_count, 3);
    header.kind = KVFI_CARRY_LANDED;
    header.result = KVFI_CARRY_REFUSED;
    unsigned char bytes[KVFI_CARRY_HEADER_LEN];
    const ucp_am_recv_param_t param = {0};
    kvfi_carry_encode(&header, bytes);
    assert_int_equal(
        handlers[INITIATOR](handler_args[INITIATOR], bytes, sizeof(bytes), NULL, 0, &param),
        UCS_OK);
    release(2, UCS_OK);
    expect_done(&op, KVF_OK);
    release(1, UCS_OK);
}

/* More in flight at once than the pools' first sizes. */
static void many_at_once(void **state)
{
    enum { OPS = 20 };
    struct kvfi_lane_op ops[OPS];
    for (size_t i = 0; i < OPS; i++)
        assert_int_equal(post_one(&ops[i], 100 * i, 100 * i, 100, NULL), KVF_OK);
    for (size_t i = 0; i < OPS; i++)
        deliver(OPS - 1 - i);
    assert_memory_equal(remote, local, (size_t)OPS * 100);
    for (size_t i = 0; i < OPS; i++) {
        release(i, UCS_OK);
        deliver(OPS + (OPS - 1 - i));
        expect_done(&ops[i], KVF_OK);
    }
    for (size_t i = OPS; i < OPS + (size_t)OPS; i++)
        release(i, UCS_OK);
}

#define CARRY_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CARRY_TEST(message_leaves_when_all_has_landed),
        CARRY_TEST(local_memory_is_lent_until_the_callback),
        CARRY_TEST(ends_within_the_call),
        CARRY_TEST(carried_and_put_in_one),
        CARRY_TEST(reads_are_not_carried),
        CARRY_TEST(outside_of_registered_memory),
        CARRY_TEST(memory_of_a_device),
        CARRY_TEST(the_right_registration_is_found),
        CARRY_TEST(malformed_messages),
        CARRY_TEST(lost_peer_ends_the_wait),
        CARRY_TEST(only_the_lost_peer),
        CARRY_TEST(late_and_doubled_answers),
        CARRY_TEST(unknown_tokens),
        CARRY_TEST(refused_first_message),
        CARRY_TEST(refused_second_message),
        CARRY_TEST(a_message_fails_later),
        CARRY_TEST(start_without_memory),
        CARRY_TEST(short_of_memory),
        CARRY_TEST(no_way_to_answer),
        CARRY_TEST(lost_inside_a_send),
        CARRY_TEST(refusal_after_the_end),
        CARRY_TEST(many_at_once),
    };
    return cmocka_run_group_tests_name("lane/ucx_carry", tests, NULL, NULL);
}
