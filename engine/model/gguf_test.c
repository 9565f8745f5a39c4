/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "gguf.h"
#include "tiny_model_impl.h"

static int setup(void **state)
{
    struct test_folder *folder = calloc(1, sizeof *folder);
    assert_non_null(folder);
    test_folder_make(folder);
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    test_folder_remove(*state);
    free(*state);
    return 0;
}

/* Opens what the buffer holds; the buffer is freed. */
static enum kvf_status open_buffer(struct test_folder *folder, struct tiny_buffer *buffer,
                                   struct gguf **file_p, struct kvf_error *error)
{
    assert_false(buffer->failed);
    test_write(folder->file, buffer->data, buffer->len);
    free(buffer->data);
    *buffer = (struct tiny_buffer){0};
    return gguf_open(folder->file, file_p, error);
}

static void expect_refusal(struct test_folder *folder, struct tiny_buffer *buffer,
                           enum kvf_status status, const char *part)
{
    struct gguf *file = NULL;
    struct kvf_error error = {0};
    assert_int_equal(open_buffer(folder, buffer, &file, &error), status);
    assert_null(file);
    assert_int_equal(error.status, status);
    test_contains(error.text, folder->file);
    test_contains(error.text, part);
}

static void put_head(struct tiny_buffer *b, uint32_t version, uint64_t tensors, uint64_t entries)
{
    tiny_put(b, "GGUF", 4);
    tiny_put_u32(b, version);
    tiny_put_u64(b, tensors);
    tiny_put_u64(b, entries);
}

static void put_tensor(struct tiny_buffer *b, const char *name, uint64_t cols, uint64_t rows,
                       uint32_t type, uint64_t offset)
{
    tiny_put_text(b, name);
    tiny_put_u32(b, 2);
    tiny_put_u64(b, cols);
    tiny_put_u64(b, rows);
    tiny_put_u32(b, type);
    tiny_put_u64(b, offset);
}

static void put_zeros(struct tiny_buffer *b, size_t count)
{
    uint8_t *zeros = calloc(1, count);
    assert_non_null(zeros);
    tiny_put(b, zeros, count);
    free(zeros);
}

static void reads_every_value_type(void **state)
{
    struct tiny_buffer b = {0};
    static const struct {
        uint32_t type, size;
        int64_t value;
    } integers[] = {{GGUF_U8, 1, 200},    {GGUF_I8, 1, 100}, {GGUF_U16, 2, 60000},
                    {GGUF_I16, 2, 30000}, {GGUF_U32, 4, 7},  {GGUF_I32, 4, 8},
                    {GGUF_U64, 8, 9},     {GGUF_I64, 8, 10}};
    put_head(&b, 2, 0, 8 + 6);
    for (size_t i = 0; i < 8; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "int.%zu", i);
        tiny_put_text(&b, key);
        tiny_put_u32(&b, integers[i].type);
        tiny_put(&b, &integers[i].value, integers[i].size);
    }
    double wide = 2.5;
    int8_t negative = -1;
    tiny_entry_f32(&b, "f32", 1.5f);
    tiny_put_text(&b, "f64");
    tiny_put_u32(&b, GGUF_F64);
    tiny_put(&b, &wide, sizeof wide);
    tiny_entry_bool(&b, "bool", true);
    tiny_entry_text(&b, "text", "hello");
    tiny_put_text(&b, "negative");
    tiny_put_u32(&b, GGUF_I8);
    tiny_put(&b, &negative, 1);
    tiny_entry_array(&b, "nested", GGUF_ARRAY, 2);
    for (int i = 0; i < 2; i++) {
        tiny_put_u32(&b, GGUF_STRING);
        tiny_put_u64(&b, 1);
        tiny_put_text(&b, "x");
    }

    struct gguf *file;
    struct kvf_error error;
    assert_int_equal(open_buffer(*state, &b, &file, &error), KVF_OK);
    for (size_t i = 0; i < 8; i++) {
        char key[16];
        uint32_t value = 0;
        (void)snprintf(key, sizeof key, "int.%zu", i);
        assert_int_equal(gguf_get_u32(file, key, &value, &error), KVF_OK);
        assert_int_equal(value, integers[i].value);
    }
    float real = 0;
    assert_int_equal(gguf_get_f32(file, "f32", &real, &error), KVF_OK);
    assert_true(real == 1.5f);
    assert_int_equal(gguf_get_f32(file, "f64", &real, &error), KVF_OK);
    assert_true(real == 2.5f);
    bool yes = false;
    assert_int_equal(gguf_get_bool(file, "bool", &yes, &error), KVF_OK);
    assert_true(yes);
    struct gguf_string text;
    assert_int_equal(gguf_get_string(file, "text", &text, &error), KVF_OK);
    assert_int_equal(text.len, 5);
    assert_memory_equal(text.data, "hello", 5);
    assert_int_equal(gguf_find(file, "nested")->count, 2);

    uint32_t number = 5;
    assert_int_equal(gguf_get_u32(file, "absent", &number, &error), KVF_ENOTFOUND);
    test_contains(error.text, "absent");
    assert_int_equal(gguf_get_u32(file, "text", &number, &error), KVF_EFORMAT);
    test_contains(error.text, "string");
    assert_int_equal(gguf_get_u32(file, "negative", &number, &error), KVF_EFORMAT);
    test_contains(error.text, "-1");
    assert_int_equal(gguf_get_f32(file, "bool", &real, &error), KVF_EFORMAT);
    assert_int_equal(number, 5);
    gguf_close(file);
}

static void refuses_bad_heads(void **state)
{
    struct tiny_buffer b = {0};
    struct gguf *file = NULL;
    struct kvf_error error;
    assert_int_equal(gguf_open("/nonexistent/model.gguf", &file, &error), KVF_ESYSTEM);
    test_contains(error.text, "/nonexistent/model.gguf");
    assert_int_equal(gguf_open("/", &file, &error), KVF_EFORMAT);

    tiny_put(&b, "", 0);
    expect_refusal(*state, &b, KVF_EFORMAT, "empty");
    tiny_put(&b, "PK\3\4 and more", 10);
    expect_refusal(*state, &b, KVF_EFORMAT, "50 4b 03 04");
    put_head(&b, 1, 0, 0);
    expect_refusal(*state, &b, KVF_ENOTSUP, "version 1");
    put_head(&b, 0x03000000, 0, 0);
    expect_refusal(*state, &b, KVF_ENOTSUP, "big-endian");
    put_head(&b, 3, 0, UINT64_MAX);
    expect_refusal(*state, &b, KVF_EFORMAT, "18446744073709551615 metadata entries");
    put_head(&b, 3, UINT64_MAX / 2, 0);
    expect_refusal(*state, &b, KVF_EFORMAT, "9223372036854775807 tensors");
}

static void refuses_bad_metadata(void **state)
{
    struct tiny_buffer b = {0};
    put_head(&b, 3, 0, 1);
    tiny_put_u64(&b, UINT64_MAX - 3);
    put_zeros(&b, 64);
    expect_refusal(*state, &b, KVF_EFORMAT, "18446744073709551612 bytes");

    put_head(&b, 3, 0, 1);
    tiny_put_text(&b, "odd");
    tiny_put_u32(&b, 13);
    put_zeros(&b, 64);
    expect_refusal(*state, &b, KVF_EFORMAT, "key odd has value type 13");

    put_head(&b, 3, 0, 1);
    tiny_entry_array(&b, "huge", GGUF_U64, UINT64_MAX / 8 + 2);
    put_zeros(&b, 64);
    expect_refusal(*state, &b, KVF_EFORMAT, "key huge says 2305843009213693953 elements");

    put_head(&b, 3, 0, 1);
    tiny_entry_array(&b, "strings", GGUF_STRING, UINT64_MAX);
    put_zeros(&b, 64);
    expect_refusal(*state, &b, KVF_EFORMAT, "only 0 remain");

    put_head(&b, 3, 0, 1);
    tiny_entry_array(&b, "deep", GGUF_ARRAY, 1);
    for (int i = 0; i < 1000; i++) {
        tiny_put_u32(&b, GGUF_ARRAY);
        tiny_put_u64(&b, 1);
    }
    expect_refusal(*state, &b, KVF_EFORMAT, "deep nests arrays");

    put_head(&b, 3, 0, 2);
    tiny_entry_u32(&b, "twin", 1);
    tiny_entry_u32(&b, "twin", 2);
    expect_refusal(*state, &b, KVF_EFORMAT, "twin appears twice");

    static const uint32_t alignments[] = {0, 3, 4, 48, UINT32_MAX};
    for (size_t i = 0; i < 5; i++) {
        put_head(&b, 3, 0, 1);
        tiny_entry_u32(&b, "general.alignment", alignments[i]);
        expect_refusal(*state, &b, KVF_EFORMAT, "general.alignment is");
    }
}

static void refuses_bad_tensors(void **state)
{
    static const struct {
        uint64_t cols, rows, offset;
        uint32_t type;
        enum kvf_status status;
        const char *part;
    } cases[] = {
        {64, 4, 0, 2, KVF_ENOTSUP, "w has type q4_0 (2)"},
        {64, 4, 0, 99, KVF_ENOTSUP, "w has type unknown (99)"},
        {60, 4, 0, GGUF_TENSOR_Q8_0, KVF_EFORMAT, "60 elements, not a multiple of the 32"},
        {64, 4, 8, GGUF_TENSOR_F32, KVF_EFORMAT, "offset 8"},
        {64, 4, 1 << 20, GGUF_TENSOR_F32, KVF_EFORMAT, "offset 1048576"},
        {64, 5, 0, GGUF_TENSOR_F32, KVF_EFORMAT, "5 rows of 256 bytes"},
        {64, 4, 32, GGUF_TENSOR_F32, KVF_EFORMAT, "from offset 32"},
        {64, 4, UINT64_MAX - 31, GGUF_TENSOR_F32, KVF_EFORMAT, "18446744073709551584"},
        {UINT64_MAX, UINT64_MAX, 0, GGUF_TENSOR_F32, KVF_EFORMAT, "dimension 0"},
        {64, UINT64_C(1) << 58, 0, GGUF_TENSOR_F32, KVF_EFORMAT, "dimension 1"},
        {0, 4, 0, GGUF_TENSOR_F32, KVF_EFORMAT, "dimension 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tiny_buffer b = {0};
        put_head(&b, 3, 1, 0);
        put_tensor(&b, "w", cases[i].cols, cases[i].rows, cases[i].type, cases[i].offset);
        put_zeros(&b, (32 - b.len % 32) % 32 + 1024);
        expect_refusal(*state, &b, cases[i].status, cases[i].part);
    }

    struct tiny_buffer b = {0};
    put_head(&b, 3, 1, 0);
    tiny_put_text(&b, "w");
    tiny_put_u32(&b, 5);
    put_zeros(&b, 1024);
    expect_refusal(*state, &b, KVF_EFORMAT, "5 dimensions");

    put_head(&b, 3, 2, 0);
    put_tensor(&b, "w", 64, 1, GGUF_TENSOR_F32, 0);
    put_tensor(&b, "w", 64, 1, GGUF_TENSOR_F32, 0);
    put_zeros(&b, 1024);
    expect_refusal(*state, &b, KVF_EFORMAT, "w appears twice");
}

/* What exactly fits is accepted: the limits above are not off by one. */
static void accepts_tensors_up_to_the_end(void **state)
{
    struct tiny_buffer b = {0};
    struct gguf *file;
    struct kvf_error error;
    put_head(&b, 3, 1, 0);
    put_tensor(&b, "w", 64, 4, GGUF_TENSOR_F32, 32);
    put_zeros(&b, (32 - b.len % 32) % 32 + 32);
    size_t start = b.len;
    for (uint32_t i = 0; i < 256; i++) {
        float x = (float)i;
        tiny_put(&b, &x, sizeof x);
    }
    assert_int_equal(b.len - start, 1024);
    assert_int_equal(open_buffer(*state, &b, &file, &error), KVF_OK);
    const struct gguf_tensor *w = gguf_find_tensor(file, "w");
    assert_non_null(w);
    assert_int_equal(w->size, 1024);
    assert_int_equal((uintptr_t)w->data % 32, 0);
    float last;
    memcpy(&last, w->data + 1020, sizeof last);
    assert_true(last == 255.0f);
    assert_null(gguf_find_tensor(file, "v"));
    gguf_close(file);
}

/* Every shorter file is refused, none crashes; the sanitizers watch. */
static void refuses_every_truncation(void **state)
{
    struct test_folder *folder = *state;
    struct kvf_error error;
    struct gguf *file = NULL;
    size_t size;
    struct tiny_model_options small = {.layers = 1, .type = "q8_0"};
    assert_int_equal(tiny_model_write(folder->file, &small, &error), KVF_OK);
    uint8_t *data = test_read(folder->file, &size);
    /* The last 31 bytes may be padding, which nothing needs. */
    for (size_t len = size - 32; len > 0; len -= len > 16384 ? 1021 : len > 32 ? 7 : 1) {
        test_write(folder->file, data, len);
        assert_int_equal(gguf_open(folder->file, &file, &error), KVF_EFORMAT);
        test_contains(error.text, folder->file);
    }
    free(data);
}

/* Changed bytes are accepted or refused, and whatever is accepted can be walked. */
static void survives_changed_bytes(void **state)
{
    struct test_folder *folder = *state;
    struct kvf_error error;
    size_t size, refused = 0;
    struct tiny_model_options small = {.layers = 1, .type = "q8_0"};
    assert_int_equal(tiny_model_write(folder->file, &small, &error), KVF_OK);
    uint8_t *data = test_read(folder->file, &size);
    static const uint8_t changes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < 16384 && at < size; at += at < 1024 ? 1 : 13) {
        uint8_t was = data[at];
        data[at] = changes[at % sizeof changes];
        test_write(folder->file, data, size);
        struct gguf *file = NULL;
        if (gguf_open(folder->file, &file, &error) == KVF_OK) {
            unsigned sum = 0;
            for (uint64_t i = 0; i < gguf_tensor_count(file); i++) {
                const struct gguf_tensor *t = gguf_tensor_at(file, i);
                sum += t->data[0] + t->data[t->size - 1];
            }
            assert_true(sum <= 510u * gguf_tensor_count(file));
            gguf_close(file);
        } else {
            refused++;
        }
        data[at] = was;
    }
    assert_true(refused > 100);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_every_value_type, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_bad_heads, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_bad_metadata, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_bad_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(accepts_tensors_up_to_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_every_truncation, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_changed_bytes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
