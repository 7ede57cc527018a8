/* kernels/denoise.h - kernels over rows of vocabulary logits for block diffusion: softmax weights,
 * their sums, and the product of probabilities with a run of embedding rows.
 *
 * Class EXACT between instruction set levels: exp is that of vector_math.h, sums have the order of
 * vector.h, and the product accumulates with one fused multiply-add a term in a fixed order. The numerics
 * stand beside the scalar code in denoise.c.
 *
 * Users: ops/cpu_denoise.c, tests/unit/denoise_ops_test.c. */
#ifndef SIB_KERNELS_DENOISE_H
#define SIB_KERNELS_DENOISE_H

#include <stdint.h>

#define SIB_MIX_COLUMNS 64

/* How logits become weights: w = exp((x / t - top) / u), the last division left out for u = 1. */
typedef struct sib_soften {
    float t;   /* temperature, above 0                           */
    float top; /* the row's largest x / t: the largest weight is 1 */
    float u;   /* second temperature, above 0                    */
} sib_soften;

typedef struct sib_denoise_kernels {
    /* w[i] = weight of x[i]; w may be x. */
    void (*soften)(float *w, const float *x, int64_t n, const sib_soften *s);
    /* sums[0] = sum of w, sums[1] = sum of w * (x / t - top); u is not looked at. */
    void (*soften_sums)(float sums[2], const float *x, int64_t n, const sib_soften *s);
    /* y[r][c] += sum over v < n of p[r][v] * w[v][c], c < SIB_MIX_COLUMNS; rows of p and y lie p_stride and
     * y_stride floats apart, w is [n][SIB_MIX_COLUMNS]. */
    void (*mix)(float *y, int64_t y_stride, const float *p, int64_t p_stride, int rows, const float *w, int n);
} sib_denoise_kernels;

void sib_denoise_ref(sib_denoise_kernels *k);
void sib_denoise_avx2(sib_denoise_kernels *k);
void sib_denoise_avx512(sib_denoise_kernels *k);

#endif
