/* SPDX-License-Identifier: Apache-2.0 */
/* Fails the n-th allocation, for every n until none is left to fail. Linked with --wrap, so that
 * the allocator calls of this folder come here. */
#include "test_files.h"

#include "model.h"
#include "sampler.h"
#include "tokenizer.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *ptr, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
/* Visible: under a sanitizer its own shared library asks for them. */
#pragma GCC visibility push(default)
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
#pragma GCC visibility pop

static unsigned countdown; /* 0: nothing fails; 1: the next one does */

static bool fails_now(void)
{
    return countdown > 0 && --countdown == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *ptr, size_t size)
{
    return fails_now() ? NULL : __real_realloc(ptr, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, size);
}

/* Runs fn with the n-th allocation failing, n from 1 on, until it succeeds; returns that n. */
static unsigned fail_each(enum kvf_status (*fn)(void *ctx, struct kvf_error *error), void *ctx)
{
    for (unsigned n = 1; n < 10000; n++) {
        struct kvf_error error = {0};
        countdown = n;
        enum kvf_status status = fn(ctx, &error);
        bool untouched = countdown > 0;
        countdown = 0;
        if (status == KVF_OK) {
            assert_true(untouched);
            return n;
        }
        assert_int_equal(status, KVF_ENOMEM);
        assert_int_equal(error.status, KVF_ENOMEM);
        assert_true(error.text[0] != '\0');
    }
    fail_msg("did not come to an end");
    return 0;
}

static enum kvf_status open_model(void *ctx, struct kvf_error *error)
{
    struct engine_model_options options = {.threads = 2, .batch_tokens_max = 8};
    struct engine_model *model = NULL;
    enum kvf_status status = engine_model_open(ctx, &options, &model, error);
    if (status != KVF_OK)
        assert_null(model);
    engine_model_close(model);
    return status;
}

static enum kvf_status encode_and_decode(void *ctx, struct kvf_error *error)
{
    static const char text[] = "<|im_start|>the other one 12\xff<|im_end|>";
    const struct engine_tokenizer *tokenizer = ctx;
    struct engine_tokens tokens = {0};
    struct engine_text back = {0};
    enum kvf_status status = engine_tokenizer_encode(tokenizer, text, sizeof text - 1,
                                                     ENGINE_ENCODE_SPECIAL, &tokens, error);
    if (status != KVF_OK)
        assert_int_equal(tokens.count, 0);
    if (status == KVF_OK)
        status = engine_tokenizer_decode(tokenizer, tokens.ids, tokens.count, true, &back, error);
    if (status != KVF_OK)
        assert_int_equal(back.len, 0);
    engine_tokens_free(&tokens);
    engine_text_free(&back);
    return status;
}

static enum kvf_status render_chat(void *ctx, struct kvf_error *error)
{
    char content[1000];
    memset(content, 'x', sizeof content);
    const struct engine_message messages[] = {{"user", 4, content, sizeof content},
                                              {"user", 4, content, sizeof content}};
    struct engine_text text = {0};
    enum kvf_status status = engine_tokenizer_chat(ctx, messages, 2, true, &text, error);
    if (status != KVF_OK)
        assert_int_equal(text.len, 0);
    engine_text_free(&text);
    return status;
}

static enum kvf_status make_sampler(void *ctx, struct kvf_error *error)
{
    struct engine_sampler *sampler = NULL;
    (void)ctx;
    enum kvf_status status = engine_sampler_create(100, &sampler, error);
    engine_sampler_destroy(sampler);
    return status;
}

static enum kvf_status write_model(void *ctx, struct kvf_error *error)
{
    return tiny_model_write(ctx, NULL, error);
}

static void every_allocation_may_fail(void **state)
{
    struct test_folder folder;
    struct engine_model *model;
    struct kvf_error error;
    struct engine_model_options options = {.threads = 1, .batch_tokens_max = 1};
    (void)state;
    test_folder_make(&folder);
    assert_true(fail_each(write_model, folder.file) > 3);
    assert_true(fail_each(open_model, folder.file) > 15);
    assert_int_equal(engine_model_open(folder.file, &options, &model, &error), KVF_OK);
    void *tokenizer = (void *)(uintptr_t)engine_model_tokenizer(model);
    assert_true(fail_each(encode_and_decode, tokenizer) > 3);
    assert_true(fail_each(render_chat, tokenizer) > 2);
    assert_true(fail_each(make_sampler, NULL) > 3);
    engine_model_close(model);
    test_folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
