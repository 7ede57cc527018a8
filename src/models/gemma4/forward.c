/* models/gemma4/forward.c - one call over rows of several sequences (gemma4.md section 2).
 *
 *   ids -> embed * s -> [soft rows overwritten] -> per-layer inputs -> layers -> norm -> head -> cap
 *
 * Stage names for traces: visible.0 and visible.1 (rows' ranges on sliding and full layers), hidden.0 (embedding), hidden.i
 * (output of layer i-1; the last one after the final norm), attn_out.i, mlp_out.i, logits. */
#include "models/gemma4/gemma4.h"

#include <math.h>
#include <string.h>

/* Positions, visibility and spans of all rows. `base` is NULL when planning. */
static int lay_out_rows(gemma4 *m, const sib_part *parts, int n_parts)
{
    int row = 0, window = m->cfg.window;
    for (int p = 0; p < n_parts; p++) {
        const sib_part *part = &parts[p];
        int base = part->seq ? sib_kv_length(part->seq->kv) : 0;
        m->spans[p] = (sib_span){.row0 = row, .n_rows = part->n_rows, .pos0 = base};
        m->seqs[p] = part->seq ? part->seq->kv : NULL;
        for (int i = 0; i < part->n_rows; i++) {
            int r = row + i, pos = base + i;
            m->pos[r] = pos;
            /* A picture, audio or video placeholder without features is embedded as padding, as the reference does. */
            int id = part->ids[i];
            if (id == m->cfg.image_id || id == m->cfg.audio_id || id == m->cfg.video_id) id = m->cfg.pad_id;
            m->ids[r] = m->ple_ids[r] = id;
            m->lo[SIB_FULL][r] = 0;
            m->lo[SIB_SLIDING][r] = pos >= window ? pos - window + 1 : 0;
            m->hi[SIB_FULL][r] = m->hi[SIB_SLIDING][r] = pos + 1;
        }
        for (int s = 0; s < part->n_soft; s++) {
            const sib_soft *soft = &part->soft[s];
            for (int i = soft->first; i < soft->first + soft->n; i++) {
                m->ple_ids[row + i] = m->cfg.pad_id;
                /* A picture sees itself both ways on sliding layers only, clamped by the window on the left (4.8). */
                int first = base + soft->first, end = first + soft->n;
                if (soft->bidirectional) m->hi[SIB_SLIDING][row + i] = end;
                if (soft->bidirectional && soft->everywhere) {
                    m->hi[SIB_FULL][row + i] = end;
                    if (m->lo[SIB_SLIDING][row + i] > first) m->lo[SIB_SLIDING][row + i] = first;
                }
            }
        }
        row += part->n_rows;
    }
    return row;
}

/* First and one past the last visible position of every row, on sliding and on full layers. */
static void trace_visible(const gemma4 *m, const sib_step *st, int rows)
{
    if (!st->trace || !st->trace->fn || sib_device_is_nothing(st->dev)) return;
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < rows; r++)
            sib_step_trace(st, "visible", k, (const float[]){(float)m->lo[k][r], (float)m->hi[k][r]}, 1, 2);
}

static void merge_soft(const gemma4 *m, const sib_step *st, float *h, const sib_part *parts, int n_parts)
{
    int hidden = m->cfg.hidden;
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows)
        for (int s = 0; s < parts[p].n_soft; s++) {
            const sib_soft *soft = &parts[p].soft[s];
            st->dev->ops->copy_rows(st->dev, h + (size_t)(row + soft->first) * hidden, hidden, soft->features, hidden, soft->n, hidden);
        }
}

/* Per-layer inputs [rows][n_layers * ple] from the merged embeddings and the token ids (gemma4.md 2.3). */
static void per_layer_inputs(const gemma4 *m, const sib_step *st, float *pli, const float *h, int rows)
{
    const sib_ops *op = st->dev->ops;
    const gemma4_config *c = &m->cfg;
    int wide = c->n_layers * c->ple;
    int64_t all = (int64_t)rows * wide;
    size_t mark = st->arena->top;
    float *tok = SIB_PUSH(st->arena, float, all);
    op->linear(st->dev, 1, &pli, (const sib_matrix *const[]){m->ple_proj.w}, h, rows);
    op->scale(st->dev, pli, pli, 1.0f / sqrtf((float)c->hidden), all);
    op->rms_norm(st->dev, pli, pli, m->ple_norm, rows * c->n_layers, c->ple, (float)c->eps);
    op->embed(st->dev, tok, m->embed_ple.w, m->ple_ids, rows, m->scalar_ple, 0, 0);
    op->add(st->dev, pli, pli, tok, all);
    op->scale(st->dev, pli, pli, sqrtf(0.5f), all);
    st->arena->top = mark;
}

static void capture_taps(const gemma4 *m, const sib_step *st, const float *h, int index, int rows)
{
    int hidden = m->cfg.hidden;
    for (int t = 0; t < m->n_taps; t++)
        if (m->tap_layers[t] == index)
            st->dev->ops->copy_rows(st->dev, m->taps + (size_t)t * hidden, (int64_t)m->n_taps * hidden, h, hidden, rows, hidden);
}

static void head(const gemma4 *m, const sib_step *st, float *logits, const float *hidden, int rows)
{
    const sib_ops *op = st->dev->ops;
    op->linear(st->dev, 1, &logits, (const sib_matrix *const[]){m->lm_head.w ? m->lm_head.w : m->embed.w}, hidden, rows);
    if (m->cfg.softcap > 0) op->softcap(st->dev, logits, logits, (float)m->cfg.softcap, (int64_t)rows * m->cfg.n_vocab);
}

void gemma4_head(const gemma4 *m, float *logits, const float *hidden, int rows)
{
    sib_step st = {.dev = m->model.device};
    head(m, &st, logits, hidden, rows);
}

sib_status gemma4_forward_on(gemma4 *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts,
                             sib_forward_out *out, sib_err *err)
{
    const gemma4_config *c = &m->cfg;
    const sib_ops *op = dev->ops;
    sib_step st = {dev, arena, &m->model.trace};
    int hidden = c->hidden, rows = lay_out_rows(m, parts, n_parts);
    size_t start = arena->top;

    float *h = SIB_PUSH(arena, float, (size_t)rows * hidden);
    op->embed(dev, h, m->embed.w, m->ids, rows, m->scalar_embed, 0, 0);
    merge_soft(m, &st, h, parts, n_parts);
    trace_visible(m, &st, rows);
    sib_step_trace(&st, "hidden", 0, h, rows, hidden);
    capture_taps(m, &st, h, -1, rows);

    float *pli = NULL, *pli_layer = NULL;
    if (c->ple > 0) {
        pli = SIB_PUSH(arena, float, (size_t)rows * c->n_layers * c->ple);
        pli_layer = SIB_PUSH(arena, float, (size_t)rows * c->ple);
        per_layer_inputs(m, &st, pli, h, rows);
    }
    sib_gemma_rows info = {.n = rows, .spans = m->spans, .seqs = m->seqs, .n_spans = sib_arena_planning(arena) ? 0 : n_parts,
                           .lo = {m->lo[0], m->lo[1]}, .hi = {m->hi[0], m->hi[1]}};
    for (int k = 0; k < 2; k++) {
        float *cs = SIB_PUSH(arena, float, (size_t)rows * m->stack.rope[k].n_pairs * 2);
        op->rope_angles(dev, cs, m->stack.inv_freq[k], m->stack.rope[k].n_pairs, m->pos, rows);
        info.cs[k] = cs;
    }
    for (int i = 0; i < c->n_layers; i++) {
        if (pli) op->copy_rows(dev, pli_layer, c->ple, pli + (size_t)i * c->ple, (int64_t)c->n_layers * c->ple, rows, c->ple);
        sib_gemma_layer_forward(&m->stack, i, &st, h, &info, pli_layer, m->stack.layers[i].scalar);
        if (i < c->n_layers - 1) sib_step_trace(&st, "hidden", i + 1, h, rows, hidden);
        capture_taps(m, &st, h, i, rows);
    }
    op->rms_norm(dev, m->hidden, h, m->final_norm, rows, hidden, (float)c->eps);
    sib_step_trace(&st, "hidden", c->n_layers, m->hidden, rows, hidden);
    capture_taps(m, &st, m->hidden, c->n_layers, rows);

    /* The head runs on the rows whose logits are wanted, gathered so that it is one matmul. */
    int n_logits = 0;
    float *picked = SIB_PUSH(arena, float, (size_t)m->limits.max_logits * hidden);
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows) {
        int n = parts[p].n_logits;
        if (n == 0) continue;
        op->copy_rows(dev, picked + (size_t)n_logits * hidden, hidden, m->hidden + (size_t)(row + parts[p].n_rows - n) * hidden, hidden, n, hidden);
        n_logits += n;
    }
    if (n_logits > 0) {
        head(m, &st, m->logits, picked, n_logits);
        sib_step_trace(&st, "logits", -1, m->logits, n_logits, c->n_vocab);
    }
    arena->top = start;
    *out = (sib_forward_out){.hidden = m->hidden, .logits = m->logits};
    if (arena->failed) return sib_fail(err, SIB_ECAPACITY, "step memory is too small for %d rows", rows);
    return dev->ops->sync(dev, err);
}
