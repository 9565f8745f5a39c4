/* SPDX-License-Identifier: Apache-2.0 */
#include "http/reply.h"
#include "http/server.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

/* One server and raw clients on one event_base. */
struct rig {
    struct event_base *base;
    struct kvfi_http_server *server;
    struct kvfi_reply *held; /* of /hold */
    uint64_t held_id;
    int end_count;
    enum kvfi_reply_end end;
    bool inside_call;
    char seen_body[64];
};

struct wire {
    struct bufferevent *bev;
    bool closed;
};

static void on_end(void *ctx, enum kvfi_reply_end end)
{
    struct rig *rig = ctx;
    assert_false(rig->inside_call);
    rig->end_count++;
    rig->end = end;
    rig->held = NULL;
}

static void handle_echo(void *ctx, const struct kvfi_http_request *request,
                        struct kvfi_reply *reply)
{
    struct rig *rig = ctx;
    snprintf(rig->seen_body, sizeof(rig->seen_body), "%s?%s %s", request->path, request->query,
             request->body);
    assert_int_equal(kvfi_reply_header(reply, "X-Test", "yes"), KVF_OK);
    assert_int_equal(kvfi_reply_header(reply, "X-Test", "a\r\nSet-Cookie: b"), KVF_EINVAL);
    kvfi_reply_on_end(reply, on_end, rig);
    kvfi_reply_bytes(reply, 200, "text/plain", request->body, request->body_len);
}

static void handle_hold(void *ctx, const struct kvfi_http_request *request,
                        struct kvfi_reply *reply)
{
    struct rig *rig = ctx;
    rig->held = reply;
    rig->held_id = kvfi_reply_id(reply);
    kvfi_reply_on_end(reply, on_end, rig);
}

static void start(struct rig *rig, void (*change)(struct kvfi_http_server_options *))
{
    *rig = (struct rig){.base = event_base_new()};
    struct kvfi_http_server_options options = kvfi_http_server_defaults();
    if (change)
        change(&options);
    struct kvf_error error = {0};
    if (kvfi_http_server_create(rig->base, &options, &rig->server, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_int_equal(kvfi_http_server_route(rig->server, "POST", "/echo", handle_echo, rig),
                     KVF_OK);
    assert_int_equal(kvfi_http_server_route(rig->server, "GET", "/echo", handle_echo, rig), KVF_OK);
    assert_int_equal(kvfi_http_server_route(rig->server, "GET", "/hold", handle_hold, rig), KVF_OK);
}

static void stop(struct rig *rig)
{
    kvfi_http_server_destroy(rig->server);
    event_base_free(rig->base);
}

static void on_wire_event(struct bufferevent *bev, short what, void *ctx)
{
    struct wire *wire = ctx;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        wire->closed = true;
}

static void dial(struct rig *rig, struct wire *wire, const char *text)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(kvfi_http_server_port(rig->server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    wire->closed = false;
    wire->bev = bufferevent_socket_new(rig->base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(wire->bev, NULL, NULL, on_wire_event, wire);
    bufferevent_enable(wire->bev, EV_READ | EV_WRITE);
    bufferevent_write(wire->bev, text, strlen(text));
    assert_int_equal(
        bufferevent_socket_connect(wire->bev, (struct sockaddr *)&address, sizeof(address)), 0);
}

static void hang_up(struct wire *wire)
{
    bufferevent_free(wire->bev);
    wire->bev = NULL;
}

static bool received(const struct wire *wire, const char *text)
{
    return evbuffer_search(bufferevent_get_input(wire->bev), text, strlen(text), NULL).pos >= 0;
}

static void wait_text(struct rig *rig, struct wire *wire, const char *text)
{
    while (!received(wire, text)) {
        if (wire->closed)
            fail_msg("closed before '%s': %.*s", text,
                     (int)evbuffer_get_length(bufferevent_get_input(wire->bev)),
                     evbuffer_pullup(bufferevent_get_input(wire->bev), -1));
        event_base_loop(rig->base, EVLOOP_ONCE);
    }
}

static void wait_closed(struct rig *rig, struct wire *wire)
{
    while (!wire->closed)
        event_base_loop(rig->base, EVLOOP_ONCE);
}

static void wait_held(struct rig *rig)
{
    while (!rig->held)
        event_base_loop(rig->base, EVLOOP_ONCE);
}

static void wait_end(struct rig *rig, int end_count)
{
    while (rig->end_count < end_count)
        event_base_loop(rig->base, EVLOOP_ONCE);
    assert_int_equal(rig->end_count, end_count);
}

static void test_keep_alive_and_pipelining(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire,
         "POST /echo?a=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\none"
         "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
         "POST /echo HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n\r\nthree");
    wait_text(&rig, &wire, "\r\n\r\none");
    assert_true(received(&wire, "X-Test: yes\r\n"));
    assert_false(received(&wire, "Set-Cookie"));
    wait_text(&rig, &wire, "\r\n\r\ntwo");
    wait_text(&rig, &wire, "\r\n\r\nthree");
    wait_closed(&rig, &wire);
    wait_end(&rig, 3);
    assert_int_equal(rig.end, KVFI_REPLY_SENT);
    assert_string_equal(rig.seen_body, "/echo? three");
    assert_int_equal(kvfi_http_server_counters(rig.server)->request_count, 3);
    hang_up(&wire);
    stop(&rig);
}

static void assert_answer(const char *request, const char *status, const char *words)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, request);
    wait_text(&rig, &wire, "\r\n\r\n");
    wait_text(&rig, &wire, words);
    assert_true(received(&wire, status));
    hang_up(&wire);
    stop(&rig);
}

static void test_errors_are_json(void **state)
{
    assert_answer("nonsense\r\n\r\n", "HTTP/1.1 400 ", "\"error\":{\"message\":\"the first line");
    assert_answer("GET /none HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ", "\"type\":\"NotFoundError\"");
    assert_answer("PUT /echo HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ", "POST, GET");
    assert_answer("POST /echo HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "HTTP/1.1 413 ",
                  "\"code\":413");
    assert_answer("GET / HTTP/3.0\r\n\r\n", "HTTP/1.1 505 ", "HTTP/1.1");
    assert_answer("GET /echo HTTP/1.1\r\na: \xff\r\n\r\n", "HTTP/1.1 200 ", "\r\n\r\n");
}

static void small_limits(struct kvfi_http_server_options *options)
{
    options->head_bytes_max = 256;
    options->body_bytes_max = 1000;
    options->connection_count_max = 2;
    options->output_bytes_max = (size_t)64 * 1024;
}

static void test_limits(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, small_limits);
    char text[2048];
    int head = snprintf(text, sizeof(text),
                        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n700\r\n");
    memset(text + head, 'x', 0x400);
    text[head + 0x400] = '\0';
    dial(&rig, &wire, text);
    wait_text(&rig, &wire, "HTTP/1.1 413 ");
    wait_closed(&rig, &wire);
    hang_up(&wire);

    head = snprintf(text, sizeof(text), "GET /echo HTTP/1.1\r\nX: ");
    memset(text + head, 'x', 300);
    text[head + 300] = '\0';
    dial(&rig, &wire, text);
    wait_text(&rig, &wire, "HTTP/1.1 431 ");
    hang_up(&wire);
    assert_int_equal(kvfi_http_server_counters(rig.server)->malformed_count, 2);
    stop(&rig);
}

static void test_too_many_connections(void **state)
{
    struct rig rig;
    struct wire wires[3];
    start(&rig, small_limits);
    for (int i = 0; i < 2; i++) {
        dial(&rig, &wires[i], "GET /hold HTTP/1.1\r\n\r\n");
        wait_held(&rig);
        rig.held = NULL;
    }
    dial(&rig, &wires[2], "GET /echo HTTP/1.1\r\n\r\n");
    wait_text(&rig, &wires[2], "HTTP/1.1 503 ");
    assert_int_equal(kvfi_http_server_counters(rig.server)->refused_count, 1);
    hang_up(&wires[0]);
    wait_end(&rig, 1);
    hang_up(&wires[2]);
    dial(&rig, &wires[2], "GET /echo HTTP/1.1\r\n\r\n");
    wait_text(&rig, &wires[2], "HTTP/1.1 200 ");
    hang_up(&wires[1]);
    hang_up(&wires[2]);
    stop(&rig);
}

static void short_timeout(struct kvfi_http_server_options *options)
{
    options->read_timeout_ms = 20;
    options->idle_timeout_ms = 20;
}

static void test_silent_client(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, short_timeout);
    dial(&rig, &wire, "");
    wait_text(&rig, &wire, "HTTP/1.1 408 ");
    wait_closed(&rig, &wire);
    hang_up(&wire);
    dial(&rig, &wire, "POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf");
    wait_text(&rig, &wire, "HTTP/1.1 408 ");
    hang_up(&wire);
    assert_int_equal(kvfi_http_server_counters(rig.server)->timeout_count, 2);
    /* A kept-alive connection that is only idle is closed without a word. */
    dial(&rig, &wire, "GET /echo HTTP/1.1\r\n\r\n");
    wait_text(&rig, &wire, "HTTP/1.1 200 ");
    wait_closed(&rig, &wire);
    assert_false(received(&wire, "408"));
    hang_up(&wire);
    stop(&rig);
}

static void test_stream(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    assert_false(kvfi_reply_begun(rig.held));
    assert_int_equal(kvfi_reply_write(rig.held, "x", 1), KVF_EINVAL);
    assert_int_equal(kvfi_reply_sse_start(rig.held), KVF_OK);
    assert_true(kvfi_reply_begun(rig.held));
    assert_int_equal(kvfi_reply_header(rig.held, "Late", "x"), KVF_EINVAL);
    assert_int_equal(kvfi_reply_sse_event(rig.held, "{\"a\":1}", 7), KVF_OK);
    wait_text(&rig, &wire, "f\r\ndata: {\"a\":1}\n\n\r\n");
    assert_true(received(&wire, "Content-Type: text/event-stream"));
    rig.inside_call = true;
    kvfi_reply_sse_done(rig.held);
    rig.inside_call = false;
    wait_text(&rig, &wire, "data: [DONE]\n\n\r\n0\r\n\r\n");
    wait_end(&rig, 1);
    assert_int_equal(rig.end, KVFI_REPLY_SENT);
    assert_null(kvfi_reply_find(rig.server, rig.held_id));
    hang_up(&wire);
    stop(&rig);
}

static void test_http_1_0_stream_ends_with_the_connection(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, "GET /hold HTTP/1.0\r\n\r\n");
    wait_held(&rig);
    assert_int_equal(kvfi_reply_start(rig.held, 200, "text/plain"), KVF_OK);
    assert_int_equal(kvfi_reply_write(rig.held, "abc", 3), KVF_OK);
    wait_text(&rig, &wire, "\r\n\r\nabc");
    kvfi_reply_end(rig.held);
    wait_closed(&rig, &wire);
    assert_false(received(&wire, "chunked"));
    wait_end(&rig, 1);
    assert_int_equal(rig.end, KVFI_REPLY_SENT);
    hang_up(&wire);
    stop(&rig);
}

static void test_client_leaves(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    for (int i = 0; i < 100; i++) {
        dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
        wait_held(&rig);
        if (i % 2)
            assert_int_equal(kvfi_reply_sse_start(rig.held), KVF_OK);
        hang_up(&wire);
        wait_end(&rig, i + 1);
        assert_int_equal(rig.end, KVFI_REPLY_GONE);
    }
    assert_int_equal(kvfi_http_server_counters(rig.server)->gone_count, 100);
    assert_int_equal(kvfi_http_server_counters(rig.server)->open_count, 0);
    stop(&rig);
}

static void test_abort_cuts_the_stream(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    assert_int_equal(kvfi_reply_sse_start(rig.held), KVF_OK);
    assert_int_equal(kvfi_reply_sse_event(rig.held, "x", 1), KVF_OK);
    wait_text(&rig, &wire, "data: x");
    rig.inside_call = true;
    struct kvfi_reply *reply = rig.held;
    kvfi_reply_abort(reply);
    assert_int_equal(kvfi_reply_sse_event(reply, "y", 1), KVF_EDISCONNECTED);
    rig.inside_call = false;
    wait_closed(&rig, &wire);
    assert_false(received(&wire, "\r\n0\r\n\r\n"));
    assert_int_equal(rig.end_count, 1);
    assert_int_equal(rig.end, KVFI_REPLY_ABORTED);
    hang_up(&wire);
    stop(&rig);
}

static void test_cut_sends_what_was_written(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    assert_int_equal(kvfi_reply_sse_start(rig.held), KVF_OK);
    assert_int_equal(kvfi_reply_sse_event(rig.held, "last words", 10), KVF_OK);
    kvfi_reply_cut(rig.held);
    wait_closed(&rig, &wire);
    assert_true(received(&wire, "data: last words"));
    assert_false(received(&wire, "\r\n0\r\n\r\n"));
    wait_end(&rig, 1);
    assert_int_equal(rig.end, KVFI_REPLY_ABORTED);
    hang_up(&wire);
    stop(&rig);
}

/* The kernel's buffers are filled first; from then on the server holds at most its limit. */
static void test_slow_reader_is_dropped(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, small_limits);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    bufferevent_disable(wire.bev, EV_READ);
    assert_int_equal(kvfi_reply_sse_start(rig.held), KVF_OK);
    static char event[16 * 1024];
    memset(event, 'x', sizeof(event));
    enum kvf_status status = KVF_OK;
    while (status == KVF_OK) {
        status = kvfi_reply_sse_event(rig.held, event, sizeof(event));
        event_base_loop(rig.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    }
    assert_int_equal(status, KVF_EDISCONNECTED);
    wait_end(&rig, 1);
    assert_int_equal(rig.end, KVFI_REPLY_SLOW);
    assert_int_equal(kvfi_http_server_counters(rig.server)->slow_count, 1);
    hang_up(&wire);
    stop(&rig);
}

static void short_write(struct kvfi_http_server_options *options)
{
    options->write_timeout_ms = 30;
}

static void test_stalled_reader_is_dropped(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, short_write);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    bufferevent_disable(wire.bev, EV_READ);
    size_t len = (size_t)32 * 1024 * 1024;
    char *data = calloc(1, len);
    assert_non_null(data);
    kvfi_reply_bytes(rig.held, 200, "text/plain", data, len);
    free(data);
    wait_end(&rig, 1);
    assert_int_equal(rig.end, KVFI_REPLY_SLOW);
    hang_up(&wire);
    stop(&rig);
}

static void test_destroy_ends_replies(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, NULL);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    kvfi_http_server_destroy(rig.server);
    rig.server = NULL;
    assert_int_equal(rig.end_count, 1);
    assert_int_equal(rig.end, KVFI_REPLY_CLOSED);
    hang_up(&wire);
    stop(&rig);
}

static void test_port_in_use(void **state)
{
    struct rig rig;
    start(&rig, NULL);
    struct kvfi_http_server_options options = kvfi_http_server_defaults();
    options.port = kvfi_http_server_port(rig.server);
    struct kvfi_http_server *second = NULL;
    struct kvf_error error = {0};
    assert_int_equal(kvfi_http_server_create(rig.base, &options, &second, &error), KVF_EBUSY);
    assert_null(second);
    char where[32];
    snprintf(where, sizeof(where), "127.0.0.1:%u", options.port);
    assert_non_null(strstr(error.text, where));
    assert_non_null(strstr(error.text, "--port"));
    options.read_timeout_ms = 0;
    assert_int_equal(kvfi_http_server_create(rig.base, &options, &second, &error), KVF_EINVAL);
    stop(&rig);
}

struct poster {
    struct kvfi_http_server *server;
    uint64_t id;
    int full_count;
};

enum { POSTED_COUNT = 2000 };

static void few_mails(struct kvfi_http_server_options *options)
{
    options->mail_count_max = 8;
}

static void *post_events(void *ctx)
{
    struct poster *poster = ctx;
    for (int i = 0; i < POSTED_COUNT;) {
        char text[16];
        int len = snprintf(text, sizeof(text), "%d", i);
        enum kvf_status status =
            kvfi_reply_post_sse_event(poster->server, poster->id, text, (size_t)len);
        if (status == KVF_OK)
            i++;
        else if (status == KVF_AGAIN)
            poster->full_count++, sched_yield();
        else
            return NULL;
    }
    while (kvfi_reply_post_sse_done(poster->server, poster->id) == KVF_AGAIN)
        sched_yield();
    return NULL;
}

static void test_posting_thread(void **state)
{
    struct rig rig;
    struct wire wire;
    start(&rig, few_mails);
    dial(&rig, &wire, "GET /hold HTTP/1.1\r\n\r\n");
    wait_held(&rig);
    struct poster poster = {.server = rig.server, .id = rig.held_id};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, post_events, &poster), 0);
    wait_text(&rig, &wire, "data: [DONE]");
    pthread_join(thread, NULL);
    assert_true(received(&wire, "data: 0\n\n"));
    assert_true(received(&wire, "data: 1999\n\n"));
    wait_end(&rig, 1);
    /* The reply has ended: what still comes is counted and dropped. */
    assert_int_equal(kvfi_reply_post_error(rig.server, rig.held_id, 500, "late"), KVF_OK);
    assert_int_equal(kvfi_reply_post_bytes(rig.server, rig.held_id, 200, "text/plain", "x", 1),
                     KVF_OK);
    assert_int_equal(kvfi_reply_post_abort(rig.server, 12345), KVF_OK);
    while (kvfi_http_server_counters(rig.server)->stale_count < 3)
        event_base_loop(rig.base, EVLOOP_ONCE);
    hang_up(&wire);
    stop(&rig);
}

static void test_full_mailbox_says_again(void **state)
{
    struct rig rig;
    start(&rig, few_mails);
    int posted = 0;
    while (kvfi_reply_post_abort(rig.server, 1) == KVF_OK)
        posted++;
    assert_int_equal(posted, 8);
    assert_int_equal(kvfi_reply_post_error(rig.server, 1, 500, "x"), KVF_AGAIN);
    stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_alive_and_pipelining),
        cmocka_unit_test(test_errors_are_json),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_too_many_connections),
        cmocka_unit_test(test_silent_client),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_http_1_0_stream_ends_with_the_connection),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_abort_cuts_the_stream),
        cmocka_unit_test(test_cut_sends_what_was_written),
        cmocka_unit_test(test_slow_reader_is_dropped),
        cmocka_unit_test(test_stalled_reader_is_dropped),
        cmocka_unit_test(test_destroy_ends_replies),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_posting_thread),
        cmocka_unit_test(test_full_mailbox_says_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
