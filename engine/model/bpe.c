/* SPDX-License-Identifier: Apache-2.0 */
/* From text to token ids: special tokens, pieces, and inside each piece the merges in rank order.
 * A piece is a linked list of symbols with a heap of candidate pairs, so that a piece of n bytes
 * takes O(n log n), whatever it holds. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#define SYMBOL_NONE UINT32_MAX

struct symbol {
    uint32_t id; /* ENGINE_TOKEN_NONE once it was merged into its left neighbour */
    uint32_t prev;
    uint32_t next;
};

/* Stale when one of the two symbols has changed since; then it is dropped when it comes up. */
struct candidate {
    uint32_t rank;
    uint32_t left; /* symbol index; among equal ranks the leftmost merges first */
    uint32_t left_id;
    uint32_t right_id;
};

struct encoder {
    const struct engine_tokenizer *tokenizer;
    struct engine_tokens *tokens;
    struct symbol *symbols;
    struct candidate *heap;
    size_t cap; /* symbols; the heap holds twice as many */
    size_t n_heap;
};

static enum kvf_status append_id(struct engine_tokens *tokens, uint32_t id, struct kvf_error *error)
{
    if (tokens->count == tokens->cap) {
        size_t cap = tokens->cap < 64 ? 64 : tokens->cap * 2;
        uint32_t *ids = realloc(tokens->ids, cap * sizeof *ids);
        if (!ids)
            return kvf_fail(error, KVF_ENOMEM, "no memory for %zu token ids", cap);
        tokens->ids = ids;
        tokens->cap = cap;
    }
    tokens->ids[tokens->count++] = id;
    return KVF_OK;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->left < b->left);
}

static void heap_push(struct encoder *e, struct candidate candidate)
{
    size_t at = e->n_heap++;
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (!before(&candidate, &e->heap[parent]))
            break;
        e->heap[at] = e->heap[parent];
        at = parent;
    }
    e->heap[at] = candidate;
}

static struct candidate heap_pop(struct encoder *e)
{
    struct candidate top = e->heap[0], last = e->heap[--e->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= e->n_heap)
            break;
        if (child + 1 < e->n_heap && before(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (!before(&e->heap[child], &last))
            break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = last;
    return top;
}

static void add_candidate(struct encoder *e, uint32_t left, uint32_t right)
{
    uint32_t left_id = e->symbols[left].id, right_id = e->symbols[right].id;
    const struct merge *merge = merge_map_find(&e->tokenizer->merges, left_id, right_id);
    if (merge)
        heap_push(e, (struct candidate){merge->rank, left, left_id, right_id});
}

/* At most n - 1 candidates to begin with and 2 for each of at most n - 1 merges, each of which also
 * took one out: never more than 2 * n at a time. */
static bool encoder_reserve(struct encoder *e, size_t n)
{
    if (e->symbols && n <= e->cap)
        return true;
    size_t cap = e->cap < 256 ? 256 : e->cap;
    while (cap < n)
        cap *= 2;
    struct symbol *symbols = realloc(e->symbols, cap * sizeof *symbols);
    if (!symbols)
        return false;
    e->symbols = symbols;
    struct candidate *heap = realloc(e->heap, 2 * cap * sizeof *heap);
    if (!heap)
        return false;
    e->heap = heap;
    e->cap = cap;
    return true;
}

static void merge_all(struct encoder *e)
{
    while (e->n_heap > 0) {
        struct candidate c = heap_pop(e);
        struct symbol *left = &e->symbols[c.left];
        if (left->id != c.left_id || left->next == SYMBOL_NONE)
            continue;
        uint32_t right_at = left->next;
        struct symbol *right = &e->symbols[right_at];
        if (right->id != c.right_id)
            continue;
        left->id = merge_map_find(&e->tokenizer->merges, c.left_id, c.right_id)->id;
        left->next = right->next;
        right->id = ENGINE_TOKEN_NONE;
        if (left->next != SYMBOL_NONE) {
            e->symbols[left->next].prev = c.left;
            add_candidate(e, c.left, left->next);
        }
        if (left->prev != SYMBOL_NONE)
            add_candidate(e, left->prev, c.left);
    }
}

/* A splitter_piece_fn. */
static enum kvf_status encode_piece(void *ctx, const char *piece, size_t len,
                                    struct kvf_error *error)
{
    struct encoder *e = ctx;
    const struct engine_tokenizer *t = e->tokenizer;
    if (splitter_ignores_merges(t->splitter)) {
        uint32_t whole = string_map_find(&t->by_bytes, t->bytes, piece, len);
        if (whole != ENGINE_TOKEN_NONE && t->kinds[whole] == TOKEN_NORMAL)
            return append_id(e->tokens, whole, error);
    }
    if (!encoder_reserve(e, len))
        return kvf_fail(error, KVF_ENOMEM, "no memory to encode a piece of %zu bytes", len);
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = t->byte_ids[(uint8_t)piece[i]];
        if (id == ENGINE_TOKEN_NONE)
            continue;
        e->symbols[n] = (struct symbol){id, n - 1, n + 1};
        n++;
    }
    if (n == 0)
        return KVF_OK;
    e->symbols[0].prev = SYMBOL_NONE;
    e->symbols[n - 1].next = SYMBOL_NONE;
    e->n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        add_candidate(e, i, i + 1);
    merge_all(e);
    for (uint32_t i = 0; i != SYMBOL_NONE; i = e->symbols[i].next)
        KVF_TRY(append_id(e->tokens, e->symbols[i].id, error));
    return KVF_OK;
}

/* Text without special tokens: runs of valid UTF-8 are split into pieces, runs of other bytes are a
 * piece each. */
static enum kvf_status encode_plain(struct encoder *e, const char *text, size_t len,
                                    struct kvf_error *error)
{
    size_t at = 0;
    while (at < len) {
        size_t end = at;
        unsigned size;
        while (end < len &&
               (size = utf8_length((const uint8_t *)text + end, len - end, NULL, NULL)))
            end += size;
        if (end > at)
            KVF_TRY(
                splitter_run(e->tokenizer->splitter, text + at, end - at, encode_piece, e, error));
        at = end;
        unsigned bad;
        while (end < len && !utf8_length((const uint8_t *)text + end, len - end, &bad, NULL))
            end += bad;
        if (end > at)
            KVF_TRY(encode_piece(e, text + at, end - at, error));
        at = end;
    }
    return KVF_OK;
}

/* The longest special token that text begins with, or ENGINE_TOKEN_NONE. */
static uint32_t special_at(const struct engine_tokenizer *t, const char *text, size_t len,
                           bool control)
{
    if (!t->special_first[(uint8_t)text[0]])
        return ENGINE_TOKEN_NONE;
    for (uint32_t i = 0; i < t->n_special_lens; i++) {
        if (t->special_lens[i] > len)
            continue;
        uint32_t id = string_map_find(&t->specials, t->bytes, text, t->special_lens[i]);
        if (id != ENGINE_TOKEN_NONE && (control || t->kinds[id] == TOKEN_USER_DEFINED))
            return id;
    }
    return ENGINE_TOKEN_NONE;
}

static enum kvf_status encode_text(struct encoder *e, const char *text, size_t len, unsigned flags,
                                   struct kvf_error *error)
{
    const struct engine_tokenizer *t = e->tokenizer;
    if ((flags & ENGINE_ENCODE_BOS) && t->add_bos && t->bos != ENGINE_TOKEN_NONE)
        KVF_TRY(append_id(e->tokens, t->bos, error));
    size_t done = 0, at = 0;
    while (at < len) {
        uint32_t id = special_at(t, text + at, len - at, flags & ENGINE_ENCODE_SPECIAL);
        if (id == ENGINE_TOKEN_NONE) {
            at++;
            continue;
        }
        KVF_TRY(encode_plain(e, text + done, at - done, error));
        KVF_TRY(append_id(e->tokens, id, error));
        at += t->bytes[id].len;
        done = at;
    }
    return encode_plain(e, text + done, len - done, error);
}

enum kvf_status engine_tokenizer_encode(const struct engine_tokenizer *tokenizer, const char *text,
                                        size_t len, unsigned flags, struct engine_tokens *tokens,
                                        struct kvf_error *error)
{
    if (len > UINT32_MAX / 4)
        return kvf_fail(error, KVF_ELIMIT, "a text of %zu bytes; at most %u can be encoded", len,
                        UINT32_MAX / 4);
    struct encoder e = {.tokenizer = tokenizer, .tokens = tokens};
    size_t before_count = tokens->count;
    enum kvf_status status = encode_text(&e, text, len, flags, error);
    if (status != KVF_OK)
        tokens->count = before_count;
    free(e.symbols);
    free(e.heap);
    return status;
}
