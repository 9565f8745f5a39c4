/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct values {
    bool verbose;
    const char *host;
    const char *mode;
    int64_t port;
    int64_t cache_bytes;
    int64_t wait_ms;
    double heat;
    struct kvfi_option_list urls;
    const char *model;
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct kvfi_option table[] = {
    {.name = "verbose", .kind = KVFI_OPTION_FLAG, AT(verbose), .help = "say more"},
    {.name = "host", .kind = KVFI_OPTION_STRING, .argument = "HOST", AT(host), .help = "where"},
    {.name = "mode",
     .kind = KVFI_OPTION_CHOICE,
     .argument = "push|pull",
     .fallback = "push",
     AT(mode),
     .help = "which way"},
    {.name = "port",
     .kind = KVFI_OPTION_INT,
     .argument = "N",
     .fallback = "8000",
     .max = 65535,
     AT(port),
     .help = "port"},
    {.name = "cache-bytes",
     .kind = KVFI_OPTION_BYTES,
     .argument = "N",
     .fallback = "1M",
     AT(cache_bytes),
     .help = "size"},
    {.name = "wait",
     .kind = KVFI_OPTION_DURATION,
     .argument = "N",
     .unit = "s",
     .fallback = "5",
     .max = 60000,
     AT(wait_ms),
     .help = "time"},
    {.name = "heat",
     .kind = KVFI_OPTION_NUMBER,
     .argument = "T",
     .max = 2,
     AT(heat),
     .help = "heat of a text that is long enough to need a second line in the help that is "
             "printed for it"},
    {.name = "url", .kind = KVFI_OPTION_LIST, .argument = "URL", AT(urls), .help = "engine"},
};

static const struct kvfi_option needed[] = {
    {.name = "model",
     .kind = KVFI_OPTION_STRING,
     .argument = "FILE",
     .required = true,
     AT(model),
     .help = "model"},
};

static const struct kvfi_command command = {.name = "kvferry test",
                                            .usage = "[options] [ARG]",
                                            .summary = "Tests.",
                                            .details = "exit codes: 0\n",
                                            .options = table,
                                            .option_count = sizeof(table) / sizeof(table[0]),
                                            .positional_count_max = 1};

static const struct kvfi_command strict = {.name = "kvferry strict",
                                           .usage = "--model FILE",
                                           .summary = "Tests.",
                                           .options = needed,
                                           .option_count = 1};

#define PARSE(of, ...)                                                                             \
    kvfi_options_parse((of), (int)(sizeof((const char *[]){"x", ##__VA_ARGS__}) / sizeof(char *)), \
                       (char **)(const char *[]){"x", ##__VA_ARGS__}, &values, &positionals,       \
                       &error)
#define FREE(of) kvfi_options_free((of), &values, &positionals)

static struct values values;
static struct kvfi_positionals positionals;
static struct kvf_error error;

static void test_defaults(void **state)
{
    assert_int_equal(PARSE(&command), KVF_OK);
    assert_false(values.verbose);
    assert_null(values.host);
    assert_string_equal(values.mode, "push");
    assert_int_equal(values.port, 8000);
    assert_int_equal(values.cache_bytes, 1048576);
    assert_int_equal(values.wait_ms, 5000);
    assert_int_equal(values.urls.count, 0);
    assert_int_equal(positionals.count, 0);
    FREE(&command);
}

static void test_command_line(void **state)
{
    assert_int_equal(PARSE(&command, "--verbose", "--host=h", "--mode", "pull", "--port", "0",
                           "--cache-bytes", "3G", "--wait", "250ms", "--heat", ".5", "--url", "a",
                           "arg", "--url=b"),
                     KVF_OK);
    assert_true(values.verbose);
    assert_string_equal(values.host, "h");
    assert_string_equal(values.mode, "pull");
    assert_int_equal(values.port, 0);
    assert_true(values.cache_bytes == 3LL << 30);
    assert_int_equal(values.wait_ms, 250);
    assert_true(values.heat == 0.5);
    assert_int_equal(values.urls.count, 2);
    assert_string_equal(values.urls.values[1], "b");
    assert_int_equal(positionals.count, 1);
    assert_string_equal(positionals.values[0], "arg");
    FREE(&command);
    assert_int_equal(PARSE(&command, "--verbose", "--no-verbose", "--", "--port"), KVF_OK);
    assert_false(values.verbose);
    assert_string_equal(positionals.values[0], "--port");
    FREE(&command);
}

static void test_environment(void **state)
{
    setenv("KVFERRY_PORT", "9", 1);
    setenv("KVFERRY_CACHE_BYTES", "2K", 1);
    setenv("KVFERRY_URL", " a  b ", 1);
    setenv("KVFERRY_VERBOSE", "true", 1);
    assert_int_equal(PARSE(&command, "--cache-bytes", "1"), KVF_OK);
    assert_int_equal(values.port, 9);
    assert_int_equal(values.cache_bytes, 1);
    assert_int_equal(values.urls.count, 2);
    assert_string_equal(values.urls.values[1], "b");
    assert_true(values.verbose);
    FREE(&command);
    setenv("KVFERRY_PORT", "x", 1);
    assert_int_equal(PARSE(&command), KVF_EINVAL);
    assert_non_null(strstr(error.text, "KVFERRY_PORT: 'x' is not an integer"));
    FREE(&command);
    unsetenv("KVFERRY_PORT");
    unsetenv("KVFERRY_CACHE_BYTES");
    unsetenv("KVFERRY_URL");
    unsetenv("KVFERRY_VERBOSE");
}

static void refused(enum kvf_status status, const char *words)
{
    assert_int_equal(status, KVF_EINVAL);
    if (!strstr(error.text, words))
        fail_msg("'%s' does not say '%s'", error.text, words);
    FREE(&command);
}

static void test_refusals(void **state)
{
    refused(PARSE(&command, "--prot", "1"), "unknown option '--prot'");
    refused(PARSE(&command, "-p"), "unknown option '-p'");
    refused(PARSE(&command, "--no-port"), "unknown option '--no-port'");
    refused(PARSE(&command, "--port"), "--port: expected N after it");
    refused(PARSE(&command, "--port", ""), "not an integer");
    refused(PARSE(&command, "--port", "1x"), "not an integer");
    refused(PARSE(&command, "--port", " 1"), "not an integer");
    refused(PARSE(&command, "--port", "65536"), "expected 0 to 65535");
    refused(PARSE(&command, "--port", "99999999999999999999"), "too large");
    refused(PARSE(&command, "--cache-bytes", "-1"), "a size such as");
    refused(PARSE(&command, "--cache-bytes", "9999999999G"), "too large");
    refused(PARSE(&command, "--cache-bytes", "1T"), "a size such as");
    refused(PARSE(&command, "--wait", "2h"), "a duration such as");
    refused(PARSE(&command, "--wait", "2m"), "0 to 60000 ms");
    refused(PARSE(&command, "--heat", "nan"), "not a number");
    refused(PARSE(&command, "--heat", "3"), "expected 0 to 2");
    refused(PARSE(&command, "--mode", "pus"), "one of push|pull");
    refused(PARSE(&command, "--mode", ""), "one of push|pull");
    refused(PARSE(&command, "--verbose=maybe"), "1, 0, true or false");
    refused(PARSE(&command, "a", "b"), "unexpected argument 'b'");
}

static void test_required(void **state)
{
    assert_int_equal(PARSE(&strict), KVF_EINVAL);
    assert_non_null(strstr(error.text, "--model FILE is missing (or KVFERRY_MODEL"));
    FREE(&strict);
    assert_int_equal(PARSE(&strict, "--model", "m"), KVF_OK);
    assert_string_equal(values.model, "m");
    FREE(&strict);
}

static void test_help(void **state)
{
    assert_int_equal(PARSE(&strict, "--help"), KVF_ENOTFOUND);
    FREE(&strict);
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    kvfi_options_help(&command, out);
    fclose(out);
    assert_non_null(strstr(text, "usage: kvferry test [options] [ARG]\n"));
    assert_non_null(strstr(text, "  --mode push|pull          which way (default push)\n"));
    assert_non_null(strstr(text, "time (default 5 s)"));
    assert_non_null(strstr(text, "engine (may be repeated)"));
    assert_non_null(strstr(text, "KVFERRY_VERBOSE"));
    assert_non_null(strstr(text, "exit codes: 0\n"));
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        assert_true(strcspn(line, "\n") <= 100);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_required),    cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
