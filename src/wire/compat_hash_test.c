/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/compat_hash.h"

#include "wire/wire_test.h"

static const struct kvfi_compat_factors qwen = {
    .attn_backend_name = "FLASH_ATTN",
    .cache_dtype = "auto",
    .dtype = "torch.bfloat16",
    .head_size = 128,
    .is_hma_enabled = true,
    .model = "Qwen/Qwen3-0.6B",
    .nixl_connector_version = 15,
    .num_hidden_layers = 28,
    .num_kv_heads = 8,
    .transfer_mode = "pull",
    .vllm_version = "0.33.0",
};

static const int64_t layer_ids[] = {2, 14, 25};
static const struct kvfi_speculative_factors eagle = {
    .has_auxiliary_layer_ids = true,
    .auxiliary_layer_ids = layer_ids,
    .auxiliary_layer_id_count = 3,
    .kv_cache_dtype = "auto",
    .method = "eagle3",
    .model = "org/draft",
};

/* The six inputs whose hashes the released 0.33.0 and 0.32.0 computed, in that order. */
static void vectors(struct kvfi_compat_factors out[6])
{
    for (size_t i = 0; i < 6; i++)
        out[i] = qwen;
    out[1].transfer_mode = "push";
    out[2].transfer_mode = "push";
    out[2].attn_backend_name = "DEEPSEEK_V4_INDEXER,FLASHMLA_SPARSE";
    out[3].speculative_config = &eagle;
    for (size_t i = 4; i < 6; i++) {
        out[i].attn_backend_name = "CPU_ATTN";
        out[i].head_size = 64;
        out[i].model = "HuggingFaceTB/SmolLM2-135M-Instruct";
        out[i].num_hidden_layers = 30;
        out[i].num_kv_heads = 3;
    }
    out[4].transfer_mode = "push";
}

static void hashes_match_both_releases(void **state)
{
    static const struct {
        int64_t version;
        const char *vllm;
        const char *hashes[6];
    } releases[] = {
        {15,
         "0.33.0",
         {"cde24c489ad71bfdbccb1b829551f03719b0fe359a22fe635ec9986a6f36e549",
          "f6ec60046eb1686a44b0b27f624a8997cdd33753b2c1be52faae80f42c236cbc",
          "e131e573acc71da771a5aee07f6003a408ed6a9e66e834a377e190f918fe4651",
          "9f83f3fcc18096e0430fc6df9539ca41092622a3638062cb84f89273df5cc433",
          "a0afe7f6adacd47e07863d84fa9325df1e91df9c2ca7ca6778b0721ba6470f1b",
          "a58671b44925afc862c566e87eee6f6e719a0d9aa90d719ace312c6df8de24af"}},
        {14,
         "0.32.0",
         {"0d8bcc51e1e288732ae02b79347ae4cb0b56f8e15f7e7da0e6172f14059830bf",
          "a5c165155e12779c560da3dfb06d4b25dfee61c76cce5f718feb1f70e607515c",
          "9d9cc50e9a8d2cd30f212a0a3cdfb013718ab3549219dc763dbed347e481889d",
          "3da98f2f366951b40a5a676ee4c072071a1427973a45b486b7b05382f589ec12",
          "ab60d465f4e154f605b3dd86bd4793fc8ac666a78a15e63f7971913c9e9d8104",
          "8c5502fe16384557649530022481cf095aa190e961d121cf4b8e7c51a8bd37f0"}},
    };
    for (size_t r = 0; r < ITEMS(releases); r++) {
        struct kvfi_compat_factors inputs[6];
        vectors(inputs);
        for (size_t i = 0; i < 6; i++) {
            char hex[KVFI_COMPAT_HASH_LEN + 1];
            inputs[i].nixl_connector_version = releases[r].version;
            inputs[i].vllm_version = releases[r].vllm;
            assert_int_equal(kvfi_compat_hash(&inputs[i], NULL, hex, NULL), KVF_OK);
            assert_string_equal(hex, releases[r].hashes[i]);
            assert_true(kvfi_compat_hash_valid(hex));
        }
    }
}

static void json_is(const struct kvfi_compat_factors *factors, const char *expected)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_compat_json(factors, &buf, NULL), KVF_OK);
    kvfi_buf_put_u8(&buf, 0);
    assert_string_equal((const char *)buf.data, expected);
    kvfi_buf_deinit(&buf);
}

static void text_is_what_python_writes(void **state)
{
    json_is(&qwen, "{\"attn_backend_name\": \"FLASH_ATTN\", \"cache_dtype\": \"auto\", "
                   "\"dtype\": \"torch.bfloat16\", \"head_size\": 128, \"is_hma_enabled\": true, "
                   "\"model\": \"Qwen/Qwen3-0.6B\", \"nixl_connector_version\": 15, "
                   "\"num_hidden_layers\": 28, \"num_kv_heads\": 8, \"speculative_config\": null, "
                   "\"transfer_mode\": \"pull\", \"vllm_version\": \"0.33.0\"}");
}

static void odd_values_are_what_python_writes(void **state)
{
    static const struct kvfi_speculative_factors draft = {
        .kv_cache_dtype = "auto", .method = "mtp", .model = "m", .parallel_drafting = true};
    struct kvfi_compat_factors odd = qwen;
    odd.is_hma_enabled = false;
    odd.head_size = INT64_MIN;
    odd.speculative_config = &draft;
    /* quote, backslash, controls, DEL, e acute, euro sign, grinning face */
    odd.model = "\"\\\b\f\n\r\t\x01\x1f\x7f/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    json_is(
        &odd,
        "{\"attn_backend_name\": \"FLASH_ATTN\", \"cache_dtype\": \"auto\", "
        "\"dtype\": \"torch.bfloat16\", \"head_size\": -9223372036854775808, "
        "\"is_hma_enabled\": false, "
        "\"model\": \"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/\\u00e9\\u20ac\\ud83d\\ude00\", "
        "\"nixl_connector_version\": 15, \"num_hidden_layers\": 28, \"num_kv_heads\": 8, "
        "\"speculative_config\": {\"auxiliary_layer_ids\": null, \"code_revision\": null, "
        "\"kv_cache_dtype\": \"auto\", \"method\": \"mtp\", \"model\": \"m\", "
        "\"parallel_drafting\": true, \"revision\": null}, "
        "\"transfer_mode\": \"pull\", \"vllm_version\": \"0.33.0\"}");
}

static void bad_strings_are_named(void **state)
{
    char hex[KVFI_COMPAT_HASH_LEN + 1];
    struct kvf_error error;
    struct kvfi_compat_factors bad = qwen;
    bad.dtype = NULL;
    test_refused(kvfi_compat_hash(&bad, NULL, hex, &error), KVF_EINVAL, &error,
                 "'dtype' is missing");
    bad = qwen;
    bad.model = "\xed\xa0\x80";
    test_refused(kvfi_compat_hash(&bad, NULL, hex, &error), KVF_EINVAL, &error, "'model' is not");
    static const struct kvfi_speculative_factors draft = {.method = "\xff"};
    bad = qwen;
    bad.speculative_config = &draft;
    test_refused(kvfi_compat_hash(&bad, NULL, hex, &error), KVF_EINVAL, &error, "'method' is not");
}

static void sha256_is_right(void **state)
{
    char hex[KVFI_COMPAT_HASH_LEN + 1];
    assert_int_equal(kvfi_sha256_hex("abc", 3, hex, NULL), KVF_OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_int_equal(kvfi_sha256_hex(NULL, 0, hex, NULL), KVF_OK);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void hash_form_is_checked(void **state)
{
    char hex[KVFI_COMPAT_HASH_LEN + 2];
    memset(hex, 'a', sizeof(hex));
    hex[64] = '\0';
    assert_true(kvfi_compat_hash_valid(hex));
    hex[3] = 'A';
    assert_false(kvfi_compat_hash_valid(hex));
    hex[3] = 'a';
    hex[63] = '\0';
    assert_false(kvfi_compat_hash_valid(hex));
    hex[63] = hex[64] = 'a';
    hex[65] = '\0';
    assert_false(kvfi_compat_hash_valid(hex));
}

static enum kvf_status hash_qwen(const struct kvf_allocator *allocator)
{
    char hex[KVFI_COMPAT_HASH_LEN + 1];
    return kvfi_compat_hash(&qwen, allocator, hex, NULL);
}

static void memory_shortage_is_reported(void **state)
{
    assert_true(test_alloc_failures(hash_qwen) >= 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_match_both_releases),
        cmocka_unit_test(text_is_what_python_writes),
        cmocka_unit_test(odd_values_are_what_python_writes),
        cmocka_unit_test(bad_strings_are_named),
        cmocka_unit_test(sha256_is_right),
        cmocka_unit_test(hash_form_is_checked),
        cmocka_unit_test(memory_shortage_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
