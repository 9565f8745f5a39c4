/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/compat_hash.h"

#include "fuzz.h"

#include <string.h>

/* The canonical text of any model name is ASCII without controls other than DEL, and valid UTF-8
 * is all it takes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *model = malloc(size + 1);
    FUZZ_CHECK(model);
    if (size)
        memcpy(model, data, size);
    model[size] = '\0';
    struct kvfi_compat_factors factors = {
        .attn_backend_name = "A",
        .cache_dtype = "auto",
        .dtype = "d",
        .model = model,
        .transfer_mode = "push",
        .vllm_version = "0",
    };
    struct kvf_error error;
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    enum kvf_status status = kvfi_compat_json(&factors, &buf, &error);
    FUZZ_CHECK((status == KVF_OK) == kvfi_utf8_valid(kvfi_span_str(model)));
    for (size_t i = 0; status == KVF_OK && i < buf.len; i++)
        FUZZ_CHECK(buf.data[i] >= 0x20 && buf.data[i] < 0x80);
    kvfi_buf_deinit(&buf);
    free(model);
    return 0;
}
