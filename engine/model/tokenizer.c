/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a tokenizer from a GGUF file's metadata. */
#include "tokenizer_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCAB_MAX = 1 << 22,
    /* Code points of the byte alphabet: printable Latin-1 stands for itself, the other bytes are
     * numbered from 256 in their order. */
    ALPHABET_FIRST = 256,
    ALPHABET_LAST = 323,
};

/* What building needs and the finished tokenizer does not. */
struct build {
    struct engine_tokenizer *tokenizer;
    const struct gguf *file;
    struct gguf_string *texts; /* as in the file: the byte alphabet for normal tokens */
    struct string_map by_text;
    int16_t alphabet[ALPHABET_LAST + 1]; /* code point to byte, or -1 */
    struct kvf_error *error;
};

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
           (byte >= 0xae && byte <= 0xff);
}

static void fill_alphabet(struct build *b)
{
    int next = ALPHABET_FIRST;
    for (int i = 0; i <= ALPHABET_LAST; i++)
        b->alphabet[i] = -1;
    for (int byte = 0; byte < 256; byte++)
        b->alphabet[stands_for_itself((unsigned)byte) ? byte : next++] = (int16_t)byte;
}

/* The byte that the character at text stands for, or -1; *size_p is the character's length. */
static int alphabet_byte(const struct build *b, const char *text, unsigned *size_p)
{
    const uint8_t *c = (const uint8_t *)text;
    unsigned code = c[0];
    if (*size_p == 2)
        code = (unsigned)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    else if (*size_p > 2)
        return -1;
    return code <= ALPHABET_LAST ? b->alphabet[code] : -1;
}

static const struct gguf_entry *array_of(struct build *b, const char *key,
                                         enum gguf_value_type type, enum kvf_status *status_p)
{
    const struct gguf_entry *entry = gguf_find(b->file, key);
    *status_p = KVF_OK;
    if (!entry)
        *status_p =
            kvf_fail(b->error, KVF_EFORMAT, "%s: key %s is missing", gguf_path(b->file), key);
    else if (entry->type != GGUF_ARRAY || entry->element_type != type)
        *status_p =
            kvf_fail(b->error, KVF_EFORMAT,
                     "%s: key %s is of value type %d (elements %d); expected an array of %d",
                     gguf_path(b->file), key, entry->type, entry->element_type, type);
    return *status_p == KVF_OK ? entry : NULL;
}

static enum kvf_status no_memory(struct build *b, const char *what)
{
    return kvf_fail(b->error, KVF_ENOMEM, "%s: no memory for the tokenizer's %s",
                    gguf_path(b->file), what);
}

static enum kvf_status load_texts(struct build *b, size_t *arena_size_p)
{
    enum kvf_status status;
    const struct gguf_entry *entry = array_of(b, "tokenizer.ggml.tokens", GGUF_STRING, &status);
    if (!entry)
        return status;
    if (entry->count == 0 || entry->count > VOCAB_MAX)
        return kvf_fail(b->error, KVF_EFORMAT,
                        "%s: tokenizer.ggml.tokens has %" PRIu64 " entries; 1 to %d are allowed",
                        gguf_path(b->file), entry->count, VOCAB_MAX);
    uint32_t count = (uint32_t)entry->count;
    b->tokenizer->vocab_size = count;
    b->texts = calloc(count, sizeof *b->texts);
    if (!b->texts || !string_map_init(&b->by_text, count))
        return no_memory(b, "vocabulary");
    struct gguf_strings strings = {entry->data, entry->size};
    *arena_size_p = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!gguf_next_string(&strings, &b->texts[i]))
            return kvf_fail(b->error, KVF_EFORMAT, "%s: token %u is cut short", gguf_path(b->file),
                            i);
        *arena_size_p += b->texts[i].len;
        string_map_add(&b->by_text, b->texts, i);
    }
    return KVF_OK;
}

static enum kvf_status load_kinds(struct build *b)
{
    struct engine_tokenizer *t = b->tokenizer;
    enum kvf_status status;
    t->kinds = malloc(t->vocab_size);
    if (!t->kinds)
        return no_memory(b, "token types");
    memset(t->kinds, TOKEN_NORMAL, t->vocab_size);
    if (!gguf_find(b->file, "tokenizer.ggml.token_type"))
        return KVF_OK;
    const struct gguf_entry *entry = array_of(b, "tokenizer.ggml.token_type", GGUF_I32, &status);
    if (!entry)
        return status;
    if (entry->count != t->vocab_size)
        return kvf_fail(b->error, KVF_EFORMAT,
                        "%s: tokenizer.ggml.token_type has %" PRIu64
                        " entries but tokenizer.ggml.tokens has %u",
                        gguf_path(b->file), entry->count, t->vocab_size);
    for (uint32_t i = 0; i < t->vocab_size; i++) {
        int32_t kind;
        memcpy(&kind, entry->data + (size_t)i * sizeof kind, sizeof kind);
        if (kind < 0 || kind > TOKEN_BYTE)
            return kvf_fail(b->error, KVF_EFORMAT,
                            "%s: token %u has type %d; the known ones are 0 to %d",
                            gguf_path(b->file), i, kind, TOKEN_BYTE);
        t->kinds[i] = (uint8_t)kind;
    }
    return KVF_OK;
}

/* Turns the text of each token into the bytes it stands for. */
static enum kvf_status load_bytes(struct build *b, size_t arena_size)
{
    struct engine_tokenizer *t = b->tokenizer;
    t->arena = malloc(arena_size + 1);
    t->bytes = calloc(t->vocab_size, sizeof *t->bytes);
    if (!t->arena || !t->bytes || !string_map_init(&t->by_bytes, t->vocab_size))
        return no_memory(b, "vocabulary");
    char *out = t->arena;
    for (uint32_t i = 0; i < t->vocab_size; i++) {
        struct gguf_string text = b->texts[i];
        bool raw = t->kinds[i] == TOKEN_CONTROL || t->kinds[i] == TOKEN_USER_DEFINED;
        char *start = out;
        for (size_t at = 0; at < text.len;) {
            unsigned size = utf8_length((const uint8_t *)text.data + at, text.len - at, NULL, NULL);
            if (size == 0)
                return kvf_fail(b->error, KVF_EFORMAT,
                                "%s: token %u is not valid UTF-8 at byte %zu", gguf_path(b->file),
                                i, at);
            int byte = raw ? -1 : alphabet_byte(b, text.data + at, &size);
            if (byte >= 0) {
                *out++ = (char)byte;
            } else {
                memcpy(out, text.data + at, size);
                out += size;
            }
            at += size;
        }
        t->bytes[i] = (struct gguf_string){start, (size_t)(out - start)};
        if (t->bytes[i].len > t->token_len_max)
            t->token_len_max = t->bytes[i].len;
        string_map_add(&t->by_bytes, t->bytes, i);
    }
    return KVF_OK;
}

static void load_byte_ids(struct build *b)
{
    struct engine_tokenizer *t = b->tokenizer;
    for (unsigned i = 0; i < 256; i++)
        t->byte_ids[i] = ENGINE_TOKEN_NONE;
    for (unsigned code = 0; code <= ALPHABET_LAST; code++) {
        if (b->alphabet[code] < 0)
            continue;
        char text[2] = {(char)code, 0};
        size_t len = 1;
        if (code >= 0x80) {
            text[0] = (char)(0xc0 | code >> 6);
            text[1] = (char)(0x80 | (code & 0x3f));
            len = 2;
        }
        t->byte_ids[b->alphabet[code]] = string_map_find(&b->by_text, b->texts, text, len);
    }
}

static enum kvf_status load_merge(struct build *b, uint32_t rank, struct gguf_string merge)
{
    struct engine_tokenizer *t = b->tokenizer;
    char joined[512];
    /* The separator is the first space after the first character; a token itself holds none. */
    const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
    if (!space || merge.len > sizeof joined)
        return kvf_fail(b->error, KVF_EFORMAT,
                        "%s: merge %u is \"%.*s\" (%zu bytes); expected two tokens and a space, at "
                        "most %zu bytes",
                        gguf_path(b->file), rank, merge.len > 80 ? 80 : (int)merge.len, merge.data,
                        merge.len, sizeof joined);
    size_t left_len = (size_t)(space - merge.data), right_len = merge.len - left_len - 1;
    memcpy(joined, merge.data, left_len);
    memcpy(joined + left_len, space + 1, right_len);
    uint32_t left = string_map_find(&b->by_text, b->texts, merge.data, left_len);
    uint32_t right = string_map_find(&b->by_text, b->texts, space + 1, right_len);
    uint32_t id = string_map_find(&b->by_text, b->texts, joined, left_len + right_len);
    if (left == ENGINE_TOKEN_NONE || right == ENGINE_TOKEN_NONE || id == ENGINE_TOKEN_NONE)
        return kvf_fail(b->error, KVF_EFORMAT,
                        "%s: merge %u \"%.*s\" names a token that is not in tokenizer.ggml.tokens",
                        gguf_path(b->file), rank, merge.len > 80 ? 80 : (int)merge.len, merge.data);
    merge_map_add(&t->merges, left, right, rank, id);
    return KVF_OK;
}

static enum kvf_status load_merges(struct build *b)
{
    enum kvf_status status;
    const struct gguf_entry *entry = array_of(b, "tokenizer.ggml.merges", GGUF_STRING, &status);
    if (!entry)
        return status;
    if (entry->count > VOCAB_MAX)
        return kvf_fail(b->error, KVF_EFORMAT,
                        "%s: tokenizer.ggml.merges has %" PRIu64 " entries; at most %d are allowed",
                        gguf_path(b->file), entry->count, VOCAB_MAX);
    if (!merge_map_init(&b->tokenizer->merges, (size_t)entry->count))
        return no_memory(b, "merges");
    struct gguf_strings strings = {entry->data, entry->size};
    for (uint32_t rank = 0; rank < entry->count; rank++) {
        struct gguf_string merge;
        if (!gguf_next_string(&strings, &merge))
            return kvf_fail(b->error, KVF_EFORMAT, "%s: merge %u is cut short", gguf_path(b->file),
                            rank);
        KVF_TRY(load_merge(b, rank, merge));
    }
    return KVF_OK;
}

static int descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static enum kvf_status load_specials(struct build *b)
{
    struct engine_tokenizer *t = b->tokenizer;
    uint32_t count = 0, n = 0;
    for (uint32_t i = 0; i < t->vocab_size; i++)
        count += t->kinds[i] == TOKEN_CONTROL || t->kinds[i] == TOKEN_USER_DEFINED;
    t->special_lens = calloc(count + 1, sizeof *t->special_lens);
    if (!t->special_lens || !string_map_init(&t->specials, count))
        return no_memory(b, "special tokens");
    for (uint32_t i = 0; i < t->vocab_size; i++) {
        if ((t->kinds[i] != TOKEN_CONTROL && t->kinds[i] != TOKEN_USER_DEFINED) ||
            t->bytes[i].len == 0 || t->bytes[i].len > UINT32_MAX)
            continue;
        string_map_add(&t->specials, t->bytes, i);
        t->special_first[(uint8_t)t->bytes[i].data[0]] = true;
        t->special_lens[n++] = (uint32_t)t->bytes[i].len;
    }
    qsort(t->special_lens, n, sizeof *t->special_lens, descending);
    for (uint32_t i = 0; i < n; i++) {
        if (t->n_special_lens == 0 || t->special_lens[t->n_special_lens - 1] != t->special_lens[i])
            t->special_lens[t->n_special_lens++] = t->special_lens[i];
    }
    return KVF_OK;
}

static enum kvf_status load_id(struct build *b, const char *key, uint32_t *id_p)
{
    *id_p = ENGINE_TOKEN_NONE;
    if (!gguf_find(b->file, key))
        return KVF_OK;
    KVF_TRY(gguf_get_u32(b->file, key, id_p, b->error));
    if (*id_p >= b->tokenizer->vocab_size)
        return kvf_fail(b->error, KVF_EFORMAT, "%s: key %s is %u but the vocabulary has %u tokens",
                        gguf_path(b->file), key, *id_p, b->tokenizer->vocab_size);
    return KVF_OK;
}

static enum kvf_status build(struct build *b)
{
    static const char unnamed[] = "default";
    struct engine_tokenizer *t = b->tokenizer;
    struct gguf_string model, pre = {unnamed, sizeof unnamed - 1};
    size_t arena_size = 0;
    KVF_TRY(gguf_get_string(b->file, "tokenizer.ggml.model", &model, b->error));
    if (model.len != 4 || memcmp(model.data, "gpt2", 4) != 0)
        return kvf_fail(b->error, KVF_ENOTSUP,
                        "%s: tokenizer.ggml.model is \"%.*s\"; supported is gpt2 (byte-level BPE)",
                        gguf_path(b->file), model.len > 80 ? 80 : (int)model.len, model.data);
    if (gguf_find(b->file, "tokenizer.ggml.pre"))
        KVF_TRY(gguf_get_string(b->file, "tokenizer.ggml.pre", &pre, b->error));
    KVF_TRY(splitter_create(gguf_path(b->file), pre, &t->splitter, b->error));

    fill_alphabet(b);
    KVF_TRY(load_texts(b, &arena_size));
    KVF_TRY(load_kinds(b));
    KVF_TRY(load_bytes(b, arena_size));
    load_byte_ids(b);
    KVF_TRY(load_merges(b));
    KVF_TRY(load_specials(b));
    KVF_TRY(load_id(b, "tokenizer.ggml.bos_token_id", &t->bos));
    KVF_TRY(load_id(b, "tokenizer.ggml.eos_token_id", &t->eos));
    KVF_TRY(load_id(b, "tokenizer.ggml.eot_token_id", &t->eot));
    if (gguf_find(b->file, "tokenizer.ggml.add_bos_token"))
        KVF_TRY(gguf_get_bool(b->file, "tokenizer.ggml.add_bos_token", &t->add_bos, b->error));
    return tokenizer_load_chat(t, b->file, b->error);
}

enum kvf_status engine_tokenizer_create(const struct gguf *file,
                                        struct engine_tokenizer **tokenizer_p,
                                        struct kvf_error *error)
{
    struct build b = {.file = file, .error = error};
    b.tokenizer = calloc(1, sizeof *b.tokenizer);
    if (!b.tokenizer)
        return no_memory(&b, "state");
    enum kvf_status status = build(&b);
    string_map_free(&b.by_text);
    free(b.texts);
    /* A key that must be there is a defect of the file, not a question without an answer. */
    if (status == KVF_ENOTFOUND)
        status = KVF_EFORMAT;
    if (status != KVF_OK) {
        if (error)
            error->status = status;
        engine_tokenizer_destroy(b.tokenizer);
        return status;
    }
    *tokenizer_p = b.tokenizer;
    return KVF_OK;
}

void engine_tokenizer_destroy(struct engine_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    splitter_destroy(tokenizer->splitter);
    string_map_free(&tokenizer->by_bytes);
    string_map_free(&tokenizer->specials);
    merge_map_free(&tokenizer->merges);
    free(tokenizer->special_lens);
    free(tokenizer->default_system);
    free(tokenizer->arena);
    free(tokenizer->bytes);
    free(tokenizer->kinds);
    free(tokenizer);
}

uint32_t engine_tokenizer_vocab_size(const struct engine_tokenizer *tokenizer)
{
    return tokenizer->vocab_size;
}

size_t engine_tokenizer_token_len_max(const struct engine_tokenizer *tokenizer)
{
    return tokenizer->token_len_max;
}

uint32_t engine_tokenizer_bos(const struct engine_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

uint32_t engine_tokenizer_eos(const struct engine_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool engine_tokenizer_is_end(const struct engine_tokenizer *tokenizer, uint32_t id)
{
    return id != ENGINE_TOKEN_NONE && (id == tokenizer->eos || id == tokenizer->eot);
}

bool engine_tokenizer_is_special(const struct engine_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab_size && tokenizer->kinds[id] == TOKEN_CONTROL;
}

const char *engine_tokenizer_token_bytes(const struct engine_tokenizer *tokenizer, uint32_t id,
                                         size_t *len_p)
{
    if (id >= tokenizer->vocab_size) {
        *len_p = 0;
        return NULL;
    }
    *len_p = tokenizer->bytes[id].len;
    return tokenizer->bytes[id].data;
}

uint32_t engine_tokenizer_find(const struct engine_tokenizer *tokenizer, const char *bytes,
                               size_t len)
{
    return string_map_find(&tokenizer->by_bytes, tokenizer->bytes, bytes, len);
}
