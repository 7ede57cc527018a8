/* ops/cpu_sparse.c - the sparse indexer and sigmoid routing of the CPU device.
 *
 * index_select goes in slabs of SIB_INDEX_ROWS rows: first the scores of every (row, page of keys), which the threads
 * share however few rows there are, then the choice in each row. Pages lie at absolute positions and a row's choice
 * looks at its own scores only, so neither the slabs nor the threads can change a pick. */
#include "ops/cpu_internal.h"

#include "tensor/dtype.h"

#include <assert.h>
#include <string.h>

#define ALONE_MULTIPLIES ((int64_t)1 << 17) /* less work than this is not worth waking the pool */

typedef struct slab_row {
    const sib_span *span;
    int row;
    int32_t keys; /* visible positions */
    int64_t item; /* index of its first page in the slab's list of pages */
} slab_row;

typedef struct index_job {
    sib_cpu *c;
    const sib_index *x;
    float *q;
    const float *weight;
    int32_t *picks;
    bool f32;
    slab_row rows[SIB_INDEX_ROWS];
    int n_rows;
    int64_t n_items;
} index_job;

static void round_part(void *ctx, int tid, int n_threads)
{
    index_job *j = ctx;
    int64_t begin, end;
    sib_split((int64_t)j->x->n_rows * j->x->n_heads * j->x->dim, 16, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) j->q[i] = sib_round_bf16(j->q[i]);
}

static void score_part(void *ctx, int tid, int n_threads)
{
    index_job *j = ctx;
    const sib_index *x = j->x;
    int64_t begin, end, wide = (int64_t)x->n_heads * x->dim;
    sib_split(j->n_items, 1, tid, n_threads, &begin, &end);
    for (int i = 0; i < j->n_rows && begin < end; i++) {
        const slab_row *r = &j->rows[i];
        int64_t pages = (r->keys + SIB_KV_PAGE - 1) / SIB_KV_PAGE;
        for (; begin < end && begin < r->item + pages; begin++) {
            int64_t page = begin - r->item;
            j->c->k.sparse.index_scores[j->f32](x->scores + i * x->stride + page * SIB_KV_PAGE, j->q + r->row * wide,
                                                j->weight + (int64_t)r->row * x->n_heads, r->span->kv.pages[page % r->span->kv.n_pages],
                                                x->n_heads, x->dim, x->scale);
        }
    }
}

static void pick_part(void *ctx, int tid, int n_threads)
{
    index_job *j = ctx;
    int64_t begin, end;
    sib_split(j->n_rows, 1, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sib_top_positions(j->picks + (int64_t)j->rows[i].row * j->x->top_k, j->x->scores + i * j->x->stride, j->rows[i].keys, j->x->top_k);
}

static void run_slab(index_job *j)
{
    int64_t work = j->n_items * SIB_KV_PAGE * j->x->n_heads * j->x->dim;
    sib_pool_run(work < ALONE_MULTIPLIES ? NULL : j->c->pool, score_part, j);
    sib_pool_run(work < ALONE_MULTIPLIES || j->n_rows == 1 ? NULL : j->c->pool, pick_part, j);
    j->n_rows = 0;
    j->n_items = 0;
}

static void index_select(sib_device *d, int32_t *picks, float *q, const float *weight, const sib_index *x)
{
    index_job j = {.c = sib_cpu_of(d), .x = x, .q = q, .weight = weight, .picks = picks, .f32 = d->numerics == SIB_NUM_F32};
    assert(x->dim % 8 == 0 && x->top_k >= 1);
    if (!j.f32) sib_pool_run(x->n_rows * (int64_t)x->n_heads * x->dim < 16384 ? NULL : j.c->pool, round_part, &j);
    for (int s = 0; s < x->n_spans; s++)
        for (int i = 0; i < x->spans[s].n_rows; i++) {
            int32_t keys = x->spans[s].pos0 + i + 1;
            if (keys <= x->top_k) continue;
            assert(keys <= x->stride);
            j.rows[j.n_rows++] = (slab_row){&x->spans[s], x->spans[s].row0 + i, keys, j.n_items};
            j.n_items += (keys + SIB_KV_PAGE - 1) / SIB_KV_PAGE;
            if (j.n_rows == SIB_INDEX_ROWS) run_slab(&j);
        }
    if (j.n_rows > 0) run_slab(&j);
}

typedef struct route_job {
    int32_t *idx;
    float *weight;
    const float *logits;
    const sib_sigmoid_route *r;
    int rows;
} route_job;

static void route_part(void *ctx, int tid, int n_threads)
{
    const route_job *j = ctx;
    const sib_sigmoid_route *r = j->r;
    int64_t begin, end;
    sib_split(j->rows, 1, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sib_route_sigmoid(j->idx + i * r->top_k, j->weight + i * r->top_k, j->logits + i * r->n, r->bias, r->n, r->n_groups,
                          r->top_groups, r->top_k, r->normalise, r->scale);
}

static void moe_route_sigmoid(sib_device *d, int32_t *idx, float *weight, const float *logits, const sib_sigmoid_route *r, int rows)
{
    route_job j = {idx, weight, logits, r, rows};
    sib_pool_run((int64_t)rows * r->n * r->top_k < ALONE_MULTIPLIES ? NULL : sib_cpu_of(d)->pool, route_part, &j);
}

void sib_cpu_sparse_ops(sib_ops *ops)
{
    ops->index_select = index_select;
    ops->moe_route_sigmoid = moe_route_sigmoid;
}
