/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/queue.h"

#include "runtime/alloc.h"
#include "runtime/tsan.h"
#include "runtime/wake.h"

#include <ck_ring.h>

struct kvfi_queue {
    ck_ring_t ring;
    ck_ring_buffer_t *slots;
    size_t len_max;
    struct kvfi_wake wake;
    struct kvf_allocator allocator;
};

enum kvf_status kvfi_queue_create(size_t len_max, const struct kvf_allocator *allocator,
                                  struct kvfi_queue **queue_p, struct kvf_error *error)
{
    if (len_max == 0 || len_max > KVFI_QUEUE_LEN_MAX)
        return kvf_fail(error, KVF_EINVAL, "queue length %zu is not between 1 and %zu", len_max,
                        KVFI_QUEUE_LEN_MAX);
    /* A ring of 2^n holds 2^n - 1; twice the limit leaves room for racing producers. */
    unsigned int slot_count = 4;
    while (slot_count < 2 * len_max)
        slot_count *= 2;

    allocator = kvfi_allocator(allocator);
    enum kvf_status status = KVF_ENOMEM;
    struct kvfi_queue *queue = kvfi_calloc(allocator, 1, sizeof(*queue));
    if (!queue)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a queue");
    queue->allocator = *allocator;
    queue->len_max = len_max;
    queue->slots = kvfi_calloc(allocator, slot_count, sizeof(*queue->slots));
    if (!queue->slots) {
        kvf_fail(error, KVF_ENOMEM, "no memory for a queue of %zu", len_max);
        goto err_free_queue;
    }
    ck_ring_init(&queue->ring, slot_count);
    status = kvfi_wake_init(&queue->wake, error);
    if (status != KVF_OK)
        goto err_free_slots;
    *queue_p = queue;
    return KVF_OK;

err_free_slots:
    kvfi_free(allocator, queue->slots);
err_free_queue:
    kvfi_free(allocator, queue);
    return status;
}

void kvfi_queue_destroy(struct kvfi_queue *queue)
{
    if (!queue)
        return;
    struct kvf_allocator allocator = queue->allocator;
    kvfi_wake_deinit(&queue->wake);
    kvfi_free(&allocator, queue->slots);
    kvfi_free(&allocator, queue);
}

enum kvf_status kvfi_queue_push(struct kvfi_queue *queue, void *item)
{
    KVFI_TSAN_GIVES(queue);
    KVFI_TSAN_CK_BEGIN();
    bool pushed = ck_ring_size(&queue->ring) < queue->len_max &&
                  ck_ring_enqueue_mpsc(&queue->ring, queue->slots, item);
    KVFI_TSAN_CK_END();
    if (!pushed)
        return KVF_AGAIN;
    kvfi_wake_signal(&queue->wake);
    return KVF_OK;
}

void *kvfi_queue_pop(struct kvfi_queue *queue)
{
    void *item = NULL;
    KVFI_TSAN_CK_BEGIN();
    bool popped = ck_ring_dequeue_mpsc(&queue->ring, queue->slots, &item);
    KVFI_TSAN_CK_END();
    if (!popped)
        return NULL;
    KVFI_TSAN_TAKES(queue);
    return item;
}

bool kvfi_queue_is_empty(const struct kvfi_queue *queue)
{
    KVFI_TSAN_CK_BEGIN();
    bool empty = ck_ring_size(&queue->ring) == 0;
    KVFI_TSAN_CK_END();
    return empty;
}

int kvfi_queue_fd(const struct kvfi_queue *queue)
{
    return queue->wake.fd;
}

void kvfi_queue_clear(struct kvfi_queue *queue)
{
    kvfi_wake_clear(&queue->wake);
}

void kvfi_queue_resignal(struct kvfi_queue *queue)
{
    kvfi_wake_signal(&queue->wake);
}
