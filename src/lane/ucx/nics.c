/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/nics.h"

#include <dirent.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool has_usable_address(const struct ifaddrs *entry)
{
    if (!entry->ifa_addr)
        return false;
    if (entry->ifa_addr->sa_family == AF_INET)
        return true;
    if (entry->ifa_addr->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 address;
    memcpy(&address, entry->ifa_addr, sizeof(address));
    return !IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

static bool is_candidate(const struct ifaddrs *entry, bool (*is_left_out)(const char *name))
{
    const unsigned wanted = IFF_UP | IFF_RUNNING;
    return (entry->ifa_flags & (wanted | IFF_LOOPBACK)) == wanted && has_usable_address(entry) &&
           !strchr(entry->ifa_name, ',') && !(is_left_out && is_left_out(entry->ifa_name));
}

/* The first name after `after` in the order of bytes; an interface has an entry per address. */
static const char *next_name(const struct ifaddrs *all, const char *after,
                             bool (*is_left_out)(const char *name))
{
    const char *found = NULL;
    for (const struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        if (strcmp(entry->ifa_name, after) > 0 && (!found || strcmp(entry->ifa_name, found) < 0) &&
            is_candidate(entry, is_left_out))
            found = entry->ifa_name;
    }
    return found;
}

size_t kvfi_nics_join(const struct ifaddrs *all, bool (*is_left_out)(const char *name),
                      char list[KVFI_NICS_LEN])
{
    size_t count = 0;
    size_t len = 0;
    list[0] = '\0';
    for (const char *name = ""; (name = next_name(all, name, is_left_out)); count++) {
        size_t name_len = strlen(name);
        if (name_len + 2 > KVFI_NICS_LEN - len) {
            list[0] = '\0';
            return 0;
        }
        if (count > 0)
            list[len++] = ',';
        memcpy(list + len, name, name_len + 1);
        len += name_len;
    }
    return count;
}

const char *kvfi_nics_best(const struct ifaddrs *all, uint64_t (*rank)(const char *name))
{
    const char *best = NULL;
    uint64_t best_rank = 0;
    for (const char *name = ""; (name = next_name(all, name, NULL));) {
        uint64_t its_rank = rank(name);
        if (!best || its_rank > best_rank) {
            best = name;
            best_rank = its_rank;
        }
    }
    return best;
}

static bool is_loopback(const struct ifaddrs *all, const char *name, size_t len)
{
    for (; all; all = all->ifa_next) {
        if (strlen(all->ifa_name) == len && memcmp(all->ifa_name, name, len) == 0)
            return (all->ifa_flags & IFF_LOOPBACK) != 0;
    }
    return false;
}

bool kvfi_nics_only_loopback(const struct ifaddrs *all, const char *list)
{
    bool any = false;
    while (*list) {
        size_t len = strcspn(list, ",");
        if (len > 0 && !is_loopback(all, list, len))
            return false;
        any = any || len > 0;
        list += len + (list[len] == ',');
    }
    return any;
}

bool kvfi_nics_is_bridge(const char *name)
{
    char path[64 + IFNAMSIZ];
    int len = snprintf(path, sizeof(path), "/sys/class/net/%s/bridge", name);
    return len > 0 && (size_t)len < sizeof(path) && access(path, F_OK) == 0;
}

/* Mbit/s. Virtual interfaces often tell none, and UCX takes them for slow ones. */
static uint64_t speed_of(const char *name)
{
    char path[64 + IFNAMSIZ];
    unsigned long long speed = 0;
    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    /* -1 and what else does not fit: unknown */
    if (fscanf(file, "%llu", &speed) != 1 || speed > UINT32_MAX)
        speed = 0;
    (void)fclose(file);
    return speed;
}

static bool has_default_route(const char *name)
{
    FILE *file = fopen("/proc/net/route", "re");
    if (!file)
        return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof(line), file)) {
        size_t len = strcspn(line, "\t");
        found = len == strlen(name) && memcmp(line, name, len) == 0 &&
                strncmp(line + len, "\t00000000\t", 10) == 0;
    }
    (void)fclose(file);
    return found;
}

uint64_t kvfi_nics_rank(const char *name)
{
    uint64_t rank = kvfi_nics_is_bridge(name) ? 0 : UINT64_C(1) << 40;
    return rank + 2 * speed_of(name) + (has_default_route(name) ? 1 : 0);
}

bool kvfi_nics_has_rdma(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    if (!folder)
        return false;
    bool found = false;
    const struct dirent *entry;
    while (!found && (entry = readdir(folder)))
        found = entry->d_name[0] != '.';
    closedir(folder);
    return found;
}
