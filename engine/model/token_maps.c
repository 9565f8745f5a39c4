/* SPDX-License-Identifier: Apache-2.0 */
/* The two hash tables of the tokenizer: open addressing, at most half full, never grown. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

static uint32_t slots_for(size_t count_max)
{
    uint32_t slots = 16;
    while (slots / 2 < count_max)
        slots *= 2;
    return slots;
}

static uint32_t hash_bytes(const char *data, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;
    while (len >= sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        data += sizeof word;
        len -= sizeof word;
    }
    uint64_t tail = 0;
    memcpy(&tail, data, len);
    h = (h ^ tail) * 0xff51afd7ed558ccdu;
    h ^= h >> 29;
    h *= 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

bool string_map_init(struct string_map *map, size_t count_max)
{
    uint32_t slots = slots_for(count_max);
    map->slots = calloc(slots, sizeof *map->slots);
    map->mask = slots - 1;
    return map->slots != NULL;
}

void string_map_free(struct string_map *map)
{
    free(map->slots);
    map->slots = NULL;
}

void string_map_add(struct string_map *map, const struct gguf_string *strings, uint32_t index)
{
    struct gguf_string s = strings[index];
    uint32_t at = hash_bytes(s.data, s.len) & map->mask;
    while (map->slots[at] != 0) {
        struct gguf_string other = strings[map->slots[at] - 1];
        if (other.len == s.len && memcmp(other.data, s.data, s.len) == 0)
            return;
        at = (at + 1) & map->mask;
    }
    map->slots[at] = index + 1;
}

uint32_t string_map_find(const struct string_map *map, const struct gguf_string *strings,
                         const char *data, size_t len)
{
    uint32_t at = hash_bytes(data, len) & map->mask;
    while (map->slots[at] != 0) {
        struct gguf_string other = strings[map->slots[at] - 1];
        if (other.len == len && memcmp(other.data, data, len) == 0)
            return map->slots[at] - 1;
        at = (at + 1) & map->mask;
    }
    return ENGINE_TOKEN_NONE;
}

static uint32_t hash_pair(uint64_t pair)
{
    pair *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(pair >> 32);
}

bool merge_map_init(struct merge_map *map, size_t count_max)
{
    uint32_t slots = slots_for(count_max);
    map->slots = malloc(slots * sizeof *map->slots);
    map->mask = slots - 1;
    if (!map->slots)
        return false;
    for (uint32_t i = 0; i < slots; i++)
        map->slots[i] = (struct merge){.id = ENGINE_TOKEN_NONE};
    return true;
}

void merge_map_free(struct merge_map *map)
{
    free(map->slots);
    map->slots = NULL;
}

void merge_map_add(struct merge_map *map, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t at = hash_pair(pair) & map->mask;
    while (map->slots[at].id != ENGINE_TOKEN_NONE) {
        if (map->slots[at].pair == pair)
            return;
        at = (at + 1) & map->mask;
    }
    map->slots[at] = (struct merge){pair, rank, id};
}

const struct merge *merge_map_find(const struct merge_map *map, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t at = hash_pair(pair) & map->mask;
    while (map->slots[at].id != ENGINE_TOKEN_NONE) {
        if (map->slots[at].pair == pair)
            return &map->slots[at];
        at = (at + 1) & map->mask;
    }
    return NULL;
}
