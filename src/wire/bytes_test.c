/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/bytes.h"

#include "wire/wire_test.h"

static void buf_grows_and_releases(void **state)
{
    struct test_alloc test;
    test_alloc_init(&test, 0);
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, &test.allocator);
    for (uint32_t i = 0; i < 1000; i++)
        kvfi_buf_put_u32le(&buf, i);
    assert_int_equal(kvfi_buf_status(&buf, NULL), KVF_OK);
    size_t len;
    uint8_t *data = kvfi_buf_release(&buf, &len);
    assert_int_equal(len, 4000);
    assert_memory_equal(data + (size_t)4 * 258, "\x02\x01\0\0", 4);
    assert_null(buf.data);
    kvfi_wire_free(&test.allocator, data);
    kvfi_buf_deinit(&buf);
    assert_int_equal(test.live, 0);
}

static enum kvf_status append_much(const struct kvf_allocator *allocator)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, allocator);
    for (uint64_t i = 0; i < 1000; i++)
        kvfi_buf_put_u64le(&buf, i);
    enum kvf_status status = kvfi_buf_status(&buf, NULL);
    kvfi_buf_deinit(&buf);
    return status;
}

static void buf_failure_is_sticky(void **state)
{
    assert_true(test_alloc_failures(append_much) >= 2);
    struct test_alloc test;
    test_alloc_init(&test, 1);
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, &test.allocator);
    kvfi_buf_put_text(&buf, "lost");
    kvfi_buf_put_text(&buf, "also lost, though memory is back");
    assert_int_equal(buf.len, 0);
    assert_int_equal(kvfi_buf_status(&buf, &error), KVF_ENOMEM);
    kvfi_buf_clear(&buf);
    kvfi_buf_put_text(&buf, "kept");
    assert_int_equal(kvfi_buf_status(&buf, &error), KVF_OK);
    kvfi_buf_deinit(&buf);
}

static void buf_refuses_beyond_its_limit(void **state)
{
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    kvfi_buf_put_u8(&buf, 1);
    kvfi_buf_put(&buf, "never read, the limit comes first", KVFI_BUF_LEN_MAX);
    test_refused(kvfi_buf_status(&buf, &error), KVF_ELIMIT, &error, "268435456");
    kvfi_buf_deinit(&buf);
}

static void decimal_is_written(void **state)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    kvfi_buf_put_decimal(&buf, 0);
    kvfi_buf_put_u8(&buf, ' ');
    kvfi_buf_put_decimal(&buf, UINT64_MAX);
    test_span_is(kvfi_span(buf.data, buf.len), "0 18446744073709551615");
    kvfi_buf_deinit(&buf);
}

static void decimal_is_read(void **state)
{
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "0x1",
                                      "1_0",
                                      "11",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
    uint64_t value = 77;
    assert_true(kvfi_parse_decimal(kvfi_span_str("10"), 10, &value));
    assert_int_equal(value, 10);
    assert_true(kvfi_parse_decimal(kvfi_span_str("007"), 10, &value));
    assert_int_equal(value, 7);
    assert_true(kvfi_parse_decimal(kvfi_span_str("18446744073709551615"), UINT64_MAX, &value));
    assert_true(value == UINT64_MAX);
    for (size_t i = 0; i < ITEMS(bad); i++)
        assert_false(kvfi_parse_decimal(kvfi_span_str(bad[i]), 10, &value));
    assert_false(kvfi_parse_decimal(kvfi_span_str("18446744073709551616"), UINT64_MAX, &value));
    assert_true(value == UINT64_MAX);
}

static void reader_stays_inside(void **state)
{
    struct test_bytes bytes = test_hex("01 02030405 060708090a0b0c0d");
    struct kvfi_reader reader = kvfi_reader(bytes.data, bytes.len);
    uint8_t u8;
    uint32_t u32;
    uint64_t u64 = 5;
    struct kvfi_span span;
    assert_int_equal(kvfi_reader_u8(&reader, &u8), KVF_OK);
    assert_int_equal(u8, 1);
    assert_int_equal(kvfi_reader_u32le(&reader, &u32), KVF_OK);
    assert_int_equal(u32, 0x05040302);
    assert_int_equal(kvfi_reader_take(&reader, SIZE_MAX, &span), KVF_EFORMAT);
    assert_int_equal(kvfi_reader_take(&reader, 9, &span), KVF_EFORMAT);
    assert_int_equal(kvfi_reader_left(&reader), 8);
    assert_int_equal(kvfi_reader_u64le(&reader, &u64), KVF_OK);
    assert_true(u64 == 0x0d0c0b0a09080706);
    assert_int_equal(kvfi_reader_take(&reader, 0, &span), KVF_OK);
    assert_int_equal(kvfi_reader_u8(&reader, &u8), KVF_EFORMAT);
    free(bytes.data);
}

static void utf8_is_strict(void **state)
{
    static const char *const good[] = {"",         "7f",       "c280",   "dfbf",
                                       "e0a080",   "ed9fbf",   "ee8080", "efbfbf",
                                       "f0908080", "f48fbfbf", "00",     "61c3a962"};
    static const char *const bad[] = {
        "80",       "c0af", "c1bf", "e08080", "e09fbf", "eda080", "edbfbf", "f08fbfbf", "f4908080",
        "f5808080", "ff",   "c3",   "e282",   "f09f98", "c32e",   "e2282e", "61e2"};
    for (size_t i = 0; i < ITEMS(good) + ITEMS(bad); i++) {
        int is_good = i < ITEMS(good);
        struct test_bytes bytes = test_hex(is_good ? good[i] : bad[i - ITEMS(good)]);
        if (kvfi_utf8_valid(kvfi_span(bytes.data, bytes.len)) != is_good)
            fail_msg("%s judged wrongly", is_good ? good[i] : bad[i - ITEMS(good)]);
        free(bytes.data);
    }
}

static void utf8_yields_code_points(void **state)
{
    struct kvfi_span text = kvfi_span_str("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    static const uint32_t expected[] = {'a', 0xe9, 0x20ac, 0x1f600};
    size_t pos = 0;
    for (size_t i = 0; i < ITEMS(expected); i++)
        assert_int_equal(kvfi_utf8_next(text, &pos), expected[i]);
    assert_int_equal(pos, text.len);
}

static void quote_is_safe_to_print(void **state)
{
    struct kvfi_quote quote;
    char large[200];
    memset(large, 'x', sizeof(large));
    assert_string_equal(kvfi_quote(&quote, kvfi_span("a\n\0\x1b[31m\xff", 9)), "a???[31m?");
    assert_string_equal(kvfi_quote(&quote, kvfi_span(NULL, 0)), "");
    assert_int_equal(strlen(kvfi_quote(&quote, kvfi_span(large, 48))), 48);
    assert_int_equal(strlen(kvfi_quote(&quote, kvfi_span(large, 49))), 51);
    assert_string_equal(quote.text + 48, "...");
}

static void spans_compare(void **state)
{
    struct kvfi_span ab = kvfi_span_str("ab"), abc = kvfi_span_str("abc");
    assert_true(kvfi_span_compare(ab, abc) < 0);
    assert_true(kvfi_span_compare(abc, ab) > 0);
    assert_true(kvfi_span_compare(ab, kvfi_span_str("b")) < 0);
    assert_int_equal(kvfi_span_compare(kvfi_span_str(NULL), kvfi_span_str("")), 0);
    assert_true(kvfi_span_equal(ab, kvfi_span_str("ab")));
    assert_false(kvfi_span_equal(ab, abc));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_grows_and_releases),
        cmocka_unit_test(buf_failure_is_sticky),
        cmocka_unit_test(buf_refuses_beyond_its_limit),
        cmocka_unit_test(decimal_is_written),
        cmocka_unit_test(decimal_is_read),
        cmocka_unit_test(reader_stays_inside),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(utf8_yields_code_points),
        cmocka_unit_test(quote_is_safe_to_print),
        cmocka_unit_test(spans_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
