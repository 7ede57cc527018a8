/* base/json.c - see json.h. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64 /* well below jansson's own limit, whose parser recurses */

int sib_json_depth(sib_str text)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest) deepest = depth;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return deepest;
}

sib_status sib_json_parse(json_t **out, sib_str text, const char *name, sib_err *err)
{
    *out = NULL;
    if (sib_json_depth(text) > MAX_DEPTH) return sib_fail(err, SIB_EFORMAT, "%s: JSON nested deeper than %d levels", name, MAX_DEPTH);
    json_error_t e;
    json_t *v = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!v) {
        if (json_error_code(&e) == json_error_out_of_memory) return sib_nomem(err, name);
        return sib_fail(err, SIB_EFORMAT, "%s: invalid JSON at line %d: %s", name, e.line, e.text);
    }
    *out = v;
    return SIB_OK;
}

sib_status sib_json_read(json_t **out, const char *path, size_t max_bytes, sib_err *err)
{
    sib_buf text = {0};
    *out = NULL;
    sib_status s = sib_read_file(path, max_bytes, &text, err);
    if (s == SIB_OK) s = sib_json_parse(out, sib_buf_view(&text), path, err);
    sib_buf_deinit(&text);
    return s;
}

json_t *sib_json_get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

sib_status sib_json_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out, sib_err *err)
{
    json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_integer(v)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be an integer", where, key);
    json_int_t i = json_integer_value(v);
    if (i < lo || i > hi)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" is %lld, allowed are %lld to %lld", where, key, (long long)i, (long long)lo, (long long)hi);
    *out = i;
    return SIB_OK;
}

sib_status sib_json_num(const json_t *o, const char *where, const char *key, double lo, double hi, double *out, sib_err *err)
{
    json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_number(v)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be a number", where, key);
    double d = json_number_value(v);
    if (!(d >= lo && d <= hi)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" is %g, allowed are %g to %g", where, key, d, lo, hi);
    *out = d;
    return SIB_OK;
}

sib_status sib_json_bool(const json_t *o, const char *where, const char *key, bool *out, sib_err *err)
{
    json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_boolean(v)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be true or false", where, key);
    *out = json_is_true(v);
    return SIB_OK;
}

sib_status sib_json_str(const json_t *o, const char *where, const char *key, const char **out, sib_err *err)
{
    json_t *v = sib_json_get(o, key);
    if (!v) return SIB_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be a string", where, key);
    *out = json_string_value(v);
    return SIB_OK;
}

void sib_json_put_str(sib_buf *out, sib_str s)
{
    sib_buf_addc(out, '"');
    size_t from = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        sib_buf_add(out, s.p + from, i - from);
        from = i + 1;
        switch (c) {
        case '"': sib_buf_addz(out, "\\\""); break;
        case '\\': sib_buf_addz(out, "\\\\"); break;
        case '\n': sib_buf_addz(out, "\\n"); break;
        case '\r': sib_buf_addz(out, "\\r"); break;
        case '\t': sib_buf_addz(out, "\\t"); break;
        default: sib_buf_addf(out, "\\u%04x", c);
        }
    }
    sib_buf_add(out, s.p + from, s.n - from);
    sib_buf_addc(out, '"');
}

void sib_json_put_num(sib_buf *out, double v)
{
    char text[40];
    if (!isfinite(v)) {
        sib_buf_addz(out, "null");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    sib_buf_addz(out, text);
}
