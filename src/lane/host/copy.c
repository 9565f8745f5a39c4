/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/copy.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The kernel copies at most 2 GiB less a page in one call. */
#define CALL_BYTES_MAX ((size_t)1 << 30)

void kvfi_host_gather_start(struct kvfi_host_gather *gather, pid_t pid,
                            enum kvf_operation operation)
{
    gather->pid = pid;
    gather->operation = operation;
    gather->count = 0;
    gather->bytes = 0;
    gather->seen = 0;
    gather->status = KVF_OK;
}

static void copy_gathered(struct kvfi_host_gather *gather)
{
    if (gather->count == 0 || gather->status != KVF_OK)
        return;
    ssize_t done;
    if (gather->operation == KVF_WRITE)
        done = process_vm_writev(gather->pid, gather->local, gather->count, gather->remote,
                                 gather->count, 0);
    else
        done = process_vm_readv(gather->pid, gather->local, gather->count, gather->remote,
                                gather->count, 0);
    if (done != (ssize_t)gather->bytes) /* short: it stopped at a page that is not there */
        gather->status = done < 0 && errno == ESRCH ? KVF_EDISCONNECTED : KVF_ETRANSPORT;
    gather->count = 0;
    gather->bytes = 0;
}

static void add(struct kvfi_host_gather *gather, void *local, uint64_t remote, size_t length)
{
    if (gather->bytes + length > CALL_BYTES_MAX)
        copy_gathered(gather);
    gather->local[gather->count] = (struct iovec){.iov_base = local, .iov_len = length};
    /* NOLINTNEXTLINE: an address in another process */
    gather->remote[gather->count].iov_base = (void *)(uintptr_t)remote;
    gather->remote[gather->count].iov_len = length;
    gather->count++;
    gather->bytes += length;
    size_t enough = ++gather->seen > KVFI_HOST_BATCH_AFTER ? KVFI_HOST_BATCH_MAX : 1;
    if (gather->count >= enough)
        copy_gathered(gather);
}

void kvfi_host_gather_add(struct kvfi_host_gather *gather, void *local, uint64_t remote,
                          uint64_t length)
{
    unsigned char *at = local;
    while (length > 0 && gather->status == KVF_OK) {
        size_t step = length < CALL_BYTES_MAX ? (size_t)length : CALL_BYTES_MAX;
        add(gather, at, remote, step);
        at += step;
        remote += step;
        length -= step;
    }
}

enum kvf_status kvfi_host_gather_finish(struct kvfi_host_gather *gather)
{
    copy_gathered(gather);
    return gather->status;
}

#if defined(__SSE2__)

enum {
    LINE = 64,
    STREAM_LEN_MIN = 4096, /* below, what it saves is less than what it costs to begin */
};

void kvfi_host_copy(void *to, const void *from, size_t length)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (length < STREAM_LEN_MIN) {
        memcpy(out, in, length);
        return;
    }
    size_t head = (LINE - ((uintptr_t)out & (LINE - 1))) & (LINE - 1);
    memcpy(out, in, head);
    out += head;
    in += head;
    length -= head;
    for (; length >= LINE; length -= LINE, out += LINE, in += LINE) {
        const __m128i *source = (const __m128i *)(const void *)in;
        __m128i *target = (__m128i *)(void *)out;
        __m128i a = _mm_loadu_si128(source);
        __m128i b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2);
        __m128i d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    memcpy(out, in, length);
}

void kvfi_host_copy_fence(void)
{
    _mm_sfence();
}

#else

void kvfi_host_copy(void *to, const void *from, size_t length)
{
    memcpy(to, from, length);
}

void kvfi_host_copy_fence(void)
{
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

#endif
