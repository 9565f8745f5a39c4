/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/request_id.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { SUFFIX_LEN = 9 };

bool kvfi_request_id_is_sane(const char *id)
{
    size_t len = strnlen(id, KVFI_REQUEST_ID_LEN_MAX + 1);
    if (!len || len > KVFI_REQUEST_ID_LEN_MAX)
        return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") == len;
}

enum kvf_status kvfi_uuid4(char uuid[KVFI_UUID_LEN + 1], struct kvf_error *error)
{
    unsigned char b[16];
    ssize_t got = 0;
    do {
        got = getrandom(b, sizeof(b), 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(b))
        return kvf_fail(error, KVF_ESYSTEM, "getrandom: %s", strerror(errno));
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    snprintf(uuid, KVFI_UUID_LEN + 1,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return KVF_OK;
}

size_t kvfi_request_id_base_len(const char *id)
{
    size_t len = strlen(id);
    if (len < SUFFIX_LEN || id[len - SUFFIX_LEN] != '-')
        return len;
    const char *digits = id + len - SUFFIX_LEN + 1;
    return strspn(digits, "0123456789abcdefABCDEF") == SUFFIX_LEN - 1 ? len - SUFFIX_LEN : len;
}
