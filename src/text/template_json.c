/* text/template_json.c - JSON in and out of template values.
 *
 * Reading is RFC 8259 with what a chat client may send: integers of any length stay exact, key order stays, of equal
 * keys the last wins at the place of the first (as Python's json does). Writing is Python's json.dumps. */
#include "text/template_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_DEPTH 64 /* of a request; as base/json.h */

typedef struct reader {
    sib_tr *r;
    const char *p, *end, *start;
    const char *problem; /* set: what is wrong at p */
    int depth;
} reader;

static sib_tv read_value(reader *j);

static sib_tv problem(reader *j, const char *what)
{
    if (!j->problem) j->problem = what;
    return sib_tv_of(TV_NONE);
}

static void skip_space(reader *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t')) j->p++;
}

static bool take(reader *j, char c)
{
    skip_space(j);
    if (j->p == j->end || *j->p != c) return false;
    j->p++;
    return true;
}

static bool hex4(reader *j, uint32_t *out)
{
    *out = 0;
    if (j->end - j->p < 4) return false;
    for (int i = 0; i < 4; i++) {
        char c = *j->p++;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) return false;
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

static void read_escape(reader *j, sib_tb *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t cp, low;
    char c = j->p < j->end ? *j->p++ : 0;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        sib_tb_addc(b, to[at - from]);
        return;
    }
    if (c != 'u' || !hex4(j, &cp)) {
        (void)problem(j, "invalid escape in a string");
        return;
    }
    if (cp >= 0xD800 && cp < 0xDC00 && j->end - j->p >= 6 && j->p[0] == '\\' && j->p[1] == 'u') {
        j->p += 2;
        if (!hex4(j, &low) || low < 0xDC00 || low > 0xDFFF) {
            (void)problem(j, "a lone surrogate in a string");
            return;
        }
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    if (cp >= 0xD800 && cp < 0xE000) {
        (void)problem(j, "a lone surrogate in a string");
        return;
    }
    sib_tb_cp(b, cp);
}

static sib_tv read_string(reader *j) /* after the opening quote */
{
    sib_tb b = {.r = j->r};
    for (;;) {
        const char *from = j->p;
        while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (unsigned char)*j->p >= 0x20) j->p++;
        sib_tb_add(&b, from, (size_t)(j->p - from));
        if (j->p == j->end) return problem(j, "a string does not end");
        char c = *j->p++;
        if (c == '"') return sib_tb_done(&b);
        if (c != '\\') return problem(j, "a control character in a string");
        read_escape(j, &b);
        if (j->problem) return sib_tv_of(TV_NONE);
    }
}

static sib_tv read_number(reader *j)
{
    const char *from = j->p;
    bool whole = true;
    if (*j->p == '-') j->p++;
    const char *digits = j->p;
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
    if (j->p == digits || (*digits == '0' && j->p - digits > 1)) return problem(j, "invalid number");
    if (j->p < j->end && *j->p == '.') {
        whole = false;
        const char *fraction = ++j->p;
        while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
        if (j->p == fraction) return problem(j, "invalid number");
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        whole = false;
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-')) j->p++;
        const char *exponent = j->p;
        while (j->p < j->end && *j->p >= '0' && *j->p <= '9') j->p++;
        if (j->p == exponent) return problem(j, "invalid number");
    }
    sib_str text = {from, (size_t)(j->p - from)};
    sib_tv v;
    if (whole) return sib_tnum_int(j->r, text, 10, &v) ? v : problem(j, "invalid number");
    char *z = sib_talloc(j->r, text.n + 1); /* strtod wants an end */
    memcpy(z, text.p, text.n);
    z[text.n] = 0;
    return sib_tv_float(strtod(z, NULL));
}

static sib_tv read_array(reader *j)
{
    sib_tlist l = {0};
    if (!take(j, ']')) {
        do {
            sib_tv v = read_value(j);
            if (j->problem) return v;
            sib_tlist_add(j->r, &l, v);
        } while (take(j, ','));
        if (!take(j, ']')) return problem(j, "a comma or ']' is missing");
    }
    return sib_tv_list(j->r, TV_LIST, l);
}

static sib_tv read_object(reader *j)
{
    sib_tdict *d = sib_tdict_new(j->r);
    if (!take(j, '}')) {
        do {
            if (!take(j, '"')) return problem(j, "a key is missing");
            sib_tv key = read_string(j);
            if (j->problem) return key;
            if (!take(j, ':')) return problem(j, "':' is missing");
            sib_tv v = read_value(j);
            if (j->problem) return v;
            sib_tdict_set(j->r, d, key, v);
        } while (take(j, ','));
        if (!take(j, '}')) return problem(j, "a comma or '}' is missing");
    }
    return sib_tv_dict(d);
}

static bool word(reader *j, const char *z)
{
    size_t n = strlen(z);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, z, n) != 0) return false;
    j->p += n;
    return true;
}

static sib_tv read_value(reader *j)
{
    sib_twork(j->r, 0);
    if (j->depth >= MAX_DEPTH) return problem(j, "nested deeper than 64 levels");
    j->depth++;
    sib_tv v;
    if (take(j, '{'))
        v = read_object(j);
    else if (take(j, '['))
        v = read_array(j);
    else if (take(j, '"'))
        v = read_string(j);
    else if (j->p < j->end && (*j->p == '-' || (*j->p >= '0' && *j->p <= '9')))
        v = read_number(j);
    else if (word(j, "true") || word(j, "false"))
        v = sib_tv_bool(j->p[-2] == 'u');
    else
        v = word(j, "null") ? sib_tv_of(TV_NONE) : problem(j, j->p == j->end ? "the text ends too early" : "a value is missing");
    j->depth--;
    return v;
}

static sib_tv read_all(reader *j, sib_str text)
{
    if (!sib_utf8_valid(text)) return problem(j, "not valid UTF-8");
    sib_tv v = read_value(j);
    skip_space(j);
    if (!j->problem && j->p != j->end) return problem(j, "text after the value");
    return v;
}

bool sib_tjson_try(sib_tr *r, sib_str text, sib_tv *out)
{
    reader j = {.r = r, .p = text.p, .start = text.p, .end = text.p + text.n};
    *out = read_all(&j, text);
    return !j.problem;
}

sib_tv sib_tjson_parse(sib_tr *r, sib_str text)
{
    reader j = {.r = r, .p = text.p, .start = text.p, .end = text.p + text.n};
    sib_tv v = read_all(&j, text);
    if (j.problem) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "invalid JSON at byte %zu: %s", (size_t)(j.p - j.start), j.problem);
    return v;
}

sib_tv sib_tjson_value(sib_tr *r, const json_t *v)
{
    sib_tv out;
    const char *key;
    json_t *member;
    sib_tlist l = {0};
    size_t i;
    sib_twork(r, 0);
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_TRUE:
    case JSON_FALSE: return sib_tv_bool(json_is_true(v));
    case JSON_INTEGER: return sib_tv_int(json_integer_value(v));
    case JSON_REAL: return sib_tv_float(json_real_value(v));
    case JSON_STRING: return sib_tv_copy(r, (sib_str){json_string_value(v), json_string_length(v)});
    case JSON_ARRAY:
        sib_tenter(r);
        json_array_foreach(v, i, member) sib_tlist_add(r, &l, sib_tjson_value(r, member));
        sib_tleave(r);
        return sib_tv_list(r, TV_LIST, l);
    case JSON_OBJECT:
        sib_tenter(r);
        out = sib_tv_dict(sib_tdict_new(r));
        json_object_foreach((json_t *)(uintptr_t)v, key, member)
            sib_tdict_set(r, out.u.dict, sib_tv_copy(r, sib_str_of(key)), sib_tjson_value(r, member));
        sib_tleave(r);
        return out;
    default: return sib_tv_of(TV_NONE);
    }
}

/* ---- json.dumps ------------------------------------------------------------------------------------------ */

typedef struct writer {
    sib_tr *r;
    sib_tb b;
    bool ascii, sort;
    const sib_str *indent;
    sib_str comma, colon;
    size_t depth;
} writer;

static void dump_string(writer *w, sib_str s)
{
    char text[32];
    sib_tb_addc(&w->b, '"');
    for (size_t i = 0, len; i < s.n; i += len) {
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        uint32_t cp = sib_utf8_next(s.p + i, s.n - i, &len);
        const char *at = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        if (at)
            (void)snprintf(text, sizeof text, "\\%c", to[at - from]);
        else if (cp < 0x20 || (w->ascii && cp >= 0x7f && cp < 0x10000))
            (void)snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
        else if (w->ascii && cp >= 0x10000)
            (void)snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((cp - 0x10000) >> 10)), (unsigned)(0xDC00 + (cp & 0x3FF)));
        else {
            sib_tb_add(&w->b, s.p + i, len); /* straight from the value, whose marks come along */
            continue;
        }
        sib_tb_add(&w->b, text, strlen(text));
    }
    sib_tb_addc(&w->b, '"');
}

static void dump_break(writer *w)
{
    if (!w->indent) return;
    sib_tb_addc(&w->b, '\n');
    for (size_t i = 0; i < w->depth; i++) sib_tb_add(&w->b, w->indent->p, w->indent->n);
}

static void dump_scalar(writer *w, sib_tv v)
{
    switch (v.type) {
    case TV_NONE: sib_tb_addz(&w->b, "null"); break;
    case TV_BOOL: sib_tb_addz(&w->b, v.u.b ? "true" : "false"); break;
    case TV_FLOAT:
        if (isfinite(v.u.f))
            sib_tnum_put_float(&w->b, v.u.f);
        else
            sib_tb_addz(&w->b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
        break;
    default: sib_tnum_put(&w->b, v);
    }
}

static void dump_value(writer *w, sib_tv v);

static void dump_list(writer *w, const sib_tlist *l)
{
    sib_tb_addc(&w->b, '[');
    w->depth++;
    for (size_t i = 0; i < l->n; i++) {
        if (i) sib_tb_add(&w->b, w->comma.p, w->comma.n);
        dump_break(w);
        dump_value(w, l->v[i]);
    }
    w->depth--;
    if (l->n) dump_break(w);
    sib_tb_addc(&w->b, ']');
}

static void dump_dict(writer *w, const sib_tdict *d)
{
    sib_tpair *e = d->e;
    if (w->sort && d->n) {
        sib_tv *keys = sib_tarray(w->r, d->n, sizeof *keys), *at = sib_tarray(w->r, d->n, sizeof *at);
        for (size_t i = 0; i < d->n; i++) {
            keys[i] = d->e[i].key;
            at[i] = sib_tv_int((int64_t)i);
        }
        sib_tsort(w->r, keys, at, d->n, false);
        e = sib_tarray(w->r, d->n, sizeof *e);
        for (size_t i = 0; i < d->n; i++) e[i] = d->e[at[i].u.i];
    }
    sib_tb_addc(&w->b, '{');
    w->depth++;
    for (size_t i = 0; i < d->n; i++) {
        if (i) sib_tb_add(&w->b, w->comma.p, w->comma.n);
        dump_break(w);
        sib_tv key = e[i].key;
        if (key.type == TV_STR) {
            dump_string(w, sib_tv_text(key));
        } else if (key.type == TV_NONE || sib_tv_is_num(key)) {
            sib_tb_addc(&w->b, '"');
            dump_scalar(w, key);
            sib_tb_addc(&w->b, '"');
        } else {
            sib_tfail(w->r, SIB_TEMPLATE_RUNTIME, "keys must be str, int, float, bool or None, not %s", sib_tv_type_name(key));
        }
        sib_tb_add(&w->b, w->colon.p, w->colon.n);
        dump_value(w, e[i].value);
    }
    w->depth--;
    if (d->n) dump_break(w);
    sib_tb_addc(&w->b, '}');
}

static void dump_value(writer *w, sib_tv v)
{
    sib_twork(w->r, 0);
    sib_tenter(w->r);
    switch (v.type) {
    case TV_STR: dump_string(w, sib_tv_text(v)); break;
    case TV_LIST:
    case TV_TUPLE: dump_list(w, v.u.list); break;
    case TV_DICT: dump_dict(w, v.u.dict); break;
    default:
        if (v.type != TV_NONE && !sib_tv_is_num(v))
            sib_tfail(w->r, SIB_TEMPLATE_RUNTIME, "Object of type %s is not JSON serializable", sib_tv_type_name(v));
        dump_scalar(w, v);
    }
    sib_tleave(w->r);
}

sib_tv sib_tjson_dump(sib_tr *r, sib_tv v, bool ascii, const sib_str *indent, const sib_str *comma, const sib_str *colon, bool sort)
{
    writer w = {.r = r, .b = {.r = r}, .ascii = ascii, .indent = indent, .sort = sort};
    w.comma = comma ? *comma : indent ? SIB_STR(",") : SIB_STR(", ");
    w.colon = colon ? *colon : SIB_STR(": ");
    dump_value(&w, v);
    return sib_tb_done(&w.b);
}
