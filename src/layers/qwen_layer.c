/* layers/qwen_layer.c - see qwen_layer.h. */
#include "layers/qwen_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config ------------------------------------------------------------------------------- */

static sib_status read_int(const json_t *t, const char *where, const char *key, int64_t lo, int64_t hi, bool must, int *out, sib_err *err)
{
    int64_t v = *out;
    if (must && !sib_json_get(t, key)) return sib_fail(err, SIB_EFORMAT, "%s: key \"%s\" is missing", where, key);
    SIB_TRY(sib_json_int(t, where, key, lo, hi, &v, err));
    *out = (int)v;
    return SIB_OK;
}

/* The factor may stand in rope_parameters or beside it; theta has no default that sources agree on (section 1). */
static sib_status read_rope(sib_qwen_shape *c, const json_t *t, const char *where, sib_err *err)
{
    const json_t *p = sib_json_get(t, "rope_parameters");
    if (!p) p = sib_json_get(t, "rope_scaling");
    const char *type = "default";
    double partial = 0.25;
    c->rope_theta = 0;
    SIB_TRY(sib_json_num(t, where, "partial_rotary_factor", 1e-3, 1.0, &partial, err));
    SIB_TRY(sib_json_num(t, where, "rope_theta", 1.0, 1e12, &c->rope_theta, err));
    if (p) {
        SIB_TRY(sib_json_str(p, where, "rope_type", &type, err));
        SIB_TRY(sib_json_num(p, where, "partial_rotary_factor", 1e-3, 1.0, &partial, err));
        SIB_TRY(sib_json_num(p, where, "rope_theta", 1.0, 1e12, &c->rope_theta, err));
    }
    if (strcmp(type, "default")) return sib_fail(err, SIB_EUNSUPPORTED, "%s: rope_type \"%.64s\" is not supported", where, type);
    if (c->rope_theta == 0) return sib_fail(err, SIB_EFORMAT, "%s: key \"rope_theta\" is missing", where);
    int rotated = (int)(c->head_dim * partial);
    if (rotated < 2 || rotated % 2) return sib_fail(err, SIB_EFORMAT, "%s: partial_rotary_factor %g rotates %d of %d dimensions", where, partial, rotated, c->head_dim);
    c->rope = (sib_rope){.n_pairs = rotated / 2, .distance = rotated / 2};
    return SIB_OK;
}

static sib_status read_experts(sib_qwen_shape *c, const json_t *t, const char *where, sib_err *err)
{
    const char *type = "";
    SIB_TRY(sib_json_str(t, where, "model_type", &type, err));
    if (strstr(type, "moe")) c->n_experts = 256;
    SIB_TRY(read_int(t, where, "num_experts", 0, 4096, false, &c->n_experts, err));
    if (c->n_experts == 0) return read_int(t, where, "intermediate_size", 1, 1 << 20, true, &c->ffn, err);
    c->top_k = 8;
    c->moe_ffn = c->shared_ffn = 512;
    SIB_TRY(read_int(t, where, "num_experts_per_tok", 1, c->n_experts, false, &c->top_k, err));
    SIB_TRY(read_int(t, where, "moe_intermediate_size", 1, 1 << 20, false, &c->moe_ffn, err));
    SIB_TRY(read_int(t, where, "shared_expert_intermediate_size", 1, 1 << 20, false, &c->shared_ffn, err));
    if (c->top_k > c->n_experts) return sib_fail(err, SIB_EFORMAT, "%s: num_experts_per_tok %d of %d experts cannot be", where, c->top_k, c->n_experts);
    return SIB_OK;
}

sib_status sib_qwen_shape_read(sib_qwen_shape *c, const json_t *t, const json_t *root, const char *where, sib_err *err)
{
    const char *act = "silu";
    bool bias = false;
    *c = (sib_qwen_shape){.n_vocab = 248320, .head_dim = 256, .max_positions = 262144, .eps = 1e-6};
    SIB_TRY(read_int(t, where, "hidden_size", 1, 65536, true, &c->hidden, err));
    SIB_TRY(read_int(t, where, "num_attention_heads", 1, 512, true, &c->n_heads, err));
    SIB_TRY(read_int(t, where, "num_key_value_heads", 1, 512, true, &c->n_kv_heads, err));
    SIB_TRY(read_int(t, where, "head_dim", 8, 512, false, &c->head_dim, err));
    SIB_TRY(read_int(t, where, "vocab_size", 1, 1 << 22, false, &c->n_vocab, err));
    SIB_TRY(read_int(t, where, "max_position_embeddings", 1, 1 << 24, false, &c->max_positions, err));
    SIB_TRY(sib_json_num(t, where, "rms_norm_eps", 0, 1, &c->eps, err));
    SIB_TRY(sib_json_str(t, where, "hidden_act", &act, err));
    SIB_TRY(sib_json_bool(t, where, "attention_bias", &bias, err));
    /* Both levels carry the key in some files; the text config's own wins (section 1). */
    SIB_TRY(sib_json_bool(root, where, "tie_word_embeddings", &c->tied, err));
    SIB_TRY(sib_json_bool(t, where, "tie_word_embeddings", &c->tied, err));
    if (strcmp(act, "silu")) return sib_fail(err, SIB_EUNSUPPORTED, "%s: hidden_act \"%.64s\" is not supported", where, act);
    if (bias) return sib_fail(err, SIB_EUNSUPPORTED, "%s: attention_bias true is not supported", where);
    if (c->n_heads % c->n_kv_heads)
        return sib_fail(err, SIB_EFORMAT, "%s: num_attention_heads %d is not a multiple of num_key_value_heads %d", where, c->n_heads, c->n_kv_heads);
    if (c->head_dim % 8) return sib_fail(err, SIB_EUNSUPPORTED, "%s: head_dim %d is not a multiple of 8", where, c->head_dim);
    SIB_TRY(read_experts(c, t, where, err));
    return read_rope(c, t, where, err);
}

sib_status sib_qwen_rope_load(sib_qwen_shape *c, sib_loader *l, sib_err *err)
{
    float f[256]; /* head_dim <= 512 */
    for (int i = 0; i < c->rope.n_pairs; i++) f[i] = (float)pow(c->rope_theta, -(double)i / c->rope.n_pairs);
    return sib_load_values(l, &c->inv_freq, f, c->rope.n_pairs, err);
}

/* ---- weights ------------------------------------------------------------------------------ */

sib_status sib_qwen_attention_load(const sib_qwen_shape *c, sib_qwen_attention *w, const char *layer, float norm_add, sib_loader *l, sib_err *err)
{
    int h = c->hidden, nd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    SIB_TRY(sib_load_linear(l, &w->q, 2 * nd, h, err, "%s.self_attn.q_proj", layer));
    SIB_TRY(sib_load_linear(l, &w->k, kd, h, err, "%s.self_attn.k_proj", layer));
    SIB_TRY(sib_load_linear(l, &w->v, kd, h, err, "%s.self_attn.v_proj", layer));
    SIB_TRY(sib_load_linear(l, &w->o, h, nd, err, "%s.self_attn.o_proj", layer));
    SIB_TRY(sib_load_norm(l, &w->q_norm, c->head_dim, norm_add, err, "%s.self_attn.q_norm.weight", layer));
    return sib_load_norm(l, &w->k_norm, c->head_dim, norm_add, err, "%s.self_attn.k_norm.weight", layer);
}

/* Experts stacked and split (MLX), one module each (older exports), or stacked with gate and up fused (release). */
static sib_status load_experts(const sib_qwen_shape *c, sib_qwen_ffn *w, const char *layer, sib_loader *l, sib_err *err)
{
    int e = c->n_experts, h = c->hidden, f = c->moe_ffn;
    l->expert_share = (double)c->top_k / e;
    if (sib_has(l, "%s.mlp.switch_mlp.down_proj.weight", layer)) {
        SIB_TRY(sib_load_experts(l, &w->e_gate, e, f, h, err, "%s.mlp.switch_mlp.gate_proj", layer));
        SIB_TRY(sib_load_experts(l, &w->e_up, e, f, h, err, "%s.mlp.switch_mlp.up_proj", layer));
        return sib_load_experts(l, &w->e_down, e, h, f, err, "%s.mlp.switch_mlp.down_proj", layer);
    }
    if (sib_has(l, "%s.mlp.experts.0.down_proj.weight", layer)) {
        SIB_TRY(sib_load_expert_list(l, &w->e_gate, e, f, h, "gate_proj", err, "%s.mlp.experts", layer));
        SIB_TRY(sib_load_expert_list(l, &w->e_up, e, f, h, "up_proj", err, "%s.mlp.experts", layer));
        return sib_load_expert_list(l, &w->e_down, e, h, f, "down_proj", err, "%s.mlp.experts", layer);
    }
    SIB_TRY(sib_load_expert_rows(l, &w->e_gate, e, 2 * f, 0, f, h, err, "%s.mlp.experts.gate_up_proj", layer));
    SIB_TRY(sib_load_expert_rows(l, &w->e_up, e, 2 * f, f, f, h, err, "%s.mlp.experts.gate_up_proj", layer));
    return sib_load_experts(l, &w->e_down, e, h, f, err, "%s.mlp.experts.down_proj", layer);
}

sib_status sib_qwen_ffn_load(const sib_qwen_shape *c, sib_qwen_ffn *w, const char *layer, sib_loader *l, sib_err *err)
{
    int h = c->hidden, f = c->n_experts ? c->shared_ffn : c->ffn;
    const char *dense = c->n_experts ? "mlp.shared_expert" : "mlp";
    SIB_TRY(sib_load_linear(l, &w->gate, f, h, err, "%s.%s.gate_proj", layer, dense));
    SIB_TRY(sib_load_linear(l, &w->up, f, h, err, "%s.%s.up_proj", layer, dense));
    SIB_TRY(sib_load_linear(l, &w->down, h, f, err, "%s.%s.down_proj", layer, dense));
    if (c->n_experts == 0) return SIB_OK;
    SIB_TRY(sib_load_linear(l, &w->router, c->n_experts, h, err, "%s.mlp.gate", layer));
    SIB_TRY(sib_load_linear(l, &w->shared_gate, 1, h, err, "%s.mlp.shared_expert_gate", layer));
    return load_experts(c, w, layer, l, err);
}

/* ---- forward ------------------------------------------------------------------------------ */

static void trace(const sib_step *st, const char *prefix, const char *stage, int index, const float *values, int rows, int n)
{
    char name[64];
    if (!prefix || !st->trace || !st->trace->fn) return;
    (void)snprintf(name, sizeof name, "%s.%s", prefix, stage);
    sib_step_trace(st, name, index, values, rows, n);
}

void sib_qwen_attend(const sib_qwen_shape *c, const sib_qwen_attention *w, const sib_step *st, float *x, const sib_qwen_rows *r,
                     int kv_layer, const char *prefix, int index)
{
    const sib_ops *op = st->dev->ops;
    int rows = r->n, d = c->head_dim, nd = c->n_heads * d, kd = c->n_kv_heads * d;
    float eps = (float)c->eps;
    size_t mark = st->arena->top;
    float *qg = SIB_PUSH(st->arena, float, (size_t)rows * 2 * nd), *q = SIB_PUSH(st->arena, float, (size_t)rows * nd);
    float *gate = SIB_PUSH(st->arena, float, (size_t)rows * nd);
    float *k = SIB_PUSH(st->arena, float, (size_t)rows * kd), *v = SIB_PUSH(st->arena, float, (size_t)rows * kd);
    sib_kv_geom geom = {c->n_kv_heads, d, d};
    for (int i = 0; i < r->n_spans; i++) r->spans[i].kv = sib_kv_view_of(r->seqs[i], kv_layer);

    op->linear(st->dev, 3, (float *const[]){qg, k, v}, (const sib_matrix *const[]){w->q.w, w->k.w, w->v.w}, x, rows);
    op->copy_rows(st->dev, q, d, qg, 2 * d, rows * c->n_heads, d);
    op->copy_rows(st->dev, gate, d, qg + d, 2 * d, rows * c->n_heads, d);
    op->head_norm_rope(st->dev, q, rows, c->n_heads, d, nd, w->q_norm, eps, &c->rope, r->cs);
    op->head_norm_rope(st->dev, k, rows, c->n_kv_heads, d, kd, w->k_norm, eps, &c->rope, r->cs);
    trace(st, prefix, "query", index, q, rows, nd);
    op->kv_append(st->dev, &geom, r->spans, r->n_spans, k, v);
    sib_attend at = {.spans = r->spans, .n_spans = r->n_spans, .n_rows = rows, .geom = geom, .n_heads = c->n_heads,
                     .scale = 1.0f / sqrtf((float)d), .lo = r->lo, .hi = r->hi};
    float *a = qg; /* its halves have been copied */
    op->attend(st->dev, a, q, &at);
    op->glu(st->dev, a, gate, a, SIB_ACT_SIGMOID, (int64_t)rows * nd);
    trace(st, prefix, "attention_gated", index, a, rows, nd);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->o.w}, a, rows);
    st->arena->top = mark;
}

void sib_qwen_append(const sib_qwen_shape *c, const sib_qwen_attention *w, const sib_step *st, const float *x, const sib_qwen_rows *r,
                     int kv_layer)
{
    const sib_ops *op = st->dev->ops;
    int d = c->head_dim, kd = c->n_kv_heads * d;
    size_t mark = st->arena->top;
    float *k = SIB_PUSH(st->arena, float, (size_t)r->n * kd), *v = SIB_PUSH(st->arena, float, (size_t)r->n * kd);
    sib_kv_geom geom = {c->n_kv_heads, d, d};
    for (int i = 0; i < r->n_spans; i++) r->spans[i].kv = sib_kv_view_of(r->seqs[i], kv_layer);
    op->linear(st->dev, 2, (float *const[]){k, v}, (const sib_matrix *const[]){w->k.w, w->v.w}, x, r->n);
    op->head_norm_rope(st->dev, k, r->n, c->n_kv_heads, d, kd, w->k_norm, (float)c->eps, &c->rope, r->cs);
    op->kv_append(st->dev, &geom, r->spans, r->n_spans, k, v);
    st->arena->top = mark;
}

void sib_qwen_feed(const sib_qwen_shape *c, const sib_qwen_ffn *w, const sib_step *st, float *x, int rows)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top;
    float *f = SIB_PUSH(st->arena, float, (size_t)rows * (c->n_experts ? c->shared_ffn : c->ffn));
    op->linear_glu(st->dev, f, w->gate.w, w->up.w, SIB_ACT_SILU, x, rows);
    if (c->n_experts == 0) {
        op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->down.w}, f, rows);
        st->arena->top = mark;
        return;
    }
    float *shared = SIB_PUSH(st->arena, float, (size_t)rows * c->hidden), *y = SIB_PUSH(st->arena, float, (size_t)rows * c->hidden);
    float *scores = SIB_PUSH(st->arena, float, (size_t)rows * c->n_experts), *gate = SIB_PUSH(st->arena, float, (size_t)rows);
    float *weight = SIB_PUSH(st->arena, float, (size_t)rows * c->top_k);
    int32_t *idx = SIB_PUSH(st->arena, int32_t, (size_t)rows * c->top_k);
    sib_moe moe = {w->e_gate.w, w->e_up.w, w->e_down.w, SIB_ACT_SILU, c->top_k};
    op->linear(st->dev, 1, &shared, (const sib_matrix *const[]){w->down.w}, f, rows);
    op->linear(st->dev, 2, (float *const[]){scores, gate}, (const sib_matrix *const[]){w->router.w, w->shared_gate.w}, x, rows);
    op->moe_route(st->dev, idx, weight, scores, NULL, rows, c->n_experts, c->top_k);
    op->moe(st->dev, y, &moe, x, idx, weight, rows);
    op->add_gated(st->dev, y, shared, gate, rows, c->hidden);
    op->copy_rows(st->dev, x, c->hidden, y, c->hidden, rows, c->hidden);
    st->arena->top = mark;
}
