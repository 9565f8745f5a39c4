/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/prefix_hash.h"

struct sip {
    uint64_t v0, v1, v2, v3;
};

static uint64_t rotate(uint64_t value, unsigned bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static void round_once(struct sip *s)
{
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static void absorb(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    round_once(s);
    round_once(s);
    s->v0 ^= word;
}

static uint64_t squeeze(struct sip *s)
{
    for (int i = 0; i < 4; i++)
        round_once(s);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

struct engine_prefix_hash engine_prefix_hash(const uint64_t key[2],
                                             struct engine_prefix_hash parent,
                                             const uint32_t *tokens, uint32_t token_count)
{
    struct sip s = {
        .v0 = key[0] ^ 0x736f6d6570736575ull,
        .v1 = key[1] ^ 0x646f72616e646f6dull ^ 0xee,
        .v2 = key[0] ^ 0x6c7967656e657261ull,
        .v3 = key[1] ^ 0x7465646279746573ull,
    };
    absorb(&s, parent.lo);
    absorb(&s, parent.hi);
    uint32_t i = 0;
    for (; i + 1 < token_count; i += 2)
        absorb(&s, tokens[i] | (uint64_t)tokens[i + 1] << 32);
    /* The last word holds the byte count modulo 256 and what is left, as in SipHash. */
    uint64_t last = ((uint64_t)token_count * 4 + 16) << 56;
    if (i < token_count)
        last |= tokens[i];
    absorb(&s, last);
    s.v2 ^= 0xee;
    struct engine_prefix_hash hash;
    hash.lo = squeeze(&s);
    s.v1 ^= 0xdd;
    hash.hi = squeeze(&s);
    return hash;
}
