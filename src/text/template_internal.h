/* text/template_internal.h - what the template engine's own files share; nobody else includes it.
 *
 * One sib_tr ("template run") carries a parse, a rendering or the building of variables: its arena, its limits and
 * its way out. Everything made on the way lives in the arena, so a failure can leave from any depth by longjmp
 * (sib_tfail) without a leak; only the entry functions call setjmp. Values are 24 bytes, passed by value, and point
 * into arenas. Lists, dicts and strings never change once another value can see them (the sandbox forbids it), so
 * variables, template constants and renderings share them freely.
 *
 *   template_value.c   arena, failures, steps, constructors, dicts, equality, order, printing
 *   template_number.c  arithmetic and number texts, integers beyond 64 bits
 *   template_string.c  Unicode case and space, Python's string methods, % formatting
 *   template_json.c    JSON to values, values to JSON
 *   template_parse.c   lexer and parser
 *   template_run.c     statements, expressions, attributes, calls
 *   template_filter.c  filters and tests
 *
 * Marks. A chat prompt must tell what its template wrote from what a client sent (template.h, sib_template_marks).
 * While a run has marks, every chunk of its arena carries a shadow, one byte for each byte: 1 when it came from
 * outside. Strings are copied by sib_tb_add, sib_tv_copy and emit() only, which copy the shadow along; slices share
 * the bytes and so their shadow. Bytes that code makes rather than copies (a changed case, an escape) are marked while
 * the operation that makes them reads something marked. A character of a value never goes through a buffer outside
 * the arena, where its mark would be lost. */
#ifndef SIB_TEXT_TEMPLATE_INTERNAL_H
#define SIB_TEXT_TEMPLATE_INTERNAL_H

#include "base/utf8.h"
#include "text/template.h"

#include <setjmp.h>
#include <string.h>

#define SIB_TNEST 200 /* nesting of source, of calls and of values */

typedef struct sib_tr sib_tr;
typedef struct sib_tv sib_tv;
typedef struct sib_tnode sib_tnode;
typedef struct sib_tscope sib_tscope;

typedef enum sib_ttype {
    TV_UNDEF, /* s: the name, or undef kinds below */
    TV_NONE,
    TV_BOOL,
    TV_INT,
    TV_BIG,   /* an integer outside int64, always */
    TV_FLOAT,
    TV_STR,
    TV_LIST,
    TV_TUPLE,
    TV_DICT,
    TV_RANGE,
    TV_VIEW,   /* keys(), values(), items() of a dict; flag says which */
    TV_ITER,   /* a generator: single pass */
    TV_NS,     /* namespace() */
    TV_MACRO,
    TV_LOOP,
    TV_METHOD, /* bound: sub is the method's number */
    TV_FUNC,   /* global: sub is a sib_tfunc */
    TV_CYCLER,
    TV_JOINER,
    TV_ABSENT  /* an argument that was not given */
} sib_ttype;

enum { TV_SAFE = 1 };                                      /* flag of TV_STR: markup, escapes what it is joined with */
enum { TV_GROUP = 1 };                                     /* flag of TV_TUPLE: from groupby, has .grouper and .list */
enum { TV_U_NAME, TV_U_ATTR, TV_U_INDEX, TV_U_UNSAFE, TV_U_PLAIN }; /* flag of TV_UNDEF; sub is the owner's type  */
enum { TV_KEYS, TV_VALUES, TV_ITEMS };                     /* flag of TV_VIEW */

typedef struct sib_tlist {
    sib_tv *v;
    size_t n, cap;
} sib_tlist;

struct sib_tv {
    uint8_t type, flag;
    uint16_t sub;
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p;
            size_t n;
        } s;
        struct sib_tbig *big;
        sib_tlist *list; /* LIST, TUPLE */
        struct sib_tdict *dict; /* DICT, VIEW, NS */
        struct sib_trange *range;
        struct sib_titer *iter;
        struct sib_tmacro *macro;
        struct sib_tloop *loop;
        sib_tv *self; /* METHOD */
        struct sib_tcycler *cycler; /* CYCLER, JOINER */
    } u;
};

typedef struct sib_tpair {
    sib_tv key, value;
} sib_tpair;

typedef struct sib_tdict { /* insertion order; index of entries + 1, open addressing, when n > 8 */
    sib_tpair *e;
    size_t n, cap;
    uint32_t *index;
    size_t n_index;
} sib_tdict;

typedef struct sib_tbig { /* base 1e9, least first, no leading zero */
    bool neg;
    uint32_t n;
    uint32_t d[];
} sib_tbig;

typedef struct sib_trange {
    int64_t start, stop, step;
    size_t n;
} sib_trange;

typedef struct sib_titer {
    sib_tlist items;
    size_t at;
} sib_titer;

typedef struct sib_tmacro {
    const sib_tnode *def;
    sib_tscope *scope; /* where it was defined */
} sib_tmacro;

typedef struct sib_tloop {
    const sib_tnode *def;
    sib_tscope *scope; /* around the loop */
    sib_tv *v;
    size_t n, i;
    int depth;
    sib_tv changed; /* arguments of the last loop.changed(), as a tuple */
} sib_tloop;

typedef struct sib_tcycler {
    sib_tlist items;
    size_t at; /* JOINER: used */
} sib_tcycler;

typedef enum sib_tfunc { TF_NONE, TF_RANGE, TF_DICT, TF_NAMESPACE, TF_CYCLER, TF_JOINER, TF_LIPSUM, TF_RAISE, TF_STRFTIME, TF_SELF } sib_tfunc;

/* Arguments of a call, in order of writing. */
typedef struct sib_targs {
    sib_tv *pos;
    size_t n;
    sib_tpair *kw; /* keys are strings */
    size_t n_kw;
} sib_targs;

/* A string under construction in the arena. At most one should grow at a time, then it grows in place. */
typedef struct sib_tb {
    sib_tr *r;
    char *p;
    size_t n, cap;
} sib_tb;

struct sib_template_marks {
    struct sib_tchunk **v; /* chunks with a shadow, ascending by address; owned by their runs */
    size_t n, cap;
    sib_buf out; /* shadow of what a rendering has put out */
};

struct sib_tr {
    jmp_buf jump;
    sib_template_kind kind;
    uint32_t at; /* source offset of what runs now */
    char text[400];
    sib_str raised;
    struct sib_tchunk *chunks;
    size_t bytes, max_bytes;
    char *tail, *tail_end; /* end of the string built last, and of its room: s + t grows there in place */
    uint64_t steps, max_steps, next_look;
    int64_t deadline, max_ns;
    int64_t (*clock)(void *self);
    void *clock_self;
    int nest, calls, levels;
    sib_template_marks *marks;      /* NULL: nothing is marked                       */
    bool mark_foreign, mark_made; /* marks of bytes from outside the arenas, of bytes that code makes */
    /* rendering */
    const sib_template *tmpl;
    const sib_tdict *vars;
    const struct tm *now;
    sib_buf *out;
    size_t out_base, max_out;
};

struct sib_template_vars {
    sib_tr mem;
    sib_tdict dict;
};

/* ---- run ------------------------------------------------------------------------------------------------- */
void sib_tr_init(sib_tr *r, const sib_template_options *opt);
void sib_tr_restart(sib_tr *r); /* steps and time anew, the arena stays */
void sib_tr_deinit(sib_tr *r); /* frees the arena */
/* Reports a failure that came back through setjmp; source may be empty. Returns its status. */
sib_status sib_tr_report(const sib_tr *r, sib_str source, const char *name, sib_template_fault *fault, sib_err *err);
/* Marks what is made from `v` from now on when it holds something marked; gives what mark_made was, to be put back. */
bool sib_tmade_from(sib_tr *r, sib_tv v);
bool sib_tmade_by(sib_tr *r, sib_tv in, const sib_targs *a); /* the same for a call's object and arguments */
void sib_tunmark(sib_tr *r, sib_str s);
void sib_tmark_copy(sib_tr *r, const char *to, const char *from, size_t n); /* bytes were copied: so are their marks */
void sib_tmark_out(sib_tr *r, sib_str s);    /* the same for bytes that went to the output */
void sib_tmark_taken(sib_tr *r, sib_str s, size_t mark); /* and for those taken back from output offset `mark` on */
_Noreturn void sib_tfail(sib_tr *r, sib_template_kind kind, const char *fmt, ...) SIB_PRINTF(3, 4);
_Noreturn void sib_tundefined(sib_tr *r, sib_tv v); /* "'x' is undefined", or a security failure */
void *sib_talloc(sib_tr *r, size_t bytes);          /* 16-byte aligned, not zeroed */
void *sib_tarray(sib_tr *r, size_t count, size_t each);
/* Counts one step and `units` bytes or elements of work; looks at the clock now and then. */
void sib_twork(sib_tr *r, size_t units);
void sib_tenter(sib_tr *r); /* one level deeper into a value */
static inline void sib_tleave(sib_tr *r)
{
    r->nest--;
}

/* ---- building strings ------------------------------------------------------------------------------------ */
void sib_tb_add(sib_tb *b, const char *p, size_t n);
void sib_tb_addc(sib_tb *b, char c);
void sib_tb_addz(sib_tb *b, const char *z);
void sib_tb_fill(sib_tb *b, char c, size_t n);
void sib_tb_cp(sib_tb *b, uint32_t cp);
sib_tv sib_tb_done(sib_tb *b); /* a TV_STR that is the buffer */

/* ---- values ---------------------------------------------------------------------------------------------- */
static inline sib_tv sib_tv_of(sib_ttype t)
{
    return (sib_tv){.type = (uint8_t)t};
}
static inline sib_tv sib_tv_bool(bool b)
{
    return (sib_tv){.type = TV_BOOL, .u.b = b};
}
static inline sib_tv sib_tv_int(int64_t i)
{
    return (sib_tv){.type = TV_INT, .u.i = i};
}
static inline sib_tv sib_tv_float(double f)
{
    return (sib_tv){.type = TV_FLOAT, .u.f = f};
}
static inline sib_tv sib_tv_bytes(const char *p, size_t n)
{
    return (sib_tv){.type = TV_STR, .u.s = {p, n}};
}
static inline sib_tv sib_tv_z(const char *z)
{
    return sib_tv_bytes(z, strlen(z));
}
static inline sib_str sib_tv_text(sib_tv v) /* of a TV_STR */
{
    return (sib_str){v.u.s.p, v.u.s.n};
}
sib_tv sib_tv_copy(sib_tr *r, sib_str s);
sib_tv sib_tv_undef(uint8_t kind, sib_tv owner, sib_str name);
sib_tv sib_tv_list(sib_tr *r, sib_ttype type, sib_tlist items); /* LIST or TUPLE over items' storage */
sib_tv sib_tv_pair(sib_tr *r, sib_tv a, sib_tv b);              /* a TUPLE of two */
sib_tv sib_tv_iter(sib_tr *r, sib_tlist items);
void sib_tlist_add(sib_tr *r, sib_tlist *l, sib_tv v);
sib_tdict *sib_tdict_new(sib_tr *r);
sib_tv *sib_tdict_get(sib_tr *r, const sib_tdict *d, sib_tv key); /* NULL when absent; an unhashable key fails */
sib_tv *sib_tdict_find(const sib_tdict *d, sib_str key);          /* string keys only, no accounting */
void sib_tdict_set(sib_tr *r, sib_tdict *d, sib_tv key, sib_tv value);
sib_tv sib_tv_dict(sib_tdict *d);

const char *sib_tv_type_name(sib_tv v); /* Python's: 'str', 'int', ... */
bool sib_tv_truth(sib_tv v);
bool sib_tv_equal(sib_tr *r, sib_tv a, sib_tv b);
int sib_tv_order(sib_tr *r, sib_tv a, sib_tv b, const char *op); /* <0, 0, >0; 2: unordered (NaN) */
bool sib_tv_hashable(sib_tr *r, sib_tv v);
bool sib_tv_in(sib_tr *r, sib_tv item, sib_tv box);
bool sib_tv_iterable(sib_tv v);
sib_tlist sib_tv_items(sib_tr *r, sib_tv v); /* what iterating gives; may share storage; fails on others */
int64_t sib_tv_length(sib_tr *r, sib_tv v);  /* len(); fails on others */
sib_tv sib_tv_str(sib_tr *r, sib_tv v);      /* str(); a string as it is */
void sib_tv_repr(sib_tr *r, sib_tb *b, sib_tv v);
bool sib_tv_has_len(sib_tv v);

/* ---- numbers --------------------------------------------------------------------------------------------- */
static inline bool sib_tv_is_int(sib_tv v) /* bool counts, as in Python */
{
    return v.type == TV_BOOL || v.type == TV_INT || v.type == TV_BIG;
}
static inline bool sib_tv_is_num(sib_tv v)
{
    return sib_tv_is_int(v) || v.type == TV_FLOAT;
}
double sib_tv_double(sib_tr *r, sib_tv v); /* of a number; fails where a big integer does not fit */
int64_t sib_tv_index(sib_tr *r, sib_tv v, const char *what); /* of an integer that must fit; else fails naming `what` */
int sib_tnum_order(sib_tv a, sib_tv b);    /* numbers; 2: unordered */
uint64_t sib_tnum_hash(sib_tv v);
sib_tv sib_tnum_binary(sib_tr *r, char op, sib_tv a, sib_tv b); /* + - * / % ^ (power) and i (floor division) */
sib_tv sib_tnum_neg(sib_tr *r, sib_tv v);
sib_tv sib_tnum_abs(sib_tr *r, sib_tv v);
sib_tv sib_tnum_round(sib_tr *r, sib_tv v, int64_t digits);
sib_tv sib_tnum_from_double(sib_tr *r, double d);            /* int(d): fails on inf and nan */
bool sib_tnum_int(sib_tr *r, sib_str s, int base, sib_tv *out);  /* digits with an optional sign; base 2..36 */
bool sib_tnum_pyint(sib_tr *r, sib_str s, int base, sib_tv *out);   /* int(s, base) */
bool sib_tnum_pyfloat(sib_tr *r, sib_str s, double *out);           /* float(s) */
void sib_tnum_put(sib_tb *b, sib_tv v);                      /* repr() */
void sib_tnum_put_float(sib_tb *b, double d);                /* repr() of a float */

/* ---- strings --------------------------------------------------------------------------------------------- */
enum { SIB_UPPER, SIB_LOWER, SIB_TITLE, SIB_FOLD, SIB_CAPITALIZE, SIB_SWAP };
bool sib_tspace(uint32_t cp); /* str.isspace */
bool sib_tword(uint32_t cp, bool first); /* may stand in an identifier */
sib_str sib_tstrip(sib_str s, int sides, const sib_str *chars); /* sides: 1 left, 2 right, 3 both; NULL: white space */
sib_tv sib_tcase(sib_tr *r, sib_str s, int how);
void sib_tput_repr(sib_tb *b, sib_str s);
size_t sib_tcount(sib_tr *r, sib_str s);                      /* code points */
size_t sib_toffset(sib_str s, size_t index);                  /* byte offset of the index-th code point, or s.n */
sib_tlist sib_tchars(sib_tr *r, sib_str s);
sib_tlist sib_tlines(sib_tr *r, sib_str s, bool keep);        /* splitlines */
sib_tv sib_treplace(sib_tr *r, sib_str s, sib_str from, sib_str to, int64_t count);
sib_tv sib_tescape(sib_tr *r, sib_tv v);                      /* HTML; a safe string as it is */
sib_tv sib_tconcat(sib_tr *r, sib_tv a, sib_tv b);            /* str + str */
sib_tv sib_tformat(sib_tr *r, sib_tv format, sib_tv args);    /* format % args */
sib_tv sib_tpad(sib_tr *r, sib_str s, int64_t width, char fill, int side); /* -1 ljust, 0 center, 1 rjust */
sib_tv sib_tjoin(sib_tr *r, sib_str glue, sib_tlist items, bool safe);
void sib_tslice(sib_tr *r, size_t n, sib_tv a, sib_tv b, sib_tv c, int64_t *start, int64_t *step, size_t *count);
bool sib_tall(sib_tr *r, sib_str s, int what); /* 'l' islower, 'u' isupper, ... as the letters in template_string.c */
int sib_tmethod(sib_tv self, sib_str name);    /* number of the method; -1: Python has none of that name; -2: changes its object */
sib_tv sib_tmethod_call(sib_tr *r, sib_tv self, int method, const sib_targs *a);

/* ---- JSON ------------------------------------------------------------------------------------------------ */
sib_tv sib_tjson_parse(sib_tr *r, sib_str text);     /* fails with a sentence */
bool sib_tjson_try(sib_tr *r, sib_str text, sib_tv *out); /* false when it is not JSON */
sib_tv sib_tjson_value(sib_tr *r, const json_t *v);
sib_tv sib_tjson_dump(sib_tr *r, sib_tv v, bool ascii, const sib_str *indent, const sib_str *comma, const sib_str *colon, bool sort);

/* ---- calls ----------------------------------------------------------------------------------------------- */
/* Puts the arguments of a call into out[] in the order of `names` ("sep,maxsplit"), TV_ABSENT where not given.
 * Too many, unknown or double ones fail, as do absent ones among the first `need`. */
void sib_tbind(sib_tr *r, const char *who, const sib_targs *a, const char *names, size_t need, sib_tv *out);
sib_tv sib_tget_attr(sib_tr *r, sib_tv v, sib_str name);    /* v.name  */
sib_tv sib_tget_item(sib_tr *r, sib_tv v, sib_tv key);      /* v[key]  */
sib_tv sib_tonly_attr(sib_tr *r, sib_tv v, sib_str name);   /* getattr(): no items */
int sib_tfilter_named(sib_str name); /* -1: no such filter */
int sib_ttest_named(sib_str name);
sib_tv sib_tfilter_call(sib_tr *r, int filter, sib_tv in, const sib_targs *a);
bool sib_ttest_call(sib_tr *r, int test, sib_tv in, const sib_targs *a);
/* Stable; less than by `order` on keys. */
void sib_tsort(sib_tr *r, sib_tv *keys, sib_tv *values, size_t n, bool reverse);

/* ---- the tree -------------------------------------------------------------------------------------------- */
typedef enum sib_tkind {
    /* expressions */
    TN_CONST, TN_NAME, TN_LIST, TN_TUPLE, TN_DICT, /* DICT: kids are key, value, key, value */
    TN_NOT, TN_NEG, TN_POS, TN_AND, TN_OR, TN_COND,
    TN_MATH,    /* kids[0] ops[0] kids[1] ops[1] ..., left to right */
    TN_COMPARE, /* the same, chained */
    TN_CONCAT,
    TN_CHAIN,   /* a, followed by the trailers in kids */
    /* trailers */
    TN_ATTR, TN_ITEM, TN_SLICE, TN_CALL, TN_FILTER, TN_TEST,
    /* arguments of calls, filters and tests: a is the value */
    TN_ARG, TN_KEYWORD, TN_STAR, TN_STARSTAR,
    /* statements */
    TN_TEXT, TN_PRINT, TN_IF, TN_FOR, TN_SET, TN_SET_BLOCK, TN_MACRO, TN_CALL_BLOCK, TN_FILTER_BLOCK, TN_WITH,
    TN_GENERATION, TN_BREAK, TN_CONTINUE,
    TN_NS_TARGET /* name.attr as the target of a set */
} sib_tkind;

typedef struct sib_tnodes {
    sib_tnode **v;
    size_t n, cap;
} sib_tnodes;

enum { TN_USES_CALLER = 1, TN_USES_VARARGS = 2, TN_USES_KWARGS = 4, TN_RECURSIVE = 8, TN_NEGATED = 16 };

struct sib_tnode {
    uint8_t kind, flags;
    int16_t which;   /* filter, test or global function */
    uint32_t at;     /* offset in the source */
    sib_str name;    /* interned: equal names have equal pointers */
    sib_str attr;
    sib_tv v;
    sib_tnode *a, *b, *c;
    sib_tnodes kids, body, orelse;
    char *ops;
};

struct sib_template {
    sib_tr mem; /* keeps the arena of the tree */
    char *name;
    sib_str source; /* newlines normalised, in the arena */
    sib_tnodes body;
    sib_str special[4]; /* the interned caller, varargs, kwargs, loop */
};

#endif
