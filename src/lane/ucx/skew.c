/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/skew.h"

enum {
    FLAG_NAME = 0x10,
    FLAG_UUID = 0x20,
    FLAG_CLIENT = 0x40,
    ID_LEN = 8,

    LAST = 0x80, /* in a length */
    NO_TRANSPORT = 0x80,
    DEVICE_PATHS = 0x40,
    DEVICE_SYSTEM = 0x20,
    DEVICE_LEN = 0x1f,
    TRANSPORT_ENDPOINT = 0x40,
    TRANSPORT_LEN = 0x3f,
    TRANSPORT_INFO = 2 + 16,

    MINOR_MASK = 0x0f,
    FIRST_TO_ANNOUNCE = 16,
    CHOICE_CHANGED = 19,
};

struct reader {
    const unsigned char *at;
    size_t left;
};

static bool skip(struct reader *reader, size_t len)
{
    if (len > reader->left)
        return false;
    reader->at += len;
    reader->left -= len;
    return true;
}

static bool take(struct reader *reader, unsigned *byte_p)
{
    if (reader->left == 0)
        return false;
    *byte_p = *reader->at;
    return skip(reader, 1);
}

static bool skip_header(struct reader *reader)
{
    unsigned flags = 0;
    unsigned name_len = 0;
    if (!take(reader, &flags))
        return false;
    if ((flags & FLAG_UUID) && !skip(reader, ID_LEN))
        return false;
    if ((flags & FLAG_CLIENT) && !skip(reader, ID_LEN))
        return false;
    return !(flags & FLAG_NAME) || (take(reader, &name_len) && skip(reader, name_len));
}

static bool skip_transports(struct reader *reader)
{
    unsigned len = 0;
    do {
        if (!skip(reader, TRANSPORT_INFO) || !take(reader, &len) || (len & TRANSPORT_ENDPOINT) ||
            !skip(reader, len & TRANSPORT_LEN))
            return false;
    } while (!(len & LAST));
    return true;
}

/* The announced remainder, or -1 when there is none, or -2 when the address is not readable. */
static int announced(struct reader reader)
{
    unsigned domain = 0;
    unsigned len = 0;
    if (!skip_header(&reader))
        return -2;
    do {
        if (!take(&reader, &domain) || !take(&reader, &len))
            return -2;
        if (domain & NO_TRANSPORT && len == LAST && reader.left == 0)
            return (int)(domain & MINOR_MASK);
        size_t more = ((len & DEVICE_PATHS) ? 1 : 0) + ((len & DEVICE_SYSTEM) ? 1 : 0);
        if (!skip(&reader, more + (len & DEVICE_LEN)))
            return -2;
        if (!(domain & NO_TRANSPORT) && !skip_transports(&reader))
            return -2;
    } while (!(len & LAST));
    return reader.left == 0 ? -1 : -2;
}

static unsigned nearest(unsigned remainder, unsigned ours)
{
    unsigned best = remainder + FIRST_TO_ANNOUNCE;
    for (unsigned minor = best; minor <= ours + FIRST_TO_ANNOUNCE; minor += FIRST_TO_ANNOUNCE) {
        unsigned distance = minor > ours ? minor - ours : ours - minor;
        unsigned best_distance = best > ours ? best - ours : ours - best;
        if (distance < best_distance)
            best = minor;
    }
    return best;
}

unsigned kvfi_skew_minor(const void *address, size_t len, unsigned ours)
{
    const unsigned char *bytes = address;
    if (len == 0)
        return KVFI_SKEW_UNKNOWN;
    if ((bytes[0] & 0x0f) == 1) {
        unsigned remainder = bytes[0] >> 4;
        return remainder ? nearest(remainder, ours) : KVFI_SKEW_UNKNOWN;
    }
    if ((bytes[0] & 0x0f) != 0)
        return KVFI_SKEW_UNKNOWN;
    int remainder = announced((struct reader){.at = bytes, .left = len});
    if (remainder == -1)
        return KVFI_SKEW_LEGACY;
    return remainder < 0 ? KVFI_SKEW_UNKNOWN : nearest((unsigned)remainder, ours);
}

bool kvfi_skew_cuts_loopback(unsigned ours, unsigned theirs)
{
    if (theirs == KVFI_SKEW_UNKNOWN || ours == theirs)
        return false;
    unsigned older = ours < theirs ? ours : theirs;
    unsigned newer = ours < theirs ? theirs : ours;
    return newer >= CHOICE_CHANGED && older < KVFI_SKEW_LOOPBACK_CHANGED;
}
