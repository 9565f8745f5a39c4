/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_READY_FILE_H
#define KVFERRY_CLI_READY_FILE_H

#include "kvferry/status.h"

#include <stdint.h>

/* Writes {"port":N,"pid":N} and a line break. The file appears complete or not at all (written
 * beside, then renamed). KVF_ESYSTEM names path and reason. Blocks on the file system. */
KVF_MUST_USE enum kvf_status kvfi_ready_file_write(const char *path, uint16_t port,
                                                   struct kvf_error *error);

#endif
