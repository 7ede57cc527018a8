/* kernels/vector.c - the scalar vector kernels: the specification of vector.h.
 *
 * Class EXACT for all of them (rope_angles uses libm at every level, so it is exact too).
 * The accuracy of exp, tanh and the activations is stated in vector_math.h. */
#include "kernels/vector.h"
#include "kernels/vector_math.h"

#include <math.h>
#include <stdbool.h>

/* add, mul, scale: one IEEE operation. NaN and infinity as IEEE has them. */
static void add_ref(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void mul_ref(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void scale_ref(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}

/* clamp: NaN stays NaN; -0 and +0 compare equal, so the input's zero is kept. */
static void clamp_ref(float *y, const float *x, float lo, float hi, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = lo > x[i] ? lo : x[i];
        y[i] = hi < v ? hi : v;
    }
}

/* softcap: cap * tanh(x / cap), a division, not a product with 1 / cap; < 3 ulp, except that the
 * quotient of a subnormal x is rounded to the subnormal grid before it is scaled back. */
static void softcap_ref(float *y, const float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = cap * sib_tanh(x[i] / cap);
}

static void act_mul_ref(float *y, const float *gate, const float *up, int64_t n, int act)
{
    if (act == 0)
        for (int64_t i = 0; i < n; i++) y[i] = sib_gelu_tanh(gate[i]) * up[i];
    else if (act == 1)
        for (int64_t i = 0; i < n; i++) y[i] = sib_silu(gate[i]) * up[i];
    else
        for (int64_t i = 0; i < n; i++) y[i] = sib_sigmoid(gate[i]) * up[i];
}

static float tree_sum(float s[SIB_SUM_LANES])
{
    for (int half = SIB_SUM_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) s[j] += s[j + half];
    return s[0];
}

static float inverse_rms(const float *x, int n, float eps)
{
    float s[SIB_SUM_LANES] = {0};
    for (int i = 0; i < n; i++) s[i % SIB_SUM_LANES] += x[i] * x[i];
    return 1.0f / sqrtf(tree_sum(s) / (float)n + eps);
}

/* rms_norm: y = (x * r) * w,   r = 1 / sqrt(sum(x^2) / n + eps)
 *   eps    inside the root, added to the mean; eps 0 and x = 0 give NaN
 *   range  |x| < 2^63 / sqrt(n): a sum of squares that overflows gives r = 0
 *   error  |y - exact| <= (n / 64 + 11) 2^-24 |exact|: the sum's order, the root, two products */
static void rms_norm_ref(float *y, const float *x, const float *w, int n, float eps)
{
    float r = inverse_rms(x, n, eps);
    for (int i = 0; i < n; i++) y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
}

/* rms_norm_add: h = (h + rms_norm(x)) * scale, each step rounded to float32. */
static void rms_norm_add_ref(float *h, const float *x, const float *w, int n, float eps, float scale)
{
    float r = inverse_rms(x, n, eps);
    for (int i = 0; i < n; i++) h[i] = (h[i] + (w ? (x[i] * r) * w[i] : x[i] * r)) * scale;
}

/* layer_norm: y = ((x - mean) * r) * w + b,   r = 1 / sqrt(sum((x - mean)^2) / n + eps);
 * the variance is a second pass over x - mean, biased (divided by n). */
static void layer_norm_ref(float *y, const float *x, const float *w, const float *b, int n, float eps)
{
    float s[SIB_SUM_LANES] = {0}, q[SIB_SUM_LANES] = {0};
    for (int i = 0; i < n; i++) s[i % SIB_SUM_LANES] += x[i];
    float mean = tree_sum(s) / (float)n;
    for (int i = 0; i < n; i++) {
        float d = x[i] - mean;
        q[i % SIB_SUM_LANES] += d * d;
    }
    float r = 1.0f / sqrtf(tree_sum(q) / (float)n + eps);
    for (int i = 0; i < n; i++) {
        float v = (x[i] - mean) * r;
        if (w) v = v * w[i];
        y[i] = b ? v + b[i] : v;
    }
}

/* rotate: (a, b) -> (a c - b s, b c + a s), two products and one sum each, all rounded. */
static void rotate_ref(float *x, const float *cs, int n_pairs, int distance)
{
    int step = distance ? 1 : 2, other = distance ? distance : 1;
    for (int i = 0; i < n_pairs; i++) {
        float *p = x + (int64_t)i * step;
        float a = p[0], b = p[other], c = cs[2 * i], s = cs[2 * i + 1];
        p[0] = a * c - b * s;
        p[other] = b * c + a * s;
    }
}

/* rope_angles: the angle is the float32 product of the float32 position and the frequency,
 * as the references have it; sine and cosine of it within 1 ulp (libm). */
static void rope_angles_ref(float *cs, const float *inv_freq, int n_pairs, int32_t pos)
{
    for (int i = 0; i < n_pairs; i++) {
        float angle = (float)pos * inv_freq[i];
        cs[2 * i] = cosf(angle);
        cs[2 * i + 1] = sinf(angle);
    }
}

/* moe_route: the top_k largest scores in falling order, ties to the lower index; weight_j =
 * e_j / sum of the selected e, e = exp(score - largest), added in the order of selection, then
 * times per_expert. This equals softmax over all n, selection and renormalisation, without
 * the rounding of the common denominator.
 *   NaN    scores rank below every number (ties again to the lower index), so idx is always
 *          top_k different experts; a selected NaN makes the weights NaN
 *   range  1 <= top_k <= n */
static void moe_route_ref(int32_t *idx, float *weight, const float *scores, const float *per_expert, int n, int top_k)
{
    int held = 0;
    for (int i = 0; i < n; i++) {
        float s = scores[i], rank = s == s ? s : -INFINITY;
        /* Insertion into the sorted list; `weight` holds the ranks meanwhile. NaN and -inf
         * share a rank and are told apart by the scores themselves. */
        int at = held;
        while (at > 0) {
            float other = weight[at - 1];
            bool above = rank > other || (rank == other && s == s && scores[idx[at - 1]] != scores[idx[at - 1]]);
            if (!above) break;
            at--;
        }
        if (at == top_k) continue;
        if (held < top_k) held++;
        for (int j = held - 1; j > at; j--) {
            idx[j] = idx[j - 1];
            weight[j] = weight[j - 1];
        }
        idx[at] = i;
        weight[at] = rank;
    }
    float largest = scores[idx[0]], sum = 0.0f;
    for (int j = 0; j < top_k; j++) {
        weight[j] = sib_exp(scores[idx[j]] - largest);
        sum += weight[j];
    }
    for (int j = 0; j < top_k; j++) {
        weight[j] /= sum;
        if (per_expert) weight[j] *= per_expert[idx[j]];
    }
}

/* argmax: the lowest index of the largest value. NaN never wins; a row of nothing but NaN and
 * -inf gives 0. n < 2^31. */
static int32_t argmax_ref(const float *x, int64_t n)
{
    float best = -INFINITY;
    int32_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > best) {
            best = x[i];
            at = (int32_t)i;
        }
    }
    return at;
}

void sib_vector_ref(sib_vector_kernels *k)
{
    *k = (sib_vector_kernels){
        .add = add_ref,
        .mul = mul_ref,
        .scale = scale_ref,
        .clamp = clamp_ref,
        .softcap = softcap_ref,
        .act_mul = act_mul_ref,
        .rms_norm = rms_norm_ref,
        .rms_norm_add = rms_norm_add_ref,
        .layer_norm = layer_norm_ref,
        .rotate = rotate_ref,
        .rope_angles = rope_angles_ref,
        .moe_route = moe_route_ref,
        .argmax = argmax_ref,
    };
}
