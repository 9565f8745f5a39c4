/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/host/wire.h"

#include <string.h>

enum { VERSION = 1 };

static const unsigned char identity_magic[8] = "KVFHOST";
static const unsigned char key_magic[8] = "KVFMEMY";

static unsigned char *put(unsigned char *out, size_t len, uint64_t value)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)(value >> (8 * i));
    return out + len;
}

static uint64_t get(const unsigned char **in, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++)
        value |= (uint64_t)(*in)[i] << (8 * i);
    *in += len;
    return value;
}

void kvfi_host_identity_encode(const struct kvfi_host_identity *identity,
                               unsigned char out[KVFI_HOST_TRAILER_LEN])
{
    out = put(out, 1, VERSION);
    out = put(out, 1, identity->offers);
    out = put(out, 2, 0);
    out = put(out, 4, identity->pid);
    out = put(out, 8, identity->start_time);
    out = put(out, 8, identity->pid_namespace);
    memcpy(out, identity->boot_id, sizeof(identity->boot_id));
    out = put(out + sizeof(identity->boot_id), 8, identity->nonce_addr);
    memcpy(out, identity->nonce, sizeof(identity->nonce));
    out = put(out + sizeof(identity->nonce), 8, 0);
    memcpy(out, identity_magic, sizeof(identity_magic));
}

/* The trailer's first byte, or NULL. */
static const unsigned char *find(const void *bytes, size_t len, size_t trailer_len,
                                 const unsigned char magic[8])
{
    if (len < trailer_len)
        return NULL;
    const unsigned char *end = (const unsigned char *)bytes + len;
    const unsigned char *trailer = end - trailer_len;
    return memcmp(end - 8, magic, 8) == 0 && trailer[0] == VERSION ? trailer : NULL;
}

size_t kvfi_host_identity_decode(const void *bytes, size_t len, struct kvfi_host_identity *identity,
                                 bool *found_p)
{
    const unsigned char *in = find(bytes, len, KVFI_HOST_TRAILER_LEN, identity_magic);
    *found_p = in != NULL;
    if (!in)
        return len;
    in++;
    identity->offers = (uint8_t)get(&in, 1);
    in += 2;
    identity->pid = (uint32_t)get(&in, 4);
    identity->start_time = get(&in, 8);
    identity->pid_namespace = get(&in, 8);
    memcpy(identity->boot_id, in, sizeof(identity->boot_id));
    in += sizeof(identity->boot_id);
    identity->nonce_addr = get(&in, 8);
    memcpy(identity->nonce, in, sizeof(identity->nonce));
    return len - KVFI_HOST_TRAILER_LEN;
}

void kvfi_host_key_encode(const struct kvfi_host_key *key,
                          unsigned char out[KVFI_HOST_KEY_TRAILER_LEN])
{
    out = put(out, 1, VERSION);
    out = put(out, 1, (uint64_t)key->kind);
    out = put(out, 2, 0);
    out = put(out, 4, key->fd);
    out = put(out, 8, key->addr);
    out = put(out, 8, key->length);
    out = put(out, 8, key->inode);
    out = put(out, 8, key->offset);
    out = put(out, 8, 0);
    memcpy(out, key_magic, sizeof(key_magic));
}

size_t kvfi_host_key_decode(const void *bytes, size_t len, struct kvfi_host_key *key, bool *found_p)
{
    const unsigned char *in = find(bytes, len, KVFI_HOST_KEY_TRAILER_LEN, key_magic);
    *found_p = in && (in[1] == KVFI_HOST_PLAIN || in[1] == KVFI_HOST_POOL);
    if (!in)
        return len;
    in++;
    key->kind = (enum kvfi_host_memory)get(&in, 1);
    in += 2;
    key->fd = (uint32_t)get(&in, 4);
    key->addr = get(&in, 8);
    key->length = get(&in, 8);
    key->inode = get(&in, 8);
    key->offset = get(&in, 8);
    if (key->length > UINT64_MAX - key->addr)
        *found_p = false;
    return len - KVFI_HOST_KEY_TRAILER_LEN;
}
