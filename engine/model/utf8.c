/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer_impl.h"

/* The ranges of the second byte that keep out overlong forms, surrogates and what lies above
 * U+10FFFF (Unicode, table 3-7). */
static bool second_byte_range(uint8_t lead, uint8_t *low_p, uint8_t *high_p)
{
    *low_p = 0x80;
    *high_p = 0xbf;
    switch (lead) {
    case 0xe0:
        *low_p = 0xa0;
        break;
    case 0xed:
        *high_p = 0x9f;
        break;
    case 0xf0:
        *low_p = 0x90;
        break;
    case 0xf4:
        *high_p = 0x8f;
        break;
    default:
        break;
    }
    return lead >= 0xc2 && lead <= 0xf4;
}

unsigned utf8_length(const uint8_t *text, size_t len, unsigned *bad_p, bool *cut_p)
{
    uint8_t low, high;
    unsigned dummy;
    bool dummy_cut;
    if (!bad_p)
        bad_p = &dummy;
    if (!cut_p)
        cut_p = &dummy_cut;
    *bad_p = 1;
    *cut_p = false;
    if (text[0] < 0x80)
        return 1;
    if (!second_byte_range(text[0], &low, &high))
        return 0;
    unsigned size = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    for (unsigned i = 1; i < size; i++) {
        *bad_p = i;
        if (i == len) {
            *cut_p = true;
            return 0;
        }
        if (text[i] < low || text[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return size;
}
