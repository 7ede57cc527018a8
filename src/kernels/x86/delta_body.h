/* kernels/x86/delta_body.h - the kernels of delta.h on registers; the body of delta_avx2.c and delta_avx512.c.
 * Same operations in the same order as delta.c, a column a lane. */
#include "kernels/delta.h"
#include "kernels/x86/vector_simd.h"

#include <stdbool.h>
#include <stddef.h>

static void conv_silu_simd(float *y, const float *const *row, const float *w, int64_t stride, int taps, int n)
{
    for (int i = 0; i < n; i += VN) {
        vf s = vf_load_n(row[0] + i, n - i) * vf_load_n(w + i, n - i);
        for (int j = 1; j < taps; j++) s = s + vf_load_n(row[j] + i, n - i) * vf_load_n(w + j * stride + i, n - i);
        vf_store_n(y + i, n - i, vf_silu(s));
    }
}

/* REGS registers of columns from column c on; `left` columns of the last one when it is not full. The decayed state is
 * computed twice rather than stored and loaded again: the step is bound by loads and stores. */
static inline __attribute__((always_inline)) void columns(const sib_delta_token *t, float *out, const float *in, int64_t in_stride,
                                                          int k_dim, int n, int c, const int regs, const bool full, int left)
{
    vf m[2][2], o[2][2], d[2], decay = vf_set1(t->decay);
    for (int p = 0; p < 2; p++)
        for (int r = 0; r < regs; r++) m[p][r] = o[p][r] = vf_zero();
    in += c;
    out += c;
#define AT(base, r) (full ? vf_load((base) + (r) * VN) : vf_load_n((base), left))
#define READ(p, i)                                                                                                     \
    do {                                                                                                               \
        vf k_ = vf_set1(t->k[i]);                                                                                      \
        const float *row_ = in + (i) * in_stride;                                                                      \
        for (int r = 0; r < regs; r++) m[p][r] = m[p][r] + AT(row_, r) * decay * k_;                                   \
    } while (0)
    int i = 0;
    for (; i + 2 <= k_dim; i += 2) {
        READ(0, i);
        READ(1, i + 1);
    }
    if (i < k_dim) READ(0, i);
    for (int r = 0; r < regs; r++) d[r] = (AT(t->v + c, r) - (m[0][r] + m[1][r])) * vf_set1(t->beta);
#define UPDATE(p, i, with_q)                                                                                           \
    do {                                                                                                               \
        vf k_ = vf_set1(t->k[i]);                                                                                      \
        const float *row_ = in + (i) * in_stride;                                                                      \
        float *to_ = out + (ptrdiff_t)(i) * n;                                                                         \
        for (int r = 0; r < regs; r++) {                                                                               \
            vf s_ = AT(row_, r) * decay + k_ * d[r];                                                                   \
            if (full)                                                                                                  \
                vf_store(to_ + r * VN, s_);                                                                            \
            else                                                                                                       \
                vf_store_n(to_, left, s_);                                                                             \
            if (with_q) o[p][r] = o[p][r] + s_ * vf_set1(t->q[i]);                                                     \
        }                                                                                                              \
    } while (0)
    if (!t->q) {
        for (i = 0; i < k_dim; i++) UPDATE(0, i, false);
        return;
    }
    for (i = 0; i + 2 <= k_dim; i += 2) {
        UPDATE(0, i, true);
        UPDATE(1, i + 1, true);
    }
    if (i < k_dim) UPDATE(0, i, true);
    for (int r = 0; r < regs; r++) {
        if (full)
            vf_store(t->o + c + r * VN, o[0][r] + o[1][r]);
        else
            vf_store_n(t->o + c, left, o[0][r] + o[1][r]);
    }
#undef AT
#undef READ
#undef UPDATE
}

static void step_simd(const sib_delta_token *t, float *out, const float *in, int64_t in_stride, int k_dim, int n)
{
    int c = 0;
    for (; c + 2 * VN <= n; c += 2 * VN) columns(t, out, in, in_stride, k_dim, n, c, 2, true, 0);
    for (; c < n; c += VN) columns(t, out, in, in_stride, k_dim, n, c, 1, false, n - c);
}

static void add_scaled_simd(float *y, const float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN)
        vf_store_n(y + i, n - i, vf_load_n(y + i, n - i) + vf_set1(s) * vf_load_n(x + i, n - i));
}

static void set_delta_kernels(sib_delta_kernels *k)
{
    k->conv_silu = conv_silu_simd;
    k->step = step_simd;
    k->add_scaled = add_scaled_simd;
}
