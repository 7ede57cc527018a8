/* kernels/x86/attention_body.h - the kernels of attention.h on registers; the body of attention_avx2.c,
 * attention_avx512.c and attention_avx512vnni.c.
 *
 * Queries go in groups of up to GROUP_MAX that fill the register file: for half a page of keys, or
 * 32 columns of V, each group loads and expands a vector once and uses it for all its queries.
 *
 *   scores   acc[query][32 keys]    += q[d] * K[d][32 keys]         over d
 *   values   acc[query][32 columns] += p[key] * V[key][32 columns]  over keys, ascending
 *
 * A query's sums are the same in a group of any size. Where the queries of a group see different
 * keys (the causal edge, the window's edge), the keys that not all of them see are done query
 * by query: a key never meets a probability that is 0 because of the mask, so that its NaN or
 * infinity stays in the rows that see it. */
#include "kernels/attention.h"
#include "kernels/x86/vector_simd.h"
#include "tensor/dtype.h"

#include <math.h>

#define NV (32 / VN) /* vectors of 32 keys or columns */
#if VN == 16
#define GROUP_MAX 8 /* 16 accumulators of 32 registers */
#else
#define GROUP_MAX 2 /* 8 of 16 */
#endif

/* Bytes that prefetch runs ahead of the loads. The hardware alone leaves memory idle while 8 queries use
 * a line: +60 % for 8 queries of 512 dims, +15 % for 2 of 256; 2 to 4 KiB measured alike. */
#define AHEAD 3072
#define INLINE static inline __attribute__((always_inline))
/* Loops of constant length over arrays that must stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* The two bf16 halves of 32-bit words as float32. */
INLINE vf low_bf16(vi w)
{
    return vf_of_bits(VI_SHL(w, 16));
}

INLINE vf high_bf16(vi w)
{
    return vf_of_bits(vi_and(w, vi_set1((int)0xFFFF0000u)));
}

/* ---- scores ----------------------------------------------------------------------------- */

typedef enum kind { KIND_BF16, KIND_F32, KIND_BF16_DOT } kind;

/* scores[i][0..31] = scale * q_i . K for n queries and half a page of keys. */
INLINE void scores_half(kind format, int n, const char *q, size_t q_bytes, const char *k, int k_dim, float scale,
                        float *scores)
{
    vf acc[GROUP_MAX][NV];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < NV; j++) acc[i][j] = vf_zero();
    if (format == KIND_F32) {
        for (int d = 0; d < k_dim; d++) {
            UNROLL for (int j = 0; j < NV; j++) {
                vf key = vf_load((const float *)(const void *)k + (size_t)d * 32 + j * VN);
                UNROLL for (int i = 0; i < n; i++) {
                    const float *qi = (const float *)(const void *)(q + (size_t)i * q_bytes);
                    acc[i][j] = vf_fma(vf_set1(qi[d]), key, acc[i][j]);
                }
            }
        }
    } else {
        for (int d = 0; d < k_dim; d += 2) {
            UNROLL for (int j = 0; j < NV; j++) {
                const char *at = k + (size_t)d * 64 + (size_t)j * (VN * 4);
                vi pairs = vi_load(at);
                _mm_prefetch(at + AHEAD, _MM_HINT_T0);
#if defined(__AVX512BF16__)
                if (format == KIND_BF16_DOT) {
                    UNROLL for (int i = 0; i < n; i++) {
                        vi two = vi_set1(((const int *)(const void *)(q + (size_t)i * q_bytes))[d / 2]);
                        acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)pairs, (__m512bh)two);
                    }
                    continue;
                }
#endif
                vf even = low_bf16(pairs), odd = high_bf16(pairs);
                UNROLL for (int i = 0; i < n; i++) {
                    const float *qi = (const float *)(const void *)(q + (size_t)i * q_bytes);
                    acc[i][j] = vf_fma(vf_set1(qi[d]), even, acc[i][j]);
                    acc[i][j] = vf_fma(vf_set1(qi[d + 1]), odd, acc[i][j]);
                }
            }
        }
    }
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < NV; j++)
        vf_store(scores + (size_t)i * SIB_ATTN_CHUNK + j * VN, acc[i][j] * vf_set1(scale));
}

/* The halves [half0, half1) of the chunk, counted in 32 keys from its start. */
INLINE void scores_group(kind format, int n, const sib_attn_tile *t, int first_q, const void *const *heads, int half0,
                         int half1, float *scores)
{
    size_t q_bytes = (size_t)t->k_dim * 4, half_bytes = (size_t)t->k_dim * 32 * (format == KIND_F32 ? 4 : 2);
    for (int h = half0; h < half1; h++)
        scores_half(format, n, (const char *)t->q + (size_t)first_q * q_bytes, q_bytes,
                    (const char *)heads[h / 2] + (size_t)(h % 2) * half_bytes, t->k_dim, t->scale,
                    scores + (size_t)first_q * SIB_ATTN_CHUNK + h * 32);
}

/* ---- softmax ---------------------------------------------------------------------------- */

/* Scores [from, to) of one query become e^(s - m); m and l as attention.h defines them. Lanes of l add up
 * the keys of the same place in their vector, so l does not depend on where the range begins. */
static void softmax_part(float *s, int from, int to, float *m, float *l)
{
    int start = from / VN * VN;
    vf top = vf_set1(-INFINITY), sum = vf_zero();
    for (int i = start; i < to; i += VN)
        top = vf_max(vf_select(vm_range(from - i, to - i), vf_load(s + i), vf_set1(-INFINITY)), top);
    *m = vf_largest(top);
    vf all = vf_set1(*m);
    for (int i = start; i < to; i += VN) {
        vf p = vf_select(vm_range(from - i, to - i), vf_exp(vf_load(s + i) - all), vf_zero());
        sum = sum + p;
        vf_store(s + i, p);
    }
    *l = vf_sum(sum);
}

/* ---- values ----------------------------------------------------------------------------- */

/* acc[i][0..31] += sum over keys [k0, k1) of one page, for one block of 32 columns and n queries. */
INLINE void values_block(bool f32, int n, const float *p, const char *v, int k0, int k1, float *out, size_t stride)
{
    vf acc[GROUP_MAX][NV];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < NV; j++)
        acc[i][j] = vf_load(out + (size_t)i * stride + j * VN);
    for (int key = k0; key < k1; key++) {
        vf value[NV];
        if (f32) {
            const float *row = (const float *)(const void *)v + (size_t)key * 32;
            UNROLL for (int j = 0; j < NV; j++) value[j] = vf_load(row + j * VN);
        } else {
            UNROLL for (int j = 0; j < NV / 2; j++) {
                const char *at = v + (size_t)key * 64 + (size_t)j * (VN * 4);
                vi words = vi_load(at);
                _mm_prefetch(at + AHEAD, _MM_HINT_T0);
                value[j] = low_bf16(words);
                value[j + NV / 2] = high_bf16(words);
            }
        }
        UNROLL for (int i = 0; i < n; i++) {
            vf weight = vf_set1(p[(size_t)i * SIB_ATTN_CHUNK + (size_t)key]);
            UNROLL for (int j = 0; j < NV; j++) acc[i][j] = vf_fma(weight, value[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < NV; j++)
        vf_store(out + (size_t)i * stride + j * VN, acc[i][j]);
}

/* Keys [k0, k1) of the chunk for n queries from first_q on. */
INLINE void values_group(bool f32, int n, const sib_attn_tile *t, int first_q, const void *const *heads, int k0,
                         int k1, const float *scores, float *part)
{
    size_t size = f32 ? 4 : 2, stride = (size_t)sib_attn_part_stride(t->v_dim);
    const float *p = scores + (size_t)first_q * SIB_ATTN_CHUNK;
    float *out = part + (size_t)first_q * stride;
    for (int key = k0; key < k1;) {
        int page = key / SIB_ATTN_PAGE, end = (page + 1) * SIB_ATTN_PAGE;
        if (end > k1) end = k1;
        const char *v = (const char *)heads[page] + sib_attn_k_size(t->k_dim) * size;
        for (int c = 0; c < t->v_dim; c += 32, v += SIB_ATTN_PAGE * 32 * size)
            values_block(f32, n, p + page * SIB_ATTN_PAGE, v, key - page * SIB_ATTN_PAGE, end - page * SIB_ATTN_PAGE,
                         out + c, stride);
        key = end;
    }
}

/* ---- chunk ------------------------------------------------------------------------------ */

INLINE void chunk_group(kind format, int n, const sib_attn_tile *t, int first_q, int32_t first,
                        const void *const *heads, float *scores, float *part)
{
    int from[GROUP_MAX], to[GROUP_MAX], min_from = SIB_ATTN_CHUNK, max_from = 0, min_to = SIB_ATTN_CHUNK, max_to = 0;
    size_t stride = (size_t)sib_attn_part_stride(t->v_dim);
    int v_pad = sib_attn_v_pad(t->v_dim);
    bool f32 = format == KIND_F32;
    for (int i = 0; i < n; i++) {
        int32_t lo = t->lo[first_q + i], hi = t->hi[first_q + i];
        from[i] = lo > first ? (lo - first < SIB_ATTN_CHUNK ? lo - first : SIB_ATTN_CHUNK) : 0;
        to[i] = hi - first < SIB_ATTN_CHUNK ? hi - first : SIB_ATTN_CHUNK;
        if (to[i] <= from[i]) to[i] = from[i] = from[i] < SIB_ATTN_CHUNK ? from[i] : 0;
        if (max_from < from[i]) max_from = from[i];
        if (min_to > to[i]) min_to = to[i];
        if (to[i] > from[i]) {
            if (min_from > from[i]) min_from = from[i];
            if (max_to < to[i]) max_to = to[i];
        }
        float *acc = part + (size_t)(first_q + i) * stride;
        for (int c = 0; c < v_pad; c += VN) vf_store(acc + c, vf_zero());
        acc[v_pad] = -INFINITY;
        acc[v_pad + 1] = 0.0f;
    }
    if (max_to <= min_from) return;
    scores_group(format, n, t, first_q, heads, min_from / 32, (max_to + 31) / 32, scores);
    for (int i = 0; i < n; i++) {
        float *acc = part + (size_t)(first_q + i) * stride;
        if (to[i] > from[i])
            softmax_part(scores + (size_t)(first_q + i) * SIB_ATTN_CHUNK, from[i], to[i], &acc[v_pad], &acc[v_pad + 1]);
    }
    if (n == 1 || max_from >= min_to) { /* nothing in common */
        for (int i = 0; i < n; i++) values_group(f32, 1, t, first_q + i, heads, from[i], to[i], scores, part);
        return;
    }
    for (int i = 0; i < n; i++)
        if (from[i] < max_from) values_group(f32, 1, t, first_q + i, heads, from[i], max_from, scores, part);
    values_group(f32, n, t, first_q, heads, max_from, min_to, scores, part);
    for (int i = 0; i < n; i++)
        if (min_to < to[i]) values_group(f32, 1, t, first_q + i, heads, min_to, to[i], scores, part);
}

INLINE void chunk_simd(kind format, const sib_attn_tile *t, int32_t first, const void *const *heads, float *scores,
                       float *part)
{
    int q = 0;
#if GROUP_MAX == 8
    for (; t->n_q - q >= 8; q += 8) chunk_group(format, 8, t, q, first, heads, scores, part);
    if (t->n_q - q >= 4) {
        chunk_group(format, 4, t, q, first, heads, scores, part);
        q += 4;
    }
#endif
    for (; t->n_q - q >= 2; q += 2) chunk_group(format, 2, t, q, first, heads, scores, part);
    if (t->n_q > q) chunk_group(format, 1, t, q, first, heads, scores, part);
}

/* ---- merge, finish ---------------------------------------------------------------------- */

static inline void merge_simd(float *state, const float *part, int v_dim)
{
    int v_pad = sib_attn_v_pad(v_dim);
    if (part[v_pad + 1] == 0.0f) return;
    if (state[v_pad + 1] == 0.0f) {
        memcpy(state, part, (size_t)(v_pad + 2) * sizeof *state);
        return;
    }
    float m = state[v_pad] > part[v_pad] ? state[v_pad] : part[v_pad];
    float a = sib_exp(state[v_pad] - m), b = sib_exp(part[v_pad] - m);
    for (int c = 0; c < v_pad; c += VN)
        vf_store(state + c, vf_load(state + c) * vf_set1(a) + vf_load(part + c) * vf_set1(b));
    state[v_pad] = m;
    state[v_pad + 1] = state[v_pad + 1] * a + part[v_pad + 1] * b;
}

static inline void finish_simd(float *out, const float *state, int v_dim)
{
    vf l = vf_set1(state[sib_attn_v_pad(v_dim) + 1]);
    for (int c = 0; c < v_dim; c += VN) vf_store_n(out + c, v_dim - c, vf_load(state + c) / l);
}
