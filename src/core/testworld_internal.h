/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_TESTWORLD_INTERNAL_H
#define KVFI_CORE_TESTWORLD_INTERNAL_H

/* Between testworld.c (engines, processes, time) and testworld_net.c (network and driver). */

#include "core/testworld.h"

#include <stdlib.h>

#define FATAL(...)                                                                                 \
    do {                                                                                           \
        (void)fprintf(stderr, "testworld: " __VA_ARGS__);                                          \
        (void)fputc('\n', stderr);                                                                 \
        abort();                                                                                   \
    } while (0)
#define MUST(expr)                                                                                 \
    do {                                                                                           \
        if (!(expr))                                                                               \
            FATAL("%s:%d: %s", __FILE__, __LINE__, #expr);                                         \
    } while (0)

extern const char *const w_int_side_names[W_SIDES];

/* Notes the first broken promise; the pump stops there. */
void w_int_fault(struct w_world *w, const char *fmt, ...) KVF_PRINTF(2, 3);
struct w_flying *w_int_fly(struct w_world *w, enum w_flying_kind kind, uint64_t delay_ns,
                           enum w_side to);
void w_int_set_bytes(struct w_flying *f, const void *bytes, size_t len);
void w_int_describe(const void *bytes, size_t len, char text[160]);
void w_int_lose_peer(struct w_world *w, enum w_side observer, uint64_t peer);
bool w_int_owned_by(struct w_engine *e, uint32_t block, const char *id);
/* P1: each block of a WRITE still belongs to its request. */
void w_int_check_write(struct w_world *w, const struct w_flying *f, const char *when);
void w_int_fill_blocks(struct w_engine *e, const struct w_request *r);
/* P3, P4: every byte that prefill computed is there. */
void w_int_check_received(struct w_world *w, struct w_engine *e, const struct w_request *r);
void w_int_take_result(struct w_world *w, struct w_engine *e, const struct kvf_result *result);
/* Gives the core an event and performs what it asks for. */
void w_int_feed(struct w_world *w, struct w_engine *e, struct kvfi_event *event);

#endif
