/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config.h"
#include "core/core.h"
#include "core/step.h"
#include "wire/compat_hash.h"
#include "wire/notif.h"

#include <string.h>

#define TOMBSTONE_COUNT_MAX    8192
#define TOMBSTONE_NS           600000000000ull
#define REGISTRATION_COUNT_MAX 65536
#define REGION_COUNT_MAX       65536

/* ---- create --------------------------------------------------------------------------------- */

static enum kvf_status check_compat(const struct kvf_kv_compat *compat, struct kvf_error *error)
{
    const struct {
        const char *name;
        const char *text;
    } texts[] = {
        {"vllm_version", compat->vllm_version},
        {"model", compat->model},
        {"dtype", compat->dtype},
        {"cache_dtype", compat->cache_dtype},
        {"attn_backend", compat->attn_backend},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (!texts[i].text || texts[i].text[0] == '\0')
            return kvf_fail(error, KVF_EINVAL, "compat.%s is missing", texts[i].name);
    return KVF_OK;
}

static enum kvf_status check_region(const struct kvf_kv_region *region, size_t index,
                                    struct kvf_error *error)
{
    if (!region->name || region->name[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, "region %zu has no name", index);
    if (!region->base || region->block_bytes == 0 || region->block_count == 0)
        return kvf_fail(error, KVF_EINVAL, "region %zu ('%.64s') is empty", index, region->name);
    if (region->stride_bytes < region->block_bytes)
        return kvf_fail(error, KVF_EINVAL, "region %zu ('%.64s'): stride %llu is below block %llu",
                        index, region->name, (unsigned long long)region->stride_bytes,
                        (unsigned long long)region->block_bytes);
    if (region->block_count > (UINT64_MAX - (uintptr_t)region->base) / region->stride_bytes)
        return kvf_fail(error, KVF_EINVAL, "region %zu ('%.64s') does not fit in memory", index,
                        region->name);
    if (region->group != 0)
        return kvf_fail(error, KVF_ENOTSUP,
                        "region %zu ('%.64s') is of group %u: this version has one group", index,
                        region->name, region->group);
    return KVF_OK;
}

static enum kvf_status check_cache(const struct kvf_kv_cache *cache, struct kvf_error *error)
{
    if (!cache || !cache->regions || cache->region_count == 0)
        return kvf_fail(error, KVF_EINVAL, "the cache has no regions");
    if (cache->region_count > REGION_COUNT_MAX)
        return kvf_fail(error, KVF_ELIMIT, "the cache has %zu regions, at most %d",
                        cache->region_count, REGION_COUNT_MAX);
    if (!cache->layout || cache->layout[0] == '\0')
        return kvf_fail(error, KVF_EINVAL, "the cache has no layout");
    for (size_t i = 0; i < cache->region_count; i++)
        KVF_TRY(check_region(&cache->regions[i], i, error));
    return KVF_OK;
}

static size_t text_size(const char *text)
{
    return strlen(text) + 1;
}

static const char *put_text(char **at, const char *text)
{
    size_t size = text_size(text);
    char *copy = *at;
    memcpy(copy, text, size);
    *at += size;
    return copy;
}

/* Copies what the options lend: strings and regions. */
static enum kvf_status copy_options(struct kvfi_worker_core *core,
                                    const struct kvfi_worker_core_options *options)
{
    const struct kvf_kv_config *config = options->config;
    const struct kvf_kv_cache *cache = options->cache;
    size_t size = text_size(config->engine_id) + text_size(config->host) +
                  text_size(config->compat.attn_backend) + text_size(cache->layout);
    for (size_t i = 0; i < cache->region_count; i++)
        size += text_size(cache->regions[i].name);
    core->texts = kvfi_wire_alloc(core->allocator, size);
    core->regions = kvfi_wire_alloc(core->allocator, cache->region_count * sizeof(*core->regions));
    if (!core->texts || !core->regions)
        return KVF_ENOMEM;
    char *at = core->texts;
    core->config = *config;
    core->config.engine_id = put_text(&at, config->engine_id);
    core->config.host = put_text(&at, config->host);
    core->config.compat = (struct kvf_kv_compat){
        .attn_backend = put_text(&at, config->compat.attn_backend),
        .enforce = config->compat.enforce,
    };
    core->layout = put_text(&at, cache->layout);
    core->region_count = cache->region_count;
    core->block_count_min = UINT64_MAX;
    for (size_t i = 0; i < cache->region_count; i++) {
        const struct kvf_kv_region *region = &cache->regions[i];
        core->regions[i] = (struct kvfi_core_region){
            .name = put_text(&at, region->name),
            .table = {.base = (uintptr_t)region->base,
                      .stride_bytes = region->stride_bytes,
                      .block_count = region->block_count,
                      .device_id = region->device_id,
                      .kind = region->kind},
            .block_bytes = region->block_bytes,
        };
        if (region->block_count < core->block_count_min)
            core->block_count_min = region->block_count;
    }
    return KVF_OK;
}

static enum kvf_status compute_hash(struct kvfi_worker_core *core,
                                    const struct kvf_kv_compat *compat, struct kvf_error *error)
{
    const struct kvfi_compat_factors factors = {
        .attn_backend_name = compat->attn_backend,
        .cache_dtype = compat->cache_dtype,
        .dtype = compat->dtype,
        .head_size = compat->head_size,
        .is_hma_enabled = compat->hma_enabled,
        .model = compat->model,
        .nixl_connector_version = compat->connector_version,
        .num_hidden_layers = compat->layer_count,
        .num_kv_heads = compat->kv_head_count,
        .transfer_mode = "push",
        .vllm_version = compat->vllm_version,
    };
    return kvfi_compat_hash(&factors, core->allocator, core->compat_hash, error);
}

static void init_tables(struct kvfi_worker_core *core,
                        const struct kvfi_worker_core_options *options)
{
    core->registration_count_max =
        options->registration_count_max ? options->registration_count_max : REGISTRATION_COUNT_MAX;
    core->next_token = 1;
    core->next_handshake_id = 1;
    core->retry_ns = UINT64_MAX;
    kvfi_party_table_init(&core->sends, core->allocator);
    kvfi_party_table_init(&core->registrations, core->allocator);
    kvfi_index_init(&core->receives, core->allocator);
    kvfi_index_init(&core->write_tokens, core->allocator);
    kvfi_index_init(&core->registration_tokens, core->allocator);
    kvfi_index_init(&core->peers, core->allocator);
    kvfi_index_init(&core->peers_by_agent_name, core->allocator);
    kvfi_index_init(&core->peers_by_id, core->allocator);
    kvfi_index_init(&core->peers_by_handshake, core->allocator);
    kvfi_tombstones_init(&core->tombstones, core->allocator,
                         options->tombstone_count_max ? options->tombstone_count_max
                                                      : TOMBSTONE_COUNT_MAX,
                         options->tombstone_ns ? options->tombstone_ns : TOMBSTONE_NS);
    kvfi_deadlines_init(&core->deadlines, core->allocator);
    kvfi_list_init(&core->owing);
    kvfi_list_init(&core->steps);
    kvfi_buf_init(&core->scratch, core->allocator);
}

enum kvf_status kvfi_worker_core_create(const struct kvfi_worker_core_options *options,
                                        struct kvfi_worker_core **core_p, struct kvf_error *error)
{
    KVF_TRY(kvfi_kv_config_check(options->config, error));
    KVF_TRY(check_compat(&options->config->compat, error));
    KVF_TRY(check_cache(options->cache, error));
    struct kvfi_worker_core *core = kvfi_wire_alloc(options->allocator, sizeof(*core));
    if (!core)
        return kvf_fail(error, KVF_ENOMEM, "out of memory for the worker");
    memset(core, 0, sizeof(*core));
    if (options->allocator) {
        core->allocator_copy = *options->allocator;
        core->allocator = &core->allocator_copy;
    }
    init_tables(core, options);
    enum kvf_status status = copy_options(core, options);
    if (status != KVF_OK)
        (void)kvf_fail(error, status, "out of memory for the worker");
    else
        status = compute_hash(core, &options->config->compat, error);
    if (status != KVF_OK) {
        kvfi_worker_core_destroy(core);
        return status;
    }
    *core_p = core;
    return KVF_OK;
}

/* ---- destroy -------------------------------------------------------------------------------- */

static void free_work(struct kvfi_worker_core *core, struct kvfi_work *work)
{
    switch (work->kind) {
    case KVFI_WORK_PEER:
        kvfi_list_remove(&work->link); /* freed with the others, by engine id */
        return;
    case KVFI_WORK_SEND:
        kvfi_send_free(core, KVFI_CONTAINER_OF(work, struct kvfi_send, work));
        return;
    case KVFI_WORK_REGISTRATION:
        kvfi_registration_free(core, KVFI_CONTAINER_OF(work, struct kvfi_registration, work));
        return;
    case KVFI_WORK_RECEIVE:
        kvfi_receive_free(core, KVFI_CONTAINER_OF(work, struct kvfi_receive, work));
        return;
    }
}

static void free_peer(struct kvfi_worker_core *core, struct kvfi_peer *peer)
{
    while (!kvfi_list_empty(&peer->receives))
        kvfi_receive_free(core,
                          KVFI_CONTAINER_OF(peer->receives.next, struct kvfi_receive, of_peer));
    while (!kvfi_list_empty(&peer->registrations))
        kvfi_registration_free(
            core, KVFI_CONTAINER_OF(peer->registrations.next, struct kvfi_registration, of_peer));
    kvfi_peer_free(core, peer);
}

void kvfi_worker_core_destroy(struct kvfi_worker_core *core)
{
    if (!core)
        return;
    while (!kvfi_list_empty(&core->steps)) {
        struct kvf_step *step = kvfi_step_of_link(core->steps.next);
        kvfi_list_remove(core->steps.next);
        kvf_step_free(step);
    }
    while (!kvfi_list_empty(&core->owing))
        free_work(core, KVFI_CONTAINER_OF(core->owing.next, struct kvfi_work, link));
    for (size_t i = 0; i < core->peers.bucket_count; i++)
        while (core->peers.buckets[i])
            free_peer(core,
                      KVFI_CONTAINER_OF(core->peers.buckets[i], struct kvfi_peer, by_engine_id));
    for (size_t i = 0; i < core->sends.by_id.bucket_count; i++)
        while (core->sends.by_id.buckets[i])
            kvfi_send_free(core, KVFI_CONTAINER_OF(core->sends.by_id.buckets[i], struct kvfi_send,
                                                   party.by_id));
    kvfi_tombstones_deinit(&core->tombstones);
    kvfi_party_table_deinit(&core->sends);
    kvfi_party_table_deinit(&core->registrations);
    kvfi_index_deinit(&core->receives);
    kvfi_index_deinit(&core->write_tokens);
    kvfi_index_deinit(&core->registration_tokens);
    kvfi_index_deinit(&core->peers);
    kvfi_index_deinit(&core->peers_by_agent_name);
    kvfi_index_deinit(&core->peers_by_id);
    kvfi_index_deinit(&core->peers_by_handshake);
    kvfi_deadlines_deinit(&core->deadlines);
    kvfi_buf_deinit(&core->scratch);
    kvfi_wire_free(core->allocator, core->regions);
    kvfi_wire_free(core->allocator, core->texts);
    struct kvf_allocator allocator = core->allocator_copy;
    kvfi_wire_free(core->allocator ? &allocator : NULL, core);
}

/* ---- events --------------------------------------------------------------------------------- */

static void on_heartbeat(struct kvfi_worker_core *core, struct kvfi_span list)
{
    kvfi_core_count(core, KVF_COUNTER_heartbeats_received);
    struct kvfi_span id;
    while (kvfi_notif_heartbeat_next(&list, &id)) {
        char text[KVF_REQUEST_ID_LEN_MAX + 1];
        if (id.len > KVF_REQUEST_ID_LEN_MAX || memchr(id.data, '\0', id.len))
            continue;
        memcpy(text, id.data, id.len);
        text[id.len] = '\0';
        struct kvfi_party key;
        kvfi_party_set(&key, text, NULL);
        struct kvfi_match found = kvfi_party_match(&core->sends, &key, NULL);
        if (found.party && !found.many)
            kvfi_send_renew(core, KVFI_CONTAINER_OF(found.party, struct kvfi_send, party));
    }
}

static enum kvf_status on_notification(struct kvfi_worker_core *core,
                                       const struct kvfi_event *event, struct kvfi_effects *effects)
{
    struct kvf_error error = {.status = KVF_OK};
    struct kvfi_notif notif;
    if (kvfi_notif_classify(event->notification.message, event->notification.message_len, &notif,
                            &error) != KVF_OK) {
        kvfi_core_count(core, KVF_COUNTER_bad_messages);
        kvfi_emit_record(
            core, effects,
            &(struct kvfi_record){KVFI_RECORD_INIT, .event = "dropped", .reason = error.text});
        return KVF_OK;
    }
    const char *sender = event->notification.sender;
    switch (notif.kind) {
    case KVFI_NOTIF_PUSH_REG:
        return kvfi_registration_on_message(core, event, effects);
    case KVFI_NOTIF_HEARTBEAT:
        on_heartbeat(core, notif.body);
        return KVF_OK;
    case KVFI_NOTIF_DONE:
        kvfi_receive_on_message(core, sender, notif.request_id, true, effects);
        return KVF_OK;
    case KVFI_NOTIF_PUSH_FAIL:
        kvfi_receive_on_message(core, sender, notif.request_id, false, effects);
        return KVF_OK;
    case KVFI_NOTIF_PUSH_DROP:
        return kvfi_registration_on_drop(core, sender, notif.request_id, effects);
    }
    return KVF_OK;
}

static void fire(struct kvfi_worker_core *core, struct kvfi_deadline *node,
                 struct kvfi_effects *effects)
{
    switch ((enum kvfi_work_kind)node->kind) {
    case KVFI_WORK_PEER:
        kvfi_peer_on_deadline(core, KVFI_CONTAINER_OF(node, struct kvfi_peer, deadline), effects);
        return;
    case KVFI_WORK_SEND:
        kvfi_send_on_deadline(core, KVFI_CONTAINER_OF(node, struct kvfi_send, lease), effects);
        return;
    case KVFI_WORK_REGISTRATION:
        kvfi_registration_on_deadline(
            core, KVFI_CONTAINER_OF(node, struct kvfi_registration, timeout), effects);
        return;
    case KVFI_WORK_RECEIVE:
        kvfi_receive_on_deadline(core, KVFI_CONTAINER_OF(node, struct kvfi_receive, deadline));
        return;
    }
}

static enum kvf_status flush(struct kvfi_worker_core *core, struct kvfi_work *work,
                             struct kvfi_effects *effects)
{
    switch (work->kind) {
    case KVFI_WORK_PEER:
        return kvfi_peer_flush(core, KVFI_CONTAINER_OF(work, struct kvfi_peer, work), effects);
    case KVFI_WORK_SEND:
        return kvfi_send_flush(core, KVFI_CONTAINER_OF(work, struct kvfi_send, work), effects);
    case KVFI_WORK_REGISTRATION:
        return kvfi_registration_flush(
            core, KVFI_CONTAINER_OF(work, struct kvfi_registration, work), effects);
    case KVFI_WORK_RECEIVE:
        return kvfi_receive_flush(core, KVFI_CONTAINER_OF(work, struct kvfi_receive, work),
                                  effects);
    }
    return KVF_OK;
}

/* Lets every object that owes something speak. Those for which memory is short stay. */
static void flush_todo(struct kvfi_worker_core *core, struct kvfi_effects *effects)
{
    struct kvfi_list stuck;
    kvfi_list_init(&stuck);
    while (!kvfi_list_empty(&core->owing)) {
        struct kvfi_work *work = KVFI_CONTAINER_OF(core->owing.next, struct kvfi_work, link);
        kvfi_list_remove(&work->link);
        if (flush(core, work, effects) == KVF_ENOMEM)
            kvfi_list_append(&stuck, &work->link);
    }
    while (!kvfi_list_empty(&stuck))
        kvfi_list_append(&core->owing, stuck.next);
    if (!kvfi_list_empty(&core->owing))
        core->retry_ns = kvfi_ns_add(core->now_ns, KVFI_RETRY_NS);
}

static enum kvf_status dispatch(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                struct kvfi_effects *effects)
{
    switch (event->kind) {
    case KVFI_EVENT_STEP:
        return kvfi_steps_add(core, event->step, effects);
    case KVFI_EVENT_NOTIFICATION:
        return on_notification(core, event, effects);
    case KVFI_EVENT_HANDSHAKE_REPLY:
        kvfi_peer_on_reply(core, event, effects);
        return KVF_OK;
    case KVFI_EVENT_PEER_LOADED:
        return kvfi_peer_on_loaded(core, event, effects);
    case KVFI_EVENT_PEER_LOST:
        kvfi_peer_on_lost(core, event, effects);
        return KVF_OK;
    case KVFI_EVENT_TRANSFER_DONE:
        kvfi_send_on_done(core, event, effects);
        return KVF_OK;
    case KVFI_EVENT_SEND_FAILED:
        kvfi_receive_on_send_failed(core, event, effects);
        return KVF_OK;
    case KVFI_EVENT_TICK:
        return KVF_OK;
    }
    return KVF_OK;
}

enum kvf_status kvfi_worker_core_step(struct kvfi_worker_core *core, const struct kvfi_event *event,
                                      struct kvfi_effects *effects)
{
    struct kvfi_effects_mark mark = kvfi_effects_mark(effects);
    if (event->now_ns > core->now_ns)
        core->now_ns = event->now_ns;
    kvfi_tombstones_purge(&core->tombstones, core->now_ns);
    struct kvfi_deadline *node = NULL;
    while ((node = kvfi_deadlines_pop(&core->deadlines, core->now_ns)))
        fire(core, node, effects);
    core->retry_ns = UINT64_MAX;
    enum kvf_status status = dispatch(core, event, effects);
    if (status != KVF_OK) {
        /* What fell due meanwhile is noted on its objects and comes with the next event. */
        kvfi_effects_rollback(effects, mark);
        core->retry_ns = kvfi_ns_add(core->now_ns, KVFI_RETRY_NS);
        return status;
    }
    if (kvfi_steps_apply(core, effects) != KVF_OK)
        core->retry_ns = kvfi_ns_add(core->now_ns, KVFI_RETRY_NS);
    flush_todo(core, effects);
    kvfi_emit_counts(core, effects);
    return KVF_OK;
}

uint64_t kvfi_worker_core_deadline_ns(const struct kvfi_worker_core *core)
{
    uint64_t next_ns = kvfi_deadlines_next_ns(&core->deadlines);
    return next_ns < core->retry_ns ? next_ns : core->retry_ns;
}
