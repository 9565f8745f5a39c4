/* SPDX-License-Identifier: Apache-2.0 */
#include "lane/ucx/nics.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ACTIVE = IFF_UP | IFF_RUNNING };

struct nic {
    struct ifaddrs entry;
    struct sockaddr_storage address;
    char name[IFNAMSIZ];
};

static void add(struct nic *nics, size_t i, const char *name, unsigned flags, const char *address)
{
    struct nic *nic = &nics[i];
    memset(nic, 0, sizeof(*nic));
    (void)snprintf(nic->name, sizeof(nic->name), "%s", name);
    nic->entry.ifa_name = nic->name;
    nic->entry.ifa_flags = flags;
    if (i > 0)
        nics[i - 1].entry.ifa_next = &nic->entry;
    if (!address)
        return;
    struct sockaddr_in in4 = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &in4.sin_addr) == 1)
        memcpy(&nic->address, &in4, sizeof(in4));
    else if (inet_pton(AF_INET6, address, &in6.sin6_addr) == 1)
        memcpy(&nic->address, &in6, sizeof(in6));
    nic->entry.ifa_addr = (struct sockaddr *)&nic->address;
}

static bool is_br0(const char *name)
{
    return strcmp(name, "br0") == 0;
}

static uint64_t rank_of(const char *name)
{
    return strcmp(name, "eth1") == 0 ? 9 : 3;
}

static void which_count(void **state)
{
    struct nic nics[11];
    char list[KVFI_NICS_LEN];
    add(nics, 0, "lo", ACTIVE | IFF_LOOPBACK, "127.0.0.1");
    add(nics, 1, "lo", ACTIVE | IFF_LOOPBACK, "::1");
    add(nics, 2, "eth1", ACTIVE, "192.0.2.2");
    add(nics, 3, "eth1", ACTIVE, "fe80::1"); /* an interface has an entry for each address */
    add(nics, 4, "eth0", ACTIVE, "2001:db8::1");
    add(nics, 5, "veth7", ACTIVE, "fe80::7"); /* UCX does not use these five */
    add(nics, 6, "eth2", IFF_UP, "192.0.2.3");
    add(nics, 7, "eth3", IFF_RUNNING, "192.0.2.4");
    add(nics, 8, "tun0", ACTIVE, NULL);
    add(nics, 9, "a,b", ACTIVE, "192.0.2.5");
    add(nics, 10, "br0", ACTIVE, "192.0.2.6");
    assert_int_equal(kvfi_nics_join(&nics[0].entry, is_br0, list), 2);
    assert_string_equal(list, "eth0,eth1");
    assert_int_equal(kvfi_nics_join(&nics[0].entry, NULL, list), 3);
    assert_string_equal(list, "br0,eth0,eth1");
    assert_string_equal(kvfi_nics_best(&nics[0].entry, rank_of), "eth1");
    nics[1].entry.ifa_next = &nics[4].entry; /* without eth1: the first of equals */
    assert_string_equal(kvfi_nics_best(&nics[0].entry, rank_of), "br0");
    nics[1].entry.ifa_next = NULL;
    assert_int_equal(kvfi_nics_join(&nics[0].entry, NULL, list), 0);
    assert_string_equal(list, "");
    assert_null(kvfi_nics_best(&nics[0].entry, rank_of));
    assert_int_equal(kvfi_nics_join(NULL, NULL, list), 0);
}

static void too_many(void **state)
{
    static struct nic nics[600];
    char list[KVFI_NICS_LEN];
    for (size_t i = 0; i < 600; i++) {
        char name[IFNAMSIZ];
        (void)snprintf(name, sizeof(name), "e%zu", 100 + i);
        add(nics, i, name, ACTIVE, "192.0.2.1");
    }
    /* "e100," is 5 bytes; the last name has a NUL instead of the comma */
    size_t fit = KVFI_NICS_LEN / 5;
    assert_int_equal(kvfi_nics_join(&nics[0].entry, NULL, list), 0);
    assert_string_equal(list, "");
    nics[fit - 1].entry.ifa_next = NULL;
    assert_int_equal(kvfi_nics_join(&nics[0].entry, NULL, list), fit);
    assert_int_equal(strlen(list), 5 * fit - 1);
}

static void only_loopback(void **state)
{
    struct nic nics[3];
    add(nics, 0, "lo", ACTIVE | IFF_LOOPBACK, "127.0.0.1");
    add(nics, 1, "lo2", ACTIVE | IFF_LOOPBACK, "127.0.0.2");
    add(nics, 2, "eth0", ACTIVE, "192.0.2.2");
    assert_true(kvfi_nics_only_loopback(&nics[0].entry, "lo"));
    assert_true(kvfi_nics_only_loopback(&nics[0].entry, "lo2,lo"));
    assert_true(kvfi_nics_only_loopback(&nics[0].entry, ",lo,"));
    static const char *const others[] = {"",  ",",   "eth0", "lo,eth0",  "eth0,lo",
                                         "l", "lo3", "^lo",  "mlx5_0:1", "all"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(kvfi_nics_only_loopback(&nics[0].entry, others[i]));
    assert_false(kvfi_nics_only_loopback(NULL, "lo"));
}

/* Whatever this machine has: the calls that ask it agree with each other. */
static void this_machine(void **state)
{
    struct ifaddrs *all = NULL;
    char list[KVFI_NICS_LEN];
    assert_int_equal(getifaddrs(&all), 0);
    size_t count = kvfi_nics_join(all, NULL, list);
    const char *best = kvfi_nics_best(all, kvfi_nics_rank);
    assert_int_equal(best != NULL, count > 0);
    if (best)
        assert_non_null(strstr(list, best));
    assert_false(kvfi_nics_is_bridge("lo"));
    assert_false(kvfi_nics_is_bridge("no-such-nic"));
    freeifaddrs(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_count),
        cmocka_unit_test(too_many),
        cmocka_unit_test(only_loopback),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests_name("lane/ucx_nics", tests, NULL, NULL);
}
