/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_DOCTOR_PRINT_H
#define KVFERRY_CLI_DOCTOR_PRINT_H

/* A host report as text for a person or as JSON; kvferry-doctor(1) describes both. */

#include "kvferry/doctor.h"

#include <stdio.h>

/* title: one line, printed first. Worst findings first. */
void kvfi_doctor_print_text(const struct kvf_host_report *report, const char *title, FILE *out);
/* One line with one object. KVF_ENOMEM. */
KVF_MUST_USE enum kvf_status kvfi_doctor_print_json(const struct kvf_host_report *report, FILE *out,
                                                    struct kvf_error *error);

#endif
