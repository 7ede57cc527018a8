/* kernels/delta.h - kernels of the gated delta rule (qwen3_5.md 2.3): the short causal convolution and one token
 * of the recurrence on a block of state columns.
 *
 * All are EXACT between instruction set levels: columns and channels are independent, every sum has one order
 * (delta.c), and no variant uses FMA.
 *
 * Users: ops/cpu_delta.c, tests/kcheck. Rows, heads and blocks are the caller's loop, so the bits of a state or
 * an output at a position cannot depend on how tokens were cut into calls. */
#ifndef SIB_KERNELS_DELTA_H
#define SIB_KERNELS_DELTA_H

#include <stdint.h>

/* Columns of a state block: [k_dim][SIB_DELTA_COLS] of 128 x 32 floats is 16 KiB and stays in the L1 cache. */
#define SIB_DELTA_COLS 32

typedef struct sib_delta_token {
    const float *q, *k; /* [k_dim], normed and scaled; q NULL: no output is wanted */
    const float *v;     /* [n] */
    float decay, beta;
    float *o; /* [n], not read when q is NULL */
} sib_delta_token;

typedef struct sib_delta_kernels {
    /* y[i] = silu(sum over j of row[j][i] * w[j * stride + i]), i < n */
    void (*conv_silu)(float *y, const float *const *row, const float *w, int64_t stride, int taps, int n);
    /* One token on n columns: `in` [k_dim] rows in_stride apart (0: one row for all, of zeros), `out` [k_dim][n]; out may be in. */
    void (*step)(const sib_delta_token *t, float *out, const float *in, int64_t in_stride, int k_dim, int n);
    /* y[i] = y[i] + s * x[i] */
    void (*add_scaled)(float *y, const float *x, float s, int64_t n);
} sib_delta_kernels;

void sib_delta_ref(sib_delta_kernels *k);
void sib_delta_avx2(sib_delta_kernels *k);
void sib_delta_avx512(sib_delta_kernels *k);

/* The gates of one token and head: decay = exp(a_neg * softplus(a + dt_bias)), a_neg = -exp(A_log); beta = sigmoid(b).
 * softplus(x) = log(1 + e^x), x itself above 20. Scalar at every level. */
void sib_delta_gates(float *decay, float *beta, float a, float b, float a_neg, float dt_bias);

#endif
