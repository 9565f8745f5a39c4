/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_HTTP_JSON_H
#define KVFERRY_HTTP_JSON_H

/*
 * Typed access to JSON objects with errors that name the key, what was expected and what was found.
 * need_: the key must be there and not null. opt_: when it is absent or null the fallback is
 * returned. All: KVF_EINVAL on failure, outputs written only on KVF_OK, strings and objects are
 * borrowed from the object, any thread, no blocking.
 */

#include "kvferry/status.h"

#include <jansson.h>

#include <stdint.h>

/* Parses a text that must be one JSON object. KVF_EFORMAT names line and column. *object_p is a new
 * reference. what names the text in errors ("request body"). */
KVF_MUST_USE enum kvf_status kvfi_json_parse_object(const char *what, const char *data, size_t len,
                                                    json_t **object_p, struct kvf_error *error);

/* Compact text of a value on the heap (free() it), *len_p bytes without the terminator; NULL when
 * memory runs out or value is NULL. */
char *kvfi_json_dump(const json_t *value, size_t *len_p);

/* "a string", "an integer", ... */
const char *kvfi_json_kind(const json_t *value);

KVF_MUST_USE enum kvf_status kvfi_json_need_string(const json_t *object, const char *key,
                                                   const char **value_p, struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_opt_string(const json_t *object, const char *key,
                                                  const char *fallback, const char **value_p,
                                                  struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_need_int(const json_t *object, const char *key, int64_t min,
                                                int64_t max, int64_t *value_p,
                                                struct kvf_error *error);
/* The fallback is not checked against min and max. */
KVF_MUST_USE enum kvf_status kvfi_json_opt_int(const json_t *object, const char *key, int64_t min,
                                               int64_t max, int64_t fallback, int64_t *value_p,
                                               struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_opt_number(const json_t *object, const char *key, double min,
                                                  double max, double fallback, double *value_p,
                                                  struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_need_bool(const json_t *object, const char *key,
                                                 bool *value_p, struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_opt_bool(const json_t *object, const char *key,
                                                bool fallback, bool *value_p,
                                                struct kvf_error *error);
/* NULL when absent or null. */
KVF_MUST_USE enum kvf_status kvfi_json_opt_object(const json_t *object, const char *key,
                                                  json_t **value_p, struct kvf_error *error);
KVF_MUST_USE enum kvf_status kvfi_json_need_array(const json_t *object, const char *key,
                                                  json_t **value_p, struct kvf_error *error);

#endif
