/* SPDX-License-Identifier: Apache-2.0 */
#include "channel/version.h"

#include <zmq.h>

void kvfi_zeromq_version(int version[3])
{
    zmq_version(&version[0], &version[1], &version[2]);
}
