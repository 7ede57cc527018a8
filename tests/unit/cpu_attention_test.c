/* cpu_attention_test.c - kv_append, kv_read and attend of the CPU device: against attention in double
 * precision, and the promise that a row's bits depend on nothing but the row and the keys it sees:
 * not on threads, on how many rows a call has, on where prefill was cut, or on unused memory. */
#include "base/rng.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng = 11;

static int below(int n)
{
    return (int)(sib_splitmix64(&rng) % (uint64_t)n);
}

static float *randoms(size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)((double)(sib_splitmix64(&rng) >> 11) * 0x1p-52 - 1);
    return p;
}

/* One sequence of n positions: q, k, v of every row, and what the row may see. */
typedef struct text {
    sib_kv_geom g;
    int n_heads, n;
    float scale, *q, *k, *v;
    int32_t *lo, *hi;
} text;

static text new_text(sib_kv_geom g, int n_heads, int n)
{
    text t = {g,
              n_heads,
              n,
              0.3f,
              randoms((size_t)(n * n_heads * g.k_dim)),
              randoms((size_t)(n * g.n_kv_heads * g.k_dim)),
              randoms((size_t)(n * g.n_kv_heads * g.v_dim)),
              calloc((size_t)n, 4),
              calloc((size_t)n, 4)};
    for (int i = 0; i < n; i++) t.hi[i] = i + 1;
    return t;
}

static void free_text(text *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->lo);
    free(t->hi);
}

typedef struct cache {
    sib_device *d;
    sib_kv_geom g;
    size_t page_bytes;
    void **pages;
    int n_pages;
} cache;

static cache new_cache(sib_numerics mode, int threads, sib_kv_geom g, int n_pages)
{
    cache c = {.g = g, .n_pages = n_pages};
    assert_int_equal(sib_cpu_device_new(&c.d, &(sib_cpu_options){.numerics = mode, .threads = threads}, NULL), SIB_OK);
    c.page_bytes = c.d->ops->kv_page_bytes(c.d, &g);
    c.pages = calloc((size_t)n_pages, sizeof *c.pages);
    for (int i = 0; i < n_pages; i++) {
        assert_int_equal(c.d->ops->alloc(c.d, c.page_bytes, &c.pages[i], NULL), SIB_OK);
        memset(c.pages[i], 0xFF, c.page_bytes); /* NaN wherever nothing was stored */
    }
    return c;
}

static void free_cache(cache *c)
{
    for (int i = 0; i < c->n_pages; i++) c->d->ops->release(c->d, c->pages[i], c->page_bytes);
    free(c->pages);
    sib_device_free(c->d);
}

/* Appends rows [from, from + n) and attends with them in one call; out [n][n_heads][v_dim]. */
static void step(cache *c, const text *t, int from, int n, float *out)
{
    sib_span s = {{c->pages, c->n_pages}, 0, n, from};
    c->d->ops->kv_append(c->d, &t->g, &s, 1, t->k + from * t->g.n_kv_heads * t->g.k_dim,
                         t->v + from * t->g.n_kv_heads * t->g.v_dim);
    sib_attend a = {.spans = &s, .n_spans = 1, .n_rows = n, .geom = t->g, .n_heads = t->n_heads, .scale = t->scale, .lo = t->lo + from, .hi = t->hi + from};
    c->d->ops->attend(c->d, out, t->q + from * t->n_heads * t->g.k_dim, &a);
}

/* All rows in blocks of at most `block` (0: of random sizes). */
static float *run(sib_numerics mode, int threads, const text *t, int block, int n_pages)
{
    cache c = new_cache(mode, threads, t->g, n_pages);
    size_t row = (size_t)(t->n_heads * t->g.v_dim);
    float *out = malloc(sizeof *out * row * (size_t)t->n);
    for (int from = 0; from < t->n;) {
        int n = block ? block : 1 + below(100);
        if (n > t->n - from) n = t->n - from;
        step(&c, t, from, n, out + row * (size_t)from);
        from += n;
    }
    assert_int_equal(c.d->ops->sync(c.d, NULL), SIB_OK);
    free_cache(&c);
    return out;
}

static void assert_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0) fail_msg("index %zu: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

static double rounded(float x, sib_numerics mode)
{
    return (double)(mode == SIB_NUM_F32 ? x : sib_round_bf16(x));
}

static void assert_exact(const text *t, sib_numerics mode, int row, const float *out)
{
    const sib_kv_geom *g = &t->g;
    double *p = malloc(sizeof *p * (size_t)t->n);
    for (int h = 0; h < t->n_heads; h++) {
        int kv = h / (t->n_heads / g->n_kv_heads);
        double most = -INFINITY, sum = 0, abs_dot = 0;
        for (int j = t->lo[row]; j < t->hi[row]; j++) {
            double dot = 0, magnitude = 0;
            for (int d = 0; d < g->k_dim; d++) {
                double x = rounded(t->q[(row * t->n_heads + h) * g->k_dim + d], mode) *
                           rounded(t->k[(j * g->n_kv_heads + kv) * g->k_dim + d], mode);
                dot += x;
                magnitude += fabs(x);
            }
            p[j] = dot * (double)t->scale;
            most = fmax(most, p[j]);
            abs_dot = fmax(abs_dot, magnitude);
        }
        for (int j = t->lo[row]; j < t->hi[row]; j++) sum += p[j] = exp(p[j] - most);
        double allowed = expm1(2 * (g->k_dim + 2) * 0x1p-24 * (double)t->scale * abs_dot) + 300 * 0x1p-24;
        for (int i = 0; i < g->v_dim; i++) {
            double want = 0;
            for (int j = t->lo[row]; j < t->hi[row]; j++)
                want += p[j] / sum * rounded(t->v[(j * g->n_kv_heads + kv) * g->v_dim + i], mode);
            float got = out[h * g->v_dim + i];
            if (!(fabs((double)got - want) <= allowed))
                fail_msg("row %d head %d column %d: %.9g, exact %.9g", row, h, i, (double)got, want);
        }
    }
    free(p);
}

static const struct {
    sib_kv_geom g;
    int n_heads, window;
} shapes[] = {
    {{1, 64, 64}, 8, 0}, {{2, 72, 72}, 2, 100},  {{4, 32, 32}, 8, 64},
    {{1, 80, 96}, 1, 0}, {{1, 576, 512}, 40, 0}, {{2, 128, 128}, 12, 130},
};

static void all_ways_of_running_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIB_COUNT(shapes); i++)
        for (int m = 0; m < 2; m++) {
            sib_numerics mode = m ? SIB_NUM_BF16 : SIB_NUM_F32;
            text t = new_text(shapes[i].g, shapes[i].n_heads, shapes[i].g.k_dim > 200 ? 70 : 530);
            for (int r = 0; r < t.n && shapes[i].window; r++)
                t.lo[r] = r >= shapes[i].window ? r - shapes[i].window + 1 : 0;
            size_t row = (size_t)(t.n_heads * t.g.v_dim), all = row * (size_t)t.n;
            int pages = (t.n + 63) / 64, ring = shapes[i].window ? (shapes[i].window + 99 + 63) / 64 + 1 : pages;
            float *decode = run(mode, 1, &t, 1, ring), *prefill = run(mode, 1, &t, t.n, pages);
            float *two = run(mode, 2, &t, t.n, pages), *three = run(mode, 3, &t, 1, ring),
                  *mixed = run(mode, 2, &t, 0, ring);
            assert_same(prefill, decode, all);
            assert_same(two, decode, all);
            assert_same(three, decode, all);
            assert_same(mixed, decode, all);
            for (int r = 0; r < t.n; r += r < 3 ? 1 : 61) assert_exact(&t, mode, r, decode + row * (size_t)r);
            free(decode);
            free(prefill);
            free(two);
            free(three);
            free(mixed);
            free_text(&t);
        }
}

/* Rows see later rows of their block (pictures, diffusion canvases), each another range. */
static void any_visibility(void **state)
{
    (void)state;
    text t = new_text((sib_kv_geom){2, 64, 64}, 8, 700);
    for (int r = 0; r < t.n; r++) {
        t.lo[r] = below(t.n);
        t.hi[r] = t.lo[r] + 1 + below(t.n - t.lo[r]);
        if (r >= 300 && r < 400) {
            t.lo[r] = 290;
            t.hi[r] = 400;
        }
    }
    size_t row = (size_t)(t.n_heads * t.g.v_dim);
    float *whole = run(SIB_NUM_BF16, 2, &t, t.n, 11), *alone = malloc(sizeof *alone * row);
    cache c = new_cache(SIB_NUM_BF16, 2, t.g, 11);
    float *all = malloc(sizeof *all * row * (size_t)t.n);
    step(&c, &t, 0, t.n, all);
    assert_same(all, whole, row * (size_t)t.n);
    for (int r = 0; r < t.n; r += 7) {
        sib_span s = {{c.pages, c.n_pages}, 0, 1, r};
        sib_attend a = {.spans = &s, .n_spans = 1, .n_rows = 1, .geom = t.g, .n_heads = t.n_heads, .scale = t.scale, .lo = t.lo + r, .hi = t.hi + r};
        c.d->ops->attend(c.d, alone, t.q + (size_t)(r * t.n_heads * t.g.k_dim), &a);
        assert_same(alone, whole + row * (size_t)r, row);
        assert_exact(&t, SIB_NUM_BF16, r, alone);
    }
    free_cache(&c);
    free(all);
    free(alone);
    free(whole);
    free_text(&t);
}

/* Several sequences of different lengths in one call, against each alone. */
static void spans_do_not_meet(void **state)
{
    (void)state;
    enum { N = 5 };
    static const int lengths[N] = {1, 300, 64, 520, 65}, last[N] = {1, 4, 1, 3, 2};
    sib_kv_geom g = {2, 64, 64};
    text t[N];
    cache c[N];
    int rows = 0, n_heads = 4;
    size_t row = (size_t)(n_heads * g.v_dim), q_row = (size_t)(n_heads * g.k_dim);
    float *want = calloc(64, row * sizeof *want), *got = calloc(64, row * sizeof *got),
          *q = calloc(64, q_row * sizeof *q);
    int32_t lo[64], hi[64];
    sib_span spans[N];
    for (int i = 0; i < N; i++) {
        t[i] = new_text(g, n_heads, lengths[i]);
        c[i] = new_cache(SIB_NUM_BF16, 1 + i % 3, g, 9);
        int before = lengths[i] - last[i];
        float *skip = malloc(sizeof *skip * row * (size_t)lengths[i]);
        if (before) step(&c[i], &t[i], 0, before, skip);
        free(skip);
        step(&c[i], &t[i], before, last[i], want + row * (size_t)rows);
        memcpy(q + q_row * (size_t)rows, t[i].q + q_row * (size_t)before, q_row * (size_t)last[i] * sizeof *q);
        memcpy(lo + rows, t[i].lo + before, (size_t)last[i] * sizeof *lo);
        memcpy(hi + rows, t[i].hi + before, (size_t)last[i] * sizeof *hi);
        spans[i] = (sib_span){{c[i].pages, c[i].n_pages}, rows, last[i], before};
        rows += last[i];
    }
    for (int i = 0; i < 3; i++) {
        sib_attend a = {.spans = spans, .n_spans = N, .n_rows = rows, .geom = g, .n_heads = n_heads, .scale = t[0].scale, .lo = lo, .hi = hi};
        c[i].d->ops->attend(c[i].d, got, q, &a);
        assert_same(got, want, row * (size_t)rows);
    }
    for (int i = 0; i < N; i++) {
        free_text(&t[i]);
        free_cache(&c[i]);
    }
    free(want);
    free(got);
    free(q);
}

/* More chunks than the buffer of partial results holds: several waves, against one thread, which has none. */
static void long_context_in_waves(void **state)
{
    (void)state;
    int n = 8000, rows = 7;
    text t = new_text((sib_kv_geom){1, 8, 512}, 32, n);
    float *out[2];
    for (int i = 0; i < 2; i++) {
        cache c = new_cache(SIB_NUM_F32, 1 + i, t.g, (n + 63) / 64);
        sib_span s = {{c.pages, c.n_pages}, 0, n, 0};
        c.d->ops->kv_append(c.d, &t.g, &s, 1, t.k, t.v);
        s = (sib_span){{c.pages, c.n_pages}, 0, rows, n - rows};
        sib_attend a = {.spans = &s, .n_spans = 1, .n_rows = rows, .geom = t.g, .n_heads = t.n_heads, .scale = t.scale, .lo = t.lo + n - rows, .hi = t.hi + n - rows};
        out[i] = malloc(sizeof **out * (size_t)(rows * t.n_heads * t.g.v_dim));
        c.d->ops->attend(c.d, out[i], t.q + (size_t)(n - rows) * (size_t)(t.n_heads * t.g.k_dim), &a);
        free_cache(&c);
    }
    assert_same(out[1], out[0], (size_t)(rows * t.n_heads * t.g.v_dim));
    free(out[0]);
    free(out[1]);
    free_text(&t);
}

static void append_and_read(void **state)
{
    (void)state;
    for (int m = 0; m < 3; m++) {
        text t = new_text((sib_kv_geom){3, 72, 40}, 3, 500);
        cache c = new_cache((sib_numerics)m, 2, t.g, 5); /* a ring: the last 320 positions */
        for (int from = 0; from < t.n; from += 100) {
            sib_span s[2] = {{{c.pages, c.n_pages}, 0, 37, from}, {{c.pages, c.n_pages}, 37, 63, from + 37}};
            c.d->ops->kv_append(c.d, &t.g, s, 2, t.k + from * 3 * 72, t.v + from * 3 * 40);
        }
        int first = 190, n = 310;
        float *k = malloc(sizeof *k * (size_t)(3 * n * 72)), *v = malloc(sizeof *v * (size_t)(3 * n * 40));
        sib_kv_view view = {c.pages, c.n_pages};
        c.d->ops->kv_read(c.d, &t.g, &view, first, n, k, v);
        for (int h = 0; h < 3; h++)
            for (int p = 0; p < n; p++) {
                for (int i = 0; i < 72; i++)
                    assert_true((double)k[(h * n + p) * 72 + i] ==
                                rounded(t.k[((first + p) * 3 + h) * 72 + i], (sib_numerics)m));
                for (int i = 0; i < 40; i++)
                    assert_true((double)v[(h * n + p) * 40 + i] ==
                                rounded(t.v[((first + p) * 3 + h) * 40 + i], (sib_numerics)m));
            }
        c.d->ops->kv_read(c.d, &t.g, &view, 499, 1, NULL, v);
        c.d->ops->kv_read(c.d, &t.g, &view, 499, 1, k, NULL);
        free(k);
        free(v);
        free_cache(&c);
        free_text(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_and_read),       cmocka_unit_test(all_ways_of_running_agree),
        cmocka_unit_test(any_visibility),        cmocka_unit_test(spans_do_not_meet),
        cmocka_unit_test(long_context_in_waves),
    };
    return cmocka_run_group_tests_name("cpu_attention", tests, NULL, NULL);
}
