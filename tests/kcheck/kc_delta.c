/* kc_delta.c - cases of the delta family (kernels/delta.h): every function EXACT against the scalar one, and the scalar one
 * against double precision. */
#include "kcheck.h"

#include <math.h>
#include <string.h>

static void same(kc *c, const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i]))) {
            kc_fail(c, "%s: index %zu: got %.9g, want %.9g", what, i, (double)got[i], (double)want[i]);
            return;
        }
}

static float *room(kc *c, size_t n)
{
    return kc_alloc(c, n * sizeof(float), sizeof(float));
}

static void check_conv(kc *c, const sib_delta_kernels *ref, const sib_delta_kernels *var)
{
    static const int sizes[] = {1, 7, 8, 15, 16, 17, 31, 100, 128};
    for (size_t s = 0; s < SIB_COUNT(sizes); s++)
        for (int taps = 2; taps <= 8; taps += 2)
            for (kc_regime g = 0; g < KC_N_REGIMES; g++) {
                int n = sizes[s], stride = n + 3;
                if (!kc_begin(c, "conv_silu n=%d taps=%d %s", n, taps, kc_regime_name(g))) continue;
                const float *row[8], *w = kc_floats(c, (size_t)((taps - 1) * stride + n), KC_UNIT);
                for (int j = 0; j < taps; j++) row[j] = kc_floats(c, (size_t)n, g);
                float *want = room(c, (size_t)n), *got = room(c, (size_t)n);
                ref->conv_silu(want, row, w, stride, taps, n);
                var->conv_silu(got, row, w, stride, taps, n);
                same(c, "level", got, want, (size_t)n);
                for (int i = 0; i < n; i++) {
                    double sum = 0, sum_abs = 0;
                    for (int j = 0; j < taps; j++) sum += (double)row[j][i] * (double)w[j * stride + i], sum_abs += fabs((double)row[j][i] * (double)w[j * stride + i]);
                    /* silu's slope is below 1.1 */
                    double y = sum < -700 ? 0 : sum / (1 + exp(-sum));
                    if (sum_abs < 1e30) kc_order(c, "exact", (size_t)i, want[i], y, 1.1 * sum_abs + fabs(y), taps + 4, 0x1p-120);
                }
            }
}

static void check_step(kc *c, const sib_delta_kernels *ref, const sib_delta_kernels *var)
{
    static const int dims[] = {1, 2, 15, 16, 33, 128}, columns[] = {1, 7, 8, 16, 17, 31, 32};
    for (size_t d = 0; d < SIB_COUNT(dims); d++)
        for (size_t n_i = 0; n_i < SIB_COUNT(columns); n_i++)
            for (kc_regime g = 0; g < KC_N_REGIMES; g++)
                for (int with_q = 0; with_q < 2; with_q++) {
                    int k_dim = dims[d], n = columns[n_i];
                    size_t all = (size_t)(k_dim * n);
                    if (!kc_begin(c, "step k_dim=%d n=%d %s q=%d", k_dim, n, kc_regime_name(g), with_q)) continue;
                    const float *q = kc_floats(c, (size_t)k_dim, KC_UNIT), *k = kc_floats(c, (size_t)k_dim, KC_UNIT), *v = kc_floats(c, (size_t)n, g), *in = kc_floats(c, all, g);
                    float *o[2] = {room(c, (size_t)n), room(c, (size_t)n)}, *out[2] = {room(c, all), room(c, all)}, *place = room(c, all);
                    memcpy(place, in, all * sizeof *place);
                    sib_delta_token t = {.q = with_q ? q : NULL, .k = k, .v = v, .decay = (float)kc_uniform(c), .beta = (float)kc_uniform(c), .o = o[0]};
                    ref->step(&t, out[0], in, n, k_dim, n);
                    t.o = o[1];
                    var->step(&t, out[1], in, n, k_dim, n);
                    same(c, "state", out[1], out[0], all);
                    if (with_q) same(c, "output", o[1], o[0], (size_t)n);
                    var->step(&t, place, place, n, k_dim, n);
                    same(c, "in place", place, out[0], all);
                    for (int x = 0; x < n; x++) {
                        double m = 0, m_abs = 0, got = 0, got_abs = 0;
                        for (int i = 0; i < k_dim; i++) m += (double)in[i * n + x] * t.decay * k[i], m_abs += fabs((double)in[i * n + x] * t.decay * k[i]);
                        double delta = (v[x] - m) * t.beta, delta_abs = (fabs((double)v[x]) + m_abs) * t.beta;
                        for (int i = 0; i < k_dim; i++) {
                            double s = (double)in[i * n + x] * t.decay + k[i] * delta, s_abs = fabs((double)in[i * n + x]) * t.decay + fabs(k[i] * delta_abs);
                            kc_order(c, "exact state", (size_t)(i * n + x), out[0][i * n + x], s, s_abs, k_dim / 2 + 6, 0x1p-149);
                            got += s * q[i];
                            got_abs += s_abs * fabs((double)q[i]);
                        }
                        if (with_q) kc_order(c, "exact output", (size_t)x, o[0][x], got, got_abs, k_dim + 8, 0x1p-149);
                    }
                    /* A fresh sequence: one row of zeros stands for all. */
                    const float *zeros = memset(room(c, (size_t)n), 0, (size_t)n * sizeof(float)), *none = memset(room(c, all), 0, all * sizeof(float));
                    ref->step(&t, out[0], none, n, k_dim, n);
                    var->step(&t, out[1], zeros, 0, k_dim, n);
                    same(c, "from zeros", out[1], out[0], all);
                }
}

static void check_add(kc *c, const sib_delta_kernels *ref, const sib_delta_kernels *var)
{
    for (size_t n = 1; n < 70; n += 3) {
        if (!kc_begin(c, "add_scaled n=%zu", n)) continue;
        const float *x = kc_floats(c, n, KC_UNIT), *y = kc_floats(c, n, KC_UNIT);
        float *want = room(c, n), *got = room(c, n);
        memcpy(want, y, n * sizeof *y);
        memcpy(got, y, n * sizeof *y);
        ref->add_scaled(want, x, 0.7f, (int64_t)n);
        var->add_scaled(got, x, 0.7f, (int64_t)n);
        same(c, "level", got, want, n);
        for (size_t i = 0; i < n; i++) kc_order(c, "exact", i, want[i], (double)y[i] + (double)0.7f * x[i], fabs((double)y[i]) + fabs((double)x[i]), 2, 0x1p-149);
    }
}

static void check(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    check_conv(c, &ref->delta, &var->delta);
    check_step(c, &ref->delta, &var->delta);
    check_add(c, &ref->delta, &var->delta);
}

/* ---- bench ------------------------------------------------------------------------------------- */

enum { DIM = 128, HEADS = 32, BLOCKS = HEADS * DIM / SIB_DELTA_COLS };

typedef struct bench {
    const sib_delta_kernels *k;
    sib_delta_token t;
    float *state[2];
    int blocks, tokens;
} bench;

static void run_bench(void *arg)
{
    bench *b = arg;
    for (int x = 0; x < b->blocks; x++) {
        size_t at = (size_t)x * DIM * SIB_DELTA_COLS;
        const float *in = b->state[0] + at;
        for (int i = 0; i < b->tokens; i++, in = b->state[1] + at) b->k->step(&b->t, b->state[1] + at, in, SIB_DELTA_COLS, DIM, SIB_DELTA_COLS);
    }
}

/* A decoded token goes over all states of a layer, a prompt over one block with many tokens: bytes, and multiplications
 * and additions (8 a value), per second. */
static void run(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    (void)ref;
    size_t layers = 24, floats = layers * BLOCKS * DIM * SIB_DELTA_COLS; /* beyond the caches, as a model's states are */
    if (!kc_begin(c, "delta bench")) return;
    bench b = {.k = &var->delta, .state = {kc_alloc(c, floats * sizeof(float), 64), kc_alloc(c, floats * sizeof(float), 64)}};
    memset(b.state[0], 0, floats * sizeof(float));
    memset(b.state[1], 0, floats * sizeof(float));
    b.t = (sib_delta_token){.q = kc_floats(c, DIM, KC_UNIT), .k = kc_floats(c, DIM, KC_UNIT), .v = kc_floats(c, SIB_DELTA_COLS, KC_UNIT), .decay = 0.9f, .beta = 0.5f, .o = kc_alloc(c, SIB_DELTA_COLS * sizeof(float), 64)};
    b.blocks = (int)layers * BLOCKS;
    b.tokens = 1;
    double values = (double)floats;
    kc_time(c, "step, a token over 24 layers of 32 x 128 x 128", run_bench, &b, 8 * values, 8 * values);
    b.blocks = 1;
    b.tokens = 512;
    values = 512.0 * DIM * SIB_DELTA_COLS;
    kc_time(c, "step, 512 tokens over a block of 128 x 32", run_bench, &b, 0, 8 * values);
}

const kc_family kc_delta = {"delta", check, run};
