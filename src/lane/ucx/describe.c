/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/describe.h"

#include "lane/ucx/ucx.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UCX has no call that lists the resources of a context; its print, which is public, has one line
 * for each: "#      resource 1  :  md 1  dev 1  flags -- tcp/eth0". */
void kvfi_ucx_read_resources(const char *printed, struct kvfi_ucx_description *description)
{
    for (const char *line = printed; *line;) {
        size_t len = strcspn(line, "\n");
        const char *at = line + strspn(line, "# ");
        if (at < line + len && strncmp(at, "resource ", 9) == 0 &&
            description->resource_count < KVFI_UCX_RESOURCES_MAX) {
            const char *end = line + len;
            while (end > at && isspace((unsigned char)end[-1]))
                end--;
            const char *word = end;
            while (word > at && !isspace((unsigned char)word[-1]))
                word--;
            size_t word_len = (size_t)(end - word);
            char *name = description->resources[description->resource_count];
            if (memchr(word, '/', word_len) && word_len < sizeof(description->resources[0])) {
                memcpy(name, word, word_len);
                name[word_len] = '\0';
                description->resource_count++;
            }
        }
        line += len;
        line += *line == '\n';
    }
}

static void list_resources(ucp_context_h context, struct kvfi_ucx_description *description)
{
    char *printed = NULL;
    size_t printed_len = 0;
    FILE *out = open_memstream(&printed, &printed_len);
    if (!out)
        return;
    ucp_context_print_info(context, out);
    if (fclose(out) == 0)
        kvfi_ucx_read_resources(printed, description);
    free(printed);
}

void kvfi_ucx_describe(struct kvfi_ucx_description *description)
{
    *description = (struct kvfi_ucx_description){0};
    ucp_get_version(&description->major, &description->minor, &description->release);
    /* as the lane makes its own */
    struct kvfi_lane lane = {.minor = description->major == 1 ? description->minor : UINT_MAX};
    struct kvf_error error = {0};
    if (kvfi_ucx_create_context(&lane, &error) != KVF_OK) {
        (void)snprintf(description->failure, sizeof(description->failure), "%.*s",
                       (int)sizeof(description->failure) - 1, error.text);
        return;
    }
    description->usable = true;
    list_resources(lane.context, description);
    ucp_cleanup(lane.context);
}
