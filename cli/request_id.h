/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_REQUEST_ID_H
#define KVFERRY_CLI_REQUEST_ID_H

#include "kvferry/status.h"

enum { KVFI_UUID_LEN = 36, KVFI_REQUEST_ID_LEN_MAX = 128 };

/* True for an X-Request-Id that can be handed on: 1 to 128 letters, digits, '.', '_', ':' or '-'.
 * Any thread. */
bool kvfi_request_id_is_sane(const char *id);

/* A random uuid4 in lower case. KVF_ESYSTEM when the system has no entropy. Any thread. */
KVF_MUST_USE enum kvf_status kvfi_uuid4(char uuid[KVFI_UUID_LEN + 1], struct kvf_error *error);

/* The length of an engine's request id without the random suffix: one trailing '-' and 8
 * hexadecimal digits are left out. Any thread. */
size_t kvfi_request_id_base_len(const char *id);

#endif
