/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/kv.h"

#include "channel/endpoint.h"
#include "channel/frames.h"
#include "runtime/clock.h"
#include "runtime/ratelimit.h"
#include "runtime/thread.h"
#include "runtime/wake.h"
#include "wire/handshake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * Frames beyond this make ZeroMQ close the connection before they take memory. It is above the
 * request's own limit, so that a moderately wrong request is still seen and counted here.
 */
#define FRAME_LEN_MAX       65536
#define RECEIVE_QUEUE_MAX   256
#define SEND_QUEUE_MAX      64    /* replies a client has not read; more are dropped */
#define GREETING_TIME_MS    10000 /* a connection that says nothing is closed after this */
#define REQUESTS_PER_WAKEUP 64

struct rank {
    uint32_t pp_rank;
    uint32_t tp_rank;
    zmq_msg_t payload; /* shared by reference with every reply */
};

#define RANK_COUNT_MAX 65536

struct kvf_listener {
    void *context;
    void *router; /* the creator's until the thread starts, then the thread's until it has ended */
    pthread_mutex_t ranks_lock; /* over the two below; held for a look-up and a reference */
    struct rank *ranks;
    size_t rank_count;
    uint16_t port;
    struct kvf_metrics *metrics; /* borrowed until destroy */
    struct kvfi_wake wake;
    _Atomic bool stop;
    pthread_t thread;
};

/* ---- requests ------------------------------------------------------------------------------- */

/* Under ranks_lock. */
static struct rank *find_rank(struct kvf_listener *listener, uint32_t pp_rank, uint32_t tp_rank)
{
    for (size_t i = 0; i < listener->rank_count; i++) {
        struct rank *rank = &listener->ranks[i];
        if (rank->pp_rank == pp_rank && rank->tp_rank == tp_rank)
            return rank;
    }
    return NULL;
}

/* Makes payload, which is initialised, a reference to what the request asks for. */
static enum kvf_status find_payload(struct kvf_listener *listener, struct kvfi_frames *frames,
                                    zmq_msg_t *payload, struct kvf_error *error)
{
    if (frames->count != 3)
        return kvf_fail(error, KVF_EFORMAT, "%zu frames instead of identity, delimiter and body",
                        frames->count);
    if (zmq_msg_size(&frames->kept[1]) != 0)
        return kvf_fail(error, KVF_EFORMAT, "a delimiter of %zu bytes",
                        zmq_msg_size(&frames->kept[1]));
    struct kvfi_handshake_request request;
    KVF_TRY(kvfi_handshake_request_decode(zmq_msg_data(&frames->kept[2]),
                                          zmq_msg_size(&frames->kept[2]), &request, error));
    pthread_mutex_lock(&listener->ranks_lock);
    struct rank *rank = find_rank(listener, request.pp_rank, request.tp_rank);
    bool copied = rank && zmq_msg_copy(payload, &rank->payload) == 0;
    pthread_mutex_unlock(&listener->ranks_lock);
    if (!rank)
        return kvf_fail(error, KVF_ENOTFOUND, "there is no pp rank %u, tp rank %u here",
                        request.pp_rank, request.tp_rank);
    return copied ? KVF_OK : kvf_fail(error, KVF_ENOMEM, "no memory for the reply");
}

static bool send_frame(void *socket, zmq_msg_t *msg, int flags)
{
    return zmq_msg_send(msg, socket, flags | ZMQ_DONTWAIT) >= 0;
}

static bool init_timestamp(zmq_msg_t *msg)
{
    struct kvfi_buf bytes;
    kvfi_buf_init(&bytes, NULL);
    double now_s = (double)kvfi_clock_mono_ns() / (double)KVFI_NS_PER_S;
    bool done = kvfi_handshake_timestamp_encode(now_s, &bytes, NULL) == KVF_OK &&
                zmq_msg_init_size(msg, bytes.len) == 0;
    if (done)
        memcpy(zmq_msg_data(msg), bytes.data, bytes.len);
    kvfi_buf_deinit(&bytes);
    return done;
}

static void send_reply(struct kvf_listener *listener, struct kvfi_frames *request,
                       zmq_msg_t *payload)
{
    zmq_msg_t empty;
    zmq_msg_t timestamp;
    zmq_msg_init(&empty);
    if (!init_timestamp(&timestamp)) {
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "no memory to answer a handshake");
        return;
    }
    /* A client that has left, or does not read its replies, loses this one: ROUTER drops it. */
    bool sent = send_frame(listener->router, &request->kept[0], ZMQ_SNDMORE) &&
                send_frame(listener->router, &empty, ZMQ_SNDMORE) &&
                send_frame(listener->router, payload, ZMQ_SNDMORE) &&
                send_frame(listener->router, &timestamp, 0);
    if (!sent)
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "a handshake reply was not sent: %s", kvfi_zmq_reason());
    zmq_msg_close(&empty);
    zmq_msg_close(&timestamp);
}

static void serve(struct kvf_listener *listener, struct kvfi_frames *frames)
{
    struct kvf_error error;
    zmq_msg_t payload;
    zmq_msg_init(&payload);
    if (find_payload(listener, frames, &payload, &error) == KVF_OK) {
        send_reply(listener, frames, &payload);
    } else {
        kvf_metrics_add(listener->metrics, KVF_COUNTER_bad_handshake_requests, 1);
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "handshake request on port %u refused: %s",
                         (unsigned)listener->port, error.text);
    }
    zmq_msg_close(&payload);
}

static void *listener_main(void *ctx)
{
    struct kvf_listener *listener = ctx;
    while (!atomic_load(&listener->stop)) {
        zmq_pollitem_t items[] = {
            {.socket = listener->router, .events = ZMQ_POLLIN},
            {.fd = listener->wake.fd, .events = ZMQ_POLLIN},
        };
        zmq_poll(items, 2, -1);
        if (items[1].revents)
            kvfi_wake_clear(&listener->wake);
        struct kvfi_frames frames;
        for (int i = 0; i < REQUESTS_PER_WAKEUP && kvfi_frames_receive(listener->router, &frames);
             i++) {
            serve(listener, &frames);
            kvfi_frames_close(&frames);
        }
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Under ranks_lock: puts the payload, which it takes over on KVF_OK, into its place. */
static enum kvf_status put_rank(struct kvf_listener *listener, uint32_t pp_rank, uint32_t tp_rank,
                                zmq_msg_t *payload, struct kvf_error *error)
{
    struct rank *rank = find_rank(listener, pp_rank, tp_rank);
    if (rank) {
        zmq_msg_move(&rank->payload, payload);
        return KVF_OK;
    }
    if (listener->rank_count == RANK_COUNT_MAX)
        return kvf_fail(error, KVF_ELIMIT, "a listener serves at most %d ranks", RANK_COUNT_MAX);
    struct rank *ranks =
        realloc(listener->ranks, (listener->rank_count + 1) * sizeof(*listener->ranks));
    if (!ranks)
        return kvf_fail(error, KVF_ENOMEM, "no memory for rank %zu", listener->rank_count);
    listener->ranks = ranks;
    rank = &ranks[listener->rank_count++];
    rank->pp_rank = pp_rank;
    rank->tp_rank = tp_rank;
    zmq_msg_init(&rank->payload);
    zmq_msg_move(&rank->payload, payload);
    return KVF_OK;
}

enum kvf_status kvf_listener_publish(struct kvf_listener *listener,
                                     const struct kvf_listener_rank *rank, struct kvf_error *error)
{
    if (rank->pp_rank > KVFI_RANK_MAX || rank->tp_rank > KVFI_RANK_MAX)
        return kvf_fail(error, KVF_EINVAL, "pp rank %u, tp rank %u; the highest is %d",
                        rank->pp_rank, rank->tp_rank, KVFI_RANK_MAX);
    if (!rank->payload || rank->payload_len == 0 ||
        rank->payload_len > KVFI_HANDSHAKE_PAYLOAD_LEN_MAX)
        return kvf_fail(error, KVF_EINVAL, "a handshake payload of %zu bytes for tp rank %u",
                        rank->payload_len, rank->tp_rank);
    zmq_msg_t payload;
    if (zmq_msg_init_size(&payload, rank->payload_len) != 0)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a handshake payload of %zu bytes",
                        rank->payload_len);
    memcpy(zmq_msg_data(&payload), rank->payload, rank->payload_len);
    pthread_mutex_lock(&listener->ranks_lock);
    enum kvf_status status = put_rank(listener, rank->pp_rank, rank->tp_rank, &payload, error);
    pthread_mutex_unlock(&listener->ranks_lock);
    zmq_msg_close(&payload);
    return status;
}

static enum kvf_status publish_all(struct kvf_listener *listener,
                                   const struct kvf_listener_rank *ranks, size_t rank_count,
                                   struct kvf_error *error)
{
    for (size_t i = 0; i < rank_count; i++) {
        if (find_rank(listener, ranks[i].pp_rank, ranks[i].tp_rank))
            return kvf_fail(error, KVF_EINVAL, "pp rank %u, tp rank %u is given twice",
                            ranks[i].pp_rank, ranks[i].tp_rank);
        KVF_TRY(kvf_listener_publish(listener, &ranks[i], error));
    }
    return KVF_OK;
}

static bool set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

static bool set_max_frame(void *socket, int64_t len_max)
{
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &len_max, sizeof(len_max)) == 0;
}

static enum kvf_status bind_router(struct kvf_listener *listener, const char *host, uint16_t port,
                                   struct kvf_error *error)
{
    struct kvfi_endpoint endpoint;
    KVF_TRY(kvfi_endpoint_resolve(host, port, &endpoint, error));
    listener->context = zmq_ctx_new();
    listener->router = listener->context ? zmq_socket(listener->context, ZMQ_ROUTER) : NULL;
    if (!listener->router)
        return kvf_fail(error, KVF_ESYSTEM, "side channel %s: %s", endpoint.text,
                        kvfi_zmq_reason());
    void *router = listener->router;
    if (!set_int(router, ZMQ_LINGER, 0) || !set_max_frame(router, FRAME_LEN_MAX) ||
        !set_int(router, ZMQ_RCVHWM, RECEIVE_QUEUE_MAX) ||
        !set_int(router, ZMQ_SNDHWM, SEND_QUEUE_MAX) ||
        !set_int(router, ZMQ_HANDSHAKE_IVL, GREETING_TIME_MS) ||
        !set_int(router, ZMQ_TCP_KEEPALIVE, 1) || !set_int(router, ZMQ_IPV6, endpoint.ipv6))
        return kvf_fail(error, KVF_ESYSTEM, "side channel %s: %s", endpoint.text,
                        kvfi_zmq_reason());
    if (zmq_bind(router, endpoint.text) != 0) {
        if (zmq_errno() == EADDRINUSE)
            return kvf_fail(error, KVF_EBUSY,
                            "side channel host %s port %u is in use by another engine or program; "
                            "give this one another port",
                            host, (unsigned)port);
        return kvf_fail(error, KVF_ESYSTEM, "side channel host %s port %u (%s): %s", host,
                        (unsigned)port, endpoint.text, kvfi_zmq_reason());
    }
    char bound[KVFI_ENDPOINT_LEN_MAX] = "";
    size_t bound_len = sizeof(bound);
    zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &bound_len);
    const char *colon = strrchr(bound, ':');
    unsigned long bound_port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    if (bound_port == 0 || bound_port > UINT16_MAX)
        return kvf_fail(error, KVF_EINTERNAL, "side channel bound to \"%s\"", bound);
    listener->port = (uint16_t)bound_port;
    return KVF_OK;
}

/* Everything but the thread; every part may be missing. */
static void free_listener(struct kvf_listener *listener)
{
    if (listener->router)
        zmq_close(listener->router);
    for (size_t i = 0; i < listener->rank_count; i++)
        zmq_msg_close(&listener->ranks[i].payload);
    free(listener->ranks);
    if (listener->context)
        zmq_ctx_term(listener->context);
    kvfi_wake_deinit(&listener->wake);
    pthread_mutex_destroy(&listener->ranks_lock);
    free(listener);
}

enum kvf_status kvf_listener_create(const char *host, uint16_t port,
                                    const struct kvf_listener_rank *ranks, size_t rank_count,
                                    struct kvf_metrics *metrics, struct kvf_listener **listener_p,
                                    struct kvf_error *error)
{
    struct kvf_listener *listener = calloc(1, sizeof(*listener));
    if (!listener)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a listener");
    listener->metrics = metrics;
    listener->wake.fd = -1;
    pthread_mutex_init(&listener->ranks_lock, NULL);
    enum kvf_status status = publish_all(listener, ranks, rank_count, error);
    if (status == KVF_OK)
        status = kvfi_wake_init(&listener->wake, error);
    if (status == KVF_OK)
        status = bind_router(listener, host, port, error);
    if (status == KVF_OK)
        status =
            kvfi_thread_start("kvf-listener", listener_main, listener, &listener->thread, error);
    if (status != KVF_OK) {
        free_listener(listener);
        return status;
    }
    kvf_log(KVF_LOG_INFO, "side channel listens, host %s port %u", host, (unsigned)listener->port);
    *listener_p = listener;
    return KVF_OK;
}

uint16_t kvf_listener_port(const struct kvf_listener *listener)
{
    return listener->port;
}

void kvf_listener_destroy(struct kvf_listener *listener)
{
    if (!listener)
        return;
    atomic_store(&listener->stop, true);
    kvfi_wake_signal(&listener->wake);
    pthread_join(listener->thread, NULL);
    free_listener(listener);
}
