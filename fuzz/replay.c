/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

/* Runs a fuzz target over every file of the folders named on the command line. A folder without
 * files is an error: it would test nothing. */

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    uint8_t *data = NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0)
        data = malloc(size ? (size_t)size : 1);
    size_t got = data ? fread(data, 1, (size_t)size, file) : 0;
    int failed = !data || got != (size_t)size;
    if (failed)
        fprintf(stderr, "%s: cannot be read\n", path);
    else
        LLVMFuzzerTestOneInput(data, got);
    free(data);
    fclose(file);
    return failed;
}

static int replay_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        return 1;
    }
    int failed = 0;
    size_t count = 0;
    for (struct dirent *entry; !failed && (entry = readdir(dir));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        int len = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (len < 0 || (size_t)len >= sizeof(path)) {
            fprintf(stderr, "%s/%s: the path is too long\n", folder, entry->d_name);
            failed = 1;
            break;
        }
        failed = replay_file(path);
        count++;
    }
    closedir(dir);
    if (!failed && count == 0) {
        fprintf(stderr, "%s: no files to replay\n", folder);
        failed = 1;
    }
    printf("%s: %zu files\n", folder, count);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER...\n", argv[0]);
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        if (replay_folder(argv[i]))
            return 1;
    }
    return 0;
}
