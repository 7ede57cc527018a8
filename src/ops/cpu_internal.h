/* ops/cpu_internal.h - the body of the CPU device, shared by the files ops/cpu*.c only.
 *
 * Each file fills its members of the operations table:
 *
 *   cpu.c            creation, memory, sync
 *   cpu_matmul.c     matrix_*, linear, linear_glu, embed, moe
 *   cpu_attention.c  kv_*, attend
 *   cpu_delta.c      gated_delta, add_gated
 *   cpu_head.c       centroid_argmax
 *   cpu_draft.c      two_tap, dots, top_k
 *   cpu_sparse.c     index_select, moe_route_sigmoid
 *   cpu_vector.c     norms, rotary embedding, elementwise, moe_route, argmax
 *
 * Operations run on the calling thread and the pool; one call at a time on a device.
 * Scratch grows in functions that may fail (matrix_new), never in the operations. */
#ifndef SIB_OPS_CPU_INTERNAL_H
#define SIB_OPS_CPU_INTERNAL_H

#include "base/threads.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

typedef struct sib_cpu_block { /* grow-only memory of one owner */
    void *p;
    size_t bytes;
} sib_cpu_block;

typedef struct sib_cpu {
    sib_device base; /* first: a sib_device * of this device is a sib_cpu * */
    sib_ops ops;     /* base.ops points here */
    sib_kernels k;
    sib_pool *pool;
    int threads;
    sib_status failed; /* set by an operation that could not run, reported by sync */
    sib_err failure;
    struct sib_cpu_matmul *matmul; /* prepared activations and panels, cpu_matmul.c */
    sib_cpu_block attention;       /* for cpu_attention.c */
} sib_cpu;

static inline sib_cpu *sib_cpu_of(sib_device *d)
{
    return (sib_cpu *)(void *)d;
}

/* Makes the block at least `bytes` long (zeroed, 64-byte aligned); what it held is lost. */
sib_status sib_cpu_block_grow(sib_cpu_block *b, size_t bytes, const char *what, sib_err *err);
void sib_cpu_block_free(sib_cpu_block *b);

void sib_cpu_matmul_ops(sib_ops *ops);
sib_status sib_cpu_matmul_init(sib_cpu *c, sib_err *err);
void sib_cpu_matmul_deinit(sib_cpu *c);
void sib_cpu_attention_ops(sib_ops *ops);
sib_status sib_cpu_attention_init(sib_cpu *c, sib_err *err); /* the scratch block */
void sib_cpu_vector_ops(sib_ops *ops);
void sib_cpu_head_ops(sib_ops *ops);
void sib_cpu_delta_ops(sib_ops *ops);
void sib_cpu_draft_ops(sib_ops *ops);
void sib_cpu_sparse_ops(sib_ops *ops);
void sib_cpu_denoise_ops(sib_ops *ops);
const sib_packed *sib_cpu_matrix_view(const sib_matrix *m); /* of its first expert */

#endif
