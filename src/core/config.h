/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CORE_CONFIG_H
#define KVFI_CORE_CONFIG_H

/* What scheduler and worker demand of a configuration, and the lease rules derived from it. */

#include "kvferry/kv.h"

/* KVF_ENOTSUP for what this version cannot serve, KVF_EINVAL else; the text names the field. */
enum kvf_status kvfi_kv_config_check(const struct kvf_kv_config *config,
                                     struct kvf_error *error) KVF_MUST_USE;

/* By how much a heartbeat renews a lease: two thirds of it; and how often decode sends one: a
 * sixth. In whole seconds, rounded down, when the lease is a whole number of them (facts section
 * 5.1: 31 s gives 20 s and 5 s), because the peer computes so. */
uint64_t kvfi_lease_extension_ns(uint64_t lease_ns);
uint64_t kvfi_heartbeat_interval_ns(uint64_t lease_ns);

#endif
