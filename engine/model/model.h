/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_MODEL_H
#define ENGINE_MODEL_MODEL_H

/*
 * A Llama-architecture model from a GGUF file, computed on the CPU over a paged KV cache that the
 * caller owns.
 *
 * Batch-invariant: the logits and the K and V of a token are the same bits whatever else is in the
 * batch, however the prompt was cut into calls, whatever the block size and block numbers, and with
 * any number of compute threads. (On one machine: another instruction set may round differently.)
 *
 * Threads: one caller thread at a time. The model owns a pool of compute threads that sleep while
 * no forward call runs. The file stays mapped while the model is open; do not truncate it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

struct engine_model;
struct engine_tokenizer;

struct engine_model_options {
    uint32_t threads;          /* compute threads, the caller's included; 0: one per usable core */
    uint32_t batch_tokens_max; /* most tokens of one forward call; sizes the scratch memory;
                                  0: 512 */
};

struct engine_model_info {
    const char *name;         /* general.name, or the file's base name when that key is missing */
    const char *architecture; /* "llama" */
    const char *isa;          /* which build of the kernels runs: "avx512", "avx2", "generic" */
    uint64_t file_bytes;
    uint32_t layers;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_size;
    uint32_t embedding_length;
    uint32_t feed_forward_length;
    uint32_t vocab_size;
    uint32_t context_length; /* positions 0 .. context_length - 1 are valid */
    uint32_t threads;
    uint32_t batch_tokens_max;
    bool tied_embeddings;
};

/*
 * The caller's KV cache, float32. Per layer a base address; block b of a layer begins at
 * base + b * block_stride_bytes. Inside a block (LBHNC):
 *     [kv_heads][block_size tokens][ K: head_size floats | V: head_size floats ]
 * K is stored after rotary, element i paired with i + head_size / 2, as vLLM keeps it.
 */
struct engine_kv {
    uint8_t *const *layer_bases; /* info->layers pointers, each aligned to 4 bytes */
    uint64_t block_stride_bytes; /* >= engine_model_kv_block_bytes(), multiple of 4 */
    uint32_t block_size;         /* tokens in a block, any power of two */
    uint32_t blocks;             /* blocks of each layer; larger ids are refused */
};

/* One sequence's share of a forward call: `n_tokens` tokens at positions `position`,
 * `position + 1`, ... whose predecessors' K and V are in the cache already (or are written by this
 * very call: in each layer all K and V of the batch are stored before any is read, so a sequence
 * may share a block that another one fills in the same call). */
struct engine_sequence {
    const uint32_t *tokens; /* borrowed until return */
    uint32_t n_tokens;      /* >= 1 */
    uint32_t position;      /* of tokens[0] */
    const uint32_t *blocks; /* block table: entry i holds positions i*block_size .. ; borrowed */
    uint32_t n_blocks;      /* must cover position + n_tokens */
    bool want_logits;       /* of the last token */
};

/* Opens the file, checks it and builds the tokenizer. Returns owned in *model_p.
 * KVF_ESYSTEM (cannot open), KVF_EFORMAT (damaged), KVF_ENOTSUP (another architecture, tensor type
 * or tokenizer), KVF_ENOMEM. The text names the file, the key or tensor and both values.
 * options may be NULL. Blocks on file reads. */
KVF_MUST_USE enum kvf_status engine_model_open(const char *path,
                                               const struct engine_model_options *options,
                                               struct engine_model **model_p,
                                               struct kvf_error *error);

/* Stops the compute threads and unmaps the file. NULL is fine. */
void engine_model_close(struct engine_model *model);

/* Both lent until engine_model_close(). Any thread. */
const struct engine_model_info *engine_model_info(const struct engine_model *model);
const struct engine_tokenizer *engine_model_tokenizer(const struct engine_model *model);

/* Bytes that one block of one layer occupies: kv_heads * block_size * 2 * head_size * 4. */
uint64_t engine_model_kv_block_bytes(const struct engine_model *model, uint32_t block_size);

/* Computes one batch: any mix of prompt chunks and single decode tokens. Writes the K and V of
 * every token into the cache and the logits of the last token of each sequence that wants them:
 * `logits` takes info->vocab_size floats for each such sequence, in the order of the batch (NULL
 * when none wants any). Allocates nothing; blocks until computed.
 * KVF_EINVAL (an id, position or table out of range; the text says which; nothing was written),
 * KVF_ELIMIT (more tokens than batch_tokens_max). */
KVF_MUST_USE enum kvf_status engine_model_forward(struct engine_model *model,
                                                  const struct engine_kv *kv,
                                                  const struct engine_sequence *sequences,
                                                  uint32_t n_sequences, float *logits,
                                                  struct kvf_error *error);

#endif
