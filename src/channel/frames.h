/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_CHANNEL_FRAMES_H
#define KVFI_CHANNEL_FRAMES_H

/* One ZeroMQ message, taken whole. The socket's thread only. */

#include "kvferry/status.h"

#include <zmq.h>

#define KVFI_FRAMES_KEPT_MAX 4

struct kvfi_frames {
    zmq_msg_t kept[KVFI_FRAMES_KEPT_MAX]; /* the first ones, owned until close */
    size_t kept_count;
    size_t count; /* all of them; those beyond the kept were received and forgotten */
};

/* Takes the next message without waiting; false when there is none. Close after true. */
bool kvfi_frames_receive(void *socket, struct kvfi_frames *frames);
void kvfi_frames_close(struct kvfi_frames *frames);

/* ZeroMQ's text for its last error in this thread. */
const char *kvfi_zmq_reason(void);

#endif
