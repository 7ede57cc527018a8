/* layers/gemma_layer.h - the decoder layer that Gemma 4 and DiffusionGemma share.
 *
 *   r = h;  x = norm(h);  x = attention(x);  h = r + norm(x)
 *   r = h;  x = norm(h);  x = GeGLU(x)   [+ experts on r];  h = r + norm(x)
 *   [per-layer input:  h += norm(proj(gelu(gate(h)) * input))]
 *   h *= layer_scalar
 *
 * Facts: gemma4.md 2.4-2.10. Attention has scale 1 and no cap; q and k are normed per head and
 * rotated, v is normed without weight. A KV-shared layer has no k and v of its own and reads
 * those of its donor, rows of this call included. */
#ifndef SIB_LAYERS_GEMMA_LAYER_H
#define SIB_LAYERS_GEMMA_LAYER_H

#include "kv/cache.h"
#include "layers/loader.h"
#include "layers/step.h"

typedef struct sib_gemma_layer {
    bool full;      /* attention over everything; else over the window         */
    int kv_layer;   /* layer whose cache is read: its own index, or the donor's */
    bool shared;    /* kv_layer is a donor: no k, v here                        */
    bool k_is_v;    /* v is the raw k projection                                */
    int head_dim, n_kv_heads, ffn;

    const float *in_norm, *post_attn_norm, *pre_ffn_norm, *post_ffn_norm; /* [hidden] */
    sib_linear q;                 /* [n_heads * head_dim, hidden]    */
    sib_linear k, v;              /* [n_kv_heads * head_dim, hidden] */
    const float *q_norm, *k_norm; /* [head_dim]                      */
    sib_linear o;                 /* [hidden, n_heads * head_dim]    */
    sib_linear gate, up, down;    /* [ffn, hidden] x2, [hidden, ffn] */
    float scalar;

    /* per-layer inputs (ple > 0) */
    sib_linear ple_gate, ple_proj; /* [ple, hidden], [hidden, ple] */
    const float *ple_norm;         /* [hidden] */

    /* experts (n_experts > 0) */
    sib_linear router;               /* [n_experts, hidden]                                     */
    const float *router_norm;        /* [hidden] router.scale * hidden^-1/2, the norm's weight  */
    const float *per_expert_scale;   /* [n_experts]                                             */
    sib_linear e_gate, e_up, e_down; /* n_experts of [moe_ffn, hidden] x2, [hidden, moe_ffn]    */
    const float *dense_post_norm;    /* post_feedforward_layernorm_1 */
    const float *moe_pre_norm;       /* pre_feedforward_layernorm_2  */
    const float *moe_post_norm;      /* post_feedforward_layernorm_2 */
} sib_gemma_layer;

enum { SIB_SLIDING = 0, SIB_FULL = 1 };

typedef struct sib_gemma {
    int hidden, n_layers, n_heads, ple, n_experts, top_k, moe_ffn;
    float eps;
    sib_act act;
    sib_rope rope[2];         /* sliding, full */
    const float *inv_freq[2]; /* device [n_pairs] */
    sib_gemma_layer *layers;
} sib_gemma;

/* Rows of one call, the same for all layers. */
typedef struct sib_gemma_rows {
    int n;
    sib_span *spans; /* kv is filled in per layer */
    sib_kv_seq *const *seqs; /* [n_spans] */
    int n_spans;
    const int32_t *lo[2], *hi[2]; /* visible positions on sliding and full layers, host [n] */
    const float *cs[2];           /* device rotation angles, sliding and full */
    bool keys_only;               /* the layer stores keys and values and leaves h alone */
} sib_gemma_rows;

/* Fills inv_freq and rope for one layer kind (gemma4.md 2.6). `proportional`: exponent over head_dim, only
 * the first partial * head_dim / 2 pairs rotate; else all. */
sib_status sib_gemma_rope_init(sib_gemma *g, int kind, int head_dim, bool proportional, double theta, double partial,
                               double factor, sib_loader *l, sib_err *err);

/* Loads layer `i` from tensors "ROOT.layers.i.*"; the shape fields of g->layers[i] must be set. */
sib_status sib_gemma_layer_load(sib_gemma *g, int i, const char *root, sib_loader *l, sib_err *err);

/* Runs the layer on h [rows][hidden] in place. ple_input: device [rows][ple] of this layer or NULL. */
void sib_gemma_layer_forward(const sib_gemma *g, int i, const sib_step *st, float *h, const sib_gemma_rows *rows,
                             const float *ple_input, float scalar);

#endif
