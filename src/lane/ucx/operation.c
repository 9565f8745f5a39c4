/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers and messages. A transfer is its puts or gets, then one endpoint flush (which for puts
 * means: visible at the target), and its carried pieces until the target has answered them; then
 * the message, sent from the completion of the last of these.
 */
#include "lane/ucx/ucx.h"

#include "wire/nixl_notif.h"

enum stage {
    STAGE_DATA,
    STAGE_MESSAGE,
};

static enum kvf_status to_status(const struct kvfi_lane_peer *peer, ucs_status_t status)
{
    if (status == UCS_OK)
        return KVF_OK;
    if (status == UCS_ERR_NO_MEMORY)
        return KVF_ENOMEM;
    if (peer->cancelled)
        return KVF_ECANCELED;
    if (peer->failed || status == UCS_ERR_CANCELED || status == UCS_ERR_NOT_CONNECTED ||
        status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT ||
        status == UCS_ERR_UNREACHABLE)
        return KVF_EDISCONNECTED;
    return KVF_ETRANSPORT;
}

void kvfi_ucx_note(struct kvfi_lane_op *op, ucs_status_t status)
{
    if (op->status == KVF_OK)
        op->status = to_status(op->peer, status);
}

static void send_message(struct kvfi_lane_op *op);

/* No part of the current stage is outstanding. */
static void advance(struct kvfi_lane_op *op)
{
    if (op->stage == STAGE_DATA && op->message && op->status == KVF_OK) {
        if (!op->peer->cancelled) {
            send_message(op);
            return;
        }
        op->status = KVF_ECANCELED;
    }
    kvfi_lane_queue_put(&op->peer->lane->events, &op->event);
}

void kvfi_ucx_part_done(struct kvfi_lane_op *op)
{
    if (--op->outstanding == 0)
        advance(op);
}

static void on_part_done(void *request, ucs_status_t status, void *user_data)
{
    struct kvfi_lane_op *op = user_data;
    ucp_request_free(request);
    kvfi_ucx_note(op, status);
    kvfi_ucx_part_done(op);
}

/* What a non-blocking call returned: done, failed, or one more part to wait for. */
static ucs_status_t account(struct kvfi_lane_op *op, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) {
        op->outstanding++;
        return UCS_INPROGRESS;
    }
    ucs_status_t status = UCS_PTR_STATUS(request);
    kvfi_ucx_note(op, status);
    return status;
}

static void send_message(struct kvfi_lane_op *op)
{
    op->stage = STAGE_MESSAGE;
    if (!op->peer->ep) {
        kvfi_ucx_note(op, UCS_ERR_CANCELED);
        advance(op);
        return;
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_part_done},
        .memory_type = UCS_MEMORY_TYPE_HOST,
        .user_data = op,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(op->peer->ep, KVFI_NIXL_NOTIF_AM_ID, NULL, 0,
                                               op->message, op->message_len, &param);
    if (account(op, request) != UCS_INPROGRESS)
        advance(op);
}

static ucs_status_t post_piece(struct kvfi_lane_op *op, enum kvf_operation operation,
                               const struct kvfi_lane_piece *piece, ucp_request_param_t *param)
{
    ucp_ep_h ep = op->peer->ep;
    void *local = (void *)(uintptr_t)piece->local_addr; /* NOLINT: checked against a registration */
    param->memh = piece->memory->memh;
    param->memory_type = piece->memory->type;
    ucs_status_ptr_t request = operation == KVF_WRITE
                                   ? ucp_put_nbx(ep, local, piece->length_bytes, piece->remote_addr,
                                                 piece->rkey->rkey, param)
                                   : ucp_get_nbx(ep, local, piece->length_bytes, piece->remote_addr,
                                                 piece->rkey->rkey, param);
    return account(op, request);
}

static enum kvf_status check_open(const struct kvfi_lane_peer *peer)
{
    if (peer->failed || (!peer->ep && !peer->cancelled))
        return KVF_EDISCONNECTED;
    return peer->cancelled ? KVF_ECLOSED : KVF_OK;
}

static void remember(struct kvfi_lane *lane, struct kvfi_lane_peer *peer, struct kvfi_lane_op *op)
{
    op->peer = peer;
    op->status = KVF_OK;
    op->lane_data = NULL;
    op->back = NULL;
    op->link = lane->ops;
    if (lane->ops)
        lane->ops->back = op;
    lane->ops = op;
    lane->usage.operations++;
    peer->operations++;
}

void kvfi_ucx_forget_op(struct kvfi_lane *lane, struct kvfi_lane_op *op)
{
    if (op->link)
        op->link->back = op->back;
    if (op->back)
        op->back->link = op->link;
    else
        lane->ops = op->link;
    lane->usage.operations--;
    op->peer->operations--;
    kvfi_ucx_carry_forget(op);
}

void kvfi_ucx_abandon_ops(struct kvfi_lane *lane)
{
    for (struct kvfi_lane_op *op = lane->ops; op; op = op->link) {
        if (op->event.queued)
            continue;
        op->status = KVF_ECANCELED;
        kvfi_lane_queue_put(&lane->events, &op->event);
    }
}

enum kvf_status kvfi_ucx_post(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                              enum kvf_operation operation, kvfi_lane_next_fn next, void *next_ctx,
                              struct kvfi_lane_op *op)
{
    KVF_TRY(check_open(peer));
    op->event.kind = UCX_TRANSFER_DONE;
    op->stage = STAGE_DATA;
    op->outstanding = 1; /* ours, until everything is posted */
    remember(lane, peer, op);

    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_MULTI_SEND,
        .cb = {.send = on_part_done},
        .user_data = op,
    };
    bool carried = false;
    bool posted = false;
    struct kvfi_lane_piece piece;
    while (op->status == KVF_OK && next(next_ctx, &piece)) {
        if (operation == KVF_WRITE && piece.rkey->carried)
            carried = kvfi_ucx_carry_piece(op, &piece) || carried;
        else
            posted = post_piece(op, operation, &piece, &param) >= UCS_OK || posted;
    }
    if (op->status != KVF_OK && !posted && !carried) {
        enum kvf_status status = op->status;
        kvfi_ucx_forget_op(lane, op);
        return status;
    }
    /* also after a failed part: the earlier ones must have landed before anybody is told */
    if (posted) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
        (void)account(op, ucp_ep_flush_nbx(peer->ep, &param));
    }
    kvfi_ucx_part_done(op);
    return KVF_OK;
}

enum kvf_status kvfi_ucx_notify(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                struct kvfi_lane_op *op)
{
    KVF_TRY(check_open(peer));
    op->event.kind = UCX_NOTIFY_DONE;
    op->outstanding = 0;
    remember(lane, peer, op);
    send_message(op);
    return KVF_OK;
}
