/* SPDX-License-Identifier: Apache-2.0 */
/* UCX: whether it serves at all, over what, and how it gets on with others. */
#include "doctor/doctor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

/* What happened to a child; false when it told its result. */
static bool judge_child(struct kvf_host_report *report, enum kvfi_child_end end, int signal_number,
                        const char *what)
{
    switch (end) {
    case KVFI_CHILD_DONE:
        return false;
    case KVFI_CHILD_DIED:
        kvfi_finding_level(report, KVF_FINDING_FAIL);
        if (signal_number != 0)
            kvfi_finding_found(report, "The process that %s was ended by SIG%s.", what,
                               sigabbrev_np(signal_number) ? sigabbrev_np(signal_number) : "?");
        else
            kvfi_finding_found(report, "The process that %s ended without a result.", what);
        break;
    case KVFI_CHILD_SLOW:
        kvfi_finding_level(report, KVF_FINDING_FAIL);
        kvfi_finding_found(report, "The process that %s did not end in 20 s.", what);
        break;
    case KVFI_CHILD_NONE:
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_found(report, "No process could be started that %s.", what);
        kvfi_finding_follows(report, "Nothing is known about it.");
        kvfi_finding_remedy(report, "Raise the limit of processes (ulimit -u, the cgroup's "
                                    "pids.max).");
        return true;
    }
    kvfi_finding_follows(report, "The same would happen to an engine.");
    kvfi_finding_remedy(report, "UCX's own words help: UCX_LOG_LEVEL=info kvferry doctor.");
    return true;
}

void kvfi_judge_transfer(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    kvfi_finding_begin(report, "transfer");
    kvfi_fact_bool(report, "moved", machine->transfer_moved);
    if (judge_child(report, machine->transfer_end, machine->transfer_signal, "tries a transfer"))
        return;
    if (machine->transfer_moved) {
        kvfi_finding_found(report, "One process wrote 1 MiB into another and notified it.");
        kvfi_finding_follows(report, "Transfers between processes of this host work.");
        return;
    }
    kvfi_finding_level(report, KVF_FINDING_FAIL);
    kvfi_finding_found(report, "A transfer between two processes of this host failed: %s.",
                       machine->transfer_failure);
    kvfi_finding_follows(report, "No transfer is possible here.");
    if (!kvfi_exists(machine, "/proc/self/status"))
        kvfi_finding_remedy(report, "Mount /proc: UCX and kvferry read it.");
    kvfi_finding_remedy(report, "Mend what else is found first; then UCX's own words help: "
                                "UCX_LOG_LEVEL=info kvferry doctor.");
}

bool kvfi_ucx_offers(const struct kvfi_machine *machine, const char *family, const char *device)
{
    for (size_t i = 0; i < machine->ucx.resource_count; i++) {
        const char *name = machine->ucx.resources[i];
        const char *slash = strchr(name, '/');
        if (strncmp(name, family, strlen(family)) == 0 && slash &&
            (!device || strcmp(slash + 1, device) == 0))
            return true;
    }
    return false;
}

/* A transport between hosts, which can tell that a peer has died. */
static bool is_network(const char *resource)
{
    static const char *const others[] = {"self/", "sysv/", "posix/", "xpmem/", "cma/",
                                         "knem/", "cuda",  "gdr_",   "rocm",   "ze_"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strncmp(resource, others[i], strlen(others[i])) == 0)
            return false;
    return true;
}

static bool is_loopback(const struct kvfi_machine *machine, const char *resource)
{
    const char *device = strchr(resource, '/') + 1;
    for (size_t i = 0; i < machine->interface_count; i++)
        if (strcmp(machine->interfaces[i].name, device) == 0)
            return machine->interfaces[i].loopback;
    return strcmp(device, "lo") == 0;
}

/* What UCX offers, sorted by use. */
struct offers {
    struct kvfi_names all;
    struct kvfi_names remote; /* leads to other hosts */
    struct kvfi_names local;  /* network, loopback */
};

static void sort_offers(const struct kvfi_machine *machine, struct offers *offers)
{
    memset(offers, 0, sizeof(*offers));
    for (size_t i = 0; i < machine->ucx.resource_count; i++) {
        const char *name = machine->ucx.resources[i];
        kvfi_names_add(&offers->all, "%s", name);
        if (is_network(name) && strchr(name, '/'))
            kvfi_names_add(is_loopback(machine, name) ? &offers->local : &offers->remote, "%s",
                           name);
    }
}

static void fact_version(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    char version[48];
    (void)snprintf(version, sizeof(version), "%u.%u.%u", machine->ucx.major, machine->ucx.minor,
                   machine->ucx.release);
    if (machine->ucx_end == KVFI_CHILD_DONE)
        kvfi_fact_text(report, "version", version);
    else
        kvfi_fact_none(report, "version");
}

/* Which of the user's settings may have taken transports away. */
static bool remedy_settings(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    static const char *const names[] = {"UCX_TLS", "UCX_NET_DEVICES", "UCX_MODULES"};
    bool any = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = kvfi_environment(machine, names[i]);
        if (value)
            kvfi_finding_remedy(report, "Unset or correct %s, which is \"%.200s\".", names[i],
                                value);
        any |= value != NULL;
    }
    return any;
}

void kvfi_judge_ucx(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct offers offers;
    char list[512];
    char remote[256];
    sort_offers(machine, &offers);
    kvfi_finding_begin(report, "ucx");
    fact_version(report, machine);
    kvfi_fact_names(report, "transports", &offers.all);
    if (judge_child(report, machine->ucx_end, machine->ucx_signal, "starts UCX"))
        return;
    const struct kvfi_ucx_description *ucx = &machine->ucx;
    if (!ucx->usable) {
        kvfi_finding_level(report, KVF_FINDING_FAIL);
        kvfi_finding_found(report, "UCX %u.%u.%u does not start: %s.", ucx->major, ucx->minor,
                           ucx->release, ucx->failure);
        kvfi_finding_follows(report, "No agent can be created, so no transfer is possible.");
        if (!remedy_settings(report, machine))
            kvfi_finding_remedy(report, "See what UCX finds here: ucx_info -d.");
        return;
    }
    kvfi_names_join(&offers.all, list, sizeof(list));
    kvfi_finding_found(report, "UCX %u.%u.%u has %s.", ucx->major, ucx->minor, ucx->release,
                       offers.all.count ? list : "no transport");
    if (offers.remote.count + offers.local.count == 0) {
        kvfi_finding_level(report, KVF_FINDING_FAIL);
        kvfi_finding_follows(report,
                             "None of them reports that a peer has died, so no agent can be "
                             "created and no transfer is possible.");
        if (!remedy_settings(report, machine))
            kvfi_finding_remedy(report, "Bring up a network interface; for peers of this host "
                                        "loopback is enough: ip link set lo up.");
        return;
    }
    if (offers.remote.count == 0) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report, "Peers of this host are reached, other hosts are not.");
        if (!remedy_settings(report, machine))
            kvfi_finding_remedy(report, "For other hosts bring up a network interface that has an "
                                        "address.");
        return;
    }
    kvfi_names_join(&offers.remote, remote, sizeof(remote));
    kvfi_finding_follows(report, "Other hosts are reached over %s.", remote);
}

/* What the finding ucx says already. */
static bool cannot_serve(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct offers offers;
    sort_offers(machine, &offers);
    if (machine->ucx_end == KVFI_CHILD_DONE && offers.remote.count + offers.local.count > 0)
        return false;
    kvfi_finding_found(report, "UCX does not serve.");
    kvfi_finding_follows(report, "See the finding ucx.");
    return true;
}

/* The device of an offer, without its port: a value for UCX_NET_DEVICES. */
static const char *first_device(const struct kvfi_names *names)
{
    return strchr(names->texts[0], '/') + 1;
}

void kvfi_judge_nixl_on_host(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    const struct kvfi_ucx_description *ucx = &machine->ucx;
    struct offers offers;
    sort_offers(machine, &offers);
    kvfi_finding_begin(report, "nixl_same_host");
    fact_version(report, machine);
    if (offers.remote.count)
        kvfi_fact_text(report, "device", first_device(&offers.remote));
    else
        kvfi_fact_none(report, "device");
    if (cannot_serve(report, machine))
        return;
    if (ucx->major > 1 || ucx->minor >= 22) {
        kvfi_finding_found(report, "UCX %u.%u.%u is 1.22 or newer.", ucx->major, ucx->minor,
                           ucx->release);
        kvfi_finding_follows(report, "NIXL peers of this host may have any UCX from 1.22 on.");
        return;
    }
    kvfi_finding_found(report, "UCX %u.%u.%u is older than 1.22 and %s.", ucx->major, ucx->minor,
                       ucx->release,
                       !offers.remote.count ? "has no device but loopback"
                       : offers.local.count ? "has loopback beside other devices"
                                            : "does without loopback");
    if (!offers.remote.count) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_follows(report,
                             "A NIXL peer of this host with UCX 1.19 or newer (NIXL 1.5 "
                             "brings 1.23) cannot be reached. Other kvferry processes can.");
        kvfi_finding_remedy(report, "Run on UCX 1.22 or newer: put its libraries first in "
                                    "LD_LIBRARY_PATH; or bring up a network interface that has an "
                                    "address.");
    } else if (offers.local.count) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report,
                             "Towards a NIXL peer of this host with a newer UCX the two may "
                             "settle on different devices, and the transfer fails or never "
                             "ends. Other peers are not affected.");
        kvfi_finding_remedy(report,
                            "For NIXL peers of this host set UCX_NET_DEVICES=%s, or run on "
                            "UCX 1.22 or newer: put its libraries first in "
                            "LD_LIBRARY_PATH.",
                            first_device(&offers.remote));
    } else {
        kvfi_finding_follows(report,
                             "NIXL peers of this host with a newer UCX are reached over "
                             "%s.",
                             first_device(&offers.remote));
    }
}

static bool has_rdma(const struct kvfi_machine *machine)
{
    return kvfi_ucx_offers(machine, "rc", NULL) || kvfi_ucx_offers(machine, "dc", NULL) ||
           kvfi_ucx_offers(machine, "ud", NULL) || kvfi_ucx_offers(machine, "srd", NULL);
}

void kvfi_judge_emulated_writes(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    const struct kvfi_ucx_description *ucx = &machine->ucx;
    bool rdma = has_rdma(machine);
    kvfi_finding_begin(report, "emulated_writes");
    fact_version(report, machine);
    kvfi_fact_bool(report, "rdma", rdma);
    if (cannot_serve(report, machine))
        return;
    if (ucx->major > 1 || ucx->minor >= 20) {
        kvfi_finding_found(report, "UCX %u.%u.%u is 1.20 or newer.", ucx->major, ucx->minor,
                           ucx->release);
        kvfi_finding_follows(report, "A peer that dies in the middle of a WRITE costs that WRITE.");
        return;
    }
    kvfi_finding_found(report, "UCX %u.%u.%u is older than 1.20 and emulates WRITEs over TCP.",
                       ucx->major, ucx->minor, ucx->release);
    if (rdma) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report, "Over RDMA nothing is emulated. A peer that is reachable over "
                                     "TCP only and dies in the middle of a WRITE can end this "
                                     "process with it.");
    } else {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_follows(report,
                             "kvferry peers send messages in place of such WRITEs. A NIXL "
                             "peer does not: if it dies in the middle of a WRITE it can end "
                             "this process with it.");
    }
    kvfi_finding_remedy(report, "Where that matters run on UCX 1.20 or newer: put its libraries "
                                "first in LD_LIBRARY_PATH.");
}

void kvfi_judge_settings(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    static const char *const narrowing[] = {"UCX_TLS", "UCX_NET_DEVICES", "UCX_MODULES",
                                            "KVFERRY_LANES"};
    struct kvfi_names set = {0};
    char list[512];
    for (char *const *at = machine->environment; at && *at; at++)
        if (strncmp(*at, "UCX_", 4) == 0 || strncmp(*at, "KVFERRY_LANES=", 14) == 0)
            kvfi_names_add(&set, "%s", *at);
    kvfi_finding_begin(report, "settings");
    kvfi_fact_names(report, "set", &set);
    kvfi_names_join(&set, list, sizeof(list));
    if (set.count == 0) {
        kvfi_finding_found(report,
                           "No setting of UCX or of kvferry's lanes is in the environment.");
        kvfi_finding_follows(report, "The lanes and transports are chosen by themselves.");
        return;
    }
    kvfi_finding_found(report, "The environment has %s.", list);
    bool narrows = false;
    for (size_t i = 0; i < sizeof(narrowing) / sizeof(narrowing[0]); i++)
        narrows |= kvfi_environment(machine, narrowing[i]) != NULL;
    if (narrows) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report, "What they leave out is not used, whatever this machine has.");
        kvfi_finding_remedy(report, "If a lane or a transport is missed, unset UCX_TLS, "
                                    "UCX_NET_DEVICES, UCX_MODULES and KVFERRY_LANES.");
    } else {
        kvfi_finding_follows(report, "They take no lane or transport away.");
    }
}
