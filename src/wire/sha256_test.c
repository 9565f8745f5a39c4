/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SHA256_OF_ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define SHA256_OF_NIL "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* FIPS 180's vectors; the pieces do not matter. */
static void test_vectors(void **state)
{
    struct kvfi_sha256 sha;
    char hex[KVFI_COMPAT_HASH_LEN + 1];
    kvfi_sha256_begin(&sha);
    assert_true(kvfi_sha256_end(&sha, hex));
    assert_string_equal(hex, SHA256_OF_NIL);
    kvfi_sha256_begin(&sha);
    kvfi_sha256_put(&sha, "a", 1);
    kvfi_sha256_put(&sha, NULL, 0);
    kvfi_sha256_put(&sha, "bc", 2);
    assert_true(kvfi_sha256_end(&sha, hex));
    assert_string_equal(hex, SHA256_OF_ABC);
    /* After its end there is no state any more, and that is said. */
    assert_false(kvfi_sha256_end(&sha, hex));
    assert_string_equal(hex, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests_name("wire/sha256", tests, NULL, NULL);
}
