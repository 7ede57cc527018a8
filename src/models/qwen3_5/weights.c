/* models/qwen3_5/weights.c - finds out in which of its namings a checkpoint is stored and takes its tensors
 * (qwen3_5.md section 3). */
#include "models/qwen3_5/qwen3_5.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The text tensors' prefix, by presence: release, MLX, text-only export. */
static sib_status find_root(qwen3_5 *m, const sib_loader *l, sib_err *err)
{
    static const char *const roots[] = {"model.language_model", "language_model.model", "model"};
    for (size_t i = 0; i < SIB_COUNT(roots); i++)
        if (sib_has(l, "%s.embed_tokens.weight", roots[i])) {
            (void)snprintf(m->root, sizeof m->root, "%s", roots[i]);
            return SIB_OK;
        }
    return sib_fail(err, SIB_EFORMAT, "%s: no tensor is named *embed_tokens.weight", sib_checkpoint_dir(l->files));
}

/* Release files store norms zero-centred and conv1d as [channels, 1, taps]; MLX files store 1 + w and [channels, taps, 1].
 * The convolution's shape alone tells which: mtp tensors or magnitudes say nothing (section 3, "Sanitisation rule"). */
static void find_norm_rule(qwen3_5 *m, const sib_loader *l)
{
    m->norm_add = 0.0f;
    for (int i = 0; i < m->cfg.n_layers; i++) {
        char name[160];
        if (m->layers[i].full) continue;
        (void)snprintf(name, sizeof name, "%s.layers.%d.linear_attn.conv1d.weight", m->root, i);
        const sib_tensor_info *t = sib_checkpoint_find(l->files, name);
        if (t && t->rank == 3 && t->shape[2] != 1) m->norm_add = 1.0f;
    }
}

static sib_status load_conv(const qwen3_5 *m, qwen3_5_layer *w, const char *layer, sib_loader *l, sib_err *err)
{
    int taps = w->delta.taps, channels = sib_delta_conv_dim(&w->delta);
    size_t n = (size_t)taps * (size_t)channels;
    char name[160];
    (void)snprintf(name, sizeof name, "%s.linear_attn.conv1d.weight", layer);
    const int64_t raw[3] = {channels, 1, taps}, mlx[3] = {channels, taps, 1};
    float *file = malloc(n * sizeof *file), *by_tap = malloc(n * sizeof *by_tap);
    sib_status s = file && by_tap ? sib_tensor_of(l->files, name, 3, m->norm_add != 0.0f ? raw : mlx, file, err) : sib_nomem(err, name);
    if (s == SIB_OK) {
        for (int ch = 0; ch < channels; ch++)
            for (int t = 0; t < taps; t++) by_tap[(size_t)t * (size_t)channels + (size_t)ch] = file[(size_t)ch * (size_t)taps + (size_t)t];
        s = sib_load_values(l, &w->delta.conv, by_tap, (int64_t)n, err);
    }
    free(file);
    free(by_tap);
    return s;
}

static sib_status load_delta(const qwen3_5 *m, qwen3_5_layer *w, const char *layer, sib_loader *l, sib_err *err)
{
    const qwen3_5_config *c = &m->cfg;
    int h = c->shape.hidden, hv = c->n_v_heads, wide = hv * c->v_dim;
    float a_neg[512]; /* n_v_heads <= 512 */
    w->delta = (sib_delta){.n_k_heads = c->n_k_heads, .n_v_heads = hv, .k_dim = c->k_dim, .v_dim = c->v_dim, .taps = c->taps, .eps = (float)c->shape.eps};
    SIB_TRY(sib_load_linear(l, &w->qkv, sib_delta_conv_dim(&w->delta), h, err, "%s.linear_attn.in_proj_qkv", layer));
    SIB_TRY(sib_load_linear(l, &w->z, wide, h, err, "%s.linear_attn.in_proj_z", layer));
    SIB_TRY(sib_load_linear(l, &w->b, hv, h, err, "%s.linear_attn.in_proj_b", layer));
    SIB_TRY(sib_load_linear(l, &w->a, hv, h, err, "%s.linear_attn.in_proj_a", layer));
    SIB_TRY(load_conv(m, w, layer, l, err));
    SIB_TRY(sib_load_host(l, a_neg, hv, err, "%s.linear_attn.A_log", layer));
    for (int i = 0; i < hv; i++) a_neg[i] = -expf(a_neg[i]);
    SIB_TRY(sib_load_values(l, &w->delta.a_neg, a_neg, hv, err));
    SIB_TRY(sib_load_vector(l, &w->delta.dt_bias, hv, 1, err, "%s.linear_attn.dt_bias", layer));
    SIB_TRY(sib_load_vector(l, &w->delta.norm, c->v_dim, 1, err, "%s.linear_attn.norm.weight", layer));
    return sib_load_linear(l, &w->out, h, wide, err, "%s.linear_attn.out_proj", layer);
}

static sib_status load_layer(qwen3_5 *m, int i, sib_loader *l, sib_err *err)
{
    qwen3_5_layer *w = &m->layers[i];
    int h = m->cfg.shape.hidden;
    char layer[96];
    (void)snprintf(layer, sizeof layer, "%s.layers.%d", m->root, i);
    SIB_TRY(sib_load_norm(l, &w->in_norm, h, m->norm_add, err, "%s.input_layernorm.weight", layer));
    SIB_TRY(sib_load_norm(l, &w->post_norm, h, m->norm_add, err, "%s.post_attention_layernorm.weight", layer));
    if (w->full)
        SIB_TRY(sib_qwen_attention_load(&m->cfg.shape, &w->attention, layer, m->norm_add, l, err));
    else
        SIB_TRY(load_delta(m, w, layer, l, err));
    return sib_qwen_ffn_load(&m->cfg.shape, &w->ffn, layer, l, err);
}

sib_status qwen3_5_weights_load(qwen3_5 *m, sib_loader *l, sib_err *err)
{
    const qwen3_5_config *c = &m->cfg;
    SIB_TRY(find_root(m, l, err));
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    if (!m->layers) return sib_nomem(err, "layers");
    for (int i = 0; i < c->n_layers; i++) {
        m->layers[i].full = c->full[i];
        m->layers[i].index = c->full[i] ? m->n_full++ : m->n_linear++;
    }
    find_norm_rule(m, l);
    SIB_TRY(sib_qwen_rope_load(&m->cfg.shape, l, err));
    SIB_TRY((c->shape.tied ? sib_load_linear : sib_load_table)(l, &m->embed, c->shape.n_vocab, c->shape.hidden, err, "%s.embed_tokens", m->root));
    SIB_TRY(sib_load_norm(l, &m->final_norm, c->shape.hidden, m->norm_add, err, "%s.norm.weight", m->root));
    if (!c->shape.tied) {
        const char *head = sib_has(l, "language_model.lm_head.weight") ? "language_model.lm_head" : "lm_head";
        SIB_TRY(sib_load_linear(l, &m->lm_head, c->shape.n_vocab, c->shape.hidden, err, "%s", head));
    }
    for (int i = 0; i < c->n_layers; i++) SIB_TRY(load_layer(m, i, l, err));
    sib_checkpoint_ignore(l->files, "*lm_head.*", "the head is tied");
    sib_checkpoint_ignore(l->files, "model.visual.*", "text only");
    sib_checkpoint_ignore(l->files, "vision_tower.*", "text only");
    sib_checkpoint_ignore(l->files, "mtp.*", "the mtp companion's");
    sib_checkpoint_ignore(l->files, "language_model.mtp.*", "the mtp companion's");
    return SIB_OK;
}
