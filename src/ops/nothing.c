/* ops/nothing.c - a device whose operations do nothing but count.
 *
 * A forward pass run on it with a planning arena tells how much step memory the real
 * run needs; a model opened on it tells how many bytes weights and caches will take.
 * Addresses it gives out are not NULL and must never be read. */
#include "ops/nothing.h"

#include <stdlib.h>

static sib_nothing *self(sib_device *d)
{
    return (sib_nothing *)d;
}

static sib_status nothing_alloc(sib_device *d, size_t bytes, void **out, sib_err *err)
{
    (void)err;
    self(d)->alloc_bytes += bytes;
    *out = (void *)(uintptr_t)64;
    return SIB_OK;
}

static void nothing_release(sib_device *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
}

static void nothing_copy(sib_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)dst, (void)src, (void)bytes;
}

static sib_status nothing_sync(sib_device *d, sib_err *err)
{
    (void)d, (void)err;
    return SIB_OK;
}

static sib_status nothing_matrix_new(sib_device *d, sib_matrix **out, const sib_matrix_src *src, sib_err *err)
{
    (void)err;
    self(d)->matrix_bytes += self(d)->real->ops->matrix_bytes(self(d)->real, src);
    *out = (sib_matrix *)(uintptr_t)64;
    return SIB_OK;
}

static void nothing_matrix_free(sib_device *d, sib_matrix *m)
{
    (void)d, (void)m;
}

static size_t nothing_matrix_bytes(sib_device *d, const sib_matrix_src *src)
{
    return self(d)->real->ops->matrix_bytes(self(d)->real, src);
}

static size_t nothing_page_bytes(sib_device *d, const sib_kv_geom *g)
{
    return self(d)->real->ops->kv_page_bytes(self(d)->real, g);
}

static void linear(sib_device *d, int n, float *const *y, const sib_matrix *const *w, const float *x, int rows)
{
    (void)d, (void)n, (void)y, (void)w, (void)x, (void)rows;
}

static void linear_heads(sib_device *d, float *y, int64_t y_stride, const sib_matrix *w, const float *x, int64_t x_stride, int rows)
{
    (void)d, (void)y, (void)y_stride, (void)w, (void)x, (void)x_stride, (void)rows;
}

static void linear_glu(sib_device *d, float *y, const sib_matrix *gate, const sib_matrix *up, sib_act act, const float *x, int rows)
{
    (void)d, (void)y, (void)gate, (void)up, (void)act, (void)x, (void)rows;
}

static void embed(sib_device *d, float *y, const sib_matrix *t, const int32_t *ids, int rows, float s, int64_t first, int64_t n)
{
    (void)d, (void)y, (void)t, (void)ids, (void)rows, (void)s, (void)first, (void)n;
}

static void moe(sib_device *d, float *y, const sib_moe *m, const float *x, const int32_t *idx, const float *weight, int rows)
{
    (void)d, (void)y, (void)m, (void)x, (void)idx, (void)weight, (void)rows;
}

static void moe_route(sib_device *d, int32_t *idx, float *weight, const float *scores, const float *per_expert, int rows, int n, int top_k)
{
    (void)d, (void)idx, (void)weight, (void)scores, (void)per_expert, (void)rows, (void)n, (void)top_k;
}

static void gated_delta(sib_device *d, float *y, const float *u, const float *z, const float *a, const float *b, const sib_delta *g,
                        const sib_delta_span *spans, int n_spans, float *scratch)
{
    (void)d, (void)y, (void)u, (void)z, (void)a, (void)b, (void)g, (void)spans, (void)n_spans, (void)scratch;
}

static void add_gated(sib_device *d, float *y, const float *x, const float *gate, int rows, int n)
{
    (void)d, (void)y, (void)x, (void)gate, (void)rows, (void)n;
}

static void moe_route_sigmoid(sib_device *d, int32_t *idx, float *weight, const float *logits, const sib_sigmoid_route *r, int rows)
{
    (void)d, (void)idx, (void)weight, (void)logits, (void)r, (void)rows;
}

static void index_select(sib_device *d, int32_t *picks, float *q, const float *weight, const sib_index *x)
{
    (void)d, (void)picks, (void)q, (void)weight, (void)x;
}

static void rms_norm(sib_device *d, float *y, const float *x, const float *w, int rows, int n, float eps)
{
    (void)d, (void)y, (void)x, (void)w, (void)rows, (void)n, (void)eps;
}

static void rms_norm_add(sib_device *d, float *h, const float *x, const float *w, int rows, int n, float eps, float scale)
{
    (void)d, (void)h, (void)x, (void)w, (void)rows, (void)n, (void)eps, (void)scale;
}

static void layer_norm(sib_device *d, float *y, const float *x, const float *w, const float *b, int rows, int n, float eps)
{
    (void)d, (void)y, (void)x, (void)w, (void)b, (void)rows, (void)n, (void)eps;
}

static void rope_angles(sib_device *d, float *cs, const float *inv_freq, int n_pairs, const int32_t *pos, int rows)
{
    (void)d, (void)cs, (void)inv_freq, (void)n_pairs, (void)pos, (void)rows;
}

static void head_norm_rope(sib_device *d, float *x, int rows, int n_heads, int head_dim, int64_t stride, const float *w, float eps,
                           const sib_rope *rope, const float *cs)
{
    (void)d, (void)x, (void)rows, (void)n_heads, (void)head_dim, (void)stride, (void)w, (void)eps, (void)rope, (void)cs;
}

static void kv_append(sib_device *d, const sib_kv_geom *g, const sib_span *spans, int n_spans, const float *k, const float *v)
{
    (void)d, (void)g, (void)spans, (void)n_spans, (void)k, (void)v;
}

static void attend(sib_device *d, float *out, const float *q, const sib_attend *a)
{
    (void)d, (void)out, (void)q, (void)a;
}

static void kv_read(sib_device *d, const sib_kv_geom *g, const sib_kv_view *kv, int32_t first, int n, float *k, float *v)
{
    (void)d, (void)g, (void)kv, (void)first, (void)n, (void)k, (void)v;
}

static void binary(sib_device *d, float *y, const float *a, const float *b, int64_t count)
{
    (void)d, (void)y, (void)a, (void)b, (void)count;
}

static void unary(sib_device *d, float *y, const float *x, float s, int64_t count)
{
    (void)d, (void)y, (void)x, (void)s, (void)count;
}

static void clamp(sib_device *d, float *y, const float *x, float lo, float hi, int64_t count)
{
    (void)d, (void)y, (void)x, (void)lo, (void)hi, (void)count;
}

static void glu(sib_device *d, float *y, const float *gate, const float *up, sib_act act, int64_t count)
{
    (void)d, (void)y, (void)gate, (void)up, (void)act, (void)count;
}

static void by_row(sib_device *d, float *y, const float *x, const float *w, int rows, int n)
{
    (void)d, (void)y, (void)x, (void)w, (void)rows, (void)n;
}

static void copy_rows(sib_device *d, float *y, int64_t y_stride, const float *x, int64_t x_stride, int rows, int n)
{
    (void)d, (void)y, (void)y_stride, (void)x, (void)x_stride, (void)rows, (void)n;
}

static void two_tap(sib_device *d, float *y, const float *x, const float *base, const float *delta, int64_t delta_stride, int group,
                    const int32_t *in_block, int rows, int n, const float *residual)
{
    (void)d, (void)y, (void)x, (void)base, (void)delta, (void)delta_stride, (void)group, (void)in_block, (void)rows, (void)n, (void)residual;
}

static void dots(sib_device *d, float *y, const float *a, const float *x, int rows, int n)
{
    (void)d, (void)a, (void)x, (void)n;
    for (int r = 0; r < rows; r++) y[r] = 0;
}

static void top_k(sib_device *d, int32_t *ids, float *values, const float *x, int rows, int n, int k)
{
    (void)d, (void)x, (void)n;
    for (int i = 0; i < rows * k; i++) {
        ids[i] = i % k;
        values[i] = 0;
    }
}

static void soft_embed(sib_device *d, float *y, const sib_matrix *table, const float *x, const float *t, int rows, float scale, float *scratch)
{
    (void)d, (void)y, (void)table, (void)x, (void)t, (void)rows, (void)scale, (void)scratch;
}

static void choose(sib_device *d, const sib_choose *c, const float *x, int rows, int n)
{
    (void)d, (void)x, (void)n;
    for (int r = 0; r < rows; r++) {
        c->best[r] = c->proposal[r] = 0;
        c->entropy[r] = c->confidence[r] = 0;
    }
}

static void argmax(sib_device *d, int32_t *ids, const float *x, int rows, int n)
{
    (void)d, (void)x, (void)n;
    for (int r = 0; r < rows; r++) ids[r] = 0;
}

static void centroid_argmax(sib_device *d, int32_t *ids, const sib_centroid_head *h, const float *scores, const float *y, int rows, float *logits)
{
    (void)h, (void)scores, (void)logits;
    argmax(d, ids, y, rows, 0);
}

static const sib_ops nothing_ops = {
    .name = "nothing",
    .alloc = nothing_alloc,
    .release = nothing_release,
    .upload = nothing_copy,
    .download = nothing_copy,
    .sync = nothing_sync,
    .matrix_new = nothing_matrix_new,
    .matrix_free = nothing_matrix_free,
    .matrix_bytes = nothing_matrix_bytes,
    .linear = linear,
    .linear_heads = linear_heads,
    .linear_glu = linear_glu,
    .embed = embed,
    .moe = moe,
    .moe_route = moe_route,
    .gated_delta = gated_delta,
    .add_gated = add_gated,
    .moe_route_sigmoid = moe_route_sigmoid,
    .index_select = index_select,
    .rms_norm = rms_norm,
    .rms_norm_add = rms_norm_add,
    .layer_norm = layer_norm,
    .rope_angles = rope_angles,
    .head_norm_rope = head_norm_rope,
    .kv_append = kv_append,
    .attend = attend,
    .kv_page_bytes = nothing_page_bytes,
    .kv_read = kv_read,
    .add = binary,
    .mul = binary,
    .scale = unary,
    .clamp = clamp,
    .softcap = unary,
    .glu = glu,
    .mul_row = by_row,
    .add_row = by_row,
    .copy_rows = copy_rows,
    .two_tap = two_tap,
    .dots = dots,
    .top_k = top_k,
    .soft_embed = soft_embed,
    .choose = choose,
    .argmax = argmax,
    .centroid_argmax = centroid_argmax,
};

void sib_nothing_init(sib_nothing *n, sib_device *real)
{
    *n = (sib_nothing){.device = {&nothing_ops, real->numerics}, .real = real};
}

bool sib_device_is_nothing(const sib_device *d)
{
    return d->ops == &nothing_ops;
}
