/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_LEN_MAX = 64, HELP_COLUMN = 28 };

static void *value_of(void *values, const struct kvfi_option *option)
{
    return (char *)values + option->offset;
}

static enum kvf_status wrong(const char *where, const char *text, const char *expected,
                             struct kvf_error *error)
{
    return kvf_fail(error, KVF_EINVAL, "%s: '%.200s' is not %s", where, text, expected);
}

static enum kvf_status check_range(const struct kvfi_option *option, const char *where,
                                   const char *text, double value, struct kvf_error *error)
{
    if (option->min == 0 && option->max == 0)
        return KVF_OK;
    if (value >= option->min && value <= option->max)
        return KVF_OK;
    const char *unit = option->kind == KVFI_OPTION_DURATION ? " ms" : "";
    return kvf_fail(error, KVF_EINVAL, "%s: '%.200s' is out of range, expected %.15g to %.15g%s",
                    where, text, option->min, option->max, unit);
}

/* The factor of a suffix, 0 for an unknown one. */
static double suffix_factor(const struct kvfi_option *option, const char *suffix)
{
    if (option->kind == KVFI_OPTION_BYTES) {
        if (!*suffix)
            return 1;
        if (suffix[1])
            return 0;
        switch (*suffix) {
        case 'K':
        case 'k':
            return 1024.0;
        case 'M':
        case 'm':
            return 1024.0 * 1024;
        case 'G':
        case 'g':
            return 1024.0 * 1024 * 1024;
        default:
            return 0;
        }
    }
    if (option->kind == KVFI_OPTION_DURATION) {
        const char *unit = *suffix ? suffix : option->unit;
        if (!unit || strcmp(unit, "ms") == 0)
            return 1;
        if (strcmp(unit, "s") == 0)
            return 1000;
        return strcmp(unit, "m") == 0 ? 60.0 * 1000 : 0;
    }
    return *suffix ? 0 : 1;
}

static const char *expected_text(enum kvfi_option_kind kind)
{
    switch (kind) {
    case KVFI_OPTION_BYTES:
        return "a size such as 4096, 64K or 1G";
    case KVFI_OPTION_DURATION:
        return "a duration such as 500ms, 2s or 1m";
    case KVFI_OPTION_NUMBER:
        return "a number";
    case KVFI_OPTION_FLAG:
        return "1, 0, true or false";
    case KVFI_OPTION_INT:
    case KVFI_OPTION_STRING:
    case KVFI_OPTION_CHOICE:
    case KVFI_OPTION_LIST:
        break;
    }
    return "an integer";
}

static enum kvf_status set_number(const struct kvfi_option *option, const char *where,
                                  const char *text, void *value, struct kvf_error *error)
{
    const char *expected = expected_text(option->kind);
    char *end = NULL;
    if (!isdigit((unsigned char)text[0]) && !strchr("-.", text[0]))
        return wrong(where, text, expected, error);
    if (option->kind == KVFI_OPTION_NUMBER) {
        double number = strtod(text, &end);
        if (end == text || *end || !isfinite(number))
            return wrong(where, text, expected, error);
        KVF_TRY(check_range(option, where, text, number, error));
        *(double *)value = number;
        return KVF_OK;
    }
    errno = 0;
    long long number = strtoll(text, &end, 10);
    double factor = end == text ? 0 : suffix_factor(option, end);
    if (factor == 0)
        return wrong(where, text, expected, error);
    /* Beyond 2^53 a double is not exact; nothing here is that large. */
    if (errno == ERANGE || fabs((double)number) * factor > 9e15)
        return kvf_fail(error, KVF_EINVAL, "%s: '%.200s' is too large", where, text);
    if (option->kind != KVFI_OPTION_INT && number < 0)
        return wrong(where, text, expected, error);
    KVF_TRY(check_range(option, where, text, (double)number * factor, error));
    *(int64_t *)value = (int64_t)number * (int64_t)factor;
    return KVF_OK;
}

static enum kvf_status set_flag(const char *where, const char *text, void *value,
                                struct kvf_error *error)
{
    bool on = strcmp(text, "1") == 0 || strcmp(text, "true") == 0 || strcmp(text, "yes") == 0;
    bool off = strcmp(text, "0") == 0 || strcmp(text, "false") == 0 || strcmp(text, "no") == 0;
    if (!on && !off)
        return wrong(where, text, expected_text(KVFI_OPTION_FLAG), error);
    *(bool *)value = on;
    return KVF_OK;
}

static enum kvf_status set_choice(const struct kvfi_option *option, const char *where,
                                  const char *text, void *value, struct kvf_error *error)
{
    size_t len = strlen(text);
    for (const char *word = option->argument; *word;) {
        size_t word_len = strcspn(word, "|");
        if (len == word_len && memcmp(word, text, len) == 0) {
            *(const char **)value = text;
            return KVF_OK;
        }
        word += word_len;
        word += *word == '|';
    }
    return kvf_fail(error, KVF_EINVAL, "%s: '%.200s' is not one of %s", where, text,
                    option->argument);
}

static enum kvf_status list_add(struct kvfi_option_list *list, const char *text,
                                struct kvf_error *error)
{
    char **grown = realloc(list->values, (list->count + 1) * sizeof(*grown));
    if (!grown)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the options");
    list->values = grown;
    list->values[list->count] = strdup(text);
    if (!list->values[list->count])
        return kvf_fail(error, KVF_ENOMEM, "no memory for the options");
    list->count++;
    return KVF_OK;
}

/* where names the source of the value in errors: "--port" or "KVFERRY_PORT". */
static enum kvf_status set_value(const struct kvfi_option *option, const char *where,
                                 const char *text, void *values, struct kvf_error *error)
{
    void *value = value_of(values, option);
    switch (option->kind) {
    case KVFI_OPTION_FLAG:
        return set_flag(where, text, value, error);
    case KVFI_OPTION_STRING:
        *(const char **)value = text;
        return KVF_OK;
    case KVFI_OPTION_CHOICE:
        return set_choice(option, where, text, value, error);
    case KVFI_OPTION_INT:
    case KVFI_OPTION_BYTES:
    case KVFI_OPTION_DURATION:
    case KVFI_OPTION_NUMBER:
        return set_number(option, where, text, value, error);
    case KVFI_OPTION_LIST:
        return list_add(value, text, error);
    }
    return kvf_fail(error, KVF_EINTERNAL, "%s: unknown kind of option", where);
}

static size_t value_bytes(enum kvfi_option_kind kind)
{
    switch (kind) {
    case KVFI_OPTION_FLAG:
        return sizeof(bool);
    case KVFI_OPTION_STRING:
    case KVFI_OPTION_CHOICE:
        return sizeof(const char *);
    case KVFI_OPTION_INT:
    case KVFI_OPTION_BYTES:
    case KVFI_OPTION_DURATION:
        return sizeof(int64_t);
    case KVFI_OPTION_NUMBER:
        return sizeof(double);
    case KVFI_OPTION_LIST:
        return sizeof(struct kvfi_option_list);
    }
    return 0;
}

static const struct kvfi_option *find(const struct kvfi_command *command, const char *name,
                                      size_t len)
{
    for (size_t i = 0; i < command->option_count; i++)
        if (strlen(command->options[i].name) == len &&
            memcmp(command->options[i].name, name, len) == 0)
            return &command->options[i];
    return NULL;
}

/* One "--..." argument; *at is moved past a value that stands in the next argument. */
static enum kvf_status parse_option(const struct kvfi_command *command, int argc, char **argv,
                                    int *at, void *values, bool *given, struct kvf_error *error)
{
    const char *name = argv[*at] + 2;
    size_t len = strcspn(name, "=");
    const char *text = name[len] ? name + len + 1 : NULL;
    const struct kvfi_option *option = find(command, name, len);
    bool negated = false;
    if (!option && len > 3 && strncmp(name, "no-", 3) == 0) {
        option = find(command, name + 3, len - 3);
        negated = option && option->kind == KVFI_OPTION_FLAG && !text;
        if (!negated)
            option = NULL;
    }
    if (!option)
        return kvf_fail(error, KVF_EINVAL, "unknown option '%.200s'; %s --help lists the options",
                        argv[*at], command->name);
    char where[NAME_LEN_MAX + 3];
    snprintf(where, sizeof(where), "--%s", option->name);
    if (option->kind == KVFI_OPTION_FLAG && !text)
        text = negated ? "0" : "1";
    if (!text) {
        if (*at + 1 >= argc)
            return kvf_fail(error, KVF_EINVAL, "%s: expected %s after it", where,
                            option->argument ? option->argument : "a value");
        text = argv[++*at];
    }
    given[option - command->options] = true;
    return set_value(option, where, text, values, error);
}

static enum kvf_status parse_arguments(const struct kvfi_command *command, int argc, char **argv,
                                       void *values, bool *given,
                                       struct kvfi_positionals *positionals,
                                       struct kvf_error *error)
{
    bool options_over = false;
    for (int i = 1; i < argc; i++) {
        if (!options_over && strcmp(argv[i], "--") == 0) {
            options_over = true;
        } else if (!options_over && strncmp(argv[i], "--", 2) == 0) {
            KVF_TRY(parse_option(command, argc, argv, &i, values, given, error));
        } else if (!options_over && argv[i][0] == '-' && argv[i][1]) {
            return kvf_fail(error, KVF_EINVAL,
                            "unknown option '%.200s'; %s --help lists the options", argv[i],
                            command->name);
        } else if (positionals->count == command->positional_count_max) {
            return kvf_fail(error, KVF_EINVAL, "unexpected argument '%.200s'; see %s --help",
                            argv[i], command->name);
        } else {
            positionals->values[positionals->count++] = argv[i];
        }
    }
    return KVF_OK;
}

static void environment_name(const struct kvfi_option *option, char *name, size_t size)
{
    int used = snprintf(name, size, "KVFERRY_");
    for (const char *c = option->name; *c && (size_t)used + 1 < size; c++)
        name[used++] = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    name[used] = '\0';
}

/* An option that is not on the command line: from the environment, else its default. */
static enum kvf_status set_absent(const struct kvfi_command *command,
                                  const struct kvfi_option *option, void *values,
                                  struct kvf_error *error)
{
    char name[NAME_LEN_MAX + 16];
    environment_name(option, name, sizeof(name));
    const char *where = name;
    const char *text = getenv(name);
    if (!text || !*text) {
        where = option->name;
        text = option->fallback;
    }
    if (!text && option->required)
        return kvf_fail(error, KVF_EINVAL, "--%s %s is missing (or %s in the environment)",
                        option->name, option->argument ? option->argument : "", name);
    if (!text)
        return KVF_OK;
    if (option->kind != KVFI_OPTION_LIST)
        return set_value(option, where, text, values, error);
    char *copy = strdup(text);
    if (!copy)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the options");
    enum kvf_status status = KVF_OK;
    char *state = NULL;
    for (char *word = strtok_r(copy, " \t\n", &state); word && status == KVF_OK;
         word = strtok_r(NULL, " \t\n", &state))
        status = list_add(value_of(values, option), word, error);
    free(copy);
    return status;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

enum kvf_status kvfi_options_parse(const struct kvfi_command *command, int argc, char **argv,
                                   void *values, struct kvfi_positionals *positionals,
                                   struct kvf_error *error)
{
    *positionals = (struct kvfi_positionals){0};
    for (size_t i = 0; i < command->option_count; i++)
        memset(value_of(values, &command->options[i]), 0, value_bytes(command->options[i].kind));
    if (wants_help(argc, argv))
        return KVF_ENOTFOUND;
    bool *given = calloc(command->option_count + 1, sizeof(*given));
    positionals->values = calloc((size_t)argc + 1, sizeof(*positionals->values));
    if (!given || !positionals->values) {
        free(given);
        return kvf_fail(error, KVF_ENOMEM, "no memory for the options");
    }
    enum kvf_status status =
        parse_arguments(command, argc, argv, values, given, positionals, error);
    for (size_t i = 0; i < command->option_count && status == KVF_OK; i++)
        if (!given[i])
            status = set_absent(command, &command->options[i], values, error);
    free(given);
    return status;
}

void kvfi_options_free(const struct kvfi_command *command, void *values,
                       struct kvfi_positionals *positionals)
{
    for (size_t i = 0; i < command->option_count; i++) {
        if (command->options[i].kind != KVFI_OPTION_LIST)
            continue;
        struct kvfi_option_list *list = value_of(values, &command->options[i]);
        for (size_t k = 0; k < list->count; k++)
            free(list->values[k]);
        free(list->values);
        *list = (struct kvfi_option_list){0};
    }
    free(positionals->values);
    *positionals = (struct kvfi_positionals){0};
}

/* Prints text in lines of at most 100 columns, each after the first indented to HELP_COLUMN. */
static void print_wrapped(FILE *out, const char *text, int column)
{
    while (*text) {
        text += strspn(text, " ");
        size_t len = strcspn(text, " ");
        if (column > HELP_COLUMN && column + (int)len + 1 > 100) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", (int)len, text);
        text += len;
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const struct kvfi_option *option)
{
    int column = fprintf(out, "  --%s%s%s", option->name, option->argument ? " " : "",
                         option->argument ? option->argument : "");
    if (column > HELP_COLUMN - 2) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    char text[1024];
    bool bare_unit = option->unit && option->fallback &&
                     isdigit((unsigned char)*option->fallback) &&
                     strspn(option->fallback, "0123456789.") == strlen(option->fallback);
    snprintf(text, sizeof(text), "%s%s%s%s%s%s%s%s", option->help,
             option->kind == KVFI_OPTION_LIST ? " (may be repeated)" : "",
             option->required ? " (required)" : "", option->fallback ? " (default " : "",
             option->fallback ? option->fallback : "", bare_unit ? " " : "",
             bare_unit ? option->unit : "", option->fallback ? ")" : "");
    print_wrapped(out, text, HELP_COLUMN);
}

static void print_environment(FILE *out, const struct kvfi_option *example)
{
    char name[NAME_LEN_MAX + 16];
    environment_name(example, name, sizeof(name));
    fprintf(out,
            "\nAn option that is not given is taken from the environment (--%s from %s),\n"
            "then from its default.\n",
            example->name, name);
}

static bool has_kind(const struct kvfi_command *command, enum kvfi_option_kind kind)
{
    for (size_t i = 0; i < command->option_count; i++)
        if (command->options[i].kind == kind)
            return true;
    return false;
}

void kvfi_options_help(const struct kvfi_command *command, FILE *out)
{
    fprintf(out, "usage: %s %s\n\n%s\n", command->name, command->usage, command->summary);
    fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < command->option_count; i++)
        print_option(out, &command->options[i]);
    fprintf(out, "  %-*sthis text\n", HELP_COLUMN - 2, "--help");
    if (command->option_count)
        print_environment(out, &command->options[0]);
    if (has_kind(command, KVFI_OPTION_DURATION))
        fprintf(
            out,
            "TIME is a whole number with ms, s or m; a bare one has the unit of the default.\n");
    if (has_kind(command, KVFI_OPTION_BYTES))
        fprintf(out, "SIZE is a whole number of bytes, or one with K, M or G (powers of 1024).\n");
    if (command->details)
        fprintf(out, "\n%s", command->details);
}

int kvfi_options_enter(const struct kvfi_command *command, int argc, char **argv, void *values,
                       struct kvfi_positionals *positionals)
{
    struct kvf_error error = {0};
    enum kvf_status status = kvfi_options_parse(command, argc, argv, values, positionals, &error);
    if (status == KVF_OK)
        return -1;
    kvfi_options_free(command, values, positionals);
    if (status == KVF_ENOTFOUND) {
        kvfi_options_help(command, stdout);
        return 0;
    }
    fprintf(stderr, "%s: %s\n", command->name, error.text);
    return 2;
}
