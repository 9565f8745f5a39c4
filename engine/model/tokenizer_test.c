/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "gguf.h"
#include "tokenizer.h"

struct fixture {
    struct test_folder folder;
    struct engine_tokenizer *tokenizer;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct gguf *file;
    struct kvf_error error;
    assert_non_null(f);
    test_folder_make(&f->folder);
    assert_int_equal(tiny_model_write(f->folder.file, NULL, &error), KVF_OK);
    assert_int_equal(gguf_open(f->folder.file, &file, &error), KVF_OK);
    assert_int_equal(engine_tokenizer_create(file, &f->tokenizer, &error), KVF_OK);
    gguf_close(file);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    engine_tokenizer_destroy(f->tokenizer);
    test_folder_remove(&f->folder);
    free(f);
    return 0;
}

static struct engine_tokens encode(const struct engine_tokenizer *t, const char *text, size_t len,
                                   unsigned flags)
{
    struct engine_tokens tokens = {0};
    struct kvf_error error;
    assert_int_equal(engine_tokenizer_encode(t, text, len, flags, &tokens, &error), KVF_OK);
    return tokens;
}

static void expect_pieces(const struct engine_tokenizer *t, const char *text, unsigned flags,
                          const char *pieces)
{
    char joined[512] = "";
    struct engine_tokens tokens = encode(t, text, strlen(text), flags);
    for (size_t i = 0; i < tokens.count; i++) {
        size_t len, at = strlen(joined);
        const char *bytes = engine_tokenizer_token_bytes(t, tokens.ids[i], &len);
        (void)snprintf(joined + at, sizeof joined - at, "[%.*s]", (int)len, bytes);
    }
    assert_string_equal(joined, pieces);
    engine_tokens_free(&tokens);
}

static void expect_decoded(const struct engine_tokenizer *t, const struct engine_tokens *tokens,
                           const char *text, size_t len)
{
    struct engine_text whole = {0}, streamed = {0};
    struct engine_decoder decoder = {0};
    assert_int_equal(engine_tokenizer_decode(t, tokens->ids, tokens->count, true, &whole, NULL),
                     KVF_OK);
    for (size_t i = 0; i < tokens->count; i++)
        assert_int_equal(engine_decoder_push(&decoder, t, tokens->ids[i], true, &streamed, NULL),
                         KVF_OK);
    assert_int_equal(engine_decoder_finish(&decoder, &streamed, NULL), KVF_OK);
    assert_int_equal(whole.len, len);
    assert_int_equal(streamed.len, len);
    if (len > 0) {
        assert_memory_equal(whole.data, text, len);
        assert_memory_equal(streamed.data, text, len);
    }
    engine_text_free(&whole);
    engine_text_free(&streamed);
}

static void merges_inside_pieces_by_rank(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    expect_pieces(t, "", 0, "");
    expect_pieces(t, "the", 0, "[the]");
    /* "h e" ranks before "t h"; " the" is its own piece and " t" + "he" one token. */
    expect_pieces(t, "on the other", 0, "[on][ the][ o][the][r]");
    expect_pieces(t, "nothing and", 0, "[n][o][t][h][ing][ and]");
    /* A digit is a piece of its own: the merge "1 2" never applies. */
    expect_pieces(t, "12 12", 0, "[1][2][ ][1][2]");
    /* White space before a word: all but the last blank belong together. */
    expect_pieces(t, "a     a", 0, "[a][    ][ a]");
    expect_pieces(t, "a\n\n", 0, "[a][\n\n]");
    expect_pieces(t, "a\n\nuser", 0, "[a][\n][\n][user]");
    expect_pieces(t, "user's", 0, "[user]['][s]");
}

static void recognises_special_tokens_when_asked(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    expect_pieces(t, "<|im_start|>user<|im_end|>", ENGINE_ENCODE_SPECIAL,
                  "[<|im_start|>][user][<|im_end|>]");
    struct engine_tokens tokens = encode(t, "<|im_end|>", 10, 0);
    assert_int_equal(tokens.count, 10 - 1); /* "en" merges */
    for (size_t i = 0; i < tokens.count; i++)
        assert_false(engine_tokenizer_is_special(t, tokens.ids[i]));
    engine_tokens_free(&tokens);
    expect_pieces(t, "<|im_end|<|im_end|>>", ENGINE_ENCODE_SPECIAL,
                  "[<][|][i][m][_][en][d][|][<|im_end|>][>]");
    assert_int_equal(engine_tokenizer_bos(t), TINY_MODEL_IM_START);
    assert_int_equal(engine_tokenizer_eos(t), TINY_MODEL_IM_END);
    assert_true(engine_tokenizer_is_end(t, TINY_MODEL_IM_END));
    assert_false(engine_tokenizer_is_end(t, TINY_MODEL_ENDOFTEXT));
    assert_false(engine_tokenizer_is_end(t, ENGINE_TOKEN_NONE));
    size_t len;
    uint32_t the = engine_tokenizer_find(t, " the", 4);
    assert_memory_equal(engine_tokenizer_token_bytes(t, the, &len), " the", 4);
    assert_null(engine_tokenizer_token_bytes(t, ENGINE_TOKEN_NONE, &len));
    assert_int_equal(engine_tokenizer_find(t, "no such token", 13), ENGINE_TOKEN_NONE);
    assert_true(engine_tokenizer_vocab_size(t) > 256);
}

/* Any bytes come back as they went in, as far as they are UTF-8; the ids cover all of them. */
static void random_bytes_round_trip(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    uint64_t random = 1;
    for (unsigned round = 0; round < 2000; round++) {
        char text[64];
        size_t len = round % sizeof text, total = 0;
        for (size_t i = 0; i < len; i++) {
            random = random * 6364136223846793005u + 1;
            /* Often lead and continuation bytes, so that sequences are cut in every way. */
            text[i] =
                (char)(round % 2 ? random >> 56 : (random >> 40 & 3) * 0x40 + (random >> 50 & 31));
        }
        struct engine_tokens tokens = encode(t, text, len, 0);
        for (size_t i = 0; i < tokens.count; i++) {
            size_t n;
            const char *bytes = engine_tokenizer_token_bytes(t, tokens.ids[i], &n);
            assert_true(n <= len - total);
            assert_memory_equal(bytes, text + total, n);
            total += n;
        }
        assert_int_equal(total, len);
        engine_tokens_free(&tokens);
    }
}

static void decodes_ill_formed_bytes_as_replacements(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"\xf0\x9f\x8e\x89!", "\xf0\x9f\x8e\x89!"},
        {"\xf0\x9f\x8e", "\xef\xbf\xbd"},   /* cut at the end */
        {"\xf0\x9f\x8e!", "\xef\xbf\xbd!"}, /* one maximal part */
        {"\xf0\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                 /* a surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
        {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
        {"\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_tokens tokens = encode(t, cases[i].bytes, strlen(cases[i].bytes), 0);
        expect_decoded(t, &tokens, cases[i].text, strlen(cases[i].text));
        engine_tokens_free(&tokens);
    }
}

static void a_stream_holds_back_incomplete_sequences(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    static const char party[] = "\xf0\x9f\x8e\x89";
    struct engine_tokens tokens = encode(t, party, 4, 0);
    struct engine_decoder decoder = {0};
    struct engine_text text = {0};
    assert_int_equal(tokens.count, 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(text.len, 0);
        assert_int_equal(engine_decoder_push(&decoder, t, tokens.ids[i], false, &text, NULL),
                         KVF_OK);
    }
    assert_int_equal(text.len, 4);
    assert_string_equal(text.data, party);
    /* Specials decode to nothing unless wanted. */
    assert_int_equal(engine_decoder_push(&decoder, t, TINY_MODEL_IM_END, false, &text, NULL),
                     KVF_OK);
    assert_int_equal(text.len, 4);
    assert_int_equal(engine_decoder_push(&decoder, t, TINY_MODEL_IM_END, true, &text, NULL),
                     KVF_OK);
    assert_string_equal(text.data + 4, "<|im_end|>");
    struct kvf_error error;
    assert_int_equal(engine_decoder_push(&decoder, t, 5000, true, &text, &error), KVF_EINVAL);
    test_contains(error.text, "5000");
    uint32_t ids[] = {TINY_MODEL_IM_END, UINT32_MAX};
    size_t before = text.len;
    assert_int_equal(engine_tokenizer_decode(t, ids, 2, true, &text, &error), KVF_EINVAL);
    assert_int_equal(text.len, before);
    assert_int_equal(strlen(text.data), before);
    engine_text_free(&text);
    engine_tokens_free(&tokens);
}

/* Inputs whose time would be quadratic in a careless tokenizer: half a megabyte each. A test that
 * takes minutes is one that failed. */
static void long_inputs_take_linear_time(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    static const char *const units[] = {"a",    " ",
                                        "the",  "\n",
                                        "<",    "<|im_",
                                        "1",    "\xc3\xa9",
                                        "\xff", " \n",
                                        "' ",   "\xe3\x80\x80",
                                        "st",   "nothing and the other "};
    enum {
        LEN = 500000,
    };
    char *text = malloc(LEN);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t unit = strlen(units[u]), len = LEN / unit * unit, total = 0;
        for (size_t i = 0; i < len; i++)
            text[i] = units[u][i % unit];
        struct engine_tokens tokens = encode(t, text, len, ENGINE_ENCODE_SPECIAL);
        for (size_t i = 0; i < tokens.count; i++) {
            size_t n;
            (void)engine_tokenizer_token_bytes(t, tokens.ids[i], &n);
            total += n;
        }
        assert_int_equal(total, len);
        engine_tokens_free(&tokens);
    }
    free(text);
}

static void renders_chatml(void **state)
{
    const struct engine_tokenizer *t = ((struct fixture *)*state)->tokenizer;
    const struct engine_message messages[] = {{"system", 6, "Be brief.", 9}, {"user", 4, "Hi", 2}};
    struct engine_text text = {0};
    struct kvf_error error;
    assert_int_equal(engine_tokenizer_chat(t, messages, 2, true, &text, &error), KVF_OK);
    assert_string_equal(text.data, "<|im_start|>system\nBe brief.<|im_end|>\n"
                                   "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    text.len = 0;
    assert_int_equal(engine_tokenizer_chat(t, messages + 1, 1, false, &text, &error), KVF_OK);
    assert_string_equal(text.data, "<|im_start|>user\nHi<|im_end|>\n");
    assert_int_equal(engine_tokenizer_chat(t, messages, 0, true, &text, &error), KVF_EINVAL);
    engine_text_free(&text);
}

/* Opens the tiny model with one text replaced by another of the same length. */
static enum kvf_status create_patched(struct fixture *f, const char *from, const char *to,
                                      struct engine_tokenizer **tokenizer_p,
                                      struct kvf_error *error)
{
    size_t size;
    struct gguf *file;
    uint8_t *data = test_read(f->folder.file, &size);
    char path[sizeof f->folder.path + 16];
    (void)snprintf(path, sizeof path, "%s/patched.gguf", f->folder.path);
    test_patch(data, size, from, to);
    test_write(path, data, size);
    free(data);
    assert_int_equal(gguf_open(path, &file, NULL), KVF_OK);
    enum kvf_status status = engine_tokenizer_create(file, tokenizer_p, error);
    gguf_close(file);
    (void)unlink(path);
    return status;
}

static void refuses_what_it_does_not_know(void **state)
{
    static const struct {
        const char *from, *to;
        enum kvf_status status;
        const char *part;
    } cases[] = {
        {"gpt2", "bert", KVF_ENOTSUP, "\"bert\""},
        {"smollm", "smolly", KVF_ENOTSUP, "tokenizer.ggml.pre is \"smolly\""},
        {"tokenizer.ggml.tokens", "tokenizer.ggml.t0kens", KVF_EFORMAT, "tokenizer.ggml.tokens"},
        {"tokenizer.ggml.merges", "tokenizer.ggml.m3rges", KVF_EFORMAT, "tokenizer.ggml.merges"},
        {"tokenizer.ggml.model", "tokenizer.ggml.m0del", KVF_EFORMAT, "tokenizer.ggml.model"},
        {"us er", "us ex", KVF_EFORMAT, "\"us ex\""},
        {"us er", "us_er", KVF_EFORMAT, "us_er"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_tokenizer *t = NULL;
        struct kvf_error error = {0};
        assert_int_equal(create_patched(*state, cases[i].from, cases[i].to, &t, &error),
                         cases[i].status);
        assert_null(t);
        assert_int_equal(error.status, cases[i].status);
        test_contains(error.text, cases[i].part);
    }
}

static void follows_the_files_template(void **state)
{
    const struct engine_message user = {"user", 4, "Hi", 2};
    struct engine_tokenizer *t;
    struct engine_text text = {0};
    struct kvf_error error;
    /* Another kind of template. */
    assert_int_equal(create_patched(*state, "{{'<|im_start|>' +", "{{'<|im_begin|>' +", &t, &error),
                     KVF_OK);
    assert_int_equal(engine_tokenizer_chat(t, &user, 1, true, &text, &error), KVF_OK);
    engine_tokenizer_destroy(t);
    engine_text_free(&text);
    /* No template: ChatML when the vocabulary has its tokens. */
    assert_int_equal(
        create_patched(*state, "tokenizer.chat_template", "tokenizer.chat_templatX", &t, &error),
        KVF_OK);
    assert_int_equal(engine_tokenizer_chat(t, &user, 1, false, &text, &error), KVF_OK);
    assert_string_equal(text.data, "<|im_start|>user\nHi<|im_end|>\n");
    engine_tokenizer_destroy(t);
    engine_text_free(&text);
    /* Not even the tokens. */
    assert_int_equal(create_patched(*state, "<|im_end|>", "<|im_fin|>", &t, &error), KVF_OK);
    assert_int_equal(engine_tokenizer_chat(t, &user, 1, false, &text, &error), KVF_ENOTSUP);
    test_contains(error.text, "ChatML");
    engine_tokenizer_destroy(t);
    engine_text_free(&text);
    /* A default system message, with an escaped newline as some files have it. */
    assert_int_equal(create_patched(*state, "{% for message in messages %}{{'<|im_start|>' +",
                                    "'<|im_start|>system\\nBe kind.<|im_end|>'{{'<| +", &t, &error),
                     KVF_OK);
    assert_int_equal(engine_tokenizer_chat(t, &user, 1, false, &text, &error), KVF_OK);
    assert_string_equal(text.data, "<|im_start|>system\nBe kind.<|im_end|>\n"
                                   "<|im_start|>user\nHi<|im_end|>\n");
    engine_tokenizer_destroy(t);
    engine_text_free(&text);
}

/* Ids that Hugging Face's tokenizer gives for SmolLM2's vocabulary. */
static void agrees_with_smollm2(void **state)
{
    static const struct {
        const char *text;
        uint32_t count, ids[20];
    } cases[] = {
        {"The capital of France is", 5, {504, 3575, 282, 4649, 314}},
        {"Hello, world! 1234", 9, {19556, 28, 905, 17, 216, 33, 34, 35, 36}},
        {"  two  spaces\n\nand\ttabs", 10, {216, 827, 216, 5600, 198, 198, 397, 197, 100, 7366}},
        {"caf\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac \xf0\x9f\x8e\x89",
         11,
         {83, 1939, 2756, 17097, 247, 126, 16736, 122, 15107, 232, 227}},
        {"<|im_start|>user\nHi<|im_end|>\n", 6, {1, 4093, 198, 26843, 2, 198}},
        {"don't I'LL 's", 7, {12420, 982, 339, 23, 16421, 637, 99}},
        {"x\xc2\xa0y \xc2\xbd\xe2\x85\xa7", 8, {104, 15442, 105, 216, 16738, 173, 223, 117}},
    };
    const char *path = getenv("KVF_TEST_MODEL");
    struct gguf *file;
    struct engine_tokenizer *t;
    struct kvf_error error;
    if (!path)
        skip();
    assert_int_equal(gguf_open(path, &file, &error), KVF_OK);
    assert_int_equal(engine_tokenizer_create(file, &t, &error), KVF_OK);
    gguf_close(file);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_tokens tokens =
            encode(t, cases[i].text, strlen(cases[i].text), ENGINE_ENCODE_SPECIAL);
        assert_int_equal(tokens.count, cases[i].count);
        assert_memory_equal(tokens.ids, cases[i].ids, cases[i].count * sizeof cases[i].ids[0]);
        expect_decoded(t, &tokens, cases[i].text, strlen(cases[i].text));
        engine_tokens_free(&tokens);
    }
    const struct engine_message user = {"user", 4, "Hi", 2};
    struct engine_text text = {0};
    assert_int_equal(engine_tokenizer_chat(t, &user, 1, true, &text, &error), KVF_OK);
    assert_string_equal(
        text.data, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                   "Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                   "<|im_start|>assistant\n");
    engine_text_free(&text);
    assert_int_equal(engine_tokenizer_vocab_size(t), 49152);
    assert_int_equal(engine_tokenizer_bos(t), 1);
    assert_int_equal(engine_tokenizer_eos(t), 2);
    engine_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(merges_inside_pieces_by_rank, setup, teardown),
        cmocka_unit_test_setup_teardown(recognises_special_tokens_when_asked, setup, teardown),
        cmocka_unit_test_setup_teardown(random_bytes_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(decodes_ill_formed_bytes_as_replacements, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stream_holds_back_incomplete_sequences, setup, teardown),
        cmocka_unit_test_setup_teardown(long_inputs_take_linear_time, setup, teardown),
        cmocka_unit_test_setup_teardown(renders_chatml, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_what_it_does_not_know, setup, teardown),
        cmocka_unit_test_setup_teardown(follows_the_files_template, setup, teardown),
        cmocka_unit_test(agrees_with_smollm2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
