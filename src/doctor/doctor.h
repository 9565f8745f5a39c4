/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFI_DOCTOR_DOCTOR_H
#define KVFI_DOCTOR_DOCTOR_H

/*
 * Inside of the host report. Looking and judging are apart: machine.c and its neighbours try things
 * out and fill a struct kvfi_machine; the judge_*.c files turn that, and small files of /proc,
 * /sys, /dev and /usr below its root, into findings. A test judges a machine that it made up.
 */

#include "kvferry/doctor.h"
#include "lane/ucx/describe.h"

#include <sys/types.h>

enum {
    KVFI_NAMES_MAX = 64,
    KVFI_NAME_SIZE = 128,
    KVFI_TEXT_SIZE = 1024, /* a file that is read, an attempt's words */
};

/* A network interface that is up and has an address. */
struct kvfi_interface {
    char name[32];
    char address[64];
    bool loopback;
};

/* How a child process that tried something ended. */
enum kvfi_child_end {
    KVFI_CHILD_DONE, /* it told its result */
    KVFI_CHILD_DIED, /* by a signal, or without a word */
    KVFI_CHILD_SLOW, /* it was killed at its time limit */
    KVFI_CHILD_NONE, /* no process could be started */
};

struct kvfi_machine {
    const char *root;         /* "" for the real one; borrowed */
    char *const *environment; /* as environ; borrowed */
    uid_t uid;
    uint64_t memlock_bytes; /* UINT64_MAX: no limit */

    /* Cross-memory attach to a process that is no child; 0 or an errno, -1 for not tried. */
    int read_errno, write_errno;
    /* A pool, and mapping it from another process. */
    int pool_errno;        /* 0, or why the step failed, or -1 for not tried */
    const char *pool_step; /* static text; NULL when nothing failed */
    int pidfd_errno;

    bool shm_known; /* statvfs of /dev/shm answered */
    bool shm_read_only;
    uint64_t shm_bytes, shm_free_bytes;

    struct kvfi_interface interfaces[KVFI_NAMES_MAX];
    size_t interface_count;

    enum kvfi_child_end ucx_end;
    int ucx_signal; /* of KVFI_CHILD_DIED; 0: none */
    struct kvfi_ucx_description ucx;

    enum kvfi_child_end transfer_end;
    int transfer_signal;
    bool transfer_moved;
    char transfer_failure[KVFI_TEXT_SIZE];

    int zeromq[3];
};

/* ---- looking (this machine) ----------------------------------------------------------------- */

/* machine.c: fills it by looking at and trying out this machine. Forks; blocks. */
void kvfi_machine_look(struct kvfi_machine *machine);

/* child.c: runs body in a child process, which writes its result to out_fd and leaves; what it
 * prints on standard output goes to standard error. Fills up to size bytes of result; DONE only
 * when all of them came. Blocks until it ends, limit_ms at most. *signal_p is 0 unless it died by
 * one. */
enum kvfi_child_end kvfi_child_run(void (*body)(void *ctx, int out_fd), void *ctx, void *result,
                                   size_t size, int limit_ms, int *signal_p);
/* For a body: false when the reader is gone. */
bool kvfi_child_tell(int out_fd, const void *result, size_t size);

/* transfer.c: moves bytes between two new processes with two agents. Blocks. */
void kvfi_try_transfer(struct kvfi_machine *machine);

/* ---- reading files below the root ----------------------------------------------------------- */

struct kvfi_names {
    size_t count;
    size_t left_out; /* did not fit */
    char texts[KVFI_NAMES_MAX][KVFI_NAME_SIZE];
};

void kvfi_names_add(struct kvfi_names *names, const char *fmt, ...) KVF_PRINTF(2, 3);
/* "a, b and 3 more", at most size - 1 bytes. */
void kvfi_names_join(const struct kvfi_names *names, char *text, size_t size);

/* The text of a small file without its last line break; a NUL becomes '?'. False, and an empty
 * text, when it cannot be read. */
bool kvfi_read_text(const struct kvfi_machine *machine, char *text, size_t size, const char *fmt,
                    ...) KVF_PRINTF(4, 5);
/* A file that is one number. */
bool kvfi_read_number(const struct kvfi_machine *machine, uint64_t *number_p, const char *fmt, ...)
    KVF_PRINTF(3, 4);
/* The value after "key:" at the start of a line, blanks skipped, up to the end of the line. */
bool kvfi_line_value(const char *text, const char *key, char *value, size_t size);
/* What a symbolic link says. */
bool kvfi_read_link(const struct kvfi_machine *machine, char *text, size_t size, const char *name);
bool kvfi_exists(const struct kvfi_machine *machine, const char *fmt, ...) KVF_PRINTF(2, 3);
/* Names in a folder that begin with prefix, sorted; none when there is no such folder. */
void kvfi_list_folder(const struct kvfi_machine *machine, const char *path, const char *prefix,
                      struct kvfi_names *names);
/* NULL when it is absent or empty. */
const char *kvfi_environment(const struct kvfi_machine *machine, const char *name);

/* ---- writing findings ----------------------------------------------------------------------- */

/* Begins the next finding, with level OK. A want of memory is noticed at the end. */
void kvfi_finding_begin(struct kvf_host_report *report, const char *topic);
/* Raises the level. */
void kvfi_finding_level(struct kvf_host_report *report, enum kvf_finding_level level);
/* Each appends one sentence. Texts are made printable, here and in facts. */
void kvfi_finding_found(struct kvf_host_report *report, const char *fmt, ...) KVF_PRINTF(2, 3);
void kvfi_finding_follows(struct kvf_host_report *report, const char *fmt, ...) KVF_PRINTF(2, 3);
void kvfi_finding_remedy(struct kvf_host_report *report, const char *fmt, ...) KVF_PRINTF(2, 3);

void kvfi_fact_none(struct kvf_host_report *report, const char *name);
void kvfi_fact_bool(struct kvf_host_report *report, const char *name, bool value);
void kvfi_fact_number(struct kvf_host_report *report, const char *name, uint64_t value);
void kvfi_fact_text(struct kvf_host_report *report, const char *name, const char *value);
void kvfi_fact_names(struct kvf_host_report *report, const char *name,
                     const struct kvfi_names *names);

/* "4.0 GiB", in a buffer of the caller's. */
enum { KVFI_SIZE_TEXT = 24 };
const char *kvfi_size_text(uint64_t bytes, char text[KVFI_SIZE_TEXT]);
/* "EPERM"; "0" never comes. */
const char *kvfi_errno_name(int number);

/* ---- judging -------------------------------------------------------------------------------- */

/* report.c: every finding about a machine. Errors as kvf_host_report_create(). */
enum kvf_status kvfi_judge(const struct kvfi_machine *machine,
                           const struct kvf_allocator *allocator, struct kvf_host_report **report_p,
                           struct kvf_error *error) KVF_MUST_USE;

/* judge_ucx.c */
void kvfi_judge_transfer(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_ucx(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_nixl_on_host(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_emulated_writes(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_settings(struct kvf_host_report *report, const struct kvfi_machine *machine);
/* Whether UCX lists a transport of this family (a prefix: "rc", "cuda") on a device (NULL: any). */
bool kvfi_ucx_offers(const struct kvfi_machine *machine, const char *family, const char *device);

/* judge_process.c: what another process of this host may do. */
void kvfi_judge_cma(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_pools(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_dev_shm(struct kvf_host_report *report, const struct kvfi_machine *machine);

/* judge_devices.c */
void kvfi_judge_network(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_rdma(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_memlock(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_gpu(struct kvf_host_report *report, const struct kvfi_machine *machine);

/* judge_limits.c */
void kvfi_judge_cpu(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_memory(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_huge_pages(struct kvf_host_report *report, const struct kvfi_machine *machine);
void kvfi_judge_zeromq(struct kvf_host_report *report, const struct kvfi_machine *machine);

/* "CapEff" of /proc/self/status has this bit. */
bool kvfi_has_capability(const struct kvfi_machine *machine, unsigned bit);

#endif
