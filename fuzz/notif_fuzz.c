/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/notif.h"

#include "fuzz.h"

/* Every id of a list, encoded one by one, reads as a list of that one id. */
static void check_heartbeat(struct kvfi_span list)
{
    struct kvfi_span id, only;
    struct kvf_error error;
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    while (kvfi_notif_heartbeat_next(&list, &id)) {
        struct kvfi_notif notif;
        FUZZ_CHECK(id.len > 0 && id.len <= KVFI_NOTIF_ID_LEN_MAX);
        FUZZ_CHECK(kvfi_base_request_id(id) <= id.len);
        kvfi_buf_clear(&buf);
        if (kvfi_notif_heartbeat_encode(&id, 1, &buf, &error) != KVF_OK)
            continue; /* an id with a NUL, which we never send */
        FUZZ_CHECK(kvfi_notif_classify(buf.data, buf.len, &notif, &error) == KVF_OK);
        FUZZ_CHECK(notif.kind == KVFI_NOTIF_HEARTBEAT);
        FUZZ_CHECK(kvfi_notif_heartbeat_next(&notif.body, &only));
        FUZZ_CHECK(kvfi_span_equal(id, only));
    }
    kvfi_buf_deinit(&buf);
}

static void check_round_trip(const struct kvfi_notif *notif)
{
    struct kvfi_notif again;
    struct kvf_error error;
    struct kvfi_buf buf;
    enum kvf_status status;
    kvfi_buf_init(&buf, NULL);
    if (notif->kind == KVFI_NOTIF_DONE)
        status = kvfi_notif_done_encode(notif->request_id, notif->count, &buf, &error);
    else if (notif->kind == KVFI_NOTIF_PUSH_FAIL)
        status = kvfi_notif_fail_encode(notif->request_id, notif->count, &buf, &error);
    else
        status = kvfi_notif_drop_encode(notif->request_id, &buf, &error);
    FUZZ_CHECK(status == KVF_OK);
    FUZZ_CHECK(kvfi_notif_classify(buf.data, buf.len, &again, &error) == KVF_OK);
    FUZZ_CHECK(again.kind == notif->kind);
    FUZZ_CHECK(again.count == notif->count);
    FUZZ_CHECK(kvfi_span_equal(again.request_id, notif->request_id));
    FUZZ_CHECK(kvfi_base_request_id(again.request_id) <= again.request_id.len);
    kvfi_buf_deinit(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_notif notif;
    struct kvf_error error;
    if (kvfi_notif_classify(data, size, &notif, &error) != KVF_OK)
        return 0;
    if (notif.kind == KVFI_NOTIF_HEARTBEAT)
        check_heartbeat(notif.body);
    else if (notif.kind != KVFI_NOTIF_PUSH_REG)
        check_round_trip(&notif);
    return 0;
}
