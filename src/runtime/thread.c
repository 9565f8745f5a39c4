/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/thread.h"

#include <signal.h>
#include <string.h>

enum kvf_status kvfi_thread_start(const char *name, void *(*main)(void *ctx), void *ctx,
                                  pthread_t *thread_p, struct kvf_error *error)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    /* Inherited: set around the creation, not in the thread, which could be hit first. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, main, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return kvf_fail(error, KVF_ESYSTEM, "cannot start thread %s: %s", name,
                        strerrordesc_np(rc));
    pthread_setname_np(thread, name);
    *thread_p = thread;
    return KVF_OK;
}
