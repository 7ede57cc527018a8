/* kernels/x86/matmul_avx2.c - matmul and the preparation of its rows with 256-bit vectors; see matmul.h for layout and numerics.
 *
 * A line of 16 lanes is two vectors. Up to four rows share the unpacking of a line.
 *   F32   a unit is one chain of fused multiply-adds over ascending k (also BF16 rows, whose x was rounded)
 *   INT8  4-bit codes: vpmaddubsw pairs, at most 15*127*2, eight of them summed in 16 bits (30480) before they widen;
 *         8-bit codes: a pair would saturate, so bytes widen first and vpmaddwd multiplies. Sums exact, finish as at every level. */
#include "kernels/matmul_internal.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { MOST_ROWS = 4 };

typedef struct half_pair {
    __m256 lo, hi; /* output rows 0..7, 8..15 of a block */
} half_pair;

static ALWAYS_INLINE __m256 floats_of_bf16(const unsigned char *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static ALWAYS_INLINE void load_scales(half_pair *s, half_pair *b, const unsigned char *tile, bool f32, int unit)
{
    if (f32) {
        const float *p = (const float *)(const void *)(tile + 128 * unit);
        *s = (half_pair){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
        *b = (half_pair){_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)};
    } else {
        const unsigned char *p = tile + 64 * unit;
        *s = (half_pair){floats_of_bf16(p), floats_of_bf16(p + 16)};
        *b = (half_pair){floats_of_bf16(p + 32), floats_of_bf16(p + 48)};
    }
}

static ALWAYS_INLINE __m256i load_half(const unsigned char *lines, int line, int half)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(lines + 64 * line + 32 * half));
}

static ALWAYS_INLINE void store_outputs(float *y, half_pair f, int n)
{
    float all[SIB_BLOCK];
    _mm256_storeu_ps(all, f.lo);
    _mm256_storeu_ps(all + 8, f.hi);
    memcpy(y, all, (size_t)n * sizeof *all);
}

/* ---- f32 rows --------------------------------------------------------------------------- */

/* Lanes of one half at k = 8j + l, exact in f32. */
static ALWAYS_INLINE __m256 values(const sib_packing packing, const unsigned char *lines, int j, const int l, int half)
{
    switch (packing) {
    case SIB_PACK_Q4: return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(load_half(lines, j, half), 4 * l), _mm256_set1_epi32(15)));
    case SIB_PACK_Q8:
        return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(load_half(lines, 2 * j + l % 2, half), 8 * (l / 2)), _mm256_set1_epi32(255)));
    case SIB_PACK_BF16: {
        __m256i w = load_half(lines, 4 * j + l % 4, half);
        return _mm256_castsi256_ps(l < 4 ? _mm256_slli_epi32(w, 16) : _mm256_and_si256(w, _mm256_set1_epi32((int)0xFFFF0000u)));
    }
    default: return _mm256_castsi256_ps(load_half(lines, 8 * j + l, half));
    }
}

static ALWAYS_INLINE void block_f32(const int T, const sib_packing packing, float *y, int64_t y_stride, const sib_packed *w, int64_t b, const void *const *row)
{
    half_pair f[MOST_ROWS];
    const sib_chunk_f32 *x[MOST_ROWS];
    const unsigned char *tile = sib_block_tiles(w, b);
    UNROLL for (int t = 0; t < T; t++)
    {
        x[t] = row[t];
        f[t] = (half_pair){_mm256_setzero_ps(), _mm256_setzero_ps()};
    }
    for (int64_t g = 0; g < w->chunks; g++, tile += w->tile_bytes) {
        const unsigned char *lines = tile + sib_tile_scales(w);
        for (int u = 0; u < w->units; u++) {
            half_pair c[MOST_ROWS];
            UNROLL for (int t = 0; t < T; t++) c[t] = (half_pair){_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (int j = u * 8 / w->units; j < (u + 1) * 8 / w->units; j++) {
                UNROLL for (int l = 0; l < 8; l++)
                {
                    __m256 lo = values(packing, lines, j, l, 0), hi = values(packing, lines, j, l, 1);
                    UNROLL for (int t = 0; t < T; t++)
                    {
                        __m256 xk = _mm256_set1_ps(x[t][g].x[8 * j + l]);
                        c[t].lo = _mm256_fmadd_ps(lo, xk, c[t].lo);
                        c[t].hi = _mm256_fmadd_ps(hi, xk, c[t].hi);
                    }
                }
            }
            if (packing <= SIB_PACK_Q8) {
                half_pair s, bias;
                load_scales(&s, &bias, tile, w->f32_scales, u);
                UNROLL for (int t = 0; t < T; t++)
                {
                    __m256 sum = _mm256_set1_ps(x[t][g].sum[w->units == 1 ? 2 : u]);
                    f[t].lo = _mm256_fmadd_ps(bias.lo, sum, _mm256_fmadd_ps(s.lo, c[t].lo, f[t].lo));
                    f[t].hi = _mm256_fmadd_ps(bias.hi, sum, _mm256_fmadd_ps(s.hi, c[t].hi, f[t].hi));
                }
            } else {
                UNROLL for (int t = 0; t < T; t++)
                {
                    f[t].lo = _mm256_add_ps(f[t].lo, c[t].lo);
                    f[t].hi = _mm256_add_ps(f[t].hi, c[t].hi);
                }
            }
        }
    }
    UNROLL for (int t = 0; t < T; t++) store_outputs(y + t * y_stride, f[t], sib_block_outputs(w, b));
}

/* ---- int8 rows -------------------------------------------------------------------------- */

static ALWAYS_INLINE __m256i four_bytes(const int8_t p[4])
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Bytes 0, 1 and 2, 3 of x as pairs of int16. */
static ALWAYS_INLINE __m256i pair_of(int8_t a, int8_t b)
{
    return _mm256_set1_epi32((int)((uint32_t)(uint16_t)a | (uint32_t)(uint16_t)b << 16));
}

/* Sum over the unit's k of one half: int32 lanes. */
static ALWAYS_INLINE __m256i unit_q4(const unsigned char *lines, const sib_chunk_int8 *x, int first, int last, int half)
{
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i c = _mm256_setzero_si256(), narrow = c;
    for (int j = first; j < last; j++) {
        __m256i v = load_half(lines, j, half), even = _mm256_and_si256(v, nibble), odd = _mm256_and_si256(_mm256_srli_epi32(v, 4), nibble);
        narrow = _mm256_add_epi16(narrow, _mm256_add_epi16(_mm256_maddubs_epi16(even, four_bytes(x->x[j][0])), _mm256_maddubs_epi16(odd, four_bytes(x->x[j][1]))));
        if (j % 4 == 3) {
            c = _mm256_add_epi32(c, _mm256_madd_epi16(narrow, ones));
            narrow = _mm256_setzero_si256();
        }
    }
    return c;
}

static ALWAYS_INLINE __m256i unit_q8(const unsigned char *lines, const sib_chunk_int8 *x, int first, int last, int half)
{
    const __m256i low = _mm256_set1_epi32(0x00FF00FF);
    __m256i c = _mm256_setzero_si256();
    for (int j = first; j < last; j++)
        for (int p = 0; p < 2; p++) {
            const int8_t *k = x->x[j][p];
            __m256i v = load_half(lines, 2 * j + p, half);
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_and_si256(v, low), pair_of(k[0], k[2])));
            c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_and_si256(_mm256_srli_epi32(v, 8), low), pair_of(k[1], k[3])));
        }
    return c;
}

/* f = fma(d, fma(s, c, b * S), f) */
static ALWAYS_INLINE __m256 finish_int8(__m256 f, __m256i c, __m256 s, __m256 b, float sum, float d)
{
    return _mm256_fmadd_ps(_mm256_set1_ps(d), _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(c), _mm256_mul_ps(b, _mm256_set1_ps(sum))), f);
}

static ALWAYS_INLINE void block_int8(const int T, const sib_packing packing, float *y, int64_t y_stride, const sib_packed *w, int64_t b, const void *const *row)
{
    half_pair f[MOST_ROWS];
    const sib_chunk_int8 *x[MOST_ROWS];
    const unsigned char *tile = sib_block_tiles(w, b);
    UNROLL for (int t = 0; t < T; t++)
    {
        x[t] = row[t];
        f[t] = (half_pair){_mm256_setzero_ps(), _mm256_setzero_ps()};
    }
    for (int64_t g = 0; g < w->chunks; g++, tile += w->tile_bytes) {
        const unsigned char *lines = tile + sib_tile_scales(w);
        for (int u = 0; u < w->units; u++) {
            half_pair s, bias;
            int first = u * 8 / w->units, last = (u + 1) * 8 / w->units;
            load_scales(&s, &bias, tile, w->f32_scales, u);
            UNROLL for (int t = 0; t < T; t++)
            {
                float sum = x[t][g].sum[w->units == 1 ? 2 : u], d = x[t][g].sum[3];
                __m256i lo = packing == SIB_PACK_Q4 ? unit_q4(lines, &x[t][g], first, last, 0) : unit_q8(lines, &x[t][g], first, last, 0);
                __m256i hi = packing == SIB_PACK_Q4 ? unit_q4(lines, &x[t][g], first, last, 1) : unit_q8(lines, &x[t][g], first, last, 1);
                f[t].lo = finish_int8(f[t].lo, lo, s.lo, bias.lo, sum, d);
                f[t].hi = finish_int8(f[t].hi, hi, s.hi, bias.hi, sum, d);
            }
        }
    }
    UNROLL for (int t = 0; t < T; t++) store_outputs(y + t * y_stride, f[t], sib_block_outputs(w, b));
}

/* ---- one function for each pair --------------------------------------------------------- */

/* Rows in groups of at most four, block by block: the block stays in the cache between groups. */
#define DEFINE(name, block, packing)                                                                                   \
    static void name(float *y, int64_t y_stride, const sib_packed *w, int64_t b0, int64_t b1, const sib_rows *x, void *panel) \
    {                                                                                                                  \
        (void)panel;                                                                                                   \
        for (int64_t b = b0; b < b1; b++, y += SIB_BLOCK)                                                              \
            for (int r = 0; r < x->n; r += MOST_ROWS) {                                                                \
                float *to = y + r * y_stride;                                                                          \
                switch (x->n - r) {                                                                                    \
                case 1: block(1, packing, to, y_stride, w, b, x->row + r); break;                                      \
                case 2: block(2, packing, to, y_stride, w, b, x->row + r); break;                                      \
                case 3: block(3, packing, to, y_stride, w, b, x->row + r); break;                                      \
                default: block(4, packing, to, y_stride, w, b, x->row + r); break;                                     \
                }                                                                                                      \
            }                                                                                                          \
    }

DEFINE(run_q4_f32, block_f32, SIB_PACK_Q4)
DEFINE(run_q8_f32, block_f32, SIB_PACK_Q8)
DEFINE(run_bf16_f32, block_f32, SIB_PACK_BF16)
DEFINE(run_f32_f32, block_f32, SIB_PACK_F32)
DEFINE(run_q4_int8, block_int8, SIB_PACK_Q4)
DEFINE(run_q8_int8, block_int8, SIB_PACK_Q8)

/* ---- preparing rows --------------------------------------------------------------------- */

static ALWAYS_INLINE void load_chunk(__m256 v[8], const float *x, int64_t in, int64_t c)
{
    float end[SIB_CHUNK] = {0};
    const float *from = x + c * SIB_CHUNK;
    if (in - c * SIB_CHUNK < SIB_CHUNK) from = memcpy(end, from, (size_t)(in - c * SIB_CHUNK) * sizeof *end);
    UNROLL for (int i = 0; i < 8; i++) v[i] = _mm256_loadu_ps(from + 8 * i);
}

/* Nearest, ties to even, as sib_bf16_of_f32. */
static ALWAYS_INLINE __m256 round_bf16(__m256 v)
{
    __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256 nan = _mm256_castsi256_ps(_mm256_or_si256(u, _mm256_set1_epi32(0x400000)));
    __m256 all = _mm256_blendv_ps(_mm256_castsi256_ps(r), nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_ps(all, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xFFFF0000u)));
}

static ALWAYS_INLINE float sum_ps(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static ALWAYS_INLINE int sum_epi32(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(1, 0, 3, 2)));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, _MM_SHUFFLE(2, 3, 0, 1))));
}

static void prepare_f32(void *record, const float *x, int64_t in, bool round)
{
    sib_chunk_f32 *r = record;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        __m256 v[8];
        load_chunk(v, x, in, c);
        UNROLL for (int i = 0; i < 8; i++)
        {
            if (round) v[i] = round_bf16(v[i]);
            _mm256_storeu_ps(r->x + 8 * i, v[i]);
        }
        r->sum[0] = sum_ps(_mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3])));
        r->sum[1] = sum_ps(_mm256_add_ps(_mm256_add_ps(v[4], v[5]), _mm256_add_ps(v[6], v[7])));
        r->sum[2] = r->sum[0] + r->sum[1];
        r->sum[3] = 0;
    }
}

/* 32 integers within a byte's range as bytes, of each 8 the even ones first. */
static ALWAYS_INLINE __m256i narrow(const __m256i q[4])
{
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    __m256i p = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    p = _mm256_permutevar8x32_epi32(p, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packs work in halves */
    return _mm256_shuffle_epi8(p, order);
}

static void prepare_int8(void *record, const float *x, int64_t in, bool round)
{
    const __m256i most = _mm256_set1_epi32(127), least = _mm256_set1_epi32(-127), magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    sib_chunk_int8 *r = record;
    (void)round;
    for (int64_t c = 0; c * SIB_CHUNK < in; c++, r++) {
        __m256 v[8];
        __m256i q[8], bits = _mm256_setzero_si256();
        load_chunk(v, x, in, c);
        UNROLL for (int i = 0; i < 8; i++)
            bits = _mm256_max_epu32(bits, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        __m128i m = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(1, 0, 3, 2)));
        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, _MM_SHUFFLE(2, 3, 0, 1)));
        float d = (uint32_t)_mm_cvtsi128_si32(m) < 0x7F800000u ? _mm_cvtss_f32(_mm_castsi128_ps(m)) / 127.0f : NAN;
        __m256i any = _mm256_set1_epi32(d > 0 ? -1 : 0);
        UNROLL for (int i = 0; i < 8; i++)
        {
            q[i] = _mm256_cvtps_epi32(_mm256_div_ps(v[i], _mm256_set1_ps(d))); /* rounds to nearest even */
            q[i] = _mm256_and_si256(any, _mm256_max_epi32(_mm256_min_epi32(q[i], most), least));
        }
        _mm256_storeu_si256((__m256i *)(void *)r->x[0], narrow(q));
        _mm256_storeu_si256((__m256i *)(void *)r->x[4], narrow(q + 4));
        int first = sum_epi32(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])));
        int last = sum_epi32(_mm256_add_epi32(_mm256_add_epi32(q[4], q[5]), _mm256_add_epi32(q[6], q[7])));
        r->sum[0] = (float)first;
        r->sum[1] = (float)last;
        r->sum[2] = (float)(first + last);
        r->sum[3] = d;
    }
}

void sib_matmul_avx2(sib_matmul_kernels *k)
{
    k->prepare[SIB_PREP_F32] = prepare_f32;
    k->prepare[SIB_PREP_INT8] = prepare_int8;
    k->run[SIB_PREP_F32][SIB_PACK_Q4] = run_q4_f32;
    k->run[SIB_PREP_F32][SIB_PACK_Q8] = run_q8_f32;
    k->run[SIB_PREP_F32][SIB_PACK_BF16] = run_bf16_f32;
    k->run[SIB_PREP_F32][SIB_PACK_F32] = run_f32_f32;
    k->run[SIB_PREP_INT8][SIB_PACK_Q4] = run_q4_int8;
    k->run[SIB_PREP_INT8][SIB_PACK_Q8] = run_q8_int8;
}
