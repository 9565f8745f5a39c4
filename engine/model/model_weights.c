/* SPDX-License-Identifier: Apache-2.0 */
/* From the keys and tensors of a GGUF file to the parts of a Llama model. */
#include "model_impl.h"
#include "tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS_MAX = 1024,
    HEADS_MAX = 512,
    HEAD_SIZE_MAX = 512,
    WIDTH_MAX = 1 << 20,
    CONTEXT_MAX = 1 << 24,
};

struct loader {
    struct engine_model *model;
    struct kvf_error *error;
    uint64_t tensors_used; /* the file must have no others */
};

static enum kvf_status required(struct loader *l, const char *key, uint32_t max, uint32_t multiple,
                                uint32_t *value_p)
{
    const struct gguf *file = l->model->file;
    enum kvf_status status = gguf_get_u32(file, key, value_p, l->error);
    if (status == KVF_ENOTFOUND)
        return kvf_fail(l->error, KVF_EFORMAT, "%s: key %s is missing", gguf_path(file), key);
    if (status != KVF_OK)
        return status;
    if (*value_p == 0 || *value_p > max || *value_p % multiple != 0)
        return kvf_fail(l->error, KVF_ENOTSUP,
                        "%s: key %s is %u; supported are multiples of %u up to %u", gguf_path(file),
                        key, *value_p, multiple, max);
    return KVF_OK;
}

static enum kvf_status optional(struct loader *l, const char *key, uint32_t *value_p)
{
    if (!gguf_find(l->model->file, key))
        return KVF_OK;
    return gguf_get_u32(l->model->file, key, value_p, l->error);
}

static enum kvf_status check_architecture(struct loader *l)
{
    const struct gguf *file = l->model->file;
    struct gguf_string name;
    uint32_t experts = 0;
    KVF_TRY(gguf_get_string(file, "general.architecture", &name, l->error));
    if (name.len != 5 || memcmp(name.data, "llama", 5) != 0)
        return kvf_fail(l->error, KVF_ENOTSUP,
                        "%s: general.architecture is \"%.*s\"; supported is llama", gguf_path(file),
                        name.len > 80 ? 80 : (int)name.len, name.data);
    KVF_TRY(optional(l, "llama.expert_count", &experts));
    if (experts != 0)
        return kvf_fail(l->error, KVF_ENOTSUP,
                        "%s: llama.expert_count is %u; mixtures of experts are not supported",
                        gguf_path(file), experts);
    l->model->info.architecture = "llama";
    return KVF_OK;
}

static enum kvf_status read_head_shape(struct loader *l)
{
    struct engine_model_info *info = &l->model->info;
    const char *path = gguf_path(l->model->file);
    info->kv_heads = info->heads;
    KVF_TRY(optional(l, "llama.attention.head_count_kv", &info->kv_heads));
    if (info->kv_heads == 0 || info->heads % info->kv_heads != 0)
        return kvf_fail(l->error, KVF_EFORMAT,
                        "%s: llama.attention.head_count %u is not a multiple of head_count_kv %u",
                        path, info->heads, info->kv_heads);
    info->head_size = info->embedding_length / info->heads;
    KVF_TRY(optional(l, "llama.attention.key_length", &info->head_size));
    uint32_t value_length = info->head_size, rotary = info->head_size;
    KVF_TRY(optional(l, "llama.attention.value_length", &value_length));
    KVF_TRY(optional(l, "llama.rope.dimension_count", &rotary));
    if (info->head_size == 0 || info->head_size % KERNEL_STEP != 0 ||
        info->head_size > HEAD_SIZE_MAX)
        return kvf_fail(l->error, KVF_ENOTSUP,
                        "%s: the head size is %u; supported are multiples of %d up to %d", path,
                        info->head_size, KERNEL_STEP, HEAD_SIZE_MAX);
    if (value_length != info->head_size)
        return kvf_fail(
            l->error, KVF_ENOTSUP,
            "%s: llama.attention.value_length is %u but the head size is %u; they must be equal",
            path, value_length, info->head_size);
    if (rotary != info->head_size)
        return kvf_fail(
            l->error, KVF_ENOTSUP,
            "%s: llama.rope.dimension_count is %u but the head size is %u; they must be equal",
            path, rotary, info->head_size);
    return KVF_OK;
}

/* Linear scaling divides the position; the divisors of rope_freqs.weight (Llama 3) are applied pair
 * by pair. */
static enum kvf_status read_rotary(struct loader *l)
{
    struct engine_model *model = l->model;
    const struct gguf *file = model->file;
    const char *path = gguf_path(file);
    struct gguf_string scaling = {"none", 4};
    float base = 10000.0f, divisor = 1.0f;
    uint32_t half = model->info.head_size / 2;
    if (gguf_find(file, "llama.rope.freq_base"))
        KVF_TRY(gguf_get_f32(file, "llama.rope.freq_base", &base, l->error));
    if (gguf_find(file, "llama.rope.scaling.type"))
        KVF_TRY(gguf_get_string(file, "llama.rope.scaling.type", &scaling, l->error));
    if (scaling.len == 6 && memcmp(scaling.data, "linear", 6) == 0)
        KVF_TRY(gguf_get_f32(file, "llama.rope.scaling.factor", &divisor, l->error));
    else if (scaling.len != 4 || memcmp(scaling.data, "none", 4) != 0)
        return kvf_fail(l->error, KVF_ENOTSUP,
                        "%s: llama.rope.scaling.type is \"%.*s\"; supported are none and linear",
                        path, scaling.len > 80 ? 80 : (int)scaling.len, scaling.data);
    if (!(base > 0) || !(divisor > 0))
        return kvf_fail(
            l->error, KVF_EFORMAT,
            "%s: llama.rope.freq_base is %g and the scaling factor %g; both must be above 0", path,
            (double)base, (double)divisor);

    const struct gguf_tensor *factors = gguf_find_tensor(file, "rope_freqs.weight");
    if (factors && (factors->type != GGUF_TENSOR_F32 || factors->dims[0] != half ||
                    factors->size != factors->row_bytes))
        return kvf_fail(l->error, KVF_EFORMAT,
                        "%s: rope_freqs.weight is %s with %" PRIu64
                        " elements; expected f32 with %u",
                        path, gguf_tensor_type_name(factors->type), factors->dims[0], half);
    l->tensors_used += factors != NULL;
    model->inverse_frequencies = calloc(half, sizeof *model->inverse_frequencies);
    if (!model->inverse_frequencies)
        return kvf_fail(l->error, KVF_ENOMEM, "%s: no memory for %u rotary frequencies", path,
                        half);
    for (uint32_t i = 0; i < half; i++) {
        double frequency = pow((double)base, -2.0 * i / model->info.head_size) / (double)divisor;
        float factor = 1.0f;
        if (factors)
            memcpy(&factor, factors->data + i * sizeof factor, sizeof factor);
        if (!(factor > 0) || !isfinite(factor))
            return kvf_fail(l->error, KVF_EFORMAT, "%s: element %u of rope_freqs.weight is %g",
                            path, i, (double)factor);
        model->inverse_frequencies[i] = (float)(frequency / (double)factor);
    }
    return KVF_OK;
}

static enum kvf_status read_name(struct loader *l)
{
    struct engine_model *model = l->model;
    const struct gguf *file = model->file;
    const char *slash = strrchr(gguf_path(file), '/');
    const char *base = slash ? slash + 1 : gguf_path(file);
    struct gguf_string name = {base, strlen(base)};
    if (gguf_find(file, "general.name"))
        KVF_TRY(gguf_get_string(file, "general.name", &name, l->error));
    model->name = strndup(name.data, name.len);
    if (!model->name)
        return kvf_fail(l->error, KVF_ENOMEM, "%s: no memory for the model's name",
                        gguf_path(file));
    model->info.name = model->name;
    return KVF_OK;
}

enum kvf_status model_read_keys(struct engine_model *model, struct kvf_error *error)
{
    struct loader l = {model, error, 0};
    struct engine_model_info *info = &model->info;
    KVF_TRY(check_architecture(&l));
    KVF_TRY(read_name(&l));
    KVF_TRY(required(&l, "llama.block_count", LAYERS_MAX, 1, &info->layers));
    KVF_TRY(required(&l, "llama.context_length", CONTEXT_MAX, 1, &info->context_length));
    KVF_TRY(
        required(&l, "llama.embedding_length", WIDTH_MAX, KERNEL_STEP, &info->embedding_length));
    KVF_TRY(required(&l, "llama.feed_forward_length", WIDTH_MAX, KERNEL_STEP,
                     &info->feed_forward_length));
    KVF_TRY(required(&l, "llama.attention.head_count", HEADS_MAX, 1, &info->heads));
    KVF_TRY(read_head_shape(&l));
    KVF_TRY(gguf_get_f32(model->file, "llama.attention.layer_norm_rms_epsilon", &model->rms_epsilon,
                         error));
    if (!(model->rms_epsilon > 0))
        return kvf_fail(error, KVF_EFORMAT,
                        "%s: llama.attention.layer_norm_rms_epsilon is %g; it must be above 0",
                        gguf_path(model->file), (double)model->rms_epsilon);
    info->vocab_size = engine_tokenizer_vocab_size(model->tokenizer);
    info->file_bytes = gguf_file_bytes(model->file);
    return KVF_OK;
}

/* NULL: missing or of another shape; *status_p says why. */
static const struct gguf_tensor *find_tensor(struct loader *l, const char *name, uint64_t cols,
                                             uint64_t rows, enum kvf_status *status_p)
{
    const struct gguf *file = l->model->file;
    const struct gguf_tensor *tensor = gguf_find_tensor(file, name);
    if (!tensor) {
        *status_p =
            kvf_fail(l->error, KVF_EFORMAT, "%s: tensor %s is missing", gguf_path(file), name);
        return NULL;
    }
    if (tensor->dims[0] != cols || tensor->dims[1] != rows || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1) {
        *status_p = kvf_fail(l->error, KVF_EFORMAT,
                             "%s: tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                             "; the file's keys call for %" PRIu64 " x %" PRIu64,
                             gguf_path(file), name, tensor->dims[0], tensor->dims[1],
                             tensor->dims[2], tensor->dims[3], cols, rows);
        return NULL;
    }
    l->tensors_used++;
    return tensor;
}

static enum kvf_status find_matrix(struct loader *l, const char *name, uint32_t cols, uint32_t rows,
                                   uint32_t rotary_head, struct kernel_matrix *matrix)
{
    enum kvf_status status = KVF_OK;
    const struct gguf_tensor *tensor = find_tensor(l, name, cols, rows, &status);
    if (!tensor)
        return status;
    *matrix = (struct kernel_matrix){tensor->data, tensor->row_bytes, tensor->type, rows,
                                     cols,         rotary_head};
    return KVF_OK;
}

static enum kvf_status find_vector(struct loader *l, const char *name, uint32_t cols,
                                   const float **vector_p)
{
    enum kvf_status status = KVF_OK;
    const struct gguf_tensor *tensor = find_tensor(l, name, cols, 1, &status);
    if (!tensor)
        return status;
    if (tensor->type != GGUF_TENSOR_F32)
        return kvf_fail(l->error, KVF_ENOTSUP, "%s: tensor %s is of type %s; supported is f32",
                        gguf_path(l->model->file), name, gguf_tensor_type_name(tensor->type));
    *vector_p = (const float *)(const void *)tensor->data;
    return KVF_OK;
}

static enum kvf_status find_layer(struct loader *l, uint32_t index)
{
    const struct engine_model_info *info = &l->model->info;
    struct model_layer *layer = &l->model->layers[index];
    uint32_t width = info->embedding_length, hidden = info->feed_forward_length;
    uint32_t q_width = info->heads * info->head_size, kv_width = info->kv_heads * info->head_size;
    const struct {
        const char *name;
        uint32_t cols, rows, rotary_head;
        struct kernel_matrix *matrix;
    } matrices[] = {
        {"attn_q", width, q_width, info->head_size, &layer->q},
        {"attn_k", width, kv_width, info->head_size, &layer->k},
        {"attn_v", width, kv_width, 0, &layer->v},
        {"attn_output", q_width, width, 0, &layer->attn_out},
        {"ffn_gate", width, hidden, 0, &layer->gate},
        {"ffn_up", width, hidden, 0, &layer->up},
        {"ffn_down", hidden, width, 0, &layer->down},
    };
    char name[64];
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        (void)snprintf(name, sizeof name, "blk.%u.%s.weight", index, matrices[i].name);
        KVF_TRY(find_matrix(l, name, matrices[i].cols, matrices[i].rows, matrices[i].rotary_head,
                            matrices[i].matrix));
    }
    (void)snprintf(name, sizeof name, "blk.%u.attn_norm.weight", index);
    KVF_TRY(find_vector(l, name, width, &layer->attn_norm));
    (void)snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", index);
    return find_vector(l, name, width, &layer->ffn_norm);
}

/* True for the names that model_read_weights() looks up. */
static bool is_known_tensor(const struct engine_model *model, struct gguf_string name)
{
    static const char *const tops[] = {"token_embd.weight", "output_norm.weight", "output.weight",
                                       "rope_freqs.weight"};
    static const char *const parts[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                        "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};
    char text[64], wanted[64];
    unsigned index = 0;
    if (name.len >= sizeof text)
        return false;
    memcpy(text, name.data, name.len);
    text[name.len] = '\0';
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++) {
        if (strcmp(text, tops[i]) == 0)
            return true;
    }
    if (strncmp(text, "blk.", 4) != 0)
        return false;
    index = (unsigned)strtoul(text + 4, NULL, 10);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && index < model->info.layers; i++) {
        (void)snprintf(wanted, sizeof wanted, "blk.%u.%s.weight", index, parts[i]);
        if (strcmp(text, wanted) == 0)
            return true;
    }
    return false;
}

enum kvf_status model_read_weights(struct engine_model *model, struct kvf_error *error)
{
    struct loader l = {model, error, 0};
    const struct engine_model_info *info = &model->info;
    const struct gguf *file = model->file;
    KVF_TRY(read_rotary(&l));
    KVF_TRY(find_matrix(&l, "token_embd.weight", info->embedding_length, info->vocab_size, 0,
                        &model->embedding));
    KVF_TRY(find_vector(&l, "output_norm.weight", info->embedding_length, &model->output_norm));
    model->info.tied_embeddings = !gguf_find_tensor(file, "output.weight");
    model->output = model->embedding;
    if (!info->tied_embeddings)
        KVF_TRY(find_matrix(&l, "output.weight", info->embedding_length, info->vocab_size, 0,
                            &model->output));
    model->layers = calloc(info->layers, sizeof *model->layers);
    if (!model->layers)
        return kvf_fail(error, KVF_ENOMEM, "%s: no memory for %u layers", gguf_path(file),
                        info->layers);
    for (uint32_t i = 0; i < info->layers; i++)
        KVF_TRY(find_layer(&l, i));
    if (l.tensors_used == gguf_tensor_count(file))
        return KVF_OK;
    for (uint64_t i = 0; i < gguf_tensor_count(file); i++) {
        struct gguf_string name = gguf_tensor_at(file, i)->name;
        if (!is_known_tensor(model, name))
            return kvf_fail(
                error, KVF_ENOTSUP,
                "%s: tensor %.*s has no place in a llama model of %u layers; leaving it out "
                "would change the answers",
                gguf_path(file), name.len > 80 ? 80 : (int)name.len, name.data, info->layers);
    }
    return kvf_fail(error, KVF_EINTERNAL, "%s: %" PRIu64 " of %" PRIu64 " tensors were used",
                    gguf_path(file), l.tensors_used, gguf_tensor_count(file));
}
