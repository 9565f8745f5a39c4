/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"
int main(int argc, char **argv)
{
    surroundings = (struct surroundings){argv[1], argv[2], 13};
    nixl_options = (struct nixl_options){.progress_thread = 0, .workers = 1};
    int f = run_transfers("t");
    nixl_options = (struct nixl_options){.progress_thread = 1, .workers = 2};
    return f + run_transfers("t2");
}
