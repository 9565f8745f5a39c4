/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_NOTIF_H
#define KVFI_WIRE_NOTIF_H

/*
 * The connector's notifications, as carried in the msg field of NIXL's notification:
 *
 *   PUSH_REG:<msgpack map>        decode -> prefill   blocks wait here (wire/push_reg.h)
 *   HB:<id>,<id>,...              decode -> prefill   renew the leases of these prefill-side ids
 *   <id>:<n>                      completion: one rank has delivered (push) or finished (pull)
 *   PUSH_FAIL:<decode id>:<tp>    prefill -> decode   will not be delivered   } ours, only to peers
 *   PUSH_DROP:<decode id>         decode -> prefill   no longer wanted        } that advertise it
 */

#include "wire/bytes.h"
#include "wire/push_reg.h"

#define KVFI_NOTIF_LEN_MAX     KVFI_PUSH_REG_LEN_MAX
#define KVFI_NOTIF_ID_LEN_MAX  KVFI_PUSH_REG_TEXT_LEN_MAX
#define KVFI_NOTIF_COUNT_MAX   65536 /* <n>: ranks */
#define KVFI_NOTIF_HB_PREFIX   "HB:"
#define KVFI_NOTIF_FAIL_PREFIX "PUSH_FAIL:"
#define KVFI_NOTIF_DROP_PREFIX "PUSH_DROP:"

enum kvfi_notif_kind {
    KVFI_NOTIF_PUSH_REG,
    KVFI_NOTIF_HEARTBEAT,
    KVFI_NOTIF_DONE,
    KVFI_NOTIF_PUSH_FAIL,
    KVFI_NOTIF_PUSH_DROP,
};

/* Static text: "PUSH_REG", "HB", "completion", "PUSH_FAIL", "PUSH_DROP". */
const char *kvfi_notif_kind_name(enum kvfi_notif_kind kind);

struct kvfi_notif {
    enum kvfi_notif_kind kind;
    struct kvfi_span request_id; /* DONE, PUSH_FAIL, PUSH_DROP; not terminated, never empty */
    uint32_t count;              /* DONE, PUSH_FAIL: 1 to KVFI_NOTIF_COUNT_MAX */
    struct kvfi_span body;       /* PUSH_REG: the whole message for kvfi_push_reg_decode();
                                    HEARTBEAT: the list for kvfi_notif_heartbeat_next() */
};

/* Sorts untrusted bytes into a kind. Spans point into data; takes no memory. A PUSH_REG body is
 * not looked at. KVF_EFORMAT with the reason (not UTF-8, no colon, empty id, bad number),
 * KVF_ELIMIT. */
enum kvf_status kvfi_notif_classify(const void *data, size_t len, struct kvfi_notif *notif,
                                    struct kvf_error *error) KVF_MUST_USE;

/* Walks a heartbeat's ids: cuts the next one off *list. Empty ones are skipped; one longer than
 * KVFI_NOTIF_ID_LEN_MAX too. False at the end. */
bool kvfi_notif_heartbeat_next(struct kvfi_span *list, struct kvfi_span *request_id);

/* Each appends one message. KVF_EINVAL for an id that is empty, too long or not UTF-8 (and, in a
 * heartbeat, contains a comma), or a count out of range. KVF_ELIMIT, KVF_ENOMEM. */
enum kvf_status kvfi_notif_done_encode(struct kvfi_span request_id, uint32_t count,
                                       struct kvfi_buf *buf, struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_notif_fail_encode(struct kvfi_span request_id, uint32_t prefill_tp_size,
                                       struct kvfi_buf *buf, struct kvf_error *error) KVF_MUST_USE;
enum kvf_status kvfi_notif_drop_encode(struct kvfi_span request_id, struct kvfi_buf *buf,
                                       struct kvf_error *error) KVF_MUST_USE;
/* An empty list is refused: there is nobody to renew. */
enum kvf_status kvfi_notif_heartbeat_encode(const struct kvfi_span *request_ids, size_t count,
                                            struct kvfi_buf *buf,
                                            struct kvf_error *error) KVF_MUST_USE;

/*
 * Length of the base id: id without one trailing '-' and 8 hex digits (either case), which is what
 * an engine appends to make an id its own. Returns id.len when there is no such tail.
 */
size_t kvfi_base_request_id(struct kvfi_span id);

#endif
