/* tests/unit/cpu_sparse_test.c - attention over chosen keys, the indexer's choice, one matrix for each head, routing by
 * sigmoid: against plain arithmetic in double, and bit for bit over threads, cuts of a call and instruction set levels. */
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static sib_device *device(sib_numerics numerics, int threads)
{
    sib_device *d = NULL;
    sib_err err;
    sib_cpu_options o = {.numerics = numerics, .threads = threads};
    if (sib_cpu_device_new(&d, &o, &err) != SIB_OK) fail_msg("%s", err.message);
    return d;
}

static float *random_floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)((double)(sib_splitmix64(&seed) >> 11) * 0x1p-52 - 1.0);
    return x;
}

/* Pages of one layer of one sequence. */
typedef struct cache {
    sib_device *d;
    sib_kv_geom g;
    void *pages[16];
    size_t page_bytes;
    int n_pages;
} cache;

static cache cache_new(sib_device *d, sib_kv_geom g, int positions)
{
    cache c = {.d = d, .g = g, .page_bytes = d->ops->kv_page_bytes(d, &g), .n_pages = (positions + SIB_KV_PAGE - 1) / SIB_KV_PAGE};
    assert_true(c.n_pages <= 16);
    for (int i = 0; i < c.n_pages; i++) assert_int_equal(d->ops->alloc(d, c.page_bytes, &c.pages[i], NULL), SIB_OK);
    return c;
}

static void cache_free(cache *c)
{
    for (int i = 0; i < c->n_pages; i++) c->d->ops->release(c->d, c->pages[i], c->page_bytes);
}

static sib_span span_of(const cache *c, int row0, int n, int pos0)
{
    return (sib_span){.kv = {c->pages, c->n_pages}, .row0 = row0, .n_rows = n, .pos0 = pos0};
}

/* Rows that see more than n_picks keys: each equals a dense row over a cache that holds only its chosen keys. Rows before
 * them equal the dense call. One row at a time and all together, one thread and three. */
static void chosen_keys_alone(void **state)
{
    (void)state;
    enum { N = 333, PICKS = 300, HEADS = 40, KD = 48, VD = 32 };
    sib_kv_geom g = {1, KD, VD};
    float *k = random_floats(N * KD, 1), *v = random_floats(N * VD, 2), *q = random_floats(N * HEADS * KD, 3);
    int32_t *picks = calloc(N * PICKS, sizeof *picks), lo[N] = {0}, hi[N];
    float *want = malloc(N * HEADS * VD * sizeof *want), *got = malloc(N * HEADS * VD * sizeof *got);
    uint64_t seed = 9;
    for (int r = 0; r < N; r++) {
        hi[r] = r + 1;
        if (r < PICKS) continue;
        for (int p = 0, n = 0; p <= r; p++) /* leave out r + 1 - PICKS of them */
            if (PICKS - n == r + 1 - p || (n < PICKS && sib_splitmix64(&seed) % (uint64_t)(r + 1) < PICKS)) picks[r * PICKS + n++] = p;
    }
    for (int mode = SIB_NUM_F32; mode <= SIB_NUM_BF16; mode++) {
        bool first = true;
        for (int threads = 1; threads <= 3; threads += 2) {
            sib_device *d = device((sib_numerics)mode, threads);
            cache c = cache_new(d, g, N), few = cache_new(d, g, PICKS);
            sib_span all = span_of(&c, 0, N, 0);
            d->ops->kv_append(d, &g, &all, 1, k, v);
            sib_attend a = {.spans = &all, .n_spans = 1, .n_rows = N, .geom = g, .n_heads = HEADS, .scale = 0.2f, .lo = lo, .hi = hi, .picks = picks, .n_picks = PICKS};
            d->ops->attend(d, got, q, &a);
            if (first) {
                memcpy(want, got, N * HEADS * VD * sizeof *want);
                sib_attend dense = a;
                dense.picks = NULL;
                dense.n_rows = all.n_rows = PICKS;
                d->ops->attend(d, got, q, &dense);
                assert_memory_equal(want, got, PICKS * HEADS * VD * sizeof *want);
                for (int r = PICKS; r < N; r++) {
                    float kk[PICKS * KD], vv[PICKS * VD];
                    for (int i = 0; i < PICKS; i++) {
                        memcpy(kk + i * KD, k + picks[r * PICKS + i] * KD, KD * sizeof *k);
                        memcpy(vv + i * VD, v + picks[r * PICKS + i] * VD, VD * sizeof *v);
                    }
                    sib_span s = span_of(&few, 0, PICKS, 0);
                    d->ops->kv_append(d, &g, &s, 1, kk, vv);
                    int32_t from = 0, to = PICKS;
                    s.n_rows = 1;
                    s.pos0 = PICKS - 1;
                    d->ops->attend(d, got, q + r * HEADS * KD, &(sib_attend){.spans = &s, .n_spans = 1, .n_rows = 1, .geom = g, .n_heads = HEADS, .scale = 0.2f, .lo = &from, .hi = &to});
                    assert_memory_equal(want + r * HEADS * VD, got, HEADS * VD * sizeof *want);
                }
                first = false;
            } else {
                assert_memory_equal(want, got, N * HEADS * VD * sizeof *want);
            }
            for (int r = PICKS - 3; r < N; r++) { /* a row alone */
                sib_span s = span_of(&c, 0, 1, r);
                d->ops->attend(d, got, q + r * HEADS * KD, &(sib_attend){.spans = &s, .n_spans = 1, .n_rows = 1, .geom = g, .n_heads = HEADS, .scale = 0.2f, .lo = lo, .hi = hi + r, .picks = picks + r * PICKS, .n_picks = PICKS});
                assert_memory_equal(want + r * HEADS * VD, got, HEADS * VD * sizeof *want);
            }
            cache_free(&c);
            cache_free(&few);
            sib_device_free(d);
        }
    }
    free(k);
    free(v);
    free(q);
    free(picks);
    free(want);
    free(got);
}

/* The choice against scores in double where they are not near a tie; cuts, threads and other rows change nothing. */
static void index_select_picks_the_largest(void **state)
{
    (void)state;
    enum { N = 200, K = 37, HEADS = 5, DIM = 24 };
    sib_kv_geom g = {1, DIM, 0};
    float *k = random_floats(N * DIM, 4), *q = random_floats(N * HEADS * DIM, 5), *w = random_floats(N * HEADS, 6), *fresh = malloc(N * HEADS * DIM * sizeof *fresh);
    int32_t *want = calloc(N * K, sizeof *want), *got = calloc(N * K, sizeof *got);
    for (int threads = 1; threads <= 3; threads += 2) {
        sib_device *d = device(SIB_NUM_F32, threads);
        cache c = cache_new(d, g, N);
        float *scores = malloc(SIB_INDEX_ROWS * 256 * sizeof *scores);
        sib_span s = span_of(&c, 0, N, 0);
        d->ops->kv_append(d, &g, &s, 1, k, k);
        sib_index x = {.spans = &s, .n_spans = 1, .n_rows = N, .n_heads = HEADS, .dim = DIM, .scale = 0.3f, .top_k = K, .scores = scores, .stride = 256};
        memcpy(fresh, q, N * HEADS * DIM * sizeof *q);
        d->ops->index_select(d, got, fresh, w, &x);
        if (threads == 1) memcpy(want, got, N * K * sizeof *got);
        assert_memory_equal(want, got, N * K * sizeof *got);
        for (int r = K; r < N; r++) {
            double e[N], least = INFINITY;
            bool in[N] = {false};
            for (int p = 0; p <= r; p++) {
                e[p] = 0;
                for (int h = 0; h < HEADS; h++) {
                    double dot = 0;
                    for (int i = 0; i < DIM; i++) dot += (double)q[(r * HEADS + h) * DIM + i] * k[p * DIM + i];
                    e[p] += w[r * HEADS + h] * fmax(dot * (double)0.3f, 0);
                }
            }
            for (int i = 0; i < K; i++) {
                assert_true(got[r * K + i] >= 0 && got[r * K + i] <= r && (i == 0 || got[r * K + i] > got[r * K + i - 1]));
                in[got[r * K + i]] = true;
                least = fmin(least, e[got[r * K + i]]);
            }
            for (int p = 0; p <= r; p++) assert_true(in[p] || e[p] <= least + 1e-5);
            /* alone */
            int32_t one[K];
            sib_span a = span_of(&c, 0, 1, r);
            sib_index y = x;
            y.spans = &a;
            y.n_rows = 1;
            d->ops->index_select(d, one, fresh + r * HEADS * DIM, w + r * HEADS, &y);
            assert_memory_equal(one, want + r * K, sizeof one);
        }
        free(scores);
        cache_free(&c);
        sib_device_free(d);
    }
    free(k);
    free(q);
    free(w);
    free(fresh);
    free(want);
    free(got);
}

static void ties_go_to_the_lowest_positions(void **state)
{
    (void)state;
    float s[300];
    int32_t got[300];
    for (int i = 0; i < 300; i++) s[i] = i % 2 ? -0.0f : 0.0f; /* equal */
    sib_top_positions(got, s, 300, 7);
    for (int i = 0; i < 7; i++) assert_int_equal(got[i], i);
    s[250] = 3;
    s[100] = -1;
    s[5] = NAN;
    s[6] = -INFINITY;
    sib_top_positions(got, s, 300, 6);
    static const int32_t want[] = {0, 1, 2, 3, 4, 250};
    assert_memory_equal(got, want, sizeof want);
    sib_top_positions(got, s, 300, 299); /* everything but NaN, which is below -inf */
    for (int i = 0; i < 299; i++) assert_int_equal(got[i], i < 5 ? i : i + 1);
    /* against sorting, many equal values */
    for (uint64_t seed = 1, round = 0; round < 200; round++) {
        int n = 1 + (int)(sib_splitmix64(&seed) % 300), k = 1 + (int)(sib_splitmix64(&seed) % (uint64_t)n);
        for (int i = 0; i < n; i++) s[i] = (float)((int)(sib_splitmix64(&seed) % 9) - 4) * 0.37f;
        sib_top_positions(got, s, n, k);
        for (int i = 0, held = 0; i < n; i++) {
            int before = 0;
            for (int j = 0; j < n; j++) before += s[j] > s[i] || (s[j] == s[i] && j < i);
            if (before < k) assert_int_equal(got[held++], i);
        }
    }
}

static void levels_give_the_same_scores(void **state)
{
    (void)state;
    enum { HEADS = 3, DIM = 40 };
    float *page = random_floats(64 * DIM, 7), *q = random_floats(HEADS * DIM, 8), *w = random_floats(HEADS, 9), want[64], got[64];
    for (int f32 = 0; f32 < 2; f32++)
        for (int isa = 0; isa <= sib_cpu_level(); isa++) {
            sib_kernels kernels;
            sib_kernels_init(&kernels, isa);
            kernels.sparse.index_scores[f32](isa == 0 ? want : got, q, w, page, HEADS, DIM, 0.5f);
            if (isa > 0) assert_memory_equal(want, got, sizeof want);
        }
    free(page);
    free(q);
    free(w);
}

static void heads_have_their_own_matrices(void **state)
{
    (void)state;
    enum { H = 6, OUT = 40, IN = 24, ROWS = 800, XS = 30, YS = 56 };
    float *m = random_floats(H * OUT * IN, 11), *x = random_floats((size_t)ROWS * H * XS, 12);
    float *y = calloc((size_t)ROWS * H * YS, sizeof *y), *z = calloc((size_t)ROWS * H * YS, sizeof *z);
    sib_matrix_src src = {.name = "test", .storage = SIB_PLAIN, .out = OUT, .in = IN, .n_experts = H, .dtype = SIB_F32, .data = m};
    for (int threads = 1; threads <= 3; threads += 2) {
        sib_device *d = device(SIB_NUM_F32, threads);
        sib_matrix *w;
        sib_err err;
        assert_int_equal(d->ops->matrix_new(d, &w, &src, &err), SIB_OK);
        d->ops->linear_heads(d, y, YS, w, x, XS, ROWS);
        for (int i = 0; i < ROWS * H; i++)
            for (int o = 0; o < YS; o++) {
                double e = 0;
                for (int j = 0; o < OUT && j < IN; j++) e += (double)m[(i % H * OUT + o) * IN + j] * x[i * XS + j];
                if (fabs(e - y[i * YS + o]) > 1e-5) fail_msg("row %d head %d column %d: %g, expected %g", i / H, i % H, o, y[i * YS + o], e);
            }
        for (int r = 0; r < ROWS; r += 97) {
            d->ops->linear_heads(d, z, YS, w, x + r * H * XS, XS, 1);
            assert_memory_equal(z, y + r * H * YS, H * YS * sizeof *z);
        }
        d->ops->matrix_free(d, w);
        sib_device_free(d);
    }
    free(m);
    free(x);
    free(y);
    free(z);
}

static void routing_by_sigmoid(void **state)
{
    (void)state;
    enum { N = 12 };
    int32_t idx[N];
    float weight[N], logits[N], bias[N];
    for (uint64_t seed = 3, round = 0; round < 300; round++) {
        int groups = (int[]){1, 3, 4, 12}[round % 4], top_groups = 1 + (int)(sib_splitmix64(&seed) % (uint64_t)groups);
        int each = N / groups, k = 1 + (int)(sib_splitmix64(&seed) % (uint64_t)(top_groups * each));
        bool normalise = round % 3 != 0;
        double s[N], c[N], sum = 0;
        bool open[N] = {false}, used[N] = {false};
        for (int i = 0; i < N; i++) {
            logits[i] = (float)((int)(sib_splitmix64(&seed) % 7) - 3);
            bias[i] = (float)((int)(sib_splitmix64(&seed) % 5) - 4); /* mostly negative */
            s[i] = 1 / (1 + exp(-(double)logits[i]));
            c[i] = (double)(float)((float)s[i] + bias[i]);
        }
        sib_route_sigmoid(idx, weight, logits, bias, N, groups, top_groups, k, normalise, 2.5f);
        for (int t = 0; t < top_groups; t++) { /* the best group that is left */
            int best = -1;
            double best_sum = 0;
            for (int g = 0; g < groups; g++) {
                double a = -INFINITY, b = -INFINITY;
                for (int i = g * each; i < (g + 1) * each; i++) {
                    if (c[i] > a) b = a, a = c[i];
                    else if (c[i] > b) b = c[i];
                }
                double both = each > 1 ? (double)((float)a + (float)b) : a;
                if (!open[g] && (best < 0 || both > best_sum + 1e-6)) best = g, best_sum = both;
            }
            open[best] = true;
        }
        for (int j = 0; j < k; j++) {
            int best = -1;
            for (int i = 0; i < N; i++)
                if (open[i / each] && !used[i] && (best < 0 || c[i] > c[best] + 1e-6)) best = i;
            used[best] = true;
            sum += s[best];
            assert_int_equal(idx[j], best);
        }
        for (int j = 0; j < k; j++) assert_true(fabs(weight[j] - (normalise ? s[idx[j]] / sum : s[idx[j]]) * 2.5) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_keys_alone),           cmocka_unit_test(index_select_picks_the_largest),
        cmocka_unit_test(ties_go_to_the_lowest_positions), cmocka_unit_test(levels_give_the_same_scores),
        cmocka_unit_test(heads_have_their_own_matrices),   cmocka_unit_test(routing_by_sigmoid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
