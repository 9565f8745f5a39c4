/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/job.h"

#include <stdlib.h>
#include <string.h>

struct engine_job *engine_job_create(void)
{
    struct engine_job *job = calloc(1, sizeof(*job));
    if (!job)
        return NULL;
    if (pthread_mutex_init(&job->lock, NULL) != 0) {
        free(job);
        return NULL;
    }
    atomic_init(&job->abort, false);
    job->transfer.prefill_cached_tokens = -1;
    job->logprobs = ENGINE_NO_LOGPROBS;
    return job;
}

void engine_job_destroy(struct engine_job *job)
{
    if (!job)
        return;
    free(job->id);
    engine_tokens_free(&job->prompt);
    engine_transfer_free(&job->transfer);
    engine_text_stream_free(&job->stream);
    engine_output_free(&job->output);
    (void)pthread_mutex_destroy(&job->lock);
    free(job);
}

void engine_job_take(struct engine_job *job, struct engine_output *output)
{
    (void)pthread_mutex_lock(&job->lock);
    *output = job->output;
    job->output = (struct engine_output){0};
    job->posted = false;
    (void)pthread_mutex_unlock(&job->lock);
}

void engine_output_free(struct engine_output *output)
{
    engine_text_free(&output->text);
    engine_tokens_free(&output->tokens);
    engine_transfer_free(&output->handover);
    free(output->block_ids);
    free(output->choices);
    *output = (struct engine_output){0};
}

void engine_transfer_free(struct engine_transfer *transfer)
{
    for (size_t i = 0; i < sizeof(transfer->strings) / sizeof(transfer->strings[0]); i++)
        free(transfer->strings[i]);
    *transfer = (struct engine_transfer){.prefill_cached_tokens = -1};
}

enum kvf_status engine_transfer_copy(const struct kvf_transfer_params *from,
                                     struct engine_transfer *to)
{
    *to = (struct engine_transfer){.given = true, .params = *from, .prefill_cached_tokens = -1};
    const char **fields[] = {&to->params.remote_engine_id, &to->params.remote_request_id,
                             &to->params.remote_host, &to->params.transfer_mode,
                             &to->params.transfer_id};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!*fields[i])
            continue;
        to->strings[i] = strdup(*fields[i]);
        if (!to->strings[i]) {
            engine_transfer_free(to);
            return KVF_ENOMEM;
        }
        *fields[i] = to->strings[i];
    }
    return KVF_OK;
}
