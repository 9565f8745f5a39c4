/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_metadata.h"

#include "wire/wire_test.h"

/* What a real agent of NIXL 1.5.1 published: 271 bytes. */
static const char golden_hex[] =
    "6e69786c5365724465737c4167656e740500000000000000616c7068617c436f6e6e73080000000000000001000000"
    "00"
    "0000007c7403000000000000005543587c631f000000000000007102e9f8c2cfcfe4e9e400860002c0000202cf190c"
    "01"
    "5a0080008b0082e0ab7c0a000000000000004d656d53656374696f6e7c6e69786c536563456c6d7308000000000000"
    "00"
    "01000000000000007c626b6e6403000000000000005543587c6e69786c444c6973740a000000000000006e69786c53"
    "44"
    "4c6973747c740400000000000000000000007c6e080000000000000001000000000000007c2100000000000000"
    "00701f743e7f0000000010000000000000000000000000000000000000000000007c";

static struct kvfi_buf encoded(const struct kvfi_nixl_metadata *md)
{
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    if (kvfi_nixl_metadata_encode(md, &buf, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return buf;
}

static void refuses_to_encode(const struct kvfi_nixl_metadata *md, enum kvf_status status,
                              const char *mentions)
{
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    test_refused(kvfi_nixl_metadata_encode(md, &buf, &error), status, &error, mentions);
    kvfi_buf_deinit(&buf);
}

static void refuses_to_decode(const void *data, size_t len, enum kvf_status status,
                              const char *mentions)
{
    struct kvfi_nixl_metadata md = {.conn_count = 99};
    struct kvf_error error;
    struct test_alloc test;
    test_alloc_init(&test, 0);
    struct test_bytes exact = test_copy(data, len);
    test_refused(kvfi_nixl_metadata_decode(exact.data, len, &test.allocator, &md, &error), status,
                 &error, mentions);
    assert_int_equal(test.live, 0);
    assert_int_equal(md.conn_count, 99);
    free(exact.data);
}

static void golden_both_ways(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    assert_int_equal(golden.len, 271);
    struct kvfi_nixl_metadata md;
    assert_int_equal(kvfi_nixl_metadata_decode(golden.data, golden.len, NULL, &md, NULL), KVF_OK);
    test_span_is(md.agent, "alpha");
    assert_int_equal(md.conn_count, 1);
    test_span_is(md.conns[0].backend, "UCX");
    assert_int_equal(md.conns[0].info.len, 31);
    assert_int_equal(md.conns[0].info.data[0], 0x71);
    assert_int_equal(md.section_count, 1);
    test_span_is(md.sections[0].backend, "UCX");
    assert_int_equal(md.sections[0].mem_type, KVFI_NIXL_DRAM);
    assert_int_equal(md.sections[0].region_count, 1);
    const struct kvfi_nixl_region *region = &md.sections[0].regions[0];
    assert_true(region->addr == 0x7f3e741f7000);
    assert_true(region->len == 1 << 20);
    assert_int_equal(region->dev_id, 0);
    test_same_bytes(region->meta.data, region->meta.len, "\0\0\0\0\0\0\0\0\0", 9);
    struct kvfi_buf buf = encoded(&md);
    test_same_bytes(buf.data, buf.len, golden.data, golden.len);
    kvfi_buf_deinit(&buf);
    kvfi_nixl_metadata_free(&md);
    free(golden.data);
}

/* The measured sizes of full, connection-only and partial blobs. */
static void sizes_are_as_measured(void **state)
{
    static uint8_t address[213];
    struct kvfi_nixl_conn conn = {.backend = kvfi_span_str("UCX"),
                                  .info = kvfi_span(address, sizeof(address))};
    struct kvfi_nixl_region region = {
        .addr = 0x7f348a7e1000, .len = 1 << 20, .meta = kvfi_span(address, 11)};
    struct kvfi_nixl_section section = {
        .backend = kvfi_span_str("UCX"), .regions = &region, .region_count = 1};
    struct kvfi_nixl_metadata md = {.agent = kvfi_span_str("alpha")};
    static const struct {
        size_t conns, sections, len;
    } rows[] = {{1, 1, 455}, {1, 0, 335}, {0, 1, 219}};
    for (size_t i = 0; i < ITEMS(rows); i++) {
        md.conns = &conn;
        md.conn_count = rows[i].conns;
        md.sections = &section;
        md.section_count = rows[i].sections;
        struct kvfi_buf buf = encoded(&md);
        assert_int_equal(buf.len, rows[i].len);
        struct kvfi_nixl_metadata back;
        assert_int_equal(kvfi_nixl_metadata_decode(buf.data, buf.len, NULL, &back, NULL), KVF_OK);
        assert_int_equal(back.conn_count, rows[i].conns);
        assert_int_equal(back.section_count, rows[i].sections);
        kvfi_nixl_metadata_free(&back);
        kvfi_buf_deinit(&buf);
    }
}

static void regions_are_sorted_and_empty_sections_left_out(void **state)
{
    static const struct kvfi_nixl_region regions[] = {{.addr = 50, .len = 1, .dev_id = 1},
                                                      {.addr = 70, .len = 2, .dev_id = 0},
                                                      {.addr = 70, .len = 1, .dev_id = 0},
                                                      {.addr = 60, .len = 9, .dev_id = 0}};
    struct kvfi_nixl_section sections[] = {
        {.backend = kvfi_span_str("UCX"), .mem_type = KVFI_NIXL_VRAM},
        {.backend = kvfi_span_str("UCX"), .regions = regions, .region_count = 4}};
    struct kvfi_nixl_metadata md = {
        .agent = kvfi_span_str("a"), .sections = sections, .section_count = 2};
    struct kvfi_buf buf = encoded(&md);
    assert_int_equal(buf.len, 117 - 13 - 10 + 1 + 76 + 4 * 33);
    struct kvfi_nixl_metadata back;
    assert_int_equal(kvfi_nixl_metadata_decode(buf.data, buf.len, NULL, &back, NULL), KVF_OK);
    assert_int_equal(back.section_count, 1);
    static const size_t order[] = {3, 2, 1, 0};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(kvfi_nixl_region_compare(&back.sections[0].regions[i], &regions[order[i]]),
                         0);
    assert_true(regions[0].addr == 50);
    kvfi_nixl_metadata_free(&back);
    kvfi_buf_deinit(&buf);
}

static void encoder_refuses_what_a_peer_would(void **state)
{
    struct kvfi_nixl_conn conn = {.backend = kvfi_span_str("UCX")};
    struct kvfi_nixl_region regions[] = {{.addr = 5, .len = 5}, {.addr = 5, .len = 5}};
    struct kvfi_nixl_section sections[] = {
        {.backend = kvfi_span_str("UCX"), .regions = regions, .region_count = 1},
        {.backend = kvfi_span_str("UCX"), .regions = regions, .region_count = 1}};
    struct kvfi_nixl_metadata md = {.conns = &conn, .sections = sections};
    refuses_to_encode(&md, KVF_EINVAL, "agent name is empty");
    md.agent = kvfi_span_str("a");
    md.conn_count = 1;
    refuses_to_encode(&md, KVF_EINVAL, "connection info is empty");
    md.conn_count = 0;
    md.section_count = 2;
    refuses_to_encode(&md, KVF_EEXIST, "two sections for UCX DRAM");
    md.section_count = 1;
    sections[0].region_count = 2;
    refuses_to_encode(&md, KVF_EEXIST, "twice");
    regions[1].addr = UINT64_MAX - 3;
    refuses_to_encode(&md, KVF_EINVAL, "address space");
    regions[1].addr = UINT64_MAX - 5;
    sections[0].mem_type = 5;
    refuses_to_encode(&md, KVF_EINVAL, "memory type 5");
    sections[0].mem_type = 0;
    regions[1].meta = kvfi_span("", KVFI_NIXL_META_LEN_MAX + 1);
    refuses_to_encode(&md, KVF_EINVAL, "meta");
    sections[0].region_count = KVFI_NIXL_REGION_COUNT_MAX + 1;
    refuses_to_encode(&md, KVF_ELIMIT, "1048576");
}

static void every_truncation_is_refused(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    for (size_t len = 0; len < golden.len; len++)
        refuses_to_decode(golden.data, len, KVF_EFORMAT, "");
    free(golden.data);
}

/* Every single-byte change is either refused or decodes to something that encodes again. */
static void every_changed_byte_is_survived(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    for (size_t i = 0; i < golden.len; i++) {
        uint8_t kept = golden.data[i];
        for (unsigned step = 1; step < 256; step += 50) {
            golden.data[i] = (uint8_t)(kept + step);
            struct kvfi_nixl_metadata md;
            if (kvfi_nixl_metadata_decode(golden.data, golden.len, NULL, &md, NULL) != KVF_OK)
                continue;
            struct kvfi_buf buf = encoded(&md);
            test_same_bytes(buf.data, buf.len, golden.data, golden.len);
            kvfi_buf_deinit(&buf);
            kvfi_nixl_metadata_free(&md);
        }
        golden.data[i] = kept;
    }
    free(golden.data);
}

/* Offsets in the golden blob. */
enum {
    AT_CONN_COUNT = 43,
    AT_SECTION_COUNT = 144,
    AT_MEM_TYPE = 206,
    AT_REGION_COUNT = 220,
    AT_REGION_LEN = 229,
};

static void refuses_with_byte(size_t at, uint8_t value, enum kvf_status status,
                              const char *mentions)
{
    struct test_bytes golden = test_hex(golden_hex);
    golden.data[at] = value;
    refuses_to_decode(golden.data, golden.len, status, mentions);
    free(golden.data);
}

static void hostile_counts_are_refused(void **state)
{
    refuses_with_byte(AT_CONN_COUNT, 65, KVF_ELIMIT, "65 connections");
    refuses_with_byte(AT_CONN_COUNT, 2, KVF_EFORMAT, "'t'");
    refuses_with_byte(AT_SECTION_COUNT + 7, 0xff, KVF_ELIMIT, "sections");
    refuses_with_byte(AT_SECTION_COUNT, 0, KVF_EFORMAT, "after its last field");
    refuses_with_byte(AT_MEM_TYPE, 9, KVF_EFORMAT, "memory type 9");
    refuses_with_byte(AT_REGION_COUNT, 0, KVF_EFORMAT, "no regions");
    refuses_with_byte(AT_REGION_COUNT + 2, 0x0f, KVF_EFORMAT, "");
    refuses_with_byte(AT_REGION_COUNT + 3, 0x10, KVF_ELIMIT, "regions");
    refuses_with_byte(AT_REGION_COUNT + 7, 0xff, KVF_ELIMIT, "regions");
    refuses_with_byte(AT_REGION_LEN, 0x17, KVF_EFORMAT, "");
}

/* NIXL lists memory that was registered twice twice; the same key is harmless, another is not. */
static void repeated_regions_count_once(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    size_t field_len = golden.len - AT_REGION_LEN;
    struct test_bytes twice = {.data = malloc(golden.len + field_len),
                               .len = golden.len + field_len};
    assert_non_null(twice.data);
    memcpy(twice.data, golden.data, golden.len);
    memcpy(twice.data + golden.len, golden.data + AT_REGION_LEN, field_len);
    twice.data[AT_REGION_COUNT] = 2;
    struct kvfi_nixl_metadata md;
    assert_int_equal(kvfi_nixl_metadata_decode(twice.data, twice.len, NULL, &md, NULL), KVF_OK);
    assert_int_equal(md.sections[0].region_count, 1);
    kvfi_nixl_metadata_free(&md);
    twice.data[twice.len - 2] ^= 1;
    refuses_to_decode(twice.data, twice.len, KVF_EFORMAT, "twice with different keys");
    free(twice.data);
    free(golden.data);
}

static enum kvf_status decode_golden(const struct kvf_allocator *allocator)
{
    struct test_bytes golden = test_hex(golden_hex);
    struct kvfi_nixl_metadata md;
    enum kvf_status status =
        kvfi_nixl_metadata_decode(golden.data, golden.len, allocator, &md, NULL);
    if (status == KVF_OK)
        kvfi_nixl_metadata_free(&md);
    free(golden.data);
    return status;
}

static enum kvf_status encode_unsorted(const struct kvf_allocator *allocator)
{
    static const struct kvfi_nixl_region regions[] = {{.addr = 9, .len = 1}, {.addr = 5, .len = 1}};
    struct kvfi_nixl_section section = {
        .backend = kvfi_span_str("UCX"), .regions = regions, .region_count = 2};
    struct kvfi_nixl_metadata md = {
        .agent = kvfi_span_str("a"), .sections = &section, .section_count = 1};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, allocator);
    enum kvf_status status = kvfi_nixl_metadata_encode(&md, &buf, NULL);
    kvfi_buf_deinit(&buf);
    return status;
}

static void memory_shortage_is_reported(void **state)
{
    assert_int_equal(test_alloc_failures(decode_golden), 1);
    assert_int_equal(test_alloc_failures(encode_unsorted), 2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_both_ways),
        cmocka_unit_test(sizes_are_as_measured),
        cmocka_unit_test(regions_are_sorted_and_empty_sections_left_out),
        cmocka_unit_test(encoder_refuses_what_a_peer_would),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(hostile_counts_are_refused),
        cmocka_unit_test(repeated_regions_count_once),
        cmocka_unit_test(memory_shortage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
