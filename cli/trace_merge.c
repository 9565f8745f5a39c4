/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_merge.h"

#include "cli/request_id.h"

#include <stdlib.h>
#include <string.h>

static bool holds(const json_t *object, const char *key, const char *part)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strstr(text, part);
}

static bool is_wanted(const struct kvfi_trace *trace, const struct kvfi_trace_record *record)
{
    const char *filter = trace->filter;
    return !filter || strstr(record->base, filter) || holds(record->object, "request", filter) ||
           holds(record->object, "transfer", filter);
}

static enum kvf_status read_record(const char *text, size_t len, struct kvfi_trace_record *record,
                                   struct kvf_error *error)
{
    const char *name = NULL;
    const char *request = NULL;
    KVF_TRY(kvfi_json_parse_object("record", text, len, &record->object, error));
    KVF_TRY(kvfi_json_need_int(record->object, "t_wall_ns", 0, INT64_MAX, &record->wall_ns, error));
    KVF_TRY(kvfi_json_need_string(record->object, "event", &name, error));
    KVF_TRY(kvfi_json_opt_string(record->object, "engine", "", &name, error));
    KVF_TRY(kvfi_json_opt_string(record->object, "role", "", &name, error));
    KVF_TRY(kvfi_json_opt_string(record->object, "request", "", &request, error));
    KVF_TRY(kvfi_json_opt_string(record->object, "base", NULL, &record->base, error));
    if (record->base)
        return KVF_OK;
    record->base_owned = strndup(request, kvfi_request_id_base_len(request));
    if (!record->base_owned)
        return kvf_fail(error, KVF_ENOMEM, "no memory for a record");
    record->base = record->base_owned;
    return KVF_OK;
}

static void free_record(struct kvfi_trace_record *record)
{
    json_decref(record->object);
    free(record->base_owned);
}

enum kvf_status kvfi_trace_add(struct kvfi_trace *trace, const char *text, size_t len,
                               struct kvf_error *error)
{
    struct kvfi_trace_record record = {.order = trace->count};
    enum kvf_status status = read_record(text, len, &record, error);
    if (status == KVF_OK && is_wanted(trace, &record) && trace->count == trace->cap) {
        size_t cap = trace->cap ? trace->cap * 2 : 256;
        struct kvfi_trace_record *grown = realloc(trace->records, cap * sizeof(*grown));
        if (grown) {
            trace->records = grown;
            trace->cap = cap;
        } else {
            status = kvf_fail(error, KVF_ENOMEM, "no memory for %zu records", cap);
        }
    }
    if (status != KVF_OK || !is_wanted(trace, &record)) {
        free_record(&record);
        return status == KVF_OK || status == KVF_ENOMEM ? status : KVF_EFORMAT;
    }
    trace->records[trace->count++] = record;
    return KVF_OK;
}

static int by_time(const struct kvfi_trace_record *a, const struct kvfi_trace_record *b)
{
    if (a->wall_ns != b->wall_ns)
        return a->wall_ns < b->wall_ns ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static int by_base(const void *left, const void *right)
{
    const struct kvfi_trace_record *a = left;
    const struct kvfi_trace_record *b = right;
    int order = strcmp(a->base, b->base);
    return order ? order : by_time(a, b);
}

/* A run of records with one base id. */
struct group {
    const struct kvfi_trace_record *first;
    size_t count;
};

static int by_first(const void *left, const void *right)
{
    const struct group *a = left;
    const struct group *b = right;
    return by_time(a->first, b->first);
}

static size_t group_len(const struct kvfi_trace *trace, size_t at)
{
    size_t len = 1;
    while (at + len < trace->count &&
           strcmp(trace->records[at].base, trace->records[at + len].base) == 0)
        len++;
    return len;
}

enum kvf_status kvfi_trace_sort(struct kvfi_trace *trace, struct kvf_error *error)
{
    if (!trace->count)
        return KVF_OK;
    struct group *groups = calloc(trace->count, sizeof(*groups));
    struct kvfi_trace_record *sorted = calloc(trace->count, sizeof(*sorted));
    if (!groups || !sorted) {
        free(groups);
        free(sorted);
        return kvf_fail(error, KVF_ENOMEM, "no memory to sort %zu records", trace->count);
    }
    qsort(trace->records, trace->count, sizeof(*trace->records), by_base);
    size_t group_count = 0;
    for (size_t at = 0; at < trace->count; at += groups[group_count++].count)
        groups[group_count] =
            (struct group){.first = &trace->records[at], .count = group_len(trace, at)};
    qsort(groups, group_count, sizeof(*groups), by_first);
    size_t at = 0;
    for (size_t i = 0; i < group_count; i++) {
        memcpy(sorted + at, groups[i].first, groups[i].count * sizeof(*sorted));
        at += groups[i].count;
    }
    free(groups);
    free(trace->records);
    trace->records = sorted;
    trace->cap = trace->count;
    return KVF_OK;
}

/* The keys that have columns of their own. */
static bool is_column(const char *key)
{
    static const char *const columns[] = {"t_wall_ns", "t_mono_ns", "engine", "role",
                                          "event",     "request",   "base",   "transfer"};
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        if (strcmp(columns[i], key) == 0)
            return true;
    return false;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void print_fields(const json_t *object, FILE *out)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach ((json_t *)object, key, value) {
        if (is_column(key))
            continue;
        char *text = json_is_string(value) ? NULL : kvfi_json_dump(value, NULL);
        fprintf(out, " %s=%s", key, text ? text : text_of(object, key));
        free(text);
    }
}

static const char *first_transfer(const struct kvfi_trace_record *records, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (*text_of(records[i].object, "transfer"))
            return text_of(records[i].object, "transfer");
    return "";
}

static void print_text(const struct kvfi_trace_record *records, size_t count, FILE *out)
{
    int64_t first_ns = records[0].wall_ns;
    int64_t last_ns = records[count - 1].wall_ns;
    const char *transfer = first_transfer(records, count);
    fprintf(out, "request %s%s%s: %zu records, %.3f ms\n",
            *records[0].base ? records[0].base : "(none)", *transfer ? ", transfer " : "", transfer,
            count, (double)(last_ns - first_ns) / 1e6);
    fprintf(out, "  %11s  %11s  %-8s %-16s %s\n", "at ms", "after ms", "role", "engine", "event");
    for (size_t i = 0; i < count; i++) {
        const json_t *object = records[i].object;
        int64_t before_ns = i ? records[i - 1].wall_ns : first_ns;
        fprintf(out, "  %11.3f  %+11.3f  %-8s %-16s %s",
                (double)(records[i].wall_ns - first_ns) / 1e6,
                (double)(records[i].wall_ns - before_ns) / 1e6, text_of(object, "role"),
                text_of(object, "engine"), text_of(object, "event"));
        print_fields(object, out);
        fputc('\n', out);
    }
    fputc('\n', out);
}

static enum kvf_status print_json(const struct kvfi_trace_record *records, size_t count, FILE *out,
                                  struct kvf_error *error)
{
    int64_t first_ns = records[0].wall_ns;
    json_t *list = json_array();
    bool bad = !list;
    for (size_t i = 0; i < count && !bad; i++) {
        int64_t before_ns = i ? records[i - 1].wall_ns : first_ns;
        json_t *object = json_copy(records[i].object);
        bad = !object ||
              json_object_set_new(object, "at_ns", json_integer(records[i].wall_ns - first_ns)) ||
              json_object_set_new(object, "delta_ns", json_integer(records[i].wall_ns - before_ns));
        if (!bad)
            bad = json_array_append(list, object) != 0;
        json_decref(object);
    }
    json_t *line =
        bad ? NULL
            : json_pack("{s:s,s:s,s:I,s:O}", "base", records[0].base, "transfer",
                        first_transfer(records, count), "duration_ns",
                        (json_int_t)(records[count - 1].wall_ns - first_ns), "records", list);
    char *text = kvfi_json_dump(line, NULL);
    if (text)
        fprintf(out, "%s\n", text);
    bad = !text;
    free(text);
    json_decref(line);
    json_decref(list);
    return bad ? kvf_fail(error, KVF_ENOMEM, "no memory for a timeline") : KVF_OK;
}

enum kvf_status kvfi_trace_print(const struct kvfi_trace *trace, bool json, FILE *out,
                                 struct kvf_error *error)
{
    for (size_t at = 0; at < trace->count;) {
        size_t count = group_len(trace, at);
        if (json)
            KVF_TRY(print_json(trace->records + at, count, out, error));
        else
            print_text(trace->records + at, count, out);
        at += count;
    }
    return KVF_OK;
}

void kvfi_trace_free(struct kvfi_trace *trace)
{
    for (size_t i = 0; i < trace->count; i++)
        free_record(&trace->records[i]);
    free(trace->records);
    trace->records = NULL;
    trace->count = 0;
    trace->cap = 0;
}
