/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ready_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kvf_status engine_ready_file_write(const char *path, const char *host, uint16_t port,
                                        const struct engine_info *info, struct kvf_error *error)
{
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.%ld", path, (long)getpid()) < 0)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the ready file's name");
    json_t *content =
        json_pack("{s:I, s:s, s:i, s:s, s:i, s:s, s:s, s:s}", "pid", (json_int_t)getpid(), "host",
                  host, "port", (int)port, "side_host", info->side_host, "side_port",
                  (int)info->side_port, "engine_id", info->engine_id, "role",
                  engine_role_name(info->role), "model", info->model_name);
    enum kvf_status status = KVF_OK;
    errno = 0;
    if (!content || json_dump_file(content, temporary, JSON_COMPACT) != 0 ||
        rename(temporary, path) != 0) {
        int code = errno;
        (void)unlink(temporary);
        status = kvf_fail(error, KVF_ESYSTEM, "cannot write the ready file %s: %s", path,
                          code ? strerrordesc_np(code) : "model or host name is not UTF-8");
    }
    json_decref(content);
    free(temporary);
    return status;
}
