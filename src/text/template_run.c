/* text/template_run.c - runs the tree: scopes, statements, expressions, attributes, calls.
 *
 * A scope is a short list of (interned name, value) with a link to the scope around it. Lookup goes through the
 * scopes, then the variables of the rendering, then the globals. If and the conditional expression share the scope
 * around them; loops, macros, with, filter and set blocks have their own, and what they set stays inside. */
#include "text/template_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_LEVELS 4000   /* nested statements and expressions at run time, over all calls */
#define MAX_RANGE  100000 /* as in Jinja's sandbox */

typedef struct variable {
    const char *name;
    sib_tv v;
} variable;

struct sib_tscope {
    sib_tscope *up;
    variable *e;
    size_t n, cap;
    bool captured; /* a macro may come back to it: a loop must not use it again */
};

typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;

static sib_tv eval(sib_tr *r, const sib_tnode *n, sib_tscope *s);
static flow run_body(sib_tr *r, const sib_tnodes *body, sib_tscope *s);

/* ---- scopes ---------------------------------------------------------------------------------------------- */

static sib_tscope *scope_new(sib_tr *r, sib_tscope *up)
{
    sib_tscope *s = sib_talloc(r, sizeof *s);
    *s = (sib_tscope){.up = up};
    return s;
}

static void scope_set(sib_tr *r, sib_tscope *s, sib_str name, sib_tv v)
{
    sib_twork(r, s->n);
    for (size_t i = 0; i < s->n; i++) {
        if (s->e[i].name != name.p) continue;
        s->e[i].v = v;
        return;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        variable *e = sib_tarray(r, cap, sizeof *e);
        if (s->n) memcpy(e, s->e, s->n * sizeof *e);
        s->e = e;
        s->cap = cap;
    }
    s->e[s->n++] = (variable){name.p, v};
}

static void capture(sib_tscope *s)
{
    for (; s && !s->captured; s = s->up) s->captured = true;
}

static sib_tv lookup(sib_tr *r, const sib_tnode *n, const sib_tscope *s)
{
    for (; s; s = s->up) {
        sib_twork(r, s->n);
        for (size_t i = 0; i < s->n; i++)
            if (s->e[i].name == n->name.p) return s->e[i].v;
    }
    const sib_tv *v = sib_tdict_find(r->vars, n->name);
    if (v) return *v;
    if (n->which != TF_NONE) return (sib_tv){.type = TV_FUNC, .sub = (uint16_t)n->which};
    return sib_tv_undef(TV_U_NAME, sib_tv_of(TV_UNDEF), n->name);
}

/* ---- output ---------------------------------------------------------------------------------------------- */

static void emit(sib_tr *r, sib_str s)
{
    sib_twork(r, s.n);
    if (s.n > r->max_out || r->out->n - r->out_base > r->max_out - s.n)
        sib_tfail(r, SIB_TEMPLATE_LIMIT, "the output is longer than %zu bytes", r->max_out);
    sib_buf_add(r->out, s.p, s.n);
    if (r->out->failed) sib_tfail(r, SIB_TEMPLATE_NOMEM, "out of memory: output of a template");
    sib_tmark_out(r, s);
}

/* What the output got since `mark`, taken back as a string. */
static sib_tv taken(sib_tr *r, size_t mark)
{
    sib_tv v = sib_tv_copy(r, (sib_str){r->out->p ? r->out->p + mark : "", r->out->n - mark});
    sib_tmark_taken(r, sib_tv_text(v), mark);
    r->out->n = mark;
    return v;
}

/* ---- attributes and items -------------------------------------------------------------------------------- */

static sib_tv macro_attr(sib_tr *r, sib_tv v, sib_str name)
{
    const sib_tnode *d = v.u.macro->def;
    if (sib_str_is(name, "name")) return d->kind == TN_MACRO ? sib_tv_bytes(d->name.p, d->name.n) : sib_tv_of(TV_NONE);
    if (sib_str_is(name, "catch_kwargs")) return sib_tv_bool(d->flags & TN_USES_KWARGS);
    if (sib_str_is(name, "catch_varargs")) return sib_tv_bool(d->flags & TN_USES_VARARGS);
    if (sib_str_is(name, "caller")) return sib_tv_bool(d->flags & TN_USES_CALLER);
    if (!sib_str_is(name, "arguments")) return sib_tv_of(TV_ABSENT);
    sib_tlist l = {0};
    for (size_t i = 0; i < d->kids.n; i++) sib_tlist_add(r, &l, sib_tv_bytes(d->kids.v[i]->name.p, d->kids.v[i]->name.n));
    return sib_tv_list(r, TV_TUPLE, l);
}

static sib_tv loop_attr(sib_tv v, sib_str name)
{
    const sib_tloop *l = v.u.loop;
    int64_t i = (int64_t)l->i, n = (int64_t)l->n;
    if (sib_str_is(name, "index")) return sib_tv_int(i + 1);
    if (sib_str_is(name, "index0")) return sib_tv_int(i);
    if (sib_str_is(name, "revindex")) return sib_tv_int(n - i);
    if (sib_str_is(name, "revindex0")) return sib_tv_int(n - i - 1);
    if (sib_str_is(name, "first")) return sib_tv_bool(i == 0);
    if (sib_str_is(name, "last")) return sib_tv_bool(i + 1 == n);
    if (sib_str_is(name, "length")) return sib_tv_int(n);
    if (sib_str_is(name, "depth")) return sib_tv_int(l->depth + 1);
    if (sib_str_is(name, "depth0")) return sib_tv_int(l->depth);
    if (sib_str_is(name, "previtem")) return i ? l->v[i - 1] : sib_tv_undef(TV_U_PLAIN, v, SIB_STR("there is no previous item"));
    if (sib_str_is(name, "nextitem")) return i + 1 < n ? l->v[i + 1] : sib_tv_undef(TV_U_PLAIN, v, SIB_STR("there is no next item"));
    return sib_tv_of(TV_ABSENT);
}

static sib_tv data_attr(sib_tr *r, sib_tv v, sib_str name)
{
    switch (v.type) {
    case TV_NS: {
        sib_tv *found = sib_tdict_find(v.u.dict, name);
        return found ? *found : sib_tv_of(TV_ABSENT);
    }
    case TV_MACRO: return macro_attr(r, v, name);
    case TV_LOOP: return loop_attr(v, name);
    case TV_BOOL:
    case TV_INT:
    case TV_BIG:
        if (sib_str_is(name, "real") || sib_str_is(name, "numerator")) return v.type == TV_BOOL ? sib_tv_int(v.u.b) : v;
        if (sib_str_is(name, "imag")) return sib_tv_int(0);
        if (sib_str_is(name, "denominator")) return sib_tv_int(1);
        break;
    case TV_FLOAT:
        if (sib_str_is(name, "real")) return v;
        if (sib_str_is(name, "imag")) return sib_tv_float(0);
        break;
    case TV_RANGE:
        if (sib_str_is(name, "start")) return sib_tv_int(v.u.range->start);
        if (sib_str_is(name, "stop")) return sib_tv_int(v.u.range->stop);
        if (sib_str_is(name, "step")) return sib_tv_int(v.u.range->step);
        break;
    case TV_TUPLE:
        if (v.flag & TV_GROUP && sib_str_is(name, "grouper")) return v.u.list->v[0];
        if (v.flag & TV_GROUP && sib_str_is(name, "list")) return v.u.list->v[1];
        break;
    case TV_CYCLER:
        if (sib_str_is(name, "current")) return v.u.cycler->items.v[v.u.cycler->at];
        break;
    default: break;
    }
    return sib_tv_of(TV_ABSENT);
}

/* Python's getattr: TV_ABSENT when there is none. Names with two underscores exist on everything and are closed. */
static sib_tv attribute(sib_tr *r, sib_tv v, sib_str name)
{
    if (name.n > 1 && name.p[0] == '_' && name.p[1] == '_') return sib_tv_undef(TV_U_UNSAFE, v, name);
    sib_tv found = data_attr(r, v, name);
    if (found.type != TV_ABSENT) return found;
    int m = sib_tmethod(v, name);
    if (m == -2) return sib_tv_undef(TV_U_UNSAFE, v, name);
    if (m < 0) return found;
    sib_tv *self = sib_talloc(r, sizeof *self);
    *self = v;
    return (sib_tv){.type = TV_METHOD, .sub = (uint16_t)m, .u.self = self};
}

/* Python's v[key]: TV_ABSENT where it would raise an error that Jinja turns into undefined. */
static sib_tv element(sib_tr *r, sib_tv v, sib_tv key)
{
    int64_t n, i;
    if (v.type == TV_DICT) {
        sib_tv *found = sib_tv_hashable(r, key) ? sib_tdict_get(r, v.u.dict, key) : NULL;
        return found ? *found : sib_tv_of(TV_ABSENT);
    }
    if ((v.type != TV_STR && v.type != TV_LIST && v.type != TV_TUPLE && v.type != TV_RANGE) || (key.type != TV_INT && key.type != TV_BOOL))
        return sib_tv_of(TV_ABSENT);
    n = sib_tv_length(r, v);
    i = key.type == TV_BOOL ? key.u.b : key.u.i;
    if (i < 0) i = i < -n ? -1 : i + n;
    if (i < 0 || i >= n) return sib_tv_of(TV_ABSENT);
    if (v.type == TV_RANGE) return sib_tv_int(v.u.range->start + i * v.u.range->step);
    if (v.type != TV_STR) return v.u.list->v[i];
    sib_str s = sib_tv_text(v);
    sib_twork(r, s.n);
    size_t at = sib_toffset(s, (size_t)i), len = sib_toffset((sib_str){s.p + at, s.n - at}, 1);
    sib_tv c = sib_tv_bytes(s.p + at, len);
    c.flag = v.flag;
    return c;
}

sib_tv sib_tonly_attr(sib_tr *r, sib_tv v, sib_str name)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    sib_tv found = attribute(r, v, name);
    return found.type != TV_ABSENT ? found : sib_tv_undef(TV_U_ATTR, v, name);
}

sib_tv sib_tget_attr(sib_tr *r, sib_tv v, sib_str name)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    sib_tv found = attribute(r, v, name);
    if (found.type == TV_ABSENT) found = element(r, v, sib_tv_bytes(name.p, name.n));
    return found.type != TV_ABSENT ? found : sib_tv_undef(TV_U_ATTR, v, name);
}

sib_tv sib_tget_item(sib_tr *r, sib_tv v, sib_tv key)
{
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    sib_tv found = element(r, v, key);
    if (found.type != TV_ABSENT) return found;
    if (key.type == TV_STR) {
        found = attribute(r, v, sib_tv_text(key));
        return found.type != TV_ABSENT ? found : sib_tv_undef(TV_U_ATTR, v, sib_tv_text(key));
    }
    if (sib_tv_is_num(key)) return sib_tv_undef(TV_U_INDEX, v, sib_tv_text(sib_tv_str(r, key)));
    return sib_tv_undef(TV_U_INDEX, v, SIB_STR("of this kind"));
}

static sib_tv slice(sib_tr *r, sib_tv v, sib_tv a, sib_tv b, sib_tv c)
{
    int64_t start, step;
    size_t count;
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (v.type == TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "unhashable type: 'slice'");
    if (v.type != TV_STR && v.type != TV_LIST && v.type != TV_TUPLE && v.type != TV_RANGE)
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'%s' object is not subscriptable", sib_tv_type_name(v));
    sib_tslice(r, (size_t)sib_tv_length(r, v), a, b, c, &start, &step, &count);
    if (v.type == TV_RANGE) {
        sib_trange *g = sib_talloc(r, sizeof *g);
        *g = (sib_trange){v.u.range->start + start * v.u.range->step, 0, v.u.range->step * step, count};
        g->stop = count || step > 0 ? g->start + (int64_t)count * g->step : g->start;
        if (step != 1) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "a range cannot be sliced with a step");
        return (sib_tv){.type = TV_RANGE, .u.range = g};
    }
    sib_twork(r, count);
    if (v.type != TV_STR) {
        sib_tlist l = {count ? v.u.list->v + start : NULL, count, count};
        if (step != 1 && count) {
            l.v = sib_tarray(r, count, sizeof *l.v);
            for (size_t i = 0; i < count; i++) l.v[i] = v.u.list->v[start + (int64_t)i * step];
        }
        return sib_tv_list(r, (sib_ttype)v.type, l);
    }
    sib_str s = sib_tv_text(v);
    sib_tv out;
    if (step == 1) {
        size_t from = sib_toffset(s, (size_t)start);
        out = sib_tv_bytes(s.p + from, sib_toffset((sib_str){s.p + from, s.n - from}, count));
    } else {
        sib_tlist chars = sib_tchars(r, s);
        sib_tb t = {.r = r};
        for (size_t i = 0; i < count; i++) {
            sib_tv ch = chars.v[start + (int64_t)i * step];
            sib_tb_add(&t, ch.u.s.p, ch.u.s.n);
        }
        out = sib_tb_done(&t);
    }
    out.flag = v.flag;
    return out;
}

/* ---- calls ----------------------------------------------------------------------------------------------- */

void sib_tbind(sib_tr *r, const char *who, const sib_targs *a, const char *names, size_t need, sib_tv *out)
{
    size_t n = 0;
    for (const char *z = names; *z; n++) {
        size_t len = strcspn(z, ",");
        sib_tv v = sib_tv_of(TV_ABSENT);
        if (n < a->n) v = a->pos[n];
        for (size_t i = 0; i < a->n_kw; i++) {
            if (!sib_str_eq(sib_tv_text(a->kw[i].key), (sib_str){z, len})) continue;
            if (v.type != TV_ABSENT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s() got multiple values for argument '%.*s'", who, (int)len, z);
            v = a->kw[i].value;
        }
        if (v.type == TV_ABSENT && n < need) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s() missing required argument: '%.*s'", who, (int)len, z);
        out[n] = v;
        z += len + (z[len] == ',');
    }
    if (a->n > n) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s() takes at most %zu arguments (%zu given)", who, n, a->n);
    for (size_t i = 0; i < a->n_kw; i++) {
        sib_str key = sib_tv_text(a->kw[i].key);
        bool known = false;
        for (const char *z = names; *z;) {
            size_t len = strcspn(z, ",");
            known |= sib_str_eq(key, (sib_str){z, len});
            z += len + (z[len] == ',');
        }
        if (!known) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s() got an unexpected keyword argument '%.*s'", who, (int)(key.n > 80 ? 80 : key.n), key.p);
    }
}

static void add_keyword(sib_tr *r, sib_targs *a, size_t *cap, sib_tv key, sib_tv value)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (sib_tv_equal(r, a->kw[i].key, key)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "a keyword argument is given twice");
    if (a->n_kw == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        sib_tpair *kw = sib_tarray(r, *cap, sizeof *kw);
        if (a->n_kw) memcpy(kw, a->kw, a->n_kw * sizeof *kw);
        a->kw = kw;
    }
    a->kw[a->n_kw++] = (sib_tpair){key, value};
}

static sib_targs arguments(sib_tr *r, const sib_tnodes *kids, sib_tscope *s)
{
    sib_targs a = {0};
    sib_tlist pos = {0};
    size_t cap = 0;
    for (size_t i = 0; i < kids->n; i++) {
        const sib_tnode *k = kids->v[i];
        sib_tv v = eval(r, k->a, s);
        if (k->kind == TN_ARG) {
            sib_tlist_add(r, &pos, v);
        } else if (k->kind == TN_KEYWORD) {
            add_keyword(r, &a, &cap, sib_tv_bytes(k->name.p, k->name.n), v);
        } else if (k->kind == TN_STAR) {
            sib_tlist more = sib_tv_items(r, v);
            for (size_t j = 0; j < more.n; j++) sib_tlist_add(r, &pos, more.v[j]);
        } else {
            if (v.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "argument after ** must be a mapping, not %s", sib_tv_type_name(v));
            for (size_t j = 0; j < v.u.dict->n; j++) {
                if (v.u.dict->e[j].key.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "keywords must be strings");
                add_keyword(r, &a, &cap, v.u.dict->e[j].key, v.u.dict->e[j].value);
            }
        }
    }
    a.pos = pos.v;
    a.n = pos.n;
    return a;
}

static void enter_call(sib_tr *r)
{
    if (++r->calls > SIB_TNEST) sib_tfail(r, SIB_TEMPLATE_LIMIT, "calls are nested deeper than %d levels", SIB_TNEST);
}

static sib_str str_of_name(sib_str s)
{
    return s.n > 80 ? (sib_str){s.p, 80} : s;
}

static sib_tv call_macro(sib_tr *r, const sib_tmacro *m, const sib_targs *args)
{
    const sib_tnode *d = m->def;
    sib_str name = str_of_name(d->kind == TN_MACRO ? d->name : SIB_STR("caller"));
    sib_tscope *s = scope_new(r, m->scope);
    sib_tdict *rest = sib_tdict_new(r);
    enter_call(r);
    for (size_t i = 0; i < args->n_kw; i++) sib_tdict_set(r, rest, args->kw[i].key, args->kw[i].value);
    for (size_t i = 0; i < d->kids.n; i++) {
        const sib_tnode *p = d->kids.v[i];
        sib_tv v = sib_tv_of(TV_ABSENT), *given = NULL;
        if (i < args->n)
            v = args->pos[i];
        else if ((given = sib_tdict_find(rest, p->name)) != NULL && given->type != TV_ABSENT) {
            v = *given;
            given->type = TV_ABSENT; /* taken */
        }
        if (v.type == TV_ABSENT) v = p->a ? eval(r, p->a, s) : sib_tv_undef(TV_U_NAME, sib_tv_of(TV_UNDEF), p->name);
        scope_set(r, s, p->name, v);
    }
    sib_tdict *kwargs = sib_tdict_new(r);
    for (size_t i = 0; i < rest->n; i++) {
        sib_tpair *e = &rest->e[i];
        if (e->value.type == TV_ABSENT) continue;
        sib_str key = str_of_name(sib_tv_text(e->key));
        if (d->flags & TN_USES_CALLER && sib_str_is(key, "caller")) continue;
        if (!(d->flags & TN_USES_KWARGS))
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "macro '%.*s' takes no keyword argument '%.*s'", (int)name.n, name.p, (int)key.n, key.p);
        sib_tdict_set(r, kwargs, e->key, e->value);
    }
    if (args->n > d->kids.n && !(d->flags & TN_USES_VARARGS))
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "macro '%.*s' takes not more than %zu argument(s)", (int)name.n, name.p, d->kids.n);
    sib_tlist varargs = {0};
    for (size_t i = d->kids.n; i < args->n; i++) sib_tlist_add(r, &varargs, args->pos[i]);
    const sib_str *special = r->tmpl->special;
    if (d->flags & TN_USES_CALLER) {
        sib_tv *caller = sib_tdict_find(rest, SIB_STR("caller"));
        scope_set(r, s, special[0], caller ? *caller : sib_tv_undef(TV_U_PLAIN, sib_tv_of(TV_UNDEF), SIB_STR("no caller is defined")));
    }
    if (d->flags & TN_USES_VARARGS) scope_set(r, s, special[1], sib_tv_list(r, TV_TUPLE, varargs));
    if (d->flags & TN_USES_KWARGS) scope_set(r, s, special[2], sib_tv_dict(kwargs));
    size_t mark = r->out->n;
    (void)run_body(r, &d->body, s);
    r->calls--;
    return taken(r, mark);
}

static sib_tv call_range(sib_tr *r, const sib_targs *a)
{
    static const char what[] = "an argument of range";
    if (a->n_kw) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "range() takes no keyword arguments");
    if (a->n < 1 || a->n > 3) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "range expected 1 to 3 arguments, got %zu", a->n);
    sib_trange *g = sib_talloc(r, sizeof *g);
    g->start = a->n > 1 ? sib_tv_index(r, a->pos[0], what) : 0;
    g->stop = sib_tv_index(r, a->pos[a->n > 1], what);
    g->step = a->n > 2 ? sib_tv_index(r, a->pos[2], what) : 1;
    if (!g->step) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "range() arg 3 must not be zero");
    uint64_t span = 0, step = g->step < 0 ? -(uint64_t)g->step : (uint64_t)g->step;
    if (g->step > 0 && g->stop > g->start) span = (uint64_t)g->stop - (uint64_t)g->start;
    if (g->step < 0 && g->stop < g->start) span = (uint64_t)g->start - (uint64_t)g->stop;
    uint64_t n = span / step + (span % step != 0);
    if (n > MAX_RANGE) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "range is too big: at most %d items are allowed", MAX_RANGE);
    g->n = (size_t)n;
    return (sib_tv){.type = TV_RANGE, .u.range = g};
}

static sib_tv call_dict(sib_tr *r, const sib_targs *a, const char *who)
{
    sib_tdict *d = sib_tdict_new(r);
    if (a->n > 1) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "%s expected at most 1 argument, got %zu", who, a->n);
    if (a->n && a->pos[0].type == TV_DICT) {
        for (size_t i = 0; i < a->pos[0].u.dict->n; i++) sib_tdict_set(r, d, a->pos[0].u.dict->e[i].key, a->pos[0].u.dict->e[i].value);
    } else if (a->n) {
        sib_tlist l = sib_tv_items(r, a->pos[0]);
        for (size_t i = 0; i < l.n; i++) {
            sib_tlist pair = sib_tv_items(r, l.v[i]);
            if (pair.n != 2) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "element %zu of the sequence for %s has length %zu; 2 is required", i, who, pair.n);
            sib_tdict_set(r, d, pair.v[0], pair.v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) sib_tdict_set(r, d, a->kw[i].key, a->kw[i].value);
    return sib_tv_dict(d);
}

/* datetime.now().strftime(format), C locale. The directives are the portable ones and glibc's "-" (no padding). */
static sib_tv call_strftime(sib_tr *r, const sib_targs *a)
{
    sib_tv format;
    char directive[4], text[64];
    struct tm now;
    sib_tb b = {.r = r};
    sib_tbind(r, "strftime_now", a, "format", 1, &format);
    if (format.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "strftime_now wants a string, not '%s'", sib_tv_type_name(format));
    if (r->now) {
        now = *r->now;
    } else {
        time_t t = time(NULL);
        if (!localtime_r(&t, &now)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "the local time is not known");
    }
    sib_str s = sib_tv_text(format);
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '%') {
            sib_tb_addc(&b, s.p[i]);
            continue;
        }
        bool bare = i + 1 < s.n && s.p[i + 1] == '-';
        i += bare ? 2 : 1;
        if (i >= s.n || !s.p[i] || !strchr("aAbBdHIjmMpSwyY%eFTDRcxXhnuUWVGCrt", s.p[i]))
            sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "strftime_now: the directive %%%c is not supported", i < s.n && s.p[i] > 32 && s.p[i] < 127 ? s.p[i] : '?');
        (void)snprintf(directive, sizeof directive, bare ? "%%-%c" : "%%%c", s.p[i]);
        sib_tb_add(&b, text, strftime(text, sizeof text, directive, &now));
    }
    return sib_tb_done(&b);
}

static sib_tv call_function(sib_tr *r, int which, const sib_targs *a)
{
    sib_tv v;
    switch (which) {
    case TF_RANGE: return call_range(r, a);
    case TF_DICT: return call_dict(r, a, "dict");
    case TF_NAMESPACE:
        v = call_dict(r, a, "namespace");
        for (size_t i = 0; i < v.u.dict->n; i++)
            if (v.u.dict->e[i].key.type != TV_STR) sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "a namespace with other than string keys is not supported");
        v.type = TV_NS;
        return v;
    case TF_RAISE:
        sib_tbind(r, "raise_exception", a, "message", 1, &v);
        r->raised = sib_tv_text(sib_tv_str(r, v));
        sib_tfail(r, SIB_TEMPLATE_RAISED, "raised");
    case TF_STRFTIME: return call_strftime(r, a);
    case TF_CYCLER:
    case TF_JOINER: {
        sib_tcycler *c = sib_talloc(r, sizeof *c);
        *c = (sib_tcycler){.items = {a->pos, a->n, a->n}};
        if (which == TF_JOINER) {
            sib_tv *sep = sib_talloc(r, sizeof *sep);
            sib_tbind(r, "joiner", a, "sep", 0, sep);
            if (sep->type == TV_ABSENT) *sep = sib_tv_z(", ");
            c->items = (sib_tlist){sep, 1, 1};
        } else if (!a->n || a->n_kw) {
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "cycler wants items");
        }
        return (sib_tv){.type = (uint8_t)(which == TF_JOINER ? TV_JOINER : TV_CYCLER), .u.cycler = c};
    }
    default: sib_tfail(r, SIB_TEMPLATE_UNSUPPORTED, "this function is not supported");
    }
}

static flow run_for(sib_tr *r, const sib_tnode *n, sib_tscope *around, sib_tv over, int depth);

static sib_tv call(sib_tr *r, sib_tv f, const sib_targs *a)
{
    switch (f.type) {
    case TV_MACRO: return call_macro(r, f.u.macro, a);
    case TV_METHOD: return sib_tmethod_call(r, *f.u.self, f.sub, a);
    case TV_FUNC: return call_function(r, f.sub, a);
    case TV_LOOP: { /* loop(items) of a recursive loop */
        sib_tv over;
        if (!(f.u.loop->def->flags & TN_RECURSIVE))
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "the loop must have the 'recursive' marker to be called recursively");
        sib_tbind(r, "loop", a, "iterable", 1, &over);
        enter_call(r);
        size_t mark = r->out->n;
        (void)run_for(r, f.u.loop->def, f.u.loop->scope, over, f.u.loop->depth + 1);
        r->calls--;
        return taken(r, mark);
    }
    case TV_JOINER:
        if (f.u.cycler->at) return f.u.cycler->items.v[0];
        f.u.cycler->at = 1;
        return sib_tv_bytes("", 0);
    case TV_UNDEF: sib_tundefined(r, f);
    default: sib_tfail(r, SIB_TEMPLATE_RUNTIME, "'%s' object is not callable", sib_tv_type_name(f));
    }
}

/* ---- expressions ----------------------------------------------------------------------------------------- */

static _Noreturn void bad_operands(sib_tr *r, char op, sib_tv a, sib_tv b)
{
    const char *name = op == 'i' ? "//" : op == '^' ? "**" : (const char[2]){op, 0};
    if (a.type == TV_UNDEF) sib_tundefined(r, a);
    if (b.type == TV_UNDEF) sib_tundefined(r, b);
    if (op == '+' && (a.type == TV_STR || a.type == TV_LIST || a.type == TV_TUPLE))
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, "can only concatenate %s (not \"%s\") to %s", sib_tv_type_name(a), sib_tv_type_name(b), sib_tv_type_name(a));
    sib_tfail(r, SIB_TEMPLATE_RUNTIME, "unsupported operand type(s) for %s: '%s' and '%s'", name, sib_tv_type_name(a), sib_tv_type_name(b));
}

static sib_tv repeat(sib_tr *r, sib_tv v, sib_tv times)
{
    if (times.type == TV_BIG) sib_tfail(r, SIB_TEMPLATE_LIMIT, "a sequence would be repeated too often");
    int64_t k = times.type == TV_BOOL ? times.u.b : times.u.i;
    size_t n = k > 0 ? (size_t)k : 0, each = v.type == TV_STR ? v.u.s.n : v.u.list->n * sizeof(sib_tv);
    if (each && n > r->max_bytes / each) sib_tfail(r, SIB_TEMPLATE_LIMIT, "more than %zu bytes of memory are needed", r->max_bytes);
    if (!each) n = 0;
    sib_twork(r, each * n);
    char *p = sib_talloc(r, each * n);
    for (size_t i = 0; i < n; i++) memcpy(p + i * each, v.type == TV_STR ? (const void *)v.u.s.p : (const void *)v.u.list->v, each);
    for (size_t i = 0; v.type == TV_STR && i < n; i++) sib_tmark_copy(r, p + i * each, v.u.s.p, each);
    if (v.type != TV_STR) return sib_tv_list(r, (sib_ttype)v.type, (sib_tlist){(sib_tv *)(void *)p, v.u.list->n * n, v.u.list->n * n});
    sib_tv out = sib_tv_bytes(p, each * n);
    out.flag = v.flag;
    return out;
}

static bool sequence(sib_tv v)
{
    return v.type == TV_STR || v.type == TV_LIST || v.type == TV_TUPLE;
}

static sib_tv binary(sib_tr *r, char op, sib_tv a, sib_tv b)
{
    sib_twork(r, 0);
    if (sib_tv_is_num(a) && sib_tv_is_num(b)) return sib_tnum_binary(r, op, a, b);
    if (op == '+' && a.type == TV_STR && b.type == TV_STR) return sib_tconcat(r, a, b);
    if (op == '+' && a.type == b.type && sequence(a)) {
        sib_tlist l = {sib_tarray(r, a.u.list->n + b.u.list->n + 1, sizeof *l.v), 0, 0};
        sib_twork(r, a.u.list->n + b.u.list->n);
        for (size_t i = 0; i < a.u.list->n; i++) l.v[l.n++] = a.u.list->v[i];
        for (size_t i = 0; i < b.u.list->n; i++) l.v[l.n++] = b.u.list->v[i];
        l.cap = l.n;
        return sib_tv_list(r, (sib_ttype)a.type, l);
    }
    if (op == '*' && sequence(a) && sib_tv_is_int(b)) return repeat(r, a, b);
    if (op == '*' && sequence(b) && sib_tv_is_int(a)) return repeat(r, b, a);
    if (op == '%' && a.type == TV_STR) return sib_tformat(r, a, b);
    bad_operands(r, op, a, b);
}

static bool compare(sib_tr *r, char op, sib_tv a, sib_tv b)
{
    int c;
    switch (op) {
    case 'e': return sib_tv_equal(r, a, b);
    case 'n': return !sib_tv_equal(r, a, b);
    case 'I': return sib_tv_in(r, a, b);
    case 'N': return !sib_tv_in(r, a, b);
    case '<': c = sib_tv_order(r, a, b, "<"); return c < 0;
    case '>': c = sib_tv_order(r, a, b, ">"); return c == 1;
    case 'l': c = sib_tv_order(r, a, b, "<="); return c <= 0;
    default: c = sib_tv_order(r, a, b, ">="); return c == 0 || c == 1;
    }
}

static sib_tv eval_compare(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tv left = eval(r, n->kids.v[0], s);
    for (size_t i = 1; i < n->kids.n; i++) {
        sib_tv right = eval(r, n->kids.v[i], s);
        if (!compare(r, n->ops[i - 1], left, right)) return sib_tv_bool(false);
        left = right;
    }
    return sib_tv_bool(true);
}

static sib_tv eval_concat(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tv out = sib_tv_str(r, eval(r, n->kids.v[0], s));
    for (size_t i = 1; i < n->kids.n; i++) {
        sib_tv v = sib_tv_str(r, eval(r, n->kids.v[i], s));
        out.flag = v.flag = 0; /* without autoescape ~ joins plain texts */
        out = sib_tconcat(r, out, v);
    }
    out.flag = 0;
    return out;
}

static sib_tv eval_items(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    if (n->kind == TN_DICT) {
        sib_tdict *d = sib_tdict_new(r);
        for (size_t i = 0; i < n->kids.n; i += 2) {
            sib_tv key = eval(r, n->kids.v[i], s);
            sib_tdict_set(r, d, key, eval(r, n->kids.v[i + 1], s));
        }
        return sib_tv_dict(d);
    }
    sib_tlist l = {0};
    if (n->kids.n) l = (sib_tlist){sib_tarray(r, n->kids.n, sizeof *l.v), 0, n->kids.n};
    for (size_t i = 0; i < n->kids.n; i++) l.v[l.n++] = eval(r, n->kids.v[i], s);
    return sib_tv_list(r, n->kind == TN_LIST ? TV_LIST : TV_TUPLE, l);
}

static sib_tv slice_part(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    return n ? eval(r, n, s) : sib_tv_of(TV_NONE);
}

/* Trailers of a chain on `v`; `caller`, when given, goes into the last call. */
static sib_tv trailers(sib_tr *r, const sib_tnode *n, sib_tscope *s, sib_tv v, const sib_tv *caller)
{
    for (size_t i = 0; i < n->kids.n; i++) {
        const sib_tnode *t = n->kids.v[i];
        sib_twork(r, 0);
        switch (t->kind) {
        case TN_ATTR:
            r->at = t->at;
            v = sib_tget_attr(r, v, t->name);
            continue;
        case TN_ITEM: {
            sib_tv key = eval(r, t->a, s);
            r->at = t->at;
            v = sib_tget_item(r, v, key);
            continue;
        }
        case TN_SLICE: {
            sib_tv a = slice_part(r, t->a, s), b = slice_part(r, t->b, s), c = slice_part(r, t->c, s);
            r->at = t->at;
            v = slice(r, v, a, b, c);
            continue;
        }
        default: break;
        }
        sib_targs a = arguments(r, &t->kids, s);
        if (caller && i + 1 == n->kids.n) {
            size_t cap = a.n_kw;
            add_keyword(r, &a, &cap, sib_tv_z("caller"), *caller);
        }
        r->at = t->at;
        if (t->kind == TN_CALL)
            v = call(r, v, &a);
        else if (t->which < 0)
            sib_tfail(r, SIB_TEMPLATE_RUNTIME, "there is no %s named '%.*s'", t->kind == TN_FILTER ? "filter" : "test", (int)str_of_name(t->name).n, t->name.p);
        else if (t->kind == TN_FILTER)
            v = sib_tfilter_call(r, t->which, v, &a);
        else
            v = sib_tv_bool(sib_ttest_call(r, t->which, v, &a) != ((t->flags & TN_NEGATED) != 0));
    }
    return v;
}

static sib_tv eval_sign(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tv v = eval(r, n->a, s);
    if (v.type == TV_UNDEF) sib_tundefined(r, v);
    if (!sib_tv_is_num(v)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "bad operand type for unary %c: '%s'", n->kind == TN_NEG ? '-' : '+', sib_tv_type_name(v));
    if (n->kind == TN_NEG) return sib_tnum_neg(r, v);
    return v.type == TV_BOOL ? sib_tv_int(v.u.b) : v;
}

static sib_tv eval_logic(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tv v = sib_tv_of(TV_NONE);
    for (size_t i = 0; i < n->kids.n; i++) {
        v = eval(r, n->kids.v[i], s);
        if (sib_tv_truth(v) == (n->kind == TN_OR)) break;
    }
    return v;
}

static void descend(sib_tr *r, const sib_tnode *n)
{
    r->at = n->at;
    sib_twork(r, 0);
    if (++r->levels > MAX_LEVELS) sib_tfail(r, SIB_TEMPLATE_LIMIT, "the template is nested deeper than %d levels while it runs", MAX_LEVELS);
}

static sib_tv eval(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tv v;
    if (n->kind == TN_CONST) return n->v;
    descend(r, n);
    switch (n->kind) {
    case TN_NAME: v = lookup(r, n, s); break;
    case TN_LIST:
    case TN_TUPLE:
    case TN_DICT: v = eval_items(r, n, s); break;
    case TN_NOT: v = sib_tv_bool(!sib_tv_truth(eval(r, n->a, s))); break;
    case TN_NEG:
    case TN_POS: v = eval_sign(r, n, s); break;
    case TN_AND:
    case TN_OR: v = eval_logic(r, n, s); break;
    case TN_COND:
        if (sib_tv_truth(eval(r, n->a, s)))
            v = eval(r, n->b, s);
        else if (n->c)
            v = eval(r, n->c, s);
        else
            v = sib_tv_undef(TV_U_PLAIN, sib_tv_of(TV_UNDEF), SIB_STR("a conditional expression is false and has no else"));
        break;
    case TN_MATH:
        v = eval(r, n->kids.v[0], s);
        for (size_t i = 1; i < n->kids.n; i++) {
            sib_tv right = eval(r, n->kids.v[i], s);
            r->at = n->at;
            v = binary(r, n->ops[i - 1], v, right);
        }
        break;
    case TN_COMPARE: v = eval_compare(r, n, s); break;
    case TN_CONCAT: v = eval_concat(r, n, s); break;
    default: v = trailers(r, n, s, eval(r, n->a, s), NULL);
    }
    r->levels--;
    return v;
}

/* ---- statements ------------------------------------------------------------------------------------------ */

static void assign(sib_tr *r, const sib_tnode *target, sib_tscope *s, sib_tv v)
{
    if (target->kind == TN_NAME) {
        scope_set(r, s, target->name, v);
        return;
    }
    if (target->kind == TN_NS_TARGET) {
        sib_tv ns = lookup(r, target, s);
        if (ns.type != TV_NS) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "cannot assign attribute on non-namespace object");
        sib_tdict_set(r, ns.u.dict, sib_tv_bytes(target->attr.p, target->attr.n), v);
        return;
    }
    sib_tlist l = sib_tv_items(r, v);
    if (l.n != target->kids.n)
        sib_tfail(r, SIB_TEMPLATE_RUNTIME, l.n > target->kids.n ? "too many values to unpack (expected %zu)" : "not enough values to unpack (expected %zu)", target->kids.n);
    for (size_t i = 0; i < l.n; i++) assign(r, target->kids.v[i], s, l.v[i]);
}

static void scope_reuse(sib_tr *r, sib_tscope **s)
{
    if ((*s)->captured)
        *s = scope_new(r, (*s)->up);
    else
        (*s)->n = 0;
}

static flow run_for(sib_tr *r, const sib_tnode *n, sib_tscope *around, sib_tv over, int depth)
{
    sib_tlist items = sib_tv_items(r, over);
    sib_tscope *s = scope_new(r, around);
    if (n->b) { /* the filter sees the targets, not the loop */
        sib_tlist kept = {0};
        for (size_t i = 0; i < items.n; i++) {
            scope_reuse(r, &s);
            assign(r, n->c, s, items.v[i]);
            if (sib_tv_truth(eval(r, n->b, s))) sib_tlist_add(r, &kept, items.v[i]);
        }
        items = kept;
    }
    if (!items.n) {
        scope_reuse(r, &s);
        return run_body(r, &n->orelse, s);
    }
    sib_tloop *loop = sib_talloc(r, sizeof *loop);
    *loop = (sib_tloop){.def = n, .scope = around, .v = items.v, .n = items.n, .depth = depth, .changed = sib_tv_of(TV_ABSENT)};
    for (; loop->i < loop->n; loop->i++) {
        sib_twork(r, 0);
        scope_reuse(r, &s);
        scope_set(r, s, r->tmpl->special[3], (sib_tv){.type = TV_LOOP, .u.loop = loop});
        assign(r, n->c, s, loop->v[loop->i]);
        if (run_body(r, &n->body, s) == FLOW_BREAK) break;
    }
    return FLOW_ON;
}

static sib_tv macro_value(sib_tr *r, const sib_tnode *def, sib_tscope *s)
{
    sib_tmacro *m = sib_talloc(r, sizeof *m);
    *m = (sib_tmacro){def, s};
    capture(s);
    return (sib_tv){.type = TV_MACRO, .u.macro = m};
}

static void print(sib_tr *r, sib_tv v)
{
    emit(r, sib_tv_text(sib_tv_str(r, v)));
}

static flow run_capture(sib_tr *r, const sib_tnode *n, sib_tscope *s) /* set and filter blocks */
{
    size_t mark = r->out->n;
    flow f = run_body(r, &n->body, scope_new(r, s));
    sib_tv v = taken(r, mark);
    if (f != FLOW_ON) return f;
    if (n->a) v = trailers(r, n->a, s, v, NULL);
    if (n->kind == TN_SET_BLOCK)
        assign(r, n->c, s, v);
    else
        print(r, v);
    return FLOW_ON;
}

static flow run_with(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    sib_tscope *inner = scope_new(r, s);
    for (size_t i = 0; i < n->kids.n; i += 2) assign(r, n->kids.v[i], inner, eval(r, n->kids.v[i + 1], s));
    return run_body(r, &n->body, inner);
}

static flow run_if(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    for (size_t i = 0; i < n->kids.n; i++)
        if (sib_tv_truth(eval(r, n->kids.v[i]->a, s))) return run_body(r, &n->kids.v[i]->body, s);
    return run_body(r, &n->orelse, s);
}

static flow run(sib_tr *r, const sib_tnode *n, sib_tscope *s)
{
    switch (n->kind) {
    case TN_TEXT: emit(r, n->name); return FLOW_ON;
    case TN_PRINT:
        for (size_t i = 0; i < n->kids.n; i++) print(r, eval(r, n->kids.v[i], s));
        return FLOW_ON;
    case TN_IF: return run_if(r, n, s);
    case TN_FOR: return run_for(r, n, s, eval(r, n->a, s), 0);
    case TN_SET: assign(r, n->c, s, eval(r, n->a, s)); return FLOW_ON;
    case TN_SET_BLOCK:
    case TN_FILTER_BLOCK: return run_capture(r, n, s);
    case TN_MACRO: scope_set(r, s, n->name, macro_value(r, n, s)); return FLOW_ON;
    case TN_CALL_BLOCK: {
        sib_tv caller = macro_value(r, n, s);
        print(r, trailers(r, n->a, s, eval(r, n->a->a, s), &caller));
        return FLOW_ON;
    }
    case TN_WITH: return run_with(r, n, s);
    case TN_GENERATION: return run_body(r, &n->body, scope_new(r, s));
    case TN_BREAK: return FLOW_BREAK;
    default: return FLOW_CONTINUE;
    }
}

static flow run_body(sib_tr *r, const sib_tnodes *body, sib_tscope *s)
{
    flow f = FLOW_ON;
    for (size_t i = 0; i < body->n && f == FLOW_ON; i++) {
        descend(r, body->v[i]);
        f = run(r, body->v[i], s);
        r->levels--;
    }
    return f;
}

/* ---- entry ----------------------------------------------------------------------------------------------- */

sib_status sib_template_render(const sib_template *t, const sib_template_vars *v, const sib_template_options *opt, sib_buf *out,
                               sib_template_fault *fault, sib_err *err)
{
    sib_tr r;
    sib_tr_init(&r, opt);
    r.tmpl = t;
    r.vars = &v->dict;
    r.out = out;
    r.out_base = out->n;
    r.marks = v->mem.marks;
    if (r.marks) r.marks->out.n = 0;
    sib_status s = SIB_OK;
    if (!setjmp(r.jump)) {
        (void)run_body(&r, &t->body, scope_new(&r, NULL));
    } else {
        s = sib_tr_report(&r, t->source, t->name, fault, err);
        out->n = r.out_base;
    }
    if (out->p) out->p[out->n] = 0;
    sib_tr_deinit(&r);
    return s;
}

/* ---- variables ------------------------------------------------------------------------------------------- */

sib_status sib_template_vars_new(sib_template_vars **out, sib_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return sib_nomem(err, "template variables");
    sib_tr_init(&(*out)->mem, NULL);
    return SIB_OK;
}

void sib_template_vars_free(sib_template_vars *v)
{
    if (!v) return;
    sib_tr_deinit(&v->mem);
    free(v);
}

typedef struct source { /* one of */
    const json_t *value;
    sib_str text, json, all;
} source;

static sib_status vars_set(sib_template_vars *v, const char *name, const source *from, sib_err *err)
{
    sib_tr *r = &v->mem;
    sib_tr_restart(r);
    if (setjmp(r->jump)) return sib_tr_report(r, (sib_str){0}, name, NULL, err);
    sib_tv value;
    if (from->all.p) {
        value = sib_tjson_parse(r, from->all);
        if (value.type != TV_DICT) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "the variables must be a JSON object");
        for (size_t i = 0; i < value.u.dict->n; i++) sib_tdict_set(r, &v->dict, value.u.dict->e[i].key, value.u.dict->e[i].value);
        return SIB_OK;
    }
    if (from->text.p && !sib_utf8_valid(from->text)) sib_tfail(r, SIB_TEMPLATE_RUNTIME, "the text is not valid UTF-8");
    value = from->json.p ? sib_tjson_parse(r, from->json) : from->text.p ? sib_tv_copy(r, from->text) : sib_tjson_value(r, from->value);
    sib_tdict_set(r, &v->dict, sib_tv_copy(r, sib_str_of(name)), value);
    return SIB_OK;
}

sib_status sib_template_vars_set(sib_template_vars *v, const char *name, const json_t *value, sib_err *err)
{
    return vars_set(v, name, &(source){.value = value}, err);
}

sib_status sib_template_vars_set_str(sib_template_vars *v, const char *name, sib_str text, sib_err *err)
{
    return vars_set(v, name, &(source){.text = {text.p ? text.p : "", text.n}}, err);
}

sib_status sib_template_vars_set_json(sib_template_vars *v, const char *name, sib_str json, sib_err *err)
{
    return vars_set(v, name, &(source){.json = {json.p ? json.p : "", json.n}}, err);
}

sib_status sib_template_vars_set_all(sib_template_vars *v, sib_str json, sib_err *err)
{
    return vars_set(v, "template variables", &(source){.all = {json.p ? json.p : "", json.n}}, err);
}
