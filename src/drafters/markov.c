/* drafters/markov.c - see markov.h. */
#include "drafters/markov.h"

#include <math.h>
#include <string.h>

/* The bias of one step in bias[lanes][n_vocab]; e = w1[prev], s = state of the recurrent form (both device
 * [lanes][rank]). */
static void step_bias(const sib_markov *m, const sib_step *st, float *bias, const float *e, float *s, float *next,
                      int lanes)
{
    const sib_ops *op = st->dev->ops;
    if (!m->bh) {
        op->linear(st->dev, 1, &bias, (const sib_matrix *const[]){m->w2.w}, e, lanes);
        return;
    }
    op->linear(st->dev, 1, &next, (const sib_matrix *const[]){m->wh.w}, s, lanes);
    op->add(st->dev, next, next, e, (int64_t)lanes * m->rank);
    op->add_row(st->dev, next, next, m->bh, lanes, m->rank);
    op->softcap(st->dev, s, next, 1, (int64_t)lanes * m->rank); /* 1 * tanh(x / 1) */
    op->linear(st->dev, 1, &bias, (const sib_matrix *const[]){m->wo.w}, s, lanes);
}

void sib_markov_walk(const sib_markov *m, const sib_step *st, int32_t *tokens, float *confidence, const float *base,
                     const float *y, const int32_t *pending, int lanes, int steps)
{
    const sib_ops *op = st->dev->ops;
    size_t mark = st->arena->top, v = (size_t)m->n_vocab, r = (size_t)m->rank, n = (size_t)lanes;
    int width = m->width + (m->sees_token ? m->rank : 0);
    float *logits = SIB_PUSH(st->arena, float, n *v), *bias = SIB_PUSH(st->arena, float, n *v);
    float *e = SIB_PUSH(st->arena, float, n *r), *s = SIB_PUSH(st->arena, float, n *r),
          *next = SIB_PUSH(st->arena, float, n *r);
    float *seen = SIB_PUSH(st->arena, float, n *(size_t)steps *(size_t)width),
          *z = SIB_PUSH(st->arena, float, n *(size_t)steps);
    int32_t prev[64]; /* lanes of a group, sib_block_group */
    memcpy(prev, pending, n * sizeof *prev);
    if (m->bh) op->scale(st->dev, s, s, 0, (int64_t)(n * r));
    for (int i = 0; i < steps; i++) {
        op->copy_rows(st->dev, logits, m->n_vocab, base + (size_t)i * v, (int64_t)steps * m->n_vocab, lanes,
                      m->n_vocab);
        if (m->rank > 0) {
            op->embed(st->dev, e, m->w1.w, prev, lanes, 1, 0, 0);
            step_bias(m, st, bias, e, s, next, lanes);
            sib_step_trace(st, "draft.markov_bias", i, bias, lanes, m->n_vocab);
            op->add(st->dev, logits, logits, bias, (int64_t)(n * v));
        }
        sib_step_trace(st, "draft.logits", i, logits, lanes, m->n_vocab);
        if (m->confidence.w) {
            op->copy_rows(st->dev, seen + (size_t)i * (size_t)width, (int64_t)steps * width,
                          y + (size_t)i * (size_t)m->width, (int64_t)steps * m->width, lanes, m->width);
            if (m->sees_token)
                op->copy_rows(st->dev, seen + (size_t)i * (size_t)width + m->width, (int64_t)steps * width, e, m->rank,
                              lanes, m->rank);
        }
        op->argmax(st->dev, prev, logits, lanes, m->n_vocab);
        for (int l = 0; l < lanes; l++) tokens[l * steps + i] = prev[l];
    }
    if (confidence && m->confidence.w) {
        op->linear(st->dev, 1, &z, (const sib_matrix *const[]){m->confidence.w}, seen, lanes * steps);
        op->download(st->dev, confidence, z, n * (size_t)steps * sizeof *confidence);
        for (int i = 0; i < lanes * steps; i++) confidence[i] += m->confidence_bias;
        sib_step_trace(st, "draft.confidence_logits", -1, confidence, lanes, steps);
        for (int i = 0; i < lanes * steps; i++) confidence[i] = 1.0f / (1.0f + expf(-confidence[i]));
        sib_step_trace(st, "draft.confidence", -1, confidence, lanes, steps);
    }
    st->arena->top = mark;
}
