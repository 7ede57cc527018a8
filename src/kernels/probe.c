/* kernels/probe.c - see kernels/probe.h. */
#include "kernels/probe.h"

#include "base/arena.h"
#include "base/cpu.h"

#include <string.h>
#include <time.h>

#define READ_BYTES ((size_t)256 << 20)

double sib_probe_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void read_part(void *ctx, int tid, int n_threads)
{
    const uint64_t *p = ctx;
    int64_t begin, end;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    sib_split((int64_t)(READ_BYTES / 8), 4096, tid, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i += 8) { /* one load a cache line, as a kernel's stream */
        a += p[i], b += p[i + 2], c += p[i + 4], d += p[i + 6];
    }
    __asm__ volatile("" ::"r"(a + b + c + d));
}

struct burn {
    int kind;
    double gops[SIB_MAX_THREADS];
};

static void burn_part(void *ctx, int tid, int n_threads)
{
    struct burn *b = ctx;
    (void)n_threads;
#if defined(__x86_64__)
    b->gops[tid] = sib_burn_avx512vnni(400000, b->kind);
#else
    b->gops[tid] = 0;
#endif
}

void sib_probe(sib_ceilings *out, sib_pool *pool, int isa)
{
    *out = (sib_ceilings){0};
    void *p = sib_aligned_alloc(READ_BYTES);
    if (p) {
        memset(p, 1, READ_BYTES);
        for (int i = 0; i < 8; i++) {
            double t = sib_probe_now();
            sib_pool_run(i < 4 ? pool : NULL, read_part, p);
            double g = (double)READ_BYTES / (sib_probe_now() - t) * 1e-9, *best = i < 4 ? &out->read_gbps : &out->read_gbps_1t;
            if (g > *best) *best = g;
        }
        sib_aligned_free(p, READ_BYTES);
    }
    if (isa < SIB_ISA_AVX512VNNI) return;
    double *best[] = {&out->int8_gops, &out->bf16_gops, &out->f32_gops};
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < 5; i++) {
            struct burn b = {.kind = kind};
            double sum = 0;
            sib_pool_run(pool, burn_part, &b);
            for (int t = 0; t < sib_pool_threads(pool); t++) sum += b.gops[t];
            if (sum > *best[kind]) *best[kind] = sum;
        }
}
