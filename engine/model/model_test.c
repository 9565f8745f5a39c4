/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "model.h"
#include "tokenizer.h"

#include <math.h>

enum {
    PROMPT = 150,
    VOCAB_MAX = 512,
    CACHE_TOKENS = 1024,
    NOISE = 7, /* other sequences in a mixed batch */
};

/* A model with a cache of its own. */
struct rig {
    struct test_folder folder;
    struct engine_model *model;
    const struct engine_model_info *info;
    struct engine_kv kv;
    uint8_t *memory;
    uint8_t *bases[8];
    uint32_t table[CACHE_TOKENS];
};

static uint32_t prompt[PROMPT];

static uint32_t next_token(uint64_t *state, uint32_t vocab_size)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % vocab_size;
}

static void rig_cache(struct rig *rig, uint32_t block_size, bool scattered)
{
    uint32_t blocks = CACHE_TOKENS / block_size;
    uint64_t bytes = engine_model_kv_block_bytes(rig->model, block_size), stride = bytes + 64;
    free(rig->memory);
    rig->memory = malloc(stride * blocks * rig->info->layers);
    assert_non_null(rig->memory);
    /* NaN everywhere: what was not written before it is read shows. */
    memset(rig->memory, 0xff, stride * blocks * rig->info->layers);
    for (uint32_t i = 0; i < rig->info->layers; i++)
        rig->bases[i] = rig->memory + (uint64_t)i * blocks * stride;
    for (uint32_t i = 0; i < blocks; i++)
        rig->table[i] = scattered ? (i * 37 + 11) % blocks : i;
    rig->kv = (struct engine_kv){rig->bases, stride, block_size, blocks};
}

static void rig_open(struct rig *rig, const struct tiny_model_options *tiny, uint32_t threads)
{
    struct engine_model_options options = {.threads = threads, .batch_tokens_max = 512};
    struct kvf_error error;
    memset(rig, 0, sizeof *rig);
    test_folder_make(&rig->folder);
    if (tiny_model_write(rig->folder.file, tiny, &error) != KVF_OK)
        fail_msg("%s", error.text);
    if (engine_model_open(rig->folder.file, &options, &rig->model, &error) != KVF_OK)
        fail_msg("%s", error.text);
    rig->info = engine_model_info(rig->model);
    assert_true(rig->info->vocab_size <= VOCAB_MAX);
    uint64_t state = 5;
    for (unsigned i = 0; i < PROMPT; i++)
        prompt[i] = next_token(&state, rig->info->vocab_size);
    rig_cache(rig, 16, false);
}

static void rig_close(struct rig *rig)
{
    engine_model_close(rig->model);
    free(rig->memory);
    test_folder_remove(&rig->folder);
}

/* The prompt's last logits, its tokens given `chunk` at a time. */
static void run_prompt(struct rig *rig, uint32_t chunk, float *logits)
{
    struct kvf_error error;
    for (uint32_t at = 0; at < PROMPT; at += chunk) {
        uint32_t n = PROMPT - at < chunk ? PROMPT - at : chunk;
        struct engine_sequence s = {prompt + at,     n, at, rig->table, rig->kv.blocks,
                                    at + n == PROMPT};
        if (engine_model_forward(rig->model, &rig->kv, &s, 1, logits, &error) != KVF_OK)
            fail_msg("%s", error.text);
    }
}

/* K and V of the prompt, gathered in order of position. */
static float *gather_cache(const struct rig *rig, size_t *count_p)
{
    const struct engine_model_info *info = rig->info;
    size_t row = 2 * (size_t)info->head_size, count = row * info->kv_heads * PROMPT * info->layers;
    float *all = malloc(count * sizeof *all), *to = all;
    assert_non_null(all);
    for (uint32_t layer = 0; layer < info->layers; layer++) {
        for (uint32_t p = 0; p < PROMPT; p++) {
            for (uint32_t h = 0; h < info->kv_heads; h++, to += row) {
                const uint8_t *block = rig->bases[layer] + rig->table[p / rig->kv.block_size] *
                                                               rig->kv.block_stride_bytes;
                size_t slot = (size_t)h * rig->kv.block_size + p % rig->kv.block_size;
                memcpy(to, block + slot * row * sizeof(float), row * sizeof(float));
            }
        }
    }
    *count_p = count;
    return all;
}

static void expect_same_run(struct rig *rig, uint32_t chunk, const float *logits,
                            const float *cache, size_t count)
{
    float again[VOCAB_MAX];
    size_t n;
    run_prompt(rig, chunk, again);
    assert_memory_equal(again, logits, rig->info->vocab_size * sizeof *logits);
    float *other = gather_cache(rig, &n);
    assert_int_equal(n, count);
    assert_memory_equal(other, cache, count * sizeof *cache);
    free(other);
}

/* The heart of the matter: the same bits for every way to cut the prompt, every block size, every
 * order of blocks, and any number of threads; for each tensor type. */
static void results_do_not_depend_on_chunks_blocks_or_threads(void **state)
{
    static const char *const types[] = {"f32", "f16", "q8_0", "q4_1", "q6_k"};
    static const uint32_t chunks[] = {1, 7, 16, 64, PROMPT}, block_sizes[] = {1, 4, 16, 32};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        struct tiny_model_options tiny = {.seed = t, .type = types[t], .tied = t % 2 == 0};
        struct rig one, two, three;
        float logits[VOCAB_MAX];
        size_t count;
        rig_open(&one, &tiny, 1);
        rig_open(&two, &tiny, 2);
        rig_open(&three, &tiny, 3);
        run_prompt(&one, PROMPT, logits);
        float *cache = gather_cache(&one, &count);
        for (uint32_t i = 0; i < one.info->vocab_size; i++)
            assert_true(isfinite(logits[i]));
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            for (size_t b = 0; b < sizeof block_sizes / sizeof block_sizes[0]; b++) {
                rig_cache(&one, block_sizes[b], true);
                expect_same_run(&one, chunks[c], logits, cache, count);
                rig_cache(&two, block_sizes[b], b % 2 == 0);
                expect_same_run(&two, chunks[c], logits, cache, count);
            }
            rig_cache(&three, 16, true);
            expect_same_run(&three, chunks[c], logits, cache, count);
        }
        free(cache);
        rig_close(&one);
        rig_close(&two);
        rig_close(&three);
    }
}

/* The prompt in chunks, each chunk between other sequences' chunks and decode tokens. */
static void results_do_not_depend_on_the_batch(void **state)
{
    static const uint32_t noise_lengths[NOISE] = {1, 1, 5, 1, 17, 2, 1};
    struct tiny_model_options tiny = {.seed = 3, .type = "q4_1", .head_size = 32};
    struct rig rig;
    float alone[VOCAB_MAX], logits[(NOISE + 1) * VOCAB_MAX];
    size_t count, n;
    rig_open(&rig, &tiny, 2);
    rig_cache(&rig, 4, true);
    run_prompt(&rig, 11, alone);
    float *cache = gather_cache(&rig, &count);

    rig_cache(&rig, 4, true);
    uint32_t noise_at[NOISE] = {0}, own_blocks = (PROMPT + 3) / 4;
    uint32_t noise_blocks = (rig.kv.blocks - own_blocks) / NOISE, own_logits = 0;
    uint64_t random = 77;
    for (uint32_t at = 0, round = 0; at < PROMPT; round++) {
        struct engine_sequence sequences[NOISE + 1];
        uint32_t tokens[NOISE][32], chunk = round % 3 == 0 ? 1 : 13, wanted = 0;
        uint32_t own = round % (NOISE + 1);
        if (chunk > PROMPT - at)
            chunk = PROMPT - at;
        for (uint32_t i = 0, s = 0; s <= NOISE; s++) {
            if (s == own) {
                sequences[s] = (struct engine_sequence){
                    prompt + at, chunk, at, rig.table, rig.kv.blocks, at + chunk == PROMPT};
                own_logits = wanted;
            } else {
                for (uint32_t j = 0; j < noise_lengths[i]; j++)
                    tokens[i][j] = next_token(&random, rig.info->vocab_size);
                if (noise_at[i] + noise_lengths[i] > noise_blocks * 4)
                    noise_at[i] = 0;
                sequences[s] = (struct engine_sequence){
                    tokens[i],    noise_lengths[i],
                    noise_at[i],  rig.table + own_blocks + (size_t)i * noise_blocks,
                    noise_blocks, (round + i) % 2 == 0};
                noise_at[i] += noise_lengths[i];
                i++;
            }
            wanted += sequences[s].want_logits;
        }
        assert_int_equal(
            engine_model_forward(rig.model, &rig.kv, sequences, NOISE + 1, logits, NULL), KVF_OK);
        at += chunk;
    }
    assert_memory_equal(logits + (size_t)own_logits * rig.info->vocab_size, alone,
                        rig.info->vocab_size * sizeof *alone);
    float *batched = gather_cache(&rig, &n);
    assert_int_equal(n, count);
    assert_memory_equal(batched, cache, count * sizeof *cache);
    free(batched);
    free(cache);
    rig_close(&rig);
}

/* Two sequences with a common beginning may share its blocks, even when one of them fills them in
 * the very same call. */
static void shared_blocks_may_be_filled_in_the_same_call(void **state)
{
    struct rig rig;
    float wanted[VOCAB_MAX], logits[2 * VOCAB_MAX];
    rig_open(&rig, NULL, 2);
    run_prompt(&rig, PROMPT, wanted);
    rig_cache(&rig, 16, false);
    uint32_t other[CACHE_TOKENS / 16];
    memcpy(other, rig.table, sizeof other);
    for (uint32_t i = 128 / 16; i < 20; i++)
        other[i] = 40 + i;
    struct engine_sequence both[] = {
        {prompt + 128, PROMPT - 128, 128, other, rig.kv.blocks, true},
        {prompt, 128, 0, rig.table, rig.kv.blocks, true},
    };
    assert_int_equal(engine_model_forward(rig.model, &rig.kv, both, 2, logits, NULL), KVF_OK);
    assert_memory_equal(logits, wanted, rig.info->vocab_size * sizeof *wanted);
    rig_close(&rig);
}

/* A token's K and V land in its slot; nothing else in the cache changes. */
static void writes_only_the_slots_of_the_batch(void **state)
{
    struct rig rig;
    uint32_t table[] = {5, 2};
    rig_open(&rig, NULL, 1);
    const struct engine_model_info *info = rig.info;
    struct engine_sequence s = {prompt, 18, 0, table, 2, false};
    size_t size = rig.kv.block_stride_bytes * rig.kv.blocks * info->layers;
    memset(rig.memory, 0xa5, size);
    assert_int_equal(engine_model_forward(rig.model, &rig.kv, &s, 1, NULL, NULL), KVF_OK);
    size_t row = 2 * (size_t)info->head_size * sizeof(float), changed = 0;
    for (size_t at = 0; at < size; at += row) {
        /* Strides are 64 bytes longer than blocks: walk block by block. */
        size_t block = at / rig.kv.block_stride_bytes % rig.kv.blocks;
        size_t slot = at % rig.kv.block_stride_bytes / row % 16;
        bool written = (block == 5) || (block == 2 && slot < 2);
        if (at % rig.kv.block_stride_bytes + row > engine_model_kv_block_bytes(rig.model, 16)) {
            at = (at / rig.kv.block_stride_bytes + 1) * rig.kv.block_stride_bytes - row;
            continue;
        }
        bool same = true;
        for (size_t i = 0; i < row; i++)
            same = same && rig.memory[at + i] == 0xa5;
        assert_int_equal(same, !written);
        changed += !same;
    }
    assert_int_equal(changed, (size_t)info->layers * info->kv_heads * 18);
    rig_close(&rig);
}

/* Every earlier token matters: otherwise comparing outputs would prove little. */
static void logits_depend_on_every_token(void **state)
{
    struct rig rig;
    float logits[VOCAB_MAX], other[VOCAB_MAX];
    rig_open(&rig, NULL, 1);
    run_prompt(&rig, PROMPT, logits);
    for (unsigned i = 0; i < PROMPT; i += 10) {
        uint32_t was = prompt[i];
        prompt[i] = (was + 1) % rig.info->vocab_size;
        run_prompt(&rig, PROMPT, other);
        assert_memory_not_equal(other, logits, rig.info->vocab_size * sizeof *logits);
        prompt[i] = was;
    }
    rig_close(&rig);
}

static void refuses_bad_batches(void **state)
{
    struct rig rig;
    struct kvf_error error;
    float logits[VOCAB_MAX];
    rig_open(&rig, NULL, 1);
    const uint32_t bad_token = rig.info->vocab_size, bad_block = rig.kv.blocks;
    static uint32_t many[600];
    const struct {
        struct engine_sequence sequence;
        enum kvf_status status;
        const char *part;
    } cases[] = {
        {{prompt, 0, 0, rig.table, 4, false}, KVF_EINVAL, "no tokens"},
        {{&bad_token, 1, 0, rig.table, 4, false}, KVF_EINVAL, "token id 294"},
        {{prompt, 1, 4096, rig.table, 64, false}, KVF_EINVAL, "context of 4096"},
        {{prompt, 2, 4095, rig.table, 64, false}, KVF_EINVAL, "context of 4096"},
        {{prompt, 1, UINT32_MAX, rig.table, 64, false}, KVF_EINVAL, "context of 4096"},
        {{prompt, 16, 1, rig.table, 1, false},
         KVF_EINVAL,
         "needs 2 blocks of 16 but its table has 1"},
        {{prompt, 1, 0, &bad_block, 1, false}, KVF_EINVAL, "block 64 but the cache has 64"},
        {{many, 513, 0, rig.table, 64, false}, KVF_ELIMIT, "513 tokens; batch_tokens_max is 512"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(
            engine_model_forward(rig.model, &rig.kv, &cases[i].sequence, 1, logits, &error),
            cases[i].status);
        test_contains(error.text, cases[i].part);
    }
    struct engine_sequence good = {prompt, 16, 0, rig.table, 1, true};
    assert_int_equal(engine_model_forward(rig.model, &rig.kv, &good, 1, NULL, &error), KVF_EINVAL);
    struct engine_kv kv = rig.kv;
    kv.block_size = 12;
    assert_int_equal(engine_model_forward(rig.model, &kv, &good, 1, logits, &error), KVF_EINVAL);
    test_contains(error.text, "power of two");
    kv = rig.kv;
    kv.block_stride_bytes = engine_model_kv_block_bytes(rig.model, 16) - 4;
    assert_int_equal(engine_model_forward(rig.model, &kv, &good, 1, logits, &error), KVF_EINVAL);
    test_contains(error.text, "block_stride_bytes");
    assert_int_equal(engine_model_forward(rig.model, &rig.kv, &good, 1, logits, &error), KVF_OK);
    assert_int_equal(engine_model_forward(rig.model, &rig.kv, NULL, 0, NULL, &error), KVF_OK);
    rig_close(&rig);
}

static void refuses_files_that_are_no_llama_model(void **state)
{
    static const struct {
        const char *from, *to;
        enum kvf_status status;
        const char *part;
    } cases[] = {
        /* "llama" first appears as the architecture's value. */
        {"llama", "qwen2", KVF_ENOTSUP, "general.architecture is \"qwen2\""},
        {"general.architecture", "general.architectur3", KVF_EFORMAT, "general.architecture"},
        {"llama.block_count", "llama.bl0ck_count", KVF_EFORMAT, "llama.block_count is missing"},
        {"attention.layer_norm", "attention.layer_n0rm", KVF_EFORMAT, "layer_norm_rms_epsilon"},
        {"blk.1.ffn_up.weight", "blk.1.ffn_up.weighs", KVF_EFORMAT,
         "blk.1.ffn_up.weight is missing"},
        {"blk.0.attn_q.weight", "blk.7.attn_q.weight", KVF_EFORMAT,
         "blk.0.attn_q.weight is missing"},
        {"gpt2", "gpt9", KVF_ENOTSUP, "gpt9"},
    };
    struct rig rig;
    size_t size;
    rig_open(&rig, NULL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_model *model = NULL;
        struct kvf_error error = {0};
        assert_int_equal(tiny_model_write(rig.folder.file, NULL, &error), KVF_OK);
        uint8_t *data = test_read(rig.folder.file, &size);
        test_patch(data, size, cases[i].from, cases[i].to);
        test_write(rig.folder.file, data, size);
        free(data);
        assert_int_equal(engine_model_open(rig.folder.file, NULL, &model, &error), cases[i].status);
        assert_null(model);
        assert_int_equal(error.status, cases[i].status);
        test_contains(error.text, rig.folder.file);
        test_contains(error.text, cases[i].part);
    }
    rig_close(&rig);
}

/* A tensor the engine would have to ignore (a bias, say) is refused by name. */
static void refuses_tensors_it_would_ignore(void **state)
{
    struct rig rig;
    struct kvf_error error;
    size_t size;
    rig_open(&rig, NULL, 1);
    uint8_t *data = test_read(rig.folder.file, &size), *at = data;
    for (size_t left = size; left > 0; left = size - (size_t)(at - data)) {
        at = memmem(at, left, "output.weight", 13);
        assert_non_null(at);
        if (at[-8] == 13) /* its length: not the end of a longer name */
            break;
        at++;
    }
    test_patch(at, 13, "output.weight", "output.biases");
    test_write(rig.folder.file, data, size);
    free(data);
    struct engine_model *model = NULL;
    assert_int_equal(engine_model_open(rig.folder.file, NULL, &model, &error), KVF_ENOTSUP);
    test_contains(error.text, "output.biases");
    rig_close(&rig);
}

/* Damaged bytes in the head: an error or a model, never a crash; the sanitizers watch. */
static void survives_changed_bytes(void **state)
{
    struct rig rig;
    size_t size, refused = 0;
    struct engine_model_options options = {.threads = 1, .batch_tokens_max = 4};
    rig_open(&rig, NULL, 1);
    uint8_t *data = test_read(rig.folder.file, &size);
    for (size_t at = 24; at < 14000; at += 11) {
        uint8_t was = data[at];
        struct engine_model *model = NULL;
        struct kvf_error error;
        data[at] ^= (uint8_t)(1u << at % 8);
        test_write(rig.folder.file, data, size);
        if (engine_model_open(rig.folder.file, &options, &model, &error) == KVF_OK)
            engine_model_close(model);
        else
            refused++;
        data[at] = was;
    }
    assert_true(refused > 50);
    free(data);
    rig_close(&rig);
}

static void describes_itself(void **state)
{
    struct tiny_model_options tiny = {.seed = 9, .layers = 3, .tied = true};
    struct rig rig;
    rig_open(&rig, &tiny, 2);
    assert_string_equal(rig.info->name, "tiny-random-9");
    assert_string_equal(rig.info->architecture, "llama");
    assert_int_equal(rig.info->layers, 3);
    assert_int_equal(rig.info->heads, 4);
    assert_int_equal(rig.info->kv_heads, 2);
    assert_int_equal(rig.info->head_size, 16);
    assert_int_equal(rig.info->context_length, 4096);
    assert_int_equal(rig.info->threads, 2);
    assert_true(rig.info->tied_embeddings);
    assert_int_equal(rig.info->vocab_size,
                     engine_tokenizer_vocab_size(engine_model_tokenizer(rig.model)));
    assert_int_equal(engine_model_kv_block_bytes(rig.model, 16), 2 * 16 * 2 * 16 * 4);
    rig_close(&rig);

    struct kvf_error error;
    struct engine_model *model = NULL;
    struct engine_model_options options = {.threads = 1000};
    assert_int_equal(engine_model_open("x", &options, &model, &error), KVF_EINVAL);
    test_contains(error.text, "1000");
    options = (struct engine_model_options){.batch_tokens_max = 1 << 20};
    assert_int_equal(engine_model_open("x", &options, &model, &error), KVF_EINVAL);
    test_contains(error.text, "1048576");
    engine_model_close(NULL);
}

static void tiny_models_are_reproducible(void **state)
{
    struct tiny_model_options tiny = {.seed = 4, .type = "q8_0"};
    struct rig one, two;
    size_t n1, n2;
    rig_open(&one, &tiny, 1);
    rig_open(&two, &tiny, 1);
    uint8_t *a = test_read(one.folder.file, &n1), *b = test_read(two.folder.file, &n2);
    assert_int_equal(n1, n2);
    assert_memory_equal(a, b, n1);
    free(b);
    tiny.seed = 5;
    assert_int_equal(tiny_model_write(two.folder.file, &tiny, NULL), KVF_OK);
    b = test_read(two.folder.file, &n2);
    assert_int_equal(n1, n2);
    assert_memory_not_equal(a, b, n1);
    free(a);
    free(b);
    struct kvf_error error;
    static const struct tiny_model_options bad[] = {
        {.type = "q9"},      {.heads = 3},
        {.head_size = 24},   {.head_size = 16, .type = "q6_k"},
        {.layers = 100000},  {.heads = UINT32_MAX - 1},
        {.feed_forward = 17}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(tiny_model_write(two.folder.file, &bad[i], &error), KVF_EINVAL);
    assert_int_equal(tiny_model_write("/nonexistent/x.gguf", NULL, &error), KVF_ESYSTEM);
    rig_close(&one);
    rig_close(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_chunks_blocks_or_threads),
        cmocka_unit_test(results_do_not_depend_on_the_batch),
        cmocka_unit_test(shared_blocks_may_be_filled_in_the_same_call),
        cmocka_unit_test(writes_only_the_slots_of_the_batch),
        cmocka_unit_test(logits_depend_on_every_token),
        cmocka_unit_test(refuses_bad_batches),
        cmocka_unit_test(refuses_files_that_are_no_llama_model),
        cmocka_unit_test(refuses_tensors_it_would_ignore),
        cmocka_unit_test(survives_changed_bytes),
        cmocka_unit_test(describes_itself),
        cmocka_unit_test(tiny_models_are_reproducible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
