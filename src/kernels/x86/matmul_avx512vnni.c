/* kernels/x86/matmul_avx512vnni.c - matmul with vpdpbusd and vdpbf16ps; see matmul.h for the numerics.
 *
 * INT8: u8 codes times s8 activations, no offset to correct. BF16: codes 0..255 are exact in bf16, products exact in f32;
 * a unit is one chain of vdpbf16ps in line order. */
#include "kernels/x86/matmul_rows512.h"

/* ---- int8 rows -------------------------------------------------------------------------- */

/* Instructions by hand keep the accumulator in place: gcc 12 copies the 16 of a panel's loop in and out of every round. */
static ALWAYS_INLINE __m512i dot_int8(__m512i c, __m512i v, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(v), "v"(x));
    return c;
}

static ALWAYS_INLINE __m512 dot_bf16(__m512 c, __m512i v, __m512i x)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(v), "v"(x));
    return c;
}

#define NAME(x)            x##_int8
#define CHUNK              sib_chunk_int8
#define PER_J              2
#define J_LOOP             UNROLL
#define PANEL_LINES        512 /* 2048 k: 64 KiB */
#define ACC                __m512i
#define ACC_ZERO           _mm512_setzero_si512()
#define DOT(c, v, x)       dot_int8(c, v, _mm512_set1_epi32(*(x)))
#define FINISH             finish_int8
#define FINISH_PLAIN(f, c) _mm512_add_ps(f, _mm512_cvtepi32_ps(c))
#define LINE               line_int8
#include "kernels/x86/matmul_512.inc"
#include "kernels/x86/matmul_512_end.inc"

/* ---- bf16 rows -------------------------------------------------------------------------- */

#define NAME(x)            x##_bf16
#define CHUNK              sib_chunk_bf16
#define PER_J              4
#define J_LOOP             UNROLL
#define PANEL_LINES        1024 /* 2048 k: 128 KiB */
#define ACC                __m512
#define ACC_ZERO           _mm512_setzero_ps()
#define DOT(c, v, x)       dot_bf16(c, v, _mm512_set1_epi32(*(x)))
#define FINISH             finish_bf16
#define FINISH_PLAIN(f, c) _mm512_add_ps(f, c)
#define LINE               line_bf16
#include "kernels/x86/matmul_512.inc"
DEFINE(bf16, SIB_PACK_BF16, 1)
#include "kernels/x86/matmul_512_end.inc"

void sib_matmul_avx512vnni(sib_matmul_kernels *k)
{
    k->run[SIB_PREP_INT8][SIB_PACK_Q4] = run_q4_int8;
    k->run[SIB_PREP_INT8][SIB_PACK_Q8] = run_q8_int8;
    k->run[SIB_PREP_BF16][SIB_PACK_Q4] = run_q4_bf16;
    k->run[SIB_PREP_BF16][SIB_PACK_Q8] = run_q8_bf16;
    k->run[SIB_PREP_BF16][SIB_PACK_BF16] = run_bf16_bf16;
}
