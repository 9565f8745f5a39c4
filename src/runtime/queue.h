/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_QUEUE_H
#define KVFI_RUNTIME_QUEUE_H

/*
 * A bounded queue of pointers between threads with one descriptor to sleep on. The ring is
 * ConcurrencyKit's. A pointer in the queue is owned by the queue's user on the consumer's side;
 * whoever destroys the queue pops what is left first.
 */

#include "kvferry/status.h"

#define KVFI_QUEUE_LEN_MAX ((size_t)1 << 20)

struct kvfi_queue;

/* At least 1 and at most KVFI_QUEUE_LEN_MAX elements. KVF_EINVAL, KVF_ENOMEM, KVF_ESYSTEM. Returns
 * owned. */
enum kvf_status kvfi_queue_create(size_t len_max, const struct kvf_allocator *allocator,
                                  struct kvfi_queue **queue_p,
                                  struct kvf_error *error) KVF_MUST_USE;
/* No other thread may use it any more. NULL is allowed. */
void kvfi_queue_destroy(struct kvfi_queue *queue);

/* Multi producer. Signals the consumer. KVF_AGAIN when len_max elements wait (several producers
 * that race for the last place may all get one: bounded by their number). Never blocks. */
enum kvf_status kvfi_queue_push(struct kvfi_queue *queue, void *item) KVF_MUST_USE;
/* Single consumer. NULL when empty. Never blocks. */
void *kvfi_queue_pop(struct kvfi_queue *queue);
/* Single consumer (then exact) or any thread (then an estimate). */
bool kvfi_queue_is_empty(const struct kvfi_queue *queue);

/* Readable (EPOLLIN) after a push until kvfi_queue_clear. Owned by the queue. */
int kvfi_queue_fd(const struct kvfi_queue *queue);
/* Single consumer: call it when woken, before popping until NULL. A consumer that stops popping
 * earlier calls kvfi_queue_resignal, so that the descriptor stays readable for the rest. */
void kvfi_queue_clear(struct kvfi_queue *queue);
void kvfi_queue_resignal(struct kvfi_queue *queue);

#endif
