/* SPDX-License-Identifier: Apache-2.0 */
/* From token ids to valid UTF-8, whole or as a stream. */
#include "tokenizer_impl.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* Moves bytes from data to text, ill-formed parts replaced; what a later byte may complete goes
 * into the decoder. Room for 3 * len bytes was made before. */
static void put_valid(struct engine_decoder *decoder, struct engine_text *text, const uint8_t *data,
                      size_t len)
{
    size_t at = 0;
    while (at < len) {
        unsigned bad;
        bool cut;
        unsigned size = utf8_length(data + at, len - at, &bad, &cut);
        if (size > 0) {
            memcpy(text->data + text->len, data + at, size);
            text->len += size;
            at += size;
        } else if (cut) {
            memcpy(decoder->held, data + at, len - at);
            decoder->n_held = (uint8_t)(len - at);
            break;
        } else {
            memcpy(text->data + text->len, REPLACEMENT, 3);
            text->len += 3;
            at += bad;
        }
    }
    text->data[text->len] = '\0';
}

enum kvf_status engine_decoder_push(struct engine_decoder *decoder,
                                    const struct engine_tokenizer *tokenizer, uint32_t id,
                                    bool keep_special, struct engine_text *text,
                                    struct kvf_error *error)
{
    if (id >= tokenizer->vocab_size)
        return kvf_fail(error, KVF_EINVAL, "token id %u is outside the vocabulary of %u tokens", id,
                        tokenizer->vocab_size);
    if (!keep_special && engine_tokenizer_is_special(tokenizer, id))
        return KVF_OK;
    struct gguf_string bytes = tokenizer->bytes[id];
    KVF_TRY(text_reserve(text, 3 * (bytes.len + sizeof decoder->held), error));

    /* At most 3 held bytes: complete the sequence they begin with the token's first bytes. */
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t left = bytes.len;
    while (decoder->n_held > 0 && left > 0) {
        uint8_t joined[4];
        unsigned n = decoder->n_held;
        memcpy(joined, decoder->held, n);
        joined[n] = *data;
        decoder->n_held = 0;
        unsigned bad;
        bool cut;
        unsigned size = utf8_length(joined, n + 1, &bad, &cut);
        if (size == 0 && !cut) {
            /* The held part is over; the new byte begins something else. */
            memcpy(text->data + text->len, REPLACEMENT, 3);
            text->len += 3;
            break;
        }
        put_valid(decoder, text, joined, n + 1);
        data++;
        left--;
    }
    put_valid(decoder, text, data, left);
    return KVF_OK;
}

enum kvf_status engine_decoder_finish(struct engine_decoder *decoder, struct engine_text *text,
                                      struct kvf_error *error)
{
    if (decoder->n_held == 0)
        return KVF_OK;
    KVF_TRY(text_append(text, REPLACEMENT, 3, error));
    decoder->n_held = 0;
    return KVF_OK;
}

enum kvf_status engine_tokenizer_decode(const struct engine_tokenizer *tokenizer,
                                        const uint32_t *ids, size_t count, bool keep_special,
                                        struct engine_text *text, struct kvf_error *error)
{
    struct engine_decoder decoder = {0};
    size_t before = text->len;
    enum kvf_status status = KVF_OK;
    for (size_t i = 0; i < count && status == KVF_OK; i++)
        status = engine_decoder_push(&decoder, tokenizer, ids[i], keep_special, text, error);
    if (status == KVF_OK)
        status = engine_decoder_finish(&decoder, text, error);
    if (status != KVF_OK && text->data) {
        text->len = before;
        text->data[before] = '\0';
    }
    return status;
}
