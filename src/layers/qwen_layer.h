/* layers/qwen_layer.h - what the Qwen3.5 target and its mtp companion share: gated full attention and the
 * feed-forward part, dense or with experts (qwen3_5.md 2.2, 2.4).
 *
 *   attention   o( attend(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate) ), q and gate interleaved per head
 *   dense       down( silu(gate x) * up x )
 *   experts     sum over the top k, renormalised, + sigmoid(shared gate x) * shared expert(x)
 *
 * Norms are RMS norms; files of the release store most of them zero-centred, so the loader takes the number
 * to add to a stored weight (1 there, 0 in MLX files). */
#ifndef SIB_LAYERS_QWEN_LAYER_H
#define SIB_LAYERS_QWEN_LAYER_H

#include "kv/cache.h"
#include "layers/loader.h"
#include "layers/step.h"

typedef struct sib_qwen_shape {
    int n_vocab, hidden, n_heads, n_kv_heads, head_dim;
    int ffn;                                  /* dense; 0 with experts */
    int n_experts, top_k, moe_ffn, shared_ffn; /* n_experts 0: dense    */
    int max_positions;
    bool tied;
    double eps, rope_theta;
    sib_rope rope;
    const float *inv_freq; /* device [rope.n_pairs] */
} sib_qwen_shape;

typedef struct sib_qwen_attention {
    sib_linear q;    /* [n_heads * 2 * head_dim, hidden]: per head query, then gate */
    sib_linear k, v; /* [n_kv_heads * head_dim, hidden]                             */
    sib_linear o;    /* [hidden, n_heads * head_dim]                                */
    const float *q_norm, *k_norm; /* [head_dim] */
} sib_qwen_attention;

typedef struct sib_qwen_ffn {
    sib_linear gate, up, down;       /* dense, or the shared expert              */
    sib_linear router;               /* [n_experts, hidden]                      */
    sib_linear shared_gate;          /* [1, hidden]                              */
    sib_linear e_gate, e_up, e_down; /* n_experts of [moe_ffn, hidden] and back  */
} sib_qwen_ffn;

/* Rows of one call. */
typedef struct sib_qwen_rows {
    int n;
    sib_span *spans; /* kv is filled in */
    sib_kv_seq *const *seqs;
    int n_spans;
    const int32_t *lo, *hi; /* host [n] */
    const float *cs;        /* device rotation angles */
} sib_qwen_rows;

/* The attention, feed-forward and vocabulary keys of a text config; `root` may hold tie_word_embeddings too. */
sib_status sib_qwen_shape_read(sib_qwen_shape *c, const json_t *text, const json_t *root, const char *where, sib_err *err);
sib_status sib_qwen_rope_load(sib_qwen_shape *c, sib_loader *l, sib_err *err);

/* `layer` is the prefix of the layer's tensors, "model.layers.3". */
sib_status sib_qwen_attention_load(const sib_qwen_shape *c, sib_qwen_attention *w, const char *layer, float norm_add, sib_loader *l, sib_err *err);
sib_status sib_qwen_ffn_load(const sib_qwen_shape *c, sib_qwen_ffn *w, const char *layer, sib_loader *l, sib_err *err);

/* x [rows][hidden], normed, becomes the attention's output. kv_layer: index in the sequences' layout. The stages
 * PREFIX.query and PREFIX.attention_gated of row values go to the trace when a prefix is given. */
void sib_qwen_attend(const sib_qwen_shape *c, const sib_qwen_attention *w, const sib_step *st, float *x, const sib_qwen_rows *r,
                     int kv_layer, const char *prefix, int index);
/* Only the keys and values of the rows; x is not changed. */
void sib_qwen_append(const sib_qwen_shape *c, const sib_qwen_attention *w, const sib_step *st, const float *x, const sib_qwen_rows *r,
                     int kv_layer);
/* x [rows][hidden], normed, becomes the feed-forward output. */
void sib_qwen_feed(const sib_qwen_shape *c, const sib_qwen_ffn *w, const sib_step *st, float *x, int rows);

#endif
