/* SPDX-License-Identifier: Apache-2.0 */
#include "http/client.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* A server that says what the test wants, byte for byte, and what happens to its connection. */
struct rig {
    struct event_base *base;
    struct kvfi_http_client *client;
    struct evconnlistener *listener;
    uint16_t port;
    const char *answer;
    bool close_after;
    bool reset_after;
    struct bufferevent *server_bev;
    bool server_saw_end;
    char request[4096];

    struct kvfi_http_call *call;
    bool cancel_in_head;
    bool cancel_in_body;
    int head_count;
    int body_count;
    int done_count;
    bool inside_call;
    int http_status;
    char body[256];
    enum kvf_status status;
    char reason[512];
};

static void on_served(struct bufferevent *bev, void *ctx)
{
    struct rig *rig = ctx;
    if (rig->reset_after) {
        struct linger hard = {.l_onoff = 1};
        setsockopt(bufferevent_getfd(bev), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }
    if (rig->close_after || rig->reset_after) {
        bufferevent_free(bev);
        rig->server_bev = NULL;
    }
}

static void on_server_read(struct bufferevent *bev, void *ctx)
{
    struct rig *rig = ctx;
    size_t used = strlen(rig->request);
    size_t got = bufferevent_read(bev, rig->request + used, sizeof(rig->request) - 1 - used);
    rig->request[used + got] = '\0';
    if (strstr(rig->request, "\r\n\r\n") && rig->answer) {
        bufferevent_setcb(bev, on_server_read, on_served, NULL, rig);
        bufferevent_write(bev, rig->answer, strlen(rig->answer));
        rig->answer = NULL;
    }
}

static void on_server_event(struct bufferevent *bev, short what, void *ctx)
{
    struct rig *rig = ctx;
    rig->server_saw_end = true;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int len, void *ctx)
{
    struct rig *rig = ctx;
    rig->server_bev = bufferevent_socket_new(rig->base, fd, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(rig->server_bev, on_server_read, NULL, on_server_event, rig);
    bufferevent_enable(rig->server_bev, EV_READ | EV_WRITE);
}

static void on_head(void *ctx, int http_status, const struct kvfi_http_headers *headers)
{
    struct rig *rig = ctx;
    rig->head_count++;
    rig->http_status = http_status;
    if (rig->cancel_in_head)
        kvfi_http_call_cancel(rig->call);
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct rig *rig = ctx;
    rig->body_count++;
    size_t used = strlen(rig->body);
    snprintf(rig->body + used, sizeof(rig->body) - used, "%.*s", (int)len, data);
    if (rig->cancel_in_body)
        kvfi_http_call_cancel(rig->call);
}

static void on_done(void *ctx, const struct kvfi_http_result *result)
{
    struct rig *rig = ctx;
    assert_false(rig->inside_call);
    rig->done_count++;
    rig->status = result->status;
    snprintf(rig->reason, sizeof(rig->reason), "%s", result->reason);
    kvfi_http_call_cancel(rig->call); /* does nothing any more */
}

static void start(struct rig *rig, const char *answer)
{
    *rig = (struct rig){.base = event_base_new(), .answer = answer};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    rig->listener = evconnlistener_new_bind(rig->base, on_accept, rig, LEV_OPT_CLOSE_ON_FREE, 8,
                                            (struct sockaddr *)&address, sizeof(address));
    assert_non_null(rig->listener);
    socklen_t len = sizeof(address);
    getsockname(evconnlistener_get_fd(rig->listener), (struct sockaddr *)&address, &len);
    rig->port = ntohs(address.sin_port);
    assert_int_equal(kvfi_http_client_create(rig->base, &rig->client, NULL), KVF_OK);
}

static void stop(struct rig *rig)
{
    kvfi_http_client_destroy(rig->client);
    if (rig->server_bev)
        bufferevent_free(rig->server_bev);
    if (rig->listener)
        evconnlistener_free(rig->listener);
    event_base_free(rig->base);
}

static struct kvfi_http_call_options call_options(const struct rig *rig)
{
    return (struct kvfi_http_call_options){.host = "127.0.0.1",
                                           .port = rig->port,
                                           .method = "POST",
                                           .path = "/v1/completions",
                                           .content_type = "application/json",
                                           .body = "{}",
                                           .body_len = 2};
}

static void begin(struct rig *rig, const struct kvfi_http_call_options *options)
{
    struct kvfi_http_call_events events = {
        .on_head = on_head, .on_body = on_body, .on_done = on_done, .ctx = rig};
    struct kvf_error error = {0};
    rig->inside_call = true;
    if (kvfi_http_call_start(rig->client, options, &events, &rig->call, &error) != KVF_OK)
        fail_msg("%s", error.text);
    rig->inside_call = false;
}

static void wait_done(struct rig *rig)
{
    while (!rig->done_count)
        event_base_loop(rig->base, EVLOOP_ONCE);
    event_base_loop(rig->base, EVLOOP_NONBLOCK);
    assert_int_equal(rig->done_count, 1);
    assert_int_equal(kvfi_http_client_call_count(rig->client), 0);
}

static void exchange(struct rig *rig, const char *answer, bool close_after, bool reset_after)
{
    start(rig, answer);
    rig->close_after = close_after;
    rig->reset_after = reset_after;
    struct kvfi_http_call_options options = call_options(rig);
    begin(rig, &options);
    wait_done(rig);
}

static void test_whole_answers(void **state)
{
    struct rig rig;
    exchange(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", false, false);
    assert_int_equal(rig.status, KVF_OK);
    assert_string_equal(rig.body, "hello");
    assert_string_equal(rig.reason, "");
    assert_non_null(strstr(rig.request, "POST /v1/completions HTTP/1.1\r\n"));
    assert_non_null(strstr(rig.request, "Content-Length: 2\r\n"));
    stop(&rig);
    exchange(&rig,
             "HTTP/1.1 500 Bad\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
             false, false);
    assert_int_equal(rig.status, KVF_OK);
    assert_int_equal(rig.http_status, 500);
    assert_string_equal(rig.body, "abc");
    stop(&rig);
    exchange(&rig, "HTTP/1.0 200 OK\r\n\r\nuntil the end", true, false);
    assert_int_equal(rig.status, KVF_OK);
    assert_string_equal(rig.body, "until the end");
    stop(&rig);
}

static void assert_broken(const char *answer, bool reset, enum kvf_status status, const char *words)
{
    struct rig rig;
    exchange(&rig, answer, !reset, reset);
    assert_int_equal(rig.status, status);
    if (!strstr(rig.reason, words) || !strstr(rig.reason, "127.0.0.1:"))
        fail_msg("'%s' does not say '%s' and where", rig.reason, words);
    stop(&rig);
}

static void test_broken_answers(void **state)
{
    assert_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false,
                  KVF_EDISCONNECTED, "chunked body was cut");
    assert_broken("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", false, KVF_EDISCONNECTED,
                  "6 of 9 bytes");
    assert_broken("HTTP/1.1 200", false, KVF_EDISCONNECTED, "inside the head");
    assert_broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", false, KVF_EFORMAT,
                  "hexadecimal");
    assert_broken("hello\r\n\r\n", false, KVF_EFORMAT, "not HTTP");
    /* A body that runs until the end of the connection and ends in a reset is no whole body. */
    assert_broken("HTTP/1.1 200 OK\r\n\r\nabc", true, KVF_EDISCONNECTED, "reset");
}

static void test_refused(void **state)
{
    struct rig rig;
    start(&rig, NULL);
    evconnlistener_free(rig.listener);
    rig.listener = NULL;
    struct kvfi_http_call_options options = call_options(&rig);
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_EDISCONNECTED);
    assert_non_null(strstr(rig.reason, "refused"));
    stop(&rig);
}

static void test_name_is_resolved(void **state)
{
    struct rig rig;
    start(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    struct kvfi_http_call_options options = call_options(&rig);
    options.host = "localhost";
    begin(&rig, &options);
    wait_done(&rig);
    if (rig.status != KVF_OK)
        fail_msg("%s", rig.reason);
    stop(&rig);
}

static void test_timeouts(void **state)
{
    struct rig rig;
    start(&rig, NULL);
    struct kvfi_http_call_options options = call_options(&rig);
    options.head_timeout_ms = 20;
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ETIMEDOUT);
    assert_non_null(strstr(rig.reason, "no answer"));
    stop(&rig);

    start(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
    options = call_options(&rig);
    options.body_timeout_ms = 20;
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ETIMEDOUT);
    assert_string_equal(rig.body, "abc");
    assert_non_null(strstr(rig.reason, "stopped"));
    stop(&rig);
}

static void wait_server_end(struct rig *rig)
{
    while (!rig->server_saw_end)
        event_base_loop(rig->base, EVLOOP_ONCE);
}

static void test_cancel(void **state)
{
    struct rig rig;
    /* At once, before the connection is there. */
    start(&rig, NULL);
    struct kvfi_http_call_options options = call_options(&rig);
    begin(&rig, &options);
    rig.inside_call = true;
    kvfi_http_call_cancel(rig.call);
    kvfi_http_call_cancel(rig.call);
    rig.inside_call = false;
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ECANCELED);
    stop(&rig);

    /* While the server thinks: it sees the connection end. */
    start(&rig, NULL);
    options = call_options(&rig);
    begin(&rig, &options);
    while (!strstr(rig.request, "\r\n\r\n{}"))
        event_base_loop(rig.base, EVLOOP_ONCE);
    kvfi_http_call_cancel(rig.call);
    wait_server_end(&rig);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ECANCELED);
    stop(&rig);
}

static void test_cancel_inside_callbacks(void **state)
{
    static const char answer[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n";
    struct rig rig;
    start(&rig, answer);
    rig.cancel_in_head = true;
    struct kvfi_http_call_options options = call_options(&rig);
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ECANCELED);
    assert_int_equal(rig.head_count, 1);
    assert_int_equal(rig.body_count, 0);
    stop(&rig);

    start(&rig, answer);
    rig.cancel_in_body = true;
    options = call_options(&rig);
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ECANCELED);
    assert_int_equal(rig.body_count, 1);
    stop(&rig);
}

static void test_destroy_completes_calls(void **state)
{
    struct rig rig;
    start(&rig, NULL);
    struct kvfi_http_call_options options = call_options(&rig);
    begin(&rig, &options);
    kvfi_http_client_destroy(rig.client);
    rig.client = NULL;
    assert_int_equal(rig.done_count, 1);
    assert_int_equal(rig.status, KVF_ECANCELED);
    stop(&rig);
}

static void test_limit_and_bad_options(void **state)
{
    struct rig rig;
    start(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789");
    struct kvfi_http_call_options options = call_options(&rig);
    options.body_bytes_max = 5;
    begin(&rig, &options);
    wait_done(&rig);
    assert_int_equal(rig.status, KVF_ELIMIT);
    struct kvfi_http_call_events events = {.on_done = on_done, .ctx = &rig};
    struct kvfi_http_header split = {.name = "A", .value = "b\r\nC: d"};
    options.headers = &split;
    options.header_count = 1;
    assert_int_equal(kvfi_http_call_start(rig.client, &options, &events, &rig.call, NULL),
                     KVF_EINVAL);
    options.header_count = 0;
    options.path = "/a b";
    assert_int_equal(kvfi_http_call_start(rig.client, &options, &events, &rig.call, NULL),
                     KVF_EINVAL);
    options.path = "/";
    options.port = 0;
    assert_int_equal(kvfi_http_call_start(rig.client, &options, &events, &rig.call, NULL),
                     KVF_EINVAL);
    stop(&rig);
}

static void assert_url(const char *text, const char *host, unsigned port, const char *path)
{
    struct kvfi_http_url url;
    struct kvf_error error = {0};
    if (kvfi_http_url_parse(text, &url, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_string_equal(url.host, host);
    assert_int_equal(url.port, port);
    assert_string_equal(url.path, path);
}

static void test_urls(void **state)
{
    assert_url("http://a.b:81/x/", "a.b", 81, "/x");
    assert_url("http://127.0.0.1", "127.0.0.1", 80, "");
    assert_url("host:9000", "host", 9000, "");
    assert_url("http://[::1]:5/", "::1", 5, "");
    static const char *const bad[] = {"",
                                      "http://",
                                      "https://a:1",
                                      "ftp://a",
                                      "http://a:0",
                                      "http://a:65536",
                                      "http://a:",
                                      "http://a:1x",
                                      "http://[::1",
                                      "http://[::1]x",
                                      "http://u@h:1",
                                      "http://a b",
                                      "http://a:1/?q"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvfi_http_url url;
        struct kvf_error error = {0};
        if (kvfi_http_url_parse(bad[i], &url, &error) == KVF_OK)
            fail_msg("accepted: %s", bad[i]);
        assert_true(error.text[0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_broken_answers),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_name_is_resolved),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_inside_callbacks),
        cmocka_unit_test(test_destroy_completes_calls),
        cmocka_unit_test(test_limit_and_bad_options),
        cmocka_unit_test(test_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
