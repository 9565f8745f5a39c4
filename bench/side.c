/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/side.h"

#include "kvferry/kvferry.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PREFILL_ID "bench-prefill"
#define DECODE_ID  "bench-decode"
#define TOKENS     16 /* per block */

struct bench_side {
    struct kvf_scheduler *scheduler;
    struct kvf_worker *worker;
    struct kvf_listener *listener;
    struct kvf_events *events;
    FILE *records; /* prefill: what its writer did, read back line by line */
    char records_path[64];
    uint16_t port;
    char region_names[64][32];
    struct kvf_kv_region regions[64];
};

/* Before the fork, so that the floor can copy through the same mapping. */
static struct kvf_pool *pools;
static unsigned char *prefill_pool, *decode_pool; /* its halves */
static uint32_t *order; /* the blocks of both pools, shuffled: first half prefill, second decode */

enum command_kind { COMMAND_TRANSFER, COMMAND_FLOOR, COMMAND_CPU, COMMAND_STOP };

struct command {
    enum command_kind kind;
    uint64_t index;
    uint64_t blocks;
    bool registration_first;
};

struct reply {
    uint64_t value_ns[3];
};

void bench_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("push-bench: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void must(enum kvf_status status, const struct kvf_error *error, const char *what)
{
    if (status != KVF_OK)
        bench_die("%s: %s: %s", what, kvf_status_text(status), error ? error->text : "");
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double cpu_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void channel_write(int fd, const void *data, size_t len)
{
    if (write(fd, data, len) != (ssize_t)len)
        bench_die("the other process is gone (%s)", strerror(errno));
}

static void channel_read(int fd, void *data, size_t len)
{
    if (recv(fd, data, len, MSG_WAITALL) != (ssize_t)len)
        bench_die("the other process is gone (%s)", strerror(errno));
}

/* ---- one side ------------------------------------------------------------------------------- */

static struct bench_side *side_start(const struct bench_pair *pair, const char *engine_id,
                                     unsigned char *pool)
{
    struct bench_side *side = calloc(1, sizeof(*side));
    if (!side)
        bench_die("out of memory");
    struct kvf_error error = {0};
    struct kvf_worker_options options = KVF_WORKER_OPTIONS_INIT;
    struct kvf_metrics *metrics = NULL;
    snprintf(side->records_path, sizeof(side->records_path), "/tmp/push-bench-%d.jsonl", getpid());
    must(kvf_events_open(side->records_path, engine_id, "bench", NULL, &side->events, &error),
         &error, "event file");
    side->records = fopen(side->records_path, "r");
    if (!side->records)
        bench_die("%s: %s", side->records_path, strerror(errno));
    must(kvf_listener_create("127.0.0.1", 0, NULL, 0, metrics, &side->listener, &error), &error,
         "listener");
    side->port = kvf_listener_port(side->listener);

    size_t region_bytes = pair->block_count * pair->block_bytes;
    for (size_t i = 0; i < pair->region_count; i++) {
        snprintf(side->region_names[i], sizeof(side->region_names[i]), "layer.%zu", i);
        side->regions[i] = (struct kvf_kv_region){.name = side->region_names[i],
                                                  .base = pool + i * region_bytes,
                                                  .block_bytes = pair->block_bytes,
                                                  .stride_bytes = pair->block_bytes,
                                                  .block_count = (uint32_t)pair->block_count};
    }
    struct kvf_kv_storage storage = {.base = pool,
                                     .length_bytes = region_bytes * pair->region_count};
    options.cache = (struct kvf_kv_cache){.layout = "LBHNC",
                                          .regions = side->regions,
                                          .region_count = pair->region_count,
                                          .storages = &storage,
                                          .storage_count = 1};
    options.config.engine_id = engine_id;
    options.config.host = "127.0.0.1";
    options.config.port = side->port;
    options.config.block_size = TOKENS;
    options.config.compat.model = "bench";
    options.config.compat.head_size = 64;
    options.config.compat.kv_head_count = 1;
    options.config.compat.layer_count = (uint32_t)pair->region_count;
    options.events = side->events;
    must(kvf_worker_create(&options, &side->worker, &error), &error, "worker");
    must(kvf_scheduler_create(&options.config, NULL, &side->scheduler, &error), &error,
         "scheduler");
    struct kvf_listener_rank rank = {0};
    kvf_worker_handshake_payload(side->worker, &rank.payload, &rank.payload_len);
    must(kvf_listener_publish(side->listener, &rank, &error), &error, "payload");
    return side;
}

static void side_stop(struct bench_side *side)
{
    kvf_listener_destroy(side->listener);
    kvf_worker_destroy(side->worker);
    kvf_scheduler_destroy(side->scheduler);
    kvf_events_close(side->events);
    fclose(side->records);
    unlink(side->records_path);
    free(side);
}

static void side_post_step(struct bench_side *side)
{
    struct kvf_error error = {0};
    struct kvf_step *step;
    must(kvf_scheduler_build_step(side->scheduler, now_ns(), &step, &error), &error, "step");
    must(kvf_worker_post_step(side->worker, step), NULL, "post step");
}

/* Sleeps until the connector reports; returns when it held the result. */
static uint64_t side_await(struct bench_side *side, enum kvf_result_kind kind, const char *id)
{
    struct kvf_result result;
    for (;;) {
        while (kvf_worker_take_results(side->worker, &result, 1) == 0) {
            struct pollfd fd = {.fd = kvf_worker_fd(side->worker), .events = POLLIN};
            if (poll(&fd, 1, 60000) <= 0)
                bench_die("no result for %s within 60 s", id);
        }
        uint64_t told_ns = now_ns();
        must(kvf_scheduler_apply_result(side->scheduler, told_ns, &result), NULL, "apply result");
        if (strcmp(result.request_id, id) != 0 || result.kind != kind || result.status != KVF_OK)
            bench_die("%s: expected result %d, got %d for %s: %s", id, (int)kind, (int)result.kind,
                      result.request_id, result.reason);
        return told_ns;
    }
}

/* Reads records until the named event of this request; its monotonic time. The file grows behind
 * the reader: the library writes it from a thread of its own. */
static uint64_t side_record(struct bench_side *side, const char *event, const char *id)
{
    char line[2048], want_event[64], want_id[KVF_REQUEST_ID_LEN_MAX + 32];
    snprintf(want_event, sizeof(want_event), "\"event\":\"%s\"", event);
    snprintf(want_id, sizeof(want_id), "\"request\":\"%s\"", id);
    for (uint64_t start = now_ns(); now_ns() - start < 60000000000u;) {
        long at = ftell(side->records);
        if (!fgets(line, sizeof(line), side->records) || !strchr(line, '\n')) {
            clearerr(side->records);
            fseek(side->records, at, SEEK_SET);
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            continue;
        }
        const char *time = strstr(line, "\"t_mono_ns\":");
        if (time && strstr(line, want_event) && strstr(line, want_id))
            return strtoull(time + strlen("\"t_mono_ns\":"), NULL, 10);
    }
    bench_die("no record \"%s\" of %s within 60 s", event, id);
}

/* ---- prefill's process ---------------------------------------------------------------------- */

static void prefill_wait_registered(struct bench_side *side)
{
    struct kvf_worker_usage usage;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        kvf_worker_usage(side->worker, &usage);
    } while (usage.registrations == 0);
}

static void prefill_transfer(const struct bench_pair *pair, struct bench_side *side, int channel,
                             const struct command *command)
{
    char id[64];
    struct kvf_error error = {0};
    struct reply reply = {0};
    bool delay_free, has_response;
    snprintf(id, sizeof(id), "cmpl-bench-%" PRIu64 "-aaaaaaaa", command->index);
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT, response;
    params.do_remote_decode = true;
    must(kvf_scheduler_on_new_request(side->scheduler, now_ns(), id, &params,
                                      (uint32_t)command->blocks * TOKENS, &error),
         &error, "request");
    must(kvf_scheduler_after_alloc(side->scheduler, now_ns(), id, order, command->blocks, 0, 0,
                                   &error),
         &error, "allocation");
    side_post_step(side);
    for (size_t r = 0; r < pair->region_count; r++)
        for (size_t b = 0; b < command->blocks; b++)
            memset(prefill_pool + (r * pair->block_count + order[b]) * pair->block_bytes,
                   (int)(1 + (command->index + r * 7 + b) % 251), pair->block_bytes);
    if (command->registration_first)
        prefill_wait_registered(side);
    uint64_t finished_ns = now_ns();
    must(kvf_scheduler_request_finished(side->scheduler, finished_ns, id, KVF_FINISH_LENGTH, order,
                                        command->blocks, &delay_free, &response, &has_response,
                                        &error),
         &error, "finish");
    side_post_step(side);
    if (!command->registration_first) {
        struct kvf_worker_usage usage;
        do {
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            kvf_worker_usage(side->worker, &usage);
        } while (usage.staged == 0);
        channel_write(channel, &reply, sizeof(reply)); /* staged: decode may register */
    }
    (void)side_await(side, KVF_RESULT_SENT, id);
    uint64_t second_ns = finished_ns;
    if (!command->registration_first) {
        char decode_id[64];
        snprintf(decode_id, sizeof(decode_id), "cmpl-bench-%" PRIu64 "-bbbbbbbb", command->index);
        second_ns = side_record(side, "registered", decode_id);
    }
    reply.value_ns[0] = second_ns;
    reply.value_ns[1] = side_record(side, "posted", id);
    reply.value_ns[2] = side_record(side, "sent", id);
    channel_write(channel, &reply, sizeof(reply));
}

static uint64_t prefill_floor(const struct bench_pair *pair, size_t blocks)
{
    const uint32_t *to = order + pair->block_count / 2;
    uint64_t start_ns = now_ns();
    for (size_t r = 0; r < pair->region_count; r++)
        for (size_t b = 0; b < blocks; b++)
            memcpy(decode_pool + (r * pair->block_count + to[b]) * pair->block_bytes,
                   prefill_pool + (r * pair->block_count + order[b]) * pair->block_bytes,
                   pair->block_bytes);
    return now_ns() - start_ns;
}

static _Noreturn void prefill_main(const struct bench_pair *pair, int channel)
{
    struct bench_side *side = side_start(pair, PREFILL_ID, prefill_pool);
    struct reply reply = {.value_ns = {side->port}};
    channel_write(channel, &reply, sizeof(reply));
    for (;;) {
        struct command command;
        channel_read(channel, &command, sizeof(command));
        switch (command.kind) {
        case COMMAND_TRANSFER:
            prefill_transfer(pair, side, channel, &command);
            break;
        case COMMAND_FLOOR:
            reply.value_ns[0] = prefill_floor(pair, command.blocks);
            channel_write(channel, &reply, sizeof(reply));
            break;
        case COMMAND_CPU:
            reply.value_ns[0] = (uint64_t)(cpu_s() * 1e9);
            channel_write(channel, &reply, sizeof(reply));
            break;
        case COMMAND_STOP:
            side_stop(side);
            exit(0);
        }
    }
}

/* ---- decode's process ----------------------------------------------------------------------- */

static uint16_t prefill_port;

static void decode_register(const struct bench_pair *pair, uint64_t index, size_t blocks,
                            const char *id)
{
    struct bench_side *side = pair->decode;
    struct kvf_error error = {0};
    struct kvf_transfer_params params = KVF_TRANSFER_PARAMS_INIT;
    char remote_id[64];
    snprintf(remote_id, sizeof(remote_id), "bench-%" PRIu64, index);
    params.do_remote_prefill = true;
    params.remote_engine_id = PREFILL_ID;
    params.remote_request_id = remote_id;
    params.remote_host = "127.0.0.1";
    params.remote_port = prefill_port;
    params.tp_size = 1;
    uint32_t tokens = (uint32_t)blocks * TOKENS;
    must(kvf_scheduler_on_new_request(side->scheduler, now_ns(), id, &params, tokens, &error),
         &error, "request");
    uint32_t external = kvf_scheduler_matched_tokens(side->scheduler, id, 0);
    must(kvf_scheduler_after_alloc(side->scheduler, now_ns(), id, order + pair->block_count / 2,
                                   blocks, 0, external, &error),
         &error, "allocation");
    side_post_step(side);
}

static void decode_check(const struct bench_pair *pair, uint64_t index, size_t blocks)
{
    const uint32_t *to = order + pair->block_count / 2;
    for (size_t r = 0; r < pair->region_count; r++)
        for (size_t b = 0; b < blocks; b++) {
            const unsigned char *block =
                decode_pool + (r * pair->block_count + to[b]) * pair->block_bytes;
            unsigned char want = (unsigned char)(1 + (index + r * 7 + b) % 251);
            for (size_t i = 0; i < pair->block_bytes; i++)
                if (block[i] != want)
                    bench_die("request %" PRIu64 ", region %zu, block %zu, byte %zu: %u, not %u",
                              index, r, b, i, block[i], want);
        }
}

void bench_transfer(struct bench_pair *pair, uint64_t index, size_t blocks, bool registration_first,
                    struct bench_times *times)
{
    char id[64];
    struct reply reply;
    bool delay_free, has_response;
    struct kvf_error error = {0};
    snprintf(id, sizeof(id), "cmpl-bench-%" PRIu64 "-bbbbbbbb", index);
    struct command command = {.kind = COMMAND_TRANSFER,
                              .index = index,
                              .blocks = blocks,
                              .registration_first = registration_first};
    channel_write(pair->channel, &command, sizeof(command));
    if (!registration_first)
        channel_read(pair->channel, &reply, sizeof(reply));
    decode_register(pair, index, blocks, id);
    times->told_ns = side_await(pair->decode, KVF_RESULT_RECEIVED, id);
    channel_read(pair->channel, &reply, sizeof(reply));
    times->second_ns = reply.value_ns[0];
    times->posted_ns = reply.value_ns[1];
    times->landed_ns = reply.value_ns[2];
    decode_check(pair, index, blocks);
    must(kvf_scheduler_request_finished(pair->decode->scheduler, now_ns(), id, KVF_FINISH_STOP,
                                        NULL, 0, &delay_free, NULL, &has_response, &error),
         &error, "finish");
}

uint64_t bench_memcpy_floor(struct bench_pair *pair, size_t blocks)
{
    struct command command = {.kind = COMMAND_FLOOR, .blocks = blocks};
    struct reply reply;
    channel_write(pair->channel, &command, sizeof(command));
    channel_read(pair->channel, &reply, sizeof(reply));
    return reply.value_ns[0];
}

struct bench_cpu bench_cpu(struct bench_pair *pair)
{
    struct command command = {.kind = COMMAND_CPU};
    struct reply reply;
    channel_write(pair->channel, &command, sizeof(command));
    channel_read(pair->channel, &reply, sizeof(reply));
    return (struct bench_cpu){.prefill_s = (double)reply.value_ns[0] / 1e9, .decode_s = cpu_s()};
}

static void shuffle_blocks(size_t count)
{
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; i--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t j = state % (i + 1);
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

void bench_pair_start(struct bench_pair *pair, const struct bench_shape *shape)
{
    *pair = (struct bench_pair){.block_count = shape->block_count,
                                .block_bytes = shape->block_bytes,
                                .region_count = shape->region_count,
                                .latency_blocks = 8};
    if (shape->region_count > 64)
        bench_die("%zu regions, 64 at most", shape->region_count);
    size_t pool_bytes = shape->block_count * shape->block_bytes * shape->region_count;
    struct kvf_error error = {0};
    if (kvf_pool_create(pool_bytes * 2, &pools, &error) != KVF_OK)
        bench_die("two pools of %zu bytes: %s", pool_bytes, error.text);
    unsigned char *memory = kvf_pool_address(pools);
    order = calloc(shape->block_count, sizeof(*order));
    if (!order)
        bench_die("out of memory for %zu blocks", shape->block_count);
    prefill_pool = memory;
    decode_pool = memory + pool_bytes;
    memset(memory, 0xee, pool_bytes * 2);
    shuffle_blocks(shape->block_count);

    int channel[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel) != 0)
        bench_die("socketpair: %s", strerror(errno));
    fflush(NULL);
    pair->child = fork();
    if (pair->child < 0)
        bench_die("fork: %s", strerror(errno));
    if (pair->child == 0) {
        close(channel[0]);
        prefill_main(pair, channel[1]);
    }
    close(channel[1]);
    pair->channel = channel[0];
    struct reply reply;
    channel_read(pair->channel, &reply, sizeof(reply));
    prefill_port = (uint16_t)reply.value_ns[0];
    pair->decode = side_start(pair, DECODE_ID, decode_pool);
}

void bench_pair_stop(struct bench_pair *pair)
{
    struct command command = {.kind = COMMAND_STOP};
    channel_write(pair->channel, &command, sizeof(command));
    side_stop(pair->decode);
    if (waitpid(pair->child, NULL, 0) < 0)
        bench_die("waitpid: %s", strerror(errno));
    close(pair->channel);
    free(order);
    kvf_pool_destroy(pools);
}
