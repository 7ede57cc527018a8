/* kc_attention.c - cases of the attention family (kernels/attention.h): one chunk of keys against
 * attention in double precision, each query alone against the tile, merge and finish EXACT.
 * Every slot that no query sees holds NaN. */
#include "kcheck.h"

#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct shape {
    int k_dim, v_dim;
} shape;

static const shape shapes[] = {{8, 8},     {64, 64},   {72, 72},   {80, 80},   {96, 96},
                               {128, 128}, {256, 256}, {512, 512}, {576, 512}, {192, 136}};
static const kc_regime regimes[] = {KC_UNIT, KC_TINY, KC_CANCEL, KC_SPARSE, KC_REAL};

typedef struct chunk_case {
    shape s;
    bool f32;
    int n_q;
    int32_t first, lo[SIB_ATTN_MAX_Q], hi[SIB_ATTN_MAX_Q];
    float scale, *q, *k, *v; /* q [n_q][k_dim], k and v of the whole chunk */
    void *pages;             /* 4 heads */
    const void *heads[SIB_ATTN_CHUNK_PAGES];
} chunk_case;

/* Visible ranges of every kind, relative to the chunk: causal, window, one key, one page, beyond both
 * ends, anything, and partly or quite outside. */
#define N_RANGES 7
static void make_ranges(kc *c, chunk_case *x, int kind)
{
    for (int i = 0; i < x->n_q; i++) {
        int at = kc_below(c, SIB_ATTN_CHUNK), page = 64 * kc_below(c, 4), some = kc_below(c, SIB_ATTN_CHUNK - at);
        int outside = i % 2 ? 300 : -70;
        int from[N_RANGES] = {0, 60 + i, at, page, -1000, at, outside};
        int to[N_RANGES] = {100 + i, 190 + i, at + 1, page + 64, 5000, at + 1 + some, outside + (i % 3 ? 200 : 10)};
        x->lo[i] = x->first + from[kind];
        x->hi[i] = x->first + to[kind];
    }
}

static bool visible(const chunk_case *x, int q, int j)
{
    return x->lo[q] <= x->first + j && x->first + j < x->hi[q];
}

static void make_case(kc *c, chunk_case *x, kc_regime g, int kind)
{
    size_t bytes = sib_attn_head_bytes(x->f32, x->s.k_dim, x->s.v_dim);
    x->first = 4 * SIB_ATTN_CHUNK;
    x->scale = g == KC_CANCEL ? 0.01f : 0.2f;
    x->q = kc_floats(c, (size_t)(x->n_q * x->s.k_dim), g);
    x->k = kc_floats(c, (size_t)(SIB_ATTN_CHUNK * x->s.k_dim), g);
    x->v = kc_floats(c, (size_t)(SIB_ATTN_CHUNK * x->s.v_dim), g);
    if (!x->f32) {
        for (int i = 0; i < x->n_q * x->s.k_dim; i++) x->q[i] = sib_round_bf16(x->q[i]);
        for (int i = 0; i < SIB_ATTN_CHUNK * x->s.k_dim; i++) x->k[i] = sib_round_bf16(x->k[i]);
        for (int i = 0; i < SIB_ATTN_CHUNK * x->s.v_dim; i++) x->v[i] = sib_round_bf16(x->v[i]);
    }
    make_ranges(c, x, kind);
    x->pages = kc_alloc(c, bytes * SIB_ATTN_CHUNK_PAGES, 64);
    memset(x->pages, 0xFF, bytes * SIB_ATTN_CHUNK_PAGES);
    int from = SIB_ATTN_CHUNK, to = 0;
    for (int j = 0; j < SIB_ATTN_CHUNK; j++) {
        bool seen = false;
        for (int q = 0; q < x->n_q; q++) seen = seen || visible(x, q, j);
        if (!seen) continue;
        if (from > j) from = j;
        to = j + 1;
        sib_attn_store(x->f32, (char *)x->pages + bytes * (size_t)(j / SIB_ATTN_PAGE), x->s.k_dim, x->s.v_dim,
                       j % SIB_ATTN_PAGE, x->k + j * x->s.k_dim, x->v + j * x->s.v_dim);
    }
    for (int p = 0; p < SIB_ATTN_CHUNK_PAGES; p++) /* a page that must not be looked at is not there */
        x->heads[p] =
            p * SIB_ATTN_PAGE < to && (p + 1) * SIB_ATTN_PAGE > from ? (char *)x->pages + bytes * (size_t)p : NULL;
}

/* Runs queries [from, from + n) as one tile. */
static float *run(kc *c, const sib_attention_kernels *k, const chunk_case *x, int from, int n)
{
    int stride = sib_attn_part_stride(x->s.v_dim);
    size_t q_bytes = (size_t)x->s.k_dim * 4;
    char *packed = kc_alloc(c, q_bytes * (size_t)n, 4);
    float *scores = kc_alloc(c, sizeof(float) * SIB_ATTN_CHUNK * (size_t)n, 4);
    float *part = kc_alloc(c, sizeof(float) * (size_t)(stride * n), 4);
    memset(scores, 0xFF, sizeof(float) * SIB_ATTN_CHUNK * (size_t)n);
    for (int i = 0; i < n; i++)
        k->pack_query[x->f32](packed + q_bytes * (size_t)i, x->q + (from + i) * x->s.k_dim, x->s.k_dim);
    sib_attn_tile t = {n, x->s.k_dim, x->s.v_dim, x->scale, packed, x->lo + from, x->hi + from};
    k->chunk[x->f32](&t, x->first, x->heads, scores, part);
    return part;
}

static void check_query(kc *c, const chunk_case *x, int q, const float *part)
{
    int v_pad = sib_attn_v_pad(x->s.v_dim);
    double s[SIB_ATTN_CHUNK], m = -INFINITY, l = 0, abs_dot = 0;
    for (int j = 0; j < SIB_ATTN_CHUNK; j++) {
        if (!visible(x, q, j)) continue;
        double dot = 0, sum = 0;
        for (int d = 0; d < x->s.k_dim; d++) {
            double p = (double)x->q[q * x->s.k_dim + d] * x->k[j * x->s.k_dim + d];
            dot += p;
            sum += fabs(p);
        }
        s[j] = dot * x->scale;
        if (sum > abs_dot) abs_dot = sum;
        if (s[j] > m) m = s[j];
    }
    if (m == -INFINITY) {
        if (part[v_pad] != -INFINITY || part[v_pad + 1] != 0)
            kc_fail(c, "query %d sees nothing but m = %g, l = %g", q, (double)part[v_pad], (double)part[v_pad + 1]);
        for (int i = 0; i < v_pad; i++)
            if (part[i] != 0) kc_fail(c, "query %d sees nothing but acc[%d] = %g", q, i, (double)part[i]);
        return;
    }
    double delta = (x->s.k_dim + 2) * 0x1p-24 * x->scale * abs_dot, allowed = expm1(2 * delta) * 0x1p24 + 256 + 8;
    kc_order(c, "m", (size_t)q, part[v_pad], m, x->scale * abs_dot, x->s.k_dim + 2, 0x1p-149);
    for (int j = 0; j < SIB_ATTN_CHUNK; j++)
        if (visible(x, q, j)) l += exp(s[j] - m);
    kc_order(c, "l", (size_t)q, part[v_pad + 1], l, l, allowed, 0);
    for (int i = 0; i < x->s.v_dim; i++) {
        double sum = 0, abs_sum = 0;
        for (int j = 0; j < SIB_ATTN_CHUNK; j++) {
            if (!visible(x, q, j)) continue;
            sum += exp(s[j] - m) * x->v[j * x->s.v_dim + i];
            abs_sum += exp(s[j] - m) * fabs(x->v[j * x->s.v_dim + i]);
        }
        kc_order(c, "acc", (size_t)i, part[i], sum, abs_sum, allowed, 0x1p-149);
    }
    for (int i = x->s.v_dim; i < v_pad; i++)
        if (part[i] != 0) kc_fail(c, "padding column %d is %g", i, (double)part[i]);
}

static void check_chunk(kc *c, const sib_attention_kernels *var)
{
    static const int counts[] = {1, 2, 3, 5, 8, 13, 32};
    for (int f32 = 0; f32 < 2; f32++)
        for (size_t i = 0; i < SIB_COUNT(shapes); i++)
            for (size_t g = 0; g < SIB_COUNT(regimes); g++)
                for (int kind = 0; kind < N_RANGES; kind++) {
                    chunk_case x = {.s = shapes[i],
                                    .f32 = f32 != 0,
                                    .n_q = counts[(size_t)(kind + (int)i + (int)g) % SIB_COUNT(counts)]};
                    if ((kind + (int)i + (int)g) % 3 && x.s.k_dim > 128)
                        continue; /* the large ones are slow in double */
                    if (!kc_begin(c, "chunk %s %d/%d n_q=%d ranges %d %s", f32 ? "f32" : "bf16", x.s.k_dim, x.s.v_dim,
                                  x.n_q, kind, kc_regime_name(regimes[g])))
                        continue;
                    make_case(c, &x, regimes[g], kind);
                    int stride = sib_attn_part_stride(x.s.v_dim), used = sib_attn_v_pad(x.s.v_dim) + 2;
                    const float *part = run(c, var, &x, 0, x.n_q);
                    for (int q = 0; q < x.n_q; q++) {
                        if (q < 5 || q % 5 == 0) check_query(c, &x, q, part + q * stride);
                        kc_exact(c, "query alone", run(c, var, &x, q, 1), part + q * stride, (size_t)used,
                                 sizeof *part);
                    }
                }
}

/* NaN and infinity in keys or values that one query sees leave the bits of another, which does not, alone. */
static void check_poison(kc *c, const sib_attention_kernels *var)
{
    for (int f32 = 0; f32 < 2; f32++)
        for (int n = 2; n <= 9; n++) {
            if (!kc_begin(c, "chunk %s poison n_q=%d", f32 ? "f32" : "bf16", n)) continue;
            chunk_case x = {.s = {64, 64}, .f32 = f32 != 0, .n_q = n};
            make_case(c, &x, KC_UNIT, 0); /* causal: query i sees keys below 100 + i */
            int stride = sib_attn_part_stride(64);
            const float *clean = run(c, var, &x, 0, n);
            size_t bytes = sib_attn_head_bytes(x.f32, 64, 64);
            for (int i = 0; i < 64; i++) x.v[i] = i % 2 ? NAN : INFINITY;
            sib_attn_store(x.f32, (char *)x.pages + bytes, 64, 64, (100 + n - 2) % SIB_ATTN_PAGE, x.k, x.v);
            const float *part = run(c, var, &x, 0, n);
            kc_exact(c, "rows that do not see it", part, clean, (size_t)(stride * (n - 1)), sizeof *part);
            if (!isnan(part[(n - 1) * stride + 1])) kc_fail(c, "the row that sees it has no NaN");
        }
}

static void check_merge(kc *c, const sib_attention_kernels *ref, const sib_attention_kernels *var)
{
    for (size_t i = 0; i < SIB_COUNT(shapes); i++)
        for (int kind = 0; kind < 4; kind++) {
            int v_dim = shapes[i].v_dim, v_pad = sib_attn_v_pad(v_dim), stride = sib_attn_part_stride(v_dim);
            if (!kc_begin(c, "merge v_dim=%d kind %d", v_dim, kind)) continue;
            float *a = kc_floats(c, (size_t)stride, KC_REAL), *b = kc_floats(c, (size_t)stride, KC_REAL);
            float *a2 = kc_floats(c, (size_t)stride, KC_UNIT);
            a[v_pad] = (float)(10 * kc_uniform(c));
            b[v_pad] = kind == 3 ? a[v_pad] - 200 : (float)(10 * kc_uniform(c));
            a[v_pad + 1] = kind == 1 ? 0.0f : 1 + (float)kc_uniform(c);
            b[v_pad + 1] = kind == 2 ? 0.0f : 1 + (float)kc_uniform(c);
            memcpy(a2, a, (size_t)stride * sizeof *a);
            float *want = kc_floats(c, (size_t)v_dim, KC_UNIT), *got = kc_floats(c, (size_t)v_dim, KC_UNIT);
            ref->merge(a, b, v_dim);
            var->merge(a2, b, v_dim);
            kc_exact(c, "merge", a2, a, (size_t)(v_pad + 2), sizeof *a);
            if (kind == 1) kc_exact(c, "empty state", a, b, (size_t)(v_pad + 2), sizeof *a);
            ref->finish(want, a, v_dim);
            var->finish(got, a2, v_dim);
            kc_exact(c, "finish", got, want, (size_t)v_dim, sizeof *got);
        }
}

static void check_store(kc *c)
{
    for (int f32 = 0; f32 < 2; f32++)
        for (size_t i = 0; i < SIB_COUNT(shapes); i++) {
            shape s = shapes[i];
            if (!kc_begin(c, "store %s %d/%d", f32 ? "f32" : "bf16", s.k_dim, s.v_dim)) continue;
            size_t bytes = sib_attn_head_bytes(f32 != 0, s.k_dim, s.v_dim);
            void *head = kc_alloc(c, bytes, 64);
            float *k = kc_floats(c, (size_t)(64 * s.k_dim), KC_REAL),
                  *v = kc_floats(c, (size_t)(64 * s.v_dim), KC_REAL);
            float *k2 = kc_floats(c, (size_t)s.k_dim, KC_UNIT), *v2 = kc_floats(c, (size_t)s.v_dim, KC_UNIT);
            for (int p = 63; p >= 0; p--)
                sib_attn_store(f32 != 0, head, s.k_dim, s.v_dim, p, k + p * s.k_dim, v + p * s.v_dim);
            for (int p = 0; p < 64; p++) {
                sib_attn_load(f32 != 0, head, s.k_dim, s.v_dim, p, k2, v2);
                for (int d = 0; d < s.k_dim && !f32; d++) k[p * s.k_dim + d] = sib_round_bf16(k[p * s.k_dim + d]);
                for (int d = 0; d < s.v_dim && !f32; d++) v[p * s.v_dim + d] = sib_round_bf16(v[p * s.v_dim + d]);
                kc_exact(c, "k", k2, k + p * s.k_dim, (size_t)s.k_dim, sizeof *k);
                kc_exact(c, "v", v2, v + p * s.v_dim, (size_t)s.v_dim, sizeof *v);
            }
        }
}

static void check(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    check_store(c);
    check_chunk(c, &var->attention);
    check_poison(c, &var->attention);
#if defined(__x86_64__)
    if (c->isa == SIB_ISA_AVX512VNNI) { /* whether or not this processor's maker has it chosen */
        sib_attention_kernels dot = var->attention;
        sib_attention_bf16_dot(&dot);
        check_chunk(c, &dot);
        check_poison(c, &dot);
    }
#endif
    check_merge(c, &ref->attention, &var->attention);
}

/* ---- bench: one chunk after another through a cache larger than the processor's ------------ */

typedef struct timed {
    const sib_attention_kernels *k;
    sib_attn_tile t;
    char *pages;
    size_t head_bytes;
    int chunks;
    float *scores, *part;
} timed;

static void run_chunks(void *arg)
{
    timed *x = arg;
    for (int i = 0; i < x->chunks; i++) {
        const void *heads[SIB_ATTN_CHUNK_PAGES];
        for (int p = 0; p < SIB_ATTN_CHUNK_PAGES; p++)
            heads[p] = x->pages + x->head_bytes * (size_t)(i * SIB_ATTN_CHUNK_PAGES + p);
        x->k->chunk[0](&x->t, i * SIB_ATTN_CHUNK, heads, x->scores, x->part);
    }
}

static void bench(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    (void)ref;
    static const struct {
        int dim, n_q, chunks;
    } cases[] = {{512, 8, 256}, {256, 2, 512}, {128, 4, 1024}, {512, 32, 32}, {256, 32, 64}};
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        int dim = cases[i].dim, n = cases[i].n_q;
        if (!kc_begin(c, "bench")) return;
        timed x = {.k = &var->attention, .chunks = c->isa == SIB_ISA_REF ? 2 : cases[i].chunks};
        x.head_bytes = sib_attn_head_bytes(false, dim, dim);
        size_t bytes = x.head_bytes * SIB_ATTN_CHUNK_PAGES * (size_t)x.chunks;
        x.pages = kc_alloc(c, bytes, 64);
        for (size_t b = 0; b < bytes; b += 2) memcpy(x.pages + b, &(uint16_t){(uint16_t)(0x3C00 + b % 509)}, 2);
        x.scores = kc_alloc(c, sizeof(float) * SIB_ATTN_CHUNK * SIB_ATTN_MAX_Q, 64);
        x.part = kc_alloc(c, sizeof(float) * (size_t)(sib_attn_part_stride(dim) * n), 64);
        int32_t lo[SIB_ATTN_MAX_Q] = {0}, hi[SIB_ATTN_MAX_Q];
        for (int q = 0; q < n; q++) hi[q] = x.chunks * SIB_ATTN_CHUNK;
        char *packed = kc_alloc(c, (size_t)(dim * n * 4), 64);
        const float *q = kc_floats(c, (size_t)(dim * n), KC_UNIT);
        for (int r = 0; r < n; r++) var->attention.pack_query[0](packed + r * dim * 4, q + r * dim, dim);
        x.t = (sib_attn_tile){n, dim, dim, 0.1f, packed, lo, hi};
        char name[64];
        snprintf(name, sizeof name, "attention bf16 dim %d, %d queries", dim, n);
        kc_time(c, name, run_chunks, &x, (double)bytes, 4.0 * dim * n * SIB_ATTN_CHUNK * x.chunks);
    }
}

const kc_family kc_attention = {"attention", check, bench};
