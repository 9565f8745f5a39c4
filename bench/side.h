/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_SIDE_H
#define BENCH_SIDE_H

/* Two processes that push blocks to each other's pools through the public API: this process
 * decodes, a child prefills. Each has what an engine has around the connector: a scheduler, a
 * worker, a listener. Failures end the program with a sentence. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct bench_shape {
    size_t block_count;
    size_t block_bytes;
    size_t region_count;
};

/* One engine's half of the pair, in its own process. */
struct bench_side;

struct bench_pair {
    size_t block_count;
    size_t block_bytes;
    size_t region_count;
    size_t latency_blocks;
    pid_t child;
    int channel; /* to the child */
    struct bench_side *decode;
};

/* CLOCK_MONOTONIC of one transfer, comparable between the processes. */
struct bench_times {
    uint64_t second_ns; /* the later of registration and finished blocks reached prefill */
    uint64_t posted_ns; /* the post call began */
    uint64_t landed_ns; /* prefill's writer saw the flush complete */
    uint64_t told_ns;   /* decode's engine held the result */
};

/* CPU time of each process since its start. */
struct bench_cpu {
    double prefill_s;
    double decode_s;
};

void bench_pair_start(struct bench_pair *pair, const struct bench_shape *shape);
void bench_pair_stop(struct bench_pair *pair);

/* Moves `blocks` scattered blocks of every region for request number `index` and checks every byte
 * of them; the order says what reaches prefill's writer first. */
void bench_transfer(struct bench_pair *pair, uint64_t index, size_t blocks, bool registration_first,
                    struct bench_times *times);

/* Nanoseconds of a scattered memcpy of the same blocks from prefill's pool into decode's, done by
 * the prefill process through a mapping both share. */
uint64_t bench_memcpy_floor(struct bench_pair *pair, size_t blocks);

struct bench_cpu bench_cpu(struct bench_pair *pair);

/* Prints "push-bench: ..." to standard error and exits 1. */
_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
