/* models/diffusion_gemma/diffusion_gemma.h - DiffusionGemma: Gemma 4 layers used as a causal encoder of what is settled
 * and as a bidirectional denoiser of a canvas.
 *
 * Private to the folder. Facts: MODEL.md beside this file; diffusion_gemma.md sections 1, 2. */
#ifndef SIB_MODELS_DIFFUSION_GEMMA_H
#define SIB_MODELS_DIFFUSION_GEMMA_H

#include "layers/gemma_layer.h"
#include "models/family.h"
#include "ports/denoise.h"
#include "vision/vision.h"

typedef struct diffusion_config {
    int n_vocab, hidden, n_layers, n_heads, n_kv_heads, n_global_kv_heads, head_dim, global_head_dim;
    int ffn, window, n_experts, top_k, moe_ffn, max_positions, canvas;
    int pad_id, image_id, boi_id, eoi_id, video_id; /* video -1: none */
    bool bidirectional; /* a picture's rows see each other */
    double eps, softcap;
    double rope_theta[2], rope_partial[2];
    bool rope_proportional[2];
    bool *full; /* [n_layers] */
} diffusion_config;

sib_status diffusion_config_read(diffusion_config *c, const json_t *root, sib_err *err);
void diffusion_config_deinit(diffusion_config *c);

typedef struct diffusion_gemma {
    sib_model model; /* first */
    diffusion_config cfg;
    sib_gemma stack; /* layer.scalar: the encoder's */
    sib_weights weights;
    sib_linear embed;      /* [n_vocab, hidden], also the head */
    const float *norm;     /* [hidden] before the head         */
    float *denoise_scalar; /* host [n_layers]                  */
    const float *sc_norm;  /* self-conditioning: [hidden]      */
    sib_linear sc_gate, sc_up, sc_down; /* [ffn, hidden] x2, [hidden, ffn] */
    float embed_scale;

    sib_model_limits limits;
    sib_kv_layout *layout;
    sib_kv_pool *pool;
    sib_arena arena;
    float *hidden, *logits; /* device results of a step: [max_rows][hidden], [max_logits][n_vocab] */
    float *soft;            /* device [n_seqs][canvas][hidden]: every sequence's soft embeddings */
    bool *slot_used;        /* [n_seqs] */
    int n_last;             /* canvases of the last step, spans[] and seqs[] still describe them */
    float *last_t;          /* host [max_rows] */
    /* host workspace of a call, sized by max_rows and n_seqs */
    int32_t *pos, *ids, *lo[2], *hi[2];
    float *second;
    double *u;
    sib_span *spans;
    sib_kv_seq **kv;
    sib_seq **seqs;
    sib_vision *vision; /* NULL: reads text only */
    sib_image_port images;
    sib_denoise_port denoise;
} diffusion_gemma;

struct sib_seq {
    sib_kv_seq *kv;
    int slot; /* of diffusion_gemma.soft */
};

sib_status diffusion_weights_load(diffusion_gemma *m, sib_loader *l, sib_err *err);

/* Encodes rows of the parts into the cache; nothing comes out. Parts with seq NULL stand for fresh sequences (planning). */
sib_status diffusion_encode_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts, sib_err *err);
/* One denoising pass; fills m->logits and *out (NULL when planning). */
sib_status diffusion_denoise_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const sib_canvas *canvases, int n,
                                const sib_denoised *out, sib_err *err);
/* Soft embeddings of the canvases of the last step. wanted NULL: all. */
sib_status diffusion_condition_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const bool *wanted, const float *logits, sib_err *err);

#endif
