/* SPDX-License-Identifier: Apache-2.0 */
/* Prints how fast a model prefills and decodes on this machine. */
#include "model.h"
#include "sampler.h"
#include "tokenizer.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    BLOCK_SIZE = 16,
    PROMPT_DEFAULT = 512,
    DECODE_DEFAULT = 64,
    SEQUENCES_DEFAULT = 1,
};

struct bench {
    struct engine_model *model;
    const struct engine_model_info *info;
    struct engine_kv kv;
    uint8_t *cache;
    uint8_t **bases;
    uint32_t *blocks; /* n_sequences tables of blocks_each */
    uint32_t blocks_each;
    uint32_t prompt_tokens;
    uint32_t decode_tokens;
    uint32_t n_sequences;
    uint32_t *prompt;
    float *logits;
};

static double now_s(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int fail(const struct kvf_error *error)
{
    (void)fprintf(stderr, "model-bench: %s\n", error->text);
    return 1;
}

static bool make_cache(struct bench *b)
{
    uint32_t tokens = b->prompt_tokens + b->decode_tokens;
    b->blocks_each = (tokens + BLOCK_SIZE - 1) / BLOCK_SIZE;
    uint64_t block_bytes = engine_model_kv_block_bytes(b->model, BLOCK_SIZE);
    uint32_t blocks = b->blocks_each * b->n_sequences;
    b->cache = calloc(blocks, block_bytes * b->info->layers);
    b->bases = calloc(b->info->layers, sizeof *b->bases);
    b->blocks = calloc(blocks, sizeof *b->blocks);
    b->prompt = calloc(tokens, sizeof *b->prompt);
    b->logits = calloc(b->n_sequences, b->info->vocab_size * sizeof *b->logits);
    if (!b->cache || !b->bases || !b->blocks || !b->prompt || !b->logits)
        return false;
    for (uint32_t i = 0; i < b->info->layers; i++)
        b->bases[i] = b->cache + (uint64_t)i * blocks * block_bytes;
    for (uint32_t i = 0; i < blocks; i++)
        b->blocks[i] = i;
    for (uint32_t i = 0; i < tokens; i++)
        b->prompt[i] = (i * 7919u + 13u) % b->info->vocab_size;
    b->kv = (struct engine_kv){b->bases, block_bytes, BLOCK_SIZE, blocks};
    return true;
}

static enum kvf_status prefill(struct bench *b, double *seconds_p, struct kvf_error *error)
{
    double start = now_s();
    for (uint32_t s = 0; s < b->n_sequences; s++) {
        for (uint32_t at = 0; at < b->prompt_tokens;) {
            uint32_t n = b->prompt_tokens - at;
            if (n > b->info->batch_tokens_max)
                n = b->info->batch_tokens_max;
            struct engine_sequence sequence = {
                b->prompt + at,
                n,
                at,
                b->blocks + (size_t)s * b->blocks_each,
                b->blocks_each,
                at + n == b->prompt_tokens,
            };
            KVF_TRY(engine_model_forward(b->model, &b->kv, &sequence, 1,
                                         b->logits + (size_t)s * b->info->vocab_size, error));
            at += n;
        }
    }
    *seconds_p = now_s() - start;
    return KVF_OK;
}

static enum kvf_status decode(struct bench *b, double *seconds_p, struct kvf_error *error)
{
    struct engine_sampler_params greedy = ENGINE_SAMPLER_PARAMS_INIT;
    struct engine_sampler *sampler;
    KVF_TRY(engine_sampler_create(b->info->vocab_size, &sampler, error));
    uint32_t *tokens = calloc(b->n_sequences, sizeof *tokens);
    struct engine_sequence *sequences = calloc(b->n_sequences, sizeof *sequences);
    enum kvf_status status = KVF_OK;
    double start = now_s();
    if (!tokens || !sequences)
        status = kvf_fail(error, KVF_ENOMEM, "no memory for %u sequences", b->n_sequences);
    for (uint32_t i = 0; tokens && sequences && i < b->decode_tokens && status == KVF_OK; i++) {
        for (uint32_t s = 0; s < b->n_sequences && status == KVF_OK; s++) {
            status =
                engine_sampler_choose(sampler, &greedy, b->logits + (size_t)s * b->info->vocab_size,
                                      i, &tokens[s], error);
            sequences[s] = (struct engine_sequence){
                &tokens[s],     1,    b->prompt_tokens + i, b->blocks + (size_t)s * b->blocks_each,
                b->blocks_each, true,
            };
        }
        if (status == KVF_OK)
            status =
                engine_model_forward(b->model, &b->kv, sequences, b->n_sequences, b->logits, error);
    }
    *seconds_p = now_s() - start;
    free(tokens);
    free(sequences);
    engine_sampler_destroy(sampler);
    return status;
}

static int run(struct bench *b, const char *path, const struct engine_model_options *options)
{
    struct kvf_error error;
    double start = now_s(), seconds;
    if (engine_model_open(path, options, &b->model, &error) != KVF_OK)
        return fail(&error);
    b->info = engine_model_info(b->model);
    (void)printf("model    %s (%s, %u threads)\n", b->info->name, b->info->isa, b->info->threads);
    (void)printf("load     %.3f s\n", now_s() - start);
    if ((uint64_t)b->prompt_tokens + b->decode_tokens > b->info->context_length) {
        (void)fprintf(stderr, "model-bench: %u + %u tokens exceed the model's context of %u\n",
                      b->prompt_tokens, b->decode_tokens, b->info->context_length);
        return 1;
    }
    if (!make_cache(b)) {
        (void)fprintf(stderr, "model-bench: no memory for the KV cache\n");
        return 1;
    }
    for (int round = 0; round < 2; round++) { /* the first one reads the file in */
        if (prefill(b, &seconds, &error) != KVF_OK)
            return fail(&error);
    }
    (void)printf("prefill  %.1f tokens/s (%u x %u tokens)\n",
                 b->n_sequences * (double)b->prompt_tokens / seconds, b->n_sequences,
                 b->prompt_tokens);
    if (decode(b, &seconds, &error) != KVF_OK)
        return fail(&error);
    (void)printf("decode   %.1f tokens/s (%u x %u tokens)\n",
                 b->n_sequences * (double)b->decode_tokens / seconds, b->n_sequences,
                 b->decode_tokens);
    return 0;
}

static const char usage[] =
    "usage: model-bench MODEL.gguf [--threads N] [--batch-tokens N] [--prompt N] [--decode N]\n"
    "                   [--sequences N]\n";

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"threads", required_argument, NULL, 't'},
        {"batch-tokens", required_argument, NULL, 'b'},
        {"prompt", required_argument, NULL, 'p'},
        {"decode", required_argument, NULL, 'd'},
        {"sequences", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct engine_model_options options = {0};
    struct bench b = {.prompt_tokens = PROMPT_DEFAULT,
                      .decode_tokens = DECODE_DEFAULT,
                      .n_sequences = SEQUENCES_DEFAULT};
    int option;
    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        uint32_t value = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        if (option == 'h') {
            (void)fputs(usage, stdout);
            return 0;
        }
        if (option == '?' || value == 0) {
            (void)fputs(usage, stderr);
            return 2;
        }
        *(option == 't'   ? &options.threads
          : option == 'b' ? &options.batch_tokens_max
          : option == 'p' ? &b.prompt_tokens
          : option == 'd' ? &b.decode_tokens
                          : &b.n_sequences) = value;
    }
    if (optind + 1 != argc) {
        (void)fputs(usage, stderr);
        return 2;
    }
    int rc = run(&b, argv[optind], &options);
    engine_model_close(b.model);
    free(b.cache);
    free(b.bases);
    free(b.blocks);
    free(b.prompt);
    free(b.logits);
    return rc;
}
