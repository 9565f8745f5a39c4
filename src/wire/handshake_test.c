/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "wire/wire_test.h"

#include <math.h>

#define HASH "a0afe7f6adacd47e07863d84fa9325df1e91df9c2ca7ca6778b0721ba6470f1b"

static void requests_both_ways(void **state)
{
    static const struct {
        struct kvfi_handshake_request request;
        const char *hex;
    } rows[] = {
        {{0, 0, false}, "93c40c6765745f6d6574615f6d73670000"},
        {{1, 3, false}, "93c40c6765745f6d6574615f6d73670103"},
        {{200, 65535, false}, "93c40c6765745f6d6574615f6d7367ccc8cdffff"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        struct kvfi_handshake_request request;
        struct kvfi_buf buf;
        kvfi_buf_init(&buf, NULL);
        assert_int_equal(kvfi_handshake_request_encode(&rows[i].request, &buf, NULL), KVF_OK);
        test_same_bytes(buf.data, buf.len, bytes.data, bytes.len);
        assert_int_equal(kvfi_handshake_request_decode(bytes.data, bytes.len, &request, NULL),
                         KVF_OK);
        assert_int_equal(request.pp_rank, rows[i].request.pp_rank);
        assert_int_equal(request.tp_rank, rows[i].request.tp_rank);
        assert_false(request.legacy);
        kvfi_buf_deinit(&buf);
        free(bytes.data);
    }
}

static void the_old_request_is_read(void **state)
{
    struct test_bytes bytes = test_hex("92c40c6765745f6d6574615f6d736703");
    struct kvfi_handshake_request request;
    assert_int_equal(kvfi_handshake_request_decode(bytes.data, bytes.len, &request, NULL), KVF_OK);
    assert_true(request.legacy);
    assert_int_equal(request.pp_rank, 0);
    assert_int_equal(request.tp_rank, 3);
    free(bytes.data);
}

static void bad_requests_are_refused(void **state)
{
    static const struct {
        const char *hex;
        enum kvf_status status;
        const char *mentions;
    } rows[] = {
        {"", KVF_EFORMAT, "ends at byte 0"},
        {"90", KVF_EFORMAT, "0 elements"},
        {"91c40c6765745f6d6574615f6d7367", KVF_EFORMAT, "1 elements"},
        {"94c40c6765745f6d6574615f6d7367000000", KVF_ELIMIT, "more than 4"},
        {"93ac6765745f6d6574615f6d73670000", KVF_EFORMAT, "is a string, expected bytes"},
        {"93c40c6765745f6d6574615f6d73680000", KVF_EFORMAT, "'get_meta_msh' is unknown"},
        {"93c40c6765745f6d6574615f6d7367ff00", KVF_EFORMAT, "'pp_rank' is -1"},
        {"93c40c6765745f6d6574615f6d736700ce00010000", KVF_EFORMAT, "'tp_rank' is 65536"},
        {"93c40c6765745f6d6574615f6d736700c3", KVF_EFORMAT, "'tp_rank' is a bool"},
        {"93c40c6765745f6d6574615f6d7367000000", KVF_EFORMAT, "1 bytes after"},
        {"93c40c6765745f6d6574615f6d736700", KVF_EFORMAT, ""},
        {"81c00c", KVF_EFORMAT, "a map"},
        {"93c40c6765745f6d6574615f6d73670090", KVF_ELIMIT, "nested"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        struct kvfi_handshake_request request = {.tp_rank = 99};
        struct kvf_error error;
        test_refused(kvfi_handshake_request_decode(bytes.data, bytes.len, &request, &error),
                     rows[i].status, &error, rows[i].mentions);
        assert_int_equal(request.tp_rank, 99);
        free(bytes.data);
    }
    static const uint8_t large[KVFI_HANDSHAKE_REQUEST_LEN_MAX + 1];
    struct kvfi_handshake_request request = {.pp_rank = KVFI_RANK_MAX + 1};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_handshake_request_decode(large, sizeof(large), &request, NULL),
                     KVF_ELIMIT);
    assert_int_equal(kvfi_handshake_request_encode(&request, &buf, NULL), KVF_EINVAL);
    kvfi_buf_deinit(&buf);
}

static struct kvfi_buf encoded(uint32_t caps)
{
    struct kvfi_handshake_payload payload = {
        .compatibility_hash = HASH, .agent_metadata = kvfi_span("\1\2", 2), .caps = caps};
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_handshake_payload_encode(&payload, &buf, NULL), KVF_OK);
    return buf;
}

static void payloads_both_ways(void **state)
{
    static const uint32_t caps[] = {0, KVFI_CAP_PUSH_FAIL, KVFI_CAP_PUSH_DROP,
                                    KVFI_CAP_PUSH_FAIL | KVFI_CAP_PUSH_DROP};
    for (size_t i = 0; i < ITEMS(caps); i++) {
        struct kvfi_buf buf = encoded(caps[i]);
        struct kvfi_handshake_payload payload;
        assert_int_equal(buf.data[0], caps[i] ? 0x83 : 0x82);
        assert_int_equal(kvfi_handshake_payload_decode(buf.data, buf.len, NULL, &payload, NULL),
                         KVF_OK);
        assert_string_equal(payload.compatibility_hash, HASH);
        test_same_bytes(payload.agent_metadata.data, payload.agent_metadata.len, "\1\2", 2);
        assert_int_equal(payload.caps, caps[i]);
        kvfi_buf_deinit(&buf);
    }
}

/* A payload from pieces: count byte, then key and value texts already in msgpack form. */
static enum kvf_status decode_pieces(const char *head, const char *const *pieces, size_t count,
                                     struct kvfi_handshake_payload *payload,
                                     struct kvf_error *error)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    kvfi_buf_put_text(&buf, head);
    for (size_t i = 0; i < count; i++)
        kvfi_buf_put_text(&buf, pieces[i]);
    struct test_bytes exact = test_copy(buf.data, buf.len);
    enum kvf_status status =
        kvfi_handshake_payload_decode(exact.data, exact.len, NULL, payload, error);
    payload->agent_metadata = kvfi_span(NULL, 0);
    free(exact.data);
    kvfi_buf_deinit(&buf);
    return status;
}

#define PIECE_HASH                                                                                 \
    "\xb2"                                                                                         \
    "compatibility_hash"                                                                           \
    "\xd9\x40" HASH
#define PIECE_DATA                                                                                 \
    "\xb4"                                                                                         \
    "agent_metadata_bytes"                                                                         \
    "\xc4\x02\x01\x02"
#define PIECE_CAPS                                                                                 \
    "\xac"                                                                                         \
    "kvferry_caps"

static void extra_keys_and_unknown_caps_are_ignored(void **state)
{
    static const char *const pieces[] = {PIECE_CAPS "\x92"
                                                    "\xa9"
                                                    "push_fail"
                                                    "\xa5"
                                                    "later",
                                         "\xa5"
                                         "extra"
                                         "\x90",
                                         PIECE_DATA, PIECE_HASH};
    struct kvfi_handshake_payload payload;
    assert_int_equal(decode_pieces("\x84", pieces, 4, &payload, NULL), KVF_OK);
    assert_int_equal(payload.caps, KVFI_CAP_PUSH_FAIL);
}

static void bad_payloads_are_refused(void **state)
{
    static const struct {
        const char *head;
        const char *pieces[3];
        const char *mentions;
    } rows[] = {
        {"\x90", {NULL}, "expected a map"},
        {"\x80", {NULL}, "'compatibility_hash' is missing"},
        {"\x81", {PIECE_HASH}, "'agent_metadata_bytes' is missing"},
        {"\x81", {PIECE_DATA}, "'compatibility_hash' is missing"},
        {"\x82",
         {PIECE_HASH, "\xb4"
                      "agent_metadata_bytes"
                      "\xa2"
                      "ab"},
         "is a string"},
        {"\x82",
         {PIECE_DATA, "\xb2"
                      "compatibility_hash"
                      "\xc4\x01"
                      "a"},
         "is bytes"},
        {"\x82",
         {PIECE_DATA, "\xb2"
                      "compatibility_hash"
                      "\xa3"
                      "abc"},
         "'abc', expected 64"},
        {"\x82",
         {PIECE_DATA, "\xb2"
                      "compatibility_hash"
                      "\xa0"},
         "'', expected 64"},
        {"\x83", {PIECE_HASH, PIECE_DATA, PIECE_CAPS "\x01"}, "'kvferry_caps' is an int"},
        {"\x83", {PIECE_HASH, PIECE_DATA, PIECE_CAPS "\x91\x01"}, "'kvferry_caps' is an int"},
        {"\x83", {PIECE_HASH, PIECE_DATA, PIECE_HASH}, "occurs twice"},
        {"\x82", {PIECE_HASH, PIECE_DATA, "\xc0"}, "1 bytes after"},
        {"\x83", {PIECE_HASH, PIECE_DATA, "\x01\x01"}, "a key is an int"},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct kvfi_handshake_payload payload = {.caps = 99};
        struct kvf_error error;
        size_t count = 0;
        while (count < 3 && rows[i].pieces[count])
            count++;
        test_refused(decode_pieces(rows[i].head, rows[i].pieces, count, &payload, &error),
                     KVF_EFORMAT, &error, rows[i].mentions);
        assert_int_equal(payload.caps, 99);
    }
}

static void every_truncation_is_refused(void **state)
{
    struct kvfi_buf buf = encoded(KVFI_CAP_PUSH_FAIL);
    for (size_t len = 0; len < buf.len; len++) {
        struct test_bytes cut = test_copy(buf.data, len);
        struct kvfi_handshake_payload payload;
        assert_int_equal(kvfi_handshake_payload_decode(cut.data, cut.len, NULL, &payload, NULL),
                         KVF_EFORMAT);
        free(cut.data);
    }
    kvfi_buf_deinit(&buf);
}

static void payload_encoder_checks_its_caller(void **state)
{
    struct kvfi_handshake_payload payload = {.compatibility_hash = "A0"};
    struct kvfi_buf buf;
    struct kvf_error error;
    kvfi_buf_init(&buf, NULL);
    test_refused(kvfi_handshake_payload_encode(&payload, &buf, &error), KVF_EINVAL, &error,
                 "64 lowercase");
    memcpy(payload.compatibility_hash, HASH, sizeof(HASH));
    payload.caps = 1u << 31;
    test_refused(kvfi_handshake_payload_encode(&payload, &buf, &error), KVF_EINVAL, &error,
                 "0x80000000");
    payload.caps = 0;
    payload.agent_metadata = kvfi_span("", KVFI_HANDSHAKE_PAYLOAD_LEN_MAX);
    test_refused(kvfi_handshake_payload_encode(&payload, &buf, &error), KVF_ELIMIT, &error,
                 "134217728");
    kvfi_buf_deinit(&buf);
}

static void timestamps_both_ways(void **state)
{
    struct test_bytes golden = test_hex("cb40934a0000000000");
    struct kvfi_buf buf;
    double seconds = 0;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_handshake_timestamp_encode(1234.5, &buf, NULL), KVF_OK);
    test_same_bytes(buf.data, buf.len, golden.data, golden.len);
    assert_int_equal(kvfi_handshake_timestamp_decode(golden.data, golden.len, &seconds, NULL),
                     KVF_OK);
    assert_true(seconds == 1234.5);
    assert_int_equal(kvfi_handshake_timestamp_encode(INFINITY, &buf, NULL), KVF_EINVAL);
    kvfi_buf_deinit(&buf);
    free(golden.data);
}

static void any_finite_number_is_a_timestamp(void **state)
{
    static const struct {
        const char *hex;
        double seconds; /* NAN: refused */
    } rows[] = {
        {"05", 5},
        {"ff", -1},
        {"ca449a5000", 1234.5},
        {"cf8000000000000000", 9223372036854775808.0},
        {"cb7ff0000000000000", NAN},
        {"cb7ff8000000000000", NAN},
        {"ca7fc00000", NAN},
        {"c0", NAN},
        {"c3", NAN},
        {"a135", NAN},
        {"9105", NAN},
        {"0505", NAN},
        {"cb40934a00000000", NAN},
        {"", NAN},
    };
    for (size_t i = 0; i < ITEMS(rows); i++) {
        struct test_bytes bytes = test_hex(rows[i].hex);
        double seconds = 7;
        enum kvf_status status =
            kvfi_handshake_timestamp_decode(bytes.data, bytes.len, &seconds, NULL);
        if (isnan(rows[i].seconds)) {
            assert_true(status == KVF_EFORMAT || status == KVF_ELIMIT);
            assert_true(seconds == 7);
        } else {
            assert_int_equal(status, KVF_OK);
            assert_true(seconds == rows[i].seconds);
        }
        free(bytes.data);
    }
}

static enum kvf_status decode_payload(const struct kvf_allocator *allocator)
{
    struct kvfi_buf buf = encoded(KVFI_CAP_PUSH_FAIL | KVFI_CAP_PUSH_DROP);
    struct kvfi_handshake_payload payload;
    enum kvf_status status =
        kvfi_handshake_payload_decode(buf.data, buf.len, allocator, &payload, NULL);
    kvfi_buf_deinit(&buf);
    return status;
}

static void memory_shortage_is_reported(void **state)
{
    assert_int_equal(test_alloc_failures(decode_payload), 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_both_ways),
        cmocka_unit_test(the_old_request_is_read),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(payloads_both_ways),
        cmocka_unit_test(extra_keys_and_unknown_caps_are_ignored),
        cmocka_unit_test(bad_payloads_are_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(payload_encoder_checks_its_caller),
        cmocka_unit_test(timestamps_both_ways),
        cmocka_unit_test(any_finite_number_is_a_timestamp),
        cmocka_unit_test(memory_shortage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
