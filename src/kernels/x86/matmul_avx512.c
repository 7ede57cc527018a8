/* kernels/x86/matmul_avx512.c - preparing rows, and matmul with f32 rows by fused multiply-add; see matmul.h.
 *
 * F32: a unit (plain: a chunk) is one chain of fused multiply-adds over ascending k; codes are exact in f32. */
#include "kernels/x86/matmul_512.h"

#include <math.h>

/* ---- preparing rows --------------------------------------------------------------------- */

/* Chunk c of x, zeros behind the end. */
static ALWAYS_INLINE void load_chunk(__m512 v[4], const float *x, int64_t in, int64_t c)
{
    int64_t left = in - c * SIB_CHUNK;
    x += c * SIB_CHUNK;
    UNROLL for (int i = 0; i < 4; i++)
    {
        int64_t n = left - 16 * i;
        __mmask16 m = (__mmask16)(n >= 16 ? 0xFFFF : n > 0 ? (1 << n) - 1 : 0);
        v[i] = _mm512_maskz_loadu_ps(m, x + 16 * i);
    }
}

/* Nearest, ties to even, as sib_bf16_of_f32; the result is in the upper halves, the lower ones are zero. */
static ALWAYS_INLINE __m512i round_bf16_bits(__m512 v)
{
    __m512i u = _mm512_castps_si512(v), upper = _mm512_set1_epi32((int)0xFFFF0000u);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_and_si512(_mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000)), upper);
}

static ALWAYS_INLINE void store_sums(float sum[4], const __m512 v[4])
{
    sum[0] = _mm512_reduce_add_ps(_mm512_add_ps(v[0], v[1]));
    sum[1] = _mm512_reduce_add_ps(_mm512_add_ps(v[2], v[3]));
    sum[2] = sum[0] + sum[1];
    sum[3] = 0;
}

static void prepare_f32(void *record, const float *x, int64_t in, bool round_bf16)
{
    sib_chunk_f32 *r = record;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        __m512 v[4];
        load_chunk(v, x, in, c);
        UNROLL for (int i = 0; i < 4; i++)
        {
            if (round_bf16) v[i] = _mm512_castsi512_ps(round_bf16_bits(v[i]));
            _mm512_storeu_ps(r->x + 16 * i, v[i]);
        }
        store_sums(r->sum, v);
    }
}

/* Two vectors hold 8j..8j+15 each; a pair (8j+i, 8j+i+4) takes the upper half of lane i and of lane i+4. */
static void prepare_bf16(void *record, const float *x, int64_t in, bool round_bf16)
{
    const __m512i even_pairs = _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0);
    sib_chunk_bf16 *r = record;
    (void)round_bf16;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        __m512 v[4];
        __m512i pair[4];
        load_chunk(v, x, in, c);
        UNROLL for (int i = 0; i < 4; i++)
        {
            __m512i h = round_bf16_bits(v[i]);
            __m512i later = _mm512_shuffle_i32x4(h, h, _MM_SHUFFLE(2, 3, 0, 1));
            v[i] = _mm512_castsi512_ps(h);
            pair[i] = _mm512_or_si512(_mm512_srli_epi32(h, 16), later);
        }
        _mm512_storeu_si512(r->x[0], _mm512_permutex2var_epi64(pair[0], even_pairs, pair[1]));
        _mm512_storeu_si512(r->x[4], _mm512_permutex2var_epi64(pair[2], even_pairs, pair[3]));
        store_sums(r->sum, v);
    }
}

static void prepare_int8(void *record, const float *x, int64_t in, bool round_bf16)
{
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    const __m512i most = _mm512_set1_epi32(127), least = _mm512_set1_epi32(-127), magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    sib_chunk_int8 *r = record;
    (void)round_bf16;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        __m512 v[4];
        __m512i q[4], bits = _mm512_setzero_si512();
        load_chunk(v, x, in, c);
        UNROLL for (int i = 0; i < 4; i++)
            bits = _mm512_max_epu32(bits, _mm512_and_si512(_mm512_castps_si512(v[i]), magnitude));
        uint32_t top = _mm512_reduce_max_epu32(bits);
        float max;
        memcpy(&max, &top, sizeof max);
        float d = top < 0x7F800000u ? max / 127.0f : NAN;
        __mmask16 any = (__mmask16)(d > 0 ? 0xFFFF : 0);
        UNROLL for (int i = 0; i < 4; i++)
        {
            q[i] = _mm512_maskz_cvtps_epi32(any, _mm512_div_ps(v[i], _mm512_set1_ps(d))); /* rounds to nearest even */
            q[i] = _mm512_max_epi32(_mm512_min_epi32(q[i], most), least);
        }
        __m512i bytes = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(q[0]));
        bytes = _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(q[1]), 1);
        bytes = _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(q[2]), 2);
        bytes = _mm512_inserti32x4(bytes, _mm512_cvtepi32_epi8(q[3]), 3);
        _mm512_storeu_si512(r->x, _mm512_shuffle_epi8(bytes, order));
        int first = _mm512_reduce_add_epi32(_mm512_add_epi32(q[0], q[1]));
        int last = _mm512_reduce_add_epi32(_mm512_add_epi32(q[2], q[3]));
        r->sum[0] = (float)first;
        r->sum[1] = (float)last;
        r->sum[2] = (float)(first + last);
        r->sum[3] = d;
    }
}

/* ---- f32 rows --------------------------------------------------------------------------- */

static ALWAYS_INLINE __m512i line_f32(const sib_packing packing, const unsigned char *lines, int j, const int l)
{
    switch (packing) {
    case SIB_PACK_Q4: { /* permute looks at 4 bits of an index: no mask */
        const __m512 table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        return _mm512_castps_si512(_mm512_permutexvar_ps(_mm512_srli_epi32(load_line(lines, j), 4 * l), table));
    }
    case SIB_PACK_Q8: {
        __m512i w = _mm512_srli_epi32(load_line(lines, 2 * j + l % 2), 8 * (l / 2));
        return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_and_si512(w, _mm512_set1_epi32(255))));
    }
    case SIB_PACK_BF16: {
        __m512i w = load_line(lines, 4 * j + l % 4);
        return l < 4 ? _mm512_slli_epi32(w, 16) : _mm512_and_si512(w, _mm512_set1_epi32((int)0xFFFF0000u));
    }
    default: return load_line(lines, 8 * j + l);
    }
}

/* f = fma(b, X, fma(s, c, f)) */
static ALWAYS_INLINE __m512 finish_f32(__m512 f, __m512 c, __m512 s, __m512 b, const float *sum, int unit)
{
    return _mm512_fmadd_ps(b, _mm512_set1_ps(sum[unit]), _mm512_fmadd_ps(s, c, f));
}

#define NAME(x)            x##_f32
#define CHUNK              sib_chunk_f32
#define PER_J              8
#define J_LOOP             NO_UNROLL /* unrolled, 64 lines of 8 rows take gcc two minutes to compile and run no faster */
#define PANEL_LINES        512 /* 512 k: 64 KiB */
#define ACC                __m512
#define ACC_ZERO           _mm512_setzero_ps()
#define DOT(c, v, x)       _mm512_fmadd_ps(_mm512_castsi512_ps(v), _mm512_castsi512_ps(_mm512_set1_epi32(*(x))), c)
#define FINISH             finish_f32
#define FINISH_PLAIN(f, c) _mm512_add_ps(f, c)
#define LINE               line_f32
#include "kernels/x86/matmul_512.inc"
DEFINE(bf16, SIB_PACK_BF16, 1)
DEFINE(f32, SIB_PACK_F32, 1)
#include "kernels/x86/matmul_512_end.inc"

void sib_matmul_avx512(sib_matmul_kernels *k)
{
    k->prepare[SIB_PREP_F32] = prepare_f32;
    k->prepare[SIB_PREP_BF16] = prepare_bf16;
    k->prepare[SIB_PREP_INT8] = prepare_int8;
    k->run[SIB_PREP_F32][SIB_PACK_Q4] = run_q4_f32;
    k->run[SIB_PREP_F32][SIB_PACK_Q8] = run_q8_f32;
    k->run[SIB_PREP_F32][SIB_PACK_BF16] = run_bf16_f32;
    k->run[SIB_PREP_F32][SIB_PACK_F32] = run_f32_f32;
}
