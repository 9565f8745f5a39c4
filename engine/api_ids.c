/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/api_params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum kvf_status engine_api_random_hex(char *buf, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[32];
    if (count > sizeof(bytes) || getrandom(bytes, count, 0) != (ssize_t)count)
        return KVF_ESYSTEM;
    for (size_t i = 0; i < count; i++)
        buf[i] = digits[bytes[i] & 15];
    buf[count] = '\0';
    return KVF_OK;
}

static bool printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x21 || *text == 0x7f)
            return false;
    return true;
}

enum kvf_status engine_api_base_id(const char *header, const char *body, char *buf,
                                   struct kvf_error *error)
{
    const char *id = header && *header ? header : body;
    if (!id || !*id) {
        if (engine_api_random_hex(buf, 16) != KVF_OK)
            return kvf_fail(error, KVF_ESYSTEM, "the kernel gives no random numbers");
        return KVF_OK;
    }
    if (strlen(id) > ENGINE_API_BASE_ID_LEN_MAX)
        return kvf_fail(error, KVF_EINVAL, "the request id has %zu bytes, at most %d are taken",
                        strlen(id), ENGINE_API_BASE_ID_LEN_MAX);
    if (!printable(id))
        return kvf_fail(error, KVF_EINVAL, "the request id holds a space or a control character");
    memcpy(buf, id, strlen(id) + 1);
    return KVF_OK;
}

char *engine_api_internal_id(bool chat, const char *base, size_t prompt_index, uint32_t k,
                             uint32_t n, const char *suffix)
{
    char child[16] = "";
    char index[24] = "";
    char *id = NULL;
    if (n > 1)
        (void)snprintf(child, sizeof(child), "%u_", k);
    if (!chat)
        (void)snprintf(index, sizeof(index), "-%zu", prompt_index);
    if (asprintf(&id, "%s%s-%s%s-%s", child, chat ? "chatcmpl" : "cmpl", base, index, suffix) < 0)
        return NULL;
    return id;
}
