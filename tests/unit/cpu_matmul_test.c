/* cpu_matmul_test.c - linear, linear_glu, embed and moe of the CPU device at every level of this machine:
 * close to double arithmetic, and bitwise the same for any threads, slabs and neighbours. */
#include "base/cpu.h"
#include "base/rng.h"

#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 192, OUT = 200, FFN = 96, ROWS = 70, EXPERTS = 6, TOP_K = 3 };

static uint64_t rng = 7;

static float uniform(void)
{
    return (float)(sib_splitmix64(&rng) >> 40) * 0x1p-23f - 1.0f;
}

static void *need(void *p)
{
    assert_non_null(p);
    return p;
}

static float *floats(size_t n)
{
    float *x = need(malloc(n * sizeof *x));
    for (size_t i = 0; i < n; i++) x[i] = uniform();
    return x;
}

/* ---- sources and their values ----------------------------------------------------------- */

typedef struct source {
    sib_matrix_src src;
    double *value; /* [n_experts][out][in] */
} source;

static source affine(int64_t out, int64_t in, int n_experts, int bits, int group)
{
    size_t rows = (size_t)(out * n_experts), n_words = rows * (size_t)(in * bits / 32), n_scales = rows * (size_t)(in / group);
    uint32_t *q = need(malloc(n_words * sizeof *q));
    uint16_t *s = need(malloc(n_scales * sizeof *s)), *b = need(malloc(n_scales * sizeof *b));
    source m = {.value = need(malloc(rows * (size_t)in * sizeof(double)))};
    for (size_t i = 0; i < n_words; i++) q[i] = (uint32_t)sib_splitmix64(&rng);
    for (size_t i = 0; i < n_scales; i++) {
        s[i] = sib_bf16_of_f32(uniform() * 0.5f / (float)(1 << bits));
        b[i] = sib_bf16_of_f32(uniform() * 0.25f);
    }
    for (size_t i = 0; i < rows * (size_t)in; i++) {
        unsigned code = 0;
        for (int bit = 0; bit < bits; bit++) {
            size_t at = i * (size_t)bits + (size_t)bit;
            code |= (q[at / 32] >> at % 32 & 1u) << bit;
        }
        m.value[i] = (double)sib_f32_of_bf16(s[i / (size_t)group]) * code + (double)sib_f32_of_bf16(b[i / (size_t)group]);
    }
    m.src = (sib_matrix_src){.name = "affine", .storage = SIB_AFFINE, .out = out, .in = in, .n_experts = n_experts,
                             .dtype = SIB_BF16, .data = q, .scales = s, .biases = b, .bits = bits, .group = group};
    return m;
}

static source plain(int64_t out, int64_t in, sib_dtype t)
{
    size_t n = (size_t)(out * in);
    source m = {.value = need(malloc(n * sizeof(double)))};
    void *data = need(malloc(n * 4));
    for (size_t i = 0; i < n; i++) {
        float f = uniform();
        uint16_t h = t == SIB_BF16 ? sib_bf16_of_f32(f) : sib_f16_of_f32(f);
        if (t == SIB_F32)
            memcpy((char *)data + 4 * i, &f, 4);
        else
            memcpy((char *)data + 2 * i, &h, 2);
        m.value[i] = (double)(t == SIB_F32 ? f : t == SIB_BF16 ? sib_f32_of_bf16(h) : sib_f32_of_f16(h));
    }
    m.src = (sib_matrix_src){.name = "plain", .storage = SIB_PLAIN, .out = out, .in = in, .n_experts = 1, .dtype = t, .data = data};
    return m;
}

static void source_free(source *m)
{
    free((void *)m->src.data);
    free((void *)m->src.scales);
    free((void *)m->src.biases);
    free(m->value);
}

/* One expert of a source as a matrix of its own. */
static sib_matrix_src expert_source(const sib_matrix_src *s, int e)
{
    sib_matrix_src one = *s;
    int64_t rows = s->out * e;
    one.n_experts = 1;
    one.data = (const char *)s->data + rows * s->in * s->bits / 8;
    one.scales = (const char *)s->scales + rows * (s->in / s->group) * 2;
    one.biases = (const char *)s->biases + rows * (s->in / s->group) * 2;
    return one;
}

/* ---- devices ---------------------------------------------------------------------------- */

static sib_device *device(sib_numerics mode, int threads)
{
    sib_device *d = NULL;
    sib_err err = {0};
    if (sib_cpu_device_new(&d, &(sib_cpu_options){.numerics = mode, .threads = threads}, &err) != SIB_OK) fail_msg("%s", err.message);
    return d;
}

static sib_matrix *matrix(sib_device *d, const sib_matrix_src *s)
{
    sib_matrix *m = NULL;
    sib_err err = {0};
    if (d->ops->matrix_new(d, &m, s, &err) != SIB_OK) fail_msg("%s", err.message);
    assert_true(d->ops->matrix_bytes(d, s) > 0);
    return m;
}

/* Calls body for every level, mode and thread count; `keep` says when the first thread count of a mode runs. */
static void at_every_level(void (*body)(sib_numerics mode, int threads, bool first))
{
    for (int level = 0; level <= sib_cpu_detect(); level++) {
        assert_int_equal(setenv("SIB_ISA", sib_cpu_level_name(level), 1), 0);
        for (int mode = SIB_NUM_F32; mode <= SIB_NUM_INT8; mode++)
            for (int threads = 1; threads <= 3; threads++) body((sib_numerics)mode, threads, threads == 1);
    }
    unsetenv("SIB_ISA");
}

static void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0) fail_msg("%s: element %zu: %.9g, %.9g", what, i, (double)a[i], (double)b[i]);
}

/* Relative to the size of the terms: rounding x to bf16 costs 2^-9 of it, to int8 about 1/127 of the largest. */
static void assert_near(const float *y, const source *w, const float *x, int rows, sib_numerics mode)
{
    static const double allowed[] = {1e-5, 1e-2, 4e-2};
    int64_t out = w->src.out, in = w->src.in;
    for (int r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < in; i++) {
                double t = w->value[o * in + i] * (double)x[r * in + i];
                sum += t;
                size += t * t;
            }
            if (!(fabs(sum - (double)y[r * out + o]) <= allowed[mode] * sqrt(size) + 1e-6))
                fail_msg("row %d output %d: %g, want %g", r, (int)o, (double)y[r * out + o], sum);
        }
}

/* ---- tests ------------------------------------------------------------------------------ */

static void linear_body(sib_numerics mode, int threads, bool first)
{
    enum { N = 5 };
    static float *x, *kept[N];
    static source w[N];
    if (!x) {
        x = floats(ROWS * IN);
        w[0] = affine(OUT, IN, 1, 4, 64);
        w[1] = affine(33, IN, 1, 8, 32);
        w[2] = plain(16, IN, SIB_BF16);
        w[3] = plain(7, IN, SIB_F32);
        w[4] = affine(64, IN, 1, 3, 64);
    }
    sib_device *d = device(mode, threads);
    sib_matrix *m[N];
    float *y[N];
    for (int i = 0; i < N; i++) {
        m[i] = matrix(d, &w[i].src);
        y[i] = need(malloc((size_t)(ROWS * w[i].src.out) * sizeof(float)));
    }
    d->ops->linear(d, N, y, (const sib_matrix *const *)m, x, ROWS);
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)(ROWS * w[i].src.out);
        assert_near(y[i], &w[i], x, ROWS, mode);
        if (first) {
            free(kept[i]);
            kept[i] = need(malloc(n * sizeof(float)));
            memcpy(kept[i], y[i], n * sizeof(float));
        }
        assert_same(y[i], kept[i], n, "threads");
        float *one = need(malloc((size_t)w[i].src.out * sizeof(float)));
        for (int r = 0; r < ROWS; r += 23) { /* alone, and without the other matrices */
            d->ops->linear(d, 1, &one, (const sib_matrix *const *)&m[i], x + r * IN, 1);
            assert_same(one, y[i] + r * w[i].src.out, (size_t)w[i].src.out, "row alone");
        }
        free(one);
    }
    for (int i = 0; i < N; i++) {
        d->ops->matrix_free(d, m[i]);
        free(y[i]);
    }
    assert_int_equal(d->ops->sync(d, NULL), SIB_OK);
    sib_device_free(d);
}

static void linear_is_close_and_independent(void **state)
{
    (void)state;
    at_every_level(linear_body);
}

/* More rows than one slab holds. */
static void slabs_change_nothing(void **state)
{
    (void)state;
    enum { MANY = 1100 };
    source w = affine(24, 64, 1, 4, 64);
    float *x = floats(MANY * 64), *y = floats(MANY * 24), one[24], *p = one;
    for (int mode = 0; mode <= SIB_NUM_INT8; mode++) {
        sib_device *d = device((sib_numerics)mode, 2);
        sib_matrix *m = matrix(d, &w.src);
        d->ops->linear(d, 1, &y, (const sib_matrix *const *)&m, x, MANY);
        for (int r = 0; r < MANY; r += 37) {
            d->ops->linear(d, 1, &p, (const sib_matrix *const *)&m, x + r * 64, 1);
            assert_same(one, y + r * 24, 24, "slab");
        }
        d->ops->matrix_free(d, m);
        sib_device_free(d);
    }
    free(x);
    free(y);
    source_free(&w);
}

static void glu_body(sib_numerics mode, int threads, bool first)
{
    (void)first;
    source g = affine(OUT, IN, 1, 4, 64), u = mode == SIB_NUM_BF16 ? plain(OUT, IN, SIB_BF16) : affine(OUT, IN, 1, 8, 64);
    float *x = floats(ROWS * IN), *y = floats(ROWS * OUT), *yg = floats(ROWS * OUT), *yu = floats(ROWS * OUT);
    sib_device *d = device(mode, threads);
    sib_matrix *mg = matrix(d, &g.src), *mu = matrix(d, &u.src);
    for (int act = SIB_ACT_GELU_TANH; act <= SIB_ACT_SILU; act++) {
        d->ops->linear_glu(d, y, mg, mu, (sib_act)act, x, ROWS);
        d->ops->linear(d, 2, (float *[]){yg, yu}, (const sib_matrix *[]){mg, mu}, x, ROWS);
        for (int i = 0; i < ROWS * OUT; i++) {
            double a = (double)yg[i], h;
            h = act == SIB_ACT_SILU ? a / (1 + exp(-a)) : 0.5 * a * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)));
            double want = h * (double)yu[i];
            if (!(fabs((double)y[i] - want) <= 1e-5 * (1 + fabs(want)))) fail_msg("%d: %g, want %g", i, (double)y[i], want);
        }
        float one[OUT];
        d->ops->linear_glu(d, one, mg, mu, (sib_act)act, x + 5 * IN, 1);
        assert_same(one, y + 5 * OUT, OUT, "row alone");
    }
    d->ops->matrix_free(d, mg);
    d->ops->matrix_free(d, mu);
    sib_device_free(d);
    source_free(&g);
    source_free(&u);
    free(x), free(y), free(yg), free(yu);
}

static void glu_is_linear_twice(void **state)
{
    (void)state;
    at_every_level(glu_body);
}

static void embed_body(sib_numerics mode, int threads, bool first)
{
    (void)first;
    source t = affine(50, IN, 1, 6, 32);
    int32_t ids[] = {0, 49, 16, 15, 7};
    float y[5 * IN];
    sib_device *d = device(mode, threads);
    sib_matrix *m = matrix(d, &t.src);
    d->ops->embed(d, y, m, ids, 5, 1.5f, 0, 0);
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < IN; i++) assert_true(y[r * IN + i] == (float)t.value[ids[r] * IN + i] * 1.5f);
    d->ops->embed(d, y, m, ids, 5, 1.0f, 40, 30);
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < 30; i++) assert_true(y[r * 30 + i] == (float)t.value[ids[r] * IN + 40 + i]);
    d->ops->matrix_free(d, m);
    sib_device_free(d);
    source_free(&t);
}

static void embed_is_exact(void **state)
{
    (void)state;
    at_every_level(embed_body);
}

/* moe = its experts one by one through linear_glu and linear, added in the order of top_k. */
static void moe_body(sib_numerics mode, int threads, bool first)
{
    (void)first;
    source g = affine(FFN, IN, EXPERTS, 4, 64), u = affine(FFN, IN, EXPERTS, 4, 64), w = affine(IN, FFN, EXPERTS, 8, 32);
    float *x = floats(ROWS * IN), *y = floats(ROWS * IN), *weight = floats(ROWS * TOP_K);
    int32_t idx[ROWS * TOP_K];
    for (int r = 0; r < ROWS; r++) {
        int at = (int)(sib_splitmix64(&rng) % EXPERTS);
        for (int j = 0; j < TOP_K; j++) idx[r * TOP_K + j] = r < 8 ? j : (at + 2 * j) % EXPERTS;
    }
    sib_device *d = device(mode, threads);
    sib_matrix *mg = matrix(d, &g.src), *mu = matrix(d, &u.src), *mw = matrix(d, &w.src);
    sib_moe m = {.gate = mg, .up = mu, .down = mw, .act = SIB_ACT_SILU, .top_k = TOP_K};
    d->ops->moe(d, y, &m, x, idx, weight, ROWS);
    sib_matrix *eg[EXPERTS], *eu[EXPERTS], *ew[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        sib_matrix_src sg = expert_source(&g.src, e), su = expert_source(&u.src, e), sw = expert_source(&w.src, e);
        eg[e] = matrix(d, &sg), eu[e] = matrix(d, &su), ew[e] = matrix(d, &sw);
    }
    for (int r = 0; r < ROWS; r++) {
        float want[IN], h[FFN], out[IN], *p = out;
        for (int j = 0; j < TOP_K; j++) {
            int e = idx[r * TOP_K + j];
            d->ops->linear_glu(d, h, eg[e], eu[e], SIB_ACT_SILU, x + r * IN, 1);
            d->ops->linear(d, 1, &p, (const sib_matrix *const *)&ew[e], h, 1);
            for (int i = 0; i < IN; i++) {
                float t = weight[r * TOP_K + j] * out[i];
                want[i] = j == 0 ? t : want[i] + t;
            }
        }
        assert_same(y + r * IN, want, IN, "moe");
    }
    for (int e = 0; e < EXPERTS; e++) {
        d->ops->matrix_free(d, eg[e]);
        d->ops->matrix_free(d, eu[e]);
        d->ops->matrix_free(d, ew[e]);
    }
    d->ops->matrix_free(d, mg);
    d->ops->matrix_free(d, mu);
    d->ops->matrix_free(d, mw);
    sib_device_free(d);
    source_free(&g), source_free(&u), source_free(&w);
    free(x), free(y), free(weight);
}

static void moe_is_its_experts(void **state)
{
    (void)state;
    at_every_level(moe_body);
}

static void hostile_sources_are_errors(void **state)
{
    (void)state;
    sib_device *d = device(SIB_NUM_BF16, 1);
    uint32_t word[64] = {0};
    sib_matrix_src good = {.name = "w", .storage = SIB_AFFINE, .out = 1, .in = 64, .n_experts = 1, .dtype = SIB_BF16,
                           .data = word, .scales = word, .biases = word, .bits = 4, .group = 64};
    struct {
        sib_matrix_src src;
        sib_status want;
    } cases[] = {{good, SIB_EFORMAT},       {good, SIB_EFORMAT},       {good, SIB_EUNSUPPORTED}, {good, SIB_EUNSUPPORTED},
                 {good, SIB_EUNSUPPORTED},  {good, SIB_EFORMAT},       {good, SIB_ENOMEM}};
    cases[0].src.out = 0;
    cases[1].src.in = (int64_t)1 << 40;
    cases[2].src.bits = 7;
    cases[3].src.group = 16;
    cases[4].src.dtype = SIB_I32;
    cases[5].src.in = 96;
    cases[6].src.out = INT32_MAX, cases[6].src.in = INT32_MAX - 63, cases[6].src.n_experts = INT32_MAX;
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        sib_matrix *m = (sib_matrix *)word;
        sib_err err = {0};
        assert_int_equal(d->ops->matrix_new(d, &m, &cases[i].src, &err), cases[i].want);
        assert_null(m);
        assert_true(err.message[0] != 0);
        assert_int_equal(d->ops->matrix_bytes(d, &cases[i].src), 0);
    }
    sib_device_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_close_and_independent),
        cmocka_unit_test(slabs_change_nothing),
        cmocka_unit_test(glu_is_linear_twice),
        cmocka_unit_test(embed_is_exact),
        cmocka_unit_test(moe_is_its_experts),
        cmocka_unit_test(hostile_sources_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
