/* SPDX-License-Identifier: Apache-2.0 */
/* What carries bytes to other hosts, and GPUs. */
#include "doctor/doctor.h"

#include <stdio.h>
#include <string.h>

enum { CAP_IPC_LOCK_BIT = 14 };

void kvfi_judge_network(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct kvfi_names names = {0};
    char list[512];
    for (size_t i = 0; i < machine->interface_count; i++)
        if (!machine->interfaces[i].loopback)
            kvfi_names_add(&names, "%s %s", machine->interfaces[i].name,
                           machine->interfaces[i].address);
    kvfi_names_join(&names, list, sizeof(list));
    kvfi_finding_begin(report, "network");
    kvfi_fact_names(report, "interfaces", &names);
    if (names.count == 0) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_found(report, "No network interface but loopback is up and has an address.");
        kvfi_finding_follows(report, "Other hosts are not reached over TCP, neither for handshakes "
                                     "nor for bytes.");
        kvfi_finding_remedy(report, "ip addr; ip link set DEVICE up. In a container check its "
                                    "network mode.");
        return;
    }
    kvfi_finding_found(report, "Up with an address: %s.", list);
    kvfi_finding_follows(report,
                         "Give an engine one of them as --side-host when peers are on other "
                         "hosts.");
}

/* One port of an RDMA device: "mlx5_0:1 ACTIVE 100 Gb/sec (4X EDR) InfiniBand". */
static bool read_port(const struct kvfi_machine *machine, const char *device, const char *port,
                      char *text, size_t size)
{
    char state[64];
    char rate[64];
    char link[64];
    (void)kvfi_read_text(machine, state, sizeof(state), "/sys/class/infiniband/%s/ports/%s/state",
                         device, port);
    (void)kvfi_read_text(machine, rate, sizeof(rate), "/sys/class/infiniband/%s/ports/%s/rate",
                         device, port);
    (void)kvfi_read_text(machine, link, sizeof(link),
                         "/sys/class/infiniband/%s/ports/%s/link_layer", device, port);
    const char *word = strchr(state, ' '); /* "4: ACTIVE" */
    word = word ? word + 1 : "UNKNOWN";
    (void)snprintf(text, size, "%s:%s %s %s %s", device, port, word, *rate ? rate : "?",
                   *link ? link : "?");
    return strcmp(word, "ACTIVE") == 0;
}

struct ports {
    struct kvfi_names all;
    struct kvfi_names active; /* "mlx5_0:1" */
    struct kvfi_names unused; /* active, and UCX does not list them */
};

static void read_ports(const struct kvfi_machine *machine, struct ports *ports)
{
    struct kvfi_names devices;
    struct kvfi_names numbers;
    memset(ports, 0, sizeof(*ports));
    kvfi_list_folder(machine, "/sys/class/infiniband", "", &devices);
    for (size_t i = 0; i < devices.count; i++) {
        char folder[KVFI_NAME_SIZE + 64];
        (void)snprintf(folder, sizeof(folder), "/sys/class/infiniband/%s/ports", devices.texts[i]);
        kvfi_list_folder(machine, folder, "", &numbers);
        for (size_t k = 0; k < numbers.count; k++) {
            char text[KVFI_NAME_SIZE * 2];
            char name[KVFI_NAME_SIZE * 2];
            bool active =
                read_port(machine, devices.texts[i], numbers.texts[k], text, sizeof(text));
            (void)snprintf(name, sizeof(name), "%s:%s", devices.texts[i], numbers.texts[k]);
            kvfi_names_add(&ports->all, "%s", text);
            if (!active)
                continue;
            kvfi_names_add(&ports->active, "%s", name);
            if (!kvfi_ucx_offers(machine, "", name))
                kvfi_names_add(&ports->unused, "%s", name);
        }
    }
}

/* libibverbs.so.1 in one of the usual places. */
static bool has_verbs_library(const struct kvfi_machine *machine)
{
    static const char *const folders[] = {"/usr/lib/x86_64-linux-gnu",
                                          "/usr/lib/aarch64-linux-gnu",
                                          "/usr/lib64",
                                          "/usr/lib",
                                          "/lib64",
                                          "/usr/local/lib"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (kvfi_exists(machine, "%s/libibverbs.so.1", folders[i]))
            return true;
    return false;
}

static void rdma_unused(struct kvf_host_report *report, const struct kvfi_machine *machine,
                        const struct kvfi_names *unused, bool device_files, bool library)
{
    char list[256];
    kvfi_names_join(unused, list, sizeof(list));
    kvfi_finding_level(report, KVF_FINDING_WARN);
    kvfi_finding_found(report, "UCX does not use %s.", list);
    kvfi_finding_follows(report, "Bytes for other hosts go another way, over TCP if there is no "
                                 "other RDMA port.");
    if (!device_files)
        kvfi_finding_remedy(report, "There is no /dev/infiniband/uverbs*: modprobe ib_uverbs, or "
                                    "hand it to the container (docker run "
                                    "--device=/dev/infiniband).");
    if (!library)
        kvfi_finding_remedy(report, "libibverbs is missing: apt-get install rdma-core "
                                    "ibverbs-providers.");
    if (kvfi_environment(machine, "UCX_TLS") || kvfi_environment(machine, "UCX_NET_DEVICES") ||
        kvfi_environment(machine, "UCX_MODULES"))
        kvfi_finding_remedy(report, "UCX_TLS, UCX_NET_DEVICES or UCX_MODULES may leave it out.");
    if (device_files && library)
        kvfi_finding_remedy(report, "See why: ibv_devinfo, and UCX_LOG_LEVEL=debug kvferry doctor; "
                                    "this UCX needs its module for verbs (libuct_ib).");
}

void kvfi_judge_rdma(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct ports ports;
    struct kvfi_names files;
    char list[512];
    read_ports(machine, &ports);
    kvfi_list_folder(machine, "/dev/infiniband", "uverbs", &files);
    bool library = has_verbs_library(machine);
    kvfi_finding_begin(report, "rdma");
    kvfi_fact_names(report, "ports", &ports.all);
    kvfi_fact_names(report, "device_files", &files);
    kvfi_fact_bool(report, "libibverbs", library);
    kvfi_names_join(&ports.all, list, sizeof(list));
    if (ports.all.count == 0) {
        kvfi_finding_found(report, "This host has no RDMA device.");
        kvfi_finding_follows(report, "Bytes for other hosts go over TCP.");
        return;
    }
    kvfi_finding_found(report, "RDMA: %s.", list);
    if (ports.active.count == 0) {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_follows(report, "No port is ACTIVE, so bytes for other hosts go over TCP.");
        kvfi_finding_remedy(report, "Check cable and switch (rdma link; ibstat). A port in INIT "
                                    "waits for a subnet manager: systemctl start opensm.");
        return;
    }
    if (ports.unused.count) {
        rdma_unused(report, machine, &ports.unused, files.count > 0, library);
        return;
    }
    kvfi_finding_follows(report,
                         "UCX uses every active port; WRITE and READ of other hosts' memory "
                         "take no processor there.");
}

void kvfi_judge_memlock(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct ports ports;
    char text[KVFI_SIZE_TEXT];
    read_ports(machine, &ports);
    bool unlimited = machine->memlock_bytes == UINT64_MAX;
    bool privileged = kvfi_has_capability(machine, CAP_IPC_LOCK_BIT);
    kvfi_finding_begin(report, "memlock");
    if (unlimited)
        kvfi_fact_none(report, "limit_bytes");
    else
        kvfi_fact_number(report, "limit_bytes", machine->memlock_bytes);
    kvfi_fact_bool(report, "cap_ipc_lock", privileged);
    if (unlimited)
        kvfi_finding_found(report, "There is no limit of locked memory.");
    else
        kvfi_finding_found(report, "A process may lock %s%s.",
                           kvfi_size_text(machine->memlock_bytes, text),
                           privileged ? ", and any amount with CAP_IPC_LOCK, which it has" : "");
    if (ports.all.count == 0) {
        kvfi_finding_follows(report, "Without RDMA nothing is locked.");
    } else if (unlimited || privileged) {
        kvfi_finding_follows(report, "A KV cache of any size can be registered for RDMA.");
    } else {
        kvfi_finding_level(report, KVF_FINDING_WARN);
        kvfi_finding_follows(report,
                             "RDMA locks what is registered: a larger KV cache is refused.");
        kvfi_finding_remedy(report, "ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; "
                                    "docker run --ulimit memlock=-1; for logins "
                                    "/etc/security/limits.d.");
    }
}

/* "NVIDIA H200" of each GPU that the driver shows. */
static void read_gpus(const struct kvfi_machine *machine, struct kvfi_names *gpus)
{
    struct kvfi_names places;
    char text[KVFI_TEXT_SIZE];
    char model[96];
    *gpus = (struct kvfi_names){0};
    kvfi_list_folder(machine, "/proc/driver/nvidia/gpus", "", &places);
    for (size_t i = 0; i < places.count; i++) {
        (void)kvfi_read_text(machine, text, sizeof(text), "/proc/driver/nvidia/gpus/%s/information",
                             places.texts[i]);
        (void)kvfi_line_value(text, "Model", model, sizeof(model));
        kvfi_names_add(gpus, "%s %s", places.texts[i], *model ? model : "?");
    }
}

/* "550.54.15" of the module's own line, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15
 * ..."; open: whether it is the open one, which exports GPU memory as dma-buf. */
static bool read_driver(const struct kvfi_machine *machine, char *version, size_t size,
                        bool *open_p)
{
    char text[KVFI_TEXT_SIZE];
    version[0] = '\0';
    if (!kvfi_read_text(machine, text, sizeof(text), "/proc/driver/nvidia/version"))
        return false;
    *open_p = strstr(text, "Open Kernel Module") != NULL;
    const char *at = strstr(text, "Module");
    if (at)
        at = strpbrk(at, "0123456789");
    if (at)
        (void)snprintf(version, size, "%.*s", (int)strcspn(at, " \n"), at);
    return true;
}

static void judge_gpu_rdma(struct kvf_host_report *report, const struct kvfi_machine *machine,
                           bool peermem, bool open)
{
    struct ports ports;
    read_ports(machine, &ports);
    if (ports.active.count == 0 || peermem || open)
        return;
    kvfi_finding_level(report, KVF_FINDING_WARN);
    kvfi_finding_follows(report, "RDMA cannot reach GPU memory: it is copied through host memory.");
    kvfi_finding_remedy(report,
                        "modprobe nvidia-peermem, or use NVIDIA's open kernel modules, which "
                        "export GPU memory as dma-buf.");
}

void kvfi_judge_gpu(struct kvf_host_report *report, const struct kvfi_machine *machine)
{
    struct kvfi_names gpus;
    struct kvfi_names files;
    char version[48] = "";
    char list[512];
    bool open = false;
    bool driver = read_driver(machine, version, sizeof(version), &open);
    bool peermem = kvfi_exists(machine, "/sys/module/nvidia_peermem");
    bool cuda = kvfi_ucx_offers(machine, "cuda", NULL);
    read_gpus(machine, &gpus);
    kvfi_list_folder(machine, "/dev", "nvidia", &files);
    kvfi_finding_begin(report, "gpu");
    kvfi_fact_names(report, "gpus", &gpus);
    kvfi_fact_names(report, "device_files", &files);
    if (*version)
        kvfi_fact_text(report, "driver", version);
    else
        kvfi_fact_none(report, "driver");
    kvfi_fact_bool(report, "open_driver", open);
    kvfi_fact_bool(report, "peermem", peermem);
    kvfi_fact_bool(report, "ucx_cuda", cuda);
    kvfi_names_join(&gpus, list, sizeof(list));
    if (!driver && gpus.count == 0) {
        kvfi_finding_found(report, "No NVIDIA driver is loaded.");
        kvfi_finding_follows(report, "KV caches are in host memory.");
        return;
    }
    kvfi_finding_found(report, "NVIDIA driver %s%s, GPUs: %s.", *version ? version : "?",
                       open ? " (open)" : "", gpus.count ? list : "none shown");
    if (!kvfi_exists(machine, "/dev/nvidiactl")) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report, "A process here cannot use them: there is no /dev/nvidiactl.");
        kvfi_finding_remedy(report, "nvidia-modprobe on the host; docker run --gpus all.");
    } else if (!cuda) {
        kvfi_finding_level(report, KVF_FINDING_NOTE);
        kvfi_finding_follows(report, "This UCX has no CUDA transport, so GPU memory cannot be "
                                     "registered; KV caches in host memory can.");
        kvfi_finding_remedy(report, "Put the libraries of a UCX with CUDA first in "
                                    "LD_LIBRARY_PATH.");
    } else {
        kvfi_finding_follows(report, "GPU memory can be registered, through UCX.");
        judge_gpu_rdma(report, machine, peermem, open);
    }
}
