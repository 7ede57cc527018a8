/* kernels/x86/vector_body.h - the kernels of vector.h on registers; the body of vector_avx2.c and
 * vector_avx512.c. Same bits as the scalar code: same operations, same order of sums. */
#include "kernels/vector.h"
#include "kernels/x86/vector_simd.h"

#include <math.h>
#include <stddef.h>

static void add_simd(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) vf_store_n(y + i, n - i, vf_load_n(a + i, n - i) + vf_load_n(b + i, n - i));
}

static void mul_simd(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) vf_store_n(y + i, n - i, vf_load_n(a + i, n - i) * vf_load_n(b + i, n - i));
}

static void scale_simd(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN) vf_store_n(y + i, n - i, vf_load_n(x + i, n - i) * vf_set1(s));
}

static void clamp_simd(float *y, const float *x, float lo, float hi, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN)
        vf_store_n(y + i, n - i, vf_min(vf_set1(hi), vf_max(vf_set1(lo), vf_load_n(x + i, n - i))));
}

static void softcap_simd(float *y, const float *x, float cap, int64_t n)
{
    vf c = vf_set1(cap);
    for (int64_t i = 0; i < n; i += VN) vf_store_n(y + i, n - i, c * vf_tanh(vf_load_n(x + i, n - i) / c));
}

static void act_mul_simd(float *y, const float *gate, const float *up, int64_t n, int act)
{
    if (act == 0)
        for (int64_t i = 0; i < n; i += VN)
            vf_store_n(y + i, n - i, vf_gelu_tanh(vf_load_n(gate + i, n - i)) * vf_load_n(up + i, n - i));
    else if (act == 1)
        for (int64_t i = 0; i < n; i += VN)
            vf_store_n(y + i, n - i, vf_silu(vf_load_n(gate + i, n - i)) * vf_load_n(up + i, n - i));
    else
        for (int64_t i = 0; i < n; i += VN)
            vf_store_n(y + i, n - i, vf_sigmoid(vf_load_n(gate + i, n - i)) * vf_load_n(up + i, n - i));
}

/* The 64 partial sums of vector.h in SUM_REGS registers. */
#define SUM_REGS (SIB_SUM_LANES / VN)

static float tree_sum(vf s[SUM_REGS])
{
    for (int half = SUM_REGS / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    return vf_sum(s[0]);
}

/* What the sums add up: x, or (x - mean)^2. Lanes behind the end add +0, which changes nothing. */
static inline vf square_from(const float *x, int64_t left, float mean)
{
    if (left >= VN) {
        vf d = vf_load(x) - vf_set1(mean);
        return d * d;
    }
    vm m = vm_range(0, (int)(left > 0 ? left : 0));
    vf d = vf_load_mask(x, m) - vf_set1(mean);
    return vf_select(m, d * d, vf_zero());
}

static float sum_squares_from(const float *x, int n, float mean)
{
    vf s[SUM_REGS];
    for (int j = 0; j < SUM_REGS; j++) s[j] = vf_zero();
    for (int i = 0; i < n; i += SIB_SUM_LANES)
        for (int j = 0; j < SUM_REGS; j++) s[j] = s[j] + square_from(x + i + j * VN, n - i - j * VN, mean);
    return tree_sum(s);
}

static float sum_of(const float *x, int n)
{
    vf s[SUM_REGS];
    for (int j = 0; j < SUM_REGS; j++) s[j] = vf_zero();
    for (int i = 0; i < n; i += SIB_SUM_LANES)
        for (int j = 0; j < SUM_REGS; j++) {
            int left = n - i - j * VN;
            if (left > 0) s[j] = s[j] + vf_load_n(x + i + j * VN, left);
        }
    return tree_sum(s);
}

static float inverse_root(float sum, int n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void rms_norm_simd(float *y, const float *x, const float *w, int n, float eps)
{
    vf r = vf_set1(inverse_root(sum_squares_from(x, n, 0.0f), n, eps));
    if (w)
        for (int i = 0; i < n; i += VN) vf_store_n(y + i, n - i, vf_load_n(x + i, n - i) * r * vf_load_n(w + i, n - i));
    else
        for (int i = 0; i < n; i += VN) vf_store_n(y + i, n - i, vf_load_n(x + i, n - i) * r);
}

static void rms_norm_add_simd(float *h, const float *x, const float *w, int n, float eps, float scale)
{
    vf r = vf_set1(inverse_root(sum_squares_from(x, n, 0.0f), n, eps)), s = vf_set1(scale);
    for (int i = 0; i < n; i += VN) {
        vf v = vf_load_n(x + i, n - i) * r;
        if (w) v = v * vf_load_n(w + i, n - i);
        vf_store_n(h + i, n - i, (vf_load_n(h + i, n - i) + v) * s);
    }
}

static void layer_norm_simd(float *y, const float *x, const float *w, const float *b, int n, float eps)
{
    float mean = sum_of(x, n) / (float)n;
    vf r = vf_set1(inverse_root(sum_squares_from(x, n, mean), n, eps)), m = vf_set1(mean);
    for (int i = 0; i < n; i += VN) {
        vf v = (vf_load_n(x + i, n - i) - m) * r;
        if (w) v = v * vf_load_n(w + i, n - i);
        if (b) v = v + vf_load_n(b + i, n - i);
        vf_store_n(y + i, n - i, v);
    }
}

/* Half-split pairs in registers; interleaved ones (one family's rotation) and what is left are
 * plain code, which the compiler may vectorize: the operations are exact either way. */
static void rotate_simd(float *x, const float *cs, int n_pairs, int distance)
{
    int i = 0, step = distance ? 1 : 2, other = distance ? distance : 1;
    for (; distance && i + VN <= n_pairs; i += VN) {
        vf c, s, a = vf_load(x + i), b = vf_load(x + i + distance);
        vf_load_pairs(cs + 2 * (ptrdiff_t)i, &c, &s);
        vf_store(x + i, a * c - b * s);
        vf_store(x + i + distance, b * c + a * s);
    }
    for (; i < n_pairs; i++) {
        float *p = x + (ptrdiff_t)i * step;
        float a = p[0], b = p[other], c = cs[2 * (ptrdiff_t)i], s = cs[2 * (ptrdiff_t)i + 1];
        p[0] = a * c - b * s;
        p[other] = b * c + a * s;
    }
}

/* A lane keeps the first of its largest values; lanes are compared at the end. */
static int32_t argmax_simd(const float *x, int64_t n)
{
    vf best = vf_set1(-INFINITY);
    vi at = vi_set1(0), index = vi_iota();
    int64_t i = 0;
    for (; i + VN <= n; i += VN) {
        vf v = vf_load(x + i);
        vm above = vf_less(best, v);
        best = vf_select(above, v, best);
        at = vi_select(above, index, at);
        index = vi_add(index, vi_set1(VN));
    }
    float value[VN], top = -INFINITY;
    int32_t where[VN], result = 0;
    vf_store(value, best);
    vi_store(where, at);
    for (int j = 0; j < VN; j++)
        if (value[j] > top || (value[j] == top && value[j] > -INFINITY && where[j] < result)) {
            top = value[j];
            result = where[j];
        }
    for (; i < n; i++)
        if (x[i] > top) {
            top = x[i];
            result = (int32_t)i;
        }
    return result;
}

static void set_vector_kernels(sib_vector_kernels *k)
{
    k->add = add_simd;
    k->mul = mul_simd;
    k->scale = scale_simd;
    k->clamp = clamp_simd;
    k->softcap = softcap_simd;
    k->act_mul = act_mul_simd;
    k->rms_norm = rms_norm_simd;
    k->rms_norm_add = rms_norm_add_simd;
    k->layer_norm = layer_norm_simd;
    k->rotate = rotate_simd;
    k->argmax = argmax_simd;
}
