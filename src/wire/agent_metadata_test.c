/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/agent_metadata.h"

#include "wire/compat_hash.h"
#include "wire/handshake.h"
#include "wire/msgpack_doc.h"
#include "wire/wire_test.h"

/* Made by the released connector: two regions, 469 bytes. */
static const char golden_hex[] = "de0015a9656e67696e655f6964a3707265ae6167656e745f6d65746164617461"
                                 "c40400010203b36b765f6361636865735f626173655f6164647292cf00007f00"
                                 "00000000cf00007f0000100000a96465766963655f696400aa6e756d5f626c6f"
                                 "636b7340aa626c6f636b5f6c656e7392cd0c00cd0c00ad626c6f636b5f737472"
                                 "6964657392cd0c00cd1000af6b765f63616368655f6c61796f7574a54c42484e"
                                 "43aa626c6f636b5f73697a6510a973736d5f73697a6573920000b16174746e5f"
                                 "6261636b656e645f6e616d65a84350555f4154544ed924706879736963616c5f"
                                 "626c6f636b735f7065725f6c6f676963616c5f6b765f626c6f636b01b1726567"
                                 "696f6e5f6e756d5f626c6f636b73924040b0726567696f6e5f67726f75705f69"
                                 "6473920000ac726567696f6e5f6e616d657392bd6d6f64656c2e6c6179657273"
                                 "2e302e73656c665f6174746e2e6174746ebd6d6f64656c2e6c61796572732e31"
                                 "2e73656c665f6174746e2e6174746eb0726567696f6e5f6d656d5f7479706573"
                                 "92a44452414da44452414da86463705f73697a6501a87063705f73697a6501ad"
                                 "706c655f626c6f636b5f6c656ec0ae726567696f6e5f6d656d6265727390b570"
                                 "61636b65645f6d656d6265725f6c61796f75747380";
static const char golden_sha256[] =
    "7560213d5c10dcdf08a7c130e988db07df32a25c014755411455f1c9791d56c8";

static const uint64_t bases[] = {0x7f0000000000, 0x7f0000100000};
static const uint64_t lens[] = {3072, 3072};
static const uint64_t strides[] = {3072, 4096};
static const uint64_t blocks[] = {64, 64};
static const int64_t groups[] = {0, 0};
static const char *const names[] = {"model.layers.0.self_attn.attn",
                                    "model.layers.1.self_attn.attn"};
static const char *const mem_types[] = {"DRAM", "DRAM"};

static struct kvfi_agent_metadata golden(void)
{
    return (struct kvfi_agent_metadata){
        .engine_id = "pre",
        .agent_metadata = kvfi_span("\0\1\2\3", 4),
        .kv_caches_base_addr = {bases, 2},
        .num_blocks = 64,
        .block_lens = {lens, 2},
        .block_strides = {strides, 2},
        .kv_cache_layout = "LBHNC",
        .block_size = 16,
        .attn_backend_name = "CPU_ATTN",
        .physical_blocks_per_logical_kv_block = 1,
        .has_region_num_blocks = true,
        .region_num_blocks = {blocks, 2},
        .has_region_group_ids = true,
        .region_group_ids = {groups, 2},
        .has_region_names = true,
        .region_names = {names, 2},
        .has_region_mem_types = true,
        .region_mem_types = {mem_types, 2},
        .dcp_size = 1,
        .pcp_size = 1,
    };
}

static void sha256_is(const struct kvfi_buf *buf, const char *expected)
{
    char hex[KVFI_COMPAT_HASH_LEN + 1];
    assert_int_equal(kvfi_sha256_hex(buf->data, buf->len, hex, NULL), KVF_OK);
    assert_string_equal(hex, expected);
}

static void golden_encodes(void **state)
{
    struct kvfi_agent_metadata md = golden();
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_agent_metadata_encode(&md, &buf, NULL), KVF_OK);
    assert_int_equal(buf.len, 469);
    test_same_bytes(buf.data, buf.len, bytes.data, bytes.len);
    sha256_is(&buf, golden_sha256);
    kvfi_buf_deinit(&buf);
    free(bytes.data);
}

static void golden_decodes(void **state)
{
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_agent_metadata md;
    assert_int_equal(kvfi_agent_metadata_decode(bytes.data, bytes.len, NULL, &md, NULL), KVF_OK);
    free(bytes.data); /* nothing may point into it */
    assert_string_equal(md.engine_id, "pre");
    test_same_bytes(md.agent_metadata.data, md.agent_metadata.len, "\0\1\2\3", 4);
    test_same_bytes(md.kv_caches_base_addr.items, 16, bases, sizeof(bases));
    assert_int_equal(md.device_id, 0);
    assert_int_equal(md.num_blocks, 64);
    test_same_bytes(md.block_lens.items, 16, lens, sizeof(lens));
    test_same_bytes(md.block_strides.items, 16, strides, sizeof(strides));
    assert_string_equal(md.kv_cache_layout, "LBHNC");
    assert_int_equal(md.block_size, 16);
    assert_int_equal(md.ssm_sizes[0] + md.ssm_sizes[1], 0);
    assert_string_equal(md.attn_backend_name, "CPU_ATTN");
    assert_int_equal(md.physical_blocks_per_logical_kv_block, 1);
    assert_true(md.has_region_num_blocks && md.has_region_group_ids && md.has_region_names &&
                md.has_region_mem_types);
    assert_string_equal(md.region_names.items[1], names[1]);
    assert_string_equal(md.region_mem_types.items[0], "DRAM");
    assert_int_equal(md.dcp_size + md.pcp_size, 2);
    assert_false(md.has_ple_block_len);
    assert_int_equal(md.region_member_count + md.packed_member_count, 0);
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_agent_metadata_encode(&md, &buf, NULL), KVF_OK);
    sha256_is(&buf, golden_sha256);
    kvfi_buf_deinit(&buf);
    kvfi_agent_metadata_free(&md);
    kvfi_agent_metadata_free(&md);
}

/* The handshake payload of the same engine, with its SmolLM2 push hash. */
static void golden_payload_encodes(void **state)
{
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_handshake_payload payload = {
        .compatibility_hash = "a0afe7f6adacd47e07863d84fa9325df1e91df9c2ca7ca6778b0721ba6470f1b",
        .agent_metadata = kvfi_span(bytes.data, bytes.len)};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_handshake_payload_encode(&payload, &buf, NULL), KVF_OK);
    assert_int_equal(buf.len, 579);
    sha256_is(&buf, "37a15a5c3979a26dde022a171ed22b162523cd6cbe02d8c2231fdccc7f10096b");
    kvfi_buf_deinit(&buf);
    free(bytes.data);
}

static void packed_rows_both_ways(void **state)
{
    static const char tail_hex[] =
        "b0726567696f6e5f67726f75705f69647391ff ac726567696f6e5f6e616d657391a24c30"
        "b0726567696f6e5f6d656d5f747970657391a45652414d a86463705f73697a6501 a87063705f73697a6501"
        "ad706c655f626c6f636b5f6c656ec0 ae726567696f6e5f6d656d626572739192a24c30a24c31"
        "b57061636b65645f6d656d6265725f6c61796f75747382a24c30920040a24c319240cd0140";
    static const uint64_t base[] = {9437184}, row[] = {384}, count[] = {5};
    static const int64_t group[] = {KVFI_REGION_GROUP_SHARED};
    static const char *const name[] = {"L0"}, *const vram[] = {"VRAM"},
                             *const both[] = {"L0", "L1"};
    static const struct kvfi_text_array members[] = {{both, 2}};
    static const struct kvfi_packed_member packed[] = {{"L0", 0, 64}, {"L1", 64, 320}};
    struct kvfi_agent_metadata md = golden();
    md.engine_id = "dec_dp1";
    md.agent_metadata = kvfi_span("\xaa\xbb", 2);
    md.kv_caches_base_addr = (struct kvfi_u64_array){base, 1};
    md.device_id = 3;
    md.num_blocks = 5;
    md.block_lens = md.block_strides = (struct kvfi_u64_array){row, 1};
    md.kv_cache_layout = "BLHNC";
    md.block_size = 64;
    md.attn_backend_name = "FLASHMLA_SPARSE";
    md.region_num_blocks = (struct kvfi_u64_array){count, 1};
    md.region_group_ids = (struct kvfi_i64_array){group, 1};
    md.region_names = (struct kvfi_text_array){name, 1};
    md.region_mem_types = (struct kvfi_text_array){vram, 1};
    md.region_members = members;
    md.region_member_count = 1;
    md.packed_member_layouts = packed;
    md.packed_member_count = 2;
    struct test_bytes tail = test_hex(tail_hex);
    struct kvfi_buf buf, again;
    kvfi_buf_init(&buf, NULL);
    kvfi_buf_init(&again, NULL);
    assert_int_equal(kvfi_agent_metadata_encode(&md, &buf, NULL), KVF_OK);
    assert_int_equal(buf.len, 416);
    assert_memory_equal(buf.data + buf.len - tail.len, tail.data, tail.len);
    assert_int_equal(kvfi_agent_metadata_decode(buf.data, buf.len, NULL, &md, NULL), KVF_OK);
    assert_int_equal(md.region_group_ids.items[0], -1);
    assert_string_equal(md.region_members[0].items[1], "L1");
    assert_string_equal(md.packed_member_layouts[1].layer, "L1");
    assert_int_equal(md.packed_member_layouts[1].offset_bytes, 64);
    assert_int_equal(md.packed_member_layouts[1].page_bytes, 320);
    assert_int_equal(kvfi_agent_metadata_encode(&md, &again, NULL), KVF_OK);
    test_same_bytes(buf.data, buf.len, again.data, again.len);
    kvfi_agent_metadata_free(&md);
    kvfi_buf_deinit(&again);
    kvfi_buf_deinit(&buf);
    free(tail.data);
}

/* The golden map with one value replaced; value_hex NULL leaves the key out. */
static struct kvfi_buf replaced(const char *key, const char *value_hex)
{
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_mp_limits limits = {.len_max = 1000, .element_count_max = 100, .depth_max = 8};
    struct kvfi_mp_doc doc;
    struct kvfi_buf buf;
    msgpack_packer packer;
    kvfi_buf_init(&buf, NULL);
    kvfi_mp_packer(&packer, &buf);
    assert_int_equal(kvfi_mp_parse("golden", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                     KVF_OK);
    msgpack_object_map map = doc.root.via.map;
    struct kvfi_mp_field field = kvfi_mp_field("golden", &doc.root, key);
    size_t count = map.size + (!field.object) - (field.object && !value_hex);
    msgpack_pack_map(&packer, count);
    for (uint32_t i = 0; i < map.size; i++) {
        if (&map.ptr[i].val == field.object)
            continue;
        msgpack_pack_object(&packer, map.ptr[i].key);
        msgpack_pack_object(&packer, map.ptr[i].val);
    }
    if (value_hex) {
        struct test_bytes value = test_hex(value_hex);
        kvfi_mp_pack_text(&packer, key);
        kvfi_buf_put(&buf, value.data, value.len);
        free(value.data);
    }
    kvfi_mp_free(&doc);
    free(bytes.data);
    return buf;
}

static enum kvf_status decode_replaced(const char *key, const char *value_hex,
                                       struct kvfi_agent_metadata *md, struct kvf_error *error)
{
    struct kvfi_buf buf = replaced(key, value_hex);
    struct test_bytes exact = test_copy(buf.data, buf.len);
    enum kvf_status status = kvfi_agent_metadata_decode(exact.data, exact.len, NULL, md, error);
    free(exact.data);
    kvfi_buf_deinit(&buf);
    return status;
}

static void unknown_keys_and_any_order_pass(void **state)
{
    struct kvfi_agent_metadata md;
    assert_int_equal(decode_replaced("engine_id", "a3707265", &md, NULL), KVF_OK);
    assert_string_equal(md.engine_id, "pre"); /* now the last key */
    kvfi_agent_metadata_free(&md);
    assert_int_equal(decode_replaced("field_of_version_16", "81a16190", &md, NULL), KVF_OK);
    kvfi_agent_metadata_free(&md);
}

static void missing_keys_are_named_or_take_their_default(void **state)
{
    static const char *const required[] = {
        "engine_id",     "agent_metadata",    "kv_caches_base_addr",
        "device_id",     "num_blocks",        "block_lens",
        "block_strides", "kv_cache_layout",   "block_size",
        "ssm_sizes",     "attn_backend_name", "physical_blocks_per_logical_kv_block"};
    static const char *const optional[] = {
        "region_num_blocks", "region_group_ids", "region_names",
        "region_mem_types",  "dcp_size",         "pcp_size",
        "ple_block_len",     "region_members",   "packed_member_layouts"};
    struct kvfi_agent_metadata md;
    struct kvf_error error;
    for (size_t i = 0; i < ITEMS(required); i++) {
        test_refused(decode_replaced(required[i], NULL, &md, &error), KVF_EFORMAT, &error,
                     required[i]);
        assert_non_null(strstr(error.text, "missing"));
    }
    for (size_t i = 0; i < ITEMS(optional); i++) {
        assert_int_equal(decode_replaced(optional[i], NULL, &md, NULL), KVF_OK);
        assert_int_equal(md.dcp_size, 1);
        assert_int_equal(md.pcp_size, 1);
        assert_int_equal(md.has_region_num_blocks, i != 0);
        assert_int_equal(md.has_region_group_ids, i != 1);
        assert_int_equal(md.has_region_names, i != 2);
        assert_int_equal(md.has_region_mem_types, i != 3);
        kvfi_agent_metadata_free(&md);
    }
}

static void nil_stands_for_absent_where_it_may(void **state)
{
    struct kvfi_agent_metadata md;
    struct kvf_error error;
    assert_int_equal(decode_replaced("region_names", "c0", &md, NULL), KVF_OK);
    assert_false(md.has_region_names);
    kvfi_agent_metadata_free(&md);
    assert_int_equal(decode_replaced("ple_block_len", "cd0200", &md, NULL), KVF_OK);
    assert_true(md.has_ple_block_len);
    assert_int_equal(md.ple_block_len, 512);
    kvfi_agent_metadata_free(&md);
    test_refused(decode_replaced("region_members", "c0", &md, &error), KVF_EFORMAT, &error,
                 "'region_members' is nil");
    test_refused(decode_replaced("dcp_size", "c0", &md, &error), KVF_EFORMAT, &error,
                 "'dcp_size' is nil");
}

static void values_are_strict(void **state)
{
    static const struct {
        const char *key;
        const char *hex;
        const char *mentions;
    } rows[] = {
        {"engine_id", "c403707265", "is bytes, expected a string"},
        {"engine_id", "a0", "'engine_id' is empty"},
        {"agent_metadata", "a3707265", "is a string, expected bytes"},
        {"num_blocks", "cb4050000000000000", "is a float"},
        {"num_blocks", "c3", "is a bool"},
        {"num_blocks", "ff", "'num_blocks' is -1"},
        {"num_blocks", "ce80000001", "2147483649"},
        {"block_size", "00", "'block_size' is 0"},
        {"device_id", "cfffffffffffffffff", "18446744073709551615"},
        {"dcp_size", "00", "'dcp_size' is 0"},
        {"physical_blocks_per_logical_kv_block", "00", "is 0"},
        {"ssm_sizes", "9100", "1 entries, expected 2"},
        {"ssm_sizes", "00", "an array"},
        {"block_lens", "91cd0c00", "'block_lens' has 1 entries for 2 regions"},
        {"block_strides", "92cd0c00cd0bff", "stride 3071 below block length 3072"},
        {"block_strides", "92cd0c00cfffffffffffffff00", "address space"},
        {"kv_caches_base_addr", "92 cfffffffffffffff00 00", "address space"},
        {"region_num_blocks", "93404040", "'region_num_blocks' has 3 entries for 2 regions"},
        {"region_num_blocks", "92 00 ce80000001", "2147483649"},
        {"region_group_ids", "9200fe", "-2, expected -1"},
        {"region_group_ids", "92 00 ce00010000", "65536"},
        {"region_names", "92a16101", "'region_names' is an int"},
        {"region_names", "91a161", "'region_names' has 1 entries"},
        {"region_mem_types", "92a44452414da3535344", "'SSD', expected DRAM or VRAM"},
        {"region_members", "9190", "'region_members' has 1 entries"},
        {"region_members", "92a161a162", "a string, expected an array"},
        {"packed_member_layouts", "90", "an array, expected a map"},
        {"packed_member_layouts", "8101920102", "a key is an int"},
        {"packed_member_layouts", "81a1619101", "1 entries, expected 2"},
        {"packed_member_layouts", "81a16192cfffffffffffffffff01", "wraps"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_agent_metadata md;
        struct kvf_error error;
        enum kvf_status status = decode_replaced(rows[i].key, rows[i].hex, &md, &error);
        test_refused(status, KVF_EFORMAT, &error, rows[i].mentions);
    }
    struct kvfi_agent_metadata md;
    assert_int_equal(decode_replaced("ssm_sizes", "93000000", &md, NULL), KVF_ELIMIT);
}

static void what_is_no_map_is_refused(void **state)
{
    static const char *const payloads[] = {"", "90", "c0", "80", "8100c0", "de0015"};
    for (size_t i = 0; i < ITEMS(payloads); i++) {
        struct test_bytes bytes = test_hex(payloads[i]);
        struct kvfi_agent_metadata md;
        assert_int_equal(kvfi_agent_metadata_decode(bytes.data, bytes.len, NULL, &md, NULL),
                         KVF_EFORMAT);
        free(bytes.data);
    }
}

static void every_truncation_is_refused(void **state)
{
    struct test_bytes bytes = test_hex(golden_hex);
    for (size_t len = 0; len < bytes.len; len++) {
        struct test_bytes cut = test_copy(bytes.data, len);
        struct kvfi_agent_metadata md;
        assert_int_equal(kvfi_agent_metadata_decode(cut.data, cut.len, NULL, &md, NULL),
                         KVF_EFORMAT);
        free(cut.data);
    }
    free(bytes.data);
}

static void encoder_refuses_what_a_peer_would(void **state)
{
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    struct kvfi_agent_metadata md = golden();
    md.kv_cache_layout = NULL;
    test_refused(kvfi_agent_metadata_encode(&md, &buf, &error), KVF_EINVAL, &error,
                 "'kv_cache_layout' is missing");
    md = golden();
    md.block_lens.count = 1;
    test_refused(kvfi_agent_metadata_encode(&md, &buf, &error), KVF_EINVAL, &error, "block_lens");
    md = golden();
    md.dcp_size = 0;
    test_refused(kvfi_agent_metadata_encode(&md, &buf, &error), KVF_EINVAL, &error, "dcp_size");
    md = golden();
    md.kv_caches_base_addr.count = KVFI_AGENT_METADATA_REGION_MAX + 1;
    test_refused(kvfi_agent_metadata_encode(&md, &buf, &error), KVF_ELIMIT, &error, "65537");
    assert_int_equal(buf.len, 0);
    kvfi_buf_deinit(&buf);
}

/* The last byte of the address space is an address. */
static void regions_may_touch_the_end(void **state)
{
    static const uint64_t base[] = {UINT64_MAX - 64 * UINT64_C(3072), 0x7f0000100000};
    struct kvfi_agent_metadata md = golden();
    md.kv_caches_base_addr.items = base;
    assert_int_equal(kvfi_agent_metadata_check(&md, NULL), KVF_OK);
    static const uint64_t beyond[] = {UINT64_MAX - 64 * UINT64_C(3072) + 1, 0x7f0000100000};
    md.kv_caches_base_addr.items = beyond;
    assert_int_equal(kvfi_agent_metadata_check(&md, NULL), KVF_EINVAL);
}

static enum kvf_status decode_golden(const struct kvf_allocator *allocator)
{
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_agent_metadata md;
    enum kvf_status status =
        kvfi_agent_metadata_decode(bytes.data, bytes.len, allocator, &md, NULL);
    if (status == KVF_OK)
        kvfi_agent_metadata_free(&md);
    free(bytes.data);
    return status;
}

static void memory_shortage_is_reported(void **state)
{
    assert_int_equal(test_alloc_failures(decode_golden), 2);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_encodes),
        cmocka_unit_test(golden_decodes),
        cmocka_unit_test(golden_payload_encodes),
        cmocka_unit_test(packed_rows_both_ways),
        cmocka_unit_test(unknown_keys_and_any_order_pass),
        cmocka_unit_test(missing_keys_are_named_or_take_their_default),
        cmocka_unit_test(nil_stands_for_absent_where_it_may),
        cmocka_unit_test(values_are_strict),
        cmocka_unit_test(what_is_no_map_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(encoder_refuses_what_a_peer_would),
        cmocka_unit_test(regions_may_touch_the_end),
        cmocka_unit_test(memory_shortage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
