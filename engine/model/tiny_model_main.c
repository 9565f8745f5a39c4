/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a tiny random model, for tests and demonstrations without a download. */
#include "tiny_model.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "usage: tiny-model OUT.gguf [--seed N] [--layers N] [--heads N] [--kv-heads N]\n"
    "                  [--head-size N] [--feed-forward N] [--context N]\n"
    "                  [--type f32|f16|q8_0|q4_1|q6_k] [--tied]\n";

static bool parse_number(const char *text, uint64_t max, uint64_t *value_p)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value > max)
        return false;
    *value_p = value;
    return true;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seed", required_argument, NULL, 's'},
        {"layers", required_argument, NULL, 'l'},
        {"heads", required_argument, NULL, 'n'},
        {"kv-heads", required_argument, NULL, 'k'},
        {"head-size", required_argument, NULL, 'z'},
        {"feed-forward", required_argument, NULL, 'f'},
        {"context", required_argument, NULL, 'c'},
        {"type", required_argument, NULL, 't'},
        {"tied", no_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct tiny_model_options options = {0};
    struct kvf_error error;
    int option;
    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        uint64_t value = 0;
        if (option == 'h') {
            (void)fputs(usage, stdout);
            return 0;
        }
        if (option == 't') {
            options.type = optarg;
        } else if (option == 'e') {
            options.tied = true;
        } else if (option == '?' ||
                   !parse_number(optarg, option == 's' ? UINT64_MAX : UINT32_MAX, &value)) {
            (void)fputs(usage, stderr);
            return 2;
        } else if (option == 's') {
            options.seed = value;
        } else {
            *(option == 'l'   ? &options.layers
              : option == 'n' ? &options.heads
              : option == 'k' ? &options.kv_heads
              : option == 'z' ? &options.head_size
              : option == 'f' ? &options.feed_forward
                              : &options.context_length) = (uint32_t)value;
        }
    }
    if (optind + 1 != argc) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (tiny_model_write(argv[optind], &options, &error) != KVF_OK) {
        (void)fprintf(stderr, "tiny-model: %s\n", error.text);
        return 1;
    }
    return 0;
}
