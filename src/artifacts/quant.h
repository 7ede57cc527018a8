/* artifacts/quant.h - from module names to matrices and vectors (formats.md B).
 *
 * A module PREFIX is quantized if and only if the tensor PREFIX.scales exists, whatever config.json
 * says: its keys often use other names than the files. Bits and group follow from the shapes;
 * where config.json disagrees, the shapes win and one warning says so. Every shape is
 * checked against what the model's config demands, with the tensor's name in the sentence.
 * Everything read here is marked as used. Pointers go into the checkpoint's mappings. */
#ifndef SIB_ARTIFACTS_QUANT_H
#define SIB_ARTIFACTS_QUANT_H

#include "artifacts/checkpoint.h"
#include "tensor/matrix.h"

/* SIB_EUNSUPPORTED, naming key and value, when config.json declares a scheme that no code here reads
 * (awq, gptq, bitnet, compressed-tensors, fp8, activations quantized, ...). Families call it first. */
sib_status sib_quant_check(const sib_checkpoint *c, sib_err *err);

/* PREFIX.weight (+ .scales, .biases) as [out, in], or [n_experts, out, in] when n_experts > 0 (0: an ordinary
 * matrix; 1: one expert). A tensor PREFIX without ".weight" serves too (expert stacks of Hugging Face files).
 * Absent: SIB_EFORMAT and noted as missing. */
sib_status sib_matrix_of(sib_checkpoint *c, const char *prefix, int64_t out, int64_t in, int n_experts,
                         sib_matrix_src *m, sib_err *err);
bool sib_matrix_exists(const sib_checkpoint *c, const char *prefix);

/* One matrix of `n_experts` from separate modules PREFIX.0.SUFFIX ... PREFIX.n-1.SUFFIX, all stored alike,
 * copied together into memory of the checkpoint. */
sib_status sib_matrix_of_experts(sib_checkpoint *c, const char *prefix, const char *suffix, int64_t out, int64_t in,
                                 int n_experts, sib_matrix_src *m, sib_err *err);

/* Tensor `name` with exactly n elements, as f32 into out[n]; any shape whose other dimensions are 1. */
sib_status sib_vector_of(sib_checkpoint *c, const char *name, int64_t n, float *out, sib_err *err);
/* Tensor `name` of exactly this shape as f32 into out[product]. */
sib_status sib_tensor_of(sib_checkpoint *c, const char *name, int rank, const int64_t *shape, float *out, sib_err *err);

#endif
