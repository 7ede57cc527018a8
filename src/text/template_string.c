/* text/template_string.c - Python's str for the template engine: Unicode case and space, methods, formatting.
 *
 * Positions and lengths are in code points, as in Python; storage is UTF-8, and what cuts a string (strip, split,
 * slices) returns views of it. Case mapping is that of Unicode (Python's str.upper and so on, with SpecialCasing),
 * found from libutf8proc's simple mappings and full case folding. */
#include "text/template_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- characters ------------------------------------------------------------------------------------------ */

/* Texts here are valid UTF-8: sources, JSON and what is cut between code points. */
static uint32_t next(sib_str s, size_t *i)
{
    unsigned char c = (unsigned char)s.p[*i];
    if (c < 0x80) {
        ++*i;
        return c;
    }
    size_t len;
    uint32_t cp = sib_utf8_next(s.p + *i, s.n - *i, &len);
    *i += len;
    return cp;
}

static uint32_t previous(sib_str s, size_t *i)
{
    do
        --*i;
    while (*i && ((unsigned char)s.p[*i] & 0xC0) == 0x80);
    size_t at = *i;
    return next(s, &at);
}

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool sib_tspace(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static bool letter(uint32_t cp)
{
    if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool sib_tword(uint32_t cp, bool first)
{
    if (cp < 0x80) return letter(cp) || cp == '_' || (!first && cp >= '0' && cp <= '9');
    utf8proc_category_t c = category(cp);
    if (letter(cp) || c == UTF8PROC_CATEGORY_NL) return true;
    return !first && (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_PC);
}

static bool line_end(uint32_t cp) /* str.splitlines */
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static bool printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

/* ---- case ------------------------------------------------------------------------------------------------ */

static size_t fold(uint32_t cp, int32_t out[4])
{
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, 4, UTF8PROC_CASEFOLD, &boundary);
    if (n > 0 && n <= 4) return (size_t)n;
    out[0] = (int32_t)cp;
    return 1;
}

/* Full mappings of SpecialCasing.txt: a character whose folding is several characters (sharp s, ligatures, Greek with
 * iota subscript) has them, in the wanted case, as its mapping, unless it is a capital letter itself. */
static void put_upper(sib_tb *b, uint32_t cp)
{
    int32_t f[4];
    size_t n = cp < 0x80 || category(cp) == UTF8PROC_CATEGORY_LU ? 1 : fold(cp, f);
    if (n == 1) {
        sib_tb_cp(b, (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp));
        return;
    }
    for (size_t i = 0; i < n; i++) sib_tb_cp(b, (uint32_t)utf8proc_toupper(f[i]));
}

static bool cased(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static void put_title(sib_tb *b, uint32_t cp)
{
    uint32_t simple = (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
    int32_t f[4];
    bool one = cp < 0x80 || category(cp) == UTF8PROC_CATEGORY_LU || category(simple) == UTF8PROC_CATEGORY_LT;
    size_t n = one ? 1 : fold(cp, f);
    if (n == 1) {
        sib_tb_cp(b, simple);
        return;
    }
    size_t head = cased((uint32_t)f[0]) ? 0 : 1; /* the n of U+0149 stands behind its apostrophe */
    for (size_t i = 0; i < n; i++)
        sib_tb_cp(b, i == head ? (uint32_t)utf8proc_totitle(f[i]) : i && f[i] == 0x3B9 ? 0x345 : (uint32_t)f[i]); /* iota goes below */
}

static bool case_ignorable(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_LM ||
           c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024;
}

static bool final_sigma(sib_str s, size_t at, size_t after)
{
    bool before = false;
    while (at) {
        uint32_t cp = previous(s, &at);
        if (case_ignorable(cp)) continue;
        before = cased(cp);
        break;
    }
    while (before && after < s.n) {
        uint32_t cp = next(s, &after);
        if (!case_ignorable(cp)) return !cased(cp);
    }
    return before;
}

static void put_lower(sib_tb *b, sib_str s, size_t at, size_t after, uint32_t cp)
{
    if (cp == 0x130) {
        sib_tb_cp(b, 'i');
        sib_tb_cp(b, 0x307);
    } else if (cp == 0x3A3) {
        sib_tb_cp(b, final_sigma(s, at, after) ? 0x3C2 : 0x3C3);
    } else {
        sib_tb_cp(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    }
}

sib_tv sib_tcase(sib_tr *r, sib_str s, int how)
{
    sib_tb b = {.r = r};
    bool in_word = false, first = true;
    sib_twork(r, s.n);
    for (size_t i = 0; i < s.n; first = false) {
        size_t at = i;
        uint32_t cp = next(s, &i);
        int32_t f[4];
        int todo = how;
        if (how == SIB_CAPITALIZE) todo = first ? SIB_TITLE : SIB_LOWER;
        if (how == SIB_TITLE) {
            todo = in_word ? SIB_LOWER : SIB_TITLE;
            in_word = cased(cp);
        }
        if (how == SIB_SWAP) todo = category(cp) == UTF8PROC_CATEGORY_LU ? SIB_LOWER : category(cp) == UTF8PROC_CATEGORY_LL ? SIB_UPPER : -1;
        switch (todo) {
        case SIB_UPPER: put_upper(&b, cp); break;
        case SIB_LOWER: put_lower(&b, s, at, i, cp); break;
        case SIB_TITLE: put_title(&b, cp); break;
        case SIB_FOLD:
            for (size_t k = 0, n = fold(cp, f); k < n; k++) sib_tb_cp(&b, (uint32_t)f[k]);
            break;
        default: sib_tb_cp(&b, cp);
        }
    }
    return sib_tb_done(&b);
}

/* ---- cutting --------------------------------------------------------------------------------------------- */

size_t sib_tcount(sib_tr *r, sib_str s)
{
    size_t n = 0;
    sib_twork(r, s.n);
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

size_t sib_toffset(sib_str s, size_t index)
{
    size_t i = 0;
    for (; i < s.n && index; index--)
        do
            i++;
        while (i < s.n && ((unsigned char)s.p[i] & 0xC0) == 0x80);
    return i;
}

static bool in_set(uint32_t cp, const sib_str *chars)
{
    if (!chars) return sib_tspace(cp);
    for (size_t i = 0; i < chars->n;)
        if (next(*chars, &i) == cp) return true;
    return false;
}

sib_str sib_tstrip(sib_str s, int sides, const sib_str *chars)
{
    size_t a = 0, b = s.n;
    for (size_t i = 0; (sides & 1) && a < b; a = i)
        if (!in_set(next(s, &i), chars)) break;
    for (size_t i = b; (sides & 2) && a < b; b = i)
        if (!in_set(previous(s, &i), chars)) break;
    return (sib_str){s.p + a, b - a};
}

sib_tlist sib_tchars(sib_tr *r, sib_str s)
{
    size_t n = sib_tcount(r, s);
    sib_tlist l = {sib_tarray(r, n ? n : 1, sizeof *l.v), 0, n};
    sib_twork(r, n);
    for (size_t i = 0, at = 0; i < s.n; at = i) {
        (void)next(s, &i);
        l.v[l.n++] = sib_tv_bytes(s.p + at, i - at);
    }
    return l;
}

sib_tlist sib_tlines(sib_tr *r, sib_str s, bool keep)
{
    sib_tlist l = {0};
    sib_twork(r, s.n);
    for (size_t i = 0, from = 0; i < s.n;) {
        size_t end = i;
        uint32_t cp = next(s, &i);
        bool stop = line_end(cp);
        if (cp == '\r' && i < s.n && s.p[i] == '\n') i++;
        if (!stop && i < s.n) continue;
        if (!stop || keep) end = i;
        sib_tlist_add(r, &l, sib_tv_bytes(s.p + from, end - from));
        from = i;
    }
    return l;
}

/* First occurrence of `part` at or after byte `from`, SIZE_MAX when there is none. */
static size_t find(sib_tr *r, sib_str s, sib_str part, size_t from)
{
    if (from > s.n) return SIZE_MAX;
    if (!part.n) return from;
    const char *at = memmem(s.p + from, s.n - from, part.p, part.n);
    sib_twork(r, at ? (size_t)(at - s.p) - from : s.n - from);
    return at ? (size_t)(at - s.p) : SIZE_MAX;
}

static size_t find_last(sib_tr *r, sib_str s, sib_str part)
{
    size_t last = SIZE_MAX;
    if (!part.n) return s.n;
    for (size_t at = 0; (at = find(r, s, part, at)) != SIZE_MAX; at++) last = at;
    return last;
}

sib_tv sib_treplace(sib_tr *r, sib_str s, sib_str from, sib_str to, int64_t count)
{
    sib_tb b = {.r = r};
    size_t at = 0;
    for (; count; count -= count > 0) {
        size_t hit = find(r, s, from, at);
        if (hit == SIZE_MAX) break;
        sib_tb_add(&b, s.p + at, hit - at);
        sib_tb_add(&b, to.p, to.n);
        at = hit + from.n;
        if (from.n) continue;
        if (hit == s.n) return sib_tb_done(&b); /* an empty string stands before each character and at the end */
        size_t i = hit;
        (void)next(s, &i);
        sib_tb_add(&b, s.p + hit, i - hit);
        at = i;
    }
    if (!at && !b.n) return sib_tv_bytes(s.p, s.n);
    sib_tb_add(&b, s.p + at, s.n - at);
    return sib_tb_done(&b);
}

static sib_tlist split(sib_tr *r, sib_str s, const sib_str *sep, int64_t max)
{
    sib_tlist l = {0};
    size_t at = 0;
    if (sep) {
        if (!sep->n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "empty separator");
        for (; max; max -= max > 0) {
            size_t hit = find(r, s, *sep, at);
            if (hit == SIZE_MAX) break;
            sib_tlist_add(r, &l, sib_tv_bytes(s.p + at, hit - at));
            at = hit + sep->n;
        }
        sib_tlist_add(r, &l, sib_tv_bytes(s.p + at, s.n - at));
        return l;
    }
    sib_twork(r, s.n);
    for (;;) {
        sib_str rest = sib_tstrip((sib_str){s.p + at, s.n - at}, 1, NULL);
        if (!rest.n) return l;
        size_t i = 0, end = 0;
        for (; end < rest.n; end = i)
            if (sib_tspace(next(rest, &i))) break;
        if (!max) { /* the rest as one piece, without the space at its end, as Python does */
            sib_tlist_add(r, &l, sib_tv_bytes(rest.p, sib_tstrip(rest, 2, NULL).n));
            return l;
        }
        max -= max > 0;
        sib_tlist_add(r, &l, sib_tv_bytes(rest.p, end));
        at = (size_t)(rest.p - s.p) + end;
    }
}

static sib_tlist rsplit(sib_tr *r, sib_str s, const sib_str *sep, int64_t max)
{
    sib_tlist back = {0}, l = {0};
    if (max < 0) return split(r, s, sep, -1);
    if (sep && !sep->n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "empty separator");
    for (; max; max--) {
        if (!sep) {
            s = sib_tstrip(s, 2, NULL);
            size_t i = s.n, from = s.n;
            for (; i; from = i)
                if (sib_tspace(previous(s, &i))) break;
            if (!i) break;
            sib_tlist_add(r, &back, sib_tv_bytes(s.p + from, s.n - from));
            s.n = from;
            continue;
        }
        size_t hit = find_last(r, s, *sep);
        if (hit == SIZE_MAX) break;
        sib_tlist_add(r, &back, sib_tv_bytes(s.p + hit + sep->n, s.n - hit - sep->n));
        s.n = hit;
    }
    if (!sep) s = sib_tstrip(s, 3, NULL);
    if (sep || s.n) sib_tlist_add(r, &l, sib_tv_bytes(s.p, s.n));
    while (back.n) sib_tlist_add(r, &l, back.v[--back.n]);
    return l;
}

void sib_tslice(sib_tr *r, size_t n, sib_tv a, sib_tv b, sib_tv c, int64_t *start, int64_t *step, size_t *count)
{
    const char *what = "a slice index";
    int64_t len = (int64_t)n, lo, hi;
    *step = c.type == TV_NONE ? 1 : sib_tv_index(r, c, what);
    if (!*step) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "slice step cannot be zero");
    if (*step < -len - 1) *step = -len - 1; /* no need to step farther, and no overflow */
    if (*step > len + 1) *step = len + 1;
    int64_t least = *step < 0 ? -1 : 0, most = *step < 0 ? len - 1 : len;
    lo = a.type == TV_NONE ? *step < 0 ? most : least : sib_tv_index(r, a, what);
    hi = b.type == TV_NONE ? *step < 0 ? least : most : sib_tv_index(r, b, what);
    if (a.type != TV_NONE && lo < 0) lo = lo < -len ? least : lo + len;
    if (b.type != TV_NONE && hi < 0) hi = hi < -len ? least : hi + len;
    lo = lo < least ? least : lo > most ? most : lo;
    hi = hi < least ? least : hi > most ? most : hi;
    *start = lo;
    *count = *step > 0 ? lo < hi ? (size_t)((hi - lo - 1) / *step + 1) : 0 : lo > hi ? (size_t)((lo - hi - 1) / -*step + 1) : 0;
}

/* ---- building -------------------------------------------------------------------------------------------- */

void sib_tput_repr(sib_tb *b, sib_str s)
{
    char quote = s.n && memchr(s.p, '\'', s.n) && !memchr(s.p, '"', s.n) ? '"' : '\'', text[16];
    sib_tb_addc(b, quote);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = next(s, &i);
        if (cp == (uint32_t)quote || cp == '\\')
            (void)snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            (void)snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (printable(cp))
            text[sib_utf8_put(cp, text)] = 0;
        else
            (void)snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
        sib_tb_addz(b, text);
    }
    sib_tb_addc(b, quote);
}

sib_tv sib_tescape(sib_tr *r, sib_tv v)
{
    v = sib_tv_str(r, v);
    if (v.flag & TV_SAFE) return v;
    sib_tb b = {.r = r};
    for (size_t i = 0; i < v.u.s.n; i++) {
        switch (v.u.s.p[i]) {
        case '&': sib_tb_addz(&b, "&amp;"); break;
        case '<': sib_tb_addz(&b, "&lt;"); break;
        case '>': sib_tb_addz(&b, "&gt;"); break;
        case '\'': sib_tb_addz(&b, "&#39;"); break;
        case '"': sib_tb_addz(&b, "&#34;"); break;
        default: sib_tb_addc(&b, v.u.s.p[i]);
        }
    }
    sib_twork(r, v.u.s.n);
    v = sib_tb_done(&b);
    v.flag = TV_SAFE;
    return v;
}

sib_tv sib_tconcat(sib_tr *r, sib_tv a, sib_tv b)
{
    uint8_t safe = (a.flag | b.flag) & TV_SAFE;
    if (safe) {
        a = sib_tescape(r, a);
        b = sib_tescape(r, b);
    }
    sib_tb t = {.r = r};
    if (a.u.s.n && a.u.s.p + a.u.s.n == r->tail) { /* the bytes behind are free: grow there, nobody sees them */
        t.p = r->tail - a.u.s.n;
        t.n = a.u.s.n;
        t.cap = a.u.s.n + (size_t)(r->tail_end - r->tail);
    } else {
        sib_tb_add(&t, a.u.s.p, a.u.s.n);
    }
    sib_tb_add(&t, b.u.s.p, b.u.s.n);
    a = sib_tb_done(&t);
    a.flag = safe;
    return a;
}

sib_tv sib_tpad(sib_tr *r, sib_str s, int64_t width, char fill, int side)
{
    int64_t missing = width - (int64_t)sib_tcount(r, s);
    if (missing <= 0) return sib_tv_bytes(s.p, s.n);
    int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1); /* str.center's rounding */
    sib_tb b = {.r = r};
    sib_tb_fill(&b, fill, (size_t)left);
    sib_tb_add(&b, s.p, s.n);
    sib_tb_fill(&b, fill, (size_t)(missing - left));
    return sib_tb_done(&b);
}

sib_tv sib_tjoin(sib_tr *r, sib_str glue, sib_tlist items, bool safe)
{
    sib_tb b = {.r = r};
    sib_tlist texts = {sib_tarray(r, items.n ? items.n : 1, sizeof *texts.v), items.n, items.n};
    for (size_t i = 0; i < items.n; i++) texts.v[i] = safe ? sib_tescape(r, items.v[i]) : sib_tv_str(r, items.v[i]);
    for (size_t i = 0; i < texts.n; i++) {
        if (i) sib_tb_add(&b, glue.p, glue.n);
        sib_tb_add(&b, texts.v[i].u.s.p, texts.v[i].u.s.n);
    }
    sib_twork(r, items.n);
    sib_tv v = sib_tb_done(&b);
    if (safe) v.flag = TV_SAFE;
    return v;
}

/* ---- % formatting (Python's printf-style formatting) ----------------------------------------------------- */

typedef struct spec {
    bool minus, plus, space, zero, alt;
    int64_t width, precision;
} spec;

static void put_padded(sib_tb *b, const spec *f, sib_str sign, sib_str body, bool zeros)
{
    size_t have = sib_tcount(b->r, sign) + sib_tcount(b->r, body);
    size_t pad = f->width > (int64_t)have ? (size_t)f->width - have : 0;
    if (!f->minus && !zeros) sib_tb_fill(b, ' ', pad);
    sib_tb_add(b, sign.p, sign.n);
    if (!f->minus && zeros) sib_tb_fill(b, '0', pad);
    sib_tb_add(b, body.p, body.n);
    if (f->minus) sib_tb_fill(b, ' ', pad);
}

static void put_number(sib_tr *r, sib_tb *b, const spec *f, char kind, sib_tv v)
{
    char text[512], c_format[32];
    sib_tb digits = {.r = r};
    if (!sib_tv_is_num(v)) {
        if (v.type == TV_UNDEF) sib_tundefined(r, v);
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%%%c format: a number is required, not %s", kind, sib_tv_type_name(v));
    }
    if (strchr("diu", kind)) {
        if (v.type == TV_FLOAT) v = sib_tnum_from_double(r, v.u.f);
        sib_tnum_put(&digits, v.type == TV_BOOL ? sib_tv_int(v.u.b) : v);
        if (f->precision >= 0) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "a precision with %%%c is not supported", kind);
    } else if (strchr("xXo", kind)) {
        if (v.type == TV_FLOAT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%%%c format: an integer is required, not float", kind);
        if (v.type == TV_BIG || f->alt || f->precision >= 0) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "this form of %%%c is not supported", kind);
        int64_t i = v.type == TV_BOOL ? v.u.b : v.u.i;
        (void)snprintf(c_format, sizeof c_format, "%%s%%ll%c", kind);
        (void)snprintf(text, sizeof text, c_format, i < 0 ? "-" : "", i < 0 ? -(unsigned long long)i : (unsigned long long)i);
        sib_tb_addz(&digits, text);
    } else {
        if (f->precision > 100) sib_tfail(r, SIB_TEMPLATE_LIMIT, "a precision above 100 is not supported");
        (void)snprintf(c_format, sizeof c_format, "%%%s.%d%c", f->alt ? "#" : "", f->precision < 0 ? 6 : (int)f->precision, kind);
        (void)snprintf(text, sizeof text, c_format, sib_tv_double(r, v));
        sib_tb_addz(&digits, text);
    }
    sib_str body = sib_tv_text(sib_tb_done(&digits)), sign = {"", 0};
    if (body.p[0] == '-') {
        sign = (sib_str){body.p, 1};
        body.p++;
        body.n--;
    } else if (f->plus || f->space) {
        sign = (sib_str){f->plus ? "+" : " ", 1};
    }
    put_padded(b, f, sign, body, f->zero);
}

static sib_tv format_values(sib_tr *r, sib_tv format, sib_tv args)
{
    sib_tb b = {.r = r};
    sib_str s = sib_tv_text(format);
    bool tuple = args.type == TV_TUPLE, used = args.type == TV_DICT || args.type == TV_LIST;
    size_t at = 0;
    for (size_t i = 0; i < s.n;) {
        const char *p = memchr(s.p + i, '%', s.n - i);
        size_t stop = p ? (size_t)(p - s.p) : s.n;
        sib_tb_add(&b, s.p + i, stop - i);
        if (!p) break;
        i = stop + 1;
        spec f = {.precision = -1};
        sib_tv v = sib_tv_of(TV_ABSENT);
        if (i < s.n && s.p[i] == '(') {
            size_t open = ++i;
            while (i < s.n && s.p[i] != ')') i++;
            if (i == s.n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "incomplete format key");
            if (args.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "format requires a mapping");
            sib_tv *found = sib_tdict_get(r, args.u.dict, sib_tv_bytes(s.p + open, i - open));
            if (!found) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "format key '%.*s' is missing", (int)(i - open > 80 ? 80 : i - open), s.p + open);
            v = *found;
            i++;
        }
        for (bool flag = true; flag && i < s.n; i += flag) {
            switch (s.p[i]) {
            case '-': f.minus = true; break;
            case '+': f.plus = true; break;
            case ' ': f.space = true; break;
            case '0': f.zero = true; break;
            case '#': f.alt = true; break;
            default: flag = false;
            }
        }
        for (; i < s.n && s.p[i] >= '0' && s.p[i] <= '9' && f.width < 1000000; i++) f.width = f.width * 10 + s.p[i] - '0';
        if (i < s.n && s.p[i] == '.')
            for (f.precision = 0, i++; i < s.n && s.p[i] >= '0' && s.p[i] <= '9' && f.precision < 1000000; i++) f.precision = f.precision * 10 + s.p[i] - '0';
        if (i == s.n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "incomplete format");
        char kind = s.p[i++];
        if (kind == '%') {
            sib_tb_addc(&b, '%');
            continue;
        }
        if (!strchr("diuxXoeEfFgGcrs", kind) || !kind) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "unsupported format character '%c'", kind ? kind : '0');
        if (v.type == TV_ABSENT) {
            if (tuple ? at == args.u.list->n : at == 1) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "not enough arguments for format string");
            v = tuple ? args.u.list->v[at] : args;
            at++;
        }
        if (kind == 'c') sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "%%c is not supported");
        if (kind == 's' || kind == 'r') {
            sib_tb quoted = {.r = r};
            if (kind == 'r') sib_tv_repr(r, &quoted, v);
            v = kind == 'r' ? sib_tb_done(&quoted) : v;
            sib_str body = sib_tv_text(format.flag & TV_SAFE ? sib_tescape(r, v) : sib_tv_str(r, v));
            if (f.precision >= 0) body.n = sib_toffset(body, (size_t)f.precision);
            put_padded(&b, &f, (sib_str){"", 0}, body, false);
        } else {
            put_number(r, &b, &f, kind, v);
        }
    }
    if (!used && at < (tuple ? args.u.list->n : 1)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "not all arguments converted during string formatting");
    sib_tv out = sib_tb_done(&b);
    out.flag = format.flag & TV_SAFE;
    return out;
}

sib_tv sib_tformat(sib_tr *r, sib_tv format, sib_tv args)
{
    bool made = sib_tmade_from(r, args);
    sib_tv v = format_values(r, format, args);
    r->mark_made = made;
    return v;
}

/* str.format with plain fields: {} {0} {name}. */
static sib_tv format_fields(sib_tr *r, sib_str s, const sib_targs *a)
{
    sib_tb b = {.r = r};
    size_t at = 0;
    for (size_t i = 0; i < s.n;) {
        char c = s.p[i++];
        if (c != '{' && c != '}') {
            sib_tb_addc(&b, c);
            continue;
        }
        if (i < s.n && s.p[i] == c) {
            sib_tb_addc(&b, c);
            i++;
            continue;
        }
        if (c == '}') sib_tfail(r, SIB_TEMPLATE_RUNTIME, "single '}' encountered in format string");
        size_t from = i;
        while (i < s.n && s.p[i] != '}') {
            if (strchr(".[!:{", s.p[i])) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "str.format with more than plain fields is not supported");
            i++;
        }
        if (i == s.n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "expected '}' before end of string");
        sib_str name = {s.p + from, i++ - from};
        sib_tv v = sib_tv_of(TV_ABSENT), index;
        if (!name.n)
            index = sib_tv_int((int64_t)at++);
        else if (!sib_tnum_int(r, name, 10, &index))
            index = sib_tv_int(-1);
        if (index.type == TV_INT && index.u.i >= 0 && (uint64_t)index.u.i < a->n) v = a->pos[index.u.i];
        for (size_t k = 0; k < a->n_kw; k++)
            if (name.n && sib_str_eq(sib_tv_text(a->kw[k].key), name)) v = a->kw[k].value;
        if (v.type == TV_ABSENT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "str.format has no argument for '%.*s'", (int)(name.n > 80 ? 80 : name.n), name.p);
        v = sib_tv_str(r, v);
        sib_tb_add(&b, v.u.s.p, v.u.s.n);
    }
    return sib_tb_done(&b);
}

/* ---- questions about whole strings ----------------------------------------------------------------------- */

bool sib_tall(sib_tr *r, sib_str s, int what)
{
    bool any = what == 'A' || what == 'p';
    sib_twork(r, s.n);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = next(s, &i);
        utf8proc_category_t c = category(cp);
        bool yes;
        switch (what) {
        case 's': yes = sib_tspace(cp); break;                     /* isspace */
        case 'a': yes = letter(cp); break;                         /* isalpha */
        case 'A': yes = cp < 0x80; break;                          /* isascii */
        case 'p': yes = printable(cp); break;                      /* isprintable */
        case 'D': yes = c == UTF8PROC_CATEGORY_ND; break;          /* isdecimal */
        case 'd':                                                  /* isdigit: also superscripts and circled digits */
        case 'n':                                                  /* isalnum */
            yes = c == UTF8PROC_CATEGORY_ND || (what == 'n' && letter(cp));
            if (!yes && (c == UTF8PROC_CATEGORY_NO || c == UTF8PROC_CATEGORY_NL))
                sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "testing this kind of digit is not supported");
            break;
        default: { /* islower, isupper: at least one cased character, none of the other case */
            if (cp >= 0x80 && (c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_SO || cp == 0xAA || cp == 0xBA))
                sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "testing the case of this kind of character is not supported");
            bool hit = c == (what == 'l' ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU);
            yes = hit || !cased(cp);
            any |= hit;
            if (!yes) return false;
            continue;
        }
        }
        if (!yes) return false;
        any = true;
    }
    return any;
}

/* ---- methods --------------------------------------------------------------------------------------------- */

/* Every public method of Python's types, so that `x.name is defined` answers as there; those without a body here
 * are refused when called. */
enum {
    M_CAPITALIZE, M_CASEFOLD, M_CENTER, M_COUNT, M_ENDSWITH, M_FIND, M_FORMAT, M_INDEX, M_ISALNUM, M_ISALPHA, M_ISASCII, M_ISDECIMAL, M_ISDIGIT,
    M_ISLOWER, M_ISPRINTABLE, M_ISSPACE, M_ISUPPER, M_JOIN, M_LJUST, M_LOWER, M_LSTRIP, M_PARTITION, M_REMOVEPREFIX, M_REMOVESUFFIX, M_REPLACE,
    M_RFIND, M_RINDEX, M_RJUST, M_RPARTITION, M_RSPLIT, M_RSTRIP, M_SPLIT, M_SPLITLINES, M_STARTSWITH, M_STRIP, M_SWAPCASE, M_TITLE, M_UPPER,
    M_ZFILL, M_GET, M_KEYS, M_VALUES, M_ITEMS, M_COPY, M_SEQ_COUNT, M_SEQ_INDEX, M_IS_INTEGER, M_BIT_LENGTH, M_CYCLE, M_CHANGED, M_NEXT, M_RESET,
    M_UNSAFE, /* from here on: changes its object */
    M_REFUSED = M_UNSAFE + 1
};

typedef struct method {
    const char *name, *params; /* params NULL: takes anything */
    uint8_t need, what;
} method;

static const method str_methods[] = {
    {"capitalize", "", 0, M_CAPITALIZE}, {"casefold", "", 0, M_CASEFOLD}, {"center", "width,fillchar", 1, M_CENTER}, {"count", "sub,start,end", 1, M_COUNT},
    {"endswith", "suffix,start,end", 1, M_ENDSWITH}, {"find", "sub,start,end", 1, M_FIND}, {"format", NULL, 0, M_FORMAT}, {"index", "sub,start,end", 1, M_INDEX},
    {"isalnum", "", 0, M_ISALNUM}, {"isalpha", "", 0, M_ISALPHA}, {"isascii", "", 0, M_ISASCII}, {"isdecimal", "", 0, M_ISDECIMAL},
    {"isdigit", "", 0, M_ISDIGIT}, {"islower", "", 0, M_ISLOWER}, {"isprintable", "", 0, M_ISPRINTABLE}, {"isspace", "", 0, M_ISSPACE},
    {"isupper", "", 0, M_ISUPPER}, {"join", "iterable", 1, M_JOIN}, {"ljust", "width,fillchar", 1, M_LJUST}, {"lower", "", 0, M_LOWER},
    {"lstrip", "chars", 0, M_LSTRIP}, {"partition", "sep", 1, M_PARTITION}, {"removeprefix", "prefix", 1, M_REMOVEPREFIX},
    {"removesuffix", "suffix", 1, M_REMOVESUFFIX}, {"replace", "old,new,count", 2, M_REPLACE}, {"rfind", "sub,start,end", 1, M_RFIND},
    {"rindex", "sub,start,end", 1, M_RINDEX}, {"rjust", "width,fillchar", 1, M_RJUST}, {"rpartition", "sep", 1, M_RPARTITION},
    {"rsplit", "sep,maxsplit", 0, M_RSPLIT}, {"rstrip", "chars", 0, M_RSTRIP}, {"split", "sep,maxsplit", 0, M_SPLIT},
    {"splitlines", "keepends", 0, M_SPLITLINES}, {"startswith", "prefix,start,end", 1, M_STARTSWITH}, {"strip", "chars", 0, M_STRIP},
    {"swapcase", "", 0, M_SWAPCASE}, {"title", "", 0, M_TITLE}, {"upper", "", 0, M_UPPER}, {"zfill", "width", 1, M_ZFILL},
    {"encode", NULL, 0, M_REFUSED}, {"expandtabs", NULL, 0, M_REFUSED}, {"format_map", NULL, 0, M_REFUSED}, {"isidentifier", NULL, 0, M_REFUSED},
    {"isnumeric", NULL, 0, M_REFUSED}, {"istitle", NULL, 0, M_REFUSED}, {"maketrans", NULL, 0, M_REFUSED}, {"translate", NULL, 0, M_REFUSED}, {0}};
static const method dict_methods[] = {
    {"get", "key,default", 1, M_GET}, {"keys", "", 0, M_KEYS}, {"values", "", 0, M_VALUES}, {"items", "", 0, M_ITEMS}, {"copy", "", 0, M_COPY},
    {"clear", NULL, 0, M_UNSAFE}, {"pop", NULL, 0, M_UNSAFE}, {"popitem", NULL, 0, M_UNSAFE}, {"setdefault", NULL, 0, M_UNSAFE},
    {"update", NULL, 0, M_UNSAFE}, {"fromkeys", NULL, 0, M_REFUSED}, {0}};
static const method list_methods[] = {
    {"copy", "", 0, M_COPY}, {"count", "value", 1, M_SEQ_COUNT}, {"index", "value,start,stop", 1, M_SEQ_INDEX}, {"append", NULL, 0, M_UNSAFE},
    {"clear", NULL, 0, M_UNSAFE}, {"extend", NULL, 0, M_UNSAFE}, {"insert", NULL, 0, M_UNSAFE}, {"pop", NULL, 0, M_UNSAFE},
    {"remove", NULL, 0, M_UNSAFE}, {"reverse", NULL, 0, M_UNSAFE}, {"sort", NULL, 0, M_UNSAFE}, {0}};
static const method tuple_methods[] = {{"count", "value", 1, M_SEQ_COUNT}, {"index", "value,start,stop", 1, M_SEQ_INDEX}, {0}};
static const method int_methods[] = {{"bit_length", "", 0, M_BIT_LENGTH}, {"as_integer_ratio", NULL, 0, M_REFUSED}, {"bit_count", NULL, 0, M_REFUSED},
                                     {"conjugate", NULL, 0, M_REFUSED}, {"from_bytes", NULL, 0, M_REFUSED}, {"to_bytes", NULL, 0, M_REFUSED}, {0}};
static const method float_methods[] = {{"is_integer", "", 0, M_IS_INTEGER}, {"as_integer_ratio", NULL, 0, M_REFUSED}, {"conjugate", NULL, 0, M_REFUSED},
                                       {"fromhex", NULL, 0, M_REFUSED}, {"hex", NULL, 0, M_REFUSED}, {0}};
static const method loop_methods[] = {{"cycle", NULL, 0, M_CYCLE}, {"changed", NULL, 0, M_CHANGED}, {0}};
static const method cycler_methods[] = {{"next", "", 0, M_NEXT}, {"reset", "", 0, M_RESET}, {0}};
static const method view_methods[] = {{"isdisjoint", NULL, 0, M_REFUSED}, {"mapping", NULL, 0, M_REFUSED}, {0}};

static const method *methods_of(sib_tv v)
{
    switch (v.type) {
    case TV_STR: return str_methods;
    case TV_DICT: return dict_methods;
    case TV_LIST: return list_methods;
    case TV_TUPLE:
    case TV_RANGE: return tuple_methods;
    case TV_BOOL:
    case TV_INT:
    case TV_BIG: return int_methods;
    case TV_FLOAT: return float_methods;
    case TV_LOOP: return loop_methods;
    case TV_CYCLER: return cycler_methods;
    case TV_VIEW: return view_methods;
    default: return NULL;
    }
}

int sib_tmethod(sib_tv self, sib_str name)
{
    const method *m = methods_of(self);
    for (int i = 0; m && m[i].name; i++)
        if (sib_str_is(name, m[i].name)) return m[i].what == M_UNSAFE ? -2 : i;
    return -1;
}

static sib_str want_str(sib_tr *r, sib_tv v, const char *who)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (v.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s wants a string, not '%s'", who, sib_tv_type_name(v));
    return sib_tv_text(v);
}

static int64_t want_int(sib_tr *r, sib_tv v, int64_t otherwise)
{
    return v.type == TV_ABSENT || v.type == TV_NONE ? otherwise : sib_tv_index(r, v, "an argument");
}

/* The part of s that start and end (code points, as slice indices) leave; *skipped: code points before it. false when start is past the end. */
static bool window(sib_tr *r, sib_str *s, sib_tv start, sib_tv end, int64_t *skipped)
{
    int64_t n = (int64_t)sib_tcount(r, *s), lo = want_int(r, start, 0), hi = want_int(r, end, n);
    if (lo < 0) lo = lo < -n ? 0 : lo + n;
    if (hi < 0) hi = hi < -n ? 0 : hi + n;
    if (hi > n) hi = n;
    *skipped = lo;
    if (lo > hi) return false;
    size_t a = sib_toffset(*s, (size_t)lo), b = sib_toffset(*s, (size_t)hi);
    *s = (sib_str){s->p + a, b - a};
    return true;
}

static sib_tv affix(sib_tr *r, sib_str s, const sib_tv *a, bool at_end)
{
    int64_t skipped;
    sib_tlist one = {(sib_tv *)a, 1, 1};
    const sib_tlist *l = a[0].type == TV_TUPLE ? a[0].u.list : &one;
    bool fits = window(r, &s, a[1], a[2], &skipped), found = false;
    for (size_t i = 0; i < l->n; i++) {
        sib_str x = want_str(r, l->v[i], at_end ? "endswith" : "startswith");
        sib_twork(r, x.n);
        found |= fits && x.n <= s.n && !memcmp(at_end ? s.p + s.n - x.n : s.p, x.p, x.n);
    }
    return sib_tv_bool(found);
}

static sib_tv search(sib_tr *r, sib_str s, const sib_tv *a, bool last, bool must)
{
    int64_t skipped;
    sib_str part = want_str(r, a[0], "find");
    size_t hit = SIZE_MAX;
    if (window(r, &s, a[1], a[2], &skipped)) hit = last ? find_last(r, s, part) : find(r, s, part, 0);
    if (hit == SIZE_MAX && must) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "substring not found");
    return sib_tv_int(hit == SIZE_MAX ? -1 : skipped + (int64_t)sib_tcount(r, (sib_str){s.p, hit}));
}

static sib_tv partition(sib_tr *r, sib_str s, sib_str sep, bool last)
{
    if (!sep.n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "empty separator");
    size_t hit = last ? find_last(r, s, sep) : find(r, s, sep, 0);
    sib_tv *v = sib_tarray(r, 3, sizeof *v), all = sib_tv_bytes(s.p, s.n), none = sib_tv_bytes("", 0);
    if (hit == SIZE_MAX) {
        v[0] = last ? none : all;
        v[1] = none;
        v[2] = last ? all : none;
    } else {
        v[0] = sib_tv_bytes(s.p, hit);
        v[1] = sib_tv_bytes(sep.p, sep.n);
        v[2] = sib_tv_bytes(s.p + hit + sep.n, s.n - hit - sep.n);
    }
    return sib_tv_list(r, TV_TUPLE, (sib_tlist){v, 3, 3});
}

static sib_tv pad(sib_tr *r, sib_str s, const sib_tv *a, int side)
{
    sib_str fill = a[1].type == TV_ABSENT ? SIB_STR(" ") : want_str(r, a[1], "padding");
    if (fill.n != 1) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "padding with other than one ASCII character is not supported");
    return sib_tpad(r, s, sib_tv_index(r, a[0], "a width"), fill.p[0], side);
}

static sib_tv str_method(sib_tr *r, sib_tv self, int what, sib_tv *a)
{
    sib_str s = sib_tv_text(self), arg = {"", 0};
    const sib_str *opt = NULL; /* first argument, where it may be none */
    if (a[0].type == TV_STR) {
        arg = sib_tv_text(a[0]);
        opt = &arg;
    }
    switch (what) {
    case M_CAPITALIZE: return sib_tcase(r, s, SIB_CAPITALIZE);
    case M_CASEFOLD: return sib_tcase(r, s, SIB_FOLD);
    case M_LOWER: return sib_tcase(r, s, SIB_LOWER);
    case M_UPPER: return sib_tcase(r, s, SIB_UPPER);
    case M_TITLE: return sib_tcase(r, s, SIB_TITLE);
    case M_SWAPCASE: return sib_tcase(r, s, SIB_SWAP);
    case M_CENTER: return pad(r, s, a, 0);
    case M_LJUST: return pad(r, s, a, -1);
    case M_RJUST: return pad(r, s, a, 1);
    case M_ISALNUM: return sib_tv_bool(sib_tall(r, s, 'n'));
    case M_ISALPHA: return sib_tv_bool(sib_tall(r, s, 'a'));
    case M_ISASCII: return sib_tv_bool(sib_tall(r, s, 'A'));
    case M_ISDECIMAL: return sib_tv_bool(sib_tall(r, s, 'D'));
    case M_ISDIGIT: return sib_tv_bool(sib_tall(r, s, 'd'));
    case M_ISLOWER: return sib_tv_bool(sib_tall(r, s, 'l'));
    case M_ISPRINTABLE: return sib_tv_bool(sib_tall(r, s, 'p'));
    case M_ISSPACE: return sib_tv_bool(sib_tall(r, s, 's'));
    case M_ISUPPER: return sib_tv_bool(sib_tall(r, s, 'u'));
    case M_ENDSWITH: return affix(r, s, a, true);
    case M_STARTSWITH: return affix(r, s, a, false);
    case M_FIND: return search(r, s, a, false, false);
    case M_RFIND: return search(r, s, a, true, false);
    case M_INDEX: return search(r, s, a, false, true);
    case M_RINDEX: return search(r, s, a, true, true);
    case M_STRIP:
    case M_LSTRIP:
    case M_RSTRIP:
        if (a[0].type != TV_ABSENT && a[0].type != TV_NONE) (void)want_str(r, a[0], "strip");
        sib_twork(r, s.n);
        s = sib_tstrip(s, what == M_STRIP ? 3 : what == M_LSTRIP ? 1 : 2, opt);
        return sib_tv_bytes(s.p, s.n);
    case M_SPLIT:
    case M_RSPLIT:
        if (a[0].type != TV_ABSENT && a[0].type != TV_NONE) (void)want_str(r, a[0], "split");
        return sib_tv_list(r, TV_LIST, (what == M_SPLIT ? split : rsplit)(r, s, opt, a[1].type == TV_ABSENT ? -1 : sib_tv_index(r, a[1], "maxsplit")));
    case M_SPLITLINES: return sib_tv_list(r, TV_LIST, sib_tlines(r, s, a[0].type != TV_ABSENT && sib_tv_truth(a[0])));
    case M_REPLACE:
        arg = want_str(r, a[0], "replace");
        return sib_treplace(r, s, arg, want_str(r, a[1], "replace"), a[2].type == TV_ABSENT ? -1 : sib_tv_index(r, a[2], "count"));
    case M_COUNT: {
        int64_t n = 0, skipped;
        arg = want_str(r, a[0], "count");
        if (!window(r, &s, a[1], a[2], &skipped)) return sib_tv_int(0);
        if (!arg.n) return sib_tv_int((int64_t)sib_tcount(r, s) + 1);
        for (size_t at = 0; (at = find(r, s, arg, at)) != SIZE_MAX; at += arg.n) n++;
        return sib_tv_int(n);
    }
    case M_JOIN: {
        sib_tlist l = sib_tv_items(r, a[0]);
        for (size_t i = 0; i < l.n; i++)
            if (l.v[i].type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "sequence item %zu: expected str instance, %s found", i, sib_tv_type_name(l.v[i]));
        return sib_tjoin(r, s, l, self.flag & TV_SAFE);
    }
    case M_PARTITION: return partition(r, s, want_str(r, a[0], "partition"), false);
    case M_RPARTITION: return partition(r, s, want_str(r, a[0], "rpartition"), true);
    case M_REMOVEPREFIX:
        arg = want_str(r, a[0], "removeprefix");
        if (arg.n <= s.n && !memcmp(s.p, arg.p, arg.n)) return sib_tv_bytes(s.p + arg.n, s.n - arg.n);
        return self;
    case M_REMOVESUFFIX:
        arg = want_str(r, a[0], "removesuffix");
        if (arg.n <= s.n && !memcmp(s.p + s.n - arg.n, arg.p, arg.n)) return sib_tv_bytes(s.p, s.n - arg.n);
        return self;
    default: break;
    }
    /* M_ZFILL: zeros go behind a sign */
    int64_t width = sib_tv_index(r, a[0], "a width");
    bool sign = s.n && (s.p[0] == '-' || s.p[0] == '+');
    sib_str digits = {s.p + sign, s.n - sign};
    sib_tv padded = sib_tpad(r, digits, width > INT64_MIN ? width - sign : width, '0', 1);
    return sign ? sib_tconcat(r, sib_tv_bytes(s.p, 1), padded) : padded;
}

/* A safe string escapes what is put into it, and its results stay safe (markupsafe.Markup). */
static sib_tv safe_method(sib_tr *r, sib_tv self, int what, sib_tv *a)
{
    bool takes_text = what == M_REPLACE || what == M_STRIP || what == M_LSTRIP || what == M_RSTRIP;
    for (int i = 0; takes_text && i < 2; i++)
        if (a[i].type == TV_STR) a[i] = sib_tescape(r, a[i]);
    sib_tv v = str_method(r, self, what, a);
    if (v.type == TV_STR) v.flag = TV_SAFE;
    if (v.type == TV_LIST || v.type == TV_TUPLE)
        for (size_t i = 0; i < v.u.list->n; i++) v.u.list->v[i].flag = TV_SAFE;
    return v;
}

static sib_tv sequence_method(sib_tr *r, sib_tv self, int what, const sib_tv *a)
{
    sib_tlist l = sib_tv_items(r, self);
    int64_t start = 0, step, found = 0;
    size_t n = l.n;
    if (what == M_SEQ_INDEX) {
        sib_tv from = a[1].type == TV_ABSENT ? sib_tv_of(TV_NONE) : a[1], to = a[2].type == TV_ABSENT ? sib_tv_of(TV_NONE) : a[2];
        sib_tslice(r, l.n, from, to, sib_tv_of(TV_NONE), &start, &step, &n);
    }
    for (size_t i = 0; i < n; i++) {
        if (!sib_tv_equal(r, l.v[(size_t)start + i], a[0])) continue;
        if (what == M_SEQ_INDEX) return sib_tv_int(start + (int64_t)i);
        found++;
    }
    if (what == M_SEQ_INDEX) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "the value is not in the %s", sib_tv_type_name(self));
    return sib_tv_int(found);
}

static sib_tv call_method(sib_tr *r, sib_tv self, int number, const sib_targs *args)
{
    const method *m = &methods_of(self)[number];
    sib_tv a[3] = {sib_tv_of(TV_ABSENT), sib_tv_of(TV_ABSENT), sib_tv_of(TV_ABSENT)};
    if (m->what == M_REFUSED) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "the method %s of '%s' is not supported", m->name, sib_tv_type_name(self));
    if (m->params) {
        bool keywords = m->what == M_SPLIT || m->what == M_RSPLIT || m->what == M_SPLITLINES; /* the C methods of str that take them */
        if (args->n_kw && !keywords) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s.%s() takes no keyword arguments", sib_tv_type_name(self), m->name);
        sib_tbind(r, m->name, args, m->params, m->need, a);
    }
    switch (m->what) {
    case M_GET: {
        sib_tv *v = sib_tdict_get(r, self.u.dict, a[0]);
        return v ? *v : a[1].type == TV_ABSENT ? sib_tv_of(TV_NONE) : a[1];
    }
    case M_KEYS:
    case M_VALUES:
    case M_ITEMS: return (sib_tv){.type = TV_VIEW, .flag = m->what == M_KEYS ? TV_KEYS : m->what == M_VALUES ? TV_VALUES : TV_ITEMS, .u.dict = self.u.dict};
    case M_COPY: return self; /* nothing can change it */
    case M_SEQ_COUNT:
    case M_SEQ_INDEX: return sequence_method(r, self, m->what, a);
    case M_IS_INTEGER: return sib_tv_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f));
    case M_BIT_LENGTH: {
        if (self.type == TV_BIG) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "bit_length of an integer beyond 64 bits is not supported");
        int64_t i = self.type == TV_BOOL ? self.u.b : self.u.i, n = 0;
        for (uint64_t x = i < 0 ? -(uint64_t)i : (uint64_t)i; x; x >>= 1) n++;
        return sib_tv_int(n);
    }
    case M_CYCLE:
        if (!args->n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "no items for cycling given");
        return args->pos[self.u.loop->i % args->n]; /* cppcheck-suppress zerodivcond ; sib_tfail does not return */
    case M_CHANGED: {
        sib_tv now = sib_tv_list(r, TV_TUPLE, (sib_tlist){args->pos, args->n, args->n});
        bool changed = self.u.loop->changed.type == TV_ABSENT || !sib_tv_equal(r, self.u.loop->changed, now);
        self.u.loop->changed = now;
        return sib_tv_bool(changed);
    }
    case M_NEXT: {
        sib_tcycler *c = self.u.cycler;
        sib_tv v = c->items.v[c->at];
        c->at = (c->at + 1) % c->items.n;
        return v;
    }
    case M_RESET: self.u.cycler->at = 0; return sib_tv_of(TV_NONE);
    case M_FORMAT:
        if (self.flag & TV_SAFE) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "format of an escaped string is not supported");
        return format_fields(r, sib_tv_text(self), args);
    default: return self.flag & TV_SAFE ? safe_method(r, self, m->what, a) : str_method(r, self, m->what, a);
    }
}

sib_tv sib_tmethod_call(sib_tr *r, sib_tv self, int number, const sib_targs *args)
{
    bool made = sib_tmade_by(r, self, args);
    sib_tv v = call_method(r, self, number, args);
    r->mark_made = made;
    return v;
}
