/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/ready_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum kvf_status kvfi_ready_file_write(const char *path, uint16_t port, struct kvf_error *error)
{
    char beside[PATH_MAX];
    int len = snprintf(beside, sizeof(beside), "%s.%ld", path, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof(beside))
        return kvf_fail(error, KVF_EINVAL, "--ready-file: the path is too long");
    FILE *file = fopen(beside, "we");
    bool bad = !file;
    if (file) {
        bad = fprintf(file, "{\"port\":%u,\"pid\":%ld}\n", port, (long)getpid()) < 0;
        bad |= fclose(file) != 0;
    }
    if (bad || rename(beside, path) != 0) {
        int reason = errno;
        (void)unlink(beside);
        return kvf_fail(error, KVF_ESYSTEM, "--ready-file %.300s: %s", path, strerror(reason));
    }
    return KVF_OK;
}
