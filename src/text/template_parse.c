/* text/template_parse.c - source to tree: Jinja2's lexer and grammar, written down from its documentation and behaviour.
 *
 *   data | {{ expression }} | {% statement %} | {# comment #} | {% raw %} data {% endraw %}
 *
 * White space around tags is settled by the lexer (trim_blocks, lstrip_blocks, - and +). Left-associative chains become
 * one flat node, so the depth of the tree is the nesting of the source, which is limited. */
#include "text/template_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_SOURCE ((size_t)4 << 20)
#define MAX_TREE   ((size_t)128 << 20)

/* A one-character operator is its own token type; of the longer ones each has a letter. */
enum { T_EOF = 1, T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT,
       T_POW = '^', T_FLOORDIV = 'i', T_EQ = 'e', T_NE = 'n', T_GE = 'g', T_LE = 'l' };

typedef struct token {
    uint32_t at;
    uint8_t type;
    sib_str s; /* DATA, NAME, STRING: the text; numbers: as written */
} token;

typedef struct parser {
    sib_tr *r;
    sib_str src;
    token *t;
    size_t n, cap, i; /* tokens; i is the current one */
    int depth;
    int loops, fors;  /* loops that break can leave; for statements around, also beyond macros */
    unsigned uses;    /* TN_USES_*: special names read so far */
    sib_tnodes unknown; /* filters and tests that do not exist and would be reached */
    sib_str *names;   /* interned */
    size_t n_names, cap_names;
} parser;

static _Noreturn void syntax(parser *p, size_t at, const char *what)
{
    p->r->at = (uint32_t)at;
    sib_tfail(p->r, SIB_TEMPLATE_SYNTAX, "%s", what);
}

/* ---- lexer ----------------------------------------------------------------------------------------------- */

static void add_token(parser *p, int type, size_t at, sib_str s)
{
    sib_twork(p->r, 0);
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 256;
        token *t = sib_tarray(p->r, cap, sizeof *t);
        if (p->n) memcpy(t, p->t, p->n * sizeof *t);
        p->t = t;
        p->cap = cap;
    }
    p->t[p->n++] = (token){(uint32_t)at, (uint8_t)type, s};
}

static size_t skip_space(sib_str s, size_t i)
{
    return s.n - sib_tstrip((sib_str){s.p + i, s.n - i}, 1, NULL).n;
}

static bool looking_at(sib_str s, size_t i, const char *z)
{
    size_t n = strlen(z);
    return s.n - i >= n && !memcmp(s.p + i, z, n);
}

/* End of a tag at i, `close` being "%}" or "#}": where the text goes on, 0 when it is none. */
static size_t tag_end(sib_str s, size_t i, const char *close)
{
    if (i < s.n && s.p[i] == '-' && looking_at(s, i + 1, close)) return skip_space(s, i + 3);
    if (i < s.n && s.p[i] == '+' && looking_at(s, i + 1, close)) return i + 3;
    if (!looking_at(s, i, close)) return 0;
    return i + 2 + (i + 2 < s.n && s.p[i + 2] == '\n' && strcmp(close, "}}") != 0); /* trim_blocks */
}

/* {% raw %} or {% endraw %} at i: where its closing stands, 0 when it is another tag. */
static size_t raw_tag(sib_str s, size_t i, const char *word)
{
    if (!looking_at(s, i, "{%")) return 0;
    i += 2;
    if (i < s.n && (s.p[i] == '-' || s.p[i] == '+')) i++;
    i = skip_space(s, i);
    if (!looking_at(s, i, word)) return 0;
    return skip_space(s, i + strlen(word));
}

/* Text before a tag: - takes all white space at its end, lstrip_blocks what stands between line start and a block. */
static sib_str before_tag(sib_str text, char sign, bool block, bool line_starting)
{
    if (sign == '-') return sib_tstrip(text, 2, NULL);
    if (sign == '+' || !block) return text;
    const char *newline = text.n ? memrchr(text.p, '\n', text.n) : NULL;
    if (!newline && !line_starting) return text;
    size_t keep = newline ? (size_t)(newline - text.p) + 1 : 0;
    sib_str tail = {text.p + keep, text.n - keep};
    return sib_tstrip(tail, 1, NULL).n ? text : (sib_str){text.p, keep};
}

static size_t digits(sib_str s, size_t i) /* end of digits with single underscores between */
{
    while (i < s.n && s.p[i] >= '0' && s.p[i] <= '9') {
        i++;
        if (i + 1 < s.n && s.p[i] == '_' && s.p[i + 1] >= '0' && s.p[i + 1] <= '9') i++;
    }
    return i;
}

static size_t lex_number(parser *p, size_t i)
{
    sib_str s = p->src;
    size_t whole = digits(s, i), end = whole;
    if (i == 0 || s.p[i - 1] != '.') { /* in a.0.1 the numbers are integers */
        if (end + 1 < s.n && s.p[end] == '.' && digits(s, end + 1) > end + 1) end = digits(s, end + 1);
        if (end < s.n && (s.p[end] | 32) == 'e') {
            size_t from = end + 1 + (end + 1 < s.n && (s.p[end + 1] == '+' || s.p[end + 1] == '-'));
            if (digits(s, from) > from) end = digits(s, from);
        }
        if (end > whole) {
            add_token(p, T_FLOAT, i, (sib_str){s.p + i, end - i});
            return end;
        }
    }
    if (s.p[i] == '0') {
        const char *set = i + 1 == s.n              ? NULL
                          : (s.p[i + 1] | 32) == 'x' ? "0123456789abcdefABCDEF_"
                          : (s.p[i + 1] | 32) == 'o' ? "01234567_"
                          : (s.p[i + 1] | 32) == 'b' ? "01_"
                                                     : NULL;
        end = i + 2;
        while (set && end < s.n && s.p[end] && strchr(set, s.p[end])) end++;
        if (!set || end == i + 2)
            for (end = i + 1; end < s.n && s.p[end] == '0';) end++;
    }
    add_token(p, T_INT, i, (sib_str){s.p + i, end - i});
    return end;
}

static uint32_t hex_escape(parser *p, sib_str s, size_t *i, int n, size_t at)
{
    uint32_t cp = 0;
    for (; n; n--, ++*i) {
        char c = *i < s.n ? s.p[*i] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) syntax(p, at, "a string has an incomplete \\x, \\u or \\U escape");
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10FFFF) syntax(p, at, "a string has an escape beyond U+10FFFF");
    return cp;
}

/* The text of a literal: Python's unicode-escape. */
static sib_str unescape(parser *p, sib_str s, size_t at)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    sib_tb b = {.r = p->r};
    if (!memchr(s.p, '\\', s.n)) return s;
    for (size_t i = 0; i < s.n;) {
        char c = s.p[i++];
        if (c != '\\') {
            sib_tb_addc(&b, c);
            continue;
        }
        c = s.p[i++]; /* the lexer saw that something follows */
        const char *hit = c ? strchr(from, c) : NULL;
        uint32_t cp;
        if (hit) {
            sib_tb_addc(&b, to[hit - from]);
            continue;
        }
        if (c == '\n') continue;
        if (c >= '0' && c <= '7') {
            cp = (uint32_t)(c - '0');
            for (int k = 0; k < 2 && i < s.n && s.p[i] >= '0' && s.p[i] <= '7'; k++) cp = cp * 8 + (uint32_t)(s.p[i++] - '0');
        } else if (c == 'x' || c == 'u' || c == 'U') {
            cp = hex_escape(p, s, &i, c == 'x' ? 2 : c == 'u' ? 4 : 8, at);
            if (cp >= 0xD800 && cp < 0xE000) syntax(p, at, "a string has an escape that is half of a surrogate pair");
        } else if (c == 'N' || (unsigned char)c >= 0x80) {
            p->r->at = (uint32_t)at;
            sib_tfail(p->r, SIB_TEMPLATE_UNSUPPORTED, "the escape \\N, or \\ before a non-ASCII character, is not supported");
        } else {
            sib_tb_addc(&b, '\\');
            cp = (uint32_t)(unsigned char)c;
        }
        sib_tb_cp(&b, cp);
    }
    return sib_tv_text(sib_tb_done(&b));
}

static size_t lex_string(parser *p, size_t i)
{
    sib_str s = p->src;
    size_t end = i + 1;
    while (end < s.n && s.p[end] != s.p[i]) end += 1 + (s.p[end] == '\\');
    if (end >= s.n) syntax(p, i, "a string does not end");
    add_token(p, T_STRING, i, unescape(p, (sib_str){s.p + i + 1, end - i - 1}, i));
    return end + 1;
}

static size_t lex_operator(parser *p, size_t i)
{
    static const struct {
        char text[3], type;
    } two[] = {{"**", T_POW}, {"//", T_FLOORDIV}, {"==", T_EQ}, {"!=", T_NE}, {">=", T_GE}, {"<=", T_LE}};
    char text[40], c = p->src.p[i];
    for (size_t k = 0; k < SIB_COUNT(two); k++) {
        if (!looking_at(p->src, i, two[k].text)) continue;
        add_token(p, two[k].type, i, (sib_str){p->src.p + i, 2});
        return i + 2;
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        (void)snprintf(text, sizeof text, (unsigned char)c > 32 && (unsigned char)c < 127 ? "unexpected character '%c'" : "unexpected character", c);
        syntax(p, i, text);
    }
    add_token(p, c, i, (sib_str){p->src.p + i, 1});
    return i + 1;
}

/* Tokens of a {{ or {% from i to its end; returns where data goes on. */
static size_t lex_tag(parser *p, size_t i, bool block)
{
    sib_str s = p->src;
    char open[SIB_TNEST + 1];
    size_t n_open = 0;
    for (;;) {
        i = skip_space(s, i);
        if (i == s.n) syntax(p, i, block ? "a {% tag does not end" : "a {{ tag does not end");
        size_t end = n_open ? 0 : block ? tag_end(s, i, "%}") : looking_at(s, i, "-}}") ? skip_space(s, i + 3) : looking_at(s, i, "}}") ? i + 2 : 0;
        if (end) {
            add_token(p, block ? T_BLOCK_END : T_VAR_END, i, (sib_str){0});
            return end;
        }
        char c = s.p[i];
        size_t len;
        if (c >= '0' && c <= '9') {
            i = lex_number(p, i);
        } else if (c == '\'' || c == '"') {
            i = lex_string(p, i);
        } else if (sib_tword(sib_utf8_next(s.p + i, s.n - i, &len), true)) {
            size_t from = i;
            do
                i += len;
            while (i < s.n && sib_tword(sib_utf8_next(s.p + i, s.n - i, &len), false));
            add_token(p, T_NAME, from, (sib_str){s.p + from, i - from});
        } else {
            if (c == '(' || c == '[' || c == '{') {
                if (n_open > SIB_TNEST) {
                    p->r->at = (uint32_t)i;
                    sib_tfail(p->r, SIB_TEMPLATE_LIMIT, "brackets are nested deeper than %d levels", SIB_TNEST);
                }
                open[n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (c == ')' || c == ']' || c == '}') {
                if (!n_open || open[--n_open] != c) syntax(p, i, "a bracket closes that was not opened");
            }
            i = lex_operator(p, i);
        }
    }
}

static size_t lex_raw(parser *p, size_t i, size_t close)
{
    sib_str s = p->src;
    size_t from = s.p[close] == '-' ? skip_space(s, close + 3) : close + 2, at = from;
    bool line_starting = s.p[from - 1] == '\n';
    for (;; at++) {
        const char *brace = at < s.n ? memchr(s.p + at, '{', s.n - at) : NULL;
        if (!brace) syntax(p, i, "a raw block does not end");
        at = (size_t)(brace - s.p);
        size_t word_end = raw_tag(s, at, "endraw"), end = word_end ? tag_end(s, word_end, "%}") : 0;
        if (!end) continue;
        sib_str text = before_tag((sib_str){s.p + from, at - from}, s.p[at + 2], true, line_starting);
        if (text.n) add_token(p, T_DATA, from, text);
        return end;
    }
}

static size_t lex_comment(parser *p, size_t i, size_t from)
{
    sib_str s = p->src;
    const char *end = memmem(s.p + from, s.n - from, "#}", 2);
    if (!end) syntax(p, i, "a comment does not end");
    size_t at = (size_t)(end - s.p);
    bool sign = at > from && (s.p[at - 1] == '-' || s.p[at - 1] == '+');
    return tag_end(s, at - sign, "#}");
}

static void lex(parser *p)
{
    sib_str s = p->src;
    size_t i = 0;
    bool line_starting = true;
    while (i < s.n) {
        size_t at = i;
        for (; at < s.n; at++) { /* the next opening */
            const char *brace = memchr(s.p + at, '{', s.n - at);
            at = brace ? (size_t)(brace - s.p) : s.n;
            if (at == s.n) break;
            if (at + 1 < s.n && (s.p[at + 1] == '{' || s.p[at + 1] == '%' || s.p[at + 1] == '#')) break;
        }
        char kind = at < s.n ? s.p[at + 1] : 0;
        char sign = kind && at + 2 < s.n && (s.p[at + 2] == '-' || s.p[at + 2] == '+') ? s.p[at + 2] : 0;
        sib_str text = {s.p + i, at - i};
        if (kind) text = before_tag(text, sign, kind != '{', line_starting);
        if (text.n) add_token(p, T_DATA, i, text);
        if (!kind) break;
        size_t from = at + 2 + (sign != 0), raw = raw_tag(s, at, "raw");
        if (raw && (looking_at(s, raw, "%}") || looking_at(s, raw, "-%}"))) {
            i = lex_raw(p, at, raw);
        } else if (kind == '#') {
            i = lex_comment(p, at, from);
        } else {
            add_token(p, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, at, (sib_str){0});
            i = lex_tag(p, from, kind == '%');
        }
        line_starting = s.p[i - 1] == '\n';
    }
    add_token(p, T_EOF, s.n, (sib_str){0});
}

/* ---- parser: tools --------------------------------------------------------------------------------------- */

static token *cur(parser *p)
{
    return &p->t[p->i];
}

static token *look(parser *p)
{
    return &p->t[p->i + (cur(p)->type != T_EOF)];
}

static void advance(parser *p)
{
    if (cur(p)->type != T_EOF) p->i++;
}

static bool is(parser *p, int type)
{
    return cur(p)->type == type;
}

static bool is_word(parser *p, const char *word)
{
    return is(p, T_NAME) && sib_str_is(cur(p)->s, word);
}

static bool skip(parser *p, int type)
{
    if (!is(p, type)) return false;
    advance(p);
    return true;
}

static bool skip_word(parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    advance(p);
    return true;
}

static _Noreturn void unexpected(parser *p, const char *wanted)
{
    static const char *const names[] = {"", "end of template", "text", "{{", "}}", "{%", "%}", "", "a string", "a number", "a number"};
    char text[200], found[60];
    const token *t = cur(p);
    if (t->type == T_NAME || t->type > T_FLOAT)
        (void)snprintf(found, sizeof found, "'%.*s'", (int)(t->s.n > 50 ? 50 : t->s.n), t->s.p);
    else
        (void)snprintf(found, sizeof found, "%s", names[t->type]);
    (void)snprintf(text, sizeof text, "expected %s, found %s", wanted, found);
    syntax(p, t->at, text);
}

static void expect(parser *p, int type, const char *wanted)
{
    if (!skip(p, type)) unexpected(p, wanted);
}

static void enter(parser *p)
{
    if (++p->depth <= SIB_TNEST) return;
    p->r->at = cur(p)->at;
    sib_tfail(p->r, SIB_TEMPLATE_LIMIT, "the template is nested deeper than %d levels", SIB_TNEST);
}

static sib_tnode *node(parser *p, sib_tkind kind)
{
    sib_tnode *n = sib_talloc(p->r, sizeof *n);
    *n = (sib_tnode){.kind = (uint8_t)kind, .which = -1, .at = cur(p)->at};
    return n;
}

static void push(parser *p, sib_tnodes *l, sib_tnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        sib_tnode **v = sib_tarray(p->r, cap, sizeof(sib_tnode *));
        if (l->n) memcpy(v, l->v, l->n * sizeof(sib_tnode *));
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

/* The one copy of a name, so that variables are found by comparing pointers. */
static sib_str intern(parser *p, sib_str s)
{
    if (p->n_names * 2 >= p->cap_names) {
        size_t cap = p->cap_names ? p->cap_names * 2 : 64;
        sib_str *old = p->names;
        size_t n_old = p->cap_names;
        p->names = sib_tarray(p->r, cap, sizeof *p->names);
        memset(p->names, 0, cap * sizeof *p->names);
        p->cap_names = cap;
        p->n_names = 0;
        for (size_t i = 0; i < n_old; i++)
            if (old[i].p) (void)intern(p, old[i]);
    }
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++) h = (h ^ (unsigned char)s.p[i]) * 0x100000001b3u;
    size_t at = (size_t)(h ^ h >> 32) & (p->cap_names - 1);
    while (p->names[at].p && !sib_str_eq(p->names[at], s)) at = (at + 1) & (p->cap_names - 1);
    if (!p->names[at].p) {
        p->names[at] = s;
        p->n_names++;
    }
    return p->names[at];
}

/* Unknown filters and tests fail the parse unless they stand where an if decides (as Jinja's compiler has it). */
static void all_known(parser *p, size_t mark)
{
    char text[160];
    if (p->unknown.n == mark) return;
    const sib_tnode *n = p->unknown.v[mark];
    (void)snprintf(text, sizeof text, "there is no %s named '%.*s'", n->kind == TN_FILTER ? "filter" : "test", (int)(n->name.n > 80 ? 80 : n->name.n), n->name.p);
    syntax(p, n->at, text);
}

/* ---- parser: expressions --------------------------------------------------------------------------------- */

static sib_tnode *parse_expression(parser *p);
static sib_tnode *parse_or(parser *p);
static sib_tnode *parse_unary(parser *p, bool filters);
static sib_tnode *parse_primary(parser *p);

enum { TUPLE_PRIMARY, TUPLE_PLAIN, TUPLE_COND }; /* what its items are: targets, no conditional expression, any */

static sib_tnode *parse_tuple(parser *p, int items, const char *stop, bool parentheses)
{
    sib_tnode *t = node(p, TN_TUPLE);
    bool tuple = false;
    for (;;) {
        if (t->kids.n) {
            if (!skip(p, ',')) break;
            tuple = true;
        }
        if (is(p, T_VAR_END) || is(p, T_BLOCK_END) || is(p, ')') || (stop && is_word(p, stop))) break;
        push(p, &t->kids, items == TUPLE_PRIMARY ? parse_primary(p) : items == TUPLE_PLAIN ? parse_or(p) : parse_expression(p));
    }
    if (!tuple && t->kids.n) return t->kids.v[0];
    if (!tuple && !parentheses) unexpected(p, "an expression");
    return t;
}

static sib_tnode *constant(parser *p, sib_tv v)
{
    sib_tnode *n = node(p, TN_CONST);
    n->v = v;
    advance(p);
    return n;
}

static sib_tnode *parse_number(parser *p)
{
    char text[400];
    size_t n = 0;
    sib_str s = cur(p)->s;
    sib_tv v;
    if (is(p, T_INT)) {
        int base = s.n > 2 && s.p[0] == '0' ? (s.p[1] | 32) == 'x' ? 16 : (s.p[1] | 32) == 'o' ? 8 : (s.p[1] | 32) == 'b' ? 2 : 10 : 10;
        sib_tb b = {.r = p->r};
        for (size_t i = base == 10 ? 0 : 2; i < s.n; i++)
            if (s.p[i] != '_') sib_tb_addc(&b, s.p[i]);
        if (!sib_tnum_int(p->r, sib_tv_text(sib_tb_done(&b)), base, &v)) unexpected(p, "a number");
        return constant(p, v);
    }
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '_') continue;
        if (n + 1 == sizeof text) syntax(p, cur(p)->at, "a number is too long");
        text[n++] = s.p[i];
    }
    text[n] = 0;
    return constant(p, sib_tv_float(strtod(text, NULL)));
}

static sib_tnode *parse_name(parser *p)
{
    static const struct {
        const char *word;
        sib_ttype type;
        bool b;
    } constants[] = {{"true", TV_BOOL, true}, {"True", TV_BOOL, true}, {"false", TV_BOOL, false}, {"False", TV_BOOL, false}, {"none", TV_NONE, false}, {"None", TV_NONE, false}};
    static const struct {
        const char *word;
        sib_tfunc which;
    } globals[] = {{"range", TF_RANGE}, {"dict", TF_DICT}, {"namespace", TF_NAMESPACE}, {"cycler", TF_CYCLER}, {"joiner", TF_JOINER}, {"lipsum", TF_LIPSUM},
                   {"raise_exception", TF_RAISE}, {"strftime_now", TF_STRFTIME}, {"self", TF_SELF}};
    static const struct {
        const char *word;
        unsigned use;
    } special[] = {{"caller", TN_USES_CALLER}, {"varargs", TN_USES_VARARGS}, {"kwargs", TN_USES_KWARGS}};
    sib_str s = cur(p)->s;
    for (size_t i = 0; i < SIB_COUNT(constants); i++)
        if (sib_str_is(s, constants[i].word)) return constant(p, constants[i].type == TV_BOOL ? sib_tv_bool(constants[i].b) : sib_tv_of(TV_NONE));
    sib_tnode *n = node(p, TN_NAME);
    n->name = intern(p, s);
    n->which = TF_NONE;
    for (size_t i = 0; i < SIB_COUNT(globals); i++)
        if (sib_str_is(s, globals[i].word)) n->which = (int16_t)globals[i].which;
    for (size_t i = 0; i < SIB_COUNT(special); i++)
        if (sib_str_is(s, special[i].word)) p->uses |= special[i].use;
    advance(p);
    return n;
}

/* Items between brackets up to `close`; for a dict each is key ':' value. */
static sib_tnode *parse_items(parser *p, sib_tkind kind, int close, const char *close_name)
{
    sib_tnode *n = node(p, kind);
    advance(p);
    while (!is(p, close)) {
        if (n->kids.n) {
            expect(p, ',', "','");
            if (is(p, close)) break;
        }
        push(p, &n->kids, parse_expression(p));
        if (kind != TN_DICT) continue;
        expect(p, ':', "':'");
        push(p, &n->kids, parse_expression(p));
    }
    expect(p, close, close_name);
    return n;
}

static sib_tnode *parse_primary(parser *p)
{
    sib_tnode *n;
    switch (cur(p)->type) {
    case T_NAME: return parse_name(p);
    case T_INT:
    case T_FLOAT: return parse_number(p);
    case T_STRING: {
        n = node(p, TN_CONST);
        sib_str first = cur(p)->s;
        sib_tb b = {.r = p->r};
        advance(p);
        n->v = sib_tv_bytes(first.p, first.n);
        if (!is(p, T_STRING)) return n;
        for (sib_tb_add(&b, first.p, first.n); is(p, T_STRING); advance(p)) sib_tb_add(&b, cur(p)->s.p, cur(p)->s.n);
        n->v = sib_tb_done(&b);
        return n;
    }
    case '(':
        advance(p);
        n = parse_tuple(p, TUPLE_COND, NULL, true);
        expect(p, ')', "')'");
        return n;
    case '[': return parse_items(p, TN_LIST, ']', "']'");
    case '{': return parse_items(p, TN_DICT, '}', "'}'");
    default: unexpected(p, "an expression");
    }
}

static sib_tnode *argument(parser *p, sib_tkind kind, sib_str name)
{
    sib_tnode *n = node(p, kind);
    n->name = name;
    n->a = parse_expression(p);
    return n;
}

static void parse_arguments(parser *p, sib_tnodes *args) /* at '(' */
{
    bool keyword = false, star = false, starstar = false;
    advance(p);
    for (bool first = true; !is(p, ')'); first = false) {
        if (!first) {
            expect(p, ',', "','");
            if (is(p, ')')) break;
        }
        sib_tkind kind = TN_ARG;
        sib_str name = {0};
        bool wrong;
        if (is(p, '*')) {
            wrong = star || starstar;
            star = true;
            kind = TN_STAR;
            advance(p);
        } else if (is(p, T_POW)) {
            wrong = starstar;
            starstar = true;
            kind = TN_STARSTAR;
            advance(p);
        } else if (is(p, T_NAME) && look(p)->type == '=') {
            wrong = starstar;
            keyword = true;
            kind = TN_KEYWORD;
            name = intern(p, cur(p)->s);
            advance(p);
            advance(p);
        } else {
            wrong = keyword || star || starstar;
        }
        if (wrong) syntax(p, cur(p)->at, "the arguments of a call are in a wrong order");
        push(p, args, argument(p, kind, name));
    }
    expect(p, ')', "')'");
}

static sib_tnode *trail(parser *p, sib_tnode *base, sib_tnode *trailer)
{
    if (!base || base->kind != TN_CHAIN) {
        sib_tnode *chain = node(p, TN_CHAIN);
        chain->a = base;
        chain->at = base ? base->at : trailer->at;
        base = chain;
    }
    push(p, &base->kids, trailer);
    return base;
}

static sib_tnode *parse_subscript(parser *p) /* after '[', up to ']' or ',' */
{
    sib_tnode *n = node(p, TN_SLICE);
    if (!is(p, ':')) {
        n->a = parse_expression(p);
        if (!is(p, ':')) return n->a;
    }
    advance(p);
    if (!is(p, ':') && !is(p, ']') && !is(p, ',')) n->b = parse_expression(p);
    if (skip(p, ':') && !is(p, ']') && !is(p, ',')) n->c = parse_expression(p);
    return n;
}

static sib_tnode *parse_bracket(parser *p) /* at '[' */
{
    sib_tnode *n = node(p, TN_ITEM), *tuple = node(p, TN_TUPLE);
    advance(p);
    while (!is(p, ']')) {
        if (tuple->kids.n) expect(p, ',', "','");
        push(p, &tuple->kids, parse_subscript(p));
    }
    advance(p);
    for (size_t i = 0; i < tuple->kids.n; i++) {
        if (tuple->kids.v[i]->kind != TN_SLICE) continue;
        if (tuple->kids.n == 1) return tuple->kids.v[0];
        p->r->at = n->at;
        sib_tfail(p->r, SIB_TEMPLATE_UNSUPPORTED, "a slice among several subscripts is not supported");
    }
    n->a = tuple->kids.n == 1 ? tuple->kids.v[0] : tuple;
    return n;
}

static sib_tnode *parse_dot(parser *p) /* at '.' */
{
    advance(p);
    if (is(p, T_INT)) {
        sib_tnode *n = node(p, TN_ITEM);
        n->a = parse_number(p);
        return n;
    }
    if (!is(p, T_NAME)) unexpected(p, "a name or a number after '.'");
    sib_tnode *n = node(p, TN_ATTR);
    n->name = intern(p, cur(p)->s);
    advance(p);
    return n;
}

static sib_tnode *parse_postfix(parser *p, sib_tnode *n)
{
    for (;;) {
        if (is(p, '.')) {
            n = trail(p, n, parse_dot(p));
        } else if (is(p, '[')) {
            n = trail(p, n, parse_bracket(p));
        } else if (is(p, '(')) {
            sib_tnode *call = node(p, TN_CALL);
            parse_arguments(p, &call->kids);
            n = trail(p, n, call);
        } else {
            return n;
        }
    }
}

static sib_tnode *parse_named(parser *p, sib_tkind kind) /* name, perhaps dotted, of a filter or test */
{
    sib_tnode *n = node(p, kind);
    sib_str from = cur(p)->s;
    expect(p, T_NAME, kind == TN_FILTER ? "the name of a filter" : "the name of a test");
    n->name = from;
    while (skip(p, '.')) { /* no filter has such a name: what stands between does not matter */
        sib_str more = cur(p)->s;
        expect(p, T_NAME, "a name");
        n->name = (sib_str){from.p, (size_t)(more.p + more.n - from.p)};
    }
    n->which = (int16_t)(kind == TN_FILTER ? sib_tfilter_named(n->name) : sib_ttest_named(n->name));
    if (n->which < 0) push(p, &p->unknown, n);
    return n;
}

static sib_tnode *parse_filter(parser *p) /* after '|' */
{
    sib_tnode *n = parse_named(p, TN_FILTER);
    if (is(p, '(')) parse_arguments(p, &n->kids);
    return n;
}

static sib_tnode *parse_test(parser *p) /* after `is` */
{
    bool negated = skip_word(p, "not");
    sib_tnode *n = parse_named(p, TN_TEST);
    if (negated) n->flags |= TN_NEGATED;
    int t = cur(p)->type;
    if (t == '(') {
        parse_arguments(p, &n->kids);
    } else if ((t == T_NAME || t == T_STRING || t == T_INT || t == T_FLOAT || t == '[' || t == '{') && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and")) {
        if (is_word(p, "is")) syntax(p, cur(p)->at, "tests cannot be chained with is");
        sib_tnode *arg = node(p, TN_ARG);
        arg->a = parse_postfix(p, parse_primary(p));
        push(p, &n->kids, arg);
    }
    return n;
}

static sib_tnode *parse_filters(parser *p, sib_tnode *n)
{
    for (;;) {
        if (skip(p, '|')) {
            n = trail(p, n, parse_filter(p));
        } else if (skip_word(p, "is")) {
            n = trail(p, n, parse_test(p));
        } else if (is(p, '(')) {
            sib_tnode *call = node(p, TN_CALL);
            parse_arguments(p, &call->kids);
            n = trail(p, n, call);
        } else {
            return n;
        }
    }
}

static sib_tnode *parse_unary(parser *p, bool filters)
{
    sib_tnode *n;
    if (is(p, '-') || is(p, '+')) {
        n = node(p, is(p, '-') ? TN_NEG : TN_POS);
        enter(p);
        advance(p);
        n->a = parse_unary(p, false);
        p->depth--;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    return filters ? parse_filters(p, n) : n;
}

static void push_op(parser *p, sib_tnode *n, char op)
{
    size_t at = n->kids.n - 1; /* before the operand that follows */
    if (!at || (at >= 8 && !(at & (at - 1)))) { /* room for 8, 16, 32, ... */
        char *ops = sib_talloc(p->r, at ? at * 2 : 8);
        if (at) memcpy(ops, n->ops, at);
        n->ops = ops;
    }
    n->ops[at] = op;
}

static sib_tnode *parse_left(parser *p, int level);

static sib_tnode *operand(parser *p, int level)
{
    return level == 4 ? parse_unary(p, true) : parse_left(p, level + 1);
}

/* Left-associative levels, loosest first: + and -, ~, * / // and %, **. */
static sib_tnode *parse_left(parser *p, int level)
{
    static const char *const ops[] = {"", "+-", "~", "*/i%", "^"};
    sib_tnode *n = operand(p, level), *chain = NULL;
    while (cur(p)->type > T_FLOAT && strchr(ops[level], cur(p)->type)) {
        char op = (char)cur(p)->type;
        if (!chain) {
            chain = node(p, level == 2 ? TN_CONCAT : TN_MATH);
            push(p, &chain->kids, n);
        }
        push_op(p, chain, op);
        advance(p);
        push(p, &chain->kids, operand(p, level));
    }
    return chain ? chain : n;
}

static sib_tnode *parse_compare(parser *p)
{
    sib_tnode *n = parse_left(p, 1), *chain = NULL;
    for (;;) {
        char op;
        if (cur(p)->type > T_FLOAT && strchr("engl<>", cur(p)->type)) {
            op = (char)cur(p)->type;
        } else if (is_word(p, "in")) {
            op = 'I';
        } else if (is_word(p, "not") && look(p)->type == T_NAME && sib_str_is(look(p)->s, "in")) {
            op = 'N';
            advance(p);
        } else {
            return chain ? chain : n;
        }
        if (!chain) {
            chain = node(p, TN_COMPARE);
            push(p, &chain->kids, n);
        }
        push_op(p, chain, op);
        advance(p);
        push(p, &chain->kids, parse_left(p, 1));
    }
}

static sib_tnode *parse_not(parser *p)
{
    if (!is_word(p, "not")) return parse_compare(p);
    sib_tnode *n = node(p, TN_NOT);
    enter(p);
    advance(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static sib_tnode *parse_and(parser *p)
{
    sib_tnode *n = parse_not(p), *all = NULL;
    while (skip_word(p, "and")) {
        if (!all) {
            all = node(p, TN_AND);
            push(p, &all->kids, n);
        }
        push(p, &all->kids, parse_not(p));
    }
    return all ? all : n;
}

static sib_tnode *parse_or(parser *p)
{
    sib_tnode *n = parse_and(p), *any = NULL;
    while (skip_word(p, "or")) {
        if (!any) {
            any = node(p, TN_OR);
            push(p, &any->kids, n);
        }
        push(p, &any->kids, parse_and(p));
    }
    return any ? any : n;
}

static sib_tnode *parse_expression(parser *p)
{
    size_t mark = p->unknown.n;
    enter(p);
    sib_tnode *n = parse_or(p);
    int depth = p->depth;
    while (skip_word(p, "if")) { /* `a if b if c`: each wraps the one before */
        sib_tnode *c = node(p, TN_COND);
        enter(p);
        c->b = n;
        c->a = parse_or(p);
        if (skip_word(p, "else")) c->c = parse_expression(p);
        n = c;
        p->unknown.n = mark;
    }
    p->depth = depth - 1;
    return n;
}

/* ---- parser: statements ---------------------------------------------------------------------------------- */

/* Statements up to one of the tags in `ends` ("elif else endif"), which becomes the current token. */
static void parse_body(parser *p, sib_tnodes *body, const char *ends, const char *open);

static bool word_in(sib_str w, const char *words)
{
    for (const char *z = words; *z;) {
        size_t n = strcspn(z, " ");
        if (w.n == n && !memcmp(w.p, z, n)) return true;
        z += n + (z[n] == ' ');
    }
    return false;
}

static void end_tag(parser *p)
{
    (void)skip(p, ':');
    expect(p, T_BLOCK_END, "%}");
}

/* A body that has its own scope: what is unknown in it fails even inside an if. */
static void parse_scope(parser *p, sib_tnodes *body, const char *ends, const char *open)
{
    size_t mark = p->unknown.n;
    end_tag(p);
    parse_body(p, body, ends, open);
    all_known(p, mark);
}

static void check_target(parser *p, const sib_tnode *n, bool parameter)
{
    if (n->kind == TN_TUPLE) {
        for (size_t i = 0; i < n->kids.n; i++) check_target(p, n->kids.v[i], parameter);
    } else if (n->kind != TN_NAME) {
        syntax(p, n->at, "this cannot be assigned to");
    } else if (p->fors && !parameter && sib_str_is(n->name, "loop")) {
        syntax(p, n->at, "the loop variable cannot be assigned to inside a loop");
    }
}

static sib_tnode *parse_target(parser *p, const char *stop, bool parameter)
{
    sib_tnode *n = parse_tuple(p, TUPLE_PRIMARY, stop, false);
    check_target(p, n, parameter);
    return n;
}

static sib_tnode *parse_name_target(parser *p)
{
    if (!is(p, T_NAME)) unexpected(p, "a name");
    sib_tnode *n = parse_primary(p);
    check_target(p, n, true);
    return n;
}

static sib_tnode *parse_if(parser *p)
{
    size_t mark = p->unknown.n;
    sib_tnode *n = node(p, TN_IF);
    for (;;) {
        sib_tnode *branch = node(p, TN_IF);
        branch->a = parse_tuple(p, TUPLE_PLAIN, NULL, false);
        end_tag(p);
        parse_body(p, &branch->body, "elif else endif", "if");
        push(p, &n->kids, branch);
        if (!skip_word(p, "elif")) break;
    }
    if (skip_word(p, "else")) {
        end_tag(p);
        parse_body(p, &n->orelse, "endif", "if");
    }
    advance(p);
    p->unknown.n = mark;
    return n;
}

static sib_tnode *parse_for(parser *p)
{
    sib_tnode *n = node(p, TN_FOR);
    p->fors++;
    n->c = parse_target(p, "in", false);
    if (!skip_word(p, "in")) unexpected(p, "'in'");
    n->a = parse_tuple(p, TUPLE_PLAIN, "recursive", false);
    if (skip_word(p, "if")) {
        size_t mark = p->unknown.n;
        n->b = parse_expression(p);
        all_known(p, mark);
    }
    if (skip_word(p, "recursive")) n->flags |= TN_RECURSIVE;
    p->loops++;
    parse_scope(p, &n->body, "endfor else", "for");
    p->loops--;
    if (skip_word(p, "else")) parse_scope(p, &n->orelse, "endfor", "for");
    advance(p);
    p->fors--;
    return n;
}

static sib_tnode *parse_set(parser *p)
{
    sib_tnode *n = node(p, TN_SET);
    if (is(p, T_NAME) && look(p)->type == '.') {
        n->c = node(p, TN_NS_TARGET);
        n->c->name = intern(p, cur(p)->s);
        advance(p);
        advance(p);
        n->c->attr = intern(p, cur(p)->s);
        expect(p, T_NAME, "a name");
    } else {
        n->c = parse_target(p, NULL, false);
    }
    if (skip(p, '=')) {
        n->a = parse_tuple(p, TUPLE_COND, NULL, false);
        return n;
    }
    size_t mark = p->unknown.n;
    n->kind = TN_SET_BLOCK;
    while (skip(p, '|')) n->a = trail(p, n->a, parse_filter(p));
    all_known(p, mark);
    parse_scope(p, &n->body, "endset", "set");
    advance(p);
    return n;
}

static void parse_parameters(parser *p, sib_tnode *n)
{
    expect(p, '(', "'('");
    while (!is(p, ')')) {
        if (n->kids.n) expect(p, ',', "','");
        sib_tnode *name = parse_name_target(p);
        if (skip(p, '='))
            name->a = parse_expression(p);
        else if (n->kids.n && n->kids.v[n->kids.n - 1]->a)
            syntax(p, name->at, "a parameter without a default follows one with a default");
        push(p, &n->kids, name);
    }
    expect(p, ')', "')'");
}

/* Body of a macro, a call block or a generation block: a function of its own. */
static void parse_function(parser *p, sib_tnode *n, const char *end, const char *open)
{
    int loops = p->loops;
    unsigned uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    parse_scope(p, &n->body, end, open);
    advance(p);
    n->flags = (uint8_t)(n->flags | p->uses);
    p->loops = loops;
    p->uses |= uses;
    for (size_t i = 0; i < n->kids.n; i++) {
        sib_str name = n->kids.v[i]->name;
        if (sib_str_is(name, "varargs")) n->flags &= (uint8_t)~TN_USES_VARARGS;
        if (sib_str_is(name, "kwargs")) n->flags &= (uint8_t)~TN_USES_KWARGS;
        p->r->at = n->at;
        if (sib_str_is(name, "caller")) sib_tfail(p->r, SIB_TEMPLATE_UNSUPPORTED, "a parameter called 'caller' is not supported");
    }
}

static sib_tnode *parse_macro(parser *p)
{
    size_t mark = p->unknown.n;
    sib_tnode *n = node(p, TN_MACRO);
    n->name = parse_name_target(p)->name;
    parse_parameters(p, n);
    all_known(p, mark);
    parse_function(p, n, "endmacro", "macro");
    return n;
}

static sib_tnode *parse_call_block(parser *p)
{
    sib_tnode *n = node(p, TN_CALL_BLOCK);
    if (is(p, '(')) parse_parameters(p, n);
    n->a = parse_expression(p);
    if (n->a->kind != TN_CHAIN || n->a->kids.v[n->a->kids.n - 1]->kind != TN_CALL) syntax(p, n->at, "a call block needs a call");
    parse_function(p, n, "endcall", "call");
    return n;
}

static sib_tnode *parse_filter_block(parser *p)
{
    size_t mark = p->unknown.n;
    sib_tnode *n = node(p, TN_FILTER_BLOCK);
    do
        n->a = trail(p, n->a, parse_filter(p));
    while (skip(p, '|'));
    all_known(p, mark);
    parse_scope(p, &n->body, "endfilter", "filter");
    advance(p);
    return n;
}

static sib_tnode *parse_with(parser *p)
{
    sib_tnode *n = node(p, TN_WITH);
    while (!is(p, T_BLOCK_END)) {
        if (n->kids.n) expect(p, ',', "','");
        sib_tnode *target = parse_primary(p);
        check_target(p, target, true);
        push(p, &n->kids, target);
        expect(p, '=', "'='");
        push(p, &n->kids, parse_expression(p));
    }
    parse_scope(p, &n->body, "endwith", "with");
    advance(p);
    return n;
}

static sib_tnode *parse_print(parser *p)
{
    sib_tnode *n = node(p, TN_PRINT);
    while (!is(p, T_BLOCK_END)) {
        if (n->kids.n) expect(p, ',', "','");
        push(p, &n->kids, parse_expression(p));
    }
    return n;
}

static sib_tnode *parse_statement(parser *p, const char *open)
{
    static const struct {
        const char *tag;
        sib_tnode *(*parse)(parser *p);
    } tags[] = {{"if", parse_if}, {"for", parse_for}, {"set", parse_set}, {"macro", parse_macro}, {"call", parse_call_block},
                {"filter", parse_filter_block}, {"with", parse_with}, {"print", parse_print}};
    char text[160];
    if (!is(p, T_NAME)) unexpected(p, "the name of a tag");
    const token *t = cur(p);
    p->r->at = t->at;
    advance(p);
    for (size_t i = 0; i < SIB_COUNT(tags); i++)
        if (sib_str_is(t->s, tags[i].tag)) return tags[i].parse(p);
    if (sib_str_is(t->s, "generation")) {
        sib_tnode *n = node(p, TN_GENERATION);
        parse_function(p, n, "endgeneration", "generation");
        return n;
    }
    if (word_in(t->s, "break continue")) {
        if (!p->loops) syntax(p, t->at, "break or continue stands outside a loop");
        return node(p, t->s.p[0] == 'b' ? TN_BREAK : TN_CONTINUE);
    }
    if (word_in(t->s, "block extends include import from autoescape"))
        sib_tfail(p->r, SIB_TEMPLATE_UNSUPPORTED, "the tag '%.*s' is not supported", (int)t->s.n, t->s.p);
    (void)snprintf(text, sizeof text, "the tag '%.*s' is unknown%s%s", (int)(t->s.n > 60 ? 60 : t->s.n), t->s.p, open ? " inside " : "", open ? open : "");
    syntax(p, t->at, text);
}

static void parse_body(parser *p, sib_tnodes *body, const char *ends, const char *open)
{
    char text[120];
    enter(p);
    for (;;) {
        sib_tnode *n;
        switch (cur(p)->type) {
        case T_DATA:
            n = node(p, TN_TEXT);
            n->name = cur(p)->s;
            advance(p);
            break;
        case T_VAR_BEGIN:
            advance(p);
            n = node(p, TN_PRINT);
            push(p, &n->kids, parse_tuple(p, TUPLE_COND, NULL, false));
            expect(p, T_VAR_END, "}}");
            break;
        case T_BLOCK_BEGIN:
            advance(p);
            if (ends && is(p, T_NAME) && word_in(cur(p)->s, ends)) {
                p->depth--;
                return;
            }
            n = parse_statement(p, open);
            expect(p, T_BLOCK_END, "%}");
            break;
        default: /* T_EOF */
            if (ends) {
                (void)snprintf(text, sizeof text, "the template ends inside '%s', which wants one of: %s", open, ends);
                syntax(p, cur(p)->at, text);
            }
            p->depth--;
            return;
        }
        push(p, body, n);
    }
}

/* ---- entry ----------------------------------------------------------------------------------------------- */

/* Line ends become \n, and one at the very end goes, as Jinja does before anything else. */
static sib_str normalised(sib_tr *r, sib_str source)
{
    char *out = sib_talloc(r, source.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < source.n; i++) {
        bool cr = source.p[i] == '\r';
        if (cr && i + 1 < source.n && source.p[i + 1] == '\n') i++;
        out[n++] = cr ? '\n' : source.p[i];
    }
    if (n && out[n - 1] == '\n') n--;
    return (sib_str){out, n};
}

sib_status sib_template_parse(sib_template **out, sib_str source, const char *name, sib_template_fault *fault, sib_err *err)
{
    const sib_template_options opt = {.max_memory = MAX_TREE};
    *out = NULL;
    sib_template *t = calloc(1, sizeof *t);
    if (!t) return sib_nomem(err, name);
    sib_tr_init(&t->mem, &opt);
    t->name = sib_strdup(name);
    if (setjmp(t->mem.jump)) {
        sib_status s = sib_tr_report(&t->mem, t->source, name, fault, err);
        sib_template_free(t);
        return s;
    }
    if (!t->name) sib_tfail(&t->mem, SIB_TEMPLATE_NOMEM, "out of memory");
    if (source.n > MAX_SOURCE) sib_tfail(&t->mem, SIB_TEMPLATE_LIMIT, "the template is larger than %zu bytes", MAX_SOURCE);
    if (!sib_utf8_valid(source)) sib_tfail(&t->mem, SIB_TEMPLATE_SYNTAX, "the template is not valid UTF-8");
    t->source = normalised(&t->mem, source);
    parser p = {.r = &t->mem, .src = t->source};
    lex(&p);
    parse_body(&p, &t->body, NULL, NULL);
    all_known(&p, 0);
    t->special[0] = intern(&p, SIB_STR("caller"));
    t->special[1] = intern(&p, SIB_STR("varargs"));
    t->special[2] = intern(&p, SIB_STR("kwargs"));
    t->special[3] = intern(&p, SIB_STR("loop"));
    *out = t;
    return SIB_OK;
}

void sib_template_free(sib_template *t)
{
    if (!t) return;
    sib_tr_deinit(&t->mem);
    free(t->name);
    free(t);
}
