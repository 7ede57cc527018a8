/* kc_vector.c - cases of the vector family (kernels/vector.h): every function EXACT against the
 * scalar one, and the scalar one against double precision. */
#include "kcheck.h"

#include "kernels/vector_math.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int sizes[] = {1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 72, 80, 100, 256, 1152, 2816};
#define FOR_SIZES(n) for (size_t n##_i = 0, n; n##_i < SIB_COUNT(sizes) && (n = (size_t)sizes[n##_i], true); n##_i++)

static const float specials[] = {0.0f,      -0.0f,  1.0f,     -1.0f,    NAN,      INFINITY, -INFINITY, 1e-40f, -1e-40f,
                                 88.72283f, 88.73f, -103.97f, -104.0f,  0.625f,   9.02f,    -9.1f,     1e30f,  -1e30f,
                                 3.4e38f,   1e-8f,  -1e-8f,   -0.6249f, -87.335f, -88.8f,   100.0f};

static float *copy_of(kc *c, const float *x, size_t n)
{
    float *p = kc_alloc(c, n * sizeof *p, sizeof *p);
    memcpy(p, x, n * sizeof *p);
    return p;
}

static float *room(kc *c, size_t n)
{
    return kc_alloc(c, n * sizeof(float), sizeof(float));
}

/* Equal bits, except that NaN may carry another payload. */
static void same(kc *c, const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0 && !(isnan(got[i]) && isnan(want[i]))) {
            kc_fail(c, "%s: index %zu: got %.9g, want %.9g", what, i, (double)got[i], (double)want[i]);
            return;
        }
}

/* ---- elementwise ------------------------------------------------------------------------ */

enum { ADD, MUL, SCALE, CLAMP, SOFTCAP, GELU, SILU, SIGMOID, N_ELEMENTWISE };
static const char *const elementwise_names[N_ELEMENTWISE] = {"add",     "mul",       "scale", "clamp",
                                                             "softcap", "gelu_tanh", "silu",  "sigmoid"};

static void elementwise(const sib_vector_kernels *k, int op, float *y, const float *a, const float *b, size_t n)
{
    int64_t count = (int64_t)n;
    switch (op) {
    case ADD: k->add(y, a, b, count); break;
    case MUL: k->mul(y, a, b, count); break;
    case SCALE: k->scale(y, a, -1.7f, count); break;
    case CLAMP: k->clamp(y, a, -0.5f, 0.25f, count); break;
    case SOFTCAP: k->softcap(y, a, 30.0f, count); break;
    default: k->act_mul(y, a, b, count, op - GELU); break;
    }
}

static void check_element(kc *c, int op, size_t i, float got, double a, double b)
{
    double u = 0.7978845608028654 * (a + 0.044715 * a * a * a), e;
    switch (op) {
    case ADD: kc_ulp(c, "exact", i, got, a + b, 0.51); break;
    case MUL: kc_ulp(c, "exact", i, got, a * b, 0.51); break;
    case SCALE: kc_ulp(c, "exact", i, got, a * (double)-1.7f, 0.51); break;
    case CLAMP: kc_ulp(c, "exact", i, got, a < -0.5 ? -0.5 : a > 0.25 ? 0.25 : a, 0); break;
    case SOFTCAP: e = 30 * tanh(a / 30), kc_order(c, "exact", i, got, e, fabs(e), 4, 0x1p-147); break;
    case GELU:
        e = a / (1 + exp(-2 * u));
        if (fabs(e) > 1e-36 && fabs(e * b) > 1e-36) kc_ulp(c, "exact", i, got, e * b, 5.1 * (1 + fabs(u)) + 0.6);
        break;
    case SIGMOID:
        e = 1 / (1 + exp(-a));
        if (e > 1e-36 && fabs(e * b) > 1e-36) kc_ulp(c, "exact", i, got, e * b, 3.1);
        break;
    default:
        e = a / (1 + exp(-a));
        if (fabs(e) > 1e-36 && fabs(e * b) > 1e-36) kc_ulp(c, "exact", i, got, e * b, 3.1);
    }
}

static void check_elementwise(kc *c, const sib_vector_kernels *ref, const sib_vector_kernels *var)
{
    for (int op = 0; op < N_ELEMENTWISE; op++) {
        FOR_SIZES(n) for (kc_regime g = 0; g < KC_N_REGIMES; g++)
        {
            if (!kc_begin(c, "%s n=%zu %s", elementwise_names[op], n, kc_regime_name(g))) continue;
            const float *a = kc_floats(c, n, g), *b = kc_floats(c, n, g);
            float *want = room(c, n), *got = room(c, n), *in_a = copy_of(c, a, n), *in_b = copy_of(c, b, n);
            elementwise(ref, op, want, a, b, n);
            elementwise(var, op, got, a, b, n);
            elementwise(var, op, in_a, in_a, b, n);
            elementwise(var, op, in_b, a, in_b, n);
            same(c, "level", got, want, n);
            same(c, "in place of a", in_a, want, n);
            same(c, "in place of b", in_b, want, n);
            for (size_t i = 0; i < n; i++) check_element(c, op, i, want[i], a[i], b[i]);
        }
        if (!kc_begin(c, "%s specials", elementwise_names[op])) continue;
        size_t n = SIB_COUNT(specials);
        const float *a = copy_of(c, specials, n);
        float *b = room(c, n), *want = room(c, n), *got = room(c, n);
        for (size_t i = 0; i < n; i++) b[i] = 1.0f;
        elementwise(ref, op, want, a, b, n);
        elementwise(var, op, got, a, b, n);
        same(c, "level", got, want, n);
        for (size_t i = 0; i < n; i++)
            if (isnan(a[i]) && !isnan(want[i])) kc_fail(c, "NaN became %.9g", (double)want[i]);
    }
}

/* exp, tanh and their symmetry, on the scalar functions: the variants were just compared with them. */
static void check_functions(kc *c)
{
    if (!kc_begin(c, "exp and tanh")) return;
    for (size_t i = 0; i < 200000; i++) {
        float x = sib_float_of_bits((uint32_t)kc_bits(c));
        if (kc_below(c, 2)) x = (float)(200 * kc_uniform(c) - 110);
        if (isnan(x)) continue;
        kc_ulp(c, "exp", i, sib_exp(x), (float)exp(x) == INFINITY ? (double)INFINITY : exp(x), 1);
        kc_ulp(c, "tanh", i, sib_tanh(x), tanh(x), 1.5);
        float pos = sib_tanh(x), neg = -sib_tanh(-x);
        kc_exact(c, "tanh is odd", &pos, &neg, 1, sizeof pos);
    }
}

/* ---- norms ------------------------------------------------------------------------------ */

static void check_norms(kc *c, const sib_vector_kernels *ref, const sib_vector_kernels *var)
{
    FOR_SIZES(n) for (kc_regime g = 0; g < KC_N_REGIMES; g++) for (int with = 0; with < 2; with++)
    {
        if (!kc_begin(c, "norms n=%zu %s%s", n, kc_regime_name(g), with ? " weights" : "")) continue;
        const float *x = kc_floats(c, n, g), *h0 = kc_floats(c, n, KC_REAL);
        const float *w = with ? kc_floats(c, n, KC_UNIT) : NULL, *b = with ? kc_floats(c, n, KC_UNIT) : NULL;
        float eps = 1e-6f, *want = room(c, n), *got = room(c, n), *inside = copy_of(c, x, n);
        double squares = 0, sum = 0, sum_abs = 0, var_sum = 0;
        for (size_t i = 0; i < n; i++) {
            squares += (double)x[i] * x[i];
            sum += x[i];
            sum_abs += fabs(x[i]);
        }
        double mean = sum / (double)n, r = 1 / sqrt(squares / (double)n + eps), steps = (double)n / 64 + 16;
        for (size_t i = 0; i < n; i++) var_sum += (x[i] - mean) * (x[i] - mean);

        ref->rms_norm(want, x, w, (int)n, eps);
        var->rms_norm(got, x, w, (int)n, eps);
        var->rms_norm(inside, inside, w, (int)n, eps);
        same(c, "rms_norm", got, want, n);
        same(c, "rms_norm in place", inside, want, n);
        for (size_t i = 0; i < n; i++) {
            double e = x[i] * r * (w ? w[i] : 1);
            kc_order(c, "rms_norm", i, want[i], e, fabs(e), steps, 0x1p-149);
        }

        float *h = copy_of(c, h0, n), *hv = copy_of(c, h0, n);
        ref->rms_norm_add(h, x, w, (int)n, eps, 0.7f);
        var->rms_norm_add(hv, x, w, (int)n, eps, 0.7f);
        same(c, "rms_norm_add", hv, h, n);
        for (size_t i = 0; i < n; i++) {
            double e = x[i] * r * (w ? w[i] : 1);
            kc_order(c, "rms_norm_add", i, h[i], (h0[i] + e) * (double)0.7f, fabs(h0[i]) + fabs(e), steps, 0x1p-149);
        }

        ref->layer_norm(want, x, w, b, (int)n, eps);
        var->layer_norm(got, x, w, b, (int)n, eps);
        same(c, "layer_norm", got, want, n);
        double rv = 1 / sqrt(var_sum / (double)n + eps);
        for (size_t i = 0; i < n; i++) {
            double wi = w ? w[i] : 1, bi = b ? b[i] : 0;
            kc_order(c, "layer_norm", i, want[i], (x[i] - mean) * rv * wi + bi,
                     (fabs(x[i]) + sum_abs / (double)n) * rv * fabs(wi) + fabs(bi), steps, 0x1p-149);
        }
    }
}

/* ---- rotation, routing, argmax ------------------------------------------------------------ */

static void check_rotate(kc *c, const sib_vector_kernels *ref, const sib_vector_kernels *var)
{
    static const struct {
        int pairs, distance, n;
    } shapes[] = {{1, 1, 2},       {4, 8, 16},   {32, 32, 64}, {36, 36, 72}, {64, 256, 512},
                  {128, 128, 256}, {13, 40, 60}, {32, 0, 64},  {3, 0, 8}};
    for (size_t s = 0; s < SIB_COUNT(shapes); s++)
        for (kc_regime g = 0; g < KC_N_REGIMES; g++) {
            int pairs = shapes[s].pairs, distance = shapes[s].distance;
            if (!kc_begin(c, "rotate pairs=%d distance=%d %s", pairs, distance, kc_regime_name(g))) continue;
            size_t n = (size_t)shapes[s].n;
            float *x = kc_floats(c, n, g), *want = copy_of(c, x, n), *got = copy_of(c, x, n);
            float *cs = room(c, (size_t)pairs * 2), *freq = kc_floats(c, (size_t)pairs, KC_UNIT);
            int32_t pos = kc_below(c, 300000);
            var->rope_angles(cs, freq, pairs, pos);
            for (int i = 0; i < pairs; i++) {
                kc_ulp(c, "cos", (size_t)i, cs[2 * i], cos((float)pos * freq[i]), 1);
                kc_ulp(c, "sin", (size_t)i, cs[2 * i + 1], sin((float)pos * freq[i]), 1);
            }
            ref->rotate(want, cs, pairs, distance);
            var->rotate(got, cs, pairs, distance);
            same(c, "rotate", got, want, n);
            for (int i = 0; i < pairs; i++) {
                size_t a = (size_t)(distance ? i : 2 * i), b = a + (size_t)(distance ? distance : 1);
                double co = cs[2 * i], si = cs[2 * i + 1];
                kc_order(c, "a", a, want[a], x[a] * co - x[b] * si, fabs(x[a] * co) + fabs(x[b] * si), 3, 0x1p-149);
                kc_order(c, "b", b, want[b], x[b] * co + x[a] * si, fabs(x[b] * co) + fabs(x[a] * si), 3, 0x1p-149);
            }
        }
}

/* Whether expert i comes before j: larger score, numbers before NaN, lower index. */
static bool before(const float *s, int i, int j)
{
    if (isnan(s[i]) || isnan(s[j])) return isnan(s[i]) && isnan(s[j]) ? i < j : isnan(s[j]);
    return s[i] != s[j] ? s[i] > s[j] : i < j;
}

static void check_route(kc *c, const sib_vector_kernels *var)
{
    static const struct {
        int n, k;
    } shapes[] = {{1, 1}, {4, 2}, {8, 8}, {64, 8}, {128, 8}, {256, 8}, {5, 3}};
    for (size_t s = 0; s < SIB_COUNT(shapes); s++)
        for (int variant = 0; variant < 6; variant++) {
            int n = shapes[s].n, k = shapes[s].k;
            if (!kc_begin(c, "moe_route n=%d k=%d variant %d", n, k, variant)) continue;
            float *x = kc_floats(c, (size_t)n, KC_REAL), *per = variant & 1 ? kc_floats(c, (size_t)n, KC_UNIT) : NULL;
            for (int i = 0; i < n; i++) { /* many equal values; NaN and infinities */
                if (variant >= 2) x[i] = (float)(kc_below(c, 3) - 1);
                if (variant >= 4 && kc_below(c, 3) == 0) x[i] = kc_below(c, 2) ? NAN : -INFINITY;
            }
            int32_t *idx = kc_alloc(c, (size_t)k * sizeof *idx, sizeof *idx);
            float *weight = room(c, (size_t)k);
            var->moe_route(idx, weight, x, per, n, k);
            bool clean = true;
            double sum = 0;
            for (int j = 0; j < k; j++) {
                int rank = 0;
                if (idx[j] < 0 || idx[j] >= n) {
                    kc_fail(c, "idx[%d] = %d", j, idx[j]);
                    return;
                }
                for (int i = 0; i < n; i++) rank += before(x, i, idx[j]);
                if (rank != j) kc_fail(c, "place %d holds expert %d of rank %d", j, idx[j], rank);
                clean = clean && isfinite(x[idx[j]]);
                sum += exp((double)x[idx[j]] - (double)x[idx[0]]);
            }
            for (int j = 0; j < k && clean; j++)
                kc_ulp(c, "weight", (size_t)j, weight[j],
                       exp((double)x[idx[j]] - (double)x[idx[0]]) / sum * (per ? (double)per[idx[j]] : 1), 16);
        }
}

static void check_argmax(kc *c, const sib_vector_kernels *var)
{
    FOR_SIZES(n) for (int variant = 0; variant < 6; variant++)
    {
        if (!kc_begin(c, "argmax n=%zu variant %d", n, variant)) continue;
        float *x = kc_floats(c, n, KC_UNIT);
        for (size_t i = 0; i < n; i++) {
            if (variant == 1) x[i] = (float)kc_below(c, 2);
            if (variant == 2) x[i] = -INFINITY;
            if (variant == 3) x[i] = NAN;
            if (variant == 4 && kc_below(c, 2)) x[i] = NAN;
            if (variant == 5) x[i] = kc_below(c, 2) ? -0.0f : 0.0f;
        }
        int32_t want = 0;
        float best = -INFINITY;
        for (size_t i = 0; i < n; i++)
            if (x[i] > best) {
                best = x[i];
                want = (int32_t)i;
            }
        int32_t got = var->argmax(x, (int64_t)n);
        if (got != want) kc_fail(c, "got %d, want %d", got, want);
    }
}

static void check(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    check_elementwise(c, &ref->vector, &var->vector);
    check_functions(c);
    check_norms(c, &ref->vector, &var->vector);
    check_rotate(c, &ref->vector, &var->vector);
    check_route(c, &var->vector);
    check_argmax(c, &var->vector);
}

/* ---- bench ------------------------------------------------------------------------------ */

typedef struct timed {
    const sib_vector_kernels *k;
    float *y;
    const float *a, *b;
    size_t n;
    int op;
} timed;

static void run_elementwise(void *arg)
{
    timed *t = arg;
    elementwise(t->k, t->op, t->y, t->a, t->b, t->n);
}

static void run_rms_norm(void *arg)
{
    timed *t = arg;
    t->k->rms_norm(t->y, t->a, t->b, (int)t->n, 1e-6f);
}

static void run_argmax(void *arg)
{
    timed *t = arg;
    t->op += t->k->argmax(t->a, (int64_t)t->n);
}

static void bench(kc *c, const sib_kernels *ref, const sib_kernels *var)
{
    (void)ref;
    if (!kc_begin(c, "bench")) return;
    size_t n = 8192;
    timed t = {
        .k = &var->vector, .y = room(c, n), .a = kc_floats(c, n, KC_UNIT), .b = kc_floats(c, n, KC_UNIT), .n = n};
    for (t.op = 0; t.op < N_ELEMENTWISE; t.op++)
        kc_time(c, elementwise_names[t.op], run_elementwise, &t, (double)n * 12, (double)n);
    kc_time(c, "rms_norm 8192", run_rms_norm, &t, (double)n * 12, (double)n);
    kc_time(c, "argmax 8192", run_argmax, &t, (double)n * 4, (double)n);
}

const kc_family kc_vector = {"vector", check, bench};
