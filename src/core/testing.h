/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_TESTING_H
#define KVFI_CORE_TESTING_H

/* An allocator for tests: counts what is alive and fails on the n-th use. */

#include "kvferry/status.h"

#include <stdlib.h>

struct test_alloc {
    struct kvf_allocator allocator;
    size_t live;
    uint64_t uses;
    uint64_t fail_at;  /* 0: never; the use with this number fails */
    bool fail_onwards; /* so do all after it */
};

static inline bool test_alloc_fails(struct test_alloc *ta)
{
    ta->uses++;
    return ta->fail_at && (ta->uses == ta->fail_at || (ta->fail_onwards && ta->uses > ta->fail_at));
}

static inline void *test_alloc_alloc(void *ctx, size_t size)
{
    struct test_alloc *ta = ctx;
    void *p = test_alloc_fails(ta) ? NULL : malloc(size);
    ta->live += p != NULL;
    return p;
}

static inline void *test_alloc_realloc(void *ctx, void *ptr, size_t size)
{
    struct test_alloc *ta = ctx;
    void *p = test_alloc_fails(ta) ? NULL : realloc(ptr, size);
    ta->live += p != NULL && ptr == NULL;
    return p;
}

static inline void test_alloc_free(void *ctx, void *ptr)
{
    struct test_alloc *ta = ctx;
    ta->live -= ptr != NULL;
    free(ptr);
}

static inline void test_alloc_init(struct test_alloc *ta)
{
    *ta = (struct test_alloc){.allocator = {.ctx = ta,
                                            .alloc = test_alloc_alloc,
                                            .realloc = test_alloc_realloc,
                                            .free = test_alloc_free}};
}

#endif
