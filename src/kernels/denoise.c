/* kernels/denoise.c - the scalar kernels of denoise.h: their specification. */
#include "kernels/denoise.h"

#include "kernels/vector.h"
#include "kernels/vector_math.h"

#include <math.h>

/* x / t is a division, as the references have it: multiplying by 1 / t moves hard thresholds
 * (diffusion_gemma.md 3.2). */
static float offset(float x, const sib_soften *s)
{
    return x / s->t - s->top;
}

/* soften: one division, one subtraction, a second division unless u is 1, exp. NaN stays NaN. */
static void soften_ref(float *w, const float *x, int64_t n, const sib_soften *s)
{
    for (int64_t i = 0; i < n; i++) {
        float d = offset(x[i], s);
        w[i] = sib_exp(s->u == 1.0f ? d : d / s->u);
    }
}

/* soften_sums: sums in the order of vector.h. w * d is 0 * d where w underflows, so an infinite logit makes
 * both sums NaN. */
static void soften_sums_ref(float sums[2], const float *x, int64_t n, const sib_soften *s)
{
    float a[SIB_SUM_LANES] = {0}, b[SIB_SUM_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = offset(x[i], s), w = sib_exp(d);
        a[i % SIB_SUM_LANES] += w;
        b[i % SIB_SUM_LANES] += w * d;
    }
    for (int half = SIB_SUM_LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) {
            a[j] += a[j + half];
            b[j] += b[j + half];
        }
    sums[0] = a[0];
    sums[1] = b[0];
}

/* mix: y = fma(p, w, y) over ascending v; a row and a column see nothing of the others. */
static void mix_ref(float *y, int64_t y_stride, const float *p, int64_t p_stride, int rows, const float *w, int n)
{
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < n; v++)
            for (int c = 0; c < SIB_MIX_COLUMNS; c++)
                y[r * y_stride + c] = fmaf(p[r * p_stride + v], w[v * SIB_MIX_COLUMNS + c], y[r * y_stride + c]);
}

void sib_denoise_ref(sib_denoise_kernels *k)
{
    *k = (sib_denoise_kernels){.soften = soften_ref, .soften_sums = soften_sums_ref, .mix = mix_ref};
}
