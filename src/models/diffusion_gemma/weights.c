/* models/diffusion_gemma/weights.c - derives the layers' shapes and takes the tensors (diffusion_gemma.md 2.2). */
#include "models/diffusion_gemma/diffusion_gemma.h"

#include <stdlib.h>

#define DECODER "model.decoder"
#define ENCODER "model.encoder.language_model"

static sib_status init_stack(diffusion_gemma *m, sib_loader *l, sib_err *err)
{
    const diffusion_config *c = &m->cfg;
    sib_gemma *g = &m->stack;
    *g = (sib_gemma){.hidden = c->hidden, .n_layers = c->n_layers, .n_heads = c->n_heads, .n_experts = c->n_experts, .top_k = c->top_k,
                     .moe_ffn = c->moe_ffn, .eps = (float)c->eps, .act = SIB_ACT_GELU_TANH};
    g->layers = calloc((size_t)c->n_layers, sizeof *g->layers);
    m->denoise_scalar = calloc((size_t)c->n_layers, sizeof *m->denoise_scalar);
    if (!g->layers || !m->denoise_scalar) return sib_nomem(err, "layers");
    for (int i = 0; i < c->n_layers; i++)
        g->layers[i] = (sib_gemma_layer){
            .full = c->full[i],
            .kv_layer = i,
            .k_is_v = c->full[i], /* always, no key says so */
            .head_dim = c->full[i] ? c->global_head_dim : c->head_dim,
            .n_kv_heads = c->full[i] ? c->n_global_kv_heads : c->n_kv_heads,
            .ffn = c->ffn,
        };
    for (int k = 0; k < 2; k++)
        SIB_TRY(sib_gemma_rope_init(g, k, k == SIB_FULL ? c->global_head_dim : c->head_dim, c->rope_proportional[k], c->rope_theta[k],
                                    c->rope_partial[k], 1.0, l, err));
    return SIB_OK;
}

sib_status diffusion_weights_load(diffusion_gemma *m, sib_loader *l, sib_err *err)
{
    const diffusion_config *c = &m->cfg;
    SIB_TRY(init_stack(m, l, err));
    l->expert_share = (double)c->top_k / c->n_experts;
    SIB_TRY(sib_load_linear(l, &m->embed, c->n_vocab, c->hidden, err, DECODER ".embed_tokens"));
    SIB_TRY(sib_load_vector(l, &m->norm, c->hidden, 1, err, DECODER ".norm.weight"));
    SIB_TRY(sib_load_vector(l, &m->sc_norm, c->hidden, 1, err, DECODER ".self_conditioning.pre_norm.weight"));
    SIB_TRY(sib_load_linear(l, &m->sc_gate, c->ffn, c->hidden, err, DECODER ".self_conditioning.gate_proj"));
    SIB_TRY(sib_load_linear(l, &m->sc_up, c->ffn, c->hidden, err, DECODER ".self_conditioning.up_proj"));
    SIB_TRY(sib_load_linear(l, &m->sc_down, c->hidden, c->ffn, err, DECODER ".self_conditioning.down_proj"));
    for (int i = 0; i < c->n_layers; i++) {
        SIB_TRY(sib_gemma_layer_load(&m->stack, i, DECODER, l, err));
        SIB_TRY(sib_load_host(l, &m->denoise_scalar[i], 1, err, DECODER ".layers.%d.layer_scalar", i));
        SIB_TRY(sib_load_host(l, &m->stack.layers[i].scalar, 1, err, ENCODER ".layers.%d.layer_scalar", i));
    }
    return SIB_OK;
}
