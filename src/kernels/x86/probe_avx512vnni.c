/* probe_avx512vnni.c - multiply-adds as fast as registers allow: the ceilings of a kernel. */
#include "kernels/probe.h"

#include <immintrin.h>

#define CHAINS 12

#define BURN(type, zero, op)                                                                                           \
    do {                                                                                                               \
        type a[CHAINS];                                                                                                \
        for (int i = 0; i < CHAINS; i++) a[i] = zero;                                                                  \
        for (long r = 0; r < rounds; r++) {                                                                            \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] = op;                                       \
            __asm__ volatile("" : "+v"(x));                                                                            \
        }                                                                                                              \
        for (int i = 0; i < CHAINS; i++) __asm__ volatile("" ::"v"(a[i]));                                             \
    } while (0)

/* Gop/s of one thread; kind 0 int8, 1 bf16, 2 f32. */
double sib_burn_avx512vnni(long rounds, int kind)
{
    static const int macs[] = {64, 32, 16};
    __m512i x = _mm512_set1_epi8(1), y = _mm512_set1_epi8(1);
    double t = sib_probe_now();
    if (kind == 0)
        BURN(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(a[i], x, y));
    else if (kind == 1)
        BURN(__m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(a[i], (__m512bh)x, (__m512bh)y));
    else
        BURN(__m512, _mm512_setzero_ps(), _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), a[i]));
    return (double)rounds * CHAINS * macs[kind] * 2e-9 / (sib_probe_now() - t);
}
