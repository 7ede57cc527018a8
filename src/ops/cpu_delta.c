/* ops/cpu_delta.c - the gated delta rule of the CPU device, in three passes of one job:
 *
 *   1. rows x heads      convolution, SiLU, l2 norm of q and k, the gates     -> scratch
 *   2. spans x columns   the recurrence, serial over the tokens of a span     -> y, state_out
 *   3. rows x heads      gated norm in place on y; spans: conv_out
 *
 * A state is stored in blocks of SIB_DELTA_COLS columns, [n_v_heads][blocks][k_dim][columns]: one block is
 * contiguous, stays in the L1 cache while pass 2 walks the tokens, and belongs to one thread. No pass
 * splits a sum over threads. The l2 norm is the RMS norm kernel with eps / n: x / sqrt(sum x^2 + eps). */
#include "ops/cpu_internal.h"

#include "kernels/vector_math.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define L2_EPS       1e-6f
#define ALONE_VALUES 32768 /* as in cpu_vector.c */

static const float zeros[SIB_DELTA_DIM];

typedef struct delta_job {
    sib_cpu *c;
    sib_pool *pool;
    const sib_delta *g;
    const sib_delta_span *spans;
    int n_spans, rows, width; /* width = conv_dim */
    float *y, *mixed, *gates; /* [rows][width], [rows][n_v_heads][2] */
    const float *u, *z, *a, *b;
} delta_job;

/* The `taps` rows of u whose last one is row `i` of the span, from channel `at` on. */
static void window(const delta_job *j, const sib_delta_span *s, int i, int at, const float *row[SIB_DELTA_TAPS])
{
    int taps = j->g->taps;
    for (int t = 0; t < taps; t++) {
        int from = i - taps + 1 + t;
        if (from >= 0)
            row[t] = j->u + (int64_t)(s->row0 + from) * j->width + at;
        else
            row[t] = s->conv_in ? s->conv_in + (int64_t)(taps - 1 + from) * j->width + at : zeros;
    }
}

/* Head h of a row: q heads, then k heads, then v heads. */
static void mix_head(const delta_job *j, const sib_delta_span *s, int i, int h)
{
    const sib_delta *g = j->g;
    const sib_kernels *k = &j->c->k;
    bool is_q = h < g->n_k_heads, is_v = h >= 2 * g->n_k_heads;
    if (is_q && !j->y) return;
    int n = is_v ? g->v_dim : g->k_dim, hv = h - 2 * g->n_k_heads, at = is_v ? 2 * g->n_k_heads * g->k_dim + hv * n : h * n;
    int64_t row = s->row0 + i;
    float *c = j->mixed + row * j->width + at;
    const float *rows[SIB_DELTA_TAPS];
    window(j, s, i, at, rows);
    k->delta.conv_silu(c, rows, g->conv + at, j->width, g->taps, n);
    if (is_v) {
        int64_t gate = row * g->n_v_heads + hv;
        sib_delta_gates(&j->gates[2 * gate], &j->gates[2 * gate + 1], j->a[gate], j->b[gate], g->a_neg[hv], g->dt_bias[hv]);
        return;
    }
    k->vector.rms_norm(c, c, NULL, n, L2_EPS / (float)n);
    k->vector.scale(c, c, is_q ? 1.0f / (float)n : 1.0f / sqrtf((float)n), n);
}

static void mix_part(const delta_job *j, int tid, int n_threads)
{
    int heads = 2 * j->g->n_k_heads + j->g->n_v_heads;
    int64_t at, end;
    sib_split((int64_t)j->rows * heads, 1, tid, n_threads, &at, &end);
    const sib_delta_span *s = j->spans;
    for (; at < end; at++) {
        int row = (int)(at / heads);
        while (row >= s->row0 + s->n_rows) s++;
        mix_head(j, s, row - s->row0, (int)(at % heads));
    }
}

static void recur_part(const delta_job *j, int tid, int n_threads)
{
    const sib_delta *g = j->g;
    int blocks = (g->v_dim + SIB_DELTA_COLS - 1) / SIB_DELTA_COLS, per_span = g->n_v_heads * blocks;
    int64_t at, end;
    sib_split((int64_t)j->n_spans * per_span, 1, tid, n_threads, &at, &end);
    for (; at < end; at++) {
        const sib_delta_span *s = &j->spans[at / per_span];
        int hv = (int)(at % per_span) / blocks, c0 = (int)(at % blocks) * SIB_DELTA_COLS, hk = hv / (g->n_v_heads / g->n_k_heads);
        int n = g->v_dim - c0 < SIB_DELTA_COLS ? g->v_dim - c0 : SIB_DELTA_COLS;
        int64_t offset = ((int64_t)hv * g->v_dim + c0) * g->k_dim;
        float *out = s->state_out + offset;
        const float *in = s->state_in ? s->state_in + offset : zeros;
        int64_t in_stride = s->state_in ? n : 0;
        for (int i = 0; i < s->n_rows; i++, in = out, in_stride = n) {
            int64_t row = s->row0 + i;
            const float *mixed = j->mixed + row * j->width, *gate = j->gates + 2 * (row * g->n_v_heads + hv);
            sib_delta_token t = {.k = mixed + (g->n_k_heads + hk) * g->k_dim,
                                 .v = mixed + 2 * g->n_k_heads * g->k_dim + hv * g->v_dim + c0, .decay = gate[0], .beta = gate[1]};
            if (j->y) {
                t.q = mixed + hk * g->k_dim;
                t.o = j->y + (row * g->n_v_heads + hv) * g->v_dim + c0;
            }
            j->c->k.delta.step(&t, out, in, in_stride, g->k_dim, n);
        }
    }
}

static void finish_part(const delta_job *j, int tid, int n_threads)
{
    const sib_delta *g = j->g;
    const sib_vector_kernels *k = &j->c->k.vector;
    int64_t at, end;
    sib_split(j->y ? (int64_t)j->rows * g->n_v_heads : 0, 1, tid, n_threads, &at, &end);
    for (; at < end; at++) {
        float *y = j->y + at * g->v_dim;
        k->rms_norm(y, y, g->norm, g->v_dim, g->eps);
        k->act_mul(y, j->z + at * g->v_dim, y, g->v_dim, SIB_ACT_SILU);
    }
    /* The next call's window: the last taps - 1 rows of what came before and u. */
    int keep = g->taps - 1;
    sib_split((int64_t)j->n_spans * keep, 1, tid, n_threads, &at, &end);
    for (; at < end; at++) {
        const sib_delta_span *s = &j->spans[at / keep];
        int t = (int)(at % keep), from = s->n_rows - keep + t;
        float *to = s->conv_out + (int64_t)t * j->width;
        size_t bytes = (size_t)j->width * sizeof *to;
        if (from >= 0)
            memcpy(to, j->u + (int64_t)(s->row0 + from) * j->width, bytes);
        else if (s->conv_in)
            memcpy(to, s->conv_in + (int64_t)(keep + from) * j->width, bytes);
        else
            memset(to, 0, bytes);
    }
}

static void delta_part(void *ctx, int tid, int n_threads)
{
    const delta_job *j = ctx;
    mix_part(j, tid, n_threads);
    sib_pool_barrier(j->pool);
    recur_part(j, tid, n_threads);
    sib_pool_barrier(j->pool);
    finish_part(j, tid, n_threads);
}

static void cpu_gated_delta(sib_device *d, float *y, const float *u, const float *z, const float *a, const float *b, const sib_delta *g,
                            const sib_delta_span *spans, int n_spans, float *scratch)
{
    assert(g->k_dim <= SIB_DELTA_DIM && g->v_dim <= SIB_DELTA_DIM && g->taps >= 2 && g->taps <= SIB_DELTA_TAPS);
    assert(g->n_v_heads % g->n_k_heads == 0);
    sib_cpu *c = sib_cpu_of(d);
    delta_job j = {.c = c, .g = g, .spans = spans, .n_spans = n_spans, .width = sib_delta_conv_dim(g), .y = y, .mixed = scratch, .u = u, .z = z, .a = a, .b = b};
    for (int s = 0; s < n_spans; s++) j.rows += spans[s].n_rows;
    j.gates = scratch + (int64_t)j.rows * j.width;
    int64_t values = (int64_t)j.rows * g->n_v_heads * g->k_dim * g->v_dim;
    j.pool = values < ALONE_VALUES ? NULL : c->pool;
    sib_pool_run(j.pool, delta_part, &j);
}

/* ---- add_gated -------------------------------------------------------------------------- */

typedef struct gated_job {
    const sib_delta_kernels *k;
    float *y;
    const float *x, *gate;
    int rows, n;
} gated_job;

static void gated_part(void *ctx, int tid, int n_threads)
{
    const gated_job *j = ctx;
    int64_t r, end;
    sib_split(j->rows, 1, tid, n_threads, &r, &end);
    for (; r < end; r++) j->k->add_scaled(j->y + r * j->n, j->x + r * j->n, sib_sigmoid(j->gate[r]), j->n);
}

static void cpu_add_gated(sib_device *d, float *y, const float *x, const float *gate, int rows, int n)
{
    sib_cpu *c = sib_cpu_of(d);
    gated_job j = {&c->k.delta, y, x, gate, rows, n};
    sib_pool_run((int64_t)rows * n < ALONE_VALUES ? NULL : c->pool, gated_part, &j);
}

void sib_cpu_delta_ops(sib_ops *ops)
{
    ops->gated_delta = cpu_gated_delta;
    ops->add_gated = cpu_add_gated;
}
