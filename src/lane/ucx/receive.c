/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications: each is copied in the handler and delivered by progress(). */
#include "lane/ucx/ucx.h"

#include "runtime/alloc.h"
#include "wire/bytes.h"
#include "wire/nixl_notif.h"

#include <string.h>

enum {
    KEPT_LEN_MAX = 64 * 1024, /* a larger buffer is not kept in the pool */
    KEPT_COUNT_MAX = 256,
};

static struct ucx_received *take(struct kvfi_lane *lane, size_t len)
{
    struct ucx_received *received = lane->free_received;
    if (received) {
        lane->free_received = received->next_free;
        lane->received_count--;
    } else {
        received = kvfi_calloc(lane->allocator, 1, sizeof(*received));
        if (!received)
            return NULL;
    }
    if (received->cap < len || !received->data) {
        size_t cap = 256;
        while (cap < len)
            cap *= 2;
        kvfi_free(lane->allocator, received->data);
        received->cap = cap;
        received->data = kvfi_wire_alloc(lane->allocator, cap);
        if (!received->data) {
            kvfi_free(lane->allocator, received);
            return NULL;
        }
    }
    return received;
}

void kvfi_ucx_received_free(struct kvfi_lane *lane, struct ucx_received *received)
{
    if (received->cap > KEPT_LEN_MAX || lane->received_count >= KEPT_COUNT_MAX) {
        kvfi_free(lane->allocator, received->data);
        kvfi_free(lane->allocator, received);
        return;
    }
    received->next_free = lane->free_received;
    lane->free_received = received;
    lane->received_count++;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *param)
{
    struct kvfi_lane *lane = arg;
    /* NIXL never sends a header nor a rendezvous; returning UCS_OK refuses the latter */
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) || header_length > 0 ||
        length > KVFI_NIXL_NOTIF_LEN_MAX) {
        lane->usage.messages_dropped++;
        return UCS_OK;
    }
    struct ucx_received *received = take(lane, length);
    if (!received) {
        lane->usage.messages_dropped++;
        return UCS_OK;
    }
    if (length > 0)
        memcpy(received->data, data, length);
    received->len = length;
    lane->waiting_count++;
    lane->waiting_bytes += length;
    received->event.kind = UCX_RECEIVED;
    kvfi_lane_queue_put(&lane->events, &received->event);
    return UCS_OK;
}

enum kvf_status kvfi_ucx_receive_start(struct kvfi_lane *lane, struct kvf_error *error)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = KVFI_NIXL_NOTIF_AM_ID,
        .cb = on_message,
        .arg = lane,
    };
    ucs_status_t status = ucp_worker_set_am_recv_handler(lane->worker, &param);
    if (status == UCS_OK)
        status = kvfi_ucx_carry_start(lane);
    if (status == UCS_OK)
        return KVF_OK;
    return kvf_fail(error, status == UCS_ERR_NO_MEMORY ? KVF_ENOMEM : KVF_ETRANSPORT,
                    "ucx: no handler for active messages: %s", ucs_status_string(status));
}

void kvfi_ucx_receive_stop(struct kvfi_lane *lane)
{
    while (lane->free_received) {
        struct ucx_received *received = lane->free_received;
        lane->free_received = received->next_free;
        kvfi_free(lane->allocator, received->data);
        kvfi_free(lane->allocator, received);
    }
}
