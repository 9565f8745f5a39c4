/* SPDX-License-Identifier: Apache-2.0 */
#include "http/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEAD_MAX = 512 };

struct outcome {
    enum kvf_status status;
    bool ended;
    bool head;
    char body[256];
    size_t body_len;
    size_t used;
    struct kvf_error error;
};

/* Feeds text in steps of `step` bytes until it ends, fails or runs out. Each step is a copy of its
 * own, so that a parser that kept a pointer into its input is caught by the sanitizers. */
static struct outcome feed(struct kvfi_http_parser *parser, const char *text, size_t len,
                           size_t step)
{
    struct outcome outcome = {0};
    while (!outcome.ended) {
        size_t left = len - outcome.used;
        size_t size = left < step ? left : step;
        char *copy = malloc(size + 1);
        assert_non_null(copy);
        memcpy(copy, text + outcome.used, size);
        struct kvfi_http_piece piece;
        size_t consumed = 0;
        outcome.status =
            kvfi_http_parser_next(parser, copy, size, &consumed, &piece, &outcome.error);
        if (outcome.status == KVF_OK) {
            assert_true(consumed <= size);
            outcome.used += consumed;
            if (piece.kind == KVFI_HTTP_BODY) {
                assert_true(outcome.body_len + piece.len <= sizeof(outcome.body));
                memcpy(outcome.body + outcome.body_len, piece.data, piece.len);
                outcome.body_len += piece.len;
            }
            outcome.head |= piece.kind == KVFI_HTTP_HEAD;
            outcome.ended = piece.kind == KVFI_HTTP_END;
        }
        bool stuck =
            outcome.status != KVF_OK || (piece.kind == KVFI_HTTP_MORE && outcome.used == len);
        free(copy);
        if (stuck)
            break;
    }
    return outcome;
}

static void assert_message(enum kvfi_http_side side, const char *text, const char *body)
{
    size_t len = strlen(text);
    for (size_t step = 1; step <= len + 1; step++) {
        struct kvfi_http_parser parser;
        kvfi_http_parser_init(&parser, side, HEAD_MAX);
        struct outcome outcome = feed(&parser, text, len, step);
        if (outcome.status != KVF_OK)
            fail_msg("step %zu: %s", step, outcome.error.text);
        assert_true(outcome.head);
        assert_true(outcome.ended);
        assert_int_equal(outcome.used, len);
        assert_int_equal(outcome.body_len, strlen(body));
        assert_memory_equal(outcome.body, body, strlen(body));
        kvfi_http_parser_reset(&parser);
    }
}

static void assert_refused(enum kvfi_http_side side, const char *text, size_t len,
                           int refuse_status)
{
    for (size_t step = 1; step <= len + 1; step++) {
        struct kvfi_http_parser parser;
        kvfi_http_parser_init(&parser, side, HEAD_MAX);
        struct outcome outcome = feed(&parser, text, len, step);
        if (outcome.status == KVF_OK)
            fail_msg("accepted at step %zu: %s", step, text);
        if (parser.refuse_status != refuse_status)
            fail_msg("status %d, not %d, for: %s", parser.refuse_status, refuse_status, text);
        assert_true(outcome.error.text[0] != '\0');
        kvfi_http_parser_reset(&parser);
    }
}

static void refuse_request(const char *text, int refuse_status)
{
    assert_refused(KVFI_HTTP_REQUEST, text, strlen(text), refuse_status);
}

static void test_requests(void **state)
{
    assert_message(KVFI_HTTP_REQUEST, "GET / HTTP/1.1\r\n\r\n", "");
    assert_message(KVFI_HTTP_REQUEST, "\r\n\r\nGET / HTTP/1.1\nHost: a\n\n", "");
    assert_message(KVFI_HTTP_REQUEST, "POST /x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
                   "hello");
    assert_message(KVFI_HTTP_REQUEST,
                   "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n",
                   "hello");
    assert_message(KVFI_HTTP_REQUEST, "GET http://host:1/path?q HTTP/1.0\r\n\r\n", "");
}

static void test_request_fields(void **state)
{
    static const char text[] = "POST /v1/x?a=b HTTP/1.1\r\nhOst:  h \t\r\nConnection: x, Close\r\n"
                               "Content-Length: 0\r\n\r\n";
    struct kvfi_http_parser parser;
    kvfi_http_parser_init(&parser, KVFI_HTTP_REQUEST, HEAD_MAX);
    struct outcome outcome = feed(&parser, text, strlen(text), 7);
    assert_true(outcome.ended);
    assert_string_equal(parser.method, "POST");
    assert_string_equal(parser.target, "/v1/x?a=b");
    assert_string_equal(kvfi_http_headers_find(&parser.headers, "HOST"), "h");
    assert_null(kvfi_http_headers_find(&parser.headers, "absent"));
    assert_true(kvfi_http_headers_has_token(&parser.headers, "connection", "close"));
    assert_false(kvfi_http_headers_has_token(&parser.headers, "connection", "clos"));
    assert_false(parser.keep_alive);
    kvfi_http_parser_reset(&parser);
}

static void test_end_leaves_the_next_message(void **state)
{
    static const char text[] = "GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    struct kvfi_http_parser parser;
    kvfi_http_parser_init(&parser, KVFI_HTTP_REQUEST, HEAD_MAX);
    struct outcome outcome = feed(&parser, text, strlen(text), sizeof(text));
    assert_true(outcome.ended);
    assert_int_equal(outcome.used, strlen(text) / 2);
    assert_string_equal(parser.target, "/a");
    kvfi_http_parser_reset(&parser);
}

static void test_malformed_requests(void **state)
{
    refuse_request("hello\r\n\r\n", 400);
    refuse_request("GET /\r\n\r\n", 400);
    refuse_request("GET x HTTP/1.1\r\n\r\n", 400);
    refuse_request("G{T / HTTP/1.1\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1x\r\n\r\n", 400);
    refuse_request("GET / HTTP/2.0\r\n\r\n", 505);
    refuse_request("GET http://host HTTP/1.1\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\n: v\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\nA : v\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\nA: v\r\n folded\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\nA: v\rw\r\n\r\n", 400);
    refuse_request("GET / HTTP/1.1\r\nA: \x01\r\n\r\n", 400);
    static const char nul[] = "GET / HTTP/1.1\r\nA: \0x\r\n\r\n";
    assert_refused(KVFI_HTTP_REQUEST, nul, sizeof(nul) - 1, 400);
}

static void test_framing_attacks(void **state)
{
    refuse_request("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                   400);
    refuse_request("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501);
    refuse_request("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400);
    refuse_request("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
                   400);
}

static void test_limits(void **state)
{
    char text[HEAD_MAX + 64];
    memset(text, 'a', sizeof(text));
    static const char first[5] = {'G', 'E', 'T', ' ', '/'};
    memcpy(text, first, sizeof(first));
    assert_refused(KVFI_HTTP_REQUEST, text, sizeof(text), 431);

    char many[4096];
    size_t len = (size_t)snprintf(many, sizeof(many), "GET / HTTP/1.1\r\n");
    for (int i = 0; i <= KVFI_HTTP_HEADER_COUNT_MAX; i++)
        len += (size_t)snprintf(many + len, sizeof(many) - len, "a:b\r\n");
    snprintf(many + len, sizeof(many) - len, "\r\n");
    struct kvfi_http_parser parser;
    kvfi_http_parser_init(&parser, KVFI_HTTP_REQUEST, sizeof(many));
    assert_int_equal(feed(&parser, many, strlen(many), 100).status, KVF_ELIMIT);
    kvfi_http_parser_reset(&parser);

    char blank[80];
    memset(blank, '\n', sizeof(blank));
    assert_refused(KVFI_HTTP_REQUEST, blank, sizeof(blank), 400);
}

static void test_responses(void **state)
{
    assert_message(KVFI_HTTP_RESPONSE, "HTTP/1.1 204 No Content\r\n\r\n", "");
    assert_message(KVFI_HTTP_RESPONSE,
                   "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                   "ok");
    assert_message(KVFI_HTTP_RESPONSE, "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", "ok");
    static const char junk[] = "SSH-2.0-x\r\n\r\n";
    assert_refused(KVFI_HTTP_RESPONSE, junk, strlen(junk), 400);
    static const char odd[] = "HTTP/1.1 2x0 OK\r\n\r\n";
    assert_refused(KVFI_HTTP_RESPONSE, odd, strlen(odd), 400);
}

static void assert_cut(const char *text, enum kvf_status status, const char *words)
{
    struct kvfi_http_parser parser;
    kvfi_http_parser_init(&parser, KVFI_HTTP_RESPONSE, HEAD_MAX);
    struct outcome outcome = feed(&parser, text, strlen(text), 9);
    assert_int_equal(outcome.status, KVF_OK);
    struct kvf_error error = {0};
    assert_int_equal(kvfi_http_parser_eof(&parser, &error), status);
    if (!strstr(error.text, words))
        fail_msg("'%s' does not say '%s'", error.text, words);
    kvfi_http_parser_reset(&parser);
}

static void test_end_of_connection(void **state)
{
    assert_cut("", KVF_EDISCONNECTED, "before an answer");
    assert_cut("HTTP/1.1 200 OK\r\nA:", KVF_EDISCONNECTED, "inside the head");
    assert_cut("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", KVF_EDISCONNECTED,
               "6 of 9 bytes");
    assert_cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
               KVF_EDISCONNECTED, "chunked body was cut");
    assert_cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", KVF_EDISCONNECTED,
               "chunked body was cut");
    assert_cut("HTTP/1.1 200 OK\r\n\r\nabc", KVF_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_request_fields),
        cmocka_unit_test(test_end_leaves_the_next_message),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_framing_attacks),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_responses),
        cmocka_unit_test(test_end_of_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
