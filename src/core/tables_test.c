/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines, tombstones and the matching rule by themselves. */
#include "core/deadline.h"
#include "core/effects.h"
#include "core/matching.h"
#include "core/testing.h"
#include "core/tombstones.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define S 1000000000ull

/* ---- tables --------------------------------------------------------------------------------- */

static void test_ten_thousand_deadlines(void **state) /* B20 */
{
    struct kvfi_deadlines set;
    static struct kvfi_deadline nodes[10000];
    kvfi_deadlines_init(&set, NULL);
    uint64_t seed = 7;
    for (size_t i = 0; i < 10000; i++) {
        assert_int_equal(kvfi_deadlines_reserve(&set), KVF_OK);
        seed = seed * 6364136223846793005ull + 1;
        kvfi_deadlines_set(&set, &nodes[i], seed >> 40);
    }
    for (size_t i = 0; i < 10000; i += 3) {
        seed = seed * 6364136223846793005ull + 1;
        kvfi_deadlines_set(&set, &nodes[i], seed >> 40); /* renewed, to any time */
    }
    for (size_t i = 1; i < 10000; i += 5)
        kvfi_deadlines_cancel(&set, &nodes[i]);
    assert_null(kvfi_deadlines_check(&set));
    size_t popped = 0;
    uint64_t last = 0;
    while (set.count) {
        uint64_t next = kvfi_deadlines_next_ns(&set);
        if (next > 0)
            assert_null(kvfi_deadlines_pop(&set, next - 1));
        assert_non_null(kvfi_deadlines_pop(&set, next));
        assert_true(next >= last);
        last = next;
        popped++;
    }
    assert_int_equal(popped, 8000);
    assert_int_equal(kvfi_deadlines_next_ns(&set), UINT64_MAX);
    kvfi_deadlines_deinit(&set);
}

static void test_tombstones_are_bounded(void **state)
{
    struct test_alloc ta;
    test_alloc_init(&ta);
    struct kvfi_tombstones t;
    kvfi_tombstones_init(&t, &ta.allocator, 100, 10 * S);
    char id[32];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(id, sizeof(id), "r-%d", i);
        struct kvfi_tombstone *one = kvfi_tombstone_make(&ta.allocator, KVFI_TOMBSTONE_REGISTRATION,
                                                         id, i % 2 ? "tid" : NULL);
        assert_non_null(one);
        kvfi_tombstones_put(&t, one, (uint64_t)i);
        assert_true(t.count <= 100);
    }
    assert_non_null(kvfi_tombstones_find(&t, KVFI_TOMBSTONE_REGISTRATION, "r-999", 5));
    assert_non_null(kvfi_tombstones_find(&t, KVFI_TOMBSTONE_REGISTRATION, "r-900", 5));
    assert_null(kvfi_tombstones_find(&t, KVFI_TOMBSTONE_REGISTRATION, "r-899", 5));
    assert_null(kvfi_tombstones_find(&t, KVFI_TOMBSTONE_SEND, "r-999", 5));
    kvfi_tombstones_purge(&t, 10 * S + 950);
    assert_int_equal(t.count, 49);
    kvfi_tombstones_deinit(&t);
    assert_int_equal(ta.live, 0);
}

static bool even_only(const struct kvfi_party *party)
{
    return (party->id[party->id_len - 1] - '0') % 2 == 0;
}

static void test_matching_rule(void **state)
{
    struct kvfi_party_table table;
    kvfi_party_table_init(&table, NULL);
    struct kvfi_party a;
    struct kvfi_party b;
    struct kvfi_party key;
    kvfi_party_set(&a, "u-1-00000002", "t1");
    kvfi_party_set(&b, "u-1-00000003", NULL);
    kvfi_party_add(&table, &a);
    kvfi_party_add(&table, &b);
#define MATCH(id, tid, fn) (kvfi_party_set(&key, id, tid), kvfi_party_match(&table, &key, fn))
    assert_ptr_equal(MATCH("u-1-00000003", "t1", NULL).party, &b); /* the id wins */
    assert_true(MATCH("u-1", NULL, NULL).many);
    assert_ptr_equal(MATCH("u-1", "t1", NULL).party, &a);
    assert_false(MATCH("u-1", "t1", NULL).many);
    assert_ptr_equal(MATCH("u-1-0000ffff", "t9", NULL).party, &b); /* a has another one */
    assert_ptr_equal(MATCH("u-1", NULL, even_only).party, &a);
    assert_false(MATCH("u-1", NULL, even_only).many);
    assert_ptr_equal(MATCH("else", "t1", NULL).party, &a);
    assert_int_equal(MATCH("else", "t1", NULL).step, KVFI_MATCH_TRANSFER_ID);
    assert_null(MATCH("u-11", NULL, NULL).party);
    assert_null(MATCH("u", NULL, NULL).party);
    struct kvfi_party bare;
    kvfi_party_set(&bare, "-12345678", NULL);
    kvfi_party_add(&table, &bare);
    assert_null(MATCH("-87654321", NULL, NULL).party); /* no base, no match */
    kvfi_party_remove(&table, &a);
    kvfi_party_remove(&table, &a);
    assert_null(MATCH("else", "t1", NULL).party);
    kvfi_party_table_deinit(&table);
}

static void test_effects_that_grow_by_and_by(void **state)
{
    struct test_alloc ta;
    test_alloc_init(&ta);
    struct kvfi_effects *effects = kvfi_effects_create(&ta.allocator);
    assert_non_null(effects);
    /* A conversation whose list of blocks is a little longer at each turn. */
    for (size_t size = 1; size < (1u << 20); size += 1024) {
        assert_non_null(kvfi_effects_alloc(effects, size));
        kvfi_effects_reset(effects);
    }
    assert_true(ta.live < 12);
    kvfi_effects_destroy(effects);
    assert_int_equal(ta.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ten_thousand_deadlines),
        cmocka_unit_test(test_tombstones_are_bounded),
        cmocka_unit_test(test_matching_rule),
        cmocka_unit_test(test_effects_that_grow_by_and_by),
    };
    return cmocka_run_group_tests_name("core/tables", tests, NULL, NULL);
}
