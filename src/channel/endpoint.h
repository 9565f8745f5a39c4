/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CHANNEL_ENDPOINT_H
#define KVFI_CHANNEL_ENDPOINT_H

/*
 * From a host as an operator writes it to an address as ZeroMQ takes it. Both ends of the side
 * channel use this one rule, so that they meet on a name with several addresses: a literal is
 * itself, a name is its first IPv4 address or, when it has none, its first IPv6 address.
 */

#include "kvferry/status.h"

#define KVFI_ENDPOINT_LEN_MAX 128

struct kvfi_endpoint {
    char text[KVFI_ENDPOINT_LEN_MAX]; /* "tcp://127.0.0.1:5600", "tcp://[::1]:5600" */
    bool ipv6;
};

/* True when resolving needs no name service: an address (IPv6 bracketed or not, scope allowed) or
 * "localhost". Pure. */
bool kvfi_endpoint_is_local_knowledge(const char *host);

/* KVF_EINVAL for an empty or overlong host, KVF_ENOTFOUND with the resolver's reason. Any thread.
 * Blocks as long as the name service does, unless kvfi_endpoint_is_local_knowledge(host). */
enum kvf_status kvfi_endpoint_resolve(const char *host, uint16_t port,
                                      struct kvfi_endpoint *endpoint,
                                      struct kvf_error *error) KVF_MUST_USE;

#endif
