/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/kv.h"

#include "channel/frames.h"
#include "runtime/clock.h"
#include "wire/handshake.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct kvf_metrics *metrics;
    struct kvf_listener *listener;
    void *context;
    char endpoint[64];
};

static const struct kvf_listener_rank two_ranks[] = {
    {.pp_rank = 0, .tp_rank = 0, .payload = "payload-0", .payload_len = 9},
    {.pp_rank = 0, .tp_rank = 1, .payload = "payload-one", .payload_len = 11},
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->metrics = kvf_metrics_create();
    struct kvf_error error = {0};
    if (kvf_listener_create("127.0.0.1", 0, two_ranks, 2, f->metrics, &f->listener, &error) !=
        KVF_OK)
        fail_msg("%s", error.text);
    snprintf(f->endpoint, sizeof(f->endpoint), "tcp://127.0.0.1:%u",
             (unsigned)kvf_listener_port(f->listener));
    f->context = zmq_ctx_new();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    zmq_ctx_term(f->context);
    kvf_listener_destroy(f->listener);
    kvf_metrics_destroy(f->metrics);
    free(f);
    return 0;
}

static void *open_socket(struct fixture *f, int type)
{
    void *socket = zmq_socket(f->context, type);
    assert_non_null(socket);
    int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_connect(socket, f->endpoint), 0);
    return socket;
}

static struct kvfi_buf request_for(uint32_t pp_rank, uint32_t tp_rank)
{
    struct kvfi_buf body;
    kvfi_buf_init(&body, NULL);
    struct kvfi_handshake_request request = {.pp_rank = pp_rank, .tp_rank = tp_rank};
    assert_int_equal(kvfi_handshake_request_encode(&request, &body, NULL), KVF_OK);
    return body;
}

/* What vLLM's client does: REQ, one frame out, two back. */
static void good_handshake(struct fixture *f, uint32_t tp_rank, const char *payload)
{
    void *socket = open_socket(f, ZMQ_REQ);
    struct kvfi_buf body = request_for(0, tp_rank);
    assert_int_equal(zmq_send(socket, body.data, body.len, 0), body.len);
    kvfi_buf_deinit(&body);
    char reply[64];
    int len = zmq_recv(socket, reply, sizeof(reply), 0);
    assert_int_equal(len, strlen(payload));
    assert_memory_equal(reply, payload, len);
    len = zmq_recv(socket, reply, sizeof(reply), 0);
    double then_s = 0;
    assert_int_equal(kvfi_handshake_timestamp_decode(reply, (size_t)len, &then_s, NULL), KVF_OK);
    double now_s = (double)kvfi_clock_mono_ns() / 1e9;
    assert_true(then_s > 0 && then_s <= now_s);
    int more = 1;
    size_t more_len = sizeof(more);
    zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_len);
    assert_int_equal(more, 0);
    zmq_close(socket);
}

/* Sends `count` frames of these bytes as one message, then waits until the listener has answered a
 * good request: connections are served in any order, so the count is awaited, not assumed. */
static void send_bad(struct fixture *f, const struct kvfi_span *frames, size_t count)
{
    uint64_t before = kvf_metrics_get(f->metrics, KVF_COUNTER_bad_handshake_requests);
    void *socket = open_socket(f, ZMQ_DEALER);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(
            zmq_send(socket, frames[i].data, frames[i].len, i + 1 < count ? ZMQ_SNDMORE : 0),
            frames[i].len);
    do {
        good_handshake(f, 1, "payload-one");
    } while (kvf_metrics_get(f->metrics, KVF_COUNTER_bad_handshake_requests) == before);
    assert_int_equal(kvf_metrics_get(f->metrics, KVF_COUNTER_bad_handshake_requests), before + 1);
    /* It got no answer. */
    char reply[8];
    assert_int_equal(zmq_recv(socket, reply, sizeof(reply), ZMQ_DONTWAIT), -1);
    zmq_close(socket);
}

static void test_each_rank_gets_its_payload(void **state)
{
    good_handshake(*state, 0, "payload-0");
    good_handshake(*state, 1, "payload-one");
    good_handshake(*state, 0, "payload-0");
}

/* B33 */
static void test_wrong_frame_counts(void **state)
{
    struct fixture *f = *state;
    struct kvfi_buf body = request_for(0, 0);
    struct kvfi_span good = kvfi_span(body.data, body.len);
    struct kvfi_span empty = {0};
    const struct kvfi_span plain_dealer[] = {good};
    const struct kvfi_span only_empty[] = {empty};
    const struct kvfi_span no_body[] = {empty, empty};
    const struct kvfi_span full_delimiter[] = {good, good};
    const struct kvfi_span three[] = {empty, good, good};
    const struct kvfi_span seven[] = {empty, good, good, good, good, good, good};
    send_bad(f, plain_dealer, 1);
    send_bad(f, only_empty, 1);
    send_bad(f, no_body, 2);
    send_bad(f, full_delimiter, 2);
    send_bad(f, three, 3);
    send_bad(f, seven, 7);
    kvfi_buf_deinit(&body);
}

static void send_bad_body(struct fixture *f, const void *bytes, size_t len)
{
    const struct kvfi_span frames[] = {{0}, kvfi_span(bytes, len)};
    send_bad(f, frames, 2);
}

static void test_wrong_bodies(void **state)
{
    struct fixture *f = *state;
    struct kvfi_buf body = request_for(0, 0);
    for (size_t len = 0; len < body.len; len++)
        send_bad_body(f, body.data, len);
    kvfi_buf_deinit(&body);

    uint8_t nested[10000];
    memset(nested, 0x91, sizeof(nested)); /* an array in an array in ... */
    send_bad_body(f, nested, sizeof(nested));
    send_bad_body(f, nested, 250);
    uint32_t random = 12345;
    for (int i = 0; i < 20; i++) {
        uint8_t bytes[200];
        for (size_t j = 0; j < sizeof(bytes); j++)
            bytes[j] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
        send_bad_body(f, bytes, sizeof(bytes));
    }
    send_bad_body(f, "\x93\xc4\x0cget_meta_msg\xff\x00", 17); /* pp rank -1 */
    send_bad_body(f, "\x93\xc4\x0cget_meta_msg\x00\xff", 17); /* tp rank -1 */
}

static void test_a_rank_that_does_not_exist(void **state)
{
    struct fixture *f = *state;
    const uint32_t ranks[][2] = {{0, 2}, {0, 999}, {1, 0}};
    for (size_t i = 0; i < 3; i++) {
        struct kvfi_buf body = request_for(ranks[i][0], ranks[i][1]);
        send_bad_body(f, body.data, body.len);
        kvfi_buf_deinit(&body);
    }
}

/* Over the frame limit ZeroMQ closes the connection; the listener never holds the bytes. */
static void test_a_huge_frame_costs_its_connection(void **state)
{
    struct fixture *f = *state;
    size_t len = (size_t)64 << 20;
    void *bytes = calloc(1, len);
    assert_non_null(bytes);
    void *socket = open_socket(f, ZMQ_DEALER);
    assert_int_equal(zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(socket, bytes, len, 0), len);
    good_handshake(f, 0, "payload-0");
    zmq_close(socket);
    free(bytes);
    good_handshake(f, 1, "payload-one");
}

static int raw_connection(struct fixture *f)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(kvf_listener_port(f->listener)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void test_half_open_and_foreign_connections(void **state)
{
    struct fixture *f = *state;
    int fds[20];
    for (int i = 0; i < 20; i++)
        fds[i] = raw_connection(f);
    const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_int_equal(write(fds[0], http, sizeof(http) - 1), sizeof(http) - 1);
    /* Half of ZeroMQ's own greeting. */
    assert_int_equal(write(fds[1], "\xff\0\0\0\0\0\0\0\1\x7f", 10), 10);
    good_handshake(f, 0, "payload-0");
    for (int i = 0; i < 20; i++)
        close(fds[i]);
    good_handshake(f, 1, "payload-one");
}

/* Replies nobody reads are bounded by ZeroMQ's queues and delay nobody. */
static void test_a_client_that_does_not_read(void **state)
{
    struct fixture *f = *state;
    void *socket = open_socket(f, ZMQ_DEALER);
    struct kvfi_buf body = request_for(0, 0);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
        assert_int_equal(zmq_send(socket, body.data, body.len, 0), body.len);
    }
    kvfi_buf_deinit(&body);
    good_handshake(f, 1, "payload-one");
    zmq_close(socket);
}

/* B94 */
static void test_a_port_in_use_is_named(void **state)
{
    struct fixture *f = *state;
    struct kvf_listener *second = NULL;
    struct kvf_error error;
    uint16_t port = kvf_listener_port(f->listener);
    assert_int_equal(kvf_listener_create("127.0.0.1", port, two_ranks, 2, NULL, &second, &error),
                     KVF_EBUSY);
    char expected[64];
    snprintf(expected, sizeof(expected), "side channel host 127.0.0.1 port %u is in use", port);
    assert_memory_equal(error.text, expected, strlen(expected));
    assert_null(second);
}

static void test_what_create_refuses(void **state)
{
    struct kvf_listener *listener = NULL;
    struct kvf_error error;
    const struct kvf_listener_rank twice[] = {two_ranks[0], two_ranks[0]};
    const struct kvf_listener_rank empty[] = {{.payload = "", .payload_len = 0}};
    assert_int_equal(kvf_listener_create("127.0.0.1", 0, twice, 2, NULL, &listener, &error),
                     KVF_EINVAL);
    assert_string_equal(error.text, "pp rank 0, tp rank 0 is given twice");
    assert_int_equal(kvf_listener_create("127.0.0.1", 0, empty, 1, NULL, &listener, &error),
                     KVF_EINVAL);
    assert_int_equal(kvf_listener_create("no such host", 0, two_ranks, 1, NULL, &listener, &error),
                     KVF_ENOTFOUND);
    assert_int_equal(kvf_listener_create("192.0.2.1", 0, two_ranks, 1, NULL, &listener, &error),
                     KVF_ESYSTEM);
    assert_null(listener);
    kvf_listener_destroy(NULL);
}

/* An engine that learns its port first and has its payload later. */
static void test_a_payload_published_later(void **state)
{
    struct fixture f = {.context = zmq_ctx_new(), .metrics = kvf_metrics_create()};
    assert_int_equal(kvf_listener_create("127.0.0.1", 0, NULL, 0, f.metrics, &f.listener, NULL),
                     KVF_OK);
    snprintf(f.endpoint, sizeof(f.endpoint), "tcp://127.0.0.1:%u",
             (unsigned)kvf_listener_port(f.listener));
    assert_int_equal(kvf_listener_publish(f.listener, &two_ranks[1], NULL), KVF_OK);
    good_handshake(&f, 1, "payload-one");
    struct kvfi_buf body = request_for(0, 0);
    send_bad_body(&f, body.data, body.len);
    kvfi_buf_deinit(&body);
    assert_int_equal(kvf_listener_publish(f.listener, &two_ranks[0], NULL), KVF_OK);
    good_handshake(&f, 0, "payload-0");
    /* A rank that comes back with other memory replaces what it said before. */
    struct kvf_listener_rank again = two_ranks[0];
    again.payload = "payload-again";
    again.payload_len = 13;
    assert_int_equal(kvf_listener_publish(f.listener, &again, NULL), KVF_OK);
    good_handshake(&f, 0, "payload-again");
    again.tp_rank = 70000;
    assert_int_equal(kvf_listener_publish(f.listener, &again, NULL), KVF_EINVAL);
    kvf_listener_destroy(f.listener);
    kvf_metrics_destroy(f.metrics);
    zmq_ctx_term(f.context);
}

/* B92, where this machine has IPv6 at all. */
static void test_ipv6(void **state)
{
    struct fixture *f = *state;
    const char *hosts[] = {"::1", "[::1]"};
    for (int i = 0; i < 2; i++) {
        struct kvf_listener *listener = NULL;
        enum kvf_status status =
            kvf_listener_create(hosts[i], 0, two_ranks, 2, NULL, &listener, NULL);
        if (status != KVF_OK)
            skip();
        struct fixture other = {.context = f->context};
        snprintf(other.endpoint, sizeof(other.endpoint), "tcp://[::1]:%u",
                 (unsigned)kvf_listener_port(listener));
        void *socket = zmq_socket(f->context, ZMQ_REQ);
        int on = 1;
        zmq_setsockopt(socket, ZMQ_IPV6, &on, sizeof(on));
        assert_int_equal(zmq_connect(socket, other.endpoint), 0);
        struct kvfi_buf body = request_for(0, 0);
        assert_int_equal(zmq_send(socket, body.data, body.len, 0), body.len);
        kvfi_buf_deinit(&body);
        char reply[16];
        assert_int_equal(zmq_recv(socket, reply, sizeof(reply), 0), 9);
        zmq_close(socket);
        kvf_listener_destroy(listener);
    }
}

int main(void)
{
#define WITH_LISTENER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_LISTENER(test_each_rank_gets_its_payload),
        WITH_LISTENER(test_wrong_frame_counts),
        WITH_LISTENER(test_wrong_bodies),
        WITH_LISTENER(test_a_rank_that_does_not_exist),
        WITH_LISTENER(test_a_huge_frame_costs_its_connection),
        WITH_LISTENER(test_half_open_and_foreign_connections),
        WITH_LISTENER(test_a_client_that_does_not_read),
        WITH_LISTENER(test_a_port_in_use_is_named),
        cmocka_unit_test(test_what_create_refuses),
        cmocka_unit_test(test_a_payload_published_later),
        WITH_LISTENER(test_ipv6),
    };
    return cmocka_run_group_tests_name("channel/listener", tests, NULL, NULL);
}
