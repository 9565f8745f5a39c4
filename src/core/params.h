/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_PARAMS_H
#define KVFI_CORE_PARAMS_H

/* kv_transfer_params: what a client may say about a request, checked before anything is kept. */

#include "kvferry/kv.h"

enum kvfi_params_role {
    KVFI_PARAMS_ORDINARY, /* nothing for the connector */
    KVFI_PARAMS_PREFILL,
    KVFI_PARAMS_DECODE,
};

/* params may be NULL. KVF_EINVAL, KVF_ELIMIT or KVF_ENOTSUP with the key's name and its value. */
enum kvf_status kvfi_params_check(const struct kvf_transfer_params *params,
                                  const char *own_engine_id, enum kvfi_params_role *role_p,
                                  struct kvf_error *error) KVF_MUST_USE;

/* KVF_EINVAL or KVF_ELIMIT for a request id that cannot be carried. */
enum kvf_status kvfi_request_id_check(const char *name, const char *request_id,
                                      struct kvf_error *error) KVF_MUST_USE;

#endif
