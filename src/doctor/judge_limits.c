/* SPDX-License-Identifier: Apache-2.0 */
/* Processors, memory, page sizes, and the library of the side channel. */
#include "doctor/doctor.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many numbers are in "0-3,8". */
static uint64_t count_ranges(const char *text)
{
    uint64_t count = 0;
    while (isdigit((unsigned char)*text)) {
        char *end = NULL;
        uint64_t first = strtoull(text, &end, 10);
        uint64_t last = first;
        if (*end == '-')
            last = strtoull(end + 1, &end, 10);
        if (last < first || last - first > 65535)
            return count;
        count += last - first + 1;
        text = end + (*end == ',');
    }
    return count;
}

/* The path of this process in a cgroup hierarchy: of version 2 for NULL, else of the version 1
 * controller. Empty when it is in none. */
static void cgroup_path(const struct kvfi_machine *machine, const char *controller, char *path,
                        size_t size)
{
    char text[8192];
    path[0] = '\0';
    if (!kvfi_read_text(machine, text, sizeof(text), "/proc/self/cgroup"))
        return;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        size_t len = strcspn(line, "\n");
        const char *names = memchr(line, ':', len);
        const char *place = names ? memchr(names + 1, ':', len - (size_t)(names + 1 - line)) : NULL;
        if (!place)
            continue;
        char list[128];
        (void)snprintf(list, sizeof(list), ",%.*s,", (int)(place - names - 1), names + 1);
        char wanted[64];
        (void)snprintf(wanted, sizeof(wanted), ",%s,", controller ? controller : "");
        bool found = controller ? strstr(list, wanted) != NULL : strcmp(list, ",,") == 0;
        if (found)
            (void)snprintf(path, size, "%.*s", (int)(line + len - place - 1), place + 1);
    }
    if (strcmp(path, "/") == 0)
        path[0] = '\0';
}

typedef bool (*limit_fn)(const struct kvfi_machine *machine, const char *folder, uint64_t *limit_p);

/* The tightest limit from the process's own group up to the root, which in a container is the
 * container's. */
static bool tightest(const struct kvfi_machine *machine, const char *mount, const char *path,
                     limit_fn read, uint64_t *limit_p)
{
    char folder[1024];
    char left[896];
    bool any = false;
    (void)snprintf(left, sizeof(left), "%s", path);
    for (;;) {
        uint64_t limit = 0;
        (void)snprintf(folder, sizeof(folder), "%s%s", mount, left);
        if (read(machine, folder, &limit) && (!any || limit < *limit_p)) {
            *limit_p = limit;
            any = true;
        }
        char *slash = strrchr(left, '/');
        if (!slash)
            return any;
        *slash = '\0';
    }
}

static bool cgroup_limit(const struct kvfi_machine *machine, const char *controller,
                         limit_fn read_v2, limit_fn read_v1, uint64_t *limit_p)
{
    char path[896];
    char mount[128];
    uint64_t limit = 0;
    bool any = false;
    cgroup_path(machine, NULL, path, sizeof(path));
    if (tightest(machine, "/sys/fs/cgroup", path, read_v2, &limit)) {
        *limit_p = limit;
        any = true;
    }
    cgroup_path(machine, controller, path, sizeof(path));
    (void)snprintf(mount, sizeof(mount), "/sys/fs/cgroup/%s", controller);
    if (tightest(machine, mount, path, read_v1, &limit) && (!any || limit < *limit_p)) {
        *limit_p = limit;
        any = true;
    }
    return any;
}

/* Thousandths of a processor. */
static bool quota(uint64_t quota_us, uint64_t period_us, uint64_t *limit_p)
{
    if (quota_us == 0 || period_us == 0 || quota_us > UINT64_MAX / 1000)
        return false;
    *limit_p = quota_us * 1000 / period_us;
    return true;
}

static bool cpu_v2(const struct kvfi_machine *machine, const char *folder, uint64_t *limit_p)
{
    char text[64];
    char *end = NULL;
    if (!kvfi_read_text(machine, text, sizeof(text), "%s/cpu.max", folder) ||
        !isdigit((unsigned char)text[0])) /* "max 100000" */
        return false;
    uint64_t quota_us = strtoull(text, &end, 10);
    return quota(quota_us, strtoull(end, NULL, 10), limit_p);
}

static bool cpu_v1(const struct kvfi_machine *machine, const char *folder, uint64_t *limit_p)
{
    uint64_t quota_us = 0;
    uint64_t period_us = 0;
    return kvfi_read_number(machine, &quota_us, "%s/cpu.cfs_quota_us", folder) && /* or "-1" */
           kvfi_read_number(machine, &period_us, "%s/cpu.cfs_period_us", folder) &&
           quota(quota_us, period_us, limit_p);
}

static bool memory_v2(const struct kvfi_machine *machine, const char *folder, uint64_t *limit_p)
{
    return kvfi_read_number(machine, limit_p, "%s/memory.max", folder); /* or "max" */
}

static bool memory_v1(const struct kvfi_machine *machine, const char *folder, uint64_t *limit_p)
{
    /* Without a limit it is the largest number of pages. */
    return kvfi_read_number(machine, limit_p, "%s/memory.limit_in_bytes", folder) &&
           *limit_p < INT64_MAX - ((uint64_t)1 << 20);
}

void kvfi_judge_cpu(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char status[4096];
    char list[1024];
    uint64_t limit = 0;
    (void)kvfi_read_text(machine, status, sizeof(status), "/proc/self/status");
    uint64_t allowed =
        kvfi_line_value(status, "Cpus_allowed_list", list, sizeof(list)) ? count_ranges(list) : 0;
    bool limited = cgroup_limit(machine, "cpu", cpu_v2, cpu_v1, &limit);
    kvfi_finding_begin(report, "cpu");
    if (allowed)
        kvfi_fact_number(report, "allowed", allowed);
    else
        kvfi_fact_none(report, "allowed");
    if (limited)
        kvfi_fact_number(report, "limit_thousandths", limit);
    else
        kvfi_fact_none(report, "limit_thousandths");
    if (allowed)
        kvfi_finding_found(report, "%llu processor%s may be used.", (unsigned long long)allowed,
                           allowed == 1 ? "" : "s");
    else
        kvfi_finding_found(report, "How many processors may be used is not told.");
    if (limited)
        kvfi_finding_found(report, "The cgroup limits them to the time of %.2f.",
                           (double)limit / 1000);
    if (allowed == 1 || (limited && limit < 2000)) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report,
                             "An engine's forward pass and its thread that moves bytes take "
                             "turns, so transfers wait.");
        kvfi_finding_remedy(report, "Give each engine two processors or more (taskset, docker run "
                                    "--cpus, resources.limits.cpu in a pod).");
        return;
    }
    kvfi_finding_follows(report, "Bytes move while an engine computes.");
}

void kvfi_judge_memory(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char info[8192];
    char value[64];
    char text[KVFI_SIZE_TEXT];
    uint64_t limit = 0;
    uint64_t free_bytes = 0;
    (void)kvfi_read_text(machine, info, sizeof(info), "/proc/meminfo");
    if (kvfi_line_value(info, "MemAvailable", value, sizeof(value)))
        free_bytes = strtoull(value, NULL, 10) * 1024;
    bool limited = cgroup_limit(machine, "memory", memory_v2, memory_v1, &limit);
    kvfi_finding_begin(report, "memory");
    if (free_bytes)
        kvfi_fact_number(report, "available_bytes", free_bytes);
    else
        kvfi_fact_none(report, "available_bytes");
    if (limited)
        kvfi_fact_number(report, "limit_bytes", limit);
    else
        kvfi_fact_none(report, "limit_bytes");
    if (free_bytes)
        kvfi_finding_found(report, "%s of memory are available.", kvfi_size_text(free_bytes, text));
    else
        kvfi_finding_found(report, "How much memory is available is not told.");
    if (limited)
        kvfi_finding_found(report, "The cgroup limits its processes to %s.",
                           kvfi_size_text(limit, text));
    kvfi_finding_follows(report, "%s",
                         limited ? "Pools count against that limit; a larger KV cache "
                                   "gets its process killed."
                                 : "Pools are taken from it.");
}

/* The word in brackets of "always [madvise] never". */
static void chosen_word(const struct kvfi_machine *machine, const char *path, char *word,
                        size_t size)
{
    char text[128];
    word[0] = '\0';
    if (!kvfi_read_text(machine, text, sizeof(text), "%s", path))
        return;
    const char *at = strchr(text, '[');
    if (at)
        (void)snprintf(word, size, "%.*s", (int)strcspn(at + 1, "]"), at + 1);
}

void kvfi_judge_huge_pages(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char shared[32];
    char own[32];
    char info[8192];
    char value[64];
    (void)kvfi_read_text(machine, info, sizeof(info), "/proc/meminfo");
    chosen_word(machine, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", shared,
                sizeof(shared));
    chosen_word(machine, "/sys/kernel/mm/transparent_hugepage/enabled", own, sizeof(own));
    kvfi_finding_begin(report, "huge_pages");
    if (*shared)
        kvfi_fact_text(report, "shared_memory", shared);
    else
        kvfi_fact_none(report, "shared_memory");
    if (*own)
        kvfi_fact_text(report, "own_memory", own);
    else
        kvfi_fact_none(report, "own_memory");
    if (kvfi_line_value(info, "HugePages_Free", value, sizeof(value)))
        kvfi_fact_number(report, "reserved_free", strtoull(value, NULL, 10));
    else
        kvfi_fact_none(report, "reserved_free");
    if (strcmp(shared, "always") == 0 || strcmp(shared, "within_size") == 0 ||
        strcmp(shared, "advise") == 0 || strcmp(shared, "force") == 0) {
        kvfi_finding_found(report, "Transparent huge pages for shared memory: %s.", shared);
        kvfi_finding_follows(report, "Pools lie in huge pages where the kernel finds some.");
        return;
    }
    kvfi_finding_level(report, KVF_FINDING_NOTE);
    kvfi_finding_found(report, "Transparent huge pages for shared memory: %s.",
                       *shared ? shared : "the kernel has none");
    kvfi_finding_follows(report, "Pools lie in small pages: the same transfers, with more work for "
                                 "page tables and translation.");
    kvfi_finding_remedy(report, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, "
                                "before engines start.");
}

void kvfi_judge_zeromq(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char version[48];
    (void)snprintf(version, sizeof(version), "%d.%d.%d", machine->zeromq[0], machine->zeromq[1],
                   machine->zeromq[2]);
    kvfi_finding_begin(report, "zeromq");
    kvfi_fact_text(report, "version", version);
    kvfi_finding_found(report, "ZeroMQ %s.", version);
    kvfi_finding_follows(report, "It carries handshakes, not bytes.");
}
