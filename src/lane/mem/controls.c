/* SPDX-License-Identifier: Apache-2.0 */
/* What a test may do to a net while agents run on it. */
#include "lane/mem/net.h"

#include <string.h>

bool kvfi_mem_net_step(struct kvfi_mem_net *net)
{
    pthread_mutex_lock(&net->lock);
    struct mem_task *task = kvfi_mem_runnable(net, NULL);
    if (task)
        kvfi_mem_run(net, task);
    pthread_mutex_unlock(&net->lock);
    return task != NULL;
}

static void wake_all(const struct kvfi_mem_net *net)
{
    for (const struct kvfi_lane *node = net->nodes; node; node = node->next)
        kvfi_mem_wake(node);
}

void kvfi_mem_net_set_delay(struct kvfi_mem_net *net, uint64_t operation_ns, uint64_t message_ns)
{
    pthread_mutex_lock(&net->lock);
    net->operation_delay_ns = operation_ns;
    net->message_delay_ns = message_ns;
    pthread_mutex_unlock(&net->lock);
}

void kvfi_mem_net_advance(struct kvfi_mem_net *net, uint64_t ns)
{
    pthread_mutex_lock(&net->lock);
    net->now_ns += ns;
    wake_all(net);
    pthread_mutex_unlock(&net->lock);
}

uint64_t kvfi_mem_net_now_ns(struct kvfi_mem_net *net)
{
    pthread_mutex_lock(&net->lock);
    uint64_t now_ns = kvfi_mem_clock(net);
    pthread_mutex_unlock(&net->lock);
    return now_ns;
}

static void take_due(const struct kvfi_mem_net *net, uint64_t due_ns, bool *found, uint64_t *first)
{
    if (due_ns <= net->now_ns || (*found && *first <= due_ns))
        return;
    *found = true;
    *first = due_ns;
}

bool kvfi_mem_net_next_due(struct kvfi_mem_net *net, uint64_t *due_ns_p)
{
    bool found = false;
    uint64_t first = 0;
    pthread_mutex_lock(&net->lock);
    for (const struct mem_task *task = net->tasks; task; task = task->next)
        take_due(net, task->due_ns, &found, &first);
    for (const struct kvfi_lane *node = net->nodes; node; node = node->next) {
        if (node->inbox)
            take_due(net, node->inbox->due_ns, &found, &first);
    }
    pthread_mutex_unlock(&net->lock);
    if (found)
        *due_ns_p = first;
    return found;
}

static void arm_fault(struct kvfi_mem_net *net, uint64_t *countdown, uint64_t n)
{
    pthread_mutex_lock(&net->lock);
    *countdown = n;
    pthread_mutex_unlock(&net->lock);
}

void kvfi_mem_net_fail_operation(struct kvfi_mem_net *net, uint64_t n)
{
    arm_fault(net, &net->fail_in, n);
}

void kvfi_mem_net_refuse_post(struct kvfi_mem_net *net, uint64_t n)
{
    arm_fault(net, &net->refuse_in, n);
}

void kvfi_mem_net_drop_message(struct kvfi_mem_net *net, uint64_t n)
{
    arm_fault(net, &net->drop_in, n);
}

void kvfi_mem_net_double_message(struct kvfi_mem_net *net, uint64_t n)
{
    arm_fault(net, &net->double_in, n);
}

void kvfi_mem_net_hold_transfer(struct kvfi_mem_net *net, uint64_t n)
{
    arm_fault(net, &net->hold_in, n);
}

void kvfi_mem_net_release(struct kvfi_mem_net *net)
{
    pthread_mutex_lock(&net->lock);
    for (struct mem_task *task = net->tasks; task; task = task->next)
        task->held = false;
    wake_all(net);
    pthread_mutex_unlock(&net->lock);
}

void kvfi_mem_net_cut(struct kvfi_mem_net *net, const char *name)
{
    pthread_mutex_lock(&net->lock);
    for (struct kvfi_lane *node = net->nodes; node; node = node->next) {
        if (strcmp(node->name, name) == 0)
            node->cut = true;
    }
    for (struct kvfi_lane *node = net->nodes; node; node = node->next) {
        for (struct kvfi_lane_peer *peer = node->peers; peer; peer = peer->next) {
            const struct kvfi_lane *target = kvfi_mem_find_node(net, peer->target);
            if (node->cut || (target && target->cut))
                kvfi_mem_lose_peer(node, peer);
        }
    }
    /* nothing of what was under way is held back any longer: it ends with the connection */
    for (struct mem_task *task = net->tasks; task; task = task->next) {
        if (task->op->peer->lost) {
            task->held = false;
            task->due_ns = net->now_ns;
        }
    }
    pthread_mutex_unlock(&net->lock);
}

void kvfi_mem_net_mend(struct kvfi_mem_net *net, const char *name)
{
    pthread_mutex_lock(&net->lock);
    for (struct kvfi_lane *node = net->nodes; node; node = node->next) {
        if (strcmp(node->name, name) == 0)
            node->cut = false;
    }
    pthread_mutex_unlock(&net->lock);
}

void kvfi_mem_net_stats(struct kvfi_mem_net *net, struct kvfi_mem_net_stats *stats)
{
    pthread_mutex_lock(&net->lock);
    *stats = net->stats;
    stats->nodes = 0;
    for (const struct kvfi_lane *node = net->nodes; node; node = node->next)
        stats->nodes++;
    pthread_mutex_unlock(&net->lock);
}
