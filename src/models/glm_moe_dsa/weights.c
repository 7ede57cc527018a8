/* models/glm_moe_dsa/weights.c - takes the tensors of GLM-5.2, Hugging Face or MLX names (glm_moe_dsa.md section 6). */
#include "models/glm_moe_dsa/glm.h"

#include "artifacts/quant.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sib_status find_root(glm *m, sib_loader *l, sib_err *err)
{
    static const char *const roots[] = {"model", "language_model.model", "model.language_model"};
    for (size_t i = 0; i < SIB_COUNT(roots); i++)
        if (sib_has(l, "%s.embed_tokens.weight", roots[i])) {
            (void)snprintf(m->root, sizeof m->root, "%s", roots[i]);
            return SIB_OK;
        }
    return sib_fail(err, SIB_EFORMAT, "%s: no tensor is named *embed_tokens.weight", sib_checkpoint_dir(l->files));
}

/* Wk of every head transposed, so that the absorbed query is a product with it. A plain matrix keeps its dtype; a quantized
 * one is scaled along the other axis and becomes float32 of the same values. The source's rows are heads x (nope + v). */
static sib_status transpose_keys(const glm_config *c, sib_loader *l, const sib_matrix_src *kv, sib_matrix_src *out, sib_err *err)
{
    bool bf16 = kv->storage == SIB_PLAIN && kv->dtype == SIB_BF16;
    size_t nope = (size_t)c->nope, latent = (size_t)c->latent, each = bf16 ? 2 : 4;
    *out = (sib_matrix_src){.name = kv->name, .storage = SIB_PLAIN, .out = c->latent, .in = c->nope, .n_experts = c->n_heads,
                            .dtype = bf16 ? SIB_BF16 : SIB_F32};
    if (sib_device_is_nothing(l->dev)) return SIB_OK;
    char *data = sib_checkpoint_alloc(l->files, (size_t)c->n_heads * nope * latent * each);
    float *rows = malloc(nope * latent * sizeof *rows);
    if (!data || !rows) {
        free(rows);
        return sib_nomem(err, kv->name);
    }
    for (int h = 0; h < c->n_heads; h++) {
        char *to = data + (size_t)h * nope * latent * each;
        sib_matrix_src_rows(rows, kv, h, 0, c->nope);
        for (size_t i = 0; i < latent; i++)
            for (size_t d = 0; d < nope; d++) {
                uint16_t b = sib_bf16_of_f32(rows[d * latent + i]);
                memcpy(to + (i * nope + d) * each, bf16 ? (void *)&b : (void *)&rows[d * latent + i], each);
            }
    }
    free(rows);
    out->data = data;
    return SIB_OK;
}

/* A stack of one matrix for each head, under an MLX name. */
static sib_status load_heads(const glm_config *c, sib_loader *l, sib_linear *out, const char *attn, const char *name, int n_out, int n_in, sib_err *err)
{
    char module[256];
    sib_matrix_src src;
    (void)snprintf(module, sizeof module, "%s.%s", attn, name);
    SIB_TRY(sib_matrix_of(l->files, module, n_out, n_in, c->n_heads, &src, err));
    return sib_load_matrix(l, out, &src, 1, err);
}

static sib_status load_kv_b(const glm_config *c, glm_layer *w, sib_loader *l, const char *attn, sib_err *err)
{
    char name[256];
    if (sib_has(l, "%s.embed_q.weight", attn)) { /* absorbed by the converter */
        SIB_TRY(load_heads(c, l, &w->k_up, attn, "embed_q", c->latent, c->nope, err));
        return load_heads(c, l, &w->v_up, attn, "unembed_out", c->v_dim, c->latent, err);
    }
    sib_matrix_src kv, keys, values;
    (void)snprintf(name, sizeof name, "%s.kv_b_proj", attn);
    SIB_TRY(sib_matrix_of(l->files, name, (int64_t)c->n_heads * (c->nope + c->v_dim), c->latent, 0, &kv, err));
    kv.n_experts = c->n_heads;
    kv.out = c->nope + c->v_dim;
    SIB_TRY(transpose_keys(c, l, &kv, &keys, err));
    SIB_TRY(sib_load_matrix(l, &w->k_up, &keys, 1, err));
    values = sib_matrix_src_slice(&kv, c->nope, c->v_dim);
    return sib_load_matrix(l, &w->v_up, &values, 1, err);
}

/* Latent rows and rope rows of one matrix, so that each result lies by itself. */
static sib_status load_kv_a(const glm_config *c, glm_layer *w, sib_loader *l, const char *attn, sib_err *err)
{
    char name[256];
    sib_matrix_src all, part;
    (void)snprintf(name, sizeof name, "%s.kv_a_proj_with_mqa", attn);
    SIB_TRY(sib_matrix_of(l->files, name, c->latent + c->rope, c->hidden, 0, &all, err));
    part = sib_matrix_src_slice(&all, 0, c->latent);
    SIB_TRY(sib_load_matrix(l, &w->kv_a, &part, 1, err));
    part = sib_matrix_src_slice(&all, c->latent, c->rope);
    return sib_load_matrix(l, &w->k_rope, &part, 1, err);
}

static sib_status load_attention(const glm_config *c, glm_layer *w, sib_loader *l, const char *attn, sib_err *err)
{
    SIB_TRY(sib_load_linear(l, &w->q_a, c->q_lora, c->hidden, err, "%s.q_a_proj", attn));
    SIB_TRY(sib_load_vector(l, &w->q_norm, c->q_lora, 1, err, "%s.q_a_layernorm.weight", attn));
    SIB_TRY(sib_load_linear(l, &w->q_b, c->n_heads * (c->nope + c->rope), c->q_lora, err, "%s.q_b_proj", attn));
    SIB_TRY(load_kv_a(c, w, l, attn, err));
    SIB_TRY(sib_load_vector(l, &w->kv_norm, c->latent, 1, err, "%s.kv_a_layernorm.weight", attn));
    SIB_TRY(load_kv_b(c, w, l, attn, err));
    SIB_TRY(sib_load_linear(l, &w->o, c->hidden, c->n_heads * c->v_dim, err, "%s.o_proj", attn));
    if (!w->full) return SIB_OK;
    SIB_TRY(sib_load_linear(l, &w->wq_b, c->index_heads * c->index_dim, c->q_lora, err, "%s.indexer.wq_b", attn));
    SIB_TRY(sib_load_linear(l, &w->wk, c->index_dim, c->hidden, err, "%s.indexer.wk", attn));
    SIB_TRY(sib_load_vector(l, &w->k_norm_w, c->index_dim, 1, err, "%s.indexer.k_norm.weight", attn));
    SIB_TRY(sib_load_vector(l, &w->k_norm_b, c->index_dim, 1, err, "%s.indexer.k_norm.bias", attn));
    return sib_load_linear(l, &w->weights, c->index_heads, c->hidden, err, "%s.indexer.weights_proj", attn);
}

static sib_status load_mlp(sib_loader *l, glm_layer *w, int ffn, int hidden, const char *name, sib_err *err)
{
    SIB_TRY(sib_load_linear(l, &w->gate, ffn, hidden, err, "%s.gate_proj", name));
    SIB_TRY(sib_load_linear(l, &w->up, ffn, hidden, err, "%s.up_proj", name));
    return sib_load_linear(l, &w->down, hidden, ffn, err, "%s.down_proj", name);
}

static sib_status load_experts(const glm_config *c, sib_loader *l, sib_linear *out, const char *mlp, const char *proj, int n_out, int n_in, sib_err *err)
{
    if (sib_has(l, "%s.switch_mlp.%s.weight", mlp, proj)) return sib_load_experts(l, out, c->n_experts, n_out, n_in, err, "%s.switch_mlp.%s", mlp, proj);
    return sib_load_expert_list(l, out, c->n_experts, n_out, n_in, proj, err, "%s.experts", mlp);
}

static sib_status load_moe(const glm_config *c, glm_layer *w, sib_loader *l, const char *mlp, sib_err *err)
{
    char shared[256];
    SIB_TRY(sib_load_linear(l, &w->router, c->n_experts, c->hidden, err, "%s.gate", mlp));
    SIB_TRY(sib_load_vector(l, &w->route_bias, c->n_experts, 1, err, "%s.gate.e_score_correction_bias", mlp));
    SIB_TRY(load_experts(c, l, &w->x_gate, mlp, "gate_proj", c->moe_ffn, c->hidden, err));
    SIB_TRY(load_experts(c, l, &w->x_up, mlp, "up_proj", c->moe_ffn, c->hidden, err));
    SIB_TRY(load_experts(c, l, &w->x_down, mlp, "down_proj", c->hidden, c->moe_ffn, err));
    if (c->n_shared == 0) return SIB_OK;
    (void)snprintf(shared, sizeof shared, "%s.shared_experts", mlp);
    return load_mlp(l, w, c->n_shared * c->moe_ffn, c->hidden, shared, err);
}

/* w->full and w->sparse say what the layer consists of. */
static sib_status load_layer(glm *m, glm_layer *w, int i, sib_loader *l, sib_err *err)
{
    const glm_config *c = &m->cfg;
    char attn[128], mlp[128];
    (void)snprintf(attn, sizeof attn, "%s.layers.%d.self_attn", m->root, i);
    (void)snprintf(mlp, sizeof mlp, "%s.layers.%d.mlp", m->root, i);
    SIB_TRY(sib_load_vector(l, &w->in_norm, c->hidden, 1, err, "%s.layers.%d.input_layernorm.weight", m->root, i));
    SIB_TRY(sib_load_vector(l, &w->post_norm, c->hidden, 1, err, "%s.layers.%d.post_attention_layernorm.weight", m->root, i));
    SIB_TRY(load_attention(c, w, l, attn, err));
    return w->sparse ? load_moe(c, w, l, mlp, err) : load_mlp(l, w, c->ffn, c->hidden, mlp, err);
}

/* The head of layer n_layers, wanted and complete: its marks are the tensors that only it has. */
static bool has_mtp(glm *m, sib_loader *l, sib_mtp_use wanted)
{
    static const char *const parts[] = {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", "input_layernorm.weight",
                                        "self_attn.q_a_proj.weight", "self_attn.o_proj.weight", "mlp.gate.weight"};
    int n = m->cfg.n_layers;
    size_t found = 0;
    if (wanted == SIB_MTP_NONE) return false;
    for (size_t i = 0; i < SIB_COUNT(parts); i++) found += sib_has(l, "%s.layers.%d.%s", m->root, n, parts[i]);
    if (found == 0) return false;
    if (m->cfg.n_mtp > 1) {
        sib_log(SIB_LOG_WARN, "native GLM-5.2 MTP requires exactly one next-token layer; got %d", m->cfg.n_mtp);
        return false;
    }
    if (found < SIB_COUNT(parts)) sib_log(SIB_LOG_WARN, "GLM-5.2 artifact does not contain a complete MTP row");
    return found == SIB_COUNT(parts);
}

static sib_status load_mtp(glm *m, sib_loader *l, sib_err *err)
{
    const glm_config *c = &m->cfg;
    glm_mtp *t = &m->mtp;
    int n = c->n_layers;
    t->layer = (glm_layer){.full = t->use == SIB_MTP_INDEXED, .sparse = true, .kv_layer = 0, .index_layer = t->use == SIB_MTP_INDEXED ? 1 : -1};
    SIB_TRY(sib_load_vector(l, &t->enorm, c->hidden, 1, err, "%s.layers.%d.enorm.weight", m->root, n));
    SIB_TRY(sib_load_vector(l, &t->hnorm, c->hidden, 1, err, "%s.layers.%d.hnorm.weight", m->root, n));
    SIB_TRY(sib_load_linear(l, &t->eh, c->hidden, 2 * c->hidden, err, "%s.layers.%d.eh_proj", m->root, n));
    SIB_TRY(sib_load_vector(l, &t->norm, c->hidden, 1, err, "%s.layers.%d.shared_head.norm.weight", m->root, n));
    /* GLM-5.2 has neither; GLM-4.7-Flash ships both. */
    if (sib_has(l, "%s.layers.%d.embed_tokens.weight", m->root, n)) SIB_TRY(sib_load_linear(l, &t->embed, c->n_vocab, c->hidden, err, "%s.layers.%d.embed_tokens", m->root, n));
    if (sib_has(l, "%s.layers.%d.shared_head.head.weight", m->root, n)) SIB_TRY(sib_load_linear(l, &t->head, c->n_vocab, c->hidden, err, "%s.layers.%d.shared_head.head", m->root, n));
    return load_layer(m, &t->layer, n, l, err);
}

static sib_status load_rope(glm *m, sib_loader *l, sib_err *err)
{
    const glm_config *c = &m->cfg;
    float freq[256];
    int pairs = c->rope / 2;
    if (pairs > (int)SIB_COUNT(freq)) return sib_fail(err, SIB_EUNSUPPORTED, "config.json: qk_rope_head_dim %d is more than %zu", c->rope, 2 * SIB_COUNT(freq));
    for (int i = 0; i < pairs; i++) freq[i] = (float)(1.0 / pow(c->theta, 2.0 * i / c->rope));
    int far = c->rope_interleave ? 0 : pairs, far_index = c->index_interleave ? 0 : pairs;
    m->rope_q = (sib_rope){pairs, far, c->nope};
    m->rope_k = (sib_rope){pairs, far, 0};
    m->rope_index = (sib_rope){pairs, far_index, 0}; /* the first values of an indexer head, not the last ones */
    return sib_load_values(l, &m->inv_freq, freq, pairs, err);
}

sib_status glm_weights_load(glm *m, sib_loader *l, sib_err *err)
{
    glm_config *c = &m->cfg;
    int caches = c->n_layers;
    char pattern[128];
    SIB_TRY(find_root(m, l, err));
    SIB_TRY(load_rope(m, l, err));
    l->expert_share = (double)c->top_k / c->n_experts;
    SIB_TRY((c->tied ? sib_load_linear : sib_load_table)(l, &m->embed, c->n_vocab, c->hidden, err, "%s.embed_tokens", m->root));
    m->layers = calloc((size_t)c->n_layers, sizeof *m->layers);
    if (!m->layers) return sib_nomem(err, "layers");
    for (int i = 0; i < c->n_layers; i++) {
        m->layers[i] = (glm_layer){.full = c->full[i], .sparse = c->sparse[i], .kv_layer = i, .index_layer = c->full[i] ? caches++ : -1};
        SIB_TRY(load_layer(m, &m->layers[i], i, l, err));
    }
    SIB_TRY(sib_load_vector(l, &m->final_norm, c->hidden, 1, err, "%s.norm.weight", m->root));
    if (!c->tied) {
        const char *head = sib_has(l, "lm_head.weight") ? "lm_head" : "language_model.lm_head";
        SIB_TRY(sib_load_linear(l, &m->lm_head, c->n_vocab, c->hidden, err, "%s", head));
    }
    m->model.facts.active_bytes = l->active_bytes; /* a plain token does not meet the draft head */
    m->model.facts.active_macs = l->active_macs;
    if (has_mtp(m, l, m->limits.mtp)) {
        m->mtp.use = m->limits.mtp;
        SIB_TRY(load_mtp(m, l, err));
    }
    (void)snprintf(pattern, sizeof pattern, "%s.layers.%d.*", m->root, c->n_layers);
    sib_checkpoint_ignore(l->files, pattern, "the draft head (MTP) was not asked for");
    sib_checkpoint_ignore(l->files, "*.self_attn.indexer.*", "indexer of a layer that shares another one's picks");
    return SIB_OK;
}
