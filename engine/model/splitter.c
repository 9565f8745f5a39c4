/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-tokenizers: named lists of expressions, applied one after the other. Each cuts the pieces
 * of the one before it into its matches and what lies between them. */
#include "tokenizer_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>

enum {
    STEPS_MAX = 4,
};

/* White space as the tokenizers' own library defines it (Unicode's White_Space property); PCRE2's
 * \s has one more. */
#define WS                                                                                         \
    "\\t-\\r\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
    "\\x{3000}"
#define SPACE   "[" WS "]"
#define NOSPACE "[^" WS "]"

#define GPT2_SPLIT                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACE "+(?!" NOSPACE   \
    ")|" SPACE "+"
#define LLAMA3_SPLIT                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WS               \
    "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE "+(?!" NOSPACE ")|" SPACE "+"

struct recipe {
    const char *const *names;
    const char *steps[STEPS_MAX];
    bool ignore_merges;
};

static const char *const gpt2_names[] = {"gpt-2", "gpt2", "phi-2", "mpt", "olmo", NULL};
static const char *const digit_names[] = {"smollm",    "starcoder", "refact",
                                          "command-r", "codeshell", NULL};
static const char *const llama3_names[] = {"llama-bpe", "llama3", "llama-v3", NULL};
static const char *const default_names[] = {"default", NULL};

static const struct recipe recipes[] = {
    {digit_names, {"\\p{N}", GPT2_SPLIT}, false},
    {gpt2_names, {GPT2_SPLIT}, false},
    {llama3_names, {LLAMA3_SPLIT}, true},
    {default_names, {"[\\p{P}$+<=>^~|]+", GPT2_SPLIT, "\\p{N}+", "[0-9][0-9][0-9]"}, false},
};

struct splitter {
    pcre2_code *steps[STEPS_MAX];
    unsigned n_steps;
    bool ignore_merges;
};

/* One run over one text. */
struct run {
    const struct splitter *splitter;
    pcre2_match_data *match[STEPS_MAX];
    splitter_piece_fn fn;
    void *ctx;
    struct kvf_error *error;
};

static const struct recipe *find_recipe(struct gguf_string pre)
{
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        for (const char *const *name = recipes[i].names; *name; name++) {
            if (strlen(*name) == pre.len && memcmp(*name, pre.data, pre.len) == 0)
                return &recipes[i];
        }
    }
    return NULL;
}

enum kvf_status splitter_create(const char *path, struct gguf_string pre,
                                struct splitter **splitter_p, struct kvf_error *error)
{
    const struct recipe *recipe = find_recipe(pre);
    if (!recipe)
        return kvf_fail(
            error, KVF_ENOTSUP,
            "%s: tokenizer.ggml.pre is \"%.*s\"; supported are smollm, starcoder, refact, "
            "command-r, codeshell, gpt-2, phi-2, mpt, olmo, llama-bpe and default",
            path, pre.len > 80 ? 80 : (int)pre.len, pre.data);
    struct splitter *splitter = calloc(1, sizeof *splitter);
    if (!splitter)
        return kvf_fail(error, KVF_ENOMEM, "%s: no memory for the pre-tokenizer", path);
    splitter->ignore_merges = recipe->ignore_merges;
    for (unsigned i = 0; i < STEPS_MAX && recipe->steps[i]; i++) {
        int code = 0;
        PCRE2_SIZE offset = 0;
        splitter->steps[i] =
            pcre2_compile((PCRE2_SPTR)recipe->steps[i], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
        if (!splitter->steps[i]) {
            splitter_destroy(splitter);
            return kvf_fail(error, code == PCRE2_ERROR_HEAP_FAILED ? KVF_ENOMEM : KVF_EINTERNAL,
                            "pre-tokenizer step %u: pcre2 error %d at %zu", i, code, offset);
        }
        /* Without just-in-time code (no executable memory, say) matching is only slower. */
        (void)pcre2_jit_compile(splitter->steps[i], PCRE2_JIT_COMPLETE);
        splitter->n_steps = i + 1;
    }
    *splitter_p = splitter;
    return KVF_OK;
}

void splitter_destroy(struct splitter *splitter)
{
    if (!splitter)
        return;
    for (unsigned i = 0; i < STEPS_MAX; i++)
        pcre2_code_free(splitter->steps[i]);
    free(splitter);
}

bool splitter_ignores_merges(const struct splitter *splitter)
{
    return splitter->ignore_merges;
}

static enum kvf_status split_step(struct run *run, unsigned step, const char *text, size_t len)
{
    if (step == run->splitter->n_steps)
        return run->fn(run->ctx, text, len, run->error);

    size_t done = 0, from = 0;
    while (from < len) {
        int found = pcre2_match(run->splitter->steps[step], (PCRE2_SPTR)text, len, from,
                                PCRE2_NO_UTF_CHECK, run->match[step], NULL);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return kvf_fail(run->error, found == PCRE2_ERROR_NOMEMORY ? KVF_ENOMEM : KVF_EINTERNAL,
                            "pre-tokenizer step %u: pcre2 error %d in a text of %zu bytes", step,
                            found, len);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->match[step]);
        size_t start = range[0], end = range[1];
        if (end <= start || start < from)
            return kvf_fail(run->error, KVF_EINTERNAL, "pre-tokenizer step %u matched nothing",
                            step);
        if (start > done)
            KVF_TRY(split_step(run, step + 1, text + done, start - done));
        KVF_TRY(split_step(run, step + 1, text + start, end - start));
        done = from = end;
    }
    if (len > done)
        return split_step(run, step + 1, text + done, len - done);
    return KVF_OK;
}

enum kvf_status splitter_run(const struct splitter *splitter, const char *text, size_t len,
                             splitter_piece_fn fn, void *ctx, struct kvf_error *error)
{
    struct run run = {.splitter = splitter, .fn = fn, .ctx = ctx, .error = error};
    enum kvf_status status = KVF_OK;
    for (unsigned i = 0; i < splitter->n_steps; i++) {
        run.match[i] = pcre2_match_data_create(1, NULL);
        if (!run.match[i])
            status = kvf_fail(error, KVF_ENOMEM, "no memory to match a text of %zu bytes", len);
    }
    if (status == KVF_OK)
        status = split_step(&run, 0, text, len);
    for (unsigned i = 0; i < splitter->n_steps; i++)
        pcre2_match_data_free(run.match[i]);
    return status;
}
