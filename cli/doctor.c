/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/doctor_print.h"
#include "cli/options.h"
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

struct values {
    bool json;
};

static const struct kvfi_option options[] = {
    {.name = "json",
     .kind = KVFI_OPTION_FLAG,
     .offset = offsetof(struct values, json),
     .help = "one line with one JSON object, in the form that the man page describes"},
};

static const struct kvfi_command command = {
    .name = "kvferry doctor",
    .usage = "[options]",
    .summary = "Says what this machine offers and what follows for a transfer.",
    .details =
        "It tries a transfer between two processes of its own. Run it as the engines run: the "
        "same user,\ncontainer and environment.\n\n"
        "exit codes: 0 transfers are possible, 1 no transfer is possible, 2 wrong usage\n",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static enum kvf_status print(const struct kvf_host_report *report, bool json,
                             struct kvf_error *error)
{
    struct utsname name;
    char title[512] = "";
    if (json)
        return kvfi_doctor_print_json(report, stdout, error);
    memset(&name, 0, sizeof(name));
    (void)uname(&name);
    (void)snprintf(title, sizeof(title), "kvferry %s on %s, %s %s %s", kvf_version(), name.nodename,
                   name.sysname, name.release, name.machine);
    kvfi_doctor_print_text(report, title, stdout);
    return KVF_OK;
}

int kvfi_doctor_main(int argc, char **argv)
{
    struct values values;
    struct kvfi_positionals positionals;
    int code = kvfi_options_enter(&command, argc, argv, &values, &positionals);
    if (code >= 0)
        return code;
    struct kvf_host_report *report = NULL;
    struct kvf_error error = {0};
    enum kvf_status status = kvf_host_report_create(NULL, &report, &error);
    if (status == KVF_OK)
        status = print(report, values.json, &error);
    if (status != KVF_OK)
        fprintf(stderr, "%s: %s\n", command.name, error.text);
    bool possible = status == KVF_OK && kvf_host_report_level(report) != KVF_FINDING_FAIL;
    kvf_host_report_free(report);
    kvfi_options_free(&command, &values, &positionals);
    return possible ? 0 : 1;
}
