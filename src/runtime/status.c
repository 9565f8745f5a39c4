/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <string.h>

const char *kvf_status_name(enum kvf_status status)
{
    switch (status) {
#define CASE(name, value, text, scope)                                                             \
    case name:                                                                                     \
        return #name;
        KVF_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown status";
}

const char *kvf_status_text(enum kvf_status status)
{
    switch (status) {
#define CASE(name, value, text, scope)                                                             \
    case name:                                                                                     \
        return text;
        KVF_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown status";
}

const char *kvf_status_scope(enum kvf_status status)
{
    switch (status) {
#define CASE(name, value, text, scope)                                                             \
    case name:                                                                                     \
        return scope;
        KVF_STATUS_LIST(CASE)
#undef CASE
    }
    return "unknown status";
}

enum kvf_status kvf_fail(struct kvf_error *error, enum kvf_status status, const char *fmt, ...)
{
    if (!error)
        return status;
    error->status = status;
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(error->text, sizeof(error->text), fmt, args);
    va_end(args);
    if (len < 0)
        error->text[0] = '\0';
    else if ((size_t)len >= sizeof(error->text))
        memcpy(error->text + sizeof(error->text) - 4, "...", 4);
    return status;
}

const char *kvf_version(void)
{
    return "0.1.0";
}
