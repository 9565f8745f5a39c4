/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/observe.h"

#include "runtime/clock.h"
#include "runtime/ratelimit.h"
#include "runtime/thread.h"
#include "runtime/tsan.h"
#include "runtime/wake.h"
#include "wire/notif.h"

#include <ck_ring.h>
#include <ck_stack.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORD_LEN_MAX   1024
#define RECORD_COUNT     4096 /* power of two; a ring of this size holds one less */
#define PREFIX_LEN_MAX   512
#define WRITE_BATCH_SIZE ((size_t)64 << 10)

/* One finished line. Owned by the free ring, then by the emitter that took it, then by the full
 * stack, then by the writer thread, which gives it back. */
struct record {
    ck_stack_entry_t link;
    size_t len;
    char line[RECORD_LEN_MAX];
};
CK_STACK_CONTAINER(struct record, link, record_of)

struct kvf_events {
    struct kvf_metrics *metrics; /* borrowed until close */
    int file;
    char prefix[PREFIX_LEN_MAX]; /* ,"engine":"...","role":"..." */
    size_t prefix_len;
    struct record *records;
    ck_ring_t free_ring; /* the writer gives, any thread takes */
    ck_ring_buffer_t free_slots[RECORD_COUNT];
    ck_stack_t full; /* any thread gives, the writer takes all: lock-free, nobody waits */
    struct kvfi_wake wake;
    _Atomic bool stop;
    pthread_t thread;
};

/* ---- one line ------------------------------------------------------------------------------- */

struct line {
    char *buf;
    size_t cap;
    size_t len; /* > cap: did not fit */
};

static void put_bytes(struct line *line, const char *bytes, size_t len)
{
    if (line->len <= line->cap && len <= line->cap - line->len) {
        memcpy(line->buf + line->len, bytes, len);
        line->len += len;
    } else {
        line->len = line->cap + 1;
    }
}

static void put_text(struct line *line, const char *text)
{
    put_bytes(line, text, strlen(text));
}

/* The inside of a JSON string. Ids come from peers: bytes that are not UTF-8 are kept apart as
 * \u00XX, so that the file stays readable for every parser. */
static void put_escaped(struct line *line, const char *text, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    bool utf8 = kvfi_utf8_valid(kvfi_span(text, len));
    size_t done = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f && (c < 0x80 || utf8))
            continue;
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        put_bytes(line, text + done, i - done);
        put_bytes(line, escape, sizeof(escape));
        done = i + 1;
    }
    put_bytes(line, text + done, len - done);
}

static void put_number(struct line *line, int64_t number)
{
    char digits[21];
    size_t pos = sizeof(digits);
    /* In unsigned arithmetic, where the smallest value has its magnitude too. */
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        digits[--pos] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0)
        digits[--pos] = '-';
    put_bytes(line, digits + pos, sizeof(digits) - pos);
}

static void put_member(struct line *line, const char *name, const char *text, size_t len)
{
    put_text(line, ",\"");
    put_escaped(line, name, strlen(name));
    put_text(line, "\":\"");
    put_escaped(line, text, len);
    put_text(line, "\"");
}

static void format_record(const struct kvf_events *events, struct line *line, const char *event,
                          const char *request, const struct kvf_event_field *fields,
                          size_t field_count)
{
    put_text(line, "{\"t_wall_ns\":");
    put_number(line, (int64_t)kvfi_clock_wall_ns());
    put_text(line, ",\"t_mono_ns\":");
    put_number(line, (int64_t)kvfi_clock_mono_ns());
    put_bytes(line, events->prefix, events->prefix_len);
    put_member(line, "event", event, strlen(event));
    if (request) {
        put_member(line, "request", request, strlen(request));
        put_member(line, "base", request, kvfi_base_request_id(kvfi_span_str(request)));
    }
    for (size_t i = 0; i < field_count; i++) {
        const struct kvf_event_field *field = &fields[i];
        if (field->text) {
            put_member(line, field->name, field->text, strlen(field->text));
        } else {
            put_text(line, ",\"");
            put_escaped(line, field->name, strlen(field->name));
            put_text(line, "\":");
            put_number(line, field->number);
        }
    }
    put_text(line, "}\n");
}

/* ---- emitters ------------------------------------------------------------------------------- */

/* Multi producer side: any thread may take a free record. */
static struct record *take_free(struct kvf_events *events)
{
    struct record *record = NULL;
    KVFI_TSAN_CK_BEGIN();
    bool taken = ck_ring_dequeue_spmc(&events->free_ring, events->free_slots, &record);
    KVFI_TSAN_CK_END();
    if (!taken)
        return NULL;
    KVFI_TSAN_TAKES(record);
    return record;
}

/* Single producer: the writer thread, and kvf_events_open before it starts. */
static void give_free(struct kvf_events *events, struct record *record)
{
    KVFI_TSAN_GIVES(record);
    KVFI_TSAN_CK_BEGIN();
    /* There is a place for every record. */
    ck_ring_enqueue_spmc(&events->free_ring, events->free_slots, record);
    KVFI_TSAN_CK_END();
}

void kvf_events_emit(struct kvf_events *events, const char *event, const char *request,
                     const struct kvf_event_field *fields, size_t field_count)
{
    if (!events)
        return;
    char buf[RECORD_LEN_MAX];
    struct line line = {.buf = buf, .cap = sizeof(buf)};
    format_record(events, &line, event, request, fields, field_count);
    struct record *record = line.len <= line.cap ? take_free(events) : NULL;
    if (!record) {
        kvf_metrics_add(events->metrics, KVF_COUNTER_events_dropped, 1);
        return;
    }
    memcpy(record->line, buf, line.len);
    record->len = line.len;
    KVFI_TSAN_GIVES(record);
    KVFI_TSAN_CK_BEGIN();
    ck_stack_push_upmc(&events->full, &record->link);
    KVFI_TSAN_CK_END();
    kvfi_wake_signal(&events->wake);
}

/* ---- the writer thread ---------------------------------------------------------------------- */

/* The records that wait, oldest first. Single consumer. */
static struct record *take_full(struct kvf_events *events)
{
    KVFI_TSAN_CK_BEGIN();
    ck_stack_entry_t *entry = ck_stack_batch_pop_upmc(&events->full);
    ck_stack_entry_t *oldest = NULL;
    while (entry) {
        ck_stack_entry_t *next = CK_STACK_NEXT(entry);
        entry->next = oldest;
        oldest = entry;
        entry = next;
    }
    KVFI_TSAN_CK_END();
    return oldest ? record_of(oldest) : NULL;
}

static struct record *next_of(struct record *record)
{
    KVFI_TSAN_CK_BEGIN();
    ck_stack_entry_t *next = CK_STACK_NEXT(&record->link);
    KVFI_TSAN_CK_END();
    return next ? record_of(next) : NULL;
}

static bool write_all(int file, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t done = write(file, bytes, len);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes += done;
        len -= (size_t)done;
    }
    return true;
}

static void flush_batch(struct kvf_events *events, const char *batch, size_t *len, size_t *count)
{
    if (*len > 0 && !write_all(events->file, batch, *len)) {
        kvf_metrics_add(events->metrics, KVF_COUNTER_events_dropped, *count);
        KVFI_LOG_LIMITED(KVF_LOG_WARNING, "event file cannot be written, %zu records lost: %s",
                         *count, strerrordesc_np(errno));
    }
    *len = 0;
    *count = 0;
}

static void write_waiting(struct kvf_events *events, char *batch)
{
    size_t len = 0;
    size_t count = 0;
    struct record *record = take_full(events);
    while (record) {
        struct record *next = next_of(record);
        KVFI_TSAN_TAKES(record);
        if (record->len > WRITE_BATCH_SIZE - len)
            flush_batch(events, batch, &len, &count);
        memcpy(batch + len, record->line, record->len);
        len += record->len;
        count++;
        give_free(events, record);
        record = next;
    }
    flush_batch(events, batch, &len, &count);
}

static void *events_main(void *ctx)
{
    struct kvf_events *events = ctx;
    char batch[WRITE_BATCH_SIZE];
    bool stop = false;
    while (!stop) {
        struct pollfd wake = {.fd = events->wake.fd, .events = POLLIN};
        poll(&wake, 1, -1);
        kvfi_wake_clear(&events->wake);
        /* Read before the look: what was emitted before close is then seen by the last look. */
        stop = atomic_load(&events->stop);
        write_waiting(events, batch);
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static enum kvf_status set_prefix(struct kvf_events *events, const char *engine_id,
                                  const char *role, struct kvf_error *error)
{
    struct line line = {.buf = events->prefix, .cap = sizeof(events->prefix)};
    put_member(&line, "engine", engine_id, strlen(engine_id));
    put_member(&line, "role", role, strlen(role));
    if (line.len > line.cap)
        return kvf_fail(error, KVF_ELIMIT,
                        "engine id of %zu bytes and role are too long for the "
                        "event records, which leave them %d",
                        strlen(engine_id), PREFIX_LEN_MAX);
    events->prefix_len = line.len;
    return KVF_OK;
}

enum kvf_status kvf_events_open(const char *path, const char *engine_id, const char *role,
                                struct kvf_metrics *metrics, struct kvf_events **events_p,
                                struct kvf_error *error)
{
    if (!path || !engine_id || !role)
        return kvf_fail(error, KVF_EINVAL, "event records need a path, an engine id and a role");
    enum kvf_status status = KVF_ENOMEM;
    struct kvf_events *events = calloc(1, sizeof(*events));
    struct record *records = calloc(RECORD_COUNT, sizeof(*records));
    if (!events || !records) {
        kvf_fail(error, KVF_ENOMEM, "no memory for event records");
        goto err_free;
    }
    events->metrics = metrics;
    events->records = records;
    status = set_prefix(events, engine_id, role, error);
    if (status != KVF_OK)
        goto err_free;
    events->file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (events->file < 0) {
        status = kvf_fail(error, KVF_ESYSTEM, "event file %s: %s", path, strerrordesc_np(errno));
        goto err_free;
    }
    status = kvfi_wake_init(&events->wake, error);
    if (status != KVF_OK)
        goto err_close;
    ck_ring_init(&events->free_ring, RECORD_COUNT);
    ck_stack_init(&events->full);
    for (size_t i = 0; i + 1 < RECORD_COUNT; i++)
        give_free(events, &records[i]);
    status = kvfi_thread_start("kvf-events", events_main, events, &events->thread, error);
    if (status != KVF_OK)
        goto err_deinit_wake;
    *events_p = events;
    return KVF_OK;

err_deinit_wake:
    kvfi_wake_deinit(&events->wake);
err_close:
    close(events->file);
err_free:
    free(records);
    free(events);
    return status;
}

void kvf_events_close(struct kvf_events *events)
{
    if (!events)
        return;
    atomic_store(&events->stop, true);
    kvfi_wake_signal(&events->wake);
    pthread_join(events->thread, NULL);
    kvfi_wake_deinit(&events->wake);
    close(events->file);
    free(events->records);
    free(events);
}
