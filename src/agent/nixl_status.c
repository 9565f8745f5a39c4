/* SPDX-License-Identifier: Apache-2.0 */
/* What NIXL would have said. */
#include "kvferry/agent.h"

enum nixl_status {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11,
};

int kvf_status_nixl(enum kvf_status status)
{
    switch (status) {
    case KVF_OK:
        return NIXL_SUCCESS;
    case KVF_AGAIN:
    case KVF_IN_PROGRESS:
        return NIXL_IN_PROG;
    case KVF_EINVAL:
    case KVF_ELIMIT:
        return NIXL_ERR_INVALID_PARAM;
    case KVF_ENOTFOUND:
        return NIXL_ERR_NOT_FOUND;
    case KVF_EFORMAT:
    case KVF_EMISMATCH:
        return NIXL_ERR_MISMATCH;
    case KVF_EEXIST:
    case KVF_ENOTALLOWED:
        return NIXL_ERR_NOT_ALLOWED;
    case KVF_EBUSY:
        return NIXL_ERR_REPOST_ACTIVE;
    case KVF_ENOTSUP:
        return NIXL_ERR_NOT_SUPPORTED;
    case KVF_EDISCONNECTED:
        return NIXL_ERR_REMOTE_DISCONNECT;
    case KVF_ECANCELED:
        return NIXL_ERR_CANCELED;
    case KVF_ENOMEM:
    case KVF_ETRANSPORT:
    case KVF_ESYSTEM:
        return NIXL_ERR_BACKEND;
    case KVF_ETIMEDOUT:
    case KVF_ECLOSED:
    case KVF_EINTERNAL:
        return NIXL_ERR_UNKNOWN;
    }
    return NIXL_ERR_UNKNOWN;
}
