/* layers/loader.h - takes tensors out of a checkpoint, checks their shapes, packs them for a device.
 *
 * Everything loaded is owned by a sib_weights list and freed with it. On a planning device
 * (ops/nothing.h) nothing is read and only bytes are counted, so `fit` and `inspect` run the
 * very code that loads. Shapes come from the config; a tensor of another shape is an error
 * with its name. */
#ifndef SIB_LAYERS_LOADER_H
#define SIB_LAYERS_LOADER_H

#include "artifacts/checkpoint.h"
#include "artifacts/quant.h"
#include "ops/ops.h"

typedef struct sib_linear {
    sib_matrix *w; /* NULL: absent */
    int out, in;
} sib_linear;

typedef struct sib_weights {
    struct sib_weight {
        sib_matrix *matrix; /* or */
        void *vector;
        size_t bytes;
    } *items;
    size_t n, cap;
} sib_weights;

typedef struct sib_loader {
    sib_device *dev;
    sib_checkpoint *files;
    sib_weights *into;
    sib_progress_fn progress; /* may be NULL */
    void *progress_ctx;
    uint64_t done, total; /* bytes of tensors */
    size_t packed_bytes;  /* device bytes of what was loaded */
    /* What one decoded token reads and multiplies: all matrices but tables, experts by their share. */
    double expert_share;  /* experts picked / experts; set by the family before it loads experts */
    double active_bytes, active_macs;
} sib_loader;

void sib_weights_deinit(sib_weights *w, sib_device *dev);

bool sib_has(const sib_loader *l, const char *fmt, ...) SIB_PRINTF(2, 3);

/* Module `name` (without ".weight") as [n_out, n_in], plain or quantized. */
sib_status sib_load_linear(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(6, 7);
/* A table that is only looked up (embedding rows): not part of a token's cost. */
sib_status sib_load_table(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(6, 7);
/* As sib_load_linear; a matrix stored plain is quantized to `bits` in groups of 64 first (MLX's affine scheme). bits 0: as stored. */
sib_status sib_load_linear_bits(sib_loader *l, sib_linear *out, int n_out, int n_in, int bits, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(7, 8);
/* Tensor `name` that is stored [n_in, n_out] (x W instead of x W^T), kept in float32. */
sib_status sib_load_transposed(sib_loader *l, sib_linear *out, int n_out, int n_in, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(6, 7);
/* n_experts matrices stacked in one tensor. */
sib_status sib_load_experts(sib_loader *l, sib_linear *out, int n_experts, int n_out, int n_in, sib_err *err,
                            const char *fmt, ...) SIB_PRINTF(7, 8);
/* n_experts matrices, one module each: PREFIX.0.SUFFIX, PREFIX.1.SUFFIX, ... */
sib_status sib_load_expert_list(sib_loader *l, sib_linear *out, int n_experts, int n_out, int n_in, const char *suffix,
                                sib_err *err, const char *fmt, ...) SIB_PRINTF(8, 9);
/* `n` matrices [n_out, n_in] stacked in one tensor, as one matrix of n * n_out rows (position tables). */
sib_status sib_load_stack(sib_loader *l, sib_linear *out, int n, int n_out, int n_in, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(7, 8);
/* A matrix that the caller described: a slice, or values put together at load. A token reads `share` of it. */
sib_status sib_load_matrix(sib_loader *l, sib_linear *out, const sib_matrix_src *src, double share, sib_err *err);
/* Rows [first, first + n_out) of each expert of a tensor with `all` rows an expert (fused gate_up). */
sib_status sib_load_expert_rows(sib_loader *l, sib_linear *out, int n_experts, int all, int first, int n_out, int n_in,
                                sib_err *err, const char *fmt, ...) SIB_PRINTF(9, 10);
/* Full tensor name; device f32 [n], every value times `factor`. */
sib_status sib_load_vector(sib_loader *l, const float **out, int64_t n, float factor, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(6, 7);
/* A norm's weight, every value plus `add`: 1 where the file stores it zero-centred. */
sib_status sib_load_norm(sib_loader *l, const float **out, int64_t n, float add, sib_err *err, const char *fmt, ...)
    SIB_PRINTF(6, 7);
/* The same into host memory of the caller. */
sib_status sib_load_host(sib_loader *l, float *out, int64_t n, sib_err *err, const char *fmt, ...) SIB_PRINTF(5, 6);
/* A device vector from host values that no tensor holds (inverse frequencies). */
sib_status sib_load_values(sib_loader *l, const float **out, const float *values, int64_t n, sib_err *err);
/* Zeroed device memory that lives as long as the weights (result rows, arenas). */
sib_status sib_load_buffer(sib_loader *l, void **out, size_t bytes, sib_err *err);

#endif
