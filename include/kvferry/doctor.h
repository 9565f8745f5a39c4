/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_DOCTOR_H
#define KVFERRY_DOCTOR_H

/*
 * What this machine offers to a transfer and what follows from it, as findings for a person or for
 * a script. `kvferry doctor` prints them; kvferry-doctor(1) lists every topic with its facts.
 */

#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvf_host_report;

enum kvf_finding_level {
    KVF_FINDING_OK = 0,   /* nothing to do */
    KVF_FINDING_NOTE = 1, /* works; could be better, or works in fewer places */
    KVF_FINDING_WARN =
        2, /* a transfer is slower than it need be, or fails in a case that is named */
    KVF_FINDING_FAIL = 3, /* no transfer is possible */
};

enum kvf_fact_kind {
    KVF_FACT_NONE = 0, /* the machine does not say, or there is no limit */
    KVF_FACT_BOOL,
    KVF_FACT_NUMBER,
    KVF_FACT_TEXT,
    KVF_FACT_LIST, /* of texts; 64 at most, further ones are left out */
};

struct kvf_fact {
    const char *name;
    enum kvf_fact_kind kind;
    uint64_t number;          /* BOOL: 0 or 1 */
    const char *const *texts; /* TEXT: one */
    size_t text_count;
};

/* Texts are printable ASCII without line breaks. */
struct kvf_finding {
    const char *topic; /* "ucx", "cma", ... */
    enum kvf_finding_level level;
    const char *found;   /* what is the case */
    const char *follows; /* what follows for a transfer */
    const char *remedy;  /* what to do; NULL exactly when the level is KVF_FINDING_OK */
    const struct kvf_fact *facts;
    size_t fact_count;
};

/* Looks at the machine. Returns owned. Every topic gives one finding, always in the same order;
 * what a machine lacks or forbids is a finding, not an error. Blocks: child processes try things
 * out, one of them a transfer between two processes; they are killed when they do not end in 20
 * seconds. It forks, so call it while the process has one thread. Errors: KVF_ENOMEM. allocator
 * NULL: malloc. */
KVF_API enum kvf_status kvf_host_report_create(const struct kvf_allocator *allocator,
                                               struct kvf_host_report **report_p,
                                               struct kvf_error *error) KVF_MUST_USE;
/* NULL is allowed. Any thread. */
KVF_API void kvf_host_report_free(struct kvf_host_report *report);

/* The rest: any thread, does not block; what is returned is valid until the report is freed. */
KVF_API size_t kvf_host_report_count(const struct kvf_host_report *report);
/* NULL when index is not below the count. */
KVF_API const struct kvf_finding *kvf_host_report_finding(const struct kvf_host_report *report,
                                                          size_t index);
/* The worst level of all findings. */
KVF_API enum kvf_finding_level kvf_host_report_level(const struct kvf_host_report *report);
/* "ok", "note", "warn" or "fail". Static text. */
KVF_API const char *kvf_finding_level_name(enum kvf_finding_level level);

#ifdef __cplusplus
}
#endif
#endif
