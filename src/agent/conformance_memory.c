/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranges at once, what they look like to others, and the agent as its own peer. */
#include "agent/conformance.h"

#include "wire/nixl_metadata.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)64)
#define POOL   (BLOCK * BLOCKS)

/* Every block of the side's pool on its own. */
static void block_ranges(const struct conf_side *side, struct kvf_memory *ranges)
{
    for (size_t i = 0; i < BLOCKS; i++)
        ranges[i] = (struct kvf_memory){.addr = side->pool + i * BLOCK, .length = BLOCK};
}

static void expect_register(struct conf_side *side, const struct kvf_memory *ranges, size_t count,
                            enum kvf_status expected, const char *words)
{
    struct kvf_error error = {0};
    enum kvf_status status = kvf_agent_register_many(side->agent, ranges, count, &error);
    if (status != expected)
        fail_msg("%s: %s", kvf_status_name(status), error.text);
    if (words && !strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
}

static void expect_deregister(struct conf_side *side, const struct kvf_memory *ranges, size_t count,
                              enum kvf_status expected, const char *words)
{
    struct kvf_error error = {0};
    assert_int_equal(kvf_agent_deregister_many(side->agent, ranges, count, &error), expected);
    if (words && !strstr(error.text, words))
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
}

static void all_or_nothing(void **state)
{
    struct conf_rig rig;
    struct kvf_memory ranges[BLOCKS];
    conf_start(&rig, POOL); /* the pools themselves are registered, too: ranges may nest */
    block_ranges(&rig.a, ranges);
    const struct kvf_memory good = ranges[BLOCKS / 2];
    struct kvf_memory *bad = &ranges[BLOCKS / 2];
    const struct kvf_agent_usage one = {.regions = 1};

    bad->length = 0;
    expect_register(&rig.a, ranges, BLOCKS, KVF_EINVAL, "nothing to register");
    *bad = good;
    bad->length = SIZE_MAX;
    expect_register(&rig.a, ranges, BLOCKS, KVF_EINVAL, "end of the address space");
    *bad = good;
    bad->kind = (enum kvf_memory_kind)4;
    expect_register(&rig.a, ranges, BLOCKS, KVF_EINVAL, "kind 4");
    *bad = good;
    bad->kind = KVF_MEMORY_VRAM;
    expect_register(&rig.a, ranges, BLOCKS, KVF_ENOTSUP, NULL);
    *bad = good;
    bad->flags = 2;
    expect_register(&rig.a, ranges, BLOCKS, KVF_EINVAL, "flags 0x2");
    *bad = ranges[3];
    expect_register(&rig.a, ranges, BLOCKS, KVF_EEXIST, "the same");
    *bad = (struct kvf_memory){.addr = rig.a.pool, .length = POOL};
    expect_register(&rig.a, ranges, BLOCKS, KVF_EEXIST, "registered already");
    *bad = good;
    bad->allocation = ranges[7].allocation = 5;
    bad->device_id = 1;
    expect_register(&rig.a, ranges, BLOCKS, KVF_EINVAL, "allocation 5");
    *bad = good;
    ranges[7].allocation = 0;
    expect_register(&rig.a, NULL, 1, KVF_EINVAL, "NULL");
    expect_register(&rig.a, ranges, SIZE_MAX, KVF_ELIMIT, "at most");
    expect_register(&rig.a, NULL, 0, KVF_OK, NULL);
    conf_expect_usage(rig.a.agent, one);

    expect_register(&rig.a, ranges, BLOCKS, KVF_OK, NULL);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1 + BLOCKS});
    bad->length--;
    expect_deregister(&rig.a, ranges, BLOCKS, KVF_ENOTFOUND, "not registered in this form");
    *bad = ranges[3];
    expect_deregister(&rig.a, ranges, BLOCKS, KVF_EINVAL, "listed twice");
    expect_deregister(&rig.a, NULL, 1, KVF_EINVAL, "NULL");
    expect_deregister(&rig.a, ranges, BLOCKS + 2, KVF_ENOTFOUND, "65 are registered");
    *bad = good;
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1 + BLOCKS});
    expect_deregister(&rig.a, ranges, BLOCKS, KVF_OK, NULL);
    expect_deregister(&rig.a, ranges, BLOCKS, KVF_ENOTFOUND, NULL);
    conf_expect_usage(rig.a.agent, one);
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.bytes_registered, 2 * POOL);
    assert_int_equal(counters.bytes_deregistered, POOL);
    conf_stop(&rig);
}

static struct kvfi_nixl_metadata decode(const void *blob, size_t len)
{
    struct kvfi_nixl_metadata md;
    assert_int_equal(kvfi_nixl_metadata_decode(blob, len, NULL, &md, NULL), KVF_OK);
    return md;
}

/* One registration for many ranges: they are advertised as given, with one key. */
static void one_allocation(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_memory ranges[BLOCKS];
    conf_start(&rig, POOL);
    assert_int_equal(kvf_agent_deregister(rig.b.agent, rig.b.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    block_ranges(&rig.b, ranges);
    for (size_t i = 0; i < BLOCKS; i++) {
        ranges[i].length = BLOCK / 2; /* with gaps */
        ranges[i].allocation = 1;
    }
    struct kvf_memory other = ranges[0]; /* beside it one of its own, on another device number */
    other.device_id = 3;
    other.allocation = 0;
    ranges[BLOCKS - 1] = other;
    expect_register(&rig.b, ranges, BLOCKS, KVF_OK, NULL);

    void *blob = NULL;
    size_t len = 0;
    assert_int_equal(kvf_agent_metadata(rig.b.agent, &blob, &len, NULL), KVF_OK);
    struct kvfi_nixl_metadata md = decode(blob, len);
    assert_int_equal(md.section_count, 1);
    assert_int_equal(md.sections[0].region_count, BLOCKS);
    for (size_t i = 0; i + 1 < BLOCKS; i++) {
        const struct kvfi_nixl_region *region = &md.sections[0].regions[i];
        assert_ptr_equal((const void *)(uintptr_t)region->addr, ranges[i].addr); /* NOLINT */
        assert_int_equal(region->len, BLOCK / 2);
        assert_true(kvfi_span_equal(region->meta, md.sections[0].regions[0].meta));
    }
    assert_int_equal(md.sections[0].regions[BLOCKS - 1].dev_id, 3);
    kvfi_nixl_metadata_free(&md);
    kvf_agent_blob_free(rig.b.agent, blob);

    conf_join(&rig);
    conf_fill(rig.a.pool, POOL, 4);
    uint32_t ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    conf_post_blocks(&rig, KVF_WRITE, conf_region(&rig.a, &rig.b, BLOCK, BLOCK / 2), ids, ids,
                     BLOCKS - 1, "x");
    conf_drive_counts(&rig, 1, 1);
    for (size_t i = 0; i + 1 < BLOCKS; i++) {
        assert_memory_equal(rig.b.pool + i * BLOCK, rig.a.pool + i * BLOCK, BLOCK / 2);
        assert_int_equal(rig.b.pool[i * BLOCK + BLOCK / 2], CONF_UNTOUCHED);
    }
    /* the gaps are in the registration, but nobody may go there */
    struct conf_block_plan made;
    conf_one_block(&made, conf_region(&rig.a, &rig.b, BLOCK, BLOCK / 2), 2);
    made.region.remote.offset_bytes = BLOCK / 2;
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, &made.plan, &error), KVF_EINVAL);

    expect_deregister(&rig.b, ranges, BLOCKS - 2, KVF_EBUSY, "all 63 in one call, not 62");
    assert_int_equal(
        kvf_agent_deregister(rig.b.agent, ranges[5].addr, BLOCK / 2, KVF_MEMORY_DRAM, 0),
        KVF_EBUSY);
    expect_deregister(&rig.b, ranges + BLOCKS - 1, 1, KVF_OK, NULL);
    conf_expect_usage(rig.b.agent, (struct kvf_agent_usage){.regions = BLOCKS - 1, .peers = 1});
    expect_deregister(&rig.b, ranges, BLOCKS - 1, KVF_OK, NULL);
    conf_expect_usage(rig.b.agent, (struct kvf_agent_usage){.peers = 1});
    conf_stop(&rig);
}

/* A range that comes back with another key would make peers refuse the whole agent. */
static void changed_keys(void **state)
{
    enum { REMEMBERED = 4096 };
    struct conf_rig rig;
    struct kvf_memory range;
    void *blob = NULL;
    size_t len = 0;
    bool keys_change = strcmp(conf_lane, "mem") == 0; /* as RDMA's do */
    conf_start(&rig, POOL);
    range = (struct kvf_memory){.addr = rig.a.pool, .length = BLOCK};
    for (size_t i = 0; i < 3; i++) { /* nobody was told */
        expect_register(&rig.a, &range, 1, KVF_OK, NULL);
        expect_deregister(&rig.a, &range, 1, KVF_OK, NULL);
    }
    expect_register(&rig.a, &range, 1, KVF_OK, NULL);
    assert_int_equal(kvf_agent_metadata(rig.a.agent, &blob, &len, NULL), KVF_OK);
    kvf_agent_blob_free(rig.a.agent, blob);
    expect_deregister(&rig.a, &range, 1, KVF_OK, NULL);
    struct kvf_memory both[2] = {range, range};
    both[0].addr = rig.a.pool + BLOCK;
    if (keys_change) {
        expect_register(&rig.a, both, 2, KVF_ENOTALLOWED, "another key");
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
        expect_register(&rig.a, &range, 1, KVF_ENOTALLOWED, "KVF_MEMORY_NEW_KEY");
    }
    both[1].flags = KVF_MEMORY_NEW_KEY;
    expect_register(&rig.a, both, 2, KVF_OK, NULL);
    expect_deregister(&rig.a, both, 2, KVF_OK, NULL);

    /* once it has another key, that is the one that is known; the memory of old ones is bounded */
    struct kvf_memory *many = calloc(REMEMBERED, sizeof(many[0]));
    assert_non_null(many);
    for (size_t i = 0; i < REMEMBERED; i++)
        many[i] = (struct kvf_memory){.addr = rig.a.pool + 2 * BLOCK + i, .length = 8};
    expect_register(&rig.a, many, REMEMBERED, KVF_OK, NULL);
    assert_int_equal(kvf_agent_metadata(rig.a.agent, &blob, &len, NULL), KVF_OK);
    kvf_agent_blob_free(rig.a.agent, blob);
    expect_deregister(&rig.a, many, REMEMBERED, KVF_OK, NULL);
    expect_register(&rig.a, &range, 1, KVF_OK, NULL); /* forgotten */
    if (keys_change)
        expect_register(&rig.a, many, REMEMBERED, KVF_ENOTALLOWED, NULL);
    for (size_t i = 0; i < REMEMBERED; i++)
        many[i].flags = KVF_MEMORY_NEW_KEY;
    expect_register(&rig.a, many, REMEMBERED, KVF_OK, NULL);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 2 + REMEMBERED});
    free(many);
    conf_stop(&rig);
}

struct partial {
    void *blob;
    size_t len;
};

static struct partial take_partial(struct conf_side *side, const struct kvf_memory *regions,
                                   size_t count, bool with_connection)
{
    struct partial partial = {0};
    struct kvf_error error = {0};
    if (kvf_agent_metadata_partial(side->agent, regions, count, with_connection, &partial.blob,
                                   &partial.len, &error) != KVF_OK)
        fail_msg("partial: %s", error.text);
    return partial;
}

/* The sizes that a real agent's blobs have: 117 + name + address + 76 a section + 33 + key a
 * region, 23 + address less without connection. */
static void sizes_of_partial_blobs(void **state)
{
    struct conf_rig rig;
    struct kvf_memory ranges[BLOCKS];
    conf_start(&rig, POOL);
    block_ranges(&rig.b, ranges);
    expect_register(&rig.b, ranges, BLOCKS, KVF_OK, NULL);
    size_t name_len = strlen(kvf_agent_name(rig.b.agent));
    for (size_t count = 0; count <= BLOCKS; count += 16) {
        for (int with = 0; with < 2; with++) {
            struct partial partial = take_partial(&rig.b, ranges, count, with);
            struct kvfi_nixl_metadata md = decode(partial.blob, partial.len);
            bool connected = with || count == 0;
            assert_int_equal(md.conn_count, connected);
            assert_int_equal(md.section_count, count > 0);
            size_t expected = 117 - 23 + name_len;
            if (connected)
                expected += 23 + md.conns[0].info.len;
            if (count > 0)
                expected += 76;
            for (size_t i = 0; i < count; i++)
                expected += 33 + md.sections[0].regions[i].meta.len;
            if (count > 0)
                assert_int_equal(md.sections[0].region_count, count);
            assert_int_equal(partial.len, expected);
            kvfi_nixl_metadata_free(&md);
            kvf_agent_blob_free(rig.b.agent, partial.blob);
        }
    }
    void *blob = NULL;
    size_t len = 0;
    struct kvf_error error;
    ranges[1].length--;
    assert_int_equal(kvf_agent_metadata_partial(rig.b.agent, ranges, 2, true, &blob, &len, &error),
                     KVF_ENOTFOUND);
    ranges[1] = ranges[0];
    assert_int_equal(kvf_agent_metadata_partial(rig.b.agent, ranges, 2, true, &blob, &len, &error),
                     KVF_EEXIST);
    assert_int_equal(kvf_agent_metadata_partial(rig.b.agent, NULL, 2, true, &blob, &len, &error),
                     KVF_EINVAL);
    assert_int_equal(
        kvf_agent_metadata_partial(rig.b.agent, ranges, SIZE_MAX, true, &blob, &len, &error),
        KVF_ELIMIT);
    assert_null(blob);
    conf_stop(&rig);
}

/* The regions of a peer arrive one by one, and again. */
static void loading_in_parts(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_memory ranges[BLOCKS];
    struct conf_block_plan made;
    conf_start(&rig, POOL);
    assert_int_equal(kvf_agent_deregister(rig.b.agent, rig.b.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    block_ranges(&rig.b, ranges);
    expect_register(&rig.b, ranges, BLOCKS, KVF_OK, NULL);

    struct kvf_peer_id peer = {0};
    struct partial partial = take_partial(&rig.b, ranges, 1, false);
    assert_int_equal(kvf_agent_load(rig.a.agent, partial.blob, partial.len, &peer, &error),
                     KVF_ENOTFOUND); /* who is that? */
    kvf_agent_blob_free(rig.b.agent, partial.blob);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});

    partial = take_partial(&rig.b, NULL, 0, false);
    assert_int_equal(kvf_agent_load(rig.a.agent, partial.blob, partial.len, &rig.b_at_a, &error),
                     KVF_OK);
    kvf_agent_blob_free(rig.b.agent, partial.blob);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "hi", 2, 0, &error), KVF_OK);
    conf_drive_counts(&rig, 0, 1);

    conf_fill(rig.a.pool, POOL, 6);
    size_t results = 0;
    for (uint32_t id = 0; id < BLOCKS; id += 7) {
        conf_one_block(&made, conf_region(&rig.a, &rig.b, BLOCK, BLOCK), id);
        assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, &made.plan, &error),
                         KVF_EINVAL);
        for (size_t again = 0; again < 2; again++) {
            partial = take_partial(&rig.b, &ranges[id], 1, again);
            assert_int_equal(kvf_agent_load(rig.a.agent, partial.blob, partial.len, &peer, &error),
                             KVF_OK);
            kvf_agent_blob_free(rig.b.agent, partial.blob);
            assert_int_equal(peer.value, rig.b_at_a.value);
        }
        assert_int_equal(kvf_agent_check_plan(rig.a.agent, rig.b_at_a, &made.plan, &error), KVF_OK);
        conf_post(&rig, KVF_WRITE, &made.plan, NULL);
        conf_drive_counts(&rig, ++results, 1);
        assert_memory_equal(rig.a.pool + id * BLOCK, rig.b.pool + id * BLOCK, BLOCK);
    }
    struct kvf_agent_counters counters = KVF_AGENT_COUNTERS_INIT;
    kvf_agent_counters(rig.a.agent, &counters);
    assert_int_equal(counters.loads_refused, 1);
    conf_stop(&rig);
}

/* ---- the agent as its own peer -------------------------------------------------------------- */

static bool a_is_told(struct conf_rig *rig)
{
    return rig->a.message_count > 0 && rig->a.result_count > 1;
}

static void own_peer(void **state)
{
    struct conf_rig rig;
    struct kvf_error error = {0};
    struct kvf_peer_id self = {0};
    struct kvf_peer_id again = {0};
    unsigned char *other = malloc(POOL);
    assert_non_null(other);
    conf_start(&rig, POOL);
    if (kvf_agent_self(rig.a.agent, &self, &error) != KVF_OK)
        fail_msg("self: %s", error.text);
    assert_int_equal(kvf_agent_self(rig.a.agent, &again, &error), KVF_OK);
    assert_int_equal(again.value, self.value);
    assert_string_equal(kvf_agent_peer_name(rig.a.agent, self), kvf_agent_name(rig.a.agent));
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});

    /* registered later, and a peer's region all the same */
    assert_int_equal(kvf_agent_register(rig.a.agent, other, POOL, KVF_MEMORY_DRAM, 0, &error),
                     KVF_OK);
    conf_fill(rig.a.pool, POOL, 8);
    struct conf_side there = {.pool = other, .pool_len = POOL};
    struct kvf_plan_region region = conf_region(&rig.a, &there, BLOCK, BLOCK);
    uint32_t ids[BLOCKS];
    uint32_t back[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        ids[i] = i;
        back[i] = (uint32_t)BLOCKS - 1 - i;
    }
    rig.b_at_a = self; /* so that conf_post() goes there */
    conf_post_blocks(&rig, KVF_WRITE, region, ids, back, BLOCKS, "to myself");
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, other, POOL, KVF_MEMORY_DRAM, 0), KVF_EBUSY);
    conf_drive_counts(&rig, 1, 0);
    for (size_t i = 0; i < BLOCKS; i++)
        assert_memory_equal(rig.a.pool + i * BLOCK, other + (BLOCKS - 1 - i) * BLOCK, BLOCK);
    memset(rig.a.pool, 0, POOL);
    conf_post_blocks(&rig, KVF_READ, region, ids, back, BLOCKS, NULL);
    conf_drive(&rig, a_is_told);
    assert_int_equal(rig.a.results[1].status, KVF_OK);
    for (size_t i = 0; i < POOL; i++)
        assert_int_equal(rig.a.pool[i], conf_pattern(8, i));
    assert_string_equal(rig.a.messages[0].name, kvf_agent_name(rig.a.agent));
    assert_int_equal(rig.a.messages[0].len, strlen("to myself"));

    /* what is deregistered is no peer's region either */
    assert_int_equal(kvf_agent_deregister(rig.a.agent, other, POOL, KVF_MEMORY_DRAM, 0), KVF_OK);
    struct conf_block_plan made;
    conf_one_block(&made, region, 1);
    assert_int_equal(kvf_agent_check_plan(rig.a.agent, self, &made.plan, &error), KVF_EINVAL);

    assert_int_equal(kvf_agent_drop(rig.a.agent, self), KVF_OK);
    assert_null(kvf_agent_peer_name(rig.a.agent, self));
    conf_settle(&rig);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    assert_int_equal(kvf_agent_self(rig.a.agent, &rig.b_at_a, &error), KVF_OK);
    assert_int_not_equal(rig.b_at_a.value, self.value);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "once more", 9, 0, &error), KVF_OK);
    conf_stop(&rig);
    free(other);
}

int conf_run_memory(void)
{
    const struct CMUnitTest memory[] = {
        cmocka_unit_test(all_or_nothing),   cmocka_unit_test(one_allocation),
        cmocka_unit_test(changed_keys),     cmocka_unit_test(sizes_of_partial_blobs),
        cmocka_unit_test(loading_in_parts), cmocka_unit_test(own_peer),
    };
    return cmocka_run_group_tests(memory, NULL, NULL);
}
