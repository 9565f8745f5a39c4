/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/carry_wire.h"

#include <string.h>

enum { VERSION = 1 };

static const unsigned char magic[8] = "KVFERRY";

static void put_le(unsigned char *out, size_t len, uint64_t value)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get_le(const unsigned char *in, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

void kvfi_carry_encode(const struct kvfi_carry_header *header,
                       unsigned char out[KVFI_CARRY_HEADER_LEN])
{
    memset(out, 0, KVFI_CARRY_HEADER_LEN);
    out[0] = VERSION;
    out[1] = (unsigned char)header->kind;
    put_le(out + 4, 4, header->result);
    put_le(out + 8, 8, header->token);
    put_le(out + 16, 8, header->addr);
}

bool kvfi_carry_decode(const void *bytes, size_t len, struct kvfi_carry_header *header)
{
    const unsigned char *in = bytes;
    if (len != KVFI_CARRY_HEADER_LEN || in[0] != VERSION ||
        (in[1] != KVFI_CARRY_DATA && in[1] != KVFI_CARRY_LANDED))
        return false;
    header->kind = (enum kvfi_carry_kind)in[1];
    header->result = (uint32_t)get_le(in + 4, 4);
    header->token = get_le(in + 8, 8);
    header->addr = get_le(in + 16, 8);
    return true;
}

void kvfi_trailer_encode(uint64_t abilities, unsigned char out[KVFI_TRAILER_LEN])
{
    memcpy(out, magic, sizeof(magic));
    put_le(out + sizeof(magic), 8, abilities);
}

size_t kvfi_trailer_decode(const void *address, size_t len, uint64_t *abilities_p)
{
    *abilities_p = 0;
    if (len < KVFI_TRAILER_LEN)
        return len;
    const unsigned char *trailer = (const unsigned char *)address + (len - KVFI_TRAILER_LEN);
    if (memcmp(trailer, magic, sizeof(magic)) != 0)
        return len;
    *abilities_p = get_le(trailer + sizeof(magic), 8);
    return len - KVFI_TRAILER_LEN;
}
