/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_MAILBOX_H
#define KVFERRY_HTTP_MAILBOX_H

/*
 * A bounded queue of fixed-size items between threads, with an eventfd that wakes the reader.
 *
 * Many threads may post; one thread takes. Items are copied in and copied out, so what an item
 * points to belongs to the poster until kvfi_mailbox_post returned KVF_OK, to the mailbox until
 * the item is taken, and to the taker from then on. What is left when the mailbox is destroyed
 * goes to the drop function.
 */

#include "kvferry/status.h"

#include <stdint.h>

struct event_base;
struct kvfi_mailbox;

/* Called on the reading thread (or the destroying one) with one item. The item's memory is the
 * mailbox's and is valid only during the call. */
typedef void (*kvfi_mailbox_item_fn)(void *ctx, void *item);

/* Creates a mailbox for at most item_count_max items of item_bytes each; all memory is taken here.
 * drop may be NULL when items own nothing. The caller owns the mailbox. Any thread. */
KVF_MUST_USE enum kvf_status kvfi_mailbox_create(size_t item_bytes, size_t item_count_max,
                                                 kvfi_mailbox_item_fn drop, void *drop_ctx,
                                                 struct kvfi_mailbox **mailbox_p,
                                                 struct kvf_error *error);

/* Hands every item that was not taken to the drop function and frees the mailbox. The caller has
 * made sure that nobody posts any more. On the reading thread. NULL is allowed. */
void kvfi_mailbox_destroy(struct kvfi_mailbox *mailbox);

/* Copies one item in. KVF_AGAIN: the queue is full, nothing was taken over, try later.
 * KVF_ECLOSED: the reader has closed the mailbox. Multi producer, any thread, never blocks on
 * the reader (a short mutex only). */
KVF_MUST_USE enum kvf_status kvfi_mailbox_post(struct kvfi_mailbox *mailbox, const void *item);

/* Copies the oldest item out. KVF_AGAIN when there is none. Single consumer. */
KVF_MUST_USE enum kvf_status kvfi_mailbox_take(struct kvfi_mailbox *mailbox, void *item);

/* Refuses every later post with KVF_ECLOSED; what is queued can still be taken. Any thread. */
void kvfi_mailbox_close(struct kvfi_mailbox *mailbox);

/* Calls deliver on the thread that runs base, once for each item in order, until the mailbox is
 * destroyed. A burst is handed over in slices so that sockets are served in between. */
KVF_MUST_USE enum kvf_status kvfi_mailbox_attach(struct kvfi_mailbox *mailbox,
                                                 struct event_base *base,
                                                 kvfi_mailbox_item_fn deliver, void *ctx,
                                                 struct kvf_error *error);

/* For readers without an event_base: readable while items may be waiting. The reader calls
 * kvfi_mailbox_clear before it takes until KVF_AGAIN. The descriptor stays the mailbox's. */
int kvfi_mailbox_fd(const struct kvfi_mailbox *mailbox);
void kvfi_mailbox_clear(struct kvfi_mailbox *mailbox);

/* How many posts were answered KVF_AGAIN so far. Any thread. */
uint64_t kvfi_mailbox_full_count(struct kvfi_mailbox *mailbox);

#endif
