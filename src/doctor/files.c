/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of /proc, /sys and /dev below a root, and lists of names. */
#include "doctor/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kvfi_names_add(struct kvfi_names *names, const char *fmt, ...)
{
    if (names->count == KVFI_NAMES_MAX) {
        names->left_out++;
        return;
    }
    char *text = names->texts[names->count++];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, KVFI_NAME_SIZE, fmt, args);
    va_end(args);
}

void kvfi_names_join(const struct kvfi_names *names, char *text, size_t size)
{
    enum { MORE = 32 }; /* room for " and N more" */
    size_t len = 0;
    size_t i = 0;
    text[0] = '\0';
    for (; i < names->count; i++) {
        size_t need = strlen(names->texts[i]) + 2;
        if (len + need + MORE > size)
            break;
        len += (size_t)snprintf(text + len, size - len, "%s%s", i ? ", " : "", names->texts[i]);
    }
    size_t more = names->count - i + names->left_out;
    if (more > 0 && len < size)
        (void)snprintf(text + len, size - len, " and %zu more", more);
}

static bool KVF_PRINTF(3, 0) make_path(const struct kvfi_machine *machine, char path[PATH_MAX],
                                       const char *fmt, va_list args)
{
    int root_len = snprintf(path, PATH_MAX, "%s", machine->root);
    if (root_len < 0 || root_len >= PATH_MAX)
        return false;
    int len = vsnprintf(path + root_len, (size_t)(PATH_MAX - root_len), fmt, args);
    return len >= 0 && len < PATH_MAX - root_len;
}

static void KVF_PRINTF(3, 4)
    path_below(const struct kvfi_machine *machine, char path[PATH_MAX], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!make_path(machine, path, fmt, args))
        path[0] = '\0';
    va_end(args);
}

static bool read_path(const char *path, char *text, size_t size)
{
    text[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    size_t len = 0;
    ssize_t got = 0;
    while (len < size - 1 && (got = read(fd, text + len, size - 1 - len)) > 0)
        len += (size_t)got;
    (void)close(fd);
    if (got < 0)
        len = 0;
    if (len > 0 && text[len - 1] == '\n')
        len--;
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\0')
            text[i] = '?';
    text[len] = '\0';
    return got >= 0;
}

bool kvfi_read_text(const struct kvfi_machine *machine, char *text, size_t size, const char *fmt,
                    ...)
{
    char path[PATH_MAX];
    va_list args;
    va_start(args, fmt);
    bool fits = make_path(machine, path, fmt, args);
    va_end(args);
    text[0] = '\0';
    return fits && read_path(path, text, size);
}

bool kvfi_read_number(const struct kvfi_machine *machine, uint64_t *number_p, const char *fmt, ...)
{
    char path[PATH_MAX];
    char text[64];
    va_list args;
    va_start(args, fmt);
    bool fits = make_path(machine, path, fmt, args);
    va_end(args);
    if (!fits || !read_path(path, text, sizeof(text)) || text[0] < '0' || text[0] > '9')
        return false;
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *number_p = number;
    return true;
}

bool kvfi_line_value(const char *text, const char *key, char *value, size_t size)
{
    size_t key_len = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, key_len) != 0 || line[key_len] != ':')
            continue;
        const char *at = line + key_len + 1;
        at += strspn(at, " \t");
        (void)snprintf(value, size, "%.*s", (int)strcspn(at, "\n"), at);
        return true;
    }
    value[0] = '\0';
    return false;
}

bool kvfi_read_link(const struct kvfi_machine *machine, char *text, size_t size, const char *name)
{
    char path[PATH_MAX];
    path_below(machine, path, "%s", name);
    ssize_t len = readlink(path, text, size - 1);
    text[len > 0 ? len : 0] = '\0';
    return len > 0;
}

bool kvfi_exists(const struct kvfi_machine *machine, const char *fmt, ...)
{
    char path[PATH_MAX];
    va_list args;
    va_start(args, fmt);
    bool fits = make_path(machine, path, fmt, args);
    va_end(args);
    return fits && access(path, F_OK) == 0;
}

static int by_text(const void *left, const void *right)
{
    return strverscmp(left, right);
}

void kvfi_list_folder(const struct kvfi_machine *machine, const char *folder_name,
                      const char *prefix, struct kvfi_names *names)
{
    char path[PATH_MAX];
    *names = (struct kvfi_names){0};
    path_below(machine, path, "%s", folder_name);
    DIR *folder = opendir(path);
    if (!folder)
        return;
    const struct dirent *entry;
    while ((entry = readdir(folder)))
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
            kvfi_names_add(names, "%s", entry->d_name);
    (void)closedir(folder);
    qsort(names->texts, names->count, sizeof(names->texts[0]), by_text);
}

const char *kvfi_environment(const struct kvfi_machine *machine, const char *name)
{
    size_t len = strlen(name);
    for (char *const *at = machine->environment; at && *at; at++)
        if (strncmp(*at, name, len) == 0 && (*at)[len] == '=' && (*at)[len + 1])
            return *at + len + 1;
    return NULL;
}

bool kvfi_has_capability(const struct kvfi_machine *machine, unsigned bit)
{
    char status[4096];
    char value[32];
    return kvfi_read_text(machine, status, sizeof(status), "/proc/self/status") &&
           kvfi_line_value(status, "CapEff", value, sizeof(value)) &&
           (strtoull(value, NULL, 16) >> bit & 1U);
}
