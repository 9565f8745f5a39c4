/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_WIRE_NIXL_METADATA_H
#define KVFI_WIRE_NIXL_METADATA_H

/*
 * The metadata blob of a NIXL agent: its name, how to connect to it, and what memory it has
 * registered. Full, partial and connection-only blobs have one grammar: leave out the connections
 * or the sections.
 */

#include "wire/bytes.h"

#define KVFI_NIXL_BLOB_LEN_MAX      ((size_t)64 << 20)
#define KVFI_NIXL_NAME_LEN_MAX      1024  /* agent and backend names */
#define KVFI_NIXL_CONN_INFO_LEN_MAX 65536 /* UCX addresses seen: 31 to a few hundred bytes */
#define KVFI_NIXL_META_LEN_MAX      65536 /* one region's meta bytes (a packed rkey) */
#define KVFI_NIXL_CONN_COUNT_MAX    64
#define KVFI_NIXL_SECTION_COUNT_MAX 64
#define KVFI_NIXL_REGION_COUNT_MAX  ((size_t)1 << 20) /* of all sections together */

/* Values on the wire. */
enum kvfi_nixl_mem_type {
    KVFI_NIXL_DRAM = 0,
    KVFI_NIXL_VRAM = 1,
    KVFI_NIXL_BLK = 2,
    KVFI_NIXL_OBJ = 3,
    KVFI_NIXL_FILE = 4,
};

/* "DRAM", "VRAM", ... or "unknown". Static text. */
const char *kvfi_nixl_mem_type_name(uint32_t mem_type);

struct kvfi_nixl_conn {
    struct kvfi_span backend; /* e.g. "UCX", never empty */
    struct kvfi_span info;    /* opaque (UCX: the address of worker 0), never empty */
};

struct kvfi_nixl_region {
    uint64_t addr;
    uint64_t len;
    uint64_t dev_id;
    struct kvfi_span meta; /* opaque (UCX: the packed rkey); may be empty */
};

struct kvfi_nixl_section {
    struct kvfi_span backend;
    uint32_t mem_type; /* enum kvfi_nixl_mem_type */
    const struct kvfi_nixl_region *regions;
    size_t region_count;
};

/*
 * For encoding: everything is the caller's, memory and owner are unused.
 * After decoding: spans point into the input bytes, which must outlive the struct; the three
 * arrays are one allocation that kvfi_nixl_metadata_free() releases.
 */
struct kvfi_nixl_metadata {
    struct kvfi_span agent;
    const struct kvfi_nixl_conn *conns;
    size_t conn_count;
    const struct kvfi_nixl_section *sections;
    size_t section_count;
    const struct kvf_allocator *owner;
    void *memory;
};

/* Order of regions on the wire: dev_id, then addr, then len; <0, 0, >0. The meta bytes take no
 * part. */
int kvfi_nixl_region_compare(const struct kvfi_nixl_region *a, const struct kvfi_nixl_region *b);

/*
 * Appends the blob to buf, regions of each section sorted whatever their order in md; sections
 * without regions are left out (a peer refuses them). KVF_EINVAL: an empty name or info, an unknown
 * memory type, a region whose end wraps. KVF_EEXIST: two regions of one section with the same
 * (dev_id, addr, len), or two sections with the same backend and memory type. KVF_ELIMIT,
 * KVF_ENOMEM. buf holds rubbish after a failure.
 */
enum kvf_status kvfi_nixl_metadata_encode(const struct kvfi_nixl_metadata *md, struct kvfi_buf *buf,
                                          struct kvf_error *error) KVF_MUST_USE;

/*
 * Decodes untrusted bytes. Sections come out sorted by region. A region that is listed twice with
 * the same meta bytes counts once (NIXL sends that when memory was registered twice); with other
 * meta bytes it is refused. KVF_EFORMAT, KVF_ELIMIT, KVF_ENOMEM.
 */
enum kvf_status kvfi_nixl_metadata_decode(const void *data, size_t len,
                                          const struct kvf_allocator *allocator,
                                          struct kvfi_nixl_metadata *md,
                                          struct kvf_error *error) KVF_MUST_USE;

/* For a decoded struct; harmless on a zeroed one. */
void kvfi_nixl_metadata_free(struct kvfi_nixl_metadata *md);

#endif
