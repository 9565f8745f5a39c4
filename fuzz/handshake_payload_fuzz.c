/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_handshake_payload payload, again;
    struct kvf_error error;
    struct fuzz_memory memory;
    fuzz_memory_init(&memory, size);
    if (kvfi_handshake_payload_decode(data, size, &memory.allocator, &payload, &error) == KVF_OK) {
        struct kvfi_buf buf;
        struct fuzz_memory more;
        kvfi_buf_init(&buf, NULL);
        FUZZ_CHECK(kvfi_handshake_payload_encode(&payload, &buf, &error) == KVF_OK);
        fuzz_memory_init(&more, buf.len);
        FUZZ_CHECK(kvfi_handshake_payload_decode(buf.data, buf.len, &more.allocator, &again,
                                                 &error) == KVF_OK);
        FUZZ_CHECK(strcmp(again.compatibility_hash, payload.compatibility_hash) == 0);
        FUZZ_CHECK(kvfi_span_equal(again.agent_metadata, payload.agent_metadata));
        FUZZ_CHECK(again.caps == payload.caps);
        fuzz_memory_check(&more);
        kvfi_buf_deinit(&buf);
    }
    fuzz_memory_check(&memory);
    return 0;
}
