/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor_print.h"

#include "http/json.h"
#include "kvferry/kvferry.h"

#include <stdlib.h>
#include <string.h>

enum { SCHEMA = 1, INDENT = 6, COLUMNS = 100 };

/* Prints text after `column` columns of the line, in lines that begin at INDENT. */
static void print_wrapped(FILE *out, const char *text, int column)
{
    for (bool first = true; *text; first = false) {
        int len = (int)strcspn(text, " ");
        if (!first && column + 1 + len > COLUMNS) {
            fprintf(out, "\n%*s", INDENT, "");
            column = INDENT;
            first = true;
        }
        column += fprintf(out, "%s%.*s", first ? "" : " ", len, text);
        text += len;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_finding(const struct kvf_finding *finding, FILE *out)
{
    int column =
        fprintf(out, "%-*s%s: ", INDENT, kvf_finding_level_name(finding->level), finding->topic);
    print_wrapped(out, finding->found, column);
    fprintf(out, "%*s", INDENT, "");
    print_wrapped(out, finding->follows, INDENT);
    if (finding->remedy) {
        fprintf(out, "%*s", INDENT, "=> ");
        print_wrapped(out, finding->remedy, INDENT);
    }
}

void kvfi_doctor_print_text(const struct kvf_host_report *report, const char *title, FILE *out)
{
    size_t counts[KVF_FINDING_FAIL + 1] = {0};
    fprintf(out, "%s\n\n", title);
    for (int level = KVF_FINDING_FAIL; level >= KVF_FINDING_OK; level--) {
        const struct kvf_finding *finding;
        for (size_t i = 0; (finding = kvf_host_report_finding(report, i)); i++) {
            if ((int)finding->level != level)
                continue;
            counts[level]++;
            print_finding(finding, out);
        }
    }
    fprintf(out, "\n%s: %zu fail, %zu warn, %zu note, %zu ok\n",
            counts[KVF_FINDING_FAIL] ? "No transfer is possible here" : "Transfers are possible",
            counts[KVF_FINDING_FAIL], counts[KVF_FINDING_WARN], counts[KVF_FINDING_NOTE],
            counts[KVF_FINDING_OK]);
}

static json_t *fact_value(const struct kvf_fact *fact)
{
    switch (fact->kind) {
    case KVF_FACT_NONE:
        return json_null();
    case KVF_FACT_BOOL:
        return json_boolean(fact->number);
    case KVF_FACT_NUMBER:
        return json_integer(fact->number > INT64_MAX ? INT64_MAX : (json_int_t)fact->number);
    case KVF_FACT_TEXT:
        return json_string(fact->texts[0]);
    case KVF_FACT_LIST:
        break;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < fact->text_count; i++) {
        if (json_array_append_new(list, json_string(fact->texts[i]))) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *finding_object(const struct kvf_finding *finding)
{
    json_t *facts = json_object();
    for (size_t i = 0; i < finding->fact_count; i++) {
        if (json_object_set_new(facts, finding->facts[i].name, fact_value(&finding->facts[i]))) {
            json_decref(facts);
            return NULL;
        }
    }
    return json_pack("{s:s,s:s,s:s,s:s,s:s?,s:o}", "topic", finding->topic, "level",
                     kvf_finding_level_name(finding->level), "found", finding->found, "follows",
                     finding->follows, "remedy", finding->remedy, "facts", facts);
}

enum kvf_status kvfi_doctor_print_json(const struct kvf_host_report *report, FILE *out,
                                       struct kvf_error *error)
{
    enum kvf_finding_level level = kvf_host_report_level(report);
    json_t *list = json_array();
    bool bad = !list;
    for (size_t i = 0; i < kvf_host_report_count(report) && !bad; i++)
        bad = json_array_append_new(list, finding_object(kvf_host_report_finding(report, i))) != 0;
    json_t *object = bad ? NULL
                         : json_pack("{s:i,s:s,s:s,s:b,s:O}", "schema", SCHEMA, "version",
                                     kvf_version(), "level", kvf_finding_level_name(level),
                                     "possible", level != KVF_FINDING_FAIL, "findings", list);
    char *text = kvfi_json_dump(object, NULL);
    json_decref(object);
    json_decref(list);
    if (!text)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the report");
    fprintf(out, "%s\n", text);
    free(text);
    return KVF_OK;
}
