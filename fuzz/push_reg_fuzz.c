/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/push_reg.h"

#include "fuzz.h"

/* What a released peer may leave out, our encoder insists on. */
static void fill_optional(struct kvfi_push_reg *reg)
{
    if (!reg->remote_engine_id)
        reg->remote_engine_id = "pre";
    if (!reg->remote_host)
        reg->remote_host = "host";
    if (!reg->has_remote_port)
        reg->remote_port = 1;
    if (!reg->has_remote_tp_size)
        reg->remote_tp_size = 1;
    if (!reg->has_remote_pp_size)
        reg->remote_pp_size = 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvfi_push_reg reg, again;
    struct kvf_error error;
    struct fuzz_memory memory;
    fuzz_memory_init(&memory, size);
    if (kvfi_push_reg_decode(data, size, &memory.allocator, &reg, &error) == KVF_OK) {
        struct kvfi_buf first, second;
        struct fuzz_memory more;
        kvfi_buf_init(&first, NULL);
        kvfi_buf_init(&second, NULL);
        fill_optional(&reg);
        FUZZ_CHECK(kvfi_push_reg_encode(&reg, &first, &error) == KVF_OK);
        fuzz_memory_init(&more, first.len);
        FUZZ_CHECK(kvfi_push_reg_decode(first.data, first.len, &more.allocator, &again, &error) ==
                   KVF_OK);
        FUZZ_CHECK(kvfi_push_reg_encode(&again, &second, &error) == KVF_OK);
        FUZZ_CHECK(kvfi_span_equal(fuzz_span(&first), fuzz_span(&second)));
        kvfi_push_reg_free(&again);
        kvfi_push_reg_free(&reg);
        fuzz_memory_check(&more);
        kvfi_buf_deinit(&second);
        kvfi_buf_deinit(&first);
    }
    fuzz_memory_check(&memory);
    return 0;
}
