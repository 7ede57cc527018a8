/* kernels/matmul.h - packed weights, prepared activations, and the product of the two.
 *
 * PACKED WEIGHTS. A matrix [out][in] is cut into blocks of 16 output rows and chunks of 64 k;
 * both are padded with zeros. A tile is one block x one chunk; the tiles of a block lie one
 * after the other over k, the blocks one after the other over out, so that a thread which
 * owns some blocks reads one sequential stream. Within a line, lane r belongs to row r of the block:
 * results need no horizontal sums.
 *
 *   Q4    [scales of 16 rows][biases of 16 rows] once a unit, then 8 lines of 16 u32:
 *         line j = k 8j..8j+7, element i in bits 4i..4i+3 (a transposed MLX word)
 *   Q8    the same with 16 lines of 16 u32: line 2j = bytes k 8j+0,2,4,6, line 2j+1 = 8j+1,3,5,7
 *   BF16  32 lines of 16 pairs: line 4j+i = (k 8j+i, k 8j+i+4), low half first
 *   F32   64 lines of 16 floats: line k
 *
 * A unit is the run of k that shares a scale: 64, or 32 for group 32 (two units a tile). Group 128
 * is stored as two units of 64 with equal scales. 2 and 3 bit codes become 4 bit codes, 5 and 6 bit codes
 * 8 bit ones, with the same scales: the values are unchanged. Scales and biases are bf16,
 * or f32 (f32_scales) when the file holds something that bf16 cannot.
 *
 * PREPARED ACTIVATIONS. A row is a record of chunks, one for each 64 k (sib_chunk_*): the values
 * in the order in which kernels meet them, and the sums that multiply the biases. The
 * kernels see an array of pointers to such rows, so a caller may pick rows freely (experts).
 *
 * NUMERICS. y[r][o] over units u of ascending k, f starting at +0:
 *
 *   F32    c = sum over k in u of q*x       f += s*c    f += b*X     X = sum over k in u of x
 *   BF16   as F32 on x rounded to bf16 (nearest even); products exact, except that the avx512vnni level treats
 *          subnormal inputs and products as zero (vdpbf16ps)
 *   INT8   d = max|x|/127 over the 64 of the chunk, xq = rint(x/d) (ties to even), |xq| <= 127
 *          I = sum over k in u of q*xq, S = sum of xq, both exact integers below 2^24
 *          f = fma(d, fma(s, I, b*S), f): the product b*S is rounded, the two fmas are one rounding each
 *          d is NaN when the chunk holds an infinity or a NaN; x = d*xq serves the biases too, because
 *          the error of a rounded x is then multiplied by w = s*q+b and not by the larger s*q
 *   plain  c = sum over the 64 k of a chunk of w*x      f += c
 *
 *   class  INT8: EXACT, the same bits at every level. F32, BF16: ORDER; levels may fuse multiply and add
 *          and choose the order inside a unit, but one level uses one order for every number of rows
 *   rows   independent: a row is bitwise the same alone or among others, whatever its kernel
 *   F16 and F32 plain weights are exact only in f32: they always take F32 tiles, with x rounded
 *          to bf16 outside of mode f32 */
#ifndef SIB_KERNELS_MATMUL_H
#define SIB_KERNELS_MATMUL_H

#include "tensor/matrix.h"

#define SIB_BLOCK 16 /* output rows of a block */
#define SIB_CHUNK 64 /* k of a chunk */

typedef enum sib_packing { SIB_PACK_Q4, SIB_PACK_Q8, SIB_PACK_BF16, SIB_PACK_F32, SIB_N_PACKINGS } sib_packing;

typedef struct sib_packed {
    sib_packing packing;
    bool f32_scales;
    int units;             /* a chunk: 1 or 2 */
    int64_t out, in;
    int64_t blocks, chunks; /* ceil(out/16), ceil(in/64) */
    size_t tile_bytes;      /* block_bytes = chunks * tile_bytes */
    const unsigned char *tiles; /* 64-byte aligned */
} sib_packed;

/* How a row of activations was prepared. */
typedef enum sib_prep { SIB_PREP_F32, SIB_PREP_BF16, SIB_PREP_INT8, SIB_N_PREPS } sib_prep;

/* Chunk records. They end in four floats: sum[0], sum[1] over the first and the last 32 k, sum[2] = sum[0] + sum[1],
 * and sum[3] = d for int8, 0 for the others. */
typedef struct sib_chunk_f32 {
    float x[64];
    float sum[4];
} sib_chunk_f32;

typedef struct sib_chunk_bf16 {
    uint16_t x[8][4][2]; /* [j][i] = (k 8j+i, k 8j+i+4) */
    float sum[4];
} sib_chunk_bf16;

typedef struct sib_chunk_int8 {
    int8_t x[8][2][4]; /* [j][p][n] = k 8j+p+2n */
    float sum[4];      /* S, exact; d */
} sib_chunk_int8;

/* Rows of activations for a kernel call, at most SIB_ROWS_MAX, each of the matrix's `chunks` chunks. */
typedef struct sib_rows {
    const void *const *row; /* [n] chunk records */
    int n;
} sib_rows;

/* y[r*y_stride + o - 16*b0] for the outputs o of blocks b0..b1-1 below w->out. `panel` is
 * scratch of SIB_PANEL_BYTES, 64-byte aligned, of the calling thread. */
typedef void (*sib_matmul_fn)(float *y, int64_t y_stride, const sib_packed *w, int64_t b0, int64_t b1,
                              const sib_rows *x, void *panel);

typedef struct sib_matmul_kernels {
    /* Writes ceil(in/64) chunk records of x[in]; `round_bf16` (F32 only) rounds x to bf16 first. */
    void (*prepare[SIB_N_PREPS])(void *record, const float *x, int64_t in, bool round_bf16);
    /* NULL where the pair makes no sense: plain weights with int8 rows, and bf16 rows at levels
     * below avx512vnni, which use F32 rows rounded to bf16 (the products are exact in f32). */
    sib_matmul_fn run[SIB_N_PREPS][SIB_N_PACKINGS];
} sib_matmul_kernels;

/* Bytes of one row record. */
size_t sib_prep_bytes(sib_prep prep, int64_t in);

#define SIB_ROWS_MAX    512 /* rows of one kernel call */
#define SIB_PANEL_BYTES ((size_t)1 << 20)

/* How a packed matrix of this source is laid out (tiles NULL) and how many bytes its tiles take, for one expert. */
void sib_packed_plan(sib_packed *p, const sib_matrix_src *src);
size_t sib_packed_bytes(const sib_packed *p);
/* Packs expert e of src into `tiles` of sib_packed_bytes(p) bytes, blocks b0..b1-1 (threads may share a matrix). */
void sib_pack_blocks(const sib_packed *p, unsigned char *tiles, const sib_matrix_src *src, int expert, int64_t b0,
                     int64_t b1);
/* Columns first..first+n-1 of row o as f32: s*q + b with one rounding. */
void sib_packed_row(float *y, const sib_packed *p, int64_t o, int64_t first, int64_t n);

void sib_matmul_ref(sib_matmul_kernels *k);
#if defined(__x86_64__)
void sib_matmul_avx2(sib_matmul_kernels *k);
void sib_matmul_avx2(sib_matmul_kernels *k);
void sib_matmul_avx512(sib_matmul_kernels *k);
void sib_matmul_avx512vnni(sib_matmul_kernels *k);
void sib_matmul_amx(sib_matmul_kernels *k);
#endif

#endif
