/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/connector.h"

#include <stdlib.h>
#include <string.h>

enum {
    RESULTS_PER_TAKE = 64,
};

#define POST_RETRY_NS 1000000ull

struct engine_connector {
    struct kvf_scheduler *scheduler;
    struct kvf_worker *worker;
    struct kvf_listener *listener;
    struct kvf_step *unposted; /* built, but the worker's queue was full */
    char engine_id[KVF_ENGINE_ID_LEN_MAX + 1];
    char host[KVF_HOST_LEN_MAX + 1];
    uint16_t port;
    struct kvf_result results[RESULTS_PER_TAKE];
};

static void fill_config(const struct engine_connector *connector,
                        const struct engine_connector_options *options,
                        struct kvf_kv_config *config)
{
    *config = (struct kvf_kv_config)KVF_KV_CONFIG_INIT;
    config->engine_id = connector->engine_id;
    config->host = connector->host;
    config->port = connector->port;
    config->block_size = options->block_size;
    config->lease_ns = options->lease_ns;
    config->registration_timeout_ns = options->registration_timeout_ns;
    config->compat.model = options->model;
    config->compat.head_size = options->head_size;
    config->compat.kv_head_count = options->kv_heads;
    config->compat.layer_count = options->cache->layer_count;
}

/* The listener first: the worker advertises the port that it was given. Handshakes that come before
 * the payload is published are dropped, and asked again. */
static enum kvf_status start(struct engine_connector *connector,
                             const struct engine_connector_options *options,
                             struct kvf_error *error)
{
    KVF_TRY(kvf_listener_create(options->host, options->port, NULL, 0, options->metrics,
                                &connector->listener, error));
    connector->port = kvf_listener_port(connector->listener);
    struct kvf_worker_options worker = KVF_WORKER_OPTIONS_INIT;
    fill_config(connector, options, &worker.config);
    engine_cache_describe(options->cache, &worker.cache);
    worker.metrics = options->metrics;
    worker.events = options->events;
    worker.debug_checksums = options->debug_checksums;
    KVF_TRY(kvf_worker_create(&worker, &connector->worker, error));
    KVF_TRY(kvf_scheduler_create(&worker.config, NULL, &connector->scheduler, error));
    struct kvf_listener_rank rank = {0};
    kvf_worker_handshake_payload(connector->worker, &rank.payload, &rank.payload_len);
    return kvf_listener_publish(connector->listener, &rank, error);
}

enum kvf_status engine_connector_create(const struct engine_connector_options *options,
                                        struct engine_connector **connector_p,
                                        struct kvf_error *error)
{
    if (strlen(options->host) > KVF_HOST_LEN_MAX ||
        strlen(options->engine_id) > KVF_ENGINE_ID_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "side channel host or engine id is longer than %d",
                        KVF_HOST_LEN_MAX);
    struct engine_connector *connector = calloc(1, sizeof(*connector));
    if (!connector)
        return kvf_fail(error, KVF_ENOMEM, "no memory for the connector");
    memcpy(connector->host, options->host, strlen(options->host));
    memcpy(connector->engine_id, options->engine_id, strlen(options->engine_id));
    enum kvf_status status = start(connector, options, error);
    if (status != KVF_OK) {
        engine_connector_destroy(connector);
        return status;
    }
    *connector_p = connector;
    return KVF_OK;
}

void engine_connector_destroy(struct engine_connector *connector)
{
    if (!connector)
        return;
    kvf_listener_destroy(connector->listener);
    kvf_worker_destroy(connector->worker);
    kvf_step_free(connector->unposted);
    kvf_scheduler_destroy(connector->scheduler);
    free(connector);
}

uint16_t engine_connector_port(const struct engine_connector *connector)
{
    return connector->port;
}

int engine_connector_fd(const struct engine_connector *connector)
{
    return kvf_worker_fd(connector->worker);
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static enum kvf_status on_new_request(void *ctx, uint64_t now_ns, const char *id,
                                      const struct kvf_transfer_params *params,
                                      uint32_t prompt_tokens, struct kvf_error *error)
{
    struct engine_connector *connector = ctx;
    return kvf_scheduler_on_new_request(connector->scheduler, now_ns, id, params, prompt_tokens,
                                        error);
}

static uint32_t matched_tokens(void *ctx, const char *id, uint32_t computed_tokens)
{
    struct engine_connector *connector = ctx;
    return kvf_scheduler_matched_tokens(connector->scheduler, id, computed_tokens);
}

static enum kvf_status after_alloc(void *ctx, uint64_t now_ns, const char *id,
                                   const uint32_t *block_ids, size_t block_count,
                                   size_t cached_count, uint32_t external_tokens,
                                   struct kvf_error *error)
{
    struct engine_connector *connector = ctx;
    return kvf_scheduler_after_alloc(connector->scheduler, now_ns, id, block_ids, block_count,
                                     cached_count, external_tokens, error);
}

static enum kvf_status request_finished(void *ctx, uint64_t now_ns, const char *id,
                                        enum kvf_finish_reason reason, const uint32_t *block_ids,
                                        size_t block_count, bool *delay_free_p,
                                        struct kvf_transfer_params *response_p,
                                        bool *has_response_p, struct kvf_error *error)
{
    struct engine_connector *connector = ctx;
    return kvf_scheduler_request_finished(connector->scheduler, now_ns, id, reason, block_ids,
                                          block_count, delay_free_p, response_p, has_response_p,
                                          error);
}

struct engine_kv_hooks engine_connector_hooks(struct engine_connector *connector)
{
    return (struct engine_kv_hooks){
        .ctx = connector,
        .on_new_request = on_new_request,
        .matched_tokens = matched_tokens,
        .after_alloc = after_alloc,
        .request_finished = request_finished,
    };
}

/* ---- the loop's part ------------------------------------------------------------------------ */

/* True when nothing is left to post. */
static bool post(struct engine_connector *connector, struct kvf_step *step)
{
    enum kvf_status status = kvf_worker_post_step(connector->worker, step);
    if (status == KVF_OK)
        return true;
    connector->unposted = step;
    if (status != KVF_AGAIN)
        kvf_log(KVF_LOG_ERROR, "the KV worker refuses a step: %s", kvf_status_text(status));
    return false;
}

void engine_connector_flush(struct engine_connector *connector, uint64_t now_ns)
{
    if (connector->unposted) {
        struct kvf_step *step = connector->unposted;
        connector->unposted = NULL;
        if (!post(connector, step))
            return;
    }
    if (!kvf_scheduler_has_pending_work(connector->scheduler, now_ns) &&
        kvf_scheduler_deadline_ns(connector->scheduler) > now_ns)
        return;
    struct kvf_step *step = NULL;
    struct kvf_error error = {0};
    enum kvf_status status = kvf_scheduler_build_step(connector->scheduler, now_ns, &step, &error);
    if (status != KVF_OK) {
        kvf_log(KVF_LOG_ERROR, "no step for the KV worker: %s", error.text);
        return;
    }
    if (kvf_step_is_empty(step))
        kvf_step_free(step);
    else
        (void)post(connector, step);
}

bool engine_connector_take(struct engine_connector *connector, uint64_t now_ns,
                           engine_result_fn act, void *ctx)
{
    size_t count = kvf_worker_take_results(connector->worker, connector->results, RESULTS_PER_TAKE);
    for (size_t i = 0; i < count; i++) {
        const struct kvf_result *result = &connector->results[i];
        enum kvf_status status = kvf_scheduler_apply_result(connector->scheduler, now_ns, result);
        if (status == KVF_OK)
            act(ctx, now_ns, result);
        else
            kvf_log(KVF_LOG_DEBUG, "a result for request %s is dropped: %s", result->request_id,
                    kvf_status_text(status));
    }
    return count > 0;
}

uint64_t engine_connector_deadline_ns(const struct engine_connector *connector, uint64_t now_ns)
{
    if (connector->unposted)
        return now_ns + POST_RETRY_NS;
    if (kvf_scheduler_has_pending_work(connector->scheduler, now_ns))
        return now_ns;
    return kvf_scheduler_deadline_ns(connector->scheduler);
}

void engine_connector_scheduler_usage(const struct engine_connector *connector,
                                      struct kvf_scheduler_usage *usage)
{
    kvf_scheduler_usage(connector->scheduler, usage);
}

void engine_connector_worker_usage(const struct engine_connector *connector,
                                   struct kvf_worker_usage *usage)
{
    kvf_worker_usage(connector->worker, usage);
}
