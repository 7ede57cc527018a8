/* text/template_filter.c - Jinja's filters and tests ("List of Builtin Filters/Tests" of its documentation).
 *
 * A filter has a row in a table: its name, the names of its parameters, how many must be given, and its function.
 * Names that Jinja has and this engine leaves out are rows without a function: refused when they are reached. */
#include "text/template_internal.h"

#include <math.h>

typedef sib_tv (*filter_fn)(sib_tr *r, sib_tv in, const sib_tv *a, const sib_targs *raw);
typedef bool (*test_fn)(sib_tr *r, sib_tv in, const sib_tv *a);

static bool given(sib_tv v)
{
    return v.type != TV_ABSENT && v.type != TV_NONE;
}

static bool flag(sib_tv v)
{
    return v.type != TV_ABSENT && sib_tv_truth(v);
}

static int64_t number(sib_tr *r, sib_tv v, int64_t otherwise, const char *what)
{
    return v.type == TV_ABSENT ? otherwise : sib_tv_index(r, v, what);
}

static sib_str text_of(sib_tr *r, sib_tv v)
{
    return sib_tv_text(sib_tv_str(r, v));
}

static sib_tv with_flag(sib_tv v, uint8_t flags)
{
    v.flag = flags;
    return v;
}

static uint8_t safety(sib_tv v)
{
    return v.type == TV_STR ? v.flag : 0;
}

/* ---- keys: attribute paths and case ---------------------------------------------------------------------- */

/* `attribute` is a name, a dotted path "a.b.0" or an index. An undefined step takes `otherwise` where one is given. */
static sib_tv path_get(sib_tr *r, sib_tv v, sib_tv attribute, sib_tv otherwise)
{
    if (attribute.type != TV_STR) {
        if (attribute.type == TV_UNDEF) sib_tundefined(r, attribute);
        v = sib_tget_item(r, v, attribute);
        return v.type == TV_UNDEF && given(otherwise) ? otherwise : v;
    }
    sib_str path = sib_tv_text(attribute);
    for (size_t i = 0; i <= path.n;) {
        const char *dot = i < path.n ? memchr(path.p + i, '.', path.n - i) : NULL;
        sib_str part = {path.p + i, (dot ? (size_t)(dot - path.p) : path.n) - i};
        sib_tv key = sib_tv_bytes(part.p, part.n), index;
        if (part.n && part.p[0] >= '0' && part.p[0] <= '9' && sib_tnum_int(r, part, 10, &index)) key = index;
        v = sib_tget_item(r, v, key);
        if (v.type == TV_UNDEF && given(otherwise)) v = otherwise;
        i += part.n + 1;
    }
    return v;
}

static sib_tv fold_key(sib_tr *r, sib_tv v, bool case_sensitive)
{
    return v.type == TV_STR && !case_sensitive ? sib_tcase(r, sib_tv_text(v), SIB_LOWER) : v;
}

/* Keys of items by an attribute (TV_ABSENT: the items themselves). */
static sib_tv *keys_of(sib_tr *r, sib_tlist items, sib_tv attribute, bool case_sensitive)
{
    sib_tv *keys = sib_tarray(r, items.n + 1, sizeof *keys);
    for (size_t i = 0; i < items.n; i++) {
        sib_tv v = given(attribute) ? path_get(r, items.v[i], attribute, sib_tv_of(TV_ABSENT)) : items.v[i];
        keys[i] = fold_key(r, v, case_sensitive);
    }
    return keys;
}

/* sort's attribute may be several paths with commas between: the key is the list of them. */
static sib_tv *sort_keys(sib_tr *r, sib_tlist items, sib_tv attribute, bool case_sensitive)
{
    if (attribute.type != TV_STR || !memchr(attribute.u.s.p, ',', attribute.u.s.n)) return keys_of(r, items, attribute, case_sensitive);
    sib_tv *keys = sib_tarray(r, items.n + 1, sizeof *keys);
    for (size_t i = 0; i < items.n; i++) {
        sib_tlist parts = {0};
        for (sib_str rest = sib_tv_text(attribute);;) {
            const char *comma = memchr(rest.p, ',', rest.n);
            size_t len = comma ? (size_t)(comma - rest.p) : rest.n;
            sib_tlist_add(r, &parts, fold_key(r, path_get(r, items.v[i], sib_tv_bytes(rest.p, len), sib_tv_of(TV_ABSENT)), case_sensitive));
            if (!comma) break;
            rest = (sib_str){rest.p + len + 1, rest.n - len - 1};
        }
        keys[i] = sib_tv_list(r, TV_LIST, parts);
    }
    return keys;
}

void sib_tsort(sib_tr *r, sib_tv *keys, sib_tv *values, size_t n, bool reverse)
{
    size_t *at = sib_tarray(r, n + 1, sizeof *at), *to = sib_tarray(r, n + 1, sizeof *to);
    for (size_t i = 0; i < n; i++) at[i] = i;
    for (size_t width = 1; width < n; width *= 2) { /* merges; reversed, equal ones keep their order too */
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n, a = lo, b = mid;
            for (size_t k = lo; k < hi; k++) {
                bool right = a == mid;
                if (a < mid && b < hi) {
                    right = reverse ? sib_tv_order(r, keys[at[a]], keys[at[b]], "<") < 0
                                    : sib_tv_order(r, keys[at[b]], keys[at[a]], "<") < 0;
                }
                to[k] = right ? at[b++] : at[a++];
            }
        }
        size_t *swap = at;
        at = to;
        to = swap;
    }
    sib_tv *sorted = sib_tarray(r, n + 1, sizeof *sorted);
    for (size_t i = 0; i < n; i++) sorted[i] = keys[at[i]];
    memcpy(keys, sorted, n * sizeof *keys);
    for (size_t i = 0; i < n; i++) sorted[i] = values[at[i]];
    memcpy(values, sorted, n * sizeof *values);
}

static sib_tlist copied(sib_tr *r, sib_tlist l)
{
    sib_tlist out = {sib_tarray(r, l.n + 1, sizeof *l.v), l.n, l.n};
    sib_twork(r, l.n);
    if (l.n) memcpy(out.v, l.v, l.n * sizeof *l.v);
    return out;
}

/* ---- filters: strings ------------------------------------------------------------------------------------ */

#define FILTER(name) static sib_tv name(sib_tr *r, sib_tv in, const sib_tv *a, const sib_targs *raw)
#define UNUSED       (void)r, (void)in, (void)a, (void)raw

FILTER(f_capitalize)
{
    UNUSED;
    return with_flag(sib_tcase(r, text_of(r, in), SIB_CAPITALIZE), safety(in));
}

FILTER(f_upper)
{
    UNUSED;
    return with_flag(sib_tcase(r, text_of(r, in), SIB_UPPER), safety(in));
}

FILTER(f_lower)
{
    UNUSED;
    return with_flag(sib_tcase(r, text_of(r, in), SIB_LOWER), safety(in));
}

FILTER(f_title) /* words begin after space, - ( { [ <, unlike str.title */
{
    UNUSED;
    sib_str s = text_of(r, in);
    sib_tb b = {.r = r};
    for (size_t i = 0, len; i < s.n;) {
        size_t from = i;
        bool split;
        do {
            uint32_t cp = sib_utf8_next(s.p + i, s.n - i, &len);
            split = sib_tspace(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) && cp);
            if (!split) i += len;
        } while (!split && i < s.n);
        if (i > from) {
            (void)sib_utf8_next(s.p + from, i - from, &len);
            sib_tv first = sib_tcase(r, (sib_str){s.p + from, len}, SIB_UPPER), rest = sib_tcase(r, (sib_str){s.p + from + len, i - from - len}, SIB_LOWER);
            sib_tb_add(&b, first.u.s.p, first.u.s.n);
            sib_tb_add(&b, rest.u.s.p, rest.u.s.n);
        }
        if (split) {
            (void)sib_utf8_next(s.p + i, s.n - i, &len);
            sib_tb_add(&b, s.p + i, len);
            i += len;
        }
    }
    return sib_tb_done(&b);
}

FILTER(f_trim)
{
    UNUSED;
    sib_str s = text_of(r, in), chars;
    if (given(a[0]) && a[0].type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "trim wants a string, not '%s'", sib_tv_type_name(a[0]));
    if (given(a[0])) chars = sib_tv_text(a[0]);
    sib_twork(r, s.n);
    s = sib_tstrip(s, 3, given(a[0]) ? &chars : NULL);
    return with_flag(sib_tv_bytes(s.p, s.n), safety(in));
}

FILTER(f_replace)
{
    UNUSED;
    sib_str from = text_of(r, a[0]);
    return sib_treplace(r, text_of(r, in), from, text_of(r, a[1]), given(a[2]) ? sib_tv_index(r, a[2], "count") : -1);
}

FILTER(f_string)
{
    UNUSED;
    return sib_tv_str(r, in);
}

FILTER(f_safe)
{
    UNUSED;
    return with_flag(sib_tv_str(r, in), TV_SAFE);
}

FILTER(f_escape)
{
    UNUSED;
    return sib_tescape(r, in);
}

FILTER(f_forceescape)
{
    UNUSED;
    return sib_tescape(r, with_flag(sib_tv_str(r, in), 0));
}

FILTER(f_center)
{
    UNUSED;
    return with_flag(sib_tpad(r, text_of(r, in), number(r, a[0], 80, "width"), ' ', 0), safety(in));
}

static void want_text(sib_tr *r, sib_tv v, const char *who)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (v.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s wants a string, not '%s'", who, sib_tv_type_name(v));
}

FILTER(f_indent)
{
    UNUSED;
    want_text(r, in, "indent");
    sib_tb b = {.r = r};
    sib_tv indent = a[0].type == TV_STR ? a[0] : sib_tpad(r, SIB_STR(""), number(r, a[0], 4, "width"), ' ', 1);
    sib_tlist lines = sib_tlines(r, sib_tv_text(sib_tconcat(r, with_flag(in, 0), sib_tv_z("\n"))), false);
    for (size_t i = 0; i < lines.n; i++) {
        sib_str line = sib_tv_text(lines.v[i]);
        if (i) sib_tb_addc(&b, '\n');
        if (i ? line.n || flag(a[2]) : flag(a[1])) sib_tb_add(&b, indent.u.s.p, indent.u.s.n);
        sib_tb_add(&b, line.p, line.n);
    }
    return with_flag(sib_tb_done(&b), safety(in));
}

FILTER(f_truncate)
{
    UNUSED;
    want_text(r, in, "truncate");
    sib_str s = sib_tv_text(in), end = a[2].type == TV_ABSENT ? SIB_STR("...") : text_of(r, a[2]);
    int64_t length = number(r, a[0], 255, "length"), leeway = given(a[3]) ? sib_tv_index(r, a[3], "leeway") : 5;
    int64_t n_end = (int64_t)sib_tcount(r, end);
    if (length < n_end || leeway < 0) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "truncate: the length must be at least %lld, and the leeway at least 0", (long long)n_end);
    if (length > INT64_MAX - leeway || (int64_t)sib_tcount(r, s) <= length + leeway) return in;
    s.n = sib_toffset(s, (size_t)(length - n_end));
    const char *space = flag(a[1]) || !s.n ? NULL : memrchr(s.p, ' ', s.n);
    if (space) s.n = (size_t)(space - s.p);
    return sib_tconcat(r, sib_tv_bytes(s.p, s.n), sib_tv_bytes(end.p, end.n));
}

FILTER(f_format)
{
    UNUSED;
    if (raw->n && raw->n_kw) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "format takes positional or keyword arguments, not both");
    sib_tv args = sib_tv_list(r, TV_TUPLE, (sib_tlist){raw->pos, raw->n, raw->n});
    if (raw->n_kw) {
        args = sib_tv_dict(sib_tdict_new(r));
        for (size_t i = 0; i < raw->n_kw; i++) sib_tdict_set(r, args.u.dict, raw->kw[i].key, raw->kw[i].value);
    }
    return sib_tformat(r, sib_tv_str(r, in), args);
}

FILTER(f_join)
{
    UNUSED;
    sib_tlist items = sib_tv_items(r, in);
    if (given(a[1])) {
        items = copied(r, items);
        for (size_t i = 0; i < items.n; i++) items.v[i] = path_get(r, items.v[i], a[1], sib_tv_of(TV_ABSENT));
    }
    return sib_tjoin(r, a[0].type == TV_ABSENT ? SIB_STR("") : text_of(r, a[0]), items, false);
}

static const sib_str *optional(sib_tv v, sib_str *store)
{
    if (v.type != TV_STR) return NULL;
    *store = sib_tv_text(v);
    return store;
}

FILTER(f_tojson)
{
    UNUSED;
    sib_str indent = {0}, comma, colon;
    const sib_str *step = optional(a[1], &indent);
    sib_tlist pair = {0};
    if (given(a[1]) && !step) {
        indent = sib_tv_text(sib_tpad(r, SIB_STR(""), sib_tv_index(r, a[1], "indent"), ' ', 1));
        step = &indent;
    }
    if (given(a[2])) {
        pair = sib_tv_items(r, a[2]);
        if (pair.n != 2 || pair.v[0].type != TV_STR || pair.v[1].type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "tojson: separators must be two strings");
        comma = sib_tv_text(pair.v[0]);
        colon = sib_tv_text(pair.v[1]);
    }
    return sib_tjson_dump(r, in, flag(a[0]), step, pair.n ? &comma : NULL, pair.n ? &colon : NULL, flag(a[3]));
}

/* ---- filters: numbers ------------------------------------------------------------------------------------ */

static void want_number(sib_tr *r, sib_tv v, const char *who)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (!sib_tv_is_num(v)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s wants a number, not '%s'", who, sib_tv_type_name(v));
}

FILTER(f_abs)
{
    UNUSED;
    want_number(r, in, "abs");
    return sib_tnum_abs(r, in);
}

FILTER(f_float)
{
    UNUSED;
    double d;
    if (in.type == TV_UNDEF) sib_tundefined(r, in);
    if (in.type == TV_STR ? sib_tnum_pyfloat(r, sib_tv_text(in), &d) : sib_tv_is_num(in)) return sib_tv_float(in.type == TV_STR ? d : sib_tv_double(r, in));
    return a[0].type == TV_ABSENT ? sib_tv_float(0) : a[0];
}

FILTER(f_int)
{
    UNUSED;
    sib_tv v, otherwise = a[0].type == TV_ABSENT ? sib_tv_int(0) : a[0];
    int64_t base = number(r, a[1], 10, "base");
    double d;
    if (in.type == TV_UNDEF) sib_tundefined(r, in);
    if (in.type == TV_STR) {
        if ((base >= 2 && base <= 36) || base == 0) {
            if (sib_tnum_pyint(r, sib_tv_text(in), (int)base, &v)) return v;
        }
        if (!sib_tnum_pyfloat(r, sib_tv_text(in), &d)) return otherwise;
    } else if (sib_tv_is_int(in)) {
        return in.type == TV_BOOL ? sib_tv_int(in.u.b) : in;
    } else if (in.type == TV_FLOAT) {
        d = in.u.f;
    } else {
        return otherwise;
    }
    return isfinite(d) ? sib_tnum_from_double(r, d) : otherwise;
}

FILTER(f_round)
{
    UNUSED;
    int64_t digits = number(r, a[0], 0, "precision");
    sib_str method = a[1].type == TV_ABSENT ? SIB_STR("common") : text_of(r, a[1]);
    bool ceiling = sib_str_is(method, "ceil");
    if (!ceiling && !sib_str_is(method, "common") && !sib_str_is(method, "floor")) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "round: the method must be common, ceil or floor");
    want_number(r, in, "round");
    if (sib_str_is(method, "common")) return sib_tnum_round(r, in, digits);
    sib_tv unit = sib_tnum_binary(r, '^', sib_tv_int(10), sib_tv_int(digits)), scaled = sib_tnum_binary(r, '*', in, unit);
    if (scaled.type == TV_FLOAT) scaled = sib_tnum_from_double(r, ceiling ? ceil(scaled.u.f) : floor(scaled.u.f));
    return sib_tnum_binary(r, '/', scaled, unit);
}

FILTER(f_sum)
{
    UNUSED;
    sib_tlist items = sib_tv_items(r, in);
    sib_tv total = a[1].type == TV_ABSENT ? sib_tv_int(0) : a[1];
    for (size_t i = 0; i < items.n; i++) {
        sib_tv v = given(a[0]) ? path_get(r, items.v[i], a[0], sib_tv_of(TV_ABSENT)) : items.v[i];
        if (v.type == TV_UNDEF) sib_tundefined(r, v);
        if (!sib_tv_is_num(total) || !sib_tv_is_num(v))
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "unsupported operand type(s) for +: '%s' and '%s'", sib_tv_type_name(total), sib_tv_type_name(v));
        total = sib_tnum_binary(r, '+', total, v);
    }
    return total;
}

/* ---- filters: sequences ---------------------------------------------------------------------------------- */

FILTER(f_length)
{
    UNUSED;
    return sib_tv_int(sib_tv_length(r, in));
}

FILTER(f_list)
{
    UNUSED;
    return sib_tv_list(r, TV_LIST, sib_tv_items(r, in));
}

static sib_tv empty(void)
{
    return sib_tv_undef(TV_U_PLAIN, sib_tv_of(TV_UNDEF), SIB_STR("the sequence is empty"));
}

FILTER(f_first)
{
    UNUSED;
    if (in.type == TV_ITER) {
        sib_titer *it = in.u.iter;
        return it->at < it->items.n ? it->items.v[it->at++] : empty();
    }
    sib_tlist l = sib_tv_items(r, in);
    return l.n ? l.v[0] : empty();
}

FILTER(f_last)
{
    UNUSED;
    if (in.type == TV_ITER) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'generator' object is not reversible");
    sib_tlist l = sib_tv_items(r, in);
    return l.n ? l.v[l.n - 1] : empty();
}

FILTER(f_reverse)
{
    UNUSED;
    sib_tlist l = sib_tv_items(r, in), out = {sib_tarray(r, l.n + 1, sizeof *out.v), l.n, l.n};
    for (size_t i = 0; i < l.n; i++) out.v[i] = l.v[l.n - 1 - i];
    sib_twork(r, l.n);
    return in.type == TV_STR ? with_flag(sib_tjoin(r, SIB_STR(""), out, false), in.flag) : sib_tv_iter(r, out);
}

FILTER(f_sort)
{
    UNUSED;
    sib_tlist l = copied(r, sib_tv_items(r, in));
    sib_tsort(r, sort_keys(r, l, a[2], flag(a[1])), l.v, l.n, flag(a[0]));
    return sib_tv_list(r, TV_LIST, l);
}

FILTER(f_dictsort)
{
    UNUSED;
    sib_str by = a[1].type == TV_ABSENT ? SIB_STR("key") : text_of(r, a[1]);
    bool by_key = sib_str_is(by, "key");
    if (!by_key && !sib_str_is(by, "value")) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "dictsort sorts by \"key\" or \"value\" only");
    if (in.type == TV_UNDEF) sib_tundefined(r, in);
    if (in.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'%s' object has no attribute 'items'", sib_tv_type_name(in));
    sib_tdict *d = in.u.dict;
    sib_tlist l = {sib_tarray(r, d->n + 1, sizeof *l.v), d->n, d->n};
    sib_tv *keys = sib_tarray(r, d->n + 1, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        l.v[i] = sib_tv_pair(r, d->e[i].key, d->e[i].value);
        keys[i] = fold_key(r, by_key ? d->e[i].key : d->e[i].value, flag(a[0]));
    }
    sib_tsort(r, keys, l.v, l.n, flag(a[2]));
    return sib_tv_list(r, TV_LIST, l);
}

FILTER(f_items)
{
    UNUSED;
    if (in.type == TV_UNDEF) return sib_tv_iter(r, (sib_tlist){0});
    if (in.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "can only get item pairs from a mapping, not from '%s'", sib_tv_type_name(in));
    return sib_tv_iter(r, sib_tv_items(r, (sib_tv){.type = TV_VIEW, .flag = TV_ITEMS, .u.dict = in.u.dict}));
}

FILTER(f_unique)
{
    UNUSED;
    sib_tlist l = sib_tv_items(r, in), out = {0};
    sib_tv *keys = keys_of(r, l, a[1], flag(a[0]));
    sib_tdict *seen = sib_tdict_new(r);
    for (size_t i = 0; i < l.n; i++) {
        if (sib_tdict_get(r, seen, keys[i])) continue;
        sib_tdict_set(r, seen, keys[i], sib_tv_of(TV_NONE));
        sib_tlist_add(r, &out, l.v[i]);
    }
    return sib_tv_iter(r, out);
}

static sib_tv extreme(sib_tr *r, sib_tv in, const sib_tv *a, bool max)
{
    sib_tlist l = sib_tv_items(r, in);
    size_t best = 0;
    if (!l.n) return empty();
    sib_tv *keys = keys_of(r, l, a[1], flag(a[0]));
    for (size_t i = 1; i < l.n; i++)
        if (max ? sib_tv_order(r, keys[i], keys[best], ">") == 1 : sib_tv_order(r, keys[i], keys[best], "<") < 0) best = i;
    return l.v[best];
}

FILTER(f_min)
{
    UNUSED;
    return extreme(r, in, a, false);
}

FILTER(f_max)
{
    UNUSED;
    return extreme(r, in, a, true);
}

FILTER(f_groupby)
{
    UNUSED;
    sib_tlist l = copied(r, sib_tv_items(r, in)), out = {0};
    sib_tv *names = sib_tarray(r, l.n + 1, sizeof *names), *keys = sib_tarray(r, l.n + 1, sizeof *keys), *at = sib_tarray(r, l.n + 1, sizeof *at);
    for (size_t i = 0; i < l.n; i++) {
        names[i] = path_get(r, l.v[i], a[0], a[1]);
        keys[i] = fold_key(r, names[i], flag(a[2]));
        at[i] = sib_tv_int((int64_t)i);
    }
    sib_tsort(r, keys, at, l.n, false);
    for (size_t i = 0; i < l.n;) {
        sib_tlist group = {0};
        size_t from = i;
        for (; i < l.n && sib_tv_equal(r, keys[i], keys[from]); i++) sib_tlist_add(r, &group, l.v[at[i].u.i]);
        sib_tlist_add(r, &out, with_flag(sib_tv_pair(r, names[at[from].u.i], sib_tv_list(r, TV_LIST, group)), TV_GROUP));
    }
    return sib_tv_list(r, TV_LIST, out);
}

FILTER(f_batch)
{
    UNUSED;
    sib_tlist l = sib_tv_items(r, in), out = {0};
    int64_t size = sib_tv_index(r, a[0], "linecount");
    if (size < 1) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "batch with a size below 1 is not supported");
    for (size_t i = 0; i < l.n;) {
        sib_tlist row = {0};
        for (; (int64_t)row.n < size && i < l.n; i++) sib_tlist_add(r, &row, l.v[i]);
        for (; (int64_t)row.n < size && given(a[1]); sib_twork(r, 0)) sib_tlist_add(r, &row, a[1]);
        sib_tlist_add(r, &out, sib_tv_list(r, TV_LIST, row));
    }
    return sib_tv_iter(r, out);
}

FILTER(f_slice)
{
    UNUSED;
    sib_tlist l = sib_tv_items(r, in), out = {0};
    int64_t slices = sib_tv_index(r, a[0], "slices");
    if (slices < 1) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "slice wants at least one slice");
    size_t each = l.n / (size_t)slices, more = l.n % (size_t)slices, at = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        sib_tlist row = {0};
        for (size_t k = 0; k < each + (i < more); k++) sib_tlist_add(r, &row, l.v[at++]);
        if (given(a[1]) && i >= more) sib_tlist_add(r, &row, a[1]);
        sib_tlist_add(r, &out, sib_tv_list(r, TV_LIST, row));
        sib_twork(r, 0);
    }
    return sib_tv_iter(r, out);
}

/* Arguments after the first `skip` positional ones. */
static sib_targs rest_of(const sib_targs *a, size_t skip)
{
    sib_targs rest = *a;
    if (rest.pos) rest.pos += skip;
    rest.n -= skip;
    return rest;
}

static int named(sib_tr *r, sib_tv name, bool filter)
{
    sib_str s = name.type == TV_STR ? sib_tv_text(name) : SIB_STR("?");
    int which = filter ? sib_tfilter_named(s) : sib_ttest_named(s);
    if (which < 0) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "there is no %s named '%.*s'", filter ? "filter" : "test", (int)(s.n > 80 ? 80 : s.n), s.p);
    return which;
}

/* What map and select go through: anything false counts as empty, whether it can be iterated over or not. */
static sib_tlist items_or_none(sib_tr *r, sib_tv in)
{
    return sib_tv_truth(in) ? sib_tv_items(r, in) : (sib_tlist){0};
}

FILTER(f_map)
{
    UNUSED;
    sib_tlist l = copied(r, items_or_none(r, in));
    if (!raw->n) {
        sib_tv by[2];
        if (!raw->n_kw) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "map requires a filter argument");
        sib_tbind(r, "map", raw, "attribute,default", 1, by);
        for (size_t i = 0; i < l.n; i++) l.v[i] = path_get(r, l.v[i], by[0], by[1]);
        return sib_tv_iter(r, l);
    }
    sib_targs rest = rest_of(raw, 1);
    int filter = named(r, raw->pos[0], true);
    for (size_t i = 0; i < l.n; i++) l.v[i] = sib_tfilter_call(r, filter, l.v[i], &rest);
    return sib_tv_iter(r, l);
}

static sib_tv chosen(sib_tr *r, sib_tv in, const sib_targs *raw, bool keep, bool by_attribute)
{
    sib_tlist l = items_or_none(r, in), out = {0};
    size_t skip = by_attribute;
    if (by_attribute && !raw->n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "an attribute name is missing");
    int test = raw->n > skip ? named(r, raw->pos[skip], false) : -1;
    sib_targs rest = rest_of(raw, raw->n > skip ? skip + 1 : skip);
    for (size_t i = 0; i < l.n; i++) {
        sib_tv v = by_attribute ? path_get(r, l.v[i], raw->pos[0], sib_tv_of(TV_ABSENT)) : l.v[i];
        bool hit = test < 0 ? sib_tv_truth(v) : sib_ttest_call(r, test, v, &rest);
        sib_twork(r, 0);
        if (hit == keep) sib_tlist_add(r, &out, l.v[i]);
    }
    return sib_tv_iter(r, out);
}

FILTER(f_select)
{
    UNUSED;
    return chosen(r, in, raw, true, false);
}

FILTER(f_reject)
{
    UNUSED;
    return chosen(r, in, raw, false, false);
}

FILTER(f_selectattr)
{
    UNUSED;
    return chosen(r, in, raw, true, true);
}

FILTER(f_rejectattr)
{
    UNUSED;
    return chosen(r, in, raw, false, true);
}

FILTER(f_default)
{
    UNUSED;
    bool replace = in.type == TV_UNDEF || (flag(a[1]) && !sib_tv_truth(in));
    return !replace ? in : a[0].type == TV_ABSENT ? sib_tv_bytes("", 0) : a[0];
}

FILTER(f_attr)
{
    UNUSED;
    return sib_tonly_attr(r, in, text_of(r, a[0]));
}

/* ---- tests ----------------------------------------------------------------------------------------------- */

#define TEST(name) static bool name(sib_tr *r, sib_tv in, const sib_tv *a)
#define IGNORE     (void)r, (void)in, (void)a

TEST(t_boolean)
{
    IGNORE;
    return in.type == TV_BOOL;
}

TEST(t_callable)
{
    IGNORE;
    return in.type == TV_MACRO || in.type == TV_METHOD || (in.type == TV_FUNC && in.sub != TF_SELF) || in.type == TV_UNDEF || in.type == TV_LOOP || in.type == TV_JOINER;
}

TEST(t_defined)
{
    IGNORE;
    return in.type != TV_UNDEF;
}

TEST(t_undefined)
{
    IGNORE;
    return in.type == TV_UNDEF;
}

static bool divides(sib_tr *r, sib_tv v, sib_tv by, int64_t rest)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (v.type == TV_STR) return sib_tv_equal(r, sib_tformat(r, v, by), sib_tv_int(rest));
    want_number(r, v, "this test");
    want_number(r, by, "this test");
    return sib_tnum_order(sib_tnum_binary(r, '%', v, by), sib_tv_int(rest)) == 0;
}

TEST(t_divisibleby)
{
    IGNORE;
    return divides(r, in, a[0], 0);
}

TEST(t_even)
{
    IGNORE;
    return divides(r, in, sib_tv_int(2), 0);
}

TEST(t_odd)
{
    IGNORE;
    return divides(r, in, sib_tv_int(2), 1);
}

TEST(t_eq)
{
    IGNORE;
    return sib_tv_equal(r, in, a[0]);
}

TEST(t_ne)
{
    IGNORE;
    return !sib_tv_equal(r, in, a[0]);
}

TEST(t_lt)
{
    IGNORE;
    return sib_tv_order(r, in, a[0], "<") < 0;
}

TEST(t_le)
{
    IGNORE;
    return sib_tv_order(r, in, a[0], "<=") <= 0;
}

TEST(t_gt)
{
    IGNORE;
    return sib_tv_order(r, in, a[0], ">") == 1;
}

TEST(t_ge)
{
    IGNORE;
    int c = sib_tv_order(r, in, a[0], ">=");
    return c == 0 || c == 1;
}

TEST(t_in)
{
    IGNORE;
    return sib_tv_in(r, in, a[0]);
}

TEST(t_escaped)
{
    IGNORE;
    return safety(in) & TV_SAFE;
}

TEST(t_true)
{
    IGNORE;
    return in.type == TV_BOOL && in.u.b;
}

TEST(t_false)
{
    IGNORE;
    return in.type == TV_BOOL && !in.u.b;
}

TEST(t_none)
{
    IGNORE;
    return in.type == TV_NONE;
}

TEST(t_string)
{
    IGNORE;
    return in.type == TV_STR;
}

TEST(t_mapping)
{
    IGNORE;
    return in.type == TV_DICT;
}

TEST(t_number)
{
    IGNORE;
    return sib_tv_is_num(in);
}

TEST(t_integer)
{
    IGNORE;
    return in.type == TV_INT || in.type == TV_BIG;
}

TEST(t_float)
{
    IGNORE;
    return in.type == TV_FLOAT;
}

TEST(t_iterable)
{
    IGNORE;
    return sib_tv_iterable(in);
}

TEST(t_sequence) /* has len() and [] */
{
    IGNORE;
    return sib_tv_iterable(in) && in.type != TV_ITER && in.type != TV_VIEW && in.type != TV_LOOP;
}

TEST(t_lower)
{
    IGNORE;
    return sib_tall(r, text_of(r, in), 'l');
}

TEST(t_upper)
{
    IGNORE;
    return sib_tall(r, text_of(r, in), 'u');
}

TEST(t_sameas)
{
    IGNORE;
    if (in.type != a[0].type || !sib_tv_equal(r, in, a[0])) return false;
    switch (in.type) {
    case TV_NONE:
    case TV_BOOL: return true;
    case TV_INT:
        if (in.u.i >= -5 && in.u.i <= 256) return true; /* CPython's shared small integers */
        break;
    case TV_LIST:
    case TV_TUPLE:
    case TV_DICT:
    case TV_NS: return in.u.list == a[0].u.list;
    default: break;
    }
    sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "sameas of two equal '%s' is not supported", sib_tv_type_name(in));
}

TEST(t_filter)
{
    IGNORE;
    return in.type == TV_STR && sib_tfilter_named(sib_tv_text(in)) >= 0;
}

TEST(t_test)
{
    IGNORE;
    return in.type == TV_STR && sib_ttest_named(sib_tv_text(in)) >= 0;
}

/* ---- tables ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *params; /* params NULL: the function reads its arguments itself */
    size_t need;
    filter_fn call;
} filters[] = {
    {"abs", "", 0, f_abs},
    {"attr", "name", 1, f_attr},
    {"batch", "linecount,fill_with", 1, f_batch},
    {"capitalize", "", 0, f_capitalize},
    {"center", "width", 0, f_center},
    {"count", "", 0, f_length},
    {"d", "default_value,boolean", 0, f_default},
    {"default", "default_value,boolean", 0, f_default},
    {"dictsort", "case_sensitive,by,reverse", 0, f_dictsort},
    {"e", "", 0, f_escape},
    {"escape", "", 0, f_escape},
    {"filesizeformat", NULL, 0, NULL},
    {"first", "", 0, f_first},
    {"float", "default", 0, f_float},
    {"forceescape", "", 0, f_forceescape},
    {"format", NULL, 0, f_format},
    {"groupby", "attribute,default,case_sensitive", 1, f_groupby},
    {"indent", "width,first,blank", 0, f_indent},
    {"int", "default,base", 0, f_int},
    {"items", "", 0, f_items},
    {"join", "d,attribute", 0, f_join},
    {"last", "", 0, f_last},
    {"length", "", 0, f_length},
    {"list", "", 0, f_list},
    {"lower", "", 0, f_lower},
    {"map", NULL, 0, f_map},
    {"max", "case_sensitive,attribute", 0, f_max},
    {"min", "case_sensitive,attribute", 0, f_min},
    {"pprint", NULL, 0, NULL},
    {"random", NULL, 0, NULL},
    {"reject", NULL, 0, f_reject},
    {"rejectattr", NULL, 0, f_rejectattr},
    {"replace", "old,new,count", 2, f_replace},
    {"reverse", "", 0, f_reverse},
    {"round", "precision,method", 0, f_round},
    {"safe", "", 0, f_safe},
    {"select", NULL, 0, f_select},
    {"selectattr", NULL, 0, f_selectattr},
    {"slice", "slices,fill_with", 1, f_slice},
    {"sort", "reverse,case_sensitive,attribute", 0, f_sort},
    {"string", "", 0, f_string},
    {"striptags", NULL, 0, NULL},
    {"sum", "attribute,start", 0, f_sum},
    {"title", "", 0, f_title},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, f_tojson},
    {"trim", "chars", 0, f_trim},
    {"truncate", "length,killwords,end,leeway", 0, f_truncate},
    {"unique", "case_sensitive,attribute", 0, f_unique},
    {"upper", "", 0, f_upper},
    {"urlencode", NULL, 0, NULL},
    {"urlize", NULL, 0, NULL},
    {"wordcount", NULL, 0, NULL},
    {"wordwrap", NULL, 0, NULL},
    {"xmlattr", NULL, 0, NULL},
};

static const struct {
    const char *name, *params;
    test_fn call;
} tests[] = {
    {"!=", "other", t_ne},           {"<", "other", t_lt},          {"<=", "other", t_le},     {"==", "other", t_eq},      {">", "other", t_gt},
    {">=", "other", t_ge},           {"boolean", "", t_boolean},    {"callable", "", t_callable}, {"defined", "", t_defined}, {"divisibleby", "num", t_divisibleby},
    {"eq", "other", t_eq},           {"equalto", "other", t_eq},    {"escaped", "", t_escaped}, {"even", "", t_even},       {"false", "", t_false},
    {"filter", "", t_filter},        {"float", "", t_float},        {"ge", "other", t_ge},     {"greaterthan", "other", t_gt}, {"gt", "other", t_gt},
    {"in", "seq", t_in},             {"integer", "", t_integer},    {"iterable", "", t_iterable}, {"le", "other", t_le},    {"lessthan", "other", t_lt},
    {"lower", "", t_lower},          {"lt", "other", t_lt},         {"mapping", "", t_mapping}, {"ne", "other", t_ne},      {"none", "", t_none},
    {"number", "", t_number},        {"odd", "", t_odd},            {"sameas", "other", t_sameas}, {"sequence", "", t_sequence}, {"string", "", t_string},
    {"test", "", t_test},            {"true", "", t_true},          {"undefined", "", t_undefined}, {"upper", "", t_upper},
};

int sib_tfilter_named(sib_str name)
{
    for (size_t i = 0; i < SIB_COUNT(filters); i++)
        if (sib_str_is(name, filters[i].name)) return (int)i;
    return -1;
}

int sib_ttest_named(sib_str name)
{
    for (size_t i = 0; i < SIB_COUNT(tests); i++)
        if (sib_str_is(name, tests[i].name)) return (int)i;
    return -1;
}

sib_tv sib_tfilter_call(sib_tr *r, int filter, sib_tv in, const sib_targs *a)
{
    sib_tv args[4];
    sib_twork(r, 0);
    if (!filters[filter].call) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "the filter '%s' is not supported", filters[filter].name);
    if (filters[filter].params) sib_tbind(r, filters[filter].name, a, filters[filter].params, filters[filter].need, args);
    bool made = sib_tmade_by(r, in, a);
    sib_tv v = filters[filter].call(r, in, args, a);
    r->mark_made = made;
    return v;
}

bool sib_ttest_call(sib_tr *r, int test, sib_tv in, const sib_targs *a)
{
    sib_tv args[1];
    sib_twork(r, 0);
    sib_tbind(r, tests[test].name, a, tests[test].params, *tests[test].params ? 1 : 0, args);
    return tests[test].call(r, in, args);
}
