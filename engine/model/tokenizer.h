/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_TOKENIZER_H
#define ENGINE_MODEL_TOKENIZER_H

/*
 * Byte-level BPE from a GGUF file's metadata (tokenizer.ggml.model "gpt2"), the ChatML template,
 * and decoding of token ids, whole or as a stream.
 *
 * A tokenizer is immutable after it was made: any thread may use it, several at once.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

struct gguf;
struct engine_tokenizer;

#define ENGINE_TOKEN_NONE UINT32_MAX

/* A growing byte string. Start with {0}; the owner frees it with engine_text_free(). `data` is
 * NUL-terminated whenever it is not NULL (the NUL is not counted). */
struct engine_text {
    char *data;
    size_t len;
    size_t cap;
};

/* A growing list of token ids. Start with {0}; free with engine_tokens_free(). */
struct engine_tokens {
    uint32_t *ids;
    size_t count;
    size_t cap;
};

void engine_text_free(struct engine_text *text);
void engine_tokens_free(struct engine_tokens *tokens);

/* Copies what it needs out of the file. Returns owned. KVF_EFORMAT, KVF_ENOTSUP (another tokenizer
 * model or an unknown tokenizer.ggml.pre; the text names it), KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status engine_tokenizer_create(const struct gguf *file,
                                                     struct engine_tokenizer **tokenizer_p,
                                                     struct kvf_error *error);
void engine_tokenizer_destroy(struct engine_tokenizer *tokenizer);

uint32_t engine_tokenizer_vocab_size(const struct engine_tokenizer *tokenizer);
/* Bytes of the longest token: a text of n tokens has at most n times as many. */
size_t engine_tokenizer_token_len_max(const struct engine_tokenizer *tokenizer);
/* ENGINE_TOKEN_NONE when the file names none. */
uint32_t engine_tokenizer_bos(const struct engine_tokenizer *tokenizer);
uint32_t engine_tokenizer_eos(const struct engine_tokenizer *tokenizer);
/* True for the file's eos and eot tokens, after which generation ends. */
bool engine_tokenizer_is_end(const struct engine_tokenizer *tokenizer, uint32_t id);
/* True for control tokens, which decode to nothing unless asked. */
bool engine_tokenizer_is_special(const struct engine_tokenizer *tokenizer, uint32_t id);
/* The bytes a token stands for (special tokens: their text). Lent, not terminated; NULL and 0 for
 * ids outside the vocabulary. The bytes of one token need not be valid UTF-8. */
const char *engine_tokenizer_token_bytes(const struct engine_tokenizer *tokenizer, uint32_t id,
                                         size_t *len_p);
/* The id of the token whose raw bytes (for special tokens: text) are these, or NONE. */
uint32_t engine_tokenizer_find(const struct engine_tokenizer *tokenizer, const char *bytes,
                               size_t len);

enum {
    ENGINE_ENCODE_SPECIAL = 1 << 0, /* recognise the text of control tokens ("<|im_end|>") */
    ENGINE_ENCODE_BOS = 1 << 1,     /* put bos first if the file says add_bos_token */
};

/* Appends the ids of text[0..len) to *tokens. Any bytes are accepted: what is not UTF-8 is encoded
 * byte by byte. A byte for which the vocabulary has no token is dropped, as Hugging Face's
 * tokenizers do. On failure *tokens is as before. Time is O(len log len). KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status engine_tokenizer_encode(const struct engine_tokenizer *tokenizer,
                                                     const char *text, size_t len, unsigned flags,
                                                     struct engine_tokens *tokens,
                                                     struct kvf_error *error);

/* Appends the text of the ids to *text, always valid UTF-8: ill-formed sequences become U+FFFD, one
 * for each maximal part (as Python's and Rust's lossy decoders do). KVF_EINVAL for an id outside
 * the vocabulary, KVF_ENOMEM; then *text is as before. */
KVF_MUST_USE enum kvf_status engine_tokenizer_decode(const struct engine_tokenizer *tokenizer,
                                                     const uint32_t *ids, size_t count,
                                                     bool keep_special, struct engine_text *text,
                                                     struct kvf_error *error);

/* Decodes one token after another; holds back the start of a UTF-8 sequence that the next token may
 * complete. The pieces joined equal engine_tokenizer_decode() of all ids. Plain value, start with
 * {0}; one per sequence. */
struct engine_decoder {
    uint8_t held[4];
    uint8_t n_held;
};

/* Appends what became certain with this token (perhaps nothing). Errors as decode. */
KVF_MUST_USE enum kvf_status engine_decoder_push(struct engine_decoder *decoder,
                                                 const struct engine_tokenizer *tokenizer,
                                                 uint32_t id, bool keep_special,
                                                 struct engine_text *text, struct kvf_error *error);
/* The sequence has ended: a held-back part becomes U+FFFD. */
KVF_MUST_USE enum kvf_status engine_decoder_finish(struct engine_decoder *decoder,
                                                   struct engine_text *text,
                                                   struct kvf_error *error);

struct engine_message {
    const char *role; /* borrowed, as is content; need not be terminated */
    size_t role_len;
    const char *content;
    size_t content_len;
};

/* Appends the ChatML rendering of the messages to *text, as the file's own template does it: with
 * the template's default system message when the first one is not "system" (SmolLM2 has one), and
 * "<|im_start|>assistant\n" at the end if `generate`. Encode the result with ENGINE_ENCODE_SPECIAL.
 * KVF_ENOTSUP when the file has another kind of template; KVF_EINVAL for an empty list;
 * KVF_ENOMEM. On failure *text is as before. */
KVF_MUST_USE enum kvf_status engine_tokenizer_chat(const struct engine_tokenizer *tokenizer,
                                                   const struct engine_message *messages,
                                                   size_t count, bool generate,
                                                   struct engine_text *text,
                                                   struct kvf_error *error);

#endif
