/* models/qwen3_5/state.c - recurrent states that can go back (qwen3_5.md 4.5, option a).
 *
 *   slot of a sequence, per linear layer:
 *     copy 0 [ conv rows | state ]   copy 1 [ conv rows | state ]   record [ u rows | a rows | b rows ]
 *
 * A block is computed from the front copy into the back one, which is swapped to the front when all of it is
 * kept. When only the first n rows are, the recurrence alone runs again over the recorded inputs of these
 * rows, from the front copy: the arithmetic per token is serial, so the bits are those of a run that never
 * saw the rest. After a keep the back copy still holds the state before the block, so the last block can
 * also be cut later. Blocks longer than max_block are not recorded: whole or nothing. */
#include "models/qwen3_5/qwen3_5.h"

static size_t rounded(size_t floats)
{
    return (floats + 15) / 16 * 16; /* 64 bytes */
}

static size_t record_floats(const qwen3_5 *m)
{
    const qwen3_5_config *c = &m->cfg;
    size_t conv_dim = (size_t)(2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim);
    return rounded((size_t)m->limits.max_block * (conv_dim + 2 * (size_t)c->n_v_heads));
}

void qwen3_5_states_plan(qwen3_5 *m)
{
    const qwen3_5_config *c = &m->cfg;
    size_t conv_dim = (size_t)(2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim);
    m->conv_floats = rounded((size_t)(c->taps - 1) * conv_dim);
    m->state_floats = m->conv_floats + rounded((size_t)c->n_v_heads * (size_t)c->k_dim * (size_t)c->v_dim);
    m->slot_floats = (size_t)m->n_linear * (2 * m->state_floats + record_floats(m));
}

static float *layer_slot(const qwen3_5 *m, const sib_seq *s, int index)
{
    return m->states + (size_t)s->slot * m->slot_floats + (size_t)index * (2 * m->state_floats + record_floats(m));
}

sib_delta_span qwen3_5_state_span(const qwen3_5 *m, const sib_seq *s, int index, int from, int committed)
{
    float *slot = layer_slot(m, s, index), *in = slot + (size_t)from * m->state_floats, *out = slot + (size_t)!from * m->state_floats;
    return (sib_delta_span){.conv_in = committed ? in : NULL, .state_in = committed ? in + m->conv_floats : NULL,
                            .conv_out = out, .state_out = out + m->conv_floats};
}

/* The three record arrays of a layer. */
static float *record(const qwen3_5 *m, const sib_seq *s, int index, float **a, float **b)
{
    const qwen3_5_config *c = &m->cfg;
    float *u = layer_slot(m, s, index) + 2 * m->state_floats;
    *a = u + (size_t)m->limits.max_block * (size_t)(2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim);
    *b = *a + (size_t)m->limits.max_block * (size_t)c->n_v_heads;
    return u;
}

void qwen3_5_record(const qwen3_5 *m, sib_device *dev, const sib_seq *s, int index, const float *u, const float *a, const float *b, int rows)
{
    const qwen3_5_config *c = &m->cfg;
    if (rows > m->limits.max_block) return;
    int conv_dim = 2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim;
    float *ra, *rb, *ru = record(m, s, index, &ra, &rb);
    dev->ops->copy_rows(dev, ru, conv_dim, u, conv_dim, rows, conv_dim);
    dev->ops->copy_rows(dev, ra, c->n_v_heads, a, c->n_v_heads, rows, c->n_v_heads);
    dev->ops->copy_rows(dev, rb, c->n_v_heads, b, c->n_v_heads, rows, c->n_v_heads);
}

/* The first n recorded rows, from the copy that holds the state at `base` into the other one. */
static sib_status replay(qwen3_5 *m, const sib_seq *s, int from, int base, int n, sib_err *err)
{
    sib_device *dev = m->model.device;
    for (int i = 0; i < m->cfg.n_layers; i++) {
        const qwen3_5_layer *w = &m->layers[i];
        if (w->full) continue;
        size_t mark = m->arena.top;
        float *scratch = SIB_PUSH(&m->arena, float, (size_t)n * (size_t)sib_delta_scratch(&w->delta));
        if (!scratch) return sib_fail(err, SIB_ECAPACITY, "step memory is too small to replay %d rows", n);
        float *a, *b, *u = record(m, s, w->index, &a, &b);
        sib_delta_span span = qwen3_5_state_span(m, s, w->index, from, base);
        span.n_rows = n;
        dev->ops->gated_delta(dev, NULL, u, NULL, a, b, &w->delta, &span, 1, scratch);
        m->arena.top = mark;
    }
    return dev->ops->sync(dev, err);
}

sib_status qwen3_5_keep(qwen3_5 *m, sib_seq *s, int n, sib_err *err)
{
    int pending = sib_kv_pending(s->kv), length = sib_kv_length(s->kv);
    bool recorded = pending <= m->limits.max_block;
    if (n < 0 || n > pending) return sib_fail(err, SIB_EARG, "keep %d of %d pending rows", n, pending);
    if (n > 0 && n < pending) {
        if (!recorded)
            return sib_fail(err, SIB_ESTATE, "keep %d of %d pending rows: a recurrent state goes back in blocks of at most %d rows", n, pending, m->limits.max_block);
        SIB_TRY(replay(m, s, s->front, length, n, err));
    }
    sib_kv_keep(s->kv, n);
    if (pending > 0) s->n_recorded = recorded ? n : 0; /* n 0: the copy at `base` has been overwritten */
    if (n == 0) return SIB_OK;
    s->front = !s->front;
    s->base = length;
    return SIB_OK;
}

int qwen3_5_reach(const sib_seq *s)
{
    return s->n_recorded > 0 && sib_kv_pending(s->kv) == 0 ? s->base : sib_kv_length(s->kv);
}

sib_status qwen3_5_truncate(qwen3_5 *m, sib_seq *s, int length, sib_err *err)
{
    SIB_TRY(qwen3_5_keep(m, s, 0, err));
    int now = sib_kv_length(s->kv);
    if (length < 0 || length > now) return sib_fail(err, SIB_EARG, "truncate to %d of %d positions", length, now);
    if (length == now) return SIB_OK;
    if (length > 0) {
        if (length < qwen3_5_reach(s)) return sib_fail(err, SIB_ESTATE, "a recurrent state cannot go back to position %d; it reaches back to %d", length, qwen3_5_reach(s));
        if (length == s->base)
            s->front = !s->front; /* the other copy is the state at `base`; this one is of no use any more */
        else
            SIB_TRY(replay(m, s, !s->front, s->base, length - s->base, err));
        s->n_recorded = length - s->base;
    } else {
        s->n_recorded = 0;
    }
    return sib_kv_truncate(s->kv, length, err);
}
