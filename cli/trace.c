/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/trace_merge.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_COUNT_MAX = 1024 };

struct values {
    const char *request;
    bool json;
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct kvfi_option options[] = {
    {.name = "request",
     .kind = KVFI_OPTION_STRING,
     .argument = "ID",
     AT(request),
     .help = "only requests whose request, base or transfer id contains ID"},
    {.name = "json",
     .kind = KVFI_OPTION_FLAG,
     AT(json),
     .help = "one line with one JSON object for each request"},
};

static const struct kvfi_command command = {
    .name = "kvferry trace",
    .usage = "[options] FILE...",
    .summary = "Merges the event records of proxy and engines into one timeline for each request.",
    .details = "FILE '-' is stdin. Times are milliseconds since the request's first record, by the "
               "wall clocks\nof the processes.\n\n"
               "exit codes: 0 all lines were read, 1 a file or a line could not be read, 2 wrong "
               "usage\n",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
    .positional_count_max = FILE_COUNT_MAX,
};

/* Returns how many lines were not records; KVF_ENOMEM ends the reading. */
static enum kvf_status read_lines(struct kvfi_trace *trace, const char *path, FILE *in,
                                  uint64_t *bad_count_p, struct kvf_error *error)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len = 0;
    uint64_t number = 0;
    enum kvf_status status = KVF_OK;
    while (status == KVF_OK && (len = getline(&line, &cap, in)) >= 0) {
        number++;
        bool whole = len && line[len - 1] == '\n';
        size_t text_len = (size_t)len - whole;
        if (!text_len)
            continue;
        struct kvf_error wrong = {0};
        enum kvf_status added = kvfi_trace_add(trace, line, text_len, &wrong);
        if (added == KVF_ENOMEM) {
            *error = wrong;
            status = added;
        } else if (added != KVF_OK) {
            ++*bad_count_p;
            fprintf(stderr, "%s:%llu: %s%s\n", path, (unsigned long long)number, wrong.text,
                    whole ? "" : " (the file ends inside this line)");
        }
    }
    if (status == KVF_OK && ferror(in)) {
        ++*bad_count_p;
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    }
    free(line);
    return status;
}

static enum kvf_status read_file(struct kvfi_trace *trace, const char *path, uint64_t *bad_count_p,
                                 struct kvf_error *error)
{
    if (strcmp(path, "-") == 0)
        return read_lines(trace, "stdin", stdin, bad_count_p, error);
    FILE *in = fopen(path, "re");
    if (!in) {
        ++*bad_count_p;
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return KVF_OK;
    }
    enum kvf_status status = read_lines(trace, path, in, bad_count_p, error);
    fclose(in);
    return status;
}

int kvfi_trace_main(int argc, char **argv)
{
    struct values values;
    struct kvfi_positionals files;
    int code = kvfi_options_enter(&command, argc, argv, &values, &files);
    if (code >= 0)
        return code;
    if (!files.count) {
        fprintf(stderr, "%s: no FILE; see %s --help\n", command.name, command.name);
        kvfi_options_free(&command, &values, &files);
        return 2;
    }
    struct kvfi_trace trace = {.filter = values.request};
    struct kvf_error error = {0};
    uint64_t bad_count = 0;
    enum kvf_status status = KVF_OK;
    for (size_t i = 0; i < files.count && status == KVF_OK; i++)
        status = read_file(&trace, files.values[i], &bad_count, &error);
    if (status == KVF_OK)
        status = kvfi_trace_sort(&trace, &error);
    if (status == KVF_OK)
        status = kvfi_trace_print(&trace, values.json, stdout, &error);
    if (status != KVF_OK)
        fprintf(stderr, "%s: %s\n", command.name, error.text);
    else if (!trace.count)
        fprintf(stderr, "%s: no records%s%s\n", command.name, values.request ? " with id " : "",
                values.request ? values.request : "");
    kvfi_trace_free(&trace);
    kvfi_options_free(&command, &values, &files);
    return status != KVF_OK || bad_count ? 1 : 0;
}
