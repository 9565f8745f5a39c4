/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Measures the push connector between two processes of this host, through the public API only, and
 * prints each figure beside its physical floor, measured in the same run:
 *
 *   match to post   the second of {registration, finished blocks} to the first operation posted
 *   landed to told  the transfer's last byte visible (the writer's flush) to the decode engine
 *                   holding the result
 *   throughput      one request of many scattered blocks, against a scattered memcpy into a mapping
 *                   shared by both processes
 *
 * CPU seconds of both processes are counted and printed. Nothing here has a target or a limit.
 */

#include "bench/side.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(uint64_t *values, size_t count, double q)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), compare_u64);
    size_t index = (size_t)(q * (double)(count - 1) + 0.5);
    return (double)values[index] / 1e3;
}

static void print_latency(const char *what, uint64_t *values, size_t count)
{
    printf("%-46s p50 %9.1f us   p99 %9.1f us   n %zu\n", what, quantile_us(values, count, 0.5),
           quantile_us(values, count, 0.99), count);
}

/* Alternates the two orders of arrival, so that each has half of the requests. */
static void bench_latency(struct bench_pair *pair, size_t request_count)
{
    uint64_t *post_ns = calloc(request_count * 3, sizeof(*post_ns));
    if (!post_ns)
        bench_die("out of memory for %zu requests", request_count);
    uint64_t *late_reg_ns = post_ns + request_count, *told_ns = late_reg_ns + request_count;
    size_t finish_last = 0, register_last = 0, told = 0;
    for (size_t i = 0; i < request_count; i++) {
        bool registration_first = i % 2 == 0;
        struct bench_times times;
        bench_transfer(pair, i, pair->latency_blocks, registration_first, &times);
        if (registration_first)
            post_ns[finish_last++] = times.posted_ns - times.second_ns;
        else
            late_reg_ns[register_last++] = times.posted_ns - times.second_ns;
        told_ns[told++] = times.told_ns > times.landed_ns ? times.told_ns - times.landed_ns : 0;
    }
    printf("\nlatency, %zu blocks of %zu bytes in %zu regions a request\n", pair->latency_blocks,
           pair->block_bytes, pair->region_count);
    print_latency("blocks finish last: hand-over to first post", post_ns, finish_last);
    print_latency("registration last: arrival to first post", late_reg_ns, register_last);
    print_latency("last byte visible to decode's engine told", told_ns, told);
    free(post_ns);
}

static void bench_throughput(struct bench_pair *pair, size_t round_count)
{
    uint64_t *write_ns = calloc(round_count * 2, sizeof(*write_ns));
    if (!write_ns)
        bench_die("out of memory for %zu rounds", round_count);
    uint64_t *copy_ns = write_ns + round_count;
    size_t blocks = pair->block_count / 2; /* the other half is decode's */
    struct bench_cpu before = bench_cpu(pair);
    for (size_t i = 0; i < round_count; i++) {
        struct bench_times times;
        bench_transfer(pair, 1000000 + i, blocks, true, &times);
        write_ns[i] = times.landed_ns - times.posted_ns;
        copy_ns[i] = bench_memcpy_floor(pair, blocks);
    }
    struct bench_cpu after = bench_cpu(pair);
    double bytes = (double)(blocks * pair->block_bytes * pair->region_count);
    double write_us = quantile_us(write_ns, round_count, 0.5);
    double copy_us = quantile_us(copy_ns, round_count, 0.5);
    printf("\nthroughput, %zu scattered blocks of %zu bytes in %zu regions (%.1f MiB), median of "
           "%zu\n",
           blocks, pair->block_bytes, pair->region_count, bytes / 1048576, round_count);
    printf("%-46s %9.3f GB/s  (%.1f us)\n", "WRITE, post to flushed", bytes / write_us / 1e3,
           write_us);
    printf("%-46s %9.3f GB/s  (%.1f us)\n", "floor: scattered memcpy, shared mapping",
           bytes / copy_us / 1e3, copy_us);
    printf("%-46s %9.2f\n", "times the floor's time", write_us / copy_us);
    printf("%-46s prefill %.3f s, decode %.3f s (floor's own share in prefill)\n",
           "CPU of these rounds", after.prefill_s - before.prefill_s,
           after.decode_s - before.decode_s);
    free(write_ns);
}

int main(int argc, char **argv)
{
    struct bench_shape shape = {.block_count = 2048, .block_bytes = 16384, .region_count = 4};
    size_t request_count = argc > 1 ? strtoul(argv[1], NULL, 10) : 400;
    size_t round_count = argc > 2 ? strtoul(argv[2], NULL, 10) : 15;
    if (request_count == 0 || round_count == 0 || argc > 3) {
        fprintf(stderr, "usage: push-bench [REQUESTS [ROUNDS]]   (both above 0)\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* Each way to a peer of the same host; the last one is what engines take by themselves. */
    static const char *const lanes[] = {"ucx", "cma,ucx", "shm,cma,ucx"};
    for (size_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++) {
        struct bench_pair pair;
        if (setenv("KVFERRY_LANES", lanes[i], 1) != 0)
            return 1;
        printf("%s==== KVFERRY_LANES=%s\n", i ? "\n" : "", lanes[i]);
        bench_pair_start(&pair, &shape);
        bench_latency(&pair, request_count);
        bench_throughput(&pair, round_count);
        bench_pair_stop(&pair);
    }
    return 0;
}
