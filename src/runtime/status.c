/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <string.h>

struct row {
    enum kvf_status status;
    const char *name;
    const char *text;
    const char *scope;
};

static const struct row *find_row(enum kvf_status status)
{
    static const struct row rows[] = {
#define ROW(name, value, text, scope) {(name), #name, (text), (scope)},
        KVF_STATUS_LIST(ROW)
#undef ROW
    };
    static const struct row unknown = {KVF_EINTERNAL, "unknown status", "unknown status",
                                       "unknown status"};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].status == status)
            return &rows[i];
    }
    return &unknown;
}

const char *kvf_status_name(enum kvf_status status)
{
    return find_row(status)->name;
}

const char *kvf_status_text(enum kvf_status status)
{
    return find_row(status)->text;
}

const char *kvf_status_scope(enum kvf_status status)
{
    return find_row(status)->scope;
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
