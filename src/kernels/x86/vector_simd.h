/* kernels/x86/vector_simd.h - one register of floats, as AVX2 or AVX-512 has it, and exp and tanh on it.
 *
 * Included by the files of one level only; the width follows the file's flags. The kernels are
 * written once, on these names (vector_body.h, attention_body.h), with the operators that gcc
 * and clang define on vector types. Tails use masks: the same instructions on fewer lanes. */
#ifndef SIB_KERNELS_X86_VECTOR_SIMD_H
#define SIB_KERNELS_X86_VECTOR_SIMD_H

#include "kernels/vector_math.h"

#include <immintrin.h>

#if defined(__AVX512F__)

#define VN 16
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm; /* lanes */

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* a > b ? a : b */
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); } /* a < b ? a : b */
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vi vf_bits(vf x) { return _mm512_castps_si512(x); }
static inline vf vf_of_bits(vi x) { return _mm512_castsi512_ps(x); }
static inline vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline vm vf_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

static inline vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
static inline vi vi_set1(int x) { return _mm512_set1_epi32(x); }
static inline vi vi_iota(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
static inline void vi_store(void *p, vi x) { _mm512_storeu_si512(p, x); }
#define VI_SHL(x, n) _mm512_slli_epi32((x), (n))
#define VI_SAR(x, n) _mm512_srai_epi32((x), (n))

/* Lanes a <= i < b, for any a and b. */
static inline vm vm_range(int a, int b)
{
    vi i = vi_iota();
    return _mm512_cmp_epi32_mask(i, vi_set1(a), _MM_CMPINT_NLT) & _mm512_cmp_epi32_mask(i, vi_set1(b), _MM_CMPINT_LT);
}
static inline vf vf_load_mask(const float *p, vm m) { return _mm512_maskz_loadu_ps(m, p); }
static inline void vf_store_mask(float *p, vm m, vf x) { _mm512_mask_storeu_ps(p, m, x); }

/* Lanes i and i + 8 added, then 4, 2, 1. */
static inline float vf_sum(vf x)
{
    __m256 h = _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1);
    __m128 q = _mm256_castps256_ps128(h) + _mm256_extractf128_ps(h, 1);
    q = q + _mm_movehl_ps(q, q);
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float vf_largest(vf x) { return _mm512_reduce_max_ps(x); }

/* cos and sin of VN pairs (c, s) that follow one another. */
static inline void vf_load_pairs(const float *p, vf *first, vf *second)
{
    vf a = vf_load(p), b = vf_load(p + VN);
    vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *first = _mm512_permutex2var_ps(a, even, b);
    *second = _mm512_permutex2var_ps(a, vi_add(even, vi_set1(1)), b);
}

#else

#define VN 8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vm; /* all bits of a lane or none */

static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_zero(void) { return _mm256_setzero_ps(); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vi vf_bits(vf x) { return _mm256_castps_si256(x); }
static inline vf vf_of_bits(vi x) { return _mm256_castsi256_ps(x); }
static inline vf vf_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m)); }
static inline vm vf_less(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

static inline vi vi_load(const void *p) { return _mm256_loadu_si256(p); }
static inline vi vi_set1(int x) { return _mm256_set1_epi32(x); }
static inline vi vi_iota(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_select(vm m, vi yes, vi no) { return _mm256_blendv_epi8(no, yes, m); }
static inline void vi_store(void *p, vi x) { _mm256_storeu_si256(p, x); }
#define VI_SHL(x, n) _mm256_slli_epi32((x), (n))
#define VI_SAR(x, n) _mm256_srai_epi32((x), (n))

static inline vm vm_range(int a, int b)
{
    vi i = vi_iota();
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(vi_set1(a), i), _mm256_cmpgt_epi32(vi_set1(b), i));
}
static inline vf vf_load_mask(const float *p, vm m) { return _mm256_maskload_ps(p, m); }
static inline void vf_store_mask(float *p, vm m, vf x) { _mm256_maskstore_ps(p, m, x); }

static inline float vf_sum(vf x)
{
    __m128 q = _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
    q = q + _mm_movehl_ps(q, q);
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float vf_largest(vf x)
{
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline void vf_load_pairs(const float *p, vf *first, vf *second)
{
    vf a = vf_load(p), b = vf_load(p + VN);
    vf low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *first = _mm256_shuffle_ps(low, high, 0x88);
    *second = _mm256_shuffle_ps(low, high, 0xDD);
}

#endif

/* The first `left` lanes (all of them when left >= VN): the rest reads as 0 and is not written. */
static inline vf vf_load_n(const float *p, int64_t left)
{
    return left >= VN ? vf_load(p) : vf_load_mask(p, vm_range(0, (int)left));
}

static inline void vf_store_n(float *p, int64_t left, vf x)
{
    if (left >= VN)
        vf_store(p, x);
    else
        vf_store_mask(p, vm_range(0, (int)left), x);
}

/* The functions of vector_math.h, operation by operation. */
static inline vf vf_exp(vf x)
{
    vf c = vf_min(vf_set1(SIB_EXP_MAX), vf_max(vf_set1(SIB_EXP_MIN), x));
    vf biased = c * vf_set1(SIB_LOG2_E) + vf_set1(SIB_ROUND_BIAS);
    vf n = biased - vf_set1(SIB_ROUND_BIAS);
    vf r = c - n * vf_set1(SIB_LN2_HIGH);
    r = r - n * vf_set1(SIB_LN2_LOW);
    vf p = vf_set1(SIB_EXP_P4);
    p = p * r + vf_set1(SIB_EXP_P3);
    p = p * r + vf_set1(SIB_EXP_P2);
    p = p * r + vf_set1(SIB_EXP_P1);
    p = p * r + vf_set1(SIB_EXP_P0);
    vf y = (p * (r * r) + r) + vf_set1(1.0f);
    vi i = vi_sub(vf_bits(biased), vi_set1(0x4B400000)), half = VI_SAR(i, 1), bias = vi_set1(127);
    y = y * vf_of_bits(VI_SHL(vi_add(half, bias), 23));
    return y * vf_of_bits(VI_SHL(vi_add(vi_sub(i, half), bias), 23));
}

static inline vf vf_tanh(vf x)
{
    vi sign = vi_and(vf_bits(x), vi_set1((int)0x80000000u));
    vf a = vf_of_bits(vi_xor(vf_bits(x), sign)), z = a * a;
    vf p = vf_set1(SIB_TANH_P4);
    p = p * z + vf_set1(SIB_TANH_P3);
    p = p * z + vf_set1(SIB_TANH_P2);
    p = p * z + vf_set1(SIB_TANH_P1);
    p = p * z + vf_set1(SIB_TANH_P0);
    vf small = p * (z * a) + a;
    vf large = vf_set1(1.0f) - vf_set1(2.0f) / (vf_exp(a + a) + vf_set1(1.0f));
    vf y = vf_select(vf_less(a, vf_set1(SIB_TANH_SMALL)), small, large);
    return vf_of_bits(vi_xor(vf_bits(y), sign));
}

static inline vf vf_silu(vf x)
{
    vf minus = vf_of_bits(vi_xor(vf_bits(x), vi_set1((int)0x80000000u)));
    return x / (vf_set1(1.0f) + vf_exp(minus));
}

static inline vf vf_sigmoid(vf x)
{
    vf minus = vf_of_bits(vi_xor(vf_bits(x), vi_set1((int)0x80000000u)));
    return vf_set1(1.0f) / (vf_set1(1.0f) + vf_exp(minus));
}

static inline vf vf_gelu_tanh(vf x)
{
    vf inner = x + vf_set1(SIB_GELU_CUBE) * (x * x * x);
    return x / (vf_set1(1.0f) + vf_exp(vf_set1(SIB_GELU_SCALE) * inner));
}

#endif
