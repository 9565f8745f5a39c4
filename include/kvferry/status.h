/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_STATUS_H
#define KVFERRY_STATUS_H

/*
 * One result type for the whole library.
 *
 * A function that can fail returns enum kvf_status and is must-use. Outputs are written only on
 * KVF_OK. A function that can explain itself also takes `struct kvf_error *error` (may be NULL):
 * the function that decides which failure it is fills it once, callers only pass it on.
 */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define KVF_API                __attribute__((visibility("default")))
#define KVF_MUST_USE           __attribute__((warn_unused_result))
#define KVF_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define KVF_API
#define KVF_MUST_USE
#define KVF_PRINTF(fmt, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * X(name, value, text, scope). The scope tells the caller what the failure has cost:
 *   call     nothing but this call; the same object goes on working
 *   request  one request or transfer
 *   peer     everything that is under way with one peer
 *   self     the object itself; destroy it
 * KVF_AGAIN and KVF_IN_PROGRESS are answers, not failures.
 */
#define KVF_STATUS_LIST(X)                                                                         \
    X(KVF_OK, 0, "success", "call")                                                                \
    X(KVF_AGAIN, 1, "no room or not ready, try again", "call")                                     \
    X(KVF_IN_PROGRESS, 2, "still in progress", "call")                                             \
    X(KVF_EINVAL, -1, "invalid argument", "call")                                                  \
    X(KVF_ENOMEM, -2, "out of memory", "call")                                                     \
    X(KVF_ENOTFOUND, -3, "not found", "call")                                                      \
    X(KVF_EEXIST, -4, "already exists", "call")                                                    \
    X(KVF_EBUSY, -5, "in use", "call")                                                             \
    X(KVF_EFORMAT, -6, "malformed message or file", "call")                                        \
    X(KVF_ELIMIT, -7, "a configured limit is exceeded", "call")                                    \
    X(KVF_ENOTSUP, -8, "not supported", "call")                                                    \
    X(KVF_EMISMATCH, -9, "the two sides disagree", "peer")                                         \
    X(KVF_ENOTALLOWED, -10, "refused because it would replace live state", "call")                 \
    X(KVF_EDISCONNECTED, -11, "the peer is gone", "peer")                                          \
    X(KVF_ETIMEDOUT, -12, "a deadline has passed", "request")                                      \
    X(KVF_ECANCELED, -13, "cancelled", "request")                                                  \
    X(KVF_ETRANSPORT, -14, "the transport failed", "request")                                      \
    X(KVF_ESYSTEM, -15, "a system call failed", "call")                                            \
    X(KVF_ECLOSED, -16, "the object is closing", "call")                                           \
    X(KVF_EINTERNAL, -17, "a defect in kvferry", "self")

enum kvf_status {
#define KVF_STATUS_ENUM(name, value, text, scope) name = (value),
    KVF_STATUS_LIST(KVF_STATUS_ENUM)
#undef KVF_STATUS_ENUM
};

/* What went wrong, for a person: the thing, the two values that disagree, what to change. */
struct kvf_error {
    enum kvf_status status;
    char text[508]; /* always terminated; truncated with "..." when longer */
};

/* Static texts, valid for ever, any thread. Unknown values give "unknown status". */
KVF_API const char *kvf_status_name(enum kvf_status status);
KVF_API const char *kvf_status_text(enum kvf_status status);
KVF_API const char *kvf_status_scope(enum kvf_status status);

/* Writes the formatted text into *error (when not NULL) and returns status, so that a failing
 * function can end with `return kvf_fail(error, KVF_EINVAL, "...")`. Any thread, never blocks. */
KVF_API enum kvf_status kvf_fail(struct kvf_error *error, enum kvf_status status, const char *fmt,
                                 ...) KVF_PRINTF(3, 4);

/* Returns from the calling function when expr is not KVF_OK. Only where nothing is held. */
#define KVF_TRY(expr)                                                                              \
    do {                                                                                           \
        enum kvf_status kvf_try_status_ = (expr);                                                  \
        if (kvf_try_status_ != KVF_OK)                                                             \
            return kvf_try_status_;                                                                \
    } while (0)

/* Where the library takes memory from. All three are called from any thread the library runs on;
 * alloc and realloc may return NULL. A NULL pointer to this struct means malloc and free. */
struct kvf_allocator {
    void *ctx;
    void *(*alloc)(void *ctx, size_t size);
    void *(*realloc)(void *ctx, void *ptr, size_t size);
    void (*free)(void *ctx, void *ptr);
};

#ifdef __cplusplus
}
#endif
#endif
