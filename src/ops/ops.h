/* ops/ops.h - what a device can do; the only compute interface that layers and models see.
 *
 * Activations are float32 matrices [rows][n], row-major, in device memory: `float *` here is
 * a device address, which only a device may read. On the CPU it is plain memory. Where a
 * numerics mode rounds, the operation does it inside (docs/NUMERICS.md):
 *
 *   mode   input of linear/moe        keys, values in the cache    queries    everything else
 *   f32    as it is                   float32                      float32    float32
 *   bf16   rounded to bf16            bf16                         bf16       float32
 *   int8   int8 per row, group of 64  bf16                         bf16       float32
 *          (bf16 for PLAIN matrices)
 *
 * Row independence: a row's result has the same bits whatever other rows are in the call, on any
 * number of threads. Reduction orders never depend on the number of rows or threads.
 *
 * Operations return void: shapes are the caller's promise (asserted), device failures appear
 * at sync. Arguments that are host arrays say so; they are read before the call returns. */
#ifndef SIB_OPS_OPS_H
#define SIB_OPS_OPS_H

#include "tensor/matrix.h"

typedef enum sib_numerics { SIB_NUM_F32, SIB_NUM_BF16, SIB_NUM_INT8 } sib_numerics;
typedef enum sib_act { SIB_ACT_GELU_TANH, SIB_ACT_SILU, SIB_ACT_SIGMOID } sib_act; /* sigmoid: a gate, no activation */

typedef struct sib_device sib_device;
typedef struct sib_matrix sib_matrix; /* a packed weight matrix, opaque; see matrix_* below */

/* ---- keys and values ------------------------------------------------------------------
 * A layer's cache of one sequence is a ring of pages of SIB_KV_PAGE positions:
 * position p lives in pages[(p / SIB_KV_PAGE) % n_pages], slot p % SIB_KV_PAGE. A page holds K
 * and V of all KV heads in the device's own layout. Key blocks are thus cut at absolute
 * positions, so decode, prefill and verification add up in the same order. */
#define SIB_KV_PAGE 64

typedef struct sib_kv_geom {
    int n_kv_heads;
    int k_dim, v_dim; /* per head; multiples of 8, k_dim <= 576, v_dim <= 512; v_dim 0: keys only, not for attend */
} sib_kv_geom;

typedef struct sib_kv_view {
    void *const *pages; /* device addresses, host array */
    int n_pages;
} sib_kv_view;

/* Consecutive rows of a call that belong to one sequence: row row0+i has position pos0+i. */
typedef struct sib_span {
    sib_kv_view kv;
    int row0, n_rows;
    int32_t pos0;
} sib_span;

typedef struct sib_attend {
    const sib_span *spans; /* host */
    int n_spans, n_rows;   /* n_rows = sum over spans */
    sib_kv_geom geom;
    int n_heads;         /* query heads; head h reads KV head h / (n_heads / n_kv_heads) */
    float scale;         /* multiplies q.k */
    const int32_t *lo, *hi; /* host [n_rows]: row r sees absolute positions lo[r] <= p < hi[r], never none */
    /* Sparse attention, NULL: none. A row that would see more than n_picks positions sees only those of its list in
     * device picks [n_rows][n_picks], ascending; lo is 0 then and hi the row's position + 1. Lists of other rows are not
     * read. The bits are those of a dense row that has the listed keys and no others. */
    const int32_t *picks;
    int n_picks;
} sib_attend;

/* ---- rotary embedding -------------------------------------------------------------------
 * Pair i (i < n_pairs) rotates elements (a, b): half-split a = i, b = i + distance;
 * interleaved a = 2i, b = 2i+1. Elements outside the pairs pass through. */
typedef struct sib_rope {
    int n_pairs;
    int distance; /* half-split: index distance of a pair; 0 = interleaved */
    int first;    /* index of the first rotated element in the head */
} sib_rope;

/* ---- gated delta rule (qwen3_5.md 2.3) -----------------------------------------------------
 * Per row: c = silu(conv(u)); q, k, v = c by heads; q and k l2-normed per head; the recurrence on the state of each
 * value head; RMSNorm of its output times `norm`; times silu(z). u is [rows][conv_dim], conv_dim = 2 n_k_heads k_dim +
 * n_v_heads v_dim (all q heads, all k heads, all v heads). Serial per token: output and state at a position have the same
 * bits however the tokens before it were cut into calls. */
typedef struct sib_delta {
    int n_k_heads, n_v_heads; /* value head h reads q and k of head h / (n_v_heads / n_k_heads) */
    int k_dim, v_dim;         /* at most SIB_DELTA_DIM */
    int taps;                 /* of the convolution, 2 .. SIB_DELTA_TAPS                         */
    float eps;
    /* device */
    const float *conv;    /* [taps][conv_dim]; the last tap multiplies the current row */
    const float *a_neg;   /* [n_v_heads] -exp(A_log)                                   */
    const float *dt_bias; /* [n_v_heads]                                               */
    const float *norm;    /* [v_dim]                                                   */
} sib_delta;

#define SIB_DELTA_DIM  512
#define SIB_DELTA_TAPS 8

/* Consecutive rows of one sequence and its state before and after them; in and out must not overlap. The values of a
 * state [n_v_heads][k_dim][v_dim] lie in the device's own order. */
typedef struct sib_delta_span {
    const float *conv_in;  /* device [taps - 1][conv_dim]: the last rows of u, oldest first; NULL: zeros */
    const float *state_in; /* device; NULL: zeros                                                        */
    float *conv_out, *state_out;
    int row0, n_rows;
} sib_delta_span;

static inline int sib_delta_conv_dim(const sib_delta *g)
{
    return 2 * g->n_k_heads * g->k_dim + g->n_v_heads * g->v_dim;
}

/* Floats of scratch that a row takes. */
static inline int sib_delta_scratch(const sib_delta *g)
{
    return sib_delta_conv_dim(g) + 2 * g->n_v_heads;
}

/* ---- experts ---------------------------------------------------------------------------- */
typedef struct sib_moe {
    const sib_matrix *gate, *up, *down; /* n_experts each; [ffn, hidden], [ffn, hidden], [hidden, ffn] */
    sib_act act;
    int top_k;
} sib_moe;

/* Routing by sigmoid (glm_moe_dsa.md 5.2; numerics in kernels/sparse.c). */
typedef struct sib_sigmoid_route {
    const float *bias; /* device f32 [n] added for the choice alone, or NULL */
    int n, n_groups, top_groups, top_k;
    bool normalise; /* weights of a row sum to `scale` */
    float scale;
} sib_sigmoid_route;

/* ---- a sparse indexer's choice of keys (glm_moe_dsa.md 4) -------------------------------- */
#define SIB_INDEX_ROWS 32 /* rows whose scores are held at a time */

typedef struct sib_index {
    const sib_span *spans; /* host; kv is the cache of indexer keys, geometry {1, dim, 0} */
    int n_spans, n_rows;
    int n_heads, dim;
    float scale;   /* multiplies q.k, before the relu */
    int top_k;
    float *scores; /* device scratch [SIB_INDEX_ROWS][stride] */
    int64_t stride; /* >= positions of the longest span's last row, rounded up to SIB_KV_PAGE */
} sib_index;

/* ---- the assistant's centroid head (drafters_kv.md 1.5) ---------------------------------- */
typedef struct sib_centroid_head {
    const uint16_t *table;   /* device bf16 [n_vocab][hidden]                       */
    const int32_t *ordering; /* device [n_centroids][n_vocab / n_centroids] ids     */
    int n_vocab, hidden, n_centroids, top;
} sib_centroid_head;

/* ---- block diffusion (diffusion_gemma.md 3.2 - 3.5) ----------------------------------------
 * Row r of logits x becomes the distribution P = softmax(x / t[r]), x / t a division. */
typedef struct sib_choose {
    const float *t;      /* above 0 */
    const float *second; /* divides x / t once more for the proposal; 0: the proposal is the best token */
    const double *u;     /* in [0, 1): the proposal is the first id, ascending, at which the distribution function exceeds u */
    int32_t *best;       /* id of the highest logit, the lowest among equals; -1: the row is not finite */
    int32_t *proposal;
    float *entropy;      /* -sum P log P, natural logarithm */
    float *confidence;   /* P of the proposal */
} sib_choose;

#define SIB_SOFT_SCRATCH 2080 /* floats a row: 2048 probabilities, then the row's maximum and sum */

typedef struct sib_ops {
    const char *name; /* "cpu" */
    void (*close)(sib_device *d); /* frees the device; call sib_device_free */

    /* Memory of the device; alloc zeroes. */
    sib_status (*alloc)(sib_device *d, size_t bytes, void **out, sib_err *err);
    void (*release)(sib_device *d, void *p, size_t bytes);
    void (*upload)(sib_device *d, void *dst, const void *src, size_t bytes);
    void (*download)(sib_device *d, void *dst, const void *src, size_t bytes);
    sib_status (*sync)(sib_device *d, sib_err *err);

    /* Packs a matrix into the device's layout. The source may be unmapped afterwards. */
    sib_status (*matrix_new)(sib_device *d, sib_matrix **out, const sib_matrix_src *src, sib_err *err);
    void (*matrix_free)(sib_device *d, sib_matrix *m);
    size_t (*matrix_bytes)(sib_device *d, const sib_matrix_src *src); /* what matrix_new will hold */

    /* y_j[rows][out_j] = x[rows][in] W_j^T for n matrices of the same `in`: the input is
     * rounded or quantized once. y_j must not overlap x. */
    void (*linear)(sib_device *d, int n, float *const *y, const sib_matrix *const *w, const float *x, int rows);

    /* One matrix for each head: head h of row r, y at y + (r*H + h)*y_stride, is W_h times x at x + (r*H + h)*x_stride,
     * for the H = n_experts matrices of w. y must not overlap x. */
    void (*linear_heads)(sib_device *d, float *y, int64_t y_stride, const sib_matrix *w, const float *x, int64_t x_stride, int rows);

    /* y[rows][ffn] = act(x gate^T) * (x up^T), the product in f32. */
    void (*linear_glu)(sib_device *d, float *y, const sib_matrix *gate, const sib_matrix *up, sib_act act,
                       const float *x, int rows);

    /* y[rows][in] = scale * row ids[r] of the table (host ids, 0 <= id < out), dequantized in f32.
     * Columns first .. first+n-1 only when n > 0 (then y is [rows][n]). */
    void (*embed)(sib_device *d, float *y, const sib_matrix *table, const int32_t *ids, int rows, float scale,
                  int64_t first, int64_t n);

    /* y[rows][hidden] = sum_j weight[r][j] * expert idx[r][j] (x[r]), j = 0..top_k-1 in this order. */
    void (*moe)(sib_device *d, float *y, const sib_moe *m, const float *x, const int32_t *idx, const float *weight,
                int rows);
    /* idx, weight [rows][top_k] of scores [rows][n]: softmax over all n, the top_k largest (ties: lower
     * index), renormalised to sum 1, times per_expert[idx] where given (f32 [n] or NULL). Ordered by falling score. */
    void (*moe_route)(sib_device *d, int32_t *idx, float *weight, const float *scores, const float *per_expert,
                      int rows, int n, int top_k);

    /* y[rows][n_v_heads][v_dim] of u, z [rows][n_v_heads][v_dim], a and b [rows][n_v_heads]; y NULL (z is not read then): only
     * the states. Spans (host) follow one another from row 0; scratch: device [rows][sib_delta_scratch(g)]. */
    void (*gated_delta)(sib_device *d, float *y, const float *u, const float *z, const float *a, const float *b,
                        const sib_delta *g, const sib_delta_span *spans, int n_spans, float *scratch);
    /* y[r] += sigmoid(gate[r]) * x[r], rows of n (a shared expert behind its scalar gate). */
    void (*add_gated)(sib_device *d, float *y, const float *x, const float *gate, int rows, int n);

    /* The same by sigmoid: logits [rows][n]. */
    void (*moe_route_sigmoid)(sib_device *d, int32_t *idx, float *weight, const float *logits, const sib_sigmoid_route *r, int rows);

    /* RMSNorm: y = x / sqrt(mean(x^2) + eps) * w, w f32 [n] or NULL for ones. y may be x. Row r
     * starts at x + r*n. */
    void (*rms_norm)(sib_device *d, float *y, const float *x, const float *w, int rows, int n, float eps);
    /* h = (h + RMSNorm(x) * w) * scale */
    void (*rms_norm_add)(sib_device *d, float *h, const float *x, const float *w, int rows, int n, float eps,
                         float scale);
    /* LayerNorm with weight and bias (either may be NULL). */
    void (*layer_norm)(sib_device *d, float *y, const float *x, const float *w, const float *b, int rows, int n,
                       float eps);

    /* cs[rows][n_pairs][2] = cos, sin of float32(pos[r]) * inv_freq[i] (host pos, device inv_freq f32). */
    void (*rope_angles)(sib_device *d, float *cs, const float *inv_freq, int n_pairs, const int32_t *pos, int rows);
    /* Per head: RMSNorm over head_dim (w [head_dim]; w NULL and eps 0 = no norm; w NULL = ones), then the rotation
     * (cs NULL = none). In place on x; head h of row r at x + r*stride + h*head_dim. */
    void (*head_norm_rope)(sib_device *d, float *x, int rows, int n_heads, int head_dim, int64_t stride,
                           const float *w, float eps, const sib_rope *rope, const float *cs);

    /* Stores row r of k [rows][n_kv_heads][k_dim] and v [rows][n_kv_heads][v_dim] at its span's position. */
    void (*kv_append)(sib_device *d, const sib_kv_geom *g, const sib_span *spans, int n_spans, const float *k,
                      const float *v);
    /* out[rows][n_heads][v_dim] = softmax(scale q.k over the visible keys) v; q [rows][n_heads][k_dim]. The rows'
     * own keys have been appended before. */
    void (*attend)(sib_device *d, float *out, const float *q, const sib_attend *a);
    /* picks [rows][top_k] for attend: of the rows that see more than top_k positions (all up to their own), the top_k with
     * the highest score, ties to the lower position, ascending. Score of position s: sum over heads h of
     * weight[r][h] * relu(scale * q[r][h] . key s); q [rows][n_heads][dim], which the mode's rounding of queries
     * overwrites. Other rows' picks stay as they are. */
    void (*index_select)(sib_device *d, int32_t *picks, float *q, const float *weight, const sib_index *x);
    size_t (*kv_page_bytes)(sib_device *d, const sib_kv_geom *g);
    /* Positions first .. first+n-1 as f32 k [n_kv_heads][n][k_dim], v [n_kv_heads][n][v_dim] in HOST memory (either may be NULL). */
    void (*kv_read)(sib_device *d, const sib_kv_geom *g, const sib_kv_view *kv, int32_t first, int n, float *k, float *v);

    /* Elementwise over `count` values; y may alias any input. */
    void (*add)(sib_device *d, float *y, const float *a, const float *b, int64_t count);
    void (*mul)(sib_device *d, float *y, const float *a, const float *b, int64_t count);
    void (*scale)(sib_device *d, float *y, const float *x, float s, int64_t count);
    void (*clamp)(sib_device *d, float *y, const float *x, float lo, float hi, int64_t count);
    void (*softcap)(sib_device *d, float *y, const float *x, float cap, int64_t count); /* cap * tanh(x / cap) */
    void (*glu)(sib_device *d, float *y, const float *gate, const float *up, sib_act act, int64_t count);
    /* y[r][i] = x[r][i] * w[i], or + b[i] */
    void (*mul_row)(sib_device *d, float *y, const float *x, const float *w, int rows, int n);
    void (*add_row)(sib_device *d, float *y, const float *x, const float *b, int rows, int n);
    /* Copies rows x n values between strided matrices (strides in floats). */
    void (*copy_rows)(sib_device *d, float *y, int64_t y_stride, const float *x, int64_t x_stride, int rows, int n);

    /* Convolution over the rows of a block (dflash2.md 7.1): y[r][c] = residual[r][c] + (base[0][c] + d[0][g]) x[r][c] + (base[1][c] +
     * d[1][g]) x[r-1][c], g = c / group, base [2][n], d[t][g] = delta[r * delta_stride + t * n / group + g]. A row with in_block[r] = 0
     * (host) has no row before it. residual: NULL, or y itself, or another matrix; y is not x. */
    void (*two_tap)(sib_device *d, float *y, const float *x, const float *base, const float *delta, int64_t delta_stride, int group,
                    const int32_t *in_block, int rows, int n, const float *residual);
    /* y[r] = sum_i a[i] * x[r][i], rows of one vector each, to HOST; added in index order, in f32. */
    void (*dots)(sib_device *d, float *y, const float *a, const float *x, int rows, int n);
    /* The k highest values of each row (ties: lower index; NaN counts as lowest) by falling value, to HOST ids and values [rows][k]. */
    void (*top_k)(sib_device *d, int32_t *ids, float *values, const float *x, int rows, int n, int k);

    /* y[rows][in] = scale * sum over v of p[r][v] E[v], p[r] = softmax(x[r] / t) over the table's rows, x [rows][out], t [rows] host:
     * soft embeddings (diffusion_gemma.md 2.5). p is rounded to bf16 in modes bf16 and int8; sums over ascending v in f32.
     * scratch: device [rows][SIB_SOFT_SCRATCH]. */
    void (*soft_embed)(sib_device *d, float *y, const sib_matrix *table, const float *x, const float *t, int rows, float scale,
                       float *scratch);
    /* What a denoising step asks of each row of logits x [rows][n]; arrays of `c` are HOST [rows]. */
    void (*choose)(sib_device *d, const sib_choose *c, const float *x, int rows, int n);
    /* Highest value of each row, ties to the lowest index, to HOST ids. */
    void (*argmax)(sib_device *d, int32_t *ids, const float *x, int rows, int n);
    /* Best token of the candidates under the `top` best centroids (ties: lower index) of scores [rows][n_centroids], to HOST ids;
     * ties between candidates: lowest id. In modes bf16 and int8 each product E[id][i] * y[i] is rounded to bf16 and summed as the
     * reference does; in f32 nothing is rounded. logits [rows][n_vocab] or NULL gets the candidates' scores, NaN elsewhere. */
    void (*centroid_argmax)(sib_device *d, int32_t *ids, const sib_centroid_head *h, const float *scores, const float *y, int rows,
                            float *logits);
} sib_ops;

struct sib_device {
    const sib_ops *ops;
    sib_numerics numerics;
};

typedef struct sib_cpu_options {
    sib_numerics numerics;
    int threads; /* 0: physical cores */
    bool pin;
} sib_cpu_options;

/* The CPU device (ops/cpu.c). Free with sib_device_free. */
sib_status sib_cpu_device_new(sib_device **out, const sib_cpu_options *o, sib_err *err);
int sib_cpu_device_threads(const sib_device *d);
void sib_device_free(sib_device *d);

#endif
