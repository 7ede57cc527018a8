/* models/glm_moe_dsa/forward.c - one call over rows of several sequences (glm_moe_dsa.md sections 2 to 5).
 *
 *   ids -> embed -> layers -> norm -> head
 *
 *   layer   x = norm h;  qr = norm(q_a x);  q = rope(q_b qr);  c = norm(kv_a x);  r = rope(k_rope x)
 *           cache [c | r];  query of a head [k_up q_nope | q_rope];  o = attention, values c;  h += o_proj(v_up o)
 *           full layers: indexer keys into a cache of their own; rows that see more than index_topk
 *           positions choose that many, and so do the shared layers behind
 *           h += mlp(norm h), or experts + shared experts
 *
 * Attention is absorbed for every row, one row or a thousand, so that verification equals decoding bit for bit.
 *
 * Stage names for traces: hidden.0 (embedding), hidden.i (output of layer i-1; the last one after the
 * final norm), attn_out.i, mlp_out.i, logits. */
#include "models/glm_moe_dsa/glm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LORA_EPS 1e-6f /* of the norms inside attention, whatever rms_norm_eps is (glm_moe_dsa.md 3, 4) */

void glm_rows_begin(glm *m, const sib_step *st, glm_rows *r, int n_seqs, int ctx, bool select)
{
    bool planning = sib_arena_planning(st->arena);
    const int *n_rows = m->counts;
    int row = 0, longest = 0, top_k = m->cfg.index_topk;
    for (int s = 0; s < n_seqs; s++) {
        int base = planning ? 0 : sib_kv_length(m->seqs[s]);
        m->spans[s] = (sib_span){.row0 = row, .n_rows = n_rows[s], .pos0 = base};
        for (int i = 0; i < n_rows[s]; i++, row++) {
            m->pos[row] = base + i;
            m->lo[row] = 0;
            m->hi[row] = base + i + 1;
        }
        if (base + n_rows[s] > longest) longest = base + n_rows[s];
    }
    if (planning) longest = ctx;
    *r = (glm_rows){.n = row, .n_spans = planning ? 0 : n_seqs};
    r->cs = SIB_PUSH(st->arena, float, (size_t)row * 2 * (size_t)m->rope_k.n_pairs);
    st->dev->ops->rope_angles(st->dev, r->cs, m->inv_freq, m->rope_k.n_pairs, m->pos, row);
    if (!select || longest <= top_k) return;
    int slab = row < SIB_INDEX_ROWS ? row : SIB_INDEX_ROWS;
    r->stride = ((int64_t)longest + SIB_KV_PAGE - 1) / SIB_KV_PAGE * SIB_KV_PAGE;
    r->picks = SIB_PUSH(st->arena, int32_t, (size_t)row * (size_t)top_k);
    r->scores = SIB_PUSH(st->arena, float, (size_t)slab * (size_t)r->stride);
}

/* The call's spans over the pages of one cache layer. */
static const sib_span *spans_of(glm *m, const glm_rows *r, int layer)
{
    for (int s = 0; s < r->n_spans; s++) m->spans[s].kv = sib_kv_view_of(m->seqs[s], layer);
    return m->spans;
}

static void trace_stage(const sib_step *st, const char *prefix, const char *stage, int index, const float *x, int rows, int n)
{
    char name[48];
    if (!st->trace || !st->trace->fn) return;
    (void)snprintf(name, sizeof name, "%s%s", prefix, stage);
    sib_step_trace(st, name, index, x, rows, n);
}

/* Indexer keys into their cache, and the picks of rows that see more than index_topk positions. `key` and `weight` are
 * the projections of x; qr [rows][q_lora]. */
static void select_keys(glm *m, const sib_step *st, const glm_layer *w, const glm_rows *r, float *key, float *weight, const float *qr, bool kv_only)
{
    const sib_ops *op = st->dev->ops;
    const glm_config *c = &m->cfg;
    sib_kv_geom geom = {1, c->index_dim, 0};
    int wide = c->index_heads * c->index_dim;
    op->layer_norm(st->dev, key, key, w->k_norm_w, w->k_norm_b, r->n, c->index_dim, LORA_EPS);
    op->head_norm_rope(st->dev, key, r->n, 1, c->index_dim, c->index_dim, NULL, 0, &m->rope_index, r->cs);
    op->kv_append(st->dev, &geom, spans_of(m, r, w->index_layer), r->n_spans, key, key);
    if (!r->picks || kv_only) return;
    size_t mark = st->arena->top;
    float *q = SIB_PUSH(st->arena, float, (size_t)r->n * wide);
    op->linear(st->dev, 1, &q, (const sib_matrix *const[]){w->wq_b.w}, qr, r->n);
    op->head_norm_rope(st->dev, q, r->n, c->index_heads, c->index_dim, wide, NULL, 0, &m->rope_index, r->cs);
    op->scale(st->dev, weight, weight, 1.0f / sqrtf((float)c->index_heads), (int64_t)r->n * c->index_heads);
    sib_index x = {.spans = spans_of(m, r, w->index_layer), .n_spans = r->n_spans, .n_rows = r->n, .n_heads = c->index_heads, .dim = c->index_dim,
                   .scale = 1.0f / sqrtf((float)c->index_dim), .top_k = c->index_topk, .scores = r->scores, .stride = r->stride};
    op->index_select(st->dev, r->picks, q, weight, &x);
    st->arena->top = mark;
}

static void attention(glm *m, const sib_step *st, const glm_layer *w, float *out, const float *x, const glm_rows *r, bool kv_only)
{
    const sib_ops *op = st->dev->ops;
    const glm_config *c = &m->cfg;
    int heads = c->n_heads, qk = c->nope + c->rope, key = c->latent + c->rope;
    size_t n = (size_t)r->n, mark = st->arena->top;
    sib_kv_geom geom = {1, key, c->latent};
    float *qr = SIB_PUSH(st->arena, float, n * c->q_lora), *latent = SIB_PUSH(st->arena, float, n * c->latent);
    float *rope = SIB_PUSH(st->arena, float, n * c->rope), *k = SIB_PUSH(st->arena, float, n * key);
    float *index_key = SIB_PUSH(st->arena, float, n * c->index_dim), *index_weight = SIB_PUSH(st->arena, float, n * c->index_heads);
    float *const y[] = {qr, latent, rope, index_key, index_weight};
    const sib_matrix *const in[] = {w->q_a.w, w->kv_a.w, w->k_rope.w, w->wk.w, w->weights.w};
    op->linear(st->dev, w->full ? 5 : 3, y, in, x, r->n);
    op->rms_norm(st->dev, latent, latent, w->kv_norm, r->n, c->latent, LORA_EPS);
    op->head_norm_rope(st->dev, rope, r->n, 1, c->rope, c->rope, NULL, 0, &m->rope_k, r->cs);
    op->copy_rows(st->dev, k, key, latent, c->latent, r->n, c->latent);
    op->copy_rows(st->dev, k + c->latent, key, rope, c->rope, r->n, c->rope);
    op->kv_append(st->dev, &geom, spans_of(m, r, w->kv_layer), r->n_spans, k, latent);
    op->rms_norm(st->dev, qr, qr, w->q_norm, r->n, c->q_lora, LORA_EPS);
    if (w->full) select_keys(m, st, w, r, index_key, index_weight, qr, kv_only);
    if (!kv_only) {
        float *q = SIB_PUSH(st->arena, float, n * heads * qk), *qa = SIB_PUSH(st->arena, float, n * heads * key);
        float *ol = SIB_PUSH(st->arena, float, n * heads * c->latent), *o = SIB_PUSH(st->arena, float, n * heads * c->v_dim);
        op->linear(st->dev, 1, &q, (const sib_matrix *const[]){w->q_b.w}, qr, r->n);
        op->head_norm_rope(st->dev, q, r->n, heads, qk, (int64_t)heads * qk, NULL, 0, &m->rope_q, r->cs);
        op->linear_heads(st->dev, qa, key, w->k_up.w, q, qk, r->n);
        op->copy_rows(st->dev, qa + c->latent, key, q + c->nope, qk, r->n * heads, c->rope);
        sib_attend a = {.spans = spans_of(m, r, w->kv_layer), .n_spans = r->n_spans, .n_rows = r->n, .geom = geom, .n_heads = heads,
                        .scale = 1.0f / sqrtf((float)qk), .lo = m->lo, .hi = m->hi, .picks = r->picks, .n_picks = c->index_topk};
        op->attend(st->dev, ol, qa, &a);
        op->linear_heads(st->dev, o, c->v_dim, w->v_up.w, ol, c->latent, r->n);
        op->linear(st->dev, 1, &out, (const sib_matrix *const[]){w->o.w}, o, r->n);
    }
    st->arena->top = mark;
}

static void mlp(const glm *m, const sib_step *st, const glm_layer *w, float *out, const float *x, int rows)
{
    const sib_ops *op = st->dev->ops;
    const glm_config *c = &m->cfg;
    int ffn = w->sparse ? c->n_shared * c->moe_ffn : c->ffn;
    size_t mark = st->arena->top, n = (size_t)rows;
    float *f = SIB_PUSH(st->arena, float, n * ffn), *shared = out;
    if (w->sparse) {
        float *logits = SIB_PUSH(st->arena, float, n * c->n_experts), *weight = SIB_PUSH(st->arena, float, n * c->top_k);
        int32_t *idx = SIB_PUSH(st->arena, int32_t, n * c->top_k);
        shared = SIB_PUSH(st->arena, float, n * c->hidden);
        sib_sigmoid_route route = {.bias = w->route_bias, .n = c->n_experts, .n_groups = c->n_group, .top_groups = c->topk_group, .top_k = c->top_k,
                                   .normalise = c->norm_topk, .scale = (float)c->routed_scale};
        sib_moe experts = {w->x_gate.w, w->x_up.w, w->x_down.w, SIB_ACT_SILU, c->top_k};
        op->linear(st->dev, 1, &logits, (const sib_matrix *const[]){w->router.w}, x, rows);
        op->moe_route_sigmoid(st->dev, idx, weight, logits, &route, rows);
        op->moe(st->dev, out, &experts, x, idx, weight, rows);
    }
    if (w->gate.w) {
        op->linear_glu(st->dev, f, w->gate.w, w->up.w, SIB_ACT_SILU, x, rows);
        op->linear(st->dev, 1, &shared, (const sib_matrix *const[]){w->down.w}, f, rows);
        if (w->sparse) op->add(st->dev, out, out, shared, (int64_t)rows * c->hidden);
    }
    st->arena->top = mark;
}

void glm_layer_forward(glm *m, const sib_step *st, const glm_layer *w, float *h, glm_rows *r, const char *prefix, int index, bool kv_only)
{
    const sib_ops *op = st->dev->ops;
    const glm_config *c = &m->cfg;
    size_t mark = st->arena->top, count = (size_t)r->n * c->hidden;
    float *x = SIB_PUSH(st->arena, float, count), *y = SIB_PUSH(st->arena, float, count);
    op->rms_norm(st->dev, x, h, w->in_norm, r->n, c->hidden, (float)c->eps);
    attention(m, st, w, y, x, r, kv_only);
    if (!kv_only) {
        trace_stage(st, prefix, "attn_out", index, y, r->n, c->hidden);
        op->add(st->dev, h, h, y, (int64_t)count);
        op->rms_norm(st->dev, x, h, w->post_norm, r->n, c->hidden, (float)c->eps);
        mlp(m, st, w, y, x, r->n);
        trace_stage(st, prefix, "mlp_out", index, y, r->n, c->hidden);
        op->add(st->dev, h, h, y, (int64_t)count);
    }
    st->arena->top = mark;
}

void glm_head(const glm *m, float *logits, const float *hidden, int rows)
{
    const sib_ops *op = m->model.device->ops;
    op->linear(m->model.device, 1, &logits, (const sib_matrix *const[]){m->lm_head.w ? m->lm_head.w : m->embed.w}, hidden, rows);
}

static void capture_taps(const glm *m, const sib_step *st, const float *h, int index, int rows)
{
    int hidden = m->cfg.hidden;
    for (int t = 0; t < m->n_taps; t++)
        if (m->tap_layers[t] == index)
            st->dev->ops->copy_rows(st->dev, m->taps + (size_t)t * hidden, (int64_t)m->n_taps * hidden, h, hidden, rows, hidden);
}

sib_status glm_forward_on(glm *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    const sib_ops *op = dev->ops;
    const glm_config *c = &m->cfg;
    sib_step st = {dev, arena, &m->model.trace};
    size_t start = arena->top;
    int hidden = c->hidden;
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows) {
        m->counts[p] = parts[p].n_rows;
        m->seqs[p] = parts[p].seq ? parts[p].seq->kv : NULL;
        memcpy(m->ids + row, parts[p].ids, (size_t)parts[p].n_rows * sizeof *m->ids);
    }
    glm_rows r;
    glm_rows_begin(m, &st, &r, n_parts, m->limits.n_ctx, true);
    float *h = SIB_PUSH(arena, float, (size_t)r.n * hidden);
    op->embed(dev, h, m->embed.w, m->ids, r.n, 1.0f, 0, 0);
    sib_step_trace(&st, "hidden", 0, h, r.n, hidden);
    capture_taps(m, &st, h, -1, r.n);
    for (int i = 0; i < c->n_layers; i++) {
        glm_layer_forward(m, &st, &m->layers[i], h, &r, "", i, false);
        if (i < c->n_layers - 1) sib_step_trace(&st, "hidden", i + 1, h, r.n, hidden);
        sib_step_trace(&st, "layer_out", i, h, r.n, hidden);
        capture_taps(m, &st, h, i, r.n);
    }
    op->rms_norm(dev, m->hidden, h, m->final_norm, r.n, hidden, (float)c->eps);
    sib_step_trace(&st, "hidden", c->n_layers, m->hidden, r.n, hidden);
    capture_taps(m, &st, m->hidden, c->n_layers, r.n);

    /* The head runs on the rows whose logits are wanted, gathered so that it is one matmul. */
    int n_logits = 0;
    float *picked = SIB_PUSH(arena, float, (size_t)m->limits.max_logits * hidden);
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows) {
        int n = parts[p].n_logits;
        if (n == 0) continue;
        op->copy_rows(dev, picked + (size_t)n_logits * hidden, hidden, m->hidden + (size_t)(row + parts[p].n_rows - n) * hidden, hidden, n, hidden);
        n_logits += n;
    }
    if (n_logits > 0 && !sib_arena_planning(arena)) {
        glm_head(m, m->logits, picked, n_logits);
        sib_step_trace(&st, "logits", -1, m->logits, n_logits, c->n_vocab);
    }
    arena->top = start;
    *out = (sib_forward_out){.hidden = m->hidden, .logits = m->logits};
    if (arena->failed) return sib_fail(err, SIB_ECAPACITY, "step memory is too small for %d rows", r.n);
    return dev->ops->sync(dev, err);
}
