/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/rkey.h"

#include <string.h>

enum {
    MAP_LEN = 8,
    HEADER_LEN = MAP_LEN + 1,
};

static uint64_t read_map(const unsigned char *bytes)
{
    uint64_t map;
    memcpy(&map, bytes, sizeof(map));
    return map;
}

bool kvfi_rkey_check(const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    if (len < HEADER_LEN)
        return false;
    size_t left = len - HEADER_LEN;
    at += HEADER_LEN;
    for (uint64_t map = read_map(bytes); map; map &= map - 1) {
        if (left < 1 || left - 1 < at[0])
            return false;
        size_t entry_len = 1u + at[0];
        at += entry_len;
        left -= entry_len;
    }
    return true;
}

size_t kvfi_rkey_strip(void *bytes, size_t len)
{
    if (!kvfi_rkey_check(bytes, len))
        return len;
    unsigned char *start = bytes;
    size_t from = HEADER_LEN;
    size_t to = HEADER_LEN;
    uint64_t kept = read_map(start);
    for (uint64_t map = kept; map; map &= map - 1) {
        size_t entry_len = 1u + start[from];
        if (start[from] == 0) {
            kept &= ~(map & -map);
        } else {
            memmove(start + to, start + from, entry_len);
            to += entry_len;
        }
        from += entry_len;
    }
    memmove(start + to, start + from, len - from);
    memcpy(start, &kept, sizeof(kept));
    return to + (len - from);
}

bool kvfi_rkey_is_plain(const void *bytes, size_t len)
{
    enum { HOST_MEMORY = 0 };
    if (!kvfi_rkey_check(bytes, len) || ((const unsigned char *)bytes)[MAP_LEN] != HOST_MEMORY)
        return false;
    const unsigned char *at = (const unsigned char *)bytes + HEADER_LEN;
    for (uint64_t map = read_map(bytes); map; map &= map - 1, at++) {
        if (*at != 0)
            return false;
    }
    return true;
}
