/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/nixl_metadata.h"

#include "wire/nixl_serdes.h"

#include <stdlib.h>
#include <string.h>

#define TAG_AGENT     "Agent"
#define TAG_CONNS     "Conns"
#define TAG_BACKEND   "t"
#define TAG_INFO      "c"
#define TAG_NONE      ""
#define TAG_SECTIONS  "nixlSecElms"
#define TAG_SECTION   "bknd"
#define TAG_LIST      "nixlDList"
#define TAG_MEM_TYPE  "t"
#define TAG_COUNT     "n"
#define SECTIONS_MARK "MemSection"
#define LIST_MARK     "nixlSDList"

#define REGION_HEAD_LEN 24 /* addr, len, dev_id */

const char *kvfi_nixl_mem_type_name(uint32_t mem_type)
{
    static const char *const names[] = {"DRAM", "VRAM", "BLK", "OBJ", "FILE"};
    return mem_type <= KVFI_NIXL_FILE ? names[mem_type] : "unknown";
}

int kvfi_nixl_region_compare(const struct kvfi_nixl_region *a, const struct kvfi_nixl_region *b)
{
    if (a->dev_id != b->dev_id)
        return a->dev_id < b->dev_id ? -1 : 1;
    if (a->addr != b->addr)
        return a->addr < b->addr ? -1 : 1;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return 0;
}

/* The rules that hold for both directions; malformed is what a breach is called. */

static enum kvf_status check_name(const char *what, struct kvfi_span name, size_t len_max,
                                  enum kvf_status malformed, struct kvf_error *error)
{
    if (name.len == 0)
        return kvf_fail(error, malformed, "agent metadata: %s is empty", what);
    if (name.len > len_max)
        return kvf_fail(error, malformed == KVF_EINVAL ? KVF_ELIMIT : malformed,
                        "agent metadata: %s has %zu bytes, at most %zu", what, name.len, len_max);
    return KVF_OK;
}

static enum kvf_status check_count(const char *what, uint64_t count, size_t count_max,
                                   struct kvf_error *error)
{
    if (count > count_max)
        return kvf_fail(error, KVF_ELIMIT, "agent metadata: %llu %s, at most %zu",
                        (unsigned long long)count, what, count_max);
    return KVF_OK;
}

static enum kvf_status check_mem_type(uint32_t mem_type, enum kvf_status malformed,
                                      struct kvf_error *error)
{
    if (mem_type > KVFI_NIXL_FILE)
        return kvf_fail(error, malformed, "agent metadata: memory type %u is unknown", mem_type);
    return KVF_OK;
}

/* Block, object and file sections may carry a length of 2^64-1 for "unbounded", so only memory
 * has an end. */
static enum kvf_status check_region(const struct kvfi_nixl_region *region, uint32_t mem_type,
                                    enum kvf_status malformed, struct kvf_error *error)
{
    if (mem_type <= KVFI_NIXL_VRAM && region->len > UINT64_MAX - region->addr)
        return kvf_fail(error, malformed,
                        "agent metadata: region 0x%llx of %llu bytes ends beyond the address space",
                        (unsigned long long)region->addr, (unsigned long long)region->len);
    if (region->meta.len > KVFI_NIXL_META_LEN_MAX)
        return kvf_fail(error, malformed, "agent metadata: region's meta has %zu bytes, at most %d",
                        region->meta.len, KVFI_NIXL_META_LEN_MAX);
    return KVF_OK;
}

static enum kvf_status check_section_unique(const struct kvfi_nixl_section *sections, size_t index,
                                            enum kvf_status malformed, struct kvf_error *error)
{
    struct kvfi_quote quote;
    const struct kvfi_nixl_section *section = &sections[index];
    for (size_t i = 0; i < index; i++) {
        if (sections[i].region_count != 0 && sections[i].mem_type == section->mem_type &&
            kvfi_span_equal(sections[i].backend, section->backend))
            return kvf_fail(error, malformed, "agent metadata: two sections for %s %s",
                            kvfi_quote(&quote, section->backend),
                            kvfi_nixl_mem_type_name(section->mem_type));
    }
    return KVF_OK;
}

static int compare_regions(const void *a, const void *b)
{
    return kvfi_nixl_region_compare(a, b);
}

static bool is_sorted(const struct kvfi_nixl_region *regions, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (kvfi_nixl_region_compare(&regions[i - 1], &regions[i]) > 0)
            return false;
    }
    return true;
}

static enum kvf_status fail_duplicate(const struct kvfi_nixl_region *region, const char *how,
                                      enum kvf_status status, struct kvf_error *error)
{
    return kvf_fail(error, status,
                    "agent metadata: region 0x%llx of %llu bytes on device %llu is listed twice%s",
                    (unsigned long long)region->addr, (unsigned long long)region->len,
                    (unsigned long long)region->dev_id, how);
}

/* Encoding */

static enum kvf_status put_regions(const struct kvfi_nixl_section *section,
                                   const struct kvfi_nixl_region *sorted, struct kvfi_buf *buf,
                                   struct kvf_error *error)
{
    for (size_t i = 0; i < section->region_count; i++) {
        const struct kvfi_nixl_region *region = &sorted[i];
        KVF_TRY(check_region(region, section->mem_type, KVF_EINVAL, error));
        if (i > 0 && kvfi_nixl_region_compare(&sorted[i - 1], region) == 0)
            return fail_duplicate(region, "", KVF_EEXIST, error);
        kvfi_serdes_begin_field(buf, TAG_NONE, REGION_HEAD_LEN + region->meta.len);
        kvfi_buf_put_u64le(buf, region->addr);
        kvfi_buf_put_u64le(buf, region->len);
        kvfi_buf_put_u64le(buf, region->dev_id);
        kvfi_buf_put(buf, region->meta.data, region->meta.len);
        kvfi_serdes_end_field(buf);
    }
    return KVF_OK;
}

static enum kvf_status put_section(const struct kvfi_nixl_section *section, struct kvfi_buf *buf,
                                   struct kvf_error *error)
{
    KVF_TRY(check_name("a section's backend", section->backend, KVFI_NIXL_NAME_LEN_MAX, KVF_EINVAL,
                       error));
    KVF_TRY(check_mem_type(section->mem_type, KVF_EINVAL, error));
    kvfi_serdes_put(buf, TAG_SECTION, section->backend);
    kvfi_serdes_put(buf, TAG_LIST, kvfi_span_str(LIST_MARK));
    kvfi_serdes_put_u32(buf, TAG_MEM_TYPE, section->mem_type);
    kvfi_serdes_put_u64(buf, TAG_COUNT, section->region_count);
    if (is_sorted(section->regions, section->region_count))
        return put_regions(section, section->regions, buf, error);

    size_t size = section->region_count * sizeof(*section->regions);
    struct kvfi_nixl_region *sorted = kvfi_wire_alloc(buf->allocator, size);
    if (!sorted)
        return kvf_fail(error, KVF_ENOMEM, "no memory to sort %zu regions", section->region_count);
    memcpy(sorted, section->regions, size);
    qsort(sorted, section->region_count, sizeof(*sorted), compare_regions);
    enum kvf_status status = put_regions(section, sorted, buf, error);
    kvfi_wire_free(buf->allocator, sorted);
    return status;
}

static enum kvf_status put_conns(const struct kvfi_nixl_metadata *md, struct kvfi_buf *buf,
                                 struct kvf_error *error)
{
    KVF_TRY(check_count("connections", md->conn_count, KVFI_NIXL_CONN_COUNT_MAX, error));
    kvfi_serdes_put_u64(buf, TAG_CONNS, md->conn_count);
    for (size_t i = 0; i < md->conn_count; i++) {
        const struct kvfi_nixl_conn *conn = &md->conns[i];
        KVF_TRY(check_name("a connection's backend", conn->backend, KVFI_NIXL_NAME_LEN_MAX,
                           KVF_EINVAL, error));
        KVF_TRY(check_name("connection info", conn->info, KVFI_NIXL_CONN_INFO_LEN_MAX, KVF_EINVAL,
                           error));
        kvfi_serdes_put(buf, TAG_BACKEND, conn->backend);
        kvfi_serdes_put(buf, TAG_INFO, conn->info);
    }
    return KVF_OK;
}

enum kvf_status kvfi_nixl_metadata_encode(const struct kvfi_nixl_metadata *md, struct kvfi_buf *buf,
                                          struct kvf_error *error)
{
    size_t start = buf->len;
    size_t section_count = 0, region_count = 0;
    KVF_TRY(check_name("agent name", md->agent, KVFI_NIXL_NAME_LEN_MAX, KVF_EINVAL, error));
    for (size_t i = 0; i < md->section_count; i++) {
        size_t count = md->sections[i].region_count;
        if (count == 0)
            continue;
        section_count++;
        if (count > KVFI_NIXL_REGION_COUNT_MAX - region_count)
            return kvf_fail(error, KVF_ELIMIT, "agent metadata: more than %zu regions",
                            KVFI_NIXL_REGION_COUNT_MAX);
        region_count += count;
        KVF_TRY(check_section_unique(md->sections, i, KVF_EEXIST, error));
    }
    KVF_TRY(check_count("sections", section_count, KVFI_NIXL_SECTION_COUNT_MAX, error));

    kvfi_serdes_begin(buf);
    kvfi_serdes_put(buf, TAG_AGENT, md->agent);
    KVF_TRY(put_conns(md, buf, error));
    kvfi_serdes_put(buf, TAG_NONE, kvfi_span_str(SECTIONS_MARK));
    kvfi_serdes_put_u64(buf, TAG_SECTIONS, section_count);
    for (size_t i = 0; i < md->section_count; i++) {
        if (md->sections[i].region_count != 0)
            KVF_TRY(put_section(&md->sections[i], buf, error));
    }
    KVF_TRY(kvfi_buf_status(buf, error));
    if (buf->len - start > KVFI_NIXL_BLOB_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "agent metadata of %zu bytes, at most %zu",
                        buf->len - start, KVFI_NIXL_BLOB_LEN_MAX);
    return KVF_OK;
}

/*
 * Decoding walks the bytes twice with the same code: the first walk checks everything and counts,
 * then one allocation takes all three arrays, and the second walk fills them.
 */
struct walk {
    struct kvfi_nixl_conn *conns; /* NULL in the first walk */
    struct kvfi_nixl_section *sections;
    struct kvfi_nixl_region *regions;
    size_t conn_count;
    size_t section_count;
    size_t region_count;
};

static enum kvf_status take_mark(struct kvfi_reader *reader, const char *tag, const char *mark,
                                 struct kvf_error *error)
{
    struct kvfi_quote quote;
    struct kvfi_span found;
    KVF_TRY(kvfi_serdes_take(reader, tag, &found, error));
    if (!kvfi_span_equal(found, kvfi_span_str(mark)))
        return kvf_fail(error, KVF_EFORMAT, "agent metadata has '%s' where '%s' is due",
                        kvfi_quote(&quote, found), mark);
    return KVF_OK;
}

static enum kvf_status walk_conns(struct kvfi_reader *reader, struct walk *walk,
                                  struct kvf_error *error)
{
    uint64_t count;
    KVF_TRY(kvfi_serdes_take_u64(reader, TAG_CONNS, &count, error));
    KVF_TRY(check_count("connections", count, KVFI_NIXL_CONN_COUNT_MAX, error));
    for (uint64_t i = 0; i < count; i++) {
        struct kvfi_nixl_conn conn;
        KVF_TRY(kvfi_serdes_take(reader, TAG_BACKEND, &conn.backend, error));
        KVF_TRY(check_name("a connection's backend", conn.backend, KVFI_NIXL_NAME_LEN_MAX,
                           KVF_EFORMAT, error));
        KVF_TRY(kvfi_serdes_take(reader, TAG_INFO, &conn.info, error));
        KVF_TRY(check_name("connection info", conn.info, KVFI_NIXL_CONN_INFO_LEN_MAX, KVF_EFORMAT,
                           error));
        if (walk->conns)
            walk->conns[walk->conn_count] = conn;
        walk->conn_count++;
    }
    return KVF_OK;
}

static enum kvf_status take_region(struct kvfi_reader *reader, uint32_t mem_type,
                                   struct kvfi_nixl_region *region, struct kvf_error *error)
{
    struct kvfi_span field;
    KVF_TRY(kvfi_serdes_take(reader, TAG_NONE, &field, error));
    struct kvfi_reader inner = kvfi_reader(field.data, field.len);
    if (kvfi_reader_u64le(&inner, &region->addr) != KVF_OK ||
        kvfi_reader_u64le(&inner, &region->len) != KVF_OK ||
        kvfi_reader_u64le(&inner, &region->dev_id) != KVF_OK)
        return kvf_fail(error, KVF_EFORMAT, "agent metadata: a region of %zu bytes, at least %d",
                        field.len, REGION_HEAD_LEN);
    KVF_TRY(kvfi_reader_take(&inner, kvfi_reader_left(&inner), &region->meta));
    return check_region(region, mem_type, KVF_EFORMAT, error);
}

/* Sorts one section's regions and closes the gaps that equal ones leave. */
static enum kvf_status settle_regions(struct kvfi_nixl_region *regions, size_t *count,
                                      struct kvf_error *error)
{
    if (!is_sorted(regions, *count))
        qsort(regions, *count, sizeof(*regions), compare_regions);
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (kept > 0 && kvfi_nixl_region_compare(&regions[kept - 1], &regions[i]) == 0) {
            if (!kvfi_span_equal(regions[kept - 1].meta, regions[i].meta))
                return fail_duplicate(&regions[i], " with different keys", KVF_EFORMAT, error);
            continue;
        }
        regions[kept++] = regions[i];
    }
    *count = kept;
    return KVF_OK;
}

static enum kvf_status walk_section(struct kvfi_reader *reader, struct walk *walk,
                                    struct kvf_error *error)
{
    struct kvfi_quote quote;
    struct kvfi_nixl_section section;
    uint64_t count;
    KVF_TRY(kvfi_serdes_take(reader, TAG_SECTION, &section.backend, error));
    KVF_TRY(check_name("a section's backend", section.backend, KVFI_NIXL_NAME_LEN_MAX, KVF_EFORMAT,
                       error));
    KVF_TRY(take_mark(reader, TAG_LIST, LIST_MARK, error));
    KVF_TRY(kvfi_serdes_take_u32(reader, TAG_MEM_TYPE, &section.mem_type, error));
    KVF_TRY(check_mem_type(section.mem_type, KVF_EFORMAT, error));
    KVF_TRY(kvfi_serdes_take_u64(reader, TAG_COUNT, &count, error));
    if (count == 0)
        return kvf_fail(error, KVF_EFORMAT, "agent metadata: section %s %s has no regions",
                        kvfi_quote(&quote, section.backend),
                        kvfi_nixl_mem_type_name(section.mem_type));
    KVF_TRY(check_count("regions", count, KVFI_NIXL_REGION_COUNT_MAX - walk->region_count, error));

    struct kvfi_nixl_region *regions = walk->regions ? walk->regions + walk->region_count : NULL;
    for (uint64_t i = 0; i < count; i++) {
        struct kvfi_nixl_region region;
        KVF_TRY(take_region(reader, section.mem_type, &region, error));
        if (regions)
            regions[i] = region;
    }
    section.region_count = (size_t)count;
    walk->region_count += (size_t)count;
    if (walk->sections) {
        KVF_TRY(settle_regions(regions, &section.region_count, error));
        section.regions = regions;
        walk->sections[walk->section_count] = section;
        KVF_TRY(check_section_unique(walk->sections, walk->section_count, KVF_EFORMAT, error));
    }
    walk->section_count++;
    return KVF_OK;
}

static enum kvf_status walk_blob(const void *data, size_t len, struct walk *walk,
                                 struct kvfi_span *agent, struct kvf_error *error)
{
    struct kvfi_reader reader;
    uint64_t count;
    KVF_TRY(kvfi_serdes_open(&reader, data, len, error));
    KVF_TRY(kvfi_serdes_take(&reader, TAG_AGENT, agent, error));
    KVF_TRY(check_name("agent name", *agent, KVFI_NIXL_NAME_LEN_MAX, KVF_EFORMAT, error));
    KVF_TRY(walk_conns(&reader, walk, error));
    KVF_TRY(take_mark(&reader, TAG_NONE, SECTIONS_MARK, error));
    KVF_TRY(kvfi_serdes_take_u64(&reader, TAG_SECTIONS, &count, error));
    KVF_TRY(check_count("sections", count, KVFI_NIXL_SECTION_COUNT_MAX, error));
    for (uint64_t i = 0; i < count; i++)
        KVF_TRY(walk_section(&reader, walk, error));
    return kvfi_serdes_close(&reader, error);
}

enum kvf_status kvfi_nixl_metadata_decode(const void *data, size_t len,
                                          const struct kvf_allocator *allocator,
                                          struct kvfi_nixl_metadata *md, struct kvf_error *error)
{
    struct walk counted = {0};
    struct kvfi_span agent;
    if (len > KVFI_NIXL_BLOB_LEN_MAX)
        return kvf_fail(error, KVF_ELIMIT, "agent metadata of %zu bytes, at most %zu", len,
                        KVFI_NIXL_BLOB_LEN_MAX);
    KVF_TRY(walk_blob(data, len, &counted, &agent, error));

    /* The counts are bounded by the bytes that were really there, so the sum cannot wrap. */
    struct walk filled = {0};
    size_t size = counted.conn_count * sizeof(*filled.conns) +
                  counted.section_count * sizeof(*filled.sections) +
                  counted.region_count * sizeof(*filled.regions);
    void *memory = kvfi_wire_alloc(allocator, size);
    if (!memory)
        return kvf_fail(error, KVF_ENOMEM, "no memory for agent metadata with %zu regions",
                        counted.region_count);
    filled.regions = memory;
    filled.sections = (void *)(filled.regions + counted.region_count);
    filled.conns = (void *)(filled.sections + counted.section_count);
    enum kvf_status status = walk_blob(data, len, &filled, &agent, error);
    if (status != KVF_OK) {
        kvfi_wire_free(allocator, memory);
        return status;
    }
    *md = (struct kvfi_nixl_metadata){
        .agent = agent,
        .conns = filled.conns,
        .conn_count = filled.conn_count,
        .sections = filled.sections,
        .section_count = filled.section_count,
        .owner = allocator,
        .memory = memory,
    };
    return KVF_OK;
}

void kvfi_nixl_metadata_free(struct kvfi_nixl_metadata *md)
{
    kvfi_wire_free(md->owner, md->memory);
    *md = (struct kvfi_nixl_metadata){0};
}
