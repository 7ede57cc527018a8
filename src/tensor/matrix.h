/* tensor/matrix.h - a weight matrix as its file stores it, before any device has packed it.
 *
 * Borrowed memory: every pointer goes into a mapped checkpoint, at any alignment, and
 * must stay mapped until the matrix has been packed. Value of element (o, i):
 *
 *   PLAIN    data[o*in + i] in `dtype` (BF16, F16 or F32)
 *   AFFINE   scale[o][i/group] * q[o][i] + bias[o][i/group], q unsigned, `bits` wide,
 *            packed least significant bit first along the row (formats.md B.1);
 *            exact product, one float32 add, never rounded to bf16 (formats.md B.3)
 *
 * `n_experts` > 1: that many [out, in] matrices one after the other in every array. */
#ifndef SIB_TENSOR_MATRIX_H
#define SIB_TENSOR_MATRIX_H

#include "tensor/dtype.h"

#include <stdint.h>

typedef enum sib_storage { SIB_PLAIN, SIB_AFFINE } sib_storage;

typedef struct sib_matrix_src {
    const char *name; /* tensor name for messages, borrowed */
    sib_storage storage;
    int64_t out, in;
    int n_experts;               /* 1 for an ordinary matrix */
    sib_dtype dtype;             /* PLAIN: of data. AFFINE: of scales and biases */
    const void *data;            /* PLAIN: [n_experts][out][in]. AFFINE: U32 [n_experts][out][in*bits/32] */
    const void *scales, *biases; /* AFFINE: [n_experts][out][in/group] */
    int bits, group;             /* AFFINE: bits 2,3,4,5,6,8; group 32, 64, 128 */
    int64_t parent_out;          /* rows from one expert to the next in every array; 0: out (it is not a slice) */
} sib_matrix_src;

/* Address of row `row` of expert `e` in each array (AFFINE only for scales and biases). */
const void *sib_matrix_src_data(const sib_matrix_src *m, int e, int64_t row);
const void *sib_matrix_src_scales(const sib_matrix_src *m, int e, int64_t row);
const void *sib_matrix_src_biases(const sib_matrix_src *m, int e, int64_t row);

/* Bytes that the matrix takes in its file. */
size_t sib_matrix_src_bytes(const sib_matrix_src *m);

/* Rows first .. first+n-1 of expert e as f32 [n][in]: the definition that kernels are tested against. */
void sib_matrix_src_rows(float *out, const sib_matrix_src *m, int expert, int64_t first, int64_t n);

/* Rows [first, first+n) of every expert as a matrix of its own, a view into the same memory. With
 * several experts they are then parent_out rows apart: gate and up of a fused gate_up matrix. */
sib_matrix_src sib_matrix_src_slice(const sib_matrix_src *m, int64_t first, int64_t n);

/* MLX's affine quantizer (formats.md B.2) for one row of `in` floats: packed gets in*bits/8 bytes, scales and
 * biases in/group elements of `dtype` (BF16, F16 or F32). `in` is a multiple of group. */
void sib_affine_quantize(void *packed, void *scales, void *biases, sib_dtype dtype, const float *w, int64_t in,
                         int bits, int group);
bool sib_affine_bits_ok(int64_t bits);   /* 2, 3, 4, 5, 6, 8 */
bool sib_affine_group_ok(int64_t group); /* 32, 64, 128 */

#endif
