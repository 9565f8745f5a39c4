/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/pool.h"

#include "runtime/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct kvf_pool {
    struct kvf_pool *next;
    void *addr;
    size_t length;
    int fd;
    uint64_t inode;
};

/* Process-wide on purpose: an engine registers memory by address, from whichever module made it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvf_pool *pools; /* guarded by lock */

static enum kvf_status fail_errno(struct kvf_error *error, const char *what, size_t length)
{
    int reason = errno;
    enum kvf_status status = KVF_ENOTSUP;
    if (reason == ENOMEM || reason == ENOSPC || reason == EMFILE || reason == ENFILE)
        status = KVF_ENOMEM;
    return kvf_fail(error, status, "pool: %s of %zu bytes failed: %s", what, length,
                    strerror(reason));
}

/* Sealed against shrinking: a peer's copy into its mapping can never meet a missing page. */
static enum kvf_status map(struct kvf_pool *pool, struct kvf_error *error)
{
    struct stat st;
    pool->fd = memfd_create("kvferry-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pool->fd < 0)
        return fail_errno(error, "memfd_create", pool->length);
    if (ftruncate(pool->fd, (off_t)pool->length) < 0)
        return fail_errno(error, "ftruncate", pool->length);
    if (fcntl(pool->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return fail_errno(error, "sealing", pool->length);
    if (fstat(pool->fd, &st) < 0)
        return fail_errno(error, "fstat", pool->length);
    pool->inode = st.st_ino;
    pool->addr = mmap(NULL, pool->length, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
    if (pool->addr == MAP_FAILED) {
        pool->addr = NULL;
        return fail_errno(error, "mmap", pool->length);
    }
    (void)madvise(pool->addr, pool->length, MADV_HUGEPAGE); /* where the host allows it */
#ifdef MADV_POPULATE_WRITE
    /* Kernels before 5.14 do not know it; there the pages come when they are touched. */
    if (madvise(pool->addr, pool->length, MADV_POPULATE_WRITE) < 0 && errno == ENOMEM)
        return fail_errno(error, "allocating", pool->length);
#endif
    return KVF_OK;
}

static void release(struct kvf_pool *pool)
{
    if (pool->addr)
        (void)munmap(pool->addr, pool->length);
    if (pool->fd >= 0)
        (void)close(pool->fd);
    kvfi_free(NULL, pool);
}

enum kvf_status kvf_pool_create(size_t length, struct kvf_pool **pool_p, struct kvf_error *error)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (length == 0 || length > INT64_MAX - page)
        return kvf_fail(error, KVF_EINVAL, "pool: a length of %zu bytes is not possible", length);
    struct kvf_pool *pool = kvfi_calloc(NULL, 1, sizeof(*pool));
    if (!pool)
        return kvf_fail(error, KVF_ENOMEM, "pool: no memory for its record");
    pool->fd = -1;
    pool->length = (length + page - 1) / page * page;
    enum kvf_status status = map(pool, error);
    if (status != KVF_OK) {
        release(pool);
        return status;
    }
    (void)pthread_mutex_lock(&lock);
    pool->next = pools;
    pools = pool;
    (void)pthread_mutex_unlock(&lock);
    *pool_p = pool;
    return KVF_OK;
}

void kvf_pool_destroy(struct kvf_pool *pool)
{
    if (!pool)
        return;
    (void)pthread_mutex_lock(&lock);
    struct kvf_pool **link_p = &pools;
    while (*link_p != pool)
        link_p = &(*link_p)->next;
    *link_p = pool->next;
    (void)pthread_mutex_unlock(&lock);
    release(pool);
}

void *kvf_pool_address(const struct kvf_pool *pool)
{
    return pool->addr;
}

size_t kvf_pool_length(const struct kvf_pool *pool)
{
    return pool->length;
}

bool kvfi_pool_find(uint64_t addr, uint64_t length, struct kvfi_pool_place *place)
{
    bool found = false;
    (void)pthread_mutex_lock(&lock);
    for (const struct kvf_pool *pool = pools; pool && !found; pool = pool->next) {
        uint64_t offset = addr - (uintptr_t)pool->addr;
        if (addr < (uintptr_t)pool->addr || offset > pool->length || length > pool->length - offset)
            continue;
        *place = (struct kvfi_pool_place){.fd = pool->fd, .inode = pool->inode, .offset = offset};
        found = true;
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}
