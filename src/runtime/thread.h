/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_THREAD_H
#define KVFI_RUNTIME_THREAD_H

#include "kvferry/status.h"

#include <pthread.h>

/* Starts a thread with a name (at most 15 characters, shown by ps and debuggers) and every signal
 * blocked: signals belong to the program, not to its libraries. The caller joins it. */
enum kvf_status kvfi_thread_start(const char *name, void *(*main)(void *ctx), void *ctx,
                                  pthread_t *thread_p, struct kvf_error *error) KVF_MUST_USE;

#endif
