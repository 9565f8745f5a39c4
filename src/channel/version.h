/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CHANNEL_VERSION_H
#define KVFI_CHANNEL_VERSION_H

/* Major, minor and patch of the ZeroMQ that is loaded. Any thread. */
void kvfi_zeromq_version(int version[3]);

#endif
