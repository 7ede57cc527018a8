/* models/glm_moe_dsa/glm.h - GLM-5.2: latent attention (MLA), sparse key choice (DSA), sigmoid MoE, native MTP head.
 *
 * Private to the folder. Facts: MODEL.md beside this file; glm_moe_dsa.md. */
#ifndef SIB_MODELS_GLM_MOE_DSA_H
#define SIB_MODELS_GLM_MOE_DSA_H

#include "kv/cache.h"
#include "layers/step.h"
#include "models/family.h"
#include "ports/mtp.h"

typedef struct glm_config {
    int n_vocab, hidden, n_layers, n_heads, ffn, max_positions;
    int q_lora, latent, nope, rope, v_dim;      /* MLA; a head's query has nope + rope values */
    int index_heads, index_dim, index_topk;     /* DSA */
    int n_experts, top_k, moe_ffn, n_shared, n_group, topk_group, n_mtp;
    bool rope_interleave, index_interleave, norm_topk, tied;
    double eps, theta, routed_scale;
    bool *full;   /* [n_layers]: the layer has an indexer; others share the picks of the last one that has */
    bool *sparse; /* [n_layers]: experts; others have a dense MLP */
} glm_config;

sib_status glm_config_read(glm_config *c, const json_t *t, sib_err *err);
void glm_config_deinit(glm_config *c);

typedef struct glm_layer { /* names under model.layers.I */
    const float *in_norm, *post_norm; /* input_layernorm, post_attention_layernorm [hidden] */
    const float *q_norm, *kv_norm;    /* self_attn.q_a_layernorm [q_lora], kv_a_layernorm [latent] */
    sib_linear q_a;                   /* [q_lora, hidden] */
    sib_linear q_b;                   /* [heads * (nope + rope), q_lora] */
    sib_linear kv_a, k_rope;          /* kv_a_proj_with_mqa: rows 0..latent-1, and the rope rows behind them */
    sib_linear k_up;                  /* heads x [latent, nope]: Wk of kv_b_proj transposed, or embed_q */
    sib_linear v_up;                  /* heads x [v_dim, latent]: Wv of kv_b_proj, or unembed_out */
    sib_linear o;                     /* [hidden, heads * v_dim] */

    bool full; /* the indexer is there: self_attn.indexer.* */
    sib_linear wq_b;                    /* [index_heads * index_dim, q_lora] */
    sib_linear wk;                      /* [index_dim, hidden] */
    sib_linear weights;                 /* weights_proj [index_heads, hidden] */
    const float *k_norm_w, *k_norm_b;   /* [index_dim], LayerNorm */

    bool sparse;
    sib_linear gate, up, down;          /* mlp.*, or mlp.shared_experts.* [n_shared * moe_ffn, hidden] */
    sib_linear router;                  /* mlp.gate [experts, hidden] */
    const float *route_bias;            /* mlp.gate.e_score_correction_bias [experts] */
    sib_linear x_gate, x_up, x_down;    /* experts x [moe_ffn, hidden], [hidden, moe_ffn] */

    int kv_layer, index_layer; /* in the cache layout: latent and rope key; indexer keys (-1: none) */
} glm_layer;

typedef struct glm_mtp { /* layer n_layers of the checkpoint */
    sib_mtp_use use;
    glm_layer layer;
    const float *enorm, *hnorm, *norm; /* norm: shared_head.norm */
    sib_linear eh;                     /* eh_proj [hidden, 2 * hidden], embedding first */
    sib_linear embed, head;            /* the head's own where it has them (w NULL: the trunk's) */
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    int seqs_open;
    float *out, *raw; /* [max_rows][hidden] */
} glm_mtp;

typedef struct glm {
    sib_model model; /* first */
    glm_config cfg;
    sib_weights weights;
    char root[64];
    sib_linear embed, lm_head; /* lm_head.w NULL: tied */
    const float *final_norm;
    glm_layer *layers; /* [n_layers] */
    const float *inv_freq; /* [rope / 2] */
    sib_rope rope_q, rope_k, rope_index;
    glm_mtp mtp;

    sib_model_limits limits;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    int seqs_open;
    sib_arena arena;
    float *hidden, *logits, *taps; /* device results of the last call */
    int tap_layers[16], n_taps;
    /* host workspace of a call */
    int32_t *pos, *ids, *lo, *hi; /* [max_rows] */
    sib_span *spans;              /* [n_seqs], of positions; each layer fills in its pages */
    const sib_kv_seq **seqs;      /* [n_seqs] */
    int *counts;                  /* [n_seqs] rows of each */
} glm;

struct sib_seq {
    sib_kv_seq *kv;
};

struct sib_mtp_seq {
    sib_kv_seq *kv;
};

sib_status glm_weights_load(glm *m, sib_loader *l, sib_err *err);

/* Rows of a call as the layers see them. */
typedef struct glm_rows {
    int n, n_spans;   /* n_spans 0 when planning */
    float *cs;        /* rotary angles of the rows */
    int32_t *picks;   /* device [n][index_topk], of the last full layer; NULL: every row sees all */
    float *scores;    /* scratch of the indexer */
    int64_t stride;
} glm_rows;

/* Positions, visibility and spans of m->seqs with m->counts rows each into the workspace; pushes angles, and picks and scratch
 * when `select` (the call has layers with an indexer). Planning: fresh sequences of which one reaches `ctx`. */
void glm_rows_begin(glm *m, const sib_step *st, glm_rows *r, int n_seqs, int ctx, bool select);

/* h += attention and MLP. Stages: PREFIXattn_out, PREFIXmlp_out. `kv_only`: stores keys and values and leaves h. */
void glm_layer_forward(glm *m, const sib_step *st, const glm_layer *w, float *h, glm_rows *r, const char *prefix, int index, bool kv_only);

void glm_head(const glm *m, float *logits, const float *hidden, int rows);
sib_status glm_forward_on(glm *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err);

/* mtp.c */
extern const sib_mtp_port glm_mtp_port;
sib_status glm_mtp_plan(glm *m, sib_loader *l, sib_err *err); /* cache and results */
sib_status glm_mtp_step_on(glm *m, sib_device *dev, sib_arena *arena, const sib_mtp_part *parts, int n_parts, bool kv_only, sib_err *err);
void glm_mtp_deinit(glm *m);

#endif
