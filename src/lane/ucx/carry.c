/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WRITEs as messages of our own, for targets that ask for it.
 *
 * Where no transport writes remote memory, UCX emulates a put: the target's UCX copies and answers.
 * Below 1.20 that answer aborts the target's process when the initiator has just died, and an
 * answer to an active message does not. So a lane on such a UCX says in its address that it takes
 * WRITEs as messages, and the initiator carries whatever would be emulated. The target also checks
 * what an emulated put does not: that it has registered the memory.
 *
 * Ownership: a message's header is lent to UCX from the send to its callback, the payload is the
 * piece's own memory. The target keeps nothing: it copies and answers inside the handler.
 */
#include "lane/ucx/carry_wire.h"
#include "lane/ucx/ucx.h"

#include "runtime/alloc.h"
#include "runtime/clock.h"

#include <string.h>
#include <sys/random.h>

enum {
    CHUNK_LEN_MAX = 32 * 1024, /* one message; UCX assembles what is longer than a fragment */
    MESSAGES_PER_SLAB = 64,
};

/* A header on its way. */
struct ucx_carry_message {
    struct ucx_carry_message *next_free;
    struct kvfi_lane *lane;
    struct kvfi_lane_op *op; /* NULL: an answer */
    unsigned char header[KVFI_CARRY_HEADER_LEN];
};

struct ucx_carry_slab {
    struct ucx_carry_slab *next;
    struct ucx_carry_message messages[MESSAGES_PER_SLAB];
};

/* What one op waits for. The token names it to the target and is checked when it comes back. */
struct ucx_carry {
    struct ucx_carry *next_free;
    struct kvfi_lane_op *op; /* NULL: free */
    uint64_t token;          /* (generation << 32) | index */
    uint64_t waiting;        /* messages that the target has not answered; not 0: one part of op */
};

/* ---- pools ---------------------------------------------------------------------------------- */

static bool add_slab(struct kvfi_lane *lane)
{
    struct ucx_carry_state *state = &lane->carry;
    struct ucx_carry_slab *slab = kvfi_calloc(lane->allocator, 1, sizeof(*slab));
    if (!slab)
        return false;
    slab->next = state->slabs;
    state->slabs = slab;
    for (size_t i = 0; i < MESSAGES_PER_SLAB; i++) {
        slab->messages[i].lane = lane;
        slab->messages[i].next_free = state->free_messages;
        state->free_messages = &slab->messages[i];
    }
    return true;
}

static struct ucx_carry_message *take_message(struct kvfi_lane *lane)
{
    struct ucx_carry_state *state = &lane->carry;
    if (!state->free_messages && !add_slab(lane))
        return NULL;
    struct ucx_carry_message *message = state->free_messages;
    state->free_messages = message->next_free;
    return message;
}

static void put_message(struct ucx_carry_message *message)
{
    message->next_free = message->lane->carry.free_messages;
    message->lane->carry.free_messages = message;
}

/* One more entry of the table, put on the free list. */
static bool grow_table(struct kvfi_lane *lane)
{
    struct ucx_carry_state *state = &lane->carry;
    if (state->count == state->cap) {
        size_t cap = state->cap ? 2 * state->cap : 16;
        if (cap > UINT32_MAX)
            return false;
        struct ucx_carry **table = kvfi_calloc(lane->allocator, cap, sizeof(struct ucx_carry *));
        if (!table)
            return false;
        if (state->count > 0)
            memcpy(table, state->table, state->count * sizeof(struct ucx_carry *));
        kvfi_free(lane->allocator, state->table);
        state->table = table;
        state->cap = cap;
    }
    struct ucx_carry *carry = kvfi_calloc(lane->allocator, 1, sizeof(*carry));
    if (!carry)
        return false;
    carry->token = state->first_token + state->count;
    state->table[state->count++] = carry;
    carry->next_free = state->free;
    state->free = carry;
    return true;
}

static struct ucx_carry *take_carry(struct kvfi_lane *lane, struct kvfi_lane_op *op)
{
    if (!lane->carry.free && !grow_table(lane))
        return NULL;
    struct ucx_carry *carry = lane->carry.free;
    lane->carry.free = carry->next_free;
    carry->token += UINT64_C(1) << 32;
    carry->op = op;
    carry->waiting = 0;
    return carry;
}

void kvfi_ucx_carry_forget(struct kvfi_lane_op *op)
{
    struct ucx_carry *carry = op->lane_data;
    if (!carry)
        return;
    struct ucx_carry_state *state = &op->peer->lane->carry;
    op->lane_data = NULL;
    carry->op = NULL;
    carry->next_free = state->free;
    state->free = carry;
}

void kvfi_ucx_carry_free(struct kvfi_lane *lane)
{
    struct ucx_carry_state *state = &lane->carry;
    for (size_t i = 0; i < state->count; i++)
        kvfi_free(lane->allocator, state->table[i]);
    kvfi_free(lane->allocator, state->table);
    while (state->slabs) {
        struct ucx_carry_slab *slab = state->slabs;
        state->slabs = slab->next;
        kvfi_free(lane->allocator, slab);
    }
}

/* ---- initiator ------------------------------------------------------------------------------ */

static void stop_waiting(struct ucx_carry *carry, uint64_t messages)
{
    if (carry->waiting < messages || messages == 0)
        return; /* failed after it was answered, or with its peer */
    carry->waiting -= messages;
    if (carry->waiting == 0)
        kvfi_ucx_part_done(carry->op);
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    struct ucx_carry_message *message = user_data;
    struct kvfi_lane_op *op = message->op;
    ucp_request_free(request);
    put_message(message);
    if (!op)
        return;
    kvfi_ucx_note(op, status);
    if (status != UCS_OK)
        stop_waiting(op->lane_data, 1); /* it has not left, so no answer comes */
    kvfi_ucx_part_done(op);
}

/* UCS_OK, UCS_INPROGRESS with a callback to follow, or an error and nothing sent. */
static ucs_status_t send_out(struct ucx_carry_message *message, ucp_ep_h ep, const void *data,
                             size_t len, uint32_t flags)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER | flags,
        .cb = {.send = on_sent},
        .user_data = message,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(ep, KVFI_CARRY_AM_ID, message->header,
                                               KVFI_CARRY_HEADER_LEN, data, len, &param);
    if (UCS_PTR_IS_PTR(request))
        return UCS_INPROGRESS;
    put_message(message);
    return UCS_PTR_STATUS(request);
}

static ucs_status_t send_chunk(struct kvfi_lane_op *op, uint64_t local, uint64_t remote, size_t len)
{
    struct ucx_carry *carry = op->lane_data;
    struct ucx_carry_message *message = take_message(op->peer->lane);
    if (!message)
        return UCS_ERR_NO_MEMORY;
    message->op = op;
    kvfi_carry_encode(
        &(struct kvfi_carry_header){.kind = KVFI_CARRY_DATA, .token = carry->token, .addr = remote},
        message->header);
    void *data = (void *)(uintptr_t)local; /* NOLINT: checked against a registration */
    ucs_status_t status = send_out(message, op->peer->ep, data, len, UCP_AM_SEND_FLAG_REPLY);
    if (status == UCS_INPROGRESS)
        op->outstanding++;
    if (op->peer->failed) /* inside the call: nobody will answer, nor take what follows */
        return UCS_ERR_CONNECTION_RESET;
    if (status == UCS_OK || status == UCS_INPROGRESS) {
        if (carry->waiting++ == 0)
            op->outstanding++;
    }
    return status;
}

bool kvfi_ucx_carry_piece(struct kvfi_lane_op *op, const struct kvfi_lane_piece *piece)
{
    if (!op->lane_data)
        op->lane_data = take_carry(op->peer->lane, op);
    if (!op->lane_data) {
        kvfi_ucx_note(op, UCS_ERR_NO_MEMORY);
        return false;
    }
    uint64_t done = 0;
    while (done < piece->length_bytes) {
        uint64_t left = piece->length_bytes - done;
        size_t len = left < CHUNK_LEN_MAX ? (size_t)left : CHUNK_LEN_MAX;
        ucs_status_t status =
            send_chunk(op, piece->local_addr + done, piece->remote_addr + done, len);
        if (status != UCS_OK && status != UCS_INPROGRESS) {
            kvfi_ucx_note(op, status);
            break;
        }
        done += len;
    }
    return done > 0;
}

static void on_landed(struct kvfi_lane *lane, const struct kvfi_carry_header *header)
{
    uint64_t index = header->token & UINT32_MAX;
    struct ucx_carry *carry = index < lane->carry.count ? lane->carry.table[index] : NULL;
    if (!carry || carry->token != header->token || !carry->op || carry->waiting == 0)
        return; /* the wait has ended without it */
    if (header->result != KVFI_CARRY_OK && carry->op->status == KVF_OK)
        carry->op->status = KVF_ENOTALLOWED;
    stop_waiting(carry, 1);
}

void kvfi_ucx_carry_lost(struct kvfi_lane_peer *peer)
{
    struct ucx_carry_state *state = &peer->lane->carry;
    for (size_t i = 0; i < state->count; i++) {
        struct ucx_carry *carry = state->table[i];
        if (!carry->op || carry->op->peer != peer || carry->waiting == 0)
            continue;
        kvfi_ucx_note(carry->op, peer->failure);
        stop_waiting(carry, carry->waiting);
    }
}

/* ---- target --------------------------------------------------------------------------------- */

/* An answer that cannot leave would be waited for without end, so the connection goes with it: both
 * sides see a loss. That takes an endpoint of ours, which exists where the two have loaded each
 * other; of others there is only the count. */
static void answer(struct kvfi_lane *lane, ucp_ep_h ep, uint64_t token, uint32_t result)
{
    struct ucx_carry_message *message = take_message(lane);
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    if (message) {
        message->op = NULL;
        kvfi_carry_encode(&(struct kvfi_carry_header){.kind = KVFI_CARRY_LANDED,
                                                      .result = result,
                                                      .token = token},
                          message->header);
        status = send_out(message, ep, NULL, 0, 0);
    }
    if (status == UCS_OK || status == UCS_INPROGRESS)
        return;
    lane->usage.messages_dropped++;
    kvfi_ucx_fail(lane, ep, status);
}

static void land(struct kvfi_lane *lane, const struct kvfi_carry_header *header, const void *data,
                 size_t len, const ucp_am_recv_param_t *param)
{
    uint32_t result = KVFI_CARRY_REFUSED;
    if (kvfi_ucx_is_writable(lane, header->addr, len)) {
        if (len > 0) /* NOLINTNEXTLINE: inside a registration of ours */
            memcpy((void *)(uintptr_t)header->addr, data, len);
        result = KVFI_CARRY_OK;
    }
    answer(lane, param->reply_ep, header->token, result);
}

static ucs_status_t on_carry(void *arg, const void *bytes, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    struct kvfi_lane *lane = arg;
    struct kvfi_carry_header header;
    bool usable = !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) &&
                  kvfi_carry_decode(bytes, header_len, &header);
    if (usable && header.kind == KVFI_CARRY_LANDED)
        on_landed(lane, &header);
    else if (usable && (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP))
        land(lane, &header, data, len, param);
    else
        lane->usage.messages_dropped++;
    return UCS_OK;
}

ucs_status_t kvfi_ucx_carry_start(struct kvfi_lane *lane)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = KVFI_CARRY_AM_ID,
        .cb = on_carry,
        .arg = lane,
    };
    uint32_t generation = 0;
    if (getrandom(&generation, sizeof(generation), GRND_NONBLOCK) != (ssize_t)sizeof(generation))
        generation = (uint32_t)kvfi_clock_mono_ns();
    lane->carry.first_token = (uint64_t)generation << 32;
    if (!add_slab(lane))
        return UCS_ERR_NO_MEMORY;
    return ucp_worker_set_am_recv_handler(lane->worker, &param);
}
