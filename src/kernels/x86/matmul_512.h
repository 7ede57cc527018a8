/* kernels/x86/matmul_512.h - helpers of the AVX-512 matmul files; all static. */
#ifndef SIB_KERNELS_X86_MATMUL_512_H
#define SIB_KERNELS_X86_MATMUL_512_H

#include "kernels/matmul_internal.h"

#include <immintrin.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL    _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NO_UNROLL /* gcc would warn that instrumented loops lose the annotation */
#else
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif
#endif

#define PANEL_ROWS 24 /* from here on unpacking into a panel pays */

typedef int32_t __attribute__((may_alias)) word; /* four bytes of a chunk record */

static ALWAYS_INLINE __m512 floats_of_bf16(const unsigned char *p)
{
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static ALWAYS_INLINE void load_scales(__m512 *s, __m512 *b, const unsigned char *tile, bool f32, int unit)
{
    if (f32) {
        *s = _mm512_loadu_ps(tile + 128 * unit);
        *b = _mm512_loadu_ps(tile + 128 * unit + 64);
    } else {
        *s = floats_of_bf16(tile + 64 * unit);
        *b = floats_of_bf16(tile + 64 * unit + 32);
    }
}

static ALWAYS_INLINE __mmask16 outputs_mask(const sib_packed *w, int64_t b)
{
    return (__mmask16)((1u << sib_block_outputs(w, b)) - 1);
}

static ALWAYS_INLINE __m512i load_line(const unsigned char *lines, int line)
{
    return _mm512_loadu_si512(lines + 64 * line);
}

#endif
