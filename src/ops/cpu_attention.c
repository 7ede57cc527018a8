/* ops/cpu_attention.c - kv_append, kv_read and attend of the CPU device: pages, tiles, threads.
 *
 * A unit is one span, one KV head and up to SIB_ATTN_MAX_Q of the queries that read that head
 * (rows x query heads of the group, rows first), so a K/V page is read once for all of them.
 * A row with picks (sparse attention) has units of its own. Its chunks are cut in its list, and their keys gathered
 * into pages of the thread's scratch, so that the same kernels see the chosen keys as neighbours.
 *
 * Units are worked on in one of two ways, which give the same bits because chunks are cut at
 * absolute positions and merged in ascending order either way:
 *
 *   many units    a thread takes a unit and merges its chunks as it goes (prefill, batches)
 *   few units     threads take single chunks; the partial results are then merged (decode: one row
 *                 with one KV head keeps all threads busy). The partial results live in a fixed
 *                 buffer; when a long context has more chunks than fit, it is done in waves. */
#include "ops/cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>

static_assert(SIB_KV_PAGE == SIB_ATTN_PAGE, "kernels/attention.h lays out pages of this size");

#define UNITS_PER_THREAD  4                  /* from here on whole units balance well enough */
#define SHARED_BYTES_MIN  ((size_t)8 << 20)  /* partial results */
#define SHARED_PER_THREAD ((size_t)1 << 20)  /* holds 2 chunks of UNITS_PER_THREAD units of the largest tiles */
#define ALONE_MULTIPLIES  ((int64_t)1 << 17) /* less work than this is not worth waking the pool */
#define STRIDE_MAX        (SIB_ATTN_MAX_V_DIM + 16)
#define PART_MAX          ((size_t)SIB_ATTN_MAX_Q * STRIDE_MAX)

typedef struct scratch { /* of one thread */
    float q[SIB_ATTN_MAX_Q * SIB_ATTN_MAX_K_DIM];
    float scores[SIB_ATTN_MAX_Q * SIB_ATTN_CHUNK];
    float part[PART_MAX], state[PART_MAX];
    int32_t lo[SIB_ATTN_MAX_Q], hi[SIB_ATTN_MAX_Q];
    float picked[SIB_ATTN_CHUNK * (SIB_ATTN_MAX_K_DIM + SIB_ATTN_MAX_V_DIM)]; /* pages of one head */
} scratch;

typedef struct unit {
    const sib_span *span;
    int kv_head;
    int first, n_q;   /* queries of the span and KV head: row first / group, head first % group, ... */
    int32_t from, to; /* union of the visible ranges */
    int chunk0, n_chunks;
    const int32_t *picks; /* NULL: dense; else from, to and chunks count along this list */
} unit;

typedef struct attend_job {
    sib_cpu *c;
    const sib_attend *a;
    const float *q;
    float *out;
    scratch *scratch; /* [threads] */
    float *parts;     /* few units: [n_units][wave][max_q][stride] */
    float *states;    /* few units: [n_units][max_q][stride] */
    int f32, group, n_units, max_q, stride;
    int wave, n_waves; /* chunks of a unit in a wave; 0: whole units */
    atomic_int next;
} attend_job;

static size_t shared_bytes(const sib_cpu *c)
{
    size_t n = SHARED_PER_THREAD * (size_t)c->threads;
    return n > SHARED_BYTES_MIN ? n : SHARED_BYTES_MIN;
}

sib_status sib_cpu_attention_init(sib_cpu *c, sib_err *err)
{
    return sib_cpu_block_grow(&c->attention, shared_bytes(c) + sizeof(scratch) * (size_t)c->threads,
                              "attention scratch", err);
}

static void check_geom(const sib_kv_geom *g)
{
    assert(g->n_kv_heads > 0 && g->k_dim > 0 && g->k_dim % 8 == 0 && g->k_dim <= SIB_ATTN_MAX_K_DIM);
    assert(g->v_dim >= 0 && g->v_dim % 8 == 0 && g->v_dim <= SIB_ATTN_MAX_V_DIM);
    (void)g;
}

static bool stores_f32(const sib_device *d)
{
    return d->numerics == SIB_NUM_F32;
}

static void *head_of(const sib_kv_view *kv, int32_t pos, size_t head_bytes, int kv_head)
{
    char *page = kv->pages[pos / SIB_KV_PAGE % kv->n_pages];
    return page + head_bytes * (size_t)kv_head;
}

/* ---- pages ------------------------------------------------------------------------------ */

static size_t kv_page_bytes(sib_device *d, const sib_kv_geom *g)
{
    check_geom(g);
    return sib_attn_head_bytes(stores_f32(d), g->k_dim, g->v_dim) * (size_t)g->n_kv_heads;
}

typedef struct append_job {
    const sib_kv_geom *g;
    const sib_span *span;
    const float *k, *v;
    bool f32;
} append_job;

/* Heads outside, rows inside: neighbouring positions share cache lines and stay on one thread. */
static void append_part(void *ctx, int tid, int n_threads)
{
    const append_job *j = ctx;
    const sib_kv_geom *g = j->g;
    const sib_span *s = j->span;
    size_t head_bytes = sib_attn_head_bytes(j->f32, g->k_dim, g->v_dim);
    int64_t begin, end;
    sib_split((int64_t)g->n_kv_heads * s->n_rows, 1, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int head = (int)(i / s->n_rows), r = (int)(i % s->n_rows);
        size_t at = (size_t)(s->row0 + r) * (size_t)g->n_kv_heads + (size_t)head;
        int32_t pos = s->pos0 + r;
        sib_attn_store(j->f32, head_of(&s->kv, pos, head_bytes, head), g->k_dim, g->v_dim, pos % SIB_KV_PAGE,
                       j->k + at * (size_t)g->k_dim, j->v + at * (size_t)g->v_dim);
    }
}

static void kv_append(sib_device *d, const sib_kv_geom *g, const sib_span *spans, int n_spans, const float *k,
                      const float *v)
{
    check_geom(g);
    sib_cpu *c = sib_cpu_of(d);
    for (int i = 0; i < n_spans; i++) {
        append_job j = {g, &spans[i], k, v, stores_f32(d)};
        int64_t values = (int64_t)spans[i].n_rows * g->n_kv_heads * (g->k_dim + g->v_dim);
        sib_pool_run(values < ALONE_MULTIPLIES / 8 ? NULL : c->pool, append_part, &j);
    }
}

static void kv_read(sib_device *d, const sib_kv_geom *g, const sib_kv_view *kv, int32_t first, int n, float *k,
                    float *v)
{
    check_geom(g);
    bool f32 = stores_f32(d);
    size_t head_bytes = sib_attn_head_bytes(f32, g->k_dim, g->v_dim);
    for (int head = 0; head < g->n_kv_heads; head++)
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)head * (size_t)n + (size_t)i;
            sib_attn_load(f32, head_of(kv, first + i, head_bytes, head), g->k_dim, g->v_dim, (first + i) % SIB_KV_PAGE,
                          k ? k + at * (size_t)g->k_dim : NULL, v ? v + at * (size_t)g->v_dim : NULL);
        }
}

/* ---- attention -------------------------------------------------------------------------- */

/* The span's first rows, which see all their keys. */
static int dense_rows(const attend_job *j, const sib_span *s)
{
    int n = j->a->picks ? j->a->n_picks - s->pos0 : s->n_rows;
    return n < 0 ? 0 : n < s->n_rows ? n : s->n_rows;
}

static int tiles_for(const attend_job *j, int rows)
{
    return (rows * j->group + SIB_ATTN_MAX_Q - 1) / SIB_ATTN_MAX_Q;
}

static int tiles_of(const attend_job *j, const sib_span *s)
{
    int dense = dense_rows(j, s);
    return tiles_for(j, dense) + (s->n_rows - dense) * tiles_for(j, 1);
}

static unit unit_at(const attend_job *j, int index)
{
    const sib_attend *a = j->a;
    const sib_span *s = a->spans;
    while (index >= tiles_of(j, s) * a->geom.n_kv_heads) index -= tiles_of(j, s++) * a->geom.n_kv_heads;
    int tiles = tiles_of(j, s), dense = dense_rows(j, s), tile = index % tiles, left;
    unit u = {.span = s, .kv_head = index / tiles, .first = tile * SIB_ATTN_MAX_Q};
    left = dense * j->group - u.first;
    if (left <= 0) {
        int each = tiles_for(j, 1), row = dense + (tile - tiles_for(j, dense)) / each, at = (tile - tiles_for(j, dense)) % each * SIB_ATTN_MAX_Q;
        u.picks = a->picks + (size_t)(s->row0 + row) * (size_t)a->n_picks;
        u.first = row * j->group + at;
        u.to = a->n_picks;
        u.n_chunks = (u.to - 1) / SIB_ATTN_CHUNK + 1;
        left = j->group - at;
    }
    u.n_q = left < SIB_ATTN_MAX_Q ? left : SIB_ATTN_MAX_Q;
    if (u.picks) return u;
    u.from = INT32_MAX;
    for (int r = u.first / j->group; r <= (u.first + u.n_q - 1) / j->group; r++) {
        int32_t lo = a->lo[s->row0 + r], hi = a->hi[s->row0 + r];
        assert(0 <= lo && lo < hi);
        if (lo < u.from) u.from = lo;
        if (hi > u.to) u.to = hi;
    }
    assert((u.to - 1) / SIB_KV_PAGE - u.from / SIB_KV_PAGE < s->kv.n_pages);
    u.chunk0 = u.from / SIB_ATTN_CHUNK;
    u.n_chunks = (u.to - 1) / SIB_ATTN_CHUNK + 1 - u.chunk0;
    return u;
}

/* Row and query head of the unit's i-th query, as an index into [rows][n_heads]. */
static size_t query_at(const attend_job *j, const unit *u, int i)
{
    int row = u->span->row0 + (u->first + i) / j->group;
    int head = u->kv_head * j->group + (u->first + i) % j->group;
    return (size_t)row * (size_t)j->a->n_heads + (size_t)head;
}

static sib_attn_tile load_tile(const attend_job *j, const unit *u, scratch *s)
{
    int k_dim = j->a->geom.k_dim;
    for (int i = 0; i < u->n_q; i++) {
        int row = u->span->row0 + (u->first + i) / j->group;
        s->lo[i] = u->picks ? 0 : j->a->lo[row];
        s->hi[i] = u->picks ? u->to : j->a->hi[row];
        j->c->k.attention.pack_query[j->f32](s->q + i * k_dim, j->q + query_at(j, u, i) * (size_t)k_dim, k_dim);
    }
    return (sib_attn_tile){u->n_q, k_dim, j->a->geom.v_dim, j->a->scale, s->q, s->lo, s->hi};
}

/* The chunk of the unit's list as pages in `picked`. */
static void gather(const attend_job *j, const unit *u, size_t head_bytes, int chunk, const void **heads, void *picked)
{
    int32_t first = chunk * SIB_ATTN_CHUNK, n = u->to - first < SIB_ATTN_CHUNK ? u->to - first : SIB_ATTN_CHUNK;
    for (int32_t i = 0; i < n; i++) {
        char *page = (char *)picked + head_bytes * (size_t)(i / SIB_KV_PAGE);
        int32_t pos = u->picks[first + i];
        heads[i / SIB_KV_PAGE] = page;
        sib_attn_copy(j->f32, page, i % SIB_KV_PAGE, head_of(&u->span->kv, pos, head_bytes, u->kv_head), pos % SIB_KV_PAGE,
                      j->a->geom.k_dim, j->a->geom.v_dim);
    }
}

static void run_chunk(const attend_job *j, const unit *u, const sib_attn_tile *t, int chunk, scratch *s, float *part)
{
    size_t head_bytes = sib_attn_head_bytes(j->f32, t->k_dim, t->v_dim);
    const void *heads[SIB_ATTN_CHUNK_PAGES] = {0};
    int32_t first = chunk * SIB_ATTN_CHUNK;
    if (u->picks) gather(j, u, head_bytes, chunk, heads, s->picked);
    for (int i = 0; i < SIB_ATTN_CHUNK_PAGES && !u->picks; i++) {
        int32_t pos = first + i * SIB_KV_PAGE; /* the page's first; the ring may hold only the pages in use */
        if (pos < u->to && pos + SIB_KV_PAGE > u->from) heads[i] = head_of(&u->span->kv, pos, head_bytes, u->kv_head);
    }
    j->c->k.attention.chunk[j->f32](t, first, heads, s->scores, part);
}

static void clear_state(float *state, int v_dim)
{
    state[sib_attn_v_pad(v_dim)] = -INFINITY;
    state[sib_attn_v_pad(v_dim) + 1] = 0.0f;
}

static void whole_units(attend_job *j, scratch *s)
{
    const sib_attention_kernels *k = &j->c->k.attention;
    int v_dim = j->a->geom.v_dim;
    /* From the last unit on: in a causal prefill the last rows have the most keys. */
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->n_units;) {
        unit u = unit_at(j, j->n_units - 1 - i);
        sib_attn_tile t = load_tile(j, &u, s);
        for (int q = 0; q < u.n_q; q++) clear_state(s->state + q * j->stride, v_dim);
        for (int c = 0; c < u.n_chunks; c++) {
            run_chunk(j, &u, &t, u.chunk0 + c, s, s->part);
            for (int q = 0; q < u.n_q; q++) k->merge(s->state + q * j->stride, s->part + q * j->stride, v_dim);
        }
        for (int q = 0; q < u.n_q; q++)
            k->finish(j->out + query_at(j, &u, q) * (size_t)v_dim, s->state + q * j->stride, v_dim);
    }
}

/* Chunks wave * w .. of every unit into j->parts. */
static void wave_chunks(attend_job *j, scratch *s, int w)
{
    unit u = {0};
    sib_attn_tile t = {0};
    for (int i, loaded = -1; (i = atomic_fetch_add(&j->next, 1)) < j->n_units * j->wave;) {
        int index = i / j->wave, c = w * j->wave + i % j->wave;
        if (index != loaded) {
            u = unit_at(j, index);
            t = load_tile(j, &u, s);
            loaded = index;
        }
        if (c < u.n_chunks)
            run_chunk(j, &u, &t, u.chunk0 + c, s, j->parts + (size_t)i * (size_t)(j->max_q * j->stride));
    }
}

static void wave_merge(attend_job *j, int w, int tid, int n_threads)
{
    const sib_attention_kernels *k = &j->c->k.attention;
    int v_dim = j->a->geom.v_dim;
    int64_t begin, end;
    sib_split((int64_t)j->n_units * j->max_q, 1, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int index = (int)(i / j->max_q), q = (int)(i % j->max_q);
        unit u = unit_at(j, index);
        if (q >= u.n_q) continue;
        float *state = j->states + (size_t)i * (size_t)j->stride;
        if (w == 0) clear_state(state, v_dim);
        for (int c = 0; c < j->wave && w * j->wave + c < u.n_chunks; c++)
            k->merge(state,
                     j->parts + ((size_t)(index * j->wave + c) * (size_t)j->max_q + (size_t)q) * (size_t)j->stride,
                     v_dim);
        if (w == j->n_waves - 1) k->finish(j->out + query_at(j, &u, q) * (size_t)v_dim, state, v_dim);
    }
}

static void attend_part(void *ctx, int tid, int n_threads)
{
    attend_job *j = ctx;
    scratch *s = &j->scratch[tid];
    if (!j->wave) {
        whole_units(j, s);
        return;
    }
    for (int w = 0; w < j->n_waves; w++) {
        wave_chunks(j, s, w);
        sib_pool_barrier(j->c->pool);
        if (tid == 0) atomic_store(&j->next, 0);
        wave_merge(j, w, tid, n_threads);
        sib_pool_barrier(j->c->pool);
    }
}

static void attend(sib_device *d, float *out, const float *q, const sib_attend *a)
{
    check_geom(&a->geom);
    assert(a->geom.v_dim > 0 && a->n_heads > 0 && a->n_heads % a->geom.n_kv_heads == 0);
    sib_cpu *c = sib_cpu_of(d);
    attend_job j = {
        .c = c,
        .a = a,
        .q = q,
        .out = out,
        .f32 = stores_f32(d),
        .group = a->n_heads / a->geom.n_kv_heads,
        .stride = sib_attn_part_stride(a->geom.v_dim),
        .states = c->attention.p,
        .scratch = (scratch *)(void *)((char *)c->attention.p + shared_bytes(c)),
    };
    for (int i = 0; i < a->n_spans; i++) j.n_units += tiles_of(&j, &a->spans[i]) * a->geom.n_kv_heads;
    int64_t keys = 0;
    for (int i = 0; i < a->n_rows; i++) keys += a->picks && a->hi[i] > a->n_picks ? a->n_picks : a->hi[i] - a->lo[i];
    if (c->threads == 1 || keys * a->n_heads * (a->geom.k_dim + a->geom.v_dim) < ALONE_MULTIPLIES) {
        sib_pool_run(NULL, attend_part, &j);
        return;
    }
    if (j.n_units < UNITS_PER_THREAD * c->threads) {
        int most = 0;
        for (int i = 0; i < j.n_units; i++) {
            unit u = unit_at(&j, i);
            if (u.n_q > j.max_q) j.max_q = u.n_q;
            if (u.n_chunks > most) most = u.n_chunks;
        }
        size_t each = (size_t)j.n_units * (size_t)(j.max_q * j.stride); /* floats of one chunk of every unit */
        size_t fit = shared_bytes(c) / sizeof(float) / each - 1;        /* less the states */
        j.parts = j.states + each;
        j.wave = fit < (size_t)most ? (int)fit : most;
        j.n_waves = (most + j.wave - 1) / j.wave;
    }
    sib_pool_run(c->pool, attend_part, &j);
}

void sib_cpu_attention_ops(sib_ops *ops)
{
    ops->kv_append = kv_append;
    ops->attend = attend;
    ops->kv_page_bytes = kv_page_bytes;
    ops->kv_read = kv_read;
}
