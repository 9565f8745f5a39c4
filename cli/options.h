/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_CLI_OPTIONS_H
#define KVFERRY_CLI_OPTIONS_H

/*
 * Command-line options from one table: parsing, defaults, limits, the environment and --help all
 * come from it.
 *
 * An option is given as --name VALUE or --name=VALUE, a flag as --name or --no-name. The
 * environment variable KVFERRY_<NAME> (upper case, '-' becomes '_') stands in for an option that
 * is not on the command line. "--" ends the options.
 */

#include "kvferry/status.h"

#include <stdint.h>
#include <stdio.h>

enum kvfi_option_kind {
    KVFI_OPTION_FLAG,     /* bool */
    KVFI_OPTION_STRING,   /* const char *; NULL without a default */
    KVFI_OPTION_CHOICE,   /* const char *, one of the words in `argument`: "push|pull" */
    KVFI_OPTION_INT,      /* int64_t between min and max */
    KVFI_OPTION_BYTES,    /* int64_t; suffixes K, M, G (1024) */
    KVFI_OPTION_DURATION, /* int64_t in ms; suffixes ms, s, m; a bare number is in `unit` */
    KVFI_OPTION_NUMBER,   /* double between min and max */
    KVFI_OPTION_LIST,     /* struct kvfi_option_list; may be repeated; in the environment the
                           * values are separated by spaces */
};

/* Copies, freed by kvfi_options_free. */
struct kvfi_option_list {
    char **values;
    size_t count;
};

struct kvfi_option {
    const char *name;
    enum kvfi_option_kind kind;
    bool required;
    const char *argument; /* "N", "URL"; NULL for a flag */
    const char *unit;     /* "ms", "s", "bytes"; NULL when it has none */
    const char *fallback; /* the default as one would type it; NULL: zero, NULL, false, empty */
    const char *help;
    size_t offset;   /* of the value in the caller's struct: offsetof */
    double min, max; /* of INT, BYTES, DURATION (ms) and NUMBER; both 0: no limit */
};

struct kvfi_command {
    const char *name;    /* "kvferry proxy" */
    const char *usage;   /* what follows the name in the usage line */
    const char *summary; /* one sentence */
    const char *details; /* printed after the options: exit codes, examples; may be NULL */
    const struct kvfi_option *options;
    size_t option_count;
    size_t positional_count_max; /* further arguments; more is an error */
};

/* What is left of argv after the options, in order. Strings belong to argv. */
struct kvfi_positionals {
    const char **values;
    size_t count;
};

/* Fills *values from argv[1..argc) and the environment. argv[0] is not looked at. KVF_EINVAL: the
 * text names the option, what was given and what is expected. KVF_ENOTFOUND is no failure: --help
 * was given and nothing else was parsed. values and positionals own memory until
 * kvfi_options_free, also after a failure. Strings in values are borrowed from argv and the
 * environment, those of lists are copies. */
KVF_MUST_USE enum kvf_status kvfi_options_parse(const struct kvfi_command *command, int argc,
                                                char **argv, void *values,
                                                struct kvfi_positionals *positionals,
                                                struct kvf_error *error);
void kvfi_options_free(const struct kvfi_command *command, void *values,
                       struct kvfi_positionals *positionals);

/* The --help text. */
void kvfi_options_help(const struct kvfi_command *command, FILE *out);

/* What a subcommand calls first: parses, prints --help to stdout or one line of error to stderr.
 * Returns -1 to go on, otherwise the exit code: 0 after --help, 2 after an error (memory is then
 * already freed). */
int kvfi_options_enter(const struct kvfi_command *command, int argc, char **argv, void *values,
                       struct kvfi_positionals *positionals);

#endif
