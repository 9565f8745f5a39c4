/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { UNTOUCHED = 0xEE };

static struct kvfi_host_gather gather;

/* Every start and end within a line, and lengths around what is streamed. */
static void all_alignments(void **state)
{
    enum { SIZE = 8192 + 256 };
    static const size_t lengths[] = {0, 1, 63, 64, 65, 4095, 4096, 4097, 8191};
    unsigned char *from = malloc(SIZE);
    unsigned char *to = malloc(SIZE);
    assert_true(from && to);
    for (size_t i = 0; i < SIZE; i++)
        from[i] = (unsigned char)(i * 13 + i / 251);
    for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        for (size_t shift = 0; shift < 130; shift++) {
            size_t source = (shift * 7) % 130;
            memset(to, UNTOUCHED, SIZE);
            kvfi_host_copy(to + shift, from + source, lengths[l]);
            kvfi_host_copy_fence();
            assert_memory_equal(to + shift, from + source, lengths[l]);
            for (size_t i = 0; i < shift; i++)
                assert_int_equal(to[i], UNTOUCHED);
            for (size_t i = shift + lengths[l]; i < SIZE; i++)
                assert_int_equal(to[i], UNTOUCHED);
        }
    }
    free(from);
    free(to);
}

/* As many pieces as need one call, several, and more than a full batch. */
static void gathered_pieces(void **state)
{
    enum { PIECE = 24, COUNT_MAX = 3 * KVFI_HOST_BATCH_MAX };
    static unsigned char local[COUNT_MAX * PIECE], remote[COUNT_MAX * PIECE];
    static const size_t counts[] = {0,
                                    1,
                                    KVFI_HOST_BATCH_AFTER,
                                    KVFI_HOST_BATCH_AFTER + 1,
                                    KVFI_HOST_BATCH_AFTER + KVFI_HOST_BATCH_MAX,
                                    COUNT_MAX};
    for (size_t c = 0; c < 2 * sizeof(counts) / sizeof(counts[0]); c++) {
        enum kvf_operation operation = c % 2 ? KVF_READ : KVF_WRITE;
        unsigned char *from = operation == KVF_WRITE ? local : remote;
        unsigned char *to = operation == KVF_WRITE ? remote : local;
        size_t count = counts[c / 2];
        for (size_t i = 0; i < sizeof(local); i++)
            from[i] = (unsigned char)(i * 7 + i / 255);
        memset(to, UNTOUCHED, sizeof(local));
        kvfi_host_gather_start(&gather, getpid(), operation);
        for (size_t i = 0; i < count; i++) { /* from the end, all but the last byte of each */
            size_t at = (COUNT_MAX - 1 - i) * (size_t)PIECE;
            kvfi_host_gather_add(&gather, local + at, (uintptr_t)(remote + at), PIECE - 1);
        }
        assert_int_equal(kvfi_host_gather_finish(&gather), KVF_OK);
        for (size_t i = 0; i < sizeof(local); i++) {
            bool copied = i / PIECE >= COUNT_MAX - count && i % PIECE < PIECE - 1;
            assert_int_equal(to[i], copied ? from[i] : UNTOUCHED);
        }
    }
}

/* A page that is not there ends it: what is before is copied, nothing after it is tried. */
static void a_hole(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *remote =
        mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char local[16];
    assert_ptr_not_equal(remote, MAP_FAILED);
    assert_int_equal(munmap(remote + page, page), 0);
    memset(local, 5, sizeof(local));
    kvfi_host_gather_start(&gather, getpid(), KVF_WRITE);
    kvfi_host_gather_add(&gather, local, (uintptr_t)remote, 16);
    kvfi_host_gather_add(&gather, local, (uintptr_t)(remote + page - 8), 16);
    kvfi_host_gather_add(&gather, local, (uintptr_t)(remote + 2 * page), 16);
    assert_int_equal(kvfi_host_gather_finish(&gather), KVF_ETRANSPORT);
    assert_memory_equal(remote, local, 16);
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(remote[2 * page + i], 0);
    /* the next transfer begins anew */
    kvfi_host_gather_start(&gather, getpid(), KVF_WRITE);
    kvfi_host_gather_add(&gather, local, (uintptr_t)(remote + 2 * page), 16);
    assert_int_equal(kvfi_host_gather_finish(&gather), KVF_OK);
    (void)munmap(remote, page);
    (void)munmap(remote + 2 * page, page);
}

static void a_dead_process(void **state)
{
    unsigned char local[16] = {0};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    kvfi_host_gather_start(&gather, child, KVF_READ);
    for (size_t i = 0; i < 100; i++)
        kvfi_host_gather_add(&gather, local, (uintptr_t)local, sizeof(local));
    assert_int_equal(kvfi_host_gather_finish(&gather), KVF_EDISCONNECTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_alignments),
        cmocka_unit_test(gathered_pieces),
        cmocka_unit_test(a_hole),
        cmocka_unit_test(a_dead_process),
    };
    return cmocka_run_group_tests_name("lane/host_copy", tests, NULL, NULL);
}
