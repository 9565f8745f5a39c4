/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/block_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 8, SIZE = 4 };

static const uint64_t key[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

static struct engine_block_pool *make(uint32_t blocks)
{
    struct engine_block_pool *pool = NULL;
    assert_int_equal(KVF_OK, engine_block_pool_create(blocks, SIZE, key, &pool, NULL));
    return pool;
}

/* Takes blocks for the tokens, caches all whole ones, returns how many blocks. */
static uint32_t fill(struct engine_block_pool *pool, const uint32_t *tokens, uint32_t count,
                     uint32_t *ids)
{
    uint32_t blocks = (count + SIZE - 1) / SIZE;
    struct engine_prefix_hash hash = ENGINE_PREFIX_ROOT;
    assert_int_equal(KVF_OK, engine_block_pool_take(pool, blocks, ids));
    for (uint32_t i = 0; i < count / SIZE; i++)
        hash = engine_block_pool_cache(pool, ids[i], hash, tokens + (size_t)i * SIZE);
    return blocks;
}

static void test_refuses_absurd_sizes(void **state)
{
    (void)state;
    struct engine_block_pool *pool = NULL;
    const uint32_t bad_sizes[] = {0, 3, 12, 8192};
    for (size_t i = 0; i < sizeof(bad_sizes) / sizeof(bad_sizes[0]); i++)
        assert_int_equal(KVF_EINVAL,
                         engine_block_pool_create(BLOCKS, bad_sizes[i], key, &pool, NULL));
    assert_int_equal(KVF_EINVAL, engine_block_pool_create(0, SIZE, key, &pool, NULL));
    assert_int_equal(KVF_EINVAL, engine_block_pool_create(UINT32_MAX, SIZE, key, &pool, NULL));
    assert_null(pool);
}

static void test_takes_all_or_nothing(void **state)
{
    (void)state;
    struct engine_block_pool *pool = make(BLOCKS);
    uint32_t ids[BLOCKS + 1];
    assert_int_equal(KVF_AGAIN, engine_block_pool_take(pool, BLOCKS + 1, ids));
    assert_int_equal(BLOCKS, engine_block_pool_free_count(pool));
    assert_int_equal(KVF_OK, engine_block_pool_take(pool, BLOCKS, ids));
    assert_int_equal(KVF_AGAIN, engine_block_pool_take(pool, 1, ids));
    assert_int_equal(KVF_OK, engine_block_pool_take(pool, 0, ids));
    engine_block_pool_give(pool, ids, BLOCKS);
    assert_true(engine_block_pool_consistent(pool));
    engine_block_pool_destroy(pool);
}

static void test_finds_the_longest_prefix(void **state)
{
    (void)state;
    struct engine_block_pool *pool = make(BLOCKS);
    uint32_t tokens[14];
    uint32_t ids[4];
    uint32_t hits[4];
    for (uint32_t i = 0; i < 14; i++)
        tokens[i] = i;
    assert_int_equal(4, fill(pool, tokens, 14, ids));
    assert_int_equal(3, engine_block_pool_match(pool, tokens, 14, hits, NULL));
    assert_memory_equal(ids, hits, 3 * sizeof(*ids));
    assert_int_equal(2, engine_block_pool_holders(pool, ids[0]));
    engine_block_pool_give(pool, hits, 3);
    assert_int_equal(2, engine_block_pool_match(pool, tokens, 11, hits, NULL));
    engine_block_pool_give(pool, hits, 2);
    tokens[5]++;
    assert_int_equal(1, engine_block_pool_match(pool, tokens, 14, hits, NULL));
    engine_block_pool_give(pool, hits, 1);
    tokens[0]++;
    assert_int_equal(0, engine_block_pool_match(pool, tokens, 14, hits, NULL));
    assert_int_equal(0, engine_block_pool_match(pool, tokens, 0, hits, NULL));
    engine_block_pool_give(pool, ids, 4);
    assert_true(engine_block_pool_consistent(pool));
    engine_block_pool_destroy(pool);
}

/* The same tokens at another depth are other content. */
static void test_position_matters(void **state)
{
    (void)state;
    struct engine_block_pool *pool = make(BLOCKS);
    const uint32_t tokens[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    uint32_t ids[2];
    uint32_t hits[2];
    fill(pool, tokens, 8, ids);
    assert_int_equal(2, engine_block_pool_match(pool, tokens, 8, hits, NULL));
    assert_int_equal(ids[0], hits[0]);
    assert_int_equal(ids[1], hits[1]);
    engine_block_pool_give(pool, hits, 2);
    engine_block_pool_give(pool, ids, 2);
    engine_block_pool_destroy(pool);
}

static void test_free_blocks_stay_cached_until_taken(void **state)
{
    (void)state;
    struct engine_block_pool *pool = make(BLOCKS);
    uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t b[8] = {9, 2, 3, 4, 5, 6, 7, 8};
    uint32_t ids_a[2];
    uint32_t ids_b[2];
    uint32_t taken[5];
    uint32_t hits[2];
    struct engine_block_usage usage;
    fill(pool, a, 8, ids_a);
    fill(pool, b, 8, ids_b);
    engine_block_pool_give(pool, ids_a, 2);
    engine_block_pool_give(pool, ids_b, 2);
    engine_block_pool_usage(pool, &usage);
    assert_int_equal(4, usage.cached);
    assert_int_equal(BLOCKS, usage.free);
    /* The four that were never used go first, then the end of the older prefix. */
    assert_int_equal(KVF_OK, engine_block_pool_take(pool, 5, taken));
    assert_int_equal(1, engine_block_pool_match(pool, a, 8, hits, NULL));
    engine_block_pool_give(pool, hits, 1);
    assert_int_equal(2, engine_block_pool_match(pool, b, 8, hits, NULL));
    engine_block_pool_give(pool, hits, 2);
    engine_block_pool_give(pool, taken, 5);
    assert_true(engine_block_pool_consistent(pool));
    engine_block_pool_destroy(pool);
}

static void test_same_content_is_cached_once(void **state)
{
    (void)state;
    struct engine_block_pool *pool = make(BLOCKS);
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t first[2];
    uint32_t second[2];
    uint32_t hits[2];
    fill(pool, tokens, 8, first);
    fill(pool, tokens, 8, second);
    engine_block_pool_give(pool, first, 2);
    engine_block_pool_give(pool, second, 2);
    assert_int_equal(2, engine_block_pool_match(pool, tokens, 8, hits, NULL));
    assert_memory_equal(first, hits, sizeof(first));
    engine_block_pool_give(pool, hits, 2);
    assert_true(engine_block_pool_consistent(pool));
    engine_block_pool_destroy(pool);
}

static void test_hash_depends_on_everything(void **state)
{
    (void)state;
    const uint64_t other_key[2] = {1, 2};
    uint32_t tokens[5] = {1, 2, 3, 4, 0};
    struct engine_prefix_hash root = ENGINE_PREFIX_ROOT;
    struct engine_prefix_hash hash = engine_prefix_hash(key, root, tokens, 4);
    assert_true(engine_prefix_equal(hash, engine_prefix_hash(key, root, tokens, 4)));
    assert_false(engine_prefix_equal(hash, engine_prefix_hash(other_key, root, tokens, 4)));
    assert_false(engine_prefix_equal(hash, engine_prefix_hash(key, hash, tokens, 4)));
    assert_false(engine_prefix_equal(hash, engine_prefix_hash(key, root, tokens, 3)));
    assert_false(engine_prefix_equal(hash, engine_prefix_hash(key, root, tokens, 5)));
    tokens[3] = 5;
    assert_false(engine_prefix_equal(hash, engine_prefix_hash(key, root, tokens, 4)));
}

/* The published vector of SipHash-2-4-128 for 0x00..0x0f after 16 bytes 0x00..0x0f of key: our
 * input is the parent (16 bytes) and then token ids, so zero tokens hash exactly the parent. */
static void test_hash_is_siphash(void **state)
{
    (void)state;
    const struct engine_prefix_hash parent = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};
    const unsigned char expected[16] = {0x6e, 0xe2, 0xa4, 0xca, 0x67, 0xb0, 0x54, 0xbb,
                                        0xfd, 0x33, 0x15, 0xbf, 0x85, 0x23, 0x05, 0x77};
    struct engine_prefix_hash hash = engine_prefix_hash(key, parent, NULL, 0);
    unsigned char bytes[16];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(hash.lo >> (8 * i));
        bytes[8 + i] = (unsigned char)(hash.hi >> (8 * i));
    }
    assert_memory_equal(expected, bytes, 16);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Random holders that take, match, cache and give; the content of a block that somebody else may
 * find never changes while it is held. */
static void test_random_use(void **state)
{
    (void)state;
    enum { HOLDERS = 6, LEN_MAX = 20, STEPS = 20000 };
    struct holder {
        uint32_t tokens[LEN_MAX];
        uint32_t count;
        uint32_t ids[LEN_MAX];
        uint32_t blocks;
    } holders[HOLDERS] = {0};
    struct engine_block_pool *pool = make(12);
    uint64_t seed = 42;
    uint64_t hit_count = 0;
    for (int step = 0; step < STEPS; step++) {
        struct holder *h = &holders[next_random(&seed) % HOLDERS];
        engine_block_pool_give(pool, h->ids, h->blocks);
        h->blocks = 0;
        if (next_random(&seed) % 4 != 0) {
            struct engine_prefix_hash hash;
            h->count = (uint32_t)(next_random(&seed) % LEN_MAX);
            for (uint32_t i = 0; i < h->count; i++)
                h->tokens[i] = (uint32_t)(next_random(&seed) % 10 == 0);
            uint32_t hits = engine_block_pool_match(pool, h->tokens, h->count, h->ids, &hash);
            hit_count += hits;
            uint32_t need = (h->count + SIZE - 1) / SIZE;
            h->blocks = hits;
            if (engine_block_pool_take(pool, need - hits, h->ids + hits) == KVF_OK) {
                h->blocks = need;
                for (uint32_t i = hits; i < h->count / SIZE; i++)
                    hash = engine_block_pool_cache(pool, h->ids[i], hash,
                                                   h->tokens + (size_t)i * SIZE);
            }
        }
        assert_true(engine_block_pool_consistent(pool));
        uint32_t held = 0;
        for (int i = 0; i < HOLDERS; i++)
            held += holders[i].blocks;
        uint32_t counted = 0;
        for (uint32_t id = 0; id < 12; id++)
            counted += engine_block_pool_holders(pool, id);
        assert_int_equal(held, counted);
    }
    assert_true(hit_count > 1000);
    for (int i = 0; i < HOLDERS; i++)
        engine_block_pool_give(pool, holders[i].ids, holders[i].blocks);
    assert_int_equal(12, engine_block_pool_free_count(pool));
    engine_block_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses_absurd_sizes),
        cmocka_unit_test(test_takes_all_or_nothing),
        cmocka_unit_test(test_finds_the_longest_prefix),
        cmocka_unit_test(test_position_matters),
        cmocka_unit_test(test_free_blocks_stay_cached_until_taken),
        cmocka_unit_test(test_same_content_is_cached_once),
        cmocka_unit_test(test_hash_depends_on_everything),
        cmocka_unit_test(test_hash_is_siphash),
        cmocka_unit_test(test_random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
