/* kernels/sparse.c - the specification of sparse.h. */
#include "kernels/sparse_body.h"
#include "kernels/vector_math.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* index_scores: score_s = sum over heads h, ascending, of w_h * relu((q_h . k_s) * scale)
 *   in     q float32 (the caller rounds it to bf16 for bf16 pages), keys as stored, w float32 of any sign
 *   math   float32; q . k adds the dims in ascending order from +0, every product and sum rounded
 *   relu   before the weight; NaN stays NaN
 *   class  EXACT between levels; against exact arithmetic ORDER with n = dim + heads
 *   slots  all 64 are written; those that hold no key give numbers without meaning */
void sib_sparse_ref(sib_sparse_kernels *k)
{
    *k = (sib_sparse_kernels){.index_scores = {index_scores_bf16, index_scores_f32}};
}

/* Floats in the order of unsigned integers: -0 as +0, NaN below everything. */
static uint32_t rank_of(float s)
{
    uint32_t u;
    s += 0.0f;
    memcpy(&u, &s, sizeof u);
    if (s != s) return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* sib_top_positions: every score above the k-th largest, then those equal to it from the lowest position on, until
 * there are k; class EXACT. Found by fixing the k-th largest a byte at a time.
 *   range  1 <= k <= n
 *   NaN    ranks below every number, ties between NaN as between numbers */
void sib_top_positions(int32_t *picks, const float *scores, int32_t n, int k)
{
    uint32_t value = 0, mask = 0;
    int above = 0; /* scores that are larger than every one with the fixed bytes */
    assert(1 <= k && k <= n);
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0};
        for (int32_t i = 0; i < n; i++) {
            uint32_t r = rank_of(scores[i]);
            if ((r & mask) == value) count[r >> shift & 255]++;
        }
        int byte = 255;
        while (above + count[byte] < k) above += count[byte--];
        value |= (uint32_t)byte << shift;
        mask |= 255u << shift;
    }
    int equal = k - above, held = 0;
    for (int32_t i = 0; held < k; i++) {
        uint32_t r = rank_of(scores[i]);
        if (r > value || (r == value && equal-- > 0)) picks[held++] = i;
    }
}

/* sib_attn_copy: EXACT; the places of sib_attn_k_at and sib_attn_v_at. */
void sib_attn_copy(bool f32, void *dst, int to, const void *src, int from, int k_dim, int v_dim)
{
    size_t each = f32 ? 4 : 2;
    uint32_t *kd = (uint32_t *)dst + sib_attn_k_at(f32, k_dim, to, 0) * each / 4;
    const uint32_t *ks = (const uint32_t *)src + sib_attn_k_at(f32, k_dim, from, 0) * each / 4;
    int words = f32 ? k_dim : k_dim / 2; /* of a key; 32 keys lie side by side */
    for (int d = 0; d < words; d++) kd[d * 32] = ks[d * 32];
    char *vd = (char *)dst + sib_attn_k_size(k_dim) * each;
    const char *vs = (const char *)src + sib_attn_k_size(k_dim) * each;
    for (int c = 0; c < v_dim; c += 32)
        memcpy(vd + sib_attn_v_at(f32, to, c) * each, vs + sib_attn_v_at(f32, from, c) * each, 32 * each);
}

/* The best of n ranks that is not taken; ties to the lower index, NaN below everything. */
static int best_left(const float *rank, const bool *open, const uint8_t *taken, int per_open, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (taken[i] || (open && !open[i / per_open])) continue;
        if (best < 0 || rank_of(rank[i]) > rank_of(rank[best])) best = i;
    }
    return best;
}

/* route_sigmoid: s = 1 / (1 + exp(-logit)), choice by c = s + bias, weight by s.
 *   groups  n / n_groups neighbours each; a group's score is the sum of its two largest c (its only one when it has
 *           one); the top_groups best groups stay, ties to the lower group. Experts of other groups are never chosen
 *           (Hugging Face; MLX puts their c to 0, which differs for negative c)
 *   order   idx by falling c, ties to the lower expert
 *   weight  s_j / (sum of the chosen s, in order of choice, + 1e-20) * scale; without `normalise` s_j * scale
 *   math    float32, class EXACT; NaN ranks below every number
 *   range   n <= 4096, n_groups <= n, top_groups * (n / n_groups) >= top_k */
void sib_route_sigmoid(int32_t *idx, float *weight, const float *logits, const float *bias, int n, int n_groups, int top_groups,
                       int top_k, bool normalise, float scale)
{
    float s[SIB_ROUTE_MAX], c[SIB_ROUTE_MAX], group[SIB_ROUTE_MAX];
    bool open[SIB_ROUTE_MAX] = {false};
    uint8_t taken[SIB_ROUTE_MAX] = {0};
    int each = n / n_groups;
    assert(n <= SIB_ROUTE_MAX && top_groups * each >= top_k);
    for (int i = 0; i < n; i++) {
        s[i] = 1.0f / (1.0f + sib_exp(-logits[i]));
        c[i] = bias ? s[i] + bias[i] : s[i];
    }
    if (n_groups > 1) {
        for (int g = 0; g < n_groups; g++) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = g * each; i < (g + 1) * each; i++) {
                if (c[i] > first) {
                    second = first;
                    first = c[i];
                } else if (c[i] > second) {
                    second = c[i];
                }
            }
            group[g] = each > 1 ? first + second : first;
        }
        for (int j = 0; j < top_groups; j++) {
            int g = best_left(group, NULL, taken, 1, n_groups);
            taken[g] = 1;
            open[g] = true;
        }
        memset(taken, 0, (size_t)n_groups);
    }
    float sum = 0.0f;
    for (int j = 0; j < top_k; j++) {
        int e = best_left(c, n_groups > 1 ? open : NULL, taken, each, n);
        taken[e] = 1;
        idx[j] = e;
        sum += s[e];
    }
    for (int j = 0; j < top_k; j++) weight[j] = (normalise ? s[idx[j]] / (sum + 1e-20f) : s[idx[j]]) * scale;
}
