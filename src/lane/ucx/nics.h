/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_LANE_UCX_NICS_H
#define KVFI_LANE_UCX_NICS_H

/* The network interfaces that UCX's TCP transport would use here. */

#include "kvferry/status.h"

#include <ifaddrs.h>
#include <stdint.h>

#define KVFI_NICS_LEN 2048

/*
 * Writes the names of those that are not loopback, sorted, with commas between, and returns how
 * many they are: up, running, and with an IPv4 address or an IPv6 one beyond the link. 0 and ""
 * also when they do not fit. is_left_out may be NULL.
 */
size_t kvfi_nics_join(const struct ifaddrs *all, bool (*is_left_out)(const char *name),
                      char list[KVFI_NICS_LEN]);

/* The one of them with the highest rank, the first name among equals; NULL when there is none.
 * Borrowed from all. */
const char *kvfi_nics_best(const struct ifaddrs *all, uint64_t (*rank)(const char *name));

/* Not a bridge first, then the faster, then the one with the default route. */
uint64_t kvfi_nics_rank(const char *name);

/* True when the list (UCX_NET_DEVICES) names loopback interfaces and nothing else. */
bool kvfi_nics_only_loopback(const struct ifaddrs *all, const char *list);

/* A bridge in the kernel's words. UCX leaves bridges out from 1.16 on. */
bool kvfi_nics_is_bridge(const char *name);

/* Whether the host has an RDMA device. */
bool kvfi_nics_has_rdma(void);

#endif
