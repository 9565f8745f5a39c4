/* SPDX-License-Identifier: Apache-2.0 */
#include "core/core.h"

#include <stdio.h>
#include <string.h>

void kvfi_core_todo(struct kvfi_worker_core *core, struct kvfi_work *work)
{
    if (kvfi_list_empty(&work->link))
        kvfi_list_append(&core->owing, &work->link);
}

void kvfi_core_count(struct kvfi_worker_core *core, enum kvf_counter counter)
{
    core->counts[counter]++;
}

void kvfi_core_set_reason(char reason[KVF_REASON_LEN_MAX + 1], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(reason, KVF_REASON_LEN_MAX + 1, fmt, args);
    va_end(args);
    if (len < 0)
        reason[0] = '\0';
    else if (len > KVF_REASON_LEN_MAX)
        memcpy(reason + KVF_REASON_LEN_MAX - 3, "...", 4);
}

enum kvf_status kvfi_emit_result(struct kvfi_effects *effects, enum kvf_result_kind kind,
                                 enum kvf_status status, bool blocks_free, const char *request_id,
                                 const char *reason)
{
    struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_RESULT);
    if (!effect)
        return KVF_ENOMEM;
    effect->result.kind = kind;
    effect->result.status = status;
    effect->result.blocks_free = blocks_free;
    (void)snprintf(effect->result.request_id, sizeof(effect->result.request_id), "%s", request_id);
    if (status != KVF_OK)
        (void)snprintf(effect->result.reason, sizeof(effect->result.reason), "%s", reason);
    return KVF_OK;
}

enum kvf_status kvfi_emit_send(struct kvfi_worker_core *core, struct kvfi_effects *effects,
                               const struct kvfi_peer *peer, uint64_t token)
{
    if (core->scratch.status != KVF_OK)
        return core->scratch.status;
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    void *message = kvfi_effects_copy(effects, core->scratch.data, core->scratch.len);
    struct kvfi_effect *effect = message ? kvfi_effects_add(effects, KVFI_EFFECT_SEND) : NULL;
    if (!effect) {
        kvfi_effects_rollback(effects, mark);
        return KVF_ENOMEM;
    }
    effect->send.token = token;
    effect->send.peer = peer->id;
    effect->send.message = message;
    effect->send.message_len = core->scratch.len;
    return KVF_OK;
}

static bool put_field(struct kvfi_effects *effects, struct kvf_event_field *fields, size_t *count,
                      const char *name, const char *text)
{
    if (!text)
        return true;
    const char *copy = kvfi_effects_text(effects, text);
    fields[*count] = (struct kvf_event_field){.name = name, .text = copy};
    ++*count;
    return copy != NULL;
}

static bool put_record(struct kvfi_effects *effects, const struct kvfi_record *record)
{
    struct kvf_event_field fields[KVFI_RECORD_FIELDS_MAX];
    size_t count = 0;
    if (!put_field(effects, fields, &count, "reason", record->reason) ||
        !put_field(effects, fields, &count, "peer", record->peer) ||
        !put_field(effects, fields, &count, "match", record->match))
        return false;
    if (record->block_count >= 0)
        fields[count++] = (struct kvf_event_field){.name = "blocks", .number = record->block_count};
    if (record->bytes)
        fields[count++] =
            (struct kvf_event_field){.name = "bytes", .number = (int64_t)record->bytes};
    if (record->runs)
        fields[count++] = (struct kvf_event_field){.name = "runs", .number = (int64_t)record->runs};
    const char *request_id = NULL;
    if (record->request_id && !(request_id = kvfi_effects_text(effects, record->request_id)))
        return false;
    uint32_t *block_ids = NULL;
    if (record->block_id_count) {
        block_ids = kvfi_effects_copy(effects, record->block_ids,
                                      record->block_id_count * sizeof(*block_ids));
        if (!block_ids)
            return false;
    }
    struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_RECORD);
    if (!effect)
        return false;
    effect->record.event = record->event;
    effect->record.request_id = request_id;
    memcpy(effect->record.fields, fields, count * sizeof(fields[0]));
    effect->record.field_count = count;
    effect->record.block_ids = block_ids;
    effect->record.block_count = record->block_id_count;
    return true;
}

void kvfi_emit_record(struct kvfi_worker_core *core, struct kvfi_effects *effects,
                      const struct kvfi_record *record)
{
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    if (put_record(effects, record))
        return;
    kvfi_effects_rollback(effects, mark);
    kvfi_core_count(core, KVF_COUNTER_events_dropped);
}

void kvfi_emit_observe(struct kvfi_effects *effects, enum kvf_histogram histogram, double value)
{
    struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_OBSERVE);
    if (!effect)
        return;
    effect->observe.histogram = histogram;
    effect->observe.value = value;
}

void kvfi_emit_counts(struct kvfi_worker_core *core, struct kvfi_effects *effects)
{
    for (int i = 0; i < KVF_COUNTER_COUNT; i++) {
        if (core->counts[i] == 0)
            continue;
        struct kvfi_effect *effect = kvfi_effects_add(effects, KVFI_EFFECT_COUNT);
        if (!effect)
            return;
        effect->count.counter = (enum kvf_counter)i;
        effect->count.n = core->counts[i];
        core->counts[i] = 0;
    }
}
