/* SPDX-License-Identifier: Apache-2.0 */
/* The UCX context, and what we configure where the user did not choose. */
#include "lane/ucx/nics.h"
#include "lane/ucx/skew.h"
#include "lane/ucx/ucx.h"

#include "kvferry/observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NIXL's settings, each only where the user did not choose. RCACHE_MAX_UNRELEASED bounds the host
 * memory that UCX's registration cache may keep (B71); older versions bound it themselves. */
static const struct {
    const char *key;
    const char *value;
} overrides[] = {
    {"RNDV_THRESH", "inf"},
    {"MAX_RMA_RAILS", "2"},
    {"IB_PCI_RELAXED_ORDERING", "try"},
    {"RCACHE_MAX_UNRELEASED", "1024"},
};

/* UCX takes keys that it does not know, and then warns on standard output at every worker. So ask
 * first: its own keys are in its printed configuration, those of the IB transports belong to it
 * where such a device exists. */
static const char *find_value(const char *printed, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = printed; (at = strstr(at, name)); at += len) {
        if (at[len] == '=' && (at == printed || at[-1] == '\n'))
            return at + len + 1;
    }
    return NULL;
}

static bool is_known(const char *printed, const char *name)
{
    if (strncmp(name, "UCX_IB_", 7) == 0)
        return kvfi_nics_has_rdma();
    return find_value(printed, name) != NULL;
}

static void apply_overrides(ucp_config_t *config, const char *printed)
{
    for (size_t i = 0; i < sizeof(overrides) / sizeof(overrides[0]); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "UCX_%s", overrides[i].key);
        if (!getenv(name) && is_known(printed, name))
            (void)ucp_config_modify(config, overrides[i].key, overrides[i].value);
    }
}

/* Below 1.20, UCX may complete a zero-copy message over tcp twice when its connection fails, and
 * then aborts ("Assertion `comp->count > 0'"). Copied ones cannot be; over tcp they cost little.
 * With RDMA devices it stays on: there it is what makes them fast. */
static void avoid_zero_copy(const struct kvfi_lane *lane, ucp_config_t *config)
{
    if (lane->minor < 20 && !kvfi_nics_has_rdma() && !getenv("UCX_ZCOPY_THRESH"))
        (void)ucp_config_modify(config, "ZCOPY_THRESH", "inf");
}

/* The devices that the user chose, in the environment or a configuration file. False: all. */
static bool chosen_devices(const char *printed, char list[KVFI_NICS_LEN])
{
    const char *at = find_value(printed, "UCX_NET_DEVICES");
    size_t len = at ? strcspn(at, "\n") : 0;
    if (len == 0 || len >= KVFI_NICS_LEN || (len == 3 && memcmp(at, "all", 3) == 0))
        return false;
    memcpy(list, at, len);
    list[len] = '\0';
    return true;
}

/*
 * An older UCX and one from 1.22 on, on one host, may settle on different devices when one of them
 * is loopback: they hang, or the older one aborts. So below 1.22 loopback is left out by naming the
 * others, unless the user chose, or there are RDMA devices, which UCX prefers and which the names
 * would exclude. Up to 1.15 the same happens with any two devices; there one is named, which costs
 * no bandwidth, since that UCX uses one TCP device for a peer anyway. With nothing but loopback
 * nothing is named, and connect refuses what cannot work (skew.h).
 */
static void choose_devices(struct kvfi_lane *lane, ucp_config_t *config, const char *printed)
{
    char list[KVFI_NICS_LEN];
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    if (chosen_devices(printed, list)) {
        lane->loopback_only = kvfi_nics_only_loopback(all, list);
    } else if (!kvfi_nics_has_rdma()) {
        /* UCX leaves out bridges itself from 1.16 on, and would warn of their names */
        bool bridges = lane->minor <= KVFI_SKEW_LEGACY || getenv("UCX_TCP_BRIDGE_ENABLE");
        lane->loopback_only = kvfi_nics_join(all, bridges ? NULL : kvfi_nics_is_bridge, list) == 0;
        const char *named =
            lane->minor <= KVFI_SKEW_LEGACY ? kvfi_nics_best(all, kvfi_nics_rank) : list;
        if (lane->minor >= KVFI_SKEW_LOOPBACK_CHANGED || lane->loopback_only ||
            getenv("UCX_NET_DEVICES"))
            named = NULL;
        if (named && ucp_config_modify(config, "NET_DEVICES", named) == UCS_OK)
            kvf_log(KVF_LOG_INFO,
                    "ucx: version 1.%u, so of the network devices only %s is used, for peers with "
                    "a newer one; UCX_NET_DEVICES chooses otherwise",
                    lane->minor, named);
    }
    freeifaddrs(all);
}

static void configure(struct kvfi_lane *lane, ucp_config_t *config)
{
    char *printed = NULL;
    size_t printed_len = 0;
    FILE *out = open_memstream(&printed, &printed_len);
    if (!out)
        return;
    ucp_config_print(config, out, NULL, UCS_CONFIG_PRINT_CONFIG);
    if (fclose(out) == 0) {
        apply_overrides(config, printed);
        avoid_zero_copy(lane, config);
        choose_devices(lane, config, printed);
    }
    free(printed);
}

enum kvf_status kvfi_ucx_create_context(struct kvfi_lane *lane, struct kvf_error *error)
{
    ucp_config_t *config = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return kvf_fail(error, KVF_ENOTSUP, "ucx: cannot read its configuration: %s; check UCX_*",
                        ucs_status_string(status));
    configure(lane, config);
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 | UCP_FEATURE_AM |
                    UCP_FEATURE_WAKEUP,
    };
    status = ucp_init(&params, config, &lane->context);
    ucp_config_release(config);
    if (status == UCS_OK)
        return KVF_OK;
    return kvf_fail(error, KVF_ENOTSUP,
                    "ucx: no context: %s; UCX_TLS and UCX_NET_DEVICES must leave a transport with "
                    "RMA, active messages and wake-up",
                    ucs_status_string(status));
}
