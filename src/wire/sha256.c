/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/sha256.h"

#include <openssl/evp.h>

void kvfi_sha256_begin(struct kvfi_sha256 *sha)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        context = NULL;
    }
    sha->state = context;
}

void kvfi_sha256_put(struct kvfi_sha256 *sha, const void *data, size_t len)
{
    if (sha->state && EVP_DigestUpdate(sha->state, data, len) != 1) {
        EVP_MD_CTX_free(sha->state);
        sha->state = NULL;
    }
}

bool kvfi_sha256_end(struct kvfi_sha256 *sha, char hex[KVFI_COMPAT_HASH_LEN + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned digest_len = 0;
    bool done = sha->state && EVP_DigestFinal_ex(sha->state, digest, &digest_len) == 1 &&
                digest_len * 2 == KVFI_COMPAT_HASH_LEN;
    EVP_MD_CTX_free(sha->state);
    sha->state = NULL;
    size_t len = done ? digest_len : 0;
    for (size_t i = 0; i < len; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 0xf];
    }
    hex[2 * len] = '\0';
    return done;
}
