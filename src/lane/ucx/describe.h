/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_DESCRIBE_H
#define KVFI_LANE_UCX_DESCRIBE_H

/* What the loaded UCX would use on this machine. Plain data: it may cross a pipe. */

#include <stdbool.h>
#include <stddef.h>

enum { KVFI_UCX_RESOURCES_MAX = 64 };

struct kvfi_ucx_description {
    unsigned major, minor, release;
    bool usable;       /* a context could be made */
    char failure[256]; /* why not */
    size_t resource_count;
    /* "tcp/eth0": transport and device, as the user's settings and ours leave them. */
    char resources[KVFI_UCX_RESOURCES_MAX][64];
};

/* Makes a context as the lane does and lets it go again. UCX may print. */
void kvfi_ucx_describe(struct kvfi_ucx_description *description);

/* The resources in what UCX prints of a context; for describe.c and its test. */
void kvfi_ucx_read_resources(const char *printed, struct kvfi_ucx_description *description);

#endif
