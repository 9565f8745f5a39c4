/* SPDX-License-Identifier: Apache-2.0 */
#include "http/connection.h"

#include <stdlib.h>
#include <string.h>

/* Steps of a reply that come from another thread. */

enum mail_kind { MAIL_BYTES, MAIL_ERROR, MAIL_SSE_EVENT, MAIL_SSE_DONE, MAIL_ABORT };

struct mail {
    uint64_t id;
    enum mail_kind kind;
    int http_status;
    char *content_type; /* owned by the mail, of MAIL_BYTES */
    char *data;         /* owned by the mail, terminated */
    size_t len;
};

size_t kvfi_reply_mail_bytes(void)
{
    return sizeof(struct mail);
}

void kvfi_reply_drop_mail(void *ctx, void *item)
{
    struct mail *mail = item;
    free(mail->content_type);
    free(mail->data);
}

/* A stream that cannot go on is told to the poster by on_end, so the status ends here. */
static bool deliver_sse_event(struct kvfi_reply *reply, const struct mail *mail)
{
    if (!kvfi_reply_begun(reply) && kvfi_reply_sse_start(reply) != KVF_OK)
        return false;
    return kvfi_reply_sse_event(reply, mail->data, mail->len) == KVF_OK;
}

void kvfi_reply_deliver(void *ctx, void *item)
{
    struct kvfi_http_server *server = ctx;
    struct mail *mail = item;
    struct kvfi_reply *reply = kvfi_reply_find(server, mail->id);
    if (!reply || reply->ended) {
        server->counters.stale_count++;
        kvfi_reply_drop_mail(NULL, mail);
        return;
    }
    switch (mail->kind) {
    case MAIL_BYTES:
        kvfi_reply_bytes(reply, mail->http_status, mail->content_type, mail->data, mail->len);
        break;
    case MAIL_ERROR:
        kvfi_reply_error(reply, mail->http_status, NULL, "%s", mail->data);
        break;
    case MAIL_SSE_EVENT:
        deliver_sse_event(reply, mail);
        break;
    case MAIL_SSE_DONE:
        if (!kvfi_reply_begun(reply) && kvfi_reply_sse_start(reply) != KVF_OK)
            break;
        kvfi_reply_sse_done(reply);
        break;
    case MAIL_ABORT:
        kvfi_reply_abort(reply);
        break;
    }
    kvfi_reply_drop_mail(NULL, mail);
}

static enum kvf_status post(struct kvfi_http_server *server, struct mail *mail,
                            const char *content_type, const void *data, size_t len)
{
    if (!server->mailbox)
        return KVF_ENOTSUP;
    if (len == SIZE_MAX)
        return KVF_ELIMIT;
    mail->data = malloc(len + 1);
    mail->content_type = content_type ? strdup(content_type) : NULL;
    if (!mail->data || (content_type && !mail->content_type)) {
        kvfi_reply_drop_mail(NULL, mail);
        return KVF_ENOMEM;
    }
    if (len)
        memcpy(mail->data, data, len);
    mail->data[len] = '\0';
    mail->len = len;
    enum kvf_status status = kvfi_mailbox_post(server->mailbox, mail);
    if (status != KVF_OK)
        kvfi_reply_drop_mail(NULL, mail);
    return status;
}

enum kvf_status kvfi_reply_post_bytes(struct kvfi_http_server *server, uint64_t id, int http_status,
                                      const char *content_type, const void *data, size_t len)
{
    struct mail mail = {.id = id, .kind = MAIL_BYTES, .http_status = http_status};
    return post(server, &mail, content_type, data, len);
}

enum kvf_status kvfi_reply_post_error(struct kvfi_http_server *server, uint64_t id, int http_status,
                                      const char *message)
{
    struct mail mail = {.id = id, .kind = MAIL_ERROR, .http_status = http_status};
    return post(server, &mail, NULL, message, strlen(message));
}

enum kvf_status kvfi_reply_post_sse_event(struct kvfi_http_server *server, uint64_t id,
                                          const char *data, size_t len)
{
    struct mail mail = {.id = id, .kind = MAIL_SSE_EVENT};
    return post(server, &mail, NULL, data, len);
}

enum kvf_status kvfi_reply_post_sse_done(struct kvfi_http_server *server, uint64_t id)
{
    struct mail mail = {.id = id, .kind = MAIL_SSE_DONE};
    return post(server, &mail, NULL, "", 0);
}

enum kvf_status kvfi_reply_post_abort(struct kvfi_http_server *server, uint64_t id)
{
    struct mail mail = {.id = id, .kind = MAIL_ABORT};
    return post(server, &mail, NULL, "", 0);
}
