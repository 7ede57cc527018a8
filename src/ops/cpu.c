/* ops/cpu.c - the CPU device: creation, memory, and the table of operations put together
 * from the per-family files. See cpu_internal.h for the map. */
#include "ops/cpu_internal.h"

#include "base/arena.h"
#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

sib_status sib_cpu_block_grow(sib_cpu_block *b, size_t bytes, const char *what, sib_err *err)
{
    if (bytes <= b->bytes) return SIB_OK;
    void *p = sib_aligned_alloc(bytes);
    if (!p) return sib_fail(err, SIB_ENOMEM, "out of memory: %zu bytes for %s", bytes, what);
    sib_aligned_free(b->p, b->bytes);
    b->p = p;
    b->bytes = bytes;
    return SIB_OK;
}

void sib_cpu_block_free(sib_cpu_block *b)
{
    sib_aligned_free(b->p, b->bytes);
    *b = (sib_cpu_block){0};
}

static sib_status cpu_alloc(sib_device *d, size_t bytes, void **out, sib_err *err)
{
    (void)d;
    *out = sib_aligned_alloc(bytes);
    return *out ? SIB_OK : sib_fail(err, SIB_ENOMEM, "out of memory: %zu bytes", bytes);
}

static void cpu_release(sib_device *d, void *p, size_t bytes)
{
    (void)d;
    sib_aligned_free(p, bytes);
}

static void cpu_copy(sib_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes) memcpy(dst, src, bytes);
}

static sib_status cpu_sync(sib_device *d, sib_err *err)
{
    sib_cpu *c = sib_cpu_of(d);
    sib_status s = c->failed;
    if (s != SIB_OK && err) *err = c->failure;
    return s;
}

static void cpu_close(sib_device *d)
{
    sib_cpu *c = sib_cpu_of(d);
    sib_cpu_matmul_deinit(c);
    sib_cpu_block_free(&c->attention);
    sib_pool_free(c->pool);
    free(c);
}

sib_status sib_cpu_device_new(sib_device **out, const sib_cpu_options *o, sib_err *err)
{
    *out = NULL;
    sib_cpu *c = calloc(1, sizeof *c);
    if (!c) return sib_nomem(err, "CPU device");
    c->ops = (sib_ops){
        .name = "cpu",
        .close = cpu_close,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .upload = cpu_copy,
        .download = cpu_copy,
        .sync = cpu_sync,
    };
    sib_cpu_matmul_ops(&c->ops);
    sib_cpu_sparse_ops(&c->ops);
    sib_cpu_attention_ops(&c->ops);
    sib_cpu_vector_ops(&c->ops);
    sib_cpu_head_ops(&c->ops);
    sib_cpu_draft_ops(&c->ops);
    sib_cpu_delta_ops(&c->ops);
    sib_cpu_denoise_ops(&c->ops);
    c->base.ops = &c->ops;
    c->base.numerics = o->numerics;
    sib_kernels_init(&c->k, sib_cpu_level());
    c->threads = o->threads > 0 ? o->threads : sib_cpu_physical_cores();
    sib_status s = sib_pool_new(&c->pool, c->threads, o->pin, err);
    if (s == SIB_OK) s = sib_cpu_matmul_init(c, err);
    if (s == SIB_OK) s = sib_cpu_attention_init(c, err);
    if (s != SIB_OK) {
        cpu_close(&c->base);
        return s;
    }
    *out = &c->base;
    return SIB_OK;
}

void sib_device_free(sib_device *d)
{
    if (d) d->ops->close(d);
}

int sib_cpu_device_threads(const sib_device *d)
{
    return ((const sib_cpu *)(const void *)d)->threads;
}
