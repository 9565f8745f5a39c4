/* SPDX-License-Identifier: Apache-2.0 */
/* Registration, and the keys with which others reach it. */
#include "lane/ucx/carry_wire.h"
#include "lane/ucx/rkey.h"
#include "lane/ucx/ucx.h"

#include "runtime/alloc.h"

#include <inttypes.h>
#include <string.h>

static enum kvf_status check_kind(struct kvfi_lane_memory *memory, enum kvf_memory_kind kind,
                                  struct kvf_error *error)
{
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE};
    memory->type = UCS_MEMORY_TYPE_HOST;
    if (ucp_mem_query(memory->memh, &attr) == UCS_OK)
        memory->type = attr.mem_type;
    if (kind == KVF_MEMORY_VRAM && memory->type == UCS_MEMORY_TYPE_HOST)
        return kvf_fail(error, KVF_ENOTSUP,
                        "ucx: VRAM was asked for, but UCX takes this memory for host memory; use a "
                        "UCX that was built with CUDA and initialise the device first");
    if (kind == KVF_MEMORY_DRAM && memory->type != UCS_MEMORY_TYPE_HOST)
        return kvf_fail(error, KVF_EINVAL,
                        "ucx: DRAM was asked for, but this memory is a device's; register it as "
                        "VRAM");
    return KVF_OK;
}

static enum kvf_status pack(struct kvfi_lane *lane, ucp_mem_h memh,
                            struct kvfi_lane_memory **memory_p, struct kvf_error *error)
{
    void *packed = NULL;
    size_t len = 0;
    ucs_status_t status = ucp_rkey_pack(lane->context, memh, &packed, &len);
    if (status != UCS_OK)
        return kvf_fail(error, KVF_ETRANSPORT, "ucx: no key for the memory: %s",
                        ucs_status_string(status));
    struct kvfi_lane_memory *memory = kvfi_calloc(lane->allocator, 1, sizeof(*memory) + len);
    if (memory) {
        memcpy(memory->rkey, packed, len);
        memory->rkey_len = lane->strip_rkeys ? kvfi_rkey_strip(memory->rkey, len) : len;
        memory->memh = memh;
    }
    ucp_rkey_buffer_release(packed);
    if (!memory)
        return kvf_fail(error, KVF_ENOMEM, "ucx: no memory for a key of %zu bytes", len);
    *memory_p = memory;
    return KVF_OK;
}

/* The number of registrations that begin at or below addr. */
static size_t count_up_to(const struct kvfi_lane *lane, uint64_t addr)
{
    size_t low = 0;
    size_t high = lane->usage.memories;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (lane->memories[middle]->addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static enum kvf_status insert(struct kvfi_lane *lane, struct kvfi_lane_memory *memory,
                              struct kvf_error *error)
{
    size_t count = lane->usage.memories;
    if (count == lane->memory_cap) {
        size_t cap = count ? 2 * count : 16;
        struct kvfi_lane_memory **memories =
            kvfi_calloc(lane->allocator, cap, sizeof(struct kvfi_lane_memory *));
        if (!memories)
            return kvf_fail(error, KVF_ENOMEM, "ucx: no memory for %zu registrations", cap);
        if (count > 0)
            memcpy(memories, lane->memories, count * sizeof(struct kvfi_lane_memory *));
        kvfi_free(lane->allocator, lane->memories);
        lane->memories = memories;
        lane->memory_cap = cap;
    }
    size_t at = count_up_to(lane, memory->addr);
    memmove(lane->memories + at + 1, lane->memories + at,
            (count - at) * sizeof(struct kvfi_lane_memory *));
    lane->memories[at] = memory;
    lane->usage.memories++;
    return KVF_OK;
}

static void withdraw(struct kvfi_lane *lane, const struct kvfi_lane_memory *memory)
{
    size_t at = count_up_to(lane, memory->addr);
    while (lane->memories[at - 1] != memory) /* several may begin there */
        at--;
    memmove(lane->memories + at - 1, lane->memories + at,
            (lane->usage.memories - at) * sizeof(struct kvfi_lane_memory *));
    lane->usage.memories--;
}

bool kvfi_ucx_is_writable(const struct kvfi_lane *lane, uint64_t addr, uint64_t length)
{
    /* The nearest one covers it, unless registrations lie inside each other. */
    for (size_t i = count_up_to(lane, addr); i > 0; i--) {
        const struct kvfi_lane_memory *memory = lane->memories[i - 1];
        uint64_t offset = addr - memory->addr;
        if (offset <= memory->length && length <= memory->length - offset)
            return memory->type == UCS_MEMORY_TYPE_HOST;
    }
    return false;
}

void kvfi_ucx_free_memories(struct kvfi_lane *lane)
{
    kvfi_free(lane->allocator, lane->memories);
}

enum kvf_status kvfi_ucx_register(struct kvfi_lane *lane, void *addr, size_t length,
                                  enum kvf_memory_kind kind, struct kvfi_lane_memory **memory_p,
                                  struct kvf_error *error)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .address = addr,
        .length = length,
    };
    ucp_mem_h memh = NULL;
    ucs_status_t mapped = ucp_mem_map(lane->context, &params, &memh);
    if (mapped != UCS_OK)
        return kvf_fail(error, mapped == UCS_ERR_NO_MEMORY ? KVF_ENOMEM : KVF_ETRANSPORT,
                        "ucx: cannot register %zu bytes at %p: %s; for RDMA see the locked memory "
                        "limit (ulimit -l)",
                        length, addr, ucs_status_string(mapped));
    struct kvfi_lane_memory *memory = NULL;
    enum kvf_status status = pack(lane, memh, &memory, error);
    if (status == KVF_OK && memory) {
        memory->addr = (uintptr_t)addr;
        memory->length = length;
        status = check_kind(memory, kind, error);
        if (status == KVF_OK)
            status = insert(lane, memory, error);
    }
    if (status != KVF_OK) {
        kvfi_free(lane->allocator, memory);
        (void)ucp_mem_unmap(lane->context, memh);
        return status;
    }
    *memory_p = memory;
    return KVF_OK;
}

void kvfi_ucx_deregister(struct kvfi_lane *lane, struct kvfi_lane_memory *memory)
{
    withdraw(lane, memory); /* first: no message may write there from now on */
    (void)ucp_mem_unmap(lane->context, memory->memh);
    kvfi_free(lane->allocator, memory);
}

void kvfi_ucx_memory_rkey(const struct kvfi_lane_memory *memory, const void **rkey_p, size_t *len_p)
{
    *rkey_p = memory->rkey;
    *len_p = memory->rkey_len;
}

enum kvf_status kvfi_ucx_rkey_unpack(struct kvfi_lane *lane, struct kvfi_lane_peer *peer,
                                     const void *bytes, size_t len, struct kvfi_lane_rkey **rkey_p,
                                     struct kvf_error *error)
{
    if (!kvfi_rkey_check(bytes, len))
        return kvf_fail(error, KVF_EFORMAT, "ucx: %zu bytes are not an rkey", len);
    if (!peer->ep)
        return kvf_fail(error, KVF_EDISCONNECTED, "ucx: the connection has failed");
    unsigned char *padded = kvfi_calloc(lane->allocator, 1, len + KVFI_RKEY_PAD_LEN);
    struct kvfi_lane_rkey *rkey = kvfi_calloc(lane->allocator, 1, sizeof(*rkey));
    enum kvf_status result = KVF_ENOMEM;
    if (!padded || !rkey) {
        result = kvf_fail(error, KVF_ENOMEM, "ucx: no memory for an rkey of %zu bytes", len);
        goto out;
    }
    memcpy(padded, bytes, len);
    memset(padded + len, 0xff, KVFI_RKEY_PAD_LEN); /* 0xff: "no system device", the end */
    ucs_status_t status = ucp_ep_rkey_unpack(peer->ep, padded, &rkey->rkey);
    if (status != UCS_OK) {
        result = kvf_fail(error, status == UCS_ERR_NO_MEMORY ? KVF_ENOMEM : KVF_EFORMAT,
                          "ucx: cannot unpack an rkey of %zu bytes: %s; a peer with UCX 1.18 or "
                          "older must leave out empty entries",
                          len, ucs_status_string(status));
        goto out;
    }
    rkey->carried = (peer->abilities & KVFI_TRAILER_CARRY) && kvfi_rkey_is_plain(bytes, len);
    lane->usage.rkeys++;
    *rkey_p = rkey;
    rkey = NULL;
    result = KVF_OK;
out:
    kvfi_free(lane->allocator, rkey);
    kvfi_free(lane->allocator, padded);
    return result;
}

void kvfi_ucx_rkey_release(struct kvfi_lane *lane, struct kvfi_lane_rkey *rkey)
{
    if (lane->worker)
        ucp_rkey_destroy(rkey->rkey);
    kvfi_free(lane->allocator, rkey);
    lane->usage.rkeys--;
}
