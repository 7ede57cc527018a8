/* tests/unit/denoise_ops_test.c - soft_embed and choose of the CPU device against double precision, and the kernels of every
 * level against the scalar ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float uniform(uint64_t *state, float scale)
{
    return scale * ((float)(sib_splitmix64(state) >> 40) * 0x1p-23f - 1);
}

static float *random_floats(uint64_t seed, size_t n, float scale)
{
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = uniform(&seed, scale);
    return p;
}

static sib_device *device(sib_numerics numerics, int threads)
{
    sib_device *d;
    assert_int_equal(sib_cpu_device_new(&d, &(sib_cpu_options){.numerics = numerics, .threads = threads}, NULL), SIB_OK);
    return d;
}

/* A table [n][in] as the file stores it: bf16, or 4-bit in groups of 64. */
typedef struct table {
    void *data, *scales, *biases;
    sib_matrix_src src;
    float *values; /* [n][in] */
} table;

static table make_table(int n, int in, bool quantized)
{
    table t = {.values = random_floats(77, (size_t)n * (size_t)in, 1)};
    t.src = (sib_matrix_src){.name = "table", .out = n, .in = in, .n_experts = 1, .dtype = SIB_BF16};
    t.data = calloc((size_t)n * (size_t)in, 2);
    t.scales = calloc((size_t)n * (size_t)in, 2);
    t.biases = calloc((size_t)n * (size_t)in, 2);
    t.src.data = t.data;
    if (quantized) {
        t.src.storage = SIB_AFFINE;
        t.src.bits = 4;
        t.src.group = 64;
        t.src.scales = t.scales;
        t.src.biases = t.biases;
        for (int r = 0; r < n; r++)
            sib_affine_quantize((char *)t.data + r * in / 2, (uint16_t *)t.scales + r * in / 64, (uint16_t *)t.biases + r * in / 64, SIB_BF16,
                                t.values + (size_t)r * (size_t)in, in, 4, 64);
    } else {
        for (int i = 0; i < n * in; i++) ((uint16_t *)t.data)[i] = sib_bf16_of_f32(t.values[i]);
    }
    sib_matrix_src_rows(t.values, &t.src, 0, 0, n);
    return t;
}

static void free_table(table *t)
{
    free(t->data);
    free(t->scales);
    free(t->biases);
    free(t->values);
}

/* ---- soft_embed ------------------------------------------------------------------------------- */

static void soft_embeddings_are_the_mean_of_the_table(void **state)
{
    (void)state;
    static const struct {
        int n, in, rows;
        bool quantized;
    } cases[] = {{128, 64, 3, false}, {128, 64, 7, true}, {2500, 128, 9, true}, {97, 40, 2, false}, {3, 8, 1, false}, {2049, 192, 33, true}};
    for (size_t i = 0; i < SIB_COUNT(cases); i++) {
        int n = cases[i].n, in = cases[i].in, rows = cases[i].rows;
        table t = make_table(n, in, cases[i].quantized);
        float *x = random_floats(5, (size_t)rows * (size_t)n, 12), *temp = malloc((size_t)rows * sizeof *temp);
        float *y = calloc((size_t)rows * (size_t)in, sizeof *y), *alone = calloc((size_t)in, sizeof *alone), *first = NULL;
        float *scratch = malloc((size_t)rows * SIB_SOFT_SCRATCH * sizeof *scratch);
        for (int r = 0; r < rows; r++) temp[r] = 0.4f + 0.05f * (float)(r % 9);
        for (int mode = SIB_NUM_F32; mode <= SIB_NUM_INT8; mode++)
            for (int threads = 1; threads <= 3; threads += 2) {
                sib_device *d = device((sib_numerics)mode, threads);
                sib_matrix *m;
                assert_int_equal(d->ops->matrix_new(d, &m, &t.src, NULL), SIB_OK);
                d->ops->soft_embed(d, y, m, x, temp, rows, 3.0f, scratch);
                for (int r = 0; r < rows; r++) {
                    double top = -INFINITY, sum = 0, limit = mode == SIB_NUM_F32 ? 2e-5 : 3e-2;
                    for (int v = 0; v < n; v++) top = fmax(top, x[r * n + v] / temp[r]);
                    for (int v = 0; v < n; v++) sum += exp(x[r * n + v] / temp[r] - top);
                    for (int k = 0; k < in; k++) {
                        double want = 0;
                        for (int v = 0; v < n; v++) want += exp(x[r * n + v] / temp[r] - top) / sum * t.values[(size_t)v * (size_t)in + (size_t)k];
                        assert_true(fabs(y[r * in + k] - 3 * want) < limit);
                    }
                    d->ops->soft_embed(d, alone, m, x + (size_t)r * (size_t)n, temp + r, 1, 3.0f, scratch);
                    assert_memory_equal(alone, y + (size_t)r * (size_t)in, (size_t)in * sizeof *y);
                }
                if (threads == 1) {
                    free(first);
                    first = malloc((size_t)rows * (size_t)in * sizeof *first);
                    memcpy(first, y, (size_t)rows * (size_t)in * sizeof *first);
                } else {
                    assert_memory_equal(first, y, (size_t)rows * (size_t)in * sizeof *first);
                }
                d->ops->matrix_free(d, m);
                sib_device_free(d);
            }
        free(x), free(temp), free(y), free(alone), free(first), free(scratch);
        free_table(&t);
    }
}

/* ---- choose ----------------------------------------------------------------------------------- */

static void choices_follow_the_distribution(void **state)
{
    (void)state;
    enum { ROWS = 12, N = 2600 };
    float *x = random_floats(9, ROWS * N, 6), t[ROWS], second[ROWS], entropy[ROWS], confidence[ROWS];
    double u[ROWS];
    int32_t best[ROWS], proposal[ROWS];
    for (int r = 0; r < ROWS; r++) {
        t[r] = 0.4f + 0.1f * (float)(r % 5);
        second[r] = r % 3 == 0 ? 0 : r % 3 == 1 ? 1 : 2.5f;
        u[r] = (r * 0.37 + 0.01) - floor(r * 0.37 + 0.01);
    }
    x[3 * N + 7] = x[3 * N + 2000] = 9; /* equal best: the lower index */
    sib_choose c = {t, second, u, best, proposal, entropy, confidence};
    sib_device *d = device(SIB_NUM_F32, 2);
    d->ops->choose(d, &c, x, ROWS, N);
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, h = 0, total = 0, before = 0;
        int top = 0, want = -1;
        for (int v = 0; v < N; v++)
            if (x[r * N + v] > x[r * N + top]) top = v;
        for (int v = 0; v < N; v++) sum += exp((x[r * N + v] - x[r * N + top]) / t[r]);
        for (int v = 0; v < N; v++) {
            double p = exp((x[r * N + v] - x[r * N + top]) / t[r]) / sum;
            h -= p * log(p);
            total += second[r] > 0 ? pow(p, 1 / second[r]) : 0;
        }
        assert_int_equal(best[r], top);
        assert_true(fabs(entropy[r] - h) < 1e-4);
        for (int v = 0; v < N && second[r] > 0 && want < 0; v++) {
            before += pow(exp((x[r * N + v] - x[r * N + top]) / t[r]) / sum, 1 / second[r]);
            if (before > u[r] * total) want = v;
        }
        assert_int_equal(proposal[r], second[r] > 0 ? want : top);
        assert_true(fabs(confidence[r] - exp((x[r * N + proposal[r]] - x[r * N + top]) / t[r]) / sum) < 1e-5);
    }
    u[1] = nextafter(1, 0);
    d->ops->choose(d, &c, x + N, 1, N);
    assert_true(proposal[0] >= 0 && proposal[0] < N);
    sib_device_free(d);
    free(x);
}

static void rows_that_are_not_finite_are_told(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    sib_device *d = device(SIB_NUM_F32, 1);
    for (size_t i = 0; i < SIB_COUNT(bad); i++)
        for (int at = 0; at < 40; at += 13) {
            float *x = random_floats(3, 80, 2), t[2] = {0.5f, 0.5f}, second[2] = {1, 1}, entropy[2], confidence[2];
            double u[2] = {0.5, 0.5};
            int32_t best[2], proposal[2];
            x[40 + at] = bad[i];
            sib_choose c = {t, second, u, best, proposal, entropy, confidence};
            d->ops->choose(d, &c, x, 2, 40);
            assert_true(best[0] >= 0 && proposal[0] >= 0);
            assert_int_equal(best[1], -1);
            assert_int_equal(proposal[1], -1);
            free(x);
        }
    sib_device_free(d);
}

/* ---- kernels ------------------------------------------------------------------------------------ */

static void levels_have_the_same_bits(void **state)
{
    (void)state;
    sib_kernels ref, var;
    sib_kernels_init(&ref, SIB_ISA_REF);
    for (int isa = SIB_ISA_REF + 1; isa <= sib_cpu_detect(); isa++) {
        sib_kernels_init(&var, isa);
        for (int n = 1; n < 400; n += n < 70 ? 1 : 53) {
            float *x = random_floats((uint64_t)n, (size_t)n, 20), *a = calloc((size_t)n, 4), *b = calloc((size_t)n, 4), s1[2], s2[2];
            for (float u = 1; u < 2; u += 0.7f) {
                sib_soften s = {.t = 0.7f, .top = 28, .u = u};
                ref.denoise.soften(a, x, n, &s);
                var.denoise.soften(b, x, n, &s);
                assert_memory_equal(a, b, (size_t)n * sizeof *a);
                ref.denoise.soften_sums(s1, x, n, &s);
                var.denoise.soften_sums(s2, x, n, &s);
                assert_memory_equal(s1, s2, sizeof s1);
            }
            free(x), free(a), free(b);
        }
        for (int rows = 1; rows < 14; rows++) {
            enum { N = 37, WIDE = SIB_MIX_COLUMNS + 5 };
            float *p = random_floats(1, 14 * N, 1), *w = random_floats(2, N * SIB_MIX_COLUMNS, 1), *a = random_floats(4, 14 * WIDE, 1), *b = random_floats(4, 14 * WIDE, 1);
            ref.denoise.mix(a, WIDE, p, N, rows, w, N);
            var.denoise.mix(b, WIDE, p, N, rows, w, N);
            assert_memory_equal(a, b, 14 * WIDE * sizeof *a); /* and nothing between the rows is touched */
            free(p), free(w), free(a), free(b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(soft_embeddings_are_the_mean_of_the_table),
        cmocka_unit_test(choices_follow_the_distribution),
        cmocka_unit_test(rows_that_are_not_finite_are_told),
        cmocka_unit_test(levels_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
