/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double seconds, again;
    struct kvf_error error;
    if (kvfi_handshake_timestamp_decode(data, size, &seconds, &error) != KVF_OK)
        return 0;
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    FUZZ_CHECK(kvfi_handshake_timestamp_encode(seconds, &buf, &error) == KVF_OK);
    FUZZ_CHECK(buf.len == KVFI_HANDSHAKE_TIMESTAMP_LEN_MAX);
    FUZZ_CHECK(kvfi_handshake_timestamp_decode(buf.data, buf.len, &again, &error) == KVF_OK);
    FUZZ_CHECK(again == seconds);
    kvfi_buf_deinit(&buf);
    return 0;
}
