/* kernels/matmul_internal.h - what the matmul files of all levels share. No non-static code here:
 * these files are compiled with different instruction sets. */
#ifndef SIB_KERNELS_MATMUL_INTERNAL_H
#define SIB_KERNELS_MATMUL_INTERNAL_H

#include "kernels/matmul.h"

/* Bytes of scales and biases in front of a tile's lines. */
static inline size_t sib_tile_scales(const sib_packed *w)
{
    return w->packing <= SIB_PACK_Q8 ? (size_t)w->units * (w->f32_scales ? 128 : 64) : 0;
}

static inline const unsigned char *sib_block_tiles(const sib_packed *w, int64_t b)
{
    return w->tiles + (size_t)(b * w->chunks) * w->tile_bytes;
}

/* Outputs of block b that exist. */
static inline int sib_block_outputs(const sib_packed *w, int64_t b)
{
    int64_t left = w->out - b * SIB_BLOCK;
    return left < SIB_BLOCK ? (int)left : SIB_BLOCK;
}

#endif
