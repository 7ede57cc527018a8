/* kernels/x86/matmul_rows512.h - per kind of prepared rows: how the AVX-512 levels unpack a line and how they
 * close a unit. Shared by the VNNI and AMX files, which must agree bit by bit in mode int8. */
#ifndef SIB_KERNELS_X86_MATMUL_ROWS512_H
#define SIB_KERNELS_X86_MATMUL_ROWS512_H

#include "kernels/x86/matmul_512.h"

/* ---- int8 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE __m512i line_int8(const sib_packing packing, const unsigned char *lines, int j, const int l)
{
    if (packing == SIB_PACK_Q8) return load_line(lines, 2 * j + l);
    __m512i w = load_line(lines, j);
    return _mm512_and_si512(l ? _mm512_srli_epi32(w, 4) : w, _mm512_set1_epi8(15));
}

/* f = fma(d, fma(s, I, b*S), f) */
static ALWAYS_INLINE __m512 finish_int8(__m512 f, __m512i c, __m512 s, __m512 b, const float *meta, int unit)
{
    __m512 t = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(c), _mm512_mul_ps(b, _mm512_set1_ps(meta[unit])));
    return _mm512_fmadd_ps(_mm512_set1_ps(meta[3]), t, f);
}

/* ---- bf16 rows -------------------------------------------------------------------------- */

/* bf16 of 0..15 twice: the index is 5 bits of a 16-bit lane, of which the highest does not matter. */
static ALWAYS_INLINE __m512i nibble_table(void)
{
    return _mm512_set_epi32(0x41704160, 0x41504140, 0x41304120, 0x41104100, 0x40E040C0, 0x40A04080, 0x40404000, 0x3F800000,
                            0x41704160, 0x41504140, 0x41304120, 0x41104100, 0x40E040C0, 0x40A04080, 0x40404000, 0x3F800000);
}

/* Bytes n and n+2 of every 32-bit lane as a pair of bf16: a float of 8 significant bits has an empty lower half. */
static ALWAYS_INLINE __m512i byte_pair(__m512i w, const int n)
{
    const __m512i low = _mm512_set1_epi32(255);
    __m512 a = _mm512_cvtepi32_ps(_mm512_and_si512(n ? _mm512_srli_epi32(w, 8) : w, low));
    __m512 b = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(w, 8 * n + 16), low));
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b));
}

static ALWAYS_INLINE __m512i line_bf16(const sib_packing packing, const unsigned char *lines, int j, const int l)
{
    switch (packing) {
    case SIB_PACK_Q4: {
        __m512i w = load_line(lines, j);
        return _mm512_permutexvar_epi16(l ? _mm512_srli_epi32(w, 4 * l) : w, nibble_table());
    }
    case SIB_PACK_Q8: return byte_pair(load_line(lines, 2 * j + l % 2), l / 2);
    default: return load_line(lines, 4 * j + l);
    }
}

/* f = fma(b, X, fma(s, c, f)) */
static ALWAYS_INLINE __m512 finish_bf16(__m512 f, __m512 c, __m512 s, __m512 b, const float *meta, int unit)
{
    return _mm512_fmadd_ps(b, _mm512_set1_ps(meta[unit]), _mm512_fmadd_ps(s, c, f));
}

#endif
