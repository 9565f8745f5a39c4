/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks, their bytes, and moving them from either side. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

/* splitmix64: seeded, the same everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

unsigned char pattern(uint64_t seed, uint64_t offset)
{
    uint64_t state = seed ^ (offset >> 3);
    return (unsigned char)(next_random(&state) >> (8 * (offset & 7)));
}

void fill(unsigned char *bytes, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t state = seed ^ (i >> 3);
        uint64_t word = next_random(&state);
        memcpy(bytes + i, &word, len - i < 8 ? len - i : 8);
    }
}

static uint32_t *some_blocks(size_t count, size_t of, uint64_t *state)
{
    uint32_t *ids = calloc(of, sizeof(ids[0]));
    assert_non_null(ids);
    for (size_t i = 0; i < of; i++)
        ids[i] = (uint32_t)i;
    for (size_t i = 0; i < count && i < of; i++) {
        size_t other = i + next_random(state) % (of - i);
        uint32_t id = ids[i];
        ids[i] = ids[other];
        ids[other] = id;
    }
    return ids;
}

struct blocks blocks_make(size_t count, size_t block_len, uint64_t seed)
{
    size_t of = POOL_LEN / block_len;
    assert_true(count <= of);
    return (struct blocks){.count = count,
                           .block_len = block_len,
                           .here = some_blocks(count, of, &seed),
                           .there = some_blocks(count, of, &seed)};
}

void blocks_free(struct blocks *blocks)
{
    free(blocks->here);
    free(blocks->there);
}

void expect_moved(const struct rig *rig, enum kvf_operation toward, const struct blocks *blocks,
                  uint64_t seed)
{
    bool to_us = toward == KVF_READ;
    const unsigned char *to = to_us ? rig->us.pool : rig->peer.pool;
    const uint32_t *to_ids = to_us ? blocks->here : blocks->there;
    const uint32_t *from_ids = to_us ? blocks->there : blocks->here;
    unsigned char *expected = malloc(POOL_LEN);
    unsigned char *source = malloc(POOL_LEN);
    assert_non_null(expected);
    assert_non_null(source);
    fill(source, POOL_LEN, seed);
    memset(expected, UNTOUCHED, POOL_LEN);
    for (size_t i = 0; i < blocks->count; i++)
        memcpy(expected + to_ids[i] * blocks->block_len, source + from_ids[i] * blocks->block_len,
               blocks->block_len);
    /* memcmp first: these are megabytes, and cmocka's comparison would print them */
    if (memcmp(to, expected, POOL_LEN) != 0)
        fail_msg("the destination differs, or a byte moved that must not");
    if (memcmp(to_us ? rig->peer.pool : rig->us.pool, source, POOL_LEN) != 0)
        fail_msg("the source was written to");
    free(source);
    free(expected);
}

void post(struct rig *rig, enum kvf_operation operation, const struct blocks *blocks,
          const void *notification, size_t notification_len)
{
    struct kvf_block_table table = {.stride_bytes = blocks->block_len,
                                    .block_count = POOL_LEN / blocks->block_len};
    struct kvf_plan_region region = {
        .local = table, .remote = table, .length_bytes = blocks->block_len};
    region.local.base = (uint64_t)(uintptr_t)rig->us.pool;
    region.remote.base = rig->peer.base;
    struct kvf_block_pairs pairs = {
        .local_ids = blocks->here, .remote_ids = blocks->there, .count = blocks->count};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &pairs, .group_count = 1};
    struct kvf_transfer_id id;
    struct kvf_error error = {0};
    if (kvf_agent_post(rig->us.agent, operation, rig->peer.at_us, &plan, notification,
                       notification_len, 0, &id, &error) != KVF_OK)
        fail_msg("post: %s", error.text);
}

unsigned char *transfer_table(const struct rig *rig, const struct blocks *blocks,
                              const void *message, size_t message_len, size_t *len_p)
{
    const size_t row_len = 3 * sizeof(uint64_t);
    unsigned char *table = malloc(blocks->count * row_len + message_len + 1);
    assert_non_null(table);
    for (size_t i = 0; i < blocks->count; i++) {
        uint64_t row[3] = {rig->peer.base + blocks->there[i] * blocks->block_len,
                           (uint64_t)(uintptr_t)rig->us.pool + blocks->here[i] * blocks->block_len,
                           blocks->block_len};
        memcpy(table + i * row_len, row, row_len);
    }
    memcpy(table + blocks->count * row_len, message, message_len);
    *len_p = blocks->count * row_len + message_len;
    return table;
}

void expect_notif_there(struct rig *rig, const void *message, size_t len)
{
    const char *name = kvf_agent_name(rig->us.agent);
    uint64_t lengths[2];
    must_ask(rig, NULL, 0, "notifs 1");
    assert_int_equal(rig->peer.answer_len, sizeof(lengths) + strlen(name) + len);
    memcpy(lengths, rig->peer.answer, sizeof(lengths));
    assert_int_equal(lengths[0], strlen(name));
    assert_int_equal(lengths[1], len);
    assert_memory_equal(rig->peer.answer + sizeof(lengths), name, strlen(name));
    assert_int_equal(memcmp(rig->peer.answer + sizeof(lengths) + strlen(name), message, len), 0);
}

void expect_notif_here(const struct rig *rig, size_t index, const void *message, size_t len)
{
    assert_true(index < rig->us.message_count);
    const struct message *kept = &rig->us.messages[index];
    assert_string_equal(kept->name, rig->peer.name);
    assert_int_equal(kept->len, len);
    assert_int_equal(memcmp(kept->data, message, len), 0);
}

static void run_ours(struct rig *rig, enum kvf_operation operation, const struct blocks *blocks)
{
    size_t before = rig->us.result_count;
    post(rig, operation, blocks, "done", 4);
    drive_counts(rig, before + 1, 0);
    assert_int_equal(rig->us.results[before].status, KVF_OK);
    expect_notif_there(rig, "done", 4);
}

static void run_theirs(struct rig *rig, enum initiator initiator, enum kvf_operation operation,
                       const struct blocks *blocks, unsigned worker)
{
    size_t len = 0;
    unsigned char *table = transfer_table(rig, blocks, "done", 4, &len);
    size_t messages = rig->us.message_count;
    must_ask(rig, table, len, "transfer %s %s %s %zu %u", operation == KVF_WRITE ? "WRITE" : "READ",
             kvf_agent_name(rig->us.agent), initiator == BY_NIXL_LIST ? "list" : "prepared",
             blocks->count, worker);
    free(table);
    assert_string_equal((const char *)rig->peer.answer, "DONE");
    drive_counts(rig, 0, messages + 1);
    expect_notif_here(rig, messages, "done", 4);
}

void move_and_compare(struct rig *rig, enum initiator initiator, enum kvf_operation operation,
                      const struct blocks *blocks, unsigned worker)
{
    static uint64_t seed = 1;
    bool to_us = (initiator == BY_US) == (operation == KVF_READ);
    fill(to_us ? rig->peer.pool : rig->us.pool, POOL_LEN, ++seed);
    memset(to_us ? rig->us.pool : rig->peer.pool, UNTOUCHED, POOL_LEN);
    if (initiator == BY_US)
        run_ours(rig, operation, blocks);
    else
        run_theirs(rig, initiator, operation, blocks, worker);
    expect_moved(rig, to_us ? KVF_READ : KVF_WRITE, blocks, seed);
}

void move_all_ways(struct rig *rig, size_t count, size_t block_len)
{
    struct blocks blocks = blocks_make(count, block_len, count);
    for (unsigned worker = 0; worker < nixl_options.workers; worker++) {
        for (enum initiator initiator = BY_US; initiator <= BY_NIXL_PREPARED; initiator++) {
            move_and_compare(rig, initiator, KVF_WRITE, &blocks, worker);
            move_and_compare(rig, initiator, KVF_READ, &blocks, worker);
        }
    }
    blocks_free(&blocks);
}
