/* sample/grammar_regex.c - regular expressions to programs; see grammar.h for the syntax. */
#include "sample/grammar_internal.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS     (1 << 17)
#define MAX_PATTERN 16384
#define MAX_NESTING 64
#define MAX_COUNT   1000 /* {m,n} */
#define MAX_RANGES  128  /* of one class */

/* ---- emitting -------------------------------------------------------------------------------------- */

int32_t sib_g_fail(sib_grammar_program *p, sib_status s, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (p->status != SIB_OK) return 0;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->status = sib_fail(p->err, s, "%s", text);
    return 0;
}

int32_t sib_g_emit(sib_grammar_program *p, sib_g_op op)
{
    if (p->status != SIB_OK) return 0;
    if (p->n == p->cap) {
        int32_t cap = p->cap ? 2 * p->cap : 256;
        sib_g_op *v = p->n < MAX_OPS ? realloc(p->ops, (size_t)cap * sizeof *v) : NULL;
        if (!v) return sib_g_fail(p, SIB_ECAPACITY, "the grammar is too large");
        p->ops = v;
        p->cap = cap;
    }
    p->ops[p->n] = op;
    return p->n++;
}

int32_t sib_g_split(sib_grammar_program *p, int32_t x, int32_t y)
{
    return sib_g_emit(p, (sib_g_op){.op = SIB_G_SPLIT, .x = x, .y = y});
}

static int32_t emit_byte(sib_grammar_program *p, uint8_t lo, uint8_t hi, int32_t next)
{
    return sib_g_emit(p, (sib_g_op){.op = SIB_G_BYTES, .lo = lo, .hi = hi, .x = next});
}

int32_t sib_g_text(sib_grammar_program *p, sib_str text, int32_t next)
{
    for (size_t i = text.n; i > 0; i--) next = emit_byte(p, (uint8_t)text.p[i - 1], (uint8_t)text.p[i - 1], next);
    return next;
}

/* Code points lo..hi of one encoded length as an alternative to *all (-1: none yet). */
static void emit_span(sib_grammar_program *p, uint32_t lo, uint32_t hi, int32_t next, int32_t *all)
{
    char a[4], b[4];
    size_t n = sib_utf8_put(lo, a);
    /* Split until the trailing bytes run over their whole range, or are one. */
    for (size_t i = 1; i < n; i++) {
        uint32_t m = (1u << (6 * i)) - 1;
        if ((lo & ~m) == (hi & ~m)) continue;
        if ((lo & m) != 0) {
            emit_span(p, lo, lo | m, next, all);
            emit_span(p, (lo | m) + 1, hi, next, all);
            return;
        }
        if ((hi & m) != m) {
            emit_span(p, lo, (hi & ~m) - 1, next, all);
            emit_span(p, hi & ~m, hi, next, all);
            return;
        }
    }
    (void)sib_utf8_put(hi, b);
    int32_t pc = next;
    for (size_t i = n; i > 0; i--) pc = emit_byte(p, (uint8_t)a[i - 1], (uint8_t)b[i - 1], pc);
    *all = *all < 0 ? pc : sib_g_split(p, pc, *all);
}

int32_t sib_g_ranges(sib_grammar_program *p, const sib_g_range *r, int n, int32_t next)
{
    static const sib_g_range lengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    int32_t all = -1;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < SIB_COUNT(lengths); k++) {
            uint32_t lo = r[i].lo > lengths[k].lo ? r[i].lo : lengths[k].lo, hi = r[i].hi < lengths[k].hi ? r[i].hi : lengths[k].hi;
            if (lo <= hi) emit_span(p, lo, hi, next, &all);
        }
    if (all < 0) return sib_g_fail(p, SIB_EARG, "a character class of the pattern is empty");
    return all;
}

sib_status sib_g_new(sib_grammar_program **out, sib_err *err)
{
    sib_grammar_program *p = *out = calloc(1, sizeof *p);
    if (!p) return sib_nomem(err, "grammar");
    p->err = err;
    return SIB_OK;
}

void sib_grammar_program_free(sib_grammar_program *p)
{
    if (!p) return;
    free(p->ops);
    free(p);
}

/* ---- parsing ------------------------------------------------------------------------------------------ */

typedef enum kind { EMPTY, CLASS, SEQUENCE, CHOICE, REPEAT } kind;

typedef struct node {
    kind kind;
    int child, sibling; /* -1: none; children of a SEQUENCE come last first */
    int min, max;       /* REPEAT; max -1: no limit */
    int ranges, n_ranges;
} node;

typedef struct parser {
    sib_grammar_program *p;
    const char *z, *end, *begin;
    bool in_string;
    node *nodes;
    sib_g_range *ranges;
    int n_nodes, cap_nodes, n_ranges, cap_ranges;
    bool anchored_front, anchored_back;
} parser;

static int fail_at(parser *q, const char *what)
{
    sib_g_fail(q->p, SIB_EARG, "pattern: %s at byte %zu", what, (size_t)(q->z - q->begin));
    return -1;
}

static void *grow(parser *q, void *v, int n, int *cap, size_t each)
{
    if (n < *cap) return v;
    int more = *cap ? 2 * *cap : 64;
    void *w = realloc(v, (size_t)more * each);
    if (!w) sib_g_fail(q->p, SIB_ENOMEM, "out of memory: pattern");
    else *cap = more;
    return w;
}

static int add_node(parser *q, node n)
{
    node *v = grow(q, q->nodes, q->n_nodes, &q->cap_nodes, sizeof *v);
    if (!v) return -1;
    q->nodes = v;
    v[q->n_nodes] = n;
    return q->n_nodes++;
}

static bool add_range(parser *q, uint32_t lo, uint32_t hi)
{
    sib_g_range *v = grow(q, q->ranges, q->n_ranges, &q->cap_ranges, sizeof *v);
    if (!v) return false;
    q->ranges = v;
    v[q->n_ranges++] = (sib_g_range){lo, hi};
    return true;
}

static int by_lo(const void *a, const void *b)
{
    const sib_g_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorts and joins the ranges from `first` on, and turns them round when `negated`. */
static void tidy(parser *q, int first, bool negated)
{
    int n = 0;
    sib_g_range *r = q->ranges + first;
    qsort(r, (size_t)(q->n_ranges - first), sizeof *r, by_lo);
    for (int i = 0; i < q->n_ranges - first; i++)
        if (n > 0 && r[i].lo <= r[n - 1].hi + 1) r[n - 1].hi = r[i].hi > r[n - 1].hi ? r[i].hi : r[n - 1].hi;
        else r[n++] = r[i];
    q->n_ranges = first + n;
    if (!negated) return;
    uint32_t at = 0;
    sib_g_range old[MAX_RANGES];
    if (n > MAX_RANGES) {
        (void)fail_at(q, "a class has too many ranges");
        return;
    }
    memcpy(old, r, (size_t)n * sizeof *old);
    q->n_ranges = first;
    for (int i = 0; i < n; i++) {
        if (old[i].lo > at && !add_range(q, at, old[i].lo - 1)) return;
        at = old[i].hi + 1;
    }
    if (at <= 0x10FFFF) (void)add_range(q, at, 0x10FFFF);
}

/* Takes out of the ranges what cannot stand in a JSON string as it is. */
static void keep_string_characters(parser *q, int first)
{
    static const sib_g_range fit[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    int n = q->n_ranges - first;
    sib_g_range old[MAX_RANGES];
    if (n > MAX_RANGES) {
        (void)fail_at(q, "a class has too many ranges");
        return;
    }
    memcpy(old, q->ranges + first, (size_t)n * sizeof *old);
    q->n_ranges = first;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < SIB_COUNT(fit); k++) {
            uint32_t lo = old[i].lo > fit[k].lo ? old[i].lo : fit[k].lo, hi = old[i].hi < fit[k].hi ? old[i].hi : fit[k].hi;
            if (lo <= hi && !add_range(q, lo, hi)) return;
        }
}

static int class_node(parser *q, int first)
{
    if (q->in_string) keep_string_characters(q, first);
    return add_node(q, (node){.kind = CLASS, .child = -1, .sibling = -1, .ranges = first, .n_ranges = q->n_ranges - first});
}

static int32_t hex_digits(parser *q, int n)
{
    int32_t v = 0;
    for (int i = 0; i < n; i++, q->z++) {
        const char *digits = "0123456789abcdef", *at = q->z < q->end && *q->z ? strchr(digits, *q->z | 0x20) : NULL;
        if (!at || (*q->z < '0')) return -1;
        v = v << 4 | (int32_t)(at - digits);
    }
    return v;
}

/* \d and the like: ranges appended; 0: no such class. */
static bool escape_class(parser *q, char c)
{
    int first = q->n_ranges;
    switch (c | 0x20) {
    case 'd': (void)add_range(q, '0', '9'); break;
    case 'w': (void)(add_range(q, '0', '9') && add_range(q, 'A', 'Z') && add_range(q, '_', '_') && add_range(q, 'a', 'z')); break;
    case 's': (void)(add_range(q, '\t', '\r') && add_range(q, ' ', ' ')); break;
    default: return false;
    }
    if (c < 'a') tidy(q, first, true);
    return true;
}

/* The character after a backslash, or -1 with a failed program. */
static int32_t escape_character(parser *q)
{
    static const char names[] = "ntrfv0", values[] = "\n\t\r\f\v";
    char c = *q->z++;
    const char *at = c ? strchr(names, c) : NULL;
    if (at) return values[at - names];
    int32_t v = c == 'x' ? hex_digits(q, 2) : c == 'u' ? hex_digits(q, 4) : -2;
    if (v == -1 || (v >= 0xD800 && v < 0xE000)) return fail_at(q, "a wrong \\x or \\u");
    if (v >= 0) return v;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return fail_at(q, "an escape that is not supported");
    return (uint8_t)c;
}

static int32_t next_character(parser *q)
{
    size_t len;
    uint32_t c = sib_utf8_next(q->z, (size_t)(q->end - q->z), &len);
    if (c == SIB_UTF8_BAD) return fail_at(q, "invalid UTF-8");
    q->z += len;
    return (int32_t)c;
}

static int parse_class(parser *q)
{
    int first = q->n_ranges;
    bool negated = q->z < q->end && *q->z == '^';
    if (negated) q->z++;
    for (bool any = false;; any = true) {
        if (q->z >= q->end) return fail_at(q, "a class without end");
        if (*q->z == ']' && any) break;
        if (q->n_ranges - first >= MAX_RANGES) return fail_at(q, "a class has too many ranges");
        int32_t lo;
        if (*q->z == '\\') {
            if (++q->z >= q->end) return fail_at(q, "a lone backslash");
            if (escape_class(q, *q->z)) {
                q->z++;
                continue;
            }
            lo = *q->z == 'b' ? (q->z++, '\b') : escape_character(q);
        } else {
            lo = next_character(q);
        }
        int32_t hi = lo;
        if (lo >= 0 && q->end - q->z >= 2 && q->z[0] == '-' && q->z[1] != ']') {
            q->z++;
            if (*q->z == '\\') q->z++, hi = q->z < q->end ? escape_character(q) : -1;
            else hi = next_character(q);
        }
        if (lo < 0 || hi < lo) return fail_at(q, "a range the wrong way round");
        if (!add_range(q, (uint32_t)lo, (uint32_t)hi)) return -1;
    }
    q->z++;
    tidy(q, first, negated);
    return class_node(q, first);
}

static int parse_choice(parser *q, int depth);

static int parse_atom(parser *q, int depth)
{
    int first = q->n_ranges;
    char c = *q->z;
    if (c == '(') {
        q->z++;
        if (q->z < q->end && *q->z == '?') {
            if (q->end - q->z < 2 || q->z[1] != ':') return fail_at(q, "a group of a kind that is not supported");
            q->z += 2;
        }
        int inside = parse_choice(q, depth - 1);
        if (q->p->status != SIB_OK) return -1;
        if (q->z >= q->end) return fail_at(q, "a group without end");
        q->z++;
        return inside;
    }
    if (c == '[') {
        q->z++;
        return parse_class(q);
    }
    if (c == '.') {
        q->z++;
        if (!add_range(q, 0, 9) || !add_range(q, 11, 0x10FFFF)) return -1;
        return class_node(q, first);
    }
    if (c && strchr("*+?{", c)) return fail_at(q, "nothing to repeat");
    if (c == '^' || c == '$') return fail_at(q, "an anchor inside the pattern");
    int32_t v;
    if (c == '\\') {
        if (++q->z >= q->end) return fail_at(q, "a lone backslash");
        if (escape_class(q, *q->z)) {
            q->z++;
            return class_node(q, first);
        }
        v = escape_character(q);
    } else {
        v = next_character(q);
    }
    return v < 0 || !add_range(q, (uint32_t)v, (uint32_t)v) ? -1 : class_node(q, first);
}

static bool parse_number(parser *q, int *out)
{
    const char *from = q->z;
    *out = 0;
    while (q->z < q->end && *q->z >= '0' && *q->z <= '9' && *out <= MAX_COUNT) *out = *out * 10 + (*q->z++ - '0');
    return q->z > from;
}

/* *, +, ?, {m}, {m,}, {m,n}, each with an optional ? that makes no difference to what matches. */
static int parse_repeat(parser *q, int atom)
{
    while (atom >= 0 && q->z < q->end && *q->z && strchr("*+?{", *q->z)) {
        node n = {.kind = REPEAT, .child = atom, .sibling = -1, .min = *q->z == '+', .max = *q->z == '?' ? 1 : -1};
        if (*q->z++ == '{') {
            if (!parse_number(q, &n.min)) return fail_at(q, "a wrong {m,n}");
            n.max = n.min;
            if (q->z < q->end && *q->z == ',') {
                q->z++;
                if (!parse_number(q, &n.max)) n.max = -1;
            }
            if (q->z >= q->end || *q->z++ != '}') return fail_at(q, "a wrong {m,n}");
            if (n.min > MAX_COUNT || n.max > MAX_COUNT || (n.max >= 0 && n.max < n.min)) return fail_at(q, "a count that is too large or the wrong way round");
        }
        if (q->z < q->end && (*q->z == '?' || *q->z == '+')) {
            if (*q->z == '+') return fail_at(q, "a possessive repetition, which is not supported");
            q->z++;
        }
        atom = add_node(q, n);
    }
    return atom;
}

static int parse_choice(parser *q, int depth)
{
    int choice = -1, sequence = -1, last = -1;
    if (depth == 0) return fail_at(q, "groups nested too deeply");
    for (;;) {
        bool end = q->z >= q->end || *q->z == ')' || *q->z == '|';
        if (end) {
            int all = add_node(q, (node){.kind = sequence < 0 ? EMPTY : SEQUENCE, .child = sequence, .sibling = choice});
            if (all < 0) return -1;
            choice = all;
            sequence = -1;
            if (q->z >= q->end || *q->z == ')') break;
            q->z++;
            continue;
        }
        last = parse_repeat(q, parse_atom(q, depth));
        if (last < 0) return -1;
        int item = add_node(q, (node){.kind = SEQUENCE, .child = last, .sibling = sequence}); /* a cell of the list */
        if (item < 0) return -1;
        sequence = item;
    }
    return add_node(q, (node){.kind = CHOICE, .child = choice, .sibling = -1});
}

/* ---- to code -------------------------------------------------------------------------------------------------- */

static int32_t emit_node(parser *q, int at, int32_t next);

static int32_t emit_repeat(parser *q, const node n, int32_t next)
{
    sib_grammar_program *p = q->p;
    if (n.max < 0) {
        int32_t loop = sib_g_split(p, next, next);
        int32_t body = emit_node(q, n.child, loop);
        if (p->status != SIB_OK) return 0;
        p->ops[loop].x = body;
        next = loop;
    }
    for (int i = n.min; i < n.max && p->status == SIB_OK; i++) next = sib_g_split(p, emit_node(q, n.child, next), next);
    for (int i = 0; i < n.min && p->status == SIB_OK; i++) next = emit_node(q, n.child, next);
    return next;
}

static int32_t emit_node(parser *q, int at, int32_t next)
{
    const node n = q->nodes[at];
    sib_grammar_program *p = q->p;
    if (p->status != SIB_OK) return 0;
    switch (n.kind) {
    case EMPTY: return next;
    case CLASS: return sib_g_ranges(p, q->ranges + n.ranges, n.n_ranges, next);
    case REPEAT: return emit_repeat(q, n, next);
    case SEQUENCE:
        for (int cell = n.child; cell >= 0 && p->status == SIB_OK; cell = q->nodes[cell].sibling) next = emit_node(q, q->nodes[cell].child, next);
        return next;
    case CHOICE: break;
    }
    int32_t all = -1;
    for (int c = n.child; c >= 0 && p->status == SIB_OK; c = q->nodes[c].sibling) {
        int32_t pc = emit_node(q, c, next);
        all = all < 0 ? pc : sib_g_split(p, pc, all);
    }
    return all;
}

int32_t sib_g_regex(sib_grammar_program *p, sib_str pattern, bool in_string, bool search, int32_t next)
{
    parser q = {.p = p, .begin = pattern.p, .z = pattern.p, .end = pattern.p + pattern.n, .in_string = in_string};
    if (pattern.n > MAX_PATTERN) return sib_g_fail(p, SIB_ECAPACITY, "the pattern has %zu bytes, allowed are %d", pattern.n, MAX_PATTERN);
    if (q.z < q.end && *q.z == '^') q.z++, q.anchored_front = true;
    if (q.end > q.z && q.end[-1] == '$') {
        size_t slashes = 0; /* "\$" is a character, "\\$" an anchor */
        while (q.end - 1 - slashes > q.z && q.end[-2 - (ptrdiff_t)slashes] == '\\') slashes++;
        if (slashes % 2 == 0) q.end--, q.anchored_back = true;
    }
    int root = parse_choice(&q, MAX_NESTING);
    if (p->status == SIB_OK && q.z < q.end) (void)fail_at(&q, "a closing bracket too many");
    /* "^a|b$" binds its anchors to the alternatives, which whole matching does not tell apart. */
    if (p->status == SIB_OK && root >= 0 && (q.anchored_front || q.anchored_back) && q.nodes[q.nodes[root].child].sibling >= 0) (void)fail_at(&q, "anchors around alternatives need a group");
    int32_t pc = 0;
    if (p->status == SIB_OK && root >= 0) {
        static const node any = {.kind = REPEAT, .sibling = -1, .max = -1};
        node rest = any;
        int first = q.n_ranges;
        if (search && add_range(&q, 0, 0x10FFFF)) rest.child = class_node(&q, first);
        if (search && !q.anchored_back) next = emit_repeat(&q, rest, next);
        pc = emit_node(&q, root, next);
        if (search && !q.anchored_front) pc = emit_repeat(&q, rest, pc);
    }
    free(q.nodes);
    free(q.ranges);
    return pc;
}

sib_status sib_grammar_from_regex(sib_grammar_program **out, sib_str pattern, sib_err *err)
{
    SIB_TRY(sib_g_new(out, err));
    sib_grammar_program *p = *out;
    int32_t end = sib_g_emit(p, (sib_g_op){.op = SIB_G_RETURN});
    p->start = sib_g_regex(p, pattern, false, false, end);
    p->err = NULL;
    if (p->status == SIB_OK) return SIB_OK;
    sib_status s = p->status;
    sib_grammar_program_free(p);
    *out = NULL;
    return s;
}
