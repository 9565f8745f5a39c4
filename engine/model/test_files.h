/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_MODEL_TEST_FILES_H
#define ENGINE_MODEL_TEST_FILES_H

/* What the tests of this folder share: cmocka, files in a folder of their own, tiny models. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct test_folder {
    char path[256];
    char file[300]; /* the one file of the folder */
};

static inline void test_folder_make(struct test_folder *folder)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder->path, sizeof folder->path, "%s/kvf-model-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(folder->path));
    (void)snprintf(folder->file, sizeof folder->file, "%s/model.gguf", folder->path);
}

static inline void test_folder_remove(struct test_folder *folder)
{
    (void)unlink(folder->file);
    (void)rmdir(folder->path);
}

static inline uint8_t *test_read(const char *path, size_t *size_p)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    long size = ftell(in);
    assert_true(size >= 0);
    rewind(in);
    uint8_t *data = malloc((size_t)size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, in), (size_t)size);
    (void)fclose(in);
    *size_p = (size_t)size;
    return data;
}

static inline void test_write(const char *path, const void *data, size_t size)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    if (size > 0)
        assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* Overwrites the first occurrence of one text in a file's bytes by another of the same length. */
static inline void test_patch(uint8_t *data, size_t size, const char *from, const char *to)
{
    assert_int_equal(strlen(from), strlen(to));
    uint8_t *at = memmem(data, size, from, strlen(from));
    assert_non_null(at);
    for (size_t i = 0; to[i] != '\0'; i++)
        at[i] = (uint8_t)to[i];
}

static inline void test_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

#endif
