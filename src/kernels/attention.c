/* kernels/attention.c - the scalar attention kernels: the specification of attention.h. */
#include "kernels/attention.h"
#include "kernels/vector_math.h"
#include "tensor/dtype.h"

#include <math.h>

/* Walks the places that sib_attn_k_at and sib_attn_v_at compute: prefill stores every position of
 * every layer once. */
static void store_bf16(uint16_t *kp, int k_dim, int v_dim, int slot, const float *k, const float *v)
{
    uint16_t *vp = kp + sib_attn_k_size(k_dim) + sib_attn_v_at(false, slot, 0);
    kp += sib_attn_k_at(false, k_dim, slot, 0);
    for (int d = 0; d < k_dim; d += 2, kp += 64) {
        kp[0] = sib_bf16_of_f32(k[d]);
        kp[1] = sib_bf16_of_f32(k[d + 1]);
    }
    for (int c = 0; c < v_dim; c += 32, vp += SIB_ATTN_PAGE * 32) {
        float block[32] = {0};
        memcpy(block, v + c, (size_t)(v_dim - c < 32 ? v_dim - c : 32) * sizeof *v);
        for (int i = 0; i < 16; i++) {
            vp[2 * i] = sib_bf16_of_f32(block[i]);
            vp[2 * i + 1] = sib_bf16_of_f32(block[i + 16]);
        }
    }
}

static void store_f32(float *kp, int k_dim, int v_dim, int slot, const float *k, const float *v)
{
    float *vp = kp + sib_attn_k_size(k_dim);
    for (int d = 0; d < k_dim; d++) kp[sib_attn_k_at(true, k_dim, slot, d)] = k[d];
    for (int c = 0; c < sib_attn_v_pad(v_dim); c++) vp[sib_attn_v_at(true, slot, c)] = c < v_dim ? v[c] : 0.0f;
}

void sib_attn_store(bool f32, void *head, int k_dim, int v_dim, int slot, const float *k, const float *v)
{
    if (f32)
        store_f32(head, k_dim, v_dim, slot, k, v);
    else
        store_bf16(head, k_dim, v_dim, slot, k, v);
}

static float element(bool f32, const void *part, size_t at)
{
    return f32 ? ((const float *)part)[at] : sib_f32_of_bf16(((const uint16_t *)part)[at]);
}

static const void *v_part(bool f32, const void *head, int k_dim)
{
    return (const char *)head + sib_attn_k_size(k_dim) * (f32 ? 4 : 2);
}

void sib_attn_load(bool f32, const void *head, int k_dim, int v_dim, int slot, float *k, float *v)
{
    if (k)
        for (int d = 0; d < k_dim; d++) k[d] = element(f32, head, sib_attn_k_at(f32, k_dim, slot, d));
    if (v)
        for (int c = 0; c < v_dim; c++) v[c] = element(f32, v_part(f32, head, k_dim), sib_attn_v_at(f32, slot, c));
}

static void pack_query_bf16(void *packed, const float *q, int k_dim)
{
    float *p = packed;
    for (int d = 0; d < k_dim; d++) p[d] = sib_round_bf16(q[d]);
}

static void pack_query_f32(void *packed, const float *q, int k_dim)
{
    memcpy(packed, q, (size_t)k_dim * sizeof *q);
}

/* chunk: for each query, over its visible keys in ascending order,
 *     s_j = scale * (q . k_j),  m = max s_j,  p_j = exp(s_j - m),  l = sum p_j,  acc = sum p_j v_j
 *   in     q, k, v exact values of bf16 (or float32); products and sums in float32
 *   class  ORDER for q . k and l; acc adds the keys in ascending order at every level. p stays
 *          float32: rounding it to bf16 would cost 2^-9 of relative error per term. Levels with FMA
 *          use it; avx512vnni multiplies k in vdpbf16ps, which takes subnormal bf16 as 0
 *   error  of the whole attention: |out - exact| <= (e^(2 d) - 1 + (256 + chunks + 8) 2^-24) max|v|,
 *          d = (k_dim + 2) 2^-24 scale max_j sum|q k_j|, the error of one score
 *   mask   an invisible key contributes nothing, not even to m, and its memory may hold anything,
 *          NaN included; pages outside the range that spans the visible keys are not read
 *   empty  no visible key: m = -inf, l = 0, acc = 0
 *   NaN    a visible NaN, or infinite scores, give NaN in the query's own row only
 *   rows   independent of the tile */
static void chunk_ref(bool f32, const sib_attn_tile *t, int32_t first, const void *const *heads, float *scores,
                      float *part)
{
    int v_pad = sib_attn_v_pad(t->v_dim);
    for (int i = 0; i < t->n_q; i++) {
        const float *q = (const float *)t->q + (size_t)i * (size_t)t->k_dim;
        float *acc = part + (size_t)i * (size_t)sib_attn_part_stride(t->v_dim), m = -INFINITY, l = 0.0f;
        int from = t->lo[i] > first ? t->lo[i] - first : 0;
        int to = t->hi[i] - first < SIB_ATTN_CHUNK ? t->hi[i] - first : SIB_ATTN_CHUNK;
        for (int j = from; j < to; j++) {
            const void *head = heads[j / SIB_ATTN_PAGE];
            float dot = 0.0f;
            for (int d = 0; d < t->k_dim; d++)
                dot += q[d] * element(f32, head, sib_attn_k_at(f32, t->k_dim, j % SIB_ATTN_PAGE, d));
            scores[j] = dot * t->scale;
            m = scores[j] > m ? scores[j] : m;
        }
        for (int c = 0; c < v_pad; c++) acc[c] = 0.0f;
        for (int j = from; j < to; j++) {
            const void *v = v_part(f32, heads[j / SIB_ATTN_PAGE], t->k_dim);
            float p = sib_exp(scores[j] - m);
            l += p;
            for (int c = 0; c < v_pad; c++) acc[c] += p * element(f32, v, sib_attn_v_at(f32, j % SIB_ATTN_PAGE, c));
        }
        acc[v_pad] = m;
        acc[v_pad + 1] = l;
    }
}

static void chunk_bf16(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                       float *scores, float *part)
{
    chunk_ref(false, t, first, heads, scores, part);
}

static void chunk_f32(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                      float *scores, float *part)
{
    chunk_ref(true, t, first, heads, scores, part);
}

/* merge: M = max(m_state, m_part); both sides are scaled by e^(m - M) and added, product by
 * product without FMA, class EXACT between levels. An empty part changes nothing; an empty
 * state becomes the part. */
static void merge_ref(float *state, const float *part, int v_dim)
{
    int v_pad = sib_attn_v_pad(v_dim);
    if (part[v_pad + 1] == 0.0f) return;
    if (state[v_pad + 1] == 0.0f) {
        memcpy(state, part, (size_t)(v_pad + 2) * sizeof *state);
        return;
    }
    float m = state[v_pad] > part[v_pad] ? state[v_pad] : part[v_pad];
    float a = sib_exp(state[v_pad] - m), b = sib_exp(part[v_pad] - m);
    for (int c = 0; c < v_pad; c++) state[c] = state[c] * a + part[c] * b;
    state[v_pad] = m;
    state[v_pad + 1] = state[v_pad + 1] * a + part[v_pad + 1] * b;
}

/* finish: a division per column, EXACT. */
static void finish_ref(float *out, const float *state, int v_dim)
{
    float l = state[sib_attn_v_pad(v_dim) + 1];
    for (int c = 0; c < v_dim; c++) out[c] = state[c] / l;
}

void sib_attention_ref(sib_attention_kernels *k)
{
    *k = (sib_attention_kernels){
        .pack_query = {pack_query_bf16, pack_query_f32},
        .chunk = {chunk_bf16, chunk_f32},
        .merge = merge_ref,
        .finish = finish_ref,
    };
}
