/* SPDX-License-Identifier: Apache-2.0 */
/* Who knows what of whom: full and partial blobs, loaded in every order. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

static void must_load_here(struct rig *rig, const char *what)
{
    struct kvf_error error = {0};
    if (load_here(rig, what, &error) != KVF_OK)
        fail_msg("load: %s", error.text);
}

static void *our_blob(struct rig *rig, size_t *len_p)
{
    void *blob = NULL;
    struct kvf_error error = {0};
    if (kvf_agent_metadata(rig->us.agent, &blob, len_p, &error) != KVF_OK)
        fail_msg("metadata: %s", error.text);
    return blob;
}

/* A side that has loaded nothing is written to, read from and notified all the same. */
static void only_we_load(void **state)
{
    struct rig rig;
    rig_start(&rig, "passive", 1);
    must_load_here(&rig, "metadata");
    assert_string_equal(kvf_agent_peer_name(rig.us.agent, rig.peer.at_us), "passive");
    struct blocks blocks = blocks_make(BLOCKS / 4, BLOCK, 8);
    move_and_compare(&rig, BY_US, KVF_WRITE, &blocks, 0);
    move_and_compare(&rig, BY_US, KVF_READ, &blocks, 0);
    blocks_free(&blocks);
    rig_stop(&rig);
}

static void only_nixl_loads(void **state)
{
    struct rig rig;
    rig_start(&rig, "active", 1);
    load_there(&rig);
    struct blocks blocks = blocks_make(BLOCKS / 4, BLOCK, 9);
    for (unsigned worker = 0; worker < nixl_options.workers; worker++) {
        move_and_compare(&rig, BY_NIXL_LIST, KVF_WRITE, &blocks, worker);
        move_and_compare(&rig, BY_NIXL_PREPARED, KVF_READ, &blocks, worker);
    }
    blocks_free(&blocks);
    rig_stop(&rig);
}

/* NIXL first, and used before we load it. */
static void nixl_loads_first(void **state)
{
    struct rig rig;
    rig_start(&rig, "first", 1);
    load_there(&rig);
    struct blocks blocks = blocks_make(BLOCKS / 4, BLOCK, 10);
    move_and_compare(&rig, BY_NIXL_LIST, KVF_WRITE, &blocks, 0);
    blocks_free(&blocks);
    must_load_here(&rig, "metadata");
    move_all_ways(&rig, BLOCKS / 4, BLOCK);
    rig_stop(&rig);
}

static void loaded_again(void **state)
{
    struct rig rig;
    rig_start_joined(&rig, "again");
    struct kvf_peer_id before = rig.peer.at_us;
    must_load_here(&rig, "metadata");
    assert_true(rig.peer.at_us.value == before.value);
    load_there(&rig);
    move_all_ways(&rig, 64, BLOCK);

    /* forgotten by both, and loaded once more */
    assert_int_equal(kvf_agent_drop(rig.us.agent, rig.peer.at_us), KVF_OK);
    settle(&rig);
    must_ask(&rig, NULL, 0, "remove %s", kvf_agent_name(rig.us.agent));
    must_raise(&rig, "nixlNotFoundError", "x", 1, "notify %s", kvf_agent_name(rig.us.agent));
    must_load_here(&rig, "metadata");
    load_there(&rig);
    move_all_ways(&rig, 64, BLOCK);
    rig_stop(&rig);
}

/* What NIXL refuses it names; our side of it is in the unit tests of the blob. */
static void refused_by_nixl(void **state)
{
    struct rig rig;
    size_t len = 0;
    rig_start(&rig, "strict", 1);
    unsigned char *blob = our_blob(&rig, &len);
    must_raise(&rig, "nixlMismatchError", blob, 10, "load");
    load_there(&rig);
    blob[len - 1] = '?'; /* nobody looks at the last separator */
    must_ask(&rig, blob, len, "load");
    kvf_agent_blob_free(rig.us.agent, blob);
    /* not gone before it is connected: UCX 1.13 here does not survive that */
    struct blocks blocks = blocks_make(64, BLOCK, 17);
    for (unsigned worker = 0; worker < nixl_options.workers; worker++)
        move_and_compare(&rig, BY_NIXL_LIST, KVF_WRITE, &blocks, worker);
    blocks_free(&blocks);
    rig_stop(&rig);
}

/* Behind the address comes what only a kvferry reads, on a UCX where it has something to say. */
static void the_trailer_is_there(void **state)
{
    struct rig rig;
    size_t len = 0;
    rig_start(&rig, "reader", 1);
    void *blob = our_blob(&rig, &len);
    bool has_trailer = memmem(blob, len, "KVFERRY", 8) != NULL;
    assert_int_equal(has_trailer, surroundings.ucx_minor < 20);
    kvf_agent_blob_free(rig.us.agent, blob);
    rig_stop(&rig);
}

/* ---- partial -------------------------------------------------------------------------------- */

static struct blocks blocks_of_region(size_t region, uint64_t seed)
{
    const size_t each = BLOCKS / REGIONS_MAX;
    struct blocks blocks = blocks_make(each, BLOCK, seed);
    for (size_t i = 0; i < each; i++)
        blocks.here[i] = blocks.there[i] = (uint32_t)(region * each + (i * 7) % each);
    return blocks;
}

/* What posting into one region of the peer answers. */
static enum kvf_status check_region(struct rig *rig, size_t region)
{
    const size_t each = BLOCKS / REGIONS_MAX;
    struct kvf_block_table table = {.stride_bytes = BLOCK, .block_count = BLOCKS};
    struct kvf_plan_region whole = {.local = table, .remote = table, .length_bytes = BLOCK};
    whole.local.base = (uint64_t)(uintptr_t)rig->us.pool;
    whole.remote.base = rig->peer.base;
    uint32_t id = (uint32_t)(region * each);
    struct kvf_block_pairs pair = {.local_ids = &id, .remote_ids = &id, .count = 1};
    struct kvf_plan plan = {
        .regions = &whole, .region_count = 1, .groups = &pair, .group_count = 1};
    return kvf_agent_check_plan(rig->us.agent, rig->peer.at_us, &plan, NULL);
}

static void partial_from_nixl(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    rig_start(&rig, "partial", REGIONS_MAX);
    assert_int_equal(load_here(&rig, "partial 2 1 0", &error), KVF_ENOTFOUND);
    must_load_here(&rig, "partial 0 0 1"); /* the connection alone */
    assert_int_equal(check_region(&rig, 2), KVF_EINVAL);
    must_load_here(&rig, "partial 2 1 0");
    assert_int_equal(check_region(&rig, 2), KVF_OK);
    assert_int_equal(check_region(&rig, 1), KVF_EINVAL);
    assert_int_equal(check_region(&rig, 3), KVF_EINVAL);
    struct blocks blocks = blocks_of_region(2, 11);
    move_and_compare(&rig, BY_US, KVF_WRITE, &blocks, 0);
    move_and_compare(&rig, BY_US, KVF_READ, &blocks, 0);
    blocks_free(&blocks);

    must_load_here(&rig, "partial 1 3 1"); /* one known, two new, and the connection again */
    assert_int_equal(check_region(&rig, 3), KVF_OK);
    assert_int_equal(check_region(&rig, 4), KVF_EINVAL);
    must_load_here(&rig, "metadata");
    load_there(&rig);
    move_all_ways(&rig, BLOCKS / 2, BLOCK);
    rig_stop(&rig);
}

static void load_partial_there(struct rig *rig, size_t first, size_t count, bool connection)
{
    const size_t each = POOL_LEN / REGIONS_MAX;
    struct kvf_memory regions[REGIONS_MAX] = {0};
    struct kvf_error error = {0};
    void *blob = NULL;
    size_t len = 0;
    for (size_t i = 0; i < count; i++)
        regions[i] = (struct kvf_memory){.addr = rig->us.pool + (first + i) * each, .length = each};
    if (kvf_agent_metadata_partial(rig->us.agent, regions, count, connection, &blob, &len,
                                   &error) != KVF_OK)
        fail_msg("metadata: %s", error.text);
    must_ask(rig, blob, len, "load");
    kvf_agent_blob_free(rig->us.agent, blob);
}

static void expect_unknown_there(struct rig *rig, size_t region)
{
    struct blocks blocks = blocks_of_region(region, 12);
    size_t len = 0;
    unsigned char *table = transfer_table(rig, &blocks, "", 0, &len);
    must_raise(rig, "nixlNotFoundError", table, len, "transfer WRITE %s list %zu 0",
               kvf_agent_name(rig->us.agent), blocks.count);
    free(table);
    blocks_free(&blocks);
}

static void partial_from_us(void **state)
{
    struct rig rig;
    rig_start(&rig, "taker", REGIONS_MAX);
    load_partial_there(&rig, 0, 0, true);
    expect_unknown_there(&rig, 2);
    load_partial_there(&rig, 2, 1, false);
    expect_unknown_there(&rig, 1);
    struct blocks blocks = blocks_of_region(2, 13);
    move_and_compare(&rig, BY_NIXL_LIST, KVF_WRITE, &blocks, 0);
    move_and_compare(&rig, BY_NIXL_PREPARED, KVF_READ, &blocks, 0);
    blocks_free(&blocks);
    load_partial_there(&rig, 1, 3, true);
    load_there(&rig);
    must_load_here(&rig, "metadata");
    move_all_ways(&rig, BLOCKS / 2, BLOCK);
    rig_stop(&rig);
}

int run_metadata(const char *group)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_we_load),      cmocka_unit_test(only_nixl_loads),
        cmocka_unit_test(nixl_loads_first),  cmocka_unit_test(loaded_again),
        cmocka_unit_test(refused_by_nixl),   cmocka_unit_test(the_trailer_is_there),
        cmocka_unit_test(partial_from_nixl), cmocka_unit_test(partial_from_us),
    };
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}
