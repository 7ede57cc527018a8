/* kc_matmul.c - packed matrices, prepared activations and their product (kernels/matmul.h).
 *
 * The oracle is written from the file format alone (tensor/matrix.h, formats.md B.1): a bit
 * string per row, double arithmetic. It shares no code with packing or kernels. */
#include "kcheck.h"

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64

/* ---- sources ---------------------------------------------------------------------------- */

typedef struct format {
    sib_storage storage;
    sib_dtype dtype;
    int bits, group;
} format;

static const format formats[] = {
    {SIB_AFFINE, SIB_BF16, 4, 64},  {SIB_AFFINE, SIB_BF16, 4, 32}, {SIB_AFFINE, SIB_BF16, 4, 128},
    {SIB_AFFINE, SIB_F16, 4, 64},   {SIB_AFFINE, SIB_F32, 4, 32},  {SIB_AFFINE, SIB_BF16, 8, 64},
    {SIB_AFFINE, SIB_BF16, 8, 32},  {SIB_AFFINE, SIB_F32, 8, 128}, {SIB_AFFINE, SIB_F16, 8, 32},
    {SIB_AFFINE, SIB_BF16, 2, 64},  {SIB_AFFINE, SIB_BF16, 3, 32}, {SIB_AFFINE, SIB_BF16, 5, 64},
    {SIB_AFFINE, SIB_BF16, 6, 128}, {SIB_PLAIN, SIB_BF16, 0, 0},   {SIB_PLAIN, SIB_F16, 0, 0},
    {SIB_PLAIN, SIB_F32, 0, 0},
};

static const char *format_name(const format *f)
{
    static char name[32];
    if (f->storage == SIB_PLAIN)
        snprintf(name, sizeof name, "plain %s", sib_dtype_name(f->dtype));
    else
        snprintf(name, sizeof name, "q%d g%d %s", f->bits, f->group, sib_dtype_name(f->dtype));
    return name;
}

static void store_float(void *at, sib_dtype t, float v)
{
    uint16_t h = t == SIB_BF16 ? sib_bf16_of_f32(v) : sib_f16_of_f32(v);
    if (t == SIB_F32)
        memcpy(at, &v, sizeof v);
    else
        memcpy(at, &h, sizeof h);
}

static void *floats_of_type(kc *c, size_t n, sib_dtype t, float scale, kc_regime g)
{
    size_t each = (size_t)sib_dtype_bits(t) / 8;
    char *p = kc_alloc(c, n * each, each);
    for (size_t i = 0; i < n; i++) store_float(p + i * each, t, scale * kc_value(c, g));
    return p;
}

/* A random matrix in the file's layout, in buffers that end at unreadable pages. */
static sib_matrix_src make_source(kc *c, const format *f, int64_t out, int64_t in, int n_experts)
{
    sib_matrix_src s = {.name = "w", .storage = f->storage, .out = out, .in = in, .n_experts = n_experts, .dtype = f->dtype,
                        .bits = f->bits, .group = f->group};
    size_t rows = (size_t)(out * n_experts);
    if (f->storage == SIB_PLAIN) {
        s.data = floats_of_type(c, rows * (size_t)in, f->dtype, 1, KC_UNIT);
        return s;
    }
    size_t bytes = rows * (size_t)(in * f->bits / 8);
    unsigned char *q = kc_alloc(c, bytes, 4);
    for (size_t i = 0; i < bytes; i++) q[i] = (unsigned char)kc_bits(c);
    s.data = q;
    s.scales = floats_of_type(c, rows * (size_t)(in / f->group), f->dtype, 0.02f, KC_REAL);
    s.biases = floats_of_type(c, rows * (size_t)(in / f->group), f->dtype, 0.1f, KC_UNIT);
    return s;
}

static double stored_float(const void *base, int64_t i, sib_dtype t)
{
    const char *p = (const char *)base + i * (sib_dtype_bits(t) / 8);
    uint16_t h;
    float v;
    if (t == SIB_F32) {
        memcpy(&v, p, sizeof v);
        return (double)v;
    }
    memcpy(&h, p, sizeof h);
    return (double)(t == SIB_BF16 ? sib_f32_of_bf16(h) : sib_f32_of_f16(h));
}

/* Element (o, i) of expert e as scale * q + bias; plain: scale 1, bias 0. */
static void element(const sib_matrix_src *s, int e, int64_t o, int64_t i, double *scale, double *q, double *bias)
{
    int64_t row = e * s->out + o;
    *scale = 1;
    *bias = 0;
    if (s->storage == SIB_PLAIN) {
        *q = stored_float(s->data, row * s->in + i, s->dtype);
        return;
    }
    unsigned code = 0;
    for (int b = 0; b < s->bits; b++) {
        int64_t at = (row * s->in + i) * s->bits + b;
        code |= (((const unsigned char *)s->data)[at / 8] >> at % 8 & 1u) << b;
    }
    int64_t g = row * (s->in / s->group) + i / s->group;
    *q = code;
    *scale = stored_float(s->scales, g, s->dtype);
    *bias = stored_float(s->biases, g, s->dtype);
}

static sib_packed pack(kc *c, const sib_matrix_src *s, int expert)
{
    sib_packed p;
    sib_packed_plan(&p, s);
    unsigned char *tiles = kc_alloc(c, sib_packed_bytes(&p), 64);
    memset(tiles, 0xFF, sib_packed_bytes(&p));
    sib_pack_blocks(&p, tiles, s, expert, 0, p.blocks);
    p.tiles = tiles;
    return p;
}

static void check_pack(kc *c)
{
    static const int outs[] = {1, 16, 37}, ins[] = {32, 64, 96, 128, 384};
    for (size_t f = 0; f < SIB_COUNT(formats); f++)
        for (size_t o = 0; o < SIB_COUNT(outs); o++)
            for (size_t i = 0; i < SIB_COUNT(ins); i++) {
                int out = outs[o], in = ins[i];
                if (formats[f].group && in % formats[f].group) continue;
                if (!kc_begin(c, "pack %s out=%d in=%d", format_name(&formats[f]), out, in)) continue;
                sib_matrix_src s = make_source(c, &formats[f], out, in, 2);
                sib_packed p = pack(c, &s, 1);
                float *row = kc_alloc(c, (size_t)in * sizeof *row, 4), *want = kc_alloc(c, (size_t)in * sizeof *row, 4);
                for (int r = 0; r < out; r++) {
                    for (int k = 0; k < in; k++) {
                        double scale, q, bias;
                        element(&s, 1, r, k, &scale, &q, &bias);
                        want[k] = (float)(scale * q + bias); /* exact in double: 24 + 8 bits, then one rounding */
                    }
                    sib_packed_row(row, &p, r, 0, in);
                    kc_exact(c, "row", row, want, (size_t)in, sizeof *row);
                    int first = kc_below(c, in), n = 1 + kc_below(c, in - first);
                    sib_packed_row(row, &p, r, first, n);
                    kc_exact(c, "part of a row", row, want + first, (size_t)n, sizeof *row);
                }
            }
}

/* ---- activations ------------------------------------------------------------------------ */

static const char *const prep_names[SIB_N_PREPS] = {"f32", "bf16", "int8"};

static void special_values(kc *c, float *x, int n)
{
    static const float values[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-45f, -3e-39f, 3.4e38f, 1.1754944e-38f};
    for (int i = 0; i < 3; i++) x[kc_below(c, n)] = values[kc_below(c, (int)SIB_COUNT(values))];
}

/* The value of x that a prepared row stands for. */
static double prepared(const void *record, sib_prep prep, int k)
{
    if (prep == SIB_PREP_F32) return (double)((const sib_chunk_f32 *)record)[k / 64].x[k % 64];
    if (prep == SIB_PREP_BF16)
        return (double)sib_f32_of_bf16(((const sib_chunk_bf16 *)record)[k / 64].x[k % 64 / 8][k % 4][k % 8 / 4]);
    const sib_chunk_int8 *r = (const sib_chunk_int8 *)record + k / 64;
    return (double)r->sum[3] * r->x[k % 64 / 8][k % 2][k % 8 / 2];
}

static const float *chunk_sum(const void *record, sib_prep prep, int chunk)
{
    if (prep == SIB_PREP_F32) return ((const sib_chunk_f32 *)record)[chunk].sum;
    if (prep == SIB_PREP_BF16) return ((const sib_chunk_bf16 *)record)[chunk].sum;
    return ((const sib_chunk_int8 *)record)[chunk].sum;
}

static void check_prepared_row(kc *c, sib_prep prep, const void *got, const float *x, int in, bool round)
{
    for (int chunk = 0; chunk * 64 < in; chunk++) {
        double top = 0, sum[2] = {0, 0}, abs_sum = 0;
        for (int k = chunk * 64; k < chunk * 64 + 64; k++) {
            double v = k < in ? (double)x[k] : 0, is = prepared(got, prep, k);
            if (!(fabs(v) <= top) && !isnan(top)) top = fabs(v);
            if (prep == SIB_PREP_INT8) is = ((const sib_chunk_int8 *)got)[chunk].x[k % 64 / 8][k % 2][k % 8 / 2];
            sum[k % 64 / 32] += is;
            abs_sum += fabs(is);
            if (prep == SIB_PREP_INT8) continue;
            double want = round || prep == SIB_PREP_BF16 ? (double)sib_round_bf16((float)v) : v;
            if (!(is == want || (isnan(is) && isnan(want)))) kc_fail(c, "k=%d: got %g, want %g", k, is, want);
        }
        const float *s = chunk_sum(got, prep, chunk);
        if (isfinite(abs_sum) && abs_sum < 1e38)
            for (int i = 0; i < 3; i++)
                kc_order(c, "sum", (size_t)chunk, (double)s[i], i < 2 ? sum[i] : sum[0] + sum[1], abs_sum, 64, 0);
        if (prep != SIB_PREP_INT8) continue;
        float d = ((const sib_chunk_int8 *)got)[chunk].sum[3];
        if (!(isfinite(top) ? d == (float)top / 127.0f : isnan(d))) kc_fail(c, "chunk %d: d=%g for max %g", chunk, (double)d, top);
        for (int k = chunk * 64; k < chunk * 64 + 64 && d > 1e-37f; k++)
            if (fabs(prepared(got, prep, k) - (k < in ? (double)x[k] : 0)) > 0.5001 * (double)d)
                kc_fail(c, "k=%d: %g became %g", k, (double)x[k], prepared(got, prep, k));
    }
}

static void check_prepare(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    static const int ins[] = {1, 31, 32, 63, 64, 65, 96, 160, 704};
    for (int prep = 0; prep < SIB_N_PREPS; prep++)
        for (int round = 0; round < (prep == SIB_PREP_F32 ? 2 : 1); round++)
            for (size_t i = 0; i < SIB_COUNT(ins); i++)
                for (int g = 0; g <= KC_N_REGIMES; g++) {
                    int in = ins[i];
                    if (!kc_begin(c, "prepare %s%s in=%d %s", prep_names[prep], round ? " rounded" : "", in,
                                  g < KC_N_REGIMES ? kc_regime_name((kc_regime)g) : "special"))
                        continue;
                    float *x = kc_floats(c, (size_t)in, g < KC_N_REGIMES ? (kc_regime)g : KC_REAL);
                    if (g == KC_N_REGIMES) special_values(c, x, in);
                    size_t bytes = sib_prep_bytes((sib_prep)prep, in);
                    void *got = kc_alloc(c, bytes, 64), *want = kc_alloc(c, bytes, 64);
                    memset(got, 0, bytes);
                    memset(want, 0, bytes);
                    var->matmul.prepare[prep](got, x, in, round);
                    ref->matmul.prepare[prep](want, x, in, round);
                    check_prepared_row(c, (sib_prep)prep, got, x, in, round);
                    if (prep != SIB_PREP_INT8) continue;
                    for (int chunk = 0; chunk * 64 < in; chunk++) { /* a NaN d may have any payload */
                        sib_chunk_int8 *a = (sib_chunk_int8 *)got + chunk, *b = (sib_chunk_int8 *)want + chunk;
                        if (isnan(a->sum[3]) && isnan(b->sum[3])) a->sum[3] = b->sum[3];
                    }
                    kc_exact(c, "record", got, want, bytes, 1);
                }
}

/* ---- products --------------------------------------------------------------------------- */

typedef struct batch {
    sib_prep prep;
    int n;
    int64_t in;
    const void *row[SIB_ROWS_MAX];
} batch;

static void make_batch(kc *c, batch *b, const sib_kernels *k, sib_prep prep, bool round, int n, int64_t in, kc_regime g)
{
    size_t each = sib_prep_bytes(prep, in);
    char *records = kc_alloc(c, (size_t)n * each, 64);
    b->prep = prep;
    b->n = n;
    b->in = in;
    for (int r = 0; r < n; r++) {
        b->row[r] = records + (size_t)r * each;
        k->matmul.prepare[prep](records + (size_t)r * each, kc_floats(c, (size_t)in, g), in, round);
    }
    /* Mostly equal distances, as in a prompt; sometimes picked rows, as an expert gets them. */
    for (int r = n - 1; r > 0 && c->ordinal % 3 == 0; r--) {
        int other = kc_below(c, r + 1);
        const void *t = b->row[r];
        b->row[r] = b->row[other];
        b->row[other] = t;
    }
}

static void *make_panel(kc *c)
{
    return kc_alloc(c, SIB_PANEL_BYTES, 64);
}

/* Runs over all blocks with rows `stride` apart; what lies between the rows must stay. */
static float *run(kc *c, const sib_kernels *k, const sib_packed *w, const batch *b, int first, int n, void *panel)
{
    int64_t stride = w->out + 3;
    float *y = kc_alloc(c, (size_t)(n * stride) * sizeof *y, 4);
    for (int64_t i = 0; i < n * stride; i++) y[i] = -12345.0f;
    k->matmul.run[b->prep][w->packing](y, stride, w, 0, w->blocks, &(sib_rows){b->row + first, n}, panel);
    for (int r = 0; r < n; r++)
        for (int64_t i = w->out; i < stride; i++)
            if (y[r * stride + i] != -12345.0f) kc_fail(c, "row %d: wrote %d columns too far", r, (int)(i - w->out) + 1);
    return y;
}

static void check_exact(kc *c, const sib_matrix_src *s, const batch *b, const float *y, int64_t stride)
{
    double *x = kc_alloc(c, (size_t)s->in * sizeof *x, 8);
    for (int r = 0; r < b->n; r++) {
        double biggest = 1;
        for (int64_t i = 0; i < s->in; i++) {
            x[i] = prepared(b->row[r], b->prep, (int)i);
            if (fabs(x[i]) > biggest) biggest = fabs(x[i]);
        }
        for (int64_t o = 0; o < s->out; o++) {
            double sum = 0, sum_abs = 0;
            for (int64_t i = 0; i < s->in; i++) {
                double scale, q, bias;
                element(s, 0, o, i, &scale, &q, &bias);
                sum += (scale * q + bias) * x[i];
                sum_abs += (fabs(scale * q) + fabs(bias)) * fabs(x[i]);
            }
            /* vdpbf16ps takes subnormal inputs and products for zero: 2^-126 times the other factor each. */
            double tiny = b->prep == SIB_PREP_BF16 ? 256 * biggest * 0x1p-126 : 0x1p-149 * 256;
            kc_order(c, "y", (size_t)(r * stride + o), (double)y[r * stride + o], sum, sum_abs, 2 * (double)s->in, tiny);
        }
    }
}

/* The pairs of preparation and format that a level has. */
static bool has(const sib_kernels *k, sib_prep prep, const format *f)
{
    sib_matrix_src s = {.storage = f->storage, .dtype = f->dtype, .bits = f->bits, .group = f->group, .out = 1, .in = 128};
    sib_packed p;
    sib_packed_plan(&p, &s);
    return k->matmul.run[prep][p.packing] != NULL;
}

static bool same_kernel(const sib_kernels *a, const sib_kernels *b, sib_prep prep, const format *f)
{
    int packing = f->storage == SIB_AFFINE ? (f->bits <= 4 ? SIB_PACK_Q4 : SIB_PACK_Q8) : f->dtype == SIB_BF16 ? SIB_PACK_BF16 : SIB_PACK_F32;
    return a->matmul.run[prep][packing] == b->matmul.run[prep][packing];
}

static void check_values(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    static const int shapes[][2] = {{1, 32}, {15, 64}, {16, 128}, {17, 96}, {33, 192}, {48, 320}, {20, 704}, {5, 2176}};
    static const int counts[] = {1, 2, 3, 4, 6, 8, 11, 33};
    for (int prep = 0; prep < SIB_N_PREPS; prep++)
        for (size_t f = 0; f < SIB_COUNT(formats); f++)
            for (size_t i = 0; i < SIB_COUNT(shapes); i++)
                for (int g = 0; g < KC_N_REGIMES; g++) {
                    int out = shapes[i][0], in = shapes[i][1], n = counts[(i + (size_t)g + f) % SIB_COUNT(counts)];
                    if (!has(var, (sib_prep)prep, &formats[f]) || (formats[f].group && in % formats[f].group)) continue;
                    if (!kc_begin(c, "%s %s out=%d in=%d rows=%d %s", prep_names[prep], format_name(&formats[f]), out, in, n,
                                  kc_regime_name((kc_regime)g)))
                        continue;
                    sib_matrix_src s = make_source(c, &formats[f], out, in, 1);
                    sib_packed w = pack(c, &s, 0);
                    batch b;
                    make_batch(c, &b, var, (sib_prep)prep, false, n, in, (kc_regime)g);
                    float *y = run(c, var, &w, &b, 0, n, make_panel(c));
                    check_exact(c, &s, &b, y, out + 3);
                    if (prep == SIB_PREP_INT8) {
                        float *want = run(c, ref, &w, &b, 0, n, make_panel(c));
                        kc_exact(c, "same as ref", y, want, (size_t)(n * (out + 3)), sizeof *y);
                    }
                }
}

/* Rows among others = rows alone, for every count; blocks in parts = blocks at once. */
static void check_rows(kc *c, const sib_kernels *var)
{
    static const int shapes[][2] = {{40, 192}, {17, 1408}, {16, 4224}};
    for (int prep = 0; prep < SIB_N_PREPS; prep++)
        for (size_t f = 0; f < SIB_COUNT(formats); f++)
            for (size_t i = 0; i < SIB_COUNT(shapes); i++) {
                int out = shapes[i][0], in = shapes[i][1], step = i == 0 ? 1 : 7;
                int64_t stride = out + 3;
                if (!has(var, (sib_prep)prep, &formats[f]) || (i > 0 && c->isa == SIB_ISA_REF)) continue;
                if (formats[f].group && in % formats[f].group) continue;
                if (!kc_begin(c, "rows %s %s out=%d in=%d", prep_names[prep], format_name(&formats[f]), out, in)) continue;
                sib_matrix_src s = make_source(c, &formats[f], out, in, 1);
                sib_packed w = pack(c, &s, 0);
                void *panel = make_panel(c);
                batch b;
                make_batch(c, &b, var, (sib_prep)prep, prep == SIB_PREP_F32, ROWS + 6, in, KC_REAL);
                float *alone = kc_alloc(c, (size_t)((ROWS + 6) * stride) * sizeof *alone, 4);
                for (int r = 0; r < b.n; r++)
                    memcpy(alone + r * stride, run(c, var, &w, &b, r, 1, panel), (size_t)stride * sizeof *alone);
                for (int n = 2; n <= b.n; n += step) {
                    int first = kc_below(c, b.n - n + 1);
                    float *y = run(c, var, &w, &b, first, n, panel);
                    kc_exact(c, "rows together", y, alone + first * stride, (size_t)(n * stride), sizeof *y);
                }
                for (int64_t k = 0; k < w.blocks; k++) {
                    float *y = kc_alloc(c, (size_t)(b.n * SIB_BLOCK) * sizeof *y, 4);
                    var->matmul.run[prep][w.packing](y, SIB_BLOCK, &w, k, k + 1, &(sib_rows){b.row, b.n}, panel);
                    int64_t n = w.out - k * SIB_BLOCK < SIB_BLOCK ? w.out - k * SIB_BLOCK : SIB_BLOCK;
                    for (int r = 0; r < b.n; r++)
                        kc_exact(c, "one block", y + r * SIB_BLOCK, alone + r * stride + k * SIB_BLOCK, (size_t)n, sizeof *y);
                }
            }
}

static void check(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    check_pack(c);
    check_prepare(c, ref, var);
    check_values(c, ref, var);
    check_rows(c, var);
}

/* ---- time ------------------------------------------------------------------------------- */

/* Many matrices of 8192 x 2048 in turn, more than the caches near a core hold. */
enum { BENCH_OUT = 8192, BENCH_IN = 2048, BENCH_BYTES = 256 << 20 };

typedef struct bench {
    const sib_kernels *k;
    sib_pool *pool;
    sib_packed w;
    int n_matrices, next;
    batch b;
    float *y;
    char *panels;
} bench;

static void bench_part(void *ctx, int tid, int n_threads)
{
    bench *t = ctx;
    int64_t b0, b1;
    sib_packed w = t->w;
    w.tiles += (size_t)t->next * sib_packed_bytes(&w);
    sib_split(w.blocks, 1, tid, n_threads, &b0, &b1);
    t->k->matmul.run[t->b.prep][w.packing](t->y + b0 * SIB_BLOCK, w.out, &w, b0, b1, &(sib_rows){t->b.row, t->b.n},
                                           t->panels + (size_t)tid * SIB_PANEL_BYTES);
}

static void bench_call(void *ctx)
{
    bench *t = ctx;
    t->next = (t->next + 1) % t->n_matrices;
    sib_pool_run(t->pool, bench_part, t);
}

static void bench_format(kc *c, const sib_kernels *var, sib_prep prep, const format *f, sib_pool *pool)
{
    static const int counts[] = {1, 2, 3, 4, 6, 8, 16, 32, 512};
    sib_matrix_src s = {.storage = f->storage, .dtype = f->dtype, .bits = f->bits, .group = f->group, .out = BENCH_OUT, .in = BENCH_IN};
    bench t = {.k = var, .pool = pool};
    sib_packed_plan(&t.w, &s);
    size_t each = sib_packed_bytes(&t.w);
    t.n_matrices = (int)(BENCH_BYTES / each);
    unsigned char *tiles = sib_aligned_alloc(each * (size_t)t.n_matrices);
    t.w.tiles = tiles;
    for (size_t i = 0; i < each * (size_t)t.n_matrices; i += 8) {
        uint64_t v = (kc_bits(c) & 0x807F807F807F807Fu) | 0x3F803F803F803F80u; /* ordinary bf16 wherever one is read */
        memcpy(tiles + i, &v, 8);
    }
    t.panels = sib_aligned_alloc((size_t)sib_pool_threads(pool) * SIB_PANEL_BYTES);
    t.y = sib_aligned_alloc((size_t)SIB_ROWS_MAX * BENCH_OUT * sizeof(float));
    make_batch(c, &t.b, var, prep, false, SIB_ROWS_MAX, BENCH_IN, KC_REAL);
    for (size_t i = 0; i < SIB_COUNT(counts); i++) {
        char what[64];
        t.b.n = counts[i];
        snprintf(what, sizeof what, "%s %s %d threads %d rows", prep_names[prep], format_name(f), sib_pool_threads(pool), t.b.n);
        kc_time(c, what, bench_call, &t, (double)each, 2.0 * BENCH_OUT * BENCH_IN * t.b.n);
    }
    sib_aligned_free(tiles, each * (size_t)t.n_matrices);
    sib_aligned_free(t.panels, (size_t)sib_pool_threads(pool) * SIB_PANEL_BYTES);
    sib_aligned_free(t.y, (size_t)SIB_ROWS_MAX * BENCH_OUT * sizeof(float));
}

static void bench_all(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    static const format timed[] = {{SIB_AFFINE, SIB_BF16, 4, 64}, {SIB_AFFINE, SIB_BF16, 8, 64}, {SIB_PLAIN, SIB_BF16, 0, 0}};
    if (c->isa == SIB_ISA_REF || !kc_begin(c, "bench")) return; /* ordinal 1: rows at equal distances */
    for (int threads = 1; threads <= sib_cpu_physical_cores() && threads <= 2; threads++) {
        sib_pool *pool = NULL;
        if (sib_pool_new(&pool, threads, false, NULL) != SIB_OK) return;
        for (int prep = 0; prep < SIB_N_PREPS; prep++)
            for (size_t f = 0; f < SIB_COUNT(timed); f++)
                if (has(var, (sib_prep)prep, &timed[f]) && !same_kernel(ref, var, (sib_prep)prep, &timed[f])) {
                    sib_ceilings top;
                    sib_probe(&top, pool, c->isa);
                    printf("probe %d threads: read %.1f GB/s, int8 %.0f, bf16 %.0f, f32 %.0f Gop/s\n", threads, top.read_gbps,
                           top.int8_gops, top.bf16_gops, top.f32_gops);
                    bench_format(c, var, (sib_prep)prep, &timed[f], pool);
                }
        sib_pool_free(pool);
    }
}

const kc_family kc_matmul = {"matmul", check, bench_all};
