/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands.h"
#include "kvferry/kvferry.h"

#include <stdio.h>
#include <string.h>

#ifdef KVFI_WITH_ENGINE
int kvf_engine_main(int argc, char **argv);
#endif

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
#ifdef KVFI_WITH_ENGINE
    {"engine", kvf_engine_main, "run a model: prefill, decode or both"},
#endif
    {"proxy", kvfi_proxy_main, "send requests to prefill and decode engines"},
    {"chat", kvfi_chat_main, "ask a proxy or an engine from the terminal"},
    {"trace", kvfi_trace_main, "merge event records into the timeline of a request"},
    {"doctor", kvfi_doctor_main, "say what this machine offers to a transfer"},
};

enum { COMMAND_COUNT = sizeof(commands) / sizeof(commands[0]) };

static void help(FILE *out)
{
    fprintf(out, "usage: kvferry COMMAND [options]\n\n"
                 "Moves KV cache between LLM inference engines.\n\ncommands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s%s\n", commands[i].name, commands[i].help);
    fprintf(out, "\n  --help     this text; kvferry COMMAND --help lists the options of a command\n"
                 "  --version  the version\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvferry %s\n", kvf_version());
        return 0;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "kvferry: unknown %s '%.100s'; kvferry --help lists the commands\n",
            name[0] == '-' ? "option" : "command", name);
    return 2;
}
