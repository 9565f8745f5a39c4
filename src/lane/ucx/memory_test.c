/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A key whose entries are shorter than what UCX reads for them, against a scripted UCX: its
 * components take no length and read their own structure, whatever the entry's size byte says.
 */
#include "lane/ucx/rkey.h"
#include "lane/ucx/ucx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LARGEST = 255 }; /* sizes are one byte, so no component's structure is larger */

static unsigned char seen[1 + LARGEST];

/* Reads the last entry as the most talkative component would. */
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *rkey_buffer, ucp_rkey_h *rkey_p)
{
    static int key;
    memcpy(seen, (const unsigned char *)rkey_buffer + 9, sizeof(seen));
    *rkey_p = (ucp_rkey_h)(void *)&key;
    return UCS_OK;
}

void ucp_rkey_destroy(ucp_rkey_h rkey)
{
}

static void short_entry_is_read_inside_our_buffer(void **state)
{
    static int endpoint;
    struct kvfi_lane lane = {.worker = (ucp_worker_h)(void *)&endpoint};
    struct kvfi_lane_peer peer = {.lane = &lane, .ep = (ucp_ep_h)(void *)&endpoint};
    const unsigned char bytes[] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x55};
    struct kvfi_lane_rkey *rkey = NULL;
    assert_int_equal(kvfi_ucx_rkey_unpack(&lane, &peer, bytes, sizeof(bytes), &rkey, NULL), KVF_OK);
    assert_int_equal(seen[0], 1);
    assert_int_equal(seen[1], 0x55);
    for (size_t i = 2; i < sizeof(seen); i++)
        assert_int_equal(seen[i], 0xff); /* and by the address sanitizer */
    kvfi_ucx_rkey_release(&lane, rkey);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(short_entry_is_read_inside_our_buffer)};
    return cmocka_run_group_tests_name("lane/ucx_memory", tests, NULL, NULL);
}
