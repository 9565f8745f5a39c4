/* SPDX-License-Identifier: Apache-2.0 */
#include "http/mailbox.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Items handed over before sockets get their turn again. */
enum { SLICE_ITEM_COUNT = 256 };

struct kvfi_mailbox {
    size_t item_bytes;
    size_t item_count_max;
    kvfi_mailbox_item_fn drop;
    void *drop_ctx;
    int fd;

    pthread_mutex_t lock; /* guards the members down to the blank line */
    unsigned char *ring;
    size_t first;
    size_t count;
    bool closed;
    uint64_t full_count;

    /* The reader's. */
    struct event *event;
    kvfi_mailbox_item_fn deliver;
    void *deliver_ctx;
    unsigned char *item;
};

enum kvf_status kvfi_mailbox_create(size_t item_bytes, size_t item_count_max,
                                    kvfi_mailbox_item_fn drop, void *drop_ctx,
                                    struct kvfi_mailbox **mailbox_p, struct kvf_error *error)
{
    if (!item_bytes || !item_count_max || item_count_max > SIZE_MAX / item_bytes)
        return kvf_fail(error, KVF_EINVAL, "a mailbox of %zu items of %zu bytes is not possible",
                        item_count_max, item_bytes);
    struct kvfi_mailbox *mailbox = calloc(1, sizeof(*mailbox));
    if (!mailbox)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a mailbox");
    mailbox->item_bytes = item_bytes;
    mailbox->item_count_max = item_count_max;
    mailbox->drop = drop;
    mailbox->drop_ctx = drop_ctx;
    mailbox->ring = malloc(item_bytes * item_count_max);
    mailbox->item = malloc(item_bytes);
    if (!mailbox->ring || !mailbox->item) {
        (void)kvf_fail(error, KVF_ENOMEM, "no memory for a mailbox of %zu items of %zu bytes",
                       item_count_max, item_bytes);
        free(mailbox->ring);
        free(mailbox->item);
        free(mailbox);
        return KVF_ENOMEM;
    }
    mailbox->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (mailbox->fd < 0) {
        int reason = errno;
        free(mailbox->ring);
        free(mailbox->item);
        free(mailbox);
        return kvf_fail(error, KVF_ESYSTEM, "eventfd for a mailbox: %s", strerror(reason));
    }
    pthread_mutex_init(&mailbox->lock, NULL);
    *mailbox_p = mailbox;
    return KVF_OK;
}

void kvfi_mailbox_destroy(struct kvfi_mailbox *mailbox)
{
    if (!mailbox)
        return;
    kvfi_mailbox_close(mailbox);
    if (mailbox->event)
        event_free(mailbox->event);
    while (kvfi_mailbox_take(mailbox, mailbox->item) == KVF_OK)
        if (mailbox->drop)
            mailbox->drop(mailbox->drop_ctx, mailbox->item);
    close(mailbox->fd);
    pthread_mutex_destroy(&mailbox->lock);
    free(mailbox->ring);
    free(mailbox->item);
    free(mailbox);
}

/* The counter of an eventfd cannot overflow here: it is written once for each change from empty. */
static void wake(struct kvfi_mailbox *mailbox)
{
    uint64_t one = 1;
    ssize_t written = 0;
    do {
        written = write(mailbox->fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
}

enum kvf_status kvfi_mailbox_post(struct kvfi_mailbox *mailbox, const void *item)
{
    enum kvf_status status = KVF_OK;
    bool was_empty = false;
    pthread_mutex_lock(&mailbox->lock);
    if (mailbox->closed) {
        status = KVF_ECLOSED;
    } else if (mailbox->count == mailbox->item_count_max) {
        mailbox->full_count++;
        status = KVF_AGAIN;
    } else {
        size_t slot = (mailbox->first + mailbox->count) % mailbox->item_count_max;
        memcpy(mailbox->ring + slot * mailbox->item_bytes, item, mailbox->item_bytes);
        was_empty = mailbox->count == 0;
        mailbox->count++;
    }
    pthread_mutex_unlock(&mailbox->lock);
    if (was_empty)
        wake(mailbox);
    return status;
}

enum kvf_status kvfi_mailbox_take(struct kvfi_mailbox *mailbox, void *item)
{
    enum kvf_status status = KVF_AGAIN;
    pthread_mutex_lock(&mailbox->lock);
    if (mailbox->count) {
        memcpy(item, mailbox->ring + mailbox->first * mailbox->item_bytes, mailbox->item_bytes);
        mailbox->first = (mailbox->first + 1) % mailbox->item_count_max;
        mailbox->count--;
        status = KVF_OK;
    }
    pthread_mutex_unlock(&mailbox->lock);
    return status;
}

void kvfi_mailbox_close(struct kvfi_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    mailbox->closed = true;
    pthread_mutex_unlock(&mailbox->lock);
}

int kvfi_mailbox_fd(const struct kvfi_mailbox *mailbox)
{
    return mailbox->fd;
}

void kvfi_mailbox_clear(struct kvfi_mailbox *mailbox)
{
    uint64_t count = 0;
    ssize_t got = 0;
    do {
        got = read(mailbox->fd, &count, sizeof(count));
    } while (got < 0 && errno == EINTR);
}

uint64_t kvfi_mailbox_full_count(struct kvfi_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    uint64_t full_count = mailbox->full_count;
    pthread_mutex_unlock(&mailbox->lock);
    return full_count;
}

static void on_readable(evutil_socket_t fd, short what, void *ctx)
{
    struct kvfi_mailbox *mailbox = ctx;
    kvfi_mailbox_clear(mailbox);
    for (int i = 0; i < SLICE_ITEM_COUNT; i++) {
        if (kvfi_mailbox_take(mailbox, mailbox->item) != KVF_OK)
            return;
        mailbox->deliver(mailbox->deliver_ctx, mailbox->item);
    }
    /* Posters wake only on the change from empty, so what is left needs another wake-up. */
    wake(mailbox);
}

enum kvf_status kvfi_mailbox_attach(struct kvfi_mailbox *mailbox, struct event_base *base,
                                    kvfi_mailbox_item_fn deliver, void *ctx,
                                    struct kvf_error *error)
{
    if (mailbox->event)
        return kvf_fail(error, KVF_EEXIST, "the mailbox already has a reader");
    mailbox->deliver = deliver;
    mailbox->deliver_ctx = ctx;
    mailbox->event = event_new(base, mailbox->fd, EV_READ | EV_PERSIST, on_readable, mailbox);
    if (!mailbox->event || event_add(mailbox->event, NULL) != 0)
        return kvf_fail(error, KVF_ENOMEM, "no memory to watch a mailbox");
    return KVF_OK;
}
