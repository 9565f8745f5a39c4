/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of this lane, and which way leads to each of their regions. */
#include "lane/host/host.h"

#include "kvferry/observe.h"
#include "runtime/alloc.h"

#include <sys/mman.h>

static void log_fallback(const struct kvfi_lane *lane, const char *reason)
{
    kvf_log(KVF_LOG_INFO, "lane auto: a peer of this host is served by %s: %s", lane->ops->name,
            reason);
}

enum kvf_status kvfi_host_connect(struct kvfi_lane *lane, const void *address, size_t len,
                                  void *user, struct kvfi_lane_peer **peer_p,
                                  struct kvf_error *error)
{
    bool found = false;
    struct kvfi_host_identity identity = {0};
    len = kvfi_host_identity_decode(address, len, &identity, &found);
    struct kvfi_lane_peer *peer = kvfi_calloc(lane->allocator, 1, sizeof(*peer));
    if (!peer)
        return kvf_fail(error, KVF_ENOMEM, "auto: no memory for a peer");
    peer->lane = lane;
    peer->user = user;
    peer->process.pidfd = -1;
    enum kvf_status status =
        lane->ops->connect(lane->inner, address, len, peer, &peer->inner, error);
    if (status != KVF_OK) {
        kvfi_free(lane->allocator, peer);
        return status;
    }
    const char *reason = NULL;
    if (found)
        kvfi_host_process_open(&lane->self, &identity, lane->offers, &peer->process, &reason);
    if (reason)
        log_fallback(lane, reason);
    *peer_p = peer;
    return KVF_OK;
}

void kvfi_host_disconnect(struct kvfi_lane *lane, struct kvfi_lane_peer *peer)
{
    lane->ops->disconnect(lane->inner, peer->inner);
    peer->inner = NULL;
    while (peer->mappings) {
        struct host_mapping *mapping = peer->mappings;
        peer->mappings = mapping->next;
        (void)munmap(mapping->addr, mapping->length);
        kvfi_free(lane->allocator, mapping);
    }
    kvfi_host_process_close(&peer->process);
    peer->released = true;
    if (!peer->event.queued)
        kvfi_free(lane->allocator, peer);
}

void kvfi_host_lose(struct kvfi_lane_peer *peer)
{
    if (peer->lost || peer->cancelled)
        return;
    peer->lost = true;
    peer->event.kind = HOST_PEER_LOST;
    kvfi_lane_queue_put(&peer->lane->events, &peer->event);
}

/* The peer's pool, mapped once however many regions lie in it. */
static const struct host_mapping *find_mapping(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                               const struct kvfi_host_key *key)
{
    for (const struct host_mapping *mapping = peer->mappings; mapping; mapping = mapping->next) {
        if (mapping->inode == key->inode)
            return mapping;
    }
    struct host_mapping *mapping = kvfi_calloc(lane->allocator, 1, sizeof(*mapping));
    if (!mapping)
        return NULL;
    mapping->addr = kvfi_host_process_map(&peer->process, key->fd, key->inode, &mapping->length);
    if (!mapping->addr) {
        kvfi_free(lane->allocator, mapping);
        return NULL;
    }
    mapping->inode = key->inode;
    mapping->next = peer->mappings;
    peer->mappings = mapping;
    return mapping;
}

static void choose_route(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                         const struct kvfi_host_key *key, struct kvfi_lane_rkey *rkey)
{
    rkey->route = peer->process.reach & KVFI_HOST_CMA ? HOST_CMA : HOST_INNER;
    if (key->kind != KVFI_HOST_POOL || !(peer->process.reach & KVFI_HOST_SHM))
        return;
    const struct host_mapping *mapping = find_mapping(lane, peer, key);
    if (!mapping || key->offset > mapping->length || key->length > mapping->length - key->offset) {
        kvf_log(KVF_LOG_INFO,
                "lane auto: a pool of a peer of this host cannot be mapped; "
                "its regions are served by %s",
                rkey->route == HOST_CMA ? "cma" : lane->ops->name);
        return;
    }
    rkey->route = HOST_SHM;
    rkey->addr = key->addr;
    rkey->length = key->length;
    rkey->mapped = mapping->addr + key->offset;
}

enum kvf_status kvfi_host_rkey_unpack(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                      const void *bytes, size_t len, struct kvfi_lane_rkey **rkey_p,
                                      struct kvf_error *error)
{
    bool found = false;
    struct kvfi_host_key key = {0};
    len = kvfi_host_key_decode(bytes, len, &key, &found);
    struct kvfi_lane_rkey *rkey = kvfi_calloc(lane->allocator, 1, sizeof(*rkey));
    if (!rkey)
        return kvf_fail(error, KVF_ENOMEM, "auto: no memory for a key");
    enum kvf_status status =
        lane->ops->rkey_unpack(lane->inner, peer->inner, bytes, len, &rkey->inner, error);
    if (status != KVF_OK) {
        kvfi_free(lane->allocator, rkey);
        return status;
    }
    if (found)
        choose_route(lane, peer, &key, rkey);
    *rkey_p = rkey;
    return KVF_OK;
}

void kvfi_host_rkey_release(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey)
{
    lane->ops->rkey_release(lane->inner, rkey->inner);
    kvfi_free(lane->allocator, rkey);
}
