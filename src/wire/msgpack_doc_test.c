/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/msgpack_doc.h"

#include "wire/wire_test.h"

static const struct kvfi_mp_limits limits = {
    .len_max = 1 << 20, .element_count_max = 1000, .depth_max = KVFI_MP_DEPTH_MAX};

/* Refused, having asked for less memory than size_max. */
static void refuses(const void *data, size_t len, enum kvf_status status, const char *mentions,
                    size_t size_max)
{
    struct kvfi_mp_doc doc;
    struct kvf_error error;
    struct test_alloc test;
    test_alloc_init(&test, 0);
    struct test_bytes exact = test_copy(data, len);
    test_refused(kvfi_mp_parse("test", exact.data, len, &limits, &test.allocator, &doc, &error),
                 status, &error, mentions);
    assert_int_equal(test.live, 0);
    assert_true(test.size_max <= size_max);
    free(exact.data);
}

static void refuses_hex(const char *hex, enum kvf_status status, const char *mentions)
{
    struct test_bytes bytes = test_hex(hex);
    refuses(bytes.data, bytes.len, status, mentions, 0);
    free(bytes.data);
}

static void every_type_is_read(void **state)
{
    struct test_bytes bytes =
        test_hex("dc0015 00 7f e0 c0 c2 c3 cc80 cd0100 ce00010000 cf0000000100000000 d080 d1ff00"
                 "d2ffff0000 d3ffffffff00000000 ca3fc00000 cb3ff8000000000000 a161 d90162 c40163"
                 "90 81a16b01");
    struct kvfi_mp_doc doc;
    struct test_alloc test;
    test_alloc_init(&test, 0);
    assert_int_equal(
        kvfi_mp_parse("test", bytes.data, bytes.len, &limits, &test.allocator, &doc, NULL), KVF_OK);
    assert_int_equal(doc.root.via.array.size, 21);
    assert_int_equal(doc.element_count, 24);
    assert_int_equal(doc.payload_len, 4);
    assert_int_equal(test.size_max, 21 * sizeof(msgpack_object) + sizeof(msgpack_object_kv));
    const msgpack_object *items = doc.root.via.array.ptr;
    assert_true(items[9].via.u64 == 1ull << 32);
    assert_int_equal(items[10].via.i64, -128);
    assert_true(items[13].via.i64 == -(1ll << 32));
    assert_true(items[14].via.f64 == 1.5);
    assert_int_equal(items[20].via.map.ptr[0].val.via.u64, 1);
    kvfi_mp_free(&doc);
    assert_int_equal(test.live, 0);
    free(bytes.data);
}

static void wide_lengths_are_read(void **state)
{
    static const char *const heads[] = {"da0003616263",     "db00000003616263", "c50003616263",
                                        "c600000003616263", "dd00000001c0",     "de0001a16bc0",
                                        "df00000001a16bc0"};
    for (size_t i = 0; i < ITEMS(heads); i++) {
        struct test_bytes bytes = test_hex(heads[i]);
        struct kvfi_mp_doc doc;
        assert_int_equal(kvfi_mp_parse("test", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                         KVF_OK);
        kvfi_mp_free(&doc);
        free(bytes.data);
    }
}

static void not_one_whole_object_is_refused(void **state)
{
    refuses_hex("", KVF_EFORMAT, "ends at byte 0");
    refuses_hex("0000", KVF_EFORMAT, "1 bytes after");
    refuses_hex("9201", KVF_EFORMAT, "claims 2 elements");
    refuses_hex("92a161", KVF_EFORMAT, "ends at byte 3");
    refuses_hex("a3 6162", KVF_EFORMAT, "claims 3 bytes");
    refuses_hex("cd00", KVF_EFORMAT, "claims 2 bytes");
    refuses_hex("da00", KVF_EFORMAT, "in the middle");
    refuses_hex("c1", KVF_EFORMAT, "0xc1");
    refuses_hex("d40000", KVF_EFORMAT, "0xd4");
    refuses_hex("c7000000", KVF_EFORMAT, "0xc7");
}

static void hostile_sizes_cost_nothing(void **state)
{
    refuses_hex("ddffffffff 00", KVF_EFORMAT, "claims 4294967295 elements");
    refuses_hex("dfffffffff 00", KVF_EFORMAT, "type 0xdf");
    refuses_hex("df7fffffff 00", KVF_EFORMAT, "claims 4294967294 elements");
    refuses_hex("c6ffffffff 00", KVF_EFORMAT, "claims 4294967295 bytes");
    refuses_hex("dbffffffff 00", KVF_EFORMAT, "claims 4294967295 bytes");
    static uint8_t many[3 + 1000] = {0xdc, 0x03, 0xe8};
    refuses(many, sizeof(many), KVF_ELIMIT, "more than 1000 elements", 0);
    static uint8_t large[(1 << 20) + 1];
    refuses(large, sizeof(large), KVF_ELIMIT, "1048577 bytes", 0);
}

static void deep_nesting_is_refused(void **state)
{
    static uint8_t deep[10000];
    struct kvfi_mp_doc doc;
    memset(deep, 0x91, sizeof(deep));
    refuses(deep, sizeof(deep), KVF_ELIMIT, "nested deeper than 8", 0);
    memset(deep, 0x81, sizeof(deep));
    refuses(deep, sizeof(deep), KVF_ELIMIT, "nested deeper than 8", 0);
    memset(deep, 0x91, 8);
    deep[8] = 1;
    assert_int_equal(kvfi_mp_parse("test", deep, 9, &limits, NULL, &doc, NULL), KVF_OK);
    kvfi_mp_free(&doc);
    deep[8] = 0x91;
    refuses(deep, 10, KVF_ELIMIT, "nested deeper than 8", 0);
}

static void numbers_are_strict(void **state)
{
    static const struct {
        const char *hex;
        uint64_t min, max;
        const char *mentions; /* NULL: accepted */
    } rows[] = {
        {"05", 0, 10, NULL},
        {"05", 6, 10, "is 5, expected 6 to 10"},
        {"0b", 0, 10, "is 11"},
        {"ff", 0, 10, "is -1"},
        {"cb4014000000000000", 0, 10, "a float"},
        {"c3", 0, 10, "a bool"},
        {"c0", 0, 10, "nil"},
        {"a135", 0, 10, "a string"},
        {"cfffffffffffffffff", 0, UINT64_MAX, NULL},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        struct kvfi_mp_doc doc;
        struct kvf_error error;
        uint64_t out = 3;
        assert_int_equal(kvfi_mp_parse("test", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                         KVF_OK);
        struct kvfi_mp_field field = {.message = "test", .name = "key", .object = &doc.root};
        enum kvf_status status = kvfi_mp_u64(&field, rows[i].min, rows[i].max, &out, &error);
        if (rows[i].mentions) {
            test_refused(status, KVF_EFORMAT, &error, rows[i].mentions);
            assert_int_equal(out, 3);
        } else {
            assert_int_equal(status, KVF_OK);
        }
        kvfi_mp_free(&doc);
        free(bytes.data);
    }
}

static void signed_numbers_are_strict(void **state)
{
    static const struct {
        const char *hex;
        int64_t expected;
        int is_good;
    } rows[] = {{"ff", -1, 1},
                {"00", 0, 1},
                {"05", 5, 1},
                {"fe", 0, 0},
                {"06", 0, 0},
                {"cfffffffffffffffff", 0, 0},
                {"d38000000000000000", 0, 0},
                {"c2", 0, 0}};
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        struct kvfi_mp_doc doc;
        int64_t out = 3;
        assert_int_equal(kvfi_mp_parse("test", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                         KVF_OK);
        struct kvfi_mp_field field = {.message = "test", .name = "key", .object = &doc.root};
        assert_int_equal(kvfi_mp_i64(&field, -1, 5, &out, NULL),
                         rows[i].is_good ? KVF_OK : KVF_EFORMAT);
        assert_int_equal(out, rows[i].is_good ? rows[i].expected : 3);
        kvfi_mp_free(&doc);
        free(bytes.data);
    }
}

static void keys_are_found_once(void **state)
{
    struct test_bytes bytes = test_hex("83 a161 01 a162 02 a161 03");
    struct kvfi_mp_doc doc;
    struct kvf_error error;
    uint64_t out;
    assert_int_equal(kvfi_mp_parse("test", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                     KVF_OK);
    assert_int_equal(kvfi_mp_check_map("test", &doc.root, NULL), KVF_OK);
    struct kvfi_mp_field field = kvfi_mp_field("test", &doc.root, "b");
    assert_int_equal(kvfi_mp_u64(&field, 0, 9, &out, NULL), KVF_OK);
    assert_int_equal(out, 2);
    field = kvfi_mp_field("test", &doc.root, "a");
    assert_false(kvfi_mp_absent(&field));
    test_refused(kvfi_mp_u64(&field, 0, 9, &out, &error), KVF_EFORMAT, &error, "'a' occurs twice");
    field = kvfi_mp_field("test", &doc.root, "c");
    assert_true(kvfi_mp_absent(&field));
    test_refused(kvfi_mp_u64(&field, 0, 9, &out, &error), KVF_EFORMAT, &error, "'c' is missing");
    kvfi_mp_free(&doc);
    free(bytes.data);
}

static void text_is_strict(void **state)
{
    static const struct {
        const char *hex;
        const char *mentions;
    } rows[] = {{"a2c3a9", NULL},
                {"c402c3a9", "bytes"},
                {"a1ff", "UTF-8"},
                {"a3610062", "NUL"},
                {"a0", NULL}};
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        struct kvfi_mp_doc doc;
        struct kvf_error error;
        struct kvfi_span out;
        assert_int_equal(kvfi_mp_parse("test", bytes.data, bytes.len, &limits, NULL, &doc, NULL),
                         KVF_OK);
        struct kvfi_mp_field field = {.message = "test", .name = "key", .object = &doc.root};
        enum kvf_status status = kvfi_mp_text(&field, 2 + (i == 3), &out, &error);
        if (rows[i].mentions)
            test_refused(status, KVF_EFORMAT, &error, rows[i].mentions);
        else
            assert_int_equal(status, KVF_OK);
        if (i == 0)
            test_refused(kvfi_mp_text(&field, 1, &out, &error), KVF_ELIMIT, &error, "at most 1");
        kvfi_mp_free(&doc);
        free(bytes.data);
    }
}

static void arena_never_overruns(void **state)
{
    struct kvfi_mp_arena arena;
    const char *text;
    void *piece;
    assert_int_equal(kvfi_mp_arena_init(&arena, 24, NULL, NULL), KVF_OK);
    assert_int_equal(kvfi_mp_arena_text(&arena, kvfi_span_str("abc"), &text, NULL), KVF_OK);
    assert_string_equal(text, "abc");
    assert_int_equal(kvfi_mp_arena_take(&arena, 17, &piece, NULL), KVF_EINTERNAL);
    assert_int_equal(kvfi_mp_arena_take(&arena, 8, &piece, NULL), KVF_OK);
    assert_int_equal((uintptr_t)piece % KVFI_MP_ARENA_ALIGN, 0);
    assert_int_equal(kvfi_mp_arena_text(&arena, kvfi_span_str("12345678"), &text, NULL),
                     KVF_EINTERNAL);
    assert_int_equal(kvfi_mp_arena_text(&arena, kvfi_span_str("1234567"), &text, NULL), KVF_OK);
    assert_int_equal(kvfi_mp_arena_text(&arena, kvfi_span_str(""), &text, NULL), KVF_EINTERNAL);
    kvfi_wire_free(NULL, arena.base);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_read),
        cmocka_unit_test(wide_lengths_are_read),
        cmocka_unit_test(not_one_whole_object_is_refused),
        cmocka_unit_test(hostile_sizes_cost_nothing),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(signed_numbers_are_strict),
        cmocka_unit_test(keys_are_found_once),
        cmocka_unit_test(text_is_strict),
        cmocka_unit_test(arena_never_overruns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
