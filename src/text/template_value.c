/* text/template_value.c - values of the template engine: memory, limits, dicts, equality, order, printing.
 * Semantics are Python's (Language Reference 3.3, 5.10, 6.10). See template_internal.h for who uses it. */
#include "text/template_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)64 << 10)
#define LOOK_STEPS 4096 /* steps between two looks at the clock */

typedef struct sib_tchunk {
    struct sib_tchunk *next;
    size_t n, cap;       /* with marks, `cap` bytes of shadow follow */
    const sib_tr *owner; /* with marks: whose arena it is             */
    _Alignas(16) char p[];
} sib_tchunk;

/* ---- run ------------------------------------------------------------------------------------------------- */

static int64_t monotonic_ns(void *self)
{
    (void)self;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void sib_tr_init(sib_tr *r, const sib_template_options *opt)
{
    static const sib_template_options none = {0};
    if (!opt) opt = &none;
    memset(r, 0, sizeof *r);
    r->max_bytes = opt->max_memory ? opt->max_memory : (size_t)256 << 20;
    r->max_steps = opt->max_steps ? opt->max_steps : 10000000;
    r->max_out = opt->max_output ? opt->max_output : (size_t)64 << 20;
    r->clock = opt->clock ? opt->clock : monotonic_ns;
    r->clock_self = opt->clock_self;
    r->max_ns = opt->max_ns ? opt->max_ns : 2000000000;
    r->now = opt->now;
    sib_tr_restart(r);
}

void sib_tr_restart(sib_tr *r)
{
    r->steps = 0;
    r->next_look = LOOK_STEPS;
    r->deadline = r->clock(r->clock_self) + r->max_ns;
    r->nest = 0;
}

void sib_tr_deinit(sib_tr *r)
{
    sib_template_marks *m = r->marks;
    size_t kept = 0;
    for (size_t i = 0; m && i < m->n; i++)
        if (m->v[i]->owner != r) m->v[kept++] = m->v[i];
    if (m) m->n = kept;
    for (sib_tchunk *c = r->chunks; c;) {
        sib_tchunk *next = c->next;
        free(c);
        c = next;
    }
    r->chunks = NULL;
}

void sib_tfail(sib_tr *r, sib_template_kind kind, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
    r->kind = kind;
    longjmp(r->jump, 1);
}

void sib_tundefined(sib_tr *r, sib_tv v)
{
    int n = v.u.s.n > 100 ? 100 : (int)v.u.s.n;
    const char *owner = sib_tv_type_name(sib_tv_of((sib_ttype)v.sub));
    switch (v.flag) {
    case TV_U_ATTR: sib_tfail(r, SIB_TEMPLATE_UNDEFINED, "'%s' has no attribute '%.*s'", owner, n, v.u.s.p);
    case TV_U_INDEX: sib_tfail(r, SIB_TEMPLATE_UNDEFINED, "'%s' has no element %.*s", owner, n, v.u.s.p);
    case TV_U_UNSAFE: sib_tfail(r, SIB_TEMPLATE_SECURITY, "access to '%.*s' of '%s' is not allowed in a template", n, v.u.s.p, owner);
    case TV_U_PLAIN: sib_tfail(r, SIB_TEMPLATE_UNDEFINED, "%.*s", n, v.u.s.p);
    default: sib_tfail(r, SIB_TEMPLATE_UNDEFINED, "'%.*s' is undefined", n, v.u.s.p);
    }
}

sib_status sib_tr_report(const sib_tr *r, sib_str source, const char *name, sib_template_fault *fault, sib_err *err)
{
    static const sib_status status[] = {
        [SIB_TEMPLATE_RAISED] = SIB_EARG,         [SIB_TEMPLATE_SYNTAX] = SIB_EFORMAT,   [SIB_TEMPLATE_UNDEFINED] = SIB_EARG,
        [SIB_TEMPLATE_RUNTIME] = SIB_EARG,        [SIB_TEMPLATE_SECURITY] = SIB_EFORMAT, [SIB_TEMPLATE_LIMIT] = SIB_ECAPACITY,
        [SIB_TEMPLATE_UNSUPPORTED] = SIB_EUNSUPPORTED, [SIB_TEMPLATE_NOMEM] = SIB_ENOMEM,
    };
    sib_status s = status[r->kind];
    sib_str message = r->kind == SIB_TEMPLATE_RAISED ? r->raised : sib_str_of(r->text);
    int line = source.n ? 1 : 0;
    for (size_t i = 0; i < source.n && i < r->at; i++) line += source.p[i] == '\n';
    if (fault) {
        fault->kind = r->kind;
        fault->line = line;
        fault->message.n = 0;
        sib_buf_add(&fault->message, message.p, message.n);
    }
    /* sib_fail's own prefix-free form: what the template raises is for the client, word for word. */
    int n = message.n > 480 ? 480 : (int)message.n;
    if (r->kind == SIB_TEMPLATE_RAISED) return sib_fail(err, s, "%.*s", n, message.p);
    if (line) return sib_fail(err, s, "%s: line %d: %.*s", name, line, n, message.p);
    return sib_fail(err, s, "%s: %.*s", name, n, message.p);
}

/* ---- marks ----------------------------------------------------------------------------------------------- */

/* First chunk of the list whose address is above `p`. */
static size_t chunk_above(const sib_template_marks *m, const char *p)
{
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)m->v[mid] > (uintptr_t)p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Lists a new chunk when the run has marks. */
static bool shadow(sib_tr *r, sib_tchunk *c)
{
    sib_template_marks *m = r->marks;
    if (!m) return true;
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 16;
        sib_tchunk **v = realloc(m->v, cap * sizeof(sib_tchunk *));
        if (!v) return false;
        m->v = v;
        m->cap = cap;
    }
    size_t at = chunk_above(m, (const char *)c);
    memmove(m->v + at + 1, m->v + at, (m->n - at) * sizeof(sib_tchunk *));
    m->v[at] = c;
    m->n++;
    return true;
}

/* The shadow of a byte of an arena, NULL for any other byte. */
static char *shadow_of(const sib_template_marks *m, const char *p)
{
    size_t at = chunk_above(m, p);
    if (at == 0) return NULL;
    sib_tchunk *c = m->v[at - 1];
    uintptr_t offset = (uintptr_t)p - (uintptr_t)c->p;
    return (uintptr_t)p >= (uintptr_t)c->p && offset < c->cap ? c->p + c->cap + offset : NULL;
}

void sib_tmark_copy(sib_tr *r, const char *to, const char *from, size_t n)
{
    if (!r->marks || n == 0) return;
    char *mine = shadow_of(r->marks, to), *theirs = shadow_of(r->marks, from);
    if (!mine) return;
    if (theirs)
        memcpy(mine, theirs, n);
    else
        memset(mine, r->mark_foreign, n);
}

void sib_tunmark(sib_tr *r, sib_str s)
{
    char *mine = r->marks && s.n ? shadow_of(r->marks, s.p) : NULL;
    if (mine) memset(mine, 0, s.n);
}

/* `n` bytes at `to` were made by code. */
static void mark_made(sib_tr *r, const char *to, size_t n)
{
    char *mine = r->marks && n ? shadow_of(r->marks, to) : NULL;
    if (mine) memset(mine, r->mark_made, n);
}

void sib_tmark_out(sib_tr *r, sib_str s)
{
    sib_template_marks *m = r->marks;
    if (!m || s.n == 0) return;
    const char *theirs = shadow_of(m, s.p);
    if (!sib_buf_reserve(&m->out, s.n)) sib_tfail(r, SIB_TEMPLATE_NOMEM, "out of memory: output of a template");
    if (theirs)
        memcpy(m->out.p + m->out.n, theirs, s.n);
    else
        memset(m->out.p + m->out.n, 0, s.n);
    m->out.n += s.n;
}

void sib_tmark_taken(sib_tr *r, sib_str s, size_t mark)
{
    if (!r->marks) return;
    char *mine = s.n ? shadow_of(r->marks, s.p) : NULL;
    if (mine) memcpy(mine, r->marks->out.p + (mark - r->out_base), s.n);
    r->marks->out.n = mark - r->out_base;
}

bool sib_tmade_from(sib_tr *r, sib_tv v)
{
    bool before = r->mark_made;
    if (!r->marks || before) return before;
    switch (v.type) {
    case TV_STR: {
        const char *theirs = v.u.s.n ? shadow_of(r->marks, v.u.s.p) : NULL;
        r->mark_made = theirs && memchr(theirs, 1, v.u.s.n);
        break;
    }
    case TV_LIST: case TV_TUPLE: case TV_DICT: case TV_VIEW: case TV_ITER: case TV_NS:
        r->mark_made = true; /* somewhere inside there may be something */
        break;
    default: break;
    }
    return before;
}

bool sib_tmade_by(sib_tr *r, sib_tv in, const sib_targs *a)
{
    bool before = sib_tmade_from(r, in);
    for (size_t i = 0; a && i < a->n; i++) (void)sib_tmade_from(r, a->pos[i]);
    for (size_t i = 0; a && i < a->n_kw; i++) (void)sib_tmade_from(r, a->kw[i].value);
    return before;
}

sib_status sib_template_marks_new(sib_template_marks **out, sib_err *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? SIB_OK : sib_nomem(err, "marks of a template");
}

void sib_template_marks_free(sib_template_marks *m)
{
    if (!m) return;
    free(m->v);
    sib_buf_deinit(&m->out);
    free(m);
}

void sib_template_marks_spans(const sib_template_marks *m, size_t base, sib_spans *out)
{
    for (size_t i = 0; i < m->out.n;) {
        const char *p = memchr(m->out.p + i, 1, m->out.n - i);
        if (!p) break;
        size_t from = (size_t)(p - m->out.p);
        const char *end = memchr(p, 0, m->out.n - from);
        i = end ? (size_t)(end - m->out.p) : m->out.n;
        sib_spans_add(out, base + from, i - from);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

void *sib_talloc(sib_tr *r, size_t bytes)
{
    if (bytes > r->max_bytes || r->max_bytes - bytes < r->bytes)
        sib_tfail(r, SIB_TEMPLATE_LIMIT, "more than %zu bytes of memory are needed", r->max_bytes);
    bytes = (bytes + 15) & ~(size_t)15;
    sib_tchunk *c = r->chunks;
    if (!c || c->cap - c->n < bytes) {
        size_t cap = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
        c = r->marks ? calloc(1, sizeof *c + 2 * cap) : malloc(sizeof *c + cap);
        if (!c || !shadow(r, c)) {
            free(c);
            sib_tfail(r, SIB_TEMPLATE_NOMEM, "out of memory: %zu bytes for a template", cap);
        }
        c->n = 0;
        c->cap = cap;
        c->owner = r;
        c->next = r->chunks;
        r->chunks = c;
    }
    void *p = c->p + c->n;
    c->n += bytes;
    r->bytes += bytes;
    return p;
}

void *sib_tarray(sib_tr *r, size_t count, size_t each)
{
    if (count > SIZE_MAX / each) sib_tfail(r, SIB_TEMPLATE_LIMIT, "more than %zu bytes of memory are needed", r->max_bytes);
    return sib_talloc(r, count * each);
}

/* Gives `p`, of `bytes` now, room for `want`; in place when nothing was allocated after it. */
static void *regrow(sib_tr *r, void *p, size_t bytes, size_t want)
{
    size_t have = (bytes + 15) & ~(size_t)15, need = (want + 15) & ~(size_t)15;
    sib_tchunk *c = r->chunks;
    if (p && c && (char *)p + have == c->p + c->n && need >= have && c->cap - c->n >= need - have && r->max_bytes - r->bytes >= need - have) {
        c->n += need - have;
        r->bytes += need - have;
        return p;
    }
    void *q = sib_talloc(r, want);
    if (bytes) memcpy(q, p, bytes);
    sib_tmark_copy(r, q, p, bytes);
    return q;
}

void sib_twork(sib_tr *r, size_t units)
{
    r->steps += 1 + units / 64;
    if (r->steps < r->next_look) return;
    r->next_look = r->steps + LOOK_STEPS;
    if (r->steps > r->max_steps) sib_tfail(r, SIB_TEMPLATE_LIMIT, "the template takes more than %llu steps", (unsigned long long)r->max_steps);
    if (r->clock(r->clock_self) > r->deadline) sib_tfail(r, SIB_TEMPLATE_LIMIT, "the template takes too long");
}

void sib_tenter(sib_tr *r)
{
    if (++r->nest > SIB_TNEST) sib_tfail(r, SIB_TEMPLATE_LIMIT, "a value is nested deeper than %d levels", SIB_TNEST);
}

/* ---- building strings ------------------------------------------------------------------------------------ */

static char *room(sib_tb *b, size_t n)
{
    if (b->cap - b->n < n) {
        size_t cap = b->cap ? b->cap : 32;
        if (n > SIZE_MAX / 4 || b->n > SIZE_MAX / 4) sib_tfail(b->r, SIB_TEMPLATE_LIMIT, "more than %zu bytes of memory are needed", b->r->max_bytes);
        while (cap < b->n + n) cap *= 2;
        b->p = regrow(b->r, b->p, b->cap, cap);
        b->cap = cap;
    }
    return b->p + b->n;
}

void sib_tb_add(sib_tb *b, const char *p, size_t n)
{
    if (!n) return;
    sib_twork(b->r, n);
    char *to = room(b, n);
    memcpy(to, p, n);
    sib_tmark_copy(b->r, to, p, n);
    b->n += n;
}

void sib_tb_addc(sib_tb *b, char c)
{
    char *to = room(b, 1);
    *to = c;
    mark_made(b->r, to, 1);
    b->n++;
}

void sib_tb_addz(sib_tb *b, const char *z)
{
    sib_tb_add(b, z, strlen(z));
}

void sib_tb_fill(sib_tb *b, char c, size_t n)
{
    if (!n) return;
    sib_twork(b->r, n);
    char *to = room(b, n);
    memset(to, c, n);
    mark_made(b->r, to, n);
    b->n += n;
}

void sib_tb_cp(sib_tb *b, uint32_t cp)
{
    char u[4];
    size_t n = sib_utf8_put(cp, u);
    char *to = room(b, n);
    memcpy(to, u, n);
    mark_made(b->r, to, n);
    b->n += n;
}

sib_tv sib_tb_done(sib_tb *b)
{
    if (!b->p) return sib_tv_bytes("", 0);
    b->r->tail = b->p + b->n;
    b->r->tail_end = b->p + b->cap;
    return sib_tv_bytes(b->p, b->n);
}

/* ---- constructors ---------------------------------------------------------------------------------------- */

sib_tv sib_tv_copy(sib_tr *r, sib_str s)
{
    char *p = sib_talloc(r, s.n ? s.n : 1);
    if (s.n) memcpy(p, s.p, s.n);
    sib_tmark_copy(r, p, s.p, s.n);
    return sib_tv_bytes(p, s.n);
}

sib_tv sib_tv_undef(uint8_t kind, sib_tv owner, sib_str name)
{
    return (sib_tv){.type = TV_UNDEF, .flag = kind, .sub = owner.type, .u.s = {name.p, name.n}};
}

sib_tv sib_tv_list(sib_tr *r, sib_ttype type, sib_tlist items)
{
    sib_tlist *l = sib_talloc(r, sizeof *l);
    *l = items;
    return (sib_tv){.type = (uint8_t)type, .u.list = l};
}

sib_tv sib_tv_pair(sib_tr *r, sib_tv a, sib_tv b)
{
    sib_tv *v = sib_tarray(r, 2, sizeof *v);
    v[0] = a;
    v[1] = b;
    return sib_tv_list(r, TV_TUPLE, (sib_tlist){v, 2, 2});
}

sib_tv sib_tv_iter(sib_tr *r, sib_tlist items)
{
    sib_titer *it = sib_talloc(r, sizeof *it);
    *it = (sib_titer){.items = items};
    return (sib_tv){.type = TV_ITER, .u.iter = it};
}

void sib_tlist_add(sib_tr *r, sib_tlist *l, sib_tv v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        l->v = regrow(r, l->v, l->n * sizeof v, cap * sizeof v);
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

/* ---- dicts ----------------------------------------------------------------------------------------------- */

sib_tdict *sib_tdict_new(sib_tr *r)
{
    sib_tdict *d = sib_talloc(r, sizeof *d);
    *d = (sib_tdict){0};
    return d;
}

sib_tv sib_tv_dict(sib_tdict *d)
{
    return (sib_tv){.type = TV_DICT, .u.dict = d};
}

bool sib_tv_hashable(sib_tr *r, sib_tv v)
{
    if (v.type == TV_TUPLE) {
        bool all = true;
        sib_tenter(r);
        for (size_t i = 0; all && i < v.u.list->n; i++) all = sib_tv_hashable(r, v.u.list->v[i]);
        sib_tleave(r);
        sib_twork(r, 0);
        return all;
    }
    return v.type != TV_LIST && v.type != TV_DICT && v.type != TV_VIEW && v.type != TV_NS;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

static uint64_t hash_of(sib_tr *r, sib_tv v)
{
    switch (v.type) {
    case TV_STR: sib_twork(r, v.u.s.n); return hash_bytes(v.u.s.p, v.u.s.n);
    case TV_BOOL:
    case TV_INT:
    case TV_BIG:
    case TV_FLOAT: return sib_tnum_hash(v);
    case TV_TUPLE: {
        uint64_t h = 7;
        sib_tenter(r);
        for (size_t i = 0; i < v.u.list->n; i++) h = h * 1000003 ^ hash_of(r, v.u.list->v[i]);
        sib_tleave(r);
        return h;
    }
    default: return v.type; /* rare as keys: equality decides */
    }
}

static size_t slot_of(sib_tr *r, const sib_tdict *d, sib_tv key, uint64_t h)
{
    size_t at = (size_t)h & (d->n_index - 1);
    while (d->index[at] && !sib_tv_equal(r, d->e[d->index[at] - 1].key, key)) at = (at + 1) & (d->n_index - 1);
    return at;
}

static void index_build(sib_tr *r, sib_tdict *d, size_t n_index)
{
    d->index = sib_tarray(r, n_index, sizeof *d->index);
    memset(d->index, 0, n_index * sizeof *d->index);
    d->n_index = n_index;
    for (size_t i = 0; i < d->n; i++) d->index[slot_of(r, d, d->e[i].key, hash_of(r, d->e[i].key))] = (uint32_t)(i + 1);
}

sib_tv *sib_tdict_get(sib_tr *r, const sib_tdict *d, sib_tv key)
{
    if (!sib_tv_hashable(r, key)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "unhashable type: '%s'", sib_tv_type_name(key));
    if (d->n_index) {
        uint32_t at = d->index[slot_of(r, d, key, hash_of(r, key))];
        return at ? &d->e[at - 1].value : NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (sib_tv_equal(r, d->e[i].key, key)) return &d->e[i].value;
    return NULL;
}

sib_tv *sib_tdict_find(const sib_tdict *d, sib_str key)
{
    size_t at = 0, n = d->n;
    if (d->n_index) {
        at = (size_t)hash_bytes(key.p, key.n) & (d->n_index - 1);
        n = d->n_index;
    }
    for (; n; n--) {
        size_t i = d->n_index ? d->index[at] : at + 1;
        if (!i) return NULL;
        sib_tpair *e = &d->e[i - 1];
        if (e->key.type == TV_STR && sib_str_eq(sib_tv_text(e->key), key)) return &e->value;
        at = d->n_index ? (at + 1) & (d->n_index - 1) : at + 1;
    }
    return NULL;
}

void sib_tdict_set(sib_tr *r, sib_tdict *d, sib_tv key, sib_tv value)
{
    sib_tv *old = sib_tdict_get(r, d, key);
    if (old) {
        *old = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        if (cap > UINT32_MAX / 4) sib_tfail(r, SIB_TEMPLATE_LIMIT, "a dict has more than %zu entries", d->n);
        d->e = regrow(r, d->e, d->n * sizeof *d->e, cap * sizeof *d->e);
        d->cap = cap;
    }
    d->e[d->n++] = (sib_tpair){key, value};
    if (d->n_index && d->n * 2 <= d->n_index)
        d->index[slot_of(r, d, key, hash_of(r, key))] = (uint32_t)d->n;
    else if (d->n > 8)
        index_build(r, d, d->n_index ? d->n_index * 2 : 32);
}

/* ---- questions ------------------------------------------------------------------------------------------- */

const char *sib_tv_type_name(sib_tv v)
{
    static const char *const names[] = {"Undefined", "NoneType", "bool",      "int",    "int",         "float",     "str",
                                        "list",      "tuple",    "dict",      "range",  "dict_view",   "generator", "Namespace",
                                        "Macro",     "LoopContext", "method", "function", "Cycler",    "Joiner",    "nothing"};
    return names[v.type];
}

bool sib_tv_truth(sib_tv v)
{
    switch (v.type) {
    case TV_UNDEF:
    case TV_NONE: return false;
    case TV_BOOL: return v.u.b;
    case TV_INT: return v.u.i != 0;
    case TV_FLOAT: return v.u.f != 0;
    case TV_STR: return v.u.s.n != 0;
    case TV_LIST:
    case TV_TUPLE: return v.u.list->n != 0;
    case TV_DICT:
    case TV_VIEW: return v.u.dict->n != 0;
    case TV_RANGE: return v.u.range->n != 0;
    case TV_LOOP: return v.u.loop->n != 0;
    default: return true;
    }
}

static bool lists_equal(sib_tr *r, const sib_tlist *a, const sib_tlist *b)
{
    bool same = a->n == b->n;
    sib_tenter(r);
    for (size_t i = 0; same && i < a->n; i++) same = sib_tv_equal(r, a->v[i], b->v[i]);
    sib_tleave(r);
    return same;
}

static bool dicts_equal(sib_tr *r, const sib_tdict *a, const sib_tdict *b)
{
    bool same = a->n == b->n;
    sib_tenter(r);
    for (size_t i = 0; same && i < a->n; i++) {
        sib_tv *v = sib_tdict_get(r, b, a->e[i].key);
        same = v && sib_tv_equal(r, a->e[i].value, *v);
    }
    sib_tleave(r);
    return same;
}

bool sib_tv_equal(sib_tr *r, sib_tv a, sib_tv b)
{
    sib_twork(r, 0);
    if (sib_tv_is_num(a) && sib_tv_is_num(b)) return sib_tnum_order(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case TV_UNDEF:
    case TV_NONE: return true;
    case TV_STR:
        if (a.u.s.n != b.u.s.n) return false;
        sib_twork(r, a.u.s.n);
        return a.u.s.p == b.u.s.p || !memcmp(a.u.s.p, b.u.s.p, a.u.s.n);
    case TV_LIST:
    case TV_TUPLE: return a.u.list == b.u.list || lists_equal(r, a.u.list, b.u.list);
    case TV_DICT: return a.u.dict == b.u.dict || dicts_equal(r, a.u.dict, b.u.dict);
    case TV_RANGE: {
        const sib_trange *x = a.u.range, *y = b.u.range;
        return x->n == y->n && (!x->n || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    case TV_VIEW: sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "comparing dict views is not supported");
    case TV_METHOD: return a.sub == b.sub && a.u.self == b.u.self;
    case TV_FUNC: return a.sub == b.sub;
    default: return a.u.list == b.u.list; /* the same object */
    }
}

int sib_tv_order(sib_tr *r, sib_tv a, sib_tv b, const char *op)
{
    sib_twork(r, 0);
    if (a.type == TV_UNDEF) sib_tundefined(r, a);
    if (b.type == TV_UNDEF) sib_tundefined(r, b);
    if (sib_tv_is_num(a) && sib_tv_is_num(b)) return sib_tnum_order(a, b);
    if (a.type == TV_STR && b.type == TV_STR) { /* the order of UTF-8 bytes is that of code points */
        size_t n = a.u.s.n < b.u.s.n ? a.u.s.n : b.u.s.n;
        sib_twork(r, n);
        int c = n ? memcmp(a.u.s.p, b.u.s.p, n) : 0;
        return c ? c < 0 ? -1 : 1 : (a.u.s.n > b.u.s.n) - (a.u.s.n < b.u.s.n);
    }
    if (a.type == b.type && (a.type == TV_LIST || a.type == TV_TUPLE)) {
        const sib_tlist *x = a.u.list, *y = b.u.list;
        size_t n = x->n < y->n ? x->n : y->n;
        for (size_t i = 0; i < n; i++) {
            if (sib_tv_equal(r, x->v[i], y->v[i])) continue;
            sib_tenter(r);
            int c = sib_tv_order(r, x->v[i], y->v[i], op);
            sib_tleave(r);
            return c;
        }
        return (x->n > y->n) - (x->n < y->n);
    }
    sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'%s' not supported between instances of '%s' and '%s'", op, sib_tv_type_name(a), sib_tv_type_name(b));
}

bool sib_tv_iterable(sib_tv v)
{
    switch (v.type) {
    case TV_UNDEF:
    case TV_STR:
    case TV_LIST:
    case TV_TUPLE:
    case TV_DICT:
    case TV_RANGE:
    case TV_VIEW:
    case TV_ITER:
    case TV_LOOP: return true;
    default: return false;
    }
}

static sib_tlist view_items(sib_tr *r, const sib_tdict *d, int which)
{
    sib_tlist l = {sib_tarray(r, d->n ? d->n : 1, sizeof *l.v), d->n, d->n};
    sib_twork(r, d->n);
    for (size_t i = 0; i < d->n; i++)
        l.v[i] = which == TV_KEYS ? d->e[i].key : which == TV_VALUES ? d->e[i].value : sib_tv_pair(r, d->e[i].key, d->e[i].value);
    return l;
}

sib_tlist sib_tv_items(sib_tr *r, sib_tv v)
{
    switch (v.type) {
    case TV_UNDEF: return (sib_tlist){0};
    case TV_STR: return sib_tchars(r, sib_tv_text(v));
    case TV_LIST:
    case TV_TUPLE: return (sib_tlist){v.u.list->v, v.u.list->n, v.u.list->n}; /* no spare room: adding copies */
    case TV_DICT: return view_items(r, v.u.dict, TV_KEYS);
    case TV_VIEW: return view_items(r, v.u.dict, v.flag);
    case TV_RANGE: {
        const sib_trange *g = v.u.range;
        sib_tlist l = {sib_tarray(r, g->n ? g->n : 1, sizeof *l.v), g->n, g->n};
        sib_twork(r, g->n);
        for (size_t i = 0; i < g->n; i++) l.v[i] = sib_tv_int(g->start + (int64_t)i * g->step);
        return l;
    }
    case TV_ITER: {
        sib_titer *it = v.u.iter;
        size_t left = it->items.n - it->at;
        sib_tlist l = {left ? it->items.v + it->at : NULL, left, left};
        it->at = it->items.n;
        return l;
    }
    case TV_LOOP: sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "iterating over the loop variable is not supported");
    default: sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'%s' object is not iterable", sib_tv_type_name(v));
    }
}

bool sib_tv_has_len(sib_tv v)
{
    return v.type != TV_ITER && sib_tv_iterable(v);
}

int64_t sib_tv_length(sib_tr *r, sib_tv v)
{
    switch (v.type) {
    case TV_UNDEF: return 0;
    case TV_STR: return (int64_t)sib_tcount(r, sib_tv_text(v));
    case TV_LIST:
    case TV_TUPLE: return (int64_t)v.u.list->n;
    case TV_DICT:
    case TV_VIEW: return (int64_t)v.u.dict->n;
    case TV_RANGE: return (int64_t)v.u.range->n;
    case TV_LOOP: return (int64_t)v.u.loop->n;
    default: sib_tfail(r, SIB_TEMPLATE_RUNTIME, "object of type '%s' has no len()", sib_tv_type_name(v));
    }
}

bool sib_tv_in(sib_tr *r, sib_tv item, sib_tv box)
{
    switch (box.type) {
    case TV_UNDEF: return false;
    case TV_STR:
        if (item.type == TV_UNDEF) sib_tundefined(r, item);
        if (item.type != TV_STR)
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'in <string>' requires string as left operand, not %s", sib_tv_type_name(item));
        sib_twork(r, box.u.s.n);
        return !item.u.s.n || memmem(box.u.s.p, box.u.s.n, item.u.s.p, item.u.s.n);
    case TV_DICT: return sib_tdict_get(r, box.u.dict, item) != NULL;
    case TV_VIEW:
        if (box.flag == TV_KEYS) return sib_tdict_get(r, box.u.dict, item) != NULL;
        break;
    case TV_ITER: { /* consumes up to the item */
        sib_titer *it = box.u.iter;
        while (it->at < it->items.n)
            if (sib_tv_equal(r, it->items.v[it->at++], item)) return true;
        return false;
    }
    default: break;
    }
    if (!sib_tv_iterable(box)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "argument of type '%s' is not iterable", sib_tv_type_name(box));
    sib_tlist l = sib_tv_items(r, box);
    for (size_t i = 0; i < l.n; i++)
        if (sib_tv_equal(r, l.v[i], item)) return true;
    return false;
}

/* ---- printing -------------------------------------------------------------------------------------------- */

static void repr_list(sib_tr *r, sib_tb *b, const sib_tlist *l, char open, char close)
{
    sib_tb_addc(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i) sib_tb_addz(b, ", ");
        sib_tv_repr(r, b, l->v[i]);
    }
    if (open == '(' && l->n == 1) sib_tb_addc(b, ',');
    sib_tb_addc(b, close);
}

static void repr_dict(sib_tr *r, sib_tb *b, const sib_tdict *d)
{
    sib_tb_addc(b, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i) sib_tb_addz(b, ", ");
        sib_tv_repr(r, b, d->e[i].key);
        sib_tb_addz(b, ": ");
        sib_tv_repr(r, b, d->e[i].value);
    }
    sib_tb_addc(b, '}');
}

void sib_tv_repr(sib_tr *r, sib_tb *b, sib_tv v)
{
    static const char *const views[] = {"dict_keys(", "dict_values(", "dict_items("};
    char text[100];
    sib_twork(r, 0);
    sib_tenter(r);
    switch (v.type) {
    case TV_UNDEF: sib_tb_addz(b, "Undefined"); break;
    case TV_NONE: sib_tb_addz(b, "None"); break;
    case TV_BOOL: sib_tb_addz(b, v.u.b ? "True" : "False"); break;
    case TV_INT:
    case TV_BIG:
    case TV_FLOAT: sib_tnum_put(b, v); break;
    case TV_STR:
        if (v.flag & TV_SAFE) sib_tb_addz(b, "Markup(");
        sib_tput_repr(b, sib_tv_text(v));
        if (v.flag & TV_SAFE) sib_tb_addc(b, ')');
        break;
    case TV_LIST: repr_list(r, b, v.u.list, '[', ']'); break;
    case TV_TUPLE: repr_list(r, b, v.u.list, '(', ')'); break;
    case TV_DICT: repr_dict(r, b, v.u.dict); break;
    case TV_NS:
        sib_tb_addz(b, "<Namespace ");
        repr_dict(r, b, v.u.dict);
        sib_tb_addc(b, '>');
        break;
    case TV_VIEW: {
        sib_tlist l = view_items(r, v.u.dict, v.flag);
        sib_tb_addz(b, views[v.flag]);
        repr_list(r, b, &l, '[', ']');
        sib_tb_addc(b, ')');
        break;
    }
    case TV_RANGE:
        (void)snprintf(text, sizeof text, v.u.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                       (long long)v.u.range->start, (long long)v.u.range->stop, (long long)v.u.range->step);
        sib_tb_addz(b, text);
        break;
    case TV_MACRO:
        if (v.u.macro->def->kind != TN_MACRO) {
            sib_tb_addz(b, "<Macro anonymous>");
            break;
        }
        sib_tb_addz(b, "<Macro ");
        sib_tput_repr(b, v.u.macro->def->name);
        sib_tb_addc(b, '>');
        break;
    case TV_LOOP:
        (void)snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->i + 1, v.u.loop->n);
        sib_tb_addz(b, text);
        break;
    default: /* Python would print an address */
        sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "a %s cannot be printed", sib_tv_type_name(v));
    }
    sib_tleave(r);
}

sib_tv sib_tv_str(sib_tr *r, sib_tv v)
{
    if (v.type == TV_STR) return v;
    if (v.type == TV_UNDEF) return sib_tv_bytes("", 0);
    sib_tb b = {.r = r};
    bool made = sib_tmade_from(r, v);
    sib_tv_repr(r, &b, v);
    r->mark_made = made;
    return sib_tb_done(&b);
}
