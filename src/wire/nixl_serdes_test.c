/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_serdes.h"

#include "wire/wire_test.h"

/* prefix, "t" = "UCX", "" = 4 bytes, "n" = u64 1 */
static const char stream_hex[] = "6e69786c5365724465737c 74 0300000000000000 554358 7c"
                                 "0400000000000000 78563412 7c 6e 0800000000000000"
                                 "0100000000000000 7c";

static void fields_round_trip(void **state)
{
    struct test_bytes golden = test_hex(stream_hex);
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    kvfi_serdes_begin(&buf);
    kvfi_serdes_put(&buf, "t", kvfi_span_str("UCX"));
    kvfi_serdes_put_u32(&buf, "", 0x12345678);
    kvfi_serdes_put_u64(&buf, "n", 1);
    assert_int_equal(kvfi_buf_status(&buf, NULL), KVF_OK);
    test_same_bytes(buf.data, buf.len, golden.data, golden.len);

    struct kvfi_reader reader;
    struct kvfi_span text;
    uint32_t u32;
    uint64_t u64;
    assert_int_equal(kvfi_serdes_open(&reader, golden.data, golden.len, NULL), KVF_OK);
    assert_int_equal(kvfi_serdes_take(&reader, "t", &text, NULL), KVF_OK);
    test_span_is(text, "UCX");
    assert_int_equal(kvfi_serdes_take_u32(&reader, "", &u32, NULL), KVF_OK);
    assert_int_equal(u32, 0x12345678);
    assert_int_equal(kvfi_serdes_close(&reader, NULL), KVF_EFORMAT);
    assert_int_equal(kvfi_serdes_take_u64(&reader, "n", &u64, NULL), KVF_OK);
    assert_int_equal(u64, 1);
    assert_int_equal(kvfi_serdes_close(&reader, NULL), KVF_OK);
    kvfi_buf_deinit(&buf);
    free(golden.data);
}

/* Data is binary-safe: it may contain the delimiter, NUL and tags. */
static void data_is_not_escaped(void **state)
{
    static const uint8_t data[] = {'|', 0, 'm', 's', 'g', '|'};
    struct kvfi_buf buf;
    struct kvfi_reader reader;
    struct kvfi_span out;
    kvfi_buf_init(&buf, NULL);
    kvfi_serdes_begin(&buf);
    kvfi_serdes_put(&buf, "msg", kvfi_span(data, sizeof(data)));
    assert_int_equal(kvfi_serdes_open(&reader, buf.data, buf.len, NULL), KVF_OK);
    assert_int_equal(kvfi_serdes_take(&reader, "msg", &out, NULL), KVF_OK);
    test_same_bytes(out.data, out.len, data, sizeof(data));
    kvfi_buf_deinit(&buf);
}

static void bad_prefix_is_refused(void **state)
{
    struct kvfi_reader reader;
    struct kvf_error error;
    test_refused(kvfi_serdes_open(&reader, "nixlSerDes", 10, &error), KVF_EFORMAT, &error, "begin");
    test_refused(kvfi_serdes_open(&reader, "nixlSerDez|", 11, &error), KVF_EFORMAT, &error,
                 "begin");
    test_refused(kvfi_serdes_open(&reader, NULL, 0, &error), KVF_EFORMAT, &error, "begin");
}

static void take_refused(const char *field_hex, const char *mentions)
{
    struct test_bytes field = test_hex(field_hex);
    struct kvfi_reader reader = kvfi_reader(field.data, field.len);
    struct kvfi_span out = kvfi_span(&reader, 3);
    struct kvf_error error;
    test_refused(kvfi_serdes_take(&reader, "c", &out, &error), KVF_EFORMAT, &error, mentions);
    assert_int_equal(reader.pos, 0);
    assert_int_equal(out.len, 3);
    free(field.data);
}

static void bad_fields_are_refused(void **state)
{
    take_refused("", "ends");
    take_refused("64 0100000000000000 61 7c", "'d'");
    take_refused("63 01000000000000", "length");
    take_refused("63 0200000000000000 61 7c", "'c'");
    take_refused("63 0100000000000000 61", "'c'");
    take_refused("63 ffffffffffffffff 61 7c", "18446744073709551615");
    take_refused("63 feffffffffffffff 61 7c", "18446744073709551614");
    take_refused("63 0100000000000000 61 7d", "0x7d");
}

static void sizes_of_numbers_are_exact(void **state)
{
    struct test_bytes field = test_hex("6e 0400000000000000 01000000 7c");
    struct kvfi_reader reader = kvfi_reader(field.data, field.len);
    struct kvf_error error;
    uint64_t u64;
    uint32_t u32;
    test_refused(kvfi_serdes_take_u64(&reader, "n", &u64, &error), KVF_EFORMAT, &error,
                 "4 bytes instead of 8");
    assert_int_equal(reader.pos, 0);
    assert_int_equal(kvfi_serdes_take_u32(&reader, "n", &u32, &error), KVF_OK);
    assert_int_equal(u32, 1);
    free(field.data);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_round_trip),          cmocka_unit_test(data_is_not_escaped),
        cmocka_unit_test(bad_prefix_is_refused),      cmocka_unit_test(bad_fields_are_refused),
        cmocka_unit_test(sizes_of_numbers_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
