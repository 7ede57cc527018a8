/* ops/cpu_vector.c - norms, rotary embedding, elementwise operations, routing and argmax of the CPU device.
 *
 * Rows, or runs of elements, are split over the threads; a kernel sees one row or one run at a
 * time, so neither the split nor the other rows can change a bit. A call with little to do
 * stays on the calling thread: waking the pool costs more than the norm of a row. */
#include "ops/cpu_internal.h"

#include <assert.h>
#include <string.h>

#define ALONE_VALUES 32768 /* about 10 microseconds of a loop through the cache */
#define GRAIN        1024  /* elements; threads do not share cache lines */

/* The arguments of every operation here; each uses the fields of its own signature. */
typedef struct job {
    void (*part)(const struct job *j, int64_t begin, int64_t end); /* elements, rows or heads */
    const sib_vector_kernels *k;
    int64_t count, grain;
    float *y;
    const float *x, *w, *b;
    int n, top_k, heads;
    int64_t x_stride, y_stride;
    float eps, s, lo, hi;
    int act;
    const int32_t *pos;
    int32_t *idx;
    const sib_rope *rope;
} job;

static void run_part(void *ctx, int tid, int n_threads)
{
    const job *j = ctx;
    int64_t begin, end;
    sib_split(j->count, j->grain, tid, n_threads, &begin, &end);
    if (begin < end) j->part(j, begin, end);
}

/* `values`: the floats that the call goes over. */
static void run(sib_device *d, job *j, int64_t values)
{
    sib_cpu *c = sib_cpu_of(d);
    j->k = &c->k.vector;
    if (j->grain == 0) j->grain = 1;
    sib_pool_run(values < ALONE_VALUES ? NULL : c->pool, run_part, j);
}

/* ---- elementwise ------------------------------------------------------------------------ */

static void add_part(const job *j, int64_t at, int64_t end)
{
    j->k->add(j->y + at, j->x + at, j->w + at, end - at);
}

static void cpu_add(sib_device *d, float *y, const float *a, const float *b, int64_t count)
{
    run(d, &(job){.part = add_part, .count = count, .grain = GRAIN, .y = y, .x = a, .w = b}, count);
}

static void mul_part(const job *j, int64_t at, int64_t end)
{
    j->k->mul(j->y + at, j->x + at, j->w + at, end - at);
}

static void cpu_mul(sib_device *d, float *y, const float *a, const float *b, int64_t count)
{
    run(d, &(job){.part = mul_part, .count = count, .grain = GRAIN, .y = y, .x = a, .w = b}, count);
}

static void scale_part(const job *j, int64_t at, int64_t end)
{
    j->k->scale(j->y + at, j->x + at, j->s, end - at);
}

static void cpu_scale(sib_device *d, float *y, const float *x, float s, int64_t count)
{
    run(d, &(job){.part = scale_part, .count = count, .grain = GRAIN, .y = y, .x = x, .s = s}, count);
}

static void clamp_part(const job *j, int64_t at, int64_t end)
{
    j->k->clamp(j->y + at, j->x + at, j->lo, j->hi, end - at);
}

static void cpu_clamp(sib_device *d, float *y, const float *x, float lo, float hi, int64_t count)
{
    run(d, &(job){.part = clamp_part, .count = count, .grain = GRAIN, .y = y, .x = x, .lo = lo, .hi = hi}, count);
}

static void softcap_part(const job *j, int64_t at, int64_t end)
{
    j->k->softcap(j->y + at, j->x + at, j->s, end - at);
}

static void cpu_softcap(sib_device *d, float *y, const float *x, float cap, int64_t count)
{
    run(d, &(job){.part = softcap_part, .count = count, .grain = GRAIN, .y = y, .x = x, .s = cap}, 4 * count);
}

static void glu_part(const job *j, int64_t at, int64_t end)
{
    j->k->act_mul(j->y + at, j->x + at, j->w + at, end - at, j->act);
}

static void cpu_glu(sib_device *d, float *y, const float *gate, const float *up, sib_act act, int64_t count)
{
    run(d, &(job){.part = glu_part, .count = count, .grain = GRAIN, .y = y, .x = gate, .w = up, .act = (int)act},
        4 * count);
}

/* ---- rows ------------------------------------------------------------------------------- */

static const float *x_row(const job *j, int64_t r)
{
    return j->x + r * j->n;
}

static float *y_row(const job *j, int64_t r)
{
    return j->y + r * j->n;
}

static void rms_norm_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->rms_norm(y_row(j, r), x_row(j, r), j->w, j->n, j->eps);
}

static void cpu_rms_norm(sib_device *d, float *y, const float *x, const float *w, int rows, int n, float eps)
{
    run(d, &(job){.part = rms_norm_part, .count = rows, .y = y, .x = x, .w = w, .n = n, .eps = eps}, (int64_t)rows * n);
}

static void rms_norm_add_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->rms_norm_add(y_row(j, r), x_row(j, r), j->w, j->n, j->eps, j->s);
}

static void cpu_rms_norm_add(sib_device *d, float *h, const float *x, const float *w, int rows, int n, float eps,
                             float scale)
{
    run(d, &(job){.part = rms_norm_add_part, .count = rows, .y = h, .x = x, .w = w, .n = n, .eps = eps, .s = scale},
        (int64_t)rows * n);
}

static void layer_norm_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->layer_norm(y_row(j, r), x_row(j, r), j->w, j->b, j->n, j->eps);
}

static void cpu_layer_norm(sib_device *d, float *y, const float *x, const float *w, const float *b, int rows, int n,
                           float eps)
{
    run(d, &(job){.part = layer_norm_part, .count = rows, .y = y, .x = x, .w = w, .b = b, .n = n, .eps = eps},
        (int64_t)rows * n);
}

static void mul_row_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->mul(y_row(j, r), x_row(j, r), j->w, j->n);
}

static void cpu_mul_row(sib_device *d, float *y, const float *x, const float *w, int rows, int n)
{
    run(d, &(job){.part = mul_row_part, .count = rows, .y = y, .x = x, .w = w, .n = n}, (int64_t)rows * n);
}

static void add_row_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->add(y_row(j, r), x_row(j, r), j->w, j->n);
}

static void cpu_add_row(sib_device *d, float *y, const float *x, const float *b, int rows, int n)
{
    run(d, &(job){.part = add_row_part, .count = rows, .y = y, .x = x, .w = b, .n = n}, (int64_t)rows * n);
}

static void copy_rows_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) memcpy(j->y + r * j->y_stride, j->x + r * j->x_stride, (size_t)j->n * sizeof *j->y);
}

static void cpu_copy_rows(sib_device *d, float *y, int64_t y_stride, const float *x, int64_t x_stride, int rows, int n)
{
    job j = {.part = copy_rows_part, .count = rows, .y = y, .x = x, .n = n};
    j.x_stride = x_stride;
    j.y_stride = y_stride;
    run(d, &j, (int64_t)rows * n);
}

static void argmax_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->idx[r] = j->k->argmax(x_row(j, r), j->n);
}

static void cpu_argmax(sib_device *d, int32_t *ids, const float *x, int rows, int n)
{
    run(d, &(job){.part = argmax_part, .count = rows, .idx = ids, .x = x, .n = n}, rows > 1 ? (int64_t)rows * n : 0);
}

static void moe_route_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->moe_route(j->idx + r * j->top_k, j->y + r * j->top_k, x_row(j, r), j->w, j->n, j->top_k);
}

static void cpu_moe_route(sib_device *d, int32_t *idx, float *weight, const float *scores, const float *per_expert,
                          int rows, int n, int top_k)
{
    assert(1 <= top_k && top_k <= n);
    job j = {.part = moe_route_part, .count = rows, .idx = idx, .y = weight, .x = scores, .w = per_expert};
    j.n = n;
    j.top_k = top_k;
    run(d, &j, 8 * (int64_t)rows * n);
}

/* ---- rotary embedding ------------------------------------------------------------------- */

static void rope_angles_part(const job *j, int64_t r, int64_t end)
{
    for (; r < end; r++) j->k->rope_angles(j->y + 2 * r * j->n, j->x, j->n, j->pos[r]);
}

static void cpu_rope_angles(sib_device *d, float *cs, const float *inv_freq, int n_pairs, const int32_t *pos, int rows)
{
    run(d, &(job){.part = rope_angles_part, .count = rows, .y = cs, .x = inv_freq, .n = n_pairs, .pos = pos},
        32 * (int64_t)rows * n_pairs);
}

/* Parts are heads, counted through all rows; x is cs. */
static void head_part(const job *j, int64_t i, int64_t end)
{
    for (; i < end; i++) {
        int64_t row = i / j->heads;
        float *head = j->y + row * j->y_stride + i % j->heads * j->n;
        if (j->w || j->eps != 0.0f) j->k->rms_norm(head, head, j->w, j->n, j->eps);
        if (j->x)
            j->k->rotate(head + j->rope->first, j->x + 2 * row * j->rope->n_pairs, j->rope->n_pairs, j->rope->distance);
    }
}

static void cpu_head_norm_rope(sib_device *d, float *x, int rows, int n_heads, int head_dim, int64_t stride,
                               const float *w, float eps, const sib_rope *rope, const float *cs)
{
    assert(!cs || rope->first + (rope->distance ? rope->distance + rope->n_pairs : 2 * rope->n_pairs) <= head_dim);
    assert(!cs || rope->distance == 0 || rope->n_pairs <= rope->distance);
    job j = {.part = head_part, .count = (int64_t)rows * n_heads, .y = x, .x = cs, .w = w, .eps = eps, .rope = rope};
    j.n = head_dim;
    j.heads = n_heads;
    j.y_stride = stride;
    run(d, &j, (int64_t)rows * n_heads * head_dim);
}

void sib_cpu_vector_ops(sib_ops *ops)
{
    ops->moe_route = cpu_moe_route;
    ops->rms_norm = cpu_rms_norm;
    ops->rms_norm_add = cpu_rms_norm_add;
    ops->layer_norm = cpu_layer_norm;
    ops->rope_angles = cpu_rope_angles;
    ops->head_norm_rope = cpu_head_norm_rope;
    ops->add = cpu_add;
    ops->mul = cpu_mul;
    ops->scale = cpu_scale;
    ops->clamp = cpu_clamp;
    ops->softcap = cpu_softcap;
    ops->glu = cpu_glu;
    ops->mul_row = cpu_mul_row;
    ops->add_row = cpu_add_row;
    ops->copy_rows = cpu_copy_rows;
    ops->argmax = cpu_argmax;
}
