/* SPDX-License-Identifier: Apache-2.0 */
#include "http/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *parse(const char *text)
{
    json_t *object = NULL;
    struct kvf_error error = {0};
    if (kvfi_json_parse_object("text", text, strlen(text), &object, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return object;
}

static void assert_not_object(const char *text, const char *words)
{
    json_t *object = NULL;
    struct kvf_error error = {0};
    assert_int_equal(kvfi_json_parse_object("request body", text, strlen(text), &object, &error),
                     KVF_EFORMAT);
    assert_null(object);
    if (!strstr(error.text, words))
        fail_msg("'%s' does not say '%s'", error.text, words);
}

static void test_parse(void **state)
{
    assert_not_object("", "empty");
    assert_not_object("[1]", "found an array");
    assert_not_object("\"x\"", "found a string");
    assert_not_object("{\"a\":1", "line 1");
    assert_not_object("{\n \"a\": }", "line 2");
    assert_not_object("{} {}", "not JSON");
    assert_not_object("{\"a\":\"\xff\"}", "not JSON");
    json_decref(parse("{\"a\":\"\\u0000\"}"));
}

static void test_deep_nesting_is_refused(void **state)
{
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 6);
    assert_non_null(text);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    text[5 + DEPTH] = '\0';
    assert_not_object(text, "depth");
    free(text);
}

static void test_getters(void **state)
{
    json_t *object =
        parse("{\"s\":\"x\",\"i\":7,\"r\":0.5,\"b\":true,\"o\":{},\"a\":[],\"n\":null}");
    const char *text = NULL;
    int64_t number = 0;
    double real = 0;
    bool flag = false;
    json_t *inner = NULL;
    assert_int_equal(kvfi_json_need_string(object, "s", &text, NULL), KVF_OK);
    assert_string_equal(text, "x");
    assert_int_equal(kvfi_json_opt_string(object, "n", "d", &text, NULL), KVF_OK);
    assert_string_equal(text, "d");
    assert_int_equal(kvfi_json_need_int(object, "i", 0, 7, &number, NULL), KVF_OK);
    assert_int_equal(number, 7);
    assert_int_equal(kvfi_json_opt_int(object, "absent", 0, 1, -1, &number, NULL), KVF_OK);
    assert_int_equal(number, -1);
    assert_int_equal(kvfi_json_opt_number(object, "r", 0, 1, 9, &real, NULL), KVF_OK);
    assert_true(real == 0.5);
    assert_int_equal(kvfi_json_opt_number(object, "i", 0, 10, 9, &real, NULL), KVF_OK);
    assert_true(real == 7);
    assert_int_equal(kvfi_json_need_bool(object, "b", &flag, NULL), KVF_OK);
    assert_true(flag);
    assert_int_equal(kvfi_json_opt_bool(object, "n", false, &flag, NULL), KVF_OK);
    assert_false(flag);
    assert_int_equal(kvfi_json_opt_object(object, "o", &inner, NULL), KVF_OK);
    assert_non_null(inner);
    assert_int_equal(kvfi_json_opt_object(object, "n", &inner, NULL), KVF_OK);
    assert_null(inner);
    assert_int_equal(kvfi_json_need_array(object, "a", &inner, NULL), KVF_OK);
    json_decref(object);
}

static void assert_says(const struct kvf_error *error, const char *key, const char *words)
{
    assert_int_equal(error->status, KVF_EINVAL);
    if (!strstr(error->text, key) || !strstr(error->text, words))
        fail_msg("'%s' does not name '%s' and '%s'", error->text, key, words);
}

static void test_refusals_name_the_key(void **state)
{
    json_t *object = parse("{\"s\":\"x\",\"i\":7,\"r\":0.5,\"b\":true,\"z\":\"a\\u0000b\"}");
    struct kvf_error error = {0};
    const char *text = "untouched";
    int64_t number = 42;
    double real = 0;
    bool flag = false;
    json_t *inner = NULL;
    assert_int_equal(kvfi_json_need_string(object, "q", &text, &error), KVF_EINVAL);
    assert_says(&error, "'q'", "missing");
    assert_int_equal(kvfi_json_need_string(object, "i", &text, &error), KVF_EINVAL);
    assert_says(&error, "'i'", "an integer, expected a string");
    assert_int_equal(kvfi_json_need_string(object, "z", &text, &error), KVF_EINVAL);
    assert_says(&error, "'z'", "NUL");
    assert_string_equal(text, "untouched");
    assert_int_equal(kvfi_json_need_int(object, "i", 8, 9, &number, &error), KVF_EINVAL);
    assert_says(&error, "'i'", "7, expected 8 to 9");
    assert_int_equal(kvfi_json_need_int(object, "r", 0, 9, &number, &error), KVF_EINVAL);
    assert_says(&error, "'r'", "fraction");
    assert_int_equal(number, 42);
    assert_int_equal(kvfi_json_opt_number(object, "s", 0, 1, 0, &real, &error), KVF_EINVAL);
    assert_says(&error, "'s'", "expected a number");
    assert_int_equal(kvfi_json_opt_number(object, "r", 1, 2, 0, &real, &error), KVF_EINVAL);
    assert_says(&error, "'r'", "0.5");
    assert_int_equal(kvfi_json_need_bool(object, "i", &flag, &error), KVF_EINVAL);
    assert_says(&error, "'i'", "true or false");
    assert_int_equal(kvfi_json_opt_object(object, "b", &inner, &error), KVF_EINVAL);
    assert_says(&error, "'b'", "an object");
    assert_int_equal(kvfi_json_need_array(object, "s", &inner, &error), KVF_EINVAL);
    assert_says(&error, "'s'", "an array");
    json_decref(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_refusals_name_the_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
