/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_notif.h"

#include "wire/nixl_metadata.h"
#include "wire/nixl_serdes.h"

#define TAG_NAME     "name"
#define TAG_MSG      "msg"
#define OVERHEAD_LEN 36 /* prefix, tags, lengths, terminators */
#define FINISH_LEN   12 /* of them, those of the message */

static enum kvf_status check(const struct kvfi_nixl_notif *notif, enum kvf_status malformed,
                             struct kvf_error *error)
{
    if (notif->name.len == 0)
        return kvf_fail(error, malformed, "NIXL notification without a sender's name");
    if (notif->name.len > KVFI_NIXL_NAME_LEN_MAX)
        return kvf_fail(error, malformed, "NIXL notification: a name of %zu bytes, at most %d",
                        notif->name.len, KVFI_NIXL_NAME_LEN_MAX);
    if (notif->msg.len > KVFI_NIXL_NOTIF_LEN_MAX - OVERHEAD_LEN - notif->name.len)
        return kvf_fail(error, KVF_ELIMIT,
                        "NIXL notification: a message of %zu bytes makes the body longer than %zu",
                        notif->msg.len, KVFI_NIXL_NOTIF_LEN_MAX);
    return KVF_OK;
}

enum kvf_status kvfi_nixl_notif_encode(const struct kvfi_nixl_notif *notif, struct kvfi_buf *buf,
                                       struct kvf_error *error)
{
    KVF_TRY(check(notif, KVF_EINVAL, error));
    kvfi_serdes_begin(buf);
    kvfi_serdes_put(buf, TAG_NAME, notif->name);
    kvfi_serdes_put(buf, TAG_MSG, notif->msg);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_nixl_notif_begin(struct kvfi_span name, struct kvfi_buf *buf,
                                      struct kvf_error *error)
{
    KVF_TRY(check(&(struct kvfi_nixl_notif){.name = name}, KVF_EINVAL, error));
    kvfi_serdes_begin(buf);
    kvfi_serdes_put(buf, TAG_NAME, name);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_nixl_notif_finish(struct kvfi_span msg, struct kvfi_buf *buf,
                                       struct kvf_error *error)
{
    if (msg.len > KVFI_NIXL_NOTIF_LEN_MAX - FINISH_LEN - buf->len)
        return kvf_fail(error, KVF_ELIMIT,
                        "NIXL notification: a message of %zu bytes makes the body longer than %zu",
                        msg.len, KVFI_NIXL_NOTIF_LEN_MAX);
    kvfi_serdes_put(buf, TAG_MSG, msg);
    return kvfi_buf_status(buf, error);
}

enum kvf_status kvfi_nixl_notif_decode(const void *data, size_t len, struct kvfi_nixl_notif *notif,
                                       struct kvf_error *error)
{
    struct kvfi_reader reader;
    struct kvfi_nixl_notif found;
    if (len > KVFI_NIXL_NOTIF_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "NIXL notification of %zu bytes, at most %zu", len,
                        KVFI_NIXL_NOTIF_LEN_MAX);
    KVF_TRY(kvfi_serdes_open(&reader, data, len, error));
    KVF_TRY(kvfi_serdes_take(&reader, TAG_NAME, &found.name, error));
    KVF_TRY(kvfi_serdes_take(&reader, TAG_MSG, &found.msg, error));
    KVF_TRY(kvfi_serdes_close(&reader, error));
    KVF_TRY(check(&found, KVF_EFORMAT, error));
    *notif = found;
    return KVF_OK;
}
