/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/notif.h"

#include "wire/wire_test.h"

static struct kvfi_notif classified(const char *text)
{
    struct kvfi_notif notif;
    struct kvf_error error;
    if (kvfi_notif_classify(text, strlen(text), &notif, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return notif;
}

static void kinds_are_told_apart(void **state)
{
    static const struct {
        const char *text;
        const char *request_id;
        enum kvfi_notif_kind kind;
        uint32_t count;
    } rows[] = {
        {"cmpl-u-0-0a1b2c3d:2", "cmpl-u-0-0a1b2c3d", KVFI_NOTIF_DONE, 2},
        {"a:b:c:16", "a:b:c", KVFI_NOTIF_DONE, 16},
        {"hb:1", "hb", KVFI_NOTIF_DONE, 1},
        {"PUSH_FAIL:cmpl-u-0-0a1b2c3d:2", "cmpl-u-0-0a1b2c3d", KVFI_NOTIF_PUSH_FAIL, 2},
        {"PUSH_FAIL:a:b:65536", "a:b", KVFI_NOTIF_PUSH_FAIL, 65536},
        {"PUSH_DROP:cmpl-u-0-0a1b2c3d", "cmpl-u-0-0a1b2c3d", KVFI_NOTIF_PUSH_DROP, 0},
        {"PUSH_DROP:a:7", "a:7", KVFI_NOTIF_PUSH_DROP, 0},
        {"caf\xc3\xa9:1", "caf\xc3\xa9", KVFI_NOTIF_DONE, 1},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_notif notif = classified(rows[i].text);
        assert_int_equal(notif.kind, rows[i].kind);
        test_span_is(notif.request_id, rows[i].request_id);
        assert_int_equal(notif.count, rows[i].count);
    }
    struct kvfi_notif notif = classified("PUSH_REG:\x80");
    assert_int_equal(notif.kind, KVFI_NOTIF_PUSH_REG);
    test_span_is(notif.body, "PUSH_REG:\x80");
    notif = classified("HB:a,b");
    assert_int_equal(notif.kind, KVFI_NOTIF_HEARTBEAT);
    test_span_is(notif.body, "a,b");
}

static void bad_messages_are_refused_with_a_reason(void **state)
{
    static const struct {
        const char *text;
        const char *mentions;
    } rows[] = {
        {"", "no colon"},
        {"cmpl-u-0", "no colon in 'cmpl-u-0'"},
        {"PUSH_REG", "no colon"},
        {":1", "empty"},
        {"a:", "'' is not a number"},
        {"a:x", "'x' is not a number"},
        {"a:-1", "'-1' is not a number"},
        {"a: 1", "' 1' is not a number"},
        {"a:1 ", "'1 ' is not a number"},
        {"a:0", "from 1 to 65536"},
        {"a:65537", "from 1 to 65536"},
        {"a:18446744073709551617", "from 1 to 65536"},
        {"\xff:1", "UTF-8"},
        {"PUSH_FAIL:", "no colon"},
        {"PUSH_FAIL::1", "empty"},
        {"PUSH_FAIL:a:", "PUSH_FAIL: '' is not a number"},
        {"PUSH_DROP:", "empty"},
        {"PUSH_DROP:\xc3", "UTF-8"},
        {"HB:\xff", "UTF-8"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_notif notif = {.count = 99};
        struct kvf_error error;
        struct test_bytes exact = test_copy(rows[i].text, strlen(rows[i].text));
        test_refused(kvfi_notif_classify(exact.data, exact.len, &notif, &error), KVF_EFORMAT,
                     &error, rows[i].mentions);
        assert_int_equal(notif.count, 99);
        free(exact.data);
    }
    struct kvfi_notif notif;
    assert_int_equal(kvfi_notif_classify("a\0b:1", 5, &notif, NULL), KVF_EFORMAT);
    assert_int_equal(kvfi_notif_classify(NULL, 0, &notif, NULL), KVF_EFORMAT);
}

static void oversize_is_refused(void **state)
{
    static char large[KVFI_NOTIF_ID_LEN_MAX + 3];
    struct kvfi_notif notif;
    struct kvf_error error;
    memset(large, 'i', sizeof(large));
    large[KVFI_NOTIF_ID_LEN_MAX + 1] = ':';
    large[KVFI_NOTIF_ID_LEN_MAX + 2] = '1';
    test_refused(kvfi_notif_classify(large, sizeof(large), &notif, &error), KVF_ELIMIT, &error,
                 "4097 bytes");
    assert_int_equal(kvfi_notif_classify(large + 1, sizeof(large) - 1, &notif, NULL), KVF_OK);
    test_refused(kvfi_notif_classify(large, KVFI_NOTIF_LEN_MAX + 1, &notif, &error), KVF_ELIMIT,
                 &error, "16777217");
}

static void heartbeats_are_walked(void **state)
{
    static const struct {
        const char *text;
        const char *ids[3];
    } rows[] = {{"HB:a,bc", {"a", "bc"}}, {"HB:a", {"a"}},    {"HB:", {NULL}},
                {"HB:,", {NULL}},         {"HB:,,x,", {"x"}}, {"HB:a,b,c", {"a", "b", "c"}}};
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_notif notif = classified(rows[i].text);
        struct kvfi_span id;
        for (size_t k = 0; k < 3 && rows[i].ids[k]; k++) {
            assert_true(kvfi_notif_heartbeat_next(&notif.body, &id));
            test_span_is(id, rows[i].ids[k]);
        }
        assert_false(kvfi_notif_heartbeat_next(&notif.body, &id));
    }
}

static void oversize_heartbeat_ids_are_skipped(void **state)
{
    static char text[KVFI_NOTIF_ID_LEN_MAX + 3];
    memset(text, 'i', sizeof(text));
    text[KVFI_NOTIF_ID_LEN_MAX + 1] = ',';
    text[KVFI_NOTIF_ID_LEN_MAX + 2] = 'x';
    struct kvfi_span list = kvfi_span(text, sizeof(text)), id;
    assert_true(kvfi_notif_heartbeat_next(&list, &id));
    test_span_is(id, "x");
    assert_false(kvfi_notif_heartbeat_next(&list, &id));
}

static void encoders_write_what_the_decoder_reads(void **state)
{
    struct kvfi_span ids[] = {kvfi_span_str("idA"), kvfi_span_str("idB")};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_notif_done_encode(ids[0], 2, &buf, NULL), KVF_OK);
    test_span_is(kvfi_span(buf.data, buf.len), "idA:2");
    kvfi_buf_clear(&buf);
    assert_int_equal(kvfi_notif_fail_encode(ids[0], 4, &buf, NULL), KVF_OK);
    test_span_is(kvfi_span(buf.data, buf.len), "PUSH_FAIL:idA:4");
    kvfi_buf_clear(&buf);
    assert_int_equal(kvfi_notif_drop_encode(ids[0], &buf, NULL), KVF_OK);
    test_span_is(kvfi_span(buf.data, buf.len), "PUSH_DROP:idA");
    kvfi_buf_clear(&buf);
    assert_int_equal(kvfi_notif_heartbeat_encode(ids, 2, &buf, NULL), KVF_OK);
    test_span_is(kvfi_span(buf.data, buf.len), "HB:idA,idB");
    kvfi_buf_deinit(&buf);
}

static void encoders_refuse_what_would_be_misread(void **state)
{
    struct kvfi_span empty = kvfi_span_str(""), broken = kvfi_span_str("\xff");
    struct kvfi_span comma = kvfi_span_str("a,b"), reg = kvfi_span_str("PUSH_REG:x");
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    test_refused(kvfi_notif_done_encode(empty, 1, &buf, &error), KVF_EINVAL, &error, "empty");
    test_refused(kvfi_notif_done_encode(reg, 1, &buf, &error), KVF_EINVAL, &error, "another kind");
    test_refused(kvfi_notif_done_encode(comma, 0, &buf, &error), KVF_EINVAL, &error, "count 0");
    test_refused(kvfi_notif_fail_encode(comma, 65537, &buf, &error), KVF_EINVAL, &error, "65537");
    test_refused(kvfi_notif_drop_encode(broken, &buf, &error), KVF_EINVAL, &error, "UTF-8");
    test_refused(kvfi_notif_heartbeat_encode(&comma, 1, &buf, &error), KVF_EINVAL, &error, "comma");
    test_refused(kvfi_notif_heartbeat_encode(&comma, 0, &buf, &error), KVF_EINVAL, &error, "empty");
    kvfi_buf_deinit(&buf);
}

static void base_ids_are_cut(void **state)
{
    static const struct {
        const char *id;
        const char *base; /* NULL: unchanged */
    } rows[] = {
        {"cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0-1a2b3c4d",
         "cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0"},
        {"cmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-0", NULL},
        {"chatcmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab-DEADBEEF",
         "chatcmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab"},
        {"chatcmpl-6f1e2d3c-aaaa-4bbb-8ccc-0123456789ab", NULL},
        {"0_cmpl-x-1-0000ffff", "0_cmpl-x-1"},
        {"abc-12345678", "abc"},
        {"abc-1234567g", NULL},
        {"abc-12345678-0", NULL},
        {"-12345678", ""},
        /* one tail only; and too short to have one */
        {"a-11111111-22222222", "a-11111111"},
        {"12345678", NULL},
        {"a_12345678", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        const char *base = rows[i].base ? rows[i].base : rows[i].id;
        struct test_bytes exact = test_copy(rows[i].id, strlen(rows[i].id));
        assert_int_equal(kvfi_base_request_id(kvfi_span(exact.data, exact.len)), strlen(base));
        free(exact.data);
    }
}

static void kinds_have_names(void **state)
{
    assert_string_equal(kvfi_notif_kind_name(KVFI_NOTIF_PUSH_REG), "PUSH_REG");
    assert_string_equal(kvfi_notif_kind_name(KVFI_NOTIF_DONE), "completion");
    assert_string_equal(kvfi_notif_kind_name((enum kvfi_notif_kind)99), "unknown");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_told_apart),
        cmocka_unit_test(bad_messages_are_refused_with_a_reason),
        cmocka_unit_test(oversize_is_refused),
        cmocka_unit_test(heartbeats_are_walked),
        cmocka_unit_test(oversize_heartbeat_ids_are_skipped),
        cmocka_unit_test(encoders_write_what_the_decoder_reads),
        cmocka_unit_test(encoders_refuse_what_would_be_misread),
        cmocka_unit_test(base_ids_are_cut),
        cmocka_unit_test(kinds_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
