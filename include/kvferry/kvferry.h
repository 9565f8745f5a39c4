/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

/* Everything a user of libkvferry needs. */

#include "kvferry/agent.h"   /* memory, peers, transfers, notifications: NIXL's semantics */
#include "kvferry/doctor.h"  /* what this machine offers to a transfer */
#include "kvferry/kv.h"      /* the P/D connector: scheduler side and worker side */
#include "kvferry/observe.h" /* log, counters, event records */
#include "kvferry/pool.h"    /* memory that peers of the same host can map */
#include "kvferry/status.h"

#define KVF_VERSION_MAJOR 0
#define KVF_VERSION_MINOR 1
#define KVF_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0": the version of the library that is loaded, not of the header. Static text. */
KVF_API const char *kvf_version(void);

#ifdef __cplusplus
}
#endif
#endif
