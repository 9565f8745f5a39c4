/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/agent_metadata.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_agent_metadata md, again;
    struct kvf_error error;
    struct fuzz_memory memory;
    fuzz_memory_init(&memory, size);
    if (kvfi_agent_metadata_decode(data, size, &memory.allocator, &md, &error) == KVF_OK) {
        struct kvfi_buf first, second;
        struct fuzz_memory more;
        kvfi_buf_init(&first, NULL);
        kvfi_buf_init(&second, NULL);
        FUZZ_CHECK(kvfi_agent_metadata_check(&md, &error) == KVF_OK);
        FUZZ_CHECK(kvfi_agent_metadata_encode(&md, &first, &error) == KVF_OK);
        fuzz_memory_init(&more, first.len);
        FUZZ_CHECK(kvfi_agent_metadata_decode(first.data, first.len, &more.allocator, &again,
                                              &error) == KVF_OK);
        FUZZ_CHECK(kvfi_agent_metadata_encode(&again, &second, &error) == KVF_OK);
        FUZZ_CHECK(kvfi_span_equal(fuzz_span(&first), fuzz_span(&second)));
        kvfi_agent_metadata_free(&again);
        kvfi_agent_metadata_free(&md);
        fuzz_memory_check(&more);
        kvfi_buf_deinit(&second);
        kvfi_buf_deinit(&first);
    }
    fuzz_memory_check(&memory);
    return 0;
}
