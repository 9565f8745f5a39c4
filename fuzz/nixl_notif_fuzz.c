/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_notif.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_nixl_notif notif;
    struct kvf_error error;
    if (kvfi_nixl_notif_decode(data, size, &notif, &error) != KVF_OK)
        return 0;
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    FUZZ_CHECK(kvfi_nixl_notif_encode(&notif, &buf, &error) == KVF_OK);
    FUZZ_CHECK(kvfi_span_equal(fuzz_span(&buf), kvfi_span(data, size)));
    kvfi_buf_deinit(&buf);
    return 0;
}
