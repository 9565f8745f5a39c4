/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/push_reg.h"

#include "wire/msgpack_doc.h"
#include "wire/wire_test.h"

static const char golden_hex[] =
    "505553485f5245473a 8b aa726571756573745f6964 b1636d706c2d752d302d3061316232633364"
    "b06465636f64655f656e67696e655f6964 a3646563 ab6465636f64655f686f7374 a831302e302e302e32"
    "ab6465636f64655f706f7274 cd15e0 ae6465636f64655f74705f73697a65 02"
    "af6c6f63616c5f626c6f636b5f696473 91 93 07 08 cd012c"
    "b072656d6f74655f656e67696e655f6964 a3707265 ab72656d6f74655f686f7374 a831302e302e302e31"
    "ab72656d6f74655f706f7274 cd15e0 ae72656d6f74655f74705f73697a65 01"
    "ae72656d6f74655f70705f73697a65 01";

static const uint32_t golden_ids[] = {7, 8, 300};
static const struct kvfi_block_group golden_group = {.ids = golden_ids, .count = 3};
static const struct kvfi_push_reg golden = {
    .request_id = "cmpl-u-0-0a1b2c3d",
    .decode_engine_id = "dec",
    .decode_host = "10.0.0.2",
    .decode_port = 5600,
    .decode_tp_size = 2,
    .groups = &golden_group,
    .group_count = 1,
    .remote_engine_id = "pre",
    .remote_host = "10.0.0.1",
    .remote_port = 5600,
    .remote_tp_size = 1,
    .remote_pp_size = 1,
};

static void golden_both_ways(void **state)
{
    struct test_bytes bytes = test_hex(golden_hex);
    assert_int_equal(bytes.len, 224);
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_push_reg_encode(&golden, &buf, NULL), KVF_OK);
    test_same_bytes(buf.data, buf.len, bytes.data, bytes.len);
    kvfi_buf_deinit(&buf);

    struct kvfi_push_reg reg;
    assert_int_equal(kvfi_push_reg_decode(bytes.data, bytes.len, NULL, &reg, NULL), KVF_OK);
    free(bytes.data); /* nothing may point into it */
    assert_string_equal(reg.request_id, golden.request_id);
    assert_string_equal(reg.decode_engine_id, "dec");
    assert_string_equal(reg.decode_host, "10.0.0.2");
    assert_int_equal(reg.decode_port, 5600);
    assert_int_equal(reg.decode_tp_size, 2);
    assert_int_equal(reg.group_count, 1);
    test_same_bytes(reg.groups[0].ids, reg.groups[0].count * 4, golden_ids, sizeof(golden_ids));
    assert_string_equal(reg.remote_engine_id, "pre");
    assert_string_equal(reg.remote_host, "10.0.0.1");
    assert_true(reg.has_remote_port && reg.has_remote_tp_size && reg.has_remote_pp_size);
    assert_int_equal(reg.remote_port, 5600);
    assert_int_equal(reg.remote_tp_size, 1);
    assert_int_equal(reg.remote_pp_size, 1);
    assert_null(reg.transfer_id);
    kvfi_push_reg_free(&reg);
    kvfi_push_reg_free(&reg);
}

static void transfer_id_is_an_extra(void **state)
{
    struct kvfi_push_reg with = golden;
    with.transfer_id = "t-1";
    struct kvfi_buf buf;
    struct kvfi_push_reg reg;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_push_reg_encode(&with, &buf, NULL), KVF_OK);
    assert_int_equal(buf.len, 224 + 12 + 4);
    assert_int_equal(buf.data[9], 0x8c);
    assert_int_equal(kvfi_push_reg_decode(buf.data, buf.len, NULL, &reg, NULL), KVF_OK);
    assert_string_equal(reg.transfer_id, "t-1");
    kvfi_push_reg_free(&reg);
    kvfi_buf_deinit(&buf);
}

/* A registration built key by key; a hex value of NULL leaves the key out. */
struct pair {
    const char *key;
    const char *hex;
};

static struct kvfi_buf built(const struct pair *pairs, size_t count)
{
    struct kvfi_buf buf;
    msgpack_packer packer;
    size_t present = 0;
    for (size_t i = 0; i < count; i++)
        present += pairs[i].hex != NULL;
    kvfi_buf_init(&buf, NULL);
    kvfi_buf_put_text(&buf, KVFI_PUSH_REG_PREFIX);
    kvfi_mp_packer(&packer, &buf);
    msgpack_pack_map(&packer, present);
    for (size_t i = 0; i < count; i++) {
        if (!pairs[i].hex)
            continue;
        struct test_bytes value = test_hex(pairs[i].hex);
        kvfi_mp_pack_text(&packer, pairs[i].key);
        kvfi_buf_put(&buf, value.data, value.len);
        free(value.data);
    }
    return buf;
}

enum { REQUEST, ENGINE, HOST, PORT, TP, BLOCKS, EXTRA, REQUIRED_COUNT };

static const struct pair required[REQUIRED_COUNT] = {
    {"request_id", "a172"},
    {"decode_engine_id", "a165"},
    {"decode_host", "a168"},
    {"decode_port", "cd15e0"},
    {"decode_tp_size", "01"},
    {"local_block_ids", "91920102"},
    {"later_extension", "82a161c0a16290"},
};

static enum kvf_status decode_with(size_t index, const char *hex, struct kvfi_push_reg *reg,
                                   struct kvf_error *error)
{
    struct pair pairs[REQUIRED_COUNT];
    memcpy(pairs, required, sizeof(pairs));
    pairs[index].hex = hex;
    struct kvfi_buf buf = built(pairs, REQUIRED_COUNT);
    struct test_bytes exact = test_copy(buf.data, buf.len);
    enum kvf_status status = kvfi_push_reg_decode(exact.data, exact.len, NULL, reg, error);
    free(exact.data);
    kvfi_buf_deinit(&buf);
    return status;
}

static void only_six_keys_are_required(void **state)
{
    struct kvfi_push_reg reg;
    struct kvf_error error;
    assert_int_equal(decode_with(EXTRA, NULL, &reg, NULL), KVF_OK);
    assert_null(reg.remote_engine_id);
    assert_null(reg.remote_host);
    assert_false(reg.has_remote_port || reg.has_remote_tp_size || reg.has_remote_pp_size);
    kvfi_push_reg_free(&reg);
    for (size_t i = 0; i < EXTRA; i++) {
        assert_int_equal(decode_with(i, NULL, &reg, &error), KVF_EFORMAT);
        assert_non_null(strstr(error.text, required[i].key));
        assert_non_null(strstr(error.text, "missing"));
    }
}

static void values_are_strict(void **state)
{
    static const struct {
        size_t index;
        const char *hex;
        enum kvf_status status;
        const char *mentions;
    } rows[] = {
        {REQUEST, "01", KVF_EFORMAT, "'request_id' is an int"},
        {REQUEST, "c0", KVF_EFORMAT, "'request_id' is nil"},
        {REQUEST, "c40172", KVF_EFORMAT, "'request_id' is bytes"},
        {REQUEST, "a0", KVF_EFORMAT, "'request_id' is empty"},
        {REQUEST, "a1ff", KVF_EFORMAT, "UTF-8"},
        {PORT, "00", KVF_EFORMAT, "expected 1 to 65535"},
        {PORT, "ce00010000", KVF_EFORMAT, "65536"},
        {PORT, "ff", KVF_EFORMAT, "'decode_port' is -1"},
        {PORT, "cb40b5e00000000000", KVF_EFORMAT, "a float"},
        {PORT, "a435363030", KVF_EFORMAT, "a string"},
        {TP, "00", KVF_EFORMAT, "decode_tp_size"},
        {TP, "c3", KVF_EFORMAT, "a bool"},
        {BLOCKS, "c0", KVF_EFORMAT, "'local_block_ids' is nil"},
        {BLOCKS, "80", KVF_EFORMAT, "a map"},
        {BLOCKS, "920190", KVF_EFORMAT, "an array, expected an int"},
        {BLOCKS, "929001", KVF_EFORMAT, "an int, expected an array"},
        {BLOCKS, "9191c0", KVF_EFORMAT, "nil"},
        {BLOCKS, "9191ff", KVF_EFORMAT, "-1"},
        {BLOCKS, "9191ce80000000", KVF_EFORMAT, "2147483648"},
        {EXTRA, "919191919191919100", KVF_ELIMIT, "nested"},
        {EXTRA, "c7010000", KVF_EFORMAT, "0xc7"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_push_reg reg;
        struct kvf_error error;
        test_refused(decode_with(rows[i].index, rows[i].hex, &reg, &error), rows[i].status, &error,
                     rows[i].mentions);
    }
}

static void block_lists_of_all_shapes(void **state)
{
    static const struct {
        const char *hex;
        size_t group_count;
        size_t counts[3];
    } rows[] = {
        {"90", 0, {0}},
        {"9190", 1, {0}},
        {"93050607", 1, {3}},
        {"9191ce7fffffff", 1, {1}},
        {"93 9105 90 920607", 3, {1, 0, 2}},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_push_reg reg;
        assert_int_equal(decode_with(BLOCKS, rows[i].hex, &reg, NULL), KVF_OK);
        assert_int_equal(reg.group_count, rows[i].group_count);
        for (size_t g = 0; g < reg.group_count; g++)
            assert_int_equal(reg.groups[g].count, rows[i].counts[g]);
        if (i == 2)
            assert_int_equal(reg.groups[0].ids[2], 7);
        if (i == 4)
            assert_int_equal(reg.groups[2].ids[0], 6);
        kvfi_push_reg_free(&reg);
    }
}

/* A router fills the remote_ keys; what we do not need may not fail a request. */
static void odd_remote_keys_read_as_absent(void **state)
{
    struct pair pairs[REQUIRED_COUNT + 3];
    memcpy(pairs, required, sizeof(required));
    pairs[REQUIRED_COUNT] = (struct pair){"remote_port", "a435363030"};
    pairs[REQUIRED_COUNT + 1] = (struct pair){"remote_host", "c0"};
    pairs[REQUIRED_COUNT + 2] = (struct pair){"remote_tp_size", "00"};
    struct kvfi_buf buf = built(pairs, ITEMS(pairs));
    struct kvfi_push_reg reg;
    assert_int_equal(kvfi_push_reg_decode(buf.data, buf.len, NULL, &reg, NULL), KVF_OK);
    assert_null(reg.remote_host);
    assert_false(reg.has_remote_port || reg.has_remote_tp_size);
    kvfi_push_reg_free(&reg);
    kvfi_buf_deinit(&buf);
}

static void repeated_and_mistyped_keys_are_refused(void **state)
{
    struct pair pairs[REQUIRED_COUNT + 1];
    memcpy(pairs, required, sizeof(required));
    static const struct {
        struct pair pair;
        const char *mentions;
    } rows[] = {{{"request_id", "a173"}, "'request_id' occurs twice"},
                {{"transfer_id", "05"}, "'transfer_id' is an int"}};
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_push_reg reg;
        struct kvf_error error;
        pairs[REQUIRED_COUNT] = rows[i].pair;
        struct kvfi_buf buf = built(pairs, ITEMS(pairs));
        test_refused(kvfi_push_reg_decode(buf.data, buf.len, NULL, &reg, &error), KVF_EFORMAT,
                     &error, rows[i].mentions);
        kvfi_buf_deinit(&buf);
    }
}

static void what_is_no_map_is_refused(void **state)
{
    static const char *const payloads[] = {"", "90", "c0", "9b", "80", "81c001"};
    for (size_t i = 0; i < ITEMS(payloads); i++) {
        struct test_bytes payload = test_hex(payloads[i]);
        struct kvfi_buf buf;
        struct kvfi_push_reg reg;
        kvfi_buf_init(&buf, NULL);
        kvfi_buf_put_text(&buf, KVFI_PUSH_REG_PREFIX);
        kvfi_buf_put(&buf, payload.data, payload.len);
        assert_int_equal(kvfi_push_reg_decode(buf.data, buf.len, NULL, &reg, NULL), KVF_EFORMAT);
        kvfi_buf_deinit(&buf);
        free(payload.data);
    }
    struct kvfi_push_reg reg;
    assert_int_equal(kvfi_push_reg_decode("PUSH_REG", 8, NULL, &reg, NULL), KVF_EFORMAT);
    assert_int_equal(kvfi_push_reg_decode(NULL, 0, NULL, &reg, NULL), KVF_EFORMAT);
}

static void every_truncation_is_refused(void **state)
{
    struct test_bytes bytes = test_hex(golden_hex);
    for (size_t len = 0; len < bytes.len; len++) {
        struct test_bytes cut = test_copy(bytes.data, len);
        struct kvfi_push_reg reg;
        assert_int_equal(kvfi_push_reg_decode(cut.data, cut.len, NULL, &reg, NULL), KVF_EFORMAT);
        free(cut.data);
    }
    free(bytes.data);
}

static void refuses_to_encode(const struct kvfi_push_reg *reg, enum kvf_status status,
                              const char *mentions)
{
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    test_refused(kvfi_push_reg_encode(reg, &buf, &error), status, &error, mentions);
    assert_int_equal(buf.len, 0);
    kvfi_buf_deinit(&buf);
}

static void encoder_names_the_bad_field(void **state)
{
    struct kvfi_push_reg bad = golden;
    bad.request_id = NULL;
    refuses_to_encode(&bad, KVF_EINVAL, "'request_id' is empty");
    bad = golden;
    bad.remote_host = "";
    refuses_to_encode(&bad, KVF_EINVAL, "'remote_host' is empty");
    bad = golden;
    bad.decode_port = 0;
    refuses_to_encode(&bad, KVF_EINVAL, "'decode_port' is 0");
    bad = golden;
    bad.remote_pp_size = 65537;
    refuses_to_encode(&bad, KVF_EINVAL, "'remote_pp_size' is 65537");
    bad = golden;
    bad.transfer_id = "\xff";
    refuses_to_encode(&bad, KVF_EINVAL, "'transfer_id' is not UTF-8");
    static const uint32_t ids[] = {(uint32_t)KVFI_BLOCK_ID_MAX + 1};
    static const struct kvfi_block_group group = {.ids = ids, .count = 1};
    bad = golden;
    bad.groups = &group;
    refuses_to_encode(&bad, KVF_EINVAL, "block id 2147483648");
    static const struct kvfi_block_group large = {.ids = ids, .count = KVFI_PUSH_REG_BLOCK_MAX + 1};
    bad.groups = &large;
    refuses_to_encode(&bad, KVF_ELIMIT, "more than 1048576 blocks");
    bad.group_count = KVFI_PUSH_REG_GROUP_MAX + 1;
    refuses_to_encode(&bad, KVF_ELIMIT, "257 block groups");
}

static enum kvf_status decode_golden(const struct kvf_allocator *allocator)
{
    struct test_bytes bytes = test_hex(golden_hex);
    struct kvfi_push_reg reg;
    enum kvf_status status = kvfi_push_reg_decode(bytes.data, bytes.len, allocator, &reg, NULL);
    if (status == KVF_OK)
        kvfi_push_reg_free(&reg);
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
        cmocka_unit_test(golden_both_ways),
        cmocka_unit_test(transfer_id_is_an_extra),
        cmocka_unit_test(only_six_keys_are_required),
        cmocka_unit_test(values_are_strict),
        cmocka_unit_test(block_lists_of_all_shapes),
        cmocka_unit_test(odd_remote_keys_read_as_absent),
        cmocka_unit_test(repeated_and_mistyped_keys_are_refused),
        cmocka_unit_test(what_is_no_map_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(encoder_names_the_bad_field),
        cmocka_unit_test(memory_shortage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
