/* SPDX-License-Identifier: Apache-2.0 */
#include "http/client.h"

#include <string.h>

static enum kvf_status parse_port(const char *text, const char *digits, size_t len,
                                  uint16_t *port_p, struct kvf_error *error)
{
    unsigned port = 0;
    for (size_t i = 0; i < len && port <= UINT16_MAX; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return kvf_fail(error, KVF_EINVAL, "URL '%.200s': the port is not a number", text);
        port = port * 10 + (unsigned)(digits[i] - '0');
    }
    if (!len || !port || port > UINT16_MAX)
        return kvf_fail(error, KVF_EINVAL, "URL '%.200s': the port must be 1 to 65535", text);
    *port_p = (uint16_t)port;
    return KVF_OK;
}

enum kvf_status kvfi_http_url_parse(const char *text, struct kvfi_http_url *url_p,
                                    struct kvf_error *error)
{
    struct kvfi_http_url url = {.port = 80};
    const char *host = text;
    if (strncmp(text, "https://", 8) == 0)
        return kvf_fail(error, KVF_ENOTSUP,
                        "URL '%.200s': https is not supported, use http:// inside the cluster",
                        text);
    if (strncmp(text, "http://", 7) == 0)
        host += 7;
    else if (strstr(text, "://"))
        return kvf_fail(error, KVF_EINVAL, "URL '%.200s': expected http://host:port", text);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f || *c == '@' || *c == '?' || *c == '#')
            return kvf_fail(error, KVF_EINVAL,
                            "URL '%.200s': blanks, '@', '?' and '#' are not allowed", text);
    size_t authority_len = strcspn(host, "/");
    const char *path = host + authority_len;
    size_t host_len = 0;
    const char *after = NULL;
    if (host[0] == '[') {
        const char *close = memchr(host, ']', authority_len);
        if (!close)
            return kvf_fail(error, KVF_EINVAL, "URL '%.200s': ']' is missing", text);
        host++;
        host_len = (size_t)(close - host);
        after = close + 1;
    } else {
        const char *colon = memchr(host, ':', authority_len);
        after = colon ? colon : path;
        host_len = (size_t)(after - host);
    }
    if (!host_len || host_len >= sizeof(url.host))
        return kvf_fail(error, KVF_EINVAL, "URL '%.200s': the host is empty or too long", text);
    if (after != path && *after != ':')
        return kvf_fail(error, KVF_EINVAL, "URL '%.200s': expected ':' and a port after the host",
                        text);
    if (after != path)
        KVF_TRY(parse_port(text, after + 1, (size_t)(path - after) - 1, &url.port, error));
    size_t path_len = strlen(path);
    while (path_len && path[path_len - 1] == '/')
        path_len--;
    if (path_len >= sizeof(url.path))
        return kvf_fail(error, KVF_EINVAL, "URL '%.200s...': the path is too long", text);
    memcpy(url.host, host, host_len);
    memcpy(url.path, path, path_len);
    *url_p = url;
    return KVF_OK;
}
