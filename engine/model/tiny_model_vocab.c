/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer of a tiny model: three specials, all bytes, and some merges of English letters. */
#include "tiny_model_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_BYTES = 256,
    TEXT_MAX = 32, /* bytes of a token or merge in the byte alphabet */
    KIND_NORMAL = 1,
    KIND_CONTROL = 3,
};

static const char *const specials[] = {
    [TINY_MODEL_ENDOFTEXT] = "<|endoftext|>",
    [TINY_MODEL_IM_START] = "<|im_start|>",
    [TINY_MODEL_IM_END] = "<|im_end|>",
};

static const struct {
    const char *left, *right;
} merges[] = {
    {" ", "t"},   {" ", "a"},   {"h", "e"},  {"i", "n"},  {" t", "he"}, {"r", "e"},   {"o", "n"},
    {"e", "r"},   {" ", " "},   {"a", "t"},  {"e", "n"},  {"o", "u"},   {"i", "s"},   {"o", "r"},
    {"e", "s"},   {"s", "t"},   {"n", "d"},  {"in", "g"}, {" a", "nd"}, {" ", "o"},   {" ", "w"},
    {" ", "s"},   {" o", "f"},  {" ", "in"}, {" ", "c"},  {"l", "l"},   {"i", "t"},   {"e", "d"},
    {"\n", "\n"}, {"  ", "  "}, {"t", "he"}, {"1", "2"},  {"u", "s"},   {"us", "er"}, {"a", "l"},
};

static const char chat_template[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

enum {
    N_SPECIALS = sizeof specials / sizeof specials[0],
    N_MERGES = sizeof merges / sizeof merges[0],
};

/* Bytes that print as themselves in Latin-1 do so in the byte alphabet; the others are numbered
 * from U+0100 in their order. */
static unsigned alphabet_code(unsigned byte)
{
    unsigned others = 0;
    for (unsigned b = 0;; b++) {
        bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return itself ? byte : 0x100 + others;
        others += !itself;
    }
}

/* Appends the byte alphabet's form of bytes to text, which has room. */
static void append_alphabet(char *text, const char *bytes, size_t len)
{
    size_t at = strlen(text);
    for (size_t i = 0; i < len; i++) {
        unsigned code = alphabet_code((uint8_t)bytes[i]);
        if (code >= 0x80) {
            text[at++] = (char)(0xc0 | code >> 6);
            text[at++] = (char)(0x80 | (code & 0x3f));
        } else {
            text[at++] = (char)code;
        }
    }
    text[at] = '\0';
}

uint32_t tiny_vocab_size(void)
{
    return N_SPECIALS + N_BYTES + N_MERGES;
}

uint32_t tiny_vocab_entries(void)
{
    return 9;
}

static void put_tokens(struct tiny_buffer *buffer)
{
    tiny_entry_array(buffer, "tokenizer.ggml.tokens", GGUF_STRING, tiny_vocab_size());
    for (unsigned i = 0; i < N_SPECIALS; i++)
        tiny_put_text(buffer, specials[i]);
    for (unsigned i = 0; i < N_BYTES; i++) {
        char text[TEXT_MAX] = "", byte = (char)i;
        append_alphabet(text, &byte, 1);
        tiny_put_text(buffer, text);
    }
    for (unsigned i = 0; i < N_MERGES; i++) {
        char text[TEXT_MAX] = "";
        append_alphabet(text, merges[i].left, strlen(merges[i].left));
        append_alphabet(text, merges[i].right, strlen(merges[i].right));
        tiny_put_text(buffer, text);
    }
    tiny_entry_array(buffer, "tokenizer.ggml.token_type", GGUF_I32, tiny_vocab_size());
    for (unsigned i = 0; i < tiny_vocab_size(); i++)
        tiny_put_u32(buffer, i < N_SPECIALS ? KIND_CONTROL : KIND_NORMAL);
}

void tiny_vocab_put(struct tiny_buffer *buffer)
{
    tiny_entry_text(buffer, "tokenizer.ggml.model", "gpt2");
    tiny_entry_text(buffer, "tokenizer.ggml.pre", "smollm");
    put_tokens(buffer);
    tiny_entry_array(buffer, "tokenizer.ggml.merges", GGUF_STRING, N_MERGES);
    for (unsigned i = 0; i < N_MERGES; i++) {
        char text[TEXT_MAX] = "";
        append_alphabet(text, merges[i].left, strlen(merges[i].left));
        strncat(text, " ", 2);
        append_alphabet(text, merges[i].right, strlen(merges[i].right));
        tiny_put_text(buffer, text);
    }
    tiny_entry_u32(buffer, "tokenizer.ggml.bos_token_id", TINY_MODEL_IM_START);
    tiny_entry_u32(buffer, "tokenizer.ggml.eos_token_id", TINY_MODEL_IM_END);
    tiny_entry_bool(buffer, "tokenizer.ggml.add_bos_token", false);
    tiny_entry_text(buffer, "tokenizer.chat_template", chat_template);
}
