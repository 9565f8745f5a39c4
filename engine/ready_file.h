/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_READY_FILE_H
#define ENGINE_READY_FILE_H

#include "engine/engine.h"

/* Writes {"pid","host","port","side_host","side_port","engine_id","role","model"} to path: whole or
 * not at all, by renaming. KVF_ESYSTEM with the path and reason. */
KVF_MUST_USE enum kvf_status engine_ready_file_write(const char *path, const char *host,
                                                     uint16_t port, const struct engine_info *info,
                                                     struct kvf_error *error);

#endif
