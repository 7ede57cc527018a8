/* ops/cpu_draft.c - what DFlash 2 needs beyond a transformer (dflash2.md 7.1, 9), on the CPU.
 *
 *   two_tap  f32 throughout: coefficient = base + delta, then c0 * x[t], c1 * x[t-1], their sum, and the residual
 *            added last; every operation rounded to f32. ORDER is fixed, so EXACT on every level.
 *   dots     products and sums in f32, in index order. EXACT.
 *   top_k    EXACT; NaN counts as -infinity (its value is then -infinity); an equal value keeps the lower index.
 *
 * Rows are independent; threads take whole rows. The rows are few (a block), so no level has a kernel of its own. */
#include "ops/cpu_internal.h"

#include <assert.h>
#include <math.h>

#define ALONE_VALUES 32768

typedef struct draft_job {
    float *y;
    const float *x, *base, *delta, *residual;
    int64_t delta_stride;
    int32_t *ids;
    const int32_t *in_block;
    int rows, n, group, k;
} draft_job;

static void run(sib_device *d, sib_job_fn part, draft_job *j)
{
    sib_pool_run((int64_t)j->rows * j->n < ALONE_VALUES ? NULL : sib_cpu_of(d)->pool, part, j);
}

static void two_tap_part(void *ctx, int tid, int n_threads)
{
    const draft_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x + r * j->n, *before = j->in_block[r] > 0 ? x - j->n : NULL;
        const float *d0 = j->delta + r * j->delta_stride, *d1 = d0 + j->n / j->group,
                    *residual = j->residual ? j->residual + r * j->n : NULL;
        float *y = j->y + r * j->n;
        for (int c = 0; c < j->n; c++) {
            float v = (j->base[c] + d0[c / j->group]) * x[c];
            if (before) v += (j->base[j->n + c] + d1[c / j->group]) * before[c];
            y[c] = residual ? residual[c] + v : v;
        }
    }
}

static void cpu_two_tap(sib_device *d, float *y, const float *x, const float *base, const float *delta,
                        int64_t delta_stride, int group, const int32_t *in_block, int rows, int n,
                        const float *residual)
{
    assert(y != x && group > 0 && n % group == 0);
    run(d, two_tap_part,
        &(draft_job){.y = y,
                     .x = x,
                     .base = base,
                     .delta = delta,
                     .residual = residual,
                     .delta_stride = delta_stride,
                     .in_block = in_block,
                     .rows = rows,
                     .n = n,
                     .group = group});
}

static void dots_part(void *ctx, int tid, int n_threads)
{
    const draft_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float sum = 0;
        for (int i = 0; i < j->n; i++) sum += j->base[i] * j->x[r * j->n + i];
        j->y[r] = sum;
    }
}

static void cpu_dots(sib_device *d, float *y, const float *a, const float *x, int rows, int n)
{
    run(d, dots_part, &(draft_job){.y = y, .x = x, .base = a, .rows = rows, .n = n});
}

/* Insertion into a short sorted list; almost every value fails the first comparison. */
static void top_k_part(void *ctx, int tid, int n_threads)
{
    const draft_job *j = ctx;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int32_t *ids = j->ids + r * j->k;
        float *values = j->y + r * j->k;
        for (int i = 0; i < j->n; i++) {
            float v = j->x[r * j->n + i];
            int at = i < j->k ? i : j->k;
            if (isnan(v)) v = -INFINITY;
            if (at == j->k && !(v > values[j->k - 1])) continue;
            if (at == j->k) at--;
            for (; at > 0 && v > values[at - 1]; at--) {
                values[at] = values[at - 1];
                ids[at] = ids[at - 1];
            }
            values[at] = v;
            ids[at] = i;
        }
    }
}

static void cpu_top_k(sib_device *d, int32_t *ids, float *values, const float *x, int rows, int n, int k)
{
    assert(1 <= k && k <= n);
    run(d, top_k_part, &(draft_job){.y = values, .ids = ids, .x = x, .rows = rows, .n = n, .k = k});
}

void sib_cpu_draft_ops(sib_ops *ops)
{
    ops->two_tap = cpu_two_tap;
    ops->dots = cpu_dots;
    ops->top_k = cpu_top_k;
}
