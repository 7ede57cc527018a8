/* layers/gemma_layer.c - see gemma_layer.h. */
#include "layers/gemma_layer.h"

#include <math.h>
#include <stdlib.h>

sib_status sib_gemma_rope_init(sib_gemma *g, int kind, int head_dim, bool proportional, double theta, double partial,
                               double factor, sib_loader *l, sib_err *err)
{
    int n_pairs = proportional ? (int)(partial * head_dim / 2) : head_dim / 2;
    if (n_pairs < 1 || n_pairs > head_dim / 2)
        return sib_fail(err, SIB_EFORMAT, "config.json: rope_parameters rotate %d of %d pairs", n_pairs, head_dim / 2);
    float *f = malloc((size_t)n_pairs * sizeof *f);
    if (!f) return sib_nomem(err, "rope frequencies");
    for (int i = 0; i < n_pairs; i++) f[i] = (float)(pow(theta, -2.0 * i / head_dim) / factor);
    g->rope[kind] = (sib_rope){.n_pairs = n_pairs, .distance = head_dim / 2};
    sib_status s = sib_load_values(l, &g->inv_freq[kind], f, n_pairs, err);
    free(f);
    return s;
}

static sib_status load_experts(sib_gemma *g, sib_gemma_layer *w, int i, const char *root, sib_loader *l, sib_err *err)
{
    int e = g->n_experts, h = g->hidden, f = g->moe_ffn;
    SIB_TRY(sib_load_linear(l, &w->router, e, h, err, "%s.layers.%d.router.proj", root, i));
    SIB_TRY(sib_load_vector(l, &w->router_norm, h, 1.0f / sqrtf((float)h), err, "%s.layers.%d.router.scale", root, i));
    SIB_TRY(sib_load_vector(l, &w->per_expert_scale, e, 1, err, "%s.layers.%d.router.per_expert_scale", root, i));
    SIB_TRY(sib_load_vector(l, &w->dense_post_norm, h, 1, err, "%s.layers.%d.post_feedforward_layernorm_1.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->moe_post_norm, h, 1, err, "%s.layers.%d.post_feedforward_layernorm_2.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->moe_pre_norm, h, 1, err, "%s.layers.%d.pre_feedforward_layernorm_2.weight", root, i));

    /* Split MLX experts under one of two names, or fused ones (gate rows first), plain or quantized. */
    static const char *const split[] = {"switch_glu", "switch_mlp"};
    for (size_t n = 0; n < SIB_COUNT(split); n++) {
        if (!sib_has(l, "%s.layers.%d.experts.%s.down_proj.weight", root, i, split[n])) continue;
        SIB_TRY(sib_load_experts(l, &w->e_gate, e, f, h, err, "%s.layers.%d.experts.%s.gate_proj", root, i, split[n]));
        SIB_TRY(sib_load_experts(l, &w->e_up, e, f, h, err, "%s.layers.%d.experts.%s.up_proj", root, i, split[n]));
        return sib_load_experts(l, &w->e_down, e, h, f, err, "%s.layers.%d.experts.%s.down_proj", root, i, split[n]);
    }
    SIB_TRY(sib_load_expert_rows(l, &w->e_gate, e, 2 * f, 0, f, h, err, "%s.layers.%d.experts.gate_up_proj", root, i));
    SIB_TRY(sib_load_expert_rows(l, &w->e_up, e, 2 * f, f, f, h, err, "%s.layers.%d.experts.gate_up_proj", root, i));
    return sib_load_experts(l, &w->e_down, e, h, f, err, "%s.layers.%d.experts.down_proj", root, i);
}

sib_status sib_gemma_layer_load(sib_gemma *g, int i, const char *root, sib_loader *l, sib_err *err)
{
    sib_gemma_layer *w = &g->layers[i];
    int h = g->hidden, nd = g->n_heads * w->head_dim, kd = w->n_kv_heads * w->head_dim;
    SIB_TRY(sib_load_vector(l, &w->in_norm, h, 1, err, "%s.layers.%d.input_layernorm.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->post_attn_norm, h, 1, err, "%s.layers.%d.post_attention_layernorm.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->pre_ffn_norm, h, 1, err, "%s.layers.%d.pre_feedforward_layernorm.weight", root, i));
    SIB_TRY(sib_load_vector(l, &w->post_ffn_norm, h, 1, err, "%s.layers.%d.post_feedforward_layernorm.weight", root, i));
    SIB_TRY(sib_load_linear(l, &w->q, nd, h, err, "%s.layers.%d.self_attn.q_proj", root, i));
    SIB_TRY(sib_load_vector(l, &w->q_norm, w->head_dim, 1, err, "%s.layers.%d.self_attn.q_norm.weight", root, i));
    if (!w->shared) {
        SIB_TRY(sib_load_linear(l, &w->k, kd, h, err, "%s.layers.%d.self_attn.k_proj", root, i));
        SIB_TRY(sib_load_vector(l, &w->k_norm, w->head_dim, 1, err, "%s.layers.%d.self_attn.k_norm.weight", root, i));
        if (!w->k_is_v) SIB_TRY(sib_load_linear(l, &w->v, kd, h, err, "%s.layers.%d.self_attn.v_proj", root, i));
    }
    SIB_TRY(sib_load_linear(l, &w->o, h, nd, err, "%s.layers.%d.self_attn.o_proj", root, i));
    SIB_TRY(sib_load_linear(l, &w->gate, w->ffn, h, err, "%s.layers.%d.mlp.gate_proj", root, i));
    SIB_TRY(sib_load_linear(l, &w->up, w->ffn, h, err, "%s.layers.%d.mlp.up_proj", root, i));
    SIB_TRY(sib_load_linear(l, &w->down, h, w->ffn, err, "%s.layers.%d.mlp.down_proj", root, i));
    if (g->n_experts > 0) SIB_TRY(load_experts(g, w, i, root, l, err));
    if (g->ple > 0) {
        SIB_TRY(sib_load_linear(l, &w->ple_gate, g->ple, h, err, "%s.layers.%d.per_layer_input_gate", root, i));
        SIB_TRY(sib_load_linear(l, &w->ple_proj, h, g->ple, err, "%s.layers.%d.per_layer_projection", root, i));
        SIB_TRY(sib_load_vector(l, &w->ple_norm, h, 1, err, "%s.layers.%d.post_per_layer_input_norm.weight", root, i));
    }
    return SIB_OK;
}

static void attention(const sib_gemma *g, const sib_gemma_layer *w, const sib_step *st, float *x, const sib_gemma_rows *r)
{
    const sib_ops *op = st->dev->ops;
    int kind = w->full ? SIB_FULL : SIB_SLIDING, d = w->head_dim, nd = g->n_heads * d, kd = w->n_kv_heads * d;
    size_t mark = st->arena->top;
    float *q = r->keys_only ? NULL : SIB_PUSH(st->arena, float, (size_t)r->n * nd);
    float *a = r->keys_only ? NULL : SIB_PUSH(st->arena, float, (size_t)r->n * nd);
    sib_kv_geom geom = {w->n_kv_heads, d, d};
    for (int i = 0; i < r->n_spans; i++) r->spans[i].kv = sib_kv_view_of(r->seqs[i], w->kv_layer);

    if (w->shared) {
        op->linear(st->dev, 1, &q, (const sib_matrix *const[]){w->q.w}, x, r->n);
    } else {
        float *k = SIB_PUSH(st->arena, float, (size_t)r->n * kd), *v = SIB_PUSH(st->arena, float, (size_t)r->n * kd);
        int skip = r->keys_only ? 1 : 0;
        op->linear(st->dev, (w->k_is_v ? 2 : 3) - skip, (float *const[]){q, k, v} + skip,
                   (const sib_matrix *const[]){w->q.w, w->k.w, w->v.w} + skip, x, r->n);
        /* v is the raw projection: copied before k is normed and rotated (gemma4.md 2.5). */
        if (w->k_is_v) op->copy_rows(st->dev, v, kd, k, kd, r->n, kd);
        op->head_norm_rope(st->dev, k, r->n, w->n_kv_heads, d, kd, w->k_norm, g->eps, &g->rope[kind], r->cs[kind]);
        op->head_norm_rope(st->dev, v, r->n, w->n_kv_heads, d, kd, NULL, g->eps, &g->rope[kind], NULL);
        op->kv_append(st->dev, &geom, r->spans, r->n_spans, k, v);
    }
    if (r->keys_only) {
        st->arena->top = mark;
        return;
    }
    op->head_norm_rope(st->dev, q, r->n, g->n_heads, d, nd, w->q_norm, g->eps, &g->rope[kind], r->cs[kind]);
    sib_attend at = {.spans = r->spans, .n_spans = r->n_spans, .n_rows = r->n, .geom = geom, .n_heads = g->n_heads,
                     .scale = 1.0f, .lo = r->lo[kind], .hi = r->hi[kind]};
    op->attend(st->dev, a, q, &at);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->o.w}, a, r->n);
    st->arena->top = mark;
}

/* x = dense MLP of x; with experts: norm(dense) + norm(experts(norm(r))), r = the residual stream. */
static void feed_forward(const sib_gemma *g, const sib_gemma_layer *w, const sib_step *st, float *x, const float *h, int rows)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top;
    float *f = SIB_PUSH(st->arena, float, (size_t)rows * w->ffn);
    op->linear_glu(st->dev, f, w->gate.w, w->up.w, g->act, x, rows);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->down.w}, f, rows);
    if (g->n_experts > 0) {
        float *r = SIB_PUSH(st->arena, float, (size_t)rows * g->hidden), *y = SIB_PUSH(st->arena, float, (size_t)rows * g->hidden);
        float *scores = SIB_PUSH(st->arena, float, (size_t)rows * g->n_experts);
        float *weight = SIB_PUSH(st->arena, float, (size_t)rows * g->top_k);
        int32_t *idx = SIB_PUSH(st->arena, int32_t, (size_t)rows * g->top_k);
        sib_moe moe = {w->e_gate.w, w->e_up.w, w->e_down.w, g->act, g->top_k};
        op->rms_norm(st->dev, r, h, w->router_norm, rows, g->hidden, g->eps);
        op->linear(st->dev, 1, &scores, (const sib_matrix *const[]){w->router.w}, r, rows);
        op->moe_route(st->dev, idx, weight, scores, w->per_expert_scale, rows, g->n_experts, g->top_k);
        op->rms_norm(st->dev, r, h, w->moe_pre_norm, rows, g->hidden, g->eps);
        op->moe(st->dev, y, &moe, r, idx, weight, rows);
        op->rms_norm(st->dev, x, x, w->dense_post_norm, rows, g->hidden, g->eps);
        op->rms_norm_add(st->dev, x, y, w->moe_post_norm, rows, g->hidden, g->eps, 1.0f);
    }
    st->arena->top = mark;
}

void sib_gemma_layer_forward(const sib_gemma *g, int i, const sib_step *st, float *h, const sib_gemma_rows *r,
                             const float *ple_input, float scalar)
{
    const sib_ops *op = st->dev->ops;
    const sib_gemma_layer *w = &g->layers[i];
    int rows = r->n, hidden = g->hidden;
    bool ple = g->ple > 0 && ple_input;
    size_t mark = st->arena->top;
    float *x = SIB_PUSH(st->arena, float, (size_t)rows * hidden);

    op->rms_norm(st->dev, x, h, w->in_norm, rows, hidden, g->eps);
    attention(g, w, st, x, r);
    if (r->keys_only) {
        st->arena->top = mark;
        return;
    }
    sib_step_trace(st, "attn_out", i, x, rows, hidden);
    op->rms_norm_add(st->dev, h, x, w->post_attn_norm, rows, hidden, g->eps, 1.0f);

    op->rms_norm(st->dev, x, h, w->pre_ffn_norm, rows, hidden, g->eps);
    feed_forward(g, w, st, x, h, rows);
    sib_step_trace(st, "mlp_out", i, x, rows, hidden);
    op->rms_norm_add(st->dev, h, x, w->post_ffn_norm, rows, hidden, g->eps, ple ? 1.0f : scalar);

    if (ple) {
        float *p = SIB_PUSH(st->arena, float, (size_t)rows * g->ple);
        op->linear(st->dev, 1, &p, (const sib_matrix *const[]){w->ple_gate.w}, h, rows);
        op->glu(st->dev, p, p, ple_input, g->act, (int64_t)rows * g->ple);
        op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->ple_proj.w}, p, rows);
        op->rms_norm_add(st->dev, h, x, w->ple_norm, rows, hidden, g->eps, scalar);
    }
    st->arena->top = mark;
}
