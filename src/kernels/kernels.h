/* kernels/kernels.h - the table of compute kernels, filled for one instruction set level.
 *
 * One sub-structure per family; a family's header says what each pointer does, and its
 * scalar file is the specification that every variant is checked against (build/kcheck).
 * sib_kernels_init stores the scalar reference first, then lets each level up to `isa`
 * replace what it does better, so every pointer is set at every level.
 *
 * Users: ops/ (the CPU device) and tests/kcheck. Layers and models never see kernels. */
#ifndef SIB_KERNELS_KERNELS_H
#define SIB_KERNELS_KERNELS_H

#include "kernels/delta.h"
#include "kernels/denoise.h"
#include "kernels/matmul.h"
#include "kernels/sparse.h"
#include "kernels/attention.h"
#include "kernels/vector.h"

typedef struct sib_kernels {
    int isa; /* SIB_ISA_*, the level that the table was filled for */
    sib_matmul_kernels matmul;
    sib_delta_kernels delta;
    sib_sparse_kernels sparse;
    sib_denoise_kernels denoise;
    sib_attention_kernels attention;
    sib_vector_kernels vector;
} sib_kernels;

/* `isa` must not exceed sib_cpu_detect(). */
void sib_kernels_init(sib_kernels *k, int isa);

#endif
