/* ops/cpu_matmul.c - linear, linear_glu, embed and moe of the CPU device, and its packed matrices.
 *
 * A call goes in slabs of at most SIB_ROWS_MAX rows: the rows are prepared once (rounded or quantized,
 * kernels/matmul.h), then the threads take contiguous runs of output blocks. Only output rows are split,
 * and a kernel's order over k does not depend on the number of rows, so results depend on
 * neither threads nor slabs.
 *
 *   mode   Q4, Q8          plain BF16      plain F16, F32
 *   f32    f32 rows        f32 rows        f32 rows
 *   bf16   bf16 rows       bf16 rows       f32 rows rounded to bf16
 *   int8   int8 rows       bf16 rows       f32 rows rounded to bf16
 *
 * Levels without a bf16 kernel use f32 rows rounded to bf16 in its place: the products are exact
 * in float32. All scratch is sized when a matrix is packed. */
#include "ops/cpu_internal.h"

#include "base/arena.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX    4096             /* (row, expert) pairs of a slab of moe */
#define GRAIN_BYTES  ((int64_t)65536) /* weights that make a thread worth waking, at one row */
#define MIX_FLOATS   ((int64_t)131072) /* of one thread: `up` of linear_glu, outputs of experts before they are added */
#define N_WAYS       4                /* preps, and F32 rounded as the last */

struct sib_matrix {
    sib_packed view; /* of expert 0 */
    int n_experts;
    size_t expert_bytes;
    unsigned char *tiles;
    size_t bytes;
};

typedef struct sib_cpu_matmul {
    sib_cpu_block records[N_WAYS]; /* prepared rows */
    sib_cpu_block hidden;          /* moe: [pairs][ffn] */
    sib_cpu_block panels;          /* SIB_PANEL_BYTES a thread */
    sib_cpu_block mixes;           /* MIX_FLOATS a thread */
    const void *row[N_WAYS][PAIRS_MAX]; /* where records begin */
    int32_t pair[PAIRS_MAX];            /* moe: row * top_k + j, sorted by expert */
    int32_t place[PAIRS_MAX];           /* the inverse of pair */
    sib_cpu_block first;                /* moe: int32 [n_experts + 1], where an expert's pairs begin */
} sib_cpu_matmul;

/* A way to prepare rows. */
enum { WAY_ROUNDED = SIB_N_PREPS };

static int way_for(const sib_cpu *c, const sib_packed *w)
{
    if (c->base.numerics == SIB_NUM_F32) return SIB_PREP_F32;
    if (c->base.numerics == SIB_NUM_INT8 && w->packing <= SIB_PACK_Q8) return SIB_PREP_INT8;
    return c->k.matmul.run[SIB_PREP_BF16][w->packing] ? SIB_PREP_BF16 : WAY_ROUNDED;
}

static sib_prep prep_of(int way)
{
    return way == WAY_ROUNDED ? SIB_PREP_F32 : (sib_prep)way;
}

static sib_matmul_fn kernel_for(const sib_cpu *c, const sib_packed *w, int way)
{
    return c->k.matmul.run[prep_of(way)][w->packing];
}

const sib_packed *sib_cpu_matrix_view(const sib_matrix *m)
{
    return &m->view;
}

static sib_packed expert_view(const sib_matrix *m, int e)
{
    sib_packed v = m->view;
    v.tiles += (size_t)e * m->expert_bytes;
    return v;
}

/* ---- matrices --------------------------------------------------------------------------- */

static sib_status check_source(const sib_matrix_src *s, sib_err *err)
{
    if (s->out < 1 || s->in < 1 || s->n_experts < 1 || s->out > INT32_MAX || s->in > INT32_MAX)
        return sib_fail(err, SIB_EFORMAT, "%s: shape [%d][%lld][%lld] is not a matrix", s->name, s->n_experts,
                        (long long)s->out, (long long)s->in);
    if (s->dtype != SIB_BF16 && s->dtype != SIB_F16 && s->dtype != SIB_F32)
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: dtype %s, this build multiplies BF16, F16 and F32", s->name,
                        sib_dtype_name(s->dtype));
    if (s->storage == SIB_PLAIN) return SIB_OK;
    if (s->bits < 2 || s->bits > 8 || s->bits == 7 || (s->group != 32 && s->group != 64 && s->group != 128))
        return sib_fail(err, SIB_EUNSUPPORTED, "%s: affine with %d bits in groups of %d", s->name, s->bits, s->group);
    if (s->in % s->group != 0)
        return sib_fail(err, SIB_EFORMAT, "%s: %lld columns are not whole groups of %d", s->name, (long long)s->in,
                        s->group);
    return SIB_OK;
}

/* Bytes of all experts; 0 when they do not fit the address space. */
static size_t packed_total(const sib_packed *p, int n_experts)
{
    size_t n = p->tile_bytes;
    if (__builtin_mul_overflow(n, (size_t)p->chunks, &n) || __builtin_mul_overflow(n, (size_t)p->blocks, &n) ||
        __builtin_mul_overflow(n, (size_t)n_experts, &n) || n > SIZE_MAX / 4)
        return 0;
    return n;
}

static size_t matrix_bytes(sib_device *d, const sib_matrix_src *src)
{
    (void)d;
    sib_packed p;
    if (check_source(src, NULL) != SIB_OK) return 0;
    sib_packed_plan(&p, src);
    return packed_total(&p, src->n_experts);
}

static sib_status grow_scratch(sib_cpu *c, const sib_matrix *m, sib_err *err)
{
    sib_cpu_matmul *s = c->matmul;
    size_t rows = m->n_experts > 1 ? PAIRS_MAX : SIB_ROWS_MAX;
    int way = way_for(c, &m->view);
    SIB_TRY(sib_cpu_block_grow(&s->records[way], rows * sib_prep_bytes(prep_of(way), m->view.in), "activations", err));
    if (m->n_experts == 1) return SIB_OK;
    SIB_TRY(sib_cpu_block_grow(&s->first, ((size_t)m->n_experts + 1) * sizeof(int32_t), "experts", err));
    return sib_cpu_block_grow(&s->hidden, PAIRS_MAX * (size_t)m->view.in * sizeof(float), "expert activations", err);
}

typedef struct pack_job {
    sib_matrix *m;
    const sib_matrix_src *src;
} pack_job;

static void pack_part(void *ctx, int tid, int n_threads)
{
    pack_job *j = ctx;
    int64_t begin, end, blocks = j->m->view.blocks;
    sib_split(blocks * j->m->n_experts, 1, tid, n_threads, &begin, &end);
    while (begin < end) {
        int e = (int)(begin / blocks);
        int64_t b0 = begin % blocks, b1 = end - begin < blocks - b0 ? b0 + end - begin : blocks;
        sib_pack_blocks(&j->m->view, j->m->tiles + (size_t)e * j->m->expert_bytes, j->src, e, b0, b1);
        begin += b1 - b0;
    }
}

static void matrix_free(sib_device *d, sib_matrix *m)
{
    (void)d;
    if (!m) return;
    sib_aligned_free(m->tiles, m->bytes);
    free(m);
}

static sib_status matrix_new(sib_device *d, sib_matrix **out, const sib_matrix_src *src, sib_err *err)
{
    sib_cpu *c = sib_cpu_of(d);
    *out = NULL;
    SIB_TRY(check_source(src, err));
    sib_matrix *m = calloc(1, sizeof *m);
    if (!m) return sib_nomem(err, src->name);
    sib_packed_plan(&m->view, src);
    m->n_experts = src->n_experts;
    m->bytes = packed_total(&m->view, m->n_experts);
    m->expert_bytes = m->bytes / (size_t)m->n_experts;
    m->tiles = m->bytes ? sib_aligned_alloc(m->bytes) : NULL;
    if (!m->tiles) {
        matrix_free(d, m);
        return sib_fail(err, SIB_ENOMEM, "out of memory: %s", src->name);
    }
    m->view.tiles = m->tiles;
    sib_status s = grow_scratch(c, m, err);
    if (s != SIB_OK) {
        matrix_free(d, m);
        return sib_within(err, s, "%s", src->name);
    }
    sib_pool_run(c->pool, pack_part, &(pack_job){m, src});
    *out = m;
    return SIB_OK;
}

/* ---- preparing rows --------------------------------------------------------------------- */

typedef struct prepare_job {
    sib_cpu *c;
    int way;
    const float *x;
    int64_t stride, in;
    int rows;
} prepare_job;

static void prepare_part(void *ctx, int tid, int n_threads)
{
    prepare_job *j = ctx;
    sib_cpu_matmul *s = j->c->matmul;
    int64_t begin, end;
    size_t each = sib_prep_bytes(prep_of(j->way), j->in);
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        char *record = (char *)s->records[j->way].p + (size_t)r * each;
        j->c->k.matmul.prepare[prep_of(j->way)](record, j->x + r * j->stride, j->in, j->way == WAY_ROUNDED);
        s->row[j->way][r] = record;
    }
}

/* Rows of `in` values, `stride` apart, into records[way]; few of them faster alone than by waking threads. */
static void prepare(sib_cpu *c, int way, const float *x, int64_t stride, int64_t in, int rows)
{
    prepare_job j = {c, way, x, stride, in, rows};
    assert(sib_prep_bytes(prep_of(way), in) * (size_t)rows <= c->matmul->records[way].bytes);
    sib_pool_run(rows * in < 16384 ? NULL : c->pool, prepare_part, &j);
}

/* ---- work split ------------------------------------------------------------------------- */

/* The units [*u0, *u1) of an item of `units` equal units that fall to [lo, hi) of a list in which the item
 * begins at `at`; a unit costs `cost`. Every unit of the list falls to exactly one range. */
static void share(int64_t lo, int64_t hi, int64_t at, int64_t cost, int64_t units, int64_t *u0, int64_t *u1)
{
    int64_t a = lo <= at ? 0 : (lo - at + cost - 1) / cost, b = hi <= at ? 0 : (hi - at + cost - 1) / cost;
    *u0 = a < units ? a : units;
    *u1 = b < units ? b : units;
}

/* How many threads a job of `bytes` of weights at `rows` rows is worth. */
static int threads_for(const sib_cpu *c, int64_t bytes, int64_t rows)
{
    int64_t n = bytes / GRAIN_BYTES * rows;
    return n < 1 ? 1 : n < c->threads ? (int)n : c->threads;
}

static void range_of(int64_t total, int tid, int n, int64_t *lo, int64_t *hi)
{
    *lo = tid < n ? total / n * tid + total % n * tid / n : total;
    *hi = tid + 1 < n ? total / n * (tid + 1) + total % n * (tid + 1) / n : total;
}

static float *mix_of(const sib_cpu *c, int tid)
{
    return (float *)c->matmul->mixes.p + tid * MIX_FLOATS;
}

static void *panel_of(const sib_cpu *c, int tid)
{
    return (char *)c->matmul->panels.p + (size_t)tid * SIB_PANEL_BYTES;
}

static int64_t block_bytes(const sib_packed *w)
{
    return w->chunks * (int64_t)w->tile_bytes;
}

/* ---- linear ----------------------------------------------------------------------------- */

typedef struct linear_job {
    sib_cpu *c;
    int n;
    float *const *y;
    const sib_matrix *const *w;
    int row0, rows;
    int64_t total;
    int threads;
} linear_job;

static void linear_part(void *ctx, int tid, int n_threads)
{
    linear_job *j = ctx;
    (void)n_threads;
    int64_t lo, hi, at = 0;
    range_of(j->total, tid, j->threads, &lo, &hi);
    for (int i = 0; i < j->n; i++) {
        const sib_packed *w = &j->w[i]->view;
        int64_t b0, b1, cost = block_bytes(w);
        share(lo, hi, at, cost, w->blocks, &b0, &b1);
        at += cost * w->blocks;
        if (b0 >= b1) continue;
        int way = way_for(j->c, w);
        sib_rows x = {j->c->matmul->row[way], j->rows};
        kernel_for(j->c, w, way)(j->y[i] + j->row0 * w->out + b0 * SIB_BLOCK, w->out, w, b0, b1, &x, panel_of(j->c, tid));
    }
}

static void linear(sib_device *d, int n, float *const *y, const sib_matrix *const *w, const float *x, int rows)
{
    sib_cpu *c = sib_cpu_of(d);
    int64_t in = w[0]->view.in, total = 0;
    bool need[N_WAYS] = {false};
    for (int i = 0; i < n; i++) {
        assert(w[i]->view.in == in && w[i]->n_experts == 1);
        total += block_bytes(&w[i]->view) * w[i]->view.blocks;
        need[way_for(c, &w[i]->view)] = true;
    }
    for (int r0 = 0; r0 < rows; r0 += SIB_ROWS_MAX) {
        int slab = rows - r0 < SIB_ROWS_MAX ? rows - r0 : SIB_ROWS_MAX;
        for (int way = 0; way < N_WAYS; way++)
            if (need[way]) prepare(c, way, x + r0 * in, in, in, slab);
        linear_job j = {c, n, y, w, r0, slab, total, threads_for(c, total, slab)};
        sib_pool_run(j.threads > 1 ? c->pool : NULL, linear_part, &j);
    }
}

/* ---- one matrix for each head ----------------------------------------------------------- */

typedef struct heads_job {
    sib_cpu *c;
    float *y;
    int64_t y_stride;
    const sib_matrix *w;
    int rows;
} heads_job;

/* Parts are blocks of outputs, counted through all heads. */
static void heads_part(void *ctx, int tid, int n_threads)
{
    heads_job *j = ctx;
    sib_cpu_matmul *s = j->c->matmul;
    int heads = j->w->n_experts, way = way_for(j->c, &j->w->view);
    int64_t begin, end, blocks = j->w->view.blocks;
    sib_split(blocks * heads, 1, tid, n_threads, &begin, &end);
    while (begin < end) {
        int h = (int)(begin / blocks);
        int64_t b0 = begin % blocks, b1 = end - begin < blocks - b0 ? b0 + end - begin : blocks;
        const void *row[SIB_ROWS_MAX];
        for (int r = 0; r < j->rows; r++) row[r] = s->row[way][r * heads + h];
        sib_packed w = expert_view(j->w, h);
        kernel_for(j->c, &w, way)(j->y + h * j->y_stride + b0 * SIB_BLOCK, heads * j->y_stride, &w, b0, b1,
                                  &(sib_rows){row, j->rows}, panel_of(j->c, tid));
        begin += b1 - b0;
    }
}

static void linear_heads(sib_device *d, float *y, int64_t y_stride, const sib_matrix *w, const float *x, int64_t x_stride, int rows)
{
    sib_cpu *c = sib_cpu_of(d);
    int heads = w->n_experts, most = PAIRS_MAX / heads < SIB_ROWS_MAX ? PAIRS_MAX / heads : SIB_ROWS_MAX;
    assert(most > 0);
    for (int r0 = 0; r0 < rows; r0 += most) {
        int slab = rows - r0 < most ? rows - r0 : most;
        prepare(c, way_for(c, &w->view), x + (int64_t)r0 * heads * x_stride, x_stride, w->view.in, slab * heads);
        heads_job j = {c, y + (int64_t)r0 * heads * y_stride, y_stride, w, slab};
        sib_pool_run(threads_for(c, (int64_t)w->bytes, slab) > 1 ? c->pool : NULL, heads_part, &j);
    }
}

/* ---- gate and up ------------------------------------------------------------------------ */

/* act(gate) * up of blocks b0..b1-1 for the rows that the two pointers name, into y. The two matrices are read
 * in runs of some blocks, long enough to stream and short enough for `up` to wait in a cache. */
static void glu_blocks(sib_cpu *c, int tid, float *y, const sib_packed *gate, const sib_packed *up, sib_act act, int64_t b0,
                       int64_t b1, const sib_rows *xg, const sib_rows *xu)
{
    float *u = mix_of(c, tid);
    sib_matmul_fn run_gate = kernel_for(c, gate, way_for(c, gate)), run_up = kernel_for(c, up, way_for(c, up));
    int64_t run = MIX_FLOATS / (SIB_BLOCK * (int64_t)xg->n);
    if (run > 16) run = 16;
    for (int64_t b = b0; b < b1; b += run) {
        int64_t e = b + run < b1 ? b + run : b1;
        int64_t wide = (e * SIB_BLOCK < gate->out ? e * SIB_BLOCK : gate->out) - b * SIB_BLOCK;
        float *yb = y + (b - b0) * SIB_BLOCK;
        run_gate(yb, gate->out, gate, b, e, xg, panel_of(c, tid));
        run_up(u, wide, up, b, e, xu, panel_of(c, tid));
        for (int r = 0; r < xg->n; r++)
            c->k.vector.act_mul(yb + r * gate->out, yb + r * gate->out, u + r * wide, wide, (int)act);
    }
}

typedef struct glu_job {
    sib_cpu *c;
    float *y;
    const sib_packed *gate, *up;
    sib_act act;
    int rows, threads;
} glu_job;

static void glu_part(void *ctx, int tid, int n_threads)
{
    glu_job *j = ctx;
    sib_cpu_matmul *s = j->c->matmul;
    (void)n_threads;
    int64_t b0, b1;
    range_of(j->gate->blocks, tid, j->threads, &b0, &b1);
    sib_rows xg = {s->row[way_for(j->c, j->gate)], j->rows}, xu = {s->row[way_for(j->c, j->up)], j->rows};
    if (b0 < b1) glu_blocks(j->c, tid, j->y + b0 * SIB_BLOCK, j->gate, j->up, j->act, b0, b1, &xg, &xu);
}

static void linear_glu(sib_device *d, float *y, const sib_matrix *gate, const sib_matrix *up, sib_act act, const float *x,
                       int rows)
{
    sib_cpu *c = sib_cpu_of(d);
    const sib_packed *g = &gate->view, *u = &up->view;
    assert(g->in == u->in && g->out == u->out);
    int way_g = way_for(c, g), way_u = way_for(c, u);
    int64_t total = (block_bytes(g) + block_bytes(u)) * g->blocks;
    for (int r0 = 0; r0 < rows; r0 += SIB_ROWS_MAX) {
        int slab = rows - r0 < SIB_ROWS_MAX ? rows - r0 : SIB_ROWS_MAX;
        prepare(c, way_g, x + r0 * g->in, g->in, g->in, slab);
        if (way_u != way_g) prepare(c, way_u, x + r0 * g->in, g->in, g->in, slab);
        glu_job j = {c, y + r0 * g->out, g, u, act, slab, threads_for(c, total, slab)};
        sib_pool_run(j.threads > 1 ? c->pool : NULL, glu_part, &j);
    }
}

/* ---- embedding rows --------------------------------------------------------------------- */

typedef struct embed_job {
    float *y;
    const sib_packed *table;
    const int32_t *ids;
    int rows;
    float scale;
    int64_t first, n;
} embed_job;

static void embed_part(void *ctx, int tid, int n_threads)
{
    embed_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *y = j->y + r * j->n;
        sib_packed_row(y, j->table, j->ids[r], j->first, j->n);
        for (int64_t i = 0; i < j->n; i++) y[i] *= j->scale;
    }
}

static void embed(sib_device *d, float *y, const sib_matrix *table, const int32_t *ids, int rows, float scale, int64_t first,
                  int64_t n)
{
    sib_cpu *c = sib_cpu_of(d);
    embed_job j = {y, &table->view, ids, rows, scale, n > 0 ? first : 0, n > 0 ? n : table->view.in};
    assert(table->n_experts == 1 && j.first + j.n <= table->view.in);
    sib_pool_run(rows * j.n < 16384 ? NULL : c->pool, embed_part, &j);
}

/* ---- experts ---------------------------------------------------------------------------- */

typedef struct moe_job {
    sib_cpu *c;
    const sib_moe *m;
    float *y;
    const float *weight;
    const int32_t *first; /* [n_experts + 1]: expert e has pairs first[e]..first[e+1]-1 */
    int rows, pairs;
    int64_t total; /* of the first half's work list */
} moe_job;

/* Cost of a block for n rows: reading the weights, and some work a row. */
static int64_t moe_cost(int n)
{
    return 4 + n;
}

/* hidden[p] = act(gate) * up of the pair's expert, over experts x blocks. */
static void moe_hidden_part(void *ctx, int tid, int n_threads)
{
    moe_job *j = ctx;
    sib_cpu_matmul *s = j->c->matmul;
    int64_t lo, hi, at = 0, ffn = j->m->gate->view.out;
    range_of(j->total, tid, n_threads, &lo, &hi);
    for (int e = 0; e < j->m->gate->n_experts; e++) {
        int p0 = j->first[e], n = j->first[e + 1] - p0;
        if (n == 0) continue;
        sib_packed gate = expert_view(j->m->gate, e), up = expert_view(j->m->up, e);
        int64_t b0, b1;
        share(lo, hi, at, moe_cost(n), gate.blocks, &b0, &b1);
        at += moe_cost(n) * gate.blocks;
        if (b0 >= b1) continue;
        assert(n <= SIB_ROWS_MAX); /* a row's experts are distinct */
        const void *rows_g[SIB_ROWS_MAX], *rows_u[SIB_ROWS_MAX];
        for (int i = 0; i < n; i++) {
            int row = s->pair[p0 + i] / j->m->top_k;
            rows_g[i] = s->row[way_for(j->c, &gate)][row];
            rows_u[i] = s->row[way_for(j->c, &up)][row];
        }
        glu_blocks(j->c, tid, (float *)s->hidden.p + p0 * ffn + b0 * SIB_BLOCK, &gate, &up, j->m->act, b0, b1,
                   &(sib_rows){rows_g, n}, &(sib_rows){rows_u, n});
    }
}

/* y[r] = sum_j weight[r][j] * down(hidden of (r, j)), some blocks of outputs at a time for all pairs. */
static void moe_down_part(void *ctx, int tid, int n_threads)
{
    moe_job *j = ctx;
    sib_cpu_matmul *s = j->c->matmul;
    const sib_packed *down = &j->m->down->view;
    int64_t b0, b1, run = MIX_FLOATS / (SIB_BLOCK * (int64_t)j->pairs);
    int way = way_for(j->c, down), k = j->m->top_k;
    float *mix = mix_of(j->c, tid);
    sib_split(down->blocks, 1, tid, n_threads, &b0, &b1);
    for (int64_t b = b0; b < b1; b += run) {
        int64_t e = b + run < b1 ? b + run : b1;
        int64_t wide = (e * SIB_BLOCK < down->out ? e * SIB_BLOCK : down->out) - b * SIB_BLOCK;
        for (int x = 0; x < j->m->down->n_experts; x++) {
            int p0 = j->first[x], n = j->first[x + 1] - p0;
            if (n == 0) continue;
            sib_packed w = expert_view(j->m->down, x);
            kernel_for(j->c, &w, way)(mix + p0 * wide, wide, &w, b, e, &(sib_rows){&s->row[way][p0], n}, panel_of(j->c, tid));
        }
        for (int r = 0; r < j->rows; r++) {
            float *y = j->y + r * down->out + b * SIB_BLOCK;
            for (int i = 0; i < k; i++) {
                const float *from = mix + s->place[r * k + i] * wide;
                float weight = j->weight[r * k + i];
                for (int64_t o = 0; o < wide; o++) y[o] = i == 0 ? weight * from[o] : y[o] + weight * from[o];
            }
        }
    }
}

/* Sorts the slab's pairs by expert, keeping their order: s->pair, its inverse s->place, and first[]. */
static void sort_pairs(sib_cpu_matmul *s, const int32_t *idx, int pairs, int n_experts)
{
    int32_t *first = s->first.p;
    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int p = 0; p < pairs; p++) first[idx[p] + 1]++;
    for (int e = 0; e < n_experts; e++) first[e + 1] += first[e];
    for (int p = 0; p < pairs; p++) {
        s->place[p] = first[idx[p]]++;
        s->pair[s->place[p]] = p;
    }
    for (int e = n_experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

static void moe(sib_device *d, float *y, const sib_moe *m, const float *x, const int32_t *idx, const float *weight, int rows)
{
    sib_cpu *c = sib_cpu_of(d);
    sib_cpu_matmul *s = c->matmul;
    const sib_packed *gate = &m->gate->view, *up = &m->up->view, *down = &m->down->view;
    assert(m->top_k >= 1 && m->top_k <= PAIRS_MAX && gate->out == up->out && gate->in == up->in && down->in == gate->out);
    int most = PAIRS_MAX / m->top_k < SIB_ROWS_MAX ? PAIRS_MAX / m->top_k : SIB_ROWS_MAX;
    for (int r0 = 0; r0 < rows; r0 += most) {
        int slab = rows - r0 < most ? rows - r0 : most, pairs = slab * m->top_k;
        sort_pairs(s, idx + r0 * m->top_k, pairs, m->gate->n_experts);
        prepare(c, way_for(c, gate), x + r0 * gate->in, gate->in, gate->in, slab);
        if (way_for(c, up) != way_for(c, gate)) prepare(c, way_for(c, up), x + r0 * gate->in, gate->in, gate->in, slab);
        moe_job j = {c, m, y + r0 * down->out, weight + r0 * m->top_k, s->first.p, slab, pairs, 0};
        for (int e = 0; e < m->gate->n_experts; e++) {
            int n = j.first[e + 1] - j.first[e];
            if (n) j.total += moe_cost(n) * gate->blocks;
        }
        sib_pool_run(c->pool, moe_hidden_part, &j);
        prepare(c, way_for(c, down), s->hidden.p, down->in, down->in, pairs);
        sib_pool_run(c->pool, moe_down_part, &j);
    }
}

/* ---- device ----------------------------------------------------------------------------- */

sib_status sib_cpu_matmul_init(sib_cpu *c, sib_err *err)
{
    c->matmul = calloc(1, sizeof *c->matmul);
    if (!c->matmul) return sib_nomem(err, "CPU device");
    SIB_TRY(sib_cpu_block_grow(&c->matmul->panels, (size_t)c->threads * SIB_PANEL_BYTES, "panels", err));
    return sib_cpu_block_grow(&c->matmul->mixes, (size_t)c->threads * MIX_FLOATS * sizeof(float), "panels", err);
}

void sib_cpu_matmul_deinit(sib_cpu *c)
{
    sib_cpu_matmul *s = c->matmul;
    if (!s) return;
    for (int way = 0; way < N_WAYS; way++) sib_cpu_block_free(&s->records[way]);
    sib_cpu_block_free(&s->hidden);
    sib_cpu_block_free(&s->panels);
    sib_cpu_block_free(&s->mixes);
    sib_cpu_block_free(&s->first);
    free(s);
    c->matmul = NULL;
}

void sib_cpu_matmul_ops(sib_ops *ops)
{
    ops->matrix_new = matrix_new;
    ops->matrix_free = matrix_free;
    ops->matrix_bytes = matrix_bytes;
    ops->linear = linear;
    ops->linear_heads = linear_heads;
    ops->linear_glu = linear_glu;
    ops->embed = embed;
    ops->moe = moe;
}
