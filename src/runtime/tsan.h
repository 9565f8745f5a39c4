/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_RUNTIME_TSAN_H
#define KVFI_RUNTIME_TSAN_H

/*
 * ConcurrencyKit's atomics are inline assembly, which ThreadSanitizer cannot see. These marks tell
 * it what they guarantee: what happened before a hand-over happens before its receipt, and the
 * accesses inside the structure itself are not to be judged. They are nothing in other builds.
 */

#if defined(__SANITIZE_THREAD__)
#define KVFI_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVFI_TSAN 1
#endif
#endif

#ifdef KVFI_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define KVFI_TSAN_GIVES(addr) __tsan_release(addr)
#define KVFI_TSAN_TAKES(addr) __tsan_acquire(addr)
#define KVFI_TSAN_CK_BEGIN()                                                                       \
    (AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__))
#define KVFI_TSAN_CK_END()                                                                         \
    (AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__))
#else
#define KVFI_TSAN_GIVES(addr) ((void)(addr))
#define KVFI_TSAN_TAKES(addr) ((void)(addr))
#define KVFI_TSAN_CK_BEGIN()  ((void)0)
#define KVFI_TSAN_CK_END()    ((void)0)
#endif

#endif
