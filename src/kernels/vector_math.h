/* kernels/vector_math.h - exp, tanh and the activations, as scalar functions.
 *
 * These are the specification of every such function in the engine: attention's softmax,
 * soft caps, gated units and the router. They use only IEEE additions, multiplications,
 * divisions and exact integer steps, never FMA and never libm, so the vector versions in
 * x86/vector_simd.h perform the same operations in each lane and give the same bits:
 * class EXACT between levels, lanes and tails.
 *
 * Measured against double precision over 16 million floats of the whole range, repeated by
 * tests/unit/vector_math_test.c on fewer:
 *
 *   exp        < 1 ulp, subnormal results included. +inf above 88.72283, +0 below -103.97;
 *              NaN gives NaN.
 *   tanh       < 1.5 ulp. Odd to the bit, -0 gives -0, exactly +-1 from |x| = 9.02 on; NaN gives NaN.
 *   silu       x / (1 + exp(-x)): < 2.5 ulp; below x = -88.7 it is -0 (the value is above -3e-37).
 *   sigmoid    1 / (1 + exp(-x)): < 2.5 ulp; below x = -88.7 it is +0, NaN gives NaN.
 *   gelu_tanh  0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), computed as the equal
 *              x / (1 + exp(-2u)), which does not cancel for negative x. exp turns the rounding of
 *              2u into < 5.1 (1 + |u|) ulp; < 2.5 ulp for x >= -1; below x = -10 it is -0.
 *              Both give x at +inf and NaN at -inf (inf / inf), as the textbook formulas do. */
#ifndef SIB_KERNELS_VECTOR_MATH_H
#define SIB_KERNELS_VECTOR_MATH_H

#include <stdint.h>
#include <string.h>

/* exp: n = round(x / ln 2) by the addition of 1.5 * 2^23; r = x - n ln 2 in two steps, the
 * first exact because the high part has 9 bits; e^r = 1 + r + r^2 P(r), P of degree 4, fitted
 * by Remez exchange to a relative error of 2^-28; times 2^n in two exact factors. */
#define SIB_EXP_MIN    (-104.0f)
#define SIB_EXP_MAX    89.0f
#define SIB_LOG2_E     1.44269504f
#define SIB_LN2_HIGH   0.693359375f
#define SIB_LN2_LOW    (-2.12194440e-4f)
#define SIB_ROUND_BIAS 12582912.0f
#define SIB_EXP_P0     0.49999994f
#define SIB_EXP_P1     0.16666516f
#define SIB_EXP_P2     0.041668037f
#define SIB_EXP_P3     0.0083693019f
#define SIB_EXP_P4     0.0013844492f

/* tanh: |x| < 0.625: x + x z P(z), z = x^2, fitted likewise; else 1 - 2 / (exp(2|x|) + 1). */
#define SIB_TANH_SMALL 0.625f
#define SIB_TANH_P0    (-0.33333280f)
#define SIB_TANH_P1    0.13331373f
#define SIB_TANH_P2    (-0.053733695f)
#define SIB_TANH_P3    0.020618620f
#define SIB_TANH_P4    (-0.0056812788f)

#define SIB_GELU_CUBE  0.044715f
#define SIB_GELU_SCALE (-1.59576912f) /* -2 sqrt(2/pi) */

static inline float sib_float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t sib_bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float sib_exp(float x)
{
    /* Comparisons written so that NaN stays NaN, as the vector min and max are used. */
    float c = SIB_EXP_MIN > x ? SIB_EXP_MIN : x;
    c = SIB_EXP_MAX < c ? SIB_EXP_MAX : c;
    float biased = c * SIB_LOG2_E + SIB_ROUND_BIAS;
    float n = biased - SIB_ROUND_BIAS;
    float r = c - n * SIB_LN2_HIGH;
    r = r - n * SIB_LN2_LOW;
    float p = SIB_EXP_P4;
    p = p * r + SIB_EXP_P3;
    p = p * r + SIB_EXP_P2;
    p = p * r + SIB_EXP_P1;
    p = p * r + SIB_EXP_P0;
    float y = (p * (r * r) + r) + 1.0f;
    int32_t i = (int32_t)(sib_bits_of_float(biased) - 0x4B400000u); /* n as an integer */
    int32_t half = i >> 1;
    y = y * sib_float_of_bits((uint32_t)(half + 127) << 23);
    return y * sib_float_of_bits((uint32_t)(i - half + 127) << 23);
}

static inline float sib_tanh(float x)
{
    uint32_t sign = sib_bits_of_float(x) & 0x80000000u;
    float a = sib_float_of_bits(sib_bits_of_float(x) ^ sign);
    float z = a * a, p = SIB_TANH_P4;
    p = p * z + SIB_TANH_P3;
    p = p * z + SIB_TANH_P2;
    p = p * z + SIB_TANH_P1;
    p = p * z + SIB_TANH_P0;
    float small = p * (z * a) + a;
    float large = 1.0f - 2.0f / (sib_exp(a + a) + 1.0f);
    float y = a < SIB_TANH_SMALL ? small : large;
    return sib_float_of_bits(sib_bits_of_float(y) | sign);
}

static inline float sib_silu(float x)
{
    return x / (1.0f + sib_exp(-x));
}

static inline float sib_sigmoid(float x)
{
    return 1.0f / (1.0f + sib_exp(-x));
}

static inline float sib_gelu_tanh(float x)
{
    float inner = x + SIB_GELU_CUBE * (x * x * x);
    return x / (1.0f + sib_exp(SIB_GELU_SCALE * inner));
}

#endif
