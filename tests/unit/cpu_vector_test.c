/* cpu_vector_test.c - the row and element operations of the CPU device: each against its definition in
 * ops.h, and the same bits on one thread and on three, for shapes on both sides of the size from
 * which the pool is used. The kernels' numerics are kcheck's matter. */
#include "base/rng.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng = 5;
static sib_device *one, *three;

static int setup(void **state)
{
    (void)state;
    return sib_cpu_device_new(&one, &(sib_cpu_options){.numerics = SIB_NUM_F32, .threads = 1}, NULL) ||
           sib_cpu_device_new(&three, &(sib_cpu_options){.numerics = SIB_NUM_BF16, .threads = 3}, NULL);
}

static int teardown(void **state)
{
    (void)state;
    sib_device_free(one);
    sib_device_free(three);
    return 0;
}

static float *randoms(size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)((double)(sib_splitmix64(&rng) >> 11) * 0x1p-51 - 2);
    return p;
}

static float *copy_of(const float *x, size_t n)
{
    float *p = malloc(n * sizeof *p);
    memcpy(p, x, n * sizeof *p);
    return p;
}

static void assert_close(const float *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 2e-6 * (1 + fabs(want[i]))))
            fail_msg("index %zu: %.9g, want %.9g", i, (double)got[i], want[i]);
}

/* y on one thread is right, and y on three the same; both are freed. */
static void settle(float *y1, float *y3, double *want, size_t n)
{
    assert_close(y1, want, n);
    assert_memory_equal(y1, y3, n * sizeof *y1);
    free(y1);
    free(y3);
    free(want);
}

static void elementwise(void **state)
{
    (void)state;
    for (size_t n = 1; n < 200000; n = n * 9 + 4) {
        float *a = randoms(n), *b = randoms(n);
        for (int op = 0; op < 7; op++) {
            float *y[2] = {malloc(n * sizeof **y), copy_of(a, n)}; /* the second in place */
            double *want = malloc(n * sizeof *want);
            for (int i = 0; i < 2; i++) {
                sib_device *d = i ? three : one;
                const float *x = i ? y[1] : a;
                int64_t count = (int64_t)n;
                switch (op) {
                case 0: d->ops->add(d, y[i], x, b, count); break;
                case 1: d->ops->mul(d, y[i], x, b, count); break;
                case 2: d->ops->scale(d, y[i], x, 0.3f, count); break;
                case 3: d->ops->clamp(d, y[i], x, -1, 0.5f, count); break;
                case 4: d->ops->softcap(d, y[i], x, 1.5f, count); break;
                default: d->ops->glu(d, y[i], x, b, op == 5 ? SIB_ACT_GELU_TANH : SIB_ACT_SILU, count); break;
                }
            }
            for (size_t i = 0; i < n; i++) {
                double x = a[i], w = b[i];
                double r[7] = {x + w,
                               x * w,
                               x * (double)0.3f,
                               x < -1    ? -1
                               : x > 0.5 ? 0.5
                                         : x,
                               1.5 * tanh(x / 1.5),
                               0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * w,
                               x / (1 + exp(-x)) * w};
                want[i] = r[op];
            }
            settle(y[0], y[1], want, n);
        }
        free(a);
        free(b);
    }
}

static void norms(void **state)
{
    (void)state;
    static const int shapes[][2] = {{1, 1}, {1, 2048}, {3, 77}, {40, 1152}, {300, 256}};
    for (size_t s = 0; s < SIB_COUNT(shapes); s++) {
        int rows = shapes[s][0], n = shapes[s][1];
        size_t all = (size_t)(rows * n);
        float *x = randoms(all), *h = randoms(all), *w = randoms((size_t)n), *b = randoms((size_t)n);
        for (int op = 0; op < 5; op++) {
            float *y[2] = {copy_of(op == 2 ? h : x, all), copy_of(op == 2 ? h : x, all)};
            double *want = malloc(all * sizeof *want);
            for (int i = 0; i < 2; i++) {
                sib_device *d = i ? three : one;
                if (op < 2) d->ops->rms_norm(d, y[i], y[i], op ? w : NULL, rows, n, 1e-6f);
                if (op == 2) d->ops->rms_norm_add(d, y[i], x, w, rows, n, 1e-6f, 0.7f);
                if (op > 2) d->ops->layer_norm(d, y[i], x, op == 3 ? w : NULL, op == 3 ? b : NULL, rows, n, 1e-6f);
            }
            for (int r = 0; r < rows; r++) {
                const float *row = x + r * n;
                double squares = 0, mean = 0, var = 0;
                for (int i = 0; i < n; i++) {
                    squares += (double)row[i] * row[i] / n;
                    mean += (double)row[i] / n;
                }
                for (int i = 0; i < n; i++) var += (row[i] - mean) * (row[i] - mean) / n;
                for (int i = 0; i < n; i++) {
                    double v = row[i] / sqrt(squares + 1e-6);
                    if (op == 1) v *= w[i];
                    if (op == 2) v = (h[r * n + i] + v * w[i]) * (double)0.7f;
                    if (op > 2) v = (row[i] - mean) / sqrt(var + 1e-6);
                    want[r * n + i] = op == 3 ? v * w[i] + b[i] : v;
                }
            }
            settle(y[0], y[1], want, all);
        }
        free(x);
        free(h);
        free(w);
        free(b);
    }
}

/* Norm and rotation of the heads inside wider rows; what lies between the heads stays. */
static void head_norm_rope(void **state)
{
    (void)state;
    static const struct {
        int rows, heads, dim, stride;
        sib_rope rope;
        int norm; /* 0 none, 1 ones, 2 weights */
    } shapes[] = {
        {1, 8, 256, 2048, {128, 128, 0}, 2}, {5, 2, 512, 1100, {64, 256, 0}, 2}, {90, 4, 64, 300, {32, 0, 0}, 1},
        {3, 3, 72, 216, {18, 18, 36}, 0},    {2, 1, 96, 96, {32, 0, 32}, 2},     {70, 8, 64, 512, {0, 0, 0}, 2},
    };
    for (size_t s = 0; s < SIB_COUNT(shapes); s++) {
        int rows = shapes[s].rows, dim = shapes[s].dim, stride = shapes[s].stride, pairs = shapes[s].rope.n_pairs;
        const sib_rope *rope = &shapes[s].rope;
        size_t all = (size_t)(rows * stride);
        float *x = randoms(all), *w = randoms((size_t)dim), *freq = randoms((size_t)pairs + 1);
        float *cs[2] = {randoms((size_t)(rows * pairs * 2 + 1)), randoms((size_t)(rows * pairs * 2 + 1))};
        int32_t *pos = malloc((size_t)rows * sizeof *pos);
        double *want = malloc(all * sizeof *want);
        float *y[2];
        for (int r = 0; r < rows; r++) pos[r] = r * 977 % 131072;
        for (int i = 0; i < 2; i++) {
            sib_device *d = i ? three : one;
            y[i] = copy_of(x, all);
            if (pairs) d->ops->rope_angles(d, cs[i], freq, pairs, pos, rows);
            d->ops->head_norm_rope(d, y[i], rows, shapes[s].heads, dim, stride, shapes[s].norm == 2 ? w : NULL,
                                   shapes[s].norm ? 1e-6f : 0, pairs ? rope : NULL, pairs ? cs[i] : NULL);
        }
        for (size_t i = 0; i < all; i++) want[i] = x[i];
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < shapes[s].heads; h++) {
                double *v = want + r * stride + h * dim, squares = 0;
                for (int i = 0; i < dim; i++) squares += v[i] * v[i] / dim;
                for (int i = 0; i < dim && shapes[s].norm; i++)
                    v[i] = v[i] / sqrt(squares + 1e-6) * (shapes[s].norm == 2 ? (double)w[i] : 1);
                for (int i = 0; i < pairs; i++) {
                    int at = rope->first + (rope->distance ? i : 2 * i),
                        other = at + (rope->distance ? rope->distance : 1);
                    double angle = (double)((float)pos[r] * freq[i]), a = v[at], b = v[other];
                    v[at] = a * cos(angle) - b * sin(angle);
                    v[other] = b * cos(angle) + a * sin(angle);
                }
            }
        settle(y[0], y[1], want, all);
        free(x);
        free(w);
        free(freq);
        free(cs[0]);
        free(cs[1]);
        free(pos);
    }
}

static void rows_and_copies(void **state)
{
    (void)state;
    static const int shapes[][2] = {{1, 3}, {9, 100}, {50, 1536}};
    for (size_t s = 0; s < SIB_COUNT(shapes); s++) {
        int rows = shapes[s][0], n = shapes[s][1], x_stride = n + 5, y_stride = 2 * n;
        size_t all = (size_t)(rows * n);
        float *x = randoms((size_t)(rows * x_stride)), *w = randoms((size_t)n);
        for (int op = 0; op < 2; op++) {
            float *y[2] = {copy_of(x, all), malloc(all * sizeof **y)};
            double *want = malloc(all * sizeof *want);
            if (op) {
                one->ops->mul_row(one, y[0], y[0], w, rows, n);
                three->ops->mul_row(three, y[1], x, w, rows, n);
            } else {
                one->ops->add_row(one, y[0], y[0], w, rows, n);
                three->ops->add_row(three, y[1], x, w, rows, n);
            }
            for (size_t i = 0; i < all; i++)
                want[i] = op ? (double)x[i] * w[i % (size_t)n] : (double)x[i] + w[i % (size_t)n];
            settle(y[0], y[1], want, all);
        }
        float *y = randoms((size_t)(rows * y_stride)), *before = copy_of(y, (size_t)(rows * y_stride));
        three->ops->copy_rows(three, y, y_stride, x, x_stride, rows, n);
        for (int r = 0; r < rows; r++) {
            assert_memory_equal(y + r * y_stride, x + r * x_stride, (size_t)n * sizeof *y);
            assert_memory_equal(y + r * y_stride + n, before + r * y_stride + n, (size_t)n * sizeof *y);
        }
        free(x);
        free(w);
        free(y);
        free(before);
    }
}

static void route_and_argmax(void **state)
{
    (void)state;
    enum { ROWS = 300, N = 128, K = 8 };
    float *x = randoms(ROWS * N), *per = randoms(N), *weight[2] = {randoms(ROWS * K), randoms(ROWS * K)};
    int32_t *idx[2] = {malloc(ROWS * K * sizeof **idx), malloc(ROWS * K * sizeof **idx)}, ids[2][ROWS];
    for (int i = 0; i < ROWS * N; i++) x[i] = floorf(4 * x[i]) / 4; /* ties */
    for (int i = 0; i < 2; i++) {
        sib_device *d = i ? three : one;
        d->ops->moe_route(d, idx[i], weight[i], x, per, ROWS, N, K);
        d->ops->argmax(d, ids[i], x, ROWS, N);
    }
    assert_memory_equal(idx[0], idx[1], ROWS * K * sizeof **idx);
    assert_memory_equal(weight[0], weight[1], ROWS * K * sizeof **weight);
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    for (int r = 0; r < ROWS; r++) {
        const float *s = x + r * N;
        assert_int_equal(ids[0][r], idx[0][r * K]);
        double sum = 0;
        for (int j = 0; j < K; j++) {
            int at = idx[0][r * K + j], rank = 0;
            for (int i = 0; i < N; i++) rank += s[i] > s[at] || (s[i] == s[at] && i < at);
            assert_int_equal(rank, j);
            sum += exp((double)s[at] - s[idx[0][r * K]]);
        }
        for (int j = 0; j < K; j++) {
            int at = idx[0][r * K + j];
            double want = exp((double)s[at] - s[idx[0][r * K]]) / sum * per[at];
            assert_close(&weight[0][r * K + j], &want, 1);
        }
    }
    free(x);
    free(per);
    for (int i = 0; i < 2; i++) {
        free(weight[i]);
        free(idx[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise),      cmocka_unit_test(norms),
        cmocka_unit_test(head_norm_rope),   cmocka_unit_test(rows_and_copies),
        cmocka_unit_test(route_and_argmax),
    };
    return cmocka_run_group_tests_name("cpu_vector", tests, setup, teardown);
}
