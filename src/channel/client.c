/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/client.h"

#include "channel/endpoint.h"
#include "channel/frames.h"
#include "kvferry/kv.h"
#include "runtime/alloc.h"
#include "runtime/clock.h"
#include "runtime/queue.h"
#include "runtime/thread.h"
#include "runtime/wake.h"
#include "wire/handshake.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>

#define RECONNECT_MS     100
#define RECONNECT_MAX_MS 1000

/*
 * One handshake. Owned by the requester until started, then by the request queue, the thread's
 * list, the result queue, and as a result by the requester again; whoever holds it at destroy
 * frees it.
 */
struct call {
    struct kvfi_handshake_result result; /* first: a result is its call */
    zmq_msg_t payload;                   /* what result.payload points into */
    void *socket;                        /* NULL until the address is known */
    struct lookup *lookup;               /* NULL unless a name is being resolved */
    uint64_t deadline_ns;
    uint64_t timeout_ns;
    char host[KVF_HOST_LEN_MAX + 3];
    uint16_t port;
    struct kvfi_handshake_request request;
    TAILQ_ENTRY(call) link;
};
TAILQ_HEAD(call_list, call);
_Static_assert(offsetof(struct call, result) == 0, "a result is its call");

/* One name lookup in a thread of its own. Written by that thread until it is pushed to `resolved`;
 * `call` is the control thread's alone and NULL when the call ended first. */
struct lookup {
    struct call *call;
    struct kvfi_queue *resolved;
    pthread_t thread;
    char host[KVF_HOST_LEN_MAX + 3];
    uint16_t port;
    enum kvf_status status;
    struct kvfi_endpoint endpoint;
    struct kvf_error error;
};

struct kvfi_handshake_client {
    struct kvf_allocator allocator;
    size_t calls_max;
    size_t outstanding; /* requester: started and not yet taken */
    struct kvfi_queue *requests;
    struct kvfi_queue *results;
    struct kvfi_queue *resolved; /* finished lookups */
    void *context;
    pthread_t thread;
    _Atomic bool stop;
    /* The thread's own. */
    struct call_list calls;
    size_t call_count;
    size_t lookup_count;
    zmq_pollitem_t *items; /* 2 + calls_max */
    struct call **polled;  /* calls_max: whose socket items[2 + i] is */
};

static void free_call(struct kvfi_handshake_client *client, struct call *call)
{
    if (call->socket)
        zmq_close(call->socket);
    zmq_msg_close(&call->payload);
    kvfi_free(&client->allocator, call);
}

/* ---- the control thread --------------------------------------------------------------------- */

/* Ends a call: its one result goes to the requester. There is a place for every started call. */
static void finish(struct kvfi_handshake_client *client, struct call *call, enum kvf_status status)
{
    TAILQ_REMOVE(&client->calls, call, link);
    client->call_count--;
    if (call->lookup)
        call->lookup->call = NULL;
    call->lookup = NULL;
    if (call->socket)
        zmq_close(call->socket);
    call->socket = NULL;
    call->result.status = status;
    if (kvfi_queue_push(client->results, call) != KVF_OK)
        free_call(client, call);
}

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool send_request(void *socket, const struct kvfi_buf *body)
{
    /* Waits in the socket until the connection stands; a fresh socket has room. */
    return zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == 0 &&
           zmq_send(socket, body->data, body->len, ZMQ_DONTWAIT) == (int)body->len;
}

static void open_socket(struct kvfi_handshake_client *client, struct call *call,
                        const struct kvfi_endpoint *endpoint)
{
    struct kvf_error *error = &call->result.error;
    struct kvfi_buf body;
    kvfi_buf_init(&body, &client->allocator);
    enum kvf_status status = kvfi_handshake_request_encode(&call->request, &body, error);
    if (status != KVF_OK)
        goto out;
    int64_t len_max = KVFI_HANDSHAKE_PAYLOAD_LEN_MAX;
    call->socket = zmq_socket(client->context, ZMQ_DEALER);
    if (!call->socket || !set_int(call->socket, ZMQ_LINGER, 0) ||
        zmq_setsockopt(call->socket, ZMQ_MAXMSGSIZE, &len_max, sizeof(len_max)) != 0 ||
        !set_int(call->socket, ZMQ_RECONNECT_IVL, RECONNECT_MS) ||
        !set_int(call->socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS) ||
        !set_int(call->socket, ZMQ_IPV6, endpoint->ipv6) ||
        zmq_connect(call->socket, endpoint->text) != 0 || !send_request(call->socket, &body))
        status = kvf_fail(error, KVF_ESYSTEM, "handshake with %s: %s", endpoint->text,
                          kvfi_zmq_reason());
out:
    kvfi_buf_deinit(&body);
    if (status != KVF_OK)
        finish(client, call, status);
}

static void *lookup_main(void *ctx)
{
    struct lookup *lookup = ctx;
    lookup->status =
        kvfi_endpoint_resolve(lookup->host, lookup->port, &lookup->endpoint, &lookup->error);
    /* Bounded by calls_max at the start of each, so there is room. */
    enum kvf_status status = kvfi_queue_push(lookup->resolved, lookup);
    (void)status;
    return NULL;
}

static void start_lookup(struct kvfi_handshake_client *client, struct call *call)
{
    struct kvf_error *error = &call->result.error;
    if (client->lookup_count == client->calls_max) {
        finish(client, call,
               kvf_fail(error, KVF_ELIMIT, "%zu name lookups are under way", client->calls_max));
        return;
    }
    struct lookup *lookup = kvfi_calloc(&client->allocator, 1, sizeof(*lookup));
    if (!lookup) {
        finish(client, call, kvf_fail(error, KVF_ENOMEM, "no memory to look up %s", call->host));
        return;
    }
    lookup->call = call;
    lookup->resolved = client->resolved;
    lookup->port = call->port;
    memcpy(lookup->host, call->host, sizeof(lookup->host));
    enum kvf_status status =
        kvfi_thread_start("kvf-lookup", lookup_main, lookup, &lookup->thread, error);
    if (status != KVF_OK) {
        kvfi_free(&client->allocator, lookup);
        finish(client, call, status);
        return;
    }
    call->lookup = lookup;
    client->lookup_count++;
}

static void take_lookup(struct kvfi_handshake_client *client, struct lookup *lookup)
{
    pthread_join(lookup->thread, NULL);
    client->lookup_count--;
    struct call *call = lookup->call;
    if (call) {
        call->lookup = NULL;
        if (lookup->status == KVF_OK) {
            open_socket(client, call, &lookup->endpoint);
        } else {
            call->result.error = lookup->error;
            finish(client, call, lookup->status);
        }
    }
    kvfi_free(&client->allocator, lookup);
}

static void begin(struct kvfi_handshake_client *client, struct call *call)
{
    TAILQ_INSERT_TAIL(&client->calls, call, link);
    client->call_count++;
    if (!kvfi_endpoint_is_local_knowledge(call->host)) {
        start_lookup(client, call);
        return;
    }
    struct kvfi_endpoint endpoint;
    enum kvf_status status =
        kvfi_endpoint_resolve(call->host, call->port, &endpoint, &call->result.error);
    if (status == KVF_OK)
        open_socket(client, call, &endpoint);
    else
        finish(client, call, status);
}

/* The delimiter, the payload and a timestamp, which older peers leave out. */
static enum kvf_status take_reply(struct call *call, struct kvfi_frames *frames)
{
    struct kvfi_handshake_result *result = &call->result;
    if (frames->count < 2 || frames->count > 3)
        return kvf_fail(&result->error, KVF_EFORMAT,
                        "%s port %u answered the handshake with %zu frames instead of 3",
                        call->host, (unsigned)call->port, frames->count);
    if (zmq_msg_size(&frames->kept[0]) != 0)
        return kvf_fail(&result->error, KVF_EFORMAT,
                        "%s port %u answered the handshake without a delimiter", call->host,
                        (unsigned)call->port);
    if (frames->count == 3) {
        KVF_TRY(kvfi_handshake_timestamp_decode(zmq_msg_data(&frames->kept[2]),
                                                zmq_msg_size(&frames->kept[2]),
                                                &result->timestamp_s, &result->error));
        result->has_timestamp = true;
    }
    zmq_msg_move(&call->payload, &frames->kept[1]);
    result->payload = zmq_msg_data(&call->payload);
    result->payload_len = zmq_msg_size(&call->payload);
    return KVF_OK;
}

static void read_reply(struct kvfi_handshake_client *client, struct call *call)
{
    struct kvfi_frames frames;
    if (!kvfi_frames_receive(call->socket, &frames))
        return;
    enum kvf_status status = take_reply(call, &frames);
    kvfi_frames_close(&frames);
    finish(client, call, status);
}

/* Ends what is overdue and returns when the next call will be. */
static uint64_t expire(struct kvfi_handshake_client *client)
{
    uint64_t now_ns = kvfi_clock_mono_ns();
    uint64_t next_ns = UINT64_MAX;
    struct call *call = TAILQ_FIRST(&client->calls);
    while (call) {
        struct call *next = TAILQ_NEXT(call, link);
        if (call->deadline_ns <= now_ns) {
            finish(client, call,
                   kvf_fail(&call->result.error, KVF_ETIMEDOUT,
                            "%s port %u did not %s within %llu ms", call->host,
                            (unsigned)call->port, call->lookup ? "resolve" : "answer the handshake",
                            (unsigned long long)(call->timeout_ns / KVFI_NS_PER_MS)));
        } else if (call->deadline_ns < next_ns) {
            next_ns = call->deadline_ns;
        }
        call = next;
    }
    return next_ns;
}

static long timeout_ms(uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX)
        return -1;
    uint64_t now_ns = kvfi_clock_mono_ns();
    if (deadline_ns <= now_ns)
        return 0;
    /* Rounded up: one wake-up, after the deadline. Long ones are waited for in pieces. */
    uint64_t ms = (deadline_ns - now_ns) / KVFI_NS_PER_MS + 1;
    return ms > 3600000 ? 3600000 : (long)ms;
}

static void control_turn(struct kvfi_handshake_client *client)
{
    zmq_pollitem_t *items = client->items;
    items[0] = (zmq_pollitem_t){.fd = kvfi_queue_fd(client->requests), .events = ZMQ_POLLIN};
    items[1] = (zmq_pollitem_t){.fd = kvfi_queue_fd(client->resolved), .events = ZMQ_POLLIN};
    uint64_t deadline_ns = expire(client);
    int count = 0;
    struct call *call = TAILQ_FIRST(&client->calls);
    for (; call; call = TAILQ_NEXT(call, link)) {
        if (!call->socket)
            continue;
        client->polled[count] = call;
        items[2 + count++] = (zmq_pollitem_t){.socket = call->socket, .events = ZMQ_POLLIN};
    }
    zmq_poll(items, 2 + count, timeout_ms(deadline_ns));
    for (int i = 0; i < count; i++) {
        if (items[2 + i].revents)
            read_reply(client, client->polled[i]);
    }
    if (items[1].revents) {
        kvfi_queue_clear(client->resolved);
        struct lookup *lookup;
        while ((lookup = kvfi_queue_pop(client->resolved)))
            take_lookup(client, lookup);
    }
    if (items[0].revents) {
        kvfi_queue_clear(client->requests);
        while ((call = kvfi_queue_pop(client->requests)))
            begin(client, call);
    }
}

static void *control_main(void *ctx)
{
    struct kvfi_handshake_client *client = ctx;
    while (!atomic_load(&client->stop))
        control_turn(client);
    struct call *call;
    while ((call = TAILQ_FIRST(&client->calls))) {
        TAILQ_REMOVE(&client->calls, call, link);
        if (call->lookup)
            call->lookup->call = NULL;
        free_call(client, call);
    }
    /* A lookup cannot be called off; its thread must be gone before the library may be. */
    while (client->lookup_count > 0) {
        zmq_pollitem_t item = {.fd = kvfi_queue_fd(client->resolved), .events = ZMQ_POLLIN};
        zmq_poll(&item, 1, -1);
        kvfi_queue_clear(client->resolved);
        struct lookup *lookup;
        while ((lookup = kvfi_queue_pop(client->resolved)))
            take_lookup(client, lookup);
    }
    return NULL;
}

/* ---- the requester -------------------------------------------------------------------------- */

enum kvf_status kvfi_handshake_client_start(struct kvfi_handshake_client *client,
                                            uint64_t handshake_id, const char *host, uint16_t port,
                                            uint32_t pp_rank, uint32_t tp_rank, uint64_t timeout_ns,
                                            struct kvf_error *error)
{
    size_t host_len = host ? strlen(host) : 0;
    if (host_len == 0 || host_len > KVF_HOST_LEN_MAX || port == 0)
        return kvf_fail(error, KVF_EINVAL, "a handshake with a host of %zu bytes and port %u",
                        host_len, (unsigned)port);
    if (client->outstanding >= client->calls_max)
        return kvf_fail(error, KVF_ELIMIT, "%zu handshakes are under way; %s port %u must wait",
                        client->calls_max, host, (unsigned)port);
    struct call *call = kvfi_calloc(&client->allocator, 1, sizeof(*call));
    if (!call)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a handshake");
    call->result.handshake_id = handshake_id;
    zmq_msg_init(&call->payload);
    memcpy(call->host, host, host_len + 1);
    call->port = port;
    call->request = (struct kvfi_handshake_request){.pp_rank = pp_rank, .tp_rank = tp_rank};
    call->timeout_ns = timeout_ns;
    call->deadline_ns = kvfi_deadline_ns(kvfi_clock_mono_ns(), timeout_ns);
    enum kvf_status status = kvfi_queue_push(client->requests, call);
    if (status != KVF_OK) {
        free_call(client, call);
        return kvf_fail(error, KVF_ELIMIT, "%zu handshakes wait to be started", client->calls_max);
    }
    client->outstanding++;
    return KVF_OK;
}

struct kvfi_handshake_result *kvfi_handshake_client_take(struct kvfi_handshake_client *client)
{
    struct call *call = kvfi_queue_pop(client->results);
    if (!call)
        return NULL;
    client->outstanding--;
    return &call->result;
}

void kvfi_handshake_result_free(struct kvfi_handshake_client *client,
                                struct kvfi_handshake_result *result)
{
    if (result)
        free_call(client, (struct call *)result);
}

int kvfi_handshake_client_fd(const struct kvfi_handshake_client *client)
{
    return kvfi_queue_fd(client->results);
}

void kvfi_handshake_client_clear(struct kvfi_handshake_client *client)
{
    kvfi_queue_clear(client->results);
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Everything but the thread; every part may be missing. */
static void free_client(struct kvfi_handshake_client *client)
{
    struct kvfi_queue *queues[] = {client->requests, client->results};
    for (size_t i = 0; i < 2; i++) {
        struct call *call;
        while (queues[i] && (call = kvfi_queue_pop(queues[i])))
            free_call(client, call);
        kvfi_queue_destroy(queues[i]);
    }
    kvfi_queue_destroy(client->resolved);
    if (client->context)
        zmq_ctx_term(client->context);
    struct kvf_allocator allocator = client->allocator;
    kvfi_free(&allocator, client->items);
    kvfi_free(&allocator, client->polled);
    kvfi_free(&allocator, client);
}

static enum kvf_status init_client(struct kvfi_handshake_client *client, struct kvf_error *error)
{
    size_t calls_max = client->calls_max;
    const struct kvf_allocator *allocator = &client->allocator;
    client->items = kvfi_calloc(allocator, 2 + calls_max, sizeof(*client->items));
    client->polled = kvfi_calloc(allocator, calls_max, sizeof(struct call *));
    if (!client->items || !client->polled)
        return kvf_fail(error, KVF_ENOMEM, "no memory for %zu handshakes", calls_max);
    KVF_TRY(kvfi_queue_create(calls_max, allocator, &client->requests, error));
    KVF_TRY(kvfi_queue_create(calls_max, allocator, &client->results, error));
    KVF_TRY(kvfi_queue_create(calls_max, allocator, &client->resolved, error));
    client->context = zmq_ctx_new();
    if (!client->context || zmq_ctx_set(client->context, ZMQ_MAX_SOCKETS, (int)calls_max + 16) != 0)
        return kvf_fail(error, KVF_ESYSTEM, "handshake client: %s", kvfi_zmq_reason());
    return kvfi_thread_start("kvf-control", control_main, client, &client->thread, error);
}

enum kvf_status kvfi_handshake_client_create(size_t calls_max,
                                             const struct kvf_allocator *allocator,
                                             struct kvfi_handshake_client **client_p,
                                             struct kvf_error *error)
{
    if (calls_max == 0)
        calls_max = KVFI_HANDSHAKE_CALLS_MAX_DEFAULT;
    if (calls_max > 65536)
        return kvf_fail(error, KVF_EINVAL, "%zu handshakes at once; 65536 are possible", calls_max);
    struct kvfi_handshake_client *client = kvfi_calloc(allocator, 1, sizeof(*client));
    if (!client)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the handshake client");
    client->allocator = *kvfi_allocator(allocator);
    client->calls_max = calls_max;
    TAILQ_INIT(&client->calls);
    enum kvf_status status = init_client(client, error);
    if (status != KVF_OK) {
        free_client(client);
        return status;
    }
    *client_p = client;
    return KVF_OK;
}

void kvfi_handshake_client_destroy(struct kvfi_handshake_client *client)
{
    if (!client)
        return;
    atomic_store(&client->stop, true);
    kvfi_queue_resignal(client->requests);
    pthread_join(client->thread, NULL);
    free_client(client);
}
