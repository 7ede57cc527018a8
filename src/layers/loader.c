/* layers/loader.c - see loader.h. */
#include "layers/loader.h"

#include "ops/nothing.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef char name_buf[512];

#define FORMAT_NAME(name, fmt)                                                                                         \
    do {                                                                                                               \
        va_list ap_;                                                                                                   \
        va_start(ap_, fmt);                                                                                            \
        (void)vsnprintf(name, sizeof(name_buf), fmt, ap_);                                                             \
        va_end(ap_);                                                                                                   \
    } while (0)

static sib_status remember(sib_loader *l, sib_matrix *m, void *v, size_t bytes, sib_err *err)
{
    sib_weights *w = l->into;
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 64;
        struct sib_weight *items = realloc(w->items, cap * sizeof *items);
        if (!items) {
            if (m) l->dev->ops->matrix_free(l->dev, m);
            if (v) l->dev->ops->release(l->dev, v, bytes);
            return sib_nomem(err, "list of weights");
        }
        w->items = items;
        w->cap = cap;
    }
    w->items[w->n++] = (struct sib_weight){m, v, bytes};
    return SIB_OK;
}

void sib_weights_deinit(sib_weights *w, sib_device *dev)
{
    for (size_t i = w->n; i-- > 0;) {
        if (w->items[i].matrix) dev->ops->matrix_free(dev, w->items[i].matrix);
        if (w->items[i].vector) dev->ops->release(dev, w->items[i].vector, w->items[i].bytes);
    }
    free(w->items);
    *w = (sib_weights){0};
}

bool sib_has(const sib_loader *l, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    return sib_checkpoint_has(l->files, name);
}

static sib_status step_progress(sib_loader *l, size_t bytes, sib_err *err)
{
    l->done += bytes;
    if (l->progress && !l->progress(l->progress_ctx, "loading", l->done, l->total))
        return sib_fail(err, SIB_ECANCELLED, "loading was stopped");
    return SIB_OK;
}

/* What was packed need not stay resident twice. A slice of experts is left: its other part may still be read. */
static void drop_source(const sib_loader *l, const sib_matrix_src *src)
{
    if (src->parent_out || sib_device_is_nothing(l->dev)) return;
    size_t groups = src->storage == SIB_AFFINE ? (size_t)(src->out * src->in / src->group) * (size_t)src->n_experts * (size_t)(sib_dtype_bits(src->dtype) / 8) : 0;
    sib_checkpoint_drop(l->files, src->data, sib_matrix_src_bytes(src) - 2 * groups);
    if (groups) {
        sib_checkpoint_drop(l->files, src->scales, groups);
        sib_checkpoint_drop(l->files, src->biases, groups);
    }
}

/* Scales and biases are few and each spoils a whole group; plain weights are only found out by the logits
 * (engine/diagnose.h), since reading all of them twice would cost loading time. */
static sib_status check_finite(const sib_loader *l, const sib_matrix_src *src, sib_err *err)
{
    if (src->storage != SIB_AFFINE || sib_device_is_nothing(l->dev)) return SIB_OK;
    int64_t groups = src->in / src->group;
    for (int e = 0; e < src->n_experts; e++) {
        int64_t scale = sib_first_not_finite(sib_matrix_src_scales(src, e, 0), src->dtype, src->out * groups);
        int64_t bias = sib_first_not_finite(sib_matrix_src_biases(src, e, 0), src->dtype, src->out * groups), at = scale >= 0 ? scale : bias;
        if (at >= 0)
            return sib_fail(err, SIB_EFORMAT, "%s: the %s of row %lld, group %lld is not finite", src->name, scale >= 0 ? "scale" : "bias",
                            (long long)(e * src->out + at / groups), (long long)(at % groups));
    }
    return SIB_OK;
}

sib_status sib_load_matrix(sib_loader *l, sib_linear *out, const sib_matrix_src *src, double share, sib_err *err)
{
    sib_matrix *m;
    SIB_TRY(check_finite(l, src, err));
    SIB_TRY(l->dev->ops->matrix_new(l->dev, &m, src, err));
    SIB_TRY(remember(l, m, NULL, 0, err));
    size_t bytes = l->dev->ops->matrix_bytes(l->dev, src);
    l->packed_bytes += bytes;
    l->active_bytes += share * (double)bytes;
    l->active_macs += share * (double)src->out * (double)src->in * src->n_experts;
    *out = (sib_linear){m, (int)src->out, (int)src->in};
    drop_source(l, src);
    return step_progress(l, sib_matrix_src_bytes(src), err);
}

sib_status sib_load_linear(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(l->files, name, n_out, n_in, 0, &src, err));
    return sib_load_matrix(l, out, &src, 1, err);
}

/* `src` quantized into memory of its own, which the caller frees; on a planning device only the shape is made. */
static sib_status quantize(const sib_loader *l, sib_matrix_src *q, const sib_matrix_src *src, int bits, void **memory, sib_err *err)
{
    const int group = 64;
    *memory = NULL;
    if (!sib_affine_bits_ok(bits)) return sib_fail(err, SIB_EARG, "weights of %d bits; supported are 2, 3, 4, 5, 6 and 8", bits);
    if (src->in % group) return sib_fail(err, SIB_EUNSUPPORTED, "%s: %lld columns are not whole groups of %d and cannot be quantized at load", src->name, (long long)src->in, group);
    size_t row = (size_t)(src->in * bits / 8), groups = (size_t)(src->in / group) * 2, n = (size_t)src->out;
    *q = (sib_matrix_src){.name = src->name, .storage = SIB_AFFINE, .out = src->out, .in = src->in, .n_experts = 1, .dtype = SIB_BF16, .bits = bits, .group = group};
    if (sib_device_is_nothing(l->dev)) return SIB_OK;
    char *p = malloc(n * (row + 2 * groups));
    float *values = malloc((size_t)src->in * sizeof *values);
    if (!p || !values) {
        free(p);
        free(values);
        return sib_nomem(err, src->name);
    }
    char *scales = p + n * row, *biases = scales + n * groups;
    for (size_t i = 0; i < n; i++) {
        sib_matrix_src_rows(values, src, 0, (int64_t)i, 1);
        sib_affine_quantize(p + i * row, scales + i * groups, biases + i * groups, SIB_BF16, values, src->in, bits, group);
    }
    free(values);
    q->data = *memory = p;
    q->scales = scales;
    q->biases = biases;
    return SIB_OK;
}

sib_status sib_load_linear_bits(sib_loader *l, sib_linear *out, int n_out, int n_in, int bits, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src, q;
    void *memory;
    SIB_TRY(sib_matrix_of(l->files, name, n_out, n_in, 0, &src, err));
    if (bits == 0 || src.storage != SIB_PLAIN) return sib_load_matrix(l, out, &src, 1, err);
    SIB_TRY(quantize(l, &q, &src, bits, &memory, err));
    sib_status s = sib_load_matrix(l, out, &q, 1, err);
    free(memory);
    return s;
}

sib_status sib_load_transposed(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    size_t rows = (size_t)n_out, columns = (size_t)n_in;
    sib_matrix_src src, t;
    SIB_TRY(sib_matrix_of(l->files, name, n_in, n_out, 0, &src, err));
    if (src.storage != SIB_PLAIN) return sib_fail(err, SIB_EUNSUPPORTED, "%s: a quantized matrix cannot be transposed", name);
    t = (sib_matrix_src){.name = src.name, .storage = SIB_PLAIN, .out = n_out, .in = n_in, .n_experts = 1, .dtype = SIB_F32};
    if (sib_device_is_nothing(l->dev)) return sib_load_matrix(l, out, &t, 1, err);
    float *values = malloc(rows * columns * sizeof *values), *row = malloc(rows * sizeof *row);
    sib_status s = values && row ? SIB_OK : sib_nomem(err, name);
    for (size_t i = 0; s == SIB_OK && i < columns; i++) {
        sib_matrix_src_rows(row, &src, 0, (int64_t)i, 1);
        for (size_t o = 0; o < rows; o++) values[o * columns + i] = row[o];
    }
    t.data = values;
    if (s == SIB_OK) s = sib_load_matrix(l, out, &t, 1, err);
    free(values);
    free(row);
    return s;
}

sib_status sib_load_table(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(l->files, name, n_out, n_in, 0, &src, err));
    return sib_load_matrix(l, out, &src, 0, err);
}

sib_status sib_load_experts(sib_loader *l, sib_linear *out, int n_experts, int n_out, int n_in, sib_err *err,
                            const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(l->files, name, n_out, n_in, n_experts, &src, err));
    return sib_load_matrix(l, out, &src, l->expert_share, err);
}

sib_status sib_load_stack(sib_loader *l, sib_linear *out, int n, int n_out, int n_in, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(l->files, name, n_out, n_in, n, &src, err));
    src.out *= n;
    src.n_experts = 1;
    return sib_load_matrix(l, out, &src, 1, err);
}

sib_status sib_load_expert_rows(sib_loader *l, sib_linear *out, int n_experts, int all, int first, int n_out, int n_in,
                                sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src;
    SIB_TRY(sib_matrix_of(l->files, name, all, n_in, n_experts, &src, err));
    src = sib_matrix_src_slice(&src, first, n_out);
    return sib_load_matrix(l, out, &src, l->expert_share, err);
}

sib_status sib_load_expert_list(sib_loader *l, sib_linear *out, int n_experts, int n_out, int n_in, const char *suffix, sib_err *err,
                                const char *fmt, ...)
{
    name_buf name, module;
    FORMAT_NAME(name, fmt);
    sib_matrix_src src = {0};
    if (!sib_device_is_nothing(l->dev)) {
        SIB_TRY(sib_matrix_of_experts(l->files, name, suffix, n_out, n_in, n_experts, &src, err));
        return sib_load_matrix(l, out, &src, l->expert_share, err);
    }
    for (int e = 0; e < n_experts; e++) {
        if ((size_t)snprintf(module, sizeof module, "%s.%d.%s", name, e, suffix) >= sizeof module)
            return sib_fail(err, SIB_EARG, "module name %.40s... is too long", name);
        SIB_TRY(sib_matrix_of(l->files, module, n_out, n_in, 0, &src, err));
    }
    src.n_experts = n_experts;
    return sib_load_matrix(l, out, &src, l->expert_share, err);
}

static sib_status read_host(sib_loader *l, float *out, int64_t n, const char *name, sib_err *err)
{
    SIB_TRY(sib_vector_of(l->files, name, n, out, err));
    int64_t bad = sib_first_not_finite(out, SIB_F32, n);
    if (bad >= 0) return sib_fail(err, SIB_EFORMAT, "%s: value %lld is %g", name, (long long)bad, (double)out[bad]);
    return step_progress(l, (size_t)n * 2, err);
}

sib_status sib_load_host(sib_loader *l, float *out, int64_t n, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    return read_host(l, out, n, name, err);
}

sib_status sib_load_buffer(sib_loader *l, void **out, size_t bytes, sib_err *err)
{
    SIB_TRY(l->dev->ops->alloc(l->dev, bytes, out, err));
    return remember(l, NULL, *out, bytes, err);
}

sib_status sib_load_values(sib_loader *l, const float **out, const float *values, int64_t n, sib_err *err)
{
    void *dst;
    size_t bytes = (size_t)n * sizeof(float);
    SIB_TRY(sib_load_buffer(l, &dst, bytes, err));
    l->packed_bytes += bytes;
    l->dev->ops->upload(l->dev, dst, values, bytes);
    *out = dst;
    return SIB_OK;
}

static sib_status load_changed(sib_loader *l, const float **out, int64_t n, float factor, float add, const char *name, sib_err *err)
{
    float *host = malloc((size_t)n * sizeof *host);
    if (!host) return sib_nomem(err, name);
    sib_status s = read_host(l, host, n, name, err);
    if (s == SIB_OK) {
        for (int64_t i = 0; i < n; i++) host[i] = host[i] * factor + add;
        s = sib_load_values(l, out, host, n, err);
    }
    free(host);
    return s;
}

sib_status sib_load_vector(sib_loader *l, const float **out, int64_t n, float factor, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    return load_changed(l, out, n, factor, 0.0f, name, err);
}

sib_status sib_load_norm(sib_loader *l, const float **out, int64_t n, float add, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    return load_changed(l, out, n, 1.0f, add, name, err);
}
