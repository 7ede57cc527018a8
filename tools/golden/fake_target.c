/* tools/golden/fake_target.c - see fake_target.h. */
#include "fake_target.h"

#include <stdlib.h>

typedef struct fake {
    sib_model model; /* first */
    sib_matrix *embed, *head;
} fake;

static fake *self(sib_model *m)
{
    return (fake *)(void *)m;
}

static void fake_free(sib_model *m)
{
    if (self(m)->embed) m->device->ops->matrix_free(m->device, self(m)->embed);
    if (self(m)->head) m->device->ops->matrix_free(m->device, self(m)->head);
    free(m);
}

static sib_status forward(sib_model *m, const sib_part *parts, int n_parts, sib_forward_out *out, sib_err *err)
{
    (void)m, (void)parts, (void)n_parts, (void)out;
    return sib_fail(err, SIB_ESTATE, "this target only lends its vocabulary");
}

static sib_status select_taps(sib_model *m, const int *layers, int n, sib_err *err)
{
    (void)m, (void)layers, (void)n, (void)err;
    return SIB_OK;
}

static const float *tap_rows(sib_model *m)
{
    (void)m;
    return NULL;
}

static void embed(sib_model *m, float *y, const int32_t *ids, int rows, bool scaled)
{
    m->device->ops->embed(m->device, y, self(m)->embed, ids, rows, scaled ? m->facts.embed_scale : 1, 0, 0);
}

static void head(sib_model *m, float *logits, const float *hidden, int rows)
{
    m->device->ops->linear(m->device, 1, &logits, (const sib_matrix *const[]){self(m)->head}, hidden, rows);
}

static const sib_model_ops ops = {.free = fake_free, .forward = forward};
static const sib_tap_port taps = {select_taps, tap_rows};
static const sib_vocab_port vocab = {embed, head};

static sib_status matrix(sib_device *dev, sib_matrix **out, const sib_facts *f, const float *values, sib_err *err)
{
    sib_matrix_src src = {.name = "target",
                          .storage = SIB_PLAIN,
                          .out = f->n_vocab,
                          .in = f->hidden,
                          .n_experts = 1,
                          .dtype = SIB_F32,
                          .data = values};
    return dev->ops->matrix_new(dev, out, &src, err);
}

sib_status fake_target_new(sib_model **out, sib_device *dev, const sib_facts *facts, const float *e, const float *h,
                           sib_err *err)
{
    *out = NULL;
    fake *m = calloc(1, sizeof *m);
    if (!m) return sib_nomem(err, "target");
    m->model = (sib_model){
        .ops = &ops, .facts = *facts, .device = dev, .offers = {.taps = &taps, .vocab = e && h ? &vocab : NULL}};
    sib_status s = SIB_OK;
    if (e && h) s = matrix(dev, &m->embed, facts, e, err);
    if (e && h && s == SIB_OK) s = matrix(dev, &m->head, facts, h, err);
    if (s != SIB_OK) {
        fake_free(&m->model);
        return s;
    }
    *out = &m->model;
    return SIB_OK;
}
