/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_notif.h"

#include "wire/wire_test.h"

static const char golden_hex[] = "6e69786c5365724465737c 6e616d65 0400000000000000 62657461 7c"
                                 "6d7367 0200000000000000 6869 7c";

static void golden_both_ways(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    struct kvfi_nixl_notif notif = {.name = kvfi_span_str("beta"), .msg = kvfi_span_str("hi")};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_nixl_notif_encode(&notif, &buf, NULL), KVF_OK);
    assert_int_equal(buf.len, 42);
    test_same_bytes(buf.data, buf.len, golden.data, golden.len);
    notif = (struct kvfi_nixl_notif){0};
    assert_int_equal(kvfi_nixl_notif_decode(golden.data, golden.len, &notif, NULL), KVF_OK);
    test_span_is(notif.name, "beta");
    test_span_is(notif.msg, "hi");
    kvfi_buf_deinit(&buf);
    free(golden.data);
}

/* One beginning, many ends. */
static void two_steps_are_the_same_as_one(void **state)
{
    static const char *const messages[] = {"", "hi", "a longer message", "x"};
    struct kvfi_buf steps, once;
    kvfi_buf_init(&steps, NULL);
    assert_int_equal(kvfi_nixl_notif_begin(kvfi_span_str("beta"), &steps, NULL), KVF_OK);
    size_t begun = steps.len;
    for (size_t i = 0; i < ITEMS(messages); i++) {
        struct kvfi_nixl_notif notif = {.name = kvfi_span_str("beta"),
                                        .msg = kvfi_span_str(messages[i])};
        kvfi_buf_init(&once, NULL);
        assert_int_equal(kvfi_nixl_notif_encode(&notif, &once, NULL), KVF_OK);
        steps.len = begun;
        assert_int_equal(kvfi_nixl_notif_finish(notif.msg, &steps, NULL), KVF_OK);
        test_same_bytes(steps.data, steps.len, once.data, once.len);
        kvfi_buf_deinit(&once);
    }
    struct kvf_error error;
    steps.len = begun;
    test_refused(
        kvfi_nixl_notif_finish(kvfi_span("", KVFI_NIXL_NOTIF_LEN_MAX - 36 - 3), &steps, &error),
        KVF_ELIMIT, &error, "16777216");
    assert_int_equal(steps.len, begun);
    test_refused(kvfi_nixl_notif_begin(kvfi_span_str(""), &steps, &error), KVF_EINVAL, &error,
                 "name");
    kvfi_buf_deinit(&steps);
}

static void message_may_be_empty_or_large(void **state)
{
    static const size_t lens[] = {0, 1, 65536, 1 << 20};
    for (size_t i = 0; i < ITEMS(lens); i++) {
        struct test_bytes msg = test_copy("", 0);
        free(msg.data);
        msg.len = lens[i];
        msg.data = calloc(1, lens[i] + 1);
        assert_non_null(msg.data);
        struct kvfi_nixl_notif notif = {.name = kvfi_span_str("a"),
                                        .msg = kvfi_span(msg.data, msg.len)};
        struct kvfi_buf buf;
        kvfi_buf_init(&buf, NULL);
        assert_int_equal(kvfi_nixl_notif_encode(&notif, &buf, NULL), KVF_OK);
        assert_int_equal(buf.len, 36 + 1 + lens[i]);
        assert_int_equal(kvfi_nixl_notif_decode(buf.data, buf.len, &notif, NULL), KVF_OK);
        assert_int_equal(notif.msg.len, lens[i]);
        kvfi_buf_deinit(&buf);
        free(msg.data);
    }
}

static void every_truncation_is_refused(void **state)
{
    struct test_bytes golden = test_hex(golden_hex);
    struct kvfi_nixl_notif notif;
    for (size_t len = 0; len < golden.len; len++) {
        struct test_bytes cut = test_copy(golden.data, len);
        assert_int_equal(kvfi_nixl_notif_decode(cut.data, cut.len, &notif, NULL), KVF_EFORMAT);
        free(cut.data);
    }
    free(golden.data);
}

static void trailing_bytes_are_refused(void **state)
{
    struct test_bytes more = test_hex("6e69786c5365724465737c 6e616d65 0400000000000000 62657461 "
                                      "7c 6d7367 0000000000000000 7c 00");
    struct kvfi_nixl_notif notif;
    struct kvf_error error;
    test_refused(kvfi_nixl_notif_decode(more.data, more.len, &notif, &error), KVF_EFORMAT, &error,
                 "1 bytes after");
    free(more.data);
}

static void names_are_checked(void **state)
{
    static char large[1025];
    memset(large, 'n', sizeof(large));
    struct kvfi_nixl_notif notif = {.msg = kvfi_span_str("hi")};
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    test_refused(kvfi_nixl_notif_encode(&notif, &buf, &error), KVF_EINVAL, &error, "name");
    notif.name = kvfi_span(large, sizeof(large));
    test_refused(kvfi_nixl_notif_encode(&notif, &buf, &error), KVF_EINVAL, &error, "1025");
    struct test_bytes unnamed =
        test_hex("6e69786c5365724465737c 6e616d65 0000000000000000 7c 6d7367 0000000000000000 7c");
    test_refused(kvfi_nixl_notif_decode(unnamed.data, unnamed.len, &notif, &error), KVF_EFORMAT,
                 &error, "name");
    free(unnamed.data);
    kvfi_buf_deinit(&buf);
}

static void oversize_is_refused_before_it_is_read(void **state)
{
    struct kvfi_nixl_notif notif = {.name = kvfi_span_str("a")};
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    notif.msg = kvfi_span("", KVFI_NIXL_NOTIF_LEN_MAX - 36);
    test_refused(kvfi_nixl_notif_encode(&notif, &buf, &error), KVF_ELIMIT, &error, "16777216");
    test_refused(kvfi_nixl_notif_decode("", KVFI_NIXL_NOTIF_LEN_MAX + 1, &notif, &error),
                 KVF_ELIMIT, &error, "16777217");
    kvfi_buf_deinit(&buf);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_both_ways),
        cmocka_unit_test(two_steps_are_the_same_as_one),
        cmocka_unit_test(message_may_be_empty_or_large),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(trailing_bytes_are_refused),
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(oversize_is_refused_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
