/* ops/nothing.c - a device whose operations do nothing.
 *
 * A forward pass over it with a planning arena (base/arena.h) measures the memory that a step needs.
 * It never touches device memory; what it hands to the host is zero. */
#include "ops/ops.h"

#include <string.h>

static void n_close(sib_device *d)
{
    (void)d;
}

/* An address that is not NULL and must not be read, as a planning arena gives. */
static sib_status n_alloc(sib_device *d, size_t bytes, void **out, sib_err *err)
{
    (void)d, (void)bytes, (void)err;
    *out = (void *)(uintptr_t)64;
    return SIB_OK;
}

static void n_release(sib_device *d, void *p, size_t bytes)
{
    (void)d, (void)p, (void)bytes;
}

static void n_upload(sib_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)dst, (void)src, (void)bytes;
}

static void n_download(sib_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)src;
    if (bytes) memset(dst, 0, bytes);
}

static sib_status n_sync(sib_device *d, sib_err *err)
{
    (void)d, (void)err;
    return SIB_OK;
}

static sib_status n_matrix_new(sib_device *d, sib_matrix **out, const sib_matrix_src *src, sib_err *err)
{
    (void)d, (void)src, (void)err;
    *out = NULL;
    return SIB_OK;
}

static void n_matrix_free(sib_device *d, sib_matrix *m)
{
    (void)d, (void)m;
}

static size_t n_matrix_bytes(sib_device *d, const sib_matrix_src *src)
{
    (void)d, (void)src;
    return 0;
}

static size_t n_kv_page_bytes(sib_device *d, const sib_kv_geom *g)
{
    (void)d, (void)g;
    return 0;
}

static void n_argmax(sib_device *d, int32_t *ids, const float *x, int rows, int n)
{
    (void)d, (void)x, (void)n;
    memset(ids, 0, (size_t)rows * sizeof *ids);
}

static void n_linear(sib_device *d, int n, float *const *y, const sib_matrix *const *w, const float *x, int rows)
{
    (void)d, (void)n, (void)y, (void)w, (void)x, (void)rows;
}

static void n_linear_glu(sib_device *d, float *y, const sib_matrix *gate, const sib_matrix *up, sib_act act,
                         const float *x, int rows)
{
    (void)d, (void)y, (void)gate, (void)up, (void)act, (void)x, (void)rows;
}

static void n_embed(sib_device *d, float *y, const sib_matrix *table, const int32_t *ids, int rows, float scale,
                    int64_t first, int64_t n)
{
    (void)d, (void)y, (void)table, (void)ids, (void)rows, (void)scale, (void)first, (void)n;
}

static void n_moe(sib_device *d, float *y, const sib_moe *m, const float *x, const int32_t *idx, const float *weight,
                  int rows)
{
    (void)d, (void)y, (void)m, (void)x, (void)idx, (void)weight, (void)rows;
}

static void n_moe_route(sib_device *d, int32_t *idx, float *weight, const float *scores, const float *per_expert,
                        int rows, int n, int top_k)
{
    (void)d, (void)idx, (void)weight, (void)scores, (void)per_expert, (void)rows, (void)n, (void)top_k;
}

static void n_rms_norm(sib_device *d, float *y, const float *x, const float *w, int rows, int n, float eps)
{
    (void)d, (void)y, (void)x, (void)w, (void)rows, (void)n, (void)eps;
}

static void n_rms_norm_add(sib_device *d, float *h, const float *x, const float *w, int rows, int n, float eps,
                           float scale)
{
    (void)d, (void)h, (void)x, (void)w, (void)rows, (void)n, (void)eps, (void)scale;
}

static void n_layer_norm(sib_device *d, float *y, const float *x, const float *w, const float *b, int rows, int n,
                         float eps)
{
    (void)d, (void)y, (void)x, (void)w, (void)b, (void)rows, (void)n, (void)eps;
}

static void n_rope_angles(sib_device *d, float *cs, const float *inv_freq, int n_pairs, const int32_t *pos, int rows)
{
    (void)d, (void)cs, (void)inv_freq, (void)n_pairs, (void)pos, (void)rows;
}

static void n_head_norm_rope(sib_device *d, float *x, int rows, int n_heads, int head_dim, int64_t stride,
                             const float *w, float eps, const sib_rope *rope, const float *cs)
{
    (void)d, (void)x, (void)rows, (void)n_heads, (void)head_dim, (void)stride, (void)w, (void)eps, (void)rope, (void)cs;
}

static void n_kv_append(sib_device *d, const sib_kv_geom *g, const sib_span *spans, int n_spans, const float *k,
                        const float *v)
{
    (void)d, (void)g, (void)spans, (void)n_spans, (void)k, (void)v;
}

static void n_attend(sib_device *d, float *out, const float *q, const sib_attend *a)
{
    (void)d, (void)out, (void)q, (void)a;
}

static void n_kv_read(sib_device *d, const sib_kv_geom *g, const sib_kv_view *kv, int32_t first, int n, float *k,
                      float *v)
{
    (void)d, (void)g, (void)kv, (void)first, (void)n, (void)k, (void)v;
}

static void n_add(sib_device *d, float *y, const float *a, const float *b, int64_t count)
{
    (void)d, (void)y, (void)a, (void)b, (void)count;
}

static void n_mul(sib_device *d, float *y, const float *a, const float *b, int64_t count)
{
    (void)d, (void)y, (void)a, (void)b, (void)count;
}

static void n_scale(sib_device *d, float *y, const float *x, float s, int64_t count)
{
    (void)d, (void)y, (void)x, (void)s, (void)count;
}

static void n_clamp(sib_device *d, float *y, const float *x, float lo, float hi, int64_t count)
{
    (void)d, (void)y, (void)x, (void)lo, (void)hi, (void)count;
}

static void n_softcap(sib_device *d, float *y, const float *x, float cap, int64_t count)
{
    (void)d, (void)y, (void)x, (void)cap, (void)count;
}

static void n_glu(sib_device *d, float *y, const float *gate, const float *up, sib_act act, int64_t count)
{
    (void)d, (void)y, (void)gate, (void)up, (void)act, (void)count;
}

static void n_mul_row(sib_device *d, float *y, const float *x, const float *w, int rows, int n)
{
    (void)d, (void)y, (void)x, (void)w, (void)rows, (void)n;
}

static void n_add_row(sib_device *d, float *y, const float *x, const float *b, int rows, int n)
{
    (void)d, (void)y, (void)x, (void)b, (void)rows, (void)n;
}

static void n_copy_rows(sib_device *d, float *y, int64_t y_stride, const float *x, int64_t x_stride, int rows, int n)
{
    (void)d, (void)y, (void)y_stride, (void)x, (void)x_stride, (void)rows, (void)n;
}

static const sib_ops nothing = {
    .name = "nothing",
    .close = n_close,
    .alloc = n_alloc,
    .release = n_release,
    .upload = n_upload,
    .download = n_download,
    .sync = n_sync,
    .matrix_new = n_matrix_new,
    .matrix_free = n_matrix_free,
    .matrix_bytes = n_matrix_bytes,
    .linear = n_linear,
    .linear_glu = n_linear_glu,
    .embed = n_embed,
    .moe = n_moe,
    .moe_route = n_moe_route,
    .rms_norm = n_rms_norm,
    .rms_norm_add = n_rms_norm_add,
    .layer_norm = n_layer_norm,
    .rope_angles = n_rope_angles,
    .head_norm_rope = n_head_norm_rope,
    .kv_append = n_kv_append,
    .attend = n_attend,
    .kv_page_bytes = n_kv_page_bytes,
    .kv_read = n_kv_read,
    .add = n_add,
    .mul = n_mul,
    .scale = n_scale,
    .clamp = n_clamp,
    .softcap = n_softcap,
    .glu = n_glu,
    .mul_row = n_mul_row,
    .add_row = n_add_row,
    .copy_rows = n_copy_rows,
    .argmax = n_argmax,
};

void sib_nothing_device(sib_device *out, const sib_device *d)
{
    *out = (sib_device){.ops = &nothing, .numerics = d->numerics};
}
