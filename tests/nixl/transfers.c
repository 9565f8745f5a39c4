/* SPDX-License-Identifier: Apache-2.0 */
/* What moves between the two, from either side. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

static void both_directions_from_both_sides(void **state)
{
    struct rig rig;
    rig_start_joined(&rig, "mover");
    struct blocks blocks = blocks_make(BLOCKS / 2, BLOCK, 7);
    for (unsigned worker = 0; worker < nixl_options.workers; worker++) {
        move_and_compare(&rig, BY_US, KVF_WRITE, &blocks, worker);
        move_and_compare(&rig, BY_US, KVF_READ, &blocks, worker);
        move_and_compare(&rig, BY_NIXL_LIST, KVF_WRITE, &blocks, worker);
        move_and_compare(&rig, BY_NIXL_LIST, KVF_READ, &blocks, worker);
        move_and_compare(&rig, BY_NIXL_PREPARED, KVF_WRITE, &blocks, worker);
        move_and_compare(&rig, BY_NIXL_PREPARED, KVF_READ, &blocks, worker);
    }
    blocks_free(&blocks);
    rig_stop(&rig);
}

int run_transfers(const char *group)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_directions_from_both_sides),
    };
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}
