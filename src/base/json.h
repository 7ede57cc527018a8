/* base/json.h - JSON from untrusted bytes, on jansson.
 *
 * Limits: the caller's size, nesting of 64 levels, duplicate keys refused,
 * integers of int64 only (a larger one is an error), invalid UTF-8 and \u0000 in
 * keys refused. Key order is kept. */
#ifndef SIB_BASE_JSON_H
#define SIB_BASE_JSON_H

#include "base/str.h"

#include <jansson.h>

/* `name` goes into the error sentence. *out is a new reference (json_decref). */
sib_status sib_json_parse(json_t **out, sib_str text, const char *name, sib_err *err);
sib_status sib_json_read(json_t **out, const char *path, size_t max_bytes, sib_err *err);

/* Deepest nesting of arrays and objects in text, ignoring what stands in strings. */
int sib_json_depth(sib_str text);

/* Typed member reads. A missing key or null leaves *out alone and returns SIB_OK; a
 * wrong type or a value outside [lo, hi] is SIB_EFORMAT with "where: key \"k\" ...". */
sib_status sib_json_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out, sib_err *err);
sib_status sib_json_num(const json_t *o, const char *where, const char *key, double lo, double hi, double *out, sib_err *err);
sib_status sib_json_bool(const json_t *o, const char *where, const char *key, bool *out, sib_err *err);
sib_status sib_json_str(const json_t *o, const char *where, const char *key, const char **out, sib_err *err);

/* Member that is present and not null, else NULL. */
json_t *sib_json_get(const json_t *o, const char *key);

/* Appends `s` as a JSON string literal with quotes (no HTML escapes, non-ASCII kept). */
void sib_json_put_str(sib_buf *out, sib_str s);
/* Appends the shortest decimal form that reads back as the same double; NaN and infinity as null. */
void sib_json_put_num(sib_buf *out, double v);

#endif
