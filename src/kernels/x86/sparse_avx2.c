/* kernels/x86/sparse_avx2.c - sparse.h compiled for this level; the code is sparse_body.h, the bits are the scalar ones. */
#include "kernels/sparse_body.h"

void sib_sparse_avx2(sib_sparse_kernels *k)
{
    k->index_scores[0] = index_scores_bf16;
    k->index_scores[1] = index_scores_f32;
}
