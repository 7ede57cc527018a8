/* text/normalizer.c - see normalizer.h.
 *
 * A Sequence is flattened into one list of steps, each of which rewrites the whole text.
 * The Unicode forms decompose with libutf8proc, put marks into canonical order with a
 * counting sort (libutf8proc's own ordering takes quadratic time on long runs of marks,
 * which a prompt could contain), and compose with libutf8proc. */
#include "text/normalizer.h"

#include "base/utf8.h"
#include "text/pretokenizer_pattern.h"
#include "text/unicode.h"
#include "text/unicode_bytes.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_STEPS      16
#define MAX_DECOMPOSED 18 /* code points of the longest compatibility decomposition */
#define MAX_GROWTH     16 /* times a text may become longer; U+FDFA under NFKD: 11    */

typedef enum step_kind { FORM, LOWERCASE, STRIP, PREPEND, REPLACE, BYTE_LEVEL } step_kind;

typedef struct step {
    step_kind kind;
    int options;          /* FORM: of libutf8proc            */
    bool left, right;     /* STRIP                           */
    sib_pattern *pattern; /* REPLACE                         */
    sib_buf text;         /* PREPEND, REPLACE: what to write */
} step;

struct sib_normalizer {
    step steps[MAX_STEPS];
    size_t n;
};

/* ---- from JSON ---- */

static sib_status add_step(sib_normalizer *z, step_kind kind, step **out, sib_err *err)
{
    if (z->n == MAX_STEPS) return sib_fail(err, SIB_EUNSUPPORTED, "normalizer: more than %d steps", MAX_STEPS);
    *out = &z->steps[z->n++];
    (*out)->kind = kind;
    return SIB_OK;
}

static sib_status read_text(const json_t *spec, const char *key, step *st, sib_err *err)
{
    const json_t *v = json_object_get(spec, key);
    if (!json_is_string(v)) return sib_fail(err, SIB_EFORMAT, "normalizer: key \"%s\" must be a string", key);
    sib_buf_add(&st->text, json_string_value(v), json_string_length(v));
    return st->text.failed ? sib_nomem(err, "normalizer") : SIB_OK;
}

static sib_status add(sib_normalizer *z, const json_t *spec, int depth, sib_err *err)
{
    static const struct {
        const char *name;
        step_kind kind;
        int options;
    } plain[] = {
        {"NFC", FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", FORM, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", FORM, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
        {"Lowercase", LOWERCASE, 0},
        {"ByteLevel", BYTE_LEVEL, 0},
    };
    const char *type = NULL;
    step *st = NULL;
    if (!json_is_object(spec)) return sib_fail(err, SIB_EFORMAT, "normalizer: must be an object");
    SIB_TRY(sib_json_str(spec, "normalizer", "type", &type, err));
    if (!type) return sib_fail(err, SIB_EFORMAT, "normalizer: key \"type\" is missing");
    for (size_t i = 0; i < SIB_COUNT(plain); i++) {
        if (strcmp(type, plain[i].name) != 0) continue;
        SIB_TRY(add_step(z, plain[i].kind, &st, err));
        st->options = plain[i].options;
        return SIB_OK;
    }
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "normalizers"), *item;
        size_t i;
        if (!json_is_array(list)) return sib_fail(err, SIB_EFORMAT, "normalizer: key \"normalizers\" must be a list");
        if (depth == 4) return sib_fail(err, SIB_EUNSUPPORTED, "normalizer: Sequence nested deeper than 4 levels");
        json_array_foreach(list, i, item) SIB_TRY(add(z, item, depth + 1, err));
        return SIB_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        SIB_TRY(add_step(z, STRIP, &st, err));
        st->left = st->right = true;
        SIB_TRY(sib_json_bool(spec, "normalizer Strip", "strip_left", &st->left, err));
        return sib_json_bool(spec, "normalizer Strip", "strip_right", &st->right, err);
    }
    if (strcmp(type, "Prepend") == 0) {
        SIB_TRY(add_step(z, PREPEND, &st, err));
        return read_text(spec, "prepend", st, err);
    }
    if (strcmp(type, "Replace") == 0) {
        SIB_TRY(add_step(z, REPLACE, &st, err));
        SIB_TRY(sib_pattern_new(&st->pattern, json_object_get(spec, "pattern"), "normalizer Replace", err));
        return read_text(spec, "content", st, err);
    }
    return sib_fail(err, SIB_EUNSUPPORTED, "normalizer: type \"%s\" is not supported", type);
}

sib_status sib_normalizer_new(sib_normalizer **out, const json_t *spec, sib_err *err)
{
    *out = NULL;
    sib_normalizer *z = calloc(1, sizeof *z);
    if (!z) return sib_nomem(err, "normalizer");
    sib_status s = spec ? add(z, spec, 0, err) : SIB_OK;
    if (s != SIB_OK) {
        sib_normalizer_free(z);
        return s;
    }
    *out = z;
    return SIB_OK;
}

void sib_normalizer_free(sib_normalizer *z)
{
    if (!z) return;
    for (size_t i = 0; i < z->n; i++) {
        sib_pattern_free(z->steps[i].pattern);
        sib_buf_deinit(&z->steps[i].text);
    }
    free(z);
}

bool sib_normalizer_is_identity(const sib_normalizer *z)
{
    return z->n == 0;
}

/* ---- the steps ---- */

static void put(sib_buf *out, uint32_t cp)
{
    char u[4];
    sib_buf_add(out, u, sib_utf8_put(cp, u));
}

static bool is_ascii(sib_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] >= 0x80) return false;
    return true;
}

/* Characters that the reference's normalization forms leave alone and that nothing composes
 * or is reordered across: their tables are those of Unicode 9, libutf8proc's are newer. Found
 * by giving both every code point, alone and beside marks. */
static const struct {
    int32_t first, last;
} opaque[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool is_opaque(int32_t cp)
{
    size_t lo = 0, hi = SIB_COUNT(opaque);
    if (cp < opaque[0].first) return false; /* most text */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (cp > opaque[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < SIB_COUNT(opaque) && cp >= opaque[lo].first;
}

static unsigned char mark_class(int32_t cp)
{
    return is_opaque(cp) ? 0 : (unsigned char)utf8proc_get_property(cp)->combining_class;
}

/* Canonical ordering: each run of characters with a non-zero class is sorted by class, stably. */
static bool order_marks(int32_t *v, size_t n)
{
    int32_t *sorted = NULL;
    size_t room = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i;
        unsigned char before = 0, c;
        bool in_order = true;
        for (; end < n && (c = mark_class(v[end])) != 0; end++) {
            in_order = in_order && before <= c;
            before = c;
        }
        if (!in_order) {
            size_t start[257] = {0};
            if (end - i > room) {
                room = 2 * (end - i);
                int32_t *more = realloc(sorted, room * sizeof *sorted);
                if (!more) {
                    free(sorted);
                    return false;
                }
                sorted = more;
            }
            for (size_t k = i; k < end; k++) start[mark_class(v[k]) + 1]++;
            for (size_t k = 1; k < SIB_COUNT(start); k++) start[k] += start[k - 1];
            for (size_t k = i; k < end; k++) sorted[start[mark_class(v[k])]++] = v[k];
            memcpy(v + i, sorted, (end - i) * sizeof *v);
        }
        i = end > i ? end : i + 1;
    }
    free(sorted);
    return true;
}

static sib_status unicode_form(const step *st, sib_str in, sib_buf *out, sib_err *err)
{
    if (is_ascii(in)) { /* the same in every form */
        sib_buf_add(out, in.p, in.n);
        return SIB_OK;
    }
    size_t n = 0, cap = in.n + in.n / 2 + MAX_DECOMPOSED, len;
    int boundary = 0;
    int32_t *v = cap <= SIZE_MAX / 8 ? malloc(cap * sizeof *v) : NULL;
    for (size_t i = 0; v && i < in.n; i += len) {
        if (cap - n < MAX_DECOMPOSED) {
            cap += cap / 2 + MAX_DECOMPOSED;
            int32_t *more = realloc(v, cap * sizeof *v);
            if (!more) free(v);
            v = more;
            if (!v) break;
        }
        int32_t cp = (int32_t)sib_utf8_next(in.p + i, in.n - i, &len);
        if (is_opaque(cp))
            v[n++] = cp;
        else
            n += (size_t)utf8proc_decompose_char(cp, v + n, (utf8proc_ssize_t)(cap - n),
                                                 st->options | UTF8PROC_DECOMPOSE, &boundary);
    }
    if (!v || !order_marks(v, n)) {
        free(v);
        return sib_nomem(err, "normalizer");
    }
    for (size_t i = 0; i < n;) { /* the part before the next opaque character, then that */
        size_t end = i;
        while (end < n && !is_opaque(v[end])) end++;
        size_t count = end - i;
        if (st->options & UTF8PROC_COMPOSE)
            count = (size_t)utf8proc_normalize_utf32(v + i, (utf8proc_ssize_t)count, st->options);
        for (size_t k = 0; k < count; k++) put(out, (uint32_t)v[i + k]);
        if (end < n) put(out, (uint32_t)v[end++]);
        i = end;
    }
    free(v);
    return SIB_OK;
}

/* Lower case of one code point; the pairs of Unicode 16 and 17 are newer than libutf8proc's. */
static uint32_t lower_of(uint32_t cp)
{
    static const struct {
        uint32_t first, last, lower;
    } added[] = {{0x1C89, 0x1C89, 0x1C8A},   {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
                 {0xA7CE, 0xA7CE, 0xA7CF},   {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
                 {0xA7DA, 0xA7DA, 0xA7DB},   {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
                 {0x16EA0, 0x16EB8, 0x16EBB}};
    for (size_t i = 0; i < SIB_COUNT(added); i++)
        if (cp >= added[i].first && cp <= added[i].last) return added[i].lower + (cp - added[i].first);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

static void lowercase(sib_str in, sib_buf *out)
{
    size_t len;
    for (size_t i = 0; i < in.n; i += len) {
        uint32_t cp = sib_utf8_next(in.p + i, in.n - i, &len);
        if (cp == 0x130) /* the only letter whose lower case is two code points */
            sib_buf_addz(out, "i\xCC\x87");
        else
            put(out, lower_of(cp));
    }
}

static void strip(const step *st, sib_str in, sib_buf *out)
{
    size_t from = SIZE_MAX, to = 0, len;
    for (size_t i = 0; i < in.n; i += len) {
        if (sib_unicode_bits(sib_utf8_next(in.p + i, in.n - i, &len)) & SIB_U_WS) continue;
        if (from == SIZE_MAX) from = i;
        to = i + len;
    }
    if (from == SIZE_MAX && (st->left || st->right)) return; /* nothing but white space */
    if (!st->left) from = 0;
    if (!st->right) to = in.n;
    sib_buf_add(out, in.p + from, to - from);
}

static sib_status replace(const step *st, sib_str in, size_t limit, sib_buf *out, sib_err *err)
{
    sib_matches m;
    size_t from = 0, start, end;
    bool found = true;
    sib_status s = sib_matches_init(&m, st->pattern, in, err);
    while (s == SIB_OK && out->n <= limit && (s = sib_matches_next(&m, &found, &start, &end, err)) == SIB_OK && found) {
        sib_buf_add(out, in.p + from, start - from);
        sib_buf_add(out, st->text.p, st->text.n);
        from = end;
    }
    sib_matches_deinit(&m);
    if (s == SIB_OK) sib_buf_add(out, in.p + from, in.n - from);
    return s;
}

/* May stop early when out is beyond `limit`. */
static sib_status run_step(const step *st, sib_str in, size_t limit, sib_buf *out, sib_err *err)
{
    switch (st->kind) {
    case FORM: return unicode_form(st, in, out, err);
    case LOWERCASE: lowercase(in, out); break;
    case STRIP: strip(st, in, out); break;
    case PREPEND:
        if (in.n) sib_buf_add(out, st->text.p, st->text.n);
        sib_buf_add(out, in.p, in.n);
        break;
    case REPLACE: return replace(st, in, limit, out, err);
    case BYTE_LEVEL: sib_bytes_to_alphabet(in, out); break;
    }
    return SIB_OK;
}

sib_status sib_normalizer_run(const sib_normalizer *z, sib_str in, sib_buf *out, sib_err *err)
{
    sib_buf a = {0}, b = {0};
    size_t limit = MAX_GROWTH * in.n + 4096;
    sib_status s = SIB_OK;
    for (size_t i = 0; i < z->n && s == SIB_OK; i++) {
        b.n = 0;
        s = run_step(&z->steps[i], in, limit, &b, err);
        if (s == SIB_OK && b.failed) s = sib_nomem(err, "normalizer");
        if (s == SIB_OK && b.n > limit)
            s = sib_fail(err, SIB_ECAPACITY, "the normalizer makes a text more than %d times as long", MAX_GROWTH);
        sib_buf t = a;
        a = b;
        b = t;
        in = sib_buf_view(&a);
    }
    if (s == SIB_OK) {
        sib_buf_add(out, in.p, in.n);
        if (out->failed) s = sib_nomem(err, "normalizer");
    }
    sib_buf_deinit(&a);
    sib_buf_deinit(&b);
    return s;
}
