/* SPDX-License-Identifier: Apache-2.0 */
/* The report: its findings, their memory, and the order of the topics. */
#include "doctor/doctor.h"

#include "runtime/alloc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FINDINGS_MAX = 24, FACTS_MAX = 8 };

/* Owned by the report; all of them go at once. */
struct piece {
    struct piece *next;
    max_align_t data[];
};

struct kvf_host_report {
    const struct kvf_allocator *allocator;
    struct piece *pieces;
    bool short_of_memory;
    size_t count;
    struct kvf_finding findings[FINDINGS_MAX];
    struct kvf_fact facts[FINDINGS_MAX][FACTS_MAX];
};

static void *keep(struct kvf_host_report *report, size_t size)
{
    struct piece *piece = kvfi_calloc(report->allocator, 1, sizeof(*piece) + size);
    if (!piece) {
        report->short_of_memory = true;
        return NULL;
    }
    piece->next = report->pieces;
    report->pieces = piece;
    return piece->data;
}

static const char *keep_text(struct kvf_host_report *report, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = keep(report, size);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    for (char *c = copy; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = *c == '\n' || *c == '\t' ? ' ' : '?';
    return copy;
}

static struct kvf_finding *current(struct kvf_host_report *report)
{
    return &report->findings[report->count - 1];
}

void kvfi_finding_begin(struct kvf_host_report *report, const char *topic)
{
    report->findings[report->count] = (struct kvf_finding){
        .topic = topic, .found = "", .follows = "", .facts = report->facts[report->count]};
    report->count++;
}

void kvfi_finding_level(struct kvf_host_report *report, enum kvf_finding_level level)
{
    if (current(report)->level < level)
        current(report)->level = level;
}

static void KVF_PRINTF(3, 0)
    append(struct kvf_host_report *report, const char **text_p, const char *fmt, va_list args)
{
    char text[4096];
    size_t len = 0;
    if (*text_p && **text_p)
        len = (size_t)snprintf(text, sizeof(text), "%s ", *text_p);
    if (len < sizeof(text))
        (void)vsnprintf(text + len, sizeof(text) - len, fmt, args);
    const char *kept = keep_text(report, text);
    if (kept)
        *text_p = kept;
}

#define APPEND(member)                                                                             \
    do {                                                                                           \
        va_list args;                                                                              \
        va_start(args, fmt);                                                                       \
        append(report, &current(report)->member, fmt, args);                                       \
        va_end(args);                                                                              \
    } while (0)

void kvfi_finding_found(struct kvf_host_report *report, const char *fmt, ...)
{
    APPEND(found);
}

void kvfi_finding_follows(struct kvf_host_report *report, const char *fmt, ...)
{
    APPEND(follows);
}

void kvfi_finding_remedy(struct kvf_host_report *report, const char *fmt, ...)
{
    APPEND(remedy);
}

static struct kvf_fact *add_fact(struct kvf_host_report *report, const char *name,
                                 enum kvf_fact_kind kind)
{
    struct kvf_finding *finding = current(report);
    struct kvf_fact *fact = &report->facts[report->count - 1][finding->fact_count++];
    *fact = (struct kvf_fact){.name = name, .kind = kind};
    return fact;
}

void kvfi_fact_none(struct kvf_host_report *report, const char *name)
{
    (void)add_fact(report, name, KVF_FACT_NONE);
}

void kvfi_fact_bool(struct kvf_host_report *report, const char *name, bool value)
{
    add_fact(report, name, KVF_FACT_BOOL)->number = value;
}

void kvfi_fact_number(struct kvf_host_report *report, const char *name, uint64_t value)
{
    add_fact(report, name, KVF_FACT_NUMBER)->number = value;
}

void kvfi_fact_text(struct kvf_host_report *report, const char *name, const char *value)
{
    struct kvf_fact *fact = add_fact(report, name, KVF_FACT_TEXT);
    const char **texts = keep(report, sizeof(*texts));
    if (!texts)
        return;
    texts[0] = keep_text(report, value);
    fact->texts = texts;
    fact->text_count = 1;
}

void kvfi_fact_names(struct kvf_host_report *report, const char *name,
                     const struct kvfi_names *names)
{
    struct kvf_fact *fact = add_fact(report, name, KVF_FACT_LIST);
    const char **texts = keep(report, (names->count + 1) * sizeof(*texts));
    if (!texts)
        return;
    for (size_t i = 0; i < names->count; i++)
        texts[i] = keep_text(report, names->texts[i]);
    fact->texts = texts;
    fact->text_count = names->count;
}

const char *kvfi_size_text(uint64_t bytes, char text[KVFI_SIZE_TEXT])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        (void)snprintf(text, KVFI_SIZE_TEXT, "%u bytes", (unsigned)bytes);
        return text;
    }
    double size = (double)bytes / 1024;
    size_t unit = 0;
    while (size >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        size /= 1024;
        unit++;
    }
    (void)snprintf(text, KVFI_SIZE_TEXT, "%.1f %s", size, units[unit]);
    return text;
}

const char *kvfi_errno_name(int number)
{
    const char *name = strerrorname_np(number);
    return name ? name : "unknown error";
}

/* The order is part of what is documented. */
static void (*const judges[])(struct kvf_host_report *, const struct kvfi_machine *) = {
    kvfi_judge_transfer, kvfi_judge_ucx,    kvfi_judge_nixl_on_host, kvfi_judge_emulated_writes,
    kvfi_judge_settings, kvfi_judge_cma,    kvfi_judge_pools,        kvfi_judge_dev_shm,
    kvfi_judge_network,  kvfi_judge_rdma,   kvfi_judge_memlock,      kvfi_judge_gpu,
    kvfi_judge_cpu,      kvfi_judge_memory, kvfi_judge_huge_pages,   kvfi_judge_zeromq,
};

enum kvf_status kvfi_judge(const struct kvfi_machine *machine,
                           const struct kvf_allocator *allocator, struct kvf_host_report **report_p,
                           struct kvf_error *error)
{
    _Static_assert(sizeof(judges) / sizeof(judges[0]) <= FINDINGS_MAX, "one finding each");
    struct kvf_host_report *report = kvfi_calloc(allocator, 1, sizeof(*report));
    if (!report)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a report");
    report->allocator = allocator;
    for (size_t i = 0; i < sizeof(judges) / sizeof(judges[0]); i++)
        judges[i](report, machine);
    if (report->short_of_memory) {
        kvf_host_report_free(report);
        return kvf_fail(error, KVF_ENOMEM, "no memory for a report");
    }
    *report_p = report;
    return KVF_OK;
}

enum kvf_status kvf_host_report_create(const struct kvf_allocator *allocator,
                                       struct kvf_host_report **report_p, struct kvf_error *error)
{
    struct kvfi_machine *machine = kvfi_calloc(allocator, 1, sizeof(*machine));
    if (!machine)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a report");
    kvfi_machine_look(machine);
    enum kvf_status status = kvfi_judge(machine, allocator, report_p, error);
    kvfi_free(allocator, machine);
    return status;
}

void kvf_host_report_free(struct kvf_host_report *report)
{
    if (!report)
        return;
    for (struct piece *piece = report->pieces; piece;) {
        struct piece *next = piece->next;
        kvfi_free(report->allocator, piece);
        piece = next;
    }
    kvfi_free(report->allocator, report);
}

size_t kvf_host_report_count(const struct kvf_host_report *report)
{
    return report->count;
}

const struct kvf_finding *kvf_host_report_finding(const struct kvf_host_report *report,
                                                  size_t index)
{
    return index < report->count ? &report->findings[index] : NULL;
}

enum kvf_finding_level kvf_host_report_level(const struct kvf_host_report *report)
{
    enum kvf_finding_level level = KVF_FINDING_OK;
    for (size_t i = 0; i < report->count; i++)
        if (report->findings[i].level > level)
            level = report->findings[i].level;
    return level;
}

const char *kvf_finding_level_name(enum kvf_finding_level level)
{
    static const char *const names[] = {"ok", "note", "warn", "fail"};
    return level >= KVF_FINDING_OK && level <= KVF_FINDING_FAIL ? names[level] : "unknown";
}
