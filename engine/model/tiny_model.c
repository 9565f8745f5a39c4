/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_model_impl.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 32,
    TENSORS_PER_LAYER = 9,
    FEATURES_MAX = 1 << 16,
    LAYERS_MAX = 256,
    METADATA_ENTRIES = 11, /* beside the tokenizer's */
    ENCODED_BYTES_MAX = 4, /* of one element, in any type */
};

struct tensor {
    char name[48];
    uint32_t cols;
    uint32_t rows; /* 0: a vector */
    enum gguf_tensor_type type;
    float spread; /* values lie in center - spread .. center + spread */
    float center;
};

struct writer {
    struct tiny_model_options options;
    enum gguf_tensor_type type;
    uint32_t width;
    struct tensor *tensors;
    uint32_t n_tensors;
    struct tiny_buffer head;
    float *row;
    uint8_t *encoded;
    FILE *out;
    const char *path;
    struct kvf_error *error;
};

static enum kvf_status pick_type(struct writer *w)
{
    static const struct {
        const char *name;
        enum gguf_tensor_type type;
    } types[] = {{"f32", GGUF_TENSOR_F32},
                 {"f16", GGUF_TENSOR_F16},
                 {"q8_0", GGUF_TENSOR_Q8_0},
                 {"q4_1", GGUF_TENSOR_Q4_1},
                 {"q6_k", GGUF_TENSOR_Q6_K}};
    if (!w->options.type)
        w->options.type = "f32";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, w->options.type) == 0) {
            w->type = types[i].type;
            return KVF_OK;
        }
    }
    return kvf_fail(w->error, KVF_EINVAL,
                    "type is \"%s\"; supported are f32, f16, q8_0, q4_1 and q6_k", w->options.type);
}

static void set_default(uint32_t *value, uint32_t preset)
{
    if (*value == 0)
        *value = preset;
}

static enum kvf_status check_options(struct writer *w)
{
    struct tiny_model_options *o = &w->options;
    uint32_t elements, bytes;
    KVF_TRY(pick_type(w));
    tiny_block(w->type, &elements, &bytes);
    set_default(&o->layers, 2);
    set_default(&o->heads, 4);
    set_default(&o->kv_heads, 2);
    set_default(&o->head_size, w->type == GGUF_TENSOR_Q6_K ? 64 : 16);
    set_default(&o->context_length, 4096);
    if (o->layers > LAYERS_MAX)
        return kvf_fail(w->error, KVF_EINVAL, "layers is %u; at most %d", o->layers, LAYERS_MAX);
    if (o->heads % o->kv_heads != 0)
        return kvf_fail(w->error, KVF_EINVAL, "heads is %u, not a multiple of kv_heads %u",
                        o->heads, o->kv_heads);
    if (o->head_size % 16 != 0 || o->head_size > 512)
        return kvf_fail(w->error, KVF_EINVAL, "head_size is %u; multiples of 16 up to 512",
                        o->head_size);
    if (o->heads > FEATURES_MAX / o->head_size)
        return kvf_fail(w->error, KVF_EINVAL, "heads is %u; with head_size %u at most %u", o->heads,
                        o->head_size, FEATURES_MAX / o->head_size);
    w->width = o->heads * o->head_size;
    set_default(&o->feed_forward, w->width * 3);
    if (elements < 16)
        elements = 16;
    if (w->width % elements != 0 || o->feed_forward % elements != 0 ||
        o->feed_forward > 4 * FEATURES_MAX)
        return kvf_fail(
            w->error, KVF_EINVAL,
            "heads * head_size is %u and feed_forward %u; type %s needs multiples of %u", w->width,
            o->feed_forward, o->type, elements);
    return KVF_OK;
}

static void add_tensor(struct writer *w, const char *name, int layer, uint32_t cols, uint32_t rows,
                       float gain)
{
    struct tensor *t = &w->tensors[w->n_tensors++];
    if (layer < 0)
        (void)snprintf(t->name, sizeof t->name, "%s.weight", name);
    else
        (void)snprintf(t->name, sizeof t->name, "blk.%d.%s.weight", layer, name);
    t->cols = cols;
    t->rows = rows;
    if (rows == 0) {
        t->type = GGUF_TENSOR_F32;
        t->center = 1.0f;
        t->spread = 0.25f;
    } else {
        /* A uniform spread of sqrt(3 / cols) keeps the size of what goes through the matrix. */
        t->type = w->type;
        t->spread = gain * sqrtf(3.0f / (float)cols);
    }
}

/* Gains above 1 where they make attention pick positions and logits differ. */
static void list_tensors(struct writer *w)
{
    const struct tiny_model_options *o = &w->options;
    uint32_t kv_width = o->kv_heads * o->head_size, vocab = tiny_vocab_size();
    add_tensor(w, "token_embd", -1, w->width, vocab, sqrtf((float)w->width));
    for (int i = 0; i < (int)o->layers; i++) {
        add_tensor(w, "attn_norm", i, w->width, 0, 0);
        add_tensor(w, "attn_q", i, w->width, w->width, 1.5f);
        add_tensor(w, "attn_k", i, w->width, kv_width, 1.5f);
        add_tensor(w, "attn_v", i, w->width, kv_width, 1.5f);
        add_tensor(w, "attn_output", i, w->width, w->width, 2.0f);
        add_tensor(w, "ffn_norm", i, w->width, 0, 0);
        add_tensor(w, "ffn_gate", i, w->width, o->feed_forward, 2.0f);
        add_tensor(w, "ffn_up", i, w->width, o->feed_forward, 1.5f);
        add_tensor(w, "ffn_down", i, o->feed_forward, w->width, 2.0f);
    }
    add_tensor(w, "output_norm", -1, w->width, 0, 0);
    if (!o->tied)
        add_tensor(w, "output", -1, w->width, vocab, 4.0f);
}

static uint64_t tensor_bytes(const struct tensor *t)
{
    uint32_t elements, bytes;
    tiny_block(t->type, &elements, &bytes);
    return (uint64_t)(t->rows != 0 ? t->rows : 1) * (t->cols / elements) * bytes;
}

static uint64_t align(uint64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_head(struct writer *w)
{
    const struct tiny_model_options *o = &w->options;
    struct tiny_buffer *head = &w->head;
    char name[64];
    tiny_put(head, "GGUF", 4);
    tiny_put_u32(head, 3);
    tiny_put_u64(head, w->n_tensors);
    tiny_put_u64(head, METADATA_ENTRIES + tiny_vocab_entries());
    (void)snprintf(name, sizeof name, "tiny-random-%llu", (unsigned long long)o->seed);
    tiny_entry_text(head, "general.architecture", "llama");
    tiny_entry_text(head, "general.name", name);
    tiny_entry_u32(head, "general.alignment", ALIGNMENT);
    tiny_entry_u32(head, "llama.block_count", o->layers);
    tiny_entry_u32(head, "llama.context_length", o->context_length);
    tiny_entry_u32(head, "llama.embedding_length", w->width);
    tiny_entry_u32(head, "llama.feed_forward_length", o->feed_forward);
    tiny_entry_u32(head, "llama.attention.head_count", o->heads);
    tiny_entry_u32(head, "llama.attention.head_count_kv", o->kv_heads);
    tiny_entry_f32(head, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tiny_entry_f32(head, "llama.rope.freq_base", 10000.0f);
    tiny_vocab_put(head);
    uint64_t offset = 0;
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        tiny_put_text(head, t->name);
        tiny_put_u32(head, t->rows != 0 ? 2 : 1);
        tiny_put_u64(head, t->cols);
        if (t->rows != 0)
            tiny_put_u64(head, t->rows);
        tiny_put_u32(head, t->type);
        tiny_put_u64(head, offset);
        offset = align(offset + tensor_bytes(t));
    }
    static const uint8_t zeros[ALIGNMENT];
    tiny_put(head, zeros, align(head->len) - head->len);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Each tensor has its own stream, so that one keeps its values when others are added. */
static uint64_t tensor_stream(const struct writer *w, const struct tensor *t)
{
    uint64_t state = w->options.seed;
    for (const char *c = t->name; *c; c++)
        state = (state ^ (uint8_t)*c) * 0x100000001b3u + 0x9e3779b97f4a7c15u;
    return state;
}

static bool write_tensor(struct writer *w, const struct tensor *t)
{
    static const uint8_t zeros[ALIGNMENT];
    uint64_t state = tensor_stream(w, t), total = tensor_bytes(t);
    uint32_t rows = t->rows != 0 ? t->rows : 1;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < t->cols; c++) {
            /* 24 random bits: exact in float, the same everywhere. */
            float unit = (float)(int32_t)(next_random(&state) >> 40) * 0x1p-23f - 1.0f;
            w->row[c] = t->center + t->spread * unit;
        }
        tiny_encode(t->type, w->row, t->cols, w->encoded);
        if (fwrite(w->encoded, 1, total / rows, w->out) != total / rows)
            return false;
    }
    size_t pad = (size_t)(align(total) - total);
    return fwrite(zeros, 1, pad, w->out) == pad;
}

static enum kvf_status write_file(struct writer *w)
{
    w->out = fopen(w->path, "wbe");
    if (!w->out)
        return kvf_fail(w->error, KVF_ESYSTEM, "%s: cannot create: %s", w->path,
                        strerrordesc_np(errno));
    bool good = fwrite(w->head.data, 1, w->head.len, w->out) == w->head.len;
    for (uint32_t i = 0; i < w->n_tensors && good; i++)
        good = write_tensor(w, &w->tensors[i]);
    int err = errno;
    if (fclose(w->out) != 0 && good) {
        good = false;
        err = errno;
    }
    if (!good) {
        (void)remove(w->path);
        return kvf_fail(w->error, KVF_ESYSTEM, "%s: cannot write: %s", w->path,
                        strerrordesc_np(err));
    }
    return KVF_OK;
}

enum kvf_status tiny_model_write(const char *path, const struct tiny_model_options *options,
                                 struct kvf_error *error)
{
    struct writer w = {.path = path, .error = error};
    if (options)
        w.options = *options;
    KVF_TRY(check_options(&w));
    assert(w.width > 0);
    uint32_t longest = w.options.feed_forward > w.width ? w.options.feed_forward : w.width;
    w.tensors = calloc(3 + (size_t)w.options.layers * TENSORS_PER_LAYER, sizeof *w.tensors);
    w.row = calloc(longest, sizeof *w.row);
    w.encoded = calloc(longest, ENCODED_BYTES_MAX);
    enum kvf_status status = KVF_ENOMEM;
    if (w.tensors && w.row && w.encoded) {
        list_tensors(&w);
        put_head(&w);
        if (!w.head.failed)
            status = write_file(&w);
    }
    if (status == KVF_ENOMEM)
        status = kvf_fail(error, KVF_ENOMEM, "%s: no memory to write the model", path);
    free(w.tensors);
    free(w.row);
    free(w.encoded);
    free(w.head.data);
    return status;
}
