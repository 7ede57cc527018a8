/* models/qwen3_5/forward.c - one call over rows of several sequences (qwen3_5.md section 2).
 *
 *   ids -> embed -> layers: h += mixer(norm(h)); h += feed(norm(h)) -> norm -> head
 *
 * Stage names for traces: hidden.0 (embedding), hidden.i (output of layer i-1; the last one after the
 * final norm), attn_out.i (of either mixer), mlp_out.i, logits. */
#include "models/qwen3_5/qwen3_5.h"

#include <string.h>

/* Positions, visibility and spans of all rows. */
static int lay_out_rows(qwen3_5 *m, const sib_part *parts, int n_parts)
{
    int row = 0;
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        int base = part->seq ? sib_kv_length(part->seq->kv) : 0;
        int32_t offset = part->seq ? part->seq->position_offset : 0;
        m->spans[p] = (sib_span){.row0 = row, .n_rows = part->n_rows, .pos0 = base};
        m->seqs[p] = part->seq ? part->seq->kv : NULL;
        for (int i = 0; i < part->n_rows; i++, row++) {
            m->ids[row] = part->ids[i];
            m->pos[row] = base + i + offset;
            m->lo[row] = 0;
            m->hi[row] = base + i + 1;
        }
    }
    return row;
}

static void capture_taps(const qwen3_5 *m, sib_device *dev, const float *h, int index, int rows)
{
    int hidden = m->cfg.shape.hidden;
    for (int t = 0; t < m->n_taps; t++)
        if (m->tap_layers[t] == index)
            dev->ops->copy_rows(dev, m->taps + (size_t)t * (size_t)hidden, (int64_t)m->n_taps * hidden, h, hidden, rows, hidden);
}

void qwen3_5_head(const qwen3_5 *m, sib_device *dev, float *logits, const float *hidden, int rows)
{
    dev->ops->linear(dev, 1, &logits, (const sib_matrix *const[]){m->lm_head.w ? m->lm_head.w : m->embed.w}, hidden, rows);
}

/* x [rows][hidden], normed, becomes the delta rule's output. Planning: no spans. */
static void delta_mixer(const qwen3_5 *m, const qwen3_5_layer *w, const sib_step *st, float *x, const sib_part *parts, int n_spans, int rows)
{
    const sib_ops *op = st->dev->ops;
    const sib_delta *g = &w->delta;
    size_t n = (size_t)rows, wide = (size_t)(g->n_v_heads * g->v_dim), mark = st->arena->top;
    float *u = SIB_PUSH(st->arena, float, n * (size_t)sib_delta_conv_dim(g)), *z = SIB_PUSH(st->arena, float, n * wide);
    float *a = SIB_PUSH(st->arena, float, n * (size_t)g->n_v_heads), *b = SIB_PUSH(st->arena, float, n * (size_t)g->n_v_heads);
    float *y = SIB_PUSH(st->arena, float, n * wide), *scratch = SIB_PUSH(st->arena, float, n * (size_t)sib_delta_scratch(g));
    op->linear(st->dev, 4, (float *const[]){u, z, b, a}, (const sib_matrix *const[]){w->qkv.w, w->z.w, w->b.w, w->a.w}, x, rows);
    for (int p = 0; p < n_spans; p++) {
        const sib_seq *s = parts[p].seq;
        int row0 = m->spans[p].row0;
        m->delta_spans[p] = qwen3_5_state_span(m, s, w->index, s->front, m->spans[p].pos0);
        m->delta_spans[p].row0 = row0;
        m->delta_spans[p].n_rows = parts[p].n_rows;
        qwen3_5_record(m, st->dev, s, w->index, u + (size_t)row0 * (size_t)sib_delta_conv_dim(g), a + (size_t)row0 * (size_t)g->n_v_heads,
                       b + (size_t)row0 * (size_t)g->n_v_heads, parts[p].n_rows);
    }
    op->gated_delta(st->dev, y, u, z, a, b, g, m->delta_spans, n_spans, scratch);
    op->linear(st->dev, 1, &x, (const sib_matrix *const[]){w->out.w}, y, rows);
    st->arena->top = mark;
}

sib_status qwen3_5_forward_on(qwen3_5 *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts,
                              sib_forward_out *out, sib_err *err)
{
    const sib_qwen_shape *c = &m->cfg.shape;
    const sib_ops *op = dev->ops;
    sib_step st = {dev, arena, &m->model.trace};
    int hidden = c->hidden, n_layers = m->cfg.n_layers, rows = lay_out_rows(m, parts, n_parts);
    int n_spans = sib_arena_planning(arena) ? 0 : n_parts;
    int64_t all = (int64_t)rows * hidden;
    size_t start = arena->top;

    float *h = SIB_PUSH(arena, float, all), *x = SIB_PUSH(arena, float, all), *cs = SIB_PUSH(arena, float, (size_t)rows * (size_t)(2 * c->rope.n_pairs));
    op->embed(dev, h, m->embed.w, m->ids, rows, 1.0f, 0, 0);
    sib_step_trace(&st, "hidden", 0, h, rows, hidden);
    capture_taps(m, dev, h, -1, rows);
    op->rope_angles(dev, cs, c->inv_freq, c->rope.n_pairs, m->pos, rows);
    sib_qwen_rows info = {.n = rows, .spans = m->spans, .seqs = m->seqs, .n_spans = n_spans, .lo = m->lo, .hi = m->hi, .cs = cs};
    for (int i = 0; i < n_layers; i++) {
        const qwen3_5_layer *w = &m->layers[i];
        op->rms_norm(dev, x, h, w->in_norm, rows, hidden, (float)c->eps);
        if (w->full)
            sib_qwen_attend(c, &w->attention, &st, x, &info, w->index, NULL, i);
        else
            delta_mixer(m, w, &st, x, parts, n_spans, rows);
        sib_step_trace(&st, "attn_out", i, x, rows, hidden);
        op->add(dev, h, h, x, all);
        op->rms_norm(dev, x, h, w->post_norm, rows, hidden, (float)c->eps);
        sib_qwen_feed(c, &w->ffn, &st, x, rows);
        sib_step_trace(&st, "mlp_out", i, x, rows, hidden);
        op->add(dev, h, h, x, all);
        if (i < n_layers - 1) sib_step_trace(&st, "hidden", i + 1, h, rows, hidden);
        capture_taps(m, dev, h, i, rows);
    }
    op->rms_norm(dev, m->hidden, h, m->final_norm, rows, hidden, (float)c->eps);
    sib_step_trace(&st, "hidden", n_layers, m->hidden, rows, hidden);
    capture_taps(m, dev, m->hidden, n_layers, rows);

    /* The head runs on the rows whose logits are wanted, gathered so that it is one matmul. */
    int n_logits = 0;
    float *picked = SIB_PUSH(arena, float, (size_t)m->limits.max_logits * (size_t)hidden);
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows) {
        int n = parts[p].n_logits;
        if (n == 0) continue;
        op->copy_rows(dev, picked + (size_t)n_logits * (size_t)hidden, hidden, m->hidden + (size_t)(row + parts[p].n_rows - n) * (size_t)hidden, hidden, n, hidden);
        n_logits += n;
    }
    if (n_logits > 0) {
        qwen3_5_head(m, dev, m->logits, picked, n_logits);
        sib_step_trace(&st, "logits", -1, m->logits, n_logits, c->n_vocab);
    }
    arena->top = start;
    *out = (sib_forward_out){.hidden = m->hidden, .logits = m->logits};
    if (arena->failed) return sib_fail(err, SIB_ECAPACITY, "step memory is too small for %d rows", rows);
    return op->sync(dev, err);
}
