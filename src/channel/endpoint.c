/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/endpoint.h"

#include "kvferry/kv.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Copies the host without the brackets of an IPv6 literal. */
static enum kvf_status strip_host(const char *host, char bare[KVF_HOST_LEN_MAX + 1],
                                  struct kvf_error *error)
{
    size_t len = host ? strlen(host) : 0;
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
    }
    if (len == 0)
        return kvf_fail(error, KVF_EINVAL, "the side channel's host is empty");
    if (len > KVF_HOST_LEN_MAX)
        return kvf_fail(error, KVF_EINVAL, "a host of %zu bytes is longer than %d", len,
                        KVF_HOST_LEN_MAX);
    memcpy(bare, host, len);
    bare[len] = '\0';
    return KVF_OK;
}

static int look_up(const char *bare, int flags, struct addrinfo **list_p)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int rc = getaddrinfo(bare, NULL, &hints, list_p);
    /* A system without a hosts file does not know the name; it means this host all the same. */
    if (rc != 0 && strcmp(bare, "localhost") == 0 && !(flags & AI_NUMERICHOST))
        rc = getaddrinfo("127.0.0.1", NULL, &hints, list_p);
    return rc;
}

bool kvfi_endpoint_is_local_knowledge(const char *host)
{
    char bare[KVF_HOST_LEN_MAX + 1];
    if (strip_host(host, bare, NULL) != KVF_OK || strcmp(bare, "localhost") == 0)
        return true;
    struct addrinfo *list = NULL;
    if (look_up(bare, AI_NUMERICHOST, &list) != 0)
        return false;
    freeaddrinfo(list);
    return true;
}

enum kvf_status kvfi_endpoint_resolve(const char *host, uint16_t port,
                                      struct kvfi_endpoint *endpoint, struct kvf_error *error)
{
    char bare[KVF_HOST_LEN_MAX + 1];
    KVF_TRY(strip_host(host, bare, error));
    struct addrinfo *list = NULL;
    int rc = look_up(bare, 0, &list);
    if (rc != 0 || !list)
        return kvf_fail(error, KVF_ENOTFOUND,
                        "host \"%s\": %s; give an address or a name that resolves here", bare,
                        gai_strerror(rc));
    const struct addrinfo *chosen = list;
    for (const struct addrinfo *entry = list; entry; entry = entry->ai_next) {
        if (entry->ai_family == AF_INET) {
            chosen = entry;
            break;
        }
    }
    char address[NI_MAXHOST];
    rc = getnameinfo(chosen->ai_addr, chosen->ai_addrlen, address, sizeof(address), NULL, 0,
                     NI_NUMERICHOST);
    bool ipv6 = chosen->ai_family == AF_INET6;
    freeaddrinfo(list);
    if (rc != 0)
        return kvf_fail(error, KVF_ENOTFOUND, "host \"%s\": %s", bare, gai_strerror(rc));
    struct kvfi_endpoint result = {.ipv6 = ipv6};
    int len = snprintf(result.text, sizeof(result.text), ipv6 ? "tcp://[%s]:%u" : "tcp://%s:%u",
                       address, (unsigned)port);
    if (len < 0 || (size_t)len >= sizeof(result.text))
        return kvf_fail(error, KVF_EINVAL, "host \"%s\" has an address of %zu characters", bare,
                        strlen(address));
    *endpoint = result;
    return KVF_OK;
}
