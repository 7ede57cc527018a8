/* kernels/vector.h - kernels over one row or one run of floats: norms, rotary embedding,
 * activations, elementwise arithmetic, expert routing, argmax.
 *
 * Everything here is EXACT between instruction set levels: elementwise functions use the
 * operations of vector_math.h, and sums have one order, defined below, that a register of
 * any width can follow. The numerics stand beside the scalar code in vector.c.
 *
 *   sum of n values: partial j (0 <= j < 64) adds the values i = j, j + 64, j + 128, ... in
 *   this order, starting from +0; then partial j += partial j + 32 for j < 32, and so on with
 *   16, 8, 4, 2, 1.
 *
 * Users: ops/cpu_vector.c, the fused epilogues of ops/cpu.c, tests/kcheck. Rows are the
 * caller's loop, so a row's bits cannot depend on its neighbours. */
#ifndef SIB_KERNELS_VECTOR_H
#define SIB_KERNELS_VECTOR_H

#include <stdint.h>

#define SIB_SUM_LANES 64

typedef struct sib_vector_kernels {
    /* y may be any of the inputs; otherwise arrays do not overlap. Any alignment. */
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*mul)(float *y, const float *a, const float *b, int64_t n);
    void (*scale)(float *y, const float *x, float s, int64_t n);
    void (*clamp)(float *y, const float *x, float lo, float hi, int64_t n);
    void (*softcap)(float *y, const float *x, float cap, int64_t n);
    /* y = act(gate) * up; act as in sib_act: 0 gelu_tanh, 1 silu, 2 sigmoid */
    void (*act_mul)(float *y, const float *gate, const float *up, int64_t n, int act);

    /* One row; w and b [n], NULL for ones and zeros. y may be x. */
    void (*rms_norm)(float *y, const float *x, const float *w, int n, float eps);
    void (*rms_norm_add)(float *h, const float *x, const float *w, int n, float eps, float scale);
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int n, float eps);

    /* Rotates the pairs of one head in place; cs [n_pairs][2]. `distance` as in sib_rope; x points
     * at the first rotated element. */
    void (*rotate)(float *x, const float *cs, int n_pairs, int distance);
    void (*rope_angles)(float *cs, const float *inv_freq, int n_pairs, int32_t pos);

    void (*moe_route)(int32_t *idx, float *weight, const float *scores, const float *per_expert, int n, int top_k);
    int32_t (*argmax)(const float *x, int64_t n);
} sib_vector_kernels;

void sib_vector_ref(sib_vector_kernels *k);
void sib_vector_avx2(sib_vector_kernels *k);
void sib_vector_avx512(sib_vector_kernels *k);

#endif
