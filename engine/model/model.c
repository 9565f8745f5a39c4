/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a model. */
#include "model_impl.h"
#include "tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH_TOKENS_DEFAULT = 512,
    BATCH_TOKENS_MAX = 1 << 13, /* with HEADS_MAX: keeps jobs below POOL_TASKS_MAX */
    SCRATCH_ALIGN = 64,
};

/* Hands out aligned parts of one allocation; with base NULL it only counts. */
struct carver {
    uint8_t *base;
    size_t used;
};

static void *carve(struct carver *carver, size_t count, size_t size)
{
    void *part = carver->base ? carver->base + carver->used : NULL;
    carver->used += (count * size + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    return part;
}

static size_t round_up(size_t n)
{
    return (n + KERNEL_STEP - 1) / KERNEL_STEP * KERNEL_STEP;
}

static void carve_scratch(struct engine_model *m, struct carver *c)
{
    const struct engine_model_info *info = &m->info;
    size_t tokens = info->batch_tokens_max, width = info->embedding_length;
    size_t q_width = (size_t)info->heads * info->head_size;
    size_t widest = width > q_width ? width : q_width;
    if (info->feed_forward_length > widest)
        widest = info->feed_forward_length;
    m->hidden = carve(c, tokens * width, sizeof(float));
    m->normed = carve(c, tokens * width, sizeof(float));
    m->query = carve(c, tokens * q_width, sizeof(float));
    m->key_value = carve(c, tokens * 2 * info->kv_heads * info->head_size, sizeof(float));
    m->mixed = carve(c, tokens * q_width, sizeof(float));
    m->gate = carve(c, tokens * info->feed_forward_length, sizeof(float));
    m->up = carve(c, tokens * info->feed_forward_length, sizeof(float));
    m->cosines = carve(c, tokens * info->head_size / 2, sizeof(float));
    m->sines = carve(c, tokens * info->head_size / 2, sizeof(float));
    m->token_sequence = carve(c, tokens, sizeof(uint32_t));
    m->token_position = carve(c, tokens, sizeof(uint32_t));
    m->token_id = carve(c, tokens, sizeof(uint32_t));
    for (uint32_t i = 0; i < info->threads; i++) {
        struct model_worker *worker = &m->workers[i];
        worker->rows = carve(c, KERNEL_ROW_BLOCK * widest, sizeof(float));
        worker->scores = carve(c, round_up(info->context_length), sizeof(float));
        worker->kv_rows = carve(c, info->context_length, sizeof(float *));
    }
}

static enum kvf_status make_scratch(struct engine_model *model, struct kvf_error *error)
{
    struct carver carver = {0};
    model->workers = calloc(model->info.threads, sizeof *model->workers);
    if (model->workers) {
        carve_scratch(model, &carver);
        model->scratch = aligned_alloc(SCRATCH_ALIGN, carver.used);
    }
    if (!model->workers || !model->scratch)
        return kvf_fail(error, KVF_ENOMEM,
                        "%s: no memory for %zu bytes of scratch (batch_tokens_max %u, %u threads)",
                        gguf_path(model->file), carver.used, model->info.batch_tokens_max,
                        model->info.threads);
    carver = (struct carver){.base = model->scratch};
    carve_scratch(model, &carver);
    return KVF_OK;
}

static enum kvf_status check_options(const struct engine_model_options *options,
                                     struct engine_model_info *info, struct kvf_error *error)
{
    static const struct engine_model_options defaults;
    if (!options)
        options = &defaults;
    info->threads = options->threads != 0 ? options->threads : pool_usable_cores();
    info->batch_tokens_max =
        options->batch_tokens_max != 0 ? options->batch_tokens_max : BATCH_TOKENS_DEFAULT;
    if (info->threads > POOL_THREADS_MAX)
        return kvf_fail(error, KVF_EINVAL, "threads is %u; at most %d are allowed", info->threads,
                        POOL_THREADS_MAX);
    if (info->batch_tokens_max > BATCH_TOKENS_MAX)
        return kvf_fail(error, KVF_EINVAL, "batch_tokens_max is %u; at most %d are allowed",
                        info->batch_tokens_max, BATCH_TOKENS_MAX);
    return KVF_OK;
}

static enum kvf_status open_parts(struct engine_model *model, const char *path,
                                  struct kvf_error *error)
{
    KVF_TRY(gguf_open(path, &model->file, error));
    KVF_TRY(engine_tokenizer_create(model->file, &model->tokenizer, error));
    KVF_TRY(model_read_keys(model, error));
    KVF_TRY(model_read_weights(model, error));
    model->kernels = kernels_best();
    model->info.isa = model->kernels->name;
    KVF_TRY(make_scratch(model, error));
    return pool_create(model->info.threads, &model->pool, error);
}

enum kvf_status engine_model_open(const char *path, const struct engine_model_options *options,
                                  struct engine_model **model_p, struct kvf_error *error)
{
    struct engine_model_info info = {0};
    KVF_TRY(check_options(options, &info, error));
    struct engine_model *model = calloc(1, sizeof *model);
    if (!model)
        return kvf_fail(error, KVF_ENOMEM, "%s: no memory to open the model", path);
    model->info = info;
    enum kvf_status status = open_parts(model, path, error);
    /* A key that must be there is a defect of the file, not a question without an answer. */
    if (status == KVF_ENOTFOUND)
        status = KVF_EFORMAT;
    if (status != KVF_OK) {
        if (error)
            error->status = status;
        engine_model_close(model);
        return status;
    }
    *model_p = model;
    return KVF_OK;
}

void engine_model_close(struct engine_model *model)
{
    if (!model)
        return;
    pool_destroy(model->pool);
    engine_tokenizer_destroy(model->tokenizer);
    gguf_close(model->file);
    free(model->workers);
    free(model->scratch);
    free(model->layers);
    free(model->inverse_frequencies);
    free(model->name);
    free(model);
}

const struct engine_model_info *engine_model_info(const struct engine_model *model)
{
    return &model->info;
}

const struct engine_tokenizer *engine_model_tokenizer(const struct engine_model *model)
{
    return model->tokenizer;
}

uint64_t engine_model_kv_block_bytes(const struct engine_model *model, uint32_t block_size)
{
    const struct engine_model_info *info = &model->info;
    return (uint64_t)info->kv_heads * block_size * 2 * info->head_size * sizeof(float);
}
