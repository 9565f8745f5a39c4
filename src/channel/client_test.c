/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/client.h"

#include "channel/frames.h"
#include "kvferry/kv.h"
#include "runtime/clock.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_NS (600 * KVFI_NS_PER_S)

static const struct kvf_listener_rank one_rank[] = {
    {.payload = "the payload", .payload_len = 11},
};

static struct kvfi_handshake_client *make_client(size_t calls_max)
{
    struct kvfi_handshake_client *client = NULL;
    assert_int_equal(kvfi_handshake_client_create(calls_max, NULL, &client, NULL), KVF_OK);
    return client;
}

static struct kvf_listener *make_listener(void)
{
    struct kvf_listener *listener = NULL;
    assert_int_equal(kvf_listener_create("127.0.0.1", 0, one_rank, 1, NULL, &listener, NULL),
                     KVF_OK);
    return listener;
}

/* Sleeps on the descriptor until there is a result. */
static struct kvfi_handshake_result *await(struct kvfi_handshake_client *client)
{
    struct kvfi_handshake_result *result;
    while (!(result = kvfi_handshake_client_take(client))) {
        struct pollfd fd = {.fd = kvfi_handshake_client_fd(client), .events = POLLIN};
        assert_int_equal(poll(&fd, 1, -1), 1);
        kvfi_handshake_client_clear(client);
    }
    return result;
}

static void test_a_handshake(void **state)
{
    struct kvfi_handshake_client *client = make_client(0);
    struct kvf_listener *listener = make_listener();
    assert_int_equal(kvfi_handshake_client_start(client, 7, "localhost",
                                                 kvf_listener_port(listener), 0, 0, LONG_NS, NULL),
                     KVF_OK);
    struct kvfi_handshake_result *result = await(client);
    assert_int_equal(result->handshake_id, 7);
    assert_int_equal(result->status, KVF_OK);
    assert_int_equal(result->payload_len, 11);
    assert_memory_equal(result->payload, "the payload", 11);
    assert_true(result->has_timestamp);
    assert_true(result->timestamp_s > 0);
    kvfi_handshake_result_free(client, result);
    assert_null(kvfi_handshake_client_take(client));
    kvf_listener_destroy(listener);
    kvfi_handshake_client_destroy(client);
}

/* A port that accepts connections and never says a word. */
static int silent_server(uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void test_dead_peers_delay_nobody(void **state)
{
    struct kvfi_handshake_client *client = make_client(64);
    struct kvf_listener *listener = make_listener();
    uint16_t silent_port = 0;
    int silent = silent_server(&silent_port);
    for (uint64_t i = 0; i < 30; i++)
        assert_int_equal(
            kvfi_handshake_client_start(client, i, "127.0.0.1", silent_port, 0, 0, LONG_NS, NULL),
            KVF_OK);
    for (uint64_t i = 100; i < 110; i++)
        assert_int_equal(kvfi_handshake_client_start(client, i, "127.0.0.1",
                                                     kvf_listener_port(listener), 0, 0, LONG_NS,
                                                     NULL),
                         KVF_OK);
    for (int i = 0; i < 10; i++) {
        struct kvfi_handshake_result *result = await(client);
        assert_in_range(result->handshake_id, 100, 109);
        assert_int_equal(result->status, KVF_OK);
        kvfi_handshake_result_free(client, result);
    }
    /* The other thirty are given up here. */
    kvfi_handshake_client_destroy(client);
    kvf_listener_destroy(listener);
    close(silent);
}

static void test_a_silent_peer_times_out(void **state)
{
    struct kvfi_handshake_client *client = make_client(0);
    uint16_t port = 0;
    int silent = silent_server(&port);
    uint64_t start_ns = kvfi_clock_mono_ns();
    assert_int_equal(
        kvfi_handshake_client_start(client, 1, "127.0.0.1", port, 0, 0, 20 * KVFI_NS_PER_MS, NULL),
        KVF_OK);
    struct kvfi_handshake_result *result = await(client);
    assert_true(kvfi_clock_mono_ns() - start_ns >= 20 * KVFI_NS_PER_MS);
    assert_int_equal(result->status, KVF_ETIMEDOUT);
    char expected[96];
    snprintf(expected, sizeof(expected),
             "127.0.0.1 port %u did not answer the handshake within "
             "20 ms",
             (unsigned)port);
    assert_string_equal(result->error.text, expected);
    kvfi_handshake_result_free(client, result);
    close(silent);
    kvfi_handshake_client_destroy(client);
}

static void test_a_rank_nobody_has_times_out(void **state)
{
    struct kvfi_handshake_client *client = make_client(0);
    struct kvf_listener *listener = make_listener();
    assert_int_equal(kvfi_handshake_client_start(client, 1, "127.0.0.1",
                                                 kvf_listener_port(listener), 0, 9,
                                                 20 * KVFI_NS_PER_MS, NULL),
                     KVF_OK);
    struct kvfi_handshake_result *result = await(client);
    assert_int_equal(result->status, KVF_ETIMEDOUT);
    kvfi_handshake_result_free(client, result);
    kvf_listener_destroy(listener);
    kvfi_handshake_client_destroy(client);
}

/* Answers one request with these frames, as a ROUTER of our own. */
static struct kvfi_handshake_result *ask_hostile(const char *const *frames, const size_t *lens,
                                                 size_t count, struct kvfi_handshake_client *client)
{
    void *context = zmq_ctx_new();
    void *router = zmq_socket(context, ZMQ_ROUTER);
    int linger = 0;
    zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
    char endpoint[64];
    size_t len = sizeof(endpoint);
    zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &len);
    uint16_t port = (uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
    assert_int_equal(kvfi_handshake_client_start(client, 5, "127.0.0.1", port, 0, 0, LONG_NS, NULL),
                     KVF_OK);
    zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
    assert_int_equal(zmq_poll(&item, 1, -1), 1);
    struct kvfi_frames request;
    assert_true(kvfi_frames_receive(router, &request));
    assert_int_equal(request.count, 3);
    assert_int_equal(zmq_msg_size(&request.kept[1]), 0);
    zmq_send(router, zmq_msg_data(&request.kept[0]), zmq_msg_size(&request.kept[0]), ZMQ_SNDMORE);
    for (size_t i = 0; i < count; i++)
        zmq_send(router, frames[i], lens[i], i + 1 < count ? ZMQ_SNDMORE : 0);
    kvfi_frames_close(&request);
    struct kvfi_handshake_result *result = await(client);
    zmq_close(router);
    zmq_ctx_term(context);
    return result;
}

struct reply_case {
    const char *frames[8];
    size_t lens[8];
    size_t count;
    enum kvf_status status;
};

static void test_replies_of_every_shape(void **state)
{
    static const char now[] = "\xcb\x40\x59\0\0\0\0\0\0"; /* 100.0 */
    const struct reply_case cases[] = {
        {{"", "payload", now}, {0, 7, 9}, 3, KVF_OK},
        {{"", "payload"}, {0, 7}, 2, KVF_OK}, /* vLLM before the timestamp */
        {{""}, {0}, 1, KVF_EFORMAT},
        {{"payload"}, {7}, 1, KVF_EFORMAT},
        {{"x", "payload", now}, {1, 7, 9}, 3, KVF_EFORMAT},
        {{"", "payload", "soon"}, {0, 7, 4}, 3, KVF_EFORMAT},
        {{"", "payload", ""}, {0, 7, 0}, 3, KVF_EFORMAT},
        {{"", "payload", now, now}, {0, 7, 9, 9}, 4, KVF_EFORMAT},
        {{"", "a", "b", "c", "d", "e", "f"}, {0, 1, 1, 1, 1, 1, 1}, 7, KVF_EFORMAT},
    };
    struct kvfi_handshake_client *client = make_client(0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvfi_handshake_result *result =
            ask_hostile(cases[i].frames, cases[i].lens, cases[i].count, client);
        if (result->status != cases[i].status)
            fail_msg("case %zu gave %s", i, kvf_status_name(result->status));
        if (result->status == KVF_OK) {
            assert_int_equal(result->payload_len, 7);
            assert_int_equal(result->has_timestamp, cases[i].count == 3);
            if (result->has_timestamp)
                assert_true(result->timestamp_s == 100.0);
        } else {
            assert_int_not_equal(result->error.text[0], '\0');
        }
        kvfi_handshake_result_free(client, result);
    }
    kvfi_handshake_client_destroy(client);
}

static void test_the_limit_of_calls(void **state)
{
    struct kvfi_handshake_client *client = make_client(3);
    struct kvf_error error;
    uint16_t port = 0;
    int silent = silent_server(&port);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(
            kvfi_handshake_client_start(client, i, "127.0.0.1", port, 0, 0, KVFI_NS_PER_MS, NULL),
            KVF_OK);
    assert_int_equal(
        kvfi_handshake_client_start(client, 3, "127.0.0.1", port, 0, 0, LONG_NS, &error),
        KVF_ELIMIT);
    kvfi_handshake_result_free(client, await(client));
    assert_int_equal(
        kvfi_handshake_client_start(client, 4, "127.0.0.1", port, 0, 0, LONG_NS, &error), KVF_OK);
    kvfi_handshake_client_destroy(client);
    close(silent);
}

static void test_absurd_calls_are_refused(void **state)
{
    struct kvfi_handshake_client *client = make_client(0);
    char longer[400];
    memset(longer, 'h', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(kvfi_handshake_client_start(client, 1, "", 1, 0, 0, 1, NULL), KVF_EINVAL);
    assert_int_equal(kvfi_handshake_client_start(client, 1, longer, 1, 0, 0, 1, NULL), KVF_EINVAL);
    assert_int_equal(kvfi_handshake_client_start(client, 1, "127.0.0.1", 0, 0, 0, 1, NULL),
                     KVF_EINVAL);
    /* Ranks that do not fit the wire come back as a result. */
    assert_int_equal(
        kvfi_handshake_client_start(client, 1, "127.0.0.1", 1, 70000, 0, LONG_NS, NULL), KVF_OK);
    struct kvfi_handshake_result *result = await(client);
    assert_int_equal(result->status, KVF_EINVAL);
    kvfi_handshake_result_free(client, result);
    kvfi_handshake_client_destroy(client);
    kvfi_handshake_client_destroy(NULL);
}

static void test_a_name_that_does_not_resolve(void **state)
{
    struct kvfi_handshake_client *client = make_client(0);
    /* RFC 6761: never resolves. An answer of the name service or the deadline, whichever is
     * first, ends it; a lookup that goes on is waited for by destroy. */
    assert_int_equal(kvfi_handshake_client_start(client, 1, "prefill.invalid", 5600, 0, 0,
                                                 50 * KVFI_NS_PER_MS, NULL),
                     KVF_OK);
    struct kvfi_handshake_result *result = await(client);
    assert_true(result->status == KVF_ENOTFOUND || result->status == KVF_ETIMEDOUT);
    assert_non_null(strstr(result->error.text, "prefill.invalid"));
    kvfi_handshake_result_free(client, result);
    kvfi_handshake_client_destroy(client);
}

struct countdown {
    int left;
    int live;
};

static void *failing_alloc(void *ctx, size_t size)
{
    struct countdown *countdown = ctx;
    if (countdown->left-- == 0)
        return NULL;
    countdown->live++;
    return malloc(size);
}

static void counting_free(void *ctx, void *ptr)
{
    ((struct countdown *)ctx)->live--;
    free(ptr);
}

/* B74 */
static void test_each_failing_allocation_of_create(void **state)
{
    enum kvf_status status = KVF_ENOMEM;
    for (int n = 0; status != KVF_OK; n++) {
        assert_in_range(n, 0, 30);
        struct countdown countdown = {.left = n};
        struct kvf_allocator allocator = {
            .ctx = &countdown, .alloc = failing_alloc, .free = counting_free};
        struct kvfi_handshake_client *client = NULL;
        status = kvfi_handshake_client_create(8, &allocator, &client, NULL);
        if (status != KVF_OK)
            assert_int_equal(status, KVF_ENOMEM);
        kvfi_handshake_client_destroy(client);
        assert_int_equal(countdown.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_handshake),
        cmocka_unit_test(test_dead_peers_delay_nobody),
        cmocka_unit_test(test_a_silent_peer_times_out),
        cmocka_unit_test(test_a_rank_nobody_has_times_out),
        cmocka_unit_test(test_replies_of_every_shape),
        cmocka_unit_test(test_the_limit_of_calls),
        cmocka_unit_test(test_absurd_calls_are_refused),
        cmocka_unit_test(test_a_name_that_does_not_resolve),
        cmocka_unit_test(test_each_failing_allocation_of_create),
    };
    return cmocka_run_group_tests_name("channel/client", tests, NULL, NULL);
}
