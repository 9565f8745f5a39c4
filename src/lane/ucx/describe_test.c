/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/describe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_reads_what_ucx_prints(void **state)
{
    static const char printed[] =
        "#\n# UCP context\n#\n#     component 0  :  self\n#            md 0  :  component 0  self "
        "\n"
        "#      resource 0  :  md 0  dev 0  flags -- self/memory0\n"
        "#      resource 1  :  md 1  dev 1  flags -- tcp/eth0\n"
        "#      resource 2  :  md 4  dev 3  flags s- rc_mlx5/mlx5_0:1  \n#\n";
    struct kvfi_ucx_description description = {0};
    kvfi_ucx_read_resources(printed, &description);
    assert_int_equal(3, description.resource_count);
    assert_string_equal("self/memory0", description.resources[0]);
    assert_string_equal("tcp/eth0", description.resources[1]);
    assert_string_equal("rc_mlx5/mlx5_0:1", description.resources[2]);
}

static void test_other_lines_are_no_resources(void **state)
{
    struct kvfi_ucx_description description = {0};
    kvfi_ucx_read_resources("", &description);
    kvfi_ucx_read_resources("\n\n# resource", &description);
    kvfi_ucx_read_resources("# resource 1 : tcp eth0\nresource \nmd 0/1", &description);
    char longer[256];
    memset(longer, 'x', sizeof(longer));
    memcpy(longer, "resource 0 : a/", 15);
    longer[sizeof(longer) - 1] = '\0';
    kvfi_ucx_read_resources(longer, &description);
    assert_int_equal(0, description.resource_count);
}

static void test_many_resources_are_cut(void **state)
{
    char *printed = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&printed, &len);
    assert_non_null(out);
    for (int i = 0; i < 3 * KVFI_UCX_RESOURCES_MAX; i++)
        fprintf(out, "# resource %d : tcp/eth%d\n", i, i);
    assert_int_equal(0, fclose(out));
    struct kvfi_ucx_description description = {0};
    kvfi_ucx_read_resources(printed, &description);
    free(printed);
    assert_int_equal(KVFI_UCX_RESOURCES_MAX, description.resource_count);
    assert_string_equal("tcp/eth63", description.resources[63]);
}

/* The UCX of this build, whichever it is. Some transport is always there. */
static void test_the_loaded_ucx(void **state)
{
    static struct kvfi_ucx_description description;
    kvfi_ucx_describe(&description);
    assert_int_equal(1, description.major);
    assert_true(description.minor >= 13);
    assert_true(description.usable);
    assert_true(description.resource_count > 0);
    bool has_a_usual_one = false;
    for (size_t i = 0; i < description.resource_count; i++)
        has_a_usual_one |= strncmp(description.resources[i], "self/", 5) == 0 ||
                           strncmp(description.resources[i], "sysv/", 5) == 0 ||
                           strncmp(description.resources[i], "tcp/", 4) == 0;
    assert_true(has_a_usual_one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_ucx_prints),
        cmocka_unit_test(test_other_lines_are_no_resources),
        cmocka_unit_test(test_many_resources_are_cut),
        cmocka_unit_test(test_the_loaded_ucx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
