/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and messages: every byte compared, every untouched byte still 0xee (gear F1). */
#include "agent/conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)256)
#define POOL   (BLOCK * BLOCKS)

/* After a transfer of [offset, offset + length) of blocks from[] into blocks to[]: those bytes are
 * the source's, all others untouched. */
static void expect_blocks(const unsigned char *target, size_t target_len, uint64_t seed,
                          const uint32_t *from, const uint32_t *to, size_t count, size_t stride,
                          size_t offset, size_t length)
{
    int64_t *source = malloc(target_len / stride * sizeof(source[0]));
    assert_non_null(source);
    for (size_t i = 0; i < target_len / stride; i++)
        source[i] = -1;
    for (size_t i = 0; i < count; i++)
        source[to[i]] = from[i];
    for (size_t at = 0; at < target_len; at++) {
        size_t inside = at % stride;
        int64_t block = source[at / stride];
        unsigned char expected = CONF_UNTOUCHED;
        if (block >= 0 && inside >= offset && inside < offset + length)
            expected = conf_pattern(seed, (uint64_t)block * stride + inside);
        if (target[at] != expected)
            fail_msg("byte %zu of block %zu is 0x%02x, not 0x%02x", inside, at / stride, target[at],
                     expected);
    }
    free(source);
}

static void scattered(enum kvf_operation operation, size_t stride, size_t offset, size_t length)
{
    struct conf_rig rig;
    uint32_t local[BLOCKS];
    uint32_t remote[BLOCKS];
    uint64_t state = 7 + stride + length;

    conf_start(&rig, POOL);
    conf_join(&rig);
    size_t blocks = POOL / stride;
    conf_shuffle(local, blocks, &state);
    conf_shuffle(remote, blocks, &state);
    struct conf_side *source = operation == KVF_WRITE ? &rig.a : &rig.b;
    const struct conf_side *target = operation == KVF_WRITE ? &rig.b : &rig.a;
    conf_fill(source->pool, POOL, 3);
    struct kvf_plan_region region = conf_region(&rig.a, &rig.b, stride, length);
    region.local.offset_bytes = offset;
    region.remote.offset_bytes = offset;

    size_t count = blocks * 2 / 3;
    struct kvf_transfer_id id =
        conf_post_blocks(&rig, operation, region, local, remote, count, "moved");
    conf_drive_counts(&rig, 1, 1);
    assert_int_equal(rig.a.results[0].transfer.value, id.value);
    assert_int_equal(rig.a.results[0].user_data, 77);
    assert_int_equal(rig.a.results[0].status, KVF_OK);
    assert_int_equal(rig.a.results[0].stats.bytes, count * length);
    assert_true(rig.a.results[0].stats.run_count <= count);
    assert_true(rig.a.results[0].stats.post_start_ns <= rig.a.results[0].stats.done_ns);
    assert_string_equal(rig.b.messages[0].name, kvf_agent_name(rig.a.agent));
    if (operation == KVF_WRITE)
        expect_blocks(target->pool, POOL, 3, local, remote, count, stride, offset, length);
    else
        expect_blocks(target->pool, POOL, 3, remote, local, count, stride, offset, length);
    for (size_t i = 0; i < POOL; i++) /* the source is only read */
        assert_int_equal(source->pool[i], conf_pattern(3, i));
    conf_stop(&rig);
}

static void write_scattered(void **state)
{
    scattered(KVF_WRITE, BLOCK, 0, BLOCK);
}

static void write_slices(void **state)
{
    scattered(KVF_WRITE, 2 * BLOCK, 100, 4001);
}

static void read_scattered(void **state)
{
    scattered(KVF_READ, BLOCK, 0, BLOCK);
}

static void read_slices(void **state)
{
    scattered(KVF_READ, 2 * BLOCK, 1, 17);
}

/* Adjacent registrations: a run that is one on both sides is cut where a registration ends. */
static void several_regions(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, 0);
    conf_take_pool(&rig.a, POOL);
    conf_take_pool(&rig.b, POOL);
    conf_fill(rig.a.pool, POOL, 1);
    const size_t local_ends[] = {BLOCK * 3, BLOCK * 10 + 5, POOL};
    const size_t remote_ends[] = {BLOCK * 7, BLOCK * 10, BLOCK * 100, POOL};
    size_t start = 0;
    for (size_t i = 0; i < 3; start = local_ends[i++])
        assert_int_equal(kvf_agent_register(rig.a.agent, rig.a.pool + start, local_ends[i] - start,
                                            KVF_MEMORY_DRAM, 0, &error),
                         KVF_OK);
    start = 0;
    for (size_t i = 0; i < 4; start = remote_ends[i++])
        assert_int_equal(kvf_agent_register(rig.b.agent, rig.b.pool + start, remote_ends[i] - start,
                                            KVF_MEMORY_DRAM, 0, &error),
                         KVF_OK);
    conf_join(&rig);
    uint32_t ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), ids, ids, BLOCKS,
                     NULL);
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(rig.a.results[0].status, KVF_OK);
    assert_int_equal(rig.a.results[0].stats.run_count, 6);
    assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 3, .peers = 1});
    conf_stop(&rig);
}

/* A small registration between a large one's start and the query hides the large one from NIXL. */
static void nested_registrations(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    for (size_t i = 1; i < 5; i++) {
        assert_int_equal(kvf_agent_register(rig.a.agent, rig.a.pool + i * BLOCK, BLOCK / i,
                                            KVF_MEMORY_DRAM, 0, &error),
                         KVF_OK);
        assert_int_equal(kvf_agent_register(rig.b.agent, rig.b.pool + i * BLOCK, BLOCK / i,
                                            KVF_MEMORY_DRAM, 0, &error),
                         KVF_OK);
    }
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 2);
    uint32_t ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), ids, ids, BLOCKS,
                     NULL);
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(rig.a.results[0].stats.run_count, 1);
    assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
    conf_stop(&rig);
}

static void thousands_of_descriptors(void **state)
{
    enum { SMALL = 64, COUNT = 20000 };
    struct conf_rig rig;
    uint32_t *local = malloc(COUNT * sizeof(local[0]));
    uint32_t *remote = malloc(COUNT * sizeof(remote[0]));
    uint64_t seed = 99;
    assert_non_null(local);
    assert_non_null(remote);
    conf_start(&rig, (size_t)SMALL * COUNT);
    conf_join(&rig);
    conf_shuffle(local, COUNT, &seed);
    conf_shuffle(remote, COUNT, &seed);
    conf_fill(rig.a.pool, rig.a.pool_len, 5);
    for (size_t round = 0; round < 3; round++)
        conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, SMALL, SMALL), local, remote,
                         COUNT - 1000, "many");
    conf_drive_counts(&rig, 3, 3);
    expect_blocks(rig.b.pool, rig.b.pool_len, 5, local, remote, COUNT - 1000, SMALL, 0, SMALL);
    conf_stop(&rig);
    free(local);
    free(remote);
}

/* B67: the receiver compares all of it inside the notification's callback. */
static void compare_all(struct conf_side *side, const void *data, size_t len)
{
    uint64_t seed = 0;
    assert_int_equal(len, sizeof(seed));
    memcpy(&seed, data, sizeof(seed));
    const struct conf_side *source = side->test;
    assert_memory_equal(source->pool, side->pool, side->pool_len);
    memset(side->pool, CONF_UNTOUCHED, side->pool_len);
}

static void notification_after_data(void **state)
{
    enum { PART = 16384, PARTS = 4096, ROUNDS = 6 };
    struct conf_rig rig;
    uint32_t *ids = malloc(PARTS * sizeof(ids[0]));
    uint64_t random = 4711;
    assert_non_null(ids);
    conf_start(&rig, (size_t)PART * PARTS);
    conf_join(&rig);
    rig.b.on_message = compare_all;
    rig.b.test = &rig.a;
    conf_fill(rig.a.pool, rig.a.pool_len, 8);
    conf_shuffle(ids, PARTS, &random);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        struct kvf_error error;
        struct kvf_transfer_id id;
        struct kvf_plan_region region = conf_region(&rig.a, &rig.b, PART, PART);
        struct kvf_block_pairs group = {.local_ids = ids, .remote_ids = ids, .count = PARTS};
        struct kvf_plan plan = {
            .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
        rig.a.pool[round * 1000] ^= 0x5a; /* each round has its own bytes */
        assert_int_equal(kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, &round,
                                        sizeof(round), round, &id, &error),
                         KVF_OK);
        conf_drive_counts(&rig, round, round);
        assert_int_equal(rig.a.results[round - 1].status, KVF_OK);
    }
    conf_stop(&rig);
    free(ids);
}

static void message_sizes_and_order(void **state)
{
    static const size_t sizes[] = {0,    1,     2,     100,      254, 255,      256,
                                   1024, 8191,  65536, 1u << 20, 3,   1u << 20, 0,
                                   5000, 70000, 12,    2000000,  7};
    enum { COUNT = sizeof(sizes) / sizeof(sizes[0]), LEN_MAX = 2000000 };
    struct conf_rig rig;
    struct kvf_error error;
    unsigned char *message = malloc(LEN_MAX);
    assert_non_null(message);
    conf_start(&rig, POOL);
    conf_join(&rig);
    for (size_t i = 0; i < COUNT; i++) {
        conf_fill(message, sizes[i], i);
        assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, message, sizes[i], i, &error),
                         KVF_OK);
        memset(message, 0, sizes[i]); /* it was copied */
        assert_int_equal(rig.b.message_count, 0);
    }
    conf_drive_counts(&rig, 0, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(rig.b.messages[i].len, sizes[i]);
        assert_string_equal(rig.b.messages[i].name, kvf_agent_name(rig.a.agent));
        for (size_t j = 0; j < sizes[i]; j++) {
            if (rig.b.messages[i].data[j] != conf_pattern(i, j))
                fail_msg("message %zu differs at byte %zu of %zu", i, j, sizes[i]);
        }
    }
    conf_settle(&rig);
    assert_int_equal(rig.a.notify_failed_count, 0);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});

    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, message, 64u << 20, 0, &error),
                     KVF_ELIMIT);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, NULL, 1, 0, &error), KVF_EINVAL);
    conf_stop(&rig);
    free(message);
}

static void many_small_messages(void **state)
{
    enum { COUNT = 5000 };
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    conf_join(&rig);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, &i, sizeof(i), i, &error),
                         KVF_OK);
    conf_drive_counts(&rig, 0, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_memory_equal(rig.b.messages[i].data, &i, sizeof(i));
    conf_stop(&rig);
}

static void empty_plan(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_plan plan = {0};
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_post(&rig, KVF_READ, &plan, "nothing but this");
    conf_drive_counts(&rig, 1, 1);
    assert_int_equal(rig.a.results[0].status, KVF_OK);
    assert_int_equal(rig.a.results[0].stats.run_count, 0);
    assert_int_equal(rig.b.messages[0].len, strlen("nothing but this"));

    /* an empty notification is not the same as none */
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, "", 0, 1, &id, &error), KVF_OK);
    conf_drive_counts(&rig, 2, 2);
    assert_int_equal(rig.b.messages[1].len, 0);
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, NULL, 0, 1, &id, &error),
        KVF_EINVAL);
    conf_stop(&rig);
}

static void expect_refused(struct conf_rig *rig, const struct kvf_plan *plan, const char *words)
{
    struct kvf_error error = {0};
    struct kvf_transfer_id id = {.value = 12345};
    assert_int_equal(
        kvf_agent_post(rig->a.agent, KVF_WRITE, rig->b_at_a, plan, "x", 1, 0, &id, &error),
        KVF_EINVAL);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    assert_int_equal(id.value, 12345);
    conf_expect_usage(rig->a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
}

static void bad_plans_post_nothing(void **state)
{
    struct conf_rig rig;
    uint32_t local[] = {1, 2, 3};
    uint32_t remote[] = {4, 6, 8};
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 1);
    const struct kvf_plan_region good = conf_region(&rig.a, &rig.b, BLOCK, BLOCK);
    struct kvf_plan_region regions[2] = {good, good};
    struct kvf_block_pairs group = {.local_ids = local, .remote_ids = remote, .count = 3};
    struct kvf_plan plan = {
        .regions = regions, .region_count = 2, .groups = &group, .group_count = 1};

    local[2] = (uint32_t)BLOCKS;
    expect_refused(&rig, &plan, "local block id 256 is out of range");
    local[2] = 3;
    remote[2] = UINT32_MAX;
    expect_refused(&rig, &plan, "remote block id 4294967295");
    remote[2] = 8;
    regions[1].local.base += POOL;
    expect_refused(&rig, &plan, "lies in no registered region");
    regions[1] = good;
    regions[1].remote.base -= POOL;
    expect_refused(&rig, &plan, "lies in no region that peer");
    regions[1] = good;
    regions[1].remote.device_id = 1;
    expect_refused(&rig, &plan, "on device 1");
    regions[1] = good;
    regions[1].remote.kind = KVF_MEMORY_VRAM;
    expect_refused(&rig, &plan, "lies in no region that peer");
    regions[1] = good;
    regions[1].remote.base += 1; /* the last byte of the last block is outside */
    regions[1].remote.block_count = BLOCKS;
    remote[2] = (uint32_t)BLOCKS - 1;
    expect_refused(&rig, &plan, "remote address");
    regions[1] = good;
    regions[1].group = 1;
    expect_refused(&rig, &plan, "group 1 does not exist");
    regions[1] = good;
    remote[2] = 8;

    for (size_t i = 0; i < POOL; i++)
        assert_int_equal(rig.b.pool[i], CONF_UNTOUCHED);
    conf_post(&rig, KVF_WRITE, &plan, "x"); /* and the same plan is good now */
    conf_drive_counts(&rig, 1, 1);
    expect_blocks(rig.b.pool, POOL, 1, local, remote, 3, BLOCK, 0, BLOCK);
    conf_stop(&rig);
}

static void post_again(struct conf_side *side, const struct conf_result *result)
{
    assert_int_equal(result->status, KVF_OK);
    if (side->result_count >= 50)
        return;
    uint32_t id = (uint32_t)side->result_count;
    struct conf_rig *rig = side->test;
    conf_post_blocks(rig, KVF_WRITE, conf_region(&rig->a, &rig->b, BLOCK, BLOCK), &id, &id, 1,
                     "again");
}

static void post_from_callback(void **state)
{
    struct conf_rig rig;
    uint32_t zero = 0;
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 6);
    rig.a.on_result = post_again;
    rig.a.test = &rig;
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), &zero, &zero, 1,
                     "again");
    conf_drive_counts(&rig, 50, 50);
    assert_memory_equal(rig.a.pool, rig.b.pool, 50 * BLOCK);
    assert_int_equal(rig.b.pool[50 * BLOCK], CONF_UNTOUCHED);
    conf_stop(&rig);
}

static void both_directions_at_once(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    uint32_t ids[BLOCKS / 2];
    uint32_t upper[BLOCKS / 2];
    for (uint32_t i = 0; i < BLOCKS / 2; i++) {
        ids[i] = i;
        upper[i] = (uint32_t)BLOCKS / 2 + i;
    }
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_fill(rig.a.pool, POOL / 2, 1);
    conf_fill(rig.b.pool, POOL / 2, 2);
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), ids, upper,
                     BLOCKS / 2, "to b");
    struct kvf_plan_region region = conf_region(&rig.b, &rig.a, BLOCK, BLOCK);
    struct kvf_block_pairs group = {.local_ids = ids, .remote_ids = upper, .count = BLOCKS / 2};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    assert_int_equal(
        kvf_agent_post(rig.b.agent, KVF_WRITE, rig.a_at_b, &plan, "to a", 4, 0, &id, &error),
        KVF_OK);
    conf_drive_counts(&rig, 1, 1);
    conf_settle(&rig);
    assert_int_equal(rig.b.result_count, 1);
    assert_memory_equal(rig.a.pool, rig.b.pool + POOL / 2, POOL / 2);
    assert_memory_equal(rig.b.pool, rig.a.pool + POOL / 2, POOL / 2);
    conf_stop(&rig);
}

int conf_run_transfers(void)
{
    const struct CMUnitTest transfers[] = {
        cmocka_unit_test(write_scattered),
        cmocka_unit_test(write_slices),
        cmocka_unit_test(read_scattered),
        cmocka_unit_test(read_slices),
        cmocka_unit_test(several_regions),
        cmocka_unit_test(nested_registrations),
        cmocka_unit_test(thousands_of_descriptors),
        cmocka_unit_test(notification_after_data),
        cmocka_unit_test(message_sizes_and_order),
        cmocka_unit_test(many_small_messages),
        cmocka_unit_test(empty_plan),
        cmocka_unit_test(bad_plans_post_nothing),
        cmocka_unit_test(post_from_callback),
        cmocka_unit_test(both_directions_at_once),
    };
    return cmocka_run_group_tests(transfers, NULL, NULL);
}
