/* SPDX-License-Identifier: Apache-2.0 */
/* One forward call: check the batch, then layer by layer jobs for the pool. Every task computes a
 * fixed part of the result in a fixed order, so which thread takes it makes no difference. */
#include "model_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
    TASK_TOKENS = 8, /* tokens of one task of a per-token job */
};

/* Everything the tasks of one call share. Lives on the caller's stack while the call runs. */
struct pass {
    struct engine_model *model;
    const struct engine_kv *kv;
    const struct engine_sequence *sequences;
    uint32_t n_tokens;
    const struct model_layer *layer;
    uint32_t layer_index;
    const float *norm; /* of norm_task */
};

/* Some matrices applied to the same activations; each task is a block of rows of one of them. */
struct product {
    struct engine_model *model;
    const float *x;
    size_t x_stride;
    uint32_t n_tokens;
    bool add;
    unsigned n_parts;
    struct product_part {
        const struct kernel_matrix *matrix;
        float *y;
        size_t y_stride;
    } parts[3];
};

static uint32_t row_blocks(const struct kernel_matrix *matrix)
{
    return (matrix->rows + KERNEL_ROW_BLOCK - 1) / KERNEL_ROW_BLOCK;
}

static void product_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct product *p = ctx;
    const struct product_part *part = p->parts;
    while (task >= row_blocks(part->matrix)) {
        task -= row_blocks(part->matrix);
        part++;
    }
    uint32_t first = task * KERNEL_ROW_BLOCK, rows = part->matrix->rows - first;
    if (rows > KERNEL_ROW_BLOCK)
        rows = KERNEL_ROW_BLOCK;
    p->model->kernels->multiply(part->matrix, first, rows, p->x, p->x_stride, p->n_tokens,
                                part->y + first, part->y_stride, p->add,
                                p->model->workers[worker].rows);
}

static void run_product(struct product *p)
{
    uint32_t tasks = 0;
    for (unsigned i = 0; i < p->n_parts; i++)
        tasks += row_blocks(p->parts[i].matrix);
    pool_run(p->model->pool, tasks, product_task, p);
}

/* The tokens that a per-token task covers: *first_p .. *end_p - 1. */
static void token_range(uint32_t task, uint32_t n_tokens, uint32_t *first_p, uint32_t *end_p)
{
    *first_p = task * TASK_TOKENS;
    *end_p = n_tokens - *first_p < TASK_TOKENS ? n_tokens : *first_p + TASK_TOKENS;
}

static void run_per_token(struct pass *pass, pool_task_fn fn)
{
    pool_run(pass->model->pool, (pass->n_tokens + TASK_TOKENS - 1) / TASK_TOKENS, fn, pass);
}

static void embed_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct pass *pass = ctx;
    struct engine_model *m = pass->model;
    uint32_t width = m->info.embedding_length, half = m->info.head_size / 2, first, end;
    (void)worker;
    token_range(task, pass->n_tokens, &first, &end);
    for (uint32_t t = first; t < end; t++) {
        m->kernels->dequantize(m->embedding.type, kernel_matrix_row(&m->embedding, m->token_id[t]),
                               m->hidden + (size_t)t * width, width);
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)m->token_position[t] * (double)m->inverse_frequencies[i];
            m->cosines[(size_t)t * half + i] = (float)cos(angle);
            m->sines[(size_t)t * half + i] = (float)sin(angle);
        }
    }
}

static void norm_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct pass *pass = ctx;
    struct engine_model *m = pass->model;
    uint32_t width = m->info.embedding_length, first, end;
    (void)worker;
    token_range(task, pass->n_tokens, &first, &end);
    for (uint32_t t = first; t < end; t++)
        m->kernels->rms_norm(m->hidden + (size_t)t * width, pass->norm, width, m->rms_epsilon,
                             m->normed + (size_t)t * width);
}

/* The cache row of one position in one KV head: K, then V. */
static float *kv_row(const struct pass *pass, const struct engine_sequence *sequence,
                     uint32_t position, uint32_t head)
{
    const struct engine_kv *kv = pass->kv;
    const struct engine_model_info *info = &pass->model->info;
    uint64_t block = sequence->blocks[position / kv->block_size];
    uint64_t row = (uint64_t)head * kv->block_size + position % kv->block_size;
    uint8_t *at = kv->layer_bases[pass->layer_index] + block * kv->block_stride_bytes +
                  row * 2 * info->head_size * sizeof(float);
    return (float *)(void *)at;
}

/* Rotates queries and keys and stores keys and values into the cache. */
static void store_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct pass *pass = ctx;
    struct engine_model *m = pass->model;
    const struct engine_model_info *info = &m->info;
    uint32_t size = info->head_size, kv_width = info->kv_heads * size, first, end;
    (void)worker;
    token_range(task, pass->n_tokens, &first, &end);
    for (uint32_t t = first; t < end; t++) {
        const float *cosines = m->cosines + (size_t)t * (size / 2);
        const float *sines = m->sines + (size_t)t * (size / 2);
        float *key = m->key_value + (size_t)t * 2 * kv_width;
        m->kernels->rotate(m->query + (size_t)t * info->heads * size, info->heads, size, cosines,
                           sines);
        m->kernels->rotate(key, info->kv_heads, size, cosines, sines);
        for (uint32_t h = 0; h < info->kv_heads; h++) {
            float *row =
                kv_row(pass, &pass->sequences[m->token_sequence[t]], m->token_position[t], h);
            memcpy(row, key + (size_t)h * size, size * sizeof *row);
            memcpy(row + size, key + kv_width + (size_t)h * size, size * sizeof *row);
        }
    }
}

/* Task: one KV head of up to TASK_TOKENS tokens. Neighbouring tokens mostly belong to one sequence;
 * then the rows of the earlier positions are looked up once. */
static void attend_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct pass *pass = ctx;
    struct engine_model *m = pass->model;
    const struct engine_model_info *info = &m->info;
    struct model_worker *own = &m->workers[worker];
    uint32_t groups = (pass->n_tokens + TASK_TOKENS - 1) / TASK_TOKENS;
    uint32_t head = task / groups, shared = info->heads / info->kv_heads, first, end;
    uint32_t sequence = UINT32_MAX, known = 0;
    token_range(task % groups, pass->n_tokens, &first, &end);
    for (uint32_t t = first; t < end; t++) {
        if (m->token_sequence[t] != sequence) {
            sequence = m->token_sequence[t];
            known = 0;
        }
        for (; known <= m->token_position[t]; known++)
            own->kv_rows[known] = kv_row(pass, &pass->sequences[sequence], known, head);
        size_t offset = ((size_t)t * info->heads + (size_t)head * shared) * info->head_size;
        struct kernel_attention attention = {
            .rows = own->kv_rows,
            .n_positions = m->token_position[t] + 1,
            .head_size = info->head_size,
            .n_heads = shared,
            .query = m->query + offset,
            .out = m->mixed + offset,
            .scores = own->scores,
        };
        m->kernels->attend(&attention);
    }
}

static void gate_task(void *ctx, uint32_t task, uint32_t worker)
{
    const struct pass *pass = ctx;
    struct engine_model *m = pass->model;
    uint32_t width = m->info.feed_forward_length, first, end;
    (void)worker;
    token_range(task, pass->n_tokens, &first, &end);
    for (uint32_t t = first; t < end; t++)
        m->kernels->gate(m->gate + (size_t)t * width, m->up + (size_t)t * width, width);
}

static void run_attention(struct pass *pass)
{
    struct engine_model *m = pass->model;
    const struct engine_model_info *info = &m->info;
    const struct model_layer *layer = pass->layer;
    size_t width = info->embedding_length, q_width = (size_t)info->heads * info->head_size;
    size_t kv_width = (size_t)info->kv_heads * info->head_size;
    struct product qkv = {
        .model = m,
        .x = m->normed,
        .x_stride = width,
        .n_tokens = pass->n_tokens,
        .n_parts = 3,
        .parts = {{&layer->q, m->query, q_width},
                  {&layer->k, m->key_value, 2 * kv_width},
                  {&layer->v, m->key_value + kv_width, 2 * kv_width}},
    };
    struct product out = {
        .model = m,
        .x = m->mixed,
        .x_stride = q_width,
        .n_tokens = pass->n_tokens,
        .add = true,
        .n_parts = 1,
        .parts = {{&layer->attn_out, m->hidden, width}},
    };
    pass->norm = layer->attn_norm;
    run_per_token(pass, norm_task);
    run_product(&qkv);
    run_per_token(pass, store_task);
    uint32_t groups = (pass->n_tokens + TASK_TOKENS - 1) / TASK_TOKENS;
    pool_run(m->pool, groups * info->kv_heads, attend_task, pass);
    run_product(&out);
}

static void run_feed_forward(struct pass *pass)
{
    struct engine_model *m = pass->model;
    const struct model_layer *layer = pass->layer;
    size_t width = m->info.embedding_length, hidden = m->info.feed_forward_length;
    struct product in = {
        .model = m,
        .x = m->normed,
        .x_stride = width,
        .n_tokens = pass->n_tokens,
        .n_parts = 2,
        .parts = {{&layer->gate, m->gate, hidden}, {&layer->up, m->up, hidden}},
    };
    struct product out = {
        .model = m,
        .x = m->gate,
        .x_stride = hidden,
        .n_tokens = pass->n_tokens,
        .add = true,
        .n_parts = 1,
        .parts = {{&layer->down, m->hidden, width}},
    };
    pass->norm = layer->ffn_norm;
    run_per_token(pass, norm_task);
    run_product(&in);
    run_per_token(pass, gate_task);
    run_product(&out);
}

static void run_output(struct pass *pass, uint32_t n_sequences, float *logits)
{
    struct engine_model *m = pass->model;
    size_t width = m->info.embedding_length;
    uint32_t row = 0, t = 0;
    for (uint32_t s = 0; s < n_sequences; s++) {
        t += pass->sequences[s].n_tokens;
        if (pass->sequences[s].want_logits)
            m->kernels->rms_norm(m->hidden + (size_t)(t - 1) * width, m->output_norm,
                                 m->info.embedding_length, m->rms_epsilon,
                                 m->normed + (size_t)row++ * width);
    }
    struct product out = {
        .model = m,
        .x = m->normed,
        .x_stride = width,
        .n_tokens = row,
        .n_parts = 1,
        .parts = {{&m->output, logits, m->info.vocab_size}},
    };
    if (row > 0)
        run_product(&out);
}

static enum kvf_status check_sequence(const struct engine_model *model, const struct engine_kv *kv,
                                      const struct engine_sequence *s, uint32_t index,
                                      struct kvf_error *error)
{
    const struct engine_model_info *info = &model->info;
    if (s->n_tokens == 0)
        return kvf_fail(error, KVF_EINVAL, "sequence %u of the batch has no tokens", index);
    if (s->position >= info->context_length || s->n_tokens > info->context_length - s->position)
        return kvf_fail(error, KVF_EINVAL,
                        "sequence %u of the batch: %u tokens from position %u do not fit the "
                        "model's context of %u",
                        index, s->n_tokens, s->position, info->context_length);
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        if (s->tokens[i] >= info->vocab_size)
            return kvf_fail(error, KVF_EINVAL,
                            "sequence %u of the batch: token id %u is outside the vocabulary of %u",
                            index, s->tokens[i], info->vocab_size);
    }
    uint32_t last = (s->position + s->n_tokens - 1) / kv->block_size;
    if (last >= s->n_blocks)
        return kvf_fail(
            error, KVF_EINVAL,
            "sequence %u of the batch: position %u needs %u blocks of %u but its table has %u",
            index, s->position + s->n_tokens - 1, last + 1, kv->block_size, s->n_blocks);
    for (uint32_t i = 0; i <= last; i++) {
        if (s->blocks[i] >= kv->blocks)
            return kvf_fail(
                error, KVF_EINVAL,
                "sequence %u of the batch: entry %u of its table is block %u but the cache "
                "has %u",
                index, i, s->blocks[i], kv->blocks);
    }
    return KVF_OK;
}

static enum kvf_status check_batch(const struct engine_model *model, const struct engine_kv *kv,
                                   const struct engine_sequence *sequences, uint32_t n_sequences,
                                   const float *logits, struct kvf_error *error)
{
    uint64_t tokens = 0;
    if (kv->block_size == 0 || (kv->block_size & (kv->block_size - 1)) != 0)
        return kvf_fail(error, KVF_EINVAL, "block_size is %u; it must be a power of two",
                        kv->block_size);
    if (kv->block_stride_bytes % sizeof(float) != 0 ||
        kv->block_stride_bytes < engine_model_kv_block_bytes(model, kv->block_size))
        return kvf_fail(error, KVF_EINVAL,
                        "block_stride_bytes is %" PRIu64 "; a block of %u tokens takes %" PRIu64,
                        kv->block_stride_bytes, kv->block_size,
                        engine_model_kv_block_bytes(model, kv->block_size));
    for (uint32_t i = 0; i < n_sequences; i++) {
        KVF_TRY(check_sequence(model, kv, &sequences[i], i, error));
        if (sequences[i].want_logits && !logits)
            return kvf_fail(error, KVF_EINVAL,
                            "sequence %u of the batch wants logits but no room was given", i);
        tokens += sequences[i].n_tokens;
    }
    if (tokens > model->info.batch_tokens_max)
        return kvf_fail(error, KVF_ELIMIT,
                        "the batch has %" PRIu64 " tokens; batch_tokens_max is %u", tokens,
                        model->info.batch_tokens_max);
    return KVF_OK;
}

static void number_tokens(struct pass *pass, uint32_t n_sequences)
{
    struct engine_model *m = pass->model;
    for (uint32_t s = 0; s < n_sequences; s++) {
        const struct engine_sequence *sequence = &pass->sequences[s];
        for (uint32_t i = 0; i < sequence->n_tokens; i++, pass->n_tokens++) {
            m->token_sequence[pass->n_tokens] = s;
            m->token_position[pass->n_tokens] = sequence->position + i;
            m->token_id[pass->n_tokens] = sequence->tokens[i];
        }
    }
}

enum kvf_status engine_model_forward(struct engine_model *model, const struct engine_kv *kv,
                                     const struct engine_sequence *sequences, uint32_t n_sequences,
                                     float *logits, struct kvf_error *error)
{
    KVF_TRY(check_batch(model, kv, sequences, n_sequences, logits, error));
    struct pass pass = {.model = model, .kv = kv, .sequences = sequences};
    number_tokens(&pass, n_sequences);
    pool_begin(model->pool);
    run_per_token(&pass, embed_task);
    for (uint32_t i = 0; i < model->info.layers; i++) {
        pass.layer_index = i;
        pass.layer = &model->layers[i];
        run_attention(&pass);
        run_feed_forward(&pass);
    }
    run_output(&pass, n_sequences, logits);
    pool_end(model->pool);
    return KVF_OK;
}
