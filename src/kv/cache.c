/* kv/cache.c - see cache.h. */
#include "kv/cache.h"

#include <assert.h>
#include <stdlib.h>

#define MAX_LAYERS 4096
#define MAX_BYTES  ((uint64_t)1 << 62)
#define NO_PAGE    (-1)

typedef struct owner { /* a layer that has a cache */
    sib_kv_geom geom;
    int seen; /* positions that the next row and a drafter before it may see; 0: all */
    int class_id;
    int n_pages; /* of its table */
    int table;   /* where its table begins in a sequence's tables */
} owner;

struct sib_kv_layout {
    int n_layers, n_owners, n_classes, table_pages;
    int32_t ctx;
    int max_block;
    owner *owners;        /* [n_owners] */
    int *owner_of;        /* [n_layers] */
    sib_kv_geom *classes; /* [n_classes], all different */
};

typedef struct page_class {
    size_t page_bytes, slab_bytes;
    char *slab; /* device memory */
    int32_t n_pages, n_free;
    int32_t *free_list; /* stack of page numbers */
    int32_t *refs;      /* 0: free */
} page_class;

struct sib_kv_pool {
    const sib_kv_layout *layout;
    sib_device *device;
    page_class *classes; /* [layout->n_classes] */
};

/* Tables of all owners, one after another: entry i holds page number id[i] of the owner's class, whose
 * contents are the positions 64 * logical[i] and up to 63 more. */
struct sib_kv_seq {
    sib_kv_pool *pool;
    int32_t length;
    int pending;
    void **address; /* device address, NULL without page */
    int32_t *id, *logical;
};

/* ---- layout ----------------------------------------------------------------------------- */

static bool same_geom(const sib_kv_geom *a, const sib_kv_geom *b)
{
    return a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim;
}

static int class_for(sib_kv_layout *l, const sib_kv_geom *g)
{
    for (int i = 0; i < l->n_classes; i++)
        if (same_geom(&l->classes[i], g)) return i;
    l->classes[l->n_classes] = *g;
    return l->n_classes++;
}

static int pages_for(int64_t positions)
{
    return (int)((positions + SIB_KV_PAGE - 1) / SIB_KV_PAGE);
}

static sib_status check_layer(const sib_kv_layer *layers, int n_layers, int i, sib_err *err)
{
    const sib_kv_layer *x = &layers[i];
    const sib_kv_geom *g = &x->geom;
    if (g->n_kv_heads < 1 || g->n_kv_heads > 4096 || g->k_dim < 8 || g->k_dim > 576 || g->k_dim % 8 || g->v_dim < 0 ||
        g->v_dim > 512 || g->v_dim % 8)
        return sib_fail(err, SIB_EUNSUPPORTED, "layer %d: no cache for %d KV heads of dimensions %d and %d", i,
                        g->n_kv_heads, g->k_dim, g->v_dim);
    if (x->window < 0) return sib_fail(err, SIB_EARG, "layer %d: window %d", i, x->window);
    if (x->donor < 0) return SIB_OK;
    if (x->donor >= n_layers || layers[x->donor].donor >= 0)
        return sib_fail(err, SIB_EARG, "layer %d: layer %d owns no cache to share", i, x->donor);
    if (!same_geom(g, &layers[x->donor].geom) || x->window != layers[x->donor].window)
        return sib_fail(err, SIB_EARG, "layer %d: its cache differs in shape from that of layer %d", i, x->donor);
    return SIB_OK;
}

sib_status sib_kv_layout_new(sib_kv_layout **out, const sib_kv_layer *layers, int n_layers, int32_t ctx, int max_block,
                             sib_err *err)
{
    *out = NULL;
    if (n_layers < 1 || n_layers > MAX_LAYERS)
        return sib_fail(err, SIB_EARG, "cache: %d layers, allowed are 1 to %d", n_layers, MAX_LAYERS);
    if (ctx < 1 || ctx > INT32_MAX - 2 * SIB_KV_PAGE)
        return sib_fail(err, SIB_EARG, "cache: context of %d positions", ctx);
    if (max_block < 1) return sib_fail(err, SIB_EARG, "cache: blocks of %d rows", max_block);
    for (int i = 0; i < n_layers; i++) SIB_TRY(check_layer(layers, n_layers, i, err));

    sib_kv_layout *l = calloc(1, sizeof *l);
    if (!l) return sib_nomem(err, "cache layout");
    l->owners = calloc((size_t)n_layers, sizeof *l->owners);
    l->owner_of = calloc((size_t)n_layers, sizeof *l->owner_of);
    l->classes = calloc((size_t)n_layers, sizeof *l->classes);
    if (!l->owners || !l->owner_of || !l->classes) {
        sib_kv_layout_free(l);
        return sib_nomem(err, "cache layout");
    }
    l->n_layers = n_layers;
    l->ctx = ctx;
    l->max_block = max_block < ctx ? max_block : ctx;
    int64_t table = 0;
    for (int i = 0; i < n_layers; i++) {
        if (layers[i].donor >= 0) continue;
        owner *o = &l->owners[l->n_owners];
        *o = (owner){layers[i].geom, 0, class_for(l, &layers[i].geom), pages_for(ctx), (int)table};
        if (layers[i].window > 0 && layers[i].window < ctx) {
            o->seen = layers[i].window + 2;
            int ring = pages_for((int64_t)o->seen - 1 + l->max_block) + 1;
            if (ring < o->n_pages) o->n_pages = ring;
        }
        table += o->n_pages;
        if (table > INT32_MAX) {
            sib_kv_layout_free(l);
            return sib_fail(err, SIB_ECAPACITY, "cache: %d layers of %d positions are too many", n_layers, ctx);
        }
        l->owner_of[i] = l->n_owners++;
    }
    for (int i = 0; i < n_layers; i++)
        if (layers[i].donor >= 0) l->owner_of[i] = l->owner_of[layers[i].donor];
    l->table_pages = (int)table;
    *out = l;
    return SIB_OK;
}

void sib_kv_layout_free(sib_kv_layout *l)
{
    if (!l) return;
    free(l->owners);
    free(l->owner_of);
    free(l->classes);
    free(l);
}

/* Pages of one owner: sequences of n_1 + n_2 + ... = positions need at most (positions + 63 k) / 64
 * pages in a full table, and never more than k whole tables. */
static int64_t owner_pages(const owner *o, const sib_kv_budget *b)
{
    int64_t all = (int64_t)o->n_pages * b->sequences;
    int64_t some = (b->positions + (int64_t)(SIB_KV_PAGE - 1) * b->sequences) / SIB_KV_PAGE;
    return some < all ? some : all;
}

static int64_t class_pages(const sib_kv_layout *l, int class_id, const sib_kv_budget *b)
{
    int64_t n = 0;
    for (int i = 0; i < l->n_owners; i++)
        if (l->owners[i].class_id == class_id) n += owner_pages(&l->owners[i], b);
    return n;
}

static bool budget_ok(const sib_kv_budget *b)
{
    return b->sequences >= 1 && b->sequences <= 1 << 20 && b->positions >= 1 && b->positions <= (int64_t)1 << 48;
}

size_t sib_kv_bytes(const sib_kv_layout *l, sib_device *d, const sib_kv_budget *b)
{
    uint64_t total = 0;
    if (!budget_ok(b)) return SIZE_MAX;
    for (int i = 0; i < l->n_classes; i++) {
        uint64_t pages = (uint64_t)class_pages(l, i, b), each = d->ops->kv_page_bytes(d, &l->classes[i]);
        if (each && (pages > MAX_BYTES / each || total + pages * each > MAX_BYTES)) return SIZE_MAX;
        total += pages * each;
    }
    return (size_t)total;
}

/* ---- pool ------------------------------------------------------------------------------- */

sib_status sib_kv_pool_new(sib_kv_pool **out, const sib_kv_layout *l, sib_device *d, const sib_kv_budget *b,
                           sib_err *err)
{
    *out = NULL;
    if (!budget_ok(b))
        return sib_fail(err, SIB_EARG, "cache: budget of %d sequences, %lld positions", b->sequences,
                        (long long)b->positions);
    if (sib_kv_bytes(l, d, b) == SIZE_MAX)
        return sib_fail(err, SIB_ECAPACITY, "cache: %d sequences of %lld positions are beyond any memory", b->sequences,
                        (long long)b->positions);
    sib_kv_pool *p = calloc(1, sizeof *p);
    if (!p) return sib_nomem(err, "cache pool");
    p->layout = l;
    p->device = d;
    sib_status s = SIB_ENOMEM;
    p->classes = calloc((size_t)l->n_classes, sizeof *p->classes);
    if (!p->classes) goto fail;
    for (int i = 0; i < l->n_classes; i++) {
        page_class *c = &p->classes[i];
        int64_t pages = class_pages(l, i, b);
        if (pages > INT32_MAX) {
            s = sib_fail(err, SIB_ECAPACITY, "cache: %lld pages of one shape", (long long)pages);
            goto fail;
        }
        c->free_list = calloc((size_t)pages, sizeof *c->free_list);
        c->refs = calloc((size_t)pages, sizeof *c->refs);
        if (!c->free_list || !c->refs) goto fail;
        c->page_bytes = d->ops->kv_page_bytes(d, &l->classes[i]);
        void *slab;
        s = d->ops->alloc(d, c->page_bytes * (size_t)pages, &slab, err);
        if (s != SIB_OK) {
            sib_within(err, s, "cache of %lld positions", (long long)b->positions);
            goto fail;
        }
        s = SIB_ENOMEM;
        c->slab = slab;
        c->slab_bytes = c->page_bytes * (size_t)pages;
        c->n_pages = c->n_free = (int32_t)pages;
        for (int32_t j = 0; j < c->n_pages; j++) c->free_list[j] = c->n_pages - 1 - j; /* lowest address first */
    }
    *out = p;
    return SIB_OK;
fail:
    sib_kv_pool_free(p);
    return s == SIB_ENOMEM ? sib_nomem(err, "cache pool") : s;
}

void sib_kv_pool_free(sib_kv_pool *p)
{
    if (!p) return;
    for (int i = 0; p->classes && i < p->layout->n_classes; i++) {
        page_class *c = &p->classes[i];
        assert(c->n_free == c->n_pages); /* sequences go first */
        if (c->slab) p->device->ops->release(p->device, c->slab, c->slab_bytes);
        free(c->free_list);
        free(c->refs);
    }
    free(p->classes);
    free(p);
}

int64_t sib_kv_pool_free_pages(const sib_kv_pool *p)
{
    int64_t n = 0;
    for (int i = 0; i < p->layout->n_classes; i++) n += p->classes[i].n_free;
    return n;
}

/* ---- tables ----------------------------------------------------------------------------- */

static void take(sib_kv_seq *s, page_class *c, int at, int32_t logical)
{
    assert(c->n_free > 0);
    int32_t id = c->free_list[--c->n_free];
    c->refs[id] = 1;
    s->id[at] = id;
    s->address[at] = c->slab + (size_t)id * c->page_bytes;
    s->logical[at] = logical;
}

static void drop(sib_kv_seq *s, page_class *c, int at)
{
    int32_t id = s->id[at];
    if (id == NO_PAGE) return;
    if (--c->refs[id] == 0) c->free_list[c->n_free++] = id;
    s->id[at] = NO_PAGE;
    s->address[at] = NULL;
    s->logical[at] = NO_PAGE;
}

/* Drops pages from .. to - 1 of every table, where they are still held. */
static void drop_pages(sib_kv_seq *s, int32_t from, int32_t to)
{
    const sib_kv_layout *l = s->pool->layout;
    for (int i = 0; i < l->n_owners; i++) {
        const owner *o = &l->owners[i];
        for (int32_t p = to - from < o->n_pages ? from : to - o->n_pages; p < to; p++) {
            int at = o->table + p % o->n_pages;
            if (s->logical[at] == p) drop(s, &s->pool->classes[o->class_id], at);
        }
    }
}

/* The first page that must be there at length `len`. */
static int32_t first_page(const owner *o, int32_t len)
{
    return o->seen > 0 && len >= o->seen ? (len - o->seen + 1) / SIB_KV_PAGE : 0;
}

static bool holds(const sib_kv_seq *s, int32_t len)
{
    const sib_kv_layout *l = s->pool->layout;
    if (len < 0 || len > s->length) return false;
    for (int i = 0; i < l->n_owners; i++) {
        const owner *o = &l->owners[i];
        for (int32_t p = first_page(o, len); p < pages_for(len); p++)
            if (s->logical[o->table + p % o->n_pages] != p) return false;
    }
    return true;
}

/* ---- sequences -------------------------------------------------------------------------- */

sib_status sib_kv_seq_new(sib_kv_seq **out, sib_kv_pool *p, sib_err *err)
{
    *out = NULL;
    size_t n = (size_t)p->layout->table_pages;
    sib_kv_seq *s = calloc(1, sizeof *s);
    if (!s) return sib_nomem(err, "sequence");
    s->pool = p;
    s->address = calloc(n, sizeof *s->address);
    s->id = malloc(n * sizeof *s->id);
    s->logical = malloc(n * sizeof *s->logical);
    if (!s->address || !s->id || !s->logical) {
        free(s->address);
        free(s->id);
        free(s->logical);
        free(s);
        return sib_nomem(err, "sequence");
    }
    for (size_t i = 0; i < n; i++) s->id[i] = s->logical[i] = NO_PAGE;
    *out = s;
    return SIB_OK;
}

void sib_kv_seq_free(sib_kv_seq *s)
{
    if (!s) return;
    const sib_kv_layout *l = s->pool->layout;
    for (int i = 0; i < l->n_owners; i++)
        for (int j = 0; j < l->owners[i].n_pages; j++)
            drop(s, &s->pool->classes[l->owners[i].class_id], l->owners[i].table + j);
    free(s->address);
    free(s->id);
    free(s->logical);
    free(s);
}

int32_t sib_kv_length(const sib_kv_seq *s)
{
    return s->length;
}

int sib_kv_pending(const sib_kv_seq *s)
{
    return s->pending;
}

/* What page `logical` of a table needs before rows from `length` on are written into it. */
typedef enum need { NOTHING, REUSE, FRESH, COPY } need;

static need need_of(const sib_kv_seq *s, const owner *o, int32_t logical)
{
    int at = o->table + logical % o->n_pages;
    int32_t id = s->id[at];
    if (id == NO_PAGE) return FRESH;
    bool shared = s->pool->classes[o->class_id].refs[id] > 1;
    if (s->logical[at] != logical) return shared ? FRESH : REUSE; /* its positions are out of every window */
    return shared ? COPY : NOTHING;
}

/* The class that lacks pages for n more rows, or -1. */
static int lacking_class(const sib_kv_seq *s, int n)
{
    const sib_kv_layout *l = s->pool->layout;
    for (int c = 0; c < l->n_classes; c++) {
        int64_t wanted = 0;
        for (int i = 0; i < l->n_owners; i++) {
            if (l->owners[i].class_id != c) continue;
            for (int32_t p = s->length / SIB_KV_PAGE; p < pages_for((int64_t)s->length + n); p++)
                wanted += need_of(s, &l->owners[i], p) >= FRESH;
        }
        if (wanted > s->pool->classes[c].n_free) return c;
    }
    return -1;
}

bool sib_kv_can_begin(const sib_kv_seq *s, int n)
{
    const sib_kv_layout *l = s->pool->layout;
    return !s->pending && n >= 1 && n <= l->max_block && n <= l->ctx - s->length && lacking_class(s, n) < 0;
}

static void make_ready(sib_kv_seq *s, const owner *o, int32_t logical)
{
    page_class *c = &s->pool->classes[o->class_id];
    int at = o->table + logical % o->n_pages;
    void *old = s->address[at];
    switch (need_of(s, o, logical)) {
    case NOTHING: break;
    case REUSE: s->logical[at] = logical; break;
    case FRESH:
        drop(s, c, at);
        take(s, c, at, logical);
        break;
    case COPY:
        drop(s, c, at); /* others hold it: its contents stay */
        take(s, c, at, logical);
        int64_t floats = (int64_t)(c->page_bytes / sizeof(float));
        s->pool->device->ops->copy_rows(s->pool->device, s->address[at], floats, old, floats, 1, (int)floats);
        break;
    }
}

sib_status sib_kv_begin(sib_kv_seq *s, int n, sib_err *err)
{
    const sib_kv_layout *l = s->pool->layout;
    if (s->pending) return sib_fail(err, SIB_ESTATE, "cache: a block of %d rows is pending", s->pending);
    if (n < 1 || n > l->max_block)
        return sib_fail(err, SIB_EARG, "cache: a block of %d rows, planned are 1 to %d", n, l->max_block);
    if (n > l->ctx - s->length)
        return sib_fail(err, SIB_ECAPACITY, "context full: %d positions and %d more, planned are %d", s->length, n,
                        l->ctx);
    int c = lacking_class(s, n);
    if (c >= 0)
        return sib_fail(err, SIB_ECAPACITY, "cache full: %d of %d pages are free for %d rows at position %d",
                        s->pool->classes[c].n_free, s->pool->classes[c].n_pages, n, s->length);
    for (int i = 0; i < l->n_owners; i++)
        for (int32_t p = s->length / SIB_KV_PAGE; p < pages_for((int64_t)s->length + n); p++)
            make_ready(s, &l->owners[i], p);
    s->pending = n;
    return SIB_OK;
}

void sib_kv_keep(sib_kv_seq *s, int n)
{
    assert(0 <= n && n <= s->pending);
    int32_t end = s->length + s->pending;
    s->length += n;
    s->pending = 0;
    drop_pages(s, pages_for(s->length), pages_for(end));
}

bool sib_kv_can_truncate(const sib_kv_seq *s, int32_t len)
{
    return !s->pending && holds(s, len);
}

sib_status sib_kv_truncate(sib_kv_seq *s, int32_t len, sib_err *err)
{
    if (s->pending) return sib_fail(err, SIB_ESTATE, "cache: a block of %d rows is pending", s->pending);
    if (!holds(s, len))
        return sib_fail(err, SIB_ESTATE, "cache: length %d cannot go back to %d, its window is gone", s->length, len);
    drop_pages(s, pages_for(len), pages_for(s->length));
    s->length = len;
    return SIB_OK;
}

int32_t sib_kv_reach(const sib_kv_seq *s)
{
    const sib_kv_layout *l = s->pool->layout;
    int32_t reach = 0;
    for (int i = 0; i < l->n_owners; i++) {
        const owner *o = &l->owners[i];
        int32_t p = pages_for(s->length); /* pages p and up are held */
        while (p > 0 && s->logical[o->table + (p - 1) % o->n_pages] == p - 1) p--;
        int32_t len = p > 0 ? p * SIB_KV_PAGE + o->seen - 1 : 0; /* the least one with first_page(len) >= p */
        if (len > reach) reach = len;
    }
    return reach;
}

sib_status sib_kv_fork(sib_kv_seq *s, const sib_kv_seq *from, int32_t len, sib_err *err)
{
    const sib_kv_layout *l = s->pool->layout;
    if (s->pool != from->pool || s->length || s->pending || from->pending)
        return sib_fail(err, SIB_ESTATE, "cache: only an empty sequence of the same pool can take over a prefix");
    if (!holds(from, len))
        return sib_fail(err, SIB_ESTATE, "cache: a sequence of length %d cannot give its first %d positions",
                        from->length, len);
    for (int i = 0; i < l->n_owners; i++) {
        const owner *o = &l->owners[i];
        for (int32_t p = first_page(o, len); p < pages_for(len); p++) {
            int at = o->table + p % o->n_pages;
            s->id[at] = from->id[at];
            s->address[at] = from->address[at];
            s->logical[at] = p;
            s->pool->classes[o->class_id].refs[s->id[at]]++;
        }
    }
    s->length = len;
    return SIB_OK;
}

sib_kv_view sib_kv_view_of(const sib_kv_seq *s, int layer)
{
    const sib_kv_layout *l = s->pool->layout;
    assert(0 <= layer && layer < l->n_layers);
    const owner *o = &l->owners[l->owner_of[layer]];
    return (sib_kv_view){s->address + o->table, o->n_pages};
}
