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

sib_status sib_load_matrix(sib_loader *l, sib_linear *out, const sib_matrix_src *src, double share, sib_err *err)
{
    sib_matrix *m;
    SIB_TRY(l->dev->ops->matrix_new(l->dev, &m, src, err));
    SIB_TRY(remember(l, m, NULL, 0, err));
    size_t bytes = l->dev->ops->matrix_bytes(l->dev, src);
    l->packed_bytes += bytes;
    l->active_bytes += share * (double)bytes;
    l->active_macs += share * (double)src->out * (double)src->in * src->n_experts;
    *out = (sib_linear){m, (int)src->out, (int)src->in};
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

sib_status sib_load_vector(sib_loader *l, const float **out, int64_t n, float factor, sib_err *err, const char *fmt, ...)
{
    name_buf name;
    FORMAT_NAME(name, fmt);
    float *host = malloc((size_t)n * sizeof *host);
    if (!host) return sib_nomem(err, name);
    sib_status s = read_host(l, host, n, name, err);
    if (s == SIB_OK) {
        for (int64_t i = 0; i < n; i++) host[i] *= factor;
        s = sib_load_values(l, out, host, n, err);
    }
    free(host);
    return s;
}
