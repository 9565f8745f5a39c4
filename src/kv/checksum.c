/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/worker.h"

#include "wire/sha256.h"

_Static_assert(KVFI_CHECKSUM_LEN == KVFI_COMPAT_HASH_LEN, "both are SHA-256 in hex");

static const void *block_at(uint64_t base, uint64_t stride_bytes, uint32_t block_id)
{
    return (const void *)(uintptr_t)(base + block_id * stride_bytes);
}

bool kvfi_checksum_blocks(const struct kvf_kv_region *regions, size_t region_count,
                          const uint32_t *block_ids, size_t block_count,
                          char hex[KVFI_CHECKSUM_LEN + 1])
{
    struct kvfi_sha256 sha;
    bool all = true;
    kvfi_sha256_begin(&sha);
    for (size_t r = 0; r < region_count; r++) {
        const struct kvf_kv_region *region = &regions[r];
        for (size_t b = 0; b < block_count; b++) {
            if (region->kind != KVF_MEMORY_DRAM || block_ids[b] >= region->block_count) {
                all = false;
                continue;
            }
            kvfi_sha256_put(
                &sha,
                block_at((uint64_t)(uintptr_t)region->base, region->stride_bytes, block_ids[b]),
                region->block_bytes);
        }
    }
    bool done = kvfi_sha256_end(&sha, hex) && all;
    if (!done)
        hex[0] = '\0';
    return done;
}
