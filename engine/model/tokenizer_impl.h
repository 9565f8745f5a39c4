/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_TOKENIZER_IMPL_H
#define ENGINE_MODEL_TOKENIZER_IMPL_H

/* Shared by the files that make up the tokenizer; nobody else includes it. */

#include "gguf.h"
#include "tokenizer.h"

/* tokenizer.ggml.token_type of the file. */
enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* Hash from strings to their index in an array of strings; the array stays with the caller. */
struct string_map {
    uint32_t *slots; /* index + 1; 0: free */
    uint32_t mask;
};

KVF_MUST_USE bool string_map_init(struct string_map *map, size_t count_max);
void string_map_free(struct string_map *map);
/* Keeps the first of equal strings. */
void string_map_add(struct string_map *map, const struct gguf_string *strings, uint32_t index);
uint32_t string_map_find(const struct string_map *map, const struct gguf_string *strings,
                         const char *data, size_t len);

/* Hash from a pair of token ids to what they merge to. */
struct merge {
    uint64_t pair; /* left << 32 | right */
    uint32_t rank; /* lower merges first */
    uint32_t id;   /* ENGINE_TOKEN_NONE: free slot */
};

struct merge_map {
    struct merge *slots;
    uint32_t mask;
};

KVF_MUST_USE bool merge_map_init(struct merge_map *map, size_t count_max);
void merge_map_free(struct merge_map *map);
void merge_map_add(struct merge_map *map, uint32_t left, uint32_t right, uint32_t rank,
                   uint32_t id);
const struct merge *merge_map_find(const struct merge_map *map, uint32_t left, uint32_t right);

/* Cuts text into the pieces inside which merging happens. Immutable after creation. */
struct splitter;
KVF_MUST_USE enum kvf_status splitter_create(const char *path, struct gguf_string pre,
                                             struct splitter **splitter_p, struct kvf_error *error);
void splitter_destroy(struct splitter *splitter);
/* True when a piece that is a token of its own is taken whole, without merging (Llama 3). */
bool splitter_ignores_merges(const struct splitter *splitter);

typedef enum kvf_status (*splitter_piece_fn)(void *ctx, const char *piece, size_t len,
                                             struct kvf_error *error);
/* text must be valid UTF-8. Calls fn for each piece in order; stops at the first failure. */
KVF_MUST_USE enum kvf_status splitter_run(const struct splitter *splitter, const char *text,
                                          size_t len, splitter_piece_fn fn, void *ctx,
                                          struct kvf_error *error);

struct engine_tokenizer {
    uint32_t vocab_size;
    size_t token_len_max; /* bytes of the longest token */
    uint32_t bos;
    uint32_t eos;
    uint32_t eot;
    bool add_bos;
    bool chat;            /* the template is ChatML */
    char *default_system; /* NULL: the template has none */
    char *arena;          /* the bytes of all tokens */
    struct gguf_string *bytes;
    uint8_t *kinds;
    struct string_map by_bytes;
    struct merge_map merges;
    uint32_t byte_ids[256]; /* ENGINE_TOKEN_NONE: no token for this byte */
    struct splitter *splitter;
    /* Tokens that are recognised in text as a whole, longest first. */
    struct string_map specials; /* over bytes */
    uint32_t *special_lens;     /* distinct lengths, descending */
    uint32_t n_special_lens;
    bool special_first[256]; /* bytes that one of them begins with */
};

/* Length of the valid UTF-8 sequence at text (1 to 4), or 0 when it is ill-formed or cut short;
 * then *bad_p (may be NULL) is how many bytes its maximal part has (at least 1), and *cut_p (may be
 * NULL) whether more bytes could complete it. len >= 1. */
unsigned utf8_length(const uint8_t *text, size_t len, unsigned *bad_p, bool *cut_p);

/* Makes room for `more` bytes and a NUL. */
KVF_MUST_USE enum kvf_status text_reserve(struct engine_text *text, size_t more,
                                          struct kvf_error *error);
KVF_MUST_USE enum kvf_status text_append(struct engine_text *text, const char *data, size_t len,
                                         struct kvf_error *error);

/* Reads tokenizer.chat_template (chat.c). */
KVF_MUST_USE enum kvf_status tokenizer_load_chat(struct engine_tokenizer *tokenizer,
                                                 const struct gguf *file, struct kvf_error *error);

#endif
