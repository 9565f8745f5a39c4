/* SPDX-License-Identifier: Apache-2.0 */
/* One endpoint per peer: creation, failure, and a close that is driven to its end. */
#include "lane/ucx/carry_wire.h"
#include "lane/ucx/skew.h"
#include "lane/ucx/ucx.h"

#include "runtime/alloc.h"

#include <string.h>

/* ucp_ep_create takes no length, so a cut or garbled address must not lead it past our buffer. With
 * zeros behind the end it meets more devices than it accepts and refuses; tried on 1.13 and 1.22.
 */
#define ADDRESS_PAD_LEN 4096
/* Format 0 is v1, 1 is v2; v1's shortest useful one holds a uuid. */
#define ADDRESS_LEN_MIN 10

static void on_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct kvfi_lane_peer *peer = arg;
    if (peer->failed)
        return;
    peer->failed = true;
    peer->failure = status;
    if (peer->parked) {
        peer->parked = false;
        peer->lane->usage.peers_closing++;
    }
    kvfi_ucx_carry_lost(peer);
    if (!peer->cancelled && !peer->released) {
        peer->event.kind = UCX_PEER_LOST;
        kvfi_lane_queue_put(&peer->lane->events, &peer->event);
    }
    /* closed by progress(): closing it in here races with whoever is using it up the stack */
    if (!peer->forced && peer->ep) {
        peer->forced = true;
        peer->next_force = peer->lane->to_force;
        peer->lane->to_force = peer;
    }
}

void kvfi_ucx_fail(struct kvfi_lane *lane, ucp_ep_h ep, ucs_status_t status)
{
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = peer->next) {
        if (peer->ep == ep)
            on_failure(peer, ep, status);
    }
}

static enum kvf_status create_endpoint(struct kvfi_lane_peer *peer, const void *address, size_t len,
                                       struct kvf_error *error)
{
    struct kvfi_lane *lane = peer->lane;
    unsigned char *padded = kvfi_calloc(lane->allocator, 1, len + ADDRESS_PAD_LEN);
    if (!padded)
        return kvf_fail(error, KVF_ENOMEM, "ucx: no memory for an address of %zu bytes", len);
    memcpy(padded, address, len);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .address = (const ucp_address_t *)(const void *)padded,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_failure, .arg = peer},
    };
    ucs_status_t status = ucp_ep_create(lane->worker, &params, &peer->ep);
    kvfi_free(lane->allocator, padded);
    if (status == UCS_OK)
        return KVF_OK;
    peer->ep = NULL;
    return kvf_fail(error, status == UCS_ERR_NO_MEMORY ? KVF_ENOMEM : KVF_ETRANSPORT,
                    "ucx: no endpoint to the peer: %s; both sides need a common transport that "
                    "reports failures (tcp or RDMA), see UCX_TLS and UCX_NET_DEVICES",
                    ucs_status_string(status));
}

/* Two versions that do not meet here are refused, and named, before UCX tries and hangs. */
static enum kvf_status check_versions(const struct kvfi_lane *lane, const void *address, size_t len,
                                      struct kvf_error *error)
{
    unsigned theirs = kvfi_skew_minor(address, len, lane->minor);
    if (!lane->loopback_only || !kvfi_skew_cuts_loopback(lane->minor, theirs))
        return KVF_OK;
    return kvf_fail(error, KVF_ENOTSUP,
                    "ucx: this side runs UCX 1.%u and the peer UCX 1.%u%s, and these do not find "
                    "each other over loopback, the only network device here; run both on one "
                    "version, from 1.22 on (LD_LIBRARY_PATH), or add an interface with an address",
                    lane->minor, theirs, theirs == KVFI_SKEW_LEGACY ? " or older" : "");
}

/* The parked peer with that address, as good as new; NULL when there is none. */
static struct kvfi_lane_peer *unpark(struct kvfi_lane *lane, const void *address, size_t len,
                                     void *user)
{
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = peer->next) {
        if (!peer->parked || peer->address_len != len || memcmp(peer->address, address, len) != 0)
            continue;
        peer->parked = peer->released = peer->cancelled = false;
        peer->user = user;
        return peer;
    }
    return NULL;
}

static void free_peer(struct kvfi_lane_peer *peer)
{
    const struct kvf_allocator *allocator = peer->lane->allocator;
    kvfi_free(allocator, peer->address);
    kvfi_free(allocator, peer);
}

/* NULL with *status_p set. */
static struct kvfi_lane_peer *new_peer(struct kvfi_lane *lane, const void *address, size_t len,
                                       void *user, enum kvf_status *status_p,
                                       struct kvf_error *error)
{
    struct kvfi_lane_peer *peer = kvfi_calloc(lane->allocator, 1, sizeof(*peer));
    unsigned char *kept = kvfi_calloc(lane->allocator, 1, len);
    if (!peer || !kept) {
        *status_p = kvf_fail(error, KVF_ENOMEM, "ucx: no memory for a peer");
        goto err_free;
    }
    peer->lane = lane;
    peer->user = user;
    *status_p = create_endpoint(peer, address, len, error);
    if (*status_p != KVF_OK)
        goto err_free;
    memcpy(kept, address, len);
    peer->address = kept;
    peer->address_len = len;
    peer->next = lane->peers;
    if (lane->peers)
        lane->peers->back = peer;
    lane->peers = peer;
    return peer;

err_free:
    kvfi_free(lane->allocator, kept);
    kvfi_free(lane->allocator, peer);
    return NULL;
}

enum kvf_status kvfi_ucx_connect(struct kvfi_lane *lane, const void *address, size_t len,
                                 void *user, struct kvfi_lane_peer **peer_p,
                                 struct kvf_error *error)
{
    uint64_t abilities = 0;
    len = kvfi_trailer_decode(address, len, &abilities);
    if (len < ADDRESS_LEN_MIN || (*(const unsigned char *)address & 0x0f) > 1)
        return kvf_fail(error, KVF_EFORMAT,
                        "ucx: %zu bytes are not a worker address of format 1 or 2", len);
    KVF_TRY(check_versions(lane, address, len, error));
    struct kvfi_lane_peer *peer = unpark(lane, address, len, user);
    enum kvf_status status = KVF_OK;
    if (!peer)
        peer = new_peer(lane, address, len, user, &status, error);
    if (!peer)
        return status;
    peer->abilities = abilities;
    lane->usage.peers++;
    *peer_p = peer;
    return KVF_OK;
}

void kvfi_ucx_maybe_free_peer(struct kvfi_lane_peer *peer)
{
    struct kvfi_lane *lane = peer->lane;
    if (!peer->released || peer->parked || peer->ep || peer->close_request || peer->event.queued)
        return;
    if (peer->next)
        peer->next->back = peer->back;
    if (peer->back)
        peer->back->next = peer->next;
    else
        lane->peers = peer->next;
    lane->usage.peers_closing--;
    free_peer(peer);
}

static void on_closed(void *request, ucs_status_t status, void *user_data)
{
    struct kvfi_lane_peer *peer = user_data;
    ucp_request_free(request);
    peer->close_request = NULL;
    kvfi_ucx_maybe_free_peer(peer);
}

/* The request is kept until it ends: an endpoint that is closed and forgotten holds its lanes for
 * ever, and a peer that comes back meets the rest of the old connection. */
static void start_close(struct kvfi_lane_peer *peer, bool force)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0,
        .cb = {.send = on_closed},
        .user_data = peer,
    };
    ucp_ep_h ep = peer->ep;
    peer->ep = NULL;
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    peer->close_request = UCS_PTR_IS_PTR(request) ? request : NULL;
}

void kvfi_ucx_force_close(struct kvfi_lane *lane)
{
    while (lane->to_force) {
        struct kvfi_lane_peer *peer = lane->to_force;
        lane->to_force = peer->next_force;
        if (peer->ep)
            start_close(peer, true);
        kvfi_ucx_maybe_free_peer(peer);
    }
}

/* Posted operations run to their own end. Closing a healthy endpoint under them by force is no way
 * out: UCX 1.22 then frees a tcp endpoint whose events it is still walking through. */
void kvfi_ucx_cancel(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    peer->cancelled = true;
}

void kvfi_ucx_close_at_once(struct kvfi_lane_peer *peer)
{
    peer->cancelled = true;
    if (peer->ep)
        start_close(peer, true);
}

void kvfi_ucx_disconnect(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    lane->usage.peers--;
    peer->released = true;
    if (peer->ep && !peer->failed && (lane->abilities & KVFI_TRAILER_CARRY)) {
        peer->parked = true;
        return;
    }
    lane->usage.peers_closing++;
    if (peer->forced && peer->ep) /* the next kvfi_ucx_force_close() goes on */
        return;
    if (peer->ep)
        start_close(peer, peer->failed);
    kvfi_ucx_maybe_free_peer(peer);
}

void kvfi_ucx_unpark_all(struct kvfi_lane *lane)
{
    struct kvfi_lane_peer *next;
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = next) {
        next = peer->next;
        if (!peer->parked)
            continue;
        peer->parked = false;
        lane->usage.peers_closing++;
        start_close(peer, false);
        kvfi_ucx_maybe_free_peer(peer);
    }
}

void kvfi_ucx_abandon_closes(struct kvfi_lane *lane)
{
    for (struct kvfi_lane_peer *peer = lane->peers; peer; peer = peer->next) {
        if (peer->close_request)
            ucp_request_free(peer->close_request);
        peer->close_request = NULL;
    }
}

void kvfi_ucx_free_peers(struct kvfi_lane *lane)
{
    while (lane->peers) {
        struct kvfi_lane_peer *peer = lane->peers;
        lane->peers = peer->next;
        free_peer(peer);
    }
}
