/* kernels/x86/denoise_body.h - the kernels of denoise.h on registers; the body of denoise_avx2.c and
 * denoise_avx512.c. Same bits as the scalar code. */
#include "kernels/denoise.h"
#include "kernels/vector.h"
#include "kernels/x86/vector_simd.h"

static inline vf offset_simd(vf x, const sib_soften *s)
{
    return x / vf_set1(s->t) - vf_set1(s->top);
}

static void soften_simd(float *w, const float *x, int64_t n, const sib_soften *s)
{
    for (int64_t i = 0; i < n; i += VN) {
        vf d = offset_simd(vf_load_n(x + i, n - i), s);
        if (s->u != 1.0f) d = d / vf_set1(s->u);
        vf_store_n(w + i, n - i, vf_exp(d));
    }
}

#define SUM_REGS (SIB_SUM_LANES / VN)

static float tree_sum(vf s[SUM_REGS])
{
    for (int half = SUM_REGS / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    return vf_sum(s[0]);
}

static void soften_sums_simd(float sums[2], const float *x, int64_t n, const sib_soften *s)
{
    vf a[SUM_REGS], b[SUM_REGS];
    for (int j = 0; j < SUM_REGS; j++) a[j] = b[j] = vf_zero();
    for (int64_t i = 0; i < n; i += SIB_SUM_LANES)
        for (int j = 0; j < SUM_REGS; j++) {
            int64_t left = n - i - j * VN;
            if (left <= 0) break;
            vf d = offset_simd(vf_load_n(x + i + j * VN, left), s), w = vf_exp(d), wd = w * d;
            if (left < VN) { /* lanes behind the end add +0 */
                vm m = vm_range(0, (int)left);
                w = vf_select(m, w, vf_zero());
                wd = vf_select(m, wd, vf_zero());
            }
            a[j] = a[j] + w;
            b[j] = b[j] + wd;
        }
    sums[0] = tree_sum(a);
    sums[1] = tree_sum(b);
}

/* MIX_ROWS rows by MIX_REGS registers of columns stay in registers while the run of embedding rows passes by once. */
#define MIX_REGS (VN == 16 ? 4 : 2)
#define MIX_ROWS (VN == 16 ? 5 : 4)

static inline void mix_rows(float *y, int64_t y_stride, const float *p, int64_t p_stride, const float *w, int n, int rows)
{
    for (int c = 0; c < SIB_MIX_COLUMNS; c += MIX_REGS * VN) {
        vf acc[MIX_ROWS][MIX_REGS];
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < MIX_REGS; j++) acc[r][j] = vf_load(y + r * y_stride + c + j * VN);
        for (int v = 0; v < n; v++) {
            vf e[MIX_REGS];
            for (int j = 0; j < MIX_REGS; j++) e[j] = vf_load(w + v * SIB_MIX_COLUMNS + c + j * VN);
            for (int r = 0; r < rows; r++) {
                vf q = vf_set1(p[r * p_stride + v]);
                for (int j = 0; j < MIX_REGS; j++) acc[r][j] = vf_fma(q, e[j], acc[r][j]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < MIX_REGS; j++) vf_store(y + r * y_stride + c + j * VN, acc[r][j]);
    }
}

static void mix_simd(float *y, int64_t y_stride, const float *p, int64_t p_stride, int rows, const float *w, int n)
{
    int r = 0;
    for (; r + MIX_ROWS <= rows; r += MIX_ROWS) mix_rows(y + r * y_stride, y_stride, p + r * p_stride, p_stride, w, n, MIX_ROWS);
    for (; r < rows; r++) mix_rows(y + r * y_stride, y_stride, p + r * p_stride, p_stride, w, n, 1);
}

static void set_denoise_kernels(sib_denoise_kernels *k)
{
    *k = (sib_denoise_kernels){.soften = soften_simd, .soften_sums = soften_sums_simd, .mix = mix_simd};
}
