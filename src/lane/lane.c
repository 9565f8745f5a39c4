/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/lane.h"

#include <string.h>

const struct kvfi_lane_ops *kvfi_lane_find(const char *name)
{
    static const struct kvfi_lane_ops *const lanes[] = {&kvfi_lane_auto, &kvfi_lane_ucx,
                                                        &kvfi_lane_mem};
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        if (strcmp(lanes[i]->name, name) == 0)
            return lanes[i];
    }
    return NULL;
}

void kvfi_lane_queue_init(struct kvfi_lane_queue *queue)
{
    queue->head = NULL;
    queue->tail_p = &queue->head;
}

void kvfi_lane_queue_put(struct kvfi_lane_queue *queue, struct kvfi_lane_event *event)
{
    if (event->queued)
        return;
    event->queued = true;
    event->next = NULL;
    *queue->tail_p = event;
    queue->tail_p = &event->next;
}

struct kvfi_lane_event *kvfi_lane_queue_take(struct kvfi_lane_queue *queue)
{
    struct kvfi_lane_event *event = queue->head;
    if (!event)
        return NULL;
    queue->head = event->next;
    if (!queue->head)
        queue->tail_p = &queue->head;
    event->queued = false;
    return event;
}
