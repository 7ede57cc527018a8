/* models/gemma4/weights.c - derives each layer's shape and takes its tensors (gemma4.md 1.4, 3). */
#include "models/gemma4/gemma4.h"

#include <stdio.h>
#include <stdlib.h>

/* The text tensors' prefix, by presence: Hugging Face multimodal, MLX, text-only exports. */
static sib_status find_root(gemma4 *m, sib_loader *l, sib_err *err)
{
    static const char *const roots[] = {"model.language_model", "language_model.model", "model", "language_model", "model.language_model.model"};
    for (size_t i = 0; i < SIB_COUNT(roots); i++)
        if (sib_has(l, "%s.embed_tokens.weight", roots[i])) {
            (void)snprintf(m->root, sizeof m->root, "%s", roots[i]);
            return SIB_OK;
        }
    return sib_fail(err, SIB_EFORMAT, "%s: no tensor is named *embed_tokens.weight", sib_checkpoint_dir(l->files));
}

/* Last layer before the shared ones that owns a cache of the same kind (gemma4.md 1.4). */
static int donor_of(const gemma4_config *c, int layer)
{
    int j = c->n_layers - c->n_shared - 1;
    while (j > 0 && c->full[j] != c->full[layer]) j--;
    return j;
}

static sib_status init_stack(gemma4 *m, sib_loader *l, sib_err *err)
{
    const gemma4_config *c = &m->cfg;
    sib_gemma *g = &m->stack;
    *g = (sib_gemma){.hidden = c->hidden, .n_layers = c->n_layers, .n_heads = c->n_heads, .ple = c->ple, .n_experts = c->n_experts,
                     .top_k = c->top_k, .moe_ffn = c->moe_ffn, .eps = (float)c->eps, .act = SIB_ACT_GELU_TANH};
    g->layers = calloc((size_t)c->n_layers, sizeof *g->layers);
    if (!g->layers) return sib_nomem(err, "layers");
    for (int i = 0; i < c->n_layers; i++) {
        bool shared = i >= c->n_layers - c->n_shared;
        g->layers[i] = (sib_gemma_layer){
            .full = c->full[i],
            .shared = shared,
            .kv_layer = shared ? donor_of(c, i) : i,
            .k_is_v = c->k_eq_v && c->full[i],
            .head_dim = c->layer_dim[i],
            .n_kv_heads = c->full[i] ? c->n_global_kv_heads : c->n_kv_heads,
            .ffn = c->ffn * (c->double_wide && shared ? 2 : 1),
            .scalar = 1.0f,
        };
    }
    for (int k = 0; k < 2; k++)
        SIB_TRY(sib_gemma_rope_init(g, k, k == SIB_FULL ? c->global_head_dim : c->head_dim, c->rope_proportional[k], c->rope_theta[k],
                                    c->rope_partial[k], c->rope_factor[k], l, err));
    return SIB_OK;
}

sib_status gemma4_weights_load(gemma4 *m, sib_loader *l, sib_err *err)
{
    gemma4_config *c = &m->cfg;
    SIB_TRY(find_root(m, l, err));
    /* Presence of the table decides, not the config (gemma4.md 1.3). */
    if (!sib_has(l, "%s.embed_tokens_per_layer.weight", m->root)) c->ple = 0;
    SIB_TRY(init_stack(m, l, err));
    l->expert_share = c->n_experts > 0 ? (double)c->top_k / c->n_experts : 1;
    SIB_TRY((c->tied ? sib_load_linear : sib_load_table)(l, &m->embed, c->n_vocab, c->hidden, err, "%s.embed_tokens", m->root));
    SIB_TRY(sib_load_vector(l, &m->final_norm, c->hidden, 1, err, "%s.norm.weight", m->root));
    if (!c->tied) {
        const char *head = sib_has(l, "lm_head.weight") ? "lm_head" : sib_has(l, "language_model.lm_head.weight") ? "language_model.lm_head" : NULL;
        if (head) SIB_TRY(sib_load_linear(l, &m->lm_head, c->n_vocab, c->hidden, err, "%s", head));
    }
    if (c->ple > 0) {
        int wide = c->n_layers * c->ple;
        SIB_TRY(sib_load_table(l, &m->embed_ple, c->n_vocab_ple, wide, err, "%s.embed_tokens_per_layer", m->root));
        SIB_TRY(sib_load_linear(l, &m->ple_proj, wide, c->hidden, err, "%s.per_layer_model_projection", m->root));
        SIB_TRY(sib_load_vector(l, &m->ple_norm, c->ple, 1, err, "%s.per_layer_projection_norm.weight", m->root));
    }
    for (int i = 0; i < c->n_layers; i++) {
        SIB_TRY(sib_gemma_layer_load(&m->stack, i, m->root, l, err));
        if (sib_has(l, "%s.layers.%d.layer_scalar", m->root, i))
            SIB_TRY(sib_load_host(l, &m->stack.layers[i].scalar, 1, err, "%s.layers.%d.layer_scalar", m->root, i));
    }
    return SIB_OK;
}
