/* tests/unit/delta_test.c - the gated delta rule of the CPU device: against double precision, against the chunked form
 * that references use for prompts, and bit for bit against itself however its tokens are cut, threaded and batched. */
#include "base/rng.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng = 11;
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

static float *randoms(size_t n, double scale)
{
    float *p = malloc((n + 1) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (float)(scale * ((double)(sib_splitmix64(&rng) >> 11) * 0x1p-52 - 1));
    return p;
}

/* A layer and the inputs of `rows` tokens. */
typedef struct rule {
    sib_delta g;
    int rows, conv_dim, wide;
    float *conv, *a_neg, *dt_bias, *norm, *u, *z, *a, *b;
} rule;

/* a_log: base of A_log; a_neg = -exp of it. */
static rule rule_new(int hk, int hv, int dk, int dv, int taps, int rows, double a_log)
{
    rule r = {.g = {.n_k_heads = hk, .n_v_heads = hv, .k_dim = dk, .v_dim = dv, .taps = taps, .eps = 1e-6f}, .rows = rows};
    r.conv_dim = sib_delta_conv_dim(&r.g);
    r.wide = hv * dv;
    size_t n = (size_t)rows;
    r.g.conv = r.conv = randoms((size_t)(taps * r.conv_dim), 0.8);
    r.g.a_neg = r.a_neg = randoms((size_t)hv, 1);
    for (int i = 0; i < hv; i++) r.a_neg[i] = -expf((float)a_log + r.a_neg[i]);
    r.g.dt_bias = r.dt_bias = randoms((size_t)hv, 1);
    r.g.norm = r.norm = randoms((size_t)dv, 1);
    r.u = randoms(n * (size_t)r.conv_dim, 1.5);
    r.z = randoms(n * (size_t)r.wide, 2);
    r.a = randoms(n * (size_t)hv, 2);
    r.b = randoms(n * (size_t)hv, 3);
    return r;
}

static void rule_free(rule *r)
{
    float *all[] = {r->conv, r->a_neg, r->dt_bias, r->norm, r->u, r->z, r->a, r->b};
    for (size_t i = 0; i < SIB_COUNT(all); i++) free(all[i]);
}

typedef struct memory {
    float *conv, *state;
} memory;

static size_t state_floats(const rule *r)
{
    return (size_t)(r->g.n_v_heads * r->g.k_dim * r->g.v_dim);
}

static size_t conv_floats(const rule *r)
{
    return (size_t)((r->g.taps - 1) * r->conv_dim);
}

static memory memory_new(const rule *r)
{
    return (memory){randoms(conv_floats(r), 1), randoms(state_floats(r), 1)};
}

static void memory_free(memory *m)
{
    free(m->conv);
    free(m->state);
}

/* Rows first .. first+n-1 from `in` (NULL: a fresh sequence) to `out`. */
static void run(sib_device *d, const rule *r, int first, int n, const memory *in, memory *out, float *y)
{
    float *scratch = malloc((size_t)n * (size_t)sib_delta_scratch(&r->g) * sizeof *scratch);
    sib_delta_span s = {.conv_in = in ? in->conv : NULL, .state_in = in ? in->state : NULL, .conv_out = out->conv, .state_out = out->state, .n_rows = n};
    d->ops->gated_delta(d, y ? y + (size_t)first * (size_t)r->wide : NULL, r->u + (size_t)first * (size_t)r->conv_dim, y ? r->z + (size_t)first * (size_t)r->wide : NULL,
                        r->a + (size_t)first * (size_t)r->g.n_v_heads, r->b + (size_t)first * (size_t)r->g.n_v_heads, &r->g, &s, 1, scratch);
    free(scratch);
}

/* All rows in calls of `chunk`, from nothing; the final memory in *end. */
static float *run_cut(sib_device *d, const rule *r, int chunk, memory *end)
{
    float *y = calloc((size_t)r->rows * (size_t)r->wide, sizeof *y);
    memory m[2] = {memory_new(r), memory_new(r)};
    int front = 0;
    for (int at = 0; at < r->rows; at += chunk, front = !front) run(d, r, at, r->rows - at < chunk ? r->rows - at : chunk, at ? &m[front] : NULL, &m[!front], y);
    *end = m[front];
    memory_free(&m[!front]);
    return y;
}

static void same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a)) fail_msg("%s: index %zu: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
}

/* ---- oracles ------------------------------------------------------------------------------------ */

/* q, k, v and the gates of one value head, all rows, in double precision: q and k [rows][k_dim], v [rows][v_dim]. */
typedef struct head {
    double *q, *k, *v, *g, *beta; /* g: log of the decay */
} head;

static double mixed(const rule *r, int row, int ch)
{
    double s = 0;
    for (int j = 0; j < r->g.taps; j++) {
        int from = row - r->g.taps + 1 + j;
        if (from >= 0) s += (double)r->conv[j * r->conv_dim + ch] * (double)r->u[(size_t)from * (size_t)r->conv_dim + (size_t)ch];
    }
    return s / (1 + exp(-s));
}

static void l2(double *x, int n, double scale)
{
    double s = 1e-6;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= scale / sqrt(s);
}

static head head_of(const rule *r, int hv)
{
    int dk = r->g.k_dim, dv = r->g.v_dim, hk = hv / (r->g.n_v_heads / r->g.n_k_heads), keys = r->g.n_k_heads * dk;
    size_t n = (size_t)r->rows;
    head h = {malloc(n * (size_t)dk * sizeof(double)), malloc(n * (size_t)dk * sizeof(double)), malloc(n * (size_t)dv * sizeof(double)), malloc(n * sizeof(double)), malloc(n * sizeof(double))};
    for (int t = 0; t < r->rows; t++) {
        for (int i = 0; i < dk; i++) h.q[t * dk + i] = mixed(r, t, hk * dk + i), h.k[t * dk + i] = mixed(r, t, keys + hk * dk + i);
        for (int i = 0; i < dv; i++) h.v[t * dv + i] = mixed(r, t, 2 * keys + hv * dv + i);
        l2(h.q + t * dk, dk, 1 / sqrt(dk));
        l2(h.k + t * dk, dk, 1);
        double x = (double)r->a[t * r->g.n_v_heads + hv] + (double)r->dt_bias[hv];
        h.g[t] = (double)r->a_neg[hv] * (x > 20 ? x : log1p(exp(x)));
        h.beta[t] = 1 / (1 + exp(-(double)r->b[t * r->g.n_v_heads + hv]));
    }
    return h;
}

static void head_free(head *h)
{
    free(h->q);
    free(h->k);
    free(h->v);
    free(h->g);
    free(h->beta);
}

/* o [rows][v_dim] of the recurrence, before the gated norm. */
static void recurrent(const rule *r, const head *h, double *o)
{
    int dk = r->g.k_dim, dv = r->g.v_dim;
    double *s = calloc((size_t)(dk * dv), sizeof *s);
    for (int t = 0; t < r->rows; t++)
        for (int c = 0; c < dv; c++) {
            double m = 0, out = 0, decay = exp(h->g[t]);
            for (int i = 0; i < dk; i++) m += (s[i * dv + c] *= decay) * h->k[t * dk + i];
            double d = (h->v[t * dv + c] - m) * h->beta[t];
            for (int i = 0; i < dk; i++) out += (s[i * dv + c] += h->k[t * dk + i] * d) * h->q[t * dk + i];
            o[t * dv + c] = out;
        }
    free(s);
}

/* The same in chunks of 64 tokens (qwen3_5.md 2.3, "chunked prefill form"): inside a chunk a unit lower triangular system, the
 * state only between chunks. In float32, as the references compute it. */
#define CHUNK 64
static void chunked(const rule *r, const head *h, double *o)
{
    int dk = r->g.k_dim, dv = r->g.v_dim;
    float *s = calloc((size_t)(dk * dv), sizeof *s), *u = malloc((size_t)(CHUNK * dv) * sizeof *u), *w = malloc((size_t)(CHUNK * dk) * sizeof *w);
    float sum[CHUNK], d[CHUNK][CHUNK];
    for (int t0 = 0; t0 < r->rows; t0 += CHUNK) {
        int n = r->rows - t0 < CHUNK ? r->rows - t0 : CHUNK;
        const double *q = h->q + t0 * dk, *k = h->k + t0 * dk, *v = h->v + t0 * dv, *beta = h->beta + t0;
        for (int i = 0; i < n; i++) {
            sum[i] = (i ? sum[i - 1] : 0) + (float)h->g[t0 + i];
            for (int j = 0; j <= i; j++) d[i][j] = expf(sum[i] - sum[j]);
        }
        for (int i = 0; i < n; i++) { /* (I + T) U = beta v, (I + T) W = beta k exp(G) by forward substitution */
            for (int c = 0; c < dv; c++) u[i * dv + c] = (float)(beta[i] * v[i * dv + c]);
            for (int c = 0; c < dk; c++) w[i * dk + c] = (float)(beta[i] * k[i * dk + c]) * expf(sum[i]);
            for (int j = 0; j < i; j++) {
                float kk = 0;
                for (int c = 0; c < dk; c++) kk += (float)(beta[i] * k[i * dk + c]) * (float)k[j * dk + c];
                kk *= d[i][j];
                for (int c = 0; c < dv; c++) u[i * dv + c] -= kk * u[j * dv + c];
                for (int c = 0; c < dk; c++) w[i * dk + c] -= kk * w[j * dk + c];
            }
        }
        for (int i = 0; i < n; i++)
            for (int c = 0; c < dv; c++)
                for (int x = 0; x < dk; x++) u[i * dv + c] -= w[i * dk + x] * s[x * dv + c]; /* Vn = U - W S */
        for (int i = 0; i < n; i++)
            for (int c = 0; c < dv; c++) {
                float out = 0;
                for (int x = 0; x < dk; x++) out += (float)q[i * dk + x] * expf(sum[i]) * s[x * dv + c];
                for (int j = 0; j <= i; j++) {
                    float qk = 0;
                    for (int x = 0; x < dk; x++) qk += (float)q[i * dk + x] * (float)k[j * dk + x];
                    out += qk * d[i][j] * u[j * dv + c];
                }
                o[(t0 + i) * dv + c] = out;
            }
        for (int x = 0; x < dk; x++)
            for (int c = 0; c < dv; c++) {
                float next = s[x * dv + c] * expf(sum[n - 1]);
                for (int i = 0; i < n; i++) next += (float)k[i * dk + x] * expf(sum[n - 1] - sum[i]) * u[i * dv + c];
                s[x * dv + c] = next;
            }
    }
    free(s);
    free(u);
    free(w);
}

/* Norm, then the gate, of o in place. */
static void gated_norm(const rule *r, int hv, double *o)
{
    int dv = r->g.v_dim;
    for (int t = 0; t < r->rows; t++) {
        double s = 0;
        for (int c = 0; c < dv; c++) s += o[t * dv + c] * o[t * dv + c];
        double scale = 1 / sqrt(s / dv + (double)r->g.eps);
        for (int c = 0; c < dv; c++) {
            double z = (double)r->z[(size_t)t * (size_t)r->wide + (size_t)(hv * dv + c)];
            o[t * dv + c] *= scale * (double)r->norm[c] * z / (1 + exp(-z));
        }
    }
}

/* Largest difference over 1 + the largest value. */
static double distance(const rule *r, const float *y, int hv, const double *o)
{
    double worst = 0, largest = 0;
    int dv = r->g.v_dim;
    for (int t = 0; t < r->rows; t++)
        for (int c = 0; c < dv; c++) {
            double diff = fabs((double)y[(size_t)t * (size_t)r->wide + (size_t)(hv * dv + c)] - o[t * dv + c]);
            if (!(diff <= worst)) worst = diff;
            largest = fmax(largest, fabs(o[t * dv + c]));
        }
    return worst / (1 + largest);
}

static const struct shape {
    int hk, hv, dk, dv, taps, rows;
    double a_log;
} shapes[] = {
    {2, 4, 16, 16, 4, 130, 0},  {2, 2, 16, 8, 4, 65, 0},     {1, 3, 24, 40, 2, 64, 0},    {2, 4, 128, 128, 4, 70, 0},
    {1, 1, 8, 1, 3, 1, 0},      {3, 6, 33, 100, 8, 63, 0},   {2, 4, 16, 32, 4, 130, 7},   {2, 4, 16, 32, 4, 130, -12},
    {2, 4, 16, 32, 4, 70, 60},  {1, 2, 128, 128, 4, 200, -4},
};

static rule rule_of(const struct shape *s)
{
    return rule_new(s->hk, s->hv, s->dk, s->dv, s->taps, s->rows, s->a_log);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static void agrees_with_double_and_with_chunks(void **state)
{
    (void)state;
    for (size_t k = 0; k < SIB_COUNT(shapes); k++) {
        rule r = rule_of(&shapes[k]);
        memory end;
        float *y = run_cut(one, &r, r.rows, &end);
        double *o = malloc((size_t)(r.rows * r.g.v_dim) * sizeof *o), worst[2] = {0, 0};
        for (int hv = 0; hv < r.g.n_v_heads; hv++) {
            head h = head_of(&r, hv);
            for (int form = 0; form < 2; form++) {
                (form ? chunked : recurrent)(&r, &h, o);
                gated_norm(&r, hv, o);
                worst[form] = fmax(worst[form], distance(&r, y, hv, o));
            }
            head_free(&h);
        }
        /* A norm follows, so a small output carries the error of a large state: hence more than the 1e-5 of the recurrence. */
        if (worst[0] > 2e-5 || worst[1] > 1e-4) fail_msg("shape %zu: %.3g from double, %.3g from chunks", k, worst[0], worst[1]);
        free(o);
        free(y);
        memory_free(&end);
        rule_free(&r);
    }
}

static void cuts_and_threads_change_no_bit(void **state)
{
    (void)state;
    static const int chunks[] = {1, 2, 3, 7, 64};
    for (size_t k = 0; k < SIB_COUNT(shapes); k++) {
        rule r = rule_of(&shapes[k]);
        memory want, got;
        float *y = run_cut(one, &r, r.rows, &want);
        for (size_t c = 0; c < SIB_COUNT(chunks); c++)
            for (int threads = 0; threads < 2; threads++) {
                float *z = run_cut(threads ? three : one, &r, chunks[c], &got);
                same_bits(y, z, (size_t)r.rows * (size_t)r.wide, "output");
                same_bits(want.state, got.state, state_floats(&r), "state");
                same_bits(want.conv, got.conv, conv_floats(&r), "conv rows");
                free(z);
                memory_free(&got);
            }
        free(y);
        memory_free(&want);
        rule_free(&r);
    }
}

/* Without an output the memory is the same; from a state that is not zero, too. */
static void state_alone_is_the_same_state(void **state)
{
    (void)state;
    for (size_t k = 0; k < SIB_COUNT(shapes); k++) {
        rule r = rule_of(&shapes[k]);
        memory in = memory_new(&r), a = memory_new(&r), b = memory_new(&r);
        float *y = calloc((size_t)r.rows * (size_t)r.wide, sizeof *y);
        for (int fresh = 0; fresh < 2; fresh++) {
            run(three, &r, 0, r.rows, fresh ? NULL : &in, &a, y);
            run(three, &r, 0, r.rows, fresh ? NULL : &in, &b, NULL);
            same_bits(a.state, b.state, state_floats(&r), "state");
            same_bits(a.conv, b.conv, conv_floats(&r), "conv rows");
        }
        free(y);
        memory_free(&in);
        memory_free(&a);
        memory_free(&b);
        rule_free(&r);
    }
}

/* Sequences that share a call: each as if it were alone. */
static void spans_are_independent(void **state)
{
    (void)state;
    static const int rows[] = {5, 1, 37, 2};
    rule r = rule_new(2, 4, 32, 48, 4, 45, 0);
    memory in[4], out[4], alone = memory_new(&r);
    sib_delta_span spans[4];
    float *y = calloc((size_t)r.rows * (size_t)r.wide, sizeof *y), *want = calloc((size_t)r.rows * (size_t)r.wide, sizeof *want);
    float *scratch = malloc((size_t)r.rows * (size_t)sib_delta_scratch(&r.g) * sizeof *scratch);
    for (int i = 0, row = 0; i < 4; row += rows[i++]) {
        in[i] = memory_new(&r);
        out[i] = memory_new(&r);
        spans[i] = (sib_delta_span){.conv_in = i == 1 ? NULL : in[i].conv, .state_in = i == 1 ? NULL : in[i].state, .conv_out = out[i].conv, .state_out = out[i].state, .row0 = row, .n_rows = rows[i]};
    }
    three->ops->gated_delta(three, y, r.u, r.z, r.a, r.b, &r.g, spans, 4, scratch);
    for (int i = 0; i < 4; i++) {
        run(one, &r, spans[i].row0, rows[i], i == 1 ? NULL : &in[i], &alone, want);
        same_bits(alone.state, out[i].state, state_floats(&r), "state");
        same_bits(alone.conv, out[i].conv, conv_floats(&r), "conv rows");
        memory_free(&in[i]);
        memory_free(&out[i]);
    }
    same_bits(want, y, (size_t)r.rows * (size_t)r.wide, "output");
    free(scratch);
    free(want);
    free(y);
    memory_free(&alone);
    rule_free(&r);
}

/* Zero keys and queries take the path of the l2 norm's eps: the output is the norm of zeros. */
static void zero_inputs_stay_finite(void **state)
{
    (void)state;
    rule r = rule_new(2, 4, 16, 16, 4, 20, 0);
    memory end;
    memset(r.u, 0, (size_t)r.rows * (size_t)r.conv_dim * sizeof *r.u);
    float *y = run_cut(one, &r, 6, &end);
    for (size_t i = 0; i < (size_t)r.rows * (size_t)r.wide; i++) assert_true(y[i] == 0.0f);
    free(y);
    memory_free(&end);
    rule_free(&r);
}

static void gates_and_shared_experts(void **state)
{
    (void)state;
    enum { ROWS = 50, N = 900 };
    float *x = randoms(ROWS * N, 2), *y = randoms(ROWS * N, 2), *gate = randoms(ROWS, 40), *was = malloc(ROWS * N * sizeof *was), *z = malloc(ROWS * N * sizeof *z);
    memcpy(was, y, ROWS * N * sizeof *y);
    memcpy(z, y, ROWS * N * sizeof *y);
    one->ops->add_gated(one, y, x, gate, ROWS, N);
    three->ops->add_gated(three, z, x, gate, ROWS, N);
    same_bits(y, z, ROWS * N, "add_gated");
    for (int i = 0; i < ROWS * N; i++) {
        double want = (double)was[i] + (double)x[i] / (1 + exp(-(double)gate[i / N]));
        assert_true(fabs((double)y[i] - want) <= 1e-6 * (1 + fabs(want)));
    }
    one->ops->glu(one, y, x, was, SIB_ACT_SIGMOID, ROWS * N);
    three->ops->glu(three, was, x, was, SIB_ACT_SIGMOID, ROWS * N);
    same_bits(y, was, ROWS * N, "sigmoid gate, in place");
    free(x);
    free(y);
    free(z);
    free(was);
    free(gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_double_and_with_chunks), cmocka_unit_test(cuts_and_threads_change_no_bit),
        cmocka_unit_test(state_alone_is_the_same_state),      cmocka_unit_test(spans_are_independent),
        cmocka_unit_test(zero_inputs_stay_finite),            cmocka_unit_test(gates_and_shared_experts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
