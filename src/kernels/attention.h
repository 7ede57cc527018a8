/* kernels/attention.h - attention over a paged cache: page layout, and the kernels for one chunk of keys.
 *
 * A page holds 64 positions of one layer. The KV heads follow one another; each has its K part,
 * then its V part, in the layout that lets a kernel read it front to back with keys (K) or
 * columns (V) in the lanes, without horizontal sums:
 *
 *              bf16 (modes bf16, int8)           f32 (mode f32)
 *   K   [2 halves][k_dim / 2][32 keys][2 dims]   [2 halves][k_dim][32 keys]
 *   V   [v_pad / 32][64 keys][16][2 columns]     [v_pad / 32][64 keys][32 columns]
 *
 * A pair of K is two neighbouring dims (the operand of vdpbf16ps); a pair of V is columns c and
 * c + 16 of its block, so that shifting the words gives 16 columns in order and masking the next
 * 16. v_pad is v_dim rounded up to 32; the rest of the last block holds zeros.
 *
 * Keys are cut into chunks of 4 pages at absolute positions. A chunk gives a partial result for
 * each query: m = largest visible score, l = sum of e^(s - m), acc = sum of e^(s - m) v. Chunks
 * are merged in ascending order. Nothing here depends on how queries are grouped into tiles,
 * so one row has the same bits in decode, verification and prefill, on any number of threads.
 *
 * Users: ops/cpu_attention.c (tiles, threads, pages), tests/kcheck. */
#ifndef SIB_KERNELS_ATTENTION_H
#define SIB_KERNELS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIB_ATTN_PAGE        64 /* positions; ops.h asserts that SIB_KV_PAGE is the same */
#define SIB_ATTN_CHUNK_PAGES 4
#define SIB_ATTN_CHUNK       (SIB_ATTN_PAGE * SIB_ATTN_CHUNK_PAGES)
#define SIB_ATTN_MAX_Q       32 /* queries of a tile */
#define SIB_ATTN_MAX_K_DIM   576
#define SIB_ATTN_MAX_V_DIM   512

static inline int sib_attn_v_pad(int v_dim)
{
    return (v_dim + 31) / 32 * 32;
}

/* Elements of one head's K part and V part. */
static inline size_t sib_attn_k_size(int k_dim)
{
    return (size_t)SIB_ATTN_PAGE * (size_t)k_dim;
}

static inline size_t sib_attn_v_size(int v_dim)
{
    return (size_t)SIB_ATTN_PAGE * (size_t)sib_attn_v_pad(v_dim);
}

static inline size_t sib_attn_head_bytes(bool f32, int k_dim, int v_dim)
{
    return (sib_attn_k_size(k_dim) + sib_attn_v_size(v_dim)) * (f32 ? 4 : 2);
}

/* Index of dim d of the key in `slot` inside a K part, of column c inside a V part. */
static inline size_t sib_attn_k_at(bool f32, int k_dim, int slot, int d)
{
    size_t half = (size_t)(slot / 32), key = (size_t)(slot % 32);
    return f32 ? (half * (size_t)k_dim + (size_t)d) * 32 + key
               : (half * (size_t)(k_dim / 2) + (size_t)(d / 2)) * 64 + key * 2 + (size_t)(d % 2);
}

static inline size_t sib_attn_v_at(bool f32, int slot, int c)
{
    size_t row = ((size_t)(c / 32) * SIB_ATTN_PAGE + (size_t)slot) * 32, i = (size_t)(c % 32);
    return row + (f32 ? i : i % 16 * 2 + i / 16);
}

/* A partial result or a running state of one query: acc[v_pad], m, l. It is empty when l is 0. */
static inline int sib_attn_part_stride(int v_dim)
{
    return sib_attn_v_pad(v_dim) + 16;
}

/* Up to SIB_ATTN_MAX_Q queries that share a KV head. */
typedef struct sib_attn_tile {
    int n_q, k_dim, v_dim;
    float scale;
    const void *q;          /* n_q packed queries, 4 * k_dim bytes apart */
    const int32_t *lo, *hi; /* [n_q]: visible absolute positions lo <= p < hi */
} sib_attn_tile;

typedef struct sib_attention_kernels {
    /* Members [0] are for bf16 pages, [1] for f32 pages. */

    /* One query in the form that chunk() of the same level reads; 4 * k_dim bytes. */
    void (*pack_query[2])(void *packed, const float *q, int k_dim);
    /* part[n_q][stride] of the chunk whose first position is `first`; heads[i] is this KV head in the
     * chunk's i-th page, and is looked at only when a query sees a key there.
     * `scores` is scratch of n_q * SIB_ATTN_CHUNK floats. */
    void (*chunk[2])(const sib_attn_tile *t, int32_t first, const void *const heads[SIB_ATTN_CHUNK_PAGES],
                     float *scores, float *part);
    /* Adds a partial result to the state of the chunks before it. */
    void (*merge)(float *state, const float *part, int v_dim);
    /* out[v_dim] = acc / l */
    void (*finish)(float *out, const float *state, int v_dim);
} sib_attention_kernels;

/* Stores and reads one position of one head, class EXACT: rounding to bf16 (nearest even, NaN
 * stays NaN), then copies. The same at every level. */
void sib_attn_store(bool f32, void *head, int k_dim, int v_dim, int slot, const float *k, const float *v);
void sib_attn_load(bool f32, const void *head, int k_dim, int v_dim, int slot, float *k, float *v); /* either NULL */

void sib_attention_ref(sib_attention_kernels *k);
void sib_attention_avx2(sib_attention_kernels *k);
void sib_attention_avx512(sib_attention_kernels *k);
void sib_attention_avx512vnni(sib_attention_kernels *k); /* bf16_dot where it pays */
void sib_attention_bf16_dot(sib_attention_kernels *k);   /* any processor of level avx512vnni */

#endif
