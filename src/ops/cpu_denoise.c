/* ops/cpu_denoise.c - what block diffusion does with rows of vocabulary logits, on the CPU
 * (diffusion_gemma.md 2.5, 3.2 - 3.5).
 *
 *   choose      threads take whole rows. The row is swept once in tiles of TILE for both sums (f32 in the order of
 *               vector.h inside a tile, double over ascending tiles); the draw walks the tiles' sums, then one tile.
 *   soft_embed  the probabilities are never all in memory: for each run of 2048 ids, rows are split to soften their
 *               logits, then columns are split to add up p * E in blocks of 64 ids by 64 columns, which are
 *               unpacked once for all rows. y[r][c] is one chain of fused multiply-adds over ascending ids.
 *
 * Rows are independent of each other and of the number of threads. */
#include "ops/cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { TILE = 1024, RUN = 2048, IDS = 64 };
static_assert(RUN + 2 <= SIB_SOFT_SCRATCH, "a row's maximum and sum lie behind its probabilities");

/* ---- choose ------------------------------------------------------------------------------- */

typedef struct choose_job {
    const sib_cpu *c;
    const sib_choose *o;
    const float *x;
    int rows, n;
} choose_job;

/* The first id at which the running sum of weights exceeds u times their total. Rounding can leave the sum short of it at
 * the end: then the last id that has any weight. */
static int32_t draw(const sib_denoise_kernels *k, const float *x, int n, const sib_soften *s, double u)
{
    float w[TILE];
    double total = 0, before = 0;
    for (int i = 0; i < n; i += TILE) {
        int m = n - i < TILE ? n - i : TILE;
        k->soften(w, x + i, m, s);
        for (int j = 0; j < m; j++) total += w[j];
    }
    double goal = u * total;
    int32_t last = 0;
    for (int i = 0; i < n; i += TILE) {
        int m = n - i < TILE ? n - i : TILE;
        k->soften(w, x + i, m, s);
        for (int j = 0; j < m; j++) {
            if (w[j] > 0) last = i + j;
            before += w[j];
            if (before > goal) return last;
        }
    }
    return last;
}

static void choose_row(const choose_job *j, int r)
{
    const sib_choose *o = j->o;
    const sib_denoise_kernels *k = &j->c->k.denoise;
    const float *x = j->x + (int64_t)r * j->n;
    int32_t best = j->c->k.vector.argmax(x, j->n);
    sib_soften s = {.t = o->t[r], .top = x[best] / o->t[r], .u = 1};
    double sum = 0, weighted = 0;
    for (int i = 0; i < j->n; i += TILE) {
        float sums[2];
        k->soften_sums(sums, x + i, j->n - i < TILE ? j->n - i : TILE, &s);
        sum += sums[0];
        weighted += sums[1];
    }
    o->best[r] = o->proposal[r] = best;
    o->entropy[r] = (float)(log(sum) - weighted / sum);
    if (!isfinite(o->entropy[r]) || !isfinite(s.top)) {
        o->best[r] = o->proposal[r] = -1;
        o->confidence[r] = 0;
        return;
    }
    if (o->second[r] > 0) {
        s.u = o->second[r];
        o->proposal[r] = draw(k, x, j->n, &s, o->u[r]);
        s.u = 1;
    }
    float w;
    k->soften(&w, x + o->proposal[r], 1, &s);
    o->confidence[r] = (float)(w / sum);
}

static void choose_part(void *ctx, int tid, int n_threads)
{
    const choose_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) choose_row(j, (int)r);
}

static void cpu_choose(sib_device *d, const sib_choose *o, const float *x, int rows, int n)
{
    sib_cpu *c = sib_cpu_of(d);
    sib_pool_run((int64_t)rows * n < 4096 ? NULL : c->pool, choose_part, &(choose_job){c, o, x, rows, n});
}

/* ---- soft embeddings ------------------------------------------------------------------------ */

typedef struct soft_job {
    const sib_cpu *c;
    const sib_packed *table;
    float *y, *scratch;
    const float *x, *t;
    int rows;
    float scale;
    bool round;
    int64_t v0, v1; /* the run of ids */
} soft_job;

static float *row_of(const soft_job *j, int64_t r)
{
    return j->scratch + r * SIB_SOFT_SCRATCH;
}

static void sums_part(void *ctx, int tid, int n_threads)
{
    const soft_job *j = ctx;
    int64_t begin, end, n = j->table->out;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + r * n;
        float *row = row_of(j, r);
        sib_soften s = {.t = j->t[r], .top = x[j->c->k.vector.argmax(x, n)] / j->t[r], .u = 1};
        double sum = 0;
        for (int64_t i = 0; i < n; i += TILE) {
            float sums[2];
            j->c->k.denoise.soften_sums(sums, x + i, n - i < TILE ? n - i : TILE, &s);
            sum += sums[0];
        }
        row[RUN] = s.top;
        row[RUN + 1] = (float)(1 / sum);
        memset(j->y + r * j->table->in, 0, (size_t)j->table->in * sizeof *j->y);
    }
}

static void soften_part(void *ctx, int tid, int n_threads)
{
    const soft_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *p = row_of(j, r);
        sib_soften s = {.t = j->t[r], .top = p[RUN], .u = 1};
        j->c->k.denoise.soften(p, j->x + r * j->table->out + j->v0, j->v1 - j->v0, &s);
        j->c->k.vector.scale(p, p, p[RUN + 1], j->v1 - j->v0);
        for (int64_t i = 0; j->round && i < j->v1 - j->v0; i++) p[i] = sib_round_bf16(p[i]);
    }
}

static void mix_part(void *ctx, int tid, int n_threads)
{
    const soft_job *j = ctx;
    float block[IDS * SIB_MIX_COLUMNS];
    int64_t begin, end, in = j->table->in;
    sib_split(j->table->chunks, 1, tid, n_threads, &begin, &end);
    for (int64_t c = begin; c < end; c++) {
        int64_t first = c * SIB_MIX_COLUMNS, n = in - first < SIB_MIX_COLUMNS ? in - first : SIB_MIX_COLUMNS;
        for (int64_t v = j->v0; v < j->v1; v += IDS) {
            int ids = j->v1 - v < IDS ? (int)(j->v1 - v) : IDS;
            for (int i = 0; i < ids; i++) sib_packed_row(block + i * SIB_MIX_COLUMNS, j->table, v + i, first, n);
            if (n == SIB_MIX_COLUMNS) {
                j->c->k.denoise.mix(j->y + first, in, j->scratch + (v - j->v0), SIB_SOFT_SCRATCH, j->rows, block, ids);
                continue;
            }
            for (int r = 0; r < j->rows; r++) { /* the last columns, where a whole run would leave the row */
                float wide[SIB_MIX_COLUMNS] = {0};
                for (int i = 0; r == 0 && i < ids; i++) memset(block + i * SIB_MIX_COLUMNS + n, 0, (size_t)(SIB_MIX_COLUMNS - n) * sizeof *block);
                memcpy(wide, j->y + r * in + first, (size_t)n * sizeof *wide);
                j->c->k.denoise.mix(wide, SIB_MIX_COLUMNS, row_of(j, r) + (v - j->v0), SIB_SOFT_SCRATCH, 1, block, ids);
                memcpy(j->y + r * in + first, wide, (size_t)n * sizeof *wide);
            }
        }
    }
}

static void cpu_soft_embed(sib_device *d, float *y, const sib_matrix *table, const float *x, const float *t, int rows, float scale,
                           float *scratch)
{
    sib_cpu *c = sib_cpu_of(d);
    const sib_packed *view = sib_cpu_matrix_view(table);
    static_assert(SIB_MIX_COLUMNS == SIB_CHUNK, "the columns of a mix are a chunk of the packed table");
    soft_job j = {c, view, y, scratch, x, t, rows, scale, d->numerics != SIB_NUM_F32, 0, 0};
    sib_pool *pool = (int64_t)rows * view->out < 4096 ? NULL : c->pool;
    sib_pool_run(pool, sums_part, &j);
    for (; j.v0 < view->out; j.v0 = j.v1) {
        j.v1 = view->out - j.v0 < RUN ? view->out : j.v0 + RUN;
        sib_pool_run(pool, soften_part, &j);
        sib_pool_run(pool, mix_part, &j);
    }
    d->ops->scale(d, y, y, scale, (int64_t)rows * view->in);
}

void sib_cpu_denoise_ops(sib_ops *ops)
{
    ops->soft_embed = cpu_soft_embed;
    ops->choose = cpu_choose;
}
