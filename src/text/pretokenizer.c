/* text/pretokenizer.c - see pretokenizer.h.
 *
 * A Sequence is flattened into one list of steps. A step either cuts every piece at the
 * matches of a pattern (the text stays), or writes a new text (ByteLevel, Metaspace). */
#include "text/pretokenizer.h"

#include "base/utf8.h"
#include "text/pretokenizer_known.h"
#include "text/pretokenizer_pattern.h"
#include "text/unicode.h"
#include "text/unicode_bytes.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 32

/* What becomes of the matches of a pattern. */
typedef enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } behavior;

typedef struct step {
    enum { CUT, BYTES, PREFIX_SPACE, METASPACE } kind;
    sib_pattern *pattern; /* CUT                                               */
    behavior behavior;
    bool invert;  /* CUT: swap matches and the text between them */
    char mark[4]; /* METASPACE: what stands for a space          */
    size_t mark_n;
    enum { NEVER, FIRST, ALWAYS } prepend; /* METASPACE                                   */
} step;

struct sib_pretokenizer {
    step steps[MAX_STEPS];
    size_t n;
    bool rewrites; /* has a step that writes a new text: one is enough, many could grow a text without bound */
};

/* ---- from JSON ---- */

static sib_status add_step(sib_pretokenizer *z, step **out, sib_err *err)
{
    if (z->n == MAX_STEPS) return sib_fail(err, SIB_EUNSUPPORTED, "pre_tokenizer: more than %d steps", MAX_STEPS);
    *out = &z->steps[z->n++];
    return SIB_OK;
}

static sib_status add_cut(sib_pretokenizer *z, behavior b, bool invert, step **out, sib_err *err)
{
    SIB_TRY(add_step(z, out, err));
    (*out)->kind = CUT;
    (*out)->behavior = b;
    (*out)->invert = invert;
    return SIB_OK;
}

static sib_status claim_rewrite(sib_pretokenizer *z, const char *type, sib_err *err)
{
    if (z->rewrites)
        return sib_fail(err, SIB_EUNSUPPORTED,
                        "pre_tokenizer: %s behind another ByteLevel or Metaspace is not supported", type);
    z->rewrites = true;
    return SIB_OK;
}

static sib_status read_behavior(const json_t *spec, const char *where, behavior *out, sib_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    SIB_TRY(sib_json_str(spec, where, "behavior", &name, err));
    for (size_t i = 0; name && i < SIB_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (behavior)i;
            return SIB_OK;
        }
    return sib_fail(err, SIB_EFORMAT,
                    "%s: key \"behavior\" is \"%s\", which is not one of Removed, Isolated, MergedWithPrevious, "
                    "MergedWithNext, Contiguous",
                    where, name ? name : "");
}

/* A key that must hold exactly one character. */
static sib_status read_char(const json_t *spec, const char *where, const char *key, sib_str *out, sib_err *err)
{
    const json_t *v = json_object_get(spec, key);
    *out = (sib_str){json_string_value(v), json_string_length(v)};
    if (!out->p || sib_utf8_count(*out) != 1)
        return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" must be one character", where, key);
    return SIB_OK;
}

static bool is_number(uint32_t cp)
{
    return sib_unicode_bits(cp) & SIB_U_N;
}

/* Unicode punctuation, and the ASCII symbols. */
static bool is_punctuation(uint32_t cp)
{
    unsigned bits = sib_unicode_bits(cp);
    return (bits & SIB_U_P) || (cp < 0x80 && (bits & SIB_U_S));
}

static bool is_space(uint32_t cp)
{
    return sib_unicode_bits(cp) & SIB_U_WS;
}

static bool is_regex_word(uint32_t cp)
{
    return sib_unicode_is_regex_word(cp);
}

static bool is_neither(uint32_t cp)
{
    return !is_space(cp) && !is_regex_word(cp);
}

static sib_status add_byte_level(sib_pretokenizer *z, const json_t *spec, sib_err *err)
{
    bool prefix = true, regex = true;
    step *st = NULL;
    SIB_TRY(claim_rewrite(z, "ByteLevel", err));
    SIB_TRY(sib_json_bool(spec, "pre_tokenizer ByteLevel", "add_prefix_space", &prefix, err));
    SIB_TRY(sib_json_bool(spec, "pre_tokenizer ByteLevel", "use_regex", &regex, err));
    if (prefix) {
        SIB_TRY(add_step(z, &st, err));
        st->kind = PREFIX_SPACE;
    }
    if (regex) {
        SIB_TRY(add_cut(z, ISOLATED, false, &st, err));
        SIB_TRY(sib_pattern_of_regex(&st->pattern, sib_str_of(sib_gpt2_regex), "pre_tokenizer ByteLevel", err));
    }
    SIB_TRY(add_step(z, &st, err));
    st->kind = BYTES;
    return SIB_OK;
}

static sib_status add_metaspace(sib_pretokenizer *z, const json_t *spec, sib_err *err)
{
    static const char where[] = "pre_tokenizer Metaspace";
    const char *scheme = "always";
    bool split = true, old_prefix = true;
    sib_str mark;
    step *st = NULL;
    SIB_TRY(claim_rewrite(z, "Metaspace", err));
    SIB_TRY(read_char(spec, where, "replacement", &mark, err));
    SIB_TRY(sib_json_str(spec, where, "prepend_scheme", &scheme, err));
    SIB_TRY(sib_json_bool(spec, where, "split", &split, err));
    SIB_TRY(sib_json_bool(spec, where, "add_prefix_space", &old_prefix, err));
    if (!old_prefix) scheme = "never"; /* files from before prepend_scheme */
    SIB_TRY(add_step(z, &st, err));
    st->kind = METASPACE;
    memcpy(st->mark, mark.p, mark.n);
    st->mark_n = mark.n;
    if (strcmp(scheme, "always") == 0)
        st->prepend = ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        st->prepend = FIRST;
    else if (strcmp(scheme, "never") == 0)
        st->prepend = NEVER;
    else
        return sib_fail(err, SIB_EFORMAT, "%s: key \"prepend_scheme\" is \"%s\"", where, scheme);
    if (!split) return SIB_OK;
    SIB_TRY(add_cut(z, MERGED_WITH_NEXT, false, &st, err));
    return sib_pattern_of_string(&st->pattern, mark, where, err);
}

static sib_status add(sib_pretokenizer *z, const json_t *spec, int depth, sib_err *err)
{
    const char *type = NULL;
    behavior b = ISOLATED;
    bool flag = false;
    step *st = NULL;
    if (!json_is_object(spec)) return sib_fail(err, SIB_EFORMAT, "pre_tokenizer: must be an object");
    SIB_TRY(sib_json_str(spec, "pre_tokenizer", "type", &type, err));
    if (!type) return sib_fail(err, SIB_EFORMAT, "pre_tokenizer: key \"type\" is missing");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(spec, "pretokenizers"), *item;
        size_t i;
        if (!json_is_array(list))
            return sib_fail(err, SIB_EFORMAT, "pre_tokenizer: key \"pretokenizers\" must be a list");
        if (depth == 4) return sib_fail(err, SIB_EUNSUPPORTED, "pre_tokenizer: Sequence nested deeper than 4 levels");
        json_array_foreach(list, i, item) SIB_TRY(add(z, item, depth + 1, err));
        return SIB_OK;
    }
    if (strcmp(type, "Split") == 0) {
        SIB_TRY(read_behavior(spec, "pre_tokenizer Split", &b, err));
        SIB_TRY(sib_json_bool(spec, "pre_tokenizer Split", "invert", &flag, err));
        SIB_TRY(add_cut(z, b, flag, &st, err));
        return sib_pattern_new(&st->pattern, json_object_get(spec, "pattern"), "pre_tokenizer Split", err);
    }
    if (strcmp(type, "ByteLevel") == 0) return add_byte_level(z, spec, err);
    if (strcmp(type, "Metaspace") == 0) return add_metaspace(z, spec, err);
    if (strcmp(type, "Digits") == 0) {
        SIB_TRY(sib_json_bool(spec, "pre_tokenizer Digits", "individual_digits", &flag, err));
        SIB_TRY(add_cut(z, flag ? ISOLATED : CONTIGUOUS, false, &st, err));
        return sib_pattern_of_class(&st->pattern, is_number, err);
    }
    if (strcmp(type, "Punctuation") == 0) {
        if (sib_json_get(spec, "behavior")) SIB_TRY(read_behavior(spec, "pre_tokenizer Punctuation", &b, err));
        SIB_TRY(add_cut(z, b, false, &st, err));
        return sib_pattern_of_class(&st->pattern, is_punctuation, err);
    }
    if (strcmp(type, "Whitespace") == 0) { /* \w+|[^\w\s]+ */
        SIB_TRY(add_cut(z, REMOVED, false, &st, err));
        SIB_TRY(sib_pattern_of_class(&st->pattern, is_space, err));
        SIB_TRY(add_cut(z, CONTIGUOUS, false, &st, err));
        return sib_pattern_of_class(&st->pattern, is_neither, err);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        SIB_TRY(add_cut(z, REMOVED, false, &st, err));
        return sib_pattern_of_class(&st->pattern, is_space, err);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        sib_str delimiter;
        SIB_TRY(read_char(spec, "pre_tokenizer CharDelimiterSplit", "delimiter", &delimiter, err));
        SIB_TRY(add_cut(z, REMOVED, false, &st, err));
        return sib_pattern_of_string(&st->pattern, delimiter, "pre_tokenizer CharDelimiterSplit", err);
    }
    return sib_fail(err, SIB_EUNSUPPORTED, "pre_tokenizer: type \"%s\" is not supported", type);
}

sib_status sib_pretokenizer_new(sib_pretokenizer **out, const json_t *spec, sib_err *err)
{
    *out = NULL;
    sib_pretokenizer *z = calloc(1, sizeof *z);
    if (!z) return sib_nomem(err, "pre_tokenizer");
    sib_status s = spec ? add(z, spec, 0, err) : SIB_OK;
    if (s != SIB_OK) {
        sib_pretokenizer_free(z);
        return s;
    }
    *out = z;
    return SIB_OK;
}

void sib_pretokenizer_free(sib_pretokenizer *z)
{
    if (!z) return;
    for (size_t i = 0; i < z->n; i++) sib_pattern_free(z->steps[i].pattern);
    free(z);
}

/* ---- pieces ---- */

static void push(sib_pieces *p, size_t from, size_t to, bool first)
{
    if (to <= from) return;
    if (p->n_next == p->cap_next) {
        size_t cap = p->cap_next ? 2 * p->cap_next : 64;
        sib_piece *v = cap <= SIZE_MAX / 2 / sizeof *v ? realloc(p->next, cap * sizeof *v) : NULL;
        if (!v) {
            p->failed = true;
            return;
        }
        p->next = v;
        p->cap_next = cap;
    }
    p->next[p->n_next++] = (sib_piece){from, to - from, first};
}

/* Makes the pieces pushed the current ones. */
static void turn(sib_pieces *p)
{
    sib_piece *v = p->v;
    size_t cap = p->cap;
    p->v = p->next;
    p->n = p->n_next;
    p->cap = p->cap_next;
    p->next = v;
    p->n_next = 0;
    p->cap_next = cap;
}

static void turn_text(sib_pieces *p)
{
    sib_buf t = p->text;
    p->text = p->next_text;
    p->next_text = t;
    p->failed = p->failed || p->text.failed;
    turn(p);
}

void sib_pieces_set(sib_pieces *p, sib_str text, bool first)
{
    p->text.n = p->n_next = 0;
    sib_buf_add(&p->text, text.p, text.n);
    p->failed = p->text.failed;
    push(p, 0, p->failed ? 0 : text.n, first);
    turn(p);
}

void sib_pieces_deinit(sib_pieces *p)
{
    sib_buf_deinit(&p->text);
    sib_buf_deinit(&p->next_text);
    free(p->v);
    free(p->next);
    *p = (sib_pieces){0};
}

/* ---- running ---- */

/* Takes the spans of one piece in order, matches and what is between them, and joins
 * neighbours as the behavior says. `open` is the piece that later spans may still extend. */
typedef struct cutter {
    sib_pieces *pieces;
    const sib_piece *piece;
    behavior behavior;
    size_t from, to;
    bool open, was_match;
} cutter;

static void close_open(cutter *c)
{
    if (c->open) push(c->pieces, c->piece->at + c->from, c->piece->at + c->to, c->piece->first && c->from == 0);
    c->open = false;
}

static void cut(cutter *c, size_t from, size_t to, bool is_match)
{
    bool extend = false;
    switch (c->behavior) {
    case REMOVED:
        if (is_match) { /* forget it */
            close_open(c);
            return;
        }
        break;
    case ISOLATED: break;
    case MERGED_WITH_PREVIOUS: extend = c->open && is_match && !c->was_match; break;
    case MERGED_WITH_NEXT: extend = c->open && c->was_match && !is_match; break;
    case CONTIGUOUS: extend = c->open && c->was_match == is_match; break;
    }
    if (!extend) {
        close_open(c);
        c->from = from;
    }
    c->to = to;
    c->open = true;
    c->was_match = is_match;
}

static sib_status run_cut(const step *st, sib_pieces *p, sib_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        sib_str text = {p->text.p + p->v[i].at, p->v[i].n};
        cutter c = {.pieces = p, .piece = &p->v[i], .behavior = st->behavior};
        sib_matches m;
        size_t from = 0, start, end;
        bool found = true;
        sib_status s = sib_matches_init(&m, st->pattern, text, err);
        while (s == SIB_OK && (s = sib_matches_next(&m, &found, &start, &end, err)) == SIB_OK && found) {
            if (start > from) cut(&c, from, start, st->invert);
            cut(&c, start, end, !st->invert);
            from = end;
        }
        sib_matches_deinit(&m);
        if (s != SIB_OK) return s;
        if (from < text.n) cut(&c, from, text.n, st->invert);
        close_open(&c);
    }
    turn(p);
    return SIB_OK;
}

static void run_bytes(sib_pieces *p)
{
    p->next_text.n = 0;
    for (size_t i = 0; i < p->n && !p->next_text.failed; i++) {
        size_t from = p->next_text.n;
        sib_bytes_to_alphabet((sib_str){p->text.p + p->v[i].at, p->v[i].n}, &p->next_text);
        push(p, from, p->next_text.n, p->v[i].first);
    }
    turn_text(p);
}

static void run_prefix_space(sib_pieces *p)
{
    p->next_text.n = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t from = p->next_text.n;
        const char *text = p->text.p + p->v[i].at;
        if (*text != ' ') sib_buf_addc(&p->next_text, ' ');
        sib_buf_add(&p->next_text, text, p->v[i].n);
        push(p, from, p->next_text.n, p->v[i].first);
    }
    turn_text(p);
}

static void run_metaspace(const step *st, sib_pieces *p)
{
    p->next_text.n = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t from = p->next_text.n;
        const char *text = p->text.p + p->v[i].at;
        size_t n = p->v[i].n;
        bool marked = *text == ' ' || (n >= st->mark_n && memcmp(text, st->mark, st->mark_n) == 0);
        if (!marked && (st->prepend == ALWAYS || (st->prepend == FIRST && p->v[i].first)))
            sib_buf_add(&p->next_text, st->mark, st->mark_n);
        for (const char *end = text + n; text < end;) {
            const char *space = memchr(text, ' ', (size_t)(end - text));
            sib_buf_add(&p->next_text, text, (size_t)((space ? space : end) - text));
            if (!space) break;
            sib_buf_add(&p->next_text, st->mark, st->mark_n);
            text = space + 1;
        }
        push(p, from, p->next_text.n, p->v[i].first);
    }
    turn_text(p);
}

sib_status sib_pretokenizer_run(const sib_pretokenizer *z, sib_pieces *p, sib_err *err)
{
    for (size_t i = 0; i < z->n && !p->failed; i++) {
        const step *st = &z->steps[i];
        switch (st->kind) {
        case CUT: SIB_TRY(run_cut(st, p, err)); break;
        case BYTES: run_bytes(p); break;
        case PREFIX_SPACE: run_prefix_space(p); break;
        case METASPACE: run_metaspace(st, p); break;
        }
    }
    return p->failed ? sib_nomem(err, "pre_tokenizer") : SIB_OK;
}
