/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_TRACE_MERGE_H
#define KVFERRY_CLI_TRACE_MERGE_H

/*
 * Event records of several processes, merged into one timeline for each request. Records belong to
 * one request when their base ids are equal; a timeline is ordered by wall clock, which the
 * processes must share well enough. One thread; no I/O but to the FILE that is handed in.
 */

#include "http/json.h"
#include "kvferry/status.h"

#include <stdint.h>
#include <stdio.h>

struct kvfi_trace_record {
    json_t *object; /* owned */
    int64_t wall_ns;
    const char *base; /* borrowed from object, or owned when base_owned */
    char *base_owned;
    uint64_t order; /* of arrival; keeps equal times stable */
};

struct kvfi_trace {
    struct kvfi_trace_record *records;
    size_t count;
    size_t cap;
    const char *filter; /* NULL: all; else part of the request id, base id or transfer id */
};

/* Takes one line of a record file. KVF_EFORMAT says what is wrong with it; the trace is then
 * unchanged. A line that the filter does not want is KVF_OK. Borrows text. */
KVF_MUST_USE enum kvf_status kvfi_trace_add(struct kvfi_trace *trace, const char *text, size_t len,
                                            struct kvf_error *error);

/* Orders the records: requests by their first record, within one by time. */
KVF_MUST_USE enum kvf_status kvfi_trace_sort(struct kvfi_trace *trace, struct kvf_error *error);

/* One block of lines for each request, or (json) one line with one object for each request. After
 * kvfi_trace_sort. KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status kvfi_trace_print(const struct kvfi_trace *trace, bool json, FILE *out,
                                              struct kvf_error *error);

void kvfi_trace_free(struct kvfi_trace *trace);

#endif
