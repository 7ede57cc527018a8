/* kernels/sparse.h - what attention over chosen keys and sigmoid routing need: scores of a sparse indexer
 * ("lightning indexer"), the choice of keys, copies between pages, routing by sigmoid.
 *
 * Everything is EXACT between instruction set levels: products and sums are separate roundings (no FMA) in the
 * orders stated in sparse.c, so a vector of any width gives the same bits, and a row's bits cannot depend on its
 * neighbours. Facts: glm_moe_dsa.md sections 4 and 5.2.
 *
 * Users: ops/cpu_sparse.c, ops/cpu_attention.c (copies), tests. */
#ifndef SIB_KERNELS_SPARSE_H
#define SIB_KERNELS_SPARSE_H

#include "kernels/attention.h"

typedef struct sib_sparse_kernels {
    /* scores[64] of the keys of one page for one query row; see index_scores in sparse.c.
     * q [n_heads][dim], weight [n_heads]; `page` is a K part (kernels/attention.h) of key dimension dim. [0] bf16 pages, [1] f32. */
    void (*index_scores[2])(float *scores, const float *q, const float *weight, const void *page, int n_heads, int dim, float scale);
} sib_sparse_kernels;

void sib_sparse_ref(sib_sparse_kernels *k);
void sib_sparse_avx2(sib_sparse_kernels *k);
void sib_sparse_avx512(sib_sparse_kernels *k);

/* picks[k] = the positions of the k largest of scores[n], ascending. */
void sib_top_positions(int32_t *picks, const float *scores, int32_t n, int k);

/* Copies the position in slot `from` of one head's K and V part to slot `to` of another page of the same geometry. */
void sib_attn_copy(bool f32, void *dst, int to, const void *src, int from, int k_dim, int v_dim);

#define SIB_ROUTE_MAX 4096 /* experts */
/* One row: idx, weight [top_k] of logits[n]; bias [n] or NULL. */
void sib_route_sigmoid(int32_t *idx, float *weight, const float *logits, const float *bias, int n, int n_groups, int top_groups,
                       int top_k, bool normalise, float scale);

#endif
