/* models/diffusion_gemma/forward.c - the three passes (diffusion_gemma.md 2.4 - 2.7).
 *
 *   encode      ids -> embed * s -> [soft rows] -> layers with the encoder's scalars, causal -> keys and values
 *   denoise     ids -> embed * s + self-conditioning of the last step -> norm -> layers with the denoiser's scalars, every
 *               canvas row seeing the whole canvas -> norm -> head -> cap -> what each row would choose
 *   condition   logits -> softmax(logits / t) E * s, kept for the sequence's next step
 *
 * Stage names for traces: hidden.i of an encoding call (0: the embedding, i: output of layer i-1; the last layer only stores
 * its keys and values), and of a step canvas.visible.0 and .1, canvas.input, canvas.hidden.i, canvas.logits; canvas.soft. */
#include "models/diffusion_gemma/diffusion_gemma.h"

#include <math.h>

/* ---- rows ------------------------------------------------------------------------------------ */

/* In what is encoded a placeholder without features is embedded as padding, as the reference does; in a canvas, where random
 * ids include it, it is a token as any other. */
static int32_t embedded_id(const diffusion_config *c, int32_t id)
{
    return id == c->image_id || id == c->video_id ? c->pad_id : id;
}

/* Rows that continue their sequence: causal, pictures as their soft spans say. */
static int lay_out_parts(diffusion_gemma *m, const sib_part *parts, int n_parts)
{
    int row = 0, window = m->cfg.window;
    for (int p = 0; p < n_parts; row += parts[p++].n_rows) {
        const sib_part *part = &parts[p];
        int base = part->seq ? sib_kv_length(part->seq->kv) : 0;
        m->spans[p] = (sib_span){.row0 = row, .n_rows = part->n_rows, .pos0 = base};
        m->kv[p] = part->seq ? part->seq->kv : NULL;
        for (int i = 0; i < part->n_rows; i++) {
            int r = row + i, pos = base + i;
            m->pos[r] = pos;
            m->ids[r] = embedded_id(&m->cfg, part->ids[i]);
            m->lo[SIB_FULL][r] = 0;
            m->lo[SIB_SLIDING][r] = pos >= window ? pos - window + 1 : 0;
            m->hi[SIB_FULL][r] = m->hi[SIB_SLIDING][r] = pos + 1;
        }
        for (int s = 0; s < part->n_soft; s++) {
            const sib_soft *soft = &part->soft[s];
            int first = base + soft->first, end = first + soft->n;
            for (int r = row + soft->first; soft->bidirectional && r < row + soft->first + soft->n; r++) {
                m->hi[SIB_SLIDING][r] = end;
                if (!soft->everywhere) continue;
                m->hi[SIB_FULL][r] = end;
                if (m->lo[SIB_SLIDING][r] > first) m->lo[SIB_SLIDING][r] = first; /* the block reaches beyond the window */
            }
        }
    }
    return row;
}

/* Canvas rows: all of the canvas and, on sliding layers, the last window - 1 committed positions whatever the row. */
static int lay_out_canvases(diffusion_gemma *m, const sib_canvas *canvases, int n)
{
    int row = 0, before = m->cfg.window - 1;
    for (int p = 0; p < n; row += canvases[p++].n) {
        const sib_canvas *c = &canvases[p];
        int base = c->seq ? sib_kv_length(c->seq->kv) : 0;
        m->spans[p] = (sib_span){.row0 = row, .n_rows = c->n, .pos0 = base};
        m->kv[p] = c->seq ? c->seq->kv : NULL;
        m->seqs[p] = c->seq;
        for (int i = 0; i < c->n; i++) {
            int r = row + i;
            m->pos[r] = base + i;
            m->ids[r] = c->ids[i];
            m->lo[SIB_FULL][r] = 0;
            m->lo[SIB_SLIDING][r] = base > before ? base - before : 0;
            m->hi[SIB_FULL][r] = m->hi[SIB_SLIDING][r] = base + c->n;
            m->last_t[r] = c->t;
            m->second[r] = c->second;
            m->u[r] = c->u ? c->u[i] : 0;
        }
    }
    return row;
}

static sib_gemma_rows rows_of(diffusion_gemma *m, const sib_step *st, int rows, int n_spans)
{
    sib_gemma_rows info = {.n = rows, .spans = m->spans, .seqs = m->kv, .n_spans = sib_arena_planning(st->arena) ? 0 : n_spans,
                           .lo = {m->lo[0], m->lo[1]}, .hi = {m->hi[0], m->hi[1]}};
    for (int k = 0; k < 2; k++) {
        float *cs = SIB_PUSH(st->arena, float, (size_t)rows * m->stack.rope[k].n_pairs * 2);
        st->dev->ops->rope_angles(st->dev, cs, m->stack.inv_freq[k], m->stack.rope[k].n_pairs, m->pos, rows);
        info.cs[k] = cs;
    }
    return info;
}

static sib_status finish(const sib_step *st, size_t start, int rows, sib_err *err)
{
    st->arena->top = start;
    if (st->arena->failed) return sib_fail(err, SIB_ECAPACITY, "step memory is too small for %d rows", rows);
    return st->dev->ops->sync(st->dev, err);
}

/* ---- encode ------------------------------------------------------------------------------------ */

sib_status diffusion_encode_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const sib_part *parts, int n_parts, sib_err *err)
{
    const sib_ops *op = dev->ops;
    sib_step st = {dev, arena, &m->model.trace};
    int hidden = m->cfg.hidden, last = m->cfg.n_layers - 1, rows = lay_out_parts(m, parts, n_parts);
    size_t start = arena->top;
    float *h = SIB_PUSH(arena, float, (size_t)rows * hidden);
    op->embed(dev, h, m->embed.w, m->ids, rows, m->embed_scale, 0, 0);
    for (int p = 0, row = 0; p < n_parts; row += parts[p++].n_rows)
        for (int s = 0; s < parts[p].n_soft; s++) {
            const sib_soft *soft = &parts[p].soft[s];
            op->copy_rows(dev, h + (size_t)(row + soft->first) * hidden, hidden, soft->features, hidden, soft->n, hidden);
        }
    sib_step_trace(&st, "hidden", 0, h, rows, hidden);
    sib_gemma_rows info = rows_of(m, &st, rows, n_parts);
    for (int i = 0; i <= last; i++) {
        info.keys_only = i == last; /* nothing reads what the last layer makes of its rows */
        sib_gemma_layer_forward(&m->stack, i, &st, h, &info, NULL, m->stack.layers[i].scalar);
        if (i < last) sib_step_trace(&st, "hidden", i + 1, h, rows, hidden);
    }
    return finish(&st, start, rows, err);
}

/* ---- denoise ----------------------------------------------------------------------------------- */

/* h = RMS(h + down(gelu(gate n) * (up n))), n = RMS(soft) * w. Canvases without a signal get a zero one: the block adds
 * nothing for them, but the norm behind it runs all the same. */
static void self_condition(const diffusion_gemma *m, const sib_step *st, float *h, const sib_canvas *canvases, int n, int rows)
{
    const sib_ops *op = st->dev->ops;
    int hidden = m->cfg.hidden, canvas = m->cfg.canvas;
    float eps = (float)m->cfg.eps;
    size_t mark = st->arena->top;
    float *soft = SIB_PUSH(st->arena, float, (size_t)rows * hidden), *f = SIB_PUSH(st->arena, float, (size_t)rows * m->cfg.ffn);
    float *y = SIB_PUSH(st->arena, float, (size_t)rows * hidden);
    for (int p = 0, row = 0; p < n; row += canvases[p++].n) {
        float *to = soft + (size_t)row * hidden;
        bool conditioned = canvases[p].conditioned && canvases[p].seq;
        const float *from = conditioned ? m->soft + (size_t)canvases[p].seq->slot * canvas * hidden : h + (size_t)row * hidden;
        op->scale(st->dev, to, from, conditioned ? 1.0f : 0.0f, (int64_t)canvases[p].n * hidden);
    }
    op->rms_norm(st->dev, soft, soft, m->sc_norm, rows, hidden, eps);
    op->linear_glu(st->dev, f, m->sc_gate.w, m->sc_up.w, SIB_ACT_GELU_TANH, soft, rows);
    op->linear(st->dev, 1, &y, (const sib_matrix *const[]){m->sc_down.w}, f, rows);
    op->add(st->dev, h, h, y, (int64_t)rows * hidden);
    op->rms_norm(st->dev, h, h, NULL, rows, hidden, eps);
    st->arena->top = mark;
}

static void trace_visible(const diffusion_gemma *m, const sib_step *st, int rows)
{
    if (!st->trace || !st->trace->fn || sib_device_is_nothing(st->dev)) return;
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < rows; r++)
            sib_step_trace(st, "canvas.visible", k, (const float[]){(float)m->lo[k][r], (float)m->hi[k][r]}, 1, 2);
}

sib_status diffusion_denoise_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const sib_canvas *canvases, int n,
                                const sib_denoised *out, sib_err *err)
{
    const sib_ops *op = dev->ops;
    const diffusion_config *c = &m->cfg;
    sib_step st = {dev, arena, &m->model.trace};
    int hidden = c->hidden, rows = lay_out_canvases(m, canvases, n);
    size_t start = arena->top;
    float *h = SIB_PUSH(arena, float, (size_t)rows * hidden);
    op->embed(dev, h, m->embed.w, m->ids, rows, m->embed_scale, 0, 0);
    self_condition(m, &st, h, canvases, n, rows);
    trace_visible(m, &st, rows);
    sib_step_trace(&st, "canvas.input", -1, h, rows, hidden);
    sib_gemma_rows info = rows_of(m, &st, rows, n);
    for (int i = 0; i < c->n_layers; i++) {
        sib_gemma_layer_forward(&m->stack, i, &st, h, &info, NULL, m->denoise_scalar[i]);
        sib_step_trace(&st, "canvas.hidden", i + 1, h, rows, hidden);
    }
    op->rms_norm(dev, m->hidden, h, m->norm, rows, hidden, (float)c->eps);
    op->linear(dev, 1, &m->logits, (const sib_matrix *const[]){m->embed.w}, m->hidden, rows);
    op->softcap(dev, m->logits, m->logits, (float)c->softcap, (int64_t)rows * c->n_vocab);
    sib_step_trace(&st, "canvas.logits", -1, m->logits, rows, c->n_vocab);
    m->n_last = n;
    if (out) {
        sib_choose choose = {.t = m->last_t, .second = m->second, .u = m->u, .best = out->best, .proposal = out->proposal,
                             .entropy = out->entropy, .confidence = out->confidence};
        op->choose(dev, &choose, m->logits, rows, c->n_vocab);
    }
    return finish(&st, start, rows, err);
}

sib_status diffusion_condition_on(diffusion_gemma *m, sib_device *dev, sib_arena *arena, const bool *wanted, const float *logits, sib_err *err)
{
    sib_step st = {dev, arena, &m->model.trace};
    size_t start = arena->top;
    int hidden = m->cfg.hidden, rows = 0;
    for (int p = 0; p < m->n_last; p++) {
        const sib_span *s = &m->spans[p];
        rows = s->row0 + s->n_rows;
        if (wanted && !wanted[p]) continue;
        float *to = m->seqs[p] ? m->soft + (size_t)m->seqs[p]->slot * m->cfg.canvas * hidden : m->soft;
        float *scratch = SIB_PUSH(arena, float, (size_t)s->n_rows * SIB_SOFT_SCRATCH);
        dev->ops->soft_embed(dev, to, m->embed.w, logits + (size_t)s->row0 * m->cfg.n_vocab, m->last_t + s->row0, s->n_rows, m->embed_scale,
                             scratch);
        sib_step_trace(&st, "canvas.soft", -1, to, s->n_rows, hidden);
        arena->top = start;
    }
    return finish(&st, start, rows, err);
}
