/* kernels/delta.c - scalar reference and numerics of kernels/delta.h. */
#include "kernels/delta.h"

#include "kernels/vector_math.h"

#include <math.h>

/* conv_silu: c = silu(sum_j row[j] * w[j])
 *   order   j ascending from the oldest row; the first product starts the sum; silu as in vector_math.h
 *   class   EXACT */
static void conv_silu_ref(float *y, const float *const *row, const float *w, int64_t stride, int taps, int n)
{
    for (int i = 0; i < n; i++) {
        float s = row[0][i] * w[i];
        for (int j = 1; j < taps; j++) s = s + row[j][i] * w[j * stride + i];
        y[i] = sib_silu(s);
    }
}

/* step: per column c, with S the state before the token,
 *
 *   P[i] = S[i] * decay                        decay first
 *   m    = sum_i P[i] * k[i]                   read from the decayed state
 *   d    = (v - m) * beta
 *   S[i] = P[i] + k[i] * d                     update
 *   o    = sum_i S[i] * q[i]                   read from the updated state
 *
 *   sums    two partial sums over even and odd i, each ascending from +0, then added: two chains hide the latency of
 *           an addition without changing bits between register widths
 *   class   EXACT; |m - exact| <= (k_dim / 2 + 2) 2^-24 sum|P k|, and the same for o */
static void step_ref(const sib_delta_token *t, float *out, const float *in, int64_t in_stride, int k_dim, int n)
{
    for (int c = 0; c < n; c++) {
        float m[2] = {0.0f, 0.0f}, o[2] = {0.0f, 0.0f};
        for (int i = 0; i < k_dim; i++) m[i % 2] += in[i * in_stride + c] * t->decay * t->k[i];
        float d = (t->v[c] - (m[0] + m[1])) * t->beta;
        for (int i = 0; i < k_dim; i++) {
            float s = in[i * in_stride + c] * t->decay + t->k[i] * d;
            out[(int64_t)i * n + c] = s;
            if (t->q) o[i % 2] += s * t->q[i];
        }
        if (t->q) t->o[c] = o[0] + o[1];
    }
}

static void add_scaled_ref(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = y[i] + s * x[i];
}

void sib_delta_gates(float *decay, float *beta, float a, float b, float a_neg, float dt_bias)
{
    float x = a + dt_bias, soft = x > 20.0f ? x : log1pf(sib_exp(x));
    *decay = sib_exp(a_neg * soft);
    *beta = sib_sigmoid(b);
}

void sib_delta_ref(sib_delta_kernels *k)
{
    *k = (sib_delta_kernels){conv_silu_ref, step_ref, add_scaled_ref};
}
