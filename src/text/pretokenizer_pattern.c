/* text/pretokenizer_pattern.c - see pretokenizer_pattern.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer_pattern.h"

#include "base/utf8.h"
#include "text/pretokenizer_known.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REGEX      65536    /* bytes of an expression                             */
#define MATCH_LIMIT    10000000 /* backtracking steps of one search                   */
#define HEAP_LIMIT_KIB 65536    /* memory of one search                               */

struct sib_pattern {
    enum { LITERAL, CLASS, KNOWN, REGEX } kind;
    sib_buf literal;
    bool (*test)(uint32_t cp);
    sib_known_fn known;
    pcre2_code *code;
};

static sib_status pattern_alloc(sib_pattern **out, int kind, sib_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return sib_nomem(err, "pattern");
    (*out)->kind = kind;
    return SIB_OK;
}

void sib_pattern_free(sib_pattern *z)
{
    if (!z) return;
    sib_buf_deinit(&z->literal);
    pcre2_code_free(z->code);
    free(z);
}

sib_status sib_pattern_of_string(sib_pattern **out, sib_str literal, const char *where, sib_err *err)
{
    if (literal.n == 0) return sib_fail(err, SIB_EUNSUPPORTED, "%s: the pattern is an empty string", where);
    SIB_TRY(pattern_alloc(out, LITERAL, err));
    sib_buf_add(&(*out)->literal, literal.p, literal.n);
    if (!(*out)->literal.failed) return SIB_OK;
    sib_pattern_free(*out);
    *out = NULL;
    return sib_nomem(err, where);
}

sib_status sib_pattern_of_class(sib_pattern **out, bool (*test)(uint32_t cp), sib_err *err)
{
    SIB_TRY(pattern_alloc(out, CLASS, err));
    (*out)->test = test;
    return SIB_OK;
}

/* White_Space, as the inside of a class: PCRE2's own \s also holds U+180E. */
#define SPACE_CLASS                                                                                                    \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* One escape sequence at r[i] = '\\': appends its PCRE2 form and returns its length, or 0
 * when the two languages differ on it or either lacks it. */
static size_t translate_escape(sib_str r, size_t i, bool in_class, sib_buf *out)
{
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
                                             "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
                                             "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
    if (i + 1 >= r.n) return 0;
    char c = r.p[i + 1];
    switch (c) {
    case 's': sib_buf_addz(out, in_class ? SPACE_CLASS : "[" SPACE_CLASS "]"); return 2;
    case 'S':
        if (in_class) return 0;
        sib_buf_addz(out, "[^" SPACE_CLASS "]");
        return 2;
    case 'd': sib_buf_addz(out, "\\p{Nd}"); return 2;
    case 'D': sib_buf_addz(out, "\\P{Nd}"); return 2;
    case 'r':
    case 'n':
    case 't':
    case 'f': sib_buf_add(out, r.p + i, 2); return 2;
    case 'p':
    case 'P':
        for (size_t k = 0; k < SIB_COUNT(categories); k++) {
            size_t n = strlen(categories[k]);
            if (r.n - i >= n + 4 && r.p[i + 2] == '{' && memcmp(r.p + i + 3, categories[k], n) == 0 &&
                r.p[i + 3 + n] == '}') {
                sib_buf_add(out, r.p + i, n + 4);
                return n + 4;
            }
        }
        return 0;
    default:
        if (c > 0x20 && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z')) {
            sib_buf_add(out, r.p + i, 2);
            return 2;
        }
        return 0;
    }
}

/* Rewrites an Oniguruma (Ruby syntax) expression for PCRE2. Only what both understand alike
 * passes: an expression that would split differently must be refused, not run. */
static sib_status translate(sib_str r, const char *where, sib_buf *out, sib_err *err)
{
    static const char *const groups[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?-i:"};
    bool in_class = false, class_start = false;
    for (size_t i = 0; i < r.n;) {
        char c = r.p[i];
        size_t used = 1;
        if (c == '\\') {
            used = translate_escape(r, i, in_class, out);
        } else if (in_class) {
            if (c == '[' || (c == '&' && i + 1 < r.n && r.p[i + 1] == '&')) used = 0; /* nested sets, intersections */
            if (c == ']' && class_start) used = 0;
            if (c == ']') in_class = false;
            if (used) sib_buf_addc(out, c);
        } else if (c == '(' && i + 1 < r.n && r.p[i + 1] == '?') {
            used = 0;
            for (size_t k = 0; k < SIB_COUNT(groups) && !used; k++) {
                size_t n = strlen(groups[k]);
                if (r.n - i > n && memcmp(r.p + i + 1, groups[k], n) == 0) used = n + 1;
            }
            sib_buf_add(out, r.p + i, used);
        } else if (c == '(' && i + 1 < r.n && r.p[i + 1] == '*') {
            used = 0; /* PCRE2 verbs */
        } else if ((c == '{' && i + 1 < r.n && r.p[i + 1] == ',') || (c == '}' && i + 1 < r.n && r.p[i + 1] == '+')) {
            used = 0; /* {,n} and {n}+ mean different things */
        } else {
            if (c == '[') {
                in_class = class_start = true;
                sib_buf_addc(out, c);
                if (i + 1 < r.n && r.p[i + 1] == '^') {
                    sib_buf_addc(out, '^');
                    i++;
                }
                i++;
                continue;
            }
            sib_buf_addc(out, c);
        }
        if (!used)
            return sib_fail(err, SIB_EUNSUPPORTED,
                            "%s: the regular expression \"%.200s\" uses a construct at byte %zu that is not supported",
                            where, r.p, i);
        class_start = false;
        i += used;
    }
    return out->failed ? sib_nomem(err, where) : SIB_OK;
}

sib_status sib_pattern_of_regex(sib_pattern **out, sib_str regex, const char *where, sib_err *err)
{
    *out = NULL;
    sib_known_fn known = sib_known_pattern(regex);
    if (regex.n == 0 || regex.n > MAX_REGEX)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: a regular expression of %zu bytes (allowed are 1 to %d)", where,
                        regex.n, MAX_REGEX);
    SIB_TRY(pattern_alloc(out, known ? KNOWN : REGEX, err));
    (*out)->known = known;
    if (known) return SIB_OK;
    sib_buf text = {0};
    sib_status s = translate(regex, where, &text, err);
    if (s == SIB_OK) {
        int code;
        PCRE2_SIZE at;
        /* Ruby's ^ and $ are those of every line. */
        (*out)->code =
            pcre2_compile((PCRE2_SPTR)text.p, text.n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                          &code, &at, NULL);
        if (!(*out)->code) {
            char why[128] = "";
            (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            s = sib_fail(err, SIB_EFORMAT, "%s: the regular expression \"%.200s\" is invalid: %s", where, regex.p, why);
        }
    }
    sib_buf_deinit(&text);
    if (s != SIB_OK) {
        sib_pattern_free(*out);
        *out = NULL;
    }
    return s;
}

sib_status sib_pattern_new(sib_pattern **out, const json_t *spec, const char *where, sib_err *err)
{
    *out = NULL;
    json_t *string = json_object_get(spec, "String"), *regex = json_object_get(spec, "Regex");
    if (json_is_string(string) && !regex)
        return sib_pattern_of_string(out, (sib_str){json_string_value(string), json_string_length(string)}, where, err);
    if (json_is_string(regex) && !string)
        return sib_pattern_of_regex(out, (sib_str){json_string_value(regex), json_string_length(regex)}, where, err);
    return sib_fail(err, SIB_EFORMAT, "%s: key \"pattern\" must be {\"String\": text} or {\"Regex\": text}", where);
}

/* ---- matching ---- */

typedef struct regex_state {
    pcre2_match_data *data;
    pcre2_match_context *context;
} regex_state;

static void regex_state_free(regex_state *r)
{
    if (!r) return;
    pcre2_match_data_free(r->data);
    pcre2_match_context_free(r->context);
    free(r);
}

sib_status sib_matches_init(sib_matches *m, const sib_pattern *z, sib_str text, sib_err *err)
{
    *m = (sib_matches){.pattern = z, .text = text, .last_end = SIZE_MAX};
    if (z->kind != REGEX) return SIB_OK;
    regex_state *r = calloc(1, sizeof *r);
    if (r) {
        r->data = pcre2_match_data_create_from_pattern(z->code, NULL);
        r->context = pcre2_match_context_create(NULL);
    }
    if (!r || !r->data || !r->context) {
        regex_state_free(r);
        return sib_nomem(err, "regular expression");
    }
    (void)pcre2_set_match_limit(r->context, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(r->context, HEAP_LIMIT_KIB);
    m->regex_state = r;
    return SIB_OK;
}

void sib_matches_deinit(sib_matches *m)
{
    regex_state_free(m->regex_state);
    m->regex_state = NULL;
}

static size_t char_len(sib_str t, size_t i)
{
    size_t len;
    (void)sib_utf8_next(t.p + i, t.n - i, &len);
    return len;
}

/* An empty match right behind the match before does not count, as in the reference. */
static sib_status regex_next(sib_matches *m, bool *found, size_t *start, size_t *end, sib_err *err)
{
    const regex_state *r = m->regex_state;
    while (m->from <= m->text.n) {
        int rc = pcre2_match(m->pattern->code, (PCRE2_SPTR)m->text.p, m->text.n, m->from, PCRE2_NO_UTF_CHECK, r->data,
                             r->context);
        if (rc == PCRE2_ERROR_NOMATCH) return SIB_OK;
        if (rc == PCRE2_ERROR_NOMEMORY) return sib_nomem(err, "regular expression");
        if (rc < 0)
            return sib_fail(
                err, SIB_ECAPACITY,
                "the text needs too much work for the tokenizer's regular expression at byte %zu (PCRE2 error %d)",
                m->from, rc);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->data);
        if (span[0] > span[1])
            return sib_fail(err, SIB_EUNSUPPORTED,
                            "a look-around of the tokenizer's regular expression moves the match");
        if (span[0] == span[1] && span[1] == m->last_end) {
            m->from += m->from < m->text.n ? char_len(m->text, m->from) : 1;
            continue;
        }
        *found = true;
        *start = span[0];
        *end = m->from = m->last_end = span[1];
        return SIB_OK;
    }
    return SIB_OK;
}

sib_status sib_matches_next(sib_matches *m, bool *found, size_t *start, size_t *end, sib_err *err)
{
    const sib_pattern *z = m->pattern;
    *found = false;
    if (z->kind == REGEX) return regex_next(m, found, start, end, err);
    size_t at = m->from, stop = at;
    if (z->kind == LITERAL) {
        const char *hit = at < m->text.n ? memmem(m->text.p + at, m->text.n - at, z->literal.p, z->literal.n) : NULL;
        at = hit ? (size_t)(hit - m->text.p) : m->text.n;
        stop = hit ? at + z->literal.n : at;
    } else {
        for (; at < m->text.n; at += char_len(m->text, at)) {
            size_t len;
            if (z->kind == KNOWN)
                stop = z->known(m->text, at);
            else
                stop = at + (z->test(sib_utf8_next(m->text.p + at, m->text.n - at, &len)) ? len : 0);
            if (stop > at) break;
        }
    }
    if (at >= m->text.n) return SIB_OK;
    *found = true;
    *start = at;
    *end = m->from = m->last_end = stop;
    return SIB_OK;
}
