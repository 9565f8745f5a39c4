/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers and messages in flight: taken from a pool that only grows, with their buffers. */
#include "agent/state.h"

#include <string.h>

static bool add_slab(struct kvf_agent *agent)
{
    struct transfer_slab *slab = kvfi_wire_alloc(agent->allocator, sizeof(*slab));
    if (!slab)
        return false;
    memset(slab, 0, sizeof(*slab));
    slab->next = agent->slabs;
    agent->slabs = slab;
    for (size_t i = TRANSFERS_PER_SLAB; i > 0; i--) {
        struct transfer *transfer = &slab->transfers[i - 1];
        kvfi_buf_init(&transfer->message, agent->allocator);
        transfer->next_free = agent->free_transfers;
        agent->free_transfers = transfer;
    }
    return true;
}

struct transfer *kvfi_agent_take_transfer(struct kvf_agent *agent)
{
    if (!agent->free_transfers && !add_slab(agent))
        return NULL;
    struct transfer *transfer = agent->free_transfers;
    agent->free_transfers = transfer->next_free;
    struct kvfi_buf message = transfer->message;
    struct kvfi_pins pins = transfer->pins;
    *transfer = (struct transfer){.message = message, .pins = pins};
    transfer->pins.count = 0;
    return transfer;
}

void kvfi_agent_put_transfer(struct kvf_agent *agent, struct transfer *transfer)
{
    if (transfer->message.cap > MESSAGE_KEPT_LEN_MAX)
        kvfi_buf_deinit(&transfer->message);
    transfer->next_free = agent->free_transfers;
    agent->free_transfers = transfer;
}

void kvfi_agent_free_transfers(struct kvf_agent *agent)
{
    while (agent->slabs) {
        struct transfer_slab *slab = agent->slabs;
        agent->slabs = slab->next;
        for (size_t i = 0; i < TRANSFERS_PER_SLAB; i++) {
            kvfi_buf_deinit(&slab->transfers[i].message);
            kvfi_wire_free(agent->allocator, slab->transfers[i].pins.regions);
        }
        kvfi_wire_free(agent->allocator, slab);
    }
    agent->free_transfers = NULL;
}
