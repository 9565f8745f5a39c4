/* SPDX-License-Identifier: Apache-2.0 */
#include "core/step.h"

#include "wire/bytes.h"

#include <string.h>

/* What lies in front of the step in its allocation. */
struct step_box {
    struct kvf_step step; /* first: kvf_step_free finds the box by it */
    struct kvf_allocator allocator;
    bool has_allocator;
    struct kvfi_list link;
};

bool kvf_step_is_empty(const struct kvf_step *step)
{
    return !step || (step->registration_count == 0 && step->finished_count == 0 &&
                     step->in_batch_count == 0 && step->not_processed_count == 0 &&
                     step->withdrawn_count == 0 && step->heartbeat_count == 0);
}

void kvf_step_free(struct kvf_step *step)
{
    if (!step)
        return;
    struct step_box *box = KVFI_CONTAINER_OF(step, struct step_box, step);
    struct kvf_allocator allocator = box->allocator;
    kvfi_wire_free(box->has_allocator ? &allocator : NULL, box);
}

struct kvfi_list *kvfi_step_link(struct kvf_step *step)
{
    return &KVFI_CONTAINER_OF(step, struct step_box, step)->link;
}

struct kvf_step *kvfi_step_of_link(struct kvfi_list *link)
{
    return &KVFI_CONTAINER_OF(link, struct step_box, link)->step;
}

void kvfi_step_count_text(struct kvfi_step_sizes *sizes, const char *text)
{
    if (text)
        sizes->text_bytes += strlen(text) + 1;
}

void kvfi_step_count_remote(struct kvfi_step_sizes *sizes, const struct kvf_remote_engine *remote)
{
    kvfi_step_count_text(sizes, remote->engine_id);
    kvfi_step_count_text(sizes, remote->host);
}

enum kvf_status kvfi_step_begin(struct kvfi_step_builder *builder,
                                const struct kvf_allocator *allocator,
                                const struct kvfi_step_sizes *sizes)
{
    /* Largest alignment first, so that the parts need no padding between them. */
    size_t registrations_at = sizeof(struct step_box);
    size_t finished_at =
        registrations_at + sizes->registrations * sizeof(struct kvf_step_registration);
    size_t heartbeats_at = finished_at + sizes->finished * sizeof(struct kvf_step_finished);
    size_t ids_at = heartbeats_at + sizes->heartbeats * sizeof(struct kvf_step_heartbeat);
    size_t blocks_at = ids_at + sizes->ids * sizeof(char *);
    size_t text_at = blocks_at + sizes->block_ids * sizeof(uint32_t);
    char *memory = kvfi_wire_alloc(allocator, text_at + sizes->text_bytes);
    if (!memory)
        return KVF_ENOMEM;
    memset(memory, 0, registrations_at);
    struct step_box *box = (void *)memory;
    box->has_allocator = allocator != NULL;
    if (allocator)
        box->allocator = *allocator;
    kvfi_list_init(&box->link);
    *builder = (struct kvfi_step_builder){
        .step = &box->step,
        .registrations = (void *)(memory + registrations_at),
        .finished = (void *)(memory + finished_at),
        .heartbeats = (void *)(memory + heartbeats_at),
        .ids = (void *)(memory + ids_at),
        .block_ids = (void *)(memory + blocks_at),
        .text = memory + text_at,
    };
    box->step.registrations = builder->registrations;
    box->step.finished = builder->finished;
    box->step.heartbeats = builder->heartbeats;
    return KVF_OK;
}

const char *kvfi_step_put_text(struct kvfi_step_builder *builder, const char *text)
{
    if (!text)
        return NULL;
    size_t len = strlen(text) + 1;
    char *copy = builder->text;
    memcpy(copy, text, len);
    builder->text += len;
    return copy;
}

const uint32_t *kvfi_step_put_blocks(struct kvfi_step_builder *builder, const uint32_t *block_ids,
                                     size_t count)
{
    uint32_t *copy = builder->block_ids;
    if (count)
        memcpy(copy, block_ids, count * sizeof(*copy));
    builder->block_ids += count;
    return copy;
}

struct kvf_remote_engine kvfi_step_put_remote(struct kvfi_step_builder *builder,
                                              const struct kvf_remote_engine *remote)
{
    struct kvf_remote_engine copy = *remote;
    copy.engine_id = kvfi_step_put_text(builder, remote->engine_id);
    copy.host = kvfi_step_put_text(builder, remote->host);
    return copy;
}

void kvfi_step_put_registration(struct kvfi_step_builder *builder,
                                const struct kvf_step_registration *registration)
{
    struct kvf_step_registration *copy = &builder->registrations[builder->step->registration_count];
    *copy = (struct kvf_step_registration){
        .request_id = kvfi_step_put_text(builder, registration->request_id),
        .transfer_id = kvfi_step_put_text(builder, registration->transfer_id),
        .remote_request_id = kvfi_step_put_text(builder, registration->remote_request_id),
        .remote = kvfi_step_put_remote(builder, &registration->remote),
        .block_ids =
            kvfi_step_put_blocks(builder, registration->block_ids, registration->block_count),
        .block_count = registration->block_count,
    };
    builder->step->registration_count++;
}

void kvfi_step_put_finished(struct kvfi_step_builder *builder,
                            const struct kvf_step_finished *finished)
{
    struct kvf_step_finished *copy = &builder->finished[builder->step->finished_count];
    *copy = (struct kvf_step_finished){
        .request_id = kvfi_step_put_text(builder, finished->request_id),
        .transfer_id = kvfi_step_put_text(builder, finished->transfer_id),
        .block_ids = kvfi_step_put_blocks(builder, finished->block_ids, finished->block_count),
        .block_count = finished->block_count,
        .deadline_ns = finished->deadline_ns,
    };
    builder->step->finished_count++;
}

void kvfi_step_put_id(struct kvfi_step_builder *builder, const char *const **list_p,
                      size_t *count_p, const char *id)
{
    if (*count_p == 0)
        *list_p = builder->ids;
    *builder->ids++ = kvfi_step_put_text(builder, id);
    ++*count_p;
}

static void count_ids(struct kvfi_step_sizes *sizes, const char *const *ids, size_t count)
{
    sizes->ids += count;
    for (size_t i = 0; i < count; i++)
        kvfi_step_count_text(sizes, ids[i]);
}

static void put_ids(struct kvfi_step_builder *builder, const char *const **list_p, size_t *count_p,
                    const char *const *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        kvfi_step_put_id(builder, list_p, count_p, ids[i]);
}

enum kvf_status kvfi_step_clone(const struct kvf_step *step, const struct kvf_allocator *allocator,
                                struct kvf_step **copy_p)
{
    struct kvfi_step_sizes sizes = {
        .registrations = step->registration_count,
        .finished = step->finished_count,
        .heartbeats = step->heartbeat_count,
    };
    for (size_t i = 0; i < step->registration_count; i++) {
        const struct kvf_step_registration *item = &step->registrations[i];
        kvfi_step_count_text(&sizes, item->request_id);
        kvfi_step_count_text(&sizes, item->transfer_id);
        kvfi_step_count_text(&sizes, item->remote_request_id);
        kvfi_step_count_remote(&sizes, &item->remote);
        sizes.block_ids += item->block_count;
    }
    for (size_t i = 0; i < step->finished_count; i++) {
        kvfi_step_count_text(&sizes, step->finished[i].request_id);
        kvfi_step_count_text(&sizes, step->finished[i].transfer_id);
        sizes.block_ids += step->finished[i].block_count;
    }
    count_ids(&sizes, step->in_batch, step->in_batch_count);
    count_ids(&sizes, step->not_processed, step->not_processed_count);
    count_ids(&sizes, step->withdrawn, step->withdrawn_count);
    for (size_t i = 0; i < step->heartbeat_count; i++) {
        kvfi_step_count_remote(&sizes, &step->heartbeats[i].remote);
        count_ids(&sizes, step->heartbeats[i].request_ids, step->heartbeats[i].request_count);
    }

    struct kvfi_step_builder builder;
    KVF_TRY(kvfi_step_begin(&builder, allocator, &sizes));
    struct kvf_step *copy = builder.step;
    copy->scheduler_clock_ns = step->scheduler_clock_ns;
    for (size_t i = 0; i < step->registration_count; i++)
        kvfi_step_put_registration(&builder, &step->registrations[i]);
    for (size_t i = 0; i < step->finished_count; i++)
        kvfi_step_put_finished(&builder, &step->finished[i]);
    put_ids(&builder, &copy->in_batch, &copy->in_batch_count, step->in_batch, step->in_batch_count);
    put_ids(&builder, &copy->not_processed, &copy->not_processed_count, step->not_processed,
            step->not_processed_count);
    put_ids(&builder, &copy->withdrawn, &copy->withdrawn_count, step->withdrawn,
            step->withdrawn_count);
    for (size_t i = 0; i < step->heartbeat_count; i++) {
        struct kvf_step_heartbeat *beat = &builder.heartbeats[copy->heartbeat_count++];
        *beat = (struct kvf_step_heartbeat){
            .remote = kvfi_step_put_remote(&builder, &step->heartbeats[i].remote)};
        put_ids(&builder, &beat->request_ids, &beat->request_count, step->heartbeats[i].request_ids,
                step->heartbeats[i].request_count);
    }
    *copy_p = copy;
    return KVF_OK;
}
