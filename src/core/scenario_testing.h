/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_SCENARIO_TESTING_H
#define KVFI_CORE_SCENARIO_TESTING_H

/* What the stories share. Include it after cmocka. */

#include "core/scheduler.h"
#include "core/testworld.h"
#include "wire/bytes.h"
#include "wire/push_reg.h"

#include <string.h>

#define P_ID "cmpl-u-0-aaaaaaaa"
#define D_ID "cmpl-u-0-bbbbbbbb"

static inline int setup(void **state)
{
    *state = w_create(NULL);
    return 0;
}

static inline int teardown(void **state)
{
    struct w_world *w = *state;
    bool good = w->fault[0] == '\0';
    if (!good)
        print_error("%s\n%s", w->fault, w->trace);
    w_destroy(w);
    return good ? 0 : -1;
}

static inline void tells(struct w_world *w, const char *text)
{
    if (!strstr(w->trace, text))
        fail_msg("the trace has no '%s':\n%s", text, w->trace);
}

static inline void never(struct w_world *w, const char *text)
{
    if (strstr(w->trace, text))
        fail_msg("the trace has '%s':\n%s", text, w->trace);
}

static inline unsigned times(struct w_world *w, const char *text)
{
    unsigned count = 0;
    for (const char *at = w->trace; (at = strstr(at, text)); at++)
        count++;
    return count;
}

/* Everything has come to its end, on both sides. */
static inline void clean(struct w_world *w)
{
    const char *left = w_leftovers(w);
    if (left || w->fault[0])
        fail_msg("%s %s\n%s", w->fault, left ? left : "", w->trace);
}

static inline void trace_is(struct w_world *w, const char *text)
{
    if (strcmp(w->trace, text) != 0)
        fail_msg("the trace is:\n%s\nand not:\n%s", w->trace, text);
}

static inline void push(struct w_world *w, const char *p_id, const char *d_id, uint32_t p_tokens,
                        uint32_t d_tokens, size_t cached)
{
    w_prefill_start(w, p_id, NULL, p_tokens);
    w_decode_start(w, d_id, NULL, d_tokens, cached);
    w_run(w, 10 * W_MS);
    w_prefill_finish(w, p_id);
    w_run(w, 20 * W_MS);
    w_decode_end(w, d_id);
    w_run(w, 20 * W_MS);
}

/* Both engines connected, nothing else. */
static inline void warm_up(struct w_world *w)
{
    push(w, "warm-0-aaaaaaaa", "warm-0-bbbbbbbb", 4, 4, 0);
    clean(w);
    w->trace_len = 0;
    w->trace[0] = '\0';
}

static inline void inject_registration(struct w_world *w, struct kvfi_push_reg reg)
{
    struct kvfi_buf buf;
    kvfi_buf_init(&buf, NULL);
    assert_int_equal(kvfi_push_reg_encode(&reg, &buf, NULL), KVF_OK);
    w_inject(w, W_P, "d01", buf.data, buf.len);
    kvfi_buf_deinit(&buf);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
