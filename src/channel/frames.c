/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/frames.h"

bool kvfi_frames_receive(void *socket, struct kvfi_frames *frames)
{
    frames->kept_count = 0;
    frames->count = 0;
    bool more = true;
    while (more) {
        zmq_msg_t spare = {0};
        bool keep = frames->kept_count < KVFI_FRAMES_KEPT_MAX;
        zmq_msg_t *msg = keep ? &frames->kept[frames->kept_count] : &spare;
        zmq_msg_init(msg);
        /* A message arrives whole, so only its first frame can be missing. */
        if (zmq_msg_recv(msg, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(msg);
            break;
        }
        more = zmq_msg_more(msg);
        frames->count++;
        if (keep)
            frames->kept_count++;
        else
            zmq_msg_close(msg);
    }
    return frames->count > 0;
}

void kvfi_frames_close(struct kvfi_frames *frames)
{
    for (size_t i = 0; i < frames->kept_count; i++)
        zmq_msg_close(&frames->kept[i]);
    frames->kept_count = 0;
    frames->count = 0;
}

const char *kvfi_zmq_reason(void)
{
    return zmq_strerror(zmq_errno());
}
