/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvferry and a real NIXL agent on one host, all of it on one UCX under our side; tools/test-nixl
 * runs this program once for each.
 *
 * usage: nixl_interop_test PYTHON PEER_PY UCX_MINOR meets|refused [TESTS]
 * TESTS: a pattern with * and ?, to run only those
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the two cannot meet, loading says so: both versions and what to do. */
static void refused_with_both_versions(void **state)
{
    struct rig rig;
    struct kvf_error error = {0};
    char ours[32];
    rig_start(&rig, "unreachable", 1);
    assert_int_equal(load_here(&rig, "metadata", &error), KVF_ENOTSUP);
    (void)snprintf(ours, sizeof(ours), "UCX 1.%u ", surroundings.ucx_minor);
    assert_non_null(strstr(error.text, ours));
    assert_non_null(strstr(error.text, "UCX 1.23"));
    assert_non_null(strstr(error.text, "LD_LIBRARY_PATH"));
    expect_usage(&rig.us, (struct kvf_agent_usage){.regions = 1});
    rig_stop(&rig);
}

static int run_refused(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused_with_both_versions)};
    return cmocka_run_group_tests_name("refused", tests, NULL, NULL);
}

static int run_options(unsigned workers, unsigned progress_thread)
{
    char group[64];
    nixl_options = (struct nixl_options){.workers = workers, .progress_thread = progress_thread};
    (void)snprintf(group, sizeof(group), "NIXL with %u workers, progress thread %s", workers,
                   progress_thread ? "on" : "off");
    (void)fprintf(stderr, "==== %s\n", group);
    return run_transfers(group) + run_metadata(group) + run_deaths(group);
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6) {
        (void)fprintf(stderr, "usage: %s PYTHON PEER_PY UCX_MINOR meets|refused [TESTS]\n",
                      argv[0]);
        return 2;
    }
    if (argc == 6)
        cmocka_set_test_filter(argv[5]);
    surroundings = (struct surroundings){
        .python = argv[1], .script = argv[2], .ucx_minor = (unsigned)strtoul(argv[3], NULL, 10)};
    nixl_options.workers = 1;
    if (strcmp(argv[4], "refused") == 0)
        return run_refused();
    int failed = 0;
    for (unsigned workers = 1; workers <= 2; workers++)
        failed += run_options(workers, 0) + run_options(workers, 1);
    return failed ? 1 : 0;
}
