/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_MODEL_IMPL_H
#define ENGINE_MODEL_MODEL_IMPL_H

/* Shared by model.c (opening), model_weights.c (the file's tensors) and model_forward.c. */

#include "gguf.h"
#include "kernels.h"
#include "model.h"
#include "pool.h"

struct model_layer {
    const float *attn_norm; /* lent by the mapped file, as all weights are */
    const float *ffn_norm;
    struct kernel_matrix q, k, v, attn_out;
    struct kernel_matrix gate, up, down;
};

/* What one compute thread needs for itself. */
struct model_worker {
    float *rows;           /* KERNEL_ROW_BLOCK dequantised rows */
    float *scores;         /* one per position */
    const float **kv_rows; /* one per position */
};

struct engine_model {
    struct gguf *file;
    struct engine_tokenizer *tokenizer;
    struct pool *pool;
    const struct kernels *kernels;
    struct engine_model_info info;
    char *name;

    float rms_epsilon;
    float *inverse_frequencies; /* head_size / 2: radians per position of each rotary pair */
    const float *output_norm;
    struct kernel_matrix embedding;
    struct kernel_matrix output;
    struct model_layer *layers;

    /* Scratch for batch_tokens_max tokens; one row a token. */
    void *scratch;
    float *hidden;            /* embedding_length */
    float *normed;            /* embedding_length */
    float *query;             /* heads * head_size */
    float *key_value;         /* 2 * kv_heads * head_size: all K, then all V */
    float *mixed;             /* heads * head_size */
    float *gate;              /* feed_forward_length */
    float *up;                /* feed_forward_length */
    float *cosines;           /* head_size / 2 */
    float *sines;             /* head_size / 2 */
    uint32_t *token_sequence; /* which sequence of the batch the token belongs to */
    uint32_t *token_position;
    uint32_t *token_id;
    struct model_worker *workers; /* info.threads */
};

/* Reads the llama.* keys into model->info and the fields beside it. */
KVF_MUST_USE enum kvf_status model_read_keys(struct engine_model *model, struct kvf_error *error);
/* Finds every tensor and checks its shape; refuses tensors that it would have to ignore. */
KVF_MUST_USE enum kvf_status model_read_weights(struct engine_model *model,
                                                struct kvf_error *error);

#endif
