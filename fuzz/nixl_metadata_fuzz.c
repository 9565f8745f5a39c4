/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_metadata.h"

#include "fuzz.h"

static void check_sorted(const struct kvfi_nixl_metadata *md)
{
    for (size_t s = 0; s < md->section_count; s++) {
        const struct kvfi_nixl_section *section = &md->sections[s];
        FUZZ_CHECK(section->region_count > 0);
        for (size_t i = 1; i < section->region_count; i++)
            FUZZ_CHECK(kvfi_nixl_region_compare(&section->regions[i - 1], &section->regions[i]) <
                       0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_nixl_metadata md, again;
    struct kvf_error error;
    struct fuzz_memory memory;
    fuzz_memory_init(&memory, size);
    if (kvfi_nixl_metadata_decode(data, size, &memory.allocator, &md, &error) == KVF_OK) {
        struct kvfi_buf first, second;
        kvfi_buf_init(&first, NULL);
        kvfi_buf_init(&second, NULL);
        check_sorted(&md);
        FUZZ_CHECK(kvfi_nixl_metadata_encode(&md, &first, &error) == KVF_OK);
        FUZZ_CHECK(first.len <= size);
        FUZZ_CHECK(kvfi_nixl_metadata_decode(first.data, first.len, &memory.allocator, &again,
                                             &error) == KVF_OK);
        FUZZ_CHECK(kvfi_nixl_metadata_encode(&again, &second, &error) == KVF_OK);
        FUZZ_CHECK(kvfi_span_equal(fuzz_span(&first), fuzz_span(&second)));
        kvfi_nixl_metadata_free(&again);
        kvfi_nixl_metadata_free(&md);
        kvfi_buf_deinit(&second);
        kvfi_buf_deinit(&first);
    }
    fuzz_memory_check(&memory);
    return 0;
}
