/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_handshake_request request, again;
    struct kvf_error error;
    if (kvfi_handshake_request_decode(data, size, &request, &error) != KVF_OK)
        return 0;
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    FUZZ_CHECK(kvfi_handshake_request_encode(&request, &buf, &error) == KVF_OK);
    FUZZ_CHECK(kvfi_handshake_request_decode(buf.data, buf.len, &again, &error) == KVF_OK);
    FUZZ_CHECK(!again.legacy);
    FUZZ_CHECK(again.pp_rank == request.pp_rank && again.tp_rank == request.tp_rank);
    kvfi_buf_deinit(&buf);
    return 0;
}
