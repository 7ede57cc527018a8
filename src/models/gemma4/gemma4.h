/* models/gemma4/gemma4.h - the Gemma 4 family (E2B, E4B, 12B unified, 26B-A4B, 31B).
 *
 * Private to the folder. Facts: MODEL.md beside this file; gemma4.md sections 1-5. */
#ifndef SIB_MODELS_GEMMA4_H
#define SIB_MODELS_GEMMA4_H

#include "layers/gemma_layer.h"
#include "models/family.h"
#include "ports/model.h"
#include "vision/vision.h"

typedef struct gemma4_config {
    int n_vocab, hidden, n_layers, n_heads, n_kv_heads, n_global_kv_heads, head_dim, global_head_dim;
    int ffn, window, n_shared, ple, n_vocab_ple, n_experts, top_k, moe_ffn, max_positions;
    int pad_id, image_id, boi_id, eoi_id, audio_id, video_id; /* -1: none */
    bool k_eq_v, double_wide, tied, unified;
    bool bidirectional; /* picture blocks see themselves both ways on sliding layers */
    double eps, softcap; /* softcap 0: none */
    double rope_theta[2], rope_partial[2], rope_factor[2];
    bool rope_proportional[2];
    bool *full;     /* [n_layers] */
    int *layer_dim; /* [n_layers] head_dim of each layer */
} gemma4_config;

/* Reads the text part of config.json. `where` goes into messages. */
sib_status gemma4_config_read(gemma4_config *c, const json_t *root, sib_err *err);
void gemma4_config_deinit(gemma4_config *c);

typedef struct gemma4 {
    sib_model model; /* first */
    gemma4_config cfg;
    sib_gemma stack;
    sib_weights weights;
    char root[64]; /* prefix of text tensors: "ROOT.layers.0..." */
    sib_linear embed, embed_ple, ple_proj, lm_head; /* lm_head.w NULL: tied */
    const float *ple_norm, *final_norm;

    sib_model_limits limits;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    int seqs_open;
    sib_arena arena;
    float *hidden, *logits, *taps; /* device results of the last call */
    int tap_layers[16], n_taps;
    float scalar_embed, scalar_ple;
    /* host workspace of a call, sized by max_rows and n_seqs */
    int32_t *pos, *ids, *ple_ids, *lo[2], *hi[2];
    sib_span *spans;
    sib_kv_seq **seqs;
    sib_donor_info donors[SIB_N_DONORS];
    sib_vision *vision; /* NULL: reads text only */
    sib_image_port images;
} gemma4;

struct sib_seq {
    sib_kv_seq *kv;
};

sib_status gemma4_weights_load(gemma4 *m, sib_loader *l, sib_err *err);

/* The vision part, when the checkpoint has one: m->vision and m->images. */
sib_status gemma4_vision_open(gemma4 *m, sib_loader *l, sib_err *err);

/* Marks tensors that are left out on purpose, for the load report. After all loading. */
void gemma4_ignore_rest(const gemma4 *m, sib_checkpoint *files);

/* logits[rows][n_vocab], soft cap included, of hidden states after the final norm. */
void gemma4_head(const gemma4 *m, float *logits, const float *hidden, int rows);

/* The forward pass on any device; parts with seq NULL stand for fresh sequences (planning). */
sib_status gemma4_forward_on(gemma4 *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts,
                             sib_forward_out *out, sib_err *err);

#endif
