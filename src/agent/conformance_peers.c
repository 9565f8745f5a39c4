/* SPDX-License-Identifier: Apache-2.0 */
/* Peers coming, going, lying and dying; registrations; handles; memory. */
#include "agent/conformance.h"

#include "wire/nixl_metadata.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  ((size_t)4096)
#define BLOCKS ((size_t)1024)
#define POOL   (BLOCK * BLOCKS)

static const uint32_t *all_ids(void)
{
    static uint32_t ids[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        ids[i] = i;
    return ids;
}

/* The whole pool, in one run or (scattered) one run per block. */
static void post_all(struct conf_rig *rig, const char *notification)
{
    conf_post_blocks(rig, KVF_WRITE, conf_region(&rig->a, &rig->b, BLOCK, BLOCK), all_ids(),
                     all_ids(), BLOCKS, notification);
}

/* A blob of someone with our own choice of content. */
struct blob {
    void *data; /* owned by the agent that encoded it */
    size_t len;
    struct kvf_agent *owner;
};

static struct blob take_blob(struct conf_side *from)
{
    struct blob blob = {.owner = from->agent};
    assert_int_equal(kvf_agent_metadata(from->agent, &blob.data, &blob.len, NULL), KVF_OK);
    return blob;
}

static enum kvf_status load(struct conf_side *into, const void *data, size_t len,
                            struct kvf_peer_id *peer, const char *words)
{
    struct kvf_error error = {0};
    enum kvf_status status = kvf_agent_load(into->agent, data, len, peer, &error);
    if (status != KVF_OK) {
        assert_int_equal(error.status, status);
        if (words && !strstr(error.text, words))
            fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    }
    return status;
}

static void names(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, 0);
    const char *name = kvf_agent_name(rig.a.agent);
    assert_int_equal(strlen(name), 36);
    assert_int_equal(name[14], '4');
    assert_non_null(strchr("89ab", name[19]));
    assert_string_not_equal(name, kvf_agent_name(rig.b.agent));

    struct kvf_agent *agent = NULL;
    struct kvf_error error;
    struct kvf_agent_options options = KVF_AGENT_OPTIONS_INIT;
    options.lane = rig.lane;
    options.lane_ctx = rig.net;
    options.name = "";
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    options.name = "\xff\xfe";
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    options.name = NULL;
    options.lane = "pigeon";
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    assert_non_null(strstr(error.text, "pigeon"));
    options.lane = rig.lane;
    options.size = 0;
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    options.size = sizeof(options) + 8;
    assert_int_equal(kvf_agent_create(&options, &agent, &error), KVF_EINVAL);
    assert_null(agent);
    conf_stop(&rig);
}

static void registration(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    struct kvf_agent *agent = rig.a.agent;
    unsigned char *pool = rig.a.pool;
    assert_int_equal(kvf_agent_register(agent, pool, POOL, KVF_MEMORY_DRAM, 0, &error), KVF_EEXIST);
    assert_int_equal(kvf_agent_register(agent, pool, 0, KVF_MEMORY_DRAM, 0, &error), KVF_EINVAL);
    assert_int_equal(kvf_agent_register(agent, NULL, 1, KVF_MEMORY_DRAM, 0, &error), KVF_EINVAL);
    assert_int_equal(kvf_agent_register(agent, pool, SIZE_MAX, KVF_MEMORY_DRAM, 0, &error),
                     KVF_EINVAL);
    assert_int_equal(kvf_agent_register(agent, pool, BLOCK, KVF_MEMORY_VRAM, 0, &error),
                     KVF_ENOTSUP); /* host memory is no device's */
    assert_int_equal(kvf_agent_register(agent, pool, BLOCK, (enum kvf_memory_kind)9, 0, &error),
                     KVF_EINVAL);
    assert_int_equal(kvf_agent_register(agent, pool, POOL, KVF_MEMORY_DRAM, 5, &error), KVF_OK);
    assert_int_equal(kvf_agent_register(agent, pool, BLOCK, KVF_MEMORY_DRAM, 0, &error), KVF_OK);
    conf_expect_usage(agent, (struct kvf_agent_usage){.regions = 3});
    assert_int_equal(kvf_agent_deregister(agent, pool, POOL - 1, KVF_MEMORY_DRAM, 0),
                     KVF_ENOTFOUND);
    assert_int_equal(kvf_agent_deregister(agent, pool, POOL, KVF_MEMORY_DRAM, 1), KVF_ENOTFOUND);
    assert_int_equal(kvf_agent_deregister(agent, pool, POOL, KVF_MEMORY_DRAM, 5), KVF_OK);
    assert_int_equal(kvf_agent_deregister(agent, pool, POOL, KVF_MEMORY_DRAM, 5), KVF_ENOTFOUND);
    conf_expect_usage(agent, (struct kvf_agent_usage){.regions = 2});
    conf_stop(&rig);
}

static void deregister_while_busy(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    conf_join(&rig);
    unsigned char *other = malloc(BLOCK);
    assert_non_null(other);
    assert_int_equal(kvf_agent_register(rig.a.agent, other, BLOCK, KVF_MEMORY_DRAM, 0, &error),
                     KVF_OK);
    post_all(&rig, NULL);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_EBUSY);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, other, BLOCK, KVF_MEMORY_DRAM, 0), KVF_OK);
    conf_drive_counts(&rig, 1, 0);
    assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                     KVF_OK);
    free(other);
    conf_stop(&rig);
}

static void self_refused(void **state)
{
    struct conf_rig rig;
    struct kvf_peer_id peer;
    conf_start(&rig, POOL);
    struct blob blob = take_blob(&rig.a);
    assert_int_equal(load(&rig.a, blob.data, blob.len, &peer, "own name"), KVF_EINVAL);
    kvf_agent_blob_free(blob.owner, blob.data);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    conf_stop(&rig);
}

/* Every shorter form of a good blob is refused and leaves no trace: the good one still loads. */
static void truncated_blobs(void **state)
{
    struct conf_rig rig;
    struct kvf_peer_id peer;
    conf_start(&rig, POOL);
    struct blob blob = take_blob(&rig.b);
    for (size_t len = 0; len < blob.len; len++) {
        unsigned char *copy = malloc(len + 1); /* so that a sanitizer sees every overread */
        assert_non_null(copy);
        memcpy(copy, blob.data, len);
        assert_int_not_equal(load(&rig.a, copy, len, &peer, NULL), KVF_OK);
        free(copy);
    }
    conf_settle(&rig);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    assert_int_equal(load(&rig.a, blob.data, blob.len, &rig.b_at_a, NULL), KVF_OK);
    kvf_agent_blob_free(blob.owner, blob.data);
    post_all(&rig, "fine");
    conf_drive_counts(&rig, 1, 1);
    conf_stop(&rig);
}

/* Re-encodes b's blob after a change. */
static enum kvf_status load_changed(struct conf_rig *rig,
                                    void (*change)(struct kvfi_nixl_metadata *md),
                                    struct kvf_peer_id *peer, const char *words)
{
    struct blob blob = take_blob(&rig->b);
    struct kvfi_nixl_metadata md;
    struct kvfi_buf buf;
    assert_int_equal(kvfi_nixl_metadata_decode(blob.data, blob.len, NULL, &md, NULL), KVF_OK);
    change(&md);
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_nixl_metadata_encode(&md, &buf, NULL), KVF_OK);
    enum kvf_status status = load(&rig->a, buf.data, buf.len, peer, words);
    kvfi_buf_deinit(&buf);
    kvfi_nixl_metadata_free(&md);
    kvf_agent_blob_free(blob.owner, blob.data);
    return status;
}

static void other_backend(struct kvfi_nixl_metadata *md)
{
    static struct kvfi_nixl_conn conn;
    conn = md->conns[0];
    conn.backend = kvfi_span_str("GDS");
    md->conns = &conn;
}

static void no_connection(struct kvfi_nixl_metadata *md)
{
    md->conn_count = 0;
}

static void no_sections(struct kvfi_nixl_metadata *md)
{
    md->section_count = 0;
}

static void nul_in_name(struct kvfi_nixl_metadata *md)
{
    md->agent = kvfi_span("a\0b", 3);
}

static void foreign_memory(struct kvfi_nixl_metadata *md)
{
    static struct kvfi_nixl_section section;
    section = md->sections[0];
    section.mem_type = KVFI_NIXL_FILE;
    md->sections = &section;
}

static void garbled_key(struct kvfi_nixl_metadata *md)
{
    static const unsigned char key[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 9};
    static struct kvfi_nixl_region region;
    static struct kvfi_nixl_section section;
    section = md->sections[0];
    region = section.regions[0];
    region.meta = kvfi_span(key, sizeof(key));
    section.regions = &region;
    md->sections = &section;
}

static void garbled_address(struct kvfi_nixl_metadata *md)
{
    static struct kvfi_nixl_conn conn;
    conn = md->conns[0];
    conn.info = kvfi_span("\x0f not an address", 16);
    md->conns = &conn;
}

static void other_address(struct kvfi_nixl_metadata *md)
{
    static struct kvfi_nixl_conn conn;
    static unsigned char info[1024];
    conn = md->conns[0];
    assert_true(conn.info.len < sizeof(info));
    memcpy(info, conn.info.data, conn.info.len);
    info[conn.info.len] = 'x';
    conn.info = kvfi_span(info, conn.info.len + 1);
    md->conns = &conn;
}

static void hostile_blobs_leave_no_trace(void **state)
{
    struct conf_rig rig;
    struct kvf_peer_id peer;
    conf_start(&rig, POOL);
    assert_int_equal(load_changed(&rig, other_backend, &peer, "none of them"), KVF_ENOTSUP);
    assert_int_equal(load_changed(&rig, no_connection, &peer, "no connection"), KVF_ENOTFOUND);
    assert_int_equal(load_changed(&rig, nul_in_name, &peer, "NUL"), KVF_EFORMAT);
    assert_int_equal(load_changed(&rig, foreign_memory, &peer, "FILE"), KVF_EFORMAT);
    assert_int_equal(load_changed(&rig, garbled_key, &peer, NULL), KVF_EFORMAT);
    assert_int_equal(load_changed(&rig, garbled_address, &peer, NULL), KVF_EFORMAT);
    conf_settle(&rig);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    conf_join(&rig); /* unlike NIXL, whose name would be poisoned now */
    post_all(&rig, "fine");
    conf_drive_counts(&rig, 1, 1);

    /* the same against a peer that is loaded: refused, and nothing of it changes */
    assert_int_equal(load_changed(&rig, garbled_key, &peer, "another key"), KVF_ENOTALLOWED);
    assert_int_equal(load_changed(&rig, other_address, &peer, "another address"), KVF_ENOTALLOWED);
    assert_int_equal(load_changed(&rig, other_backend, &peer, NULL), KVF_ENOTSUP);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    post_all(&rig, "still fine");
    conf_drive_counts(&rig, 2, 2);
    conf_stop(&rig);
}

static void partial_blobs(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_peer_id again;
    conf_start(&rig, POOL);
    assert_int_equal(load_changed(&rig, no_sections, &rig.b_at_a, NULL), KVF_OK);
    struct kvf_plan_region region = conf_region(&rig.a, &rig.b, BLOCK, BLOCK);
    struct kvf_block_pairs group = {.local_ids = all_ids(), .remote_ids = all_ids(), .count = 1};
    struct kvf_plan plan = {
        .regions = &region, .region_count = 1, .groups = &group, .group_count = 1};
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, NULL, 0, 0, &id, &error),
        KVF_EINVAL);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "hi", 2, 0, &error), KVF_OK);

    assert_int_equal(load_changed(&rig, no_connection, &again, NULL), KVF_OK);
    assert_int_equal(again.value, rig.b_at_a.value);
    post_all(&rig, "now");
    conf_drive_counts(&rig, 1, 2);

    /* loading only adds, and again changes nothing */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(conf_load(&rig.a, &rig.b).value, rig.b_at_a.value);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});
    conf_stop(&rig);
}

static void stale_handles(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_plan plan = {0};
    conf_start(&rig, POOL);
    conf_join(&rig);
    struct kvf_peer_id old = rig.b_at_a;
    assert_int_equal(kvf_agent_drop(rig.a.agent, old), KVF_OK);
    assert_int_equal(kvf_agent_drop(rig.a.agent, old), KVF_ENOTFOUND);
    assert_null(kvf_agent_peer_name(rig.a.agent, old));
    rig.b_at_a = conf_load(&rig.a, &rig.b); /* at once */
    assert_int_not_equal(rig.b_at_a.value, old.value);
    const struct kvf_peer_id stale[] = {
        old, {0}, {1}, {UINT64_MAX}, {rig.b_at_a.value + 1}, {rig.b_at_a.value & UINT32_MAX}};
    for (size_t i = 0; i < sizeof(stale) / sizeof(stale[0]); i++) {
        assert_int_equal(
            kvf_agent_post(rig.a.agent, KVF_WRITE, stale[i], &plan, "x", 1, 0, &id, &error),
            KVF_ENOTFOUND);
        assert_int_equal(kvf_agent_notify(rig.a.agent, stale[i], "x", 1, 0, &error), KVF_ENOTFOUND);
        assert_int_equal(kvf_agent_drop(rig.a.agent, stale[i]), KVF_ENOTFOUND);
        assert_null(kvf_agent_peer_name(rig.a.agent, stale[i]));
    }
    post_all(&rig, "new id works");
    conf_drive_counts(&rig, 1, 1);
    conf_stop(&rig);
}

static void drop_during_transfer(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    conf_join(&rig);
    post_all(&rig, "first"); /* also brings the connection up */
    conf_drive_counts(&rig, 1, 1);
    for (size_t round = 0; round < 10; round++) {
        size_t before = rig.a.result_count;
        post_all(&rig, "dropped");
        post_all(&rig, "dropped");
        assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error), KVF_OK);
        assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
        assert_int_equal(rig.a.result_count, before);
        assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error),
                         KVF_ENOTFOUND);
        conf_settle(&rig);
        assert_int_equal(rig.a.result_count, before + 2);
        for (size_t i = before; i < before + 2; i++)
            assert_true(rig.a.results[i].status == KVF_OK ||
                        rig.a.results[i].status == KVF_ECANCELED);
        assert_int_equal(rig.a.lost_count, 0);
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
        assert_int_equal(kvf_agent_deregister(rig.a.agent, rig.a.pool, POOL, KVF_MEMORY_DRAM, 0),
                         KVF_OK);
        conf_register_again(&rig.a);
        rig.b_at_a = conf_load(&rig.a, &rig.b);
        /* the peer may have seen the connection break; it starts anew as well */
        if (rig.b.lost_count > 0) {
            assert_int_equal(kvf_agent_drop(rig.b.agent, rig.a_at_b), KVF_OK);
            rig.a_at_b = conf_load(&rig.b, &rig.a);
            rig.b.lost_count = 0;
        }
    }
    conf_stop(&rig);
}

/* The target forgets the initiator, before, under and after its WRITEs: they end all the same. */
static void target_lets_go(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    post_all(&rig, "first");
    conf_drive_counts(&rig, 1, 1);
    size_t posted = 1;
    for (size_t round = 0; round < 10; round++) {
        if (round % 2) {
            post_all(&rig, "under way");
            posted++;
        }
        assert_int_equal(kvf_agent_drop(rig.b.agent, rig.a_at_b), KVF_OK);
        post_all(&rig, "after");
        posted++;
        conf_drive_counts(&rig, posted, posted);
        rig.a_at_b = conf_load(&rig.b, &rig.a);
        post_all(&rig, "again");
        posted++;
        conf_drive_counts(&rig, posted, posted);
    }
    for (size_t i = 0; i < posted; i++)
        assert_int_equal(rig.a.results[i].status, KVF_OK);
    assert_int_equal(rig.a.lost_count + rig.b.lost_count, 0);
    conf_stop(&rig);
}

static void drop_from_callback(struct conf_side *side, const struct conf_result *result)
{
    struct conf_rig *rig = side->test;
    conf_drop(side, rig->b_at_a);
}

static void drop_inside_callback(void **state)
{
    struct conf_rig rig;
    conf_start(&rig, POOL);
    conf_join(&rig);
    rig.a.on_result = drop_from_callback;
    rig.a.test = &rig;
    for (size_t i = 0; i < 5; i++)
        post_all(&rig, "x");
    conf_settle(&rig);
    assert_int_equal(rig.a.result_count, 5);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
    conf_stop(&rig);
}

static void destroy_with_transfers(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    conf_start(&rig, POOL);
    conf_join(&rig);
    for (size_t i = 0; i < 4; i++)
        post_all(&rig, "late");
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error), KVF_OK);
    kvf_agent_destroy(rig.a.agent);
    rig.a.agent = NULL;
    assert_int_equal(rig.a.result_count, 0); /* no callbacks any more */
    memset(rig.a.pool, 0, POOL);             /* ours again */
    for (size_t i = 0; i < 100; i++)
        (void)kvf_agent_progress(rig.b.agent);
    conf_stop(&rig);
}

static bool b_unusable(struct conf_rig *rig)
{
    return rig->a.lost_count > 0;
}

static void peer_goes_away(void **state)
{
    struct conf_rig rig;
    struct kvf_error error;
    struct kvf_transfer_id id;
    struct kvf_plan plan = {0};
    conf_start(&rig, POOL);
    conf_join(&rig);
    post_all(&rig, "once");
    conf_drive_counts(&rig, 1, 1);
    char name[64];
    memcpy(name, kvf_agent_name(rig.b.agent), strlen(kvf_agent_name(rig.b.agent)) + 1);
    conf_close(&rig.b);

    /* whatever is posted before the loss is seen fails once */
    size_t posted = 1;
    while (rig.a.lost_count == 0) {
        enum kvf_status status = kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan,
                                                "anybody?", 8, 0, &id, &error);
        if (status == KVF_EDISCONNECTED)
            break;
        assert_int_equal(status, KVF_OK);
        posted++;
        (void)kvf_agent_progress(rig.a.agent);
    }
    conf_drive(&rig, b_unusable);
    conf_settle(&rig);
    assert_int_equal(rig.a.result_count, posted);
    assert_int_equal(rig.a.lost_count, 1);
    assert_int_equal(rig.a.lost_peer.value, rig.b_at_a.value);
    assert_int_equal(
        kvf_agent_post(rig.a.agent, KVF_WRITE, rig.b_at_a, &plan, "x", 1, 0, &id, &error),
        KVF_EDISCONNECTED);
    assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error),
                     KVF_EDISCONNECTED);
    conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1, .peers = 1});

    /* back under its old name, then under a new one (B28, B35) */
    for (size_t round = 0; round < 2; round++) {
        conf_open(&rig, &rig.b, round == 0 ? name : NULL, POOL);
        if (round == 0) {
            struct blob blob = take_blob(&rig.b);
            struct kvf_peer_id peer;
            assert_int_equal(load(&rig.a, blob.data, blob.len, &peer, "drop the peer first"),
                             KVF_EDISCONNECTED);
            kvf_agent_blob_free(blob.owner, blob.data);
        }
        assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
        conf_join(&rig);
        size_t results = rig.a.result_count;
        conf_fill(rig.a.pool, POOL, round);
        post_all(&rig, "welcome back");
        conf_drive_counts(&rig, results + 1, 1);
        assert_int_equal(rig.a.results[results].status, KVF_OK);
        assert_memory_equal(rig.a.pool, rig.b.pool, POOL);
        if (round == 0)
            conf_close(&rig.b);
    }
    conf_stop(&rig);
}

/* A restarted peer under its old name, before anybody saw the old one go: NIXL's refusal. */
static void same_name_while_loaded(void **state)
{
    struct conf_rig rig;
    struct kvf_peer_id peer;
    struct conf_side twin;
    conf_start(&rig, POOL);
    conf_join(&rig);
    conf_open(&rig, &twin, kvf_agent_name(rig.b.agent), POOL);
    struct blob blob = take_blob(&twin);
    assert_int_equal(load(&rig.a, blob.data, blob.len, &peer, "another address"), KVF_ENOTALLOWED);
    post_all(&rig, "the old one still works");
    conf_drive_counts(&rig, 1, 1);
    kvf_agent_blob_free(blob.owner, blob.data);
    conf_close(&twin);
    conf_stop(&rig);
}

/* B70: a peer that comes and goes leaves nothing. */
static void load_and_drop_500(void **state)
{
    struct conf_rig rig;
    size_t base = 0;
    conf_start(&rig, BLOCK);
    struct blob blob = take_blob(&rig.b);
    for (size_t i = 0; i < 500; i++) {
        assert_int_equal(load(&rig.a, blob.data, blob.len, &rig.b_at_a, NULL), KVF_OK);
        if (i % 10 == 0) {
            struct kvf_error error;
            size_t before = rig.b.message_count;
            assert_int_equal(kvf_agent_notify(rig.a.agent, rig.b_at_a, "x", 1, 0, &error), KVF_OK);
            conf_drive_counts(&rig, 0, before + 1);
        }
        assert_int_equal(kvf_agent_drop(rig.a.agent, rig.b_at_a), KVF_OK);
        conf_settle(&rig);
        conf_expect_usage(rig.a.agent, (struct kvf_agent_usage){.regions = 1});
        if (i == 99)
            base = mallinfo2().uordblks;
    }
    size_t now = mallinfo2().uordblks;
    size_t grown = now > base ? now - base : 0;
    if (grown > (size_t)256 * 1024) /* 400 loads; one leaked endpoint has kilobytes */
        fail_msg("%zu bytes more after 400 loads", grown);
    kvf_agent_blob_free(blob.owner, blob.data);
    conf_stop(&rig);
}

int conf_run_peers(void)
{
    const struct CMUnitTest peers[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(registration),
        cmocka_unit_test(deregister_while_busy),
        cmocka_unit_test(self_refused),
        cmocka_unit_test(truncated_blobs),
        cmocka_unit_test(hostile_blobs_leave_no_trace),
        cmocka_unit_test(partial_blobs),
        cmocka_unit_test(stale_handles),
        cmocka_unit_test(drop_during_transfer),
        cmocka_unit_test(target_lets_go),
        cmocka_unit_test(drop_inside_callback),
        cmocka_unit_test(destroy_with_transfers),
        cmocka_unit_test(peer_goes_away),
        cmocka_unit_test(same_name_while_loaded),
        cmocka_unit_test(load_and_drop_500),
    };
    return cmocka_run_group_tests(peers, NULL, NULL);
}
