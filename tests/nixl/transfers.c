/* SPDX-License-Identifier: Apache-2.0 */
/* What moves between the two, from either side. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void both_directions_from_both_sides(void **state)
{
    struct rig rig;
    rig_start_joined(&rig, "mover");
    move_all_ways(&rig, BLOCKS / 2, BLOCK);
    move_all_ways(&rig, 1, BLOCK);
    move_all_ways(&rig, 6, MIB);
    rig_stop(&rig);
}

static void thousands_of_descriptors(void **state)
{
    struct rig rig;
    rig_start_joined(&rig, "many");
    move_all_ways(&rig, 12000, 512);
    rig_stop(&rig);
}

static void several_regions(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    rig_start(&rig, "regions", REGIONS_MAX);
    if (load_here(&rig, "metadata", &error) != KVF_OK)
        fail_msg("load: %s", error.text);
    load_there(&rig);
    move_all_ways(&rig, BLOCKS / 2, BLOCK);
    rig_stop(&rig);
}

/* Each side writes from one half of its pool into that half of the other's, at the same time. */
static void both_initiate_at_once(void **state)
{
    struct rig rig;
    const size_t half = POOL_LEN / 2;
    rig_start_joined(&rig, "crossing");
    struct blocks ours = blocks_make(BLOCKS / 2, BLOCK, 3);
    struct blocks theirs = blocks_make(BLOCKS / 2, BLOCK, 4);
    for (size_t i = 0; i < BLOCKS / 2; i++) {
        ours.here[i] = ours.there[i] = (uint32_t)i;
        theirs.here[i] = theirs.there[i] = (uint32_t)(BLOCKS / 2 + i);
    }
    unsigned char *expected = malloc(POOL_LEN);
    assert_non_null(expected);
    for (uint64_t round = 1; round <= 4; round++) {
        fill(expected, POOL_LEN, round);
        memset(rig.us.pool, UNTOUCHED, POOL_LEN);
        memset(rig.peer.pool, UNTOUCHED, POOL_LEN);
        memcpy(rig.us.pool, expected, half);
        memcpy(rig.peer.pool + half, expected + half, half);
        size_t len = 0;
        unsigned char *table = transfer_table(&rig, &theirs, "theirs", 6, &len);
        tell(&rig, table, len, "transfer WRITE %s list %zu 0", kvf_agent_name(rig.us.agent),
             theirs.count);
        post(&rig, KVF_WRITE, &ours, "ours", 4);
        drive(&rig, is_answered);
        assert_string_equal((const char *)rig.peer.answer, "DONE");
        drive_counts(&rig, round, round);
        assert_int_equal(rig.us.results[round - 1].status, KVF_OK);
        expect_notif_here(&rig, round - 1, "theirs", 6);
        expect_notif_there(&rig, "ours", 4);
        assert_int_equal(memcmp(rig.us.pool, expected, POOL_LEN), 0);
        assert_int_equal(memcmp(rig.peer.pool, expected, POOL_LEN), 0);
        free(table);
    }
    free(expected);
    blocks_free(&ours);
    blocks_free(&theirs);
    rig_stop(&rig);
}

static const size_t lengths[] = {0, 1, 12, 65536, MIB};

static void notifications_from_us(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    rig_start_joined(&rig, "told");
    struct blocks blocks = blocks_make(2, BLOCK, 5);
    unsigned char *message = malloc(MIB);
    assert_non_null(message);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        fill(message, MIB, i);
        assert_int_equal(
            kvf_agent_notify(rig.us.agent, rig.peer.at_us, message, lengths[i], 0, &error), KVF_OK);
        expect_notif_there(&rig, message, lengths[i]);
        post(&rig, KVF_WRITE, &blocks, message, lengths[i]);
        expect_notif_there(&rig, message, lengths[i]);
        drive_counts(&rig, i + 1, 0);
        assert_int_equal(rig.us.results[i].status, KVF_OK);
    }
    assert_int_equal(rig.us.notify_failed_count, 0);
    free(message);
    blocks_free(&blocks);
    rig_stop(&rig);
}

/* NIXL's Python interface sends none of 0 bytes. */
static void notifications_from_nixl(void **state)
{
    struct rig rig;
    rig_start_joined(&rig, "teller");
    struct blocks blocks = blocks_make(2, BLOCK, 6);
    unsigned char *message = malloc(MIB);
    assert_non_null(message);
    size_t count = 0;
    for (size_t i = 1; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        fill(message, MIB, i);
        must_ask(&rig, message, lengths[i], "notify %s", kvf_agent_name(rig.us.agent));
        drive_counts(&rig, 0, ++count);
        expect_notif_here(&rig, count - 1, message, lengths[i]);
        size_t len = 0;
        unsigned char *table = transfer_table(&rig, &blocks, message, lengths[i], &len);
        must_ask(&rig, table, len, "transfer READ %s prepared 2 0", kvf_agent_name(rig.us.agent));
        free(table);
        drive_counts(&rig, 0, ++count);
        expect_notif_here(&rig, count - 1, message, lengths[i]);
    }
    assert_int_equal(rig.us.message_count, count);
    free(message);
    blocks_free(&blocks);
    rig_stop(&rig);
}

/* Notifications of one sender arrive in order, also many of them while nobody looks. */
static void many_notifications(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    enum { COUNT = 500 };
    rig_start_joined(&rig, "crowd");
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(kvf_agent_notify(rig.us.agent, rig.peer.at_us, &i, sizeof(i), 0, &error),
                         KVF_OK);
    must_ask(&rig, NULL, 0, "notifs %d", COUNT);
    const size_t each = 16 + strlen(kvf_agent_name(rig.us.agent)) + sizeof(uint32_t);
    assert_int_equal(rig.peer.answer_len, COUNT * each);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_memory_equal(rig.peer.answer + (i + 1) * each - sizeof(i), &i, sizeof(i));
    for (uint32_t i = 0; i < COUNT; i++)
        must_ask(&rig, &i, sizeof(i), "notify %s", kvf_agent_name(rig.us.agent));
    drive_counts(&rig, 0, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        expect_notif_here(&rig, i, &i, sizeof(i));
    rig_stop(&rig);
}

int run_transfers(const char *group)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_directions_from_both_sides),
        cmocka_unit_test(thousands_of_descriptors),
        cmocka_unit_test(several_regions),
        cmocka_unit_test(both_initiate_at_once),
        cmocka_unit_test(notifications_from_us),
        cmocka_unit_test(notifications_from_nixl),
        cmocka_unit_test(many_notifications),
    };
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}
